/* SPDX-License-Identifier: Apache-2.0 */
#include "host.h"

#include "amp_kernels.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors ---- */

static size_t width(amp_dtype dtype) { return dtype == AMP_FLOAT32 ? 4 : 2; }

static amp_storage block_new(struct host *host, uint64_t bytes, amp_dtype dtype) {
    void *data = calloc(1, bytes ? bytes : 1);
    assert(data);
    host->live_blocks++;
    return (amp_storage){ data, data, bytes, dtype, 0 };
}

int64_t tensor_size(const struct tensor *tensor) {
    int64_t size = 1;
    for (int32_t d = 0; d < tensor->ndim; d++) size *= tensor->shape[d];
    return size;
}

struct tensor *tensor_new(struct host *host, amp_dtype dtype, int32_t ndim, const int64_t *shape, bool strided) {
    struct tensor *tensor = calloc(1, sizeof *tensor);
    assert(tensor);
    *tensor = (struct tensor){ .host = host, .refs = 1, .ndim = ndim, .id = ++host->next_id, .version = 1 };
    int64_t stride = strided ? 2 : 1;
    for (int32_t i = 0; i < ndim; i++) {
        const int32_t d = strided ? i : ndim - 1 - i;
        tensor->shape[d] = shape[d];
        tensor->strides[d] = stride;
        stride *= shape[d];
    }
    tensor->storage = block_new(host, (uint64_t)(strided && !ndim ? 1 : stride) * width(dtype), dtype);
    host->live_tensors++;
    return tensor;
}

void tensor_release(struct tensor *tensor) {
    if (!tensor || --tensor->refs) return;
    assert(tensor->refs == 0);
    tensor_release(tensor->grad);
    assert(tensor->storage.owner == tensor->storage.data);
    tensor->host->live_blocks--;
    tensor->host->live_tensors--;
    free(tensor->storage.data);
    free(tensor);
}

static char *place(const struct tensor *tensor, int64_t i) {
    int64_t offset = tensor->first;
    for (int32_t d = tensor->ndim; d--; i /= tensor->shape[d]) offset += i % tensor->shape[d] * tensor->strides[d];
    return (char *)tensor->storage.data + offset * (int64_t)width(tensor->storage.dtype);
}

float tensor_get(const struct tensor *tensor, int64_t i) {
    const void *at = place(tensor, i);
    float value;
    uint16_t low;
    if (tensor->storage.dtype == AMP_FLOAT32) return memcpy(&value, at, sizeof value), value;
    memcpy(&low, at, sizeof low);
    return tensor->storage.dtype == AMP_FLOAT16 ? amp_half_to_float(low) : amp_bfloat16_to_float(low);
}

static void put(struct tensor *tensor, int64_t i, float value) {
    void *at = place(tensor, i);
    const uint16_t low = tensor->storage.dtype == AMP_FLOAT16 ? amp_float_to_half(value) : amp_float_to_bfloat16(value);
    if (tensor->storage.dtype == AMP_FLOAT32) memcpy(at, &value, sizeof value);
    else memcpy(at, &low, sizeof low);
}

void tensor_set(struct tensor *tensor, int64_t i, float value) {
    put(tensor, i, value);
    tensor->version++;
}

static float rounded(amp_dtype dtype, float x) {
    if (dtype == AMP_FLOAT16) return amp_half_to_float(amp_float_to_half(x));
    return dtype == AMP_BFLOAT16 ? amp_bfloat16_to_float(amp_float_to_bfloat16(x)) : x;
}

/* ---- the tape ---- */

static struct node *record(struct tensor *out, void (*backward)(struct node *), struct tensor *a, struct tensor *b,
                           struct tensor *c) {
    struct host *host = out->host;
    assert(host->n_tape < HOST_TAPE);
    struct node *node = &host->tape[host->n_tape++];
    *node = (struct node){ backward, { a, b, c }, out, 1.0f };
    for (int i = 0; i < 3; i++)
        if (node->in[i]) {
            node->in[i]->refs++;
            out->requires_grad |= node->in[i]->requires_grad;
        }
    out->refs++;
    return node;
}

static void give(struct tensor *to, int64_t i, float value, bool fresh) {
    const amp_dtype dtype = to->storage.dtype;
    value = rounded(dtype, value);
    to->work[i] = fresh ? value : rounded(dtype, to->work[i] + value);
}

static void accumulate(struct tensor *param) {
    if (!param->grad)
        param->grad = tensor_new(param->host, param->storage.dtype, param->ndim, param->shape,
                                 param->host->strided_grads);
    for (int64_t i = 0; i < tensor_size(param); i++)
        tensor_set(param->grad, i, tensor_get(param->grad, i) + param->work[i]);
}

void host_backward(struct tensor *loss, float seed) {
    struct host *host = loss->host;
    loss->work[0] = seed;
    loss->has_work = true;
    for (int n = host->n_tape; n--;)
        if (host->tape[n].out->has_work) host->tape[n].backward(&host->tape[n]);
    for (int n = host->n_tape; n--;)
        for (int i = 0; i < 3; i++) {
            struct tensor *in = host->tape[n].in[i];
            if (in && in->leaf && in->has_work) accumulate(in);
            if (in) in->has_work = false;
        }
    host_drop_tape(host);
}

void host_drop_tape(struct host *host) {
    while (host->n_tape) {
        struct node *node = &host->tape[--host->n_tape];
        for (int i = 0; i < 3; i++) tensor_release(node->in[i]);
        tensor_release(node->out);
    }
}

void host_zero_grad(struct tensor *param) {
    if (!param->grad) return;
    if (!param->host->fixed_grads) {
        tensor_release(param->grad);
        param->grad = NULL;
        return;
    }
    for (int64_t i = 0; i < tensor_size(param); i++) tensor_set(param->grad, i, 0.0f);
}

/* ---- ops: each takes what types it gets ---- */

static amp_dtype wider(const struct tensor *a, const struct tensor *b) {
    return a->storage.dtype == b->storage.dtype ? a->storage.dtype : AMP_FLOAT32;
}

static void linear_back(struct node *node) {
    struct tensor *x = node->in[0], *w = node->in[1], *bias = node->in[2];
    const float *dy = node->out->work;
    const int64_t rows = w->shape[0], columns = w->shape[1];
    for (int64_t i = 0; i < rows && w->requires_grad; i++)
        for (int64_t j = 0; j < columns; j++) give(w, i * columns + j, dy[i] * tensor_get(x, j), !w->has_work);
    for (int64_t j = 0; j < columns && x->requires_grad; j++) {
        float sum = 0.0f;
        for (int64_t i = 0; i < rows; i++) sum += dy[i] * tensor_get(w, i * columns + j);
        give(x, j, sum, !x->has_work);
    }
    for (int64_t i = 0; bias && bias->requires_grad && i < rows; i++) give(bias, i, dy[i], !bias->has_work);
    w->has_work |= w->requires_grad;
    x->has_work |= x->requires_grad;
    if (bias) bias->has_work |= bias->requires_grad;
}

static struct tensor *op_linear(struct tensor *x, struct tensor *w, struct tensor *bias) {
    assert(x->storage.dtype == w->storage.dtype && (!bias || bias->storage.dtype == w->storage.dtype));
    struct tensor *out = tensor_new(x->host, x->storage.dtype, 1, w->shape, false);
    for (int64_t i = 0; i < w->shape[0]; i++) {
        float sum = 0.0f;
        for (int64_t j = 0; j < w->shape[1]; j++) sum += tensor_get(w, i * w->shape[1] + j) * tensor_get(x, j);
        put(out, i, bias ? sum + tensor_get(bias, i) : sum);
    }
    record(out, linear_back, x, w, bias);
    return out;
}

static void linear_grad_back(struct node *node) {
    struct tensor *dy = node->in[0], *w = node->in[1];
    const int64_t rows = w->shape[0], columns = w->shape[1];
    for (int64_t i = 0; i < rows && w->requires_grad; i++)
        for (int64_t j = 0; j < columns; j++)
            give(w, i * columns + j, tensor_get(dy, i) * node->out->work[j], !w->has_work);
    w->has_work |= w->requires_grad;
}

struct tensor *host_linear_grad(struct tensor *dy, struct tensor *w) {
    struct tensor *out = tensor_new(dy->host, wider(dy, w), 1, &w->shape[1], false);
    for (int64_t j = 0; j < w->shape[1]; j++) {
        float sum = 0.0f;
        for (int64_t i = 0; i < w->shape[0]; i++) sum += tensor_get(dy, i) * tensor_get(w, i * w->shape[1] + j);
        put(out, j, sum);
    }
    record(out, linear_grad_back, dy, w, NULL);
    return out;
}

/* b may be a scalar. */
static void mul_back(struct node *node) {
    struct tensor *a = node->in[0], *b = node->in[1];
    const float *dout = node->out->work;
    const bool scalar = b->ndim == 0;
    float sum = 0.0f;
    for (int64_t i = 0; i < tensor_size(a); i++) {
        if (a->requires_grad) give(a, i, dout[i] * tensor_get(b, scalar ? 0 : i), !a->has_work);
        sum += dout[i] * tensor_get(a, i);
        if (b->requires_grad && !scalar) give(b, i, dout[i] * tensor_get(a, i), b != a && !b->has_work);
    }
    if (b->requires_grad && scalar) give(b, 0, sum, !b->has_work);
    a->has_work |= a->requires_grad;
    b->has_work |= b->requires_grad;
}

static struct tensor *op_mul(struct tensor *a, struct tensor *b) {
    struct tensor *out = tensor_new(a->host, wider(a, b), a->ndim, a->shape, false);
    for (int64_t i = 0; i < tensor_size(a); i++) put(out, i, tensor_get(a, i) * tensor_get(b, b->ndim ? i : 0));
    record(out, mul_back, a, b, NULL);
    return out;
}

static void sum_back(struct node *node) {
    struct tensor *x = node->in[0];
    for (int64_t i = 0; i < tensor_size(x); i++) give(x, i, node->out->work[0] * node->factor, !x->has_work);
    x->has_work = true;
}

static struct tensor *op_sum(struct tensor *x) {
    struct tensor *out = tensor_new(x->host, x->storage.dtype, 0, NULL, false);
    float sum = 0.0f;
    for (int64_t i = 0; i < tensor_size(x); i++) sum += tensor_get(x, i);
    put(out, 0, sum);
    record(out, sum_back, x, NULL, NULL);
    return out;
}

/* Of one element each. */
static void add_back(struct node *node) {
    for (int i = 0; i < 2; i++) {
        give(node->in[i], 0, node->out->work[0], !node->in[i]->has_work);
        node->in[i]->has_work = true;
    }
}

static struct tensor *op_add(struct tensor *a, struct tensor *b) {
    struct tensor *out = tensor_new(a->host, wider(a, b), 0, NULL, false);
    put(out, 0, tensor_get(a, 0) + tensor_get(b, 0));
    record(out, add_back, a, b, NULL);
    return out;
}

struct tensor *host_linear(struct tensor *x, struct tensor *w, struct tensor *bias) {
    return ((struct tensor * (*)(struct tensor *, struct tensor *, struct tensor *)) x->host->table[OP_LINEAR])(x, w,
                                                                                                                bias);
}
struct tensor *host_mul(struct tensor *a, struct tensor *b) {
    return ((struct tensor * (*)(struct tensor *, struct tensor *)) a->host->table[OP_MUL])(a, b);
}
struct tensor *host_sum(struct tensor *x) {
    return ((struct tensor * (*)(struct tensor *)) x->host->table[OP_SUM])(x);
}
struct tensor *host_add(struct tensor *a, struct tensor *b) {
    return ((struct tensor * (*)(struct tensor *, struct tensor *)) a->host->table[OP_ADD])(a, b);
}

/* ---- hooks ---- */

static amp_status hook_view(void *self, void *handle, amp_tensor_view *view) {
    struct tensor *tensor = handle;
    const amp_dtype dtype = tensor->storage.dtype;
    (void)self;
    view->data = tensor->storage.data;
    view->byte_offset = (uint64_t)tensor->first * width(dtype);
    view->device.type = 1;
    view->ndim = tensor->ndim;
    view->shape = tensor->shape;
    view->strides = tensor->strides;
    view->dtype.code = dtype == AMP_BFLOAT16 ? 4 : 2;
    view->dtype.bits = (uint8_t)(8 * width(dtype));
    view->dtype.lanes = 1;
    return AMP_OK;
}

static amp_dtype hook_dtype(void *self, void *handle) { return (void)self, ((struct tensor *)handle)->storage.dtype; }
static void hook_release(void *self, void *handle) { (void)self, tensor_release(handle); }
static uint64_t hook_id(void *self, void *handle) { return (void)self, ((struct tensor *)handle)->id; }
static uint64_t hook_version(void *self, void *handle) { return (void)self, ((struct tensor *)handle)->version; }

static void copy_back(struct node *node) {
    struct tensor *from = node->in[0];
    if (!from->requires_grad) return;
    for (int64_t i = 0; i < tensor_size(from); i++) give(from, i, node->out->work[i] * node->factor, !from->has_work);
    from->has_work = true;
}

/* factor times the tensor, in another type, on the tape. */
static struct tensor *copy_of(struct tensor *from, amp_dtype to, float factor) {
    struct tensor *out = tensor_new(from->host, to, from->ndim, from->shape, false);
    for (int64_t i = 0; i < tensor_size(from); i++) put(out, i, tensor_get(from, i) * factor);
    record(out, copy_back, from, NULL, NULL)->factor = factor;
    return out;
}

static amp_status hook_cast(void *self, void *handle, amp_dtype to, void **out) {
    return (void)self, *out = copy_of(handle, to, 1.0f), AMP_OK;
}
static amp_status hook_scale(void *self, void *loss, float factor, void **out) {
    return (void)self, *out = copy_of(loss, ((struct tensor *)loss)->storage.dtype, factor), AMP_OK;
}
static amp_status hook_grad(void *self, void *handle, void **grad) {
    return (void)self, *grad = ((struct tensor *)handle)->grad, AMP_OK;
}
static amp_status hook_set_grad(void *self, void *handle, void *grad) {
    return (void)self, ((struct tensor *)handle)->grad = grad, AMP_OK;
}

static amp_status hook_swap(void *self, void *handle, amp_storage *storage) {
    struct tensor *tensor = handle;
    const amp_storage old = tensor->storage;
    const int64_t first = tensor->first;
    (void)self;
    tensor->storage = *storage;
    *storage = old;
    tensor->first = tensor->lent_first; /* a block that is lent begins with element 0 */
    tensor->lent_first = first;
    tensor->version++;
    return AMP_OK;
}

static amp_status hook_alloc(void *self, uint64_t bytes, amp_device device, amp_purpose purpose, amp_storage *storage) {
    (void)device, (void)purpose;
    *storage = block_new(self, bytes, storage->dtype);
    return AMP_OK;
}

static void hook_free(void *self, amp_storage *storage) {
    ((struct host *)self)->live_blocks--;
    free(storage->data);
}

static void hook_event(void *self, const amp_event *event) {
    struct host *host = self;
    host->skips += event->kind == AMP_EVENT_SKIP;
    host->changes += event->kind == AMP_EVENT_SCALE_CHANGE;
}

void host_init(struct host *host, unsigned options) {
    memset(host, 0, sizeof *host);
    host->fixed_grads = (options & HOST_NO_SET_GRAD) != 0;
    host->strided_grads = (options & HOST_STRIDED_GRADS) != 0;
    host->table[OP_LINEAR] = (amp_fn)op_linear;
    host->table[OP_MUL] = (amp_fn)op_mul;
    host->table[OP_SUM] = (amp_fn)op_sum;
    host->table[OP_ADD] = (amp_fn)op_add;
    host->hooks = (amp_host){ .struct_size = sizeof(amp_host), .flags = AMP_HOST_TAPE_RETAINS_INPUTS, .self = host,
                              .view = hook_view, .dtype = hook_dtype, .cast = hook_cast, .release = hook_release,
                              .id = hook_id, .version = options & HOST_NO_VERSION ? NULL : hook_version,
                              .grad = hook_grad, .set_grad = options & HOST_NO_SET_GRAD ? NULL : hook_set_grad,
                              .swap_data = hook_swap, .scale = options & HOST_NO_SCALE ? NULL : hook_scale,
                              .alloc = hook_alloc, .free = hook_free, .event = hook_event };
}
