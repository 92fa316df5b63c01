/* SPDX-License-Identifier: Apache-2.0 */
/* The policy for hosts that call their functions directly: the same decision and the same casts as in a
 * wrapped call. */
#include "amp_call.h"
#include "amp_gate.h"
#include "call/cache.h"
#include "call/call.h"
#include "call/gate.h"
#include "call/operands.h"
#include "call/tape.h"
#include "context/context.h"
#include "context/op.h"
#include "context/optimizer.h"

#include <string.h>

/* An op of the context by name, or only a class from the lists. */
struct named {
    struct amp__op *op;
    amp_class op_class;
};

static amp_status find_op(amp_context *context, const char *name, struct named *out) {
    const struct amp__keyed *entries;
    size_t n;
    AMP_TRY(amp__ops_named(context, name, &entries, &n));
    for (size_t i = 0; i < n; i++) {
        struct amp__op *op = entries[i].value;
        if (strcmp(op->name, name) != 0) continue;
        *out = (struct named){ op, op->op_class };
        return AMP_OK;
    }
    char base[AMP__OP_NAME_MAX + 1];
    amp__op_base_name(name, base);
    const amp_class listed = context->properties.patch_ops
                                 ? amp__list_class(context->properties.lists, context->properties.low, base)
                                 : AMP_BY_LIST;
    *out = (struct named){ NULL, listed == AMP_BY_LIST ? AMP_LEAVE : listed };
    return AMP_OK;
}

static amp_status check_op_name(const amp_context *context, const char *op, const char *who) {
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT, "%s: context is NULL", who);
    AMP_RETURN_IF(!op || !op[0], AMP_ERR_INVALID_ARGUMENT, "%s: the op has no name", who);
    return AMP_OK;
}

/* The i-th of n tensors of a call as an operand. The op's schema says what it is: a list takes what the other arguments
 * leave. Names without a schema have plain inputs, or a list. */
static struct amp__operand operand_at(const struct named *named, size_t i, size_t n, amp_dtype dtype) {
    const struct amp__schema *schema = named->op ? named->op->schema : NULL;
    struct amp__operand operand = { dtype, named->op_class == AMP_PROMOTE_SEQUENCE, false };
    for (uint32_t j = 0, at = 0; schema && j < schema->n_args; j++) {
        const struct amp__arg *arg = &schema->args[j];
        if (arg->kind != AMP__TENSOR) continue;
        const size_t others = schema->n_tensors - 1u;
        const size_t takes = !(arg->flags & AMP__LIST) ? 1 : n > others ? n - others : 0;
        if (i >= at && i < at + takes) {
            if (arg->flags & (AMP__KEEP | AMP__SEED | AMP__WRITE)) operand.dtype = AMP_DTYPE_OTHER;
            operand.in_list = (arg->flags & AMP__LIST) != 0;
            operand.read_write = (arg->flags & AMP__READ_WRITE) != 0;
            return operand;
        }
        at += (uint32_t)takes;
    }
    return operand;
}

/* gated: may the gate hold such a call back? */
static amp_status target_of(const amp_context *context, const char *op, const struct named *named,
                            const amp_dtype *dtypes, size_t n, amp_dtype *target, bool *gated) {
    struct amp__operands operands = { .n = 0 };
    bool all_fp32 = true;
    for (size_t i = 0; i < n; i++) {
        AMP_RETURN_IF(dtypes[i] < AMP_FLOAT32 || dtypes[i] > AMP_DTYPE_OTHER, AMP_ERR_INVALID_ARGUMENT,
                      "amp_op_target: dtypes[%zu] is %d, which is no type of a tensor", i, (int)dtypes[i]);
        amp__operands_add(&operands, operand_at(named, i, n, dtypes[i]));
        all_fp32 &= dtypes[i] == AMP_FLOAT32 || dtypes[i] == AMP_DTYPE_OTHER;
    }
    const struct amp__decision decision =
        amp__decide(&context->properties, named->op_class, operands.distinct, operands.n);
    AMP_TRY(amp__decision_error(decision, op));
    *gated = context->properties.gate == AMP_ON && named->op && !amp__gate_is_open(named->op) && all_fp32 &&
             decision.target == context->properties.low;
    *target = decision.target;
    return AMP_OK;
}

AMP_API amp_status amp_op_target(amp_context *context, const char *op, const amp_dtype *dtypes, size_t n,
                                 amp_dtype *target) {
    AMP_TRY(check_op_name(context, op, "amp_op_target"));
    AMP_RETURN_IF((n && !dtypes) || !target, AMP_ERR_INVALID_ARGUMENT, "amp_op_target: an argument is NULL");
    struct named named;
    amp_dtype decided;
    bool gated;
    AMP_TRY(find_op(context, op, &named));
    AMP_TRY(target_of(context, op, &named, dtypes, n, &decided, &gated));
    *target = gated && atomic_load(&named.op->gate_least) == AMP_GATE_NEVER ? AMP_DTYPE_DEFAULT : decided;
    return AMP_OK;
}

AMP_API amp_status amp_op_class(amp_context *context, const char *op, amp_class *op_class) {
    AMP_TRY(check_op_name(context, op, "amp_op_class"));
    AMP_RETURN_IF(!op_class, AMP_ERR_INVALID_ARGUMENT, "amp_op_class: an argument is NULL");
    struct named named;
    AMP_TRY(find_op(context, op, &named));
    *op_class = named.op_class;
    return AMP_OK;
}

AMP_API amp_status amp_class_target(amp_context *context, const char *op, amp_class op_class, amp_dtype into,
                                    const amp_dtype *dtypes, size_t n, amp_dtype *target) {
    AMP_TRY(check_op_name(context, op, "amp_class_target"));
    AMP_RETURN_IF((n && !dtypes) || !target, AMP_ERR_INVALID_ARGUMENT, "amp_class_target: an argument is NULL");
    AMP_RETURN_IF(op_class < AMP_LOWER || op_class > AMP_LEAVE, AMP_ERR_INVALID_ARGUMENT,
                  "amp_class_target: %d is no class of an op", (int)op_class);
    AMP_RETURN_IF(into && !amp__is_floating(into), AMP_ERR_INVALID_ARGUMENT,
                  "amp_class_target: into is %d, which is no floating type", (int)into);
    struct amp__operands operands = { .n = 0 };
    if (into) amp__operands_add(&operands, (struct amp__operand){ into, false, true });
    for (size_t i = 0; i < n; i++) {
        AMP_RETURN_IF(dtypes[i] < AMP_FLOAT32 || dtypes[i] > AMP_DTYPE_OTHER, AMP_ERR_INVALID_ARGUMENT,
                      "amp_class_target: dtypes[%zu] is %d, which is no type of a tensor", i, (int)dtypes[i]);
        amp__operands_add(&operands, (struct amp__operand){ dtypes[i], op_class == AMP_PROMOTE_SEQUENCE, false });
    }
    const struct amp__decision decision =
        amp__decide(&context->properties, context->properties.patch_ops ? op_class : AMP_LEAVE, operands.distinct,
                    operands.n);
    AMP_TRY(amp__decision_error(decision, op));
    *target = decision.target;
    return AMP_OK;
}

AMP_API amp_status amp_get_list_ops(int32_t lists, amp_list_op *ops, size_t capacity, size_t *count) {
    AMP_RETURN_IF(!count || (capacity && !ops), AMP_ERR_INVALID_ARGUMENT, "amp_get_list_ops: an argument is NULL");
    AMP_RETURN_IF(lists < AMP_LISTS_DEFAULT || lists > AMP_LISTS_TORCH, AMP_ERR_INVALID_ARGUMENT,
                  "amp_get_list_ops: there are no lists %d", (int)lists);
    if (capacity) AMP_TRY(amp__check_struct(ops->struct_size, sizeof *ops, "amp_list_op"));
    const uint32_t stride = capacity ? ops->struct_size : 0;
    amp_list_op op;
    size_t n = 0;
    for (; amp__list_op(lists ? lists : AMP_LISTS_APEX, n, &op); n++) {
        if (n >= capacity) continue;
        amp_list_op *entry = (amp_list_op *)(void *)((char *)ops + n * stride);
        entry->struct_size = stride;
        AMP_TRY(amp__fill_struct(entry, stride, sizeof op, &op, sizeof op, "amp_list_op"));
    }
    *count = n;
    return AMP_OK;
}

/* ---- casting around a direct call ---- */

/* What amp_cast_done needs; one block. */
struct direct {
    struct amp__casting casting;
    void **tensors;
    size_t n;
    void *originals[];
};

/* Does this context's policy hold for a call that names it explicitly? */
static bool obeys(const amp_context *context, const struct amp__thread *thread, const struct amp__op *op) {
    if (thread->scope.inside) return false;
    if (thread->scope.set && thread->scope.context != context) return false;
    return (op && op->is_backward) || amp__ops_obey(context, thread);
}

static const amp_host *host_of(const amp_context *context, const struct amp__op *op) {
    if (op) return op->host;
    if (context->n_models) return &context->models[0].host;
    return context->n_optimizers ? &context->optimizers[0].host : NULL;
}

static void free_types(amp_dtype *const *types) { amp__free(*types); }

static amp_dtype *types_of(const amp_host *host, void *const *tensors, size_t n) {
    AMP_CLEANUP(free_types) amp_dtype *types = amp__alloc(n, sizeof *types);
    for (size_t i = 0; types && i < n; i++)
        types[i] = tensors[i] ? amp__host_dtype(host, tensors[i]) : AMP_DTYPE_OTHER;
    amp_dtype *result = types;
    types = NULL;
    return result;
}

static amp_status cast_all(struct direct *direct, const char *op, const struct named *named, const amp_dtype *types,
                           amp_dtype target) {
    for (size_t i = 0; i < direct->n; i++) {
        const struct amp__operand operand = operand_at(named, i, direct->n, types[i]);
        if (!amp__operand_needs_cast(&direct->casting.context->properties, named->op_class, &operand, target)) continue;
        const amp_status status = amp__casting_cast(&direct->casting, direct->tensors[i], target, &direct->tensors[i]);
        if (status != AMP_OK)
            return amp__fail_prefix(status, "op %s: tensor %zu: cast from %s to %s", op, i, amp__dtype_name(types[i]),
                                    amp__dtype_name(target));
    }
    return AMP_OK;
}

static void put_back(struct direct *const *direct) {
    if (!*direct) return;
    memcpy((*direct)->tensors, (*direct)->originals, (*direct)->n * sizeof *(*direct)->tensors);
    amp__casting_abandon(&(*direct)->casting);
    amp__free(*direct);
}

static amp_status cast_args(amp_context *context, const char *op, const struct named *named, const amp_host *host,
                            const amp_dtype *types, amp_dtype target, void **tensors, size_t n, struct direct **out) {
    AMP_CLEANUP(put_back) struct direct *direct = amp__alloc(1, sizeof *direct + n * sizeof direct->originals[0]);
    if (!direct) return amp__fail_memory();
    direct->tensors = tensors;
    direct->n = n;
    memcpy(direct->originals, tensors, n * sizeof *tensors);
    amp__casting_begin(&direct->casting, context, host, named->op, n, amp__thread_state(), false);
    AMP_TRY(cast_all(direct, op, named, types, target));
    *out = direct;
    direct = NULL;
    return AMP_OK;
}

AMP_API amp_status amp_cast_args(amp_context *context, const char *op, void **tensors, size_t n,
                                 amp_cast_frame *frame) {
    AMP_TRY(check_op_name(context, op, "amp_cast_args"));
    AMP_RETURN_IF((n && !tensors) || !frame, AMP_ERR_INVALID_ARGUMENT, "amp_cast_args: an argument is NULL");
    AMP_TRY(amp__check_struct(frame->struct_size, sizeof *frame, "amp_cast_frame"));
    AMP_RETURN_IF(frame->priv[0], AMP_ERR_WRONG_STATE, "amp_cast_args: this frame is in use: call amp_cast_done first");
    struct amp__thread *thread = amp__thread_state();
    amp__thread_recover(thread, __builtin_frame_address(0));
    struct named named;
    AMP_TRY(find_op(context, op, &named));
    const amp_host *host = host_of(context, named.op);
    AMP_RETURN_IF(!host, AMP_ERR_WRONG_STATE, "amp_cast_args: the context has no model and no optimizer, so no host");
    if (!obeys(context, thread, named.op)) {
        if (named.op) atomic_fetch_add(&named.op->passed, 1);
        frame->target = AMP_DTYPE_DEFAULT;
        return AMP_OK;
    }
    if (named.op) atomic_fetch_add(&named.op->calls, 1);
    AMP_CLEANUP(free_types) amp_dtype *types = types_of(host, tensors, n);
    if (!types) return amp__fail_memory();
    amp_dtype target;
    bool gated;
    struct direct *direct = NULL;
    amp_status status = target_of(context, op, &named, types, n, &target, &gated);
    if (status == AMP_OK && named.op && named.op->gate_watches) amp__gate_watch_handles(named.op, tensors, n);
    gated = status == AMP_OK && gated && amp__gate_holds_handles(named.op, tensors, n);
    if (gated) {
        atomic_fetch_add(&named.op->gated, 1);
        target = AMP_DTYPE_DEFAULT;
    }
    if (status == AMP_OK && target != AMP_DTYPE_DEFAULT)
        status = cast_args(context, op, &named, host, types, target, tensors, n, &direct);
    if (status != AMP_OK && named.op) atomic_fetch_add(&named.op->failures, 1);
    if (status != AMP_OK) return status;
    if (named.op) atomic_store(&named.op->last_target, target);
    frame->target = target;
    frame->priv[0] = direct;
    return AMP_OK;
}

/* In a frame's first word: one tensor, whose cast the cache has. The other words: where its handle lies, the handle,
 * the context. Weights are cast once an iteration and used often, so that this is the way of most calls. */
static const char from_cache;

static bool cast_from_cache(amp_context *context, const amp_host *host, amp_dtype target, void **tensor,
                            amp_cast_frame *frame) {
    void *cast = *tensor ? amp__cached_enter_one(context, host, *tensor, target) : NULL;
    if (!cast) return false;
    *frame = (amp_cast_frame){ frame->struct_size,
                               target,
                               { (void *)(uintptr_t)&from_cache, tensor, *tensor, context } };
    *tensor = cast;
    return true;
}

AMP_API amp_status amp_cast_to(amp_context *context, amp_dtype target, void **tensors, size_t n,
                               amp_cast_frame *frame) {
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT, "amp_cast_to: context is NULL");
    AMP_RETURN_IF(!amp__is_floating(target), AMP_ERR_INVALID_ARGUMENT, "amp_cast_to: %d is no floating type",
                  (int)target);
    AMP_RETURN_IF((n && !tensors) || !frame, AMP_ERR_INVALID_ARGUMENT, "amp_cast_to: an argument is NULL");
    AMP_TRY(amp__check_struct(frame->struct_size, sizeof *frame, "amp_cast_frame"));
    AMP_RETURN_IF(frame->priv[0], AMP_ERR_WRONG_STATE, "amp_cast_to: this frame is in use: call amp_cast_done first");
    struct amp__thread *thread = amp__thread_state();
    amp__thread_recover(thread, __builtin_frame_address(0));
    const amp_host *host = host_of(context, NULL);
    AMP_RETURN_IF(!host, AMP_ERR_WRONG_STATE, "amp_cast_to: the context has no model and no optimizer, so no host");
    if (!obeys(context, thread, NULL)) target = AMP_DTYPE_DEFAULT;
    else if (n == 1 && cast_from_cache(context, host, target, tensors, frame)) return AMP_OK;
    struct direct *direct = NULL;
    if (target != AMP_DTYPE_DEFAULT) {
        const struct named any = { NULL, AMP_PROMOTE }; /* whatever floats, fp64 too: the decision was made */
        amp_dtype few[8];
        AMP_CLEANUP(free_types) amp_dtype *many = n > AMP_COUNT(few) ? amp__alloc(n, sizeof *many) : NULL;
        amp_dtype *types = n > AMP_COUNT(few) ? many : few;
        if (!types) return amp__fail_memory();
        for (size_t i = 0; i < n; i++) types[i] = tensors[i] ? amp__host_dtype(host, tensors[i]) : AMP_DTYPE_OTHER;
        AMP_TRY(cast_args(context, "(decided)", &any, host, types, target, tensors, n, &direct));
    }
    frame->target = target;
    frame->priv[0] = direct;
    return AMP_OK;
}

AMP_API amp_status amp_cast_done(amp_cast_frame *frame) {
    AMP_RETURN_IF(!frame, AMP_ERR_INVALID_ARGUMENT, "amp_cast_done: frame is NULL");
    AMP_TRY(amp__check_struct(frame->struct_size, sizeof *frame, "amp_cast_frame"));
    if (frame->priv[0] == (void *)(uintptr_t)&from_cache) {
        *(void **)frame->priv[1] = frame->priv[2];
        amp__cached_leave_one(frame->priv[3]);
        frame->priv[0] = NULL;
        return AMP_OK;
    }
    struct direct *direct = frame->priv[0];
    if (!direct) return AMP_OK;
    memcpy(direct->tensors, direct->originals, direct->n * sizeof *direct->tensors);
    amp__casting_end(&direct->casting);
    amp__free(direct);
    frame->priv[0] = NULL;
    return AMP_OK;
}

AMP_API amp_status amp_tape_done(amp_context *context) {
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT, "amp_tape_done: context is NULL");
    amp__tape_release(context, true);
    return AMP_OK;
}

AMP_API amp_status amp_cache_clear(amp_context *context) {
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT, "amp_cache_clear: context is NULL");
    amp__cache_retire(&context->cache, false);
    amp__cache_collect(&context->cache);
    amp__spares_clear(&context->spares);
    return AMP_OK;
}
