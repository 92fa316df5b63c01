/* SPDX-License-Identifier: Apache-2.0 */
/* Raw address -> parameter: weights are often slices of one allocation, so matching is by range. gradients.c has
 * gradients. */
#include "common/map.h"
#include "context/context.h"
#include "context/live.h"
#include "context/ranges.h"

static bool is_sorted(const struct amp__range *ranges, size_t n) {
    for (size_t i = 1; i < n; i++)
        if (ranges[i - 1].begin > ranges[i].begin) return false;
    return true;
}

amp_status amp__ranges_sort(struct amp__range *ranges, size_t n) {
    if (is_sorted(ranges, n)) return AMP_OK;
    struct amp__range *before = amp__alloc(n, sizeof *before);
    struct amp__keyed *entries = amp__alloc(n, sizeof *entries);
    amp_status status = before && entries ? AMP_OK : amp__fail_memory();
    for (size_t i = 0; i < n && status == AMP_OK; i++) {
        before[i] = ranges[i];
        entries[i] = (struct amp__keyed){ before[i].begin, &before[i] };
    }
    if (status == AMP_OK) status = amp__sort_keyed(entries, n);
    for (size_t i = 0; i < n && status == AMP_OK; i++) ranges[i] = *(const struct amp__range *)entries[i].value;
    amp__free(entries);
    amp__free(before);
    return status;
}

bool amp__ranges_meet(const amp_context *a, const amp_context *b) {
    for (size_t i = 0, j = 0; i < a->addresses.n_ranges && j < b->addresses.n_ranges;) {
        if (a->addresses.ranges[i].end <= b->addresses.ranges[j].begin) i++;
        else if (b->addresses.ranges[j].end <= a->addresses.ranges[i].begin) j++;
        else return true;
    }
    return false;
}

static bool has_released(const amp_context *live, const amp_context *context) {
    return live->addresses.released && amp__ranges_meet(live, context);
}

amp_status amp__ranges_build(amp_context *context) {
    struct amp__addresses *addresses = &context->addresses;
    addresses->ranges = amp__alloc(context->params.n, sizeof *addresses->ranges);
    if (!addresses->ranges) return amp__fail_memory();
    for (size_t i = 0; i < context->params.n; i++) {
        struct amp__param *param = context->params.list[i];
        amp__param_prefetch_ahead(context->params.list, context->params.n, i);
        const uintptr_t begin = (uintptr_t)param->address;
        if (begin && param->size && param->dtype == AMP_FLOAT32 && !param->on_device)
            addresses->ranges[addresses->n_ranges++] = (struct amp__range){ begin, begin + 4 * param->size, param };
        context->params.has_norm |= param->module_kind == AMP_MODULE_BATCH_NORM;
    }
    AMP_TRY(amp__ranges_sort(addresses->ranges, addresses->n_ranges));
    AMP_RETURN_IF(amp__live_any(has_released, context), AMP_ERR_WRONG_STATE, "parameters are weights that another "
                  "context has released: call amp_weights_restore there first");
    return amp__gradients_follow(context);
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

amp_status amp__range_rest(amp_context *context, const void *address, int64_t *rest) {
    const uintptr_t at = (uintptr_t)address;
    const struct amp__range *range = find(context->addresses.ranges, context->addresses.n_ranges, at);
    struct amp__param *param;
    uint64_t left = 0;
    if (range) left = (range->end - at) / sizeof(float);
    else AMP_TRY(amp__gradient_at(context, address, true, &param, &left));
    *rest = (int64_t)left;
    return AMP_OK;
}
