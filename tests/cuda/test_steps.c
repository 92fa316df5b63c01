/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of the fused optimizers as the device takes them, numbers prepared there too, against amp_optim_list: equal to
 * the bit, given equal norms, for every rule and switch, over several steps of several tensors.
 */
#include "emulated.h"
#include "asserts.h"

#include "../kernels/support.h"
#include "../optim/rules.h"

#include "optim/optim.h"

#include <math.h>
#include <stdlib.h>

enum { N = 3, LONGEST = 5000, STEPS = 4 };
static const uint64_t sizes[N] = { 3, 2049, LONGEST };

struct tensors {
    float grad[N][LONGEST], param[N][LONGEST], moments[3][N][LONGEST];
    uint16_t low[N][LONGEST];
    uint64_t steps[N];
};
static struct tensors ours, theirs;

static const float inv_scale = 1.0f / 1024.0f, grad_factor = 0.75f;

/* ---- their step ---- */

struct spans {
    amp_span grad[N], param[N], low[N], moments[3][N];
};

static struct spans spans_of(struct tensors *t, amp_optim_kind kind) {
    struct spans s;
    for (int i = 0; i < N; i++) {
        s.grad[i] = (amp_span){ t->grad[i], sizes[i], AMP_FLOAT32, 0 };
        s.param[i] = (amp_span){ t->param[i], sizes[i], AMP_FLOAT32, 0 };
        s.low[i] = (amp_span){ t->low[i], sizes[i], i % 2 ? AMP_FLOAT16 : AMP_BFLOAT16, 0 };
        for (int k = 0; k < 3; k++) {
            const uint64_t size = kind == AMP_OPTIM_NOVOGRAD && k == 1 ? 1 : sizes[i];
            s.moments[k][i] = (amp_span){ t->moments[k][i], size, AMP_FLOAT32, 0 };
        }
    }
    return s;
}

static void step_theirs(const amp_optim *rule, const float *norm, const float *norms) {
    const struct spans s = spans_of(&theirs, rule->kind);
    amp_optim_tensors t = AMP_OPTIM_TENSORS_INIT;
    t.n = N, t.grad_factor = grad_factor, t.inv_scale = &inv_scale, t.steps = theirs.steps;
    t.grad = s.grad, t.param = s.param, t.low = s.low;
    for (int k = 0; k < 3; k++) t.moments[k] = s.moments[k];
    t.grad_norm = norm, t.grad_norms = norms;
    ck_ok(amp_optim_list(rule, &t));
}

/* ---- ours ---- */

struct call {
    enum cuda_rule rule;
    const struct cuda_update *updates;
};

static uint32_t update_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *arguments,
                          double sums[2]) {
    const struct call *call = arguments;
    cuda_update_group(call->rule, false, t, &call->updates[emulated_tensor], at, sums);
    return 0;
}

/* LAMB's learning rates from sums of the same order as libamp's own, so that they are the same to the bit; that the
 * device's sums are near those is test_sums' business, and is looked at here once more. */
static void lamb(const amp_optim *rule, struct cuda_update *updates, const struct spans *s, double *chunk_sums,
                 const struct cuda_table *table) {
    for (int i = 0; i < N; i++) {
        float u[LONGEST];
        double squares[2] = { 0.0, 0.0 };
        uint32_t unused = 0;
        for (size_t e = 0; e < sizes[i]; e++) {
            struct cuda_values x = {
                0.0f, ours.param[i][e], 0.0f, { ours.moments[0][i][e], ours.moments[1][i][e], 0.0f }
            };
            cuda_adam_direction(&x, &updates[i], x.m[1]);
            u[e] = x.u;
        }
        const amp_span direction = { u, sizes[i], AMP_FLOAT32, 0 };
        squares[0] = amp__check_span(&s->param[i], 1.0f, 1.0f, &unused);
        squares[1] = amp__check_span(&direction, 1.0f, 1.0f, &unused);
        for (int k = 0; k < 2; k++) {
            const size_t begin = 2 * (size_t)table->first_chunks[i], end = 2 * (size_t)table->first_chunks[i + 1];
            const double sum = emulated_strided(chunk_sums + k, begin, end, 2);
            ck_assert(fabs(sum - squares[k]) <= 6000 * 0x1p-53 * squares[k]); /* fewer additions than that, both ways */
        }
        updates[i].lr = cuda_lamb_lr(rule, squares[0], squares[1]);
    }
}

static void step_ours(const amp_optim *rule, float norm, const float *norms) {
    static const enum cuda_rule rules[] = {
#define KIND(constant, value, name, title, rule, ...) [AMP_OPTIM_##constant] = cuda_rule_##rule,
        AMP_OPTIM_MAP(KIND)
#undef KIND
    };
    const struct spans s = spans_of(&ours, rule->kind);
    const amp_span *lists[CUDA_UPDATE_SPANS] = { s.grad, s.param, s.low, NULL, NULL, NULL };
    struct cuda_update updates[N];
    OWN_PLAN plan = { 0 };
    double *sums = NULL;
    for (int k = 0; k < 3; k++)
        if (amp__optim_moment(rule, k)) lists[CUDA_MOMENTS + k] = s.moments[k];
    for (int i = 0; i < N; i++) {
        float of_param;
        ck_ok(amp_l2norm_list(&s.param[i], 1, &of_param, NULL));
        const struct cuda_norms given = { norm, norms[i], of_param };
        updates[i] = cuda_prepare(rule, ours.steps[i]++, inv_scale, grad_factor, &given, ours.moments[1][i]);
    }
    struct call call = { rule->kind == AMP_OPTIM_LAMB ? CUDA_LAMB_MOMENTS : rules[rule->kind], updates };
    emulate(&plan, lists, CUDA_UPDATE_SPANS, N, update_fn, &call, &sums);
    if (rule->kind == AMP_OPTIM_LAMB) {
        const struct cuda_table table = cuda_plan_table(&plan, plan.table);
        lamb(rule, updates, &s, sums, &table);
        call.rule = CUDA_LAMB_APPLY;
        emulate(&plan, lists, CUDA_UPDATE_SPANS, N, update_fn, &call, NULL);
    }
    free(sums);
}

TEST_TIMES(test_steps, N_RULES) {
    amp_optim rule = rule_of(_i, NULL);
    rule.eps = 1e-3; /* large enough to be seen */
    random_restart();
    memset(&ours, 0, sizeof ours);
    for (int i = 0; i < N; i++) fill(PATTERN_NORMAL, AMP_FLOAT32, ours.param[i], sizes[i]);
    theirs = ours;
    for (int step = 0; step < STEPS; step++) {
        float norm, norms[N];
        for (int i = 0; i < N; i++) {
            fill(PATTERN_NORMAL, AMP_FLOAT32, ours.grad[i], sizes[i]);
            for (size_t e = 0; e < sizes[i]; e++) ours.grad[i][e] *= 1024.0f;
            memcpy(theirs.grad[i], ours.grad[i], sizeof theirs.grad[i]);
        }
        const struct spans s = spans_of(&ours, rule.kind);
        ck_ok(amp_check_list(s.grad, N, inv_scale, grad_factor, &norm, norms, NULL));
        step_theirs(&rule, &norm, norms);
        step_ours(&rule, norm, norms);
        ck_assert_msg(!memcmp(&ours, &theirs, sizeof ours), "kind %d, step %d", (int)rule.kind, step);
    }
}

/* beta^t is libamp's own on both sides, far out too. */
TEST(test_power) {
    static const uint64_t steps[] = { 0, 1, 2, 3, 100, 12345, UINT64_C(1) << 40 };
    amp_optim rule = AMP_OPTIM_INIT;
    ck_ok(amp_optim_defaults(AMP_OPTIM_ADAM, &rule));
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        memset(&ours, 0, sizeof ours);
        for (int i = 0; i < N; i++) {
            ours.steps[i] = steps[s] + (uint64_t)i;
            for (size_t e = 0; e < sizes[i]; e++) ours.grad[i][e] = ours.moments[1][i][e] = 2.0f;
        }
        theirs = ours;
        const float norms[N] = { 0.0f };
        step_theirs(&rule, norms, norms);
        step_ours(&rule, 0.0f, norms);
        ck_assert_mem_eq(&ours, &theirs, sizeof ours);
    }
}
