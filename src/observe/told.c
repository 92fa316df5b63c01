/* SPDX-License-Identifier: Apache-2.0 */
/* Calls reported by the host: each name is an op here, without a slot. Losses and remarks of the host. */
#include "context/live.h"
#include "context/params.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/report.h"
#include "context/trace.h"
#include "observe/observe.h"

#include <stdio.h>
#include <string.h>

/* An op that the host reports, and the line of its program that calls it (NULL: unknown). */
struct told {
    struct amp__op op;
    const char *line;
};

static const char *name_of(const void *op) { return ((const struct amp__op *)op)->name; }

void amp__observe_free_told(struct amp__observer *observer) {
    for (size_t i = 0; observer->told.entries && i <= observer->told.mask; i++)
        amp__free(observer->told.entries[i].value);
    amp__map_free(&observer->told);
}

static amp_class class_of(const amp_context *context, const char *name) {
    const struct amp__policy *policy = amp__policy_of(context);
    char base[AMP__OP_NAME_MAX + 1];
    amp__op_base_name(name, base);
    const amp_class listed = amp__list_class(policy->properties.lists, policy->properties.low, base);
    return listed == AMP_BY_LIST ? AMP_LEAVE : listed;
}

/* Under the lock, where there is room. */
static struct amp__op *new_op(amp_context *context, const amp_observed_call *call, const char *name) {
    struct amp__observer *observer = amp__observer_of(context);
    const size_t length = strlen(name) + 1, line = call->line ? strlen(call->line) + 1 : 0;
    const size_t bytes = sizeof(struct told) + length + line;
    if (observer->bytes + bytes > observer->options.max_bytes) return NULL;
    struct told *told = amp__alloc(1, bytes);
    if (!told) return NULL;
    struct amp__op *op = &told->op;
    op->name = memcpy(told + 1, name, length);
    told->line = line ? memcpy(op->name + length, call->line, line) : NULL;
    op->context = context;
    op->host = amp__any_host(context);
    op->listed = op->op_class = class_of(context, call->op);
    op->is_backward = call->in_backward;
    if (amp__map_put_name(&observer->told, op->name, op, name_of) != AMP_OK) {
        amp__free(op);
        return NULL;
    }
    observer->bytes += bytes;
    return op;
}

const char *amp__observe_line(const struct amp__observer *observer, const char *op) {
    const struct told *told = op ? amp__map_get_name(&observer->told, op, name_of) : NULL;
    return told ? told->line : NULL;
}

/* NULL: there is no room for one more. */
static struct amp__op *told_op(amp_context *context, const amp_observed_call *call) {
    char name[512];
    snprintf(name, sizeof name, "%s%s%s%s", call->where ? call->where : "", call->where ? ": " : "", call->op,
             call->in_backward ? " (backward)" : "");
    struct amp__observer *observer = amp__observer_of(context);
    pthread_mutex_lock(observer->lock);
    struct amp__op *op = amp__map_get_name(&observer->told, name, name_of);
    if (!op) op = new_op(context, call, name);
    observer->left_out += !op;
    pthread_mutex_unlock(observer->lock);
    return op;
}

static amp_status check(const amp_context *context, const amp_observed_call *call) {
    AMP_RETURN_IF(!context || !call || !amp__context_is_live(context), AMP_ERR_INVALID_ARGUMENT,
                  "amp_observe_call: %s", !call ? "call is NULL" : "there is no such context: was it shut down?");
    AMP_TRY(amp__check_struct(call->struct_size, sizeof *call, "amp_observed_call"));
    AMP_RETURN_IF(!call->op || !call->op[0], AMP_ERR_INVALID_ARGUMENT, "amp_observe_call: the op has no name");
    AMP_RETURN_IF(call->n_values && !call->values, AMP_ERR_INVALID_ARGUMENT, "amp_observe_call: %s: %llu value%s, and "
                  "values is NULL", call->op, (unsigned long long)call->n_values, AMP__S(call->n_values));
    for (uint64_t i = 0; i < call->n_values; i++)
        AMP_RETURN_IF(!call->values[i].name || !call->values[i].name[0], AMP_ERR_INVALID_ARGUMENT,
                      "amp_observe_call: %s: values[%llu] has no name", call->op, (unsigned long long)i);
    return AMP_OK;
}

/* In backward an output that is a parameter says that its gradient is there. */
static const struct amp__param *made_by(const amp_context *context, const amp_observed_call *call,
                                        const amp_observed_value *value) {
    const bool may_be = call->in_backward && value->is_output && value->tensor;
    return may_be ? amp__param_find(amp__params_of(context), amp__any_host(context), value->tensor) : NULL;
}

/* Returns true if the call only reports gradients. */
static bool note_gradients(amp_context *context, const amp_observed_call *call) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < call->n_values; i++) {
        const struct amp__param *param = made_by(context, call, &call->values[i]);
        if (param) amp__observe_made(context, param), n++;
    }
    return n && n == call->n_values;
}

static void take(struct amp__seen_call *seen, const amp_observed_value *value) {
    if (value->tensor && !value->is_output)
        amp__observe_use(seen, amp__param_find(amp__params_of(seen->op->context), seen->op->host, value->tensor));
    if (value->tensor) amp__observe_handle(seen, value->tensor, value->name, value->is_output);
    else amp__observe_span(seen, &value->span, value->name, value->is_output);
}

AMP_API int32_t amp_is_observing(const amp_context *context) { return context && amp__observing(context); }

AMP_API amp_status amp_observe_call(amp_context *context, const amp_observed_call *call) {
    struct amp__seen_call seen;
    AMP_TRY(check(context, call));
    if (!amp__observing(context) || !amp__observe_trains(context, amp__any_host(context))) return AMP_OK;
    if (note_gradients(context, call)) return AMP_OK;
    struct amp__op *op = told_op(context, call);
    if (!op) return AMP_OK;
    amp__seen_begin(&seen, op);
    seen.is_cast = call->is_cast;
    if (!seen.is_cast && !amp__observe_wants_op(op)) return AMP_OK;
    for (int outputs = 0; outputs < 2; outputs++)
        for (uint64_t i = 0; i < call->n_values; i++) {
            const amp_observed_value *value = &call->values[i];
            if (!value->is_output == !outputs && !made_by(context, call, value)) take(&seen, value);
        }
    amp__observe_call(context, &seen);
    return AMP_OK;
}

AMP_API amp_status amp_observe_loss(amp_context *context, uint32_t loss_id, double loss) {
    AMP_RETURN_IF(!context || !amp__context_is_live(context), AMP_ERR_INVALID_ARGUMENT,
                  "amp_observe_loss: there is no such context: was it shut down?");
    const uint32_t losses = amp__policy_of(context)->properties.num_losses;
    AMP_RETURN_IF(loss_id >= losses, AMP_ERR_INVALID_ARGUMENT, "amp_observe_loss: loss_id is %u, and num_losses is %u",
                  (unsigned)loss_id, (unsigned)losses);
    amp__trace_loss(context, loss_id, loss);
    return AMP_OK;
}

AMP_API amp_status amp_observe_remark(amp_context *context, const char *about, const char *text) {
    AMP_RETURN_IF(!context || !amp__context_is_live(context), AMP_ERR_INVALID_ARGUMENT,
                  "amp_observe_remark: there is no such context: was it shut down?");
    AMP_RETURN_IF(!about || !*about || !text || !*text, AMP_ERR_INVALID_ARGUMENT, "amp_observe_remark: %s is missing",
                  about && *about ? "the text" : "the subject of the remark");
    amp__trace_remark(context, about, text);
    return AMP_OK;
}
