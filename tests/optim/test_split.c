/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_optim_list over split masters: beside FP32 masters with bf16 copies, every rule gives the same masters, copies
 * and moments after each step, with the reference and with this machine's best set. amp_split_list and amp_join_list:
 * what they refuse, and what they make of halves that a host has written. (Values, lengths, sets: tests/kernels.)
 */
#include "tensors.h"

#include <float.h>
#include <math.h>

enum { STEPS = 3 };

static void *new_remainder(size_t size) {
    void *const block = malloc((size_t)amp_remainder_bytes(size));
    ck_assert(block != NULL);
    return block;
}

/* ---- beside FP32 masters ---- */

struct pair {
    struct tensors wide, split;
    void *remainders[N_TENSORS];
    float *joined[N_TENSORS];
    amp_span joins[N_TENSORS];
};

static void pair_free(struct pair *p) {
    for (size_t i = 0; i < N_TENSORS; i++) free(p->remainders[i]), free(p->joined[i]);
    tensors_free(&p->wide), tensors_free(&p->split);
}

/* One in ten is halfway between two numbers of bf16. */
static void plant(float *x, size_t n, bool extremes, uint64_t *seed) {
    static const float edges[] = { 0.0f, -0.0f, 0x1p-149f, -0x1p-133f, 0x1.8p-134f, 0x1p-126f };
    static const float extreme[] = { FLT_MAX, -FLT_MAX, 0x1.ffp127f, INFINITY, -INFINITY, NAN };
    for (size_t i = 0; i < n; i++) {
        const uint64_t bits = next_bits(seed);
        uint32_t word;
        memcpy(&word, &x[i], sizeof word);
        word = bits % 10 ? word : (word & 0xffff0000u) | 0x8000u;
        memcpy(&x[i], &word, sizeof word);
        if (bits % 31 == 0) x[i] = edges[bits / 31 % 6];
        if (bits % 37 == 0 && extremes) x[i] = extreme[bits / 37 % 6];
    }
}

static void pair_init(struct pair *p, const amp_optim *rule, uint64_t seed) {
    const bool norms = rule->kind == AMP_OPTIM_LAMB || rule->kind == AMP_OPTIM_LARC;
    memset(p, 0, sizeof *p);
    tensors_init(&p->wide, rule), tensors_init(&p->split, rule);
    for (size_t i = 0; i < N_TENSORS; i++) {
        const size_t n = tensor_sizes[i];
        fill_floats(p->wide.param[i], n, 1.0f, &seed);
        fill_floats(p->wide.grad[i], n, 512.0f, &seed);
        plant(p->wide.param[i], n, !norms, &seed); /* of a norm that is not finite nothing but NaN would be left */
        p->wide.lows[i] = (amp_span){ p->wide.low[i], n, AMP_BFLOAT16, 0 };
        p->split.lows[i] = (amp_span){ p->split.low[i], n, AMP_BFLOAT16, 0 };
        p->remainders[i] = new_remainder(n);
        p->joined[i] = floats(n);
        p->joins[i] = (amp_span){ p->joined[i], n, AMP_FLOAT32, 0 };
    }
    p->wide.list.low = p->wide.lows;
    ck_ok(amp_cast_list(p->wide.lows, p->wide.params, N_TENSORS));
    ck_ok(amp_split_list(p->split.lows, p->remainders, p->wide.params, N_TENSORS));
    p->split.list.param = p->split.lows;
    p->split.list.remainders = p->remainders;
}

/* The same scaled gradients for both, in the type whose turn it is. */
static void give_grads(struct pair *p, int turn) {
    static const amp_dtype types[] = { AMP_BFLOAT16, AMP_FLOAT32, AMP_FLOAT16 };
    for (size_t i = 0; i < N_TENSORS; i++) {
        const amp_span wide = { p->wide.grad[i], tensor_sizes[i], AMP_FLOAT32, 0 };
        const amp_dtype type = types[turn % 3];
        amp_span *const grad = &p->wide.grads[i];
        *grad = type == AMP_FLOAT32 ? wide : (amp_span){ p->wide.low_grad[i], tensor_sizes[i], type, 0 };
        if (type != AMP_FLOAT32) ck_ok(amp_cast_list(grad, &wide, 1));
        p->split.grads[i] = *grad;
    }
}

static size_t differing(const float *a, const float *b, size_t n) {
    size_t i = 0;
    while (i < n && (!memcmp(&a[i], &b[i], sizeof *a) || (isnan(a[i]) && isnan(b[i])))) i++;
    return i;
}

static void check_equal(const struct pair *p, const char *name, int step) {
    for (size_t i = 0; i < N_TENSORS; i++) {
        const size_t n = tensor_sizes[i], at = differing(p->joined[i], p->wide.param[i], n);
        ck_assert_msg(at == n, "%s, step %d, set %#x: master %zu[%zu] is %a, FP32's %a", name, step,
                      (unsigned)amp_cpu_flags(), i, at, (double)p->joined[i][at], (double)p->wide.param[i][at]);
        for (size_t e = 0; e < n; e++)
            ck_assert_msg(p->split.low[i][e] == p->wide.low[i][e] || isnan(p->joined[i][e]),
                          "%s, step %d: bf16 %zu[%zu] differs", name, step, i, e);
        for (int k = 0; k < 3; k++)
            ck_assert_msg(differing(p->split.moments[k][i], p->wide.moments[k][i], n) == n,
                          "%s, step %d: moment %d of %zu differs", name, step, k, i);
        ck_assert_uint_eq(p->split.steps[i], p->wide.steps[i]);
    }
}

TEST_TIMES(each_step_is_that_of_fp32_masters, N_RULES) {
    const char *name;
    const amp_optim rule = rule_of(_i, &name);
    const float inv_scale = 1.0f / 512.0f;
    static const uint32_t sets[] = { 0, UINT32_MAX };
    for (size_t s = 0; s < 2; s++) {
        __attribute__((cleanup(pair_free))) struct pair p;
        amp_set_cpu_mask(sets[s]);
        pair_init(&p, &rule, (uint64_t)_i);
        p.wide.list.inv_scale = p.split.list.inv_scale = &inv_scale;
        p.wide.list.grad_factor = p.split.list.grad_factor = 0.37f;
        for (int step = 0; step < STEPS; step++) {
            give_grads(&p, _i + step);
            ck_ok(amp_optim_list(&rule, &p.wide.list));
            ck_ok(amp_optim_list(&rule, &p.split.list));
            ck_ok(amp_join_list(p.joins, p.split.lows, p.remainders, N_TENSORS));
            check_equal(&p, name, step);
        }
    }
}

/* ---- halves ---- */

/* p and a remainder's half and tie, and what they are. */
static float join_one(uint16_t p, uint16_t rest, uint32_t tie) {
    uint32_t block[2] = { rest, tie };
    float joined;
    const amp_span low = { &p, 1, AMP_BFLOAT16, 0 }, wide = { &joined, 1, AMP_FLOAT32, 0 };
    void *const remainder = block;
    ck_ok(amp_join_list(&wide, &low, &remainder, 1));
    return joined;
}

TEST(what_a_host_writes_is_a_number) {
    ck_assert(join_one(0x3f80, 0x0001, 0) == 0x1.000002p0f);
    ck_assert(join_one(0x3f80, 0xffff, 0) == 0x1.fffffep-1f);
    ck_assert(join_one(0x3f80, 0x8000, 0) == 0x1.ffp-1f);  /* the tie that was rounded up */
    ck_assert(join_one(0x3f80, 0x8000, 1) == 0x1.01p0f);   /* and the one that was rounded down */
    ck_assert(join_one(0x3f81, 0x8000, 0) == 0x1.02p0f);   /* to no odd number */
    ck_assert(join_one(0x3f81, 0x8000, 1) == 0x1.02p0f);
    ck_assert(join_one(0x0000, 0xffff, 0) == 0.0f && !signbit(join_one(0x0000, 0xffff, 0))); /* nor up to 0 */
    ck_assert(join_one(0x8000, 0x8001, 0) == 0.0f && signbit(join_one(0x8000, 0x8001, 0)));
    ck_assert(join_one(0x8000, 0x8000, 0) == 0.0f && join_one(0x8000, 0x8000, 1) == -0x1p-134f);
    ck_assert(join_one(0x7f80, 0xffff, 0) == FLT_MAX);
    ck_assert(join_one(0x3f80, 0x0001, 1) == 0x1.000002p0f); /* a bit of no tie */
}

/* Every byte of a block is written: a checkpoint's sum is the same whatever lay there. */
TEST(a_remainder_is_written_whole) {
    for (size_t size = 0; size < 70; size++) {
        float values[70] = { 0.0f };
        uint16_t low[70];
        uint64_t seed = size;
        unsigned char *blocks[2];
        const size_t bytes = (size_t)amp_remainder_bytes(size);
        const amp_span dst = { low, size, AMP_BFLOAT16, 0 }, src = { values, size, AMP_FLOAT32, 0 };
        ck_assert_uint_eq(bytes, (size + 1) / 2 * 4 + (size + 31) / 32 * 4);
        fill_floats(values, size, 1.0f, &seed);
        for (int k = 0; k < 2; k++) {
            ck_assert((blocks[k] = malloc(bytes + 1)) != NULL);
            memset(blocks[k], k ? 0xff : 0, bytes + 1);
            void *const remainder = blocks[k];
            ck_ok(amp_split_list(&dst, &remainder, &src, 1));
        }
        ck_assert(!memcmp(blocks[0], blocks[1], bytes));
        ck_assert(blocks[0][bytes] == 0 && blocks[1][bytes] == 0xff);
        free(blocks[0]), free(blocks[1]);
    }
    ck_assert_uint_eq(amp_remainder_bytes(UINT64_MAX), 0);
}

/* ---- refusals ---- */

TEST(wrong_halves_are_refused) {
    float wide[2] = { 1.0f, 2.0f };
    uint16_t low[2] = { 7, 7 };
    uint32_t block[3] = { 0, 0, 0 };
    void *remainder = block, *nothing = NULL, *odd = (char *)block + 2;
    const amp_span l = { low, 2, AMP_BFLOAT16, 0 }, w = { wide, 2, AMP_FLOAT32, 0 }, half = { low, 2, AMP_FLOAT16, 0 };
    const amp_span shorter = { wide, 1, AMP_FLOAT32, 0 };
#define REFUSED(text, call)                                                                                            \
    ck_assert_int_eq(call, AMP_ERR_INVALID_ARGUMENT);                                                                  \
    ck_assert_msg(strstr(amp_last_error(), text) != NULL, "\"%s\" not in: %s", text, amp_last_error())
    REFUSED("remainders is NULL", amp_split_list(&l, NULL, &w, 1));
    REFUSED("remainders[0] is NULL", amp_split_list(&l, &nothing, &w, 1));
    REFUSED("remainders[0] is not aligned", amp_join_list(&w, &l, &odd, 1));
    REFUSED("dst[0].dtype is fp16", amp_split_list(&half, &remainder, &w, 1));
    REFUSED("src[0].dtype is bf16", amp_split_list(&l, &remainder, &l, 1));
    REFUSED("dst[0].dtype is bf16", amp_join_list(&l, &l, &remainder, 1));
    REFUSED("must be equal", amp_split_list(&l, &remainder, &shorter, 1));
    REFUSED("dst is NULL", amp_join_list(NULL, &l, &remainder, 1));
#undef REFUSED
    ck_assert(low[0] == 7 && low[1] == 7 && wide[0] == 1.0f && block[0] == 0);
    ck_ok(amp_split_list(NULL, NULL, NULL, 0));
}

TEST(wrong_split_masters_are_refused) {
    amp_optim rule = rule_of(0, NULL);
    __attribute__((cleanup(pair_free))) struct pair p;
    pair_init(&p, &rule, 1);
    give_grads(&p, 0);
    void *remainders[N_TENSORS];
    memcpy(remainders, p.remainders, sizeof remainders);
    p.split.list.remainders = remainders;
#define REFUSED(text)                                                                                                  \
    ck_assert_int_eq(amp_optim_list(&rule, &p.split.list), AMP_ERR_INVALID_ARGUMENT);                                  \
    ck_assert_msg(strstr(amp_last_error(), text) != NULL, "\"%s\" not in: %s", text, amp_last_error())
    p.split.list.low = p.wide.lows;
    REFUSED("low[0] is bf16");
    p.split.list.low = NULL, p.split.list.param = p.split.params;
    REFUSED("param[0] is fp32 and has a remainder");
    p.split.list.param = p.split.lows, remainders[3] = (char *)remainders[3] + 2;
    REFUSED("remainders[3] is not aligned");
#undef REFUSED
    remainders[3] = NULL; /* that one is a bf16 parameter alone */
    ck_ok(amp_optim_list(&rule, &p.split.list));
    ck_assert_uint_eq(p.split.steps[3], 1);
}
