/* SPDX-License-Identifier: Apache-2.0 */
#include "shares.h"

enum { H = AMP_FLOAT16, W = AMP_BFLOAT16, S = AMP_FLOAT32 };

const struct share shares[] = {
    { H, H, 0, 0, 0, 0, 0, 0, 0, 0, PLAIN, 0, 0 },
    { W, W, W, W, 0, 0, 0, 0, 0, 0, PLAIN, 1, 1 }, /* with c in 16 bits the sum may be rounded before the bias */
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
    { W, W, W, W, 0, AMP_ACTIVATION_GELU_TANH, 0, 1, 0, 0, PLAIN, 1, 1 },
    { W, W, 0, 0, 0, AMP_ACTIVATION_GELU_TANH, 0, 0, 0, 0, PLAIN, 1, 1 },
    { S, S, 0, S, 0, AMP_ACTIVATION_GELU_TANH, 0, 0, 0, 0, E_BIAS, 1, 0 },
    { H, H, 0, H, 0, AMP_ACTIVATION_GELU, 0, 1, 0, 0, PLAIN, 1, 1 },
    { H, H, H, 0, H, AMP_ACTIVATION_RELU, 1, 1, AMP_BIAS_GRAD_D, 0, DRELU | BGRAD, 0, 0 },
    { S, S, 0, 0, S, AMP_ACTIVATION_RELU, 1, 1, 0, 0, DRELU, 0, 0 },
    { W, W, 0, 0, W, AMP_ACTIVATION_GELU_TANH, 1, 1, AMP_BIAS_GRAD_D, 0, PLAIN, 2, 1 },
    { W, W, 0, 0, S, AMP_ACTIVATION_GELU_TANH, 1, 1, AMP_BIAS_GRAD_D, 0, PLAIN, 2, 1 },
    { W, W, 0, 0, W, AMP_ACTIVATION_GELU, 1, 1, AMP_BIAS_GRAD_D, 0, PLAIN, 2, 1 },
    { W, W, 0, 0, W, 0, 1, 0, AMP_BIAS_GRAD_D, 0, PLAIN, 1, 0 },
    { H, H, H, 0, H, 0, 0, 0, AMP_BIAS_GRAD_A, 0, BGRADB, 0, 0 },
    { H, S, 0, 0, S, 0, 0, 0, AMP_BIAS_GRAD_B, 0, BGRADA, 0, 0 },
    { H, H, 0, 0, S, 0, 0, 0, AMP_BIAS_GRAD_B, 0, PLAIN, 1, 0 },
    { H, H, 0, H, H, 0, 0, 0, AMP_BIAS_GRAD_A, 0, E_BIAS, 1, 0 },
    { W, W, 0, W, 0, 0, 0, 0, 0, 0, E_BIAS, 0, 0 },
    { W, W, 0, W, 0, AMP_ACTIVATION_GELU_TANH, 0, 0, 0, 0, PLAIN, 1, 1 },
    { W, W, 0, W, 0, AMP_ACTIVATION_GELU_TANH, 0, 1, 0, 0, PLAIN, 1, 1 },
    { H, H, H, 0, 0, 0, 0, 0, 0, 0, PLAIN, 0, 0 },
};

const int n_shares = (int)(sizeof shares / sizeof *shares);

amp_device_list *list;

static void reset(void) {
    struct fake *fake = device.fake;
    *fake = (struct fake){ .devices = 2, .pools = 1, .blocks = fake->blocks, .streams = fake->streams };
    *device.blas = (struct fake_blas){
        .candidates = 1, .objects = device.blas->objects, .handles = device.blas->handles,
        .work = device.tools->work_on, .written = device.tools->written,
    };
}
void start_products(void) {
    reset();
    ck_ok(amp_device_list_open((amp_device){ 2, 0 }, &list));
}
void stop_products(void) {
    amp_device_list_close(list);
    reset();
}

struct device_product fresh(amp_dtype operands, amp_dtype d) {
    static int64_t k = 100;
    struct device_product p = { .args = AMP_MATMUL_ARGS_INIT, .epilogue = AMP_DEVICE_EPILOGUE_INIT };
    p.args.m = 5, p.args.n = 8, p.args.k = k++;
    p.args.a_dtype = p.args.b_dtype = operands;
    p.args.c_dtype = p.args.d_dtype = p.args.bias_dtype = p.epilogue.bias_grad_dtype = d;
    p.args.beta = 0.5f;
    return p;
}

amp_status run(struct device_product *p) { return amp_device_matmul(list, device.stream, &p->args, &p->epilogue); }

void run_right(struct device_product *p) {
    product_place(p);
    ck_ok(run(p));
    product_compare(p);
}

struct device_product shared(const struct share *s) {
    struct device_product p = fresh(s->operands, s->d);
    p.with_c = s->c != 0, p.with_bias = s->bias != 0, p.with_aux = s->aux;
    if (s->c) p.args.c_dtype = s->c;
    if (s->bias) p.args.bias_dtype = s->bias;
    if (s->grad) p.epilogue.bias_grad_dtype = s->grad;
    p.args.activation = s->activation, p.args.flags = s->flags;
    p.epilogue.backward = s->backward, p.epilogue.bias_grad_of = s->bias_grad_of;
    return p;
}
