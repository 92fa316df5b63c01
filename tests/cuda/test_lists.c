/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole lists through emulated launches: many tensors of any type and alignment at once change what ref/ changes and
 * nothing else; sums keep their bound; numbers of a step are those of amp_optim_list.
 */
#include "emulated.h"
#include "asserts.h"

#include "../kernels/support.h"

#include <math.h>
#include <stdlib.h>

/* ---- many tensors in one arena ---- */

enum { TENSORS = 40, ARENA = 3 << 20 };
static unsigned char arenas[3][ARENA], expected[ARENA];

static const float factors[2] = { 0.37f, -1.5f };

static uint32_t axpby_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *unused, double sums[2]) {
    (void)unused, (void)sums;
    return cuda_axpby_group(t, at, factors[0], factors[1]);
}

/* Lays tensors side by side into an arena, any bytes between them; every sixth starts where a group starts. */
static void lay(amp_span *list, unsigned char *arena, const uint64_t *sizes, int k) {
    size_t at = 0;
    for (int i = 0; i < TENSORS; i++) {
        const amp_dtype type = all_types[random_below(TYPES)];
        at = (at + 15) / 16 * 16 + (i % 6 ? amp__dtype_size(type) * random_below(9) : 0);
        if (k && random_below(3) == 0) at += 8;
        list[i] = (amp_span){ arena + at, sizes[i], type, 0 };
        ck_assert_uint_lt(at + sizes[i] * 8, ARENA);
        fill(random_below(2) ? PATTERN_BITS : PATTERN_NORMAL, type, arena + at, (size_t)sizes[i]);
        at += (size_t)sizes[i] * amp__dtype_size(type);
    }
}

TEST(test_many_at_once) {
    static const uint64_t choices[] = { 0, 1, 5, 8, 13, 100, 2047, 2048, 2051, 4100, 9000 };
    OWN_PLAN plan = { 0 };
    random_restart();
    for (int round = 0; round < 12; round++) {
        amp_span lists[3][TENSORS], wanted[TENSORS];
        uint64_t sizes[TENSORS];
        float found = 0.0f;
        for (int i = 0; i < TENSORS; i++) sizes[i] = choices[random_below(sizeof choices / sizeof *choices)];
        for (int k = 0; k < 3; k++) lay(lists[k], arenas[k], sizes, k);
        memcpy(expected, arenas[0], ARENA);
        for (int i = 0; i < TENSORS; i++) {
            wanted[i] = lists[0][i];
            wanted[i].data = expected + ((unsigned char *)lists[0][i].data - arenas[0]);
        }
        ck_ok(amp_axpby_list(wanted, factors[0], lists[1], factors[1], lists[2], TENSORS, &found));
        const amp_span *const given[3] = { lists[0], lists[1], lists[2] };
        const uint32_t any = emulate(&plan, given, 3, TENSORS, axpby_fn, NULL, NULL);
        ck_assert_int_eq(any != 0, found != 0.0f);
        for (int i = 0; i < TENSORS; i++)
            for (size_t e = 0; e < sizes[i]; e++) {
                const uint64_t got = get_bits(lists[0][i].dtype, lists[0][i].data, e);
                const uint64_t want = get_bits(wanted[i].dtype, wanted[i].data, e);
                CHECK_THAT(bits_agree(wanted[i].dtype, got, want), "round %d tensor %d element %zu", round, i, e);
                set_bits(lists[0][i].dtype, lists[0][i].data, e, want);
            }
        ck_assert_mem_eq(expected, arenas[0], ARENA); /* nothing between them was touched */
    }
}

/* ---- sums ---- */

static uint32_t check_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *unused, double sums[2]) {
    (void)unused;
    return cuda_check_group(t, at, 0.3f, 3.7f, &sums[0]);
}

/* docs/reference/numerics.md: with m additions in a row to the deepest term, the sum of squares is within m * 2^-53 of
 * the exact one, either way of adding. Here a thread adds at most 64 + 8 of a chunk, then 8 levels of a block; then the
 * chunks of the tensor and the tensors likewise. ref/ adds 4096 in a lane, 4 levels, then blocks and tensors one by
 * one. */
TEST(test_sums) {
    enum { N = 5 };
    static const uint64_t sizes[N] = { 1, 0, 70000, 300001, 17 };
    OWN_PLAN plan = { 0 };
    amp_span list[N];
    float norm = 0.0f, norms[N], found = 0.0f;
    double *sums, tensor_sums[N], exact_total = 0.0;
    random_restart();
    for (int i = 0; i < N; i++) {
        const amp_dtype type = all_types[i % TYPES];
        list[i] = (amp_span){ calloc(sizes[i] + 1, 8), sizes[i], type, 0 };
        ck_assert_ptr_nonnull(list[i].data);
        fill(PATTERN_NORMAL, type, list[i].data, sizes[i]);
    }
    const amp_span *const lists[1] = { list };
    ck_assert_uint_eq(emulate(&plan, lists, 1, N, check_fn, NULL, &sums), 0);
    const struct cuda_table table = cuda_plan_table(&plan, plan.table);
    ck_ok(amp_check_list(list, N, 0.3f, 3.7f, &norm, norms, &found));
    for (int i = 0; i < N; i++) {
        uint32_t unused = 0;
        const uint32_t begin = table.first_chunks[i], end = table.first_chunks[i + 1];
        const double of_ref = amp__check_span(&list[i], 0.3f, 3.7f, &unused);
        tensor_sums[i] = emulated_strided(sums, 2 * (size_t)begin, 2 * (size_t)end, 2);
        const double bound = (72 + 8 + (end - begin + 255) / 256 + 8 + 4096 + 4 + (double)sizes[i] / 65536 + 1) *
            0x1p-53;
        ck_assert_msg(fabs(tensor_sums[i] - of_ref) <= bound * of_ref, "tensor %d: %a, ref %a", i, tensor_sums[i],
                      of_ref);
        ck_assert_msg(fabsf((float)sqrt(tensor_sums[i]) - norms[i]) <= 0x1p-23f * norms[i], "tensor %d: norm", i);
        exact_total += of_ref;
    }
    const double total = emulated_strided(tensor_sums, 0, N, 1);
    ck_assert(fabs(total - exact_total) <= 5000 * 0x1p-53 * exact_total);
    ck_assert(fabsf((float)sqrt(total) - norm) <= 0x1p-23f * norm);
    free(sums);
    for (int i = 0; i < N; i++) free(list[i].data);
}

/* ---- what a GPU does with bits ---- */

/* Each element's place in a group, and what lies beside it. */
TEST(test_nonfinite_words) {
    static const uint16_t beside[] = { 0x0000, 0x7bff, 0x7f7f, 0xffff, 0x8000, 0x3c00 };
    static const amp_dtype types[] = { AMP_FLOAT16, AMP_BFLOAT16 };
    for (uint32_t i = 0; i < 2 * 0x10000; i++) {
        const amp_dtype type = types[i >> 16];
        const uint16_t bits = (uint16_t)i, other = beside[i % 6];
        const int place = (int)(i / 6 % CUDA_GROUP);
        uint16_t low[2 * CUDA_GROUP] = { 0 };
        uint32_t w[CUDA_GROUP];
        low[place] = bits, low[place ^ 1] = other;
        memcpy(w, low, sizeof w);
        const bool wanted = bits_are_nonfinite(type, bits) || bits_are_nonfinite(type, other);
        CHECK_THAT((cuda_nonfinite_words(w, (uint32_t)type) != 0) == wanted, "%#x beside %#x", bits, other);
    }
}

/* Squares by bits are those of a double; those of subnormals as well, beside numbers that they cannot add to. */
TEST(test_squares) {
    random_restart();
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        for (int round = 0; round < 2000; round++) {
            float x[CUDA_GROUP];
            double wanted = 0.0;
            fill((enum pattern)pattern, AMP_FLOAT32, x, CUDA_GROUP);
            for (int i = 0; i < CUDA_GROUP; i++) {
                if (round % 4 == 1) x[i] *= 0x1p-126f;
                x[i] = fabsf(x[i]);
                wanted = wanted + (double)x[i] * (double)x[i];
            }
            const double got = cuda_squares(x);
            CHECK_THAT(got == wanted || (isnan(got) && isnan(wanted)), "%s: %a, not %a", pattern_names[pattern], got,
                       wanted);
        }
    }
}

TEST(test_factors) {
    const float x = 3.0f, large = 8.0f, infinite = INFINITY, nan = NAN;
    const struct cuda_factor value = { NULL, 0.25f, CUDA_AS_IT_IS }, as_it_is = { &x, 0.0f, CUDA_AS_IT_IS };
    const struct cuda_factor inverse = { &x, 0.0f, CUDA_INVERSE }, clip = { &large, 2.0f, CUDA_CLIP };
    const struct cuda_factor fits = { &x, 4.0f, CUDA_CLIP }, not_finite = { &infinite, 2.0f, CUDA_CLIP };
    const struct cuda_factor unknown = { &nan, 2.0f, CUDA_CLIP };
    ck_assert(cuda_factor_of(&value) == 0.25f);
    ck_assert(cuda_factor_of(&as_it_is) == 3.0f);
    ck_assert(cuda_factor_of(&inverse) == 1.0f / 3.0f);
    ck_assert(cuda_factor_of(&clip) == (float)(2.0 / (8.0 + 1e-6)));
    ck_assert(cuda_factor_of(&fits) == 1.0f);
    ck_assert(cuda_factor_of(&not_finite) == 1.0f);
    ck_assert(cuda_factor_of(&unknown) == 1.0f);
}
