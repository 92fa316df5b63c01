/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What amp_statistics counts, of floats: vectors find the row of each element in a table of counts, and the increment
 * is all that is done for each alone. Neighbours have tables of their own: equal rows would wait for each other's
 * store. Loops over integers are written plainly: compilers make vectors of them.
 */
#include "kernels/vector/vector.h"

enum { CHUNK = 256, TABLES = 8, MANTISSA = 23, CLASSES = 4, EXPONENTS = 256 };
#define INFINITE UINT32_C(0x7f800000)
#define LEAST_NORMAL UINT32_C(0x00800000)

struct counts {
    uint32_t table[TABLES][EXPONENTS * CLASSES];
    uint32_t least, largest; /* magnitudes: less one, of what is not 0; of what is finite */
};

/* ---- one chunk ---- */

/* A row for each exponent and class: 0 a power of two (or zero, or infinity), 1 any other, 2 a top of bf16, 3 a top of
 * fp16 as well. What is added carries into the exponent from the class on. */
static inline uint16_t row_of(uint32_t magnitude) {
    const uint32_t below = magnitude >> MANTISSA, not_power = (magnitude + LEAST_NORMAL - 1) >> MANTISSA;
    const uint32_t bf16 = (magnitude + (LEAST_NORMAL >> 8)) >> MANTISSA;
    const uint32_t fp16 = (magnitude + (LEAST_NORMAL >> 11)) >> MANTISSA;
    return (uint16_t)(below + not_power + bf16 + fp16);
}

static inline uint32_t magnitude_at(const float *x, size_t i) { return amp__f32_bits(x[i]) & UINT32_C(0x7fffffff); }

/* Subnormals have one exponent for many binades; infinities have signs, and are not the largest. */
static void count_rare(struct counts *c, const float *x, amp_statistics *s) {
    for (size_t i = 0; i < CHUNK; i++) {
        const uint32_t magnitude = magnitude_at(x, i);
        if (magnitude < INFINITE) c->largest = magnitude > c->largest ? magnitude : c->largest;
        else if (magnitude == INFINITE) amp__f32_bits(x[i]) >> 31 ? s->minus_infinities++ : s->plus_infinities++;
        if (magnitude - 1 < LEAST_NORMAL - 1) {
            const int top = 31 - __builtin_clz(magnitude);
            const uint32_t one = UINT32_C(1) << top, tail = magnitude - one;
            s->binades[top].elements++;
            s->binades[top].powers += tail == 0;
            s->binades[top].tops_bf16 += tail && (uint64_t)tail << 8 >= ((uint64_t)one << 8) - one;
            s->binades[top].tops_fp16 += tail && (uint64_t)tail << 11 >= ((uint64_t)one << 11) - one;
        }
    }
}

static inline void count_chunk(struct counts *c, const float *x, amp_statistics *s) {
    uint16_t row[CHUNK];
    uint32_t largest = 0, least = UINT32_MAX;
    for (size_t i = 0; i < CHUNK; i++) row[i] = row_of(magnitude_at(x, i));
    for (size_t i = 0; i < CHUNK; i++) {
        const uint32_t magnitude = magnitude_at(x, i), less = magnitude - 1; /* 0 becomes the largest */
        largest = magnitude > largest ? magnitude : largest;
        least = less < least ? less : least;
    }
    for (size_t i = 0; i < CHUNK; i += TABLES) {
        c->table[0][row[i]]++, c->table[1][row[i + 1]]++, c->table[2][row[i + 2]]++, c->table[3][row[i + 3]]++;
        c->table[4][row[i + 4]]++, c->table[5][row[i + 5]]++, c->table[6][row[i + 6]]++, c->table[7][row[i + 7]]++;
    }
    c->least = least < c->least ? least : c->least;
    if (largest >= INFINITE || least < LEAST_NORMAL - 1) count_rare(c, x, s);
    else if (largest > c->largest) c->largest = largest;
}

/* ---- the whole ---- */

static inline uint32_t in_row(const struct counts *c, size_t row) {
    uint32_t sum = 0;
    for (size_t t = 0; t < TABLES; t++) sum += c->table[t][row];
    return sum;
}

static void add_up(const struct counts *c, amp_statistics *s, size_t behind) {
    enum { FIRST = -126 - AMP_BINADE_LEAST }; /* the binade of exponent 1 */
    s->zeros += in_row(c, 0) - behind;
    for (size_t class = 1; class < CLASSES; class++) s->nans += in_row(c, (EXPONENTS - 1) * CLASSES + class);
    for (size_t e = 1; e < EXPONENTS - 1; e++) {
        const uint32_t powers = in_row(c, e * CLASSES), usual = in_row(c, e * CLASSES + 1);
        const uint32_t bf16 = in_row(c, e * CLASSES + 2), fp16 = in_row(c, e * CLASSES + 3);
        amp_binade *binade = &s->binades[e - 1 + FIRST];
        binade->elements += powers + usual + bf16 + fp16;
        binade->powers += powers;
        binade->tops_bf16 += bf16 + fp16;
        binade->tops_fp16 += fp16;
    }
    if (c->largest) {
        const double largest = (double)amp__f32_from_bits(c->largest), least = (double)amp__f32_from_bits(c->least + 1);
        s->largest = largest > s->largest ? largest : s->largest;
        s->least = s->least > 0.0 && s->least < least ? s->least : least;
    }
}

#define SUM_ZERO(j, type) vd sum##j = vd_set1(0.0), square##j = vd_set1(0.0);
#define SUM_ADD(j, type)                                                                                               \
    {                                                                                                                  \
        const vd wide = vd_load_f32(x + i + (j) * LANES);                                                              \
        sum##j = vd_add(sum##j, wide);                                                                                 \
        square##j = vd_add_exact(square##j, wide, wide);                                                               \
    }
#define SUM_STORE(j, type) vd_store_f64(sums + (j) * LANES, sum##j), vd_store_f64(squares + (j) * LANES, square##j);

/* A chunk's elements as floats. Behind the end are zeros, which change no sum. */
#define CHUNK_OF(type)                                                                                                 \
    static inline const float *chunk_of_##type(float work[CHUNK], const amp__##type *src, size_t n) {                  \
        amp__##type rest[CHUNK] = { 0 };                                                                               \
        if (n < CHUNK) src = memcpy(rest, src, n * sizeof *src);                                                       \
        for (size_t i = 0; i < CHUNK; i += LANES) vf_store_f32(work + i, vf_load_##type(src + i));                     \
        return work;                                                                                                   \
    }
CHUNK_OF(f16)
CHUNK_OF(bf16)
static inline const float *chunk_of_f32(float work[CHUNK], const float *src, size_t n) {
    if (n >= CHUNK) return src;
    memset(work, 0, CHUNK * sizeof *work);
    return memcpy(work, src, n * sizeof *work);
}

#define STATISTICS(type)                                                                                               \
    static AMP__STATISTICS(statistics_##type) {                                                                        \
        const amp__##type *from = src;                                                                                 \
        struct counts counts;                                                                                          \
        double sums[AMP__SUM_LANES], squares[AMP__SUM_LANES];                                                          \
        float work[CHUNK];                                                                                             \
        memset(counts.table, 0, sizeof counts.table);                                                                  \
        counts.least = UINT32_MAX, counts.largest = 0;                                                                 \
        EACH_SUM(SUM_ZERO, type)                                                                                       \
        for (size_t at = 0; at < n; at += CHUNK) {                                                                     \
            const float *x = chunk_of_##type(work, from + at, n - at);                                                 \
            for (size_t i = 0; i < CHUNK; i += AMP__SUM_LANES) {                                                       \
                EACH_SUM(SUM_ADD, type)                                                                                \
            }                                                                                                          \
            count_chunk(&counts, x, s);                                                                                \
        }                                                                                                              \
        EACH_SUM(SUM_STORE, type)                                                                                      \
        add_up(&counts, s, (CHUNK - n % CHUNK) % CHUNK);                                                               \
        s->elements += n;                                                                                              \
        s->sum += sum_lanes(sums);                                                                                     \
        s->sum_squares += sum_lanes(squares);                                                                          \
    }
STATISTICS(f32)
STATISTICS(f16)
STATISTICS(bf16)

amp__statistics_fn *const AMP__TABLE(statistics)[AMP__TYPES] = { NULL, statistics_f32, statistics_f16,
                                                                 statistics_bf16, NULL };
