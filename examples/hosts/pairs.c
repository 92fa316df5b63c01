/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward and backward pairs, as in darknet: layers are structs that are passed by value, gradients are added to, and
 * momentum is what update leaves in them. Two fully connected layers learn at the opt levels, emulated in FP32 memory;
 * with --low their products run in 16 bits instead, at O1 and O4.
 *
 *     cc pairs.c $(pkg-config --cflags --libs libamp)
 */
#include <amp_diagnostics.h>
#include <amp_kernels.h>
#include <amp_raw.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the framework ---- */

enum { B = 64, WIDTH = 32, N_LAYERS = 3, STEPS = 80 };

struct network;
struct args { float rate, momentum; };

typedef struct layer {
    void (*forward)(struct layer l, struct network net);
    void (*backward)(struct layer l, struct network net);
    void (*update)(struct layer l, struct args a); /* NULL: nothing to learn */
    int inputs, outputs;
    float scale; /* the last layer: what the gradient of the loss is multiplied with */
    float *weights, *weight_updates, *output, *delta;
    float *cost;
    char name[64];
} layer;

typedef struct network {
    layer *layers;
    float *input, *delta, *truth; /* input and delta: of the layer that runs */
} network;

/* C += op(A) op(B) */
static void gemm_loops(int ta, int tb, int m, int n, int k, const float *a, const float *b, float *c) {
    for (int i = 0; i < m * n; i++)
        for (int p = 0; p < k; p++)
            c[i] += a[ta ? p * m + i / n : i / n * k + p] * b[tb ? i % n * k + p : p * n + i % n];
}
static void (*gemm)(int ta, int tb, int m, int n, int k, const float *a, const float *b, float *c) = gemm_loops;

static void connected_forward(layer l, network net) {
    memset(l.output, 0, sizeof(float) * (size_t)(B * l.outputs));
    gemm(0, 1, B, l.outputs, l.inputs, net.input, l.weights, l.output);
}

static void connected_backward(layer l, network net) {
    gemm(1, 0, l.outputs, l.inputs, B, l.delta, net.input, l.weight_updates);
    if (!net.delta) return;
    memset(net.delta, 0, sizeof(float) * (size_t)(B * l.inputs));
    gemm(0, 0, B, l.inputs, l.outputs, l.delta, l.weights, net.delta);
}

static void connected_update(layer l, struct args a) {
    for (int i = 0; i < l.outputs * l.inputs; i++) {
        l.weights[i] += a.rate * l.weight_updates[i];
        l.weight_updates[i] *= a.momentum;
    }
}

static void cost_forward(layer l, network net) {
    *l.cost = 0.0f;
    for (int i = 0; i < B * l.inputs; i++) {
        const float error = net.truth[i] - net.input[i];
        *l.cost += error * error / (float)(B * l.inputs);
        l.delta[i] = l.scale * error / B;
    }
}

static void cost_backward(layer l, network net) {
    memcpy(net.delta, l.delta, sizeof(float) * (size_t)(B * l.inputs));
}

static void run_forward(network net) {
    for (int i = 0; i < N_LAYERS; i++) {
        net.layers[i].forward(net.layers[i], net);
        net.input = net.layers[i].output;
    }
}

static void run_backward(network net) {
    float *const input = net.input;
    for (int i = N_LAYERS - 1; i >= 0; i--) {
        net.input = i ? net.layers[i - 1].output : input;
        net.delta = i ? net.layers[i - 1].delta : NULL;
        net.layers[i].backward(net.layers[i], net);
    }
}

static void run_update(network net, struct args a) {
    for (int i = 0; i < N_LAYERS; i++)
        if (net.layers[i].update) net.layers[i].update(net.layers[i], a);
}

/* ---- the adapter ---- */

static void check(amp_status status) {
    if (status == AMP_OK) return;
    fprintf(stderr, "%s: %s\n", amp_status_name(status), amp_last_error());
    exit(1);
}

struct fields {
    amp_emit emit;
    void *self;
    amp_status status; /* the first failure stops the rest */
};

static void field(struct fields *f, amp_role role, const char *name, float **address, int size) {
    amp_field one = AMP_FIELD_INIT;
    one.role = role, one.name = name, one.address = address, one.size = size;
    if (f->status == AMP_OK) f->status = f->emit(f->self, &one);
}

/* What a layer reads and writes. args[i] is the copy that it is going to get; libamp puts its own buffers there. */
static amp_status visit(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    layer *l = args[0];
    network *net = args[1];
    struct fields f = { emit, emit_self, AMP_OK };
    (void)self;
    field(&f, AMP_ROLE_READ, "input", &net->input, B * l->inputs);
    field(&f, AMP_ROLE_READ, "weights", &l->weights, l->inputs * l->outputs);
    if (strstr(op, "_backward")) {
        field(&f, AMP_ROLE_READ, "delta", &l->delta, B * l->outputs);
        field(&f, AMP_ROLE_UPDATE, "weight_updates", &l->weight_updates, l->inputs * l->outputs);
        field(&f, AMP_ROLE_WRITE, "net.delta", &net->delta, B * l->inputs); /* NULL at the first layer: passed over */
    } else {
        field(&f, AMP_ROLE_WRITE, "output", &l->output, B * l->outputs);
    }
    return f.status;
}

/* a and b arrive in 16 bits; c, which is updated, is the framework's own FP32. */
static void gemm_in(amp_dtype low, int ta, int tb, int m, int n, int k, const void *a, const void *b, float *c) {
    amp_matmul_args args = AMP_MATMUL_ARGS_INIT;
    args.transpose_a = ta, args.transpose_b = tb, args.m = m, args.n = n, args.k = k, args.beta = 1.0f;
    args.a = a, args.b = b, args.c = args.d = c;
    args.a_dtype = args.b_dtype = low, args.c_dtype = args.d_dtype = AMP_FLOAT32;
    check(amp_matmul(&args));
}
static void gemm_fp16(int ta, int tb, int m, int n, int k, const void *a, const void *b, float *c) {
    gemm_in(AMP_FLOAT16, ta, tb, m, n, k, a, b, c);
}
static void gemm_bf16(int ta, int tb, int m, int n, int k, const void *a, const void *b, float *c) {
    gemm_in(AMP_BFLOAT16, ta, tb, m, n, k, a, b, c);
}

static amp_op op(const char *name, const char *schema, void *slot) {
    amp_op described = AMP_OP_INIT;
    described.name = name, described.schema = schema, described.slot = slot;
    return described;
}

#define LAYER_SCHEMA "(struct layer l, struct network net) -> void"

/* The product alone, or the layers around it. The cost layer is no part of the model, and no op. */
static size_t describe_ops(amp_op *ops, layer *layers, int low) {
    size_t n = 0;
    if (low) {
        ops[n] = op("gemm", "gemm(int ta, int tb, int m, int n, int k, float a[ta?k:m, ta?m:k], "
                    "float b[tb?n:k, tb?k:n], float(a!) c[m,n]) -> void", &gemm);
        ops[n].aliases = "matmul", ops[n].fp16 = (amp_fn)gemm_fp16, ops[n++].bf16 = (amp_fn)gemm_bf16;
    }
    for (int i = 0; !low && i < N_LAYERS - 1; i++) {
        ops[n++] = op("linear", "forward" LAYER_SCHEMA, &layers[i].forward);
        ops[n] = op("linear_backward", "backward" LAYER_SCHEMA, &layers[i].backward);
        ops[n++].backward_of = "linear";
    }
    return n;
}

/* Structs of more than 64 bytes need size and alignment; a smaller one travels in registers, and needs its members. */
static void describe_structs(amp_struct structs[3]) {
    for (int i = 0; i < 3; i++) structs[i] = (amp_struct)AMP_STRUCT_INIT;
    structs[0].name = "layer", structs[0].size = sizeof(layer), structs[0].alignment = _Alignof(layer);
    structs[1].name = "network", structs[1].size = sizeof(network), structs[1].alignment = _Alignof(network);
    structs[1].members = "pointer layers, pointer input, pointer delta, pointer truth";
    structs[2].name = "args", structs[2].size = sizeof(struct args), structs[2].alignment = _Alignof(struct args);
    structs[2].members = "float rate, float momentum";
}

struct adapter {
    amp_host host;
    amp_struct structs[3];
    amp_op ops[2 * N_LAYERS], steps[N_LAYERS];
    amp_buffer weights[N_LAYERS], updates[N_LAYERS];
    amp_param params[N_LAYERS];
    void *trained[N_LAYERS];
    amp_model model;
    amp_optimizer optimizer;
};

static void describe_weights(struct adapter *a, layer *l, size_t i) {
    a->weights[i] = a->updates[i] = (amp_buffer)AMP_BUFFER_INIT;
    a->weights[i].data = l->weights, a->updates[i].data = l->weight_updates;
    a->weights[i].size = a->updates[i].size = l->inputs * l->outputs;
    a->weights[i].grad = &a->updates[i];
    a->params[i] = (amp_param)AMP_PARAM_INIT;
    a->params[i].tensor = a->trained[i] = &a->weights[i], a->params[i].name = l->name;
    a->steps[i] = op("update", "update(struct layer l, struct args a) -> void", &l->update);
}

static void adapt(struct adapter *a, network *net, amp_level level, int low) {
    amp_config config = AMP_CONFIG_INIT;
    amp_model *model = &a->model;
    amp_optimizer *optimizer = &a->optimizer;
    a->host = *amp_buffer_host(); /* of all the hooks only visit is ours */
    a->host.visit = visit;
    describe_structs(a->structs);
    for (size_t i = 0; i < N_LAYERS - 1; i++) describe_weights(a, &net->layers[i], i);
    *model = (amp_model)AMP_MODEL_INIT;
    model->host = &a->host, model->structs = a->structs, model->n_structs = 3;
    model->ops = a->ops, model->n_ops = describe_ops(a->ops, net->layers, low);
    model->params = a->params, model->n_params = N_LAYERS - 1;
    *optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    optimizer->host = &a->host, optimizer->structs = a->structs, optimizer->n_structs = 3;
    optimizer->params = a->trained, optimizer->n_params = N_LAYERS - 1;
    optimizer->flags = AMP_OPTIMIZER_GRADS_STAY; /* as momentum */
    optimizer->steps = a->steps, optimizer->n_steps = N_LAYERS - 1;
    config.level = level;
    if (!low) config.emulate = AMP_ON;
    check(amp_initialize_many(&model, 1, &optimizer, 1, &config, NULL));
}

/* The gradient of the loss is made in forward, so the bracket is around both. The cost's factor carries the scale. */
static amp_action iterate(struct adapter *a, network *net) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    layer *cost = &net->layers[N_LAYERS - 1];
    check(amp_scale_loss_begin(&a->optimizer, NULL, &scaled));
    cost->scale = amp_seed_factor(&scaled);
    run_forward(*net);
    run_backward(*net);
    check(amp_scale_loss_end(&scaled));
    run_update(*net, (struct args){ 0.04f, 0.9f }); /* wired: each layer's updates, or skips */
    return scaled.action;
}

/* ---- the program ---- */

/* Numbers from -limit to limit, or zeros. */
static float *numbers(int n, float limit) {
    float *made = calloc((size_t)n, sizeof *made);
    for (int i = 0; limit != 0.0f && i < n; i++) made[i] = limit * (2.0f * (float)rand() / (float)RAND_MAX - 1.0f);
    return made;
}

static network *build(void) {
    network *net = calloc(1, sizeof *net);
    layer *l = net->layers = calloc(N_LAYERS, sizeof *l);
    for (int i = 0; i < N_LAYERS; i++) {
        l[i] = (layer){ connected_forward, connected_backward, connected_update, WIDTH, WIDTH, 1.0f, .name = "first" };
        l[i].output = numbers(B * WIDTH, 0.0f), l[i].delta = numbers(B * WIDTH, 0.0f);
        if (i < 2) l[i].weights = numbers(WIDTH * WIDTH, 0.3f), l[i].weight_updates = numbers(WIDTH * WIDTH, 0.0f);
    }
    strcpy(l[1].name, "second");
    l[2].forward = cost_forward, l[2].backward = cost_backward, l[2].update = NULL, l[2].cost = numbers(1, 0.0f);
    net->input = numbers(B * WIDTH, 1.0f), net->truth = numbers(B * WIDTH, 0.0f);
    for (int i = 0; i < B * WIDTH; i++) net->truth[i] = net->input[i / WIDTH * WIDTH + (i + 1) % WIDTH]; /* turned */
    return net;
}

static void delete(network *net) {
    for (int i = 0; i < N_LAYERS; i++) {
        layer *l = &net->layers[i];
        float *const blocks[] = { l->weights, l->weight_updates, l->output, l->delta, l->cost };
        for (int k = 0; k < 5; k++) free(blocks[k]);
    }
    free(net->input), free(net->truth), free(net->layers), free(net);
}

static void train(amp_level level, int low) {
    static struct adapter adapter;
    srand(1);
    network *net = build();
    adapt(&adapter, net, level, low);
    int steps = 0;
    float first = 0.0f;
    for (int i = 0; i < STEPS; i++) {
        steps += iterate(&adapter, net) == AMP_STEP;
        if (i == 0) first = *net->layers[2].cost;
    }
    const float last = *net->layers[2].cost;
    printf("O%d: %d steps of %d, cost %.2f -> %.3f\n", (int)level - 1, steps, STEPS, (double)first, (double)last);
    check(amp_shutdown(adapter.model.amp));
    delete(net);
    if (!(last < first / 4.0f)) exit(1);
}

int main(int argc, char **argv) {
    const int low = argc > 1 && !strcmp(argv[1], "--low");
    for (amp_level level = AMP_O0; level <= AMP_O5; level++)
        if (!low || level == AMP_O0 || level == AMP_O1 || level == AMP_O4) train(level, low);
    return 0;
}
