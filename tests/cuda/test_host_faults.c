/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host on a device whose calls fail: each one once, as where memory is short; what the host's own work left behind;
 * and a device that is lost in the middle of a bracket, a step, a save, a load. On the fake device alone.
 */
#include "host_run.h"

enum { INVALID_CONFIGURATION = 9, LAUNCH_FAILURE = 719 };

/* The CPU's contexts do not notice: a training there, from its beginning to its end. */
static void train_here(float out[2 * ELEMENTS]) {
    static const struct kind here = KIND(O2, STEP_FUSED);
    struct run run = run_with(host_of(&here, true), CONFIG(here.level));
    for (int i = 0; i < 5; i++) run_iterate(run.host, &here, 0.25f);
    host_clear(run.host);
    host_read(run.host, out, ELEMENTS);
    ck_ok(amp_shutdown(run.context));
    host_read(run.host, out + ELEMENTS, ELEMENTS);
    host_free(run.host);
}

/* The `at`th call of CUDA's from here on fails; 0: none does. */
static void fail_at(int at, bool memory) {
    device.fake->calls = 0, device.fake->fail_at = at, device.fake->fail_with = memory ? OUT_OF_MEMORY : LAUNCH_FAILURE;
}

/* Was it reached? No further call fails. */
static bool failed_at(int at) {
    device.fake->fail_at = 0;
    return device.fake->calls >= at;
}

static amp_status error_of(bool memory) { return memory ? AMP_ERR_NO_MEMORY : AMP_ERR_BACKEND; }

/* What the fake device holds. */
struct held {
    int blocks, streams;
};

static struct held held(void) { return (struct held){ device.fake->blocks, device.fake->streams }; }

/* No more than before; the host's lists came back too. */
static void ck_nothing_lost(struct held before, const char *name, int at) {
    device.tools->flush();
    const int blocks = device.fake->blocks - before.blocks, streams = device.fake->streams - before.streams;
    ck_assert_msg(blocks <= 0 && streams <= 0, "%s, call %d: %d blocks, %d streams left", name, at, blocks, streams);
}

/* ---- one call fails ---- */

/* Each call of CUDA's in amp_initialize fails once: an error in words, no parameter has changed, and nothing leaks. */
TEST_TIMES(test_faults_of_initialize, 6) {
    static float before[ELEMENTS], after[ELEMENTS];
    int failures = 0;
    bool failed = true;
    for (int at = 1; failed; at++) {
        struct host *host = host_new(false, _i / 3, false, (enum stepping)(_i % 3));
        const struct held before_it = held();
        amp_status status;
        host_read(host, before, ELEMENTS);
        fail_at(at, at % 2);
        const struct run run = run_try(host, CONFIG(AMP_O2), &status);
        failed = failed_at(at);
        if (status != AMP_OK) {
            failures++;
            ck_assert_int_eq(status, error_of(at % 2));
            ck_assert_ptr_null(run.context);
            device.tools->flush();
            ck_assert_int_eq(device.fake->blocks, before_it.blocks);
            ck_assert_int_eq(device.fake->streams, before_it.streams);
            for (int i = 0; i < HOST_PARAMS; i++) ck_assert_int_eq(host->params[i].dtype, AMP_FLOAT32);
        } else ck_ok(amp_shutdown(run.context));
        host_read(host, after, ELEMENTS);
        ck_assert_mem_eq(before, after, sizeof before);
        host_free(host);
    }
    ck_assert_int_gt(failures, 10);
}

/* One iteration that may fail anywhere; what it returns is the first error. */
static amp_status fragile_bracket(struct host *host, bool *begun) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    const amp_status status = amp_scale_loss_begin(&host->optimizer, &host->loss, &scaled);
    *begun = status == AMP_OK;
    if (status != AMP_OK) return status;
    const int at = device.fake->fail_at, calls = device.fake->calls;
    device.fake->fail_at = 0;
    host_backward(host, scaled.loss, 1.0f); /* the host's own calls do not fail */
    device.fake->calls = calls, device.fake->fail_at = at;
    return amp_scale_loss_end(&scaled);
}

static amp_status fragile(struct host *host, enum stepping stepping) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    bool begun;
    const amp_status status = fragile_bracket(host, &begun);
    if (!begun) return status;
    amp_status stepped = stepping == STEP_FUSED ? amp_fused_step(&host->optimizer, NULL)
                                                : amp_step_begin(&host->optimizer, &info);
    if (stepping != STEP_FUSED && stepped == AMP_OK) stepped = amp_step_end(&host->optimizer);
    return status == AMP_OK ? stepped : status;
}

/* The context trains on, with finite weights, and ends. */
static void end_finite(struct run *run, const struct kind *kind) {
    static float weights[2 * ELEMENTS];
    for (int i = 1; i < 4; i++) run_iterate(run->host, kind, 0.25f);
    host_clear(run->host);
    host_read(run->host, weights, ELEMENTS);
    for (size_t i = 0; i < host_elements(); i++) ck_assert(isfinite(weights[i]));
    run_end(run);
}

/* Each call of CUDA's in an iteration fails once. The error comes back, the bracket is closed, the context works on, no
 * block is lost, and the weights stay finite. */
TEST_TIMES(test_faults_of_an_iteration, 8) {
    static const struct kind fragile_kinds[] = {
        KIND(O1, STEP_FUSED), KIND(O2, STEP_FUSED), KIND(O2, STEP_KNOWS), KIND(O2, STEP_FUSED, .mixed = true),
        KIND(O1, STEP_FUSED, .fixed = true), KIND(O5, STEP_FUSED, .split = true),
        KIND(O5, STEP_KNOWS, .split = true), KIND(O2, STEP_FUSED), /* the last one observed */
    };
    const bool observed = _i == 7; /* copies that fail leave out what they were for, and are no error */
    const amp_observe_options options = SIZED(amp_observe_options, .every = 1);
    const struct kind *kind = &fragile_kinds[_i];
    int failures = 0;
    bool failed = true;
    for (int at = 1; failed; at++) {
        const struct held before = held();
        struct run run = run_start(kind);
        struct host *host = run.host;
        if (observed) ck_ok(amp_observe(run.context, &options));
        if (at % 2) run_iterate(host, kind, 0.25f); /* else the first one, which allocates */
        host_clear(host);
        host_set_targets(host, 0.25f);
        fail_at(at, at % 3 == 0);
        const amp_status status = fragile(host, kind->stepping);
        failed = failed_at(at);
        failures += status != AMP_OK;
        if (status != AMP_OK) ck_assert_int_eq(status, error_of(at % 3 == 0));
        end_finite(&run, kind);
        ck_nothing_lost(before, kind->name, at);
    }
    ck_assert_int_gt(failures, 5);
}

/* ---- calls between a bracket and a step, of which each of CUDA's calls fails once ---- */

enum between { CLIPS, CLIPS_ALONE, LAMB, EMULATES, VERIFIES, BETWEENS };

static amp_status forward_and_backward(void *self, double *loss) {
    bool begun;
    *loss = 1.0;
    return fragile_bracket(self, &begun);
}

static amp_status run_between(struct host *host, amp_context *context, enum between what) {
    double loss;
    float norm;
    if (what == VERIFIES) return amp_verify_step(context, forward_and_backward, host);
    amp_status status = forward_and_backward(host, &loss);
    if (status == AMP_OK && (what == CLIPS || what == CLIPS_ALONE))
        status = amp_clip_grad_norm(&host->optimizer, 0.5f, what == CLIPS ? &norm : NULL);
    return status == AMP_OK ? amp_fused_step(&host->optimizer, NULL) : status;
}

/* The error comes back, the context trains on with finite weights, and no block is lost. */
TEST_TIMES(test_faults_between, 3 * BETWEENS - 1) { /* on two devices, nothing is verified */
    static const struct kind fused = KIND(O2, STEP_FUSED);
    const enum between what = (enum between)(_i % BETWEENS);
    int failures = 0;
    bool failed = true;
    for (int at = 1; failed; at += what == VERIFIES || sweep_step() > 1 ? 7 : 1) {
        const struct held before = held();
        struct host *host = _i / BETWEENS == 2 ? host_new_on_two(false, false, STEP_FUSED)
                                               : host_new(false, _i / BETWEENS == 1, false, STEP_FUSED);
        if (what == LAMB) ck_ok(amp_optim_defaults(AMP_OPTIM_LAMB, &host->rule)), host->rule.lr = 0.125;
        struct run run = run_with(host, CONFIG(AMP_O2, .emulate = what == EMULATES ? AMP_ON : AMP_DEFAULT));
        if (at % 2) run_iterate(host, &fused, 0.25f);
        host_clear(host);
        host_set_targets(host, 0.25f);
        fail_at(at, at % 3 == 0);
        const amp_status status = run_between(host, run.context, what);
        failed = failed_at(at);
        failures += status != AMP_OK;
        device.fake->current = 0;
        if (status != AMP_OK) ck_assert_msg(status == error_of(at % 3 == 0), "%d: %s", at, amp_last_error());
        end_finite(&run, &fused);
        ck_nothing_lost(before, fused.name, at);
    }
    ck_assert_int_gt(failures, what == VERIFIES || sweep_step() > 1 ? 0 : 2);
}

/* An error that the host's own launch left behind is said to be no one's in particular. */
TEST(test_error_of_the_host) {
    static const struct kind kind = KIND(O1, STEP_FUSED);
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    struct run run = run_start(&kind);
    ck_ok(amp_scale_loss_begin(&run.host->optimizer, &run.host->loss, &scaled));
    host_backward(run.host, scaled.loss, 1.0f);
    fail_at(1, false);
    ck_refused(AMP_ERR_BACKEND, "It may come from earlier work on this device", amp_scale_loss_end(&scaled));
    ck_assert_int_eq(scaled.action, AMP_SKIP);
    ck_assert(failed_at(1));
    run_end(&run);
}

/* What the host's own launch left behind, and does not stick, is neither libamp's error nor taken from the host. */
TEST(test_pending_error) {
    static const struct kind pending = KIND(O2, STEP_FUSED);
    static char state[STATE_BYTES];
    struct fake *fake = device.fake;
    struct run run = run_start(&pending);
    fake->last_error = INVALID_CONFIGURATION;
    for (int i = 0; i < 3; i++) run_iterate(run.host, &pending, 0.25f);
    if (TEST_STATES) ck_ok(amp_state_load_memory(run.context, state, run_save(&run, state)));
    host_clear(run.host);
    ck_ok(amp_shutdown(run.context));
    ck_assert_int_eq(fake->last_error, INVALID_CONFIGURATION);
    fake->last_error = 0;
    host_free(run.host);
}

/* ---- checkpoints ---- */

static const struct kind saved[] = { KIND(O1, STEP_FUSED), KIND(O2, STEP_FUSED), KIND(O3, STEP_FUSED),
                                     KIND(O2, STEP_THERE), KIND(O2, STEP_FUSED, .mixed = true),
                                     KIND(O5, STEP_FUSED, .split = true) };
enum { SAVED = sizeof saved / sizeof *saved };

/* One call of CUDA's fails while a state is saved: that is said, no size is given, and it can be saved again. */
TEST_TIMES(test_faults_of_saving, TEST_STATES * SAVED) {
    static char expected[STATE_BYTES], again[STATE_BYTES];
    struct run run = run_start(&saved[_i]);
    for (int i = 0; i < 5; i++) run_iterate(run.host, &saved[_i], 0.25f);
    host_clear(run.host);
    const size_t bytes = run_save(&run, expected);
    int at = 0;
    for (bool reached = true; reached;) {
        size_t size = 12345;
        at++;
        fail_at(at, at % 2);
        const amp_status status = amp_state_save_memory(run.context, AMP_STATE_SAFETENSORS, again, sizeof again, &size);
        reached = failed_at(at);
        if (status != AMP_OK) {
            ck_assert_int_eq(status, error_of(at % 2));
            ck_says("amp_state_save_memory: ");
            ck_says("CUDA: ");
            ck_assert_uint_eq(size, 12345);
        }
        ck_assert_uint_eq(run_save(&run, again), bytes);
        ck_assert_mem_eq(expected, again, bytes);
    }
    ck_assert_int_gt(at, 4);
    run_end(&run);
}

/* A context after two iterations, of which nothing was saved yet. */
static struct run fresh(const struct kind *kind) {
    struct run run = run_start(kind);
    for (int i = 0; i < 2; i++) run_iterate(run.host, kind, 0.25f);
    host_clear(run.host);
    return run;
}

/* There is no memory, wherever a load asks for some (it should not): all is as it was, and it can be loaded again. */
TEST_TIMES(test_faults_of_loading, TEST_STATES * SAVED) {
    static char wanted[STATE_BYTES], before[STATE_BYTES], after[STATE_BYTES];
    static float weights[ELEMENTS], weights_after[ELEMENTS];
    const struct kind *kind = &saved[_i];
    struct run source = run_start(kind), twin = fresh(kind);
    for (int i = 0; i < 7; i++) run_iterate(source.host, kind, i == 3 ? INFINITY : 0.5f);
    host_clear(source.host);
    const size_t bytes = run_save(&source, wanted), old = run_save(&twin, before);
    bool reached = true;
    host_read(twin.host, weights, ELEMENTS);
    for (int at = 1; reached; at++) {
        struct run run = fresh(kind);
        device.fake->allocations = 0, device.fake->fail_allocation = at;
        const amp_status status = amp_state_load_memory(run.context, wanted, bytes);
        reached = device.fake->allocations >= at;
        device.fake->fail_allocation = 0;
        ck_assert_int_eq(status, reached ? AMP_ERR_NO_MEMORY : AMP_OK);
        if (status != AMP_OK) {
            ck_says("amp_state_load_memory: CUDA: out of memory");
            host_read(run.host, weights_after, ELEMENTS);
            ck_assert_uint_eq(run_save(&run, after), old);
            ck_assert_msg(!memcmp(weights, weights_after, sizeof weights) && !memcmp(before, after, old),
                          "%s: half loaded, allocation %d", kind->name, at);
        }
        ck_ok(amp_state_load_memory(run.context, wanted, bytes));
        ck_assert_uint_eq(run_save(&run, after), bytes);
        ck_assert_mem_eq(wanted, after, bytes);
        run_end(&run);
    }
    run_end(&source), run_end(&twin);
}

/* ---- a device that is lost ---- */

enum phase { BRACKET_AND_STEP, SAVING, LOADING, PHASES };

static amp_status run_phase(const struct run *run, const struct kind *kind, enum phase phase, const char *wanted,
                            size_t bytes) {
    static char state[STATE_BYTES];
    size_t size;
    if (phase == BRACKET_AND_STEP) return fragile(run->host, kind->stepping);
    if (phase == SAVING) return amp_state_save_memory(run->context, AMP_STATE_SAFETENSORS, state, sizeof state, &size);
    return amp_state_load_memory(run->context, wanted, bytes);
}

/* What a host may do next, not knowing: errors that say what happened, and what to do. */
static void expect_lost(const struct run *run, const struct kind *kind) {
    if (TEST_STATES) ck_fails(AMP_ERR_BACKEND, run_phase(run, kind, SAVING, NULL, 0));
    ck_assert_msg(strstr(amp_last_error(), "CUDA: ") && strstr(amp_last_error(), "compute-sanitizer"), "%s",
                  amp_last_error());
    ck_assert_int_ne(fragile(run->host, kind->stepping), AMP_OK);
}

/* From some call on all calls fail. The error says so, contexts on the CPU go on, and amp_shutdown gives everything
 * back. */
TEST_TIMES(test_lost_device, (TEST_STATES ? PHASES : SAVING) * SAVED) {
    static float expected[2 * ELEMENTS], here[2 * ELEMENTS];
    static char wanted[STATE_BYTES];
    static uint16_t kept[ELEMENTS];
    const struct kind *kind = &saved[_i % SAVED];
    const enum phase phase = (enum phase)(_i / SAVED);
    struct fake *fake = device.fake;
    int unchanged = 0, at = 1 + _i % sweep_step();
    train_here(expected);
    for (bool reached = true; reached; at += sweep_step()) {
        const struct held before = held();
        struct run run = run_start(kind);
        struct host *host = run.host;
        run_iterate(host, kind, 0.25f);
        const size_t bytes = TEST_STATES ? run_save(&run, wanted) : 0;
        run_iterate(host, kind, 0.5f); /* what is loaded is another state */
        host_clear(host);
        host_set_targets(host, 0.25f);
        const struct tensor *last = &host->params[HOST_PARAMS - 1]; /* in the CPU's memory, where kind->mixed */
        if (kind->mixed) memcpy(kept, last->data, (size_t)last->size * sizeof *kept);
        fail_at(at, false), fake->sticky = 1;
        const amp_status status = run_phase(&run, kind, phase, wanted, bytes);
        reached = fake->calls >= at;
        if (!reached) fake->fail_at = 0, fake->sticky = 0;
        if (reached && status != AMP_OK) {
            ck_assert_int_eq(status, AMP_ERR_BACKEND);
            ck_says("CUDA: ");
            unchanged += kind->mixed && !memcmp(kept, last->data, (size_t)last->size * sizeof *kept);
            expect_lost(&run, kind);
        }
        train_here(here);
        ck_assert_mem_eq(expected, here, sizeof here);
        host_clear(host);
        /* on the device, for want of masters, or of whole ones: its parameters stay as they are */
        const bool widens = kind->level == AMP_O3;
        const amp_status ended = amp_shutdown(run.context);
        if (!reached || widens) ck_assert_int_eq(ended, reached ? AMP_ERR_BACKEND : AMP_OK);
        if (ended != AMP_OK) ck_assert_int_eq(ended, AMP_ERR_BACKEND); /* what the host wrote last is not seen */
        fake->fail_at = 0, fake->sticky = 0, fake->last_error = 0;
        device.tools->flush();
        for (int i = 0; i < HOST_PARAMS && !widens && !kind->split; i++)
            ck_assert_int_eq(host->params[i].dtype, AMP_FLOAT32);
        host_free(host);
        ck_nothing_lost(before, kind->name, at);
    }
    ck_assert_int_gt(at, 4 + sweep_step());
    /* what is loaded into a device's memory comes first: the CPU's is left alone where one of those copies fails */
    if (phase == LOADING && kind->mixed) ck_assert_int_gt(unchanged, 3 * HOST_PARAMS / sweep_step());
}

TEST_FIXTURE(device_lazily, device_at_once)
