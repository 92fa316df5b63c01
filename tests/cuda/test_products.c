/* SPDX-License-Identifier: Apache-2.0 */
/* amp_device_matmul and amp_matmul on a device, every combination of what they can be asked for: on the fake cuBLASLt,
 * which multiplies what its descriptors say, and where there is a GPU on NVIDIA's. */
#include "product.h"

#include <math.h>

static amp_device_list *list;

static void open_list(void) {
    ck_ok(amp_device_list_open((amp_device){ 2, 0 }, &list));
}
static void close_list(void) { amp_device_list_close(list); }

static struct device_product product_of(int64_t m, int64_t n, int64_t k, amp_dtype operands, amp_dtype d) {
    struct device_product p = { .args = AMP_MATMUL_ARGS_INIT, .epilogue = AMP_DEVICE_EPILOGUE_INIT };
    p.args.m = m, p.args.n = n, p.args.k = k;
    p.args.a_dtype = p.args.b_dtype = operands, p.args.d_dtype = d;
    p.args.bias_dtype = p.args.c_dtype = p.epilogue.bias_grad_dtype = d;
    return p;
}

static void run(struct device_product *p) {
    product_place(p);
    CHECK_THAT(amp_device_matmul(list, device.stream, &p->args, &p->epilogue) == AMP_OK, "%s: %s", product_words(p),
               amp_last_error());
    product_compare(p);
}

/* In the short form every seventh combination: as many of each kind, for seven is prime to their numbers. */
static int stride(void) { return sweep_step() > 1 ? 7 : 1; }

/* All types of operands, d, c and bias, all activations, both directions; what is left is drawn. One run per type
 * of a. */
TEST_TIMES(test_types, 3) {
    random_restart();
    for (int code = 0; code < 3 * 4 * 4 * 4 * 2; code += stride()) {
        const int c = code / 3 % 4, bias = code / 12 % 4;
        struct device_product p = product_of(9, 8 + (int64_t)random_below(2) * 3, 7, all_types[_i],
                                             all_types[code % 3]);
        p.with_c = c < 3, p.with_bias = bias < 3;
        if (p.with_c) p.args.c_dtype = all_types[c];
        if (p.with_bias) p.args.bias_dtype = all_types[bias];
        p.args.activation = code / 48 % 4, p.epilogue.backward = code / 192;
        p.args.alpha = random_below(2) ? 1.0f : -0.37f, p.args.beta = random_below(2) ? 1.0f : 0.5f;
        p.with_aux = p.epilogue.backward || random_below(2);
        if (p.epilogue.backward) p.with_bias = false;
        p.args.flags = random_below(4) ? 0 : AMP_MATMUL_FAST_RELU;
        p.args.transpose_a = (int32_t)random_below(2), p.args.transpose_b = (int32_t)random_below(2);
        p.gaps = random_below(2), p.in_place = p.with_c && random_below(3) == 0;
        p.epilogue.bias_grad_of = (int32_t)random_below(4);
        if (!p.epilogue.backward && p.epilogue.bias_grad_of == AMP_BIAS_GRAD_D)
            p.epilogue.bias_grad_of = AMP_BIAS_GRAD_NONE;
        p.epilogue.bias_grad_dtype = random_below(2) ? p.args.d_dtype : all_types[random_below(3)];
        run(&p);
    }
}

/* Each size from one on, each way to lie, each pair of transposes. */
TEST(test_shapes) {
    static const int64_t sizes[] = { 1, 2, 8, 13, 32 };
    random_restart();
    for (int code = 0; code < 5 * 5 * 5 * 4; code += stride()) {
        struct device_product p = product_of(sizes[code % 5], sizes[code / 5 % 5], sizes[code / 25 % 5],
                                             all_types[code % 3], all_types[random_below(2) ? code % 3 : 0]);
        p.args.transpose_a = code / 125 & 1, p.args.transpose_b = code / 250 & 1;
        p.with_bias = random_below(2), p.args.activation = (int32_t)random_below(4), p.gaps = random_below(2);
        run(&p);
    }
    for (int code = 0; code < PRODUCT_LAYOUTS * 4 * 4 * 2 * 3; code += stride()) {
        struct device_product p = product_of(5, 16, 8, all_types[code % 3], all_types[code % 3]);
        p.args.batch = 3, p.layout = (enum product_layout)(code / 3 % PRODUCT_LAYOUTS);
        p.args.activation = code / 12 % 4, p.args.transpose_a = code / 48 & 1, p.args.transpose_b = code / 96 & 1;
        p.epilogue.backward = code / 192, p.with_aux = p.epilogue.backward || random_below(2);
        p.with_c = random_below(2), p.args.beta = 0.5f, p.with_bias = !p.epilogue.backward && random_below(2);
        p.epilogue.bias_grad_of = p.epilogue.backward ? (int32_t)random_below(4) : AMP_BIAS_GRAD_NONE;
        run(&p);
    }
}

/* Nothing to multiply: alpha or k 0, whatever else is asked for; nothing at all. */
TEST(test_nothing) {
    for (int code = 0; code < 2 * 4 * 2 * 2; code++) {
        struct device_product p = product_of(5, 9, code & 1 ? 0 : 6, AMP_FLOAT16, code & 8 ? AMP_FLOAT16 : AMP_FLOAT32);
        p.args.alpha = code & 1 ? INFINITY : 0.0f, p.args.activation = code / 2 % 4;
        p.with_c = p.with_bias = true, p.args.beta = -2.0f, p.with_aux = code & 16;
        p.epilogue.bias_grad_of = AMP_BIAS_GRAD_A;
        run(&p);
    }
    struct device_product p = product_of(0, 9, 6, AMP_FLOAT16, AMP_FLOAT16);
    run(&p);
}

/* fp32 is fp32 unless tf32 is allowed. */
TEST(test_tf32) {
    struct device_product p = product_of(16, 16, 64, AMP_FLOAT32, AMP_FLOAT32);
    float plain[256];
    run(&p);
    memcpy(plain, p.args.d, sizeof plain);
    p.args.flags = AMP_MATMUL_TF32;
    run(&p);
    if (device.fake) ck_assert_int_ne(memcmp(plain, p.args.d, 16 * sizeof *plain), 0);
}

/* A NaN passes ReLU; where cuBLASLt's own is allowed, whatever it makes of it. */
TEST(test_nan) {
    for (int type = 0; type < 3; type++) {
        struct device_product p = product_of(4, 8, 8, all_types[type], all_types[type]);
        p.args.activation = AMP_ACTIVATION_RELU;
        product_place(&p);
        for (int q = 0; q < 8; q++)
            set_bits(all_types[type], product_a(&p), (size_t)q, infinity_bits(all_types[type]) + 1);
        ck_ok(amp_device_matmul(list, device.stream, &p.args, &p.epilogue));
        device_wait();
        for (size_t j = 0; j < 8; j++) {
            ck_assert(bits_are_nan(all_types[type], get_bits(all_types[type], p.args.d, j)));
            ck_assert(!bits_are_nan(all_types[type], get_bits(all_types[type], p.args.d, 8 + j)));
        }
    }
}

/* The implementation of an op for tensors wherever they are: amp_matmul, without a list. */
TEST(test_amp_matmul) {
    char words[400] = "";
    size_t length = 0;
    random_restart();
    for (int code = 0; code < 3 * 4 * 2; code++) {
        struct device_product p = product_of(12, 16, 24, all_types[code % 3], all_types[code % 3]);
        p.args.activation = code / 3 % 4, p.with_bias = code / 12;
        p.args.batch = 2;
        product_place(&p);
        p.args.device = (amp_device){ 2, 0 }, p.args.stream = device.stream;
        CHECK_THAT(amp_matmul(&p.args) == AMP_OK, "%s: %s", product_words(&p), amp_last_error());
        product_compare(&p);
        ck_ok(amp_matmul_explain(&p.args, words, sizeof words, &length));
        ck_assert_msg(strstr(words, "cuda (cuBLASLt ") == words && length == strlen(words), "%s", words);
    }
}

/* What is remembered of a shape is what gave the right result. */
TEST(test_measured) {
    struct device_product p = product_of(24, 32, 16, AMP_BFLOAT16, AMP_BFLOAT16);
    char words[400] = "";
    p.with_bias = true;
    product_place(&p);
    ck_ok(amp_device_matmul_measure(list, device.stream, &p.args, &p.epilogue));
    product_compare(&p);
    run(&p);
    ck_ok(amp_device_matmul_explain(list, &p.args, &p.epilogue, words, sizeof words, NULL));
    ck_assert_msg(strstr(words, "fastest") != NULL, "%s", words);
}

TEST_FIXTURE(open_list, close_list)
