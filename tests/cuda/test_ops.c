/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host whose tensors are on a device and whose op carries 16-bit implementations through amp_matmul: the same lines
 * that would serve it on the CPU, with the view's device and the host's stream. O1 and O4 pick them through the op's
 * table.
 */
#include "device.h"

#include <stdlib.h>

enum { M = 8, N = 16, K = 24 };

struct tensor {
    amp_dtype dtype;
    int64_t shape[2];
    void *data;
};

static amp_device_list *casts;
static int alive;

static struct tensor *make(amp_dtype dtype, int64_t rows, int64_t cols) {
    struct tensor *tensor = malloc(sizeof *tensor);
    ck_assert_ptr_nonnull(tensor);
    *tensor = (struct tensor){ dtype, { rows, cols }, device_alloc((size_t)(rows * cols) * 4) };
    alive++;
    return tensor;
}
static void drop(void *tensor) {
    alive--;
    free(tensor);
}

/* ---- hooks ---- */

static amp_status view(void *self, void *handle, amp_tensor_view *out) {
    struct tensor *tensor = handle;
    (void)self;
    *out = (amp_tensor_view){ .data = tensor->data, .device = { 2, 0 }, .ndim = 2, .shape = tensor->shape };
    out->dtype.code = tensor->dtype == AMP_BFLOAT16 ? 4 : 2;
    out->dtype.bits = tensor->dtype == AMP_FLOAT32 ? 32 : 16;
    out->dtype.lanes = 1;
    return AMP_OK;
}
static amp_dtype dtype(void *self, void *tensor) { return (void)self, ((struct tensor *)tensor)->dtype; }
static void release(void *self, void *tensor) { (void)self, drop(tensor); }
static amp_status grad(void *self, void *tensor, void **out) { return (void)self, (void)tensor, *out = NULL, AMP_OK; }

static amp_span span_of(const struct tensor *x) {
    return (amp_span){ x->data, (uint64_t)(x->shape[0] * x->shape[1]), x->dtype, 0 };
}
static amp_status cast(void *self, void *tensor, amp_dtype to, void **out) {
    const struct tensor *from = tensor;
    struct tensor *made = make(to, from->shape[0], from->shape[1]);
    const amp_span dst = span_of(made), src = span_of(from);
    (void)self;
    *out = made;
    return amp_device_cast(casts, device.stream, &dst, &src, 1);
}

/* ---- the op ---- */

static amp_dtype ran; /* the type of its operands */

static void *matmul(void *x, void *y) {
    const struct tensor *a = x, *b = y;
    struct tensor *d = make(a->dtype, a->shape[0], b->shape[1]);
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    amp_tensor_view of_a;
    ck_ok(view(NULL, x, &of_a));
    g.m = a->shape[0], g.n = b->shape[1], g.k = a->shape[1];
    g.a_dtype = a->dtype, g.b_dtype = b->dtype, g.d_dtype = d->dtype;
    g.a = a->data, g.b = b->data, g.d = d->data;
    g.device = of_a.device, g.stream = device.stream;
    ran = a->dtype;
    ck_ok(amp_matmul(&g));
    return d;
}
static void *no_matmul(void *x, void *y) {
    (void)x, (void)y;
    ck_abort_msg("the original ran");
    return NULL;
}

TEST_TIMES(test_level, 2) {
    static void *(*slot)(void *, void *);
    const amp_dtype low = _i ? AMP_BFLOAT16 : AMP_FLOAT16;
    amp_host host = AMP_HOST_INIT;
    amp_op op = AMP_OP_INIT;
    amp_model model = AMP_MODEL_INIT;
    slot = no_matmul;
    host.flags = AMP_HOST_TAPE_RETAINS_INPUTS;
    host.view = view, host.dtype = dtype, host.cast = cast, host.release = release, host.grad = grad;
    op.name = "matmul", op.schema = "matmul(Tensor a, Tensor b) -> Tensor";
    op.slot = (amp_fn *)(void *)&slot, op.fp16 = op.bf16 = (amp_fn)matmul, op.flags = AMP_OP_MATMUL;
    model.host = &host, model.ops = &op, model.n_ops = 1;
    ck_ok(amp_device_list_open((amp_device){ 2, 0 }, &casts));
    ck_ok(amp_initialize(&model, NULL, _i ? AMP_O4 : AMP_O1));
    struct tensor *a = make(AMP_FLOAT32, M, K), *b = make(AMP_FLOAT32, K, N);
    for (int i = 0; i < M * K; i++) ((float *)a->data)[i] = (float)(i % 7);
    for (int i = 0; i < K * N; i++) ((float *)b->data)[i] = (float)(i % 5 - 2);
    struct tensor *d = slot(a, b);
    device_wait();
    ck_assert_int_eq(ran, low);
    ck_assert_int_eq(d->dtype, low);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) { /* small whole numbers: exact in fp16, and one rounding from it in bf16 */
            float sum = 0.0f;
            for (int k = 0; k < K; k++) sum += (float)((i * K + k) % 7) * (float)((k * N + j) % 5 - 2);
            ck_assert_uint_eq(get_bits(low, d->data, (size_t)(i * N + j)), round_to_bits(low, (double)sum));
        }
    drop(a), drop(b), drop(d);
    ck_ok(amp_check(model.amp));
    ck_ok(amp_shutdown(model.amp));
    ck_assert_int_eq(alive, 0);
    amp_device_list_close(casts);
}
