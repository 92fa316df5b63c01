/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_weights_release: the 16-bit copies become the only ones. What the host's FP32 blocks take in whole pages goes
 * back to the system; the addresses stay reserved, and unreadable, so that whoever reads there without libamp is
 * stopped, where zeros would be taken for weights.
 */
#include "amp_raw.h"
#include "context/context.h"
#include "intercept/maps.h"
#include "raw/raw.h"

#include <sys/mman.h>
#include <unistd.h>

static bool has_copy(const amp_context *context, const struct amp__param *param) {
    return amp__keeps_block(&context->properties, param->host) && param->in_model && param->size &&
           !amp__param_stays_fp32(context, param);
}

/* ---- copies ---- */

static amp_status make_copy(struct amp__param *param, amp_dtype low) {
    struct amp__elements now;
    AMP_TRY(amp__param_elements(param, &now));
    AMP_TRY(amp__param_alloc(param, low, AMP_FOR_PARAMETER, &param->released));
    const amp_span to = { param->released.data, param->size, low, 0 }, from = { now.data, param->size, now.dtype, 0 };
    AMP_TRY(amp_cast_list(&to, &from, 1));
    const uint64_t unfit = amp__count_unfit(now.data, to.data, param->size, low);
    AMP_RETURN_IF(unfit, AMP_ERR_CONFLICT, "amp_weights_release: %llu weights of %s are too large for %s, and "
                  "would be lost",
                  (unsigned long long)unfit, param->name, amp__dtype_name(low));
    return AMP_OK;
}

static void drop_copies(amp_context *context) {
    for (size_t i = 0; i < context->n_ranges; i++) {
        struct amp__param *param = context->ranges[i].param;
        if (param->released.data) amp__param_free(param, &param->released);
    }
}

/* ---- pages ---- */

/* Private, writable and no file's: what else is mapped there may be shared, or costs nothing. */
static bool is_own(struct amp__pages pages) {
    struct amp__mapping mapping = { 0 };
    for (uintptr_t at = pages.begin; at < pages.end; at = mapping.to)
        if (amp__access_of((const void *)at, &mapping) != AMP__ACCESS_WRITE || !mapping.anonymous) return false;
    return true;
}

static amp_status protect(struct amp__pages pages, int access) {
    AMP_RETURN_IF(mprotect((void *)pages.begin, pages.end - pages.begin, access), AMP_ERR_NO_MEMORY,
                  "the system does not let libamp have %zu bytes of weights back", (size_t)(pages.end - pages.begin));
    return AMP_OK;
}

/* It is advice: what the system does not take stays as it is. */
static void give(amp_context *context, uintptr_t begin, uintptr_t end, uint64_t *bytes) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const struct amp__pages pages = { (begin + page - 1) / page * page, end / page * page };
    if (pages.begin >= pages.end || !is_own(pages) || protect(pages, PROT_NONE) != AMP_OK) return;
    if (madvise((void *)pages.begin, pages.end - pages.begin, MADV_DONTNEED)) {
        (void)protect(pages, PROT_READ | PROT_WRITE);
        return;
    }
    context->pages[context->n_pages++] = pages;
    *bytes += pages.end - pages.begin;
}

/* Blocks are often slices of one: their pages are counted together. */
static void give_all(amp_context *context, uint64_t *bytes) {
    for (size_t i = 0, next; i < context->n_ranges; i = next) {
        uintptr_t end = context->ranges[i].end;
        next = i + 1;
        if (!context->ranges[i].param->released.data) continue;
        while (next < context->n_ranges && context->ranges[next].begin == end &&
               context->ranges[next].param->released.data)
            end = context->ranges[next++].end;
        give(context, context->ranges[i].begin, end, bytes);
    }
}

/* ---- there and back ---- */

amp_status amp__weights_release(amp_context *context, uint64_t *bytes) {
    amp_status status = AMP_OK;
    AMP_RETURN_IF(amp__live_any(amp__ranges_meet, context), AMP_ERR_CONFLICT, "amp_weights_release: another context "
                  "has the same parameters: shut it down first");
    context->pages = amp__alloc(context->n_ranges, sizeof *context->pages);
    if (!context->pages) return amp__fail_memory();
    for (size_t i = 0; i < context->n_ranges && status == AMP_OK; i++)
        if (has_copy(context, context->ranges[i].param))
            status = make_copy(context->ranges[i].param, context->properties.cast_model_type);
    if (status == AMP_OK) {
        context->released = true;
        amp__cache_drop(&context->cache, false);
        amp__spares_clear(&context->spares);
        give_all(context, bytes);
        return AMP_OK;
    }
    drop_copies(context);
    amp__free(context->pages);
    context->pages = NULL;
    return status;
}

/* What lay in the pages; the rest of a block was never touched, and may be read-only. */
static amp_status widen(const struct amp__range *range, struct amp__pages pages, amp_dtype low) {
    const uintptr_t begin = range->begin > pages.begin ? range->begin : pages.begin;
    const uintptr_t end = range->end < pages.end ? range->end : pages.end;
    if (begin >= end) return AMP_OK;
    const uint64_t n = (end - begin) / sizeof(float);
    uint16_t *elements = (uint16_t *)range->param->released.data + (begin - range->begin) / sizeof(float);
    const amp_span to = { (void *)begin, n, AMP_FLOAT32, 0 }, from = { elements, n, low, 0 };
    return amp_cast_list(&to, &from, 1);
}

amp_status amp__weights_restore(amp_context *context) {
    if (!context->released) return AMP_OK;
    for (size_t i = 0; i < context->n_pages; i++) AMP_TRY(protect(context->pages[i], PROT_READ | PROT_WRITE));
    for (size_t i = 0, page = 0; i < context->n_ranges && context->n_pages; i++) { /* both are sorted */
        while (page + 1 < context->n_pages && context->pages[page].end <= context->ranges[i].begin) page++;
        if (context->ranges[i].param->released.data)
            AMP_TRY(widen(&context->ranges[i], context->pages[page], context->properties.cast_model_type));
    }
    drop_copies(context);
    amp__free(context->pages);
    context->pages = NULL;
    context->n_pages = 0;
    context->released = false;
    return AMP_OK;
}
