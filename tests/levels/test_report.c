/* SPDX-License-Identifier: Apache-2.0 */
/* Wrapped or not, the counters, explain, and the warning when nothing matches. */
#include "checks.h"
#include "../support/levels.h"

TEST(unlisted_ops_keep_their_pointer) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_assert(rig.net.table[OP_relu] == rig.net.original[OP_relu]);
    ck_assert(rig.net.table[OP_linear] != rig.net.original[OP_linear]);
    ck_assert_int_eq(rig_stats(&rig, OP_relu).wrapped, 0);
    ck_assert_int_eq(rig_stats(&rig, OP_linear).wrapped, 1);
}

TEST_RANGE(levels_that_cast_no_op_wrap_none, 1, N_EACH_LEVEL + 1) {
    if (level_casts_ops(_i)) return;
    RIG_START(rig, _i, FAKE_RETAINS);
    ck_assert_mem_eq(rig.net.table, rig.net.original, sizeof rig.net.table);
}

TEST(counters_count) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    for (int i = 0; i < 2; i++) fake_release(net_linear(&rig.net, x, rig.net.weight, rig.net.bias));
    const amp_op_stats stats = rig_stats(&rig, OP_linear);
    ck_assert_str_eq(stats.name, "linear");
    ck_assert_uint_eq(stats.calls, 2);
    ck_assert_uint_eq(stats.casts, 4); /* x twice, weight and bias once */
    ck_assert_uint_eq(stats.cache_hits, 2);
    ck_assert_int_eq(stats.op_class, AMP_LOWER);
    ck_assert_int_eq(stats.last_target, AMP_FLOAT16);
    ck_assert_int_eq(rig_stats(&rig, OP_matmul).last_target, AMP_DTYPE_DEFAULT);
}

TEST(explain_says_class_list_and_why) {
    char text[256];
    size_t length = 0, measured = 0;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_ok(amp_explain(rig.context, "linear", NULL, 0, &measured));
    ck_ok(amp_explain(rig.context, "linear", text, sizeof text, &length));
    ck_assert_uint_eq(measured, length);
    ck_assert_uint_eq(strlen(text), length);
    ck_assert_ptr_nonnull(strstr(text, "linear: lower"));
    ck_assert_ptr_nonnull(strstr(text, "list"));
    ck_explains(rig.context, NULL, "O1");
    ck_explains(rig.context, NULL, "apex");
    ck_explains(rig.context, NULL, "relu: leave");
    /* listed, and nobody's descriptor */
    ck_explains(rig.context, "aten::addmv_.out", "aten::addmv_.out: lower (addmv, in the apex lists)");
    ck_fails(AMP_ERR_NOT_FOUND, amp_explain(rig.context, "in_no_list", text, sizeof text, NULL));
}

TEST(explain_cuts_what_does_not_fit) {
    char text[8] = "xxxxxxx";
    size_t length = 0;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_ok(amp_explain(rig.context, "linear", text, 7, &length));
    ck_assert_str_eq(text, "linear");
    ck_assert_int_eq(text[7], '\0');
    ck_assert_uint_gt(length, 7);
}

static void rename_all(struct net *net, const char *name) {
    for (size_t i = 0; i < N_NET_OPS; i++) net->ops[i].name = name;
}

DIFFERENCE(a_table_that_matches_nothing_is_warned_about) {
    RIG_INIT(rig, FAKE_RETAINS);
    rename_all(&rig.net, "linaer");
    rig_wire(&rig, config_of(AMP_O1));
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_WARNING], 1);
    ck_warned(&rig, "0 of 12 ops got a class from the apex lists");
    ck_warned(&rig, "linaer = linear");
    ck_explains(rig.context, NULL, "0 of 12");
}

TEST_TIMES(no_warning_where_the_level_casts_no_ops_or_something_matches, 2) {
    RIG_INIT(rig, FAKE_RETAINS);
    if (!_i) rename_all(&rig.net, "gemm_nn");
    rig_wire(&rig, config_of(_i ? AMP_O1 : AMP_O2));
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_WARNING], 0);
}

TEST(ops_of_one_name_are_numbered) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.ops[OP_matmul].name = "linear";
    rig_wire(&rig, config_of(AMP_O1));
    ck_assert_uint_eq(rig_stats(&rig, OP_linear).index, 0);
    ck_assert_uint_eq(rig_stats(&rig, OP_matmul).index, 1);
}
