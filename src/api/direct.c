/* SPDX-License-Identifier: Apache-2.0 */
/* The policy for hosts that call their functions directly: the same ruling and the same casts as in a
 * wrapped call. */
#include "amp_call.h"
#include "amp_gate.h"
#include "call/bind.h"
#include "call/cache.h"
#include "call/call.h"
#include "call/gate.h"
#include "call/tape.h"
#include "context/context.h"
#include "context/op.h"
#include "context/parts.h"
#include "context/probe.h"
#include "context/report.h"

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
    const struct amp__properties *properties = &context->policy.properties;
    const amp_class listed =
        properties->patch_ops ? amp__list_class(properties->lists, properties->low, base) : AMP_BY_LIST;
    *out = (struct named){ NULL, listed == AMP_BY_LIST ? AMP_LEAVE : listed };
    return AMP_OK;
}

static amp_status check_op_name(const amp_context *context, const char *op, const char *who) {
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT, "%s: context is NULL", who);
    AMP_RETURN_IF(!op || !op[0], AMP_ERR_INVALID_ARGUMENT, "%s: the op has no name", who);
    return AMP_OK;
}

/* Names without a schema have plain inputs, or a list. */
static void bind_named(struct amp__bound *bound, const struct named *named, const struct amp__given *given) {
    amp__bind_given(bound, named->op ? named->op->schema : NULL, named->op_class == AMP_PROMOTE_SEQUENCE, given);
}

static amp_dtype given_type(const struct amp__given *given, size_t i) {
    if (given->dtypes) return given->dtypes[i];
    return given->tensors[i] ? amp__host_dtype(given->host, given->tensors[i]) : AMP_DTYPE_OTHER;
}

static amp_status check_type(const struct amp__given *given, amp_dtype dtype, const char *what) {
    size_t i = 0; /* the first that has it */
    if (dtype >= AMP_FLOAT32 && dtype <= AMP_DTYPE_OTHER) return AMP_OK;
    while (i + 1 < given->n && given_type(given, i) != dtype) i++;
    return amp__fail(AMP_ERR_INVALID_ARGUMENT, "%s[%zu] is %d, which is no type of a tensor", what, i, (int)dtype);
}

/* Checks types. `what` names them. */
static amp_status check_types(const struct amp__bound *bound, const struct amp__given *given, const char *what) {
    for (size_t i = 0; i < bound->operands.n; i++)
        AMP_TRY(check_type(given, bound->operands.distinct[i].dtype, what));
    return AMP_OK;
}

/* gated: may the gate hold such a call back? */
static amp_status rule_on_call(const amp_context *context, const char *op, const struct named *named,
                               const struct amp__operands *operands, struct amp__ruling *ruling, bool *gated) {
    const struct amp__policy *policy = &context->policy;
    *ruling = amp__ruling_on(&policy->properties, named->op_class, operands->distinct, operands->n);
    *gated = policy->properties.gate == AMP_ON && named->op &&
             amp__may_be_gated(named->op, policy->properties.low, ruling->target, operands);
    return amp__ruling_error(*ruling, op);
}

AMP_API amp_status amp_op_target(amp_context *context, const char *op, const amp_dtype *dtypes, size_t n,
                                 amp_dtype *target) {
    AMP_TRY(check_op_name(context, op, "amp_op_target"));
    AMP_RETURN_IF((n && !dtypes) || !target, AMP_ERR_INVALID_ARGUMENT, "amp_op_target: an argument is NULL");
    struct amp__bound bound;
    struct amp__ruling ruling;
    struct named named;
    bool gated;
    AMP_TRY(find_op(context, op, &named));
    const struct amp__given given = { .dtypes = dtypes, .n = n };
    bind_named(&bound, &named, &given);
    AMP_TRY(check_types(&bound, &given, "amp_op_target: dtypes"));
    AMP_TRY(rule_on_call(context, op, &named, &bound.operands, &ruling, &gated));
    *target = gated && atomic_load(&named.op->gate.least) == AMP_GATE_NEVER ? AMP_DTYPE_DEFAULT : ruling.target;
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
    const struct named named = { NULL, context->policy.properties.patch_ops ? op_class : AMP_LEAVE };
    struct amp__bound bound;
    struct amp__ruling ruling;
    bool gated;
    const struct amp__given given = { .dtypes = dtypes, .n = n };
    bind_named(&bound, &named, &given);
    AMP_TRY(check_types(&bound, &given, "amp_class_target: dtypes"));
    if (into) amp__operands_add(&bound.operands, (struct amp__operand){ into, false, true });
    AMP_TRY(rule_on_call(context, op, &named, &bound.operands, &ruling, &gated));
    *target = ruling.target;
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

/* Data for amp_cast_done, in one block. */
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
    return (op && op->is_backward) || amp__ops_obey(&context->policy, &context->progress, thread);
}

static void put_back(struct direct *direct) {
    memcpy(direct->tensors, direct->originals, direct->n * sizeof *direct->tensors);
}

static void abandon(struct direct *const *direct) {
    if (!*direct) return;
    put_back(*direct);
    amp__casting_abandon(&(*direct)->casting);
    amp__free(*direct);
}

static amp_status cast_argument(struct direct *direct, const struct amp__ruling *ruling,
                                const struct amp__bound_arg *arg, const char *name) {
    if (!amp__may_cast(arg->flags)) return AMP_OK;
    for (void **handle = arg->handles, **end = handle + arg->count; handle < end; handle++) {
        if (!*handle) continue;
        const amp_dtype dtype = arg->dtype ? arg->dtype : amp__host_dtype(direct->casting.host, *handle);
        const struct amp__operand operand = amp__operand_of(arg, dtype);
        const amp_status status = amp__casting_operand(&direct->casting, ruling, &operand, handle);
        if (status != AMP_OK) return amp__fail_prefix(status, "op %s: tensor %td", name, handle - direct->tensors);
    }
    return AMP_OK;
}

/* `bound` is the call of these tensors. */
static amp_status cast_all(amp_context *context, const amp_host *host, struct amp__op *op, struct amp__thread *thread,
                           const char *name, const struct amp__ruling *ruling, const struct amp__bound *bound,
                           void **tensors, amp_cast_frame *frame) {
    const size_t n = bound->n_given;
    AMP_CLEANUP(abandon) struct direct *direct = amp__alloc(1, sizeof *direct + n * sizeof direct->originals[0]);
    if (!direct) return amp__fail_memory();
    direct->tensors = tensors;
    direct->n = n;
    memcpy(direct->originals, tensors, n * sizeof *tensors);
    amp__casting_begin(&direct->casting, context, host, op, n, thread, false);
    for (uint32_t i = 0; i < bound->n_tensors; i++)
        AMP_TRY(cast_argument(direct, ruling, &bound->tensors[i], name));
    frame->target = ruling->target;
    frame->priv[0] = direct;
    direct = NULL;
    return AMP_OK;
}

/* Checks the arguments of amp_cast_args and amp_cast_to, and finds *host. `who`: the function. */
static amp_status check_cast(const amp_context *context, const struct amp__op *op, void *const *tensors, size_t n,
                             const amp_cast_frame *frame, const char *who, const amp_host **host) {
    AMP_RETURN_IF((n && !tensors) || !frame, AMP_ERR_INVALID_ARGUMENT, "%s: an argument is NULL", who);
    AMP_TRY(amp__check_struct(frame->struct_size, sizeof *frame, "amp_cast_frame"));
    AMP_RETURN_IF(frame->priv[0], AMP_ERR_WRONG_STATE, "%s: this frame is in use: call amp_cast_done first", who);
    *host = op ? op->host : amp__any_host(context);
    AMP_RETURN_IF(!*host, AMP_ERR_WRONG_STATE, "%s: the context has no model and no optimizer, so no host", who);
    return AMP_OK;
}

/* The gate may change the ruling. */
static amp_status rule_on_direct_call(const amp_context *context, const char *op, const struct named *named,
                                      const struct amp__bound *bound, struct amp__ruling *ruling) {
    bool gated;
    AMP_TRY(rule_on_call(context, op, named, &bound->operands, ruling, &gated));
    if (named->op && named->op->glance) {
        const struct amp__probed call = { .op = named->op, .bound = bound };
        AMP_TRY(named->op->glance->enter(&call, AMP__HOST_SIDE, NULL));
    }
    if (!gated || !amp__gate_holds(named->op, bound)) return AMP_OK;
    atomic_fetch_add(&named->op->tally.gated, 1);
    *ruling = (struct amp__ruling){ .status = AMP_OK };
    return AMP_OK;
}

AMP_API amp_status amp_cast_args(amp_context *context, const char *op, void **tensors, size_t n,
                                 amp_cast_frame *frame) {
    AMP_TRY(check_op_name(context, op, "amp_cast_args"));
    struct amp__thread *thread = amp__thread_state();
    const amp_host *host;
    struct named named;
    AMP_TRY(find_op(context, op, &named));
    AMP_TRY(check_cast(context, named.op, tensors, n, frame, "amp_cast_args", &host));
    amp__thread_recover(thread, __builtin_frame_address(0));
    if (!obeys(context, thread, named.op)) {
        if (named.op) atomic_fetch_add(&named.op->tally.passed, 1);
        frame->target = AMP_DTYPE_DEFAULT;
        return AMP_OK;
    }
    if (named.op) atomic_fetch_add(&named.op->tally.calls, 1);
    struct amp__bound bound;
    struct amp__ruling ruling;
    const struct amp__given given = { .tensors = tensors, .host = host, .n = n };
    bind_named(&bound, &named, &given);
    amp_status status = check_types(&bound, &given, "amp_cast_args: the hook dtype: tensors");
    if (status == AMP_OK) status = rule_on_direct_call(context, op, &named, &bound, &ruling);
    if (status == AMP_OK && ruling.casts)
        status = cast_all(context, host, named.op, thread, op, &ruling, &bound, tensors, frame);
    if (status != AMP_OK && named.op) atomic_fetch_add(&named.op->tally.failures, 1);
    if (status != AMP_OK) return status;
    if (named.op) atomic_store(&named.op->tally.last_target, ruling.target);
    frame->target = ruling.target;
    return AMP_OK;
}

/* Marks a frame for one tensor with its cast in the cache. Its other words: the address of the handle, the handle, the
 * context. Weights are cast once an iteration and used often, so most calls go this way. */
static const char from_cache;

/* Whatever floats, fp64 too: the ruling was made. */
static __attribute__((noinline)) amp_status cast_to_target(amp_context *context, const amp_host *host,
                                                           struct amp__thread *thread, amp_dtype target, void **tensors,
                                                           size_t n, amp_cast_frame *frame) {
    const struct amp__ruling ruling = amp__ruling_to(target, AMP__FLOATING);
    struct amp__bound bound;
    bound.call = NULL, bound.n_tensors = 1, bound.n_buffers = 0, bound.n_given = n; /* no type is needed before */
    bound.tensors[0] = (struct amp__bound_arg){ .name = "", .handles = tensors, .count = n };
    return cast_all(context, host, NULL, thread, "(decided)", &ruling, &bound, tensors, frame);
}

AMP_API amp_status amp_cast_to(amp_context *context, amp_dtype target, void **tensors, size_t n,
                               amp_cast_frame *frame) {
    struct amp__thread *thread = amp__thread_state();
    const amp_host *host;
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT, "amp_cast_to: context is NULL");
    AMP_RETURN_IF(!amp__is_floating(target), AMP_ERR_INVALID_ARGUMENT, "amp_cast_to: %d is no floating type",
                  (int)target);
    AMP_TRY(check_cast(context, NULL, tensors, n, frame, "amp_cast_to", &host));
    amp__thread_recover(thread, __builtin_frame_address(0));
    if (!obeys(context, thread, NULL)) {
        frame->target = AMP_DTYPE_DEFAULT;
        return AMP_OK;
    }
    void *cast = n == 1 && *tensors ? amp__cached_enter_one(context, host, thread, *tensors, target) : NULL;
    if (!cast) return cast_to_target(context, host, thread, target, tensors, n, frame);
    *frame = (amp_cast_frame){ frame->struct_size,
                               target,
                               { (void *)(uintptr_t)&from_cache, tensors, *tensors, context } };
    *tensors = cast;
    return AMP_OK;
}

AMP_API amp_status amp_cast_done(amp_cast_frame *frame) {
    AMP_RETURN_IF(!frame, AMP_ERR_INVALID_ARGUMENT, "amp_cast_done: frame is NULL");
    AMP_TRY(amp__check_struct(frame->struct_size, sizeof *frame, "amp_cast_frame"));
    if (frame->priv[0] == (void *)(uintptr_t)&from_cache) {
        *(void **)frame->priv[1] = frame->priv[2];
        amp__cache_leave(&((amp_context *)frame->priv[3])->cache);
        frame->priv[0] = NULL;
        return AMP_OK;
    }
    struct direct *direct = frame->priv[0];
    if (!direct) return AMP_OK;
    put_back(direct);
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
    amp__cache_drop(&context->cache, false);
    amp__spares_clear(&context->spares);
    return AMP_OK;
}
