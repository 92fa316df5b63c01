/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emulation on a tape: the gradient goes back through the host's `cast`, which must round it as 16-bit storage would
 * (docs/reference/numerics.md). A host that rounds back gets the bits, and the overflow, of 16-bit storage; one that
 * does not trains on at a scale of 2^40 as if fp16 had no largest number.
 */
#include "checks.h"

#include <amp_kernels.h>
#include <math.h>

/* ---- a tape over numbers in FP32 ---- */

struct tensor {
    float value, grad;
};

enum { MUL, CAST, MOST = 32 };
static struct tensor made[MOST];
static struct node {
    int kind;
    struct tensor *a, *b, *out;
} tape[MOST];
static size_t n_made, n_nodes;
static bool rounds_back;

static float half(float x) { return amp_half_to_float(amp_float_to_half(x)); }

static struct tensor *record(int kind, struct tensor *a, struct tensor *b, float value) {
    ck_assert_uint_lt(n_made, MOST);
    struct tensor *out = &made[n_made++];
    *out = (struct tensor){ value, 0.0f };
    tape[n_nodes++] = (struct node){ kind, a, b, out };
    return out;
}

static struct tensor *mul(struct tensor *a, struct tensor *b) { return record(MUL, a, b, a->value * b->value); }
static struct tensor *(*mul_slot)(struct tensor *, struct tensor *);

static void backward(struct tensor *loss, float seed) {
    loss->grad = seed;
    while (n_nodes--) {
        const struct node *node = &tape[n_nodes];
        const float g = node->out->grad;
        if (node->kind == CAST) {
            node->a->grad += rounds_back ? half(g) : g;
        } else {
            node->a->grad += g * node->b->value;
            node->b->grad += g * node->a->value;
        }
    }
    n_nodes = 0;
}

/* ---- the hooks ---- */

static struct tensor weight, weight_grad; /* the gradient is weight_grad's value */

static amp_status view(void *self, void *handle, amp_tensor_view *out) {
    static int64_t shape[] = { 1 };
    (void)self;
    *out = (amp_tensor_view){ .data = &((struct tensor *)handle)->value, .device = { 1, 0 }, .dtype = { 2, 32, 1 },
                              .ndim = 1, .shape = shape };
    return AMP_OK;
}
static amp_status cast(void *self, void *handle, amp_dtype to, void **out) {
    struct tensor *source = handle;
    (void)self;
    *out = record(CAST, source, NULL, to == AMP_FLOAT16 ? half(source->value) : source->value);
    return AMP_OK;
}
static void release(void *self, void *handle) { (void)self, (void)handle; } /* the tape keeps all */
static amp_status grad(void *self, void *handle, void **out) {
    (void)self;
    ck_assert_ptr_eq(handle, &weight);
    *out = &weight_grad;
    return AMP_OK;
}

/* ---- y = (weight * x) * v, and one bracket ---- */

static const float x = 0.3f, v = 0.7f;

static amp_action train(float scale, bool rounding) {
    amp_host host = SIZED(amp_host, .flags = AMP_HOST_TAPE_RETAINS_INPUTS, .view = view, .cast = cast,
                          .release = release, .grad = grad);
    amp_op op = OP("mul", "mul(Tensor a, Tensor b) -> Tensor", &mul_slot, .op_class = AMP_LOWER);
    amp_param param = SIZED(amp_param, .tensor = &weight);
    amp_model *model = &SIZED(amp_model, .host = &host, .ops = &op, .n_ops = 1, .params = &param, .n_params = 1);
    void *params[] = { &weight };
    amp_optimizer *optimizer = &SIZED(amp_optimizer, .host = &host, .params = params, .n_params = 1);
    const amp_config config = CONFIG(AMP_O1, .emulate = AMP_ON, .loss_scale = scale);
    amp_context *context;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    struct tensor inputs[] = { { x, 0.0f }, { v, 0.0f } };
    weight = (struct tensor){ 1.1f, 0.0f };
    weight_grad = (struct tensor){ 0.0f, 0.0f };
    n_made = n_nodes = 0;
    rounds_back = rounding;
    mul_slot = mul;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &context));
    struct tensor *y = mul_slot(mul_slot(&weight, &inputs[0]), &inputs[1]);
    ck_assert_float_eq(y->value, half(half(half(1.1f) * half(x)) * half(v)));
    ck_ok(fake_begin(optimizer, NULL, &scaled));
    backward(y, amp_seed_factor(&scaled));
    weight_grad.value += weight.grad;
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(amp_shutdown(context));
    return scaled.action;
}

/* What 16-bit storage has: each gradient is a 16-bit tensor. */
static float stored(float scale) { return half(half(half(scale) * half(v)) * half(x)); }

TEST_TIMES(a_cast_that_rounds_back_is_16_bit_storage, 3) {
    const float scales[] = { 0x1p4f, 0x1p10f, 0x1p40f };
    const float scale = scales[_i];
    const amp_action action = train(scale, true);
    ck_assert_int_eq(action, isfinite(stored(scale)) ? AMP_STEP : AMP_SKIP);
    if (action == AMP_STEP) ck_assert_float_eq(weight_grad.value, stored(scale) / scale);
    ck_assert_int_eq(action == AMP_SKIP, _i == 2);
}

TEST(a_cast_that_does_not_is_another_training) {
    ck_assert_int_eq(train(0x1p10f, false), AMP_STEP);
    ck_assert_float_eq(weight_grad.value, half(x) * half(v)); /* more bits than fp16 has */
    ck_assert_float_ne(weight_grad.value, stored(0x1p10f) / 0x1p10f);
    ck_assert_int_eq(train(0x1p40f, false), AMP_STEP); /* 2^40 is infinite in fp16 */
    ck_assert_float_eq(weight_grad.value, half(x) * half(v));
}
