/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often a step goes over its tensors, by kernels that count: the bracket's end reads each gradient once, the step
 * goes once over each parameter, and nothing else runs. LAMB goes twice over moments and parameter, since its rate
 * depends on the norm of what it computes. The table is the process's own, written to and put back.
 */
#include "../support/levels.h"
#include "fused.h"
#include "kernels/kernels.h"
#include "optim/optim.h"

enum { ELEMENTS = 3 * NET_SIZE };

static struct amp__kernels *table, saved;
static struct {
    size_t checked, other_checked; /* elements of gradients; of what else */
    size_t updated, moments;       /* elements of the update kernels; of LAMB's first half */
    size_t others;                 /* calls of all other kernels */
} count;
static const void *grads[3];

/* ---- kernels that count ---- */

#define COUNT_CHECK(type, dtype)                                                                                       \
    static AMP__CHECK(count_check_##type) {                                                                            \
        bool grad = false;                                                                                             \
        for (int k = 0; k < 3; k++) grad |= src == grads[k];                                                           \
        *(grad ? &count.checked : &count.other_checked) += n;                                                          \
        return saved.check[dtype](src, n, scale, factor, nonfinite);                                                   \
    }
COUNT_CHECK(f32, AMP_FLOAT32)
COUNT_CHECK(f16, AMP_FLOAT16)
COUNT_CHECK(bf16, AMP_BFLOAT16)
COUNT_CHECK(f64, AMP_FLOAT64)

#define COUNT_UPDATE(rule)                                                                                             \
    static AMP__UPDATE(count_##rule) {                                                                                 \
        count.updated += end - begin;                                                                                  \
        saved.rule(u, begin, end);                                                                                     \
    }
COUNT_UPDATE(sgd)
COUNT_UPDATE(adam)
COUNT_UPDATE(adagrad)
COUNT_UPDATE(novograd)
COUNT_UPDATE(lamb_apply)
static AMP__UPDATE_SQUARES(count_lamb_moments) {
    count.moments += end - begin;
    saved.lamb_moments(u, begin, end, squares);
}

/* These do nothing: the numbers would be wrong if they were wanted, but so is the count. */
static AMP__CAST(count_cast) { (void)dst, (void)src, (void)n, count.others++; }
static AMP__CAST_LIST(count_cast_list) { (void)dst, (void)src, (void)n, count.others++; }
static AMP__SCALE_LIST(count_scale_list) {
    (void)dst, (void)src, (void)n, (void)scale, (void)nonfinite, count.others++;
}
static AMP__CLAMP_LIST(count_clamp_list) { (void)dst, (void)src, (void)n, (void)limit, count.others++; }
static AMP__SCALE(count_scale) { (void)dst, (void)src, (void)n, (void)scale, (void)nonfinite, count.others++; }
static AMP__AXPBY(count_axpby) {
    (void)dst, (void)a, (void)x, (void)b, (void)y, (void)n, (void)nonfinite, count.others++;
}
static AMP__SUM_SQUARES(count_sum) { return (void)src, (void)n, count.others++, 0.0; }
static AMP__NONFINITE(count_nonfinite) { return (void)src, (void)n, count.others++, 0; }

static void begin_counting(const struct rig *rig) {
    table = (struct amp__kernels *)(uintptr_t)amp__kernels_get();
    saved = *table;
    memset(&count, 0, sizeof count);
    for (int k = 0; k < 3; k++) grads[k] = ((const struct fake_tensor *)rig->net.trained[k])->grad->storage.data;
    for (int to = 1; to < AMP__TYPES; to++)
        for (int from = 1; from < AMP__TYPES; from++) {
            table->cast[to][from] = table->cast_stream[to][from] = count_cast;
            table->cast_list[to][from] = count_cast_list, table->clamp_list[to][from] = count_clamp_list;
            table->scale_list[to][from] = count_scale_list, table->scale_stream[to][from] = count_scale;
            for (int y = 1; y < AMP__TYPES; y++) table->axpby[to][from][y] = count_axpby;
        }
    for (int type = 1; type < AMP__TYPES; type++) table->sum_squares[type] = count_sum;
    for (int type = 1; type < AMP__TYPES; type++) table->nonfinite[type] = count_nonfinite;
    table->check[AMP_FLOAT32] = count_check_f32, table->check[AMP_FLOAT16] = count_check_f16;
    table->check[AMP_BFLOAT16] = count_check_bf16, table->check[AMP_FLOAT64] = count_check_f64;
    table->sgd = count_sgd, table->adam = count_adam, table->adagrad = count_adagrad, table->novograd = count_novograd;
    table->lamb_apply = count_lamb_apply, table->lamb_moments = count_lamb_moments;
}

static void end_counting(void) { *table = saved; }

/* ---- brackets ---- */

static void start(struct rig *rig, amp_level level, amp_optim_kind kind) {
    amp_optim rule = optim_of(kind, 0.125);
    if (kind == AMP_OPTIM_SGD || kind == AMP_OPTIM_LARC) rule.momentum = 0.5;
    fused_start(rig, rule, CONFIG(level, .loss_scale = AMP_DYNAMIC, .init_scale = 64.0f), 0);
    ck_assert_int_eq(bracket(rig, 0.03125, 0), AMP_STEP); /* one step ahead, so that all there is to make is made */
    ck_ok(amp_fused_step(&rig->net.optimizer, NULL));
}

/* As bracket() of fused.h, but with kernels that count from end on. */
static amp_action count_end(struct rig *rig, double value) {
    ck_ok(amp_fused_zero_grad(&rig->net.optimizer));
    amp_scaled_loss scaled = rig_begin(rig);
    for (int k = 0; k < 3; k++) add_grad(rig->net.trained[k], value * fake_seed(&scaled));
    begin_counting(rig);
    ck_ok(amp_scale_loss_end(&scaled));
    return scaled.action;
}

TEST_TIMES(one_pass_to_check_and_one_to_step, N_FP32_LEVELS) {
    for (amp_optim_kind kind = 1; kind <= AMP__OPTIM_KINDS; kind++) {
        RIG(rig);
        start(&rig, level_where(level_has_fp32, _i), kind);
        ck_assert_int_eq(count_end(&rig, 0.03125), AMP_STEP);
        ck_assert_uint_eq(count.checked, ELEMENTS);
        ck_assert_uint_eq(count.updated + count.moments + count.other_checked, 0);
        ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
        end_counting();
        ck_assert_uint_eq(count.checked, ELEMENTS);
        ck_assert_uint_eq(count.updated, ELEMENTS);
        ck_assert_uint_eq(count.moments, kind == AMP_OPTIM_LAMB ? ELEMENTS : 0);
        ck_assert_uint_eq(count.other_checked, kind == AMP_OPTIM_LARC ? ELEMENTS : 0); /* the parameters' norms */
        ck_assert_uint_eq(count.others, 0);
    }
}

TEST_TIMES(an_overflow_costs_one_pass, N_FP32_LEVELS) {
    for (amp_optim_kind kind = 1; kind <= AMP__OPTIM_KINDS; kind++) {
        RIG(rig);
        amp_action action = AMP_STEP;
        start(&rig, level_where(level_has_fp32, _i), kind);
        ck_assert_int_eq(count_end(&rig, INF), AMP_SKIP);
        ck_assert_uint_eq(count.checked, ELEMENTS);
        ck_ok(amp_fused_step(&rig.net.optimizer, &action));
        end_counting();
        ck_assert_int_eq(action, AMP_SKIP);
        ck_assert_uint_eq(count.checked, ELEMENTS);
        ck_assert_uint_eq(count.updated + count.moments + count.other_checked, 0);
    }
}
