/* SPDX-License-Identifier: Apache-2.0 */
/* O1 and O4 through the host's own slots: what the ops really receive. */
#include "../support/levels.h"
#include "checks.h"

/* The types the last op got. */
static void ck_received(const struct rig *rig, const char *op, unsigned n, amp_dtype a, amp_dtype b) {
    const struct fake_call *call = fake_last(&rig->host);
    ck_assert_str_eq(call->op, op);
    ck_assert_uint_eq(call->n, n);
    ck_assert_int_eq(call->dtypes[0], a);
    if (n > 1) ck_assert_int_eq(call->dtypes[1], b);
}

DIFFERENCE_TIMES(linear_runs_in_the_low_type, N_CASTING_LEVELS) {
    const amp_level level = level_where(level_casts_ops, _i);
    const amp_dtype low = level_low(level);
    RIG_START(rig, level, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    OWN_TENSOR *y = net_linear(&rig.net, x, rig.net.weight, rig.net.bias);
    ck_received(&rig, "linear", 3, low, low);
    ck_assert_int_eq(fake_last(&rig.host)->dtypes[2], low);
    ck_dtype(y, low);
    ck_assert_double_eq(fake_get(y, 0), 1.25);
}

TEST(an_optional_tensor_may_be_null) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0), *y = net_linear(&rig.net, x, rig.net.weight, NULL);
    ck_received(&rig, "linear", 2, AMP_FLOAT16, AMP_FLOAT16);
}

static const struct {
    amp_dtype a, b, both;
} promotions[] = {
    { AMP_FLOAT16, AMP_FLOAT32, AMP_FLOAT32 },  { AMP_FLOAT16, AMP_FLOAT16, AMP_FLOAT16 },
    { AMP_FLOAT16, AMP_BFLOAT16, AMP_FLOAT32 }, { AMP_FLOAT16, AMP_FLOAT64, AMP_FLOAT64 },
    { AMP_BFLOAT16, AMP_FLOAT32, AMP_FLOAT32 }, { AMP_FLOAT32, AMP_FLOAT64, AMP_FLOAT64 },
    { AMP_BFLOAT16, AMP_FLOAT64, AMP_FLOAT64 },
};
enum { N_PROMOTIONS = sizeof promotions / sizeof promotions[0] };

DIFFERENCE_TIMES(add_promotes_to_the_widest, N_PROMOTIONS) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *a = rig_tensor(&rig, promotions[_i].a, 1.0), *b = rig_tensor(&rig, promotions[_i].b, 2.0);
    OWN_TENSOR *c = net_binary(&rig.net, OP_add, a, b);
    ck_received(&rig, "add", 2, promotions[_i].both, promotions[_i].both);
    ck_assert_double_eq(fake_get(c, 0), 3.0);
}

TEST(integers_are_left_alone) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *a = rig_tensor(&rig, AMP_FLOAT16, 1.0), *b = rig_tensor(&rig, AMP_DTYPE_OTHER, 2.0);
    OWN_TENSOR *c = net_binary(&rig.net, OP_add, a, b);
    ck_received(&rig, "add", 2, AMP_FLOAT16, AMP_DTYPE_OTHER);
    ck_assert_ptr_eq(fake_last(&rig.host)->args[0], a);
}

DIFFERENCE_TIMES(cat_promotes_its_sequence_and_leaves_the_callers_array, 2) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *list[3] = { rig_tensor(&rig, AMP_FLOAT16, 1.0),
                                    rig_tensor(&rig, _i ? AMP_BFLOAT16 : AMP_FLOAT32, 2.0),
                                    rig_tensor(&rig, AMP_FLOAT16, 3.0) };
    struct fake_tensor *const before[3] = { list[0], list[1], list[2] };
    OWN_TENSOR *y = net_cat(&rig.net, list, 3);
    ck_received(&rig, "cat", 3, AMP_FLOAT32, AMP_FLOAT32);
    ck_assert_int_eq(fake_last(&rig.host)->dtypes[2], AMP_FLOAT32);
    ck_assert_mem_eq(list, before, sizeof before);
    for (int i = 0; i < 3; i++) fake_release(list[i]);
}

DIFFERENCE(an_rnn_is_an_ordinary_op) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.ops[OP_cat].name = "lstm"; /* a list of weights */
    rig_wire(&rig, config_of(AMP_O1));
    struct fake_tensor *weights[] = { rig.net.weight, rig.net.bias };
    for (int i = 0; i < 2; i++) {
        fake_release(net_cat(&rig.net, weights, 2));
        ck_received(&rig, "cat", 2, AMP_FLOAT16, AMP_FLOAT16);
    }
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 2); /* each weight by itself, through the cache */
}

TEST(agreeing_arguments_arrive_as_they_are) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *a = rig_tensor(&rig, AMP_FLOAT16, 1.0), *b = rig_tensor(&rig, AMP_FLOAT16, 2.0);
    OWN_TENSOR *c = net_binary(&rig.net, OP_matmul, a, b);
    ck_assert_ptr_eq(fake_last(&rig.host)->args[0], a);
    ck_assert_ptr_eq(fake_last(&rig.host)->args[1], b);
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 0);
}

/* ---- in place ---- */

DIFFERENCE_TIMES(add_in_place_updates_self_in_its_own_type, 2) { /* by either name */
    RIG_INIT(rig, FAKE_RETAINS);
    if (_i) rig.net.ops[OP_add_].name = "__iadd__";
    rig_wire(&rig, config_of(AMP_O1));
    OWN_TENSOR *self = rig_tensor(&rig, AMP_FLOAT16, 1.0), *other = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    net_add_(&rig.net, self, other);
    ck_received(&rig, "add_", 2, AMP_FLOAT16, AMP_FLOAT16);
    ck_assert_ptr_eq(fake_last(&rig.host)->args[0], self);
    ck_assert_double_eq(fake_get(self, 0), 3.0);
}

DIFFERENCE(exp_in_place_on_16_bits_is_refused) {
    amp_scope none;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *self = rig_tensor(&rig, AMP_FLOAT16, 1.0);
    net_exp_(&rig.net, self);
    ck_assert_uint_eq(rig.host.n_log, 0);
    ck_assert_double_eq(fake_get(self, 0), 1.0);
    ck_refused(AMP_ERR_UNSUPPORTED, "op exp_ works in place on a", amp_check(rig.context));
    ck_says("tensor but belongs to FP32");
    ck_ok(amp_scope_enter(NULL, &none));
    net_exp_(&rig.net, self); /* Apex refuses even with casts disabled */
    ck_ok(amp_scope_leave(&none));
    ck_received(&rig, "exp_", 1, AMP_FLOAT16, AMP_DTYPE_DEFAULT);
    ck_ok(amp_check(rig.context));
}

TEST(exp_in_place_on_fp32_runs) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *self = rig_tensor(&rig, AMP_FLOAT32, 0.0);
    net_exp_(&rig.net, self);
    ck_assert_double_eq(fake_get(self, 0), 1.0);
    ck_ok(amp_check(rig.context));
}

/* ---- banned ---- */

TEST_TIMES(a_banned_op_returns_on_failure_and_keeps_the_error, 2) {
    static const int32_t refusal = -3;
    RIG_INIT(rig, FAKE_RETAINS);
    if (_i) rig.net.ops[OP_binary_cross_entropy].on_failure = &refusal;
    rig_wire(&rig, config_of(AMP_O1));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT16, 0.5);
    ck_assert_int_eq(net_bce(&rig.net, x, x), _i ? refusal : 0);
    ck_assert_uint_eq(rig.host.n_log, 0);
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_ERROR], 1);
    ck_refused(AMP_ERR_BANNED, "binary_cross_entropy_with_logits", amp_check(rig.context));
    ck_says("regist");
    ck_says("fp16");
    ck_ok(amp_check(rig.context));
    ck_assert_uint_eq(rig_stats(&rig, OP_binary_cross_entropy).failures, 1);
}

TEST(a_banned_op_names_the_type_it_got_and_runs_on_fp32) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *low = rig_tensor(&rig, AMP_BFLOAT16, 0.5), *wide = rig_tensor(&rig, AMP_FLOAT32, 0.5);
    (void)net_bce(&rig.net, low, low);
    ck_refused(AMP_ERR_BANNED, "bf16", amp_check(rig.context));
    ck_assert_int_eq(net_bce(&rig.net, wide, wide), 7);
    ck_ok(amp_check(rig.context));
}

/* ---- failing casts ---- */

TEST(a_failed_cast_runs_an_fp32_op_on_what_it_was_written_for) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    fake_fail(&rig.host, FAKE_CAST, 2);
    OWN_TENSOR *y = net_linear(&rig.net, x, rig.net.weight, rig.net.bias);
    ck_assert_ptr_nonnull(y);
    ck_received(&rig, "linear", 3, AMP_FLOAT32, AMP_FLOAT32);
    ck_refused(AMP_ERR_HOST_FAILED, "cast", amp_check(rig.context));
    ck_says("linear");
    ck_assert_uint_eq(rig_stats(&rig, OP_linear).failures, 1);
}

TEST(a_failed_cast_of_mixed_arguments_does_not_call_the_op) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *a = rig_tensor(&rig, AMP_FLOAT16, 1.0), *b = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    fake_fail(&rig.host, FAKE_CAST, 1);
    ck_assert_ptr_null(net_binary(&rig.net, OP_add, a, b));
    ck_assert_uint_eq(rig.host.n_log, 0);
    ck_fails(AMP_ERR_HOST_FAILED, amp_check(rig.context));
    ck_assert_uint_eq(rig_stats(&rig, OP_add).failures, 1);
}
