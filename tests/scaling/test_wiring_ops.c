/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that the first bracket saw no call of, or calls of in the wrong place. */
#include "findings.h"

/* It may use a part of it, but not none: then its calls do not come through it. */
TEST_TIMES(a_whole_table_without_a_call, 2) {
    RIG_START(rig, AMP_O1, 0);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    if (_i) fake_release(net_binary(&rig.net, OP_matmul, x, x));
    fake_release(x);
    ck_assert_int_eq(bracket(&rig, 0.5), AMP_STEP);
    ck_assert_uint_eq(found(rig.context, "AMP-M12"), !_i);
}

/* 0: none of it is called; 1: a part; 2: a backward without its forward; 3: one of two slots with the same name. */
TEST_TIMES(a_part_of_a_table_is_no_finding, 4) {
    RIG_INIT(rig, 0);
    rig.net.model.flags = 0;
    if (_i == 2) rig.net.ops[OP_mul].backward_of = "matmul";
    if (_i == 3) rig.net.ops[OP_add].name = "mul", rig.net.ops[OP_add].schema = rig.net.ops[OP_mul].schema;
    rig_wire(&rig, CONFIG(AMP_O1, .verify = AMP_ON));
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    if (_i) fake_release(net_linear(&rig.net, x, x, NULL));
    if (_i > 1) fake_release(net_binary(&rig.net, OP_mul, x, x));
    fake_release(x);
    ck_assert_int_eq(bracket(&rig, 0.5), AMP_STEP);
    ck_assert_uint_eq(found(rig.context, "AMP-M12"), _i != 1);
    if (_i == 2) ck_health(&rig, "1 wrapped op saw no call in the first bracket: matmul: ");
    if (_i == 3) ck_health(&rig, "1 wrapped op saw no call in the first bracket: mul: ");
    ck_health(&rig, "without a call: ");
}

/* A table has batch norm's op, and the model has no batch norm. */
TEST_TIMES(a_norm_that_nobody_calls_is_no_finding, 2) {
    RIG_INIT(rig, 0);
    for (int i = 0; i < NET_PARAMS; i++) rig.net.params[i].module_kind = AMP_MODULE_OTHER;
    rig.net.ops[OP_relu].name = "batch_norm";
    rig_wire(&rig, config_of(AMP_O2));
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    if (_i) fake_release(net_unary(&rig.net, OP_relu, x));
    fake_release(x);
    ck_assert_int_eq(bracket(&rig, 0.5), AMP_STEP);
    ck_assert_uint_eq(found(rig.context, "AMP-M64"), (unsigned)_i);
    if (_i) ck_health(&rig, "op batch_norm was called, and none of ");
}

/* 0: the first parameter is batch norm's; 1: batch norm may be 16-bit; 2: another op was called; 3: the level re-types
 * nothing; 4: there is no parameter; 5: a finding, of the table's first op. */
TEST_TIMES(a_norm_that_is_said_or_need_not_be, 6) {
    RIG_INIT(rig, 0);
    const enum net_op norm = _i == 5 ? OP_linear : OP_relu;
    for (int i = 0; i < NET_PARAMS; i++) rig.net.params[i].module_kind = AMP_MODULE_OTHER;
    if (!_i) rig.net.params[0].module_kind = AMP_MODULE_BATCH_NORM;
    if (_i == 4) rig.net.model.n_params = rig.net.optimizer.n_params = 0;
    rig.net.ops[norm].name = "batch_norm";
    rig_wire(&rig, CONFIG(_i == 3 ? AMP_O1 : AMP_O2, .verify = AMP_ON,
                          .keep_batchnorm_fp32 = _i == 1 ? AMP_OFF : AMP_DEFAULT));
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    if (_i == 2) fake_release(net_binary(&rig.net, OP_matmul, x, x));
    else if (_i == 5) fake_release(net_linear(&rig.net, x, x, NULL));
    else fake_release(net_unary(&rig.net, OP_relu, x));
    fake_release(x);
    amp_scaled_loss scaled = rig_begin(&rig);
    if (_i != 4) add_grad(rig.net.weight, 0.5 * fake_seed(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(found(rig.context, "AMP-M64") != 0, _i == 5);
}

/* 0: all calls were in another context's scope; 1: all but one; 2: all were of an op that the policy leaves alone. */
TEST_TIMES(calls_in_another_contexts_scope, 3) {
    amp_scope scope;
    RIG_START(other, AMP_O1, 0);
    RIG_INIT(rig, 0);
    rig.net.ops[OP_sum].op_class = AMP_LEAVE;
    rig_wire(&rig, CONFIG(AMP_O1, .verify = _i == 2 ? AMP_ON : AMP_OFF));
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    ck_ok(amp_scope_enter(other.context, &scope));
    for (int i = 0; i < 2; i++)
        fake_release(_i == 2 ? net_unary(&rig.net, OP_sum, x) : net_binary(&rig.net, OP_matmul, x, x));
    ck_ok(amp_scope_leave(&scope));
    if (_i == 1) fake_release(net_binary(&rig.net, OP_matmul, x, x));
    fake_release(x);
    ck_assert_int_eq(bracket(&rig, 0.5), AMP_STEP);
    ck_assert_int_eq(found(rig.context, "AMP-M17") != 0, !_i);
    if (!_i)
        ck_health(&rig, "no call of the context's ops in its first bracket was inside its scope, and outside it were "
                  "2");
}
