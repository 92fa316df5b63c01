/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counts of amp_statistics for floats. Most chunks span few binades: there each binade is compared with the
 * exponents of all elements, as bytes, in a fraction of an instruction each. Otherwise vectors find the row of each
 * element in a table of counts, and counters are increased one by one. Neighbours have separate tables, since equal
 * rows would wait for each other's store. Loops over integers are plain C, which compilers vectorize.
 */
#include "kernels/vector/vector.h"

enum { CHUNK = AMP__SUM_STRETCH, GROUP = 64, TABLES = 8, MANTISSA = 23, CLASSES = 4, EXPONENTS = 256 };
enum { NARROW = 40 }; /* binades: with more the table is faster */
#define INFINITE UINT32_C(0x7f800000)
#define LEAST_NORMAL UINT32_C(0x00800000)

_Static_assert(AMP__SUM_BLOCK / TABLES < UINT16_MAX, "no count wraps");

struct counts {
    uint32_t rows[EXPONENTS * CLASSES];
    uint16_t table[TABLES][EXPONENTS * CLASSES]; /* the same, which stays in the first cache: each has a part of a call,
                                                    which is of AMP__SUM_BLOCK elements at most */
    bool is_wide;            /* some are in the table, which is else not written */
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
    if (!c->is_wide) memset(c->table, 0, sizeof c->table);
    c->is_wide = true;
    for (size_t i = 0; i < n; i++) row[i] = row_of(magnitude_at(x, i));
    for (size_t i = 0; i < n; i += TABLES) {
        c->table[0][row[i]]++, c->table[1][row[i + 1]]++, c->table[2][row[i + 2]]++, c->table[3][row[i + 3]]++;
        c->table[4][row[i + 4]]++, c->table[5][row[i + 5]]++, c->table[6][row[i + 6]]++, c->table[7][row[i + 7]]++;
    }
}

/* How many of the bytes are this one. */
#ifdef HAS_MASKS
static inline uint32_t count_equal(const uint8_t *bytes, size_t n, uint8_t wanted) {
    uint64_t count = 0;
    for (size_t i = 0; i < n; i += GROUP) count += (uint64_t)__builtin_popcountll(vw_bits_equal(bytes + i, wanted));
    return (uint32_t)count;
}
#else
/* Each byte of `same` counts to 16 at most, and their sum fits 16 bits. */
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
#endif

enum { MARKED = EXPONENTS - 1 }; /* in place of an exponent, that of infinities and NaNs */

/* Exponents of normal numbers and 0, but of those that are powers of two or may round up to one (tops of bf16). With
 * the least magnitude above 0 minus one, and the largest. */
static inline void scan_chunk(const float *x, size_t n, uint8_t exponent[CHUNK], uint32_t *least, uint32_t *largest) {
    enum { SIGN_AND_EXPONENT = 9 };
    const uint32_t top = LEAST_NORMAL >> 8 << SIGN_AND_EXPONENT; /* the last `top` mantissas wrap around to 0 */
    uint32_t most = 0, few = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        const uint32_t magnitude = magnitude_at(x, i), less = magnitude - 1; /* 0 becomes the largest */
        const uint32_t mantissa = (magnitude << SIGN_AND_EXPONENT) + top;
        most = magnitude > most ? magnitude : most;
        few = less < few ? less : few;
        exponent[i] = (uint8_t)(((mantissa <= top) & (magnitude != 0)) ? MARKED : magnitude >> MANTISSA);
    }
    *least = few, *largest = most;
}

/* Each of the marked by itself. False: they are many. */
static bool count_marked(struct counts *c, const float *x, const uint8_t *exponent, size_t n) {
    if (count_equal(exponent, n, MARKED) > n / 16) return false;
    for (size_t i = 0; i < n; i += GROUP)
        for (uint64_t bits = vw_bits_equal(exponent + i, MARKED); bits; bits &= bits - 1)
            c->rows[row_of(magnitude_at(x, i + (size_t)__builtin_ctzll(bits)))]++;
    return true;
}

/* Magnitudes from `least` to `largest`, all normal, or 0. False: nothing is counted. */
static bool count_narrow(struct counts *c, const float *x, const uint8_t *exponent, size_t n, uint32_t least,
                         uint32_t largest) {
    const uint32_t from = least >> MANTISSA, to = largest >> MANTISSA;
    if (largest && to - from >= NARROW) return false;
    if (!count_marked(c, x, exponent, n)) return false;
    c->rows[0] += count_equal(exponent, n, 0);
    for (uint32_t e = from; largest && e <= to; e++)
        c->rows[e * CLASSES + 1] += count_equal(exponent, n, (uint8_t)e);
    return true;
}

/* Returns true if all are 0 or between 2^-60 and 2^60. */
static inline bool count_chunk(struct counts *c, const float *x, size_t n, amp_statistics *s) {
    enum { LEAST = (127 - 60) << MANTISSA, LARGEST = (127 + 60) << MANTISSA };
    _Alignas(64) uint8_t exponent[CHUNK];
    uint32_t least, largest;
    scan_chunk(x, n, exponent, &least, &largest);
    c->least = least < c->least ? least : c->least;
    const bool rare = largest >= INFINITE || least < LEAST_NORMAL - 1;
    if (rare || !count_narrow(c, x, exponent, n, least + 1, largest)) count_wide(c, x, n);
    if (rare) count_rare(c, x, n, s);
    else if (largest > c->largest) c->largest = largest;
    return largest <= LARGEST && least >= LEAST - 1;
}

/* ---- the whole ---- */

static inline uint32_t in_row(const struct counts *c, size_t row) {
    uint32_t sum = c->rows[row];
    for (size_t t = 0; c->is_wide && t < TABLES; t++) sum += c->table[t][row];
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
#define STRIPE_ADD(j, type)                                                                                            \
    {                                                                                                                  \
        const struct stripe stripe = stripe_of(x + i + (j) * LANES);                                                   \
        sum##j = vd_add(sum##j, widen(stripe.sum));                                                                    \
        square##j = vd_add(square##j, widen(stripe.squares));                                                          \
    }
#define SUM_STORE(j, type) vd_store_f64(sums + (j) * LANES, sum##j), vd_store_f64(squares + (j) * LANES, square##j);

struct stripe {
    vf sum, squares;
};

/* LANES lanes of a stripe. */
static inline struct stripe stripe_of(const float *x) {
    vf even = vf_load_f32(x), odd = vf_load_f32(x + AMP__SUM_LANES);
    struct stripe evens = { even, vf_mul(even, even) }, odds = { odd, vf_mul(odd, odd) };
    for (size_t row = 2; row < AMP__SUM_ROWS; row += 2) {
        even = vf_load_f32(x + row * AMP__SUM_LANES), odd = vf_load_f32(x + (row + 1) * AMP__SUM_LANES);
        evens.sum = vf_add(evens.sum, even), odds.sum = vf_add(odds.sum, odd);
        evens.squares = vf_add(evens.squares, vf_mul(even, even));
        odds.squares = vf_add(odds.squares, vf_mul(odd, odd));
    }
    return (struct stripe){ vf_add(evens.sum, odds.sum), vf_add(evens.squares, odds.squares) };
}

/* A chunk's elements as floats, `filled` of them. Behind the end are zeros, which change no sum. */
#define CHUNK_OF(type)                                                                                                 \
    static inline const float *chunk_of_##type(float work[CHUNK], const amp__##type *src, size_t n, size_t filled) {   \
        amp__##type rest[CHUNK];                                                                                       \
        if (n < filled) {                                                                                              \
            memset(rest, 0, filled * sizeof *rest);                                                                    \
            src = memcpy(rest, src, n * sizeof *src);                                                                  \
        }                                                                                                              \
        for (size_t i = 0; i < filled; i += LANES) vf_store_f32(work + i, vf_load_##type(src + i));                    \
        read_ahead(src, sizeof rest); /* the next chunk: this one takes longer than the processor looks ahead */       \
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
        _Alignas(64) float work[CHUNK];                                                                                \
        size_t behind = 0;                                                                                             \
        memset(counts.rows, 0, sizeof counts.rows);                                                                    \
        counts.is_wide = false;                                                                                        \
        counts.least = UINT32_MAX, counts.largest = 0;                                                                 \
        EACH_SUM(SUM_ZERO, type)                                                                                       \
        for (size_t at = 0; at < n; at += CHUNK) {                                                                     \
            const size_t length = n - at < CHUNK ? n - at : CHUNK;                                                     \
            const size_t filled = (length + AMP__SUM_STRIPE - 1) / AMP__SUM_STRIPE * AMP__SUM_STRIPE;                  \
            const float *x = chunk_of_##type(work, from + at, length, filled);                                         \
            if (count_chunk(&counts, x, filled, s)) {                                                                  \
                for (size_t i = 0; i < filled; i += AMP__SUM_STRIPE) {                                                 \
                    EACH_SUM(STRIPE_ADD, type)                                                                         \
                }                                                                                                      \
            } else {                                                                                                   \
                for (size_t i = 0; i < filled; i += AMP__SUM_LANES) {                                                  \
                    EACH_SUM(SUM_ADD, type)                                                                            \
                }                                                                                                      \
            }                                                                                                          \
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
