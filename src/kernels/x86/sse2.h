/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of vector/ in SSE2, as every x86-64 processor has it: see vector/vector.h.
 */
#ifndef AMP_KERNELS_X86_SSE2_H
#define AMP_KERNELS_X86_SSE2_H

#include "kernels/ref/convert.h"

#include <emmintrin.h>
#include <stdbool.h>

#define ISA sse2
typedef __m128 quad;
typedef __m128d pair;
#include "kernels/vector/halves.h"

/* fp16 is made with integers but for its subnormals, which are rounded by an addition; doubles are converted by the
 * processor. */
enum { RAISES_f32 = 0, RAISES_bf16 = 0, RAISES_f16 = 1, RAISES_f64 = 1 };

/* ---- floats ---- */

static inline __m128i as_words(__m128 x) { return _mm_castps_si128(x); }
static inline __m128 as_floats(__m128i x) { return _mm_castsi128_ps(x); }

static inline __m128i magnitude(__m128 x) { return _mm_and_si128(as_words(x), _mm_set1_epi32(0x7fffffff)); }

/* yes where the mask has ones, else no */
static inline __m128i choose(__m128i mask, __m128i yes, __m128i no) {
    return _mm_or_si128(_mm_and_si128(mask, yes), _mm_andnot_si128(mask, no));
}

/* All ones where x is a NaN, without looking at it as a float. */
static inline __m128i is_nan(__m128 x) { return _mm_cmpgt_epi32(magnitude(x), _mm_set1_epi32(0x7f800000)); }

/* The 16-bit types as words, with their sign above them, so that packing saturates none. */
static inline __m128i words_of_f16(__m128 x) {
    const __m128i bits = magnitude(x), overflow = _mm_set1_epi32((127 + 16) << 23), half = _mm_set1_epi32(0x3f000000);
    const __m128i beyond = _mm_cmpgt_epi32(bits, overflow), nan = is_nan(x);
    const __m128i limited = choose(beyond, overflow, bits); /* 65536 is infinity; floats' order is that of their bits */
    const __m128i odd = _mm_and_si128(_mm_srli_epi32(limited, 13), _mm_set1_epi32(1));
    const __m128i rebias = _mm_set1_epi32(0x0fff - ((127 - 15) << 23));
    const __m128i normal = _mm_srli_epi32(_mm_add_epi32(_mm_add_epi32(limited, rebias), odd), 13);
    /* The unit of floats from 0.5 on is that of fp16's subnormals. */
    const __m128 sum = _mm_add_ps(as_floats(limited), as_floats(half));
    const __m128i subnormal = _mm_sub_epi32(as_words(sum), half);
    const __m128i is_subnormal = _mm_cmpgt_epi32(_mm_set1_epi32((127 - 14) << 23), limited);
    const __m128i payload = _mm_and_si128(_mm_srli_epi32(bits, 13), _mm_set1_epi32(0x03ff));
    const __m128i quiet = _mm_or_si128(payload, _mm_set1_epi32(0x7e00));
    const __m128i minus = _mm_slli_epi32(_mm_srai_epi32(as_words(x), 31), 15);
    return _mm_or_si128(choose(nan, quiet, choose(is_subnormal, subnormal, normal)), minus);
}

static inline __m128i words_of_bf16(__m128 x) {
    const __m128i bits = as_words(x), odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
    const __m128i rounded = _mm_add_epi32(bits, _mm_add_epi32(odd, _mm_set1_epi32(0x7fff)));
    const __m128i quiet = _mm_or_si128(bits, _mm_set1_epi32(0x00400000));
    return _mm_srai_epi32(choose(is_nan(x), quiet, rounded), 16);
}

static inline __m128i to_f16(vf x) { return _mm_packs_epi32(words_of_f16(x.low), words_of_f16(x.high)); }
static inline __m128i to_bf16(vf x) { return _mm_packs_epi32(words_of_bf16(x.low), words_of_bf16(x.high)); }

/* Of the lower halves of words: as amp__f16_to_f32. */
static inline __m128 float_of_f16(__m128i x) {
    const __m128i bits = _mm_and_si128(x, _mm_set1_epi32(0x7fff)), minus = _mm_slli_epi32(_mm_xor_si128(x, bits), 16);
    const __m128i special = _mm_cmpgt_epi32(bits, _mm_set1_epi32(0x7bff)), by = _mm_set1_epi32(112 << 23);
    const __m128i rebias = _mm_add_epi32(by, _mm_and_si128(special, by));
    const __m128i nan = _mm_cmpgt_epi32(bits, _mm_set1_epi32(0x7c00));
    const __m128i quiet = _mm_and_si128(nan, _mm_set1_epi32(0x00400000));
    const __m128i normal = _mm_or_si128(_mm_add_epi32(_mm_slli_epi32(bits, 13), rebias), quiet);
    const __m128i subnormal = as_words(_mm_mul_ps(_mm_cvtepi32_ps(bits), _mm_set1_ps(0x1p-24f)));
    const __m128i is_normal = _mm_cmpgt_epi32(bits, _mm_set1_epi32(0x03ff));
    return as_floats(_mm_or_si128(choose(is_normal, normal, subnormal), minus));
}

static inline vf from_f16(__m128i x) {
    const __m128i zero = _mm_setzero_si128();
    return (vf){ float_of_f16(_mm_unpacklo_epi16(x, zero)), float_of_f16(_mm_unpackhi_epi16(x, zero)) };
}

static inline vf from_bf16(__m128i x) {
    const __m128i zero = _mm_setzero_si128();
    return (vf){ as_floats(_mm_unpacklo_epi16(zero, x)), as_floats(_mm_unpackhi_epi16(zero, x)) };
}

static inline __m128 quiet(__m128 x) {
    return as_floats(_mm_or_si128(as_words(x), _mm_and_si128(is_nan(x), _mm_set1_epi32(0x00400000))));
}
static inline vf vf_quiet(vf x) { return (vf){ quiet(x.low), quiet(x.high) }; }

static inline vf vf_load_f32(const amp__f32 *src) { return (vf){ _mm_loadu_ps(src), _mm_loadu_ps(src + 4) }; }
static inline void vf_store_f32(amp__f32 *dst, vf x) { _mm_storeu_ps(dst, x.low), _mm_storeu_ps(dst + 4, x.high); }
static inline void vf_stream_f32(amp__f32 *dst, vf x) { _mm_stream_ps(dst, x.low), _mm_stream_ps(dst + 4, x.high); }

#define SHORT_WORDS(type)                                                                                              \
    static inline vf vf_load_##type(const amp__##type *src) {                                                          \
        return from_##type(_mm_loadu_si128((const __m128i *)(const void *)src));                                       \
    }                                                                                                                  \
    static inline void vf_store_##type(amp__##type *dst, vf x) {                                                       \
        _mm_storeu_si128((__m128i *)(void *)dst, to_##type(x));                                                        \
    }                                                                                                                  \
    static inline void vf_stream_##type(amp__##type *dst, vf x) {                                                      \
        _mm_stream_si128((__m128i *)(void *)dst, to_##type(x));                                                        \
    }
SHORT_WORDS(f16)
SHORT_WORDS(bf16)

PARTS(vf, f32)
PARTS(vf, f16)
PARTS(vf, bf16)

/* low + by, and a sign in *rare where by is a tie or the sum has another sign. */
static inline __m128 sum_of_split(__m128 low, __m128i by, __m128i *rare) {
    const __m128i sum = _mm_add_epi32(as_words(low), by), tie = _mm_cmpeq_epi32(by, _mm_set1_epi32(-0x8000));
    *rare = _mm_or_si128(*rare, _mm_or_si128(tie, _mm_xor_si128(sum, as_words(low))));
    return as_floats(sum);
}
static inline vf vf_load_split(const amp__bf16 *low, const uint16_t *rest, bool *rare) {
    const __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)rest);
    const vf upper = vf_load_bf16(low);
    __m128i seen = _mm_setzero_si128();
    const __m128 first = sum_of_split(upper.low, _mm_srai_epi32(_mm_unpacklo_epi16(halves, halves), 16), &seen);
    const __m128 second = sum_of_split(upper.high, _mm_srai_epi32(_mm_unpackhi_epi16(halves, halves), 16), &seen);
    *rare = _mm_movemask_ps(as_floats(seen)) != 0;
    return (vf){ first, second };
}
static inline __m128i signed_halves(__m128 x) { return _mm_srai_epi32(_mm_slli_epi32(as_words(x), 16), 16); }
static inline __m128i rounded_up(__m128 x) {
    return _mm_srai_epi32(_mm_add_epi32(as_words(x), _mm_set1_epi32(0x8000)), 16);
}
static inline bool vf_store_split(amp__bf16 *low, uint16_t *rest, vf x) {
    const __m128i halves = _mm_packs_epi32(signed_halves(x.low), signed_halves(x.high));
    const __m128i tie = _mm_cmpeq_epi16(halves, _mm_set1_epi16(-0x8000));
    _mm_storeu_si128((__m128i *)(void *)low, _mm_packs_epi32(rounded_up(x.low), rounded_up(x.high)));
    _mm_storeu_si128((__m128i *)(void *)rest, halves);
    return _mm_movemask_epi8(_mm_or_si128(tie, _mm_or_si128(is_nan(x.low), is_nan(x.high)))) != 0;
}

static inline vf vf_set1(float x) { return (vf){ _mm_set1_ps(x), _mm_set1_ps(x) }; }
OF_HALVES(mul, _mm_mul_ps)
OF_HALVES(add, _mm_add_ps)
static inline vf vf_add_exact(vf sum, vf x, vf y) { return vf_add(sum, vf_mul(x, y)); }
OF_HALVES(min, _mm_min_ps)
OF_HALVES(max, _mm_max_ps)
OF_HALVES(sub, _mm_sub_ps)
OF_HALVES(div, _mm_div_ps)
static inline vf vf_sqrt(vf x) { return (vf){ _mm_sqrt_ps(x.low), _mm_sqrt_ps(x.high) }; }
static inline __m128 larger(__m128 x, __m128 y) {
    return as_floats(choose(as_words(_mm_cmpnle_ps(x, y)), as_words(x), as_words(y)));
}
OF_HALVES(larger, larger)
FIRST(vf, f32)

/* Ones where a magnitude reached the limit. */
typedef __m128i seen_f;
static inline seen_f vf_unseen(void) { return _mm_setzero_si128(); }
static inline seen_f vf_see(seen_f seen, vf x, uint32_t limit) {
    const __m128i below = _mm_set1_epi32((int32_t)limit - 1);
    const __m128i low = _mm_cmpgt_epi32(magnitude(x.low), below), high = _mm_cmpgt_epi32(magnitude(x.high), below);
    return _mm_or_si128(seen, _mm_or_si128(low, high));
}
static inline uint32_t vf_seen(seen_f seen, uint32_t limit) {
    (void)limit;
    return _mm_movemask_epi8(seen) != 0;
}

/* ---- doubles ---- */

static inline vd widen(vf x) {
    return (vd){ _mm_cvtps_pd(x.low), _mm_cvtps_pd(_mm_movehl_ps(x.low, x.low)), _mm_cvtps_pd(x.high),
                 _mm_cvtps_pd(_mm_movehl_ps(x.high, x.high)) };
}
static inline vd vd_load_f32(const amp__f32 *src) { return widen(vf_load_f32(src)); }

static inline __m128 narrow(__m128d low, __m128d high) { return _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high)); }

/* To odd, from the nearest: see avx2.h. */
static inline __m128 narrow_odd(__m128d low, __m128d high) {
    const __m128 nearest = narrow(low, high);
    const __m128d low_back = _mm_cvtps_pd(nearest), high_back = _mm_cvtps_pd(_mm_movehl_ps(nearest, nearest));
    const __m128d minus = _mm_set1_pd(-0.0);
#define HALVES(of_low, of_high)                                                                                        \
    as_words(_mm_shuffle_ps(_mm_castpd_ps(of_low), _mm_castpd_ps(of_high), _MM_SHUFFLE(2, 0, 2, 0)))
#define BEYOND(back, x) _mm_cmpgt_pd(_mm_andnot_pd(minus, back), _mm_andnot_pd(minus, x))
    const __m128i differs = HALVES(_mm_cmpneq_pd(low_back, low), _mm_cmpneq_pd(high_back, high));
    const __m128i beyond = HALVES(BEYOND(low_back, low), BEYOND(high_back, high));
#undef HALVES
#undef BEYOND
    const __m128i toward_zero = _mm_add_epi32(as_words(nearest), beyond); /* the mask is -1 */
    return as_floats(_mm_or_si128(toward_zero, _mm_and_si128(differs, _mm_set1_epi32(1))));
}

static inline vf vd_to_odd(vd x) { return (vf){ narrow_odd(x.q0, x.q1), narrow_odd(x.q2, x.q3) }; }
static inline vf vd_to_f32(vd x) { return (vf){ narrow(x.q0, x.q1), narrow(x.q2, x.q3) }; }

static inline vd vd_load_f64(const amp__f64 *src) {
    return (vd){ _mm_loadu_pd(src), _mm_loadu_pd(src + 2), _mm_loadu_pd(src + 4), _mm_loadu_pd(src + 6) };
}
static inline void vd_store_f64(amp__f64 *dst, vd x) {
    _mm_storeu_pd(dst, x.q0), _mm_storeu_pd(dst + 2, x.q1), _mm_storeu_pd(dst + 4, x.q2), _mm_storeu_pd(dst + 6, x.q3);
}
static inline void vd_stream_f64(amp__f64 *dst, vd x) {
    _mm_stream_pd(dst, x.q0), _mm_stream_pd(dst + 2, x.q1), _mm_stream_pd(dst + 4, x.q2), _mm_stream_pd(dst + 6, x.q3);
}
PARTS(vd, f64)

static inline vd vd_set1(double x) { return (vd){ _mm_set1_pd(x), _mm_set1_pd(x), _mm_set1_pd(x), _mm_set1_pd(x) }; }
OF_QUARTERS(mul, _mm_mul_pd)
OF_QUARTERS(add, _mm_add_pd)
static inline vd vd_add_exact(vd sum, vd x, vd y) { return vd_add(sum, vd_mul(x, y)); }
OF_QUARTERS(min, _mm_min_pd)
OF_QUARTERS(max, _mm_max_pd)
FIRST(vd, f64)

/* Ones where a magnitude is not below the limit, as NaNs never are. In the default environment, as all arithmetic. */
typedef __m128d seen_d;
static inline __m128d reaches(__m128d x, uint64_t limit) {
    return _mm_cmpnlt_pd(_mm_andnot_pd(_mm_set1_pd(-0.0), x), _mm_set1_pd(amp__f64_from_bits(limit)));
}
static inline seen_d vd_unseen(void) { return _mm_setzero_pd(); }
static inline seen_d vd_see(seen_d seen, vd x, uint64_t limit) {
    const __m128d low = _mm_or_pd(reaches(x.q0, limit), reaches(x.q1, limit));
    return _mm_or_pd(seen, _mm_or_pd(low, _mm_or_pd(reaches(x.q2, limit), reaches(x.q3, limit))));
}
static inline uint32_t vd_seen(seen_d seen, uint64_t limit) {
    (void)limit;
    return _mm_movemask_pd(seen) != 0;
}

/* ---- words ---- */

/* Only signed halves have a maximum. It does for words, too: their upper halves hold the whole exponent. */
typedef __m128i vw;
static inline vw vw_load(const void *src) { return _mm_loadu_si128(src); }
static inline vw vw_zero(void) { return _mm_setzero_si128(); }
static inline vw vw_set1(uint16_t x) { return _mm_set1_epi16((int16_t)x); }
static inline uint32_t vw_differ(vw x, vw y) {
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(_mm_cmpeq_epi16(x, y), vw_set1(0xffff))) ^ 0xffff;
}
static inline uint32_t vw_nonzero(vw x) { return vw_differ(_mm_and_si128(x, vw_set1(0x7fff)), vw_zero()); }
static inline vw vw_see_magnitude_16(vw seen, vw x) {
    return _mm_max_epi16(seen, _mm_and_si128(x, _mm_set1_epi16(0x7fff)));
}
static inline vw vw_see_magnitude_32(vw seen, vw x) {
    const __m128i words = _mm_and_si128(x, _mm_set1_epi32(0x7fffffff));
    return choose(_mm_cmpgt_epi32(words, seen), words, seen);
}
static inline vw vw_lesser(vw x, vw y) { return _mm_min_epi16(x, y); }
static inline vw vw_larger(vw x, vw y) { return _mm_max_epi16(x, y); }
static inline vw vw_zero_last(vw x) {
    return _mm_add_epi16(_mm_and_si128(x, _mm_set1_epi16(0x7fff)), _mm_set1_epi16(0x7fff));
}
static inline vw vw_order(vw x) { return _mm_xor_si128(x, _mm_srli_epi16(_mm_srai_epi16(x, 15), 1)); }
#define ACROSS_HALVES(word, op)                                                                                        \
    static inline int vw_##word(vw x) {                                                                                \
        x = op(x, _mm_srli_si128(x, 8));                                                                               \
        x = op(x, _mm_shufflelo_epi16(x, _MM_SHUFFLE(1, 0, 3, 2)));                                                    \
        return (int16_t)_mm_cvtsi128_si32(op(x, _mm_shufflelo_epi16(x, _MM_SHUFFLE(2, 3, 0, 1))));                     \
    }
ACROSS_HALVES(least, vw_lesser)
ACROSS_HALVES(most, vw_larger)

/* ---- integers: vector/pack.c ---- */

typedef struct {
    __m128i low, high;
} vi;
#define OF_WORDS(word, op)                                                                                             \
    static inline vi vi_##word(vi x, vi y) { return (vi){ op(x.low, y.low), op(x.high, y.high) }; }
static inline __m128i times(__m128i x, __m128i y) { /* even products, odd ones, their lower words */
    const __m128i even = _mm_mul_epu32(x, y), odd = _mm_mul_epu32(_mm_srli_epi64(x, 32), _mm_srli_epi64(y, 32));
    return _mm_unpacklo_epi32(_mm_shuffle_epi32(even, 0x08), _mm_shuffle_epi32(odd, 0x08));
}
static inline vi vi_shl(vi x, int n) { return (vi){ _mm_slli_epi32(x.low, n), _mm_slli_epi32(x.high, n) }; }
static inline vi vi_shr(vi x, int n) { return (vi){ _mm_srli_epi32(x.low, n), _mm_srli_epi32(x.high, n) }; }
static inline vi vi_load(const uint32_t *src) { return (vi){ vw_load(src), vw_load(src + 4) }; }
static inline void vi_store(uint32_t *dst, vi x) {
    _mm_storeu_si128((__m128i *)(void *)dst, x.low), _mm_storeu_si128((__m128i *)(void *)(dst + 4), x.high);
}
static inline vi vi_load_u8(const uint8_t *src) {
    const __m128i zero = _mm_setzero_si128();
    const __m128i halves = _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)(const void *)src), zero);
    return (vi){ _mm_unpacklo_epi16(halves, zero), _mm_unpackhi_epi16(halves, zero) };
}
static inline vi vi_load_s8(const uint8_t *src) {
    const __m128i zero = _mm_setzero_si128();
    const __m128i halves = _mm_unpacklo_epi8(zero, _mm_loadl_epi64((const __m128i *)(const void *)src));
    return (vi){ _mm_srai_epi32(_mm_unpacklo_epi16(zero, halves), 24),
                 _mm_srai_epi32(_mm_unpackhi_epi16(zero, halves), 24) };
}
static inline __m128i third_bytes(vi x) {
    const __m128i low = _mm_slli_epi32(x.low, 8), high = _mm_slli_epi32(x.high, 8);
    return _mm_packs_epi32(_mm_srli_epi32(low, 24), _mm_srli_epi32(high, 24));
}
static inline void vi_store_third_u8(uint8_t *dst, uint8_t *dst2, vi x, vi y) {
    const __m128i codes = _mm_packus_epi16(third_bytes(x), third_bytes(y));
    _mm_storel_epi64((__m128i *)(void *)dst, codes);
    _mm_storel_epi64((__m128i *)(void *)dst2, _mm_unpackhi_epi64(codes, codes));
}
static inline __m128i larger_words(__m128i x, __m128i y) {
    const __m128i sign = _mm_set1_epi32(INT32_MIN);
    return choose(_mm_cmpgt_epi32(_mm_xor_si128(x, sign), _mm_xor_si128(y, sign)), x, y);
}
static inline vi vi_bits(vf x) { return (vi){ _mm_castps_si128(x.low), _mm_castps_si128(x.high) }; }
static inline vf vf_of_bits(vi x) { return (vf){ _mm_castsi128_ps(x.low), _mm_castsi128_ps(x.high) }; }
static inline vi vi_set1(uint32_t x) { return (vi){ _mm_set1_epi32((int32_t)x), _mm_set1_epi32((int32_t)x) }; }
OF_WORDS(add, _mm_add_epi32)
OF_WORDS(mul, times)
OF_WORDS(larger, larger_words)
OF_WORDS(and, _mm_and_si128)
OF_WORDS(or, _mm_or_si128)
OF_WORDS(xor, _mm_xor_si128)
static inline vi vi_nearest(vf x) { return (vi){ _mm_cvtps_epi32(x.low), _mm_cvtps_epi32(x.high) }; }
static inline vi vi_shr_halves(vi x, int n) { return (vi){ _mm_srli_epi16(x.low, n), _mm_srli_epi16(x.high, n) }; }
static inline vi vi_halves(vi x, vi y) { return vi_or(x, vi_shl(y, 16)); }
static inline vi vi_choose(vi mask, vi x, vi y) {
    return (vi){ choose(mask.low, x.low, y.low), choose(mask.high, x.high, y.high) };
}
static inline vi vi_where_positive(vi x, vf by) {
    const __m128 zero = _mm_setzero_ps();
    return (vi){ _mm_and_si128(x.low, as_words(_mm_cmpgt_ps(by.low, zero))),
                 _mm_and_si128(x.high, as_words(_mm_cmpgt_ps(by.high, zero))) };
}
static inline vf vf_of_vi(vi x) { return (vf){ _mm_cvtepi32_ps(x.low), _mm_cvtepi32_ps(x.high) }; }
static inline __m128 where_set(__m128 x, __m128i by) {
    return _mm_andnot_ps(as_floats(_mm_cmpeq_epi32(by, _mm_setzero_si128())), x);
}
static inline vf vf_where_set(vf x, vi by) { return (vf){ where_set(x.low, by.low), where_set(x.high, by.high) }; }
static inline uint32_t vf_differ(vf x, vf y) {
    const int low = _mm_movemask_ps(_mm_cmpneq_ps(x.low, y.low)), high = _mm_movemask_ps(_mm_cmpneq_ps(x.high, y.high));
    return (uint32_t)(low | high << 4);
}
static inline __m128 chosen(uint32_t set, __m128 x, __m128i places) {
    const __m128i each = _mm_and_si128(_mm_set1_epi32((int32_t)set), places);
    return _mm_and_ps(x, as_floats(_mm_cmpeq_epi32(each, places)));
}
static inline vf vf_choose(uint32_t set, vf x) {
    return (vf){ chosen(set, x.low, _mm_setr_epi32(1, 2, 4, 8)), chosen(set, x.high, _mm_setr_epi32(16, 32, 64, 128)) };
}
#define ACROSS(word, op)                                                                                               \
    static inline float vf_##word(vf x) {                                                                              \
        __m128 y = op##_ps(x.low, x.high);                                                                             \
        y = op##_ps(y, _mm_movehl_ps(y, y));                                                                           \
        return _mm_cvtss_f32(op##_ss(y, _mm_shuffle_ps(y, y, 1)));                                                     \
    }
ACROSS(least, _mm_min)
ACROSS(most, _mm_max)

static inline __m128i one_hot(__m128i x) { /* a float of this exponent; beyond an integer it becomes the sign */
    const __m128i least = _mm_and_si128(x, _mm_set1_epi32(31));
    return _mm_cvttps_epi32(_mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(least, _mm_set1_epi32(127)), 23)));
}
static inline vi vi_one_hot(vi x) { return (vi){ one_hot(x.low), one_hot(x.high) }; }
static inline vi vi_majority(vi x, vi y, vi z) { return vi_or(vi_and(x, y), vi_and(vi_xor(x, y), z)); }
static inline uint32_t vi_without(vi x, vi y) {
    const vi both = vi_and(x, y);
    const __m128i low = _mm_cmpeq_epi32(both.low, _mm_setzero_si128());
    const __m128i high = _mm_cmpeq_epi32(both.high, _mm_setzero_si128());
    return (uint32_t)(_mm_movemask_ps(_mm_castsi128_ps(low)) | _mm_movemask_ps(_mm_castsi128_ps(high)) << 4);
}

static inline void fence(void) { _mm_sfence(); }

#endif
