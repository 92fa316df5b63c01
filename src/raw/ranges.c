/* SPDX-License-Identifier: Apache-2.0 */
/* Raw address -> registered buffer: weights and gradients are often slices of one allocation, so matching is
 * by range. */
#include "common/map.h"
#include "context/context.h"
#include "raw/raw.h"

static bool is_sorted(const struct amp__range *ranges, size_t n) {
    for (size_t i = 1; i < n; i++)
        if (ranges[i - 1].begin > ranges[i].begin) return false;
    return true;
}

static amp_status sort(struct amp__range **ranges, size_t n) {
    if (is_sorted(*ranges, n)) return AMP_OK;
    struct amp__range *sorted = amp__alloc(n, sizeof *sorted);
    struct amp__keyed *entries = amp__alloc(n, sizeof *entries);
    amp_status status = sorted && entries ? AMP_OK : amp__fail_memory();
    if (status == AMP_OK) {
        for (size_t i = 0; i < n; i++) entries[i] = (struct amp__keyed){ (*ranges)[i].begin, &(*ranges)[i] };
        status = amp__sort_keyed(entries, n);
    }
    for (size_t i = 0; i < n && status == AMP_OK; i++) sorted[i] = *(const struct amp__range *)entries[i].value;
    amp__free(entries);
    if (status != AMP_OK) {
        amp__free(sorted);
        return status;
    }
    amp__free(*ranges);
    *ranges = sorted;
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

/* An FP32 gradient in a buffer of the host's that stays where it is. */
static amp_status add_gradient(amp_context *context, struct amp__param *param) {
    void *grad;
    struct amp__elements now;
    if (!param->in_optimizer || !param->host->grad || param->host->set_grad || !param->host->view) return AMP_OK;
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    if (!grad) return AMP_OK;
    const amp_status status = amp__host_find(param->host, grad, "gradient", &now);
    if (status != AMP_OK) return amp__fail_prefix(status, "%s", param->name);
    const uintptr_t at = (uintptr_t)now.data, own = (uintptr_t)param->address;
    AMP_RETURN_IF(own && now.size && now.dtype == AMP_FLOAT32 && at < own + 4 * param->size && own < at + 4 * now.size,
                  AMP_ERR_CONFLICT, "%s: its gradient lies in its own elements: give it memory of its own",
                  param->name);
    /* raw buffers are compact, and in the CPU's memory */
    if (now.dtype != AMP_FLOAT32 || !now.size || now.strides || param->on_device) return AMP_OK;
    context->grad_ranges[context->n_grad_ranges++] =
        (struct amp__range){ (uintptr_t)now.data, (uintptr_t)now.data + 4 * now.size, param };
    return AMP_OK;
}

bool amp__ranges_meet(const amp_context *a, const amp_context *b) {
    for (size_t i = 0, j = 0; i < a->n_ranges && j < b->n_ranges;) {
        if (a->ranges[i].end <= b->ranges[j].begin) i++;
        else if (b->ranges[j].end <= a->ranges[i].begin) j++;
        else return true;
    }
    return false;
}

static bool has_released(const amp_context *live, const amp_context *context) {
    return live->released && amp__ranges_meet(live, context);
}

amp_status amp__ranges_build(amp_context *context) {
    context->ranges = amp__alloc(context->n_params, sizeof *context->ranges);
    context->grad_ranges = amp__alloc(context->n_params, sizeof *context->grad_ranges);
    if (!context->ranges || !context->grad_ranges) return amp__fail_memory();
    for (size_t i = 0; i < context->n_params; i++) {
        struct amp__param *param = context->params[i];
        amp__param_prefetch_ahead(context->params, context->n_params, i);
        const uintptr_t begin = (uintptr_t)param->address;
        if (begin && param->size && param->dtype == AMP_FLOAT32 && !param->on_device)
            context->ranges[context->n_ranges++] = (struct amp__range){ begin, begin + 4 * param->size, param };
        AMP_TRY(add_gradient(context, param));
    }
    AMP_TRY(sort(&context->ranges, context->n_ranges));
    AMP_TRY(sort(&context->grad_ranges, context->n_grad_ranges));
    AMP_RETURN_IF(amp__live_any(has_released, context), AMP_ERR_WRONG_STATE, "parameters are weights that another "
                  "context has released: call amp_weights_restore there first");
    return check_apart(context->grad_ranges, context->n_grad_ranges);
}

static const struct amp__range *find(const struct amp__range *ranges, size_t n, uintptr_t at) {
    size_t low = 0, high = n;
    while (low < high) { /* the first range that begins after `at` */
        const size_t middle = low + (high - low) / 2;
        if (ranges[middle].begin <= at) low = middle + 1;
        else high = middle;
    }
    return low && at < ranges[low - 1].end ? &ranges[low - 1] : NULL;
}

struct amp__param *amp__range_find(const struct amp__range *ranges, size_t n, const void *address, uint64_t *offset) {
    const struct amp__range *range = find(ranges, n, (uintptr_t)address);
    if (!range) return NULL;
    *offset = ((uintptr_t)address - range->begin) / sizeof(float);
    return range->param;
}

int64_t amp__range_rest(const amp_context *context, const void *address) {
    const uintptr_t at = (uintptr_t)address;
    const struct amp__range *range = find(context->ranges, context->n_ranges, at);
    if (!range) range = find(context->grad_ranges, context->n_grad_ranges, at);
    return range ? (int64_t)((range->end - at) / sizeof(float)) : 0;
}
