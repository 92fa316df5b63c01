/* SPDX-License-Identifier: Apache-2.0 */
/* amp_pack and amp_unpack: what docs/reference/numerics.md promises of values, and what is refused. Bytes: packs.c. */
#include "amp_pack.h"
#include "support.h"

#include "common/common.h"

#include <math.h>
#include <string.h>

enum { GROUP = AMP_PACK_GROUP, BYTES = 2 * (8 * 32 + 4) };

static uint32_t packed[BYTES / 4];

/* Packs n floats, one or two groups; what comes back. */
static void there_and_back(const float *x, float *back, size_t n, int32_t bits, uint64_t seed) {
    amp_pack_args pack = AMP_PACK_ARGS_INIT;
    amp_unpack_args unpack = AMP_UNPACK_ARGS_INIT;
    ck_assert_uint_le(amp_pack_bytes(n, bits), sizeof packed);
    pack.bits = unpack.bits = bits, pack.seed = seed, pack.packed = packed, unpack.packed = packed;
    pack.src = (amp_span){ (void *)(uintptr_t)x, n, AMP_FLOAT32, 0 };
    unpack.dst = (amp_span){ back, n, AMP_FLOAT32, 0 };
    ck_assert_int_eq(amp_pack(&pack), AMP_OK);
    ck_assert_int_eq(amp_unpack(&unpack), AMP_OK);
}

TEST(bytes_are_groups_and_headers) {
    ck_assert_uint_eq(amp_pack_bytes(0, 4), 0);
    ck_assert_uint_eq(amp_pack_bytes(1, 8), 260);
    ck_assert_uint_eq(amp_pack_bytes(256, 4), 132);
    ck_assert_uint_eq(amp_pack_bytes(257, 2), 136);
    ck_assert_uint_eq(amp_pack_bytes(1 << 20, 1), (1 << 12) * 36);
    ck_assert_uint_eq(amp_pack_bytes(256, 3), 0);
    ck_assert_uint_eq(amp_pack_bytes(UINT64_MAX, 8), 0);
}

static double step_of_the_first(size_t groups, int32_t bits) {
    return value_of_bits(AMP_BFLOAT16, packed[groups * (size_t)bits * 8] >> 16 & 0x7fff);
}

/* But for float's errors, which docs/reference/numerics.md bounds. */
TEST(a_value_is_at_most_a_step_away) {
    static const float scales[] = { 1.0f, 1e-6f, 0x1p100f, 3e38f };
    float x[GROUP], back[GROUP];
    random_restart();
    for (int32_t bits = 2; bits <= 8; bits *= 2)
        for (size_t s = 0; s < AMP_COUNT(scales); s++)
            for (int zeros = 0; zeros <= 1; zeros++) {
                for (size_t i = 0; i < GROUP; i++) {
                    x[i] = (float)random_uniform() * scales[s];
                    if (zeros && x[i] < 0.0f) x[i] = 0.0f;
                }
                there_and_back(x, back, GROUP, bits, random_bits());
                const double step = step_of_the_first(1, bits);
                const double range = step * (double)((1 << bits) - 1), float_errors = range * 0x1p-21;
                const double most = zeros ? range / (double)((1 << bits) - 1) * (double)((1 << bits) - 2) : range;
                ck_assert_msg(most <= (zeros ? 1.0 : 2.0) * (1.0 + 0x1p-6) * (double)scales[s], "step %g", step);
                for (size_t i = 0; i < GROUP; i++) {
                    const double error = fabs((double)back[i] - (double)x[i]);
                    ck_assert_msg(error <= step + float_errors, "%d bits: %g came back as %g, step %g", (int)bits,
                                  (double)x[i], (double)back[i], step);
                    if (zeros) ck_assert((back[i] > 0.0f) == (x[i] > 0.0f));
                }
            }
}

/*
 * The mean over N seeds of each of 256 elements. One rounding is off by less than a step and has a variance of a
 * quarter step^2 at most, so the mean of N has a deviation of step / 2 / sqrt(N) at most; 6 of these are exceeded with
 * a probability of 2e-9 for each element. The bias that numerics.md states comes on top. The seeds are fixed: whoever
 * changes the random numbers draws again.
 */
TEST(the_mean_is_the_value) {
    enum { N = 4096 };
    float x[GROUP], back[GROUP];
    random_restart();
    for (int32_t bits = 2; bits <= 8; bits *= 2) {
        double sums[GROUP] = { 0 }, total = 0.0;
        for (size_t i = 0; i < GROUP; i++) x[i] = (float)random_uniform();
        for (uint64_t seed = 0; seed < N; seed++) {
            there_and_back(x, back, GROUP, bits, seed);
            for (size_t i = 0; i < GROUP; i++) sums[i] += (double)back[i] - (double)x[i];
        }
        const double step = step_of_the_first(1, bits);
        const double bias = step * (ldexp(1.0, bits - 17) + (double)(1 << bits) * 0x1p-21);
        for (size_t i = 0; i < GROUP; i++) {
            total += sums[i];
            ck_assert_msg(fabs(sums[i] / N) <= 6.0 * step / 2.0 / sqrt(N) + bias, "%d bits: %g is off by %g steps",
                          (int)bits, (double)x[i], sums[i] / N / step);
        }
        /* of all together: any two elements' numbers are independent of each other */
        ck_assert_msg(fabs(total / N / GROUP) <= 6.0 * step / 2.0 / sqrt((double)N * GROUP) + bias,
                      "%d bits: all are off by %g steps", (int)bits, total / N / GROUP / step);
    }
}

/* What lies on the codes' values is not rounded: pixels in 8 bits. */
TEST(what_needs_no_rounding_is_exact) {
    float x[GROUP], back[GROUP];
    for (size_t i = 0; i < GROUP; i++) x[i] = (float)i - 256.0f; /* no zero, and least is a bfloat16 */
    for (uint64_t seed = 0; seed < 50; seed++) {
        there_and_back(x, back, GROUP, 8, seed);
        ck_assert(!memcmp(x, back, sizeof x));
    }
}

TEST(masks_are_exact_in_1_bit) {
    float x[GROUP + 1], back[GROUP + 1], inexact = 0.0f, found = 0.0f;
    amp_pack_args pack = AMP_PACK_ARGS_INIT;
    for (size_t i = 0; i <= GROUP; i++) x[i] = i * i % 7 < 3 ? 0.0f : 1.0f / 0.9f;
    there_and_back(x, back, GROUP + 1, 1, 0);
    ck_assert(!memcmp(x, back, sizeof x));
    pack.bits = 1, pack.packed = packed, pack.src = (amp_span){ x, GROUP + 1, AMP_FLOAT32, 0 };
    pack.inexact = &inexact, pack.found_inf = &found;
    ck_assert_int_eq(amp_pack(&pack), AMP_OK);
    ck_assert(inexact == 0.0f && found == 0.0f);
    x[3] = 0.5f;
    ck_assert_int_eq(amp_pack(&pack), AMP_OK);
    ck_assert(inexact == 1.0f && found == 0.0f);
}

TEST(a_group_that_is_not_finite_is_said_and_is_NaN) {
    float x[2 * GROUP], back[2 * GROUP], inexact = 0.0f, found = 0.0f;
    amp_pack_args pack = AMP_PACK_ARGS_INIT;
    for (size_t i = 0; i < 2 * GROUP; i++) x[i] = (float)i;
    x[GROUP + 9] = INFINITY;
    pack.bits = 4, pack.packed = packed, pack.src = (amp_span){ x, GROUP, AMP_FLOAT32, 0 };
    pack.inexact = &inexact, pack.found_inf = &found;
    ck_assert_int_eq(amp_pack(&pack), AMP_OK);
    ck_assert(found == 0.0f);
    pack.src.size = 2 * GROUP;
    ck_assert_int_eq(amp_pack(&pack), AMP_OK);
    ck_assert(found == 1.0f && inexact == 0.0f);
    there_and_back(x, back, 2 * GROUP, 4, 0);
    for (size_t i = 0; i < 2 * GROUP; i++) ck_assert(isnan(back[i]) == (i >= GROUP));
}

/* Parts begin between groups. */
TEST(any_number_of_threads_makes_the_same_bytes) {
    enum { LONG = 5 * 65536 + 77 };
    float *x = amp__alloc(LONG, sizeof *x), *back[2];
    const size_t bytes = (size_t)amp_pack_bytes(LONG, 4);
    uint32_t *made[2];
    random_restart();
    fill(PATTERN_NORMAL, AMP_FLOAT32, x, LONG);
    for (int t = 0; t < 2; t++) {
        amp_pack_args pack = AMP_PACK_ARGS_INIT;
        amp_unpack_args unpack = AMP_UNPACK_ARGS_INIT;
        made[t] = amp__alloc(bytes, 1), back[t] = amp__alloc(LONG, sizeof(float));
        pack.bits = unpack.bits = 4, pack.packed = made[t], unpack.packed = made[t];
        pack.src = (amp_span){ x, LONG, AMP_FLOAT32, 0 }, unpack.dst = (amp_span){ back[t], LONG, AMP_FLOAT32, 0 };
        ck_assert_int_eq(amp_set_num_threads(t ? 3 : 1), AMP_OK);
        ck_assert_int_eq(amp_pack(&pack), AMP_OK);
        ck_assert_int_eq(amp_unpack(&unpack), AMP_OK);
    }
    ck_assert_int_eq(amp_set_num_threads(1), AMP_OK);
    ck_assert(!memcmp(made[0], made[1], bytes) && !memcmp(back[0], back[1], LONG * sizeof *x));
    for (int t = 0; t < 2; t++) amp__free(made[t]), amp__free(back[t]);
    amp__free(x);
}

TEST(what_cannot_be_packed_is_refused) {
    float x[2] = { 1.0f, 2.0f };
    const amp_pack_args good = { sizeof good, 4, 0, { x, 2, AMP_FLOAT32, 0 }, packed, NULL, NULL, NULL };
    amp_pack_args bad[6];
    for (size_t i = 0; i < AMP_COUNT(bad); i++) bad[i] = good;
    bad[0].bits = 3, bad[1].packed = NULL, bad[2].packed = (char *)packed + 2, bad[3].src.dtype = AMP_FLOAT64;
    bad[4].src.data = NULL, bad[5].struct_size = 8;
    memset(packed, 0x55, sizeof packed);
    for (size_t i = 0; i < AMP_COUNT(bad); i++)
        ck_assert_int_eq(amp_pack(&bad[i]), i == 5 ? AMP_ERR_ABI_MISMATCH : AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_pack(NULL), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_uint_eq(packed[0], 0x55555555);
    amp_unpack_args unpack = { sizeof unpack, 5, { x, 2, AMP_FLOAT32, 0 }, packed };
    ck_assert_int_eq(amp_unpack(&unpack), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_unpack(NULL), AMP_ERR_INVALID_ARGUMENT);
    unpack.bits = 4, unpack.packed = NULL, unpack.dst.size = 0;
    ck_assert_int_eq(amp_unpack(&unpack), AMP_OK);
    ck_assert(x[0] == 1.0f && x[1] == 2.0f);
}
