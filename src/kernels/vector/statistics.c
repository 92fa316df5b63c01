/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counts of amp_statistics for floats, chunk by chunk.
 *
 * Most chunks span few binades, and few of their elements are powers of two or nearly so. The others are counted by
 * binade alone: an element becomes a word with one bit, and full adders count the bits of many words at once, each bit
 * by itself (a Harley-Seal count, Mula, Kurz, Lemire, "Faster population counts using AVX2 instructions", 2018). Its
 * counters are words too, planes: one has the ones of all counts, the next the twos. That is five operations for a
 * vector of elements, however many binades there are. The marked few are looked at one by one.
 *
 * In other chunks vectors find the row of each element in a table of counts, and counters are increased one by one.
 * Neighbours have separate tables, since equal rows would wait for each other's store. Loops over integers are plain
 * C, which compilers vectorize.
 */
#include "kernels/vector/vector.h"

#define INLINE static inline __attribute__((always_inline))

enum { CHUNK = AMP__SUM_STRETCH, TABLES = 8, MANTISSA = 23, CLASSES = 4, EXPONENTS = 256 };
enum { WINDOW = 32, PLANES = 8, MOST = (1 << PLANES) - 1, STEP = 16 * LANES };
#define INFINITE UINT32_C(0x7f800000)
#define LEAST_NORMAL UINT32_C(0x00800000)

_Static_assert(AMP__SUM_BLOCK / TABLES < UINT16_MAX, "no count wraps");
_Static_assert(AMP__SUM_BLOCK / LANES < UINT16_MAX, "nor there");

/* Counts of exponents modulo 32, which differ as long as there are no 32. */
struct window {
    vi plane[PLANES]; /* bit b of plane p: 2^p elements of this lane have the exponent b */
    size_t in_planes; /* elements */
    uint32_t counts[2 * PLANES][LANES]; /* of planes that were closed: in the halves of word j exponents j and 16 + j */
    uint32_t from, to;                  /* least and largest exponent */
    uint32_t zeros;                     /* counted as exponent 0 */
};

struct counts {
    uint32_t elements[EXPONENTS];       /* of each exponent, without those of the table */
    uint32_t rows[EXPONENTS * CLASSES]; /* the marked among them by class, and zeros */
    struct window window;
    uint16_t table[TABLES][EXPONENTS * CLASSES]; /* it stays in the first cache: each has a part of a call, which is of
                                                    AMP__SUM_BLOCK elements at most */
    bool is_wide;            /* some are in the table, which is else not written */
    size_t filling;          /* zeros behind chunks' ends */
    uint32_t least, largest; /* least magnitude above 0 minus one, largest finite magnitude */
};

/* ---- one chunk ---- */

enum { TOGETHER = sizeof(uint64_t) / sizeof(uint16_t) };
union marks {
    uint16_t of[CHUNK / LANES]; /* a vector's */
    uint64_t words[CHUNK / LANES / TOGETHER];
};

/* A chunk's elements as floats, and zeros up to a whole pair of stripes. */
struct chunk {
    const float *x;
    size_t n;
    uint32_t least, largest; /* the least magnitude above 0 minus one, and the largest */
    const void *src;
    size_t fetched, rest;    /* bytes that came AHEAD while it was read; bytes an element that are to come */
    union marks marks;
    _Alignas(64) float work[CHUNK];
    _Alignas(64) float sums[CHUNK / AMP__SUM_ROWS], squares[CHUNK / AMP__SUM_ROWS];
};

/* Bits of lanes with 0, a power of two, a number that may round up to one (a top of bf16), and as many above one. */
INLINE uint16_t marks_of(vf x) {
    const vi upper = vi_set1(LEAST_NORMAL - (LEAST_NORMAL >> 7));
    return (uint16_t)vi_without(vi_add(vi_bits(x), vi_set1(LEAST_NORMAL >> 8)), upper);
}

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

/* ---- the window ---- */

/* a, b and c add up to *low and two of what is returned, each bit by itself. */
INLINE vi add_bits(vi a, vi b, vi c, vi *low) {
    *low = vi_xor(vi_xor(a, b), c);
    return vi_majority(a, b, c);
}

/* A transposition: byte k of the result's word j is the count of bit 8 * k + j. */
INLINE void turn_planes(vi plane[PLANES]) {
#define EXCHANGE(i, j, by, mask)                                                                                       \
    {                                                                                                                  \
        const vi low = vi_choose(vi_set1(mask), plane[i], vi_shl(plane[j], by));                                       \
        plane[j] = vi_choose(vi_set1(mask), vi_shr(plane[i], by), plane[j]);                                           \
        plane[i] = low;                                                                                                \
    }
#define EXCHANGE_ALL(a, b, c, d, by, mask)                                                                             \
    EXCHANGE(a, a + by, by, mask) EXCHANGE(b, b + by, by, mask)                                                        \
    EXCHANGE(c, c + by, by, mask) EXCHANGE(d, d + by, by, mask)
    EXCHANGE_ALL(0, 2, 4, 6, 1, UINT32_C(0x55555555))
    EXCHANGE_ALL(0, 1, 4, 5, 2, UINT32_C(0x33333333))
    EXCHANGE_ALL(0, 1, 2, 3, 4, UINT32_C(0x0f0f0f0f))
}

static void close_planes(struct window *w) {
    const vi bytes = vi_set1(UINT32_C(0x00ff00ff));
    turn_planes(w->plane);
    for (size_t j = 0; j < PLANES; j++) {
        uint32_t *even = w->counts[j], *odd = w->counts[PLANES + j];
        vi_store(even, vi_add(vi_load(even), vi_and(w->plane[j], bytes)));
        vi_store(odd, vi_add(vi_load(odd), vi_and(vi_shr(w->plane[j], 8), bytes)));
        w->plane[j] = vi_set1(0);
    }
    w->in_planes = 0;
}

INLINE vi binade_bit(const float *x) { return vi_one_hot(vi_shr(vi_bits(vf_load_f32(x)), MANTISSA)); }

INLINE vi count_eight(vi plane[PLANES], const float *x) {
    vi two[4], four[2];
    _Pragma("GCC unroll 4") for (size_t j = 0; j < 4; j++, x += 2 * LANES)
        two[j] = add_bits(plane[0], binade_bit(x), binade_bit(x + LANES), &plane[0]);
    four[0] = add_bits(plane[1], two[0], two[1], &plane[1]);
    four[1] = add_bits(plane[1], two[2], two[3], &plane[1]);
    return add_bits(plane[2], four[0], four[1], &plane[2]);
}

/* Whole pairs of stripes. */
static void count_window(struct window *w, const struct chunk *c) {
    vi plane[PLANES];
    if (w->in_planes + c->n > MOST * LANES) close_planes(w);
    w->in_planes += c->n;
    memcpy(plane, w->plane, sizeof plane);
    for (size_t i = 0; i < c->n; i += STEP) {
        prefetch(c->src, AHEAD + c->fetched + i * c->rest, STEP * c->rest);
        const vi eight = count_eight(plane, c->x + i), other = count_eight(plane, c->x + i + STEP / 2);
        vi carry = add_bits(plane[3], eight, other, &plane[3]);
        _Pragma("GCC unroll 4") for (size_t j = 4; j < PLANES; j++) {
            const vi sum = vi_xor(plane[j], carry);
            carry = vi_and(plane[j], carry);
            plane[j] = sum;
        }
    }
    memcpy(w->plane, plane, sizeof plane);
}

static void close_window(struct counts *c) {
    struct window *w = &c->window;
    uint32_t of[WINDOW];
    close_planes(w);
    for (size_t j = 0; j < 2 * PLANES; j++) {
        uint32_t low = 0, high = 0;
        for (size_t i = 0; i < LANES; i++) low += w->counts[j][i] & 0xffff, high += w->counts[j][i] >> 16;
        of[j] = low, of[j + 2 * PLANES] = high;
    }
    of[0] -= w->zeros;
    for (uint32_t e = w->from; e <= w->to; e++) c->elements[e] += of[e % WINDOW];
    *w = (struct window){ .from = EXPONENTS };
}

/* For elements with exponents from `from` to `to`, and zeros. */
static void widen_window(struct counts *c, uint32_t from, uint32_t to) {
    struct window *w = &c->window;
    if ((to > w->to ? to : w->to) >= (from < w->from ? from : w->from) + WINDOW) close_window(c);
    w->from = from < w->from ? from : w->from;
    w->to = to > w->to ? to : w->to;
}

/* ---- marked elements ---- */

/* Returns how many marks there are. *filled: a bit for each word with marks. */
static size_t count_marks(const struct chunk *c, uint64_t *filled) {
    size_t sum = 0;
    *filled = 0;
    for (size_t i = 0; i < c->n / LANES / TOGETHER; i++) {
        sum += (size_t)__builtin_popcountll(c->marks.words[i]);
        *filled |= (uint64_t)(c->marks.words[i] != 0) << i;
    }
    return sum;
}

/* Returns how many zeros there were. */
static uint32_t unmark_zeros(struct chunk *c) {
    uint32_t zeros = 0;
    for (size_t i = 0; i < c->n / LANES; i++) {
        const uint32_t differ = vf_differ(vf_load_f32(c->x + i * LANES), vf_set1(0.0f));
        zeros += (uint32_t)__builtin_popcount(c->marks.of[i] & ~differ);
        c->marks.of[i] &= (uint16_t)differ;
    }
    return zeros;
}

/* Classes of marked elements. False: they are many, and nothing is counted. */
static bool count_marked(struct counts *counts, struct chunk *c) {
    enum { MANY = CHUNK / 16 };
    uint32_t *rows = counts->rows, zeros = 0;
    const uint32_t before = rows[0];
    uint64_t filled;
    if (count_marks(c, &filled) > MANY) { /* as after a ReLU */
        zeros = unmark_zeros(c);
        if (count_marks(c, &filled) > MANY) return false;
    }
    for (; filled; filled &= filled - 1) {
        const int i = __builtin_ctzll(filled);
        const float *x = c->x + i * TOGETHER * LANES;
        for (uint64_t bits = c->marks.words[i]; bits; bits &= bits - 1) {
            const size_t bit = (size_t)__builtin_ctzll(bits);
            rows[row_of(magnitude_at(x, LANES == 16 ? bit : bit / 16 * LANES + bit % 16))]++;
        }
    }
    rows[0] += zeros;
    counts->window.zeros += rows[0] - before;
    return true;
}

/* Elements that are normal, or 0. False: nothing is counted. */
static bool count_narrow(struct counts *counts, struct chunk *c) {
    const uint32_t from = (c->least + 1) >> MANTISSA, to = c->largest >> MANTISSA;
    if (!c->largest) {
        counts->rows[0] += (uint32_t)c->n;
        return true;
    }
    if (to - from >= WINDOW) return false;
    widen_window(counts, from, to);
    if (!count_marked(counts, c)) return false;
    count_window(&counts->window, c);
    return true;
}

/* Returns true if all are 0 or between 2^-60 and 2^60. */
static inline bool count_chunk(struct counts *counts, struct chunk *c, amp_statistics *s) {
    enum { LEAST = (127 - 60) << MANTISSA, LARGEST = (127 + 60) << MANTISSA };
    const bool rare = c->largest >= INFINITE || c->least < LEAST_NORMAL - 1;
    counts->least = c->least < counts->least ? c->least : counts->least;
    if (rare || !count_narrow(counts, c)) count_wide(counts, c->x, c->n);
    if (rare) count_rare(counts, c->x, c->n, s);
    else if (c->largest > counts->largest) counts->largest = c->largest;
    return c->largest <= LARGEST && c->least >= LEAST - 1;
}

/* ---- the whole ---- */

static void open_counts(struct counts *c) {
    memset(c->elements, 0, sizeof c->elements);
    memset(c->rows, 0, sizeof c->rows);
    c->window = (struct window){ .from = EXPONENTS };
    c->is_wide = false;
    c->filling = 0;
    c->least = UINT32_MAX, c->largest = 0;
}

static inline uint32_t in_table(const struct counts *c, size_t row) {
    uint32_t sum = 0;
    for (size_t t = 0; c->is_wide && t < TABLES; t++) sum += c->table[t][row];
    return sum;
}

static void add_up_counts(struct counts *c, amp_statistics *s) {
    enum { FIRST = -126 - AMP_BINADE_LEAST }; /* the binade of exponent 1 */
    close_window(c);
    s->zeros += c->rows[0] + in_table(c, 0) - c->filling;
    for (size_t class = 1; class < CLASSES; class++) s->nans += in_table(c, (EXPONENTS - 1) * CLASSES + class);
    for (size_t e = 1; e < EXPONENTS - 1; e++) {
        const uint32_t *rows = c->rows + e * CLASSES;
        uint32_t in[CLASSES];
        for (size_t class = 0; class < CLASSES; class++) in[class] = in_table(c, e * CLASSES + class);
        amp_binade *binade = &s->binades[e - 1 + FIRST];
        binade->elements += c->elements[e] + in[0] + in[1] + in[2] + in[3];
        binade->powers += rows[0] + in[0];
        binade->tops_bf16 += rows[2] + rows[3] + in[2] + in[3];
        binade->tops_fp16 += rows[3] + in[3];
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
        const vd wide = vd_load_f32(x + (j) * LANES);                                                                  \
        sum##j = vd_add(sum##j, wide);                                                                                 \
        square##j = vd_add_exact(square##j, wide, wide);                                                               \
    }
#define STRIPE_ADD(j, type)                                                                                            \
    {                                                                                                                  \
        sum##j = vd_add(sum##j, vd_load_f32(c.sums + i + (j) * LANES));                                                \
        square##j = vd_add(square##j, vd_load_f32(c.squares + i + (j) * LANES));                                       \
    }
#define SUM_STORE(j, type) vd_store_f64(sums + (j) * LANES, sum##j), vd_store_f64(squares + (j) * LANES, square##j);

/* Sums of stripes' lanes, which are widened while they are loaded again. `exact`, a constant: squares are. */
INLINE vf add_square(vf to, vf x, bool exact) { return exact ? vf_add_exact(to, x, x) : vf_add(to, vf_mul(x, x)); }
INLINE void add_stripes(struct chunk *c, bool exact) {
    for (size_t i = 0; i < c->n; i += AMP__SUM_STRIPE)
        for (size_t lane = 0; lane < AMP__SUM_LANES; lane += LANES) {
            const float *x = c->x + i + lane;
            vf even = vf_load_f32(x), odd = vf_load_f32(x + AMP__SUM_LANES);
            vf evens = even, odds = odd, even_squares = vf_mul(even, even), odd_squares = vf_mul(odd, odd);
            for (size_t row = 2; row < AMP__SUM_ROWS; row += 2) {
                even = vf_load_f32(x + row * AMP__SUM_LANES), odd = vf_load_f32(x + (row + 1) * AMP__SUM_LANES);
                evens = vf_add(evens, even), odds = vf_add(odds, odd);
                even_squares = add_square(even_squares, even, exact), odd_squares = add_square(odd_squares, odd, exact);
            }
            vf_store_f32(c->sums + i / AMP__SUM_ROWS + lane, vf_add(evens, odds));
            vf_store_f32(c->squares + i / AMP__SUM_ROWS + lane, vf_add(even_squares, odd_squares));
        }
}

/* Of 16-bit types half of what comes later is fetched while this is read, half while the window counts. For fp32 it is
 * better all there. */
enum { PIECE = 64, HALF = 1 };
#define FILL(room)                                                                                                     \
    if (n < c->n) {                                                                                                    \
        memset(room, 0, c->n * sizeof *src);                                                                           \
        src = memcpy(room, src, n * sizeof *src);                                                                      \
    }
#define READ(type)                                                                                                     \
    enum { EXACT_##type = true };                                                                                      \
    static inline void read_##type(struct chunk *c, const amp__##type *src, size_t n) {                                \
        struct seen_16 seen = unseen_16();                                                                             \
        amp__##type rest[CHUNK];                                                                                       \
        FILL(rest)                                                                                                     \
        const amp__##type *const end = src + c->n;                                                                     \
        uint16_t *marks = c->marks.of;                                                                                 \
        for (float *to = c->work; src < end; src += PIECE, to += PIECE, marks += PIECE / LANES) {                      \
            prefetch(c->src, AHEAD + (size_t)(to - c->work) * HALF, PIECE * HALF);                                     \
            _Pragma("GCC unroll 8") for (size_t i = 0; i < PIECE; i += sizeof(vw) / sizeof *src)                       \
                seen = see_16(seen, vw_load(src + i));                                                                 \
            _Pragma("GCC unroll 8") for (size_t i = 0; i < PIECE; i += LANES) {                                        \
                const vf x = vf_load_##type(src + i);                                                                  \
                vf_store_f32(to + i, x);                                                                               \
                marks[i / LANES] = marks_of(x);                                                                        \
            }                                                                                                          \
        }                                                                                                              \
        const uint16_t largest = largest_16(seen);                                                                     \
        c->fetched = c->n * HALF, c->rest = HALF;                                                                      \
        c->x = c->work;                                                                                                \
        c->largest = amp__f32_bits(amp__##type##_to_f32(largest));                                                     \
        c->least = largest ? amp__f32_bits(amp__##type##_to_f32(least_16(seen))) - 1 : UINT32_MAX;                     \
    }
READ(f16)
READ(bf16)
enum { EXACT_f32 = false };
static inline void read_f32(struct chunk *c, const float *src, size_t n) {
    uint32_t largest = 0, least = UINT32_MAX;
    FILL(c->work)
    for (size_t i = 0; i < c->n; i += LANES) c->marks.of[i / LANES] = marks_of(vf_load_f32(src + i));
    for (size_t i = 0; i < c->n; i++) {
        const uint32_t magnitude = magnitude_at(src, i), less = magnitude - 1; /* 0 becomes the largest */
        largest = magnitude > largest ? magnitude : largest;
        least = less < least ? less : least;
    }
    c->fetched = 0, c->rest = sizeof *src;
    c->x = src, c->largest = largest, c->least = least;
}

#define STATISTICS(type)                                                                                               \
    static AMP__STATISTICS(statistics_##type) {                                                                        \
        enum { FILLED = 2 * AMP__SUM_STRIPE };                                                                         \
        const amp__##type *from = src;                                                                                 \
        struct counts counts;                                                                                          \
        struct chunk c;                                                                                                \
        double sums[AMP__SUM_LANES], squares[AMP__SUM_LANES];                                                          \
        open_counts(&counts);                                                                                          \
        EACH_SUM(SUM_ZERO, type)                                                                                       \
        for (size_t at = 0, length; at < n; at += length) {                                                            \
            length = n - at < CHUNK ? n - at : CHUNK;                                                                  \
            c.n = (length + FILLED - 1) / FILLED * FILLED;                                                             \
            c.src = from + at;                                                                                         \
            read_##type(&c, from + at, length);                                                                        \
            if (count_chunk(&counts, &c, s)) {                                                                         \
                add_stripes(&c, EXACT_##type);                                                                         \
                for (size_t i = 0; i < c.n / AMP__SUM_ROWS; i += AMP__SUM_LANES) {                                     \
                    EACH_SUM(STRIPE_ADD, type)                                                                         \
                }                                                                                                      \
            } else {                                                                                                   \
                for (const float *x = c.x; x < c.x + c.n; x += AMP__SUM_LANES) {                                       \
                    EACH_SUM(SUM_ADD, type)                                                                            \
                }                                                                                                      \
            }                                                                                                          \
            counts.filling += c.n - length;                                                                            \
        }                                                                                                              \
        EACH_SUM(SUM_STORE, type)                                                                                      \
        add_up_counts(&counts, s);                                                                                     \
        s->elements += n;                                                                                              \
        s->sum += sum_lanes(sums);                                                                                     \
        s->sum_squares += sum_lanes(squares);                                                                          \
    }
STATISTICS(f32)
STATISTICS(f16)
STATISTICS(bf16)

amp__statistics_fn *const AMP__TABLE(statistics)[AMP__TYPES] = { NULL, statistics_f32, statistics_f16,
                                                                 statistics_bf16, NULL };
