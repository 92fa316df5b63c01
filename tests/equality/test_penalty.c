/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gradient penalty and several backward passes, with amp_scale and amp_unscale, against the same by hand at scale 1:
 *
 *     loss = c . (W x) + |g|^2,  g = the gradient of c . (W x) at x = W^T c
 */
#include "one.h"

#include "amp_kernels.h"

enum { N = 3 };
static float half(float x) { return amp_half_to_float(amp_float_to_half(x)); }
static float c_of(int i) { return 0.21875f + 0.0703125f * (float)i; }
static float x_of(int i) { return 0.5f + 0.1f * (float)i; }
static float w_of(int i) { return 0.3f + 0.05f * (float)i; }

struct rig {
    struct one one;
    struct tensor *w, *x, *c;
    amp_op ops[2];
};

static const int64_t shape[2] = { N, N };

static struct tensor *filled(struct host *host, float (*value)(int)) {
    struct tensor *tensor = tensor_new(host, AMP_FLOAT32, 1, shape, false);
    for (int i = 0; i < N; i++) tensor_set(tensor, i, value(i));
    return tensor;
}

static void start(struct rig *rig, amp_level level, float scale) {
    struct host *host = &rig->one.host;
    one_init(&rig->one, 0, shape, w_of);
    rig->w = rig->one.param;
    rig->w->leaf = rig->w->requires_grad = true;
    rig->x = filled(host, x_of);
    rig->c = filled(host, c_of);
    rig->ops[0] = OP("linear", "linear(Tensor x, Tensor w, Tensor? bias) -> Tensor", &host->table[OP_LINEAR]);
    rig->ops[1] = OP("mul", "mul(Tensor a, Tensor b) -> Tensor", &host->table[OP_MUL]);
    rig->one.model.ops = rig->ops, rig->one.model.n_ops = 2;
    one_start(&rig->one, CONFIG(level, .loss_scale = scale));
}

static void end(struct rig *rig) {
    tensor_release(rig->x);
    tensor_release(rig->c);
    one_end(&rig->one);
}

#define START(name, level, scale) __attribute__((cleanup(end))) struct rig name; start(&name, level, scale)

/* c . (W x) */
static struct tensor *plain_loss(struct rig *rig) {
    struct tensor *y = host_linear(rig->x, rig->w, NULL), *weighed = host_mul(y, rig->c), *loss = host_sum(weighed);
    tensor_release(y);
    tensor_release(weighed);
    return loss;
}

static struct tensor *times(struct rig *rig, struct tensor *tensor, float factor) {
    void *out = NULL;
    ck_ok(rig->one.host.hooks.scale(&rig->one.host, tensor, factor, &out));
    return out;
}

/* |g|^2 on the tape. The first backward starts from the scaled loss, as a low-precision one must; 1 / scale is
 * recorded. */
static struct tensor *penalty(struct rig *rig, struct tensor *loss, float expected_scale) {
    void *scaled = NULL;
    ck_ok(amp_scale(rig->one.context, 0, loss, &scaled));
    const float scale = tensor_get(scaled, 0) / tensor_get(loss, 0);
    ck_assert_float_eq(scale, expected_scale);
    struct tensor *dy = times(rig, rig->c, scale), *dx = host_linear_grad(dy, rig->w),
                  *g = times(rig, dx, 1.0f / scale);
    struct tensor *squares = host_mul(g, g), *sum = host_sum(squares);
    struct tensor *const unneeded[] = { scaled, dy, dx, g, squares };
    for (int i = 0; i < 5; i++) tensor_release(unneeded[i]);
    return sum;
}

/* By hand. O1 casts W and x for the linear op; the penalty is in FP32. */
static float expected(amp_level level, int i, int j) {
    float g = 0.0f;
    for (int k = 0; k < N; k++) g += c_of(k) * w_of(k * N + j);
    const float x = level == AMP_O1 ? half(x_of(j)) : x_of(j);
    const float dw = level == AMP_O1 ? half(half(c_of(i)) * x) : c_of(i) * x;
    return c_of(i) * (g + g) + dw;
}

static const float scales[] = { 1.0f, 128.0f, 0x1p14f };

TEST_TIMES(gradient_penalty, 6) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    const amp_level level = _i / 3 ? AMP_O1 : AMP_O0;
    const float scale = scales[_i % 3];
    START(rig, level, scale);
    struct tensor *loss = plain_loss(&rig), *extra = penalty(&rig, loss, scale), *total = host_add(loss, extra);
    ck_ok(amp_scale_loss_begin(&rig.one.optimizer, total, &scaled));
    host_backward(scaled.loss, 1.0f);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(scaled.action, AMP_STEP);
    for (int i = 0; i < N * N; i++) ck_assert_float_eq(tensor_get(rig.w->grad, i), expected(level, i / N, i % N));
    struct tensor *const unneeded[] = { loss, extra, total };
    for (int i = 0; i < 3; i++) tensor_release(unneeded[i]);
}

/* Two backward passes outside of any bracket, of which the host keeps the gradients itself. */
TEST_TIMES(several_backward_passes, 3) {
    struct tensor *grads[2];
    float found_inf = 0.0f;
    START(rig, AMP_O1, scales[_i]);
    for (int k = 0; k < 2; k++) {
        struct tensor *loss = plain_loss(&rig);
        void *scaled = NULL;
        ck_ok(amp_scale(rig.one.context, 0, loss, &scaled));
        host_backward(scaled, k ? 0.5f : 1.0f);
        ck_ok(amp_tape_done(rig.one.context)); /* the cast of w was on this tape */
        grads[k] = rig.w->grad;
        rig.w->grad = NULL;
        tensor_release(scaled);
        tensor_release(loss);
    }
    ck_ok(amp_unscale(rig.one.context, 0, (void *const *)grads, 2, &found_inf));
    ck_assert_float_eq(found_inf, 0.0f);
    for (int i = 0; i < N * N; i++) {
        const float dw = half(half(c_of(i / N)) * half(x_of(i % N)));
        ck_assert_float_eq(tensor_get(grads[0], i), dw);
        ck_assert_float_eq(tensor_get(grads[1], i), 0.5f * dw);
    }
    for (int k = 0; k < 2; k++) tensor_release(grads[k]);
}
