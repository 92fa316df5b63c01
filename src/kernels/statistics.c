/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of lists, and losses of casts from them. Counts are added in any order, sums by blocks, and the blocks in
 * order (norms.c). On several threads a cut entry is counted in pieces, which are merged. A sample is of a block.
 */
#include "kernels/fpenv.h"
#include "kernels/kernels.h"
#include "kernels/pack.h"
#include "kernels/ref/convert.h"
#include "kernels/spans.h"
#include "kernels/walk.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

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
    uint32_t every;        /* one line of so many counts */
    uint64_t seed;
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

/* ---- samples ---- */

enum { LINE = 64 };

/* Copies one line of each `every`, the one that the seed says, and counts the copies. Returns the elements of lines of
 * which some were copied. */
static size_t count_lines(const struct job *job, const char *data, amp_dtype dtype, uint64_t block, size_t n,
                          amp_statistics *chosen) {
    enum { LINES = 128 };
    _Alignas(LINE) char copy[LINES * LINE];
    const size_t width = amp__width(dtype), of_line = LINE / width, groups = n / of_line / job->every;
    size_t filled = 0;
    for (size_t group = 0; group < groups; group++) {
        const uint64_t key = amp__pack_key(job->seed, block * AMP__SUM_BLOCK + group);
        const size_t line = group * job->every + (size_t)((key >> 32) * job->every >> 32);
        memcpy(copy + LINE * filled++, data + LINE * line, LINE);
        if (filled < LINES && group + 1 < groups) continue;
        job->k->statistics[dtype](copy, filled * of_line, chosen);
        filled = 0;
    }
    return groups * job->every * of_line;
}

static void multiply(amp_statistics *s, uint64_t by) {
    s->elements *= by, s->zeros *= by, s->below *= by, s->above *= by;
    s->sum *= (double)by, s->sum_squares *= (double)by;
    for (size_t i = 0; i < AMP_BINADES; i++) {
        amp_binade *binade = &s->binades[i];
        binade->elements *= by, binade->powers *= by, binade->tops_bf16 *= by, binade->tops_fp16 *= by;
    }
}

static double value_of(amp_dtype dtype, uint64_t bits) {
    switch (dtype) {
    case AMP_FLOAT16: return amp__f32_to_f64(amp__f16_to_f32((amp__f16)bits));
    case AMP_BFLOAT16: return amp__f32_to_f64(amp__bf16_to_f32((amp__bf16)bits));
    case AMP_FLOAT64: return amp__f64_from_bits(bits);
    default: return amp__f32_to_f64(amp__f32_from_bits((uint32_t)bits));
    }
}

/* A whole block whose elements are all finite. False: one is not, and nothing is counted. */
static bool sample_block(const struct job *job, const char *data, amp_dtype dtype, uint64_t block,
                         amp_statistics *statistics) {
    amp_statistics chosen = AMP_STATISTICS_INIT;
    const uint64_t largest = job->k->largest[dtype](data, AMP__SUM_BLOCK);
    if (!isfinite(value_of(dtype, largest))) return false;
    const size_t done = count_lines(job, data, dtype, block, AMP__SUM_BLOCK, &chosen);
    multiply(&chosen, job->every);
    if (done < AMP__SUM_BLOCK)
        job->k->statistics[dtype](data + done * amp__width(dtype), AMP__SUM_BLOCK - done, &chosen);
    chosen.largest = value_of(dtype, largest);
    merge_counts(statistics, &chosen);
    statistics->sum = chosen.sum, statistics->sum_squares = chosen.sum_squares;
    return true;
}

static struct sums count_block(const struct job *job, const amp_span *span, size_t at, size_t end,
                               amp_statistics *statistics) {
    const char *data = (const char *)span->data + at * amp__width(span->dtype);
    const struct sums before = { statistics->sum, statistics->sum_squares };
    statistics->sum = statistics->sum_squares = 0.0;
    const size_t n = end - at < AMP__SUM_BLOCK ? end - at : AMP__SUM_BLOCK;
    const bool sample = job->every > 1 && n == AMP__SUM_BLOCK;
    if (!sample || !sample_block(job, data, span->dtype, at / AMP__SUM_BLOCK, statistics))
        job->k->statistics[span->dtype](data, n, statistics);
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

AMP_API amp_status amp_statistics_sample(const amp_span *src, size_t n, uint32_t every, uint64_t seed,
                                         amp_statistics *statistics) {
    struct amp__facts facts = { 0, false };
    AMP_TRY(amp__spans_check(src, n, "src", &facts));
    AMP_RETURN_IF(n && !statistics, AMP_ERR_INVALID_ARGUMENT, "statistics is NULL and n is %zu", n);
    for (size_t i = 0; i < n; i++) AMP_TRY(check_statistics(&statistics[i], "statistics", i));
    AMP_RETURN_IF(every < 1 || every > AMP_SAMPLE_MOST, AMP_ERR_INVALID_ARGUMENT,
                  "every is %u: use 1 (exact counts) to %d", (unsigned)every, AMP_SAMPLE_MOST);
    struct job job = { amp__kernels_get(), src, statistics, NULL, PTHREAD_MUTEX_INITIALIZER, every, seed };
    const amp__fpenv saved = amp__fpenv_enter();
    count_all(&job, n, facts.elements);
    amp__fpenv_leave(saved);
    pthread_mutex_destroy(&job.mutex);
    return AMP_OK;
}

AMP_API amp_status amp_statistics_list(const amp_span *src, size_t n, amp_statistics *statistics) {
    return amp_statistics_sample(src, n, 1, 0, statistics);
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
                  AMP_ERR_UNSUPPORTED, "%llu element%s below 2^%d and %llu beyond: scaled by 2^%d, how many fit is not "
                  "known", (unsigned long long)statistics->below, AMP__S(statistics->below), AMP_BINADE_LEAST,
                  (unsigned long long)statistics->above, exponent);
    *losses = (amp_losses){ 0, 0, 0 };
    count_losses(statistics, &range, exponent, losses);
    return AMP_OK;
}
