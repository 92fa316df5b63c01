/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For calls that use no slot: casts by hand, the lifetime of casts on a tape, the context of a thread, the cast lists
 * as data, constant tables.
 */
#ifndef AMP_CALL_H
#define AMP_CALL_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Direct calls: the policy without interception --------------------------------------------------------------- */

/* Writes the type that the policy wants for the floating arguments of an op to *target, or AMP_DTYPE_DEFAULT for no
 * cast. dtypes: the present types of the `n` arguments. `op`: an op of the context or a name of the lists. Other names
 * get no cast. Scopes and open brackets make no difference. AMP_ERR_BANNED: an op of class AMP_BANNED with a 16-bit
 * argument. The result is the same on every machine unless amp_config.gate is AMP_ON. */
AMP_API AMP_MUST_CHECK amp_status amp_op_target(amp_context *context, const char *op, const amp_dtype *dtypes,
                                                size_t n, amp_dtype *target);

/* State between amp_cast_args and amp_cast_done. */
typedef struct amp_cast_frame {
    uint32_t struct_size;
    amp_dtype target; /* type of the casts (AMP_DTYPE_DEFAULT: no cast) */
    void *priv[4];
} amp_cast_frame;

#define AMP_CAST_FRAME_INIT AMP_SIZED_(amp_cast_frame)

/* Casts the arguments of a call that the host makes itself: replaces entries of `tensors` (NULL entries are ignored) by
 * casts to the type that the policy wants. amp_cast_done restores the handles and releases the casts, but for those
 * that a tape needs (amp_tape_done). `tensors` must stay valid until then. On an error `tensors` is unchanged and
 * amp_cast_done is not needed. Nothing is cast in a scope of another context or of none, inside a wrapped op, or in a
 * bracket with a loss without a scope. AMP_ERR_BANNED as amp_op_target. */
AMP_API AMP_MUST_CHECK amp_status amp_cast_args(amp_context *context, const char *op, void **tensors, size_t n,
                                                amp_cast_frame *frame);
AMP_API amp_status amp_cast_done(amp_cast_frame *frame);

/*
 * The same in three parts, for hosts that look an op up once and call it often (Python): the class of a name, the type
 * for a class and argument types, and the casts. The first two results stay valid for the life of the context.
 */

/* Writes the class of an op (as in amp_op_target) to *op_class: AMP_LEAVE for unknown names, never AMP_BY_LIST. */
AMP_API AMP_MUST_CHECK amp_status amp_op_class(amp_context *context, const char *op, amp_class *op_class);

/* amp_op_target for a known class, without the gate. `into`: the floating type of a tensor that the call writes (in
 * place or as out), which keeps its type, as (a!) in a schema (AMP_DTYPE_DEFAULT: none). `op`: for messages. `dtypes`:
 * for AMP_PROMOTE_SEQUENCE those of the tensors in the list. */
AMP_API AMP_MUST_CHECK amp_status amp_class_target(amp_context *context, const char *op, amp_class op_class,
                                                   amp_dtype into, const amp_dtype *dtypes, size_t n,
                                                   amp_dtype *target);

/* amp_cast_args for a known type: casts every floating tensor of another type. */
AMP_API AMP_MUST_CHECK amp_status amp_cast_to(amp_context *context, amp_dtype target, void **tensors, size_t n,
                                              amp_cast_frame *frame);

/* Modules of PyTorch that have a name of the lists, for amp_list_op.modules. */
enum {
    AMP_IN_FUNCTIONAL = 1u << 0, /* torch.nn.functional */
    AMP_IN_TORCH = 1u << 1,      /* torch */
    AMP_IN_TENSOR = 1u << 2,     /* methods of torch.Tensor, also in place (name_) */
    AMP_IN_VF = 1u << 3,         /* torch._VF, used by recurrent modules */
    AMP_IN_LINALG = 1u << 4,     /* torch.linalg, without the prefix linalg_ */
    AMP_IN_NN = 1u << 5,         /* torch._C._nn */
    AMP_IN_FFT = 1u << 6         /* torch.fft, without the prefix fft_ */
};

/* A name of a cast list. */
typedef struct amp_list_op {
    uint32_t struct_size;
    uint32_t modules; /* AMP_IN_*: modules of PyTorch that have it (0: a name of other hosts) */
    const char *name; /* valid for the life of the process */
    amp_class fp16;   /* its class at levels with fp16 */
    amp_class bf16;   /* its class at levels with bfloat16 */
} amp_list_op;

#define AMP_LIST_OP_INIT AMP_SIZED_(amp_list_op)

/* Copies a cast list (AMP_LISTS_*) to `ops`. capacity and count: as in amp_master_params. */
AMP_API AMP_MUST_CHECK amp_status amp_get_list_ops(int32_t lists, amp_list_op *ops, size_t capacity, size_t *count);

/* Releases the recorded casts of all tapes of the context. Call it when none of them has a backward to run: after the
 * last backward, or after a forward without one. Hosts with AMP_HOST_TAPE_RETAINS_INPUTS do not need it. */
AMP_API amp_status amp_tape_done(amp_context *context);

/* Drops all cached casts and the memory reserved for more. Do not call it while an op of this context runs. */
AMP_API amp_status amp_cache_clear(amp_context *context);

/* ---- Scopes ------------------------------------------------------------------------------------------------------ */

/* A change of the context of a thread. Scopes nest, and each must be left exactly once, also on error paths. Leaving
 * one after the scope around it is AMP_ERR_WRONG_STATE and uses it up. A scope is left on its thread. Without a scope a
 * wrapped call uses the only context on its slot, and no context if there are several. */
typedef struct amp_scope {
    uintptr_t v[4]; /* private to libamp */
} amp_scope;

/* Enter and leave a scope: in between, calls on this thread use `context`. NULL: calls get no casts (Apex:
 * disable_casts). */
AMP_API AMP_MUST_CHECK amp_status amp_scope_enter(amp_context *context, amp_scope *scope);
AMP_API amp_status amp_scope_leave(amp_scope *scope);

/* Gives the present scope to another thread: capture it here, adopt it there, and leave it there with `previous`.
 * Inside an op the capture disables casts, so that workers of an op run its inner calls without casts. */
AMP_API AMP_MUST_CHECK amp_status amp_scope_capture(amp_scope *scope);
AMP_API AMP_MUST_CHECK amp_status amp_scope_adopt(const amp_scope *captured, amp_scope *previous);

/* Returns 1 if a scope was entered on this thread, and writes its context to *context; NULL means no casts, also inside
 * a wrapped op. Returns 0, and NULL, if none was entered. */
AMP_API int32_t amp_scope_current(amp_context **context);

/* ---- Tables that cannot be written ------------------------------------------------------------------------------- */

/*
 * For constant tables of function pointers (`static const struct ops table`): describe the ops with slots inside the
 * table and the flag AMP_OP_COPY, initialize, and let the host call through a copy:
 *
 *     static struct ops wired;                                       calls use it instead of `table`
 *     amp_wrap_table(context, &table, sizeof table, &wired);
 *
 * Copies `bytes` bytes from `table` to `copy`, with wrappers in the wired slots; a single pointer is a table of
 * sizeof(amp_fn) bytes. One copy serves all contexts on the table: call this after each amp_initialize, in any order,
 * also while other threads call through the copy. amp_shutdown does not change copies; without a context they pass
 * calls through, for the life of the process. AMP_ERR_NOT_FOUND: no op of `context` with AMP_OP_COPY has its slot in
 * these bytes.
 */
AMP_API AMP_MUST_CHECK amp_status amp_wrap_table(amp_context *context, const void *table, size_t bytes, void *copy);

#ifdef __cplusplus
}
#endif

#endif /* AMP_CALL_H */
