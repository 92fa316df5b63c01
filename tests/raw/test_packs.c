/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed weights of a host that has no versions and never enters a scope: kept from one step to the next, and never
 * older than the weights, whoever wrote them.
 */
#include <amp_all.h>
#include <amp_kernels.h>

#include "test.h"
#include <stdlib.h>
#include <string.h>

#define ck_ok(expression) ck_assert_msg((expression) == AMP_OK, #expression ": %s", amp_last_error())

enum { WIDTH = 64, SIZE = WIDTH * WIDTH, LAYERS = 2 };

static float seen; /* the first weight that an op saw, */
static float seen_last; /* and the last, */
static float seen_all[SIZE]; /* and each */

static void layer(float *out, const float *w, int n) {
    seen = w[0], seen_last = w[n * n - 1];
    memcpy(seen_all, w, sizeof seen_all);
    for (int i = 0; i < n; i++) out[i] = w[i];
}

static void layer_bf16(uint16_t *out, const uint16_t *w, int n) {
    seen = amp_bfloat16_to_float(w[0]), seen_last = amp_bfloat16_to_float(w[n * n - 1]);
    for (int i = 0; i < SIZE; i++) seen_all[i] = amp_bfloat16_to_float(w[i]);
    for (int i = 0; i < n; i++) out[i] = w[i];
}

static void (*layer_slot)(float *, const float *, int);

struct host {
    float weights[LAYERS * SIZE], grads[LAYERS * SIZE], out[WIDTH];
    amp_buffer buffers[LAYERS], gradients[LAYERS];
    amp_param params[LAYERS];
    void *trained[LAYERS];
    void (*step[LAYERS])(struct host *, int); /* a slot for each layer */
    amp_op ops[2], steps[LAYERS];
    amp_model model;
    amp_optimizer optimizer;
    amp_context *context;
};

static void step(struct host *host, int i) {
    for (int j = 0; j < SIZE; j++) host->weights[i * SIZE + j] += 1.0f;
}

enum { STEP_SLOTS = 1, EMULATES = 2, VERSIONS = 4, CASTS = 8 };

static uint64_t version(void *self, void *tensor) { return (void)self, (void)tensor, 7; }

/* ---- a parameter that one op takes as a handle, and another as a buffer ---- */

static amp_buffer cast_buffer; /* the one cast, as a handle */
static uint16_t cast_elements[SIZE];
static int casts;
static void *taken; /* the handle that the op got */

static amp_status cast(void *self, void *tensor, amp_dtype dtype, void **out) {
    const amp_buffer *from = tensor;
    (void)self, casts++;
    for (int i = 0; i < SIZE; i++) cast_elements[i] = amp_float_to_bfloat16(((const float *)from->data)[i]);
    cast_buffer = *from;
    cast_buffer.dtype = dtype, cast_buffer.data = cast_elements;
    *out = &cast_buffer;
    return AMP_OK;
}

static void release(void *self, void *tensor) { (void)self, (void)tensor; }

static void product(amp_buffer *w) { taken = w; }
static void (*product_slot)(amp_buffer *);

static void start(struct host *host, int flags) {
    static amp_host hooks;
    amp_config config = AMP_CONFIG_INIT;
    memset(host, 0, sizeof *host);
    layer_slot = layer;
    hooks = *amp_buffer_host();
    if (flags & VERSIONS) hooks.version = version;
    if (flags & CASTS) hooks.cast = cast, hooks.release = release;
    for (int i = 0; i < LAYERS; i++) {
        host->gradients[i] = host->buffers[i] = (amp_buffer)AMP_BUFFER_INIT;
        host->buffers[i].data = host->weights + i * SIZE, host->gradients[i].data = host->grads + i * SIZE;
        host->buffers[i].size = host->gradients[i].size = SIZE;
        host->buffers[i].grad = &host->gradients[i];
        host->params[i] = (amp_param)AMP_PARAM_INIT;
        host->params[i].tensor = host->trained[i] = &host->buffers[i];
        host->step[i] = step;
        host->steps[i] = (amp_op)AMP_OP_INIT;
        host->steps[i].name = "step", host->steps[i].schema = "step(pointer self, int layer) -> void";
        host->steps[i].slot = (amp_fn *)(void *)&host->step[i];
    }
    host->ops[0] = (amp_op)AMP_OP_INIT;
    host->ops[0].name = "linear";
    host->ops[0].schema = "layer(float(out a!) out[n], float w[n,n], int n) -> void";
    host->ops[0].slot = (amp_fn *)(void *)&layer_slot;
    if (!(flags & EMULATES)) host->ops[0].bf16 = (amp_fn)layer_bf16;
    host->model = (amp_model)AMP_MODEL_INIT;
    host->model.host = &hooks;
    product_slot = product;
    host->ops[1] = (amp_op)AMP_OP_INIT;
    host->ops[1].name = "matmul", host->ops[1].schema = "product(Tensor w) -> void";
    host->ops[1].slot = (amp_fn *)(void *)&product_slot;
    host->model.ops = host->ops, host->model.n_ops = flags & CASTS ? 2 : 1;
    host->model.params = host->params, host->model.n_params = LAYERS;
    host->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    host->optimizer.self = host;
    host->optimizer.params = host->trained, host->optimizer.n_params = LAYERS;
    if (flags & STEP_SLOTS) host->optimizer.steps = host->steps, host->optimizer.n_steps = LAYERS;
    config.level = AMP_O4;
    config.emulate = flags & EMULATES ? AMP_ON : AMP_DEFAULT;
    config.loss_scale = 8.0f; /* so that brackets have something to do */
    amp_model *model = &host->model;
    amp_optimizer *optimizer = &host->optimizer;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &host->context));
}

static amp_op_stats stats(const struct host *host) {
    amp_op_stats stats[2] = { AMP_OP_STATS_INIT, AMP_OP_STATS_INIT };
    size_t n;
    ck_ok(amp_get_op_stats(host->context, stats, 2, &n));
    return stats[0];
}

static void finish(struct host *host) {
    ck_ok(amp_check(host->context));
    ck_ok(amp_shutdown(host->context));
}

static void run(struct host *host) {
    for (int i = 0; i < LAYERS; i++) {
        layer_slot(host->out, host->weights + i * SIZE, WIDTH);
        ck_assert_float_eq(seen, host->weights[i * SIZE]);
        ck_assert_float_eq(seen_last, host->weights[(i + 1) * SIZE - 1]);
    }
}

static void bracket(struct host *host) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    run(host); /* forward, */
    ck_ok(amp_scale_loss_begin(&host->optimizer, NULL, &scaled));
    run(host); /* and backward */
    ck_ok(amp_scale_loss_end(&scaled));
}

static void step_all(struct host *host, int flags) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    if (!(flags & STEP_SLOTS)) ck_ok(amp_step_begin(&host->optimizer, &info));
    for (int i = 0; i < LAYERS; i++) host->step[i](host, i);
    if (!(flags & STEP_SLOTS)) ck_ok(amp_step_end(&host->optimizer));
}

static const int kinds[] = { STEP_SLOTS, 0, STEP_SLOTS | EMULATES, EMULATES };

TEST_TIMES(they_are_kept_from_one_step_to_the_next, 4) {
    static struct host host;
    start(&host, kinds[_i]);
    bracket(&host);
    ck_assert_uint_eq(stats(&host).cache_hits, 0); /* nobody knows yet whether the host's steps are seen */
    step_all(&host, kinds[_i]);
    for (uint64_t i = 1; i <= 3; i++) {
        bracket(&host);
        bracket(&host); /* gradients of two pieces */
        ck_assert_uint_eq(stats(&host).casts, LAYERS * i);
        ck_assert_uint_eq(stats(&host).cache_hits, 3 * LAYERS * i); /* of four uses */
        step_all(&host, kinds[_i]);
    }
    finish(&host);
}

/* Each layer's own slot: the others' steps are still to come, and one of them may never. */
TEST(each_step_slot_counts) {
    static struct host host;
    start(&host, STEP_SLOTS);
    step_all(&host, STEP_SLOTS);
    for (int i = 0; i < 5; i++) {
        run(&host);
        host.step[0](&host, 0);
    }
    run(&host);
    finish(&host);
}

/* The host writes between steps and tells nobody: an average swapped in, weights loaded, a perturbation. `run`
 * compares. */
TEST_TIMES(what_the_host_writes_is_seen, 4) {
    static struct host host;
    static float other[LAYERS * SIZE], own[LAYERS * SIZE];
    start(&host, kinds[_i]);
    step_all(&host, kinds[_i]);
    run(&host);
    memcpy(own, host.weights, sizeof own);
    for (int i = 0; i < LAYERS * SIZE; i++) other[i] = (float)(i % 5) + 2.0f;
    memcpy(host.weights, other, sizeof other);
    run(&host);
    memcpy(host.weights, own, sizeof own);
    run(&host);
    host.weights[SIZE] = 3.0f, host.weights[2 * SIZE - 1] = 5.0f;
    run(&host);
    finish(&host);
}

static void run_first(struct host *host) {
    layer_slot(host->out, host->weights, WIDTH);
    ck_assert_mem_eq(seen_all, host->weights, sizeof seen_all);
}

/* One element, whichever it is; and changes that undo each other in a weak sum: signs, a swap, a row that moves. */
TEST_TIMES(every_element_counts, 4) {
    static struct host host;
    static float row[WIDTH];
    start(&host, kinds[_i]);
    for (int i = 0; i < SIZE; i++) host.weights[i] = (float)(i % 251 + 1);
    step_all(&host, kinds[_i]);
    for (int i = 0; i < SIZE; i++) {
        run_first(&host);
        host.weights[i] = -3.0f;
        run_first(&host);
    }
    for (int i = 0; i < SIZE; i++) host.weights[i] = (float)(i % 251 + 1);
    for (int distance = 1; distance < SIZE; distance *= 2) {
        run_first(&host);
        host.weights[0] = -host.weights[0], host.weights[distance] = -host.weights[distance];
        run_first(&host);
        const float first = host.weights[1];
        host.weights[1] = host.weights[1 + distance % (SIZE - 1)], host.weights[1 + distance % (SIZE - 1)] = first;
    }
    for (int i = 0; i < SIZE; i++) host.weights[i] = -host.weights[i];
    run_first(&host);
    memcpy(row, host.weights, sizeof row);
    memmove(host.weights, host.weights + WIDTH, (SIZE - WIDTH) * sizeof(float));
    memcpy(host.weights + SIZE - WIDTH, row, sizeof row);
    run_first(&host);
    finish(&host);
}

/* Steps that libamp never sees: each call packs, as it did. */
TEST(without_steps_nothing_is_kept) {
    static struct host host;
    start(&host, 0);
    for (int i = 0; i < 3; i++) {
        bracket(&host);
        host.weights[1] += 1.0f; /* behind libamp's back */
        layer_slot(host.out, host.weights, WIDTH);
        ck_assert_float_eq(host.out[1], host.weights[1]);
    }
    ck_assert_uint_eq(stats(&host).cache_hits, 0);
    finish(&host);
}

/* A host that has versions is asked for them, and nothing else. */
TEST(versions_come_first) {
    static struct host host;
    start(&host, STEP_SLOTS | VERSIONS);
    run(&host);
    run(&host);
    ck_assert_uint_eq(stats(&host).cache_hits, LAYERS);
    step_all(&host, STEP_SLOTS);
    run(&host);
    finish(&host);
}

/* From a scope into none and back, a step or a write in between. */
TEST(scopes_and_none_do_not_mix) {
    static struct host host;
    amp_scope scope;
    start(&host, STEP_SLOTS);
    step_all(&host, STEP_SLOTS);
    for (int i = 0; i < 3; i++) {
        run(&host);
        host.weights[1] += 1.0f;
        ck_ok(amp_scope_enter(host.context, &scope)); /* what was packed outside is not trusted inside */
        layer_slot(host.out, host.weights, WIDTH);
        ck_assert_float_eq(host.out[1], host.weights[1]);
        ck_ok(amp_scope_leave(&scope));
        host.weights[1] += 1.0f;
        layer_slot(host.out, host.weights, WIDTH);
        ck_assert_float_eq(host.out[1], host.weights[1]);
    }
    finish(&host);
}

/* whichever comes first */
TEST_TIMES(a_handle_and_a_buffer_are_kept_apart, 2) {
    static struct host host;
    start(&host, VERSIONS | CASTS);
    casts = 0;
    for (int i = 0; i < 4; i++) {
        if (i != _i) {
            product_slot(&host.buffers[0]);
            ck_assert_ptr_eq(taken, &cast_buffer);
        }
        layer_slot(host.out, host.weights, WIDTH);
        ck_assert_mem_eq(seen_all, host.weights, sizeof seen_all);
    }
    ck_assert_int_eq(casts, 1);
    ck_assert_uint_eq(stats(&host).casts, 1);
    finish(&host);
}
