/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel tests share: random numbers, edge patterns, and buffers that notice a step over their ends. */
#ifndef AMP_TESTS_SUPPORT_H
#define AMP_TESTS_SUPPORT_H

#include "oracle.h"

#include "test.h"

/* For inner loops: a ck_assert takes note of its line. */
#define CHECK_THAT(condition, ...)                                                                                     \
    do {                                                                                                               \
        if (!(condition)) ck_abort_msg(__VA_ARGS__);                                                                   \
    } while (0)

/* ---- random numbers: the same in every run, or from AMP_TEST_SEED ---- */

uint64_t test_seed(void);
void random_restart(void); /* back to the seed: at the start of each test, so that one alone can be repeated */
void random_from(uint64_t seed);
uint64_t random_bits(void);
uint64_t random_below(uint64_t n);
double random_uniform(void); /* [-1, 1) */

/* ---- edge patterns ---- */

#define PATTERN_MAP(X)                                                                                                 \
    X(ZEROS)      /* +0 and -0 */                                                                                      \
    X(SAME)       /* one ordinary value */                                                                             \
    X(SUBNORMALS) /* of this type and of the narrower ones, smallest and largest among them */                         \
    X(TIES)       /* halfway between two values of a narrower type, and beside it, at any exponent */                  \
    X(LIMITS)     /* where each narrower type ends: 65504, 65519.996, 65520, FLT_MAX, ... */                           \
    X(INFINITIES) /* among ordinary values */                                                                          \
    X(NANS)       /* quiet and signalling, with payloads, both signs */                                                \
    X(NORMAL)     /* roughly N(0, 1) */                                                                                \
    X(BITS)       /* any bit pattern */
enum pattern {
#define PATTERN_CONSTANT(name) PATTERN_##name,
    PATTERN_MAP(PATTERN_CONSTANT)
#undef PATTERN_CONSTANT
    PATTERNS
};
extern const char *const pattern_names[PATTERNS];

/* 1; with AMP_TEST_SHORT (the second compiler, sanitizers, an emulator, which look at addresses and not at values) 3:
 * each slot has a third of the patterns, others than the next, and each length a third of the offsets. */
int sweep_step(void);
#define EACH_PATTERN(pattern, types)                                                                                   \
    for (int pattern = (int)(types)[0] % sweep_step(); pattern < PATTERNS; pattern += sweep_step())

void fill(enum pattern pattern, amp_dtype type, void *data, size_t n);

/* ---- guarded buffers ---- */

/* Memory that ends at a page which cannot be touched, and begins after one. */
struct guard {
    unsigned char *begin, *end;
};

struct guard guard_new(size_t bytes); /* room for `bytes`, gap and border included */
void guard_free(struct guard *guard);

/* `bytes` of memory, `gap` bytes before the end; gap and a border below are painted. */
void *guard_place(const struct guard *guard, size_t bytes, size_t gap);
/* The paint is as it was. */
bool guard_intact(const struct guard *guard, size_t bytes, size_t gap);
enum { GUARD_BORDER = 64 };

#endif
