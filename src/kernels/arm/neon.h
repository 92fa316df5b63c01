/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of vector/ in NEON, as every arm64 processor has it: see vector/vector.h. Only for little-endian machines.
 */
#ifndef AMP_KERNELS_ARM_NEON_H
#define AMP_KERNELS_ARM_NEON_H

#include "kernels/ref/convert.h"

#include <arm_neon.h>
#include <stdbool.h>

#define ISA neon
typedef float32x4_t quad;
typedef float64x2_t pair;
#include "kernels/vector/halves.h"

/* Conversions of fp16 and of doubles raise flags, trap, and obey the environment, which can even change fp16's format;
 * integers do not. */
enum { RAISES_f32 = 0, RAISES_bf16 = 0, RAISES_f16 = 1, RAISES_f64 = 1 };

/* ---- floats ---- */

static inline uint32x4_t as_words(float32x4_t x) { return vreinterpretq_u32_f32(x); }
static inline float32x4_t as_floats(uint32x4_t x) { return vreinterpretq_f32_u32(x); }

/* All ones where x is a NaN, without looking at it as a float. The sign is shifted out. */
static inline uint32x4_t is_nan(float32x4_t x) {
    return vcgtq_u32(vshlq_n_u32(as_words(x), 1), vdupq_n_u32(UINT32_C(0xff000000)));
}

static inline uint16x8_t to_f16(vf x) {
    return vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.low), x.high));
}

static inline vf from_f16(uint16x8_t x) {
    const float16x8_t halves = vreinterpretq_f16_u16(x);
    return (vf){ vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves) };
}

static inline uint16x8_t to_bf16(vf x) {
    const uint32x4_t low = as_words(x.low), high = as_words(x.high), half = vdupq_n_u32(0x7fff);
    const uint32x4_t low_odd = vsraq_n_u32(low, vshlq_n_u32(low, 15), 31); /* plus bit 16 */
    const uint32x4_t high_odd = vsraq_n_u32(high, vshlq_n_u32(high, 15), 31);
    const uint16x8_t rounded = vaddhn_high_u32(vaddhn_u32(low_odd, half), high_odd, half);
    const uint16x8_t upper = vuzp2q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high));
    const uint16x8_t nan = vuzp1q_u16(vreinterpretq_u16_u32(is_nan(x.low)), vreinterpretq_u16_u32(is_nan(x.high)));
    return vbslq_u16(nan, vorrq_u16(upper, vdupq_n_u16(0x0040)), rounded);
}

static inline vf from_bf16(uint16x8_t x) {
    const uint16x8_t zero = vdupq_n_u16(0);
    return (vf){ vreinterpretq_f32_u16(vzip1q_u16(zero, x)), vreinterpretq_f32_u16(vzip2q_u16(zero, x)) };
}

static inline float32x4_t quiet(float32x4_t x) {
    return as_floats(vorrq_u32(as_words(x), vandq_u32(is_nan(x), vdupq_n_u32(0x00400000))));
}
static inline vf vf_quiet(vf x) { return (vf){ quiet(x.low), quiet(x.high) }; }

static inline vf vf_load_f32(const amp__f32 *src) { return (vf){ vld1q_f32(src), vld1q_f32(src + 4) }; }
static inline void vf_store_f32(amp__f32 *dst, vf x) { vst1q_f32(dst, x.low), vst1q_f32(dst + 4, x.high); }

static inline vf vf_load_f16(const amp__f16 *src) { return from_f16(vld1q_u16(src)); }
static inline void vf_store_f16(amp__f16 *dst, vf x) { vst1q_u16(dst, to_f16(x)); }

static inline vf vf_load_bf16(const amp__bf16 *src) { return from_bf16(vld1q_u16(src)); }
static inline void vf_store_bf16(amp__bf16 *dst, vf x) { vst1q_u16(dst, to_bf16(x)); }

/* Streams are ordinary stores: there is only a hint for them, and no word for it in gcc; these processors notice by
 * themselves when whole lines are replaced. */
#define PARTS_AND_STREAMS(v, type)                                                                                     \
    PARTS(v, type)                                                                                                     \
    static inline void v##_stream_##type(amp__##type *dst, v x) { v##_store_##type(dst, x); }
PARTS_AND_STREAMS(vf, f32)
PARTS_AND_STREAMS(vf, f16)
PARTS_AND_STREAMS(vf, bf16)

/* low + by, and a sign in *rare where by is a tie or the sum has another sign. */
static inline float32x4_t sum_of_split(float32x4_t low, int32x4_t by, uint32x4_t *rare) {
    const uint32x4_t sum = vaddq_u32(as_words(low), vreinterpretq_u32_s32(by));
    const uint32x4_t tie = vceqq_s32(by, vdupq_n_s32(-0x8000));
    *rare = vorrq_u32(*rare, vorrq_u32(tie, veorq_u32(sum, as_words(low))));
    return as_floats(sum);
}
static inline vf vf_load_split(const amp__bf16 *low, const uint16_t *rest, bool *rare) {
    const int16x8_t halves = vreinterpretq_s16_u16(vld1q_u16(rest));
    const vf upper = vf_load_bf16(low);
    uint32x4_t seen = vdupq_n_u32(0);
    const float32x4_t first = sum_of_split(upper.low, vmovl_s16(vget_low_s16(halves)), &seen);
    const float32x4_t second = sum_of_split(upper.high, vmovl_high_s16(halves), &seen);
    *rare = vmaxvq_u32(seen) >> 31 != 0;
    return (vf){ first, second };
}
static inline bool vf_store_split(amp__bf16 *low, uint16_t *rest, vf x) {
    const uint32x4_t first = as_words(x.low), second = as_words(x.high), half = vdupq_n_u32(0x8000);
    const uint16x8_t halves = vuzp1q_u16(vreinterpretq_u16_u32(first), vreinterpretq_u16_u32(second));
    const uint32x4_t nan = vorrq_u32(is_nan(x.low), is_nan(x.high));
    vst1q_u16(low, vaddhn_high_u32(vaddhn_u32(first, half), second, half));
    vst1q_u16(rest, halves);
    return vmaxvq_u16(vorrq_u16(vceqq_u16(halves, vdupq_n_u16(0x8000)), vreinterpretq_u16_u32(nan))) != 0;
}

static inline vf vf_set1(float x) { return (vf){ vdupq_n_f32(x), vdupq_n_f32(x) }; }
OF_HALVES(mul, vmulq_f32)
OF_HALVES(add, vaddq_f32)
static inline vf vf_add_exact(vf sum, vf x, vf y) {
    return (vf){ vfmaq_f32(sum.low, x.low, y.low), vfmaq_f32(sum.high, x.high, y.high) };
}
OF_HALVES(min, vminq_f32)
OF_HALVES(max, vmaxq_f32)
OF_HALVES(sub, vsubq_f32)
OF_HALVES(div, vdivq_f32)
static inline vf vf_sqrt(vf x) { return (vf){ vsqrtq_f32(x.low), vsqrtq_f32(x.high) }; }
static inline float32x4_t larger(float32x4_t x, float32x4_t y) { return vbslq_f32(vcleq_f32(x, y), y, x); }
OF_HALVES(larger, larger)
FIRST(vf, f32)

/* The largest magnitude, as an integer. */
typedef uint32x4_t seen_f;
static inline uint32x4_t magnitude(float32x4_t x) { return vbicq_u32(as_words(x), vdupq_n_u32(UINT32_C(0x80000000))); }
static inline seen_f vf_unseen(void) { return vdupq_n_u32(0); }
static inline seen_f vf_see(seen_f seen, vf x, uint32_t limit) {
    (void)limit;
    return vmaxq_u32(seen, vmaxq_u32(magnitude(x.low), magnitude(x.high)));
}
static inline uint32_t vf_seen(seen_f seen, uint32_t limit) { return vmaxvq_u32(seen) >= limit; }

/* ---- doubles ---- */

static inline vd widen(vf x) {
    return (vd){ vcvt_f64_f32(vget_low_f32(x.low)), vcvt_high_f64_f32(x.low), vcvt_f64_f32(vget_low_f32(x.high)),
                 vcvt_high_f64_f32(x.high) };
}
static inline vd vd_load_f32(const amp__f32 *src) { return widen(vf_load_f32(src)); }

/* There is an instruction for rounding to odd: see avx2.h. */
static inline vf vd_to_odd(vd x) {
    return (vf){ vcvtx_high_f32_f64(vcvtx_f32_f64(x.q0), x.q1), vcvtx_high_f32_f64(vcvtx_f32_f64(x.q2), x.q3) };
}
static inline vf vd_to_f32(vd x) {
    return (vf){ vcvt_high_f32_f64(vcvt_f32_f64(x.q0), x.q1), vcvt_high_f32_f64(vcvt_f32_f64(x.q2), x.q3) };
}

static inline vd vd_load_f64(const amp__f64 *src) {
    return (vd){ vld1q_f64(src), vld1q_f64(src + 2), vld1q_f64(src + 4), vld1q_f64(src + 6) };
}
static inline void vd_store_f64(amp__f64 *dst, vd x) {
    vst1q_f64(dst, x.q0), vst1q_f64(dst + 2, x.q1), vst1q_f64(dst + 4, x.q2), vst1q_f64(dst + 6, x.q3);
}
PARTS_AND_STREAMS(vd, f64)

static inline vd vd_set1(double x) { return (vd){ vdupq_n_f64(x), vdupq_n_f64(x), vdupq_n_f64(x), vdupq_n_f64(x) }; }
OF_QUARTERS(mul, vmulq_f64)
OF_QUARTERS(add, vaddq_f64)
static inline vd vd_add_exact(vd sum, vd x, vd y) {
    return (vd){ vfmaq_f64(sum.q0, x.q0, y.q0), vfmaq_f64(sum.q1, x.q1, y.q1), vfmaq_f64(sum.q2, x.q2, y.q2),
                 vfmaq_f64(sum.q3, x.q3, y.q3) };
}
OF_QUARTERS(min, vminq_f64)
OF_QUARTERS(max, vmaxq_f64)
FIRST(vd, f64)

/* Ones where a magnitude reached the limit. */
typedef uint64x2_t seen_d;
static inline uint64x2_t reaches(float64x2_t x, uint64_t limit) {
    return vcgeq_u64(vbicq_u64(vreinterpretq_u64_f64(x), vdupq_n_u64(UINT64_C(1) << 63)), vdupq_n_u64(limit));
}
static inline seen_d vd_unseen(void) { return vdupq_n_u64(0); }
static inline seen_d vd_see(seen_d seen, vd x, uint64_t limit) {
    const uint64x2_t low = vorrq_u64(reaches(x.q0, limit), reaches(x.q1, limit));
    return vorrq_u64(seen, vorrq_u64(low, vorrq_u64(reaches(x.q2, limit), reaches(x.q3, limit))));
}
static inline uint32_t vd_seen(seen_d seen, uint64_t limit) {
    (void)limit;
    return vmaxvq_u32(vreinterpretq_u32_u64(seen)) != 0;
}

/* ---- words ---- */

typedef uint16x8_t vw;
static inline vw vw_load(const void *src) { return vreinterpretq_u16_u8(vld1q_u8(src)); }
static inline vw vw_zero(void) { return vdupq_n_u16(0); }
static inline vw vw_set1(uint16_t x) { return vdupq_n_u16(x); }
static inline uint32_t vw_differ(vw x, vw y) {
    static const uint16_t places[8] = { 1, 2, 4, 8, 16, 32, 64, 128 };
    return vaddvq_u16(vbicq_u16(vld1q_u16(places), vceqq_u16(x, y)));
}
static inline uint32_t vw_nonzero(vw x) { return vw_differ(vbicq_u16(x, vdupq_n_u16(0x8000)), vw_zero()); }
static inline vw vw_see_magnitude_16(vw seen, vw x) {
    return vmaxq_u16(seen, vbicq_u16(x, vdupq_n_u16(0x8000)));
}
static inline vw vw_see_magnitude_32(vw seen, vw x) {
    const uint32x4_t words = vbicq_u32(vreinterpretq_u32_u16(x), vdupq_n_u32(UINT32_C(0x80000000)));
    return vreinterpretq_u16_u32(vmaxq_u32(vreinterpretq_u32_u16(seen), words));
}
static inline int16x8_t signed_halves(vw x) { return vreinterpretq_s16_u16(x); }
static inline vw vw_lesser(vw x, vw y) { return vreinterpretq_u16_s16(vminq_s16(signed_halves(x), signed_halves(y))); }
static inline vw vw_larger(vw x, vw y) { return vreinterpretq_u16_s16(vmaxq_s16(signed_halves(x), signed_halves(y))); }
static inline vw vw_zero_last(vw x) {
    return vaddq_u16(vbicq_u16(x, vdupq_n_u16(0x8000)), vdupq_n_u16(0x7fff));
}
static inline vw vw_order(vw x) {
    return veorq_u16(x, vshrq_n_u16(vreinterpretq_u16_s16(vshrq_n_s16(signed_halves(x), 15)), 1));
}
static inline int vw_least(vw x) { return vminvq_s16(signed_halves(x)); }
static inline int vw_most(vw x) { return vmaxvq_s16(signed_halves(x)); }

/* ---- integers: vector/pack.c ---- */

typedef struct {
    uint32x4_t low, high;
} vi;
#define OF_WORDS(word, op)                                                                                             \
    static inline vi vi_##word(vi x, vi y) { return (vi){ op(x.low, y.low), op(x.high, y.high) }; }
static inline vi vi_shl(vi x, int n) {
    const int32x4_t by = vdupq_n_s32(n);
    return (vi){ vshlq_u32(x.low, by), vshlq_u32(x.high, by) };
}
static inline vi vi_shr(vi x, int n) { return vi_shl(x, -n); }
static inline vi vi_load(const uint32_t *src) { return (vi){ vld1q_u32(src), vld1q_u32(src + 4) }; }
static inline void vi_store(uint32_t *dst, vi x) { vst1q_u32(dst, x.low), vst1q_u32(dst + 4, x.high); }
static inline vi vi_load_u8(const uint8_t *src) {
    const uint16x8_t halves = vmovl_u8(vld1_u8(src));
    return (vi){ vmovl_u16(vget_low_u16(halves)), vmovl_u16(vget_high_u16(halves)) };
}
static inline vi vi_load_s8(const uint8_t *src) {
    const int16x8_t halves = vmovl_s8(vreinterpret_s8_u8(vld1_u8(src)));
    return (vi){ vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(halves))),
                 vreinterpretq_u32_s32(vmovl_s16(vget_high_s16(halves))) };
}
static inline uint8x8_t third_bytes(vi x) {
    return vmovn_u16(vuzp2q_u16(vreinterpretq_u16_u32(x.low), vreinterpretq_u16_u32(x.high)));
}
static inline void vi_store_third_u8(uint8_t *dst, uint8_t *dst2, vi x, vi y) {
    vst1_u8(dst, third_bytes(x)), vst1_u8(dst2, third_bytes(y));
}
static inline vi vi_bits(vf x) { return (vi){ as_words(x.low), as_words(x.high) }; }
static inline vf vf_of_bits(vi x) { return (vf){ as_floats(x.low), as_floats(x.high) }; }
static inline vi vi_set1(uint32_t x) { return (vi){ vdupq_n_u32(x), vdupq_n_u32(x) }; }
OF_WORDS(add, vaddq_u32)
OF_WORDS(mul, vmulq_u32)
OF_WORDS(larger, vmaxq_u32)
OF_WORDS(and, vandq_u32)
OF_WORDS(or, vorrq_u32)
OF_WORDS(xor, veorq_u32)
static inline vi vi_nearest(vf x) {
    return (vi){ vreinterpretq_u32_s32(vcvtnq_s32_f32(x.low)), vreinterpretq_u32_s32(vcvtnq_s32_f32(x.high)) };
}
static inline vi vi_shr_halves(vi x, int n) {
    const int16x8_t by = vdupq_n_s16((int16_t)-n);
    return (vi){ vreinterpretq_u32_u16(vshlq_u16(vreinterpretq_u16_u32(x.low), by)),
                 vreinterpretq_u32_u16(vshlq_u16(vreinterpretq_u16_u32(x.high), by)) };
}
static inline uint32x4_t halves(uint32x4_t x, uint32x4_t y) { return vsliq_n_u32(x, y, 16); }
OF_WORDS(halves, halves)
static inline vi vi_choose(vi mask, vi x, vi y) {
    return (vi){ vbslq_u32(mask.low, x.low, y.low), vbslq_u32(mask.high, x.high, y.high) };
}
static inline vi vi_where_positive(vi x, vf by) {
    return (vi){ vandq_u32(x.low, vcgtzq_f32(by.low)), vandq_u32(x.high, vcgtzq_f32(by.high)) };
}
static inline vf vf_of_vi(vi x) {
    return (vf){ vcvtq_f32_s32(vreinterpretq_s32_u32(x.low)), vcvtq_f32_s32(vreinterpretq_s32_u32(x.high)) };
}
static inline float32x4_t where_set(float32x4_t x, uint32x4_t by) {
    return as_floats(vandq_u32(as_words(x), vtstq_u32(by, by)));
}
static inline vf vf_where_set(vf x, vi by) { return (vf){ where_set(x.low, by.low), where_set(x.high, by.high) }; }
static inline vi bit_places(void) {
    static const uint32_t places[8] = { 1, 2, 4, 8, 16, 32, 64, 128 };
    return vi_load(places);
}
static inline uint32_t vf_differ(vf x, vf y) {
    const vi places = bit_places();
    const uint32x4_t low = vbicq_u32(places.low, vceqq_f32(x.low, y.low));
    return vaddvq_u32(vorrq_u32(low, vbicq_u32(places.high, vceqq_f32(x.high, y.high))));
}
static inline vf vf_choose(uint32_t set, vf x) { return vf_where_set(x, vi_and(vi_set1(set), bit_places())); }
static inline float vf_least(vf x) { return vminvq_f32(vminq_f32(x.low, x.high)); }
static inline float vf_most(vf x) { return vmaxvq_f32(vmaxq_f32(x.low, x.high)); }

static inline vi vi_one_hot(vi x) {
    const uint32x4_t one = vdupq_n_u32(1), least = vdupq_n_u32(31);
    return (vi){ vshlq_u32(one, vreinterpretq_s32_u32(vandq_u32(x.low, least))),
                 vshlq_u32(one, vreinterpretq_s32_u32(vandq_u32(x.high, least))) };
}
static inline vi vi_majority(vi x, vi y, vi z) { return vi_choose(vi_xor(x, y), z, x); }
static inline uint32_t vi_without(vi x, vi y) {
    const vi places = bit_places();
    const uint32x4_t low = vbicq_u32(places.low, vtstq_u32(x.low, y.low));
    return vaddvq_u32(vorrq_u32(low, vbicq_u32(places.high, vtstq_u32(x.high, y.high))));
}

static inline void fence(void) {}

#endif
