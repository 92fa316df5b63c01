/* SPDX-License-Identifier: Apache-2.0 */
#include "differences.h"

#include "amp_optim.h"

/* One tensor of four elements. */
struct one {
    float grad[4], param[4], moments[3][4];
    uint16_t low[4];
    uint64_t steps;
    amp_span grad_span, param_span, low_span, moment_spans[3];
    amp_optim_tensors list;
};

static void one_init(struct one *t, const amp_optim *rule, float param, float grad) {
    memset(t, 0, sizeof *t);
    for (int i = 0; i < 4; i++) t->param[i] = param, t->grad[i] = grad;
    t->grad_span = (amp_span){ t->grad, 4, AMP_FLOAT32, 0 };
    t->param_span = (amp_span){ t->param, 4, AMP_FLOAT32, 0 };
    t->low_span = (amp_span){ t->low, 4, AMP_BFLOAT16, 0 };
    t->list = (amp_optim_tensors){ .struct_size = sizeof t->list, .n = 1, .grad = &t->grad_span, .param = &t->param_span,
                                   .steps = &t->steps };
    for (int k = 0; k < 3; k++) {
        const bool scalar = rule->kind == AMP_OPTIM_NOVOGRAD && k == 1;
        t->moment_spans[k] = (amp_span){ t->moments[k], scalar ? 1 : 4, AMP_FLOAT32, 0 };
        t->list.moments[k] = &t->moment_spans[k];
    }
}

static amp_optim rule_of(amp_optim_kind kind) {
    amp_optim rule = AMP_OPTIM_INIT;
    ck_ok(amp_optim_defaults(kind, &rule));
    rule.lr = 0.5;
    return rule;
}

START_TEST(first_step_is_each_tensors_own) {
    amp_optim rule = rule_of(AMP_OPTIM_SGD);
    struct one fresh, old;
    rule.momentum = 0.5;
    rule.dampening = 0.5;
    one_init(&fresh, &rule, 1.0f, 1.0f);
    one_init(&old, &rule, 1.0f, 1.0f);
    old.steps = 7;
    const amp_span grads[] = { fresh.grad_span, old.grad_span }, params[] = { fresh.param_span, old.param_span };
    const amp_span moments[] = { fresh.moment_spans[0], old.moment_spans[0] };
    uint64_t steps[] = { 0, 7 };
    amp_optim_tensors list = AMP_OPTIM_TENSORS_INIT;
    list.n = 2, list.grad = grads, list.param = params, list.moments[0] = moments, list.steps = steps;
    ck_ok(amp_optim_list(&rule, &list));
    ck_assert(fresh.moments[0][0] == 1.0f && old.moments[0][0] == 0.5f);
}
END_TEST

START_TEST(amsgrad_and_steps_of_each_parameter) {
    amp_optim rule = rule_of(AMP_OPTIM_ADAM);
    struct one t;
    rule.flags |= AMP_OPTIM_AMSGRAD;
    one_init(&t, &rule, 1.0f, 4.0f);
    ck_ok(amp_optim_list(&rule, &t.list));
    const float largest = t.moments[2][0];
    t.grad[0] = 0.0f;
    ck_ok(amp_optim_list(&rule, &t.list));
    ck_assert(t.moments[1][0] < largest && t.moments[2][0] == largest);
    ck_assert_uint_eq(t.steps, 2);
}
END_TEST

START_TEST(overflow_holds_every_rule_back) {
    const float found_inf = 1.0f;
    for (amp_optim_kind kind = AMP_OPTIM_SGD; kind <= AMP_OPTIM_LARC; kind++) {
        const amp_optim rule = rule_of(kind);
        struct one t;
        one_init(&t, &rule, 1.0f, 1.0f);
        t.list.found_inf = &found_inf;
        ck_ok(amp_optim_list(&rule, &t.list));
        ck_assert(t.param[0] == 1.0f && t.moments[0][0] == 0.0f && t.steps == 0);
        t.list.found_inf = NULL;
        ck_ok(amp_optim_list(&rule, &t.list));
        ck_assert(t.param[0] < 1.0f && t.steps == 1);
    }
}
END_TEST

/* The square of 2^-20 is nothing in fp16. */
START_TEST(gradients_are_read_moments_are_fp32) {
    const amp_optim_kind kinds[] = { AMP_OPTIM_LAMB, AMP_OPTIM_ADAGRAD };
    for (size_t i = 0; i < 2; i++) {
        const amp_optim rule = rule_of(kinds[i]);
        struct one t;
        one_init(&t, &rule, 1.0f, 0x1p-20f);
        t.param_span = (amp_span){ t.low, 4, AMP_FLOAT16, 0 };
        ck_ok(amp_optim_list(&rule, &t.list));
        ck_assert(t.grad[0] == 0x1p-20f && t.moments[kinds[i] == AMP_OPTIM_LAMB][0] > 0.0f);
    }
}
END_TEST

START_TEST(larc_decays_where_a_norm_is_zero) {
    amp_optim rule = rule_of(AMP_OPTIM_LARC);
    struct one t;
    rule.weight_decay = 0.5;
    one_init(&t, &rule, 1.0f, 0.0f);
    ck_ok(amp_optim_list(&rule, &t.list));
    ck_assert(t.param[0] == 0.75f);
}
END_TEST

START_TEST(bfloat16_in_every_rule) {
    for (amp_optim_kind kind = AMP_OPTIM_SGD; kind <= AMP_OPTIM_LARC; kind++) {
        const amp_optim rule = rule_of(kind);
        struct one t;
        one_init(&t, &rule, 1.0f, 1.0f);
        t.list.low = &t.low_span;
        ck_ok(amp_optim_list(&rule, &t.list));
        ck_assert(t.low[0] == amp_float_to_bfloat16(t.param[0]) && t.low[0] != amp_float_to_bfloat16(1.0f));
    }
}
END_TEST

START_TEST(lamb_without_a_limit_sees_its_gradients) {
    amp_optim rule = rule_of(AMP_OPTIM_LAMB);
    struct one t;
    rule.max_grad_norm = 0.0;
    one_init(&t, &rule, 1.0f, 3.0f);
    ck_ok(amp_optim_list(&rule, &t.list));
    ck_assert(t.moments[0][0] == 3.0f * (float)(1.0 - rule.beta1));
}
END_TEST

START_TEST(novograd_keeps_the_l2_norm) {
    const amp_optim rule = rule_of(AMP_OPTIM_NOVOGRAD);
    struct one t;
    one_init(&t, &rule, 1.0f, 3.0f);
    ck_ok(amp_optim_list(&rule, &t.list));
    ck_assert(t.moments[1][0] == 6.0f); /* of four threes */
}
END_TEST

void add_optimizers(TCase *tcase) {
    tcase_add_test(tcase, first_step_is_each_tensors_own);
    tcase_add_test(tcase, amsgrad_and_steps_of_each_parameter);
    tcase_add_test(tcase, overflow_holds_every_rule_back);
    tcase_add_test(tcase, gradients_are_read_moments_are_fp32);
    tcase_add_test(tcase, larc_decays_where_a_norm_is_zero);
    tcase_add_test(tcase, bfloat16_in_every_rule);
    tcase_add_test(tcase, lamb_without_a_limit_sees_its_gradients);
    tcase_add_test(tcase, novograd_keeps_the_l2_norm);
}
