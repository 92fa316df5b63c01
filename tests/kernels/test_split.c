/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of split masters beside a step of FP32 masters with a bf16 copy, in every version of the kernels: the same
 * masters, copies and moments, to the last bit, after each of some steps. (What a step of FP32 masters has to be, and
 * split and join alone: test_table.c.)
 */
#include "support.h"

#include "kernels/kernels.h"

#include <string.h>

enum { LONGEST = 1003, EXTRA = 7, ALL = LONGEST + EXTRA, WORDS = (ALL + 31) / 32, STEPS = 3 };
static const size_t lengths[] = { 1, 7, 8, 9, 15, 16, 17, 33, 256, LONGEST };

struct tensor {
    float param[ALL], moments[3][ALL];
    uint16_t low[ALL], rest[ALL + 1];
    uint32_t ties[WORDS];
};
static struct tensor wide, split;
static uint32_t grad[ALL]; /* room for any type */
static float joined[ALL];

/* ---- rules ---- */

static float some; /* a moment is there: its address counts */
#define UPDATE(rate, ...)                                                                                              \
    { .inv_scale = 0x1.8p-9f, .factor = 0.7f, .lr = rate, .beta1 = 0.9f, .rest1 = 0.1f, .beta2 = 0.99f,                \
      .rest2 = 0.01f, .eps = 1e-5f, .correction1 = 0.271f, .correction2 = 0.0297f, .denominator = 0.37f,               \
      .ratio = 0.3f, __VA_ARGS__ }
#define KERNEL(name) offsetof(struct amp__kernels, name)
static const struct {
    const char *name;
    size_t kernel;
    struct amp__update u;
} rules[] = {
    { "sgd", KERNEL(sgd), UPDATE(0.03f, .weight_decay = 0.1f) },
    { "sgd, momentum", KERNEL(sgd), UPDATE(0.03f, .moments = { &some }, .first = true) },
    { "sgd, nesterov", KERNEL(sgd), UPDATE(0.03f, .moments = { &some }, .nesterov = true, .weight_decay = 0.1f) },
    { "adam", KERNEL(adam), UPDATE(0.03f, .moments = { &some, &some }, .weight_decay = 0.1f) },
    { "adamw, amsgrad", KERNEL(adam), UPDATE(0.03f, .moments = { &some, &some, &some }, .weight_decay = 0.1f,
                                             .decoupled = true) },
    { "adagrad", KERNEL(adagrad), UPDATE(0.03f, .moments = { &some }, .weight_decay = 0.1f) },
    { "novograd", KERNEL(novograd), UPDATE(0.03f, .moments = { &some }, .weight_decay = 0.1f, .decoupled = true) },
    { "lamb", KERNEL(lamb_apply), UPDATE(0.03f, .moments = { &some, &some }, .weight_decay = 0.1f, .decoupled = true) },
    /* which leaves the masters, and each tie, as they are */
    { "no rate", KERNEL(sgd), UPDATE(0.0f, .weight_decay = 0.0f) },
    { "no rate, adam", KERNEL(adam), UPDATE(0.0f, .moments = { &some, &some }) },
};

/* ---- one step ---- */

static void make(enum pattern pattern, amp_dtype grad_type) {
    memset(&wide, 0, sizeof wide);
    fill(pattern, AMP_FLOAT32, wide.param, ALL);
    for (size_t i = 0; i < ALL; i += 1 + random_below(9))
        set_bits(AMP_FLOAT32, wide.param, i, (get_bits(AMP_FLOAT32, wide.param, i) & 0xffff0000u) | 0x8000u);
    for (int k = 0; k < 3; k++) fill(PATTERN_NORMAL, AMP_FLOAT32, wide.moments[k], ALL);
    for (size_t i = 0; i < ALL; i++)
        for (int k = 1; k < 3; k++) wide.moments[k][i] *= wide.moments[k][i];
    fill(pattern == PATTERN_BITS ? PATTERN_BITS : PATTERN_NORMAL, grad_type, grad, ALL);
}

static void run(const struct amp__kernels *table, size_t rule, struct tensor *t, amp_dtype grad_type, bool is_split,
                size_t n, double squares[2]) {
    struct amp__update u = rules[rule].u;
    amp__update_fn *kernel;
    u.grad = grad, u.grad_type = grad_type, u.low = t->low, u.low_type = AMP_BFLOAT16;
    u.param = is_split ? NULL : t->param;
    u.rest = is_split ? t->rest : NULL, u.ties = is_split ? t->ties : NULL;
    for (int k = 0; k < 3; k++) u.moments[k] = u.moments[k] ? t->moments[k] : NULL;
    memcpy(&kernel, (const char *)table + rules[rule].kernel, sizeof kernel);
    if (kernel == table->lamb_apply) table->lamb_moments(&u, EXTRA, EXTRA + n, squares);
    kernel(&u, EXTRA, EXTRA + n);
}

static bool same(amp_dtype type, const void *a, const void *b, const char *what, size_t rule, const char *isa) {
    for (size_t i = 0; i < ALL; i++)
        CHECK_THAT(bits_agree(type, get_bits(type, a, i), get_bits(type, b, i)),
                   "%s %s: %s[%zu]: split %#llx, FP32 %#llx", isa, rules[rule].name, what, i,
                   (unsigned long long)get_bits(type, a, i), (unsigned long long)get_bits(type, b, i));
    return true;
}

static size_t check_steps(const struct amp__kernels *table, const char *isa, size_t rule, amp_dtype grad_type,
                          size_t n) {
    size_t compared = 0;
    table->cast[AMP_BFLOAT16][AMP_FLOAT32](wide.low, wide.param, ALL);
    split = wide;
    table->split(split.low, split.rest, split.ties, wide.param, 0, ALL);
    for (size_t i = 0; i < ALL; i++) /* bits of no tie do not count */
        if (split.rest[i] != 0x8000u) split.ties[i / 32] |= 1u << i % 32;
    for (int step = 0; step < STEPS; step++) {
        double of_wide[2] = { 0.0, 0.0 }, of_split[2] = { 0.0, 0.0 };
        run(table, rule, &wide, grad_type, false, n, of_wide);
        run(table, rule, &split, grad_type, true, n, of_split);
        for (size_t k = 0; k < 2; k++)
            CHECK_THAT(bits_agree(AMP_FLOAT64, get_bits(AMP_FLOAT64, of_split, k), get_bits(AMP_FLOAT64, of_wide, k)),
                       "%s %s: squares[%zu]: split %g, FP32 %g", isa, rules[rule].name, k, of_split[k], of_wide[k]);
        table->join(joined, split.low, split.rest, split.ties, 0, ALL);
        compared += same(AMP_FLOAT32, joined, wide.param, "master", rule, isa);
        compared += same(AMP_BFLOAT16, split.low, wide.low, "low", rule, isa);
        for (int k = 0; k < 3; k++)
            compared += same(AMP_FLOAT32, split.moments[k], wide.moments[k], "moment", rule, isa);
    }
    return compared;
}

/* The versions of a table that differ, once each. */
static void check_version(const struct amp__kernels *table, const char *isa, size_t rule) {
    static const amp_dtype grads[] = { AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16 };
    size_t compared = 0;
    for (int p = 0; p < PATTERNS; p++)
        for (size_t l = 0; l < AMP_COUNT(lengths); l++) {
            const amp_dtype grad_type = grads[((size_t)p + l) % AMP_COUNT(grads)];
            make((enum pattern)p, grad_type);
            compared += check_steps(table, isa, rule, grad_type, lengths[l]);
        }
    ck_assert_uint_eq(compared, PATTERNS * AMP_COUNT(lengths) * STEPS * 5);
}

TEST_TIMES(a_split_master_steps_as_an_fp32_one, AMP_COUNT(rules)) {
    static struct amp__kernels table;
    uint32_t flags = 0;
    random_restart();
#define CHECK_SET(name, flag)                                                                                          \
    if (!((flag) & ~amp__cpu_detect())) {                                                                              \
        amp__kernels_init(&table, flags |= (flag));                                                                    \
        check_version(&table, #name, (size_t)_i);                                                                      \
    }
    CHECK_SET(ref, 0u)
    AMP__CPU_MAP(CHECK_SET)
#undef CHECK_SET
}
