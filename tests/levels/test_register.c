/* SPDX-License-Identifier: Apache-2.0 */
/* amp_register: the user's word wins over the lists. */
#include "checks.h"

static amp_class class_of(struct rig *rig, enum net_op op) { return rig_stats(rig, op).op_class; }

static void start(struct rig *rig) { rig_wire(rig, config_of(AMP_O1)); }

DIFFERENCE(a_registration_wins_over_the_list) {
    RIG_INIT(rig, FAKE_RETAINS);
    ck_ok(amp_register(&rig.net.model, "softmax", AMP_LOWER));
    start(&rig);
    ck_assert_int_eq(class_of(&rig, OP_softmax), AMP_LOWER);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    fake_release(net_unary(&rig.net, OP_softmax, x));
    ck_assert_int_eq(fake_last(&rig.host)->dtypes[0], AMP_FLOAT16);
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 1); /* Apex: to half, and back to float by the list */
}

DIFFERENCE(a_registration_is_the_models_own) {
    RIG_INIT(a, FAKE_RETAINS);
    RIG_INIT(b, FAKE_RETAINS);
    ck_ok(amp_register(&a.net.model, "relu", AMP_LOWER));
    start(&a);
    start(&b);
    ck_assert_int_eq(class_of(&a, OP_relu), AMP_LOWER);
    ck_assert_int_eq(class_of(&b, OP_relu), AMP_LEAVE);
}

TEST_TIMES(every_class_can_be_registered, 6) {
    const amp_class op_class = AMP_LOWER + _i;
    RIG_INIT(rig, FAKE_RETAINS);
    ck_ok(amp_register(&rig.net.model, "relu", op_class));
    start(&rig);
    ck_assert_int_eq(class_of(&rig, OP_relu), op_class);
}

TEST(a_class_in_the_descriptor_wins_over_the_list) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.ops[OP_linear].op_class = AMP_LEAVE;
    start(&rig);
    ck_assert_int_eq(class_of(&rig, OP_linear), AMP_LEAVE);
    ck_assert(rig.net.table[OP_linear] == rig.net.original[OP_linear]);
}

DIFFERENCE(a_banned_op_can_be_allowed) {
    RIG_INIT(rig, FAKE_RETAINS);
    ck_ok(amp_register(&rig.net.model, "binary_cross_entropy", AMP_FP32));
    start(&rig);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT16, 0.5);
    ck_assert_int_eq(net_bce(&rig.net, x, x), 7);
    ck_assert_int_eq(fake_last(&rig.host)->dtypes[0], AMP_FLOAT32);
}

TEST(an_alias_is_found) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.ops[OP_relu].aliases = "clamp_min, aten::relu";
    ck_ok(amp_register(&rig.net.model, "clamp_min", AMP_FP32));
    start(&rig);
    ck_assert_int_eq(class_of(&rig, OP_relu), AMP_FP32);
}

TEST(all_ops_of_the_name_are_written) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.ops[OP_sum].name = "relu";
    ck_ok(amp_register(&rig.net.model, "relu", AMP_FP32));
    ck_assert_int_eq(rig.net.ops[OP_sum].op_class, AMP_FP32);
    ck_assert_int_eq(rig.net.ops[OP_relu].op_class, AMP_FP32);
}

/* Behind the first of that name; what is the backward of one is none. As amp_op_stats.index and the messages count. */
TEST_TIMES(an_index_picks_one, 2) {
    const enum net_op first = _i ? OP_add : OP_relu, second = _i ? OP_relu : OP_sum;
    RIG_INIT(rig, FAKE_RETAINS);
    ck_fails(AMP_ERR_NOT_FOUND, amp_register(&rig.net.model, "relu#1", AMP_FP32)); /* beyond the last */
    ck_assert_int_eq(rig.net.ops[OP_relu].op_class, AMP_BY_LIST);
    rig.net.ops[OP_matmul].name = "relu_backward";
    rig.net.ops[OP_matmul].backward_of = "relu";
    rig.net.ops[first].name = rig.net.ops[second].name = "relu";
    ck_ok(amp_register(&rig.net.model, "relu#1", AMP_FP32));
    ck_assert_int_eq(rig.net.ops[first].op_class, AMP_BY_LIST);
    ck_assert_int_eq(rig.net.ops[second].op_class, AMP_FP32);
}

TEST(backward_ops_follow_their_forward) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.ops[OP_sum].name = "relu_backward";
    rig.net.ops[OP_sum].backward_of = "relu";
    ck_ok(amp_register(&rig.net.model, "relu", AMP_FP32));
    start(&rig);
    ck_assert_int_eq(class_of(&rig, OP_sum), AMP_FP32);
}

/* Left where it says so: "the class to use whatever the lists say". */
TEST_TIMES(backward_ops_share_a_listed_class, 2) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.ops[OP_relu].name = "linear_backward";
    rig.net.ops[OP_relu].backward_of = "linear";
    if (_i) rig.net.ops[OP_relu].op_class = AMP_LEAVE;
    start(&rig);
    ck_assert_int_eq(class_of(&rig, OP_relu), _i ? AMP_LEAVE : AMP_LOWER);
}

TEST(backward_of_must_name_an_op) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.ops[OP_relu].backward_of = "conv2d";
    ck_refused(AMP_ERR_NOT_FOUND, "conv2d", rig_try(&rig, config_of(AMP_O1)));
    ck_says("relu");
}

DIFFERENCE(two_different_registrations_conflict) {
    RIG_INIT(rig, FAKE_RETAINS);
    ck_ok(amp_register(&rig.net.model, "relu", AMP_FP32));
    ck_fails(AMP_ERR_CONFLICT, amp_register(&rig.net.model, "relu", AMP_LOWER));
    ck_says("op relu is registered as fp32 already and cannot also be lower");
    ck_assert_int_eq(rig.net.ops[OP_relu].op_class, AMP_FP32);
    ck_ok(amp_register(&rig.net.model, "relu", AMP_FP32)); /* saying it again is no conflict */
}

TEST(a_conflict_writes_nothing) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.ops[OP_add].name = "relu";
    ck_ok(amp_register(&rig.net.model, "relu#1", AMP_FP32));
    ck_fails(AMP_ERR_CONFLICT, amp_register(&rig.net.model, "relu", AMP_LOWER));
    ck_assert_int_eq(rig.net.ops[OP_add].op_class, AMP_BY_LIST);
}

TEST(an_unknown_name_suggests_the_nearest) {
    RIG_INIT(rig, FAKE_RETAINS);
    ck_refused(AMP_ERR_NOT_FOUND, "sofmax", amp_register(&rig.net.model, "sofmax", AMP_FP32));
    ck_says("softmax");
    rig.net.model.n_ops = 0; /* and there is none */
    ck_fails(AMP_ERR_NOT_FOUND, amp_register(&rig.net.model, "relu", AMP_FP32));
}

TEST_TIMES(bad_arguments_are_refused, 10) {
    static const struct {
        const char *op;
        amp_class op_class;
    } bad[] = { { "relu", 0 }, { "relu", 7 }, { "relu", -1 }, { "", 1 }, { "#1", 1 }, { "relu#", 1 }, { "relu#x", 1 },
                { "relu#-1", 1 }, { "relu#1x", 1 }, { NULL, 1 } };
    RIG_INIT(rig, FAKE_RETAINS);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_register(&rig.net.model, bad[_i].op, bad[_i].op_class));
    ck_assert_int_eq(rig.net.ops[OP_relu].op_class, AMP_BY_LIST);
}

TEST(registering_after_initialize_is_refused) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_refused(AMP_ERR_WRONG_STATE, "before", amp_register(&rig.net.model, "relu", AMP_FP32));
}
