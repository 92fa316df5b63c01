/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of vector/ in AVX2, F16C and FMA: see vector/vector.h. Include it only in files compiled for these.
 */
#ifndef AMP_KERNELS_X86_AVX2_H
#define AMP_KERNELS_X86_AVX2_H

#include "kernels/ref/convert.h"

#include <immintrin.h>
#include <stdbool.h>

#define ISA avx2
enum { LANES = 8 };
#define EACH_SUM(X, type) X(0, type) X(1, type)

/* F16C's conversions and those of doubles raise flags, trap, and obey the environment; integers do not. */
enum { RAISES_f32 = 0, RAISES_bf16 = 0, RAISES_f16 = 1, RAISES_f64 = 1 };

typedef __m256 vf;
typedef struct {
    __m256d low, high;
} vd;

/* ---- floats ---- */

/* -1 in the first n of 8 places, from element 8 - n on. */
static inline __m256i first(size_t n) {
    static const int32_t ones_zeros[16] = { -1, -1, -1, -1, -1, -1, -1, -1 };
    return _mm256_loadu_si256((const __m256i *)(const void *)(ones_zeros + 8 - n));
}

static inline __m256i magnitude(vf x) {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

/* All ones where x is a NaN, without looking at it as a float. */
static inline __m256i is_nan(vf x) { return _mm256_cmpgt_epi32(magnitude(x), _mm256_set1_epi32(0x7f800000)); }

static inline __m128i low_half(__m256i x) { return _mm256_castsi256_si128(x); }
static inline __m128i high_half(__m256i x) { return _mm256_extracti128_si256(x, 1); }

static inline __m128i to_f16(vf x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
static inline vf from_f16(__m128i x) { return _mm256_cvtph_ps(x); }

static inline __m128i to_bf16(vf x) {
    const __m256i bits = _mm256_castps_si256(x), upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x0040));
    const __m256i words = _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), quiet, is_nan(x));
    return _mm_packus_epi32(low_half(words), high_half(words));
}

static inline vf from_bf16(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }

static inline vf vf_quiet(vf x) {
    const __m256i quiet = _mm256_and_si256(is_nan(x), _mm256_set1_epi32(0x00400000));
    return _mm256_or_ps(x, _mm256_castsi256_ps(quiet));
}

static inline vf vf_load_f32(const amp__f32 *src) { return _mm256_loadu_ps(src); }
static inline vf vf_load_part_f32(const amp__f32 *src, size_t n) { return _mm256_maskload_ps(src, first(n)); }
static inline void vf_store_f32(amp__f32 *dst, vf x) { _mm256_storeu_ps(dst, x); }
static inline void vf_store_part_f32(amp__f32 *dst, vf x, size_t n) { _mm256_maskstore_ps(dst, first(n), x); }
static inline void vf_stream_f32(amp__f32 *dst, vf x) { _mm256_stream_ps(dst, x); }

#define SHORT_WORDS(type)                                                                                              \
    static inline vf vf_load_##type(const amp__##type *src) {                                                          \
        return from_##type(_mm_loadu_si128((const __m128i *)(const void *)src));                                       \
    }                                                                                                                  \
    static inline vf vf_load_part_##type(const amp__##type *src, size_t n) {                                           \
        amp__##type words[LANES] = { 0 };                                                                              \
        memcpy(words, src, n * sizeof *src);                                                                           \
        return vf_load_##type(words);                                                                                  \
    }                                                                                                                  \
    static inline void vf_store_##type(amp__##type *dst, vf x) {                                                       \
        _mm_storeu_si128((__m128i *)(void *)dst, to_##type(x));                                                        \
    }                                                                                                                  \
    static inline void vf_store_part_##type(amp__##type *dst, vf x, size_t n) {                                        \
        amp__##type words[LANES];                                                                                      \
        vf_store_##type(words, x);                                                                                     \
        memcpy(dst, words, n * sizeof *dst);                                                                           \
    }                                                                                                                  \
    static inline void vf_stream_##type(amp__##type *dst, vf x) {                                                      \
        _mm_stream_si128((__m128i *)(void *)dst, to_##type(x));                                                        \
    }
SHORT_WORDS(f16)
SHORT_WORDS(bf16)

static inline vf vf_load_split(const amp__bf16 *low, const uint16_t *rest, bool *rare) {
    const __m256i by = _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(const void *)rest));
    const __m256i upper = _mm256_castps_si256(vf_load_bf16(low)), sum = _mm256_add_epi32(upper, by);
    const __m256i tie = _mm256_cmpeq_epi32(by, _mm256_set1_epi32(-0x8000));
    const __m256i seen = _mm256_or_si256(tie, _mm256_xor_si256(sum, upper));
    *rare = _mm256_movemask_ps(_mm256_castsi256_ps(seen)) != 0;
    return _mm256_castsi256_ps(sum);
}
static inline bool vf_store_split(amp__bf16 *low, uint16_t *rest, vf x) {
    const __m256i bits = _mm256_castps_si256(x), rounded = _mm256_add_epi32(bits, _mm256_set1_epi32(0x8000));
    const __m256i upper = _mm256_srli_epi32(rounded, 16), lower = _mm256_and_si256(bits, _mm256_set1_epi32(0xffff));
    const __m256i tie = _mm256_cmpeq_epi32(lower, _mm256_set1_epi32(0x8000));
    _mm_storeu_si128((__m128i *)(void *)low, _mm_packus_epi32(low_half(upper), high_half(upper)));
    _mm_storeu_si128((__m128i *)(void *)rest, _mm_packus_epi32(low_half(lower), high_half(lower)));
    return _mm256_movemask_epi8(_mm256_or_si256(tie, is_nan(x))) != 0;
}

static inline vf vf_set1(float x) { return _mm256_set1_ps(x); }
static inline vf vf_mul(vf x, vf y) { return _mm256_mul_ps(x, y); }
static inline vf vf_add(vf x, vf y) { return _mm256_add_ps(x, y); }
static inline vf vf_add_exact(vf sum, vf x, vf y) { return _mm256_fmadd_ps(x, y, sum); }
static inline vf vf_min(vf x, vf y) { return _mm256_min_ps(x, y); }
static inline vf vf_max(vf x, vf y) { return _mm256_max_ps(x, y); }
static inline vf vf_sub(vf x, vf y) { return _mm256_sub_ps(x, y); }
static inline vf vf_div(vf x, vf y) { return _mm256_div_ps(x, y); }
static inline vf vf_sqrt(vf x) { return _mm256_sqrt_ps(x); }
static inline vf vf_larger(vf x, vf y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, y, _CMP_NLE_UQ)); }
static inline vf vf_first(vf x, size_t n) { return _mm256_and_ps(x, _mm256_castsi256_ps(first(n))); }

/* The largest magnitude, as an integer. */
typedef __m256i seen_f;
static inline seen_f vf_unseen(void) { return _mm256_setzero_si256(); }
static inline seen_f vf_see(seen_f seen, vf x, uint32_t limit) {
    (void)limit;
    return _mm256_max_epi32(seen, magnitude(x));
}
static inline uint32_t vf_seen(seen_f seen, uint32_t limit) {
    return _mm256_movemask_epi8(_mm256_cmpgt_epi32(seen, _mm256_set1_epi32((int32_t)limit - 1))) != 0;
}

/* ---- doubles ---- */

static inline vd widen(vf x) {
    return (vd){ _mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)) };
}
static inline vd vd_load_f32(const amp__f32 *src) {
    return (vd){ _mm256_cvtps_pd(_mm_loadu_ps(src)), _mm256_cvtps_pd(_mm_loadu_ps(src + 4)) };
}

static inline vf join(__m128 low, __m128 high) { return _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1); }

/* Converts to the float towards zero, made odd if inexact, so that a second rounding to at least two bits fewer gives
 * the result of one rounding. Computed from the nearest float, one back if that is the further one. */
static inline __m128 narrow_odd(__m256d x) {
    const __m128 nearest = _mm256_cvtpd_ps(x);
    const __m256d back = _mm256_cvtps_pd(nearest), minus = _mm256_set1_pd(-0.0);
    const __m256d differs = _mm256_cmp_pd(back, x, _CMP_NEQ_UQ);
    const __m256d beyond = _mm256_cmp_pd(_mm256_andnot_pd(minus, back), _mm256_andnot_pd(minus, x), _CMP_GT_OQ);
#define HALVES(mask)                                                                                                   \
    _mm_castps_si128(_mm_shuffle_ps(_mm_castpd_ps(_mm256_castpd256_pd128(mask)),                                       \
                                    _mm_castpd_ps(_mm256_extractf128_pd(mask, 1)), 0x88))
    const __m128i toward_zero = _mm_add_epi32(_mm_castps_si128(nearest), HALVES(beyond)); /* the mask is -1 */
    return _mm_castsi128_ps(_mm_or_si128(toward_zero, _mm_and_si128(HALVES(differs), _mm_set1_epi32(1))));
#undef HALVES
}

static inline vf vd_to_odd(vd x) { return join(narrow_odd(x.low), narrow_odd(x.high)); }
static inline vf vd_to_f32(vd x) { return join(_mm256_cvtpd_ps(x.low), _mm256_cvtpd_ps(x.high)); }

static inline vd vd_load_f64(const amp__f64 *src) { return (vd){ _mm256_loadu_pd(src), _mm256_loadu_pd(src + 4) }; }
static inline void vd_store_f64(amp__f64 *dst, vd x) {
    _mm256_storeu_pd(dst, x.low), _mm256_storeu_pd(dst + 4, x.high);
}
static inline void vd_stream_f64(amp__f64 *dst, vd x) {
    _mm256_stream_pd(dst, x.low), _mm256_stream_pd(dst + 4, x.high);
}
static inline vd vd_load_part_f64(const amp__f64 *src, size_t n) {
    amp__f64 words[LANES] = { 0 };
    memcpy(words, src, n * sizeof *src);
    return vd_load_f64(words);
}
static inline void vd_store_part_f64(amp__f64 *dst, vd x, size_t n) {
    amp__f64 words[LANES];
    vd_store_f64(words, x);
    memcpy(dst, words, n * sizeof *dst);
}

static inline vd vd_set1(double x) { return (vd){ _mm256_set1_pd(x), _mm256_set1_pd(x) }; }
static inline vd vd_mul(vd x, vd y) { return (vd){ _mm256_mul_pd(x.low, y.low), _mm256_mul_pd(x.high, y.high) }; }
static inline vd vd_add(vd x, vd y) { return (vd){ _mm256_add_pd(x.low, y.low), _mm256_add_pd(x.high, y.high) }; }
static inline vd vd_add_exact(vd sum, vd x, vd y) {
    return (vd){ _mm256_fmadd_pd(x.low, y.low, sum.low), _mm256_fmadd_pd(x.high, y.high, sum.high) };
}
static inline vd vd_min(vd x, vd y) { return (vd){ _mm256_min_pd(x.low, y.low), _mm256_min_pd(x.high, y.high) }; }
static inline vd vd_max(vd x, vd y) { return (vd){ _mm256_max_pd(x.low, y.low), _mm256_max_pd(x.high, y.high) }; }
static inline vd vd_first(vd x, size_t n) {
    amp__f64 words[LANES];
    vd_store_f64(words, x);
    return vd_load_part_f64(words, n);
}

/* Ones where a magnitude reached the limit. */
typedef __m256i seen_d;
static inline __m256i reaches(__m256d x, __m256i below_limit) {
    const __m256i bits = _mm256_and_si256(_mm256_castpd_si256(x), _mm256_set1_epi64x(INT64_MAX));
    return _mm256_cmpgt_epi64(bits, below_limit);
}
static inline seen_d vd_unseen(void) { return _mm256_setzero_si256(); }
static inline seen_d vd_see(seen_d seen, vd x, uint64_t limit) {
    const __m256i below = _mm256_set1_epi64x((int64_t)limit - 1);
    return _mm256_or_si256(seen, _mm256_or_si256(reaches(x.low, below), reaches(x.high, below)));
}
static inline uint32_t vd_seen(seen_d seen, uint64_t limit) {
    (void)limit;
    return _mm256_movemask_epi8(seen) != 0;
}

/* ---- words ---- */

typedef __m256i vw;
static inline vw vw_load(const void *src) { return _mm256_loadu_si256(src); }
static inline vw vw_see_magnitude_16(vw seen, vw x) {
    return _mm256_max_epu16(seen, _mm256_and_si256(x, _mm256_set1_epi16(0x7fff)));
}
static inline vw vw_see_magnitude_32(vw seen, vw x) {
    return _mm256_max_epu32(seen, _mm256_and_si256(x, _mm256_set1_epi32(0x7fffffff)));
}
static inline vw vw_zero(void) { return _mm256_setzero_si256(); }
static inline vw vw_set1(uint16_t x) { return _mm256_set1_epi16((int16_t)x); }
static inline uint32_t vw_differ(vw x, vw y) {
    const __m256i same = _mm256_cmpeq_epi16(x, y);
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(low_half(same), high_half(same))) ^ 0xffff;
}
static inline uint32_t vw_nonzero(vw x) { return vw_differ(_mm256_and_si256(x, vw_set1(0x7fff)), vw_zero()); }
static inline vw vw_lesser(vw x, vw y) { return _mm256_min_epi16(x, y); }
static inline vw vw_larger(vw x, vw y) { return _mm256_max_epi16(x, y); }
static inline vw vw_zero_last(vw x) {
    return _mm256_add_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x7fff)), _mm256_set1_epi16(0x7fff));
}
static inline vw vw_order(vw x) {
    return _mm256_xor_si256(x, _mm256_srli_epi16(_mm256_srai_epi16(x, 15), 1));
}
/* There is an instruction for the least of eight, unsigned. */
#define ACROSS_HALVES(word, op, by)                                                                                    \
    static inline int vw_##word(vw x) {                                                                                \
        const __m128i y = _mm_##op##_epi16(low_half(x), high_half(x)), flip = _mm_set1_epi16(by);                      \
        return (int16_t)(_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(y, flip))) ^ (by));                          \
    }
ACROSS_HALVES(least, min, -0x8000)
ACROSS_HALVES(most, max, 0x7fff)

/* ---- integers: vector/pack.c ---- */

typedef __m256i vi;
#define vi_shl(x, n) _mm256_slli_epi32(x, n)
#define vi_shr(x, n) _mm256_srli_epi32(x, n)
#define vi_shr_halves(x, n) _mm256_srli_epi16(x, n)
static inline vi vi_load(const uint32_t *src) { return _mm256_loadu_si256((const __m256i *)(const void *)src); }
static inline void vi_store(uint32_t *dst, vi x) { _mm256_storeu_si256((__m256i *)(void *)dst, x); }
static inline vi vi_load_u8(const uint8_t *src) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)src));
}
static inline vi vi_load_s8(const uint8_t *src) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)src));
}
static inline void vi_store_third_u8(uint8_t *dst, uint8_t *dst2, vi x, vi y) {
    const __m128i of_both = _mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m256i both = _mm256_blend_epi16(_mm256_srli_epi32(x, 16), y, 0xaa);
    const __m256i bytes = _mm256_shuffle_epi8(both, _mm256_broadcastsi128_si256(of_both));
    const __m128i codes = _mm_unpacklo_epi32(low_half(bytes), high_half(bytes));
    _mm_storel_epi64((__m128i *)(void *)dst, codes);
    _mm_storel_epi64((__m128i *)(void *)dst2, _mm_unpackhi_epi64(codes, codes));
}
static inline vi vi_larger(vi x, vi y) { return _mm256_max_epu32(x, y); }
static inline vi vi_bits(vf x) { return _mm256_castps_si256(x); }
static inline vf vf_of_bits(vi x) { return _mm256_castsi256_ps(x); }
static inline vi vi_set1(uint32_t x) { return _mm256_set1_epi32((int32_t)x); }
static inline vi vi_add(vi x, vi y) { return _mm256_add_epi32(x, y); }
static inline vi vi_mul(vi x, vi y) { return _mm256_mullo_epi32(x, y); }
static inline vi vi_and(vi x, vi y) { return _mm256_and_si256(x, y); }
static inline vi vi_or(vi x, vi y) { return _mm256_or_si256(x, y); }
static inline vi vi_xor(vi x, vi y) { return _mm256_xor_si256(x, y); }
static inline vi vi_nearest(vf x) { return _mm256_cvtps_epi32(x); }
static inline vi vi_halves(vi x, vi y) { return _mm256_or_si256(x, _mm256_slli_epi32(y, 16)); }
static inline vi vi_choose(vi mask, vi x, vi y) {
    return _mm256_or_si256(_mm256_and_si256(mask, x), _mm256_andnot_si256(mask, y));
}
static inline vi vi_where_positive(vi x, vf by) {
    return _mm256_and_si256(x, _mm256_castps_si256(_mm256_cmp_ps(by, _mm256_setzero_ps(), _CMP_GT_OQ)));
}
static inline vf vf_of_vi(vi x) { return _mm256_cvtepi32_ps(x); }
static inline vf vf_where_set(vf x, vi by) {
    return _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(by, _mm256_setzero_si256())), x);
}
static inline uint32_t vf_differ(vf x, vf y) { return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_NEQ_UQ)); }
static inline vf vf_choose(uint32_t set, vf x) {
    const __m256i places = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i each = _mm256_and_si256(_mm256_set1_epi32((int32_t)set), places);
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(each, places)));
}
#define ACROSS(word, op)                                                                                               \
    static inline float vf_##word(vf x) {                                                                              \
        __m128 y = op##_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));                                    \
        y = op##_ps(y, _mm_movehl_ps(y, y));                                                                           \
        return _mm_cvtss_f32(op##_ss(y, _mm_shuffle_ps(y, y, 1)));                                                     \
    }
ACROSS(least, _mm_min)
ACROSS(most, _mm_max)

static inline vi vi_one_hot(vi x) {
    return _mm256_sllv_epi32(_mm256_set1_epi32(1), _mm256_and_si256(x, _mm256_set1_epi32(31)));
}
static inline vi vi_majority(vi x, vi y, vi z) { return vi_or(vi_and(x, y), vi_and(vi_xor(x, y), z)); }
static inline uint32_t vi_without(vi x, vi y) {
    const __m256i without = _mm256_cmpeq_epi32(_mm256_and_si256(x, y), _mm256_setzero_si256());
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(without));
}

static inline void fence(void) { _mm_sfence(); }

#endif
