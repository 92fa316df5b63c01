/* SPDX-License-Identifier: Apache-2.0 */
/* What a 16-bit type does to values, counted: against counting with float's own comparisons, an element at a time. */
#include "support.h"

#include "kernels/kernels.h"
#include "kernels/round.h"

#include <math.h>

enum { MOST = 3100 }; /* three blocks and a rest */

static struct amp__counts expected(const float *exact, const float *rounded, size_t n, float least) {
    struct amp__counts counts = { 0, 0, 0 };
    for (size_t i = 0; i < n; i++) {
        counts.overflowed += isinf(rounded[i]) && isfinite(exact[i]);
        counts.zeroed += rounded[i] == 0.0f && exact[i] != 0.0f;
        counts.subnormal += rounded[i] != 0.0f && fabsf(rounded[i]) < least;
    }
    return counts;
}

static void check_counts(struct amp__counts got, struct amp__counts wanted, const char *what, size_t n) {
    CHECK_THAT(got.overflowed == wanted.overflowed + 1 && got.zeroed == wanted.zeroed + 2 &&
                   got.subnormal == wanted.subnormal + 3,
               "%s, %zu elements: %llu overflowed, %llu zeroed, %llu subnormal; wanted %llu, %llu, %llu more than 1, "
               "2, 3",
               what, n, (unsigned long long)got.overflowed, (unsigned long long)got.zeroed,
               (unsigned long long)got.subnormal, (unsigned long long)wanted.overflowed,
               (unsigned long long)wanted.zeroed, (unsigned long long)wanted.subnormal);
}

TEST_TIMES(counts_are_those_of_each_element, 2 * PATTERNS) {
    static float exact[MOST], widened[MOST];
    static uint16_t rounded[MOST];
    static const size_t lengths[] = { 0, 1, 7, 1000, 1023, 1024, 1025, 2048, 2049, MOST };
    const amp_dtype low = _i % 2 ? AMP_FLOAT16 : AMP_BFLOAT16;
    const float least = low == AMP_FLOAT16 ? 0x1p-14f : 0x1p-126f;
    const struct amp__counts before = { 1, 2, 3 }; /* added to, not set */
    random_restart();
    fill((enum pattern)(_i / 2), AMP_FLOAT32, exact, MOST);
    const amp_span src = { exact, MOST, AMP_FLOAT32, 0 }, dst = { rounded, MOST, low, 0 },
                   back = { widened, MOST, AMP_FLOAT32, 0 };
    ck_assert_int_eq(amp_cast_list(&dst, &src, 1), AMP_OK);
    ck_assert_int_eq(amp_cast_list(&back, &dst, 1), AMP_OK);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        const size_t n = lengths[l];
        const struct amp__counts wanted = expected(exact, widened, n, least);
        struct amp__counts counts = before;
        amp__count_rounded(&counts, exact, rounded, n, low);
        check_counts(counts, wanted, "rounded", n);
        counts = before;
        amp__count_widened(&counts, exact, widened, n, low);
        check_counts(counts, wanted, "widened", n);
        counts = before;
        static float through[MOST];
        amp__round(through, exact, n, low, &counts);
        check_counts(counts, wanted, "amp__round", n);
    }
}
