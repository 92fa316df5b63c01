/* SPDX-License-Identifier: Apache-2.0 */
#include "loom_adapter.h"

#include <string.h>

/* ---- types ---- */

static loom_dtype to_host(amp_dtype dtype) {
    return dtype == AMP_FLOAT16 ? LOOM_F16 : dtype == AMP_BFLOAT16 ? LOOM_BF16 : LOOM_F32;
}

static amp_dtype from_host(loom_dtype dtype) {
    static const amp_dtype types[] = { AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16, AMP_DTYPE_OTHER };
    return types[dtype];
}

/* ---- hooks ---- */

/* Asked while the graph is built, when there is no data yet. */
static amp_dtype dtype(void *self, void *handle) {
    (void)self;
    return from_host(((const loom_node *)handle)->dtype);
}

/* Asked for parameters, which have memory from the start, and for their gradients, which loom_plan makes. */
static amp_status view(void *self, void *handle, amp_tensor_view *out) {
    static _Thread_local int64_t shape[2];
    const loom_node *p = handle;
    (void)self;
    if (!p->data) return AMP_ERR_HOST_FAILED;
    shape[0] = p->rows;
    shape[1] = p->cols;
    out->data = p->data;
    out->device.type = 1; /* CPU */
    out->ndim = 2;
    out->shape = shape;
    out->dtype.code = p->dtype == LOOM_BF16 ? 4 : 2;
    out->dtype.bits = (uint8_t)(8 * loom_width(p->dtype));
    out->dtype.lanes = 1;
    return AMP_OK;
}

/* A cast is a node: it is made once, and runs with the graph, forward and backward, in every iteration. */
static amp_status cast(void *self, void *handle, amp_dtype to, void **out) {
    loom_node *p = handle;
    *out = p->graph->ops.cast(p->graph, p, to_host(to));
    ((struct loom_adapter *)self)->casts++;
    return *out ? AMP_OK : AMP_ERR_HOST_FAILED;
}

/* Nodes belong to their graph, which frees them all. */
static void release(void *self, void *handle) { (void)self, (void)handle; }

static amp_status grad(void *self, void *handle, void **out) {
    (void)self;
    *out = ((loom_node *)handle)->grad; /* NULL before loom_plan */
    return AMP_OK;
}

static amp_status swap_data(void *self, void *handle, amp_storage *storage) {
    loom_node *p = handle;
    const amp_storage old = { p->data, NULL, (uint64_t)loom_size(p) * loom_width(p->dtype), from_host(p->dtype), 0 };
    (void)self;
    p->data = storage->data;
    p->dtype = to_host(storage->dtype);
    *storage = old;
    return AMP_OK;
}

/* ---- descriptions ---- */

static amp_op op(const char *name, const char *schema, void *slot) {
    amp_op described = AMP_OP_INIT;
    described.name = name;
    described.schema = schema;
    described.slot = slot;
    return described;
}

static void describe_ops(amp_op ops[LOOM_N_OPS], loom_ops *t) {
    const amp_op table[LOOM_N_OPS] = {
        op("linear", "linear(pointer graph, Tensor x, Tensor weight, Tensor bias) -> Tensor", &t->linear),
        op("batch_norm", "batch_norm(pointer graph, Tensor x, Tensor gamma, Tensor beta) -> Tensor", &t->batch_norm),
        op("relu", "relu(pointer graph, Tensor x) -> Tensor", &t->relu),
        op("cross_entropy", "cross_entropy(pointer graph, Tensor logits, Tensor labels) -> Tensor", &t->cross_entropy),
        op("cast", "cast(pointer graph, Tensor x, int dtype) -> Tensor", &t->cast),
        op("reserved", "reserved(pointer graph, Tensor x) -> Tensor", &t->reserved), /* empty: passed over */
    };
    memcpy(ops, table, sizeof table);
    ops[1].op_class = AMP_FP32; /* no list knows it; loom's gives the type it gets, and O1 wants it in FP32 */
}

static const int32_t skipped = 0;

void loom_adapter_init(struct loom_adapter *adapter, struct loom_net *net, loom_ops *table) {
    memset(adapter, 0, sizeof *adapter);
    adapter->host = (amp_host)AMP_HOST_INIT;
    adapter->host.flags = AMP_HOST_TAPE_RETAINS_INPUTS; /* the graph keeps its nodes */
    adapter->host.self = adapter;
    adapter->host.view = view;
    adapter->host.dtype = dtype;
    adapter->host.cast = cast;
    adapter->host.release = release;
    adapter->host.grad = grad;
    adapter->host.swap_data = swap_data;
    describe_ops(adapter->ops, table);
    for (int i = 0; i < N_PARAMS; i++) {
        adapter->params[i] = (amp_param)AMP_PARAM_INIT;
        adapter->params[i].tensor = adapter->trained[i] = net->params[i];
        adapter->params[i].name = net->params[i]->name;
        adapter->params[i].module_kind = i == GAMMA || i == BETA ? AMP_MODULE_BATCH_NORM : AMP_MODULE_OTHER;
    }
    adapter->build = op("build", "build(pointer self, Tensor x) -> Tensor", &net->build);
    adapter->model = (amp_model)AMP_MODEL_INIT;
    adapter->model.host = &adapter->host;
    adapter->model.self = net;
    adapter->model.ops = adapter->ops;
    adapter->model.n_ops = LOOM_N_OPS;
    adapter->model.params = adapter->params;
    adapter->model.n_params = N_PARAMS;
    adapter->model.forward = &adapter->build;
    adapter->step = op("step", "step(pointer self) -> int", &net->sgd.step);
    adapter->step.on_skip = &skipped;
    adapter->zero_grad = op("zero_grad", "zero_grad(pointer self) -> void", &net->sgd.zero_grad);
    adapter->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    adapter->optimizer.self = &net->sgd;
    adapter->optimizer.params = adapter->trained;
    adapter->optimizer.n_params = N_PARAMS;
    adapter->optimizer.steps = &adapter->step;
    adapter->optimizer.n_steps = 1;
    adapter->optimizer.zero_grads = &adapter->zero_grad;
    adapter->optimizer.n_zero_grads = 1;
}
