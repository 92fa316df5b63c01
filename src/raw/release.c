/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_weights_release: only the 16-bit copies remain. Whole pages of the FP32 blocks of the host are given back to the
 * system. Their addresses stay reserved and unreadable, so that an access without libamp stops the program instead of
 * taking zeros for weights.
 */
#include "amp_raw.h"
#include "common/spare.h"
#include "context/addresses.h"
#include "context/live.h"
#include "context/params.h"
#include "context/parts.h"
#include "context/policy.h"
#include "raw/raw.h"
#include "system/system.h"

static bool has_copy(const amp_context *context, const struct amp__param *param) {
    const struct amp__policy *policy = amp__policy_of(context);
    return amp__keeps_block(&policy->properties, param->host) && param->size &&
           !amp__param_stays_fp32(policy, param);
}

/* ---- copies ---- */

/* All that can fail comes before anything is given back. */
static amp_status prepare(struct amp__param *param, amp_dtype low) {
    param->unfit = 0;
    AMP_TRY(amp__param_look(param, low));
    AMP_RETURN_IF(param->unfit, AMP_ERR_CONFLICT, "amp_weights_release: %llu weight%s of %s too large for %s would be "
                  "lost", (unsigned long long)param->unfit, AMP__S(param->unfit), param->name,
                  amp__dtype_name(low));
    return amp__param_alloc(param, low, AMP_FOR_PARAMETER, &param->released);
}

static amp_span copy_of(const struct amp__param *param, uint64_t from, uint64_t n) {
    return (amp_span){ (uint16_t *)param->released.data + from, n, param->released.dtype, 0 };
}

static void fill(const struct amp__param *param) {
    const amp_span to = copy_of(param, 0, param->size), from = { param->address, param->size, AMP_FLOAT32, 0 };
    const amp_status status = amp_cast_list(&to, &from, 1);
    (void)status; /* it fails only on spans that are none */
}

static void drop_copies(const struct amp__addresses *addresses, size_t from, size_t end) {
    for (size_t i = from; i < end; i++) {
        struct amp__param *param = addresses->ranges[i].param;
        if (param->released.data) amp__param_free(param, &param->released);
    }
}

/* ---- pages ---- */

/* Returns true for private, writable, anonymous pages. Others may be shared, or cost nothing. */
static bool is_own(struct amp__pages pages) {
    struct amp__mapping mapping = { 0 };
    for (uintptr_t at = pages.begin; at < pages.end; at = mapping.to)
        if (amp__access_of((const void *)at, &mapping) != AMP__ACCESS_WRITE || !mapping.anonymous) return false;
    return true;
}

/* Each block as soon as it is copied, so that there is never more memory than there was. Blocks are often slices of
 * one: a page that two of them share goes with the second. */
static void give_all(amp_context *context, uint64_t *bytes) {
    struct amp__addresses *addresses = amp__addresses_of(context);
    const uintptr_t page = amp__page_bytes();
    uintptr_t last = 0, kept = 0; /* end of the block before, and of its released part */
    for (size_t i = 0; i < addresses->n_ranges; i++) {
        const struct amp__range *range = &addresses->ranges[i];
        if (!range->param->released.data) continue;
        fill(range->param);
        const uintptr_t begin = range->begin == last ? kept : range->begin;
        const struct amp__pages pages = { (begin + page - 1) / page * page, range->end / page * page };
        last = range->end, kept = begin;
        if (pages.begin >= pages.end || !is_own(pages) || !amp__pages_give(pages.begin, pages.end)) continue;
        kept = pages.end;
        addresses->pages[addresses->n_pages++] = pages;
        *bytes += pages.end - pages.begin;
    }
}

/* ---- there and back ---- */

amp_status amp__weights_release(amp_context *context, uint64_t *bytes) {
    struct amp__addresses *addresses = amp__addresses_of(context);
    amp_status status = AMP_OK;
    AMP_RETURN_IF(amp__live_any(amp__ranges_meet, context), AMP_ERR_CONFLICT, "amp_weights_release: another context "
                  "has the same parameters: shut it down first");
    addresses->pages = amp__alloc(addresses->n_ranges, sizeof *addresses->pages);
    if (!addresses->pages) return amp__fail_memory();
    for (size_t i = 0; i < addresses->n_ranges && status == AMP_OK; i++)
        if (has_copy(context, addresses->ranges[i].param))
            status = prepare(addresses->ranges[i].param, amp__policy_of(context)->properties.cast_model_type);
    if (status == AMP_OK) {
        addresses->released = true;
        amp__cache_drop(amp__cache_of(context), false);
        amp__spares_clear(amp__spares_of(context));
        give_all(context, bytes);
        return AMP_OK;
    }
    drop_copies(addresses, 0, addresses->n_ranges);
    amp__free(addresses->pages);
    addresses->pages = NULL;
    return status;
}

/* Restores the released pages from the copy. The rest of a block was not touched, and may be read-only. */
static void widen(const struct amp__range *range, struct amp__pages pages) {
    const uintptr_t begin = range->begin > pages.begin ? range->begin : pages.begin;
    const uintptr_t end = range->end < pages.end ? range->end : pages.end;
    const uint64_t n = (end - begin) / sizeof(float);
    const amp_span to = { (void *)begin, n, AMP_FLOAT32, 0 };
    const amp_span from = copy_of(range->param, (begin - range->begin) / sizeof(float), n);
    const amp_status status = amp_cast_list(&to, &from, 1);
    (void)status;
}

amp_status amp__weights_restore(amp_context *context) {
    struct amp__addresses *addresses = amp__addresses_of(context);
    if (!addresses->released) return AMP_OK;
    for (size_t i = 0; i < addresses->n_pages; i++)
        AMP_RETURN_IF(!amp__pages_take(addresses->pages[i].begin, addresses->pages[i].end), AMP_ERR_NO_MEMORY,
                      "the system does not let libamp have %zu bytes of weights back",
                      (size_t)(addresses->pages[i].end - addresses->pages[i].begin));
    size_t done = 0; /* blocks: they and the pages are sorted */
    for (size_t i = 0; i < addresses->n_pages; i++) {
        const size_t first = done;
        while (addresses->ranges[done].end <= addresses->pages[i].begin) done++;
        drop_copies(addresses, first, done);
        for (size_t j = done; j < addresses->n_ranges && addresses->ranges[j].begin < addresses->pages[i].end; j++)
            if (addresses->ranges[j].param->released.data) widen(&addresses->ranges[j], addresses->pages[i]);
    }
    drop_copies(addresses, done, addresses->n_ranges);
    amp__free(addresses->pages);
    addresses->pages = NULL;
    addresses->n_pages = 0;
    addresses->released = false;
    return AMP_OK;
}
