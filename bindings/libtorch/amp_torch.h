/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libamp_torch.so: opt levels and a GradScaler for the bindings of libtorch in other languages, as a C ABI over
 * at::Tensor *. One shared object for a libtorch; docs/start/libtorch.md has the guide.
 *
 *     amp_torch_open(AMP_O2, NULL, tensors, names, is_norm, NULL, n, &session);        once
 *
 *     amp_torch_enter(session, &guard);                                                every iteration
 *     amp_torch_cast_inputs(session, &x, 1, &x16);
 *     ... forward, amp_torch_cast_outputs, the loss ...
 *     amp_torch_leave(guard);
 *     amp_torch_begin(session, loss, 0, NULL, 0, 0, &scaled);
 *     ... backward from scaled ...
 *     amp_torch_end(session, 0, &action);
 *     amp_torch_step(session, 0, update, self, &stepped);                              0: skipped, an overflow
 *
 * Tensors. A binding's own pointer is passed as it is: tch-rs's `tensor` (C_tensor *), TorchSharp's `Tensor` (what
 * Handle holds), and the address of a Tensor of the JavaCPP presets are torch::Tensor *, as here; NULL or an undefined
 * tensor is none. What comes out is made by `new at::Tensor` and is the caller's: wrap it as any tensor of the binding,
 * which deletes it (at_free, THSTensor_dispose, close()), or call amp_torch_tensor_free. Tensors that come in are
 * borrowed; a session holds references of its own.
 *
 * Optimizers. tch-rs's `optimizer` is torch::optim::Optimizer *, for amp_torch_step_optimizer; TorchSharp's is a
 * std::shared_ptr *, of which get() is meant. Optimizers written in the binding's language step in amp_torch_step's
 * callback, or between amp_torch_step_begin and _end. They are told apart by numbers from 0: see amp_torch_open.
 *
 * Errors. As in amp.h: a status; on anything but AMP_OK nothing has changed but where stated, and
 * amp_torch_last_error() has the words. No C++ exception leaves a function: what torch threw is AMP_ERR_HOST_FAILED,
 * with torch's words.
 *
 * Handles. A session and a scaler are numbers in the shape of pointers. Closed or freed a second time, or used
 * afterwards, as a finalizer does, they are AMP_ERR_INVALID_ARGUMENT, whatever was opened since. (A tensor is torch's
 * own object: deleted twice it is undefined, as anywhere.)
 *
 * Threads. As in amp.h: a session's brackets and steps are the business of one thread at a time; enter and leave are
 * each thread's own. A call while another thread is in one on the same session or scaler is AMP_ERR_WRONG_STATE.
 * Pointers that may be NULL say so; any other that is NULL is AMP_ERR_INVALID_ARGUMENT.
 */
#ifndef AMP_TORCH_H
#define AMP_TORCH_H

#include <amp.h>

#ifdef __cplusplus
namespace at {
class Tensor;
}
namespace torch::optim {
class Optimizer;
}
typedef at::Tensor *amp_torch_tensor;
typedef torch::optim::Optimizer *amp_torch_optimizer;
extern "C" {
#else
typedef struct amp_torch_tensor_object *amp_torch_tensor;       /* at::Tensor * */
typedef struct amp_torch_optimizer_object *amp_torch_optimizer; /* torch::optim::Optimizer * */
#endif

/* This thread's last error in words, until its next failing call; "" if there was none. */
AMP_API const char *amp_torch_last_error(void);

/* delete, for tensors that functions here made. NULL is a no-op. */
AMP_API void amp_torch_tensor_free(amp_torch_tensor tensor);

/* ---- The session ------------------------------------------------------------------------------------------------- */

/* Parameters, buffers and optimizers under one level. The caller's, who ends it with amp_torch_close. */
typedef struct amp_torch_session amp_torch_session;

#define AMP_TORCH_NOBODY UINT32_MAX /* no optimizer */

/* Put `n` tensors under `level`: parameters and floating buffers (others are passed over). At O2, O3 and O5 they become
 * 16-bit under the handles that they are.
 * config: overrides, of which `level` is not read; NULL: none.
 * names: as the files of amp_torch_state_save have them, copied; NULL, or an entry NULL: "param.<index>".
 * is_norm: 1 for those of batch norm, which stay FP32 at O2 and O5; NULL: none.
 * optimizers: the number, from 0, of the optimizer that updates tensors[i], or AMP_TORCH_NOBODY; NULL: optimizer 0
 * updates those that require a gradient now. Every number below the greatest has a tensor.
 * AMP_ERR_WRONG_STATE: a tensor is 16-bit in another session. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_open(amp_level level, const amp_config *config,
                                                 const amp_torch_tensor *tensors, const char *const *names,
                                                 const uint8_t *is_norm, const uint32_t *optimizers, size_t n,
                                                 amp_torch_session **session);

/* End it: brackets are cancelled, tensors are FP32 again, with the masters' values; while guards of it are left, when
 * the last of them is. NULL is a no-op. AMP_ERR_WRONG_STATE: a step has begun and not ended; nothing was done. */
AMP_API amp_status amp_torch_close(amp_torch_session *session);

/* The context, for the functions of amp.h and its pages: amp_explain, amp_get_record, ... Borrowed; NULL: none. */
AMP_API amp_context *amp_torch_context(const amp_torch_session *session);

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

typedef uint64_t amp_torch_guard; /* opaque; 0 is none */

/* From here on this thread's ops obey the session's level, at O1 and O4, and weights are cast once until the outermost
 * guard is left. NULL: nobody's (torch.autocast(enabled=False)). Guards nest; what was entered is left on its thread,
 * in reverse order, else AMP_ERR_WRONG_STATE and nothing was done. A thread that ends leaves its own. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_enter(amp_torch_session *session, amp_torch_guard *guard);
AMP_API amp_status amp_torch_leave(amp_torch_guard guard);

/* What goes into a model, and what comes out, in the type that the level has for it (at O1 and O4: as it is), on the
 * tape. cast[i] is a new tensor even where nothing was cast, or NULL where tensors[i] is none. On an error none is. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_cast_inputs(amp_torch_session *session, const amp_torch_tensor *tensors,
                                                        size_t n, amp_torch_tensor *cast);
AMP_API AMP_MUST_CHECK amp_status amp_torch_cast_outputs(amp_torch_session *session, const amp_torch_tensor *tensors,
                                                         size_t n, amp_torch_tensor *cast);

/* Drop kept casts, after writes to weights through raw pointers while a guard is entered. */
AMP_API amp_status amp_torch_cache_clear(amp_torch_session *session);

/* ---- The bracket around backward --------------------------------------------------------------------------------- */

/* Open the bracket of loss `loss_id` (below amp_config.num_losses) for the gradients of `n` optimizers; n 0: of all.
 * flags: AMP_DELAY_* of amp_train.h. Backward starts from *scaled. amp_scale_loss_begin has the semantics. A loss has
 * one bracket at a time, an optimizer is in one: AMP_ERR_WRONG_STATE. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_begin(amp_torch_session *session, amp_torch_tensor loss, uint32_t loss_id,
                                                  const uint32_t *optimizers, size_t n, uint32_t flags,
                                                  amp_torch_tensor *scaled);

/* Close it, whatever is returned: gradients are unscaled and checked, and *action (may be NULL) is AMP_STEP or
 * AMP_SKIP. As amp_scale_loss_end; AMP_ERR_TOO_MANY_SKIPS comes after a completed end. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_end(amp_torch_session *session, uint32_t loss_id, amp_action *action);

/* Close it as if backward had not happened: for a backward that failed. An exception of the caller's language does not
 * close a bracket by itself. */
AMP_API amp_status amp_torch_cancel(amp_torch_session *session, uint32_t loss_id);

/* The present scale. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_scale(amp_torch_session *session, uint32_t loss_id, float *scale);

/* ---- The step ---------------------------------------------------------------------------------------------------- */

/* What the optimizer updates: masters with their gradients where there are masters, else the parameters; at most
 * `capacity` of them, and in *count how many there are. Views of libamp's memory: valid until the next bracket or step,
 * and to be freed by then. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_masters(amp_torch_session *session, uint32_t optimizer,
                                                    amp_torch_tensor *masters, size_t capacity, size_t *count);

/* Between the bracket and the step, as torch.nn.utils.clip_grad_norm_ over the masters' gradients. *norm (may be NULL)
 * is the norm before. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_clip_grad_norm(amp_torch_session *session, uint32_t optimizer,
                                                           double max_norm, double *norm);

/* The optimizer's update. 0: done; anything else is told as AMP_ERR_HOST_FAILED. Exceptions of other languages must end
 * inside; C++'s may leave it. It may not close the session. */
typedef int32_t (*amp_torch_update)(void *self);

/* Call update(self), while the tensors show FP32 masters and their gradients, unless a gradient was not finite.
 * *stepped (may be NULL): 1 if it was called. Where it fails the step is over all the same, with what it had
 * written. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_step(amp_torch_session *session, uint32_t optimizer,
                                                 amp_torch_update update, void *self, int32_t *stepped);

/* The same by torch_optimizer->step(); its parameters must be those of `optimizer`. Not LBFGS. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_step_optimizer(amp_torch_session *session, uint32_t optimizer,
                                                           amp_torch_optimizer torch_optimizer, int32_t *stepped);

/* The same without a callback: the caller updates between the two where *steps is 1. Both are called in either case. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_step_begin(amp_torch_session *session, uint32_t optimizer, int32_t *steps);
AMP_API AMP_MUST_CHECK amp_status amp_torch_step_end(amp_torch_session *session, uint32_t optimizer);

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

/* Scales and FP32 masters under their names, in the safetensors format: amp_state_save_memory has the semantics. data
 * NULL and capacity 0: *size says how many bytes it would be. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_state_save(amp_torch_session *session, void *data, size_t capacity,
                                                       size_t *size);

/* Beside the binding's own loading of the model and the optimizer, in any order: amp_state_load_memory. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_state_load(amp_torch_session *session, const void *data, size_t size);

/* ---- GradScaler -------------------------------------------------------------------------------------------------- */

/* torch.amp.GradScaler, tick by tick, over lists of gradients, without a session. The caller's, who frees it. One
 * thread at a time. */
typedef struct amp_torch_scaler amp_torch_scaler;

/* state_dict, in Python's order. growth_tracker: steps without an overflow since the scale changed. */
typedef struct amp_torch_scaler_state {
    double scale, growth_factor, backoff_factor;
    int64_t growth_interval, growth_tracker;
} amp_torch_scaler_state;

/* state: from where it starts; NULL: Python's defaults, { 65536, 2, 0.5, 2000, 0 }. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_scaler_new(const amp_torch_scaler_state *state, amp_torch_scaler **scaler);
/* NULL is a no-op. AMP_ERR_WRONG_STATE: in its own step's callback; nothing was done. */
AMP_API amp_status amp_torch_scaler_free(amp_torch_scaler *scaler);

/* tensor times the scale, on the tape. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_scaler_scale(amp_torch_scaler *scaler, amp_torch_tensor tensor,
                                                         amp_torch_tensor *scaled);

/* Divide an optimizer's gradients in place (none among them are passed over); *found_inf (may be NULL): 1 if one is not
 * finite. Once between two updates. `optimizer` is any number that tells it from others. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_scaler_unscale(amp_torch_scaler *scaler, uint64_t optimizer,
                                                           const amp_torch_tensor *gradients, size_t n,
                                                           int32_t *found_inf);

/* update(self), unless a gradient is not finite; unscales first where that was not done. *stepped (may be NULL): 1 if
 * it was called. Where update fails, the scaler has not stepped. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_scaler_step(amp_torch_scaler *scaler, uint64_t optimizer,
                                                        const amp_torch_tensor *gradients, size_t n,
                                                        amp_torch_update update, void *self, int32_t *stepped);

/* After all steps of an iteration: the next scale; or new_scale, where it is not 0. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_scaler_update(amp_torch_scaler *scaler, double new_scale);

/* Between iterations. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_scaler_get_state(amp_torch_scaler *scaler, amp_torch_scaler_state *state);
AMP_API AMP_MUST_CHECK amp_status amp_torch_scaler_set_state(amp_torch_scaler *scaler,
                                                             const amp_torch_scaler_state *state);

#ifdef __cplusplus
}
#endif

#endif /* AMP_TORCH_H */
