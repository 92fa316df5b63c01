/* SPDX-License-Identifier: Apache-2.0 */
/* What happens when something of a product fails or is wrong: on the fake device alone. */
#include "shares.h"

enum { OUT_OF_MEMORY = 2, LAUNCH_FAILURE = 719 };
enum { FAKE_ALLOC_FAILED = 3, FAKE_EXECUTION_FAILED = 13 }; /* cublasStatus_t */
enum { H = AMP_FLOAT16, S = AMP_FLOAT32 };

/* Each call of CUDA's or cuBLASLt's fails once. */
TEST_TIMES(test_every_failure, 8) {
    static const struct {
        int cuda, blas;
        amp_status status;
    } errors[] = {
        { OUT_OF_MEMORY, 0, AMP_ERR_NO_MEMORY },
        { LAUNCH_FAILURE, 0, AMP_ERR_BACKEND },
        { 0, FAKE_ALLOC_FAILED, AMP_ERR_NO_MEMORY },
        { 0, FAKE_EXECUTION_FAILED, AMP_ERR_BACKEND },
    };
    const int which = _i % 4, with_list = _i / 4;
    struct fake *fake = device.fake;
    struct fake_blas *blas = device.blas;
    const int objects = blas->objects, streams = fake->streams;
    int failures = 0;
    blas->workspace = 3000;
    for (int at = 1;; at++) {
        struct device_product p = shared(&shares[SHARE_ALL]);
        product_place(&p);
        if (!with_list)
            p.epilogue = (amp_device_epilogue)AMP_DEVICE_EPILOGUE_INIT, p.args.activation = AMP_ACTIVATION_NONE;
        p.args.device = (amp_device){ 2, 0 }, p.args.stream = device.stream;
        const int blocks = fake->blocks;
        fake->calls = blas->calls = 0;
        fake->fail_at = errors[which].cuda ? at : 0, fake->fail_with = errors[which].cuda;
        blas->fail_at = errors[which].blas ? at : 0, blas->fail_with = errors[which].blas;
        const amp_status status = with_list ? run(&p) : amp_matmul(&p.args);
        const bool reached = (errors[which].cuda ? fake->calls : blas->calls) >= at;
        fake->fail_at = blas->fail_at = 0;
        if (reached && status != AMP_OK) {
            ck_assert_msg(status == errors[which].status, "call %d: %d, %s", at, (int)status, amp_last_error());
            ck_assert_int_eq(fake->last_error, 0);
            failures++;
        }
        ck_assert_int_eq(blas->objects, objects);
        ck_assert_int_eq(fake->streams, streams);
        ck_assert_int_le(fake->blocks, blocks + with_list);
        ck_assert_int_eq(fake->current, 0);
        ck_ok((with_list ? run(&p) : amp_matmul(&p.args)));
        if (!reached) break;
    }
    ck_assert_int_ge(failures, errors[which].cuda ? 2 : 10);
}

/* While measuring too, and with events. */
TEST_TIMES(test_every_failure_of_measuring, 2) {
    const int streams = device.fake->streams, objects = device.blas->objects;
    int failures = 0;
    device.blas->candidates = 2;
    for (int at = 1;; at++) {
        struct device_product p = fresh(H, H);
        product_place(&p);
        device.fake->calls = device.blas->calls = 0;
        device.fake->fail_at = _i ? 0 : at, device.fake->fail_with = LAUNCH_FAILURE;
        device.blas->fail_at = _i ? at : 0, device.blas->fail_with = FAKE_EXECUTION_FAILED;
        const amp_status status = amp_device_matmul_measure(list, device.stream, &p.args, &p.epilogue);
        const bool reached = (_i ? device.blas->calls : device.fake->calls) >= at;
        device.fake->fail_at = device.blas->fail_at = 0;
        failures += status != AMP_OK;
        ck_assert_int_eq(device.fake->streams, streams);
        ck_assert_int_eq(device.blas->objects, objects);
        run_right(&p);
        if (!reached) break;
    }
    ck_assert_int_gt(failures, 10);
}

TEST(test_refused) {
    struct device_product p = fresh(H, H);
    device.blas->refuses_all = 1;
    product_place(&p);
    ck_refused(AMP_ERR_UNSUPPORTED, "no algorithm", run(&p));
    device.blas->refuses_all = 0;
    p.args.b_dtype = S;
    ck_refused(AMP_ERR_UNSUPPORTED, "amp_device_cast", run(&p));
}

static void expect_invalid(const struct device_product *p, const char *words) {
    struct device_product copy = *p;
    ck_assert_msg(run(&copy) == AMP_ERR_INVALID_ARGUMENT, "%s: not refused", words);
    ck_assert_msg(strstr(amp_last_error(), words) != NULL, "'%s' does not say '%s'", amp_last_error(), words);
}

#define INVALID(words, ...)                                                                                            \
    do {                                                                                                               \
        struct device_product p = right;                                                                               \
        __VA_ARGS__;                                                                                                   \
        expect_invalid(&p, words);                                                                                     \
    } while (0)

TEST(test_arguments) {
    struct device_product right = fresh(H, H);
    right.args.activation = AMP_ACTIVATION_GELU, right.with_aux = true;
    run_right(&right);
    const int products = device.blas->products;
    INVALID("aux is NULL", p.epilogue.backward = 1, p.epilogue.aux = NULL);
    INVALID("backward is 2", p.epilogue.backward = 2);
    INVALID("no bias", p.epilogue.backward = 1, p.args.bias = p.args.a);
    INVALID("ld_aux is 12", p.epilogue.ld_aux = 12);
    INVALID("ld_aux is 8", p.args.activation = AMP_ACTIVATION_RELU, p.epilogue.ld_aux = 8);
    INVALID("aux is no multiple", p.epilogue.aux = (char *)p.epilogue.aux + 8);
    INVALID("stride_aux is 8", p.args.batch = 2, p.args.stride_d = 100, p.epilogue.stride_aux = 8);
    INVALID("bias_grad_of is 4", p.epilogue.bias_grad_of = 4);
    INVALID("for backward", p.epilogue.bias_grad_of = AMP_BIAS_GRAD_D);
    INVALID("bias_grad is NULL", p.epilogue.bias_grad_of = AMP_BIAS_GRAD_A);
    INVALID("bias_grad is fp64", p.epilogue.bias_grad_of = AMP_BIAS_GRAD_A, p.epilogue.bias_grad_dtype = AMP_FLOAT64);
    INVALID("workspace is no multiple", p.epilogue.workspace = (char *)p.epilogue.aux + 8);
    INVALID("address of a", p.args.a = (const char *)p.args.a + 1);
    INVALID("address of d", p.args.d = (char *)p.args.d + 1);
    INVALID("flags is 0x4", p.args.flags = 4);
    INVALID("ld_b", p.args.ld_b = 1);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_device_matmul(list, NULL, &right.args, NULL));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_device_matmul(NULL, device.stream, &right.args, NULL));
    right.args.device = (amp_device){ 2, 0 };
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_matmul(&right.args)); /* no stream */
    right.args.stream = device.stream, right.args.backend = AMP_MATMUL_BUILTIN;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_matmul(&right.args));
    right.args.backend = AMP_MATMUL_AUTO, right.args.device.type = 7;
    ck_fails(AMP_ERR_UNSUPPORTED, amp_matmul(&right.args));
    ck_assert_int_eq(device.blas->products, products);
}

TEST(test_words) {
    static const struct {
        int share, capability;
        const char *words[3];
    } cases[] = {
        { 10, 90, { "compute capability 9.0): fp16, sums fp32; algorithm 40, cuBLASLt's first",
                    "bias, activation by cuBLASLt" } },
        { 12, 90, { "; c, bias, activation, aux, rounding by libamp" } },
        { 15, 90, { "fp16, sums fp32", "; bias, activation, aux, rounding by libamp" } },
        { 0, 90, { "m = 5 is no multiple of 8: padded to 8 it may be faster" } },
    };
    char words[500];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct device_product p = shared(&shares[cases[i].share]);
        product_place(&p);
        ck_ok(amp_device_matmul_explain(list, &p.args, &p.epilogue, words, sizeof words, NULL));
        for (int k = 0; k < 3 && cases[i].words[k]; k++)
            ck_assert_msg(strstr(words, cases[i].words[k]) != NULL, "'%s' does not say '%s'", words, cases[i].words[k]);
    }
    ck_assert_int_eq(device.blas->products, 0);
}

TEST_FIXTURE(start_products, stop_products)
