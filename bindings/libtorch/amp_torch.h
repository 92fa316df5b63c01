/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libamp_torch.so: opt levels and a GradScaler for libtorch bindings in other languages, as a C ABI over at::Tensor *.
 * There is one shared object per libtorch version. docs/start/libtorch.md is the guide.
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
 * Tensors. The pointer of a binding is passed as it is: `tensor` of tch-rs (C_tensor *), `Tensor` of TorchSharp (the
 * value of Handle) and the address of a Tensor of the JavaCPP presets are torch::Tensor *, as here. NULL or an
 * undefined tensor means no tensor. Returned tensors are made by `new at::Tensor` and belong to the caller: wrap them
 * as tensors of the binding, which deletes them (at_free, THSTensor_dispose, close()), or call amp_torch_tensor_free.
 * Tensor arguments are borrowed, and a session holds its own references.
 *
 * Optimizers. `optimizer` of tch-rs is torch::optim::Optimizer *, for amp_torch_step_optimizer. That of TorchSharp is a
 * std::shared_ptr *: pass its get(). Optimizers written in the language of the binding step in the callback of
 * amp_torch_step, or between amp_torch_step_begin and _end. They are numbered from 0: see amp_torch_open.
 *
 * Errors. As in amp.h: a status, with no change on anything but AMP_OK unless stated otherwise, and the message in
 * amp_torch_last_error(). No C++ exception leaves a function: an exception of torch becomes AMP_ERR_HOST_FAILED with
 * its message.
 *
 * Handles. A session and a scaler are numbers in the type of pointers. Closed or freed twice, or used afterwards, for
 * instance by a finalizer, they give AMP_ERR_INVALID_ARGUMENT, even if others were opened since. (A tensor is an object
 * of torch: deleting it twice is undefined.)
 *
 * Threads. As in amp.h: one thread at a time opens brackets and steps of a session, and each thread has its own guards.
 * AMP_ERR_WRONG_STATE: another thread is in a call on the same session or scaler. Pointers that may be NULL are marked
 * so, and NULL for others is AMP_ERR_INVALID_ARGUMENT.
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

/* Returns the message of the last error of this thread, valid until its next failing call, or "" if there was none. */
AMP_API const char *amp_torch_last_error(void);

/* Deletes a tensor made by a function here. NULL: no effect. */
AMP_API void amp_torch_tensor_free(amp_torch_tensor tensor);

/* ---- The session ------------------------------------------------------------------------------------------------- */

/* Parameters, buffers and optimizers at one level. The caller owns it and calls amp_torch_close. */
typedef struct amp_torch_session amp_torch_session;

#define AMP_TORCH_NOBODY UINT32_MAX /* no optimizer */

/* Opens a session: puts `n` tensors at `level`, parameters and floating buffers (other tensors are ignored). At O2, O3
 * and O5 they become 16-bit under their handles.
 *
 * config: overrides, without `level` (NULL: none).
 *
 * names: the names in files of amp_torch_state_save, copied. NULL, or NULL in an entry: "param.<index>".
 *
 * is_norm: 1 for tensors of batch norm, which stay FP32 at O2 and O5 (NULL: none).
 *
 * optimizers: the number, from 0, of the optimizer that updates tensors[i], or AMP_TORCH_NOBODY. NULL: optimizer 0
 * updates the tensors that require a gradient now. Every number up to the largest must have a tensor.
 *
 * AMP_ERR_WRONG_STATE: a tensor is 16-bit in another session. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_open(amp_level level, const amp_config *config,
                                                 const amp_torch_tensor *tensors, const char *const *names,
                                                 const uint8_t *is_norm, const uint32_t *optimizers, size_t n,
                                                 amp_torch_session **session);

/* A class that overrides the lists: { "einsum", AMP_LOWER }. A name without a namespace is one of aten. */
typedef struct amp_torch_op {
    const char *name;   /* "linear" or "aten::linear"; copied */
    amp_class op_class; /* AMP_LOWER, AMP_FP32, ... of amp.h */
} amp_torch_op;

/* amp_torch_open with classes for `n_ops` ops, which count at O1 and O4, as `options.ops` of amp_torch.hpp.
 * AMP_ERR_INVALID_ARGUMENT: an unknown class, or an op twice. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_open_with_ops(amp_level level, const amp_config *config,
                                                          const amp_torch_op *ops, size_t n_ops,
                                                          const amp_torch_tensor *tensors, const char *const *names,
                                                          const uint8_t *is_norm, const uint32_t *optimizers, size_t n,
                                                          amp_torch_session **session);

/* Adds `n` tensors to an optimizer during training, between a step and the next bracket: tensors of the session that no
 * optimizer has, or new FP32 ones, which become those of the level. Add them to the binding's optimizer too
 * (add_param_group, ato_add_parameters). Semantics as amp_add_params. All or none: on an error nothing has changed. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_add_params(amp_torch_session *session, uint32_t optimizer,
                                                       const amp_torch_tensor *tensors, size_t n);

/* Closes the session: cancels brackets and makes the tensors FP32 again, with the values of the masters. If guards are
 * still entered, this happens when the last one is left. NULL: no effect. AMP_ERR_WRONG_STATE: a step is not ended;
 * nothing has changed. */
AMP_API amp_status amp_torch_close(amp_torch_session *session);

/* Returns the context for the functions of amp.h and other headers (amp_explain, amp_get_record). Borrowed. NULL:
 * none. */
AMP_API amp_context *amp_torch_context(const amp_torch_session *session);

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

typedef uint64_t amp_torch_guard; /* opaque (0: none) */

/* Enter and leave the level of the session on this thread: in between ops are cast at O1 and O4, and weights are cast
 * once until the outermost guard is left. session NULL: ops are not cast (torch.autocast(enabled=False)). Guards nest.
 * Leave them on the same thread in reverse order. Otherwise AMP_ERR_WRONG_STATE, without effect. A thread that ends
 * leaves its guards. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_enter(amp_torch_session *session, amp_torch_guard *guard);
AMP_API amp_status amp_torch_leave(amp_torch_guard guard);

/* Cast the inputs and the outputs of a model to the type for the level (unchanged at O1 and O4), on the tape. cast[i]:
 * a new tensor even without a cast, or NULL if tensors[i] is none. On an error no tensor is made. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_cast_inputs(amp_torch_session *session, const amp_torch_tensor *tensors,
                                                        size_t n, amp_torch_tensor *cast);
AMP_API AMP_MUST_CHECK amp_status amp_torch_cast_outputs(amp_torch_session *session, const amp_torch_tensor *tensors,
                                                         size_t n, amp_torch_tensor *cast);

/* Drops cached casts. Call it after writing to weights through raw pointers while a guard is entered. */
AMP_API amp_status amp_torch_cache_clear(amp_torch_session *session);

/* ---- The bracket around backward --------------------------------------------------------------------------------- */

/* Opens the bracket of loss `loss_id` (below amp_config.num_losses) for the gradients of `n` optimizers (n 0: of all).
 * flags: AMP_DELAY_* of amp_train.h. Run backward from *scaled. Semantics as amp_scale_loss_begin. AMP_ERR_WRONG_STATE:
 * the loss, or one of the optimizers, already has an open bracket. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_begin(amp_torch_session *session, amp_torch_tensor loss, uint32_t loss_id,
                                                  const uint32_t *optimizers, size_t n, uint32_t flags,
                                                  amp_torch_tensor *scaled);

/* Closes the bracket with any status: unscales and checks the gradients, and writes AMP_STEP or AMP_SKIP to *action
 * (may be NULL). Semantics as amp_scale_loss_end. AMP_ERR_TOO_MANY_SKIPS comes after a completed end. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_end(amp_torch_session *session, uint32_t loss_id, amp_action *action);

/* Closes the bracket and undoes its backward, for a backward that failed. An exception in the language of the caller
 * does not close a bracket. */
AMP_API amp_status amp_torch_cancel(amp_torch_session *session, uint32_t loss_id);

/* Writes the present loss scale. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_scale(amp_torch_session *session, uint32_t loss_id, float *scale);

/* ---- The step ---------------------------------------------------------------------------------------------------- */

/* Lists the tensors that the optimizer updates: masters with their gradients if there are masters, else parameters.
 * Writes at most `capacity`, and their number to *count. They are views of memory of libamp, valid until the next
 * bracket or step, and must be freed before. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_masters(amp_torch_session *session, uint32_t optimizer,
                                                    amp_torch_tensor *masters, size_t capacity, size_t *count);

/* Clips the gradients of masters between bracket and step, as torch.nn.utils.clip_grad_norm_. *norm (may be NULL): the
 * norm before. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_clip_grad_norm(amp_torch_session *session, uint32_t optimizer,
                                                           double max_norm, double *norm);

/* The update of an optimizer, given by the caller. Returns 0 for success, other values become AMP_ERR_HOST_FAILED.
 * Exceptions of other languages must not leave it, those of C++ may. It must not close the session. */
typedef int32_t (*amp_torch_update)(void *self);

/* Calls update(self) with FP32 masters and their gradients in the tensors, unless a gradient was not finite. *stepped
 * (may be NULL): 1 if it was called. If the update fails, the step still ends, with the values written so far. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_step(amp_torch_session *session, uint32_t optimizer,
                                                 amp_torch_update update, void *self, int32_t *stepped);

/* Steps with torch_optimizer->step(). Its parameters must be those of `optimizer`. Not LBFGS. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_step_optimizer(amp_torch_session *session, uint32_t optimizer,
                                                           amp_torch_optimizer torch_optimizer, int32_t *stepped);

/* Begin and end a step without a callback: the caller updates in between if *steps is 1. Call both in either case. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_step_begin(amp_torch_session *session, uint32_t optimizer, int32_t *steps);
AMP_API AMP_MUST_CHECK amp_status amp_torch_step_end(amp_torch_session *session, uint32_t optimizer);

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

/* Writes scales and FP32 masters with their names, in safetensors format, as amp_state_save_memory. With data NULL and
 * capacity 0 it only writes the number of bytes to *size. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_state_save(amp_torch_session *session, void *data, size_t capacity,
                                                       size_t *size);

/* Loads such a state, before or after the binding loads the model and the optimizer, as amp_state_load_memory. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_state_load(amp_torch_session *session, const void *data, size_t size);

/* ---- GradScaler -------------------------------------------------------------------------------------------------- */

/* torch.amp.GradScaler for lists of gradients, without a session. It makes the same decisions in the same order. The
 * caller owns it. One thread at a time. */
typedef struct amp_torch_scaler amp_torch_scaler;

/* The members of state_dict, in the order of Python. growth_tracker: steps without overflow since the last change of
 * the scale. */
typedef struct amp_torch_scaler_state {
    double scale, growth_factor, backoff_factor;
    int64_t growth_interval, growth_tracker;
} amp_torch_scaler_state;

/* Makes a scaler. state: its initial state (NULL: the defaults of Python, { 65536, 2, 0.5, 2000, 0 }). */
AMP_API AMP_MUST_CHECK amp_status amp_torch_scaler_new(const amp_torch_scaler_state *state, amp_torch_scaler **scaler);
/* Frees a scaler. NULL: no effect. AMP_ERR_WRONG_STATE: called in the callback of its own step; nothing has changed. */
AMP_API amp_status amp_torch_scaler_free(amp_torch_scaler *scaler);

/* Multiplies a tensor by the scale, on the tape. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_scaler_scale(amp_torch_scaler *scaler, amp_torch_tensor tensor,
                                                         amp_torch_tensor *scaled);

/* Divides the gradients of an optimizer by the scale in place. Entries without a tensor are ignored. *found_inf (may be
 * NULL): 1 if a gradient is not finite. At most once between two updates. `optimizer`: a number that identifies the
 * optimizer. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_scaler_unscale(amp_torch_scaler *scaler, uint64_t optimizer,
                                                           const amp_torch_tensor *gradients, size_t n,
                                                           int32_t *found_inf);

/* Calls update(self), unless a gradient is not finite. Unscales first if that was not done. *stepped (may be NULL): 1
 * if it was called. If the update fails, the scaler has not stepped. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_scaler_step(amp_torch_scaler *scaler, uint64_t optimizer,
                                                        const amp_torch_tensor *gradients, size_t n,
                                                        amp_torch_update update, void *self, int32_t *stepped);

/* Sets the next scale after all steps of an iteration, or new_scale if that is not 0. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_scaler_update(amp_torch_scaler *scaler, double new_scale);

/* Read and write the state between iterations. */
AMP_API AMP_MUST_CHECK amp_status amp_torch_scaler_get_state(amp_torch_scaler *scaler, amp_torch_scaler_state *state);
AMP_API AMP_MUST_CHECK amp_status amp_torch_scaler_set_state(amp_torch_scaler *scaler,
                                                             const amp_torch_scaler_state *state);

#ifdef __cplusplus
}
#endif

#endif /* AMP_TORCH_H */
