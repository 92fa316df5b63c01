/* SPDX-License-Identifier: Apache-2.0 */
/* amp_optim_list: unscaling on the way is unscaling before, overflow writes nothing, 16-bit copies, edges, refusals. */
#include "optim/optim.h"
#include "tensors.h"

#include <math.h>

static amp_optim defaults(amp_optim_kind kind) {
    amp_optim rule = AMP_OPTIM_INIT;
    ck_ok(amp_optim_defaults(kind, &rule));
    rule.lr = 0.5;
    return rule;
}

static void random_tensors(struct tensors *t, const amp_optim *rule, uint64_t seed) {
    tensors_init(t, rule);
    for (size_t i = 0; i < N_TENSORS; i++) {
        fill_floats(t->param[i], tensor_sizes[i], 1.0f, &seed);
        fill_floats(t->grad[i], tensor_sizes[i], 512.0f, &seed);
        t->lows[i] = (amp_span){ t->low[i], tensor_sizes[i], AMP_BFLOAT16, 0 };
        const amp_span low_grad = { t->low_grad[i], tensor_sizes[i], AMP_FLOAT16, 0 };
        ck_ok(amp_cast_list(&low_grad, &t->grads[i], 1));
    }
}

/* Equal ones. */
static void random_pair(struct tensors *a, struct tensors *b, const amp_optim *rule, uint64_t seed) {
    random_tensors(a, rule, seed), random_tensors(b, rule, seed);
}

static void check_same(const struct tensors *a, const struct tensors *b, const char *name) {
    for (size_t i = 0; i < N_TENSORS; i++) {
        const size_t bytes = tensor_sizes[i] * sizeof(float);
        ck_assert_msg(!memcmp(a->param[i], b->param[i], bytes), "%s: parameter %zu differs", name, i);
        ck_assert_msg(!memcmp(a->low[i], b->low[i], bytes / 2), "%s: 16-bit copy %zu differs", name, i);
        for (int k = 0; k < 3; k++)
            ck_assert_msg(!memcmp(a->moments[k][i], b->moments[k][i], bytes), "%s: moment %d of %zu differs", name, k,
                          i);
        ck_assert_uint_eq(a->steps[i], b->steps[i]);
    }
}

/* fp16 gradients, a scale that is no power of two, a clipping factor: as scaled, clipped, stepped and cast one
 * by one. */
DIFFERENCE_TIMES(one_pass_is_what_four_would_be, N_RULES) {
    const char *name;
    const amp_optim rule = rule_of(_i, &name);
    const float inv_scale = 1.0f / 3000.0f, clip = 0.37f;
    OWN_TENSORS fused, apart;
    random_pair(&fused, &apart, &rule, (uint64_t)_i);
    for (size_t i = 0; i < N_TENSORS; i++)
        fused.grads[i] = (amp_span){ fused.low_grad[i], tensor_sizes[i], AMP_FLOAT16, 0 };
    fused.list.low = fused.lows;
    fused.list.inv_scale = &inv_scale;
    fused.list.grad_factor = clip;
    for (int step = 0; step < 3; step++) {
        for (size_t i = 0; i < N_TENSORS; i++) {
            const amp_span low_grad = { apart.low_grad[i], tensor_sizes[i], AMP_FLOAT16, 0 };
            ck_ok(amp_scale_list(&apart.grads[i], &low_grad, 1, inv_scale, NULL));
            ck_ok(amp_scale_list(&apart.grads[i], &apart.grads[i], 1, clip, NULL));
        }
        ck_ok(amp_optim_list(&rule, &fused.list));
        ck_ok(amp_optim_list(&rule, &apart.list));
        ck_ok(amp_cast_list(apart.lows, apart.params, N_TENSORS));
        check_same(&fused, &apart, name);
    }
}

/* The norms that the check before the step found are those that the step would compute. */
TEST_TIMES(known_norms_are_the_computed_ones, N_RULES) {
    const char *name;
    const amp_optim rule = rule_of(_i, &name);
    const float inv_scale = 1.0f / 3000.0f;
    float norm, norms[N_TENSORS], found_inf = 0.0f;
    OWN_TENSORS given, computed;
    random_pair(&given, &computed, &rule, (uint64_t)_i);
    given.list.inv_scale = computed.list.inv_scale = &inv_scale;
    ck_ok(amp_check_list(given.grads, N_TENSORS, inv_scale, 1.0f, &norm, norms, &found_inf));
    given.list.grad_norm = &norm, given.list.grad_norms = norms, given.list.found_inf = &found_inf;
    ck_ok(amp_optim_list(&rule, &given.list));
    ck_ok(amp_optim_list(&rule, &computed.list));
    check_same(&given, &computed, name);
}

DIFFERENCE_TIMES(overflow_writes_nothing, N_RULES) {
    const char *name;
    const amp_optim rule = rule_of(_i, &name);
    float found_inf = 0.0f;
    OWN_TENSORS t, before;
    random_pair(&t, &before, &rule, (uint64_t)_i);
    t.list.low = t.lows;
    t.list.found_inf = &found_inf;
    t.grad[2][17] = INFINITY;
    ck_ok(amp_check_list(t.grads, N_TENSORS, 1.0f, 1.0f, NULL, NULL, &found_inf));
    ck_assert(found_inf == 1.0f);
    ck_ok(amp_optim_list(&rule, &t.list));
    check_same(&t, &before, name);
    found_inf = 0.0f;
    t.grad[2][17] = 1.0f;
    ck_ok(amp_optim_list(&rule, &t.list)); /* and it is the flag that held it back */
    ck_assert(memcmp(t.param[3], before.param[3], tensor_sizes[3] * sizeof(float)));
    ck_assert_uint_eq(t.steps[0], 1);
}

/* One count for all tensors, kept by libamp or by the caller, is as good as one for each. */
TEST_TIMES(one_count_for_all, N_RULES) {
    const char *name;
    const amp_optim rule = rule_of(_i, &name);
    uint64_t count = 0;
    float found_inf = 0.0f;
    for (int known = 0; known < 2; known++) {
        OWN_TENSORS each, all;
        random_pair(&each, &all, &rule, (uint64_t)_i);
        all.list.steps = known ? NULL : &count;
        all.list.n_steps = 1;
        all.list.found_inf = &found_inf;
        for (uint64_t step = 1; step < 4; step++) {
            all.list.step = known ? step : 0;
            ck_ok(amp_optim_list(&rule, &each.list));
            ck_ok(amp_optim_list(&rule, &all.list));
            for (size_t i = 0; i < N_TENSORS; i++) all.steps[i] = step;
            check_same(&each, &all, name);
        }
        found_inf = 1.0f;
        ck_ok(amp_optim_list(&rule, &all.list));
        found_inf = 0.0f;
        check_same(&each, &all, name);
    }
    ck_assert_uint_eq(count, 3);
}

/* A 16-bit parameter without a master: the same as a master that is what the parameter holds, rounded afterwards. */
DIFFERENCE_TIMES(low_parameters_alone, N_RULES) {
    const char *name;
    const amp_optim rule = rule_of(_i, &name);
    OWN_TENSORS alone, wide;
    random_pair(&alone, &wide, &rule, (uint64_t)_i);
    for (size_t i = 0; i < N_TENSORS; i++) {
        ck_ok(amp_cast_list(&alone.lows[i], &alone.params[i], 1));
        ck_ok(amp_cast_list(&wide.params[i], &alone.lows[i], 1));
    }
    alone.list.param = alone.lows;
    wide.list.low = wide.lows;
    ck_ok(amp_optim_list(&rule, &alone.list));
    ck_ok(amp_optim_list(&rule, &wide.list));
    for (size_t i = 0; i < N_TENSORS; i++)
        ck_assert_msg(!memcmp(alone.low[i], wide.low[i], tensor_sizes[i] * 2), "%s: %zu differs", name, i);
}

/* The square of 2^-20 is nothing in fp16. */
DIFFERENCE(gradients_are_read_moments_are_fp32) {
    const amp_optim_kind kinds[] = { AMP_OPTIM_LAMB, AMP_OPTIM_ADAGRAD };
    for (size_t k = 0; k < 2; k++) {
        const amp_optim rule = defaults(kinds[k]);
        OWN_TENSORS t;
        random_tensors(&t, &rule, k);
        for (size_t i = 0; i < N_TENSORS; i++) t.grad[i][0] = 0x1p-20f, t.lows[i].dtype = AMP_FLOAT16;
        t.list.param = t.lows;
        ck_ok(amp_optim_list(&rule, &t.list));
        for (size_t i = 0; i < N_TENSORS; i++)
            ck_assert(t.grad[i][0] == 0x1p-20f && t.moments[kinds[k] == AMP_OPTIM_LAMB][i][0] > 0.0f);
    }
}

/* Corrections for the bias are by each tensor's own step, whatever the first one's is. */
DIFFERENCE_TIMES(steps_are_each_tensors_own, N_RULES) {
    const char *name;
    const amp_optim rule = rule_of(_i, &name);
    OWN_TENSORS together, apart;
    float norm;
    random_pair(&together, &apart, &rule, (uint64_t)_i);
    ck_ok(amp_l2norm_list(together.grads, N_TENSORS, &norm, NULL));
    together.list.grad_norm = apart.list.grad_norm = &norm;
    for (size_t i = 0; i < N_TENSORS; i++) together.steps[i] = apart.steps[i] = 2 * (i / 2);
    ck_ok(amp_optim_list(&rule, &together.list));
    apart.list.n = 1;
    for (size_t i = 0; i < N_TENSORS; i++) {
        ck_ok(amp_optim_list(&rule, &apart.list));
        apart.list.grad++, apart.list.param++, apart.list.steps++;
        for (int k = 0; k < 3; k++) apart.list.moments[k]++;
    }
    check_same(&together, &apart, name);
}

/* More than the caches hold: 16-bit copies are written another way, and are the same. */
TEST_TIMES(copies_past_the_caches, 2) {
    enum { LENGTH = 1200003 };
    static const amp_dtype types[] = { AMP_FLOAT16, AMP_BFLOAT16 };
    amp_optim rule = defaults(AMP_OPTIM_ADAMW);
    const size_t n = LENGTH + 2;
    float *values = floats(4 * n), *expected = floats(n);
    uint16_t *copies = calloc(2 * n, 2);
    uint64_t seed = 7, steps[2] = { 0, 0 };
    amp_span param[2], grad[2], low[2], moments[2][2], want = { expected, LENGTH, types[_i], 0 };
    ck_assert(values && expected && copies);
    fill_floats(values, 4 * n, 1.0f, &seed);
    for (size_t i = 0; i < 2; i++) { /* nothing begins at a cache line */
        param[i] = (amp_span){ values + i * n + 1, LENGTH, AMP_FLOAT32, 0 };
        low[i] = (amp_span){ copies + i * n + 1, LENGTH, types[_i], 0 };
        grad[i] = (amp_span){ values + 2 * n + 1, LENGTH, AMP_FLOAT32, 0 };
        for (int k = 0; k < 2; k++) moments[k][i] = (amp_span){ floats(n), LENGTH, AMP_FLOAT32, 0 };
    }
    amp_optim_tensors list = AMP_OPTIM_TENSORS_INIT;
    list.n = 2, list.param = param, list.grad = grad, list.low = low, list.steps = steps;
    list.moments[0] = moments[0], list.moments[1] = moments[1];
    ck_ok(amp_optim_list(&rule, &list));
    for (size_t i = 0; i < 2; i++) {
        ck_ok(amp_cast_list(&want, &param[i], 1));
        ck_assert(!memcmp(low[i].data, expected, LENGTH * 2));
        ck_assert(copies[i * n] == 0 && copies[i * n + LENGTH + 1] == 0);
        for (int k = 0; k < 2; k++) free(moments[k][i].data);
    }
    free(values), free(expected), free(copies);
}

/* ---- edges ---- */

/* One tensor of one element. */
static float one(const amp_optim *rule, float param, float grad, uint64_t steps, float moment) {
    float moments[3] = { moment, moment, moment };
    amp_span p = { &param, 1, AMP_FLOAT32, 0 }, g = { &grad, 1, AMP_FLOAT32, 0 }, m[3];
    amp_optim_tensors list = AMP_OPTIM_TENSORS_INIT;
    list.n = 1, list.param = &p, list.grad = &g, list.steps = &steps;
    for (int k = 0; k < 3; k++) {
        m[k] = (amp_span){ &moments[k], 1, AMP_FLOAT32, 0 };
        list.moments[k] = &m[k];
    }
    ck_ok(amp_optim_list(rule, &list));
    return param;
}

/* At the first step Adam's direction is g / (|g| + eps), Adagrad's too, and with g = eps that is 1/2 if eps is added to
 * the root, 0.7 if it is under it. The four roundings on the way cost at most 2^-22 of it. */
TEST(eps_is_added_to_the_root) {
    static const amp_optim_kind kinds[] = { AMP_OPTIM_ADAM, AMP_OPTIM_ADAMW, AMP_OPTIM_ADAGRAD, AMP_OPTIM_NOVOGRAD };
    for (size_t i = 0; i < 4; i++) {
        amp_optim rule = defaults(kinds[i]);
        rule.eps = 0.25;
        if (kinds[i] == AMP_OPTIM_NOVOGRAD) rule.flags = AMP_OPTIM_DECOUPLED;
        ck_assert_float_eq_tol(one(&rule, 1.0f, 0.25f, 0, 0.0f), 0.75f, 0x1p-22f);
    }
}

DIFFERENCE(first_step_takes_the_gradient_whole) {
    amp_optim rule = defaults(AMP_OPTIM_SGD);
    rule.momentum = 0.5, rule.dampening = 0.75;
    ck_assert(one(&rule, 1.0f, 1.0f, 0, 99.0f) == 0.5f);          /* what lies in the buffer is no momentum yet */
    ck_assert(one(&rule, 1.0f, 1.0f, 1, 1.0f) == 1.0f - 0.375f); /* 0.5 * (0.5 * 1 + 0.25 * 1) */
}

DIFFERENCE(zero_norms_leave_the_rate) {
    amp_optim lamb = defaults(AMP_OPTIM_LAMB), larc = defaults(AMP_OPTIM_LARC);
    lamb.weight_decay = 0.5, lamb.eps = 0.0, lamb.max_grad_norm = 0.0;
    ck_assert_float_eq_tol(one(&lamb, 0.0f, 3.0f, 0, 0.0f), -0.5f, 0x1p-21f); /* p 0: the rate is lr, u is 1 */
    lamb.eps = 1e-6;
    lamb.weight_decay = 0.0, lamb.flags |= AMP_OPTIM_NVLAMB;
    ck_assert(one(&lamb, 2.0f, 0.0f, 0, 0.0f) == 2.0f); /* u 0 */
    larc.weight_decay = 0.5;
    ck_assert(one(&larc, 2.0f, 0.0f, 0, 0.0f) == 1.5f);  /* g 0: weight decay still at lr */
    ck_assert(one(&larc, 0.0f, 1.0f, 0, 0.0f) == -0.5f); /* p 0: plain SGD */
}

/* Apex's NovoGrad divides the norm's mean by sqrt(1 - beta2^t) even where it began with the first norm, not with 0, and
 * so begins with small steps. Everything here is exact. */
TEST(novograd_corrects_both_means) {
    amp_optim rule = defaults(AMP_OPTIM_NOVOGRAD);
    rule.beta1 = 0.5, rule.beta2 = 0.75, rule.eps = 0.0;
    ck_assert(one(&rule, 1.0f, 4.0f, 0, 0.0f) == 0.75f); /* m 2 / 0.5, n 4 / 0.5: u is 1/2 */
    rule.flags |= AMP_OPTIM_INIT_ZERO;
    ck_assert(one(&rule, 1.0f, 4.0f, 0, 0.0f) == 0.5f); /* n 2 / 0.5: u is 1 */
    rule.flags = AMP_OPTIM_DECOUPLED | AMP_OPTIM_GRAD_AVERAGING;
    ck_assert(one(&rule, 1.0f, 4.0f, 0, 0.0f) == 0.75f); /* m 2, n 4 */
    rule.flags = 0;
    ck_assert(one(&rule, 1.0f, 4.0f, 0, 0.0f) == 0.5f); /* the paper's: m is g / n */
}

TEST_TIMES(nan_stays_with_its_element, N_RULES) {
    const char *name;
    const amp_optim rule = rule_of(_i, &name);
    const bool norms = rule.kind == AMP_OPTIM_LAMB || rule.kind == AMP_OPTIM_LARC || rule.kind == AMP_OPTIM_NOVOGRAD;
    OWN_TENSORS t;
    random_tensors(&t, &rule, (uint64_t)_i);
    t.grad[1][3] = NAN;
    ck_ok(amp_optim_list(&rule, &t.list));
    for (size_t i = 0; i < 7; i++)
        if (!norms)
            ck_assert_msg(isnan(t.param[1][i]) == (i == 3), "%s: element %zu is %g", name, i, (double)t.param[1][i]);
    ck_assert(isnan(t.param[1][3]));
    for (size_t i = 0; i < 300 && rule.kind != AMP_OPTIM_LAMB; i++) ck_assert(!isnan(t.param[2][i]));
}

/* beta^n by squaring: each multiplication rounds once, there are at most 2 log2(n) of them, and an error in a square is
 * doubled by the next: at most 2n units of 2^-53, while it is a normal number. */
TEST(powers) {
    static const double bases[] = { 0.9, 0.999, 0.5, 0.0, 0.99999 };
    for (size_t b = 0; b < 5; b++)
        for (uint64_t n = 0; n < 3000; n = n < 40 ? n + 1 : n * 2 + 1) {
            const long double want = powl((long double)bases[b], (long double)n);
            const long double error = fabsl((long double)amp__power(bases[b], n) - want);
            ck_assert_msg(error <= want * (long double)(2 * n + 1) * 0x1p-53L + 0x1p-1022L, "%g^%llu", bases[b],
                          (unsigned long long)n);
        }
    ck_assert(amp__power(0.999, UINT64_MAX) == 0.0);
    ck_assert(amp__power(0.5, 3) == 0.125);
}

TEST_TIMES(empty_lists_and_tensors, N_RULES) {
    const amp_optim rule = rule_of(_i, NULL);
    amp_optim_tensors list = AMP_OPTIM_TENSORS_INIT;
    ck_ok(amp_optim_list(&rule, &list));
    amp_span none = { NULL, 0, AMP_FLOAT32, 0 };
    float moment = 0.0f;
    amp_span scalar = { &moment, 1, AMP_FLOAT32, 0 };
    uint64_t steps = 4;
    list.n = 1, list.param = list.grad = list.moments[0] = list.moments[1] = list.moments[2] = &none,
    list.steps = &steps;
    if (rule.kind == AMP_OPTIM_NOVOGRAD) list.moments[1] = &scalar;
    ck_ok(amp_optim_list(&rule, &list));
    ck_assert_uint_eq(steps, 5);
}

/* ---- refusals: nothing is written ---- */

#define REFUSED(text, change)                                                                                          \
    do {                                                                                                               \
        amp_optim rule = defaults(AMP_OPTIM_ADAM);                                                                     \
        OWN_TENSORS t, before;                                                                                         \
        random_pair(&t, &before, &rule, 1);                                                                            \
        t.list.low = t.lows;                                                                                           \
        change;                                                                                                        \
        ck_assert_msg(amp_optim_list(&rule, &t.list) != AMP_OK, "accepted: " #change);                                 \
        ck_assert_msg(strstr(amp_last_error(), text) != NULL, "\"%s\" not in: %s", text, amp_last_error());            \
        for (size_t i = 0; i < N_TENSORS; i++)                                                                         \
            ck_assert(!memcmp(t.param[i], before.param[i], tensor_sizes[i] * sizeof(float)) && !t.steps[i]);           \
    } while (0)

TEST(wrong_tensors_are_refused) {
    REFUSED("grad is NULL", t.list.grad = NULL);
    REFUSED("param is NULL", t.list.param = NULL);
    REFUSED("steps is NULL", t.list.steps = NULL);
    REFUSED("n_steps is 2", t.list.n_steps = 2);
    REFUSED("exp_avg_sq", t.list.moments[1] = NULL);
    REFUSED("grad[3] has 5", t.grads[3].size = 5);
    REFUSED("fp64", t.params[3].dtype = AMP_FLOAT64);
    REFUSED("moments[0][3]", t.moment_spans[0][3].dtype = AMP_FLOAT16);
    REFUSED("moments[1][3].data", t.moment_spans[1][3].data = NULL);
    REFUSED("low[3]", t.lows[3].dtype = AMP_FLOAT32);
    REFUSED("low[3]", t.lows[3].size = 1);
    REFUSED("reserved", t.grads[3].reserved = 1);
    REFUSED("grad_factor", t.list.grad_factor = NAN);
    REFUSED("struct_size", t.list.struct_size = 8);
}

TEST(wrong_rules_are_refused) {
    REFUSED("kind 0", rule.kind = 0);
    REFUSED("kind 99", rule.kind = 99);
    REFUSED("struct_size", rule.struct_size = 0);
    REFUSED("lr is -1", rule.lr = -1.0);
    REFUSED("lr is nan", rule.lr = (double)NAN);
    REFUSED("beta1 is 1", rule.beta1 = 1.0);
    REFUSED("beta2", rule.beta2 = -0.1);
    REFUSED("eps", rule.eps = -1e-8);
    REFUSED("weight_decay", rule.weight_decay = (double)INFINITY);
    REFUSED("Adam has no AMP_OPTIM_NESTEROV", rule.flags |= AMP_OPTIM_NESTEROV);
    REFUSED("LARC has no AMP_OPTIM_DECOUPLED", rule = defaults(AMP_OPTIM_LARC); rule.flags |= AMP_OPTIM_DECOUPLED);
    REFUSED("unknown flags", rule.flags |= 1u << 30);
    REFUSED("AMP_OPTIM_NESTEROV needs", rule = defaults(AMP_OPTIM_SGD); rule.flags |= AMP_OPTIM_NESTEROV);
    REFUSED("trust_coefficient", rule = defaults(AMP_OPTIM_LARC); rule.trust_coefficient = 0.0);
    REFUSED("reserved", rule.reserved = 1);
}
