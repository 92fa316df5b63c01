/* SPDX-License-Identifier: Apache-2.0 */
#include "adapter.h"

#include <amp_call.h>
#include <amp_kernels.h>
#include <amp_raw.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- visit: the buffers behind a layer, and what each duty does with them ---- */

struct fields {
    amp_emit emit;
    void *self;
    amp_status status; /* the first failure stops the rest */
};

static void field(struct fields *fields, amp_role role, const char *name, float **address, int size) {
    amp_field one = AMP_FIELD_INIT;
    one.role = role;
    one.name = name;
    one.address = address;
    one.size = size;
    if (fields->status == AMP_OK) fields->status = fields->emit(fields->self, &one);
}

static void visit_forward(struct fields *f, layer *l, network *net) {
    const int in = l->batch * l->inputs, out = l->batch * l->outputs;
    field(f, AMP_ROLE_READ, "weights", &l->weights, l->n_weights);
    field(f, AMP_ROLE_READ, "biases", &l->biases, l->n_biases);
    if (l->kind == DUET_LINEAR) field(f, AMP_ROLE_SCRATCH, "workspace", &net->workspace, in);
    if (l->output == net->input) { /* in place: one buffer, one role */
        field(f, AMP_ROLE_UPDATE, "output", &l->output, out);
        field(f, AMP_ROLE_UPDATE, "input", &net->input, in);
    } else {
        field(f, AMP_ROLE_READ, "input", &net->input, in);
        field(f, AMP_ROLE_WRITE, "output", &l->output, out);
    }
}

static void visit_backward(struct fields *f, layer *l, network *net) {
    const int in = l->batch * l->inputs, out = l->batch * l->outputs;
    field(f, AMP_ROLE_READ, "weights", &l->weights, l->n_weights);
    field(f, AMP_ROLE_UPDATE, "weight_updates", &l->weight_updates, l->n_weights);
    field(f, AMP_ROLE_UPDATE, "bias_updates", &l->bias_updates, l->n_biases);
    const amp_role delta = l->kind == DUET_RELU ? AMP_ROLE_UPDATE : l->kind == DUET_COST ? AMP_ROLE_SEED : AMP_ROLE_READ;
    field(f, delta, "delta", &l->delta, out);
    field(f, AMP_ROLE_WRITE, "net.delta", &net->delta, in); /* NULL at the first layer: passed over */
    if (l->kind == DUET_RELU) field(f, AMP_ROLE_READ, "output", &l->output, out);
    else field(f, AMP_ROLE_READ, "input", &net->input, in);
    if (l->kind == DUET_LINEAR) field(f, AMP_ROLE_SCRATCH, "workspace", &net->workspace, in);
}

/* Norm's mean and rstd are not emitted: statistics stay as they are. args[i] is the copy that the layer will get. */
static amp_status visit(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    struct fields fields = { emit, emit_self, AMP_OK };
    (void)self;
    if (strstr(op, "_backward")) visit_backward(&fields, args[0], args[1]);
    else visit_forward(&fields, args[0], args[1]);
    return fields.status;
}

/* ---- threads: what a layer's workers call belongs to the layer ---- */

struct adopted {
    void (*body)(void *arg, int part);
    void *arg;
    amp_scope scope;
};

static void adopted_body(void *self, int part) {
    const struct adopted *adopted = self;
    amp_scope previous;
    const bool adopts = amp_scope_adopt(&adopted->scope, &previous) == AMP_OK;
    adopted->body(adopted->arg, part);
    if (adopts) amp_scope_leave(&previous);
}

static void adopting_parallel(void (*body)(void *arg, int part), void *arg, int parts) {
    struct adopted adopted = { .body = body, .arg = arg };
    if (amp_scope_capture(&adopted.scope) == AMP_OK) duet_default_blas.parallel(adopted_body, &adopted, parts);
    else duet_default_blas.parallel(body, arg, parts);
}

/* ---- 16-bit products: A and B come in 16 bits; C, which is updated, is duet's own FP32 ---- */

static void product(amp_dtype low, int TA, int TB, int M, int N, int K, float ALPHA, const void *A, int lda,
                    const void *B, int ldb, float BETA, float *C, int ldc) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.transpose_a = TA != 0, g.transpose_b = TB != 0;
    g.m = M, g.n = N, g.k = K;
    g.alpha = ALPHA, g.beta = BETA;
    g.a = A, g.ld_a = lda, g.a_dtype = low;
    g.b = B, g.ld_b = ldb, g.b_dtype = low;
    g.c = g.d = C, g.ld_c = g.ld_d = ldc, g.c_dtype = g.d_dtype = AMP_FLOAT32;
    if (amp_matmul(&g) != AMP_OK) abort(); /* out of memory: duet itself does no better */
}

static void product_fp16(int TA, int TB, int M, int N, int K, float ALPHA, void *A, int lda, void *B, int ldb,
                         float BETA, float *C, int ldc) {
    product(AMP_FLOAT16, TA, TB, M, N, K, ALPHA, A, lda, B, ldb, BETA, C, ldc);
}

static void product_bf16(int TA, int TB, int M, int N, int K, float ALPHA, void *A, int lda, void *B, int ldb,
                         float BETA, float *C, int ldc) {
    product(AMP_BFLOAT16, TA, TB, M, N, K, ALPHA, A, lda, B, ldb, BETA, C, ldc);
}

/* ---- descriptions ---- */

#define LAYER_SCHEMA "(struct layer l, struct network net) -> void"

static amp_op op(const char *name, const char *schema, void *slot) {
    amp_op described = AMP_OP_INIT;
    described.name = name;
    described.schema = schema;
    described.slot = slot;
    return described;
}

/* C's extents are those of the result, whatever is transposed. A name that the cast lists do not know has an alias. */
static size_t describe_product(amp_op *ops, duet_blas *blas) {
    ops[0] = op("gemm", "gemm(int TA, int TB, int M, int N, int K, float ALPHA, float A[TA?K:M, TA?M:K : lda], int lda, "
                "float B[TB?N:K, TB?K:N : ldb], int ldb, float BETA, float(a!) C[M,N : ldc], int ldc) -> void", &blas->gemm);
    ops[0].aliases = "matmul";
    ops[0].fp16 = (amp_fn)product_fp16;
    ops[0].bf16 = (amp_fn)product_bf16;
    return 1;
}

/* The names are those of the cast lists; one name stands for many slots, one a layer. */
static const struct {
    const char *forward, *backward;
} kinds[] = {
    [DUET_LINEAR] = { "linear", "linear_backward" },
    [DUET_NORM] = { "batch_norm", "batch_norm_backward" },
    [DUET_RELU] = { "relu", "relu_backward" },
    [DUET_COST] = { "cross_entropy", "cross_entropy_backward" },
};

static size_t describe_pair(amp_op *ops, layer *l, unsigned options) {
    ops[0] = op(kinds[l->kind].forward, "forward" LAYER_SCHEMA, &l->forward);
    ops[1] = op(kinds[l->kind].backward, "backward" LAYER_SCHEMA, &l->backward);
    ops[1].backward_of = kinds[l->kind].forward;
    /* The loss is no part of the model; and where products are replaced, the layers around them run as they come: what
     * a wrapped op calls is not cast again. */
    if (l->kind == DUET_COST || (options & ADAPTER_REPLACE)) ops[0].op_class = ops[1].op_class = AMP_LEAVE;
    if (l->kind == DUET_COST && (options & ADAPTER_SEEDS)) ops[1].flags |= AMP_OP_SEEDS;
    return 2;
}

static size_t describe_buffer(struct adapter *a, size_t i, layer *l, const char *what, float *data, float *updates, int n) {
    a->weights[i] = a->updates[i] = (amp_buffer)AMP_BUFFER_INIT;
    a->weights[i].data = data;
    a->weights[i].grad = &a->updates[i];
    a->updates[i].data = updates;
    a->weights[i].size = a->updates[i].size = n;
    snprintf(a->names[i], sizeof a->names[i], "%s.%s", l->name, what);
    a->params[i] = (amp_param)AMP_PARAM_INIT;
    a->params[i].tensor = a->trained[i] = &a->weights[i];
    a->params[i].name = a->names[i];
    a->params[i].module_kind = l->kind == DUET_NORM ? AMP_MODULE_BATCH_NORM : AMP_MODULE_OTHER;
    return i + 1;
}

/* The first two structs are larger than 64 bytes: size and alignment are enough. duet_args travels in registers. */
static void describe_structs(amp_struct structs[3]) {
    for (int i = 0; i < 3; i++) structs[i] = (amp_struct)AMP_STRUCT_INIT;
    structs[0].name = "layer", structs[0].size = sizeof(layer), structs[0].alignment = _Alignof(layer);
    structs[1].name = "network", structs[1].size = sizeof(network), structs[1].alignment = _Alignof(network);
    structs[2].name = "duet_args", structs[2].size = sizeof(duet_args), structs[2].alignment = _Alignof(duet_args);
    structs[2].members = "int step, float rate, float momentum";
}

void adapter_init(struct adapter *a, network *net, unsigned options) {
    size_t n_ops = 0, n_params = 0, n_steps = 0;
    memset(a, 0, sizeof *a);
    a->net = net;
    a->options = options;
    a->blas = *net->blas;
    a->blas.parallel = adopting_parallel;
    a->host = *amp_buffer_host(); /* handles are amp_buffers: of all the hooks only visit is ours */
    a->host.visit = visit;
    describe_structs(a->structs);
    n_ops += describe_product(a->ops, &a->blas);
    for (int i = 0; i < net->n; i++) {
        layer *l = &net->layers[i];
        n_ops += describe_pair(a->ops + n_ops, l, options);
        if (!l->n_weights) continue;
        n_params = describe_buffer(a, n_params, l, "weights", l->weights, l->weight_updates, l->n_weights);
        n_params = describe_buffer(a, n_params, l, "biases", l->biases, l->bias_updates, l->n_biases);
        a->steps[n_steps++] = op("update", "update(struct layer l, struct duet_args a) -> void", &l->update);
    }
    a->model = (amp_model)AMP_MODEL_INIT;
    a->model.host = &a->host;
    a->model.ops = a->ops, a->model.n_ops = n_ops;
    a->model.params = a->params, a->model.n_params = n_params;
    a->model.structs = a->structs, a->model.n_structs = 3;
    a->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    a->optimizer.host = &a->host;
    a->optimizer.params = a->trained, a->optimizer.n_params = n_params;
    a->optimizer.flags = AMP_OPTIMIZER_GRADS_STAY; /* as momentum */
    a->optimizer.steps = a->steps, a->optimizer.n_steps = options & ADAPTER_INLINED ? 0 : n_steps;
    a->optimizer.structs = a->structs, a->optimizer.n_structs = 3;
}

/* ---- the program's calls ---- */

amp_status adapter_start(struct adapter *a, amp_config config) {
    amp_model *model = &a->model;
    amp_optimizer *optimizer = &a->optimizer;
    amp_context *context;
    if (!(a->options & ADAPTER_REPLACE)) config.emulate = AMP_ON;
    const amp_status status = amp_initialize_many(&model, 1, &optimizer, 1, &config, &context);
    if (status == AMP_OK) a->net->blas = &a->blas;
    return status;
}

static layer *cost_of(const struct adapter *a) { return &a->net->layers[a->net->n - 1]; }

/* The loss gradient is made in forward, so the bracket is around both. The framework's own factor carries the scale. */
amp_status adapter_begin(struct adapter *a) {
    a->scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    const amp_status status = amp_scale_loss_begin(&a->optimizer, NULL, &a->scaled);
    if (status != AMP_OK) return status;
    a->scale = cost_of(a)->scale;
    cost_of(a)->scale *= amp_seed_factor(&a->scaled);
    return AMP_OK;
}

amp_status adapter_end(struct adapter *a) {
    cost_of(a)->scale = a->scale;
    return amp_scale_loss_end(&a->scaled);
}

amp_status adapter_cancel(struct adapter *a) {
    cost_of(a)->scale = a->scale;
    return amp_scale_loss_cancel(&a->scaled);
}

amp_status adapter_stop(struct adapter *a) {
    a->net->blas = &duet_default_blas;
    return amp_shutdown(a->model.amp);
}
