/* SPDX-License-Identifier: Apache-2.0 */
/* Who does what of a product, what a call costs, what is remembered, and what happens when something fails: on the fake
 * device alone. */
#include "product.h"

#include "../kernels/support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { OUT_OF_MEMORY = 2, LAUNCH_FAILURE = 719 };
enum { FAKE_ALLOC_FAILED = 3, FAKE_EXECUTION_FAILED = 13, FAKE_NOT_SUPPORTED = 15 }; /* cublasStatus_t */

static amp_device_list *list;

static void reset(void) {
    struct fake *fake = device.fake;
    *fake = (struct fake){ .devices = 2, .pools = 1, .blocks = fake->blocks, .streams = fake->streams };
    *device.blas = (struct fake_blas){ .candidates = 1, .objects = device.blas->objects, .handles = device.blas->handles,
                                        .work = device.tools->work };
}
static void start(void) {
    reset();
    ck_assert_int_eq(amp_device_list_open((amp_device){ 2, 0 }, &list), AMP_OK);
}
static void stop(void) {
    amp_device_list_close(list);
    reset();
}

/* Sizes that no test before had: what is remembered of others does not matter. */
static struct device_product fresh(amp_dtype operands, amp_dtype d) {
    static int64_t k = 100;
    struct device_product p = { .args = AMP_MATMUL_ARGS_INIT, .epilogue = AMP_DEVICE_EPILOGUE_INIT };
    p.args.m = 5, p.args.n = 8, p.args.k = k++;
    p.args.a_dtype = p.args.b_dtype = operands;
    p.args.c_dtype = p.args.d_dtype = p.args.bias_dtype = p.epilogue.bias_grad_dtype = d;
    p.args.beta = 0.5f;
    return p;
}

static amp_status run(struct device_product *p) { return amp_device_matmul(list, device.stream, &p->args, &p->epilogue); }

static void run_right(struct device_product *p) {
    product_place(p);
    ck_assert_msg(run(p) == AMP_OK, "%s", amp_last_error());
    product_compare(p);
}

/* ---- who does what ---- */

enum { H = AMP_FLOAT16, W = AMP_BFLOAT16, S = AMP_FLOAT32 };
enum { PLAIN = 1, RELU = 2, E_BIAS = 4, GELU = 32, AUX = 128, DRELU = 136, DGELU = 192, BGRAD = 16, BGRADA = 256, BGRADB = 512 };

static const struct share {
    amp_dtype operands, d, c, bias, grad; /* c, bias 0: none */
    int32_t activation, backward, aux, bias_grad_of;
    uint32_t flags, epilogue; /* the epilogue that cuBLASLt is asked for */
    int launches, scratch;    /* of libamp's kernels; whether the sums stay in fp32 aside */
} shares[] = {
    { H, H, 0, 0, 0, 0, 0, 0, 0, 0, PLAIN, 0, 0 },
    { W, W, W, W, 0, 0, 0, 0, 0, 0, E_BIAS, 0, 0 },
    { W, S, S, S, 0, 0, 0, 0, 0, 0, E_BIAS, 0, 0 },
    { W, S, W, S, 0, 0, 0, 0, 0, 0, PLAIN, 1, 0 }, /* c after the sums, so the bias too */
    { H, H, S, 0, 0, 0, 0, 0, 0, 0, PLAIN, 1, 1 },
    { H, H, 0, S, 0, 0, 0, 0, 0, 0, PLAIN, 1, 1 },
    { H, W, 0, 0, 0, 0, 0, 0, 0, 0, PLAIN, 1, 1 },
    { S, H, 0, H, 0, 0, 0, 0, 0, 0, PLAIN, 1, 1 },
    { H, H, 0, H, 0, AMP_ACTIVATION_RELU, 0, 0, 0, 0, E_BIAS, 1, 0 }, /* of what is rounded: the same bits */
    { H, H, 0, H, 0, AMP_ACTIVATION_RELU, 0, 1, 0, 0, E_BIAS, 1, 0 },
    { H, H, 0, H, 0, AMP_ACTIVATION_RELU, 0, 0, 0, AMP_MATMUL_FAST_RELU, RELU | E_BIAS, 0, 0 },
    { W, S, 0, 0, 0, AMP_ACTIVATION_RELU, 0, 1, 0, AMP_MATMUL_FAST_RELU, RELU | AUX, 0, 0 },
    { W, W, W, W, 0, AMP_ACTIVATION_GELU_TANH, 0, 1, 0, 0, GELU | AUX | E_BIAS, 0, 0 },
    { W, W, 0, 0, 0, AMP_ACTIVATION_GELU_TANH, 0, 0, 0, 0, GELU, 0, 0 },
    { S, S, 0, S, 0, AMP_ACTIVATION_GELU_TANH, 0, 0, 0, 0, E_BIAS, 1, 0 },
    { H, H, 0, H, 0, AMP_ACTIVATION_GELU, 0, 1, 0, 0, PLAIN, 1, 1 },
    { H, H, H, 0, H, AMP_ACTIVATION_RELU, 1, 1, AMP_BIAS_GRAD_D, 0, DRELU | BGRAD, 0, 0 },
    { S, S, 0, 0, S, AMP_ACTIVATION_RELU, 1, 1, 0, 0, DRELU, 0, 0 },
    { W, W, 0, 0, W, AMP_ACTIVATION_GELU_TANH, 1, 1, AMP_BIAS_GRAD_D, 0, DGELU | BGRAD, 0, 0 },
    { W, W, 0, 0, S, AMP_ACTIVATION_GELU_TANH, 1, 1, AMP_BIAS_GRAD_D, 0, DGELU, 1, 0 },
    { W, W, 0, 0, W, AMP_ACTIVATION_GELU, 1, 1, AMP_BIAS_GRAD_D, 0, PLAIN, 2, 1 },
    { W, W, 0, 0, W, 0, 1, 0, AMP_BIAS_GRAD_D, 0, PLAIN, 1, 0 },
    { H, H, H, 0, H, 0, 0, 0, AMP_BIAS_GRAD_A, 0, BGRADB, 0, 0 },
    { H, S, 0, 0, S, 0, 0, 0, AMP_BIAS_GRAD_B, 0, BGRADA, 0, 0 },
    { H, H, 0, 0, S, 0, 0, 0, AMP_BIAS_GRAD_B, 0, PLAIN, 1, 0 },
    { H, H, 0, H, H, 0, 0, 0, AMP_BIAS_GRAD_A, 0, E_BIAS, 1, 0 },
};

static struct device_product shared(const struct share *s) {
    struct device_product p = fresh(s->operands, s->d);
    p.with_c = s->c != 0, p.with_bias = s->bias != 0, p.with_aux = s->aux;
    if (s->c) p.args.c_dtype = s->c;
    if (s->bias) p.args.bias_dtype = s->bias;
    if (s->grad) p.epilogue.bias_grad_dtype = s->grad;
    p.args.activation = s->activation, p.args.flags = s->flags;
    p.epilogue.backward = s->backward, p.epilogue.bias_grad_of = s->bias_grad_of;
    return p;
}

START_TEST(test_share) {
    const struct share *s = &shares[_i];
    struct device_product p = shared(s);
    run_right(&p);
    ck_assert_msg(device.blas->epilogue == s->epilogue, "%s: epilogue %u", product_words(&p), (unsigned)device.blas->epilogue);
    ck_assert_msg(device.fake->launches == s->launches, "%s: %d launches", product_words(&p), device.fake->launches);
    ck_assert_msg((device.blas->d != p.args.d) == s->scratch, "%s: scratch", product_words(&p));
    ck_assert_int_eq(device.blas->products, 1);
    ck_assert_uint_eq(device.blas->schemes, 2); /* parts of a sum are added in fp32 alone */
    ck_assert_int_eq(device.blas->compute, 68); /* CUBLAS_COMPUTE_32F */
}
END_TEST

/* Where cuBLASLt has no algorithm for the epilogue it multiplies without, and that is remembered. */
START_TEST(test_refused_epilogue) {
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
END_TEST

/* ---- what is remembered, and what is promised ---- */

START_TEST(test_remembered) {
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
END_TEST

/* More shapes than are remembered: the last ones are, the first ones are not. */
START_TEST(test_bounded) {
    enum { SHAPES = 3000 };
    struct device_product p = fresh(H, H);
    product_place(&p);
    p.args.ld_a = p.args.ld_b = p.args.ld_d = 0;
    for (int i = 1; i <= SHAPES; i++) {
        p.args.k = i, p.args.m = p.args.n = 1;
        ck_assert_int_eq(run(&p), AMP_OK);
    }
    device.blas->asked = 0;
    ck_assert_int_eq(run(&p), AMP_OK);
    ck_assert_int_eq(device.blas->asked, 0);
    int again = 0;
    for (int i = 1; i <= SHAPES; i++) {
        p.args.k = i;
        ck_assert_int_eq(run(&p), AMP_OK);
    }
    again = device.blas->asked;
    ck_assert_int_gt(again, SHAPES - 600);
}
END_TEST

START_TEST(test_alignment) {
    for (int shift = 1; shift < 64; shift *= 2) {
        struct device_product p = fresh(H, H);
        product_place(&p);
        p.args.a = (const uint16_t *)p.args.a + shift, p.args.d = (uint16_t *)p.args.d + 4;
        ck_assert_msg(run(&p) == AMP_OK, "%s", amp_last_error());
        ck_assert_uint_eq(device.blas->alignments[1], 2u * (unsigned)shift); /* its b is a */
        ck_assert_uint_eq(device.blas->alignments[0], 256);
        ck_assert_uint_eq(device.blas->alignments[3], 8);
    }
}
END_TEST

START_TEST(test_measure) {
    struct device_product p = fresh(W, W);
    char words[400];
    device.blas->candidates = 5, device.blas->fastest = 3, device.blas->clock = &device.fake->clock;
    device.blas->workspace = 1000;
    product_place(&p);
    ck_assert_msg(amp_device_matmul_measure(list, device.stream, &p.args, &p.epilogue) == AMP_OK, "%s", amp_last_error());
    product_compare(&p);
    run_right(&p);
    ck_assert_int_eq(device.blas->algorithm, 43);
    ck_assert_int_eq(device.blas->asked, 2); /* for the first one, and for all */
    ck_assert_int_eq(amp_device_matmul_explain(list, &p.args, &p.epilogue, words, sizeof words, NULL), AMP_OK);
    ck_assert_msg(strstr(words, "algorithm 43, number 4 of 5, fastest, workspace 1000 bytes") != NULL, "%s", words);
    device.fake->capturing = 1;
    ck_assert_int_eq(amp_device_matmul_measure(list, device.stream, &p.args, &p.epilogue), AMP_ERR_WRONG_STATE);
    device.fake->capturing = 0;
    p.with_c = p.in_place = true;
    product_place(&p);
    ck_assert_int_eq(amp_device_matmul_measure(list, device.stream, &p.args, &p.epilogue), AMP_ERR_INVALID_ARGUMENT);
}
END_TEST

/* ---- memory ---- */

START_TEST(test_workspace) {
    struct device_product p = shared(&shares[15]); /* with scratch */
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
    ck_assert_int_eq(run(&p), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_msg(strstr(amp_last_error(), "needs 256") != NULL, "%s", amp_last_error());
    ck_assert_int_eq(device.fake->blocks, blocks); /* nothing but the caller's */
    p.epilogue.workspace = NULL;
    run_right(&p);
    ck_assert_int_eq(device.fake->blocks, blocks + 1); /* the list's, which stays */
    run_right(&p);
    ck_assert_int_eq(device.fake->blocks, blocks + 1);
    ck_assert_uint_eq(device.blas->limit, 32u << 20);
}
END_TEST

/* Without a list memory comes and goes in the stream's order; where the device has no such memory, without a workspace. */
START_TEST(test_no_list) {
    struct device_product p = shared(&shares[15]);
    device.blas->workspace = 3000;
    product_place(&p);
    p.args.device = (amp_device){ 2, 1 }, p.args.stream = device.stream;
    const int blocks = device.fake->blocks;
    ck_assert_msg(amp_matmul(&p.args) == AMP_OK, "%s", amp_last_error());
    ck_assert_uint_eq(device.blas->workspace_bytes, 3000);
    ck_assert_int_eq(device.fake->blocks, blocks);
    ck_assert_int_eq(device.fake->current, 0); /* the caller's */
    device.fake->capturing = 1;
    ck_assert_int_eq(amp_matmul(&p.args), AMP_OK); /* allocation and release are parts of the graph */
}
END_TEST

START_TEST(test_capture) {
    struct device_product p = shared(&shares[15]);
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
END_TEST

/* ---- failures ---- */

/* Each call of CUDA's or cuBLASLt's fails once. */
START_TEST(test_every_failure) {
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
        struct device_product p = shared(&shares[20]);
        const struct device_product unused = shared(&shares[0]);
        (void)unused;
        product_place(&p);
        if (!with_list) p.epilogue = (amp_device_epilogue)AMP_DEVICE_EPILOGUE_INIT, p.args.activation = AMP_ACTIVATION_NONE;
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
        ck_assert_msg((with_list ? run(&p) : amp_matmul(&p.args)) == AMP_OK, "%s", amp_last_error());
        if (!reached) break;
    }
    ck_assert_int_ge(failures, errors[which].cuda ? 3 : 10);
}
END_TEST

/* While measuring too, and with events. */
START_TEST(test_every_failure_of_measuring) {
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
END_TEST

START_TEST(test_refused) {
    struct device_product p = fresh(H, H);
    device.blas->refuses_all = 1;
    product_place(&p);
    ck_assert_int_eq(run(&p), AMP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "no algorithm"));
    device.blas->refuses_all = 0;
    p.args.b_dtype = S;
    ck_assert_int_eq(run(&p), AMP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "amp_device_cast"));
}
END_TEST

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

START_TEST(test_arguments) {
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
    ck_assert_int_eq(amp_device_matmul(list, NULL, &right.args, NULL), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_device_matmul(NULL, device.stream, &right.args, NULL), AMP_ERR_INVALID_ARGUMENT);
    right.args.device = (amp_device){ 2, 0 };
    ck_assert_int_eq(amp_matmul(&right.args), AMP_ERR_INVALID_ARGUMENT); /* no stream */
    right.args.stream = device.stream, right.args.backend = AMP_MATMUL_BUILTIN;
    ck_assert_int_eq(amp_matmul(&right.args), AMP_ERR_INVALID_ARGUMENT);
    right.args.backend = AMP_MATMUL_AUTO, right.args.device.type = 7;
    ck_assert_int_eq(amp_matmul(&right.args), AMP_ERR_UNSUPPORTED);
    ck_assert_int_eq(device.blas->products, products);
}
END_TEST

START_TEST(test_words) {
    static const struct {
        int share, capability;
        const char *words[3];
    } cases[] = {
        { 12, 90, { "compute capability 9.0): bf16, sums fp32; algorithm 40, cuBLASLt's first", "c, bias, activation, aux by cuBLASLt" } },
        { 15, 90, { "fp16, sums fp32", "; bias, activation, aux, rounding by libamp" } },
        { 0, 90, { "m = 5 is no multiple of 8: padded to 8 it may be faster" } },
    };
    char words[500];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct device_product p = shared(&shares[cases[i].share]);
        product_place(&p);
        ck_assert_int_eq(amp_device_matmul_explain(list, &p.args, &p.epilogue, words, sizeof words, NULL), AMP_OK);
        for (int k = 0; k < 3 && cases[i].words[k]; k++)
            ck_assert_msg(strstr(words, cases[i].words[k]) != NULL, "'%s' does not say '%s'", words, cases[i].words[k]);
    }
    ck_assert_int_eq(device.blas->products, 0);
}
END_TEST

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

START_TEST(test_threads) {
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
END_TEST

Suite *suite_product_calls(void) {
    Suite *suite = suite_create("product calls");
    TCase *tests = tcase_create("product calls");
    const int n = (int)(sizeof shares / sizeof *shares);
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, start, stop);
    tcase_add_loop_test(tests, test_share, 0, n);
    tcase_add_loop_test(tests, test_refused_epilogue, 0, n);
    tcase_add_test(tests, test_remembered);
    tcase_add_test(tests, test_bounded);
    tcase_add_test(tests, test_alignment);
    tcase_add_test(tests, test_measure);
    tcase_add_test(tests, test_workspace);
    tcase_add_test(tests, test_no_list);
    tcase_add_test(tests, test_capture);
    tcase_add_loop_test(tests, test_every_failure, 0, 8);
    tcase_add_loop_test(tests, test_every_failure_of_measuring, 0, 2);
    tcase_add_test(tests, test_refused);
    tcase_add_test(tests, test_arguments);
    tcase_add_test(tests, test_words);
    tcase_add_test(tests, test_threads);
    suite_add_tcase(suite, tests);
    return suite;
}
