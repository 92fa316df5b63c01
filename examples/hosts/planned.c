/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A planned-memory graph, as ggml has them: forward, backward and updates are one list of nodes, run by a switch. A
 * planner lets nodes share memory, so that a gradient has the address of an activation that is no longer needed.
 *
 *     cc planned.c $(pkg-config --cflags --libs libamp)
 */
#include <amp_diagnostics.h>
#include <amp_kernels.h>
#include <amp_raw.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the framework ---- */

enum { B = 64, IN = 32, MID = 48, OUT = 8, ROUNDS = 200, MOST = 16, BLOCK = B * MID };
enum kind { INPUT, PRODUCT, RELU, RELU_BACK, ERROR, UPDATE };

typedef struct node {
    enum kind kind;
    struct node *in[2];
    int rows, columns, transpose[2]; /* of the operands of a product */
    float *data;
} node;

typedef struct graph {
    node nodes[MOST];
    int n;
    float seed, loss;                /* the gradient of the loss, and its value */
    float blocks[MOST][BLOCK];       /* the memory of the plan */
    void (*compute)(struct graph *); /* runs all nodes, in order */
} graph;

static int size_of(const node *p) { return p->rows * p->columns; }

static node *add(graph *g, enum kind kind, node *a, node *b, int rows, int columns) {
    node *p = &g->nodes[g->n++];
    *p = (node){ kind, { a, b }, rows, columns, { 0, 0 }, NULL };
    return p;
}

static node *product(graph *g, node *a, int ta, node *b, int tb) {
    node *p = add(g, PRODUCT, a, b, ta ? a->columns : a->rows, tb ? b->rows : b->columns);
    p->transpose[0] = ta, p->transpose[1] = tb;
    return p;
}

static void multiply(const node *p) {
    const node *a = p->in[0], *b = p->in[1];
    const int ta = p->transpose[0], tb = p->transpose[1], depth = ta ? a->rows : a->columns;
    for (int i = 0; i < size_of(p); i++) {
        const int row = i / p->columns, column = i % p->columns;
        float sum = 0.0f;
        for (int k = 0; k < depth; k++)
            sum += a->data[ta ? k * a->columns + row : row * a->columns + k] *
                b->data[tb ? column * b->columns + k : k * b->columns + column];
        p->data[i] = sum;
    }
}

static void run(graph *g, node *p) {
    const float *a = p->in[0] ? p->in[0]->data : NULL, *b = p->in[1] ? p->in[1]->data : NULL;
    if (p->kind == ERROR) g->loss = 0.0f;
    if (p->kind == PRODUCT) multiply(p);
    for (int i = 0; i < size_of(p); i++) {
        switch (p->kind) {
        case RELU: p->data[i] = a[i] > 0.0f ? a[i] : 0.0f; break;
        case RELU_BACK: p->data[i] = b[i] > 0.0f ? a[i] : 0.0f; break;
        case ERROR: /* the mean square, and its gradient */
            g->loss += (a[i] - b[i]) * (a[i] - b[i]) / (float)size_of(p);
            p->data[i] = 2.0f * (a[i] - b[i]) / (float)size_of(p) * g->seed;
            break;
        case UPDATE: p->data[i] -= 0.5f * b[i]; break;
        case INPUT:
        case PRODUCT: break;
        }
    }
}

static void compute(graph *g) {
    for (int i = 0; i < g->n; i++) run(g, &g->nodes[i]);
}

/* A node gets the first block that no later node reads. */
static void plan(graph *g) {
    int until[MOST] = { 0 }; /* the last node that reads the block */
    for (int i = 0; i < g->n; i++) {
        node *p = &g->nodes[i];
        int last = i, block = 0;
        if (p->kind == UPDATE) p->data = p->in[0]->data;
        if (p->data) continue;
        for (int k = i + 1; k < g->n; k++)
            if (g->nodes[k].in[0] == p || g->nodes[k].in[1] == p) last = k;
        while (until[block] > i) block++;
        until[block] = last + 1; /* not the output of the node that reads it */
        p->data = g->blocks[block];
    }
}

/* Two layers. The nodes of x, target, w1 and w2 come first, with memory of the program. */
static void build(graph *g, float *const memory[4]) {
    static const int shapes[4][2] = { { B, IN }, { B, OUT }, { MID, IN }, { OUT, MID } };
    memset(g, 0, sizeof *g);
    g->seed = 1.0f, g->compute = compute;
    for (int i = 0; i < 4; i++) add(g, INPUT, NULL, NULL, shapes[i][0], shapes[i][1])->data = memory[i];
    node *x = &g->nodes[0], *target = x + 1, *w1 = x + 2, *w2 = x + 3;
    node *h = product(g, x, 0, w1, 1), *a = add(g, RELU, h, NULL, B, MID), *y = product(g, a, 0, w2, 1);
    node *dy = add(g, ERROR, y, target, B, OUT), *dw2 = product(g, dy, 1, a, 0), *da = product(g, dy, 0, w2, 0);
    node *dh = add(g, RELU_BACK, da, h, B, MID), *dw1 = product(g, dh, 1, x, 0);
    add(g, UPDATE, w1, dw1, MID, IN), add(g, UPDATE, w2, dw2, OUT, MID);
    plan(g);
}

/* ---- the adapter ---- */

enum { N_WEIGHTS = 2 };

static struct adapter {
    amp_host host;
    amp_model model;
    amp_optimizer optimizer;
    amp_buffer weights[N_WEIGHTS], gradients[N_WEIGHTS];
    int (*product)(node *); /* the slot: the switch has none */
    int complete, steps;    /* backward has ended and the updates have not */
} adapter;

static void check(amp_status status) {
    if (status == AMP_OK) return;
    fprintf(stderr, "%s: %s\n", amp_status_name(status), amp_last_error());
    exit(1);
}

static int run_product(node *p) {
    multiply(p);
    return 0;
}

/* Operands in 16 bits. The result has the role UPDATE: it is the graph's own FP32 memory. */
static int product_in(amp_dtype type, node *p) {
    amp_matmul_args args = AMP_MATMUL_ARGS_INIT;
    args.m = p->rows, args.n = p->columns, args.k = p->transpose[0] ? p->in[0]->rows : p->in[0]->columns;
    args.transpose_a = p->transpose[0], args.transpose_b = p->transpose[1];
    args.a = p->in[0]->data, args.b = p->in[1]->data, args.d = p->data;
    args.a_dtype = args.b_dtype = type, args.d_dtype = AMP_FLOAT32;
    return amp_matmul(&args) != AMP_OK;
}
static int product_fp16(node *p) { return product_in(AMP_FLOAT16, p); }
static int product_bf16(node *p) { return product_in(AMP_BFLOAT16, p); }

static amp_status visit(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    node *p = *(node *const *)args[0], *each[] = { p->in[0], p->in[1], p };
    amp_status status = AMP_OK;
    (void)self, (void)op;
    for (int i = 0; i < 3 && status == AMP_OK; i++) {
        amp_field field = AMP_FIELD_INIT;
        field.role = i < 2 ? AMP_ROLE_READ : AMP_ROLE_UPDATE;
        field.address = &each[i]->data, field.size = size_of(each[i]);
        status = emit(emit_self, &field);
    }
    return status;
}

/* Between the end of backward and the updates a gradient is there. At other times its memory is another node's. */
static amp_status hook_grad(void *self, void *tensor, void **grad) {
    amp_buffer *weight = tensor;
    (void)self;
    *grad = adapter.complete ? weight->grad : NULL;
    return AMP_OK;
}

/* In the place of `compute`. The updates are run, or skipped. */
static void compute_with_amp(graph *g) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    int i = 0;
    check(amp_scale_loss_begin(&adapter.optimizer, NULL, &scaled));
    g->seed = amp_seed_factor(&scaled);
    for (; i < g->n && g->nodes[i].kind != UPDATE; i++) {
        if (g->nodes[i].kind != PRODUCT) run(g, &g->nodes[i]);
        else if (adapter.product(&g->nodes[i])) check(amp_check(adapter.model.amp));
    }
    adapter.complete = 1;
    check(amp_scale_loss_end(&scaled));
    check(amp_step_begin(&adapter.optimizer, &info));
    if (info.action == AMP_STEP) adapter.steps++;
    for (; i < g->n && info.action == AMP_STEP; i++) run(g, &g->nodes[i]);
    check(amp_step_end(&adapter.optimizer));
    adapter.complete = 0, g->seed = 1.0f;
}

struct lists { /* of descriptors, which initialize copies */
    amp_op op;
    amp_struct described;
    amp_param params[N_WEIGHTS];
    void *trained[N_WEIGHTS];
};

/* The weights and gradients are those of the updates. */
static void describe(const graph *g, struct lists *lists) {
    static const int failed = 1;
    memset(&adapter, 0, sizeof adapter);
    for (int i = 0, n = 0; i < g->n; i++) {
        const node *p = &g->nodes[i];
        if (p->kind != UPDATE) continue;
        adapter.weights[n] = adapter.gradients[n] = (amp_buffer)AMP_BUFFER_INIT;
        adapter.weights[n].data = p->data, adapter.gradients[n].data = p->in[1]->data;
        adapter.weights[n].size = adapter.gradients[n].size = size_of(p);
        adapter.weights[n].grad = &adapter.gradients[n];
        lists->params[n] = (amp_param)AMP_PARAM_INIT;
        lists->params[n].tensor = lists->trained[n] = &adapter.weights[n];
        lists->params[n].name = n ? "w2" : "w1", n++;
    }
    lists->described = (amp_struct)AMP_STRUCT_INIT, lists->described.name = "node";
    lists->op = (amp_op)AMP_OP_INIT;
    lists->op.name = "product", lists->op.aliases = "matmul", lists->op.schema = "product(struct node *p) -> int32";
    adapter.product = run_product, lists->op.slot = (amp_fn *)(void *)&adapter.product, lists->op.on_failure = &failed;
    lists->op.fp16 = (amp_fn)product_fp16, lists->op.bf16 = (amp_fn)product_bf16;
    adapter.host = *amp_buffer_host();
    adapter.host.visit = visit, adapter.host.grad = hook_grad;
    adapter.model = (amp_model)AMP_MODEL_INIT, adapter.optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    adapter.model.host = &adapter.host, adapter.model.ops = &lists->op, adapter.model.n_ops = 1;
    adapter.model.structs = &lists->described, adapter.model.n_structs = 1;
    adapter.model.params = lists->params, adapter.optimizer.params = lists->trained;
    adapter.model.n_params = adapter.optimizer.n_params = N_WEIGHTS;
}

static void adapt(graph *g, amp_level level) {
    struct lists lists;
    describe(g, &lists);
    check(amp_initialize(&adapter.model, &adapter.optimizer, level));
    g->compute = compute_with_amp;
}

/* ---- a training ---- */

static float x[B * IN], target[B * OUT], w1[MID * IN], w2[OUT * MID];
static float *const memory[4] = { x, target, w1, w2 };
static graph trained;

static void fill(float *to, int n, float range) {
    while (n--) *to++ = range * (2.0f * (float)rand() / (float)RAND_MAX - 1.0f);
}

/* Level 0: without libamp. Returns the loss before the last step. */
static float train(amp_level level) {
    srand(1);
    fill(x, B * IN, 1.0f), fill(target, B * OUT, 1.0f), fill(w1, MID * IN, 0.3f), fill(w2, OUT * MID, 0.3f);
    build(&trained, memory);
    if (level) adapt(&trained, level);
    for (int i = 0; i < ROUNDS; i++) trained.compute(&trained);
    if (level) check(amp_shutdown(adapter.model.amp));
    return trained.loss;
}

int main(void) {
    static float alone[MID * IN];
    const float loss = train(0);
    memcpy(alone, w1, sizeof alone);
    printf("alone: %d steps of %d, loss %.4f\n", ROUNDS, ROUNDS, (double)loss);
    for (amp_level level = AMP_O0; level <= AMP_O5; level++) {
        if (level == AMP_O3) continue; /* has no masters: it needs amp_config.emulate */
        const float low = train(level);
        printf("O%d: %d steps of %d, loss %.4f\n", (int)level - 1, adapter.steps, ROUNDS, (double)low);
        if (level == AMP_O0 && memcmp(alone, w1, sizeof alone)) return puts("O0 has other bits"), 1;
        if (!(low < 1.1f * loss)) return puts("it does not learn"), 1;
    }
    return 0;
}
