/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A static graph: nodes are made once, and run through a table of executors, one for each kind of node. Its kernels
 * know FP32 alone, so that levels are emulated; with --low the product is given 16-bit kernels, by amp_matmul.
 *
 *     cc graph.c $(pkg-config --cflags --libs libamp)
 */
#include <amp_diagnostics.h>
#include <amp_kernels.h>
#include <amp_raw.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the framework ---- */

enum { B = 64, IN = 32, OUT = 16, STEPS = 60 };
enum kind { INPUT, PRODUCT, SQUARED_ERROR, N_KINDS };
enum action { SIZE, FORWARD, BACKWARD };

typedef struct node {
    enum kind kind;
    struct node *in[2];
    int rows, columns;
    float *value, *gradient; /* gradient NULL: not wanted */
} node;

static int size_of(const node *p) { return p->rows * p->columns; }

/* value = in[0] in[1]^T */
static int run_product(node *p, int action) {
    const node *x = p->in[0], *w = p->in[1];
    if (action == SIZE) p->rows = x->rows, p->columns = w->rows;
    for (int i = 0; action == FORWARD && i < size_of(p); i++) {
        p->value[i] = 0.0f;
        for (int k = 0; k < x->columns; k++)
            p->value[i] += x->value[i / p->columns * x->columns + k] * w->value[i % p->columns * w->columns + k];
    }
    for (int i = 0; action == BACKWARD && i < size_of(w); i++)
        for (int n = 0; n < x->rows; n++)
            w->gradient[i] += p->gradient[n * p->columns + i / w->columns] * x->value[n * x->columns + i % w->columns];
    return 0;
}

/* value = mean (in[0] - in[1])^2; backward starts from the node's own gradient, which the engine sets to 1 */
static int run_squared_error(node *p, int action) {
    const node *y = p->in[0], *target = p->in[1];
    if (action == SIZE) p->rows = p->columns = 1;
    if (action == FORWARD) p->value[0] = 0.0f;
    for (int i = 0; i < size_of(y); i++) {
        if (action == SIZE) continue;
        const float error = y->value[i] - target->value[i];
        if (action == FORWARD) p->value[0] += error * error / (float)size_of(y);
        if (action == BACKWARD) y->gradient[i] = p->gradient[0] * error / B;
    }
    return 0;
}

static int (*executors[N_KINDS])(node *, int) = { NULL, run_product, run_squared_error };

static node input(int rows, int columns, int trained) {
    node p = { .kind = INPUT, .rows = rows, .columns = columns };
    p.value = calloc((size_t)size_of(&p), sizeof *p.value);
    if (trained) p.gradient = calloc((size_t)size_of(&p), sizeof *p.gradient);
    return p;
}

static node apply(enum kind kind, node *a, node *b) {
    node p = { .kind = kind, .in = { a, b } };
    executors[kind](&p, SIZE);
    p.value = calloc((size_t)size_of(&p), sizeof *p.value);
    p.gradient = calloc((size_t)size_of(&p), sizeof *p.gradient);
    return p;
}

static void delete(node *p) {
    free(p->value);
    free(p->gradient);
}

static void run(node *const *nodes, int n, int action) {
    for (int i = 0; i < n; i++) {
        node *p = nodes[action == FORWARD ? i : n - 1 - i];
        if (action == BACKWARD && i == 0) p->gradient[0] = 1.0f;
        if (executors[p->kind](p, action)) exit(1);
    }
}

static void update(node *w, float rate) {
    for (int i = 0; i < size_of(w); i++) w->value[i] -= rate * w->gradient[i], w->gradient[i] = 0.0f;
}

/* ---- the adapter ---- */

static void check(amp_status status) {
    if (status == AMP_OK) return;
    fprintf(stderr, "%s: %s\n", amp_status_name(status), amp_last_error());
    exit(1);
}

struct use {
    float **pointer;
    const node *owner;
    amp_role role;
};

/* Every pointer to floats that an executor follows, and what it does there; nothing where it only asks for sizes. */
static amp_status visit(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    node *p = *(node *const *)args[0], *a = p->in[0], *b = p->in[1];
    const int action = *(const int *)args[1];
    const struct use product[2][3] = {
        { { &a->value, a, AMP_ROLE_READ }, { &b->value, b, AMP_ROLE_READ }, { &p->value, p, AMP_ROLE_WRITE } },
        { { &p->gradient, p, AMP_ROLE_READ }, { &a->value, a, AMP_ROLE_READ }, { &b->gradient, b, AMP_ROLE_UPDATE } },
    };
    const struct use error[2][3] = {
        { { &a->value, a, AMP_ROLE_READ }, { &b->value, b, AMP_ROLE_KEEP }, { &p->value, p, AMP_ROLE_WRITE } },
        { { &p->gradient, p, AMP_ROLE_SEED }, { &a->value, a, AMP_ROLE_READ }, { &a->gradient, a, AMP_ROLE_WRITE } },
    };
    amp_status status = AMP_OK;
    (void)self, (void)op;
    for (int i = 0; action != SIZE && i < 3 && status == AMP_OK; i++) {
        const struct use *use = &(p->kind == PRODUCT ? product : error)[action == BACKWARD][i];
        amp_field field = AMP_FIELD_INIT;
        field.role = use->role, field.address = use->pointer, field.size = size_of(use->owner);
        status = emit(emit_self, &field);
    }
    return status;
}

/* The product in 16 bits: what the node's pointers show is 16-bit now, but for what is UPDATE, which stays FP32. */
static int product_in(amp_dtype type, node *p, int action) {
    const node *x = p->in[0], *w = p->in[1];
    amp_matmul_args args = AMP_MATMUL_ARGS_INIT;
    args.a_dtype = args.b_dtype = args.d_dtype = type;
    if (action == FORWARD) {
        args.m = p->rows, args.n = p->columns, args.k = x->columns, args.transpose_b = 1;
        args.a = x->value, args.b = w->value, args.d = p->value;
    } else {
        args.m = p->columns, args.n = x->columns, args.k = p->rows, args.transpose_a = 1, args.beta = 1.0f;
        args.a = p->gradient, args.b = x->value, args.c = args.d = w->gradient;
        args.c_dtype = args.d_dtype = AMP_FLOAT32;
    }
    return amp_matmul(&args) != AMP_OK;
}
static int product_fp16(node *p, int action) { return product_in(AMP_FLOAT16, p, action); }
static int product_bf16(node *p, int action) { return product_in(AMP_BFLOAT16, p, action); }

/* One op a row of the table, by the names that the cast lists know. The loss is no part of the model. */
static void describe(amp_op ops[2], int low) {
    static const int failed = 1;
    ops[0] = ops[1] = (amp_op)AMP_OP_INIT;
    ops[0].name = "linear", ops[1].name = "mse_loss";
    ops[0].schema = ops[1].schema = "execute(struct node *p, int32 action) -> int32";
    ops[0].slot = (amp_fn *)(void *)&executors[PRODUCT], ops[1].slot = (amp_fn *)(void *)&executors[SQUARED_ERROR];
    ops[0].on_failure = ops[1].on_failure = &failed;
    ops[1].op_class = AMP_LEAVE, ops[1].flags = AMP_OP_SEEDS; /* its gradient is shown times the loss scale */
    if (low) ops[0].fp16 = (amp_fn)product_fp16, ops[0].bf16 = (amp_fn)product_bf16;
}

static void train(amp_level level, int low, node *const *nodes, node *w) {
    amp_host host = *amp_buffer_host(); /* handles are amp_buffers: of all the hooks only visit is ours */
    host.visit = visit;
    amp_struct described = AMP_STRUCT_INIT;
    described.name = "node"; /* only ever passed by pointer: no size needed */
    amp_buffer weight = AMP_BUFFER_INIT, gradient = AMP_BUFFER_INIT;
    weight.data = w->value, gradient.data = w->gradient, weight.size = gradient.size = size_of(w);
    weight.grad = &gradient;
    amp_param param = AMP_PARAM_INIT;
    param.tensor = &weight, param.name = "weight";
    void *trained[] = { &weight };
    amp_op ops[2];
    describe(ops, low);

    amp_model model = AMP_MODEL_INIT, *models[] = { &model };
    model.host = &host, model.ops = ops, model.n_ops = 2, model.params = &param, model.n_params = 1;
    model.structs = &described, model.n_structs = 1;
    amp_optimizer optimizer = AMP_OPTIMIZER_INIT, *optimizers[] = { &optimizer };
    optimizer.params = trained, optimizer.n_params = 1;
    amp_config config = AMP_CONFIG_INIT;
    config.level = level, config.emulate = AMP_ON;
    check(amp_initialize_many(models, 1, optimizers, 1, &config, NULL));

    int steps = 0;
    float first = 0.0f;
    for (int i = 0; i < STEPS; i++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        amp_step_info info = AMP_STEP_INFO_INIT;
        run(nodes, 2, FORWARD);
        if (i == 0) first = nodes[1]->value[0];
        check(amp_scale_loss_begin(&optimizer, NULL, &scaled));
        run(nodes, 2, BACKWARD);
        check(amp_scale_loss_end(&scaled));
        check(amp_step_begin(&optimizer, &info));
        if (info.action == AMP_STEP) update(w, 1.0f), steps++;
        else memset(w->gradient, 0, sizeof(float) * (size_t)size_of(w));
        check(amp_step_end(&optimizer));
    }
    const float last = nodes[1]->value[0];
    printf("O%d: %d steps of %d, loss %.2f -> %.4f\n", (int)level - 1, steps, STEPS, (double)first, (double)last);
    check(amp_shutdown(model.amp));
    if (!(last < first / 100.0f)) exit(1);
}

/* From -1 to 1. */
static void fill(node *p) {
    for (int i = 0; i < size_of(p); i++) p->value[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
}

int main(int argc, char **argv) {
    const int low = argc > 1 && !strcmp(argv[1], "--low");
    node x = input(B, IN, 0), teacher = input(OUT, IN, 0), start = input(OUT, IN, 0), w = input(OUT, IN, 1);
    fill(&x), fill(&teacher), fill(&start);
    node target = apply(PRODUCT, &x, &teacher), y = apply(PRODUCT, &x, &w), loss = apply(SQUARED_ERROR, &y, &target);
    node *nodes[] = { &y, &loss }, *all[] = { &x, &teacher, &start, &w, &target, &y, &loss };
    executors[PRODUCT](&target, FORWARD);
    for (amp_level level = AMP_O0; level <= AMP_O5; level++) {
        memcpy(w.value, start.value, sizeof(float) * (size_t)size_of(&w));
        train(level, low, nodes, &w);
    }
    for (int i = 0; i < 7; i++) delete(all[i]);
    return 0;
}
