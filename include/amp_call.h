/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that go otherwise than through a slot: the policy applied by hand, casts whose life a tape decides, the scope
 * of a thread, the cast lists as data, tables that cannot be written.
 */
#ifndef AMP_CALL_H
#define AMP_CALL_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Direct calls: the policy without interception --------------------------------------------------------------- */

/* The pure decision: the type that an op's floating arguments are to have, given the types they come in; the same on
 * every machine unless amp_config.gate is AMP_ON. *target = AMP_DTYPE_DEFAULT: leave them alone. `op` is an op of the
 * context or any name the lists know; names in neither are left alone. */
AMP_API AMP_MUST_CHECK amp_status amp_op_target(amp_context *context, const char *op, const amp_dtype *dtypes,
                                                size_t n, amp_dtype *target);

/* What amp_cast_args leaves for amp_cast_done. */
typedef struct amp_cast_frame {
    uint32_t struct_size;
    amp_dtype target; /* the type the arguments were given; AMP_DTYPE_DEFAULT: untouched */
    void *priv[4];
} amp_cast_frame;

#define AMP_CAST_FRAME_INIT AMP_SIZED_(amp_cast_frame)

/* Apply the context's policy to the arguments of a call that the host makes itself: entries of `tensors` (NULL
 * entries are passed over) are replaced by casts where the policy wants another type. amp_cast_done puts the original
 * handles back and ends the temporaries; tensors must stay valid until then. The thread's scope holds here as for a
 * wrapped call. */
AMP_API AMP_MUST_CHECK amp_status amp_cast_args(amp_context *context, const char *op, void **tensors, size_t n,
                                                amp_cast_frame *frame);
AMP_API amp_status amp_cast_done(amp_cast_frame *frame);

/*
 * The same in parts, for hosts that know an op once and call it often (Python): the class by name, the decision by
 * class and types, which may both be remembered for the life of the context, and the casts for a decision that was
 * made.
 */

/* What the policy does with an op, by the name that amp_op_target takes. *op_class is AMP_LEAVE for names that neither
 * the context nor its lists know, and never AMP_BY_LIST. */
AMP_API AMP_MUST_CHECK amp_status amp_op_class(amp_context *context, const char *op, amp_class *op_class);

/* amp_op_target for an op of this class. `into`: the floating type of a tensor that the call writes under its handle
 * (its own tensor in place, or an argument out), which keeps that type, as an (a!) in a schema; AMP_DTYPE_DEFAULT:
 * none. The gate has no say. `op` is for messages. AMP_PROMOTE_SEQUENCE: `dtypes` are those of the list's tensors. */
AMP_API AMP_MUST_CHECK amp_status amp_class_target(amp_context *context, const char *op, amp_class op_class,
                                                   amp_dtype into, const amp_dtype *dtypes, size_t n,
                                                   amp_dtype *target);

/* amp_cast_args with the type decided: every floating tensor of another type is replaced. */
AMP_API AMP_MUST_CHECK amp_status amp_cast_to(amp_context *context, amp_dtype target, void **tensors, size_t n,
                                              amp_cast_frame *frame);

/* Modules of PyTorch that a name of the lists stands for; amp_list_op.modules. */
enum {
    AMP_IN_FUNCTIONAL = 1u << 0, /* torch.nn.functional */
    AMP_IN_TORCH = 1u << 1,      /* torch */
    AMP_IN_TENSOR = 1u << 2,     /* methods of torch.Tensor, in place ones (name_) too */
    AMP_IN_VF = 1u << 3,         /* torch._VF, which recurrent modules call */
    AMP_IN_LINALG = 1u << 4,     /* torch.linalg, without linalg_ */
    AMP_IN_NN = 1u << 5,         /* torch._C._nn */
    AMP_IN_FFT = 1u << 6         /* torch.fft, without fft_ */
};

/* A name of a cast list. */
typedef struct amp_list_op {
    uint32_t struct_size;
    uint32_t modules; /* AMP_IN_*: where PyTorch has what is meant; 0: names of other hosts */
    const char *name; /* static */
    amp_class fp16;   /* its class where the low type is fp16 */
    amp_class bf16;   /* and where it is bfloat16 */
} amp_list_op;

#define AMP_LIST_OP_INIT AMP_SIZED_(amp_list_op)

/* A cast list (AMP_LISTS_*) as data; capacity and count as in amp_master_params. */
AMP_API AMP_MUST_CHECK amp_status amp_get_list_ops(int32_t lists, amp_list_op *ops, size_t capacity, size_t *count);

/* End of a tape's life (a backward pass that is over, or a forward that is dropped): casts recorded on it go. */
AMP_API amp_status amp_tape_done(amp_context *context);

/* Drop every cached cast, and memory that is kept for those to come. Not while the host runs an op of this context. */
AMP_API amp_status amp_cache_clear(amp_context *context);

/* ---- Scopes ------------------------------------------------------------------------------------------------------ */

/* Whose policy holds on this thread. A value: it nests, may be left on an error path, and is left exactly once. */
typedef struct amp_scope {
    uintptr_t v[4]; /* libamp's own */
} amp_scope;

/* Calls on this thread belong to `context` from here on; NULL: to none (Apex: disable_casts). */
AMP_API AMP_MUST_CHECK amp_status amp_scope_enter(amp_context *context, amp_scope *scope);
AMP_API amp_status amp_scope_leave(amp_scope *scope);

/* Hand the present scope to another thread: capture here, adopt there (previous: what to leave with). A capture
 * includes whether the thread is inside an op, so that an op's workers run their calls as they come. */
AMP_API AMP_MUST_CHECK amp_status amp_scope_capture(amp_scope *scope);
AMP_API AMP_MUST_CHECK amp_status amp_scope_adopt(const amp_scope *captured, amp_scope *previous);

/* Whose policy holds on this thread: 1 if a scope was entered, with its context in *context (NULL: none); 0 if none
 * was, with NULL. Inside an op that is wrapped or runs its casts: 1 and NULL. */
AMP_API int32_t amp_scope_current(amp_context **context);

/* ---- Tables that cannot be written ------------------------------------------------------------------------------- */

/*
 * For tables of function pointers that cannot be written (`static const struct ops table`): describe the ops with slots
 * inside the table and the flag AMP_OP_COPY, initialize, and let the host call through a copy of its own:
 *
 *     static struct ops wired;                                       in place of `table`, wherever calls are made
 *     amp_wrap_table(context, &table, sizeof table, &wired);
 *
 * Fills `copy` with the `bytes` at `table`, wrappers in the place of the slots that a context has wired; one pointer is
 * a table of sizeof(amp_fn). One copy serves all contexts on the table: call this after each amp_initialize, in any
 * order, also while other threads call through the copy. amp_shutdown leaves copies as they are: without a context they
 * pass calls through, for the life of the process. AMP_ERR_NOT_FOUND: no op of `context` with AMP_OP_COPY has its slot
 * in these bytes.
 */
AMP_API AMP_MUST_CHECK amp_status amp_wrap_table(amp_context *context, const void *table, size_t bytes, void *copy);

#ifdef __cplusplus
}
#endif

#endif /* AMP_CALL_H */
