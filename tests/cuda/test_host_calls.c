/* SPDX-License-Identifier: Apache-2.0 */
/* What a host on a device calls beside its training, and what it gets wrong. */
#include "host_run.h"

/* A run in the middle of a bracket. */
struct open {
    struct host *host;
    amp_context *context;
    amp_scaled_loss scaled;
};

/* Up to the middle of a bracket, whose gradients carry the scale. */
static struct open start(bool on_cpu, bool mixed, enum stepping stepping, float target) {
    struct open run = { host_new(on_cpu, mixed, false, stepping), NULL, AMP_SCALED_LOSS_INIT };
    ck_ok(amp_initialize(&run.host->model, &run.host->optimizer, AMP_O1));
    run.context = run.host->model.amp;
    host_set_targets(run.host, target);
    ck_ok(amp_scale_loss_begin(&run.host->optimizer, &run.host->loss, &run.scaled));
    host_backward(run.host, run.scaled.loss, 1.0f);
    return run;
}

static void stop(struct open *run) {
    ck_ok(amp_scale_loss_cancel(&run->scaled));
    host_clear(run->host);
    run_end(&(struct run){ run->host, run->context });
}

static size_t read_grads(const struct open *run, float *out) {
    size_t at = 0;
    for (int i = 0; i < HOST_PARAMS; i++) {
        const struct tensor *grad = run->host->params[i].grad;
        memory_out(grad->device.type == 1, out + at, grad->data, (size_t)grad->size * sizeof *out);
        at += (size_t)grad->size;
    }
    return at;
}

/* ---- masters that are written between steps ---- */

TEST_TIMES(test_masters_written_back, 4) {
    const bool on_cpu = _i % 2, mixed = _i / 2;
    struct host *host = host_new(on_cpu, mixed, false, STEP_KNOWS);
    amp_master masters[HOST_PARAMS] = { AMP_MASTER_INIT };
    static float before[ELEMENTS], after[ELEMENTS];
    const size_t n = host_elements();
    size_t count = 0, at = 0;
    ck_ok(amp_initialize(&host->model, &host->optimizer, AMP_O2));
    ck_ok(amp_master_params(&host->optimizer, masters, HOST_PARAMS, &count));
    host_read(host, before, n);
    for (size_t i = 0; i < count; i++) { /* the first element of each */
        const float value = 2.0f + (float)i;
        memory_in(host->params[i].device.type == 1, masters[i].data, &value, sizeof value);
    }
    ck_ok(amp_masters_write_back(host->model.amp));
    host_read(host, after, n);
    for (size_t i = 0; i < count; i++) {
        ck_assert_float_eq(after[at], 2.0f + (float)i);
        for (size_t k = 1; k < masters[i].size; k++) ck_assert_float_eq(after[at + k], before[at + k]);
        at += masters[i].size;
    }
    ck_assert_uint_eq(at, n);
    ck_ok(amp_shutdown(host->model.amp));
    host_free(host);
}

/* ---- amp_unscale and amp_scale ---- */

static void list_grads(const struct open *run, void **tensors) {
    for (int i = 0; i < HOST_PARAMS; i++) tensors[i] = run->host->params[i].grad;
}

/* By the scale on the device, and by one that the host has, which it has where a parameter is in the CPU's memory. */
TEST_TIMES(test_unscale, 8) {
    const bool mixed = _i % 2, overflows = _i / 2 % 2, tells_here = _i / 4;
    static float here[ELEMENTS], there[ELEMENTS];
    const float zero = 0.0f;
    float found_here = 0.0f, found = 0.0f, *word = memory_alloc(false, sizeof *word);
    void *tensors[HOST_PARAMS];
    struct open cpu = start(true, false, STEP_FUSED, overflows ? INFINITY : 0.25f);
    struct open run = start(false, mixed, STEP_FUSED, overflows ? INFINITY : 0.25f);
    const size_t n = HOST_PARAMS - mixed;
    memory_in(false, word, &zero, sizeof zero);
    list_grads(&cpu, tensors);
    ck_ok(amp_unscale(cpu.context, 0, tensors, n, &found_here));
    ck_assert(found_here == (overflows ? 1.0f : 0.0f));
    list_grads(&run, tensors);
    const struct fake before = device.fake ? *device.fake : (struct fake){ 0 };
    ck_ok(amp_unscale(run.context, 0, tensors, n, tells_here ? &found : word));
    if (device.fake) {
        ck_assert_int_eq(device.fake->launches, before.launches + 1);
        ck_assert_int_eq(device.fake->waits, before.waits);
        ck_assert_int_eq(device.fake->event_waits > before.event_waits, tells_here);
    }
    if (!tells_here) memory_out(false, &found, word, sizeof found);
    ck_assert(found == found_here);
    const size_t elements = read_grads(&cpu, here);
    ck_assert_uint_eq(read_grads(&run, there), elements);
    for (size_t i = 0; i < elements; i++)
        ck_assert_msg(here[i] == there[i] || (isnan(here[i]) && isnan(there[i])),
                      "element %zu: %a on the device, %a here", i, (double)there[i], (double)here[i]);
    memory_free(false, word);
    stop(&cpu), stop(&run);
}

/* List after list, faster than the device takes them: their tables do not wait for one another. */
TEST(test_unscale_in_a_row) {
    static float here[ELEMENTS], there[ELEMENTS];
    void *tensors[HOST_PARAMS];
    struct open cpu = start(true, false, STEP_FUSED, 0.25f), run = start(false, false, STEP_FUSED, 0.25f);
    list_grads(&cpu, tensors);
    for (int i = 0; i < HOST_PARAMS; i++) ck_ok(amp_unscale(cpu.context, 0, &tensors[i], 1, NULL));
    list_grads(&run, tensors);
    if (device.fake) device.tools->flush();
    const struct fake before = device.fake ? *device.fake : (struct fake){ 0 };
    for (int i = 0; i < HOST_PARAMS; i++) ck_ok(amp_unscale(run.context, 0, &tensors[i], 1, NULL));
    if (device.fake) ck_assert_int_eq(device.fake->event_waits + device.fake->waits, before.event_waits + before.waits);
    const size_t elements = read_grads(&cpu, here);
    ck_assert_uint_eq(read_grads(&run, there), elements);
    ck_assert(!memcmp(here, there, elements * sizeof *here));
    stop(&cpu), stop(&run);
}

TEST(test_unscale_refused) {
    static float before[ELEMENTS], after[ELEMENTS];
    struct open run = start(false, true, STEP_FUSED, 0.25f);
    struct tensor elsewhere = { .kind = 1, .device = { 2, 1 }, .dtype = AMP_FLOAT32, .data = before, .size = 4 };
    void *tensors[HOST_PARAMS], *other = &elsewhere;
    list_grads(&run, tensors);
    const size_t n = read_grads(&run, before);
    ck_refused(AMP_ERR_CONFLICT, "one call for each", amp_unscale(run.context, 0, tensors, HOST_PARAMS, NULL));
    ck_refused(AMP_ERR_UNSUPPORTED, "amp_device_scale", amp_unscale(run.context, 0, &other, 1, NULL));
    ck_assert_uint_eq(read_grads(&run, after), n);
    ck_assert(!memcmp(before, after, n * sizeof *before));
    stop(&run);
}

/* With scale_by the factor is read where it lives, and nobody waits. */
TEST_TIMES(test_scale, 2) {
    struct open run = start(false, false, _i ? STEP_KNOWS : STEP_FUSED, 0.25f);
    void *scaled = NULL;
    const int waits = device.fake ? device.fake->event_waits : 0;
    ck_ok(amp_scale(run.context, 0, &run.host->loss, &scaled));
    const struct loss *loss = scaled;
    if (_i) ck_assert(!loss->factor_there && loss->factor == 65536.0f);
    else ck_assert_ptr_eq(loss->factor_there, run.scaled.scale);
    if (device.fake && !_i) ck_assert_int_eq(device.fake->event_waits, waits);
    free(scaled);
    stop(&run);
}

/* ---- what the device knows ---- */

static void iterate(struct host *host) {
    (void)host_bracket(host); /* it does not know what is decided */
    host_step(host, STEP_FUSED);
}

/* A host whose optimizer is one of libamp's. */
static struct run start_fused(amp_config config) {
    return run_with(host_new(false, false, false, STEP_FUSED), config);
}

static void end_fused(struct run *run) {
    host_clear(run->host);
    run_end(run);
}

/* Skips are counted there, in a graph that is replayed too, and amp_check says when they are too many, and whose
 * gradient it was. */
TEST_TIMES(test_too_many_skips, 2) {
    enum { ITERATIONS = 12, CLEAN = 3 };
    amp_record record = AMP_RECORD_INIT;
    struct run run = start_fused(CONFIG(AMP_O2, .max_skips = 5));
    struct host *host = run.host;
    for (int i = 0; i < CLEAN + ITERATIONS; i++) {
        const bool captures = _i && i == CLEAN, replays = _i && i >= CLEAN;
        if (!replays || captures) host_clear(host);
        host_set_targets(host, i < CLEAN ? 0.25f : INFINITY);
        if (captures) device_capture_begin();
        if (!replays || captures) iterate(host);
        if (captures) device_capture_end();
        if (replays) device_replay();
        if (i == CLEAN) ck_ok(amp_check(run.context));
    }
    ck_refused(AMP_ERR_TOO_MANY_SKIPS, "12 steps in a row", amp_check(run.context));
    ck_says("that of c");
    ck_ok(amp_get_record(run.context, 0, &record));
    ck_assert_uint_eq(record.skips_in_row, ITERATIONS);
    ck_assert_uint_eq(record.brackets, CLEAN + ITERATIONS);
    ck_assert_int_eq(record.action, AMP_SKIP);
    host_set_targets(host, 0.25f);
    if (_i) device_replay();
    else host_clear(host), iterate(host);
    ck_ok(amp_check(run.context));
    end_fused(&run);
}

/* A bracket whose loss the host scales, one that the device decides alone, and the first kind again: it has the scale
 * that the second left, not a copy that was on its way since the first. */
TEST(test_decisions_in_turn) {
    amp_record record = AMP_RECORD_INIT;
    struct run run = start_fused(CONFIG(AMP_O2, .init_scale = 1024.0f));
    struct host *host = run.host;
    for (int i = 0; i < 3; i++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        const bool alone = i == 1;
        host_clear(host);
        host_set_targets(host, alone ? INFINITY : 0.25f);
        ck_ok(amp_scale_loss_begin(&host->optimizer, alone ? &host->loss : NULL, &scaled));
        if (!alone) ck_assert_float_eq(amp_seed_factor(&scaled), i ? 512.0f : 1024.0f);
        host_backward(host, alone ? scaled.loss : &(struct loss){ .factor = amp_seed_factor(&scaled) }, 1.0f);
        ck_ok(amp_scale_loss_end(&scaled));
        host_step(host, STEP_FUSED);
    }
    ck_ok(amp_get_record(run.context, 0, &record));
    ck_assert_uint_eq(record.skipped, 1);
    ck_assert_uint_eq(record.brackets, 3);
    end_fused(&run);
}

/* Another thread of the process captures a graph, in the mode that forbids unsafe calls to all that do not know
 * of it. */
TEST_TIMES(test_capture_elsewhere, 2) {
    struct fake *fake = device.fake;
    static char state[STATE_BYTES];
    if (!fake) return;
    const int broken = fake->broke_capture;
    fake->capturing_elsewhere = 1;
    struct run run = run_with(host_new(false, _i, false, STEP_FUSED), CONFIG(AMP_O2));
    for (int i = 0; i < 3; i++) {
        host_clear(run.host);
        host_set_targets(run.host, 0.25f);
        iterate(run.host);
        if (TEST_STATES) ck_ok(amp_state_load_memory(run.context, state, run_save(&run, state)));
    }
    end_fused(&run);
    fake->capturing_elsewhere = 0;
    ck_assert_int_eq(fake->broke_capture, broken);
    ck_assert_int_eq(fake->relaxed, 0);
}

/* ---- emulation of ops ---- */

static void (*touch_slot)(void *);
static void touch(void *x) { ((struct tensor *)x)->version++; }

static amp_status no_cast(void *self, void *tensor, amp_dtype to, void **out) {
    (void)self, (void)tensor, (void)to, (void)out;
    return AMP_ERR_HOST_FAILED;
}

/* What an op wrote into a tensor on a device is rounded there, in one launch. */
TEST_TIMES(test_emulated_op, 2) {
    const int i = 3;
    static float expected[ELEMENTS], found[ELEMENTS];
    static uint16_t low[ELEMENTS];
    struct host *host = host_new(false, false, false, STEP_FUSED);
    struct tensor *tensor = &host->params[i];
    amp_model *model = &host->model;
    const amp_config config = CONFIG(_i ? AMP_O4 : AMP_O1, .emulate = AMP_ON);
    amp_context *context = NULL;
    amp_op op = OP("touch_", "touch_(Tensor(a!) x) -> void", &touch_slot, .op_class = AMP_LOWER);
    host->hooks.dtype = NULL, host->hooks.cast = no_cast, host->hooks.flags = AMP_HOST_TAPE_RETAINS_INPUTS;
    touch_slot = touch;
    model->ops = &op, model->n_ops = 1;
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &context));
    const amp_dtype type = _i ? AMP_BFLOAT16 : AMP_FLOAT16;
    const size_t n = (size_t)tensor->size;
    memory_out(false, expected, tensor->data, n * sizeof *expected);
    const amp_span wide = { expected, n, AMP_FLOAT32, 0 }, narrow = { low, n, type, 0 };
    ck_ok(amp_cast_list(&narrow, &wide, 1));
    ck_ok(amp_cast_list(&wide, &narrow, 1));
    const int launches = device.fake ? device.fake->launches : 0;
    touch_slot(tensor);
    if (device.fake) ck_assert_int_eq(device.fake->launches, launches + 1);
    ck_ok(amp_check(context));
    memory_out(false, found, tensor->data, n * sizeof *found);
    ck_assert(!memcmp(found, expected, n * sizeof *found));
    ck_ok(amp_shutdown(context));
    ck_assert(touch_slot == touch);
    host_free(host);
}

/* ---- addresses that are not what the host says ---- */

static void (*product_slot)(float *, const float *, int32_t);
static int product_calls;

static void product(float *y, const float *x, int32_t n) {
    (void)y, (void)x, (void)n;
    product_calls++;
}
static void low_product(uint16_t *y, const uint16_t *x, int32_t n) {
    (void)n;
    y[0] = x[0];
    product_calls++;
}

/* Raw buffers on a device: the op runs as it would without libamp, and the error is told. Those in the CPU's memory are
 * converted as ever. */
TEST_TIMES(test_raw_buffers, 2) {
    static float x[64], y[64];
    float *there = memory_alloc(false, sizeof x);
    amp_op op = OP("linear", "linear(float(out a!) y[n], float x[n], int32 n) -> void", &product_slot,
                   .op_class = AMP_LOWER, .fp16 = _i ? NULL : (amp_fn)low_product);
    amp_model model = SIZED(amp_model, .host = amp_buffer_host(), .ops = &op, .n_ops = 1), *models = &model;
    const amp_config config = CONFIG(AMP_O1, .emulate = _i ? AMP_ON : AMP_DEFAULT);
    amp_context *context = NULL;
    product_slot = product, product_calls = 0;
    ck_ok(amp_initialize_many(&models, 1, NULL, 0, &config, &context));
    x[0] = 3.0f;
    product_slot(y, x, 64);
    ck_assert_int_eq(product_calls, 1);
    ck_ok(amp_check(context));
    ck_assert(_i || y[0] == 3.0f);
    product_slot(there, x, 64);
    ck_assert_int_eq(product_calls, 2);
    ck_refused(AMP_ERR_UNSUPPORTED, "op linear: y: it is in the memory of CUDA device 0", amp_check(context));
    product_slot(y, there, 64);
    ck_refused(AMP_ERR_UNSUPPORTED, "op linear: x: it is in the memory of CUDA device 0", amp_check(context));
    ck_ok(amp_shutdown(context));
    memory_free(false, there);
}

/* A parameter whose view forgot its device. */
TEST(test_forgotten_device) {
    void *there = memory_alloc(false, 256);
    amp_buffer buffer = SIZED(amp_buffer, .dtype = AMP_FLOAT32, .data = there, .size = 64);
    amp_param param = SIZED(amp_param, .tensor = &buffer, .name = "weight");
    amp_model model = SIZED(amp_model, .host = amp_buffer_host(), .params = &param, .n_params = 1);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_initialize(&model, NULL, AMP_O1));
    ck_says("weight is in the memory of CUDA device 0");
    ck_assert_ptr_null(model.amp);
    memory_free(false, there);
}

TEST_FIXTURE(device_lazily, device_at_once)
