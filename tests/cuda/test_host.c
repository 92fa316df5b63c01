/* SPDX-License-Identifier: Apache-2.0 */
/* Trainings over a device's memory against the same trainings on the CPU, bit for bit: every level, every kind
 * of host. */
#include "host_run.h"

#include <stdio.h>

enum { ITERATIONS = 40 };

/* Some iterations overflow: by an infinite target, or one that the scale makes infinite. */
static float target_of(int iteration) { return iteration % 7 == 3 ? INFINITY : iteration % 11 == 5 ? 1e36f : 0.25f; }

static void iterate(struct host *host, const struct kind *kind, int iteration) {
    run_iterate(host, kind, target_of(iteration));
}

/* The record of a context that is about to end, with a name that does not end with it. */
static void keep_record(amp_context *context, amp_record *record) {
    *record = (amp_record)AMP_RECORD_INIT;
    ck_ok(amp_get_record(context, 0, record));
    const char *name = record->first_nonfinite;
    record->first_nonfinite = !name ? NULL : strcmp(name, "c") ? "another" : "c";
}

static void stop(struct run *run, float *weights, amp_record *record) {
    keep_record(run->context, record);
    host_read(run->host, weights, ELEMENTS);
    ck_ok(amp_shutdown(run->context));
    for (int i = 0; i < HOST_PARAMS; i++) ck_assert_int_eq(run->host->params[i].dtype, AMP_FLOAT32);
    host_read(run->host, weights + ELEMENTS, ELEMENTS);
    host_free(run->host);
}

static void train(const struct kind *kind, bool on_cpu, float *weights, amp_record *record, int64_t *events) {
    struct run run = run_with(host_of(kind, on_cpu), config_of(kind, 4));
    for (int i = 0; i < ITERATIONS; i++) iterate(run.host, kind, i);
    host_clear(run.host);
    *events = run.host->event_skips;
    stop(&run, weights, record);
}

static const struct kind kinds[] = {
    KIND(O0, STEP_FUSED), KIND(O1, STEP_FUSED), KIND(O2, STEP_FUSED), KIND(O3, STEP_FUSED), KIND(O4, STEP_FUSED),
    KIND(O5, STEP_FUSED), KIND(O3, STEP_FUSED, .static_scale = AMP_DYNAMIC), KIND(O1, STEP_FUSED, .fixed = true),
    KIND(O1, STEP_FUSED, .more_brackets = 2), KIND(O1, STEP_FUSED, .fixed = true, .more_brackets = 2),
    KIND(O2, STEP_FUSED, .more_brackets = 2), KIND(O1, STEP_KNOWS), KIND(O2, STEP_KNOWS), KIND(O5, STEP_KNOWS),
    KIND(O2, STEP_KNOWS, .more_brackets = 1), KIND(O3, STEP_KNOWS, .static_scale = 128.0f),
    KIND(O1, STEP_KNOWS, .fixed = true, .more_brackets = 1), KIND(O1, STEP_THERE), KIND(O2, STEP_THERE),
    KIND(O2, STEP_THERE, .static_scale = 1024.0f), KIND(O2, STEP_THERE, .more_brackets = 1),
    KIND(O1, STEP_THERE, .fixed = true, .more_brackets = 1), KIND(O1, STEP_FUSED, .mixed = true),
    KIND(O2, STEP_FUSED, .mixed = true, .more_brackets = 1), KIND(O2, STEP_KNOWS, .mixed = true),
    KIND(O5, STEP_FUSED, .split = true, .static_scale = AMP_DYNAMIC),
    KIND(O5, STEP_KNOWS, .split = true, .static_scale = AMP_DYNAMIC, .more_brackets = 1),
};

TEST_TIMES(test_trainings, sizeof kinds / sizeof *kinds) {
    const struct kind *kind = &kinds[_i];
    static float here[2 * ELEMENTS], there[2 * ELEMENTS];
    amp_record expected, record;
    int64_t events, events_there;
    train(kind, true, here, &expected, &events);
    train(kind, false, there, &record, &events_there);
    for (size_t i = 0; i < 2 * ELEMENTS; i++)
        ck_assert_msg(here[i] == there[i] || (isnan(here[i]) && isnan(there[i])),
                      "%s, element %zu: %a on the device, %a here", kind->name, i, (double)there[i], (double)here[i]);
    ck_assert_msg(record.brackets == expected.brackets && record.skipped == expected.skipped,
                  "%s: %d of %d skipped, not %d of %d", kind->name, (int)record.skipped, (int)record.brackets,
                  (int)expected.skipped, (int)expected.brackets);
    ck_assert(record.scale_after == expected.scale_after && record.scale_before == expected.scale_before);
    ck_assert_int_eq(record.action, expected.action);
    ck_assert_uint_eq(record.unskipped, expected.unskipped);
    ck_assert_uint_eq(record.skips_in_row, expected.skips_in_row);
    ck_assert_pstr_eq(record.first_nonfinite, expected.first_nonfinite);
    if (kind->stepping == STEP_KNOWS) ck_assert_int_eq(events_there, events);
}

/* ---- graphs ---- */

static struct run start(const struct kind *kind) {
    return run_with(host_of(kind, false), config_of(kind, 4));
}

static void bracket_and_step(struct host *host, const struct kind *kind) {
    ck_assert_int_eq(host_bracket(host), AMP_STEP_ON_DEVICE);
    host_step(host, kind->stepping);
}

enum { WARM_UP = 3 };

static const struct kind graphs[] = { KIND(O1, STEP_FUSED), KIND(O2, STEP_FUSED), KIND(O1, STEP_THERE),
                                      KIND(O2, STEP_THERE),
                                      KIND(O5, STEP_FUSED, .split = true, .static_scale = AMP_DYNAMIC) };

/* begin, backward, end and step once, and then as a graph: the same weights and the same record as without. */
TEST_TIMES(test_graph, sizeof graphs / sizeof *graphs) {
    const struct kind *kind = &graphs[_i];
    static float expected[2 * ELEMENTS], weights[2 * ELEMENTS];
    amp_record plain, replayed;
    const int replays = kind->split ? 40 : 200; /* it differs in its kernels alone */
    struct run run = start(kind);
    for (int i = 0; i < WARM_UP + replays; i++) {
        host_clear(run.host);
        host_set_targets(run.host, target_of(i));
        bracket_and_step(run.host, kind);
    }
    stop(&run, expected, &plain);
    run = start(kind);
    for (int i = 0; i < WARM_UP + replays; i++) {
        if (i <= WARM_UP) host_clear(run.host);
        host_set_targets(run.host, target_of(i));
        if (i == WARM_UP) device_capture_begin();
        if (i <= WARM_UP) bracket_and_step(run.host, kind);
        if (i == WARM_UP) device_capture_end();
        if (i >= WARM_UP) device_replay();
    }
    if (device.fake) ck_assert_int_eq(device.fake->broke_capture, 0);
    stop(&run, weights, &replayed);
    for (size_t i = 0; i < 2 * ELEMENTS; i++)
        ck_assert_msg(expected[i] == weights[i], "%s, element %zu: %a replayed, %a without a graph", kind->name, i,
                      (double)weights[i], (double)expected[i]);
    ck_assert_uint_gt(plain.skipped, (unsigned)replays / 10);
    ck_assert(plain.brackets == replayed.brackets && plain.skipped == replayed.skipped);
    ck_assert(plain.scale_after == replayed.scale_after && plain.unskipped == replayed.unskipped);
    ck_assert_pstr_eq(replayed.first_nonfinite, "c");
}

/* A graph cannot ask the host: what would is refused, and leaves nothing behind. */
TEST_TIMES(test_graph_refused, 2) {
    const struct kind kinds_refused[] = { KIND(O1, STEP_KNOWS), KIND(O1, STEP_FUSED, .mixed = true) },
                      kind = kinds_refused[_i];
    static float weights[2 * ELEMENTS];
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_record record = AMP_RECORD_INIT;
    struct run run = start(&kind);
    iterate(run.host, &kind, 0);
    device_capture_begin();
    ck_fails(AMP_ERR_WRONG_STATE, amp_scale_loss_begin(&run.host->optimizer, &run.host->loss, &scaled));
    ck_says("while the stream is being captured");
    device_capture_end();
    iterate(run.host, &kind, 1);
    stop(&run, weights, &record);
    ck_assert_uint_eq(record.brackets, 2);
}

/* What would bring numbers to the host while its stream is captured is refused, with words of its own, and changes
 * nothing: the weights are those of a training that did not try. */
static void try_while_captured(struct run *run, bool clips) {
    static char state[STATE_BYTES];
    size_t bytes = 0;
    float norm = -1.0f;
    const size_t size = TEST_STATES ? run_save(run, state) : 0;
    device_capture_begin();
    ck_fails(AMP_ERR_WRONG_STATE, amp_clip_grad_norm(&run->host->optimizer, 0.5f, &norm));
    ck_says("amp_clip_grad_norm while the stream is being captured");
    ck_assert(norm == -1.0f);
    if (!clips) ck_fails(AMP_ERR_WRONG_STATE, amp_clip_grad_norm(&run->host->optimizer, 0.5f, NULL));
    if (TEST_STATES) {
        ck_fails(AMP_ERR_WRONG_STATE, amp_state_save_memory(run->context, AMP_STATE_SAFETENSORS, state, sizeof state,
                 &bytes));
        ck_says("being captured");
        ck_refused(AMP_ERR_WRONG_STATE, "being captured", amp_state_load_memory(run->context, state, size));
    }
    ck_refused(AMP_ERR_WRONG_STATE, "being captured", amp_shutdown(run->context));
    device_capture_end();
    if (clips) ck_ok(amp_clip_grad_norm(&run->host->optimizer, 0.5f, NULL));
}

TEST_TIMES(test_calls_in_capture, 3) {
    static const struct kind tried[] = { KIND(O2, STEP_FUSED), KIND(O1, STEP_THERE),
                                         KIND(O2, STEP_FUSED, .mixed = true) };
    static float expected[2 * ELEMENTS], weights[2 * ELEMENTS];
    const struct kind *kind = &tried[_i];
    amp_record record;
    for (int tries = 0; tries < 2; tries++) {
        struct run run = start(kind);
        for (int i = 0; i < 6; i++) {
            host_clear(run.host);
            host_set_targets(run.host, 0.25f);
            (void)host_bracket(run.host);
            if (tries) try_while_captured(&run, !kind->mixed);
            else if (!kind->mixed) ck_ok(amp_clip_grad_norm(&run.host->optimizer, 0.5f, NULL));
            host_step(run.host, kind->stepping);
        }
        stop(&run, tries ? weights : expected, &record);
    }
    for (size_t i = 0; i < 2 * ELEMENTS; i++) ck_assert_msg(weights[i] == expected[i], "%s, %zu", kind->name, i);
    if (device.fake) ck_assert_int_eq(device.fake->broke_capture, 0);
}

/* LAMB adds up the norms of two devices on the host; without a scale to decide on, only the step asks for that. */
TEST(test_lamb_in_capture) {
    struct host *host = host_new_on_two(false, false, STEP_FUSED);
    if (!host) return; /* there is no second device */
    ck_ok(amp_optim_defaults(AMP_OPTIM_LAMB, &host->rule));
    struct run run = run_with(host, CONFIG(AMP_O0));
    host_set_targets(host, 0.25f);
    (void)host_bracket(host);
    device_capture_begin();
    ck_fails(AMP_ERR_WRONG_STATE, amp_fused_step(&host->optimizer, NULL));
    ck_says("amp_fused_step while the stream is being captured");
    device_capture_end();
    host_step(host, STEP_FUSED);
    host_clear(host);
    run_end(&run);
    if (device.fake) ck_assert_int_eq(device.fake->broke_capture, 0);
}

/* ---- what it costs ---- */

TEST_TIMES(test_waits, 5) {
    static const struct {
        struct kind kind;
        int waits, launches;
    } rows[] = {
        /* backward 2; a check and the scaler; two of the step */
        { KIND(O1, STEP_FUSED), 0, 6 }, { KIND(O2, STEP_FUSED), 0, 6 }, { KIND(O1, STEP_THERE), 0, 6 },
        { KIND(O2, STEP_THERE), 0, 8 }, /* the gradients are shown rounded once, and the masters */
        { KIND(O1, STEP_KNOWS), 1, 6 },
    };
    static float weights[2 * ELEMENTS];
    amp_record record;
    struct run run = start(&rows[_i].kind);
    struct fake *fake = device.fake;
    if (!fake) return;
    host_clear(run.host);
    fake->lazy = 0; /* blocks that are freed come back at once, at the same addresses */
    for (int i = 0; i < 8; i++) {
        host_clear(run.host);
        host_set_targets(run.host, 0.25f);
        const int waits = fake->waits, events = fake->event_waits, launches = fake->launches, uploads = fake->uploads;
        (void)host_bracket(run.host);
        const int until_end = fake->event_waits - events;
        host_step(run.host, rows[_i].kind.stepping);
        if (i < 4) continue;
        ck_assert_int_eq(fake->waits, waits);
        ck_assert_int_eq(fake->uploads, uploads);
        ck_assert_int_eq(until_end, rows[_i].waits); /* of a post that was taken: it has come long ago */
        ck_assert_int_eq(fake->event_waits - events, 2 * rows[_i].waits);
        ck_assert_int_eq(fake->launches - launches, rows[_i].launches);
    }
    stop(&run, weights, &record);
}

/* ---- clipping, masters, checkpoints ---- */

static void clipped(const struct kind *kind, bool on_cpu, float *weights, float *norms) {
    struct run run = run_with(host_of(kind, on_cpu), CONFIG(kind->level));
    amp_optimizer *optimizer = &run.host->optimizer;
    for (int i = 0; i < 10; i++) {
        host_clear(run.host);
        host_set_targets(run.host, i == 4 ? INFINITY : 0.25f);
        (void)host_bracket(run.host);
        norms[i] = -1.0f;
        if (i % 3 == 0) ck_ok(amp_clip_grad_norm(optimizer, 1.5f, &norms[i]));
        if (i % 3 == 1) ck_ok(amp_clip_grad_norm(optimizer, 1.5f, NULL));
        if (i % 3 == 2) ck_ok(amp_clip_grad_value(optimizer, 0.01f));
        host_step(run.host, kind->stepping);
    }
    host_read(run.host, weights, ELEMENTS);
    run_end(&run);
}

TEST_TIMES(test_clipping, 5) {
    static const struct kind clipping[] = { KIND(O1, STEP_FUSED), KIND(O2, STEP_FUSED), KIND(O2, STEP_THERE),
                                            KIND(O1, STEP_FUSED, .mixed = true), KIND(O2, STEP_KNOWS) };
    static float here[ELEMENTS], there[ELEMENTS];
    float norms[10], norms_there[10];
    clipped(&clipping[_i], true, here, norms);
    clipped(&clipping[_i], false, there, norms_there);
    for (int i = 0; i < 10; i++)
        ck_assert_msg(fabsf(norms[i] - norms_there[i]) <= 1e-6f * fabsf(norms[i]) || !isfinite(norms[i]),
                      "norm %d: %g, not %g", i, (double)norms_there[i], (double)norms[i]);
    /* a norm may differ in its last bit, and weights of 16 bits by one of theirs */
    for (size_t i = 0; i < host_elements(); i++)
        ck_assert_msg(fabsf(here[i] - there[i]) <= 0x1p-10f * fabsf(here[i]) + 1e-6f, "%s, element %zu: %a, not %a",
                      clipping[_i].name, i, (double)there[i], (double)here[i]);
}

/* Saved in the middle, loaded into another: both end alike, and the file is the CPU's. */
TEST_TIMES(test_checkpoints, TEST_STATES * 5) {
    static const struct kind saved[] = { KIND(O1, STEP_FUSED), KIND(O2, STEP_FUSED), KIND(O3, STEP_FUSED),
                                         KIND(O2, STEP_THERE), KIND(O2, STEP_FUSED, .mixed = true) };
    const struct kind *kind = &saved[_i];
    static float first[2 * ELEMENTS], second[2 * ELEMENTS];
    static char state[STATE_BYTES], again[STATE_BYTES];
    amp_record of_first, of_second;
    struct run run = start(kind), other = start(kind);
    for (int i = 0; i < 9; i++) iterate(run.host, kind, i);
    host_clear(run.host);
    const size_t size = run_save(&run, state);
    ck_ok(amp_state_load_memory(other.context, state, size));
    ck_assert_uint_eq(run_save(&other, again), size);
    ck_assert_mem_eq(state, again, size);
    for (int i = 9; i < 20; i++) iterate(run.host, kind, i), iterate(other.host, kind, i);
    host_clear(run.host), host_clear(other.host);
    stop(&run, first, &of_first), stop(&other, second, &of_second);
    ck_assert_mem_eq(first, second, sizeof first);
    ck_assert(of_first.scale_after == of_second.scale_after && of_first.brackets == of_second.brackets);
    ck_assert_uint_eq(of_second.brackets, 20);
}

/* ---- weights that do not fit ---- */

/* What a context says of one weight too large in each parameter; not that several devices are experimental. */
static void tell_unfit(struct host *host, char text[1024]) {
    char all[1024];
    static const float large = 1e6f;
    for (int i = 0; i < HOST_PARAMS; i++)
        memory_in(host->on_cpu, (float *)host->params[i].data + i % 2, &large, sizeof large);
    struct run run = run_with(host, CONFIG(AMP_O2));
    ck_ok(amp_explain(run.context, NULL, all, sizeof all, NULL));
    const char *told = strstr(all, "AMP-M19");
    ck_assert_msg(told && strstr(told, "too large for fp16 became infinite"), "%s", all);
    snprintf(text, 1024, "%s", told);
    run_end(&run);
}

TEST_TIMES(test_unfit, 2) {
    char here[1024], there[1024];
    struct host *host = _i ? host_new_on_two(false, false, STEP_KNOWS) : host_new(false, false, false, STEP_KNOWS);
    if (!host) return; /* there is no second device */
    tell_unfit(host, there);
    tell_unfit(host_new(true, false, false, STEP_KNOWS), here);
    ck_assert_str_eq(there, here);
}

/* ---- gradients that the host writes between a bracket and its step ---- */

enum writing { TOUCHED, HALF_WRITTEN, ZEROED, WRITINGS };

/* In the gradients' own memory, which their versions tell: nothing, every other element, or zeros. */
static void write_grads(struct host *host, enum writing writing) {
    static uint16_t bits[ELEMENTS];
    for (int i = 0; i < HOST_PARAMS; i++) {
        struct tensor *grad = host->params[i].grad;
        const bool here = grad->device.type == 1;
        ck_assert_int_ne(grad->dtype, AMP_FLOAT32);
        memory_out(here, bits, grad->data, (size_t)grad->size * sizeof *bits);
        for (int64_t k = 0; k < grad->size && writing != TOUCHED; k += writing == HALF_WRITTEN ? 2 : 1)
            bits[k] = writing == HALF_WRITTEN ? 0x3c00 : 0;
        memory_in(here, grad->data, bits, (size_t)grad->size * sizeof *bits);
        grad->version++;
    }
}

static void train_on_written(const struct kind *kind, bool on_cpu, enum writing writing, float *weights) {
    struct run run = run_with(host_of(kind, on_cpu), CONFIG(kind->level));
    for (int i = 0; i < 3; i++) {
        host_clear(run.host);
        host_set_targets(run.host, 0.3f);
        (void)host_bracket(run.host);
        write_grads(run.host, i == 1 ? writing : TOUCHED);
        host_step(run.host, kind->stepping);
    }
    host_clear(run.host);
    host_read(run.host, weights, ELEMENTS);
    run_end(&run);
}

/* What it wrote is what is stepped by, and elsewhere the FP32 gradient; as on the CPU, to the last bit. */
TEST_TIMES(test_written_gradients, 4 * WRITINGS) {
    static const struct kind written[] = {
        KIND(O2, STEP_KNOWS), KIND(O5, STEP_KNOWS), KIND(O2, STEP_THERE), KIND(O2, STEP_KNOWS, .mixed = true),
    };
    static float here[ELEMENTS], there[ELEMENTS], touched[ELEMENTS];
    const struct kind *kind = &written[_i / WRITINGS];
    const enum writing writing = (enum writing)(_i % WRITINGS);
    train_on_written(kind, true, writing, here);
    train_on_written(kind, false, writing, there);
    train_on_written(kind, false, TOUCHED, touched);
    for (size_t i = 0; i < host_elements(); i++)
        ck_assert_msg(here[i] == there[i], "%s, written %d: weight %zu is %a, %a on the CPU", kind->name, _i % WRITINGS,
                      i, (double)there[i], (double)here[i]);
    ck_assert_int_eq(memcmp(there, touched, host_elements() * sizeof *there) != 0, writing != TOUCHED);
}

TEST_FIXTURE(device_lazily, device_at_once)
