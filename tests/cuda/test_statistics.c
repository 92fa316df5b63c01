/* SPDX-License-Identifier: Apache-2.0 */
/* amp_device_statistics at the edges of its shorter ways: counts and extremes against the oracle's, sums against their
 * bound. */
#include "device.h"

#include <math.h>
#include <stdio.h>

enum { MOST = 5 * 65536, FIRST_OFFSETS = 3 };

#define COUNT(array) (sizeof(array) / sizeof *(array))

static unsigned char *memory; /* the device's */
static amp_statistics *there;
static amp_device_list *list;
static char what[120];

static void start(void) {
    if (!memory) memory = device_alloc((MOST + FIRST_OFFSETS) * sizeof(double));
    if (!there) there = device_alloc(2 * sizeof *there);
    ck_ok(amp_device_list_open((amp_device){ 2, 0 }, &list));
}
static void stop(void) { amp_device_list_close(list); }

/* Within n * 2^-53 of the sum of magnitudes (docs/reference/numerics.md), and the same bits again. */
static void check_sums(amp_dtype type, const void *data, size_t n) {
    long double sum = 0.0L, magnitudes = 0.0L, squares = 0.0L;
    for (size_t i = 0; i < n; i++) {
        const long double x = (long double)value_of_bits(type, get_bits(type, data, i));
        sum += x, magnitudes += fabsl(x), squares += x * x;
    }
    const long double share = (long double)n * 0x1p-53L;
    const bool near = fabsl((long double)there[0].sum - sum) <= share * magnitudes &&
                      fabsl((long double)there[0].sum_squares - squares) <= share * squares;
    CHECK_THAT(near, "%s: sums %a and %a, not %La and %La", what, there[0].sum, there[0].sum_squares, sum, squares);
}

static void check_nonfinite_sums(const amp_statistics *want) {
    const bool both = want->plus_infinities && want->minus_infinities, none = want->nans || both;
    const double infinity = want->plus_infinities ? INFINITY : -INFINITY;
    CHECK_THAT(none ? isnan(there[0].sum) : there[0].sum == infinity, "%s: sum %g", what, there[0].sum);
    CHECK_THAT(want->nans ? isnan(there[0].sum_squares) : isinf(there[0].sum_squares), "%s: squares %g", what,
               there[0].sum_squares);
}

static void check(amp_dtype type, const void *data, size_t n) {
    amp_statistics want;
    const amp_span span = { (void *)(uintptr_t)data, n, type, 0 };
    const amp_span twice[2] = { span, span };
    there[0] = there[1] = (amp_statistics)AMP_STATISTICS_INIT;
    ck_ok(amp_device_statistics(list, device.stream, twice, 2, there));
    device_wait();
    oracle_statistics(type, data, n, &want);
    CHECK_THAT(statistics_agree(&there[0], &there[1]), "%s: not the same twice", what);
    if (want.nans || want.plus_infinities || want.minus_infinities) check_nonfinite_sums(&want);
    else if (type != AMP_FLOAT64) check_sums(type, data, n);
    want.sum = there[0].sum, want.sum_squares = there[0].sum_squares;
    CHECK_THAT(statistics_agree(&there[0], &want), "%s: counts or extremes", what);
}

static void *at(amp_dtype type, size_t offset) { return memory + offset * formats[type].size; }

/* Mixed, too, so that a group of ordinary numbers has a single other one. */
TEST_TIMES(test_every_number_of_16_bits, 2) {
    enum { ALL = 1 << 16 };
    const amp_dtype type = _i ? AMP_BFLOAT16 : AMP_FLOAT16;
    static const uint32_t steps[] = { 1, 40503, 8191 };
    for (size_t s = 0; s < COUNT(steps); s++)
        for (int finite = 0; finite < 2; finite++)
            for (size_t offset = 0; offset < 2; offset++) {
                size_t n = 0;
                for (uint32_t i = 0; i < ALL; i++) {
                    const uint64_t bits = (uint16_t)(i * steps[s]);
                    if (!finite || !bits_are_nonfinite(type, bits)) set_bits(type, at(type, offset), n++, bits);
                }
                snprintf(what, sizeof what, "type %d, steps of %u%s, from %zu on", (int)type, (unsigned)steps[s],
                         finite ? ", finite" : "", offset);
                check(type, at(type, offset), n);
            }
}

/* The least and the largest mantissa, and both sides of both tops, of every exponent; or of every seventh. */
static size_t put_edges(amp_dtype type, void *data) {
    const struct format *f = &formats[type];
    const uint64_t one = UINT64_C(1) << f->mantissa, exponents = f->infinity >> f->mantissa;
    const uint64_t mantissas[] = { 0, 1, one - (one >> 8) - 1, one - (one >> 8), one - (one >> 11) - 1,
                                   one - (one >> 11), one - 1 };
    size_t n = 0;
    for (uint64_t exponent = 0; exponent <= exponents; exponent += type == AMP_FLOAT64 && exponent % 64 ? 7 : 1)
        for (size_t m = 0; m < COUNT(mantissas); m++)
            for (uint64_t sign = 0; sign < 2; sign++)
                set_bits(type, data, n++, exponent << f->mantissa | mantissas[m] | sign * f->sign);
    return n;
}

TEST_TIMES(test_edges_of_every_exponent, TYPES) {
    const amp_dtype type = all_types[_i];
    for (size_t offset = 0; offset < FIRST_OFFSETS; offset++) {
        const size_t n = put_edges(type, at(type, offset));
        snprintf(what, sizeof what, "type %d, edges from %zu on", (int)type, offset);
        check(type, at(type, offset), n);
    }
}

/* In a whole tile, in the rest and in the head. */
TEST_TIMES(test_one_among_ordinary_numbers, TYPES) {
    const amp_dtype type = all_types[_i];
    const uint64_t one = round_to_bits(type, 1.0), infinity = infinity_bits(type), sign = sign_bit(type);
    const uint64_t others[] = { 0, sign, 1, sign | 1, infinity, sign | infinity, infinity + 1, sign | (infinity + 1),
                                infinity - 1, (UINT64_C(1) << formats[type].mantissa) - 1 };
    static const size_t places[] = { 0, 1, 2, 8, 2047, 4096, 4099, 4100 };
    for (size_t offset = 0; offset < 2; offset++)
        for (size_t o = 0; o < COUNT(others); o++)
            for (size_t p = 0; p < COUNT(places); p++) {
                const size_t n = 4101;
                for (size_t i = 0; i < n; i++) set_bits(type, at(type, offset), i, one);
                set_bits(type, at(type, offset), places[p], others[o]);
                snprintf(what, sizeof what, "type %d from %zu on, %#llx as element %zu", (int)type, offset,
                         (unsigned long long)others[o], places[p]);
                check(type, at(type, offset), n);
            }
}

/* One row, in all copies of it; chunks of the full length, and what is beyond. */
TEST_TIMES(test_one_number_very_often, TYPES) {
    const amp_dtype type = all_types[_i];
    static const size_t sizes[] = { 65536 + 7, MOST };
    for (int zero = 0; zero < 2; zero++)
        for (size_t s = 0; s < COUNT(sizes); s++) {
            for (size_t i = 0; i < sizes[s]; i++) set_bits(type, at(type, 1), i, zero ? 0 : round_to_bits(type, 0.75));
            snprintf(what, sizeof what, "type %d, %zu times %s", (int)type, sizes[s], zero ? "0" : "0.75");
            check(type, at(type, 1), sizes[s]);
        }
}

TEST_TIMES(test_patterns, PATTERNS * TYPES) {
    const amp_dtype type = all_types[_i % TYPES];
    const enum pattern pattern = (enum pattern)(_i / TYPES);
    static const size_t sizes[] = { 1, 7, 8, 9, 2048, 2055, 3 * 2048 + 1, 20001 };
    random_restart();
    for (size_t s = 0; s < COUNT(sizes); s++)
        for (size_t offset = 0; offset < FIRST_OFFSETS; offset++) {
            fill(pattern, type, at(type, offset), sizes[s]);
            snprintf(what, sizeof what, "%s of type %d, %zu from %zu on", pattern_names[pattern], (int)type, sizes[s],
                     offset);
            check(type, at(type, offset), sizes[s]);
        }
}

TEST_FIXTURE(start, stop)
