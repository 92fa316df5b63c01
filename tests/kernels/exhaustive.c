/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All 2^32 floats to fp16 and to bf16, in every version of the kernels that this machine can run. The oracle needs no
 * search here: as the floats rise, so do the results, and each goes up where the float passes the next midpoint.
 */
#include "oracle.h"

#include "kernels/kernels.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 4096 };

static const amp_dtype targets[] = { AMP_FLOAT16, AMP_BFLOAT16 };

/* The finite magnitude nearest to one that is not below `last`, whose nearest `last` is or was. */
struct climb {
    amp_dtype type;
    uint64_t last;
    double midpoint; /* above last */
};

static uint16_t climb_to(struct climb *c, double magnitude) {
    while (c->last < infinity_bits(c->type) &&
           (magnitude > c->midpoint || (magnitude == c->midpoint && c->last % 2))) {
        c->last++;
        if (c->last < infinity_bits(c->type)) c->midpoint = midpoint_above(c->type, c->last);
    }
    return (uint16_t)c->last;
}

/* The results for CHUNK magnitudes from `first` on. */
static void expect(struct climb *c, uint32_t first, uint16_t want[CHUNK]) {
    for (uint32_t i = 0; i < CHUNK; i++) {
        const uint32_t bits = first + i;
        float value;
        memcpy(&value, &bits, sizeof value);
        want[i] = bits_are_nan(AMP_FLOAT32, bits) ? (uint16_t)oracle_cast(c->type, AMP_FLOAT32, bits)
                                                  : climb_to(c, (double)value);
    }
}

static void compare(amp__cast_fn *cast, uint32_t first, uint16_t sign, const uint16_t want[CHUNK]) {
    static uint32_t src[CHUNK];
    static uint16_t got[CHUNK];
    for (uint32_t i = 0; i < CHUNK; i++) src[i] = first + i + ((uint32_t)sign << 16);
    cast(got, src, CHUNK);
    for (uint32_t i = 0; i < CHUNK; i++)
        if (got[i] != (want[i] | sign)) ck_abort_msg("%#x: got %#x, want %#x", src[i], got[i], want[i] | sign);
}

static void check_all_floats(amp__cast_fn *cast, amp_dtype to) {
    struct climb climb = { to, 0, midpoint_above(to, 0) };
    for (uint32_t first = 0; first < 0x80000000u; first += CHUNK) {
        uint16_t want[CHUNK];
        expect(&climb, first, want);
        compare(cast, first, 0, want);
        compare(cast, first, 0x8000, want);
    }
    ck_assert_uint_eq(climb.last, infinity_bits(to)); /* it came by every value */
}

START_TEST(all_floats) {
    const amp_dtype to = targets[_i];
    amp__cast_fn *previous = NULL;
    uint32_t flags = 0;
    struct amp__kernels table;
#define CHECK_ISA(name, flag)                                                                                          \
    if (!((flag) & ~amp__cpu_detect())) {                                                                               \
        amp__kernels_init(&table, flags |= (flag));                                                                    \
        if (table.cast[to][AMP_FLOAT32] != previous) check_all_floats(table.cast[to][AMP_FLOAT32], to);                \
        previous = table.cast[to][AMP_FLOAT32];                                                                        \
    }
    CHECK_ISA(ref, 0u)
    AMP__CPU_MAP(CHECK_ISA)
#undef CHECK_ISA
    ck_assert_msg(previous != NULL, "no version was tested");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("exhaustive");
    TCase *tests = tcase_create("all floats");
    tcase_set_timeout(tests, 600);
    tcase_add_loop_test(tests, all_floats, 0, 2);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
