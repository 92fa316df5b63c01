/* SPDX-License-Identifier: Apache-2.0 */
/* With an optimizer of libamp's own a bracket's end only reads: gradients stay scaled until the step, or until somebody
 * looks. (That the numbers are the same either way is test_fused.c's.) */
#include "fused.h"

#include <fenv.h>

#define SCALE 64.0
#define GRAD 0.03125 /* exact in fp16, scaled and not */

static const struct {
    amp_level level;
    unsigned options;
} cases[] = { { AMP_O0, 0 }, { AMP_O1, 0 },           { AMP_O2, 0 }, { AMP_O5, 0 }, { AMP_O1, FAKE_NO_SET_GRAD },
              { AMP_O2, FAKE_NO_SET_GRAD }, { AMP_O2, FAKE_FP32_GRADS } };
enum { N_CASES = sizeof cases / sizeof *cases };

static void start(struct rig *rig, int i, amp_optim rule) {
    const amp_config config = CONFIG(cases[i].level, .loss_scale = AMP_DYNAMIC, .init_scale = (float)SCALE);
    fused_start(rig, rule, config, cases[i].options);
}

/* SGD, and a bracket that left its gradients. */
static void start_sgd(struct rig *rig, int i) {
    start(rig, i, optim_of(AMP_OPTIM_SGD, 0.5));
    ck_assert_int_eq(bracket(rig, GRAD, 0), AMP_STEP);
}

#define START_SGD(name, i) RIG(name); start_sgd(&name, i)

static double seen(const struct rig *rig) { return fake_get(rig->net.weight->grad, 0); }

static float master_value(struct rig *rig) {
    amp_master masters[3];
    masters_of(rig, masters);
    return *(float *)masters[0].data;
}

TEST_TIMES(gradients_stay_as_they_are_until_the_step, N_CASES) {
    RIG(rig);
    start(&rig, _i, optim_of(AMP_OPTIM_SGD, 0.125));
    for (int step = 0; step < 3; step++) {
        const uint64_t blocks = rig.host.calls[FAKE_ALLOC];
        float norm = 0.0f;
        ck_assert_int_eq(bracket(&rig, GRAD, 0), AMP_STEP);
        ck_assert(seen(&rig) == GRAD * SCALE);
        ck_ok(amp_clip_grad_norm(&rig.net.optimizer, 0.01f, &norm));
        ck_assert(norm > 0.01f && norm < 1.0f);
        ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
        ck_assert(seen(&rig) == GRAD * SCALE);
        ck_assert_uint_eq(rig.host.calls[FAKE_ALLOC], blocks); /* no master gradient was needed */
        ck_ok(amp_fused_zero_grad(&rig.net.optimizer));
    }
    ck_assert(master_value(&rig) < 0.5f && master_value(&rig) > 0.499f);
}

/* The norm is summed to nearest, whatever rounding the host has, which is its own again afterwards. */
TEST_TIMES(a_norm_leaves_the_hosts_rounding, N_CASES) {
    START_SGD(rig, _i);
    float upward = 0.0f, nearest = 0.0f;
    ck_ok(amp_clip_grad_norm(&rig.net.optimizer, 1e6f, &nearest));
    ck_assert_int_eq(fesetround(FE_UPWARD), 0);
    const amp_status status = amp_clip_grad_norm(&rig.net.optimizer, 1e6f, &upward);
    const volatile float small = 0x1p-30f, sum = 1.0f + small; /* fegetround does not look where floats are computed */
    fesetround(FE_TONEAREST);
    ck_assert_int_eq(status, AMP_OK);
    ck_assert(sum > 1.0f);
    ck_assert(upward == nearest);
}

TEST_TIMES(looking_unscales_once, N_CASES) {
    amp_master masters[3];
    START_SGD(rig, _i);
    for (int look = 0; look < 2; look++) {
        masters_of(&rig, masters);
        ck_assert(*(float *)masters[0].grad == (float)GRAD);
        ck_assert(seen(&rig) == GRAD);
    }
    ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    ck_assert(master_value(&rig) == 0.5f - 0.5f * (float)GRAD);
}

TEST_TIMES(a_second_bracket_unscales_first, N_CASES) {
    START_SGD(rig, _i);
    ck_assert_int_eq(bracket(&rig, GRAD, 0), AMP_STEP);
    /* what was set aside is added; what was scaled in place waits with the rest */
    ck_assert(seen(&rig) == (cases[_i].options & FAKE_NO_SET_GRAD ? 2.0 * GRAD * SCALE : 2.0 * GRAD));
    ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    ck_assert(master_value(&rig) == 0.5f - (float)GRAD);
}

/* A cancelled bracket gives back what waited, unscaled by then. */
TEST_TIMES(cancel_gives_the_gradient_back, N_CASES) {
    START_SGD(rig, _i);
    amp_scaled_loss scaled = rig_begin(&rig);
    add_grad(rig.net.weight, 1.0);
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    ck_assert(master_value(&rig) == 0.5f - 0.5f * (float)GRAD);
}

TEST(the_hosts_own_gradient_is_not_scaled) {
    START_SGD(rig, 2);
    fake_put_grad(rig.net.weight, fake_new(&rig.host, AMP_FLOAT16, NET_SIZE, 0.25));
    ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    ck_assert(master_value(&rig) == 0.5f - 0.5f * 0.25f);
}

/* What the host does to the scaled gradient is seen by the norm too: it is not the one that the bracket computed. */
TEST_TIMES(a_gradient_changed_in_place_has_another_norm, N_CASES) {
    float before = 0.0f, after = 0.0f;
    START_SGD(rig, _i);
    ck_ok(amp_clip_grad_norm(&rig.net.optimizer, 1e6f, &before));
    for (int k = 0; k < 3; k++) { /* as an average over two ranks */
        const struct fake_tensor *param = rig.net.trained[k];
        for (int64_t i = 0; i < NET_SIZE; i++) fake_set(param->grad, i, 0.5 * fake_get(param->grad, i));
    }
    ck_ok(amp_clip_grad_norm(&rig.net.optimizer, 1e6f, &after));
    ck_assert(after == 0.5f * before);
    ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    ck_assert(master_value(&rig) == 0.5f - 0.25f * (float)GRAD);
}

TEST_TIMES(shutdown_leaves_them_unscaled, N_CASES) {
    START_SGD(rig, _i);
    rig_stop(&rig);
    ck_assert(seen(&rig) == GRAD);
}

/* After an overflow fixed buffers are what they were, and a host that has its gradients made anew clears them. */
TEST_TIMES(an_overflow_is_found_by_reading, N_CASES) {
    RIG(rig);
    amp_action action = AMP_STEP;
    start(&rig, _i, optim_of(AMP_OPTIM_SGD, 0.5));
    ck_assert_int_eq(bracket(&rig, INF, 0), AMP_SKIP);
    const amp_record record = rig_record(&rig, 0);
    ck_assert_str_eq(record.first_nonfinite, "weight");
    ck_ok(amp_fused_step(&rig.net.optimizer, &action));
    ck_assert_int_eq(action, AMP_SKIP);
    if (cases[_i].options & FAKE_NO_SET_GRAD) ck_assert(seen(&rig) == 0.0);
    else ck_ok(amp_fused_zero_grad(&rig.net.optimizer));
    ck_assert(master_value(&rig) == 0.5f);
    ck_assert_int_eq(bracket(&rig, GRAD, 0), AMP_STEP);
    ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    ck_assert(master_value(&rig) == 0.5f - 0.5f * (float)GRAD);
}

/* LAMB's global norm and NovoGrad's norms, once from the bracket, once computed after somebody looked. */
TEST_TIMES(norms_of_the_bracket_are_the_steps, N_CASES) {
    static const amp_optim_kind kinds[] = { AMP_OPTIM_LAMB, AMP_OPTIM_NOVOGRAD, AMP_OPTIM_LARC };
    for (size_t k = 0; k < 3; k++) {
        struct rig rigs[2];
        amp_master a[3], b[3];
        amp_optim rule = optim_of(kinds[k], 0.125);
        if (kinds[k] == AMP_OPTIM_LAMB) rule.max_grad_norm = 0.05;
        for (int r = 0; r < 2; r++) {
            start(&rigs[r], _i, rule);
            for (int step = 0; step < 3; step++) {
                ck_assert_int_eq(bracket(&rigs[r], GRAD, 0), AMP_STEP);
                if (step == 1) ck_ok(amp_clip_grad_norm(&rigs[r].net.optimizer, 0.01f, NULL));
                if (r) masters_of(&rigs[r], a);
                ck_ok(amp_fused_step(&rigs[r].net.optimizer, NULL));
                ck_ok(amp_fused_zero_grad(&rigs[r].net.optimizer));
            }
        }
        masters_of(&rigs[0], a), masters_of(&rigs[1], b);
        for (int i = 0; i < 3; i++) ck_assert(!memcmp(a[i].data, b[i].data, NET_SIZE * sizeof(float)));
        rig_end(&rigs[0]), rig_end(&rigs[1]);
    }
}
