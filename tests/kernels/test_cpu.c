/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction sets are found in what processors say, and the mask that lowers the choice. */
#include "support.h"

#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

/* ---- detection, with what some processors say ---- */

enum { LEAF1 = 0x38001000, LEAF7_AVX2 = 0x20 }; /* FMA, OSXSAVE, AVX, F16C */
#define LEAF7_AVX512 UINT32_C(0xc0030020)       /* AVX2, AVX-512 F, DQ, BW, VL */

static const struct {
    const char *what;
    struct amp__cpuid id;
    uint32_t flags; /* beside SSE2, which all have */
} processors[] = {
    { "nothing at all", { 0, 0, 0 }, 0 },
    { "SSE4.2 only", { 0x00180201, 0, 0 }, 0 },
    { "AVX without AVX2", { 0x38000000, 0, 7 }, 0 },
    { "AVX2", { LEAF1, LEAF7_AVX2, 7 }, AMP_CPU_AVX2 },
    { "AVX2 without FMA", { LEAF1 & ~0x1000, LEAF7_AVX2, 7 }, 0 },
    { "AVX2 without F16C", { LEAF1 & ~0x20000000, LEAF7_AVX2, 7 }, 0 },
    { "AVX2 on a system that saves no registers", { LEAF1 & ~0x08000000, LEAF7_AVX2, 0 }, 0 },
    { "AVX2 on a system that saves SSE's", { LEAF1, LEAF7_AVX2, 3 }, 0 },
    { "AVX-512", { LEAF1, LEAF7_AVX512, 0xe7 }, AMP_CPU_AVX2 | AMP_CPU_AVX512 },
    { "AVX-512 on a system that saves AVX's", { LEAF1, LEAF7_AVX512, 7 }, AMP_CPU_AVX2 },
    { "AVX-512 on a system that saves half of it", { LEAF1, LEAF7_AVX512, 0x67 }, AMP_CPU_AVX2 },
    { "AVX-512 without VL", { LEAF1, LEAF7_AVX512 & 0x7fffffff, 0xe7 }, AMP_CPU_AVX2 },
    { "AVX-512 without BW", { LEAF1, LEAF7_AVX512 & 0xbfffffff, 0xe7 }, AMP_CPU_AVX2 },
    { "AVX-512 without DQ", { LEAF1, LEAF7_AVX512 & 0xfffdffff, 0xe7 }, AMP_CPU_AVX2 },
};

TEST_TIMES(processors_are_read, AMP_COUNT(processors)) {
    const uint32_t flags = amp__cpu_decode(&processors[_i].id);
    ck_assert_msg(flags == (processors[_i].flags | AMP_CPU_SSE2), "%s: %#x", processors[_i].what, flags);
}

/* ---- the mask ---- */

TEST(mask_is_read) {
    static const struct {
        const char *text;
        uint32_t mask;
    } masks[] = {
        { NULL, UINT32_MAX },         { "", UINT32_MAX },        { "0", 0 },        { "none", 0 },
        { "0x1", 1 },                 { "3", 3 },                { "avx2", 1 },     { "avx512,avx2", 3 },
        { "neon,avx2", 0x101 },       { "AVX2", UINT32_MAX },    { "avx", UINT32_MAX }, { "avx2,", UINT32_MAX },
        { "avx2 avx512", UINT32_MAX }, { "0x1,avx2", UINT32_MAX }, { ",avx2", UINT32_MAX }, { "none,avx512", 2 },
        { "sse2", 4 },                { "avx2,sse2", 5 },
    };
    for (size_t i = 0; i < AMP_COUNT(masks); i++) {
        uint32_t mask = 0xee;
        const bool known = amp__cpu_read_mask(masks[i].text, &mask);
        ck_assert_msg(mask == masks[i].mask && known == (mask != UINT32_MAX), "'%s': %#x, %d",
                      masks[i].text ? masks[i].text : "NULL", mask, (int)known);
    }
}

static void check_table(uint32_t flags) {
    struct amp__kernels table;
    amp__kernels_init(&table, flags);
    ck_assert_msg(!memcmp(amp__kernels_get(), &table, sizeof table), "not the table of %#x", flags);
    ck_assert_uint_eq(amp_cpu_flags(), flags);
}

TEST(mask_lowers_the_choice) {
    const uint32_t machine = amp__cpu_detect();
    unsetenv("AMP_CPU_MASK");
    check_table(machine);
    for (uint32_t i = 0; i <= AMP__CPU_ALL / AMP__CPU_FIRST; i++) {
        amp_set_cpu_mask(i * AMP__CPU_FIRST);
        check_table(i * AMP__CPU_FIRST & machine);
    }
    amp_set_cpu_mask(UINT32_MAX);
    check_table(machine);
}

TEST(environment_lowers_the_choice) {
    setenv("AMP_CPU_MASK", "none", 1);
    check_table(0);
    setenv("AMP_CPU_MASK", "0xffffffff", 1); /* too late */
    check_table(0);
    amp_set_cpu_mask(UINT32_MAX);
    check_table(amp__cpu_detect());
}

/* A call before the first kernel counts more than the environment. */
TEST(call_overrides_environment) {
    setenv("AMP_CPU_MASK", "none", 1);
    amp_set_cpu_mask(UINT32_MAX);
    check_table(amp__cpu_detect());
}
