/* SPDX-License-Identifier: Apache-2.0 */
#include "adapter.h"

#include <amp_diagnostics.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- types ---- */

static mt_dtype to_host(amp_dtype dtype) {
    return dtype == AMP_FLOAT16 ? MT_F16 : dtype == AMP_BFLOAT16 ? MT_BF16 : MT_F32;
}

static amp_dtype from_host(mt_dtype dtype) {
    switch (dtype) {
    case MT_F32: return AMP_FLOAT32;
    case MT_F16: return AMP_FLOAT16;
    case MT_BF16: return AMP_BFLOAT16;
    default: return AMP_DTYPE_OTHER;
    }
}

/* DLPack's numbers. minitape uses the first GPU. */
enum { CPU = 1, CUDA = 2 };

static amp_device to_device(mt_device device) { return (amp_device){ device == MT_CUDA ? CUDA : CPU, 0 }; }

/* ---- hooks: what libamp asks of a tensor ---- */

/* DLPack's codes; shape as int64, which minitape keeps as int. One thread trains here, so a static copy will do. */
static amp_status view(void *self, void *handle, amp_tensor_view *out) {
    static _Thread_local int64_t shape[MT_MAX_DIMS];
    const mt_tensor *tensor = handle;
    (void)self;
    for (int i = 0; i < tensor->ndim; i++) shape[i] = tensor->shape[i];
    out->data = tensor->storage->data;
    out->device = to_device(tensor->storage->device);
    out->ndim = tensor->ndim;
    out->dtype.code = tensor->dtype == MT_I32 ? 0 : tensor->dtype == MT_BF16 ? 4 : 2;
    out->dtype.bits = (uint8_t)(8 * mt_dtype_size(tensor->dtype));
    out->dtype.lanes = 1;
    out->shape = shape;
    return AMP_OK;
}

static amp_dtype dtype(void *self, void *tensor) {
    (void)self;
    return from_host(((const mt_tensor *)tensor)->dtype);
}

/* The framework's own cast op: it records on the tape, so backward returns a gradient in the source's type. */
static amp_status cast(void *self, void *tensor, amp_dtype to, void **out) {
    *out = ((struct adapter *)self)->net->ops->cast(tensor, to_host(to));
    return *out ? AMP_OK : AMP_ERR_HOST_FAILED;
}

static void release(void *self, void *tensor) {
    (void)self;
    mt_release(tensor);
}

static uint64_t id(void *self, void *tensor) {
    (void)self;
    return ((const mt_tensor *)tensor)->id;
}

static uint64_t version(void *self, void *tensor) {
    (void)self;
    return ((const mt_tensor *)tensor)->version;
}

static int32_t grad_enabled(void *self) {
    (void)self;
    return mt_grad_enabled();
}

static amp_status grad(void *self, void *tensor, void **out) {
    (void)self;
    *out = ((mt_tensor *)tensor)->grad;
    return AMP_OK;
}

/* The reference that the tensor held moves to libamp, and libamp's reference to the tensor. */
static amp_status set_grad(void *self, void *tensor, void *gradient) {
    (void)self;
    ((mt_tensor *)tensor)->grad = gradient;
    return AMP_OK;
}

/* libamp's word for a block carries ours in `owner`. A parameter's FP32 block that makes way for a 16-bit one lives on
 * as its master, so it moves to another column of the memory account. */
static amp_status swap_data(void *self, void *handle, amp_storage *storage) {
    mt_tensor *tensor = handle;
    const amp_dtype old_type = from_host(tensor->dtype);
    mt_storage *fresh = storage->owner, *old;
    (void)self;
    if (tensor->storage->category != MT_MEM_GRADIENT) {
        if (storage->dtype == AMP_FLOAT32) mt_storage_retag(fresh, MT_MEM_PARAMETER);
        else mt_storage_retag(tensor->storage, MT_MEM_OTHER);
    }
    old = mt_tensor_swap_storage(tensor, fresh, to_host(storage->dtype));
    *storage = (amp_storage){ old->data, old, old->bytes, old_type, 0 };
    return AMP_OK;
}

static amp_status scale(void *self, void *loss, float factor, void **out) {
    *out = ((struct adapter *)self)->net->ops->scale(loss, factor);
    return *out ? AMP_OK : AMP_ERR_HOST_FAILED;
}

/* The factor is on the device; nobody waits for it. */
static amp_status scale_by(void *self, void *loss, const float *factor, void **out) {
    (void)self;
    *out = mt_scale_by(loss, factor);
    return *out ? AMP_OK : AMP_ERR_HOST_FAILED;
}

/* minitape has one stream, and frees memory in its order. */
static amp_status current_stream(void *self, amp_device device, void **stream) {
    (void)self;
    *stream = device.type == CUDA ? mt_device_stream(MT_CUDA) : NULL;
    return *stream ? AMP_OK : AMP_ERR_HOST_FAILED;
}

static amp_status alloc_block(void *self, uint64_t bytes, amp_device device, amp_purpose purpose, amp_storage *out) {
    static const mt_category categories[] = { [AMP_FOR_PARAMETER] = MT_MEM_PARAMETER,
                                              [AMP_FOR_MASTER] = MT_MEM_OTHER,
                                              [AMP_FOR_GRADIENT] = MT_MEM_GRADIENT };
    mt_storage *block = mt_storage_new_on(device.type == CUDA ? MT_CUDA : MT_CPU, (size_t)bytes, categories[purpose]);
    (void)self;
    if (!block) return AMP_ERR_NO_MEMORY;
    out->data = block->data;
    out->owner = block;
    out->bytes = block->bytes;
    return AMP_OK;
}

static void free_block(void *self, amp_storage *storage) {
    (void)self;
    mt_storage_free(storage->owner);
}

static void event(void *self, const struct amp_event *what) {
    const struct adapter *adapter = self;
    if (adapter->event) adapter->event(adapter->event_self, what);
}

/* ---- descriptions: ops, parameters, slots ---- */

/* A failing op returns NULL in minitape (zeros: libamp's default), except add_, which returns -1. */
static const int32_t failed = -1, skipped = 0;

static amp_op op(const char *name, const char *schema, void *slot) {
    amp_op described = AMP_OP_INIT;
    described.name = name;
    described.schema = schema;
    described.slot = slot;
    return described;
}

/* Every function pointer of the framework's table, with its prototype. The names are those of the cast lists. */
static void describe_ops(amp_op ops[ADAPTER_OPS], mt_ops *t) {
    const amp_op table[ADAPTER_OPS] = {
        op("conv2d", "conv2d(Tensor input, Tensor weight, Tensor? bias, int32 stride, int32 padding) -> Tensor",
           &t->conv2d),
        op("batch_norm", "batch_norm(Tensor input, Tensor weight, Tensor bias, Tensor(keep) running_mean, "
           "Tensor(keep) running_var, int32 training, float momentum, float eps) -> Tensor", &t->batch_norm),
        op("relu", "relu(Tensor input) -> Tensor", &t->relu),
        op("add", "add(Tensor a, Tensor b) -> Tensor", &t->add),
        op("mul", "mul(Tensor a, Tensor b) -> Tensor", &t->mul),
        op("max_pool2d", "max_pool2d(Tensor input, int32 kernel, int32 stride) -> Tensor", &t->max_pool2d),
        op("global_avg_pool", "global_avg_pool(Tensor input) -> Tensor", &t->global_avg_pool),
        op("linear", "linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor", &t->linear),
        op("log_softmax", "log_softmax(Tensor input) -> Tensor", &t->log_softmax),
        op("nll_loss", "nll_loss(Tensor logp, Tensor target) -> Tensor", &t->nll_loss),
        op("dropout", "dropout(Tensor input, float p, int32 training, uint64 seed) -> Tensor", &t->dropout),
        op("cat", "cat(Tensor[] tensors, int32 n, int32 dim) -> Tensor", &t->cat),
        op("scale", "scale(Tensor input, float factor) -> Tensor", &t->scale),
        op("cast", "cast(Tensor input, int32 dtype) -> Tensor", &t->cast),
        op("add_", "add_(Tensor(a!) self, Tensor other, float alpha) -> int32", &t->add_),
    };
    memcpy(ops, table, sizeof table);
    ops[ADAPTER_OPS - 1].on_failure = &failed;
}

static void describe_params(amp_param params[NET_TENSORS], const struct net *net) {
    for (int i = 0; i < net->n_list; i++) {
        params[i] = (amp_param)AMP_PARAM_INIT;
        params[i].tensor = net->list[i].tensor;
        params[i].name = net->list[i].name;
        params[i].module_kind = net->list[i].is_norm ? AMP_MODULE_BATCH_NORM : AMP_MODULE_OTHER;
    }
}

static void describe_host(amp_host *host, struct adapter *adapter) {
    *host = (amp_host)AMP_HOST_INIT;
    host->flags = AMP_HOST_TAPE_RETAINS_INPUTS; /* minitape's nodes hold references to what they need */
    host->self = adapter;
    host->view = view;
    host->dtype = dtype;
    host->cast = cast;
    host->release = release;
    host->id = id;
    host->version = version;
    host->grad_enabled = grad_enabled;
    host->grad = grad;
    host->set_grad = set_grad;
    host->swap_data = swap_data;
    host->scale = scale;
    host->scale_by = scale_by;
    host->current_stream = current_stream;
    host->alloc = alloc_block;
    host->free = free_block;
    host->event = event;
}

/* On a device minitape's step takes a pointer to found_inf and skips there: its slot stays as it is, and adapter_step
 * gets the pointer. So no step waits for the device. */
static void skip_there(struct adapter *adapter) {
    adapter->optimizer.flags |= AMP_OPTIMIZER_SKIPS_ON_DEVICE;
    adapter->optimizer.steps = NULL;
    adapter->optimizer.n_steps = 0;
}

void adapter_init(struct adapter *adapter, struct net *net, mt_optimizer *optimizer,
                  void (*on_event)(void *self, const struct amp_event *event), void *event_self) {
    adapter->net = net;
    adapter->event = on_event;
    adapter->event_self = event_self;
    describe_host(&adapter->host, adapter);
    describe_ops(adapter->ops, net->ops);
    describe_params(adapter->params, net);

    adapter->model = (amp_model)AMP_MODEL_INIT;
    adapter->model.host = &adapter->host;
    adapter->model.self = net;
    adapter->model.flags = AMP_MODEL_WHOLE_TABLE; /* of which the network uses a part */
    adapter->model.ops = adapter->ops;
    adapter->model.n_ops = ADAPTER_OPS;
    adapter->model.params = adapter->params;
    adapter->model.n_params = (size_t)net->n_list;
    adapter->forward = op("forward", "forward(pointer self, Tensor images) -> Tensor", &net->forward);
    adapter->model.forward = &adapter->forward;

    adapter->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    adapter->optimizer.host = &adapter->host;
    adapter->optimizer.self = optimizer;
    adapter->optimizer.n_params = net_params(net, adapter->trained);
    adapter->optimizer.params = (void *const *)adapter->trained;
    adapter->step = op("step", "step(pointer self) -> int32", &optimizer->step);
    adapter->step.on_skip = &skipped;
    adapter->optimizer.steps = &adapter->step;
    adapter->optimizer.n_steps = 1;
    adapter->zero_grad = op("zero_grad", "zero_grad(pointer self) -> void", &optimizer->zero_grad);
    adapter->optimizer.zero_grads = &adapter->zero_grad;
    adapter->optimizer.n_zero_grads = 1;
    if (adapter->trained[0]->storage->device != MT_CPU) skip_there(adapter);
}

amp_status adapter_step(struct adapter *adapter, mt_optimizer *optimizer) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    const amp_status status = amp_step_begin(&adapter->optimizer, &info);
    int steps = 0;
    if (status != AMP_OK) return status;
    optimizer->found_inf = info.action == AMP_STEP_ON_DEVICE ? info.found_inf : NULL;
    if (info.action != AMP_SKIP) steps = optimizer->step(optimizer);
    optimizer->found_inf = NULL;
    const amp_status ended = amp_step_end(&adapter->optimizer);
    return steps < 0 ? AMP_ERR_HOST_FAILED : ended;
}

/* The report's last line; the whole of it is for when something is wrong. */
const char *adapter_health(struct adapter *adapter) {
    size_t length;
    char *text, *line;
    adapter->health[0] = '\0';
    if (!adapter->model.amp || amp_health(adapter->model.amp, NULL, 0, &length) != AMP_OK) return adapter->health;
    text = malloc(length + 1);
    if (!text || amp_health(adapter->model.amp, text, length + 1, NULL) != AMP_OK) return free(text), adapter->health;
    text[length - 1] = '\0';
    line = strrchr(text, '\n');
    snprintf(adapter->health, sizeof adapter->health, "%s", line ? line + 1 : text);
    free(text);
    return adapter->health;
}
