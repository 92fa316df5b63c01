/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of vector/ in AVX-512 F, BW, DQ and VL: see vector/vector.h. Include it only in files compiled for these.
 * bf16 is rounded with integers: VCVTNEPS2BF16 of AVX512-BF16 flushes subnormals.
 */
#ifndef AMP_KERNELS_X86_AVX512_H
#define AMP_KERNELS_X86_AVX512_H

#include "kernels/ref/convert.h"

#include <immintrin.h>
#include <stdbool.h>

#define ISA avx512
enum { LANES = 16 };
#define EACH_SUM(X, type) X(0, type)

/* As in AVX2. (There is a form without exceptions of fp16's conversions, but compilers have no word for half of it.) */
enum { RAISES_f32 = 0, RAISES_bf16 = 0, RAISES_f16 = 1, RAISES_f64 = 1 };

typedef __m512 vf;
typedef struct {
    __m512d low, high;
} vd;

/* ---- floats ---- */

static inline __mmask16 first(size_t n) { return (__mmask16)((1u << n) - 1); }

static inline __m512i magnitude(vf x) {
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

/* The one question about floats that raises no flag. */
static inline __mmask16 is_nan(vf x) {
    enum { QUIET = 0x01, SIGNALLING = 0x80 };
    return _mm512_fpclass_ps_mask(x, QUIET | SIGNALLING);
}

static inline __m256i to_f16(vf x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
static inline vf from_f16(__m256i x) { return _mm512_cvtph_ps(x); }

/* The upper halves of 16 words. */
static inline __m256i upper_halves(__m512i words) {
    static const uint16_t odd[32] = { 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31 };
    return _mm512_castsi512_si256(_mm512_permutexvar_epi16(_mm512_loadu_si512(odd), words));
}

static inline __m256i to_bf16(vf x) {
    const __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x00010000));
    const __m512i half = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_mask_add_epi32(half, odd, half, one);
    return upper_halves(_mm512_mask_or_epi32(rounded, is_nan(x), bits, _mm512_set1_epi32(0x00400000)));
}

/* In one instruction, where widening and a shift are two. */
static inline vf from_bf16(__m256i x) {
    static const uint16_t each[32] = { 0, 0, 0, 1, 0, 2,  0, 3,  0, 4,  0, 5,  0, 6,  0, 7,
                                       0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0, 13, 0, 14, 0, 15 };
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(UINT32_C(0xaaaaaaaa), _mm512_loadu_si512(each),
                                                              _mm512_castsi256_si512(x)));
}

static inline vf vf_quiet(vf x) {
    const __m512i bits = _mm512_castps_si512(x);
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, is_nan(x), bits, _mm512_set1_epi32(0x00400000)));
}

static inline vf vf_load_f32(const amp__f32 *src) { return _mm512_loadu_ps(src); }
static inline vf vf_load_part_f32(const amp__f32 *src, size_t n) { return _mm512_maskz_loadu_ps(first(n), src); }
static inline void vf_store_f32(amp__f32 *dst, vf x) { _mm512_storeu_ps(dst, x); }
static inline void vf_store_part_f32(amp__f32 *dst, vf x, size_t n) { _mm512_mask_storeu_ps(dst, first(n), x); }
static inline void vf_stream_f32(amp__f32 *dst, vf x) { _mm512_stream_ps(dst, x); }

#define SHORT_WORDS(type)                                                                                              \
    static inline vf vf_load_##type(const amp__##type *src) {                                                          \
        return from_##type(_mm256_loadu_si256((const __m256i *)(const void *)src));                                    \
    }                                                                                                                  \
    static inline vf vf_load_part_##type(const amp__##type *src, size_t n) {                                           \
        return from_##type(_mm256_maskz_loadu_epi16(first(n), src));                                                   \
    }                                                                                                                  \
    static inline void vf_store_##type(amp__##type *dst, vf x) {                                                       \
        _mm256_storeu_si256((__m256i *)(void *)dst, to_##type(x));                                                     \
    }                                                                                                                  \
    static inline void vf_store_part_##type(amp__##type *dst, vf x, size_t n) {                                        \
        _mm256_mask_storeu_epi16(dst, first(n), to_##type(x));                                                         \
    }                                                                                                                  \
    static inline void vf_stream_##type(amp__##type *dst, vf x) {                                                      \
        _mm256_stream_si256((__m256i *)(void *)dst, to_##type(x));                                                     \
    }
SHORT_WORDS(f16)
SHORT_WORDS(bf16)

/* With 0x8000 added to it a signed rest is unsigned, and below its bf16 number nothing is to be carried. */
static inline vf vf_load_split(const amp__bf16 *low, const uint16_t *rest, bool *rare) {
    static const uint16_t side_by_side[32] = { 0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                               8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47 };
    const __m512i upper = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)low));
    const __m512i lower = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)rest));
    const __m512i both = _mm512_permutex2var_epi16(lower, _mm512_loadu_si512(side_by_side), upper);
    const __m512i half = _mm512_set1_epi32(0x8000), raised = _mm512_xor_si512(both, half);
    const __mmask16 tie = _mm512_testn_epi32_mask(raised, _mm512_set1_epi32(0xffff));
    const __mmask16 below_zero = _mm512_testn_epi32_mask(raised, _mm512_set1_epi32(0x7fff8000));
    *rare = !_kortestz_mask16_u8(tie, below_zero);
    return _mm512_castsi512_ps(_mm512_sub_epi32(raised, half));
}
static inline bool vf_store_split(amp__bf16 *low, uint16_t *rest, vf x) {
    static const uint16_t odd_then_even[32] = { 1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62 };
    const __m512i bits = _mm512_castps_si512(x), rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x8000));
    const __m512i halves = _mm512_permutex2var_epi16(rounded, _mm512_loadu_si512(odd_then_even), bits);
    _mm256_storeu_si256((__m256i *)(void *)low, _mm512_castsi512_si256(halves));
    _mm256_storeu_si256((__m256i *)(void *)rest, _mm512_extracti64x4_epi64(halves, 1));
    return !_kortestz_mask16_u8(_mm512_testn_epi32_mask(rounded, _mm512_set1_epi32(0xffff)), is_nan(x));
}

static inline vf vf_set1(float x) { return _mm512_set1_ps(x); }
static inline vf vf_mul(vf x, vf y) { return _mm512_mul_ps(x, y); }
static inline vf vf_add(vf x, vf y) { return _mm512_add_ps(x, y); }
static inline vf vf_add_exact(vf sum, vf x, vf y) { return _mm512_fmadd_ps(x, y, sum); }
static inline vf vf_min(vf x, vf y) { return _mm512_min_ps(x, y); }
static inline vf vf_max(vf x, vf y) { return _mm512_max_ps(x, y); }
static inline vf vf_sub(vf x, vf y) { return _mm512_sub_ps(x, y); }
static inline vf vf_div(vf x, vf y) { return _mm512_div_ps(x, y); }
static inline vf vf_sqrt(vf x) { return _mm512_sqrt_ps(x); }
static inline vf vf_larger(vf x, vf y) { return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, y, _CMP_NLE_UQ), x); }
static inline vf vf_first(vf x, size_t n) { return _mm512_maskz_mov_ps(first(n), x); }

/* The largest magnitude, as an integer. */
typedef __m512i seen_f;
static inline seen_f vf_unseen(void) { return _mm512_setzero_si512(); }
static inline seen_f vf_see(seen_f seen, vf x, uint32_t limit) {
    (void)limit;
    return _mm512_max_epu32(seen, magnitude(x));
}
static inline uint32_t vf_seen(seen_f seen, uint32_t limit) {
    return _mm512_cmpge_epu32_mask(seen, _mm512_set1_epi32((int32_t)limit)) != 0;
}

/* ---- doubles ---- */

static inline vd widen(vf x) {
    return (vd){ _mm512_cvtps_pd(_mm512_castps512_ps256(x)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)) };
}
static inline vd vd_load_f32(const amp__f32 *src) {
    return (vd){ _mm512_cvtps_pd(_mm256_loadu_ps(src)), _mm512_cvtps_pd(_mm256_loadu_ps(src + 8)) };
}

static inline vf join(__m256 low, __m256 high) { return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1); }

/* Toward zero, and odd if that is not exact: as in avx2.h. */
static inline __m256 narrow_odd(__m512d x) {
    const __m256 cut = _mm512_cvt_roundpd_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __mmask8 inexact = _mm512_cmp_pd_mask(_mm512_cvtps_pd(cut), x, _CMP_NEQ_UQ);
    const __m256i bits = _mm256_castps_si256(cut);
    return _mm256_castsi256_ps(_mm256_mask_or_epi32(bits, inexact, bits, _mm256_set1_epi32(1)));
}

static inline vf vd_to_odd(vd x) { return join(narrow_odd(x.low), narrow_odd(x.high)); }
static inline vf vd_to_f32(vd x) { return join(_mm512_cvtpd_ps(x.low), _mm512_cvtpd_ps(x.high)); }

static inline __mmask8 first_low(size_t n) { return (__mmask8)first(n); }
static inline __mmask8 first_high(size_t n) { return (__mmask8)(first(n) >> 8); }

static inline vd vd_load_f64(const amp__f64 *src) { return (vd){ _mm512_loadu_pd(src), _mm512_loadu_pd(src + 8) }; }
static inline void vd_store_f64(amp__f64 *dst, vd x) {
    _mm512_storeu_pd(dst, x.low), _mm512_storeu_pd(dst + 8, x.high);
}
static inline void vd_stream_f64(amp__f64 *dst, vd x) {
    _mm512_stream_pd(dst, x.low), _mm512_stream_pd(dst + 8, x.high);
}
static inline vd vd_load_part_f64(const amp__f64 *src, size_t n) {
    return (vd){ _mm512_maskz_loadu_pd(first_low(n), src), _mm512_maskz_loadu_pd(first_high(n), src + 8) };
}
static inline void vd_store_part_f64(amp__f64 *dst, vd x, size_t n) {
    _mm512_mask_storeu_pd(dst, first_low(n), x.low);
    _mm512_mask_storeu_pd(dst + 8, first_high(n), x.high);
}

static inline vd vd_set1(double x) { return (vd){ _mm512_set1_pd(x), _mm512_set1_pd(x) }; }
static inline vd vd_mul(vd x, vd y) { return (vd){ _mm512_mul_pd(x.low, y.low), _mm512_mul_pd(x.high, y.high) }; }
static inline vd vd_add(vd x, vd y) { return (vd){ _mm512_add_pd(x.low, y.low), _mm512_add_pd(x.high, y.high) }; }
static inline vd vd_add_exact(vd sum, vd x, vd y) {
    return (vd){ _mm512_fmadd_pd(x.low, y.low, sum.low), _mm512_fmadd_pd(x.high, y.high, sum.high) };
}
static inline vd vd_min(vd x, vd y) { return (vd){ _mm512_min_pd(x.low, y.low), _mm512_min_pd(x.high, y.high) }; }
static inline vd vd_max(vd x, vd y) { return (vd){ _mm512_max_pd(x.low, y.low), _mm512_max_pd(x.high, y.high) }; }
static inline vd vd_first(vd x, size_t n) {
    return (vd){ _mm512_maskz_mov_pd(first_low(n), x.low), _mm512_maskz_mov_pd(first_high(n), x.high) };
}

typedef __m512i seen_d;
static inline __m512i magnitude_d(__m512d x) {
    return _mm512_and_si512(_mm512_castpd_si512(x), _mm512_set1_epi64(INT64_MAX));
}
static inline seen_d vd_unseen(void) { return _mm512_setzero_si512(); }
static inline seen_d vd_see(seen_d seen, vd x, uint64_t limit) {
    (void)limit;
    return _mm512_max_epu64(seen, _mm512_max_epu64(magnitude_d(x.low), magnitude_d(x.high)));
}
static inline uint32_t vd_seen(seen_d seen, uint64_t limit) {
    return _mm512_cmpge_epu64_mask(seen, _mm512_set1_epi64((int64_t)limit)) != 0;
}

/* ---- words ---- */

typedef __m512i vw;
static inline vw vw_load(const void *src) { return _mm512_loadu_si512(src); }
static inline vw vw_zero(void) { return _mm512_setzero_si512(); }
static inline vw vw_set1(uint16_t x) { return _mm512_set1_epi16((int16_t)x); }
static inline uint32_t vw_differ(vw x, vw y) { return _mm512_cmpneq_epi16_mask(x, y); }
static inline uint32_t vw_nonzero(vw x) { return _mm512_test_epi16_mask(x, vw_set1(0x7fff)); }
static inline vw vw_see_magnitude_16(vw seen, vw x) {
    return _mm512_max_epu16(seen, _mm512_and_si512(x, _mm512_set1_epi16(0x7fff)));
}
static inline vw vw_see_magnitude_32(vw seen, vw x) {
    return _mm512_max_epu32(seen, _mm512_and_si512(x, _mm512_set1_epi32(0x7fffffff)));
}
static inline vw vw_lesser(vw x, vw y) { return _mm512_min_epi16(x, y); }
static inline vw vw_larger(vw x, vw y) { return _mm512_max_epi16(x, y); }
static inline vw vw_zero_last(vw x) {
    return _mm512_add_epi16(_mm512_and_si512(x, _mm512_set1_epi16(0x7fff)), _mm512_set1_epi16(0x7fff));
}
static inline vw vw_order(vw x) {
    return _mm512_ternarylogic_epi32(x, _mm512_srai_epi16(x, 15), _mm512_set1_epi16(0x7fff), 0x78); /* x ^ y & z */
}
/* There is an instruction for the least of eight, unsigned. */
#define ACROSS_HALVES(word, op, by)                                                                                    \
    static inline int vw_##word(vw x) {                                                                                \
        const __m256i y = _mm256_##op##_epi16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));             \
        const __m128i z = _mm_##op##_epi16(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));                 \
        const __m128i flip = _mm_set1_epi16(by);                                                                       \
        return (int16_t)(_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(z, flip))) ^ (by));                          \
    }
ACROSS_HALVES(least, min, -0x8000)
ACROSS_HALVES(most, max, 0x7fff)

/* ---- integers: vector/pack.c ---- */

typedef __m512i vi;
#define vi_shl(x, n) _mm512_sllv_epi32(x, _mm512_set1_epi32((int32_t)(n)))
#define vi_shr(x, n) _mm512_srlv_epi32(x, _mm512_set1_epi32((int32_t)(n)))
#define vi_shr_halves(x, n) _mm512_srlv_epi16(x, _mm512_set1_epi16((int16_t)(n)))
static inline vi vi_load(const uint32_t *src) { return _mm512_loadu_si512(src); }
static inline void vi_store(uint32_t *dst, vi x) { _mm512_storeu_si512(dst, x); }
static inline vi vi_load_u8(const uint8_t *src) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)src));
}
static inline vi vi_load_s8(const uint8_t *src) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)src));
}
static inline void vi_store_third_u8(uint8_t *dst, uint8_t *dst2, vi x, vi y) {
    const __m128i of_both = _mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i upper = _mm512_set1_epi32((int32_t)0xffff0000u), fours = _mm512_setr_epi32(
        0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i both = _mm512_ternarylogic_epi32(upper, y, _mm512_srli_epi32(x, 16), 0xca);
    const __m512i bytes = _mm512_shuffle_epi8(both, _mm512_broadcast_i32x4(of_both));
    const __m256i codes = _mm512_castsi512_si256(_mm512_permutexvar_epi32(fours, bytes));
    _mm_storeu_si128((__m128i *)(void *)dst, _mm256_castsi256_si128(codes));
    _mm_storeu_si128((__m128i *)(void *)dst2, _mm256_extracti128_si256(codes, 1));
}
static inline vi vi_larger(vi x, vi y) { return _mm512_max_epu32(x, y); }
static inline vi vi_bits(vf x) { return _mm512_castps_si512(x); }
static inline vf vf_of_bits(vi x) { return _mm512_castsi512_ps(x); }
static inline vi vi_set1(uint32_t x) { return _mm512_set1_epi32((int32_t)x); }
static inline vi vi_add(vi x, vi y) { return _mm512_add_epi32(x, y); }
static inline vi vi_mul(vi x, vi y) { return _mm512_mullo_epi32(x, y); }
static inline vi vi_and(vi x, vi y) { return _mm512_and_si512(x, y); }
static inline vi vi_or(vi x, vi y) { return _mm512_or_si512(x, y); }
static inline vi vi_xor(vi x, vi y) { return _mm512_xor_si512(x, y); }
static inline vi vi_nearest(vf x) { return _mm512_cvtps_epi32(x); }
static inline vi vi_halves(vi x, vi y) {
    const __m128i up = _mm_setr_epi8(0, 0, 0, 1, 0, 0, 4, 5, 0, 0, 8, 9, 0, 0, 12, 13);
    return _mm512_mask_shuffle_epi8(x, UINT64_C(0xcccccccccccccccc), y, _mm512_broadcast_i32x4(up));
}
static inline vi vi_choose(vi mask, vi x, vi y) { return _mm512_ternarylogic_epi32(mask, x, y, 0xca); }
static inline vi vi_where_positive(vi x, vf by) {
    return _mm512_maskz_mov_epi32(_mm512_cmp_ps_mask(by, _mm512_setzero_ps(), _CMP_GT_OQ), x);
}
static inline vf vf_of_vi(vi x) { return _mm512_cvtepi32_ps(x); }
#define HAS_LOOKUP
static inline vi vi_table_f16(vf x) { return _mm512_broadcast_i64x4(to_f16(x)); }
static inline vi vi_table_bf16(vf x) { return _mm512_broadcast_i64x4(to_bf16(x)); }
static inline vi vi_lookup_halves(vi table, vi x) { return _mm512_permutexvar_epi16(x, table); }
static inline vi vi_some_halves(vi x, vi y, const uint16_t first[16]) {
    const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)first);
    const __m256i high = _mm256_add_epi16(low, _mm256_set1_epi16(32));
    return _mm512_permutex2var_epi16(x, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), y);
}
static inline vi vi_lower_halves(vi x, vi y) {
    static const uint16_t even[16] = { 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 };
    return vi_some_halves(x, y, even);
}
static inline vi vi_upper_halves(vi x, vi y) {
    static const uint16_t odd[16] = { 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31 };
    return vi_some_halves(x, y, odd);
}
static inline vf vf_where_set(vf x, vi by) { return _mm512_maskz_mov_ps(_mm512_test_epi32_mask(by, by), x); }
static inline uint32_t vf_differ(vf x, vf y) { return _mm512_cmp_ps_mask(x, y, _CMP_NEQ_UQ); }
static inline vf vf_choose(uint32_t set, vf x) { return _mm512_maskz_mov_ps((__mmask16)set, x); }
static inline float vf_least(vf x) { return _mm512_reduce_min_ps(x); }
static inline float vf_most(vf x) { return _mm512_reduce_max_ps(x); }

static inline vi vi_one_hot(vi x) { return _mm512_rolv_epi32(_mm512_set1_epi32(1), x); }
static inline vi vi_majority(vi x, vi y, vi z) { return _mm512_ternarylogic_epi32(x, y, z, 0xe8); }
static inline uint32_t vi_without(vi x, vi y) { return _mm512_testn_epi32_mask(x, y); }

static inline void fence(void) { _mm_sfence(); }

#endif
