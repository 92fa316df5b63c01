/* SPDX-License-Identifier: Apache-2.0 */
/* amp_optim_list. A step of any values is the scalar set's, to the bit; one of moderate values in FP32 is the paper's
 * within the bound of tests/optim/reference.h. With found_inf, or refused, nothing is written and no step advances. */
#include "numbers.h"

#include "../optim/reference.h"
#include "../optim/rules.h"
#include "../optim/tensors.h"
#include "common/common.h"

#include <math.h>

enum { TENSORS = 3, LONGEST_TENSOR = 300 };

/* All that a step may write, so that two of them can be compared. */
struct written {
    float param[TENSORS][LONGEST_TENSOR], moments[3][TENSORS][LONGEST_TENSOR];
    uint16_t low[TENSORS][LONGEST_TENSOR];
    uint32_t remainders[TENSORS][LONGEST_TENSOR];
    uint64_t steps[TENSORS];
};

struct optim {
    amp_optim rule;
    size_t n, sizes[TENSORS];
    bool as_given, moderate, split, has_low, one_step;
    amp_dtype grad_type, low_type;
    float grads[TENSORS][LONGEST_TENSOR], found_inf, inv_scale;
    amp_optim_tensors list; /* its pointers: by point_at */
    amp_span grad[TENSORS], param[TENSORS], low[TENSORS], moments[3][TENSORS];
    void *remainders[TENSORS];
    struct written w;
};

/* Any rule of the tests, perhaps with a number or a flag that is not its own. */
static amp_optim take_rule(struct bytes *bytes, bool *as_given) {
    static const double numbers[] = { 0.0, 0.5, 0.9, 1e-3, 1e-8, 1.0, 10.0, -1.0, 1e300, NAN };
    amp_optim rule = rule_of((int)take_below(bytes, N_RULES), NULL);
    double *members[] = { &rule.lr,    &rule.weight_decay, &rule.momentum,      &rule.dampening,        &rule.beta1,
                          &rule.beta2, &rule.eps,          &rule.max_grad_norm, &rule.trust_coefficient };
    const unsigned how = take_below(bytes, 4);
    *as_given = how != 1 && how != 2;
    if (how == 1) *members[take_below(bytes, AMP_COUNT(members))] = numbers[take_below(bytes, AMP_COUNT(numbers))];
    if (how == 2) rule.flags ^= 1u << take_below(bytes, 10);
    return rule;
}

static void fill_tensors(struct optim *o, struct bytes *bytes) {
    uint64_t seed = take_below(bytes, 65536);
    for (size_t i = 0; i < o->n; i++) {
        o->sizes[i] = take_size(bytes, LONGEST_TENSOR);
        o->w.steps[i] = take_below(bytes, 3) ? take(bytes) : 0;
        if (o->moderate) {
            fill_floats(o->grads[i], LONGEST_TENSOR, 2.0f, &seed),
                fill_floats(o->w.param[i], LONGEST_TENSOR, 1.0f, &seed);
            for (int k = 0; k < 3; k++) {
                fill_floats(o->w.moments[k][i], LONGEST_TENSOR, 1.0f, &seed);
                for (size_t e = 0; e < LONGEST_TENSOR; e++) o->w.moments[k][i][e] = fabsf(o->w.moments[k][i][e]);
            }
            continue;
        }
        take_elements(bytes, o->grad_type, o->grads[i], o->sizes[i]);
        take_elements(bytes, AMP_FLOAT32, o->w.param[i], o->sizes[i]);
        take_elements(bytes, o->low_type, o->w.low[i], o->sizes[i]);
        for (int k = 0; k < 3; k++) take_elements(bytes, AMP_FLOAT32, o->w.moments[k][i], o->sizes[i]);
    }
}

static void make(struct optim *o, struct bytes *bytes) {
    static const amp_dtype types[] = { AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16 };
    memset(o, 0, sizeof *o);
    o->rule = take_rule(bytes, &o->as_given);
    o->n = take_below(bytes, TENSORS + 1);
    o->moderate = take_below(bytes, 3) == 0;
    const unsigned how = o->moderate ? 0 : take(bytes);
    o->has_low = how & 1, o->split = (how & 6) == 6, o->one_step = how & 8;
    o->grad_type = types[o->moderate ? 0 : take_below(bytes, 3)];
    o->low_type = o->split || how & 16 ? AMP_BFLOAT16 : AMP_FLOAT16;
    o->found_inf = how & 32 && !(how & 64) ? 1.0f : 0.0f;
    o->inv_scale = o->moderate ? 1.0f : take_factor(bytes);
    o->list = (amp_optim_tensors)AMP_OPTIM_TENSORS_INIT;
    o->list.grad_factor = how & 128 ? 0.5f : 0.0f;
    o->list.n = o->n;
    fill_tensors(o, bytes);
}

/* Spans over what `w` has. */
static const amp_optim_tensors *point_at(struct optim *o, struct written *w) {
    amp_optim_tensors *list = &o->list;
    for (size_t i = 0; i < o->n; i++) {
        const size_t n = o->sizes[i];
        o->grad[i] = (amp_span){ o->grads[i], n, o->grad_type, 0 };
        o->param[i] =
            o->split ? (amp_span){ w->low[i], n, AMP_BFLOAT16, 0 } : (amp_span){ w->param[i], n, AMP_FLOAT32, 0 };
        o->low[i] = o->has_low && !o->split ? (amp_span){ w->low[i], n, o->low_type, 0 }
                                            : (amp_span){ NULL, 0, o->low_type, 0 };
        o->remainders[i] = w->remainders[i];
        for (int k = 0; k < 3; k++)
            o->moments[k][i] =
                (amp_span){ w->moments[k][i], o->rule.kind == AMP_OPTIM_NOVOGRAD && k == 1 ? 1 : n, AMP_FLOAT32, 0 };
    }
    list->grad = o->grad, list->param = o->param;
    list->low = o->has_low && !o->split ? o->low : NULL;
    list->remainders = o->split ? o->remainders : NULL;
    for (int k = 0; k < 3; k++) list->moments[k] = o->moments[k];
    list->steps = o->one_step ? NULL : w->steps, list->step = o->one_step ? 3 : 0;
    list->found_inf = &o->found_inf, list->inv_scale = &o->inv_scale;
    return list;
}

static void need_same(const struct optim *o, const float *a, const float *b, size_t n, const char *what) {
    for (size_t e = 0; e < n; e++)
        need(bits_agree(AMP_FLOAT32, get_bits(AMP_FLOAT32, a, e), get_bits(AMP_FLOAT32, b, e)),
             "kind %d, flags %#x: %s %zu of %zu is %a, and %a of the scalar set", (int)o->rule.kind,
             (unsigned)o->rule.flags, what, e, n, (double)a[e], (double)b[e]);
}

/* Joined: of a NaN a remainder may be any. */
static void need_same_masters(const struct optim *o, const struct written *a, const struct written *b, size_t i) {
    float masters[2][LONGEST_TENSOR];
    const struct written *both[] = { a, b };
    for (int k = 0; k < 2; k++) {
        const amp_span dst = { masters[k], o->sizes[i], AMP_FLOAT32, 0 };
        const amp_span low = { (void *)both[k]->low[i], o->sizes[i], AMP_BFLOAT16, 0 };
        void *remainder = (void *)both[k]->remainders[i];
        need(amp_join_list(&dst, &low, &remainder, 1) == AMP_OK, "join refused");
    }
    need_same(o, masters[0], masters[1], o->sizes[i], "master");
}

static void need_same_step(const struct optim *o, const struct written *a, const struct written *b) {
    for (size_t i = 0; i < o->n; i++) {
        need_same(o, a->param[i], b->param[i], o->sizes[i], "parameter");
        for (int k = 0; k < 3; k++) need_same(o, a->moments[k][i], b->moments[k][i], o->sizes[i], "moment");
        for (size_t e = 0; e < o->sizes[i]; e++)
            need(bits_agree(o->low_type, a->low[i][e], b->low[i][e]), "a 16-bit parameter");
        if (o->split) need_same_masters(o, a, b, i);
        need(a->steps[i] == b->steps[i], "%llu steps", (unsigned long long)a->steps[i]);
    }
}

static void need_paper(const struct optim *o, const struct written *was, const struct written *is) {
    static struct number numbers[4][TENSORS][LONGEST_TENSOR];
    struct reference r[TENSORS];
    for (size_t i = 0; i < o->n; i++) {
        r[i] = (struct reference){ o->sizes[i], o->grads[i], was->param[i],
                                   { was->moments[0][i], was->moments[1][i], was->moments[2][i] }, was->steps[i],
                                   numbers[0][i], { numbers[1][i], numbers[2][i], numbers[3][i] } };
        for (int k = 0; k < 3; k++) /* those that the rule does not write */
            for (size_t e = 0; e < o->sizes[i]; e++)
                numbers[1 + k][i][e] = (struct number){ (double)was->moments[k][i][e], 0.0 };
    }
    const struct number factor = reference_factor(&o->rule, r, o->n);
    for (size_t i = 0; i < o->n; i++) {
        reference_step(&o->rule, &r[i], factor);
        for (int k = -1; k < 3; k++)
            for (size_t e = 0; e < o->sizes[i]; e++) {
                const struct number want = numbers[k + 1][i][e];
                const double got = (double)(k < 0 ? is->param[i][e] : is->moments[k][i][e]);
                need(fabs(got - want.value) <= 2.0 * want.bound,
                     "kind %d, flags %#x: tensor %zu, %d, [%zu] is %a, not %a within %a", (int)o->rule.kind,
                     (unsigned)o->rule.flags, i, k, e, got, want.value, want.bound);
            }
    }
}

void fuzz_optimizer(struct bytes *bytes) {
    static struct optim o;
    static struct written was, scalar;
    make(&o, bytes);
    was = scalar = o.w;
    const amp_status status = amp_optim_list(&o.rule, point_at(&o, &o.w));
    if (status != AMP_OK || (o.found_inf != 0.0f)) {
        if (status != AMP_OK) need_refused(status, "optim");
        need(!memcmp(&was, &o.w, sizeof was), "a step that was refused, or an overflow, wrote");
        return;
    }
    for (size_t i = 0; i < o.n; i++) need(o.one_step || o.w.steps[i] == was.steps[i] + 1, "a step was not counted");
    if (o.as_given && o.moderate) need_paper(&o, &was, &o.w);
    amp_set_cpu_mask(0);
    need(amp_optim_list(&o.rule, point_at(&o, &scalar)) == AMP_OK, "the scalar set refused it");
    need_same_step(&o, &o.w, &scalar);
}
