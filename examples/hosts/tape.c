/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tape with handles: y = w * x, one weight vector, trained towards w = 3 at the opt levels, in real 16-bit storage
 * where the level has it. A framework in the first half, its adapter in the second.
 *
 *     cc tape.c $(pkg-config --cflags --libs libamp)
 */
#include <amp.h>
#include <amp_kernels.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 4 };

/* ---- the framework: counted tensors, an op behind a pointer, a tape of one entry, SGD ---- */

typedef struct tensor {
    int refs;
    amp_dtype dtype;
    void *data;
    int64_t shape[1];
    uint64_t version;
    struct tensor *grad, *source; /* source: what a cast was made from; gradients go there */
} tensor;

static size_t width(amp_dtype dtype) { return dtype == AMP_FLOAT32 ? 4 : 2; }

static tensor *new_tensor(amp_dtype dtype) {
    tensor *t = calloc(1, sizeof *t);
    *t = (tensor){ .refs = 1, .dtype = dtype, .data = calloc(N, width(dtype)), .shape = { N } };
    return t;
}

static void release(tensor *t) {
    if (!t || --t->refs) return;
    release(t->grad);
    release(t->source);
    free(t->data);
    free(t);
}

static amp_span span(const tensor *t) { return (amp_span){ t->data, N, t->dtype, 0 }; }

static void copy(tensor *dst, const tensor *src) { /* converts: libamp's kernels do for any host */
    const amp_span to = span(dst), from = span(src);
    if (amp_cast_list(&to, &from, 1) != AMP_OK) exit(1);
    dst->version++;
}

static void read_floats(const tensor *t, float *out) {
    tensor view = { .dtype = AMP_FLOAT32, .data = out };
    copy(&view, t);
}

static void write_floats(tensor *t, const float *in) {
    const tensor view = { .dtype = AMP_FLOAT32, .data = (void *)in };
    copy(t, &view);
}

static struct { tensor *x, *w; } tape; /* borrows what the op received: it does not retain it */

static tensor *mul(tensor *x, tensor *w) {
    float a[N], b[N];
    tensor *y = new_tensor(x->dtype);
    read_floats(x, a);
    read_floats(w, b);
    for (int i = 0; i < N; i++) a[i] *= b[i];
    write_floats(y, a);
    tape.x = x;
    tape.w = w;
    return y;
}

static void backward(const float *seed) { /* dw = seed * x, in w's type, then in its source's type */
    float x[N], g[N];
    tensor *leaf = tape.w->source ? tape.w->source : tape.w, *low = new_tensor(tape.w->dtype);
    read_floats(tape.x, x);
    for (int i = 0; i < N; i++) g[i] = seed[i] * x[i];
    write_floats(low, g);
    if (!leaf->grad) leaf->grad = new_tensor(leaf->dtype);
    copy(leaf->grad, low);
    release(low);
}

typedef struct sgd sgd;
struct sgd {
    tensor *param;
    int (*step)(sgd *);
    void (*zero_grad)(sgd *);
};

static int sgd_step(sgd *self) { /* reads FP32 alone, at every level */
    float *w = self->param->data, *g = self->param->grad->data;
    for (int i = 0; i < N; i++) w[i] -= 0.125f * g[i];
    self->param->version++;
    return 1;
}

static void sgd_zero_grad(sgd *self) {
    release(self->param->grad);
    self->param->grad = NULL;
}

static struct { tensor *(*mul)(tensor *, tensor *); } ops = { mul };

/* ---- the adapter: the hooks ---- */

static amp_status hook_view(void *self, void *handle, amp_tensor_view *view) {
    tensor *t = handle;
    (void)self;
    view->data = t->data;
    view->device.type = 1; /* CPU */
    view->ndim = 1;
    view->shape = t->shape;
    view->dtype.code = t->dtype == AMP_BFLOAT16 ? 4 : 2;
    view->dtype.bits = (uint8_t)(8 * width(t->dtype));
    view->dtype.lanes = 1;
    return AMP_OK;
}

static amp_status hook_cast(void *self, void *handle, amp_dtype to, void **out) {
    tensor *t = handle, *cast = new_tensor(to);
    (void)self;
    copy(cast, t);
    cast->source = t;
    t->refs++;
    *out = cast;
    return AMP_OK;
}

static void hook_release(void *self, void *handle) { (void)self; release(handle); }
static uint64_t hook_version(void *self, void *handle) { (void)self; return ((tensor *)handle)->version; }

static amp_status hook_grad(void *self, void *handle, void **grad) {
    (void)self;
    *grad = ((tensor *)handle)->grad;
    return AMP_OK;
}

static amp_status hook_set_grad(void *self, void *handle, void *grad) {
    (void)self;
    ((tensor *)handle)->grad = grad; /* the old one is libamp's now */
    return AMP_OK;
}

static amp_status hook_swap_data(void *self, void *handle, amp_storage *storage) {
    tensor *t = handle;
    const amp_storage old = { t->data, NULL, N * width(t->dtype), t->dtype, 0 };
    (void)self;
    t->data = storage->data;
    t->dtype = storage->dtype;
    *storage = old;
    return AMP_OK;
}

static amp_status hook_alloc(void *self, uint64_t bytes, amp_device device, amp_purpose purpose, amp_storage *storage) {
    (void)self, (void)device, (void)purpose;
    storage->data = malloc(bytes);
    return storage->data ? AMP_OK : AMP_ERR_NO_MEMORY;
}

static void hook_free(void *self, amp_storage *storage) { (void)self; free(storage->data); }

/* ---- the program ---- */

static void check(amp_status status) {
    if (status == AMP_OK) return;
    fprintf(stderr, "%s: %s\n", amp_status_name(status), amp_last_error());
    exit(1);
}

static void train(amp_level level, tensor *x, tensor *w, sgd *optim) {
    amp_host host = AMP_HOST_INIT;
    host.view = hook_view, host.cast = hook_cast, host.release = hook_release, host.version = hook_version;
    host.grad = hook_grad, host.set_grad = hook_set_grad, host.swap_data = hook_swap_data;
    host.alloc = hook_alloc, host.free = hook_free;

    amp_op op = AMP_OP_INIT, step = AMP_OP_INIT, zero = AMP_OP_INIT;
    op.name = "mul", op.aliases = "mm"; /* mm: what the lists call a product in the low type */
    op.op_class = AMP_LOWER;            /* or leave it to the lists and the aliases */
    op.schema = "mul(Tensor x, Tensor w) -> Tensor", op.slot = (amp_fn *)(void *)&ops.mul;
    step.name = "step", step.schema = "step(pointer self) -> int", step.slot = (amp_fn *)(void *)&optim->step;
    zero.name = "zero_grad", zero.schema = "zero_grad(pointer self) -> void";
    zero.slot = (amp_fn *)(void *)&optim->zero_grad;

    amp_param param = AMP_PARAM_INIT;
    param.tensor = w, param.name = "w";
    void *trained[] = { w };

    amp_model model = AMP_MODEL_INIT;
    model.host = &host, model.ops = &op, model.n_ops = 1, model.params = &param, model.n_params = 1;
    amp_optimizer optimizer = AMP_OPTIMIZER_INIT;
    optimizer.host = &host, optimizer.self = optim, optimizer.params = trained, optimizer.n_params = 1;
    optimizer.steps = &step, optimizer.n_steps = 1, optimizer.zero_grads = &zero, optimizer.n_zero_grads = 1;

    check(amp_initialize(&model, &optimizer, level));
    int steps = 0;
    for (int i = 0; i < 40; i++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        float out[N], seed[N];
        tensor *y = ops.mul(x, w);
        read_floats(y, out);
        check(amp_scale_loss_begin(&optimizer, NULL, &scaled));   /* no loss tensor: we seed backward ourselves */
        for (int k = 0; k < N; k++) seed[k] = (out[k] - 3.0f) * amp_seed_factor(&scaled);
        backward(seed);
        check(amp_scale_loss_end(&scaled));
        steps += optim->step(optim);                              /* 0 after an overflow */
        optim->zero_grad(optim);
        release(y);
    }
    printf("level O%d: %2d steps of 40, w in %d-bit storage", (int)level - 1, steps, (int)(8 * width(w->dtype)));
    check(amp_shutdown(model.amp));
    printf(", w = %g\n", (double)((float *)w->data)[0]);
}

int main(void) {
    for (amp_level level = AMP_O0; level <= AMP_O5; level++) {
        if (level == AMP_O3) continue; /* no FP32 masters there: this optimizer, which reads FP32, cannot step */
        tensor *x = new_tensor(AMP_FLOAT32), *w = new_tensor(AMP_FLOAT32);
        sgd optim = { w, sgd_step, sgd_zero_grad };
        write_floats(x, (const float[N]){ 1, 1, 1, 1 });
        train(level, x, w, &optim);
        release(x);
        release(w);
    }
    return 0;
}
