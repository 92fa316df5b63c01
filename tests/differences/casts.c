/* SPDX-License-Identifier: Apache-2.0 */
/* Which op gets which type: lists, registration, promotion. */
#include "differences.h"

START_TEST(registration_replaces_the_list) {
    struct rig rig;
    const amp_config config = config_of(AMP_O1);
    rig_init(&rig, FAKE_RETAINS);
    ck_ok(amp_register(&rig.net.model, "linear", AMP_FP32));
    ck_ok(rig_config(&rig, &config));
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    fake_release(net_linear(&rig.net, x, rig.net.weight, NULL));
    ck_last(&rig.host, "linear", AMP_FLOAT32, AMP_FLOAT32);
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 0); /* Apex: to half by the list, then back to float */
    fake_release(x);
    rig_end(&rig);
}
END_TEST

START_TEST(registration_is_the_models_own) {
    struct rig a, b;
    const amp_config config = config_of(AMP_O1);
    rig_init(&a, 0);
    ck_ok(amp_register(&a.net.model, "relu", AMP_LOWER));
    ck_ok(rig_config(&a, &config));
    rig_start(&b, AMP_O1, 0);
    ck_assert_int_eq(target_of(a.context, "relu", AMP_FLOAT32, AMP_FLOAT32), AMP_FLOAT16);
    ck_assert_int_eq(target_of(b.context, "relu", AMP_FLOAT32, AMP_FLOAT32), AMP_DTYPE_DEFAULT);
    rig_end(&a);
    rig_end(&b);
}
END_TEST

START_TEST(two_registrations_conflict) {
    struct rig rig;
    rig_init(&rig, 0);
    ck_ok(amp_register(&rig.net.model, "relu", AMP_LOWER));
    ck_fails(AMP_ERR_CONFLICT, amp_register(&rig.net.model, "relu", AMP_FP32));
    ck_says("op relu is registered as lower already and cannot also be fp32");
    rig_end(&rig);
}
END_TEST

START_TEST(banned_op_can_be_allowed) {
    struct rig rig;
    const amp_config config = config_of(AMP_O1);
    rig_init(&rig, FAKE_RETAINS);
    ck_ok(amp_register(&rig.net.model, "binary_cross_entropy", AMP_FP32));
    ck_ok(rig_config(&rig, &config));
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT16, 0.5);
    ck_assert_int_eq(net_bce(&rig.net, x, x), 7);
    ck_last(&rig.host, "binary_cross_entropy", AMP_FLOAT32, AMP_FLOAT32);
    fake_release(x);
    rig_end(&rig);
}
END_TEST

START_TEST(lists_go_by_bare_names) {
    struct rig rig;
    rig_start(&rig, AMP_O1, 0);
    const char *const fp32[] = { "softmax", "aten::softmax.int", "torch.softmax", "torch.Tensor.log_softmax",
                                 "torch.layer_norm" };
    for (size_t i = 0; i < 5; i++)
        ck_assert_int_eq(target_of(rig.context, fp32[i], AMP_FLOAT16, AMP_FLOAT16), AMP_FLOAT32);
    rig_end(&rig);
}
END_TEST

START_TEST(sub_and_true_divide_promote) {
    struct rig rig;
    rig_start(&rig, AMP_O1, 0);
    const char *const names[] = { "sub", "rsub", "true_divide" };
    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(target_of(rig.context, names[i], AMP_FLOAT16, AMP_FLOAT32), AMP_FLOAT32);
    rig_end(&rig);
}
END_TEST

START_TEST(later_ops_have_classes) {
    struct rig rig;
    rig_start(&rig, AMP_O1, 0);
    ck_assert_int_eq(target_of(rig.context, "einsum", AMP_FLOAT16, AMP_FLOAT32), AMP_FLOAT16);
    ck_assert_int_eq(target_of(rig.context, "scaled_dot_product_attention", AMP_FLOAT16, AMP_FLOAT32), AMP_FLOAT16);
    ck_assert_int_eq(target_of(rig.context, "vdot", AMP_FLOAT16, AMP_FLOAT32), AMP_FLOAT32);
    ck_assert_int_eq(target_of(rig.context, "index_copy", AMP_FLOAT16, AMP_FLOAT32), AMP_FLOAT32);
    const char *const wide[] = { "cdist", "quantile", "linalg_svd", "linalg_qr", "fft_fft" };
    for (size_t i = 0; i < 5; i++)
        ck_assert_int_eq(target_of(rig.context, wide[i], AMP_FLOAT16, AMP_FLOAT16), AMP_FLOAT32);
    rig_end(&rig);
}
END_TEST

START_TEST(batched_products_are_lower_everywhere) {
    struct rig rig;
    rig_start(&rig, AMP_O1, 0);
    const char *const names[] = { "bmm", "addbmm", "baddbmm" };
    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(target_of(rig.context, names[i], AMP_FLOAT32, AMP_FLOAT32), AMP_FLOAT16);
    rig_end(&rig);
}
END_TEST

START_TEST(promotion_knows_every_pair) {
    struct rig rig;
    rig_start(&rig, AMP_O1, 0);
    const amp_dtype types[] = { AMP_FLOAT16, AMP_BFLOAT16, AMP_FLOAT32, AMP_FLOAT64 };
    const amp_dtype widest[4][4] = { { 0, AMP_FLOAT32, AMP_FLOAT32, AMP_FLOAT64 },
                                     { AMP_FLOAT32, 0, AMP_FLOAT32, AMP_FLOAT64 },
                                     { AMP_FLOAT32, AMP_FLOAT32, 0, AMP_FLOAT64 },
                                     { AMP_FLOAT64, AMP_FLOAT64, AMP_FLOAT64, 0 } };
    for (size_t i = 0; i < 4; i++)
        for (size_t j = 0; j < 4; j++)
            ck_assert_int_eq(target_of(rig.context, "add", types[i], types[j]), widest[i][j]);
    rig_end(&rig);
}
END_TEST

START_TEST(lists_of_tensors_promote_every_pair) {
    struct rig rig;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *half = rig_tensor(&rig, AMP_FLOAT16, 1.0), *brain = rig_tensor(&rig, AMP_BFLOAT16, 1.0);
    struct fake_tensor *list[] = { half, brain };
    fake_release(net_cat(&rig.net, list, 2));
    ck_last(&rig.host, "cat", AMP_FLOAT32, AMP_FLOAT32); /* Apex passes this mix through */
    ck_assert_ptr_eq(list[0], half);
    fake_release(half);
    fake_release(brain);
    rig_end(&rig);
}
END_TEST

START_TEST(in_place_operators_do_not_rebind) {
    struct rig rig;
    const amp_config config = config_of(AMP_O1);
    rig_init(&rig, FAKE_RETAINS);
    rig.net.ops[OP_add_].name = "__iadd__";
    ck_ok(rig_config(&rig, &config));
    struct fake_tensor *h = rig_tensor(&rig, AMP_FLOAT16, 1.0), *f = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    net_add_(&rig.net, h, f);
    ck_last(&rig.host, "add_", AMP_FLOAT16, AMP_FLOAT16);
    ck_assert_ptr_eq(fake_last(&rig.host)->args[0], h);
    ck_dtype(h, AMP_FLOAT16);
    ck_assert_double_eq(fake_get(h, 0), 3.0);
    fake_release(h);
    fake_release(f);
    rig_end(&rig);
}
END_TEST

START_TEST(fp32_in_place_on_16bit_is_refused_in_scope) {
    struct rig rig;
    amp_scope none;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *h = rig_tensor(&rig, AMP_FLOAT16, 0.0);
    net_exp_(&rig.net, h);
    ck_assert_uint_eq(rig.host.n_log, 0); /* not called */
    ck_fails(AMP_ERR_UNSUPPORTED, amp_check(rig.context));
    ck_says("op exp_ works in place on a");
    ck_says("tensor but belongs to FP32");
    ck_ok(amp_scope_enter(NULL, &none));
    net_exp_(&rig.net, h); /* Apex refuses even with casts disabled */
    ck_ok(amp_scope_leave(&none));
    ck_last(&rig.host, "exp_", AMP_FLOAT16, AMP_DTYPE_DEFAULT);
    ck_ok(amp_check(rig.context));
    fake_release(h);
    rig_end(&rig);
}
END_TEST

START_TEST(rnn_is_an_ordinary_op) {
    struct rig rig;
    const amp_config config = config_of(AMP_O1);
    rig_init(&rig, FAKE_RETAINS);
    rig.net.ops[OP_cat].name = "lstm"; /* cat(Tensor[] tensors, int32 n, int32 dim): a list of weights */
    ck_ok(rig_config(&rig, &config));
    struct fake_tensor *weights[] = { rig.net.weight, rig.net.bias };
    fake_release(net_cat(&rig.net, weights, 2));
    ck_last(&rig.host, "cat", AMP_FLOAT16, AMP_FLOAT16);
    fake_release(net_cat(&rig.net, weights, 2));
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 2); /* each weight by itself, through the cache */
    rig_end(&rig);
}
END_TEST

void add_casts(TCase *tcase) {
    tcase_add_test(tcase, registration_replaces_the_list);
    tcase_add_test(tcase, registration_is_the_models_own);
    tcase_add_test(tcase, two_registrations_conflict);
    tcase_add_test(tcase, banned_op_can_be_allowed);
    tcase_add_test(tcase, lists_go_by_bare_names);
    tcase_add_test(tcase, sub_and_true_divide_promote);
    tcase_add_test(tcase, later_ops_have_classes);
    tcase_add_test(tcase, batched_products_are_lower_everywhere);
    tcase_add_test(tcase, promotion_knows_every_pair);
    tcase_add_test(tcase, lists_of_tensors_promote_every_pair);
    tcase_add_test(tcase, in_place_operators_do_not_rebind);
    tcase_add_test(tcase, fp32_in_place_on_16bit_is_refused_in_scope);
    tcase_add_test(tcase, rnn_is_an_ordinary_op);
}
