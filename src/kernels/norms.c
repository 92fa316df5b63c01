/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums over lists, as kernels.h defines them: by blocks, then the blocks in order. One thread does both together,
 * several store the sums of blocks first. Floating-point results pass between functions through memory (see fpenv.h).
 */
#include "amp_optim.h"
#include "kernels/fpenv.h"
#include "kernels/kernels.h"
#include "kernels/spans.h"
#include "kernels/walk.h"

#include <math.h>
#include <stdatomic.h>

struct sums {
    const struct amp__kernels *k;
    const amp_span *src;
    bool check; /* of src * scale * factor, with a check for non-finite products */
    float scale, factor;
    double *blocks; /* the sums of all blocks in order (NULL: on one thread) */
    _Atomic uint32_t nonfinite;
};

static double sum_block(const struct sums *s, const amp_span *span, size_t at, size_t end, uint32_t *nonfinite) {
    const char *data = (const char *)span->data + at * amp__width(span->dtype);
    const size_t n = end - at < AMP__SUM_BLOCK ? end - at : AMP__SUM_BLOCK;
    return s->check ? s->k->check[span->dtype](data, n, s->scale, s->factor, nonfinite)
                    : s->k->sum_squares[span->dtype](data, n);
}

static void sum_part(void *sums, const struct amp__part *part) {
    struct sums *s = sums;
    uint32_t nonfinite = 0;
    double *block = s->blocks + part->block;
    for (size_t i = part->first; i < part->first + part->n; i++) {
        const size_t begin = part->n == 1 ? part->begin : 0, end = part->n == 1 ? part->end : (size_t)s->src[i].size;
        for (size_t at = begin; at < end; at += AMP__SUM_BLOCK)
            *block++ = sum_block(s, &s->src[i], at, end, &nonfinite);
    }
    if (nonfinite) atomic_store_explicit(&s->nonfinite, 1, memory_order_relaxed);
}

/* Without memory for them, the blocks are summed as they come. */
static void store_blocks(struct sums *s, size_t n, uint64_t elements) {
    if (amp__walk_threads(elements) == 1) return;
    s->blocks = amp__alloc(n + (size_t)(elements / AMP__SUM_BLOCK), sizeof *s->blocks);
    if (s->blocks) amp__walk(s->src, n, elements, sum_part, s);
}

/* *total: of all; norms (may be NULL): of each. */
static void add_up_sums(struct sums *s, size_t n, uint64_t elements, double *total, float *norms) {
    uint32_t nonfinite = 0;
    s->k = amp__kernels_get();
    store_blocks(s, n, elements);
    const double *block = s->blocks;
    double all = 0.0;
    for (size_t i = 0; i < n; i++) {
        const size_t size = (size_t)s->src[i].size;
        double sum = 0.0;
        for (size_t at = 0; at < size; at += AMP__SUM_BLOCK)
            sum += block ? *block++ : sum_block(s, &s->src[i], at, size, &nonfinite);
        if (norms) norms[i] = (float)sqrt(sum);
        all += sum;
    }
    *total = all;
    amp__free(s->blocks);
    if (nonfinite) atomic_store_explicit(&s->nonfinite, 1, memory_order_relaxed);
}

/* Apart, so that the root is taken in the environment in which the sum was. */
static void find_norms(struct sums *s, size_t n, uint64_t elements, float *norm, float *norms) {
    double total;
    add_up_sums(s, n, elements, &total, norms);
    if (norm) *norm = (float)sqrt(total);
}

double amp__check_span(const amp_span *span, float scale, float factor, uint32_t *nonfinite) {
    struct sums s = { .src = span, .check = true, .scale = scale, .factor = factor };
    double total;
    add_up_sums(&s, 1, span->size, &total, NULL);
    *nonfinite |= atomic_load_explicit(&s.nonfinite, memory_order_relaxed);
    return total;
}

AMP_API amp_status amp_l2norm_list(const amp_span *src, size_t n, float *norm, float *norms) {
    struct amp__facts facts = { 0, false };
    AMP_TRY(amp__spans_check(src, n, "src", &facts));
    struct sums s = { .src = src };
    const amp__fpenv saved = amp__fpenv_enter();
    find_norms(&s, n, facts.elements, norm, norms);
    amp__fpenv_leave(saved);
    return AMP_OK;
}

AMP_API amp_status amp_check_list(const amp_span *src, size_t n, float scale, float factor, float *norm, float *norms,
                                  float *found_inf) {
    struct amp__facts facts = { 0, false };
    AMP_TRY(amp__spans_check(src, n, "src", &facts));
    struct sums s = { .src = src, .check = true, .scale = scale, .factor = factor };
    const amp__fpenv saved = amp__fpenv_enter();
    find_norms(&s, n, facts.elements, norm, norms);
    amp__fpenv_leave(saved);
    if (atomic_load_explicit(&s.nonfinite, memory_order_relaxed) && found_inf) *found_inf = 1.0f;
    return AMP_OK;
}

AMP_API amp_status amp_first_nonfinite(const amp_span *src, size_t n, int64_t *index) {
    struct amp__facts facts = { 0, false };
    AMP_RETURN_IF(!index, AMP_ERR_INVALID_ARGUMENT, "index is NULL");
    AMP_TRY(amp__spans_check(src, n, "src", &facts));
    const struct amp__kernels *k = amp__kernels_get();
    size_t i = 0;
    while (i < n && !k->nonfinite[src[i].dtype](src[i].data, (size_t)src[i].size)) i++;
    *index = i < n ? (int64_t)i : -1;
    return AMP_OK; /* no bracket: the search reads bits */
}
