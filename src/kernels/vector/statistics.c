/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counts of amp_statistics for floats. Most chunks span few binades: there each binade is compared with the
 * exponents of all elements, as bytes, in a fraction of an instruction each. Otherwise vectors find the row of each
 * element in a table of counts, and counters are increased one by one. Neighbours have separate tables, since equal
 * rows would wait for each other's store. Loops over integers are plain C, which compilers vectorize.
 */
#include "kernels/vector/vector.h"

enum { CHUNK = 1024, GROUP = 64, TABLES = 8, MANTISSA = 23, CLASSES = 4, EXPONENTS = 256 };
enum { NARROW = 20 }; /* binades: with more the table is faster */
#define INFINITE UINT32_C(0x7f800000)
#define LEAST_NORMAL UINT32_C(0x00800000)

_Static_assert(AMP__SUM_BLOCK / TABLES < UINT16_MAX, "no count wraps");

struct counts {
    uint32_t rows[EXPONENTS * CLASSES];
    uint16_t table[TABLES][EXPONENTS * CLASSES]; /* the same, which stays in the first cache: each has a part of a call,
                                                    which is of AMP__SUM_BLOCK elements at most */
    uint32_t least, largest; /* least magnitude above 0 minus one, largest finite magnitude */
};

/* ---- one chunk ---- */

/* Returns a row for each exponent and class: 0 a power of two (or zero, or infinity), 1 any other, 2 a top of bf16, 3 a
 * top of fp16 as well. The addition carries into the exponent from the class on. */
static inline uint16_t row_of(uint32_t magnitude) {
    const uint32_t below = magnitude >> MANTISSA, not_power = (magnitude + LEAST_NORMAL - 1) >> MANTISSA;
    const uint32_t bf16 = (magnitude + (LEAST_NORMAL >> 8)) >> MANTISSA;
    const uint32_t fp16 = (magnitude + (LEAST_NORMAL >> 11)) >> MANTISSA;
    return (uint16_t)(below + not_power + bf16 + fp16);
}

static inline uint32_t magnitude_at(const float *x, size_t i) { return amp__f32_bits(x[i]) & UINT32_C(0x7fffffff); }

/* Subnormals have one exponent for many binades; infinities have signs, and are not the largest. */
static void count_rare(struct counts *c, const float *x, size_t n, amp_statistics *s) {
    for (size_t i = 0; i < n; i++) {
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

static void count_wide(struct counts *c, const float *x, size_t n) {
    uint16_t row[CHUNK];
    for (size_t i = 0; i < n; i++) row[i] = row_of(magnitude_at(x, i));
    for (size_t i = 0; i < n; i += TABLES) {
        c->table[0][row[i]]++, c->table[1][row[i + 1]]++, c->table[2][row[i + 2]]++, c->table[3][row[i + 3]]++;
        c->table[4][row[i + 4]]++, c->table[5][row[i + 5]]++, c->table[6][row[i + 6]]++, c->table[7][row[i + 7]]++;
    }
}

/* How many of the bytes are this one. Each byte of `same` counts to 16 at most, and their sum fits 16 bits. */
static inline uint32_t count_equal(const uint8_t *bytes, size_t n, uint8_t wanted) {
    const uint64_t even = UINT64_C(0x00ff00ff00ff00ff), each = UINT64_C(0x0001000100010001);
    uint8_t same[GROUP] = { 0 };
    uint64_t sum = 0, words[GROUP / sizeof sum];
    for (size_t i = 0; i < n; i += GROUP)
        for (size_t j = 0; j < GROUP; j++) same[j] = (uint8_t)(same[j] + (bytes[i + j] == wanted));
    memcpy(words, same, sizeof words);
    for (size_t i = 0; i < GROUP / sizeof sum; i++) sum += words[i]; /* 128 at most in a byte */
    return (uint32_t)(((sum & even) + (sum >> 8 & even)) * each >> 48);
}

/* Few are powers of two or round up to one: the others' class is 1. False: they are many. */
static bool count_marked(struct counts *c, const float *x, const uint8_t *marked, size_t n) {
    uint64_t word;
    if (count_equal(marked, n, 1) > n / 16) return false;
    for (size_t i = 0; i < n; i += sizeof word) {
        memcpy(&word, marked + i, sizeof word);
        for (; word; word &= word - 1) {
            const size_t at = i + (size_t)__builtin_ctzll(word) / 8;
            const uint32_t magnitude = magnitude_at(x, at);
            c->rows[(magnitude >> MANTISSA) * CLASSES + 1]--;
            c->rows[row_of(magnitude)]++;
        }
    }
    return true;
}

/* Magnitudes from `least` to `largest`, all normal, or 0. False: nothing is counted. */
static bool count_narrow(struct counts *c, const float *x, size_t n, uint32_t least, uint32_t largest) {
    uint8_t exponent[CHUNK], marked[CHUNK];
    const uint32_t from = least >> MANTISSA, to = largest >> MANTISSA;
    uint32_t zeros = (uint32_t)n;
    if (largest && to - from >= NARROW) return false;
    for (size_t i = 0; i < n; i++) exponent[i] = (uint8_t)(magnitude_at(x, i) >> MANTISSA);
    for (size_t i = 0; i < n; i++) { /* 0 too has the mantissa of a power */
        const uint32_t bits = amp__f32_bits(x[i]), mantissa = bits & (LEAST_NORMAL - 1), zero = (bits << 1) == 0;
        marked[i] = (uint8_t)((mantissa - 1 >= LEAST_NORMAL - (LEAST_NORMAL >> 8) - 1) & (zero ^ 1));
    }
    if (!count_marked(c, x, marked, n)) return false;
    for (uint32_t e = from; largest && e <= to; e++) {
        const uint32_t count = count_equal(exponent, n, (uint8_t)e);
        c->rows[e * CLASSES + 1] += count;
        zeros -= count;
    }
    c->rows[0] += zeros;
    return true;
}

static inline void count_chunk(struct counts *c, const float *x, size_t n, amp_statistics *s) {
    uint32_t largest = 0, least = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        const uint32_t magnitude = magnitude_at(x, i), less = magnitude - 1; /* 0 becomes the largest */
        largest = magnitude > largest ? magnitude : largest;
        least = less < least ? less : least;
    }
    c->least = least < c->least ? least : c->least;
    const bool rare = largest >= INFINITE || least < LEAST_NORMAL - 1;
    if (rare || !count_narrow(c, x, n, least + 1, largest)) count_wide(c, x, n);
    if (rare) count_rare(c, x, n, s);
    else if (largest > c->largest) c->largest = largest;
}

/* ---- the whole ---- */

static inline uint32_t in_row(const struct counts *c, size_t row) {
    uint32_t sum = c->rows[row];
    for (size_t t = 0; t < TABLES; t++) sum += c->table[t][row];
    return sum;
}

static void add_up_counts(const struct counts *c, amp_statistics *s, size_t behind) {
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

/* A chunk's elements as floats, `filled` of them. Behind the end are zeros, which change no sum. */
#define CHUNK_OF(type)                                                                                                 \
    static inline const float *chunk_of_##type(float work[CHUNK], const amp__##type *src, size_t n, size_t filled) {   \
        amp__##type rest[CHUNK];                                                                                       \
        if (n < filled) {                                                                                              \
            memset(rest, 0, filled * sizeof *rest);                                                                    \
            src = memcpy(rest, src, n * sizeof *src);                                                                  \
        }                                                                                                              \
        for (size_t i = 0; i < filled; i += LANES) vf_store_f32(work + i, vf_load_##type(src + i));                    \
        return work;                                                                                                   \
    }
CHUNK_OF(f16)
CHUNK_OF(bf16)
static inline const float *chunk_of_f32(float work[CHUNK], const float *src, size_t n, size_t filled) {
    if (n >= filled) return src;
    memset(work, 0, filled * sizeof *work);
    return memcpy(work, src, n * sizeof *work);
}

#define STATISTICS(type)                                                                                               \
    static AMP__STATISTICS(statistics_##type) {                                                                        \
        const amp__##type *from = src;                                                                                 \
        struct counts counts;                                                                                          \
        double sums[AMP__SUM_LANES], squares[AMP__SUM_LANES];                                                          \
        float work[CHUNK];                                                                                             \
        size_t behind = 0;                                                                                             \
        memset(&counts, 0, sizeof counts);                                                                             \
        counts.least = UINT32_MAX;                                                                                     \
        EACH_SUM(SUM_ZERO, type)                                                                                       \
        for (size_t at = 0; at < n; at += CHUNK) {                                                                     \
            const size_t length = n - at < CHUNK ? n - at : CHUNK, filled = (length + GROUP - 1) / GROUP * GROUP;      \
            const float *x = chunk_of_##type(work, from + at, length, filled);                                         \
            for (size_t i = 0; i < filled; i += AMP__SUM_LANES) {                                                      \
                EACH_SUM(SUM_ADD, type)                                                                                \
            }                                                                                                          \
            count_chunk(&counts, x, filled, s);                                                                        \
            behind = filled - length;                                                                                  \
        }                                                                                                              \
        EACH_SUM(SUM_STORE, type)                                                                                      \
        add_up_counts(&counts, s, behind);                                                                             \
        s->elements += n;                                                                                              \
        s->sum += sum_lanes(sums);                                                                                     \
        s->sum_squares += sum_lanes(squares);                                                                          \
    }
STATISTICS(f32)
STATISTICS(f16)
STATISTICS(bf16)

amp__statistics_fn *const AMP__TABLE(statistics)[AMP__TYPES] = { NULL, statistics_f32, statistics_f16,
                                                                 statistics_bf16, NULL };
