/* SPDX-License-Identifier: Apache-2.0 */
/* Moments in 8 bits between steps (amp_optim.h): to FP32, from FP32, and the keys of their random numbers. */
#include "kernels/bytes.h"
#include "kernels/fpenv.h"
#include "optim/optim.h"

#include <math.h>
#include <string.h>

AMP_API uint64_t amp_optim_key(uint64_t seed, const char *name) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (const char *p = name; p && *p; p++) hash = (hash ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
    return amp__pack_key(seed, hash);
}

/* ---- one block ---- */

/* An infinite v is the largest one. */
static float limited(float v) { return v > AMP__BYTES_MOST_V ? AMP__BYTES_MOST_V : v; }

/* Returns the largest magnitude, or NaN if the block is lost. */
static float largest_of(const float *values, size_t n, bool second) {
    float largest = 0.0f;
    for (size_t i = 0; i < n; i++) {
        const float size = second ? limited(values[i]) : fabsf(values[i]);
        if (!amp__pack_finite(size)) return NAN;
        if (size > largest) largest = size;
    }
    return largest;
}

static uint8_t nearest_code(float multiple, bool second) {
    const float most = second ? 255.0f : 127.0f, size = fabsf(multiple) < most ? fabsf(multiple) : most;
    const int32_t nearest = amp__bytes_nearest(size);
    if (!second) return (uint8_t)(multiple < 0.0f ? -nearest : nearest);
    return (uint8_t)(nearest || multiple <= 0.0f ? nearest : 1);
}

static void encode_block(uint8_t *codes, float *scale, const float *values, size_t n, bool second, bool keep_scale) {
    if (!keep_scale) {
        const float largest = largest_of(values, n, second);
        *scale = isnan(largest) ? AMP__BYTES_LOST
                 : second       ? amp__bytes_scale_v(sqrtf(largest))
                                : amp__bytes_stored_m(amp__bytes_scale_m(largest));
    }
    memset(codes, 0, n);
    if (!(*scale > 0.0f) || !amp__pack_finite(*scale)) return;
    for (size_t i = 0; i < n; i++) {
        const float value = !second ? values[i] : values[i] > 0.0f ? sqrtf(limited(values[i])) : 0.0f;
        codes[i] = nearest_code(value / *scale, second);
    }
}

static void decode_block(float *values, const uint8_t *codes, float scale, size_t n, bool second) {
    for (size_t i = 0; i < n; i++) {
        const float z = amp__bytes_z(codes[i], scale);
        values[i] = second ? limited(z * z) : amp__bytes_m(codes[i], scale);
    }
}

/* ---- all ---- */

enum { BLOCK = AMP_STATE_BLOCK };
_Static_assert(AMP_STATE_BLOCK == (int)AMP__BYTES_BLOCK, "the kernels' block");

static size_t part_of(size_t n, size_t at) { return n - at < BLOCK ? n - at : BLOCK; }

/* Apart, so that no arithmetic is moved out of the environment that callers set. */
__attribute__((noinline)) void amp__encode_moment(uint8_t *codes, float *scales, const float *values, size_t n,
                                                  bool second, bool keep_scales) {
    for (size_t at = 0; at < n; at += BLOCK)
        encode_block(codes + at, scales + at / BLOCK, values + at, part_of(n, at), second, keep_scales);
}

__attribute__((noinline)) void amp__decode_moment(float *values, const uint8_t *codes, const float *scales, size_t n,
                                                  bool second) {
    for (size_t at = 0; at < n; at += BLOCK)
        decode_block(values + at, codes + at, scales[at / BLOCK], part_of(n, at), second);
}

static amp_status check(const void *codes, const void *scales, const void *values, uint64_t size, const char *who) {
    AMP_RETURN_IF(size && (!codes || !scales || !values), AMP_ERR_INVALID_ARGUMENT, "%s: %s is NULL", who,
                  !codes ? "codes" : !scales ? "scales" : "values");
    AMP_RETURN_IF(size > PTRDIFF_MAX / sizeof(float), AMP_ERR_INVALID_ARGUMENT,
                  "%s: there are no %llu element%s", who, (unsigned long long)size, AMP__S(size));
    return AMP_OK;
}

AMP_API amp_status amp_encode_moment(uint8_t *codes, float *scales, const float *values, uint64_t size, int32_t second,
                                     int32_t keep_scales) {
    AMP_TRY(check(codes, scales, values, size, "amp_encode_moment"));
    const amp__fpenv saved = amp__fpenv_enter();
    amp__encode_moment(codes, scales, values, (size_t)size, second, keep_scales);
    amp__fpenv_leave(saved);
    return AMP_OK;
}

AMP_API amp_status amp_decode_moment(float *values, const uint8_t *codes, const float *scales, uint64_t size,
                                     int32_t second) {
    AMP_TRY(check(codes, scales, values, size, "amp_decode_moment"));
    const amp__fpenv saved = amp__fpenv_enter();
    amp__decode_moment(values, codes, scales, (size_t)size, second);
    amp__fpenv_leave(saved);
    return AMP_OK;
}
