/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of lists, and losses of casts from them. Counts are added in any order, sums by blocks, and the blocks in
 * order (norms.c). On several threads a cut entry is counted in pieces, which are merged.
 */
#include "kernels/fpenv.h"
#include "kernels/kernels.h"
#include "kernels/ref/convert.h"
#include "kernels/spans.h"
#include "kernels/walk.h"

#include <pthread.h>

/* ---- counting ---- */

struct sums {
    double sum, squares;
};

struct job {
    const struct amp__kernels *k;
    const amp_span *src;
    amp_statistics *statistics;
    struct sums *blocks; /* of all blocks in order (NULL: on one thread) */
    pthread_mutex_t mutex; /* for entries that are cut */
};

/* Everything but the sums. */
static void merge_counts(amp_statistics *into, const amp_statistics *from) {
    into->elements += from->elements;
    into->zeros += from->zeros;
    into->nans += from->nans;
    into->plus_infinities += from->plus_infinities;
    into->minus_infinities += from->minus_infinities;
    into->below += from->below;
    into->above += from->above;
    if (from->largest > into->largest) into->largest = from->largest;
    if (from->least > 0.0 && !(into->least > 0.0 && into->least < from->least)) into->least = from->least;
    for (size_t i = 0; i < AMP_BINADES; i++) {
        into->binades[i].elements += from->binades[i].elements;
        into->binades[i].powers += from->binades[i].powers;
        into->binades[i].tops_bf16 += from->binades[i].tops_bf16;
        into->binades[i].tops_fp16 += from->binades[i].tops_fp16;
    }
}

static struct sums count_block(const struct job *job, const amp_span *span, size_t at, size_t end,
                               amp_statistics *statistics) {
    const char *data = (const char *)span->data + at * amp__width(span->dtype);
    const struct sums before = { statistics->sum, statistics->sum_squares };
    statistics->sum = statistics->sum_squares = 0.0;
    job->k->statistics[span->dtype](data, end - at < AMP__SUM_BLOCK ? end - at : AMP__SUM_BLOCK, statistics);
    const struct sums block = { statistics->sum, statistics->sum_squares };
    statistics->sum = before.sum, statistics->sum_squares = before.squares;
    return block;
}

static void count_piece(struct job *job, const struct amp__part *part) {
    amp_statistics piece = AMP_STATISTICS_INIT;
    struct sums *block = job->blocks + part->block;
    for (size_t at = part->begin; at < part->end; at += AMP__SUM_BLOCK)
        *block++ = count_block(job, &job->src[part->first], at, part->end, &piece);
    pthread_mutex_lock(&job->mutex);
    merge_counts(&job->statistics[part->first], &piece);
    pthread_mutex_unlock(&job->mutex);
}

static void count_part(void *data, const struct amp__part *part) {
    struct job *job = data;
    struct sums *block = job->blocks + part->block;
    if (part->n == 1 && part->end - part->begin < job->src[part->first].size) {
        count_piece(job, part);
        return;
    }
    for (size_t i = part->first; i < part->first + part->n; i++)
        for (size_t at = 0; at < job->src[i].size; at += AMP__SUM_BLOCK)
            *block++ = count_block(job, &job->src[i], at, (size_t)job->src[i].size, &job->statistics[i]);
}

/* Without memory for the blocks' sums, one thread does it all. */
static void count_all(struct job *job, size_t n, uint64_t elements) {
    if (amp__walk_threads(elements) > 1)
        job->blocks = amp__alloc(n + (size_t)(elements / AMP__SUM_BLOCK), sizeof *job->blocks);
    if (job->blocks) amp__walk(job->src, n, elements, count_part, job);
    const struct sums *block = job->blocks;
    for (size_t i = 0; i < n; i++) {
        const amp_span *span = &job->src[i];
        struct sums all = { 0.0, 0.0 };
        for (size_t at = 0; at < span->size; at += AMP__SUM_BLOCK) {
            const struct sums one =
                block ? *block++ : count_block(job, span, at, (size_t)span->size, &job->statistics[i]);
            all.sum += one.sum, all.squares += one.squares;
        }
        job->statistics[i].sum += all.sum;
        job->statistics[i].sum_squares += all.squares;
    }
    amp__free(job->blocks);
}

static amp_status check_statistics(const amp_statistics *statistics, const char *name, size_t i) {
    AMP_RETURN_IF(statistics->struct_size != sizeof *statistics, AMP_ERR_ABI_MISMATCH,
                  "%s[%zu].struct_size is %u, not %zu: begin with AMP_STATISTICS_INIT", name, i,
                  (unsigned)statistics->struct_size, sizeof *statistics);
    return AMP_OK;
}

AMP_API amp_status amp_statistics_list(const amp_span *src, size_t n, amp_statistics *statistics) {
    struct amp__facts facts = { 0, false };
    AMP_TRY(amp__spans_check(src, n, "src", &facts));
    AMP_RETURN_IF(n && !statistics, AMP_ERR_INVALID_ARGUMENT, "statistics is NULL and n is %zu", n);
    for (size_t i = 0; i < n; i++) AMP_TRY(check_statistics(&statistics[i], "statistics", i));
    struct job job = { amp__kernels_get(), src, statistics, NULL, PTHREAD_MUTEX_INITIALIZER };
    const amp__fpenv saved = amp__fpenv_enter();
    count_all(&job, n, facts.elements);
    amp__fpenv_leave(saved);
    pthread_mutex_destroy(&job.mutex);
    return AMP_OK;
}

/* Sums through memory: see fpenv.h. */
static void merge(amp_statistics *into, const amp_statistics *from) {
    merge_counts(into, from);
    into->sum += from->sum;
    into->sum_squares += from->sum_squares;
}

AMP_API amp_status amp_statistics_merge(amp_statistics *into, const amp_statistics *from) {
    AMP_RETURN_IF(!into || !from, AMP_ERR_INVALID_ARGUMENT, "%s is NULL", into ? "from" : "into");
    AMP_TRY(check_statistics(into, "into", 0));
    AMP_TRY(check_statistics(from, "from", 0));
    const amp__fpenv saved = amp__fpenv_enter();
    merge(into, from);
    amp__fpenv_leave(saved);
    return AMP_OK;
}

/* ---- losses ---- */

/* Exponents: of the least normal number, of the largest number that rounds to zero (half the least subnormal), of the
 * largest binade, with a top that becomes infinite. */
struct range {
    int normal, zero, top;
    bool fp16;
};

static void count_losses(const amp_statistics *s, const struct range *r, int exponent, amp_losses *losses) {
    for (int i = 0; i < AMP_BINADES; i++) {
        const amp_binade *binade = &s->binades[i];
        const int e = i + AMP_BINADE_LEAST + exponent;
        const uint64_t zeros = e < r->zero ? binade->elements : e == r->zero ? binade->powers : 0;
        losses->zeros += zeros;
        losses->subnormals += e < r->normal ? binade->elements - zeros : 0;
        if (e > r->top) losses->infinities += binade->elements;
        else if (e == r->top) losses->infinities += r->fp16 ? binade->tops_fp16 : binade->tops_bf16;
    }
    losses->zeros += s->below;
    losses->infinities += s->above;
}

AMP_API amp_status amp_statistics_losses(const amp_statistics *statistics, amp_dtype type, float scale,
                                         amp_losses *losses) {
    enum { MANTISSA = 52, BIAS = 1023 };
    AMP_RETURN_IF(!statistics || !losses, AMP_ERR_INVALID_ARGUMENT, "%s is NULL", statistics ? "losses" : "statistics");
    AMP_TRY(check_statistics(statistics, "statistics", 0));
    AMP_RETURN_IF(type != AMP_FLOAT16 && type != AMP_BFLOAT16, AMP_ERR_INVALID_ARGUMENT,
                  "type is %s (%d): use fp16 or bf16", amp__dtype_name(type), (int)type);
    const uint64_t bits = amp__f64_bits(amp__f32_to_f64(scale));
    const int exponent = (int)(bits >> MANTISSA) - BIAS; /* a sign makes it too large */
    AMP_RETURN_IF(bits == 0 || bits << (64 - MANTISSA) || exponent > BIAS, AMP_ERR_INVALID_ARGUMENT,
                  "scale is no power of two: statistics tell of those alone");
    const struct range range = type == AMP_FLOAT16 ? (struct range){ -14, -25, 15, true }
                                                   : (struct range){ -126, -134, 127, false };
    AMP_RETURN_IF((statistics->below && AMP_BINADE_LEAST + exponent > range.zero) ||
                      (statistics->above && AMP_BINADE_LEAST + AMP_BINADES + exponent <= range.top),
                  AMP_ERR_UNSUPPORTED, "%llu elements are below 2^%d and %llu beyond: scaled by 2^%d, how many fit is "
                  "not known", (unsigned long long)statistics->below, AMP_BINADE_LEAST,
                  (unsigned long long)statistics->above, exponent);
    *losses = (amp_losses){ 0, 0, 0 };
    count_losses(statistics, &range, exponent, losses);
    return AMP_OK;
}
