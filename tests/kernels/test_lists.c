/* SPDX-License-Identifier: Apache-2.0 */
/* The list functions: mixed lists, the flag, norms, and errors that write nothing. */
#include "support.h"

#include "amp_kernels.h"
#include "common/common.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define SPAN(array, type) { (array), AMP_COUNT(array), (type), 0 }
#define EMPTY(type) { NULL, 0, (type), 0 }

/* ---- elementwise ---- */

TEST(types_may_differ_from_entry_to_entry) {
    float singles[3] = { 1.5f, -0.25f, 70000.0f }, from_half[2], scaled[3];
    uint16_t halves[2] = { 0x3c00, 0xc000 }, from_single[3], from_double[1];
    double doubles[1] = { 1e300 };
    const amp_span dst[] = { SPAN(from_single, AMP_FLOAT16), EMPTY(AMP_FLOAT64), SPAN(from_half, AMP_FLOAT32),
                             SPAN(from_double, AMP_BFLOAT16) };
    const amp_span src[] = { SPAN(singles, AMP_FLOAT32), EMPTY(AMP_FLOAT16), SPAN(halves, AMP_FLOAT16),
                             SPAN(doubles, AMP_FLOAT64) };
    ck_assert_int_eq(amp_cast_list(dst, src, AMP_COUNT(dst)), AMP_OK);
    ck_assert_mem_eq(from_single, ((uint16_t[]){ 0x3e00, 0xb400, 0x7c00 }), sizeof from_single);
    ck_assert_mem_eq(from_half, ((float[]){ 1.0f, -2.0f }), sizeof from_half);
    ck_assert_uint_eq(from_double[0], 0x7f80);

    const amp_span out = SPAN(scaled, AMP_FLOAT32), sum[] = { SPAN(from_half, AMP_FLOAT32) };
    const amp_span x[] = { SPAN(halves, AMP_FLOAT16) }, y[] = { SPAN(from_half, AMP_FLOAT32) };
    ck_assert_int_eq(amp_scale_list(&out, src, 1, 2.0f, NULL), AMP_OK);
    ck_assert_mem_eq(scaled, ((float[]){ 3.0f, -0.5f, 140000.0f }), sizeof scaled);
    ck_assert_int_eq(amp_axpby_list(sum, 2.0f, x, 0.5f, y, 1, NULL), AMP_OK); /* over y */
    ck_assert_mem_eq(from_half, ((float[]){ 2.5f, -5.0f }), sizeof from_half);
}

/* fp64 sources are computed in double, and an fp64 y makes axpby double. */
TEST(doubles_stay_doubles) {
    double x[2] = { 1e300, 1.0 + 0x1p-52 }, d[2];
    float ones[2] = { 1.0f, 1.0f }, found = 0.0f;
    const amp_span dst = SPAN(d, AMP_FLOAT64), src = SPAN(x, AMP_FLOAT64), single = SPAN(ones, AMP_FLOAT32);
    ck_assert_int_eq(amp_scale_list(&dst, &src, 1, 0.5f, &found), AMP_OK);
    ck_assert(d[0] == 5e299 && d[1] == 0.5 + 0x1p-53 && found == 0.0f);
    ck_assert_int_eq(amp_axpby_list(&dst, 1.0f, &single, 1.0f, &src, 1, &found), AMP_OK);
    ck_assert(d[0] == 1e300 && d[1] == 2.0 && found == 0.0f);
    ck_assert_int_eq(amp_axpby_list(&dst, 0x1p-30f, &src, 1.0f, &single, 1, &found), AMP_OK);
    ck_assert(d[1] == 1.0 + 0x1p-30 && found == 0.0f);
    ck_assert_int_eq(amp_scale_list(&dst, &src, 1, 0x1p100f, &found), AMP_OK);
    ck_assert(isinf(d[0]) && found == 1.0f);
}

TEST(flag_is_sticky_and_else_left_alone) {
    float x[2] = { 40000.0f, 1.0f }, found = 7.0f;
    uint16_t half[2] = { 0 };
    const amp_span src = SPAN(x, AMP_FLOAT32), low = SPAN(half, AMP_FLOAT16);
    ck_assert_int_eq(amp_scale_list(&low, &src, 1, 1.0f, &found), AMP_OK);
    ck_assert_int_eq(amp_axpby_list(&low, 1.0f, &src, 1.0f, &src, 0, &found), AMP_OK);
    ck_assert(found == 7.0f);
    /* Finite in float, infinite in fp16; the elements behind are written all the same. */
    ck_assert_int_eq(amp_scale_list(&low, &src, 1, 2.0f, &found), AMP_OK);
    ck_assert(found == 1.0f && half[0] == 0x7c00 && half[1] == 0x4000);
    ck_assert_int_eq(amp_scale_list(&low, &src, 1, 1.0f, &found), AMP_OK);
    ck_assert(found == 1.0f);
    found = 0.0f;
    ck_assert_int_eq(amp_axpby_list(&low, 1.0f, &src, 1.0f, &src, 1, &found), AMP_OK);
    ck_assert(found == 1.0f && half[0] == 0x7c00 && half[1] == 0x4000);
}

/* What Apex misses: a finite gradient whose quotient by a small scale is infinite. And an infinity that vanishes. */
TEST(flag_is_about_results) {
    float x[1] = { 1e30f }, found = 0.0f;
    const amp_span s = SPAN(x, AMP_FLOAT32);
    ck_assert_int_eq(amp_scale_list(&s, &s, 1, 1e30f, &found), AMP_OK);
    ck_assert(isinf(x[0]) && found == 1.0f);
    found = 0.0f;
    ck_assert_int_eq(amp_scale_list(&s, &s, 1, 0.0f, &found), AMP_OK); /* infinity * 0 is NaN */
    ck_assert(isnan(x[0]) && found == 1.0f);
}

/* ---- norms and the search ---- */

TEST(norms_of_large_values_do_not_overflow) {
    float x[3] = { 3e30f, 4e30f, 0.0f }, y[1] = { 1.2e31f }, norm = 0.0f, norms[3];
    const amp_span src[] = { SPAN(x, AMP_FLOAT32), EMPTY(AMP_FLOAT16), SPAN(y, AMP_FLOAT32) };
    ck_assert_int_eq(amp_l2norm_list(src, 3, &norm, norms), AMP_OK);
    ck_assert_float_eq_tol(norm, 1.3e31f, 1e24f); /* one unit of float at 1.3e31 is 1.2e24 */
    ck_assert_float_eq_tol(norms[0], 5e30f, 6e23f);
    ck_assert(norms[1] == 0.0f && norms[2] == 1.2e31f);
    ck_assert_int_eq(amp_l2norm_list(src, 3, NULL, NULL), AMP_OK);
    ck_assert_int_eq(amp_l2norm_list(NULL, 0, &norm, NULL), AMP_OK);
    ck_assert(norm == 0.0f);
}

/* docs/reference/numerics.md: each square passes at most 4 roundings to float, then fewer than 2^20 to double, so the
 * sum is within 2^-22 + 2^-33; the root halves that and is rounded to float. */
TEST(norms_of_16_bits_keep_their_bound) {
    enum { N = 70000 };
    static const double kinds[][2] = { { 1.0, 1.0 }, { 3e38, 1.0 }, { 1e-30, 1.0 }, { 1e-30, 1e-30 }, { 3e38, 1e-30 },
                                       { 3e38, 3e38 }, { 0x1p60, 0x1p-60 }, { 6e4, 6e-8 } };
    static uint16_t data[N];
    random_restart();
    for (size_t kind = 0; kind < AMP_COUNT(kinds); kind++)
        for (int t = 1; t <= 2; t++) { /* fp16 has infinity for 3e38 */
            const amp_span src = SPAN(data, all_types[t]);
            long double exact = 0.0L;
            float norm;
            for (size_t i = 0; i < N; i++) {
                const double x = random_uniform() * kinds[kind][random_below(997) == 0];
                set_bits(all_types[t], data, i, round_to_bits(all_types[t], x));
                const double stored = value_of_bits(all_types[t], get_bits(all_types[t], data, i));
                exact += (long double)stored * (long double)stored;
            }
            exact = sqrtl(exact);
            ck_assert_int_eq(amp_l2norm_list(&src, 1, &norm, NULL), AMP_OK);
            const double bound = (0x1p-23 + 0x1p-34 + 0x1p-24) * (double)exact;
            if (exact > (long double)FLT_MAX) ck_assert(isinf(norm));
            else ck_assert_msg(fabs((double)norm - (double)exact) <= bound, "type %d, kind %zu", t, kind);
        }
}

/* Several blocks of the definition in kernels.h, and several tensors in order. */
TEST(norms_are_summed_in_the_defined_order) {
    enum { N = 2 * 65536 + 77 };
    static uint64_t data[TYPES][N];
    amp_span src[TYPES];
    double total = 0.0;
    float norm, norms[TYPES];
    random_restart();
    for (int t = 0; t < TYPES; t++) {
        fill(PATTERN_NORMAL, all_types[t], data[t], N);
        src[t] = (amp_span){ data[t], N, all_types[t], 0 };
        total += oracle_sum_squares(all_types[t], data[t], N);
    }
    ck_assert_int_eq(amp_l2norm_list(src, TYPES, &norm, norms), AMP_OK);
    ck_assert(norm == (float)sqrt(total));
    for (int t = 0; t < TYPES; t++)
        ck_assert(norms[t] == (float)sqrt(oracle_sum_squares(all_types[t], data[t], N)));
}

TEST(first_nonfinite_entry) {
    float x[2] = { 3e38f, 0.0f };
    uint16_t half[2] = { 0x7bff, 0x7c00 };
    double d[1] = { (double)NAN };
    const amp_span src[] = { SPAN(x, AMP_FLOAT32), EMPTY(AMP_BFLOAT16), SPAN(half, AMP_FLOAT16), SPAN(d, AMP_FLOAT64) };
    int64_t index = 9;
    ck_assert_int_eq(amp_first_nonfinite(src, 4, &index), AMP_OK);
    ck_assert_int_eq(index, 2);
    ck_assert_int_eq(amp_first_nonfinite(src, 2, &index), AMP_OK);
    ck_assert_int_eq(index, -1);
    ck_assert_int_eq(amp_first_nonfinite(src + 3, 1, &index), AMP_OK);
    ck_assert_int_eq(index, 0);
    ck_assert_int_eq(amp_first_nonfinite(NULL, 0, &index), AMP_OK);
    ck_assert_int_eq(index, -1);
}

/* ---- copies, zeros, clipping ---- */

TEST(copies_keep_bits) {
    const uint32_t bits[3] = { 0x7f800001u, 0xffc12345u, 0x80000001u }; /* a signalling NaN, a payload, a subnormal */
    const uint16_t low[2] = { 0x7d01, 0xff81 };
    uint32_t copy[3] = { 0 };
    uint16_t low_copy[2] = { 0 };
    const amp_span src[] = { { (void *)(uintptr_t)bits, 3, AMP_FLOAT32, 0 }, EMPTY(AMP_FLOAT64),
                             { (void *)(uintptr_t)low, 2, AMP_BFLOAT16, 0 } };
    const amp_span dst[] = { { copy, 3, AMP_FLOAT32, 0 }, EMPTY(AMP_FLOAT64), { low_copy, 2, AMP_BFLOAT16, 0 } };
    ck_assert_int_eq(amp_copy_list(dst, src, 3), AMP_OK);
    ck_assert(!memcmp(copy, bits, sizeof bits) && !memcmp(low_copy, low, sizeof low));
    ck_assert_int_eq(amp_copy_list(dst, dst, 3), AMP_OK);
    ck_assert_int_eq(amp_zero_list(dst, 3), AMP_OK);
    ck_assert_mem_eq(copy, ((uint32_t[]){ 0, 0, 0 }), sizeof copy);
    ck_assert_mem_eq(low_copy, ((uint16_t[]){ 0, 0 }), sizeof low_copy);
    ck_assert_int_eq(amp_zero_list(NULL, 0), AMP_OK);
}

TEST(values_are_clipped) {
    float x[5] = { -3.0f, 0.25f, INFINITY, NAN, -0.0f };
    uint16_t half[5];
    double d[2] = { 1e300, -0.1 };
    const amp_span src[] = { SPAN(x, AMP_FLOAT32), SPAN(d, AMP_FLOAT64) };
    const amp_span dst[] = { SPAN(half, AMP_FLOAT16), SPAN(d, AMP_FLOAT64) };
    ck_assert_int_eq(amp_clip_value_list(dst, src, 2, 0.5f), AMP_OK);
    ck_assert_mem_eq(half, ((uint16_t[]){ 0xb800, 0x3400, 0x3800, 0x7e00, 0x8000 }), sizeof half);
    ck_assert(d[0] == 0.5 && d[1] == -0.1);
    ck_assert_int_eq(amp_clip_value_list(src, src, 1, INFINITY), AMP_OK);
    ck_assert(x[0] == -3.0f && isinf(x[2]) && isnan(x[3]));
}

/* 3, 4 and 12 have the norm 13. */
TEST(norms_are_clipped) {
    float x[2] = { 3.0f, 4.0f }, y[2], norm = 0.0f;
    uint16_t half[1] = { 0x4a00 }, low[1] = { 0 };
    const amp_span src[] = { SPAN(x, AMP_FLOAT32), SPAN(half, AMP_FLOAT16) };
    const amp_span dst[] = { SPAN(y, AMP_FLOAT32), SPAN(low, AMP_BFLOAT16) };
    ck_assert_int_eq(amp_clip_norm_list(dst, src, 2, 13.0f, &norm), AMP_OK); /* torch: 13 / 13.000001 is below 1 */
    ck_assert(norm == 13.0f && y[0] == 3.0f * (float)(13.0 / 13.000001));
    ck_assert_int_eq(amp_clip_norm_list(dst, src, 2, 14.0f, &norm), AMP_OK);
    ck_assert(norm == 13.0f && y[0] == 3.0f && y[1] == 4.0f && low[0] == 0x4140);
    ck_assert_int_eq(amp_clip_norm_list(src, src, 2, 6.5f, NULL), AMP_OK);
    const float factor = (float)(6.5 / (13.0 + 1e-6));
    ck_assert(x[0] == 3.0f * factor && x[1] == 4.0f * factor && half[0] == amp_float_to_half(12.0f * factor));
    x[1] = INFINITY;
    ck_assert_int_eq(amp_clip_norm_list(dst, src, 1, 1.0f, &norm), AMP_OK);
    ck_assert(isinf(norm) && y[0] == x[0] && isinf(y[1]));
    x[0] = NAN;
    ck_assert_int_eq(amp_clip_norm_list(src, src, 1, 1.0f, &norm), AMP_OK);
    ck_assert(isnan(norm) && isinf(x[1]));
}

/* ---- errors: the second of two entries is bad, and the first is not written either ---- */

static float good_src[2] = { 1.0f, 2.0f }, good_dst[2];

static const struct {
    amp_span dst, src;
    const char *says;
} bad[] = {
    { SPAN(good_dst, AMP_FLOAT32), { good_src, 1, AMP_FLOAT32, 0 }, "dst[1] has 2 elements" },
    { SPAN(good_dst, AMP_DTYPE_OTHER), SPAN(good_src, AMP_FLOAT32), "dst[1].dtype is not floating" },
    { SPAN(good_dst, AMP_FLOAT32), SPAN(good_src, AMP_DTYPE_DEFAULT), "[1].dtype is default" },
    { SPAN(good_dst, AMP_FLOAT32), SPAN(good_src, -1), "[1].dtype is unknown" },
    { SPAN(good_dst, AMP_FLOAT32), SPAN(good_src, 99), "[1].dtype is unknown" },
    { { NULL, 2, AMP_FLOAT32, 0 }, SPAN(good_src, AMP_FLOAT32), "data NULL" },
    { SPAN(good_dst, AMP_FLOAT32), { NULL, 2, AMP_FLOAT32, 0 }, "data NULL" },
    { SPAN(good_dst, AMP_FLOAT32), { good_src, UINT64_MAX, AMP_FLOAT32, 0 }, "more than there can be" },
    { SPAN(good_dst, AMP_FLOAT32), { good_src, 2, AMP_FLOAT32, 1 }, "reserved" },
};

static void expect_refusal(amp_status status, const char *says) {
    ck_assert_int_eq(status, AMP_ERR_INVALID_ARGUMENT);
    ck_assert_msg(strstr(amp_last_error(), says) != NULL, "\"%s\" does not say \"%s\"", amp_last_error(), says);
}

TEST_TIMES(bad_entries_are_refused, AMP_COUNT(bad)) {
    float written[2] = { 5.0f, 5.0f }, found = 7.0f;
    const amp_span dst[] = { SPAN(written, AMP_FLOAT32), bad[_i].dst };
    const amp_span src[] = { SPAN(good_src, AMP_FLOAT32), bad[_i].src }, ok[] = { dst[0], SPAN(good_dst, AMP_FLOAT32) };
    expect_refusal(amp_cast_list(dst, src, 2), bad[_i].says);
    expect_refusal(amp_scale_list(dst, src, 2, INFINITY, &found), bad[_i].says);
    expect_refusal(amp_axpby_list(dst, 1.0f, src, INFINITY, ok, 2, &found), bad[_i].says);
    expect_refusal(amp_axpby_list(dst, 1.0f, ok, INFINITY, src, 2, &found), bad[_i].says);
    expect_refusal(amp_copy_list(dst, src, 2), bad[_i].says);
    expect_refusal(amp_clip_value_list(dst, src, 2, 1.0f), bad[_i].says);
    expect_refusal(amp_clip_norm_list(dst, src, 2, 1.0f, &found), bad[_i].says);
    ck_assert(written[0] == 5.0f && written[1] == 5.0f && good_dst[0] == 0.0f && found == 7.0f);
}

TEST(bad_sources_are_refused) {
    const amp_span src[] = { SPAN(good_src, AMP_FLOAT32), { good_src, 2, AMP_DTYPE_OTHER, 0 } };
    float norm = 7.0f, norms[2] = { 7.0f, 7.0f };
    int64_t index = 7;
    expect_refusal(amp_l2norm_list(src, 2, &norm, norms), "src[1].dtype");
    expect_refusal(amp_first_nonfinite(src, 2, &index), "src[1].dtype");
    expect_refusal(amp_l2norm_list(NULL, 1, &norm, norms), "NULL");
    expect_refusal(amp_first_nonfinite(NULL, 1, &index), "NULL");
    expect_refusal(amp_first_nonfinite(src, 1, NULL), "index is NULL");
    expect_refusal(amp_cast_list(NULL, src, 1), "dst is NULL");
    expect_refusal(amp_cast_list(src, NULL, 1), "src is NULL");
    expect_refusal(amp_scale_list(src, NULL, 1, 1.0f, &norm), "src is NULL");
    expect_refusal(amp_axpby_list(src, 1.0f, NULL, 1.0f, src, 1, &norm), "x is NULL");
    expect_refusal(amp_axpby_list(src, 1.0f, src, 1.0f, NULL, 1, &norm), "y is NULL");
    expect_refusal(amp_zero_list(src, 2), "dst[1].dtype");
    expect_refusal(amp_zero_list(NULL, 1), "dst is NULL");
    expect_refusal(amp_copy_list(src, NULL, 1), "src is NULL");
    uint16_t half[2] = { 0 };
    expect_refusal(amp_copy_list(src, &(amp_span)SPAN(half, AMP_FLOAT16), 1), "use amp_cast_list");
    static const float limits[] = { 0.0f, -1.0f, -INFINITY, NAN };
    for (size_t i = 0; i < AMP_COUNT(limits); i++) {
        expect_refusal(amp_clip_value_list(src, src, 1, limits[i]), "max_value");
        expect_refusal(amp_clip_norm_list(src, src, 1, limits[i], &norm), "max_norm");
    }
    ck_assert(good_src[0] == 1.0f && good_src[1] == 2.0f);
    ck_assert(norm == 7.0f && norms[0] == 7.0f && norms[1] == 7.0f && index == 7);
}
