/* SPDX-License-Identifier: Apache-2.0 */
#include <amp_raw.h>
#include "mill_adapter.h"

#include <stdbool.h>
#include <string.h>

/* ---- what each kind of node does with the memory behind its pointers ---- */

enum part { X, G, SAVED, WORK, IN_X, IN_G }; /* of the node; of its input k: IN_X + 2k, IN_G + 2k */
#define IN(k, what) (IN_##what + 2 * (k))

struct use {
    int action, part;
    amp_role role;
};

static const struct use linear[] = {
    { MILL_FORWARD, IN(0, X), AMP_ROLE_READ },    { MILL_FORWARD, IN(1, X), AMP_ROLE_READ },
    { MILL_FORWARD, IN(2, X), AMP_ROLE_READ },    { MILL_FORWARD, WORK, AMP_ROLE_SCRATCH },
    { MILL_FORWARD, X, AMP_ROLE_WRITE },
    { MILL_BACKWARD, G, AMP_ROLE_READ },          { MILL_BACKWARD, IN(0, X), AMP_ROLE_READ },
    { MILL_BACKWARD, IN(1, X), AMP_ROLE_READ },   { MILL_BACKWARD, WORK, AMP_ROLE_SCRATCH },
    { MILL_BACKWARD, IN(0, G), AMP_ROLE_UPDATE }, { MILL_BACKWARD, IN(1, G), AMP_ROLE_UPDATE },
    { MILL_BACKWARD, IN(2, G), AMP_ROLE_UPDATE }, { 0, 0, 0 },
};
static const struct use matmul[] = {
    { MILL_FORWARD, IN(0, X), AMP_ROLE_READ }, { MILL_FORWARD, IN(1, X), AMP_ROLE_READ },
    { MILL_FORWARD, X, AMP_ROLE_WRITE },       { 0, 0, 0 },
};
static const struct use bias[] = {
    { MILL_FORWARD, X, AMP_ROLE_UPDATE },       { MILL_FORWARD, IN(0, X), AMP_ROLE_UPDATE }, /* one buffer */
    { MILL_FORWARD, IN(1, X), AMP_ROLE_READ }, { 0, 0, 0 },
};
static const struct use batch_norm[] = {
    { MILL_FORWARD, IN(0, X), AMP_ROLE_READ },    { MILL_FORWARD, IN(1, X), AMP_ROLE_READ },
    { MILL_FORWARD, IN(2, X), AMP_ROLE_READ },    { MILL_FORWARD, SAVED, AMP_ROLE_KEEP },
    { MILL_FORWARD, X, AMP_ROLE_WRITE },
    { MILL_BACKWARD, G, AMP_ROLE_READ },          { MILL_BACKWARD, IN(0, X), AMP_ROLE_READ },
    { MILL_BACKWARD, IN(1, X), AMP_ROLE_READ },   { MILL_BACKWARD, SAVED, AMP_ROLE_KEEP },
    { MILL_BACKWARD, WORK, AMP_ROLE_SCRATCH },    { MILL_BACKWARD, IN(0, G), AMP_ROLE_UPDATE },
    { MILL_BACKWARD, IN(1, G), AMP_ROLE_UPDATE }, { MILL_BACKWARD, IN(2, G), AMP_ROLE_UPDATE },
    { 0, 0, 0 },
};
static const struct use clamp[] = { /* in place: the node and its input are one buffer, in one role */
    { MILL_FORWARD, X, AMP_ROLE_UPDATE }, { MILL_FORWARD, IN(0, X), AMP_ROLE_UPDATE },
    { MILL_BACKWARD, X, AMP_ROLE_READ },  { MILL_BACKWARD, IN(0, X), AMP_ROLE_READ },
    { MILL_BACKWARD, G, AMP_ROLE_UPDATE }, { MILL_BACKWARD, IN(0, G), AMP_ROLE_UPDATE },
    { 0, 0, 0 },
};
static const struct use cross_entropy[] = { /* labels and mask are constants, not values of the model */
    { MILL_FORWARD, IN(0, X), AMP_ROLE_READ }, { MILL_FORWARD, IN(1, X), AMP_ROLE_KEEP },
    { MILL_FORWARD, IN(2, X), AMP_ROLE_KEEP }, { MILL_FORWARD, SAVED, AMP_ROLE_KEEP },
    { MILL_FORWARD, X, AMP_ROLE_WRITE },
    { MILL_BACKWARD, G, AMP_ROLE_SEED },       { MILL_BACKWARD, SAVED, AMP_ROLE_KEEP },
    { MILL_BACKWARD, IN(0, G), AMP_ROLE_UPDATE }, { 0, 0, 0 },
};

/* The lists say linear and matmul; the loss is no part of the model, so it is left alone at every level. */
static const struct kind {
    const char *name;
    amp_class op_class;
    uint32_t flags;
    const struct use *uses;
} kinds[MILL_N_OPS] = {
    [MILL_LINEAR] = { "linear", AMP_BY_LIST, 0, linear },
    [MILL_MATMUL] = { "matmul", AMP_BY_LIST, 0, matmul },
    [MILL_CONVOLUTION] = { "convolution", AMP_BY_LIST, 0, NULL },
    [MILL_BIAS] = { "bias", AMP_BY_LIST, 0, bias },
    [MILL_BATCH_NORM] = { "batch_norm", AMP_BY_LIST, 0, batch_norm },
    [MILL_RELU] = { "relu", AMP_BY_LIST, 0, clamp },
    [MILL_RELU6] = { "relu6", AMP_BY_LIST, 0, clamp },
    [MILL_CROSS_ENTROPY] = { "cross_entropy", AMP_LEAVE, AMP_OP_SEEDS, cross_entropy },
};

/* ---- the one hook ---- */

static void find(mill_node *p, int part, amp_field *field) {
    mill_node *owner = part >= IN_X ? p->in[(part - IN_X) / 2] : p;
    const bool gradient = part == G || (part >= IN_X && (part - IN_X) % 2 == 1);
    field->address = gradient ? &owner->g : &owner->x;
    field->size = mill_size(owner);
    if (part == SAVED) field->address = &p->saved, field->size = p->n_saved;
    if (part == WORK) field->address = &p->work, field->size = p->n_work;
}

static amp_status visit(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    mill_node *p = *(mill_node *const *)args[0];
    const int action = *(const int *)args[1];
    (void)self, (void)op;
    for (const struct use *use = kinds[p->op].uses; use->role; use++) {
        amp_field field = AMP_FIELD_INIT;
        if (use->action != action) continue;
        find(p, use->part, &field);
        field.role = use->role;
        field.name = kinds[p->op].name;
        const amp_status status = emit(emit_self, &field);
        if (status != AMP_OK) return status;
    }
    return AMP_OK;
}

/* ---- descriptions ---- */

static const int32_t failed = MILL_ERROR, skipped = 0;

static void describe_ops(struct mill_adapter *adapter, int low) {
    for (int i = 0; i < MILL_N_OPS; i++) {
        if (!kinds[i].name) continue;
        amp_op *op = &adapter->ops[adapter->n_ops++];
        *op = (amp_op)AMP_OP_INIT;
        op->name = kinds[i].name;
        op->op_class = kinds[i].op_class;
        op->flags = kinds[i].flags;
        op->schema = "op(struct mill_node *p, int32 action) -> int32";
        op->slot = (amp_fn *)(void *)&mill_ops[i]; /* an empty slot is passed over */
        op->on_failure = &failed;
        if (!low || i != MILL_LINEAR) continue;
        op->fp16 = (amp_fn)mill_linear_fp16;
        op->bf16 = (amp_fn)mill_linear_bf16;
    }
}

static amp_buffer buffer(float *data, int size) {
    amp_buffer made = AMP_BUFFER_INIT;
    made.data = data;
    made.size = size;
    return made;
}

/* Slices of the graph's two blocks. A parameter that feeds batch norm is batch norm's. */
static size_t describe_params(struct mill_adapter *adapter, const mill_graph *graph) {
    size_t n = 0;
    for (int i = 0; i < graph->n; i++) {
        const mill_node *p = graph->nodes[i];
        if (!(p->flags & MILL_IS_PARAM) || n == MILL_MAX_PARAMS) continue;
        adapter->grads[n] = buffer(p->g, mill_size(p));
        adapter->buffers[n] = buffer(p->x, mill_size(p));
        adapter->buffers[n].grad = &adapter->grads[n];
        adapter->params[n] = (amp_param)AMP_PARAM_INIT;
        adapter->params[n].tensor = adapter->trained[n] = &adapter->buffers[n];
        adapter->params[n].name = p->name;
        for (int j = i; j < graph->n; j++)
            if (graph->nodes[j]->op == MILL_BATCH_NORM && (graph->nodes[j]->in[1] == p || graph->nodes[j]->in[2] == p))
                adapter->params[n].module_kind = AMP_MODULE_BATCH_NORM;
        n++;
    }
    return n;
}

void mill_adapter_init(struct mill_adapter *adapter, const mill_graph *graph, mill_sgd *sgd, int low) {
    memset(adapter, 0, sizeof *adapter);
    adapter->host = *amp_buffer_host();
    adapter->host.visit = visit;
    adapter->structs[0] = (amp_struct)AMP_STRUCT_INIT;
    adapter->structs[0].name = "mill_node"; /* only ever passed by pointer: no size needed */
    describe_ops(adapter, low);
    adapter->model = (amp_model)AMP_MODEL_INIT;
    adapter->model.host = &adapter->host;
    adapter->model.flags = AMP_MODEL_WHOLE_TABLE; /* of which the graph uses a part */
    adapter->model.ops = adapter->ops;
    adapter->model.n_ops = adapter->n_ops;
    adapter->model.structs = adapter->structs;
    adapter->model.n_structs = 1;
    adapter->model.params = adapter->params;
    adapter->model.n_params = describe_params(adapter, graph);
    adapter->step = (amp_op)AMP_OP_INIT;
    adapter->step.name = "step";
    adapter->step.schema = "step(pointer self) -> int32";
    adapter->step.slot = (amp_fn *)(void *)&sgd->step;
    adapter->step.on_skip = &skipped;
    adapter->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    adapter->optimizer.host = &adapter->host;
    adapter->optimizer.self = sgd;
    adapter->optimizer.params = adapter->trained;
    adapter->optimizer.n_params = adapter->model.n_params;
    if (!sgd->classic || graph->clears) /* as momentum, or until backward clears them */
        adapter->optimizer.flags = AMP_OPTIMIZER_GRADS_STAY;
    adapter->optimizer.steps = &adapter->step;
    adapter->optimizer.n_steps = 1;
}
