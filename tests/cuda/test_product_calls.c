/* SPDX-License-Identifier: Apache-2.0 */
/* Who does what of a product, what a call costs, and what is remembered: on the fake device alone. */
#include "shares.h"

#include <pthread.h>

enum { H = AMP_FLOAT16, W = AMP_BFLOAT16, S = AMP_FLOAT32 };

TEST_TIMES(test_share, n_shares) {
    const struct share *s = &shares[_i];
    struct device_product p = shared(s);
    run_right(&p);
    ck_assert_msg(device.blas->epilogue == s->epilogue, "%s: epilogue %u", product_words(&p),
                  (unsigned)device.blas->epilogue);
    ck_assert_msg(device.fake->launches == s->launches, "%s: %d launches", product_words(&p), device.fake->launches);
    ck_assert_msg((device.blas->d != p.args.d) == s->scratch, "%s: scratch", product_words(&p));
    ck_assert_int_eq(device.blas->products, 1);
    /* parts of a sum are added in fp32 alone, and there are none where the epilogue would begin from 16 bits */
    const bool unsplit = s->d != S && !s->scratch && s->epilogue & E_BIAS;
    ck_assert_uint_eq(device.blas->schemes, unsplit ? 0 : 2);
    ck_assert_int_eq(device.blas->compute, 68); /* CUBLAS_COMPUTE_32F */
}

/* Where cuBLASLt has no algorithm for the epilogue it multiplies without, and that is remembered. */
TEST_TIMES(test_refused_epilogue, n_shares) {
    const struct share *s = &shares[_i];
    struct device_product p = shared(s);
    device.blas->refused = UINT32_MAX;
    run_right(&p);
    ck_assert_uint_eq(device.blas->epilogue, PLAIN);
    const int asked = device.blas->asked;
    ck_assert_int_eq(asked, s->epilogue == PLAIN ? 1 : 2);
    run_right(&p);
    ck_assert_int_eq(device.blas->asked, asked);
}

/* The same where it proposes an algorithm and then does not run it. */
TEST_TIMES(test_refused_late, n_shares) {
    const struct share *s = &shares[_i];
    struct device_product p = shared(s);
    device.blas->refused = UINT32_MAX, device.blas->refuses_late = 1;
    run_right(&p);
    ck_assert_uint_eq(device.blas->epilogue, PLAIN);
    const int calls = device.blas->calls;
    run_right(&p);
    ck_assert_int_eq(device.blas->products, 2);
    if (s->epilogue != PLAIN) ck_assert_int_lt(device.blas->calls - calls, calls); /* it is not tried again */
}

/* ---- what is remembered, and what is promised ---- */

TEST(test_remembered) {
    struct device_product p = fresh(W, W);
    run_right(&p);
    ck_assert_int_eq(device.blas->asked, 1);
    const int blocks = device.fake->blocks;
    for (int i = 0; i < 5; i++) run_right(&p);
    ck_assert_int_eq(device.blas->asked, 1);
    ck_assert_int_eq(device.fake->blocks, blocks);
    ck_assert_int_eq(device.fake->launches, 0);
    ck_assert_int_eq(device.fake->waits, 0);
    ck_assert_int_eq(device.fake->on_null_stream, 0);
    const struct device_product same = p;
    p.args.transpose_b = 1;
    run_right(&p);
    p = same, p.args.k++;
    run_right(&p);
    p = same, p.args.flags = AMP_MATMUL_TF32; /* of no meaning for bf16 */
    run_right(&p);
    ck_assert_int_eq(device.blas->asked, 3);
}

/* More shapes than are remembered: the last ones are, the first ones are not. */
TEST(test_bounded) {
    enum { SHAPES = 3000 };
    struct device_product p = fresh(H, H);
    product_place(&p);
    p.args.ld_a = p.args.ld_b = p.args.ld_d = 0;
    for (int i = 1; i <= SHAPES; i++) {
        p.args.k = i, p.args.m = p.args.n = 1;
        ck_ok(run(&p));
    }
    device.blas->asked = 0;
    ck_ok(run(&p));
    ck_assert_int_eq(device.blas->asked, 0);
    int again = 0;
    for (int i = 1; i <= SHAPES; i++) {
        p.args.k = i;
        ck_ok(run(&p));
    }
    again = device.blas->asked;
    ck_assert_int_gt(again, SHAPES - 600);
}

TEST(test_alignment) {
    for (int shift = 1; shift < 64; shift *= 2) {
        struct device_product p = fresh(H, H);
        product_place(&p);
        p.args.a = (const uint16_t *)p.args.a + shift, p.args.d = (uint16_t *)p.args.d + 4;
        ck_ok(run(&p));
        ck_assert_uint_eq(device.blas->alignments[1], 2u * (unsigned)shift); /* its b is a */
        ck_assert_uint_eq(device.blas->alignments[0], 256);
        ck_assert_uint_eq(device.blas->alignments[3], 8);
    }
}

/* What is certainly wrong is refused, by name, before anything runs. */
static const struct refused_epilogue {
    const char *says;
    int activation, backward, bias_grad_of, bias_grad_dtype;
    int64_t ld_aux, stride_aux, stride_bias_grad;
    int aux_shift, bias_grad_shift, bias, no_aux, no_bias_grad, workspace;
} refused_epilogues[] = {
    { .says = "backward is 2", .backward = 2 },
    { .says = "backward adds no bias", .backward = 1, .bias = 1 },
    { .says = "aux is NULL", .activation = AMP_ACTIVATION_RELU, .backward = 1, .no_aux = 1 },
    { .says = "aux", .activation = AMP_ACTIVATION_RELU, .aux_shift = 8 },
    { .says = "ld_aux is 7", .activation = AMP_ACTIVATION_GELU_TANH, .ld_aux = 7 },
    { .says = "ld_aux is 136", .activation = AMP_ACTIVATION_RELU, .ld_aux = 136 },
    { .says = "ld_aux is 4611686018427387904", .activation = AMP_ACTIVATION_RELU, .ld_aux = INT64_C(1) << 62 },
    { .says = "stride_aux is 128", .activation = AMP_ACTIVATION_RELU, .stride_aux = 128 },
    { .says = "stride_aux is 12804", .activation = AMP_ACTIVATION_RELU, .stride_aux = 12804 },
    { .says = "stride_aux is 4611686018427387904", .activation = AMP_ACTIVATION_RELU, .stride_aux = INT64_C(1) << 62 },
    { .says = "bias_grad_of is 9", .bias_grad_of = 9 },
    { .says = "bias_grad_of is -1", .bias_grad_of = -1 },
    { .says = "AMP_BIAS_GRAD_D is for backward", .bias_grad_of = AMP_BIAS_GRAD_D },
    { .says = "use fp32, fp16 or bf16", .bias_grad_of = AMP_BIAS_GRAD_A, .bias_grad_dtype = AMP_FLOAT64 },
    { .says = "bias_grad is NULL", .bias_grad_of = AMP_BIAS_GRAD_A, .no_bias_grad = 1 },
    { .says = "stride_bias_grad is 1", .bias_grad_of = AMP_BIAS_GRAD_B, .stride_bias_grad = 1 },
    { .says = "stride_bias_grad is 4611686018427387904", .bias_grad_of = AMP_BIAS_GRAD_A,
      .stride_bias_grad = INT64_C(1) << 62 },
    { .says = "bias_grad", .bias_grad_of = AMP_BIAS_GRAD_A, .bias_grad_shift = 1 },
    { .says = "workspace", .workspace = 1 },
};

TEST_TIMES(test_refused_arguments, sizeof refused_epilogues / sizeof *refused_epilogues) {
    static _Alignas(256) char memory[1 << 16];
    const struct refused_epilogue *r = &refused_epilogues[_i];
    struct device_product p = fresh(H, H);
    p.args.batch = 2;
    product_place(&p);
    p.args.activation = r->activation;
    p.args.bias = r->bias ? memory : NULL;
    amp_device_epilogue *e = &p.epilogue;
    e->backward = r->backward, e->bias_grad_of = r->bias_grad_of;
    e->bias_grad_dtype = r->bias_grad_dtype ? r->bias_grad_dtype : AMP_FLOAT16;
    e->aux = r->no_aux ? NULL : memory + r->aux_shift;
    e->bias_grad = r->no_bias_grad ? NULL : memory + r->bias_grad_shift;
    e->ld_aux = r->ld_aux, e->stride_aux = r->stride_aux, e->stride_bias_grad = r->stride_bias_grad;
    e->workspace = r->workspace ? memory + 128 : NULL;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, r->says, amp_device_matmul(list, device.stream, &p.args, e));
    ck_assert_int_eq(device.blas->products, 0);
}

TEST(test_measure) {
    struct device_product p = fresh(W, W);
    char words[400];
    device.blas->candidates = 5, device.blas->fastest = 3, device.blas->clock = &device.fake->clock;
    device.blas->workspace = 1000;
    product_place(&p);
    ck_ok(amp_device_matmul_measure(list, device.stream, &p.args, &p.epilogue));
    product_compare(&p);
    run_right(&p);
    ck_assert_int_eq(device.blas->algorithm, 43);
    ck_assert_int_eq(device.blas->asked, 2); /* for the first one, and for all */
    ck_ok(amp_device_matmul_explain(list, &p.args, &p.epilogue, words, sizeof words, NULL));
    ck_assert_msg(strstr(words, "algorithm 43, number 4 of 5, fastest, workspace 1000 bytes") != NULL, "%s", words);
    device.fake->capturing = 1;
    ck_fails(AMP_ERR_WRONG_STATE, amp_device_matmul_measure(list, device.stream, &p.args, &p.epilogue));
    device.fake->capturing = 0;
    p.with_c = p.in_place = true;
    product_place(&p);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_device_matmul_measure(list, device.stream, &p.args, &p.epilogue));
}

/* ---- memory ---- */

TEST(test_workspace) {
    struct device_product p = shared(&shares[SHARE_SCRATCH]); /* with scratch */
    const uint64_t scratch = 256;                  /* 5 x 8 floats */
    device.blas->workspace = 3000;
    p.epilogue.workspace = device_alloc(8192), p.epilogue.workspace_size = 8192;
    const int blocks = device.fake->blocks;
    run_right(&p);
    ck_assert_ptr_eq(device.blas->d, p.epilogue.workspace);
    ck_assert_ptr_eq(device.blas->workspace_at, (char *)p.epilogue.workspace + scratch);
    ck_assert_uint_eq(device.blas->limit, 8192 - scratch);
    p.epilogue.workspace_size = 1024; /* enough for an algorithm without */
    run_right(&p);
    ck_assert_uint_eq(device.blas->workspace_bytes, 0);
    p.epilogue.workspace_size = 100;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "needs 256", run(&p));
    ck_assert_int_eq(device.fake->blocks, blocks); /* nothing but the caller's */
    p.epilogue.workspace = NULL;
    run_right(&p);
    ck_assert_int_eq(device.fake->blocks, blocks + 1); /* the list's, which stays */
    run_right(&p);
    ck_assert_int_eq(device.fake->blocks, blocks + 1);
    ck_assert_uint_eq(device.blas->limit, 32u << 20);
}

/* Without a list memory comes and goes in the stream's order; where the device has no such memory, without
 * a workspace. */
TEST(test_no_list) {
    struct device_product p = shared(&shares[SHARE_SCRATCH]);
    device.blas->workspace = 3000;
    product_place(&p);
    p.args.device = (amp_device){ 2, 1 }, p.args.stream = device.stream;
    const int blocks = device.fake->blocks;
    ck_ok(amp_matmul(&p.args));
    ck_assert_uint_eq(device.blas->workspace_bytes, 3000);
    ck_assert_int_eq(device.fake->blocks, blocks);
    ck_assert_int_eq(device.fake->current, 0); /* the caller's */
    device.fake->capturing = 1;
    ck_ok(amp_matmul(&p.args)); /* allocation and release are parts of the graph */
}

/* A training waits for the device once an iteration: what products without a list use is not mapped again each time. */
TEST(test_memory_is_kept) {
    struct device_product p = shared(&shares[SHARE_SCRATCH]);
    struct fake *fake = device.fake;
    device.blas->workspace = 3000;
    product_place(&p);
    p.args.device = (amp_device){ 2, 0 }, p.args.stream = device.stream;
    for (int i = 0, mapped = 0; i < 5; i++) {
        ck_ok(amp_matmul(&p.args));
        device.tools->synchronize();
        if (i) ck_assert_int_eq(fake->mapped, mapped);
        mapped = fake->mapped;
    }
}

TEST(test_capture) {
    struct device_product p = shared(&shares[SHARE_SCRATCH]);
    device.blas->workspace = 3000;
    run_right(&p);
    const int blocks = device.fake->blocks;
    device.fake->capturing = 1;
    run_right(&p);
    ck_assert_int_eq(device.fake->blocks, blocks);
    p.args.n = 80; /* more scratch: elsewhere, and what the graph knows stays */
    run_right(&p);
    ck_assert_int_eq(device.fake->blocks, blocks + 1);
    ck_assert_int_eq(device.fake->broke_capture, 0);
    ck_assert_int_eq(device.fake->relaxed, 0);
    device.fake->capturing = 0;
}

/* A graph of a product gives, each time, what its operands are then. */
TEST_TIMES(test_replay, n_shares) {
    const struct share *s = &shares[_i];
    struct device_product p = shared(s);
    device.blas->workspace = 3000;
    product_place(&p);
    device.tools->capture_begin();
    ck_ok(run(&p));
    device.tools->capture_end();
    ck_assert_int_eq(device.fake->broke_capture, 0);
    for (int i = 0; i < 3; i++) {
        product_place(&p); /* the same memory, other numbers */
        device.tools->replay();
        product_compare(&p);
    }
}

/* All of it is work on the stream, which comes to it later. */
TEST_TIMES(test_lazy, n_shares) {
    struct device_product p = shared(&shares[_i]);
    device.blas->workspace = 3000;
    product_place(&p);
    device.fake->lazy = 1;
    ck_ok(run(&p));
    device.tools->flush();
    product_compare(&p);
    ck_assert_int_eq(device.fake->waits, 0);
    device.fake->lazy = 0;
}

/* ---- threads ---- */

static void *multiply_often(void *given) {
    const struct device_product *p = given;
    amp_matmul_args args = p->args;
    float d[64];
    args.device = (amp_device){ 2, 0 }, args.stream = device.stream, args.d = d, args.ld_d = 0;
    for (int i = 0; i < 300; i++) {
        args.k = p->args.k - i % 50;
        memset(d, 0, sizeof d);
        if (amp_matmul(&args) != AMP_OK || d[0] == 0.0f) return "failed";
    }
    return NULL;
}

TEST(test_threads) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    struct device_product p = fresh(S, S);
    product_place(&p);
    device.blas->work = NULL; /* the fake device has one thread */
    for (int i = 0; i < THREADS; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, multiply_often, &p), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
        ck_assert_ptr_null(failed);
    }
}

TEST_FIXTURE(start_products, stop_products)
