/* SPDX-License-Identifier: Apache-2.0 */
/* Weights in 16 bits that stand still, and gradients that vanish in fp16: told by amp_health, and not of trainings that
 * are right. */
#include "findings.h"
#include "levels.h"

static void start(struct rig *rig, amp_level level, amp_switch masters, float scale) {
    rig_init(rig, 0);
    rig_wire(rig, CONFIG(level, .loss_scale = scale, .master_weights = masters, .log = AMP_LOG_OFF));
}

/* Steps with these gradients, times the scale: even elements get the first one. */
static void steps(struct rig *rig, int n, double even, double odd) {
    for (int i = 0; i < n; i++) {
        amp_scaled_loss scaled = rig_begin(rig);
        if (!rig->net.weight->grad)
            fake_put_grad(rig->net.weight, fake_new(rig->net.weight->host, fake_dtype(rig->net.weight), NET_SIZE, 0.0));
        for (int64_t k = 0; k < NET_SIZE; k++)
            fake_set(rig->net.weight->grad, k, (k % 2 ? odd : even) * fake_seed(&scaled));
        ck_ok(amp_scale_loss_end(&scaled));
        ck_assert_int_eq(net_step(&rig->net), 1);
        net_zero_grad(&rig->net);
    }
}

/* Weights of 0.5 with a rate of 1/8: a gradient of 1e-4 is lost in fp16, one of 1e-2 is not; in bfloat16 both are. */
TEST_TIMES(updates_lost_are_told_with_their_share, N_EACH_LEVEL) {
    const amp_level level = each_level[_i];
    RIG(rig);
    start(&rig, level, level_retypes(level) ? AMP_OFF : AMP_DEFAULT, 1.0f);
    steps(&rig, 20, 1e-4, 0.5);
    ck_assert_msg(!strstr(health(rig.context), "AMP-M89"), "%s", health(rig.context)); /* too early */
    steps(&rig, 20, 1e-4, 0.5);
    if (!level_retypes(level)) { /* its weights are FP32 */
        ck_assert_msg(!strstr(health(rig.context), "AMP-M89"), "%s", health(rig.context));
        return;
    }
    ck_health(&rig, "AMP-M89 parameter weight: 2 of 4 sampled elements of its ");
    ck_health(&rig, " weights never moved in 40 steps, although their gradients are not 0");
    ck_assert_uint_eq(found(rig.context, "AMP-M89"), 1);
}

/* Masters keep what rounding takes; elements without gradients may stand; so may weights at first. */
TEST_TIMES(weights_that_move_are_not_told, 4) {
    RIG(rig);
    start(&rig, _i == 0 ? AMP_O2 : AMP_O3, _i == 0 ? AMP_ON : AMP_OFF, 1.0f);
    steps(&rig, _i == 3 ? 300 : 40, _i == 1 ? 0.0 : _i == 2 ? 0.5 : 1e-4, 0.25);
    ck_assert_uint_eq(found(rig.context, "AMP-M89"), _i == 3); /* after 256 brackets without being asked */
    ck_assert_int_eq(strstr(health(rig.context), "AMP-M89") != NULL, _i == 3);
}

/* Half is 0, and the rest is at fp16's end. */
TEST(gradients_that_underflow_are_told) {
    RIG(rig);
    start(&rig, AMP_O3, AMP_DEFAULT, 1.0f);
    steps(&rig, 40, 1e-9, 3e-7);
    ck_health(&rig, "AMP-M90 parameter weight: 50 % of its sampled gradients are 0, and 100 % of the others are "
                    "subnormal in fp16");
    ck_health(&rig, "at a loss scale of 1");
    ck_health(&rig, "amp_config.loss_scale = AMP_DYNAMIC");
}

/* A scale lifts them; zeros of a ReLU stand beside numbers of any size; bfloat16 holds them; FP32 does. */
TEST_TIMES(gradients_that_are_zero_for_another_reason_are_not_told, 4) {
    RIG(rig);
    start(&rig, _i == 2 ? AMP_O5 : _i == 3 ? AMP_O0 : AMP_O3, AMP_OFF, _i ? 1.0f : 65536.0f);
    steps(&rig, 40, _i == 1 ? 0.0 : 1e-9, _i == 1 ? 1e-3 : 3e-7);
    ck_assert_msg(!strstr(health(rig.context), "AMP-M90"), "%s", health(rig.context));
}

/* Skips: the first cause, and that the scale cannot fall. */
TEST(skips_are_told_with_their_first_cause) {
    RIG(rig);
    rig_init(&rig, 0);
    rig_wire(&rig, CONFIG(AMP_O2, .loss_scale = AMP_DYNAMIC, .init_scale = 4.0f, .min_scale = 1.0f,
                          .max_skips = UINT32_MAX, .log = AMP_LOG_OFF));
    for (int i = 0; i < 12; i++) ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
    ck_health(&rig, "AMP-M85 loss 0: 12 of 12 steps were skipped, 12 in a row at the end, and the loss scale is 1, its "
                    "floor (min_scale): no skip lowers it; the first gradient that was not finite is that of weight");
}

/* Positions in a buffer that is cast: whole numbers above 2048 (256) merge. Statistics and small numbers do not. */
TEST_TIMES(whole_numbers_that_merge_are_told, 6) {
    static const double firsts[6] = { 3001.0, 2041.0, 3000.5, 301.0, 249.0, 0.0 };
    RIG(rig);
    rig_init(&rig, 0);
    for (int64_t i = 0; i < NET_SIZE; i++) fake_set(rig.net.mean, i, firsts[_i] + (_i == 2 ? 1.0 : 2.0) * (double)i);
    rig_wire(&rig, CONFIG(_i < 3 ? AMP_O2 : AMP_O5, .keep_batchnorm_fp32 = AMP_OFF, .log = AMP_LOG_OFF));
    ck_assert_uint_eq(found(rig.context, "AMP-M91"), _i == 0 || _i == 3);
    if (_i == 0) ck_health(&rig, "AMP-M91 mean: 4 of its 4 whole numbers change in fp16");
}
