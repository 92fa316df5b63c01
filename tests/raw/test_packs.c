/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed weights of a host that has no versions and never enters a scope: kept from one step to the next, and never
 * older than the weights, whoever wrote them.
 */
#include "raw.h"

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

static float weights[LAYERS * SIZE], grads[LAYERS * SIZE], out[WIDTH];
static void (*step_slots[LAYERS])(void *, int); /* a slot for each layer */
static struct raw raw;

static void step(void *self, int i) {
    (void)self;
    for (int j = 0; j < SIZE; j++) weights[i * SIZE + j] += 1.0f;
}

enum { STEP_SLOTS = 1, EMULATES = 2, VERSIONS = 4, CASTS = 8 };

static uint64_t version(void *self, void *tensor) { return (void)self, (void)tensor, 7; }

/* ---- a parameter that one op takes as a handle, and another as a buffer ---- */

static amp_buffer cast_buffer; /* the one cast, as a handle */
static uint16_t cast_elements[SIZE];
static int casts;
static void *taken; /* the handle that the op got */

static amp_status cast(void *self, void *tensor, amp_dtype dtype, void **made) {
    const amp_buffer *from = tensor;
    (void)self, casts++;
    for (int i = 0; i < SIZE; i++) cast_elements[i] = amp_float_to_bfloat16(((const float *)from->data)[i]);
    cast_buffer = *from;
    cast_buffer.dtype = dtype, cast_buffer.data = cast_elements;
    *made = &cast_buffer;
    return AMP_OK;
}

static void release(void *self, void *tensor) { (void)self, (void)tensor; }

static void product(amp_buffer *w) { taken = w; }
static void (*product_slot)(amp_buffer *);

static void start(int flags) {
    static amp_op steps[LAYERS];
    layer_slot = layer;
    product_slot = product;
    raw_init(&raw);
    if (flags & VERSIONS) raw.host.version = version;
    if (flags & CASTS) raw.host.cast = cast, raw.host.release = release;
    for (int i = 0; i < LAYERS; i++) {
        raw_param(&raw, NULL, weights + i * SIZE, grads + i * SIZE, SIZE);
        step_slots[i] = step;
        steps[i] = OP("step", "step(pointer self, int layer) -> void", &step_slots[i]);
    }
    raw_op(&raw, OP("linear", "layer(float(out a!) out[n], float w[n,n], int n) -> void", &layer_slot,
                    .bf16 = flags & EMULATES ? NULL : (amp_fn)layer_bf16));
    if (flags & CASTS) raw_op(&raw, OP("matmul", "product(Tensor w) -> void", &product_slot));
    raw.optimizer.self = weights;
    if (flags & STEP_SLOTS) raw.optimizer.steps = steps, raw.optimizer.n_steps = LAYERS;
    /* a scale, so that brackets have something to do */
    raw_start(&raw, CONFIG(AMP_O4, .emulate = flags & EMULATES ? AMP_ON : AMP_DEFAULT, .loss_scale = 8.0f));
}

static void tear_down(void) { raw_stop(&raw); }

TEST_FIXTURE(NULL, tear_down)

static amp_op_stats stats(void) { return raw_stats(&raw, 0); }

static void run(void) {
    for (int i = 0; i < LAYERS; i++) {
        layer_slot(out, weights + i * SIZE, WIDTH);
        ck_assert_float_eq(seen, weights[i * SIZE]);
        ck_assert_float_eq(seen_last, weights[(i + 1) * SIZE - 1]);
    }
}

static void bracket(void) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    run(); /* forward, */
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    run(); /* and backward */
    ck_ok(amp_scale_loss_end(&scaled));
}

static void step_all(int flags) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    if (!(flags & STEP_SLOTS)) ck_ok(amp_step_begin(&raw.optimizer, &info));
    for (int i = 0; i < LAYERS; i++) step_slots[i](weights, i);
    if (!(flags & STEP_SLOTS)) ck_ok(amp_step_end(&raw.optimizer));
}

static const int kinds[] = { STEP_SLOTS, 0, STEP_SLOTS | EMULATES, EMULATES };

TEST_TIMES(they_are_kept_from_one_step_to_the_next, 4) {
    start(kinds[_i]);
    bracket();
    ck_assert_uint_eq(stats().cache_hits, 0); /* nobody knows yet whether the host's steps are seen */
    step_all(kinds[_i]);
    for (uint64_t i = 1; i <= 3; i++) {
        bracket();
        bracket(); /* gradients of two pieces */
        ck_assert_uint_eq(stats().casts, LAYERS * i);
        ck_assert_uint_eq(stats().cache_hits, 3 * LAYERS * i); /* of four uses */
        step_all(kinds[_i]);
    }
}

/* Each layer's own slot: the others' steps are still to come, and one of them may never. */
TEST(each_step_slot_counts) {
    start(STEP_SLOTS);
    step_all(STEP_SLOTS);
    for (int i = 0; i < 5; i++) {
        run();
        step_slots[0](weights, 0);
    }
    run();
}

/* The host writes between steps and tells nobody: an average swapped in, weights loaded, a perturbation. `run`
 * compares. */
TEST_TIMES(what_the_host_writes_is_seen, 4) {
    static float other[LAYERS * SIZE], own[LAYERS * SIZE];
    start(kinds[_i]);
    step_all(kinds[_i]);
    run();
    memcpy(own, weights, sizeof own);
    for (int i = 0; i < LAYERS * SIZE; i++) other[i] = (float)(i % 5) + 2.0f;
    memcpy(weights, other, sizeof other);
    run();
    memcpy(weights, own, sizeof own);
    run();
    weights[SIZE] = 3.0f, weights[2 * SIZE - 1] = 5.0f;
    run();
}

static void run_first(void) {
    layer_slot(out, weights, WIDTH);
    ck_assert_mem_eq(seen_all, weights, sizeof seen_all);
}

/* One element, whichever it is; and changes that undo each other in a weak sum: signs, a swap, a row that moves. */
TEST_TIMES(every_element_counts, 4) {
    static float row[WIDTH];
    start(kinds[_i]);
    for (int i = 0; i < SIZE; i++) weights[i] = (float)(i % 251 + 1);
    step_all(kinds[_i]);
    for (int i = 0; i < SIZE; i++) {
        run_first();
        weights[i] = -3.0f;
        run_first();
    }
    for (int i = 0; i < SIZE; i++) weights[i] = (float)(i % 251 + 1);
    for (int distance = 1; distance < SIZE; distance *= 2) {
        run_first();
        weights[0] = -weights[0], weights[distance] = -weights[distance];
        run_first();
        const float first = weights[1];
        weights[1] = weights[1 + distance % (SIZE - 1)], weights[1 + distance % (SIZE - 1)] = first;
    }
    for (int i = 0; i < SIZE; i++) weights[i] = -weights[i];
    run_first();
    memcpy(row, weights, sizeof row);
    memmove(weights, weights + WIDTH, (SIZE - WIDTH) * sizeof(float));
    memcpy(weights + SIZE - WIDTH, row, sizeof row);
    run_first();
}

/* Steps that libamp never sees: each call packs, as it did. */
TEST(without_steps_nothing_is_kept) {
    start(0);
    for (int i = 0; i < 3; i++) {
        bracket();
        weights[1] += 1.0f; /* behind libamp's back */
        layer_slot(out, weights, WIDTH);
        ck_assert_float_eq(out[1], weights[1]);
    }
    ck_assert_uint_eq(stats().cache_hits, 0);
}

/* A host that has versions is asked for them, and nothing else. */
TEST(versions_come_first) {
    start(STEP_SLOTS | VERSIONS);
    run();
    run();
    ck_assert_uint_eq(stats().cache_hits, LAYERS);
    step_all(STEP_SLOTS);
    run();
}

/* From a scope into none and back, a step or a write in between. */
TEST(scopes_and_none_do_not_mix) {
    amp_scope scope;
    start(STEP_SLOTS);
    step_all(STEP_SLOTS);
    for (int i = 0; i < 3; i++) {
        run();
        weights[1] += 1.0f;
        ck_ok(amp_scope_enter(raw.context, &scope)); /* what was packed outside is not trusted inside */
        layer_slot(out, weights, WIDTH);
        ck_assert_float_eq(out[1], weights[1]);
        ck_ok(amp_scope_leave(&scope));
        weights[1] += 1.0f;
        layer_slot(out, weights, WIDTH);
        ck_assert_float_eq(out[1], weights[1]);
    }
}

/* whichever comes first */
TEST_TIMES(a_handle_and_a_buffer_are_kept_apart, 2) {
    start(VERSIONS | CASTS);
    casts = 0;
    for (int i = 0; i < 4; i++) {
        if (i != _i) {
            product_slot(&raw.buffers[0]);
            ck_assert_ptr_eq(taken, &cast_buffer);
        }
        layer_slot(out, weights, WIDTH);
        ck_assert_mem_eq(seen_all, weights, sizeof seen_all);
    }
    ck_assert_int_eq(casts, 1);
    ck_assert_uint_eq(stats().casts, 1);
}
