/* SPDX-License-Identifier: Apache-2.0 */
/* amp_get_memory and amp_predict_memory: what is said to be taken is taken, and what was predicted comes true. */
#include "../scaling/bracket.h"
#include "levels.h"

#include <amp_all.h>

static amp_memory memory_of(amp_context *context) {
    amp_memory now = AMP_MEMORY_INIT;
    ck_ok(amp_get_memory(context, &now));
    return now;
}

TEST_TIMES(what_is_predicted_comes_true, N_EACH_LEVEL) {
    const amp_level level = each_level[_i];
    amp_memory predicted = AMP_MEMORY_INIT;
    RIG_START(before, AMP_O0, 0);
    ck_ok(amp_predict_memory(before.context, level, &predicted));
    RIG_START(rig, level, 0);
    for (int i = 0; i < 3; i++) ck_ok(net_train_step(&rig.net, 0.5));
    const amp_memory now = memory_of(rig.context);
    ck_assert_int_eq(now.level, level);
    ck_assert_int_eq(predicted.level, level);
    ck_assert_uint_eq(now.weights, predicted.weights);
    ck_assert_uint_eq(now.gradients, predicted.gradients);
    ck_assert_uint_eq(now.masters, predicted.masters);
    ck_assert_uint_eq(now.master_gradients, predicted.master_gradients);
    ck_assert_uint_gt(now.weights, 0);
}

/* libamp's own optimizer reads 16-bit gradients: masters have none. */
TEST(fused_steps_need_no_master_gradients) {
    amp_memory predicted = AMP_MEMORY_INIT;
    amp_optim rule = AMP_OPTIM_INIT;
    amp_fused fused = AMP_FUSED_INIT;
    ck_ok(amp_optim_defaults(AMP_OPTIM_ADAM, &rule));
    fused.groups = &rule, fused.n_groups = 1;
    RIG_INIT(rig, 0);
    rig.net.optimizer.fused = &fused;
    rig.net.optimizer.n_steps = rig.net.optimizer.n_zero_grads = 0;
    ck_ok(rig_try(&rig, config_of(AMP_O2)));
    for (int i = 0; i < 3; i++) {
        (void)bracket(&rig, 0x1p-10);
        ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
        ck_ok(amp_fused_zero_grad(&rig.net.optimizer));
    }
    ck_ok(amp_predict_memory(rig.context, AMP_O2, &predicted));
    const amp_memory now = memory_of(rig.context);
    ck_assert(now.masters == predicted.masters && now.masters > 0);
    ck_assert(now.master_gradients == 0 && predicted.master_gradients == 0);
}

/* The advice on split masters names what they take. */
TEST(split_masters_take_what_was_predicted) {
    amp_memory predicted = AMP_MEMORY_INIT;
    RIG_START(before, AMP_O5, 0);
    ck_ok(amp_predict_memory(before.context, AMP_O5, &predicted));
    ck_assert_uint_eq(memory_of(before.context).masters_split, predicted.masters_split);
    RIG_WITH(rig, 0, AMP_O5, .master_weights = AMP_SPLIT);
    const amp_memory now = memory_of(rig.context);
    ck_assert_uint_eq(now.masters, predicted.masters_split);
    ck_assert_uint_eq(now.masters_split, predicted.masters_split);
    ck_assert_uint_lt(now.masters, predicted.masters);

    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    options.every = 1;
    ck_ok(amp_observe(before.context, &options));
    ck_ok(net_train_step(&before.net, 0.5));
    ck_ok(amp_survey(before.context, &result));
    ck_assert_msg(strstr(result.text, "memory: at O5 split masters (master_weights = AMP_SPLIT)"), "%s", result.text);
}

/* Casts of weights and inputs live until the iteration is over, and are gone then. */
TEST_TIMES(casts_are_counted_while_they_live, N_EACH_LEVEL) {
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    RIG_START(rig, each_level[_i], 0);
    ck_ok(net_train_step(&rig.net, 0.5));
    ck_assert_uint_eq(memory_of(rig.context).most_casts, 0); /* nobody asked */
    options.every = 1;
    ck_ok(amp_observe(rig.context, &options));
    for (int i = 0; i < 3; i++) ck_ok(net_train_step(&rig.net, 0.5));
    ck_ok(amp_tape_done(rig.context));
    ck_ok(amp_cache_clear(rig.context));
    const amp_memory now = memory_of(rig.context);
    if (level_casts_ops(each_level[_i])) {
        ck_assert_uint_ge(now.most_casts, NET_SIZE * 2); /* the weight, once */
        ck_assert_uint_le(now.most_casts, 64 * NET_SIZE);
    }
    ck_assert_uint_eq(now.casts, 0);
}

TEST(outputs_are_those_of_an_iteration) {
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    amp_memory fp32 = AMP_MEMORY_INIT, o1 = AMP_MEMORY_INIT;
    amp_config config = config_of(AMP_O0);
    config.observe = AMP_ON;
    options.every = 1;
    RIG_INIT(rig, 0);
    ck_ok(rig_config(&rig, &config));
    ck_ok(amp_observe(rig.context, &options));
    ck_ok(net_train_step(&rig.net, 0.5));
    const uint64_t once = memory_of(rig.context).outputs;
    ck_assert_uint_gt(once, 0);
    ck_ok(net_train_step(&rig.net, 0.5));
    ck_assert_uint_eq(memory_of(rig.context).outputs, once);
    ck_ok(amp_predict_memory(rig.context, AMP_O0, &fp32));
    ck_ok(amp_predict_memory(rig.context, AMP_O1, &o1));
    ck_assert_uint_eq(fp32.outputs, once);
    ck_assert_uint_lt(o1.outputs, once);
    ck_assert_uint_eq(fp32.casts, 0);
    ck_assert_uint_gt(o1.casts, 0);
}

TEST(moments_of_libamps_own_are_counted) {
    amp_optim adam = AMP_OPTIM_INIT;
    ck_ok(amp_optim_defaults(AMP_OPTIM_ADAM, &adam));
    const amp_fused fused = { sizeof fused, 0, &adam, 1, NULL, 0 };
    RIG_INIT(rig, 0);
    rig.net.optimizer.fused = &fused;
    rig.net.optimizer.n_steps = rig.net.optimizer.n_zero_grads = 0;
    rig_wire(&rig, config_of(AMP_O2));
    amp_memory now = memory_of(rig.context);
    ck_assert_uint_eq(now.moments, 3 * 2 * NET_SIZE * sizeof(float)); /* of three parameters, one of them a norm's */
}

TEST(what_cannot_be_is_refused) {
    amp_memory memory = AMP_MEMORY_INIT;
    RIG_START(rig, AMP_O1, 0);
    ck_assert_int_eq(amp_get_memory(NULL, &memory), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_get_memory(rig.context, NULL), AMP_ERR_INVALID_ARGUMENT);
    ck_says("memory is NULL");
    ck_assert_int_eq(amp_predict_memory(rig.context, (amp_level)77, &memory), AMP_ERR_INVALID_ARGUMENT);
    memory.struct_size = 3;
    ck_assert_int_ne(amp_get_memory(rig.context, &memory), AMP_OK);
}
