/* SPDX-License-Identifier: Apache-2.0 */
/* Each rule, with each switch, against the formulas in double, within the bounds of reference.h; step after step from
 * the floats that the step before left, so that every step is judged by itself. */
#include "reference.h"
#include "tensors.h"

#include <math.h>

enum { STEPS = 6 };

static void compare(const char *rule, const char *what, size_t tensor, const float *got, const struct number *want,
                    size_t n) {
    for (size_t i = 0; i < n; i++) {
        const double error = fabs((double)got[i] - want[i].value);
        if (!(error <= 2.0 * want[i].bound))
            ck_abort_msg("%s: %s %zu[%zu] is %.9g, want %.9g: %g away, bound %g", rule, what, tensor, i, (double)got[i],
                         want[i].value, error, 2.0 * want[i].bound);
    }
}

struct snapshot {
    float *grad, *param, *moments[3];
    struct number *new_param, *new_moments[3];
};

static float *copy_of(const float *x, size_t n) { return memcpy(floats(n), x, n * sizeof *x); }

static struct reference snapshot(const struct tensors *t, size_t i, struct snapshot *s) {
    const size_t n = tensor_sizes[i];
    struct reference r = { .n = n, .steps = t->steps[i] };
    r.grad = s->grad = copy_of(t->grad[i], n);
    r.param = s->param = copy_of(t->param[i], n);
    r.new_param = s->new_param = calloc(n, sizeof *s->new_param);
    for (int k = 0; k < 3; k++) {
        r.moments[k] = s->moments[k] = copy_of(t->moments[k][i], n);
        r.new_moments[k] = s->new_moments[k] = calloc(n, sizeof(struct number));
        /* unless the rule writes it */
        for (size_t j = 0; j < n; j++) r.new_moments[k][j].value = (double)r.moments[k][j];
    }
    return r;
}

static void snapshot_free(struct snapshot *s) {
    free(s->grad), free(s->param), free(s->new_param);
    for (int k = 0; k < 3; k++) free(s->moments[k]), free(s->new_moments[k]);
}

static void step_and_compare(const char *name, const amp_optim *rule, struct tensors *t) {
    struct snapshot snapshots[N_TENSORS];
    struct reference references[N_TENSORS];
    for (size_t i = 0; i < N_TENSORS; i++) references[i] = snapshot(t, i, &snapshots[i]);
    const struct number factor = reference_factor(rule, references, N_TENSORS);
    ck_ok(amp_optim_list(rule, &t->list));
    for (size_t i = 0; i < N_TENSORS; i++) {
        reference_step(rule, &references[i], factor);
        compare(name, "param", i, t->param[i], snapshots[i].new_param, tensor_sizes[i]);
        for (int k = 0; k < 3; k++)
            compare(name, "moment", i, t->moments[k][i], snapshots[i].new_moments[k], tensor_sizes[i]);
        ck_assert_msg(!memcmp(t->grad[i], snapshots[i].grad, tensor_sizes[i] * sizeof(float)), "%s wrote a gradient",
                      name);
        ck_assert_uint_eq(t->steps[i], references[i].steps + 1);
        snapshot_free(&snapshots[i]);
    }
}

DIFFERENCE_TIMES(rules_are_the_papers, N_RULES) {
    const char *name;
    const amp_optim rule = rule_of(_i, &name);
    OWN_TENSORS t;
    uint64_t seed = (uint64_t)_i;
    tensors_init(&t, &rule);
    for (size_t i = 0; i < N_TENSORS; i++) fill_floats(t.param[i], tensor_sizes[i], 1.0f, &seed);
    for (int step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < N_TENSORS; i++) fill_floats(t.grad[i], tensor_sizes[i], step % 2 ? 1e-3f : 3.0f, &seed);
        step_and_compare(name, &rule, &t);
    }
}

/* A late step: beta^t is far below 1, or has vanished. */
TEST_TIMES(late_steps_are_the_papers, N_RULES) {
    const char *name;
    const amp_optim rule = rule_of(_i, &name);
    static const uint64_t steps[] = { 999, 12345, UINT64_C(1) << 40 };
    OWN_TENSORS t;
    uint64_t seed = (uint64_t)_i;
    tensors_init(&t, &rule);
    for (size_t s = 0; s < 3; s++) {
        for (size_t i = 0; i < N_TENSORS; i++) {
            t.steps[i] = steps[s];
            fill_floats(t.param[i], tensor_sizes[i], 1.0f, &seed);
            fill_floats(t.grad[i], tensor_sizes[i], 1.0f, &seed);
            for (int k = 0; k < 3; k++) {
                fill_floats(t.moments[k][i], tensor_sizes[i], 1.0f, &seed);
                for (size_t j = 0; j < tensor_sizes[i]; j++) t.moments[k][i][j] = fabsf(t.moments[k][i][j]);
            }
        }
        step_and_compare(name, &rule, &t);
    }
}
