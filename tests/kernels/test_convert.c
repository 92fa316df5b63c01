/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions: all 16-bit values, samples of the wider types at every exponent, and known values. exhaustive.c has all
 * 2^32 floats. */
#include "support.h"

#include "amp_kernels.h"
#include "common/common.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define MANY 65536
static uint64_t src[MANY], dst[MANY]; /* room for any type */

/* Casts the first n of src through the public list function and compares each with the oracle. */
static void check_casts(amp_dtype to, amp_dtype from, size_t n) {
    const amp_span d = { dst, n, to, 0 }, s = { src, n, from, 0 };
    ck_assert_int_eq(amp_cast_list(&d, &s, 1), AMP_OK);
    for (size_t i = 0; i < n; i++) {
        const uint64_t bits = get_bits(from, src, i), got = get_bits(to, dst, i), want = oracle_cast(to, from, bits);
        CHECK_THAT(got == want, "%s %#llx to %s: got %#llx, want %#llx", amp__dtype_name(from),
                      (unsigned long long)bits, amp__dtype_name(to), (unsigned long long)got, (unsigned long long)want);
    }
}

TEST(search_agrees_with_processor) {
    random_restart();
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = random_bits();
        if (i % 2) bits = (bits & ~(UINT64_C(0x7ff) << 52)) | (860 + random_below(300)) << 52; /* float's exponents */
        const double x = fabs(value_of_bits(AMP_FLOAT64, bits));
        CHECK_THAT(isnan(x) || search_nearest(AMP_FLOAT32, x) == round_to_bits(AMP_FLOAT32, x), "%a", x);
    }
}

static const struct {
    float value;
    uint16_t half, bfloat16;
} known[] = {
    { 0.0f, 0x0000, 0x0000 },           { -0.0f, 0x8000, 0x8000 },
    { 1.0f, 0x3c00, 0x3f80 },           { -2.0f, 0xc000, 0xc000 },
    { 65504.0f, 0x7bff, 0x4780 },       { 65519.996f, 0x7bff, 0x4780 },
    { 65520.0f, 0x7c00, 0x4780 },       { 0x1p-14f, 0x0400, 0x3880 },
    { 0x1p-24f, 0x0001, 0x3380 },       { 0x1p-25f, 0x0000, 0x3300 },
    { 0x1.000002p-25f, 0x0001, 0x3300 }, { 0x1.8p-24f, 0x0002, 0x33c0 },
    { 0x1.ffcp-15f, 0x0400, 0x3880 },   { 0x1.ff8p-15f, 0x03ff, 0x3880 },
    { 1.00048828125f, 0x3c00, 0x3f80 }, { 1.00146484375f, 0x3c02, 0x3f80 },
    { 1.00390625f, 0x3c04, 0x3f80 },    { 1.01171875f, 0x3c0c, 0x3f82 },
    { FLT_MAX, 0x7c00, 0x7f80 },        { 0x1.fep127f, 0x7c00, 0x7f7f },
    { 0x1.fefffep127f, 0x7c00, 0x7f7f }, { 0x1.ffp127f, 0x7c00, 0x7f80 },
    { FLT_MIN, 0x0000, 0x0080 },        { 0x1p-133f, 0x0000, 0x0001 },
    { 0x1p-134f, 0x0000, 0x0000 },      { 0x1.8p-133f, 0x0000, 0x0002 },
    { 0x1p-149f, 0x0000, 0x0000 },      { -INFINITY, 0xfc00, 0xff80 },
};

TEST(known_values) {
    for (size_t i = 0; i < AMP_COUNT(known); i++) {
        ck_assert_msg(amp_float_to_half(known[i].value) == known[i].half, "%a to fp16", (double)known[i].value);
        ck_assert_msg(amp_float_to_bfloat16(known[i].value) == known[i].bfloat16, "%a to bf16", (double)known[i].value);
    }
}

/* To every other type; the single-value functions agree with the lists. */
static void check_every_value(amp_dtype type, float (*widen)(uint16_t), uint16_t (*narrow)(float)) {
    uint16_t *all = (uint16_t *)src;
    for (uint32_t bits = 0; bits < MANY; bits++) all[bits] = (uint16_t)bits;
    for (int t = 0; t < TYPES; t++) check_casts(all_types[t], type, MANY);
    for (uint32_t bits = 0; bits < MANY; bits++) {
        const float value = widen((uint16_t)bits);
        CHECK_THAT(get_bits(AMP_FLOAT32, &value, 0) == oracle_cast(AMP_FLOAT32, type, bits), "%#x widened", bits);
        const uint32_t quiet = bits_are_nan(type, bits) ? (uint32_t)round_to_bits(type, (double)NAN) : 0;
        CHECK_THAT(narrow(value) == (bits | quiet), "%#x there and back: %#x", bits, narrow(value));
    }
}

TEST(every_half) { check_every_value(AMP_FLOAT16, amp_half_to_float, amp_float_to_half); }

TEST(every_bfloat16) { check_every_value(AMP_BFLOAT16, amp_bfloat16_to_float, amp_float_to_bfloat16); }

/* Both signs of every exponent, with mantissas at each bit's edges: 10..0, 01..1, 10..01, and the same below a one. */
static void check_exponents(amp_dtype from, unsigned exponents, unsigned mantissa) {
    size_t n = 0;
    for (uint64_t e = 0; e < 1u << (exponents + 1); e++)
        for (unsigned bit = 0; bit < mantissa; bit++)
            for (int below = -1; below <= 1; below++)
                for (int upper = 0; upper <= 1; upper++) {
                    const uint64_t ones = (UINT64_C(1) << mantissa) - 1, edge = (UINT64_C(1) << bit) + (uint64_t)below;
                    const uint64_t above = upper ? ones ^ ((UINT64_C(2) << bit) - 1) : 0;
                    set_bits(from, src, n++, e << mantissa | (above ^ edge));
                    if (n < MANY) continue;
                    for (int t = 0; t < TYPES; t++) check_casts(all_types[t], from, n);
                    n = 0;
                }
    for (int t = 0; t < TYPES; t++) check_casts(all_types[t], from, n);
}

TEST(every_exponent_of_float) { check_exponents(AMP_FLOAT32, 8, 23); }

TEST(every_exponent_of_double) { check_exponents(AMP_FLOAT64, 11, 52); }

TEST(a_stride_over_all_floats) {
    uint32_t bits = (uint32_t)test_seed();
    for (int round = 0; round < 16; round++) {
        for (size_t i = 0; i < MANY; i++) set_bits(AMP_FLOAT32, src, i, bits += 4099 * 7); /* odd: no pattern twice */
        check_casts(AMP_FLOAT16, AMP_FLOAT32, MANY);
        check_casts(AMP_BFLOAT16, AMP_FLOAT32, MANY);
        check_casts(AMP_FLOAT64, AMP_FLOAT32, MANY);
    }
}

/* A double just beside a tie of a 16-bit type is the tie itself in float, from where it may go the wrong way. */
TEST_TIMES(doubles_are_rounded_once, 2) {
    const amp_dtype to = _i ? AMP_BFLOAT16 : AMP_FLOAT16;
    uint64_t wrong_by_float = 0;
    size_t n = 0;
    for (uint64_t i = 0; i < infinity_bits(to); i++) {
        const double tie = midpoint_above(to, i), beside = i % 2 ? tie * (1 - 0x1p-50) : tie * (1 + 0x1p-50);
        wrong_by_float += round_to_bits(to, (double)(float)beside) != round_to_bits(to, beside);
        memcpy(&src[n++], &beside, sizeof beside);
    }
    check_casts(to, AMP_FLOAT64, n);
    ck_assert_uint_gt(wrong_by_float, n / 2); /* else this would test nothing */
}
