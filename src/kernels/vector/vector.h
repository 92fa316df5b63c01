/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of cast.c, scale.c, clamp.c, axpby.c, norm.c, update.c and others are written once, in words that each
 * instruction set spells in a header of its own (x86/sse2.h, x86/avx2.h, x86/avx512.h, arm/neon.h). They are compiled
 * for each set apart, with its flags and its header as AMP__ISA_H (meson.build):
 *
 *     ISA, LANES              its name; elements that go together, 16 at most
 *     EACH_SUM(X, type)       X(0, type) ... X(16 / LANES - 1, type)
 *     RAISES_<type>           1: conversions from or to the type see the environment or raise flags
 *     vf, vd                  LANES floats; LANES doubles
 *     vf_load_<type>(src)     LANES elements of f32, f16 or bf16, widened;  vf_store_<type>(dst, x): rounded
 *     vf_quiet(x)             with quiet NaNs: loads of bf16 leave them as they are
 *     .._part_..(.., n)       the first n of them, n < LANES: the others are not touched, and read as 0
 *     vf_stream_<type>        as store, past the caches; dst is aligned to 64 bytes, or a multiple of LANES beyond
 *     vf_set1, _mul, _add     arithmetic, each operation rounded;  vf_first(x, n): 0 from lane n on
 *     vf_min, vf_max(x, y)    x is a number; if y is a NaN, so is what comes out
 *     seen_f, vf_unseen, vf_see, vf_seen     whether a magnitude, read as an integer, reached a limit
 *     vd_load_f64, ...        the same for doubles;  widen(vf): exact;  vd_to_f32: rounded;  vd_to_odd: see avx2.h
 *     vd_load_f32(src)        widened while it is loaded, which on x86 takes half of widen's work
 *     vf_, vd_add_exact(s, x, y)     s + x * y where x * y is exact: in one operation or in two
 *     vw, vw_see_magnitude_16, ...     words as they are: the larger magnitude of halves, or of whole ones
 *     fence()                 after streams
 *
 * pack.c and unpack.c want besides, of vectors of 32-bit integers and bits, one a lane:
 *     vi                      vi_load, _store, _set1, _add, _mul (the lower word), _and, _or, _xor, _shl, _shr;
 *                             vi_load_u8, _s8: of LANES bytes, as integers; vi_store_third_u8(dst, dst2, x, y): bits
 *                             16 to 23 of x's, and of y's
 *     vi_larger(x, y)         without signs
 *     vi_bits(vf), vf_of_bits(vi)     the same bits
 *     vi_nearest(vf), vf_of_vi(vi)    to the nearest integer, ties to even; of signed ones below 2^24
 *     vi_halves(x, y)         y << 16 | x, where x is below 65536
 *     vi_shr_halves(x, n)     each half by itself;  vi_choose(mask, x, y): x's bits where the mask has ones, else y's
 *     vi_where_positive(x, by), vf_where_set(x, by)   x where by > 0, or is not 0, else 0
 *     HAS_LOOKUP              defined, or there are none of these: vi_table_<type>(x): 16 numbers of f16 or bf16, twice
 *                             vi_lookup_halves(table, x): at each half's lower five bits; vi_lower_halves,
 *                             vi_upper_halves(x, y): of all words of x, then of y
 *     vf_differ(x, y)         bits of lanes with x != y;  vf_choose(bits, x): x where the lane's bit is set, else 0
 *     vf_least, vf_most(x)    of all lanes
 *     vw_zero_last(x)         halves' magnitudes minus 1, as signed integers of the same order from INT16_MIN on: that
 *                             of 0 is the largest
 *     vw_order(x)             halves that are a 16-bit type's numbers, as signed integers of the same order
 *     vw_lesser, vw_larger(x, y), vw_least, vw_most(x)    of signed halves; of all halves, as an integer
 *     vw_set1, vw_differ(x, y), vw_nonzero(x)     in all halves; bits of halves that are not the same, of those with
 *                             more than a sign
 *
 * statistics.c wants besides, of vi:
 *     vi_one_hot(x)           1 << x % 32
 *     vi_majority(x, y, z)    bits that two or three of them have
 *     vi_without(x, y)        bits of lanes in which x has none of y's bits
 *
 * split.h alone wants vf_load_split(low, rest, &rare), the sums of bf16's bits and of signed rests, and whether a rest
 * is 0x8000 or a sum has another sign; and vf_store_split(low, rest, x), the upper halves, of what is halfway the upper
 * one, and the lower halves, and whether there was one halfway or a NaN.
 *
 * update.c alone wants vf_sub, vf_div, vf_sqrt (rounded as in IEEE 754) and vf_larger(x, y): !(x <= y) ? x : y. Of
 * the others it wants those of f32, f16 and bf16, vf_set1, _mul, _add, _first, widen, vd_set1, vd_add_exact,
 * vd_store_f64, fence and up_to_vector. A set without it would give its tables of sgd, adam, adagrad, novograd,
 * lamb_apply and lamb_moments as NULL.
 */
#ifndef AMP_KERNELS_VECTOR_VECTOR_H
#define AMP_KERNELS_VECTOR_VECTOR_H

#include AMP__ISA_H

#include "kernels/fpenv.h"
#include "kernels/isa.h"
#include "kernels/ref/convert.h"

/* Four vectors make a round, enough to keep the processor busy. Streams go by two, since more would read too far ahead
 * of their writes (bench/README.md). */
enum { ROUND = 4 * LANES, PAIR = 2 * LANES };

/* ---- doubles in and out of the other types ---- */

#define WIDENING_LOAD(type) \
    static inline vd vd_load_##type(const amp__##type *src) { return widen(vf_load_##type(src)); }
#define WIDENING_LOAD_PART(type) \
    static inline vd vd_load_part_##type(const amp__##type *src, size_t n) { \
        return widen(vf_load_part_##type(src, n)); \
    }
#define NARROWING_STORE(type, narrow)                                                                                  \
    static inline void vd_store_##type(amp__##type *dst, vd x) { vf_store_##type(dst, narrow(x)); }                    \
    static inline void vd_stream_##type(amp__##type *dst, vd x) { vf_stream_##type(dst, narrow(x)); }                  \
    static inline void vd_store_part_##type(amp__##type *dst, vd x, size_t n) {                                        \
        vf_store_part_##type(dst, narrow(x), n);                                                                       \
    }
WIDENING_LOAD(f16)
WIDENING_LOAD(bf16)
WIDENING_LOAD_PART(f32)
WIDENING_LOAD_PART(f16)
WIDENING_LOAD_PART(bf16)
NARROWING_STORE(f32, vd_to_f32)
NARROWING_STORE(f16, vd_to_odd)
NARROWING_STORE(bf16, vd_to_odd)
static inline void vf_store_f64(amp__f64 *dst, vf x) { vd_store_f64(dst, widen(x)); }
static inline void vf_stream_f64(amp__f64 *dst, vf x) { vd_stream_f64(dst, widen(x)); }
static inline void vf_store_part_f64(amp__f64 *dst, vf x, size_t n) { vd_store_part_f64(dst, widen(x), n); }

/* ---- non-finite ---- */

/* The bits of the least magnitude, computed in float or in double, that is infinite in the type it is rounded to: half
 * a unit above the type's largest, which has an odd last bit. NaNs are above. */
#define LIMIT_vf_f32 UINT32_C(0x7f800000)
#define LIMIT_vf_f64 UINT32_C(0x7f800000)
#define LIMIT_vf_f16 UINT32_C(0x477ff000)
#define LIMIT_vf_bf16 UINT32_C(0x7f7f8000)
#define LIMIT_vd_f64 UINT64_C(0x7ff0000000000000)
#define LIMIT_vd_f32 UINT64_C(0x47effffff0000000)
#define LIMIT_vd_f16 UINT64_C(0x40effe0000000000)
#define LIMIT_vd_bf16 UINT64_C(0x47eff00000000000)
#define SEEN_vf seen_f
#define SEEN_vd seen_d

/* ---- sums ---- */

/* One step after the other: a loop over the widths would go through memory. */
static inline double sum_lanes(const double lane[AMP__SUM_LANES]) {
    double of8[8], of4[4];
    _Static_assert(AMP__SUM_LANES == 16, "halved four times");
    for (size_t j = 0; j < 8; j++) of8[j] = lane[j] + lane[j + 8];
    for (size_t j = 0; j < 4; j++) of4[j] = of8[j] + of8[j + 4];
    return (of4[0] + of4[2]) + (of4[1] + of4[3]);
}

/* ---- the environment and the caches ---- */

/* The bracket of fpenv.h where casts need it. */
static inline amp__fpenv env_enter(int needed) {
    return needed ? amp__fpenv_enter() : (amp__fpenv){ 0 };
}
static inline void env_leave(int needed, amp__fpenv saved) {
    if (needed) amp__fpenv_leave(saved);
}

/* For loops that read `bytes` at src: fetches their next bytes into the second cache. Into the first it gains less.
 * On a Sapphire Rapids past the caches sums take 5 to 15 % less time, casts and scaling 15 to 30 %. */
enum { AHEAD = 4096 };
static inline void prefetch(const void *src, size_t ahead, size_t bytes) {
    for (size_t at = ahead; at < ahead + bytes; at += 64) __builtin_prefetch((const void *)((uintptr_t)src + at), 0, 2);
}
static inline void read_ahead(const void *src, size_t bytes) { prefetch(src, AHEAD, bytes); }

/* Magnitudes of 16-bit types, as integers: the largest, and the least above 0. */
struct seen_16 {
    vw largest, least;
};
static inline struct seen_16 unseen_16(void) { return (struct seen_16){ vw_zero(), vw_zero_last(vw_zero()) }; }
static inline struct seen_16 see_16(struct seen_16 seen, vw x) {
    return (struct seen_16){ vw_see_magnitude_16(seen.largest, x), vw_lesser(seen.least, vw_zero_last(x)) };
}
static inline uint16_t largest_16(struct seen_16 seen) { return (uint16_t)vw_most(seen.largest); }
static inline uint16_t least_16(struct seen_16 seen) { return (uint16_t)(vw_least(seen.least) + 1 - INT16_MIN); }

/* Elements of `size` bytes up to the next cache line. */
static inline size_t up_to_line(const void *dst, size_t size) { return (64 - (uintptr_t)dst % 64) % 64 / size; }

/* Elements up to the next vector of them, LANES at most and 1 at least: stores that cross cache lines take twice as
 * long. */
static inline size_t up_to_vector(const void *dst, size_t size) {
    const size_t bytes = LANES * size < 64 ? LANES * size : 64;
    return (bytes - (uintptr_t)dst % bytes) / size;
}

/* ---- one entry ---- */

/*
 * d[i] = make(s[i]) for n elements of f32, f16, bf16 or f64, which are v while they are looked at (look). Vectors are
 * stored where they do not cross cache lines, but for the first and the last: these overlap their neighbours, which
 * costs less than a loop over single elements that ends at a different count in each entry. In place nothing is made
 * twice all the same: the second vector and the last are loaded before the first is stored.
 */
#define SWEEP(v, to, from, d, s, n, make, look)                                                                        \
    if ((n) >= 2 * LANES) {                                                                                            \
        size_t at = up_to_vector(d, sizeof *(d));                                                                      \
        const v head = make(v##_load_##from(s)), tail = make(v##_load_##from((s) + (n) - LANES));                      \
        v x = make(v##_load_##from((s) + at));                                                                         \
        v##_store_##to(d, head);                                                                                       \
        look(head) look(tail)                                                                                          \
        for (; (n) >= 8 * ROUND && at + ROUND + LANES <= (n); x = make(v##_load_##from((s) + at))) {                   \
            read_ahead((s) + at, ROUND * sizeof *(s));                                                                 \
            const v x1 = make(v##_load_##from((s) + at + LANES)), x2 = make(v##_load_##from((s) + at + 2 * LANES));    \
            const v x3 = make(v##_load_##from((s) + at + 3 * LANES));                                                  \
            v##_store_##to((d) + at, x), v##_store_##to((d) + at + LANES, x1);                                         \
            v##_store_##to((d) + at + 2 * LANES, x2), v##_store_##to((d) + at + 3 * LANES, x3);                        \
            look(x) look(x1) look(x2) look(x3)                                                                         \
            at += ROUND;                                                                                               \
        }                                                                                                              \
        for (; at + 2 * LANES <= (n); at += LANES) {                                                                   \
            const v next = make(v##_load_##from((s) + at + LANES));                                                    \
            v##_store_##to((d) + at, x);                                                                               \
            look(x)                                                                                                    \
            x = next;                                                                                                  \
        }                                                                                                              \
        v##_store_##to((d) + at, x), v##_store_##to((d) + (n) - LANES, tail);                                          \
        look(x)                                                                                                        \
    } else if ((n) >= LANES) {                                                                                         \
        const v head = make(v##_load_##from(s)), tail = make(v##_load_##from((s) + (n) - LANES));                      \
        v##_store_##to(d, head), v##_store_##to((d) + (n) - LANES, tail);                                              \
        look(head) look(tail)                                                                                          \
    } else if (n) { /* what lies behind is 0; what becomes of it is not looked at */                                   \
        const v x = make(v##_load_part_##from(s, n));                                                                  \
        v##_store_part_##to(d, x, n);                                                                                  \
        look(v##_first(x, n))                                                                                          \
    }

#endif
