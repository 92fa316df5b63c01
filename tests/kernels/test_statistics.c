/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of lists, on any number of threads; and what they say of casts, held against the casts. */
#include "support.h"

#include "common/common.h"

#include <math.h>
#include <string.h>

/* ---- lists ---- */

enum { ENTRIES = 6, LONG = 5 * 65536 + 77 };
static const size_t sizes[ENTRIES] = { 3, 0, LONG, 65536, 1000, 2 * 65536 };

TEST(a_list_is_its_tensors_on_any_number_of_threads) {
    amp_span list[ENTRIES];
    static amp_statistics want[ENTRIES], got[ENTRIES];
    random_restart();
    for (size_t i = 0; i < ENTRIES; i++) {
        const amp_dtype type = all_types[i % TYPES];
        list[i] = (amp_span){ sizes[i] ? amp__alloc(sizes[i], sizeof(double)) : NULL, sizes[i], type, 0 };
        fill(i == 2 ? PATTERN_NORMAL : PATTERN_TIES, type, list[i].data, sizes[i]);
        oracle_statistics(type, list[i].data, sizes[i], &want[i]);
    }
    for (int32_t threads = 1; threads <= 4; threads++) {
        ck_assert_int_eq(amp_set_num_threads(threads), AMP_OK);
        for (size_t i = 0; i < ENTRIES; i++) got[i] = (amp_statistics)AMP_STATISTICS_INIT;
        ck_assert_int_eq(amp_statistics_list(list, ENTRIES, got), AMP_OK);
        for (size_t i = 0; i < ENTRIES; i++)
            ck_assert_msg(statistics_agree(&got[i], &want[i]), "%d threads: entry %zu differs", (int)threads, i);
    }
    for (size_t i = 0; i < ENTRIES; i++) amp__free(list[i].data);
    ck_assert_int_eq(amp_set_num_threads(1), AMP_OK);
}

/* Added to once more, or merged: the same. */
TEST(statistics_add_up) {
    float data[2][100];
    amp_statistics one = AMP_STATISTICS_INIT, other = AMP_STATISTICS_INIT;
    const amp_span first = { data[0], 100, AMP_FLOAT32, 0 }, second = { data[1], 100, AMP_FLOAT32, 0 };
    random_restart();
    fill(PATTERN_NORMAL, AMP_FLOAT32, data[0], 100), fill(PATTERN_SUBNORMALS, AMP_FLOAT32, data[1], 100);
    data[1][3] = 0.0f, data[1][4] = 1e30f;
    ck_assert_int_eq(amp_statistics_list(&first, 1, &one), AMP_OK);
    ck_assert_int_eq(amp_statistics_list(&second, 1, &other), AMP_OK);
    amp_statistics merged = one, empty = AMP_STATISTICS_INIT;
    ck_assert_int_eq(amp_statistics_merge(&merged, &other), AMP_OK);
    ck_assert_int_eq(amp_statistics_merge(&merged, &empty), AMP_OK);
    ck_assert_int_eq(amp_statistics_merge(&empty, &merged), AMP_OK);
    ck_assert_int_eq(amp_statistics_list(&second, 1, &one), AMP_OK);
    ck_assert(!memcmp(&one, &merged, sizeof one) && !memcmp(&one, &empty, sizeof one));
    ck_assert(one.elements == 200 && one.largest == (double)1e30f && one.least == other.least && one.zeros > 0);
}

/* ---- samples ---- */

enum { SAMPLED = 4 * 65536 + 5000 };

static amp_statistics sample(const amp_span *span, uint32_t every, uint64_t seed) {
    amp_statistics s = AMP_STATISTICS_INIT;
    ck_assert_int_eq(amp_statistics_sample(span, 1, every, seed, &s), AMP_OK);
    return s;
}

static uint64_t counted(const amp_statistics *s) {
    uint64_t sum = s->zeros + s->nans + s->plus_infinities + s->minus_infinities + s->below + s->above;
    for (size_t i = 0; i < AMP_BINADES; i++) sum += s->binades[i].elements;
    return sum;
}

/* Hoeffding's bound of amp_kernels.h at one in a million, for each binade and the zeros. */
static void check_sample(const amp_statistics *got, const amp_statistics *want, uint64_t lines) {
    const double off = sqrt(log(2e6) / (2.0 * (double)lines)) * (double)want->elements;
    ck_assert(got->elements == want->elements && counted(got) == want->elements && got->largest == want->largest);
    ck_assert(!got->nans && !got->plus_infinities && !got->minus_infinities && got->least >= want->least);
    ck_assert(fabs((double)got->zeros - (double)want->zeros) <= off);
    for (size_t i = 0; i < AMP_BINADES; i++)
        ck_assert(fabs((double)got->binades[i].elements - (double)want->binades[i].elements) <= off);
}

/* Zeros lie in stripes of a line, with the period 16: every 16 would find all or none without the generator. */
TEST_TIMES(a_sample_keeps_its_bound, TYPES) {
    static const uint32_t all_every[] = { 2, 16, 64, 1000, 1024 };
    const amp_dtype type = all_types[_i];
    const size_t width = amp__dtype_size(type), of_line = 64 / width;
    amp_span span = { amp__alloc(SAMPLED, width), SAMPLED, type, 0 };
    amp_statistics want = AMP_STATISTICS_INIT;
    random_restart();
    fill(PATTERN_NORMAL, type, span.data, SAMPLED);
    for (size_t i = 0; i < SAMPLED; i++)
        if (i / of_line % 16 < 5) set_bits(type, span.data, i, 0);
    set_bits(type, span.data, 70001, round_to_bits(type, 1000.0));
    ck_assert_int_eq(amp_statistics_list(&span, 1, &want), AMP_OK);
    for (size_t e = 0; e < AMP_COUNT(all_every); e++) {
        const uint32_t every = all_every[e];
        const uint64_t lines = 4 * (65536 / of_line / every);
        double mean = 0.0;
        for (uint64_t seed = 0; seed < 20; seed++) {
            const amp_statistics got = sample(&span, every, seed);
            check_sample(&got, &want, lines);
            mean += (double)got.zeros / 20.0;
        }
        const double off = sqrt(log(2e6) / (2.0 * 20.0 * (double)lines)) * SAMPLED;
        ck_assert_msg(fabs(mean - (double)want.zeros) <= off, "every %u: %g zeros, %g wanted", (unsigned)every, mean,
                      (double)want.zeros);
    }
    const amp_statistics all = sample(&span, 1, 7);
    ck_assert(statistics_agree(&all, &want));
    amp__free(span.data);
}

/* A block with one is counted as a whole; shorter tensors are exact. */
TEST_TIMES(a_sample_finds_every_element_that_is_not_finite, TYPES) {
    const amp_dtype type = all_types[_i];
    amp_span span = { amp__alloc(SAMPLED, sizeof(double)), SAMPLED, type, 0 };
    random_restart();
    fill(PATTERN_NORMAL, type, span.data, SAMPLED);
    for (size_t i = 1; i < SAMPLED; i += 70000) set_bits(type, span.data, i, infinity_bits(type));
    set_bits(type, span.data, 99, infinity_bits(type) | sign_bit(type));
    set_bits(type, span.data, 65536 + 77, infinity_bits(type) + 1);
    const amp_statistics got = sample(&span, 64, 3);
    ck_assert(got.plus_infinities == 4 && got.minus_infinities == 1 && got.nans == 1 && isnan(got.sum));
    ck_assert(counted(&got) == SAMPLED);
    span.size = 65535;
    amp_statistics want = AMP_STATISTICS_INIT;
    const amp_statistics part = sample(&span, 64, 3);
    ck_assert_int_eq(amp_statistics_list(&span, 1, &want), AMP_OK);
    ck_assert(statistics_agree(&part, &want));
    amp__free(span.data);
}

TEST(a_sample_is_the_same_on_every_set_and_number_of_threads) {
    amp_span list[TYPES];
    static amp_statistics want[TYPES], got[TYPES];
    random_restart();
    for (size_t i = 0; i < TYPES; i++) {
        list[i] = (amp_span){ amp__alloc(SAMPLED, sizeof(double)), SAMPLED, all_types[i], 0 };
        fill(PATTERN_NORMAL, all_types[i], list[i].data, SAMPLED);
        want[i] = (amp_statistics)AMP_STATISTICS_INIT;
    }
    amp_set_cpu_mask(0);
    ck_assert_int_eq(amp_statistics_sample(list, TYPES, 16, 5, want), AMP_OK);
    amp_set_cpu_mask(UINT32_MAX);
    for (int32_t threads = 1; threads <= 3; threads++) {
        ck_assert_int_eq(amp_set_num_threads(threads), AMP_OK);
        for (size_t i = 0; i < TYPES; i++) got[i] = (amp_statistics)AMP_STATISTICS_INIT;
        ck_assert_int_eq(amp_statistics_sample(list, TYPES, 16, 5, got), AMP_OK);
        for (size_t i = 0; i < TYPES; i++) ck_assert(statistics_agree(&got[i], &want[i]));
    }
    const amp_statistics other = sample(&list[0], 16, 6);
    ck_assert(!statistics_agree(&other, &want[0]));
    for (size_t i = 0; i < TYPES; i++) amp__free(list[i].data);
    ck_assert_int_eq(amp_set_num_threads(1), AMP_OK);
}

TEST(errors_change_nothing) {
    float x[2] = { 1.0f, 2.0f };
    amp_statistics two[2] = { AMP_STATISTICS_INIT, AMP_STATISTICS_INIT }, fresh = AMP_STATISTICS_INIT;
    const amp_span list[2] = { { x, 2, AMP_FLOAT32, 0 }, { x, 2, AMP_FLOAT32, 0 } };
    amp_losses losses = { 7, 7, 7 };
    two[1].struct_size--;
    ck_assert_int_eq(amp_statistics_list(list, 2, two), AMP_ERR_ABI_MISMATCH);
    ck_assert_int_eq(amp_statistics_merge(&two[0], &two[1]), AMP_ERR_ABI_MISMATCH);
    ck_assert_int_eq(amp_statistics_merge(&two[1], &two[0]), AMP_ERR_ABI_MISMATCH);
    ck_assert_int_eq(amp_statistics_losses(&two[1], AMP_FLOAT16, 1.0f, &losses), AMP_ERR_ABI_MISMATCH);
    ck_assert_int_eq(amp_statistics_list(list, 2, NULL), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_statistics_list(NULL, 1, two), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_statistics_sample(list, 1, 0, 1, two), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_statistics_sample(list, 1, AMP_SAMPLE_MOST + 1, 1, two), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_statistics_merge(NULL, two), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_statistics_merge(two, NULL), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_statistics_losses(NULL, AMP_FLOAT16, 1.0f, &losses), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_statistics_losses(two, AMP_FLOAT16, 1.0f, NULL), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_statistics_losses(two, AMP_FLOAT32, 1.0f, &losses), AMP_ERR_INVALID_ARGUMENT);
    const float scales[] = { 0.0f, -2.0f, 3.0f, 0x1p-126f + 0x1p-149f, INFINITY, -INFINITY, (float)NAN };
    for (size_t i = 0; i < AMP_COUNT(scales); i++)
        ck_assert_int_eq(amp_statistics_losses(two, AMP_BFLOAT16, scales[i], &losses),
                         AMP_ERR_INVALID_ARGUMENT);
    ck_assert(!memcmp(two, &fresh, sizeof fresh));
}

/* ---- losses ---- */

/* Powers of two: exact in double, which holds all of float's values times them. */
static void losses_of_casts(amp_dtype type, amp_dtype from, const void *src, size_t n, int exponent,
                            amp_losses *losses) {
    const double normal = type == AMP_FLOAT16 ? 0x1p-14 : 0x1p-126;
    *losses = (amp_losses){ 0, 0, 0 };
    for (size_t at = 0, length; at < n; at += length) {
        double x[1024];
        uint16_t low[AMP_COUNT(x)];
        length = n - at < AMP_COUNT(x) ? n - at : AMP_COUNT(x);
        const amp_span wide = { x, length, AMP_FLOAT64, 0 }, narrow = { low, length, type, 0 };
        for (size_t i = 0; i < length; i++) x[i] = ldexp(value_of_bits(from, get_bits(from, src, at + i)), exponent);
        CHECK_THAT(amp_cast_list(&narrow, &wide, 1) == AMP_OK, "%s", amp_last_error());
        for (size_t i = 0; i < length; i++) {
            const uint64_t magnitude = low[i] & 0x7fffu;
            if (x[i] == 0.0 || !isfinite(x[i])) continue;
            losses->zeros += magnitude == 0;
            losses->subnormals += magnitude && fabs(x[i]) < normal;
            losses->infinities += magnitude == infinity_bits(type);
        }
    }
}

static void check_losses(amp_dtype from, const void *src, size_t n, int step) {
    const amp_span span = { (void *)(uintptr_t)src, n, from, 0 };
    amp_statistics s = AMP_STATISTICS_INIT;
    amp_losses any = { 0, 0, 0 };
    ck_assert_int_eq(amp_statistics_list(&span, 1, &s), AMP_OK);
    for (int t = 1; t <= 2; t++)
        for (int exponent = -30; exponent <= 24; exponent += step) {
            amp_losses want, got;
            losses_of_casts(all_types[t], from, src, n, exponent, &want);
            ck_assert_int_eq(amp_statistics_losses(&s, all_types[t], ldexpf(1.0f, exponent), &got), AMP_OK);
            CHECK_THAT(!memcmp(&got, &want, sizeof got), "%s to %s, scale 2^%d: zeros %llu and %llu, subnormals %llu "
                       "and %llu, infinities %llu and %llu", amp__dtype_name(from), amp__dtype_name(all_types[t]),
                       exponent, (unsigned long long)got.zeros, (unsigned long long)want.zeros,
                       (unsigned long long)got.subnormals, (unsigned long long)want.subnormals,
                       (unsigned long long)got.infinities, (unsigned long long)want.infinities);
            any.zeros |= got.zeros, any.subnormals |= got.subnormals, any.infinities |= got.infinities;
        }
    ck_assert_msg(any.zeros && any.subnormals && any.infinities, "a kind of loss was not met");
}

/* All values of the 16-bit types, at every scale. */
TEST(losses_are_those_of_casts_for_all_of_16_bits) {
    static uint16_t all[65536];
    for (size_t i = 0; i < AMP_COUNT(all); i++) all[i] = (uint16_t)i;
    check_losses(AMP_FLOAT16, all, AMP_COUNT(all), 6);
    check_losses(AMP_BFLOAT16, all, AMP_COUNT(all), 6);
}

/* Each edge of each binade, one at a time: so nothing makes up for anything else. */
TEST(losses_are_those_of_casts_for_edges) {
    static float edges[AMP_BINADES * 8];
    size_t n = 0;
    for (int e = AMP_BINADE_LEAST; e < AMP_BINADE_LEAST + AMP_BINADES; e++) {
        static const float mantissas[] = { 1.0f,          1.0f + 0x1p-23f,        2.0f - 0x1p-8f, 2.0f - 0x1p-7f,
                                           2.0f - 0x1p-11f, 2.0f - 0x1p-11f - 0x1p-23f, 2.0f - 0x1p-8f - 0x1p-23f,
                                           2.0f - 0x1p-23f };
        for (size_t i = 0; i < AMP_COUNT(mantissas); i++) edges[n++] = ldexpf(mantissas[i], e);
    }
    check_losses(AMP_FLOAT32, edges, n, 1);
}

TEST(losses_are_those_of_casts_for_any_bits) {
    static uint64_t data[20000];
    random_restart();
    for (int t = 0; t < 3; t++)
        for (int pattern = PATTERN_TIES; pattern < PATTERNS; pattern += PATTERN_BITS - PATTERN_TIES) {
            fill((enum pattern)pattern, all_types[t], data, AMP_COUNT(data));
            check_losses(all_types[t], data, AMP_COUNT(data), 9);
        }
}

/* Beyond the binades: counted where nothing can come into range, else refused. */
TEST(losses_of_doubles_are_exact_or_refused) {
    const double x[] = { 1e-60, 1e60, 0x1p-149, 1e300, 5e-324 };
    const amp_span span = { (void *)(uintptr_t)x, AMP_COUNT(x), AMP_FLOAT64, 0 };
    amp_statistics s = AMP_STATISTICS_INIT;
    amp_losses got, want;
    ck_assert_int_eq(amp_statistics_list(&span, 1, &s), AMP_OK);
    ck_assert(s.below == 2 && s.above == 2 && s.largest == 1e300 && s.least == 5e-324);
    for (int exponent = 0; exponent <= 15; exponent++) {
        losses_of_casts(AMP_BFLOAT16, AMP_FLOAT64, x, AMP_COUNT(x), exponent, &want);
        ck_assert_int_eq(amp_statistics_losses(&s, AMP_BFLOAT16, ldexpf(1.0f, exponent), &got), AMP_OK);
        ck_assert(!memcmp(&got, &want, sizeof got));
    }
    ck_assert_int_eq(amp_statistics_losses(&s, AMP_BFLOAT16, 0x1p16f, &got), AMP_ERR_UNSUPPORTED);
    ck_assert_int_eq(amp_statistics_losses(&s, AMP_BFLOAT16, 0.5f, &got), AMP_ERR_UNSUPPORTED);
    ck_assert_int_eq(amp_statistics_losses(&s, AMP_FLOAT16, 0x1p-112f, &got), AMP_OK);
    ck_assert_int_eq(amp_statistics_losses(&s, AMP_FLOAT16, 0x1p-113f, &got), AMP_ERR_UNSUPPORTED);
    ck_assert_int_eq(amp_statistics_losses(&s, AMP_FLOAT16, 0x1p124f, &got), AMP_OK);
    ck_assert_int_eq(amp_statistics_losses(&s, AMP_FLOAT16, 0x1p125f, &got), AMP_ERR_UNSUPPORTED);
}
