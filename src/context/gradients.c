/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raw address -> gradient. The hook grad may return a gradient long after amp_initialize, and another buffer each time,
 * so it is called again: at each begin, and by an op that updates a buffer which is no known gradient, while gradients
 * are absent at begin or have moved before. A known one is confirmed before use, since its memory may have been freed
 * and reused.
 */
#include "context/context.h"
#include "context/ranges.h"

enum { STRICT = true, LENIENT = false };

static bool is_range(const struct amp__range *range) { return range->begin < range->end; }

/* An FP32 gradient that raw buffers can point into: compact, in the CPU's memory. Empty: the parameter has none;
 * *absent: not yet. Hosts with set_grad move gradients in each bracket: only their raw ops have a use for the
 * addresses. */
static amp_status ask(const amp_context *context, struct amp__param *param, struct amp__range *now, bool *absent) {
    void *grad = NULL;
    struct amp__elements elements;
    *now = (struct amp__range){ 0, 0, param };
    *absent = false;
    if (!param->in_optimizer || param->on_device || !param->host->grad || !param->host->view) return AMP_OK;
    if (param->host->set_grad && !context->progress.raw_calls) return AMP_OK;
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    *absent = !grad;
    if (!grad) return AMP_OK;
    const amp_status status = amp__host_find(param->host, grad, "gradient", &elements);
    if (status != AMP_OK) return amp__fail_prefix(status, "%s", param->name);
    if (elements.dtype != AMP_FLOAT32 || elements.strides || elements.device.type == AMP__DEVICE_CUDA) return AMP_OK;
    now->begin = (uintptr_t)elements.data;
    now->end = now->begin + elements.size * sizeof(float);
    return AMP_OK;
}

static bool is_known(const struct amp__param *param, const struct amp__range *now) {
    return atomic_load_explicit(&param->grad_begin, memory_order_relaxed) == now->begin &&
           atomic_load_explicit(&param->grad_end, memory_order_relaxed) == now->end;
}

static void know(struct amp__param *param, uintptr_t begin, uintptr_t end) {
    atomic_store_explicit(&param->grad_begin, begin, memory_order_relaxed);
    atomic_store_explicit(&param->grad_end, end, memory_order_relaxed);
}

static amp_status check_own(const struct amp__param *param, const struct amp__range *now) {
    struct amp__elements own;
    if (!is_range(now)) return AMP_OK;
    AMP_TRY(amp__param_layout(param, param->tensor, param->name, &own));
    if (own.strides) return AMP_OK;
    const uintptr_t begin = (uintptr_t)own.data, end = begin + own.size * amp__dtype_size(own.dtype);
    AMP_RETURN_IF(now->begin < end && begin < now->end, AMP_ERR_CONFLICT,
                  "%s: its gradient lies in its own elements: give it memory of its own", param->name);
    return AMP_OK;
}

/* Each gradient is multiplied and divided by itself. */
static amp_status check_apart(const struct amp__range *ranges, size_t n) {
    for (size_t i = 1; i < n; i++)
        AMP_RETURN_IF(ranges[i].begin < ranges[i - 1].end, AMP_ERR_CONFLICT,
                      "the gradients of %s and %s overlap in memory: give each parameter a gradient of its own",
                      ranges[i - 1].param->name, ranges[i].param->name);
    return AMP_OK;
}

/* Under the lock: the sorted list of the gradients that parameters are known to have. */
static amp_status list(amp_context *context) {
    struct amp__addresses *addresses = &context->addresses;
    addresses->n_grads = 0;
    if (context->params.n > addresses->grads_capacity) {
        void *grown = amp__grow(addresses->grads, 0, context->params.capacity, sizeof *addresses->grads);
        if (!grown) return amp__fail_memory();
        addresses->grads = grown;
        addresses->grads_capacity = context->params.capacity;
    }
    for (size_t i = 0; i < context->params.n; i++) {
        struct amp__param *param = context->params.list[i];
        const struct amp__range range = { param->grad_begin, param->grad_end, param };
        if (is_range(&range)) context->addresses.grads[context->addresses.n_grads++] = range;
    }
    return amp__ranges_sort(context->addresses.grads, context->addresses.n_grads);
}

/* All or nothing: gradients that overlap are none that is known, and the next look finds them again. */
static amp_status take(amp_context *context, const struct amp__range *changed, size_t n) {
    pthread_mutex_lock(&context->lock);
    for (size_t i = 0; i < n; i++) know(changed[i].param, changed[i].begin, changed[i].end);
    amp_status status = list(context);
    if (status == AMP_OK) status = check_apart(context->addresses.grads, context->addresses.n_grads);
    for (size_t i = 0; i < n && status != AMP_OK; i++) know(changed[i].param, 0, 0);
    if (status != AMP_OK && list(context) != AMP_OK) context->addresses.n_grads = 0;
    pthread_mutex_unlock(&context->lock);
    return status;
}

static bool is_early(const amp_context *context) {
    return atomic_load_explicit(&context->progress.looks, memory_order_relaxed) < AMP__LOOKS;
}

/* LENIENT: inside an op the gradient of another parameter may be incomplete, and begin reports its faults. Only
 * gradients that may have come or moved are read there. */
static amp_status follow(amp_context *context, bool strict) {
    struct amp__range *changed = NULL;
    size_t n = 0;
    bool absent, absents = false;
    const bool all = strict || is_early(context) || context->addresses.grads_move;
    amp_status status = AMP_OK;
    for (size_t i = 0; i < context->params.n && status == AMP_OK; i++) {
        struct amp__param *param = context->params.list[i];
        struct amp__range now;
        amp__param_prefetch_ahead(context->params.list, context->params.n, i);
        if (strict) atomic_store_explicit(&param->grad_came, false, memory_order_relaxed);
        if (!all && atomic_load_explicit(&param->grad_begin, memory_order_relaxed)) continue;
        status = ask(context, param, &now, &absent);
        absents |= absent;
        if (status != AMP_OK && strict == LENIENT) status = AMP_OK, now = (struct amp__range){ 0, 0, param };
        if (status != AMP_OK || is_known(param, &now)) continue;
        if (!changed) changed = amp__alloc(context->params.n, sizeof *changed);
        status = changed ? check_own(param, &now) : amp__fail_memory();
        if (status == AMP_OK) changed[n++] = now;
        if (param->grad_begin && is_range(&now)) context->addresses.grads_move = true;
        if (!strict && !param->grad_begin) atomic_store_explicit(&param->grad_came, true, memory_order_relaxed);
    }
    if (strict) context->addresses.grads_absent = absents;
    if (status == AMP_OK && n) status = take(context, changed, n);
    amp__free(changed);
    return status;
}

amp_status amp__gradients_follow(amp_context *context) {
    return is_early(context) || context->progress.raw_calls ? follow(context, STRICT) : AMP_OK;
}

/* Where its backward may run: in a bracket, or anywhere where there are none. */
static bool may_be_backward(const amp_context *context) {
    return atomic_load_explicit(&context->progress.open, memory_order_relaxed) || context->progress.scaled_by_hand ||
           !atomic_load_explicit(&context->progress.looks, memory_order_relaxed);
}

struct amp__param *amp__gradient_known(amp_context *context, const void *address, uint64_t *rest) {
    uint64_t offset;
    if (!context->optimizers.n) return NULL;
    pthread_mutex_lock(&context->lock);
    struct amp__param *param = amp__range_find(context->addresses.grads, context->addresses.n_grads, address, &offset);
    if (param) *rest = (param->grad_end - (uintptr_t)address) / sizeof(float);
    pthread_mutex_unlock(&context->lock);
    return param;
}

bool amp__gradient_came(amp_context *context, struct amp__param *param) {
    return atomic_load_explicit(&param->grad_came, memory_order_relaxed) &&
           atomic_exchange_explicit(&param->grad_came, false, memory_order_relaxed) &&
           atomic_load_explicit(&context->progress.open, memory_order_relaxed);
}

amp_status amp__gradient_at(amp_context *context, const void *address, bool asks, struct amp__param **out,
                            uint64_t *rest) {
    struct amp__range now;
    bool absent;
    *out = amp__gradient_known(context, address, rest);
    if (!context->optimizers.n) return AMP_OK;
    if (*out && ask(context, *out, &now, &absent) == AMP_OK && is_known(*out, &now)) return AMP_OK;
    if (!*out && (!asks || !may_be_backward(context))) return AMP_OK;
    const struct amp__addresses *addresses = &context->addresses;
    if (!*out && !is_early(context) && !addresses->grads_absent && !addresses->grads_move) return AMP_OK;
    if (*out) context->addresses.grads_move = true;
    AMP_TRY(follow(context, LENIENT));
    *out = amp__gradient_known(context, address, rest);
    return AMP_OK;
}
