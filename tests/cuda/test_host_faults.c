/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host on a device whose calls fail: each one once, as where memory is short; what the host's own work left behind;
 * and a device that is lost in the middle of a bracket, a step, a save, a load. On the fake device alone.
 */
#include "host_run.h"

#include "../kernels/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_CONFIGURATION = 9, LAUNCH_FAILURE = 719 };

/* The CPU's contexts do not notice: a training there, from its beginning to its end. */
static void train_here(float out[2 * ELEMENTS]) {
    static const struct kind here = { "here", AMP_O2, STEP_FUSED, false, false, 1, 0 };
    amp_status status;
    struct run run = run_try_start(host_new(true, false, false, here.stepping), here.level, &status);
    ck_assert_msg(status == AMP_OK, "%s", amp_last_error());
    for (int i = 0; i < 5; i++) run_iterate(run.host, &here, 0.25f);
    host_clear(run.host);
    host_read(run.host, out, ELEMENTS);
    ck_assert_int_eq(amp_shutdown(run.context), AMP_OK);
    host_read(run.host, out + ELEMENTS, ELEMENTS);
    host_free(run.host);
}

/* ---- one call fails ---- */

/* Each call of CUDA's in amp_initialize fails once: an error in words, no parameter has changed, and nothing leaks. */
TEST_TIMES(test_faults_of_initialize, 6) {
    static float before[ELEMENTS], after[ELEMENTS];
    struct fake *fake = device.fake;
    int failures = 0;
    for (int at = 1; ; at++) {
        struct host *host = host_new(false, _i / 3, false, (enum stepping)(_i % 3));
        const int blocks = fake->blocks, streams = fake->streams;
        amp_status status;
        host_read(host, before, ELEMENTS);
        fake->calls = 0, fake->fail_at = at, fake->fail_with = at % 2 ? OUT_OF_MEMORY : LAUNCH_FAILURE;
        struct run run = run_try_start(host, AMP_O2, &status);
        const bool failed = fake->calls >= at;
        fake->fail_at = 0;
        if (status != AMP_OK) {
            failures++;
            ck_assert_int_eq(status, at % 2 ? AMP_ERR_NO_MEMORY : AMP_ERR_BACKEND);
            ck_assert_ptr_null(run.context);
            device.tools->flush();
            ck_assert_int_eq(fake->blocks, blocks);
            ck_assert_int_eq(fake->streams, streams);
            for (int i = 0; i < HOST_PARAMS; i++) ck_assert_int_eq(host->params[i].dtype, AMP_FLOAT32);
        } else {
            ck_assert_int_eq(amp_shutdown(run.context), AMP_OK);
        }
        host_read(host, after, ELEMENTS);
        ck_assert(!memcmp(before, after, sizeof before));
        host_free(host);
        if (!failed) break;
    }
    ck_assert_int_gt(failures, 10);
}

/* One iteration that may fail anywhere; what it returns is the first error. */
static amp_status fragile(struct host *host, enum stepping stepping) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    amp_status status = amp_scale_loss_begin(&host->optimizer, &host->loss, &scaled);
    if (status != AMP_OK) return status;
    const int at = device.fake->fail_at, calls = device.fake->calls;
    device.fake->fail_at = 0;
    host_backward(host, scaled.loss, 1.0f); /* the host's own calls do not fail */
    device.fake->calls = calls, device.fake->fail_at = at;
    status = amp_scale_loss_end(&scaled);
    if (stepping == STEP_FUSED) {
        const amp_status stepped = amp_fused_step(&host->optimizer, NULL);
        return status == AMP_OK ? stepped : status;
    }
    const amp_status begun = amp_step_begin(&host->optimizer, &info);
    const amp_status ended = begun == AMP_OK ? amp_step_end(&host->optimizer) : begun;
    return status == AMP_OK ? ended : status;
}

/* Each call of CUDA's in an iteration fails once. The error comes back, the bracket is closed, the context works on, no
 * block is lost, and the weights stay finite. */
TEST_TIMES(test_faults_of_an_iteration, 6) {
    static float weights[2 * ELEMENTS];
    static const struct kind fragile_kinds[] = {
        { "O1 fused", AMP_O1, STEP_FUSED, false, false, 1, 0 },
        { "O2 fused", AMP_O2, STEP_FUSED, false, false, 1, 0 },
        { "O2 knows", AMP_O2, STEP_KNOWS, false, false, 1, 0 },
        { "O2 fused, mixed", AMP_O2, STEP_FUSED, true, false, 1, 0 },
        { "O1 fixed", AMP_O1, STEP_FUSED, false, true, 1, 0 },
        { "O2 fused, observed", AMP_O2, STEP_FUSED, false, false, 1, 0 },
    };
    const bool observed = _i == 5; /* copies that fail leave out what they were for, and are no error */
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    options.every = 1;
    const struct kind *kind = &fragile_kinds[_i];
    struct fake *fake = device.fake;
    int failures = 0;
    for (int at = 1; ; at++) {
        struct host *host = host_new(false, kind->mixed, kind->fixed, kind->stepping);
        const int blocks = fake->blocks, streams = fake->streams;
        amp_status status;
        struct run run = run_try_start(host, kind->level, &status);
        ck_assert_int_eq(status, AMP_OK);
        if (observed) ck_assert_int_eq(amp_observe(run.context, &options), AMP_OK);
        if (at % 2) run_iterate(host, kind, 0.25f); /* else the first one, which allocates */
        host_clear(host);
        host_set_targets(host, 0.25f);
        fake->calls = 0, fake->fail_at = at, fake->fail_with = at % 3 ? LAUNCH_FAILURE : OUT_OF_MEMORY;
        status = fragile(host, kind->stepping);
        const bool failed = fake->calls >= at;
        fake->fail_at = 0;
        failures += status != AMP_OK;
        if (status != AMP_OK) ck_assert_int_eq(status, at % 3 ? AMP_ERR_BACKEND : AMP_ERR_NO_MEMORY);
        for (int i = 1; i < 4; i++) run_iterate(host, kind, 0.25f);
        host_clear(host);
        host_read(host, weights, ELEMENTS);
        ck_assert_int_eq(amp_shutdown(run.context), AMP_OK);
        host_free(host);
        for (size_t i = 0; i < host_elements(); i++) ck_assert(isfinite(weights[i]));
        device.tools->flush();
        /* the host's lists came back too */
        ck_assert_int_le(fake->blocks, blocks);
        ck_assert_int_le(fake->streams, streams);
        if (!failed) break;
    }
    ck_assert_int_gt(failures, 5);
}

/* ---- calls between a bracket and a step, of which each of CUDA's calls fails once ---- */

enum between { CLIPS, CLIPS_ALONE, LAMB, EMULATES, VERIFIES, BETWEENS };

static amp_status forward_and_backward(void *self, double *loss) {
    struct host *host = self;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    const amp_status status = amp_scale_loss_begin(&host->optimizer, &host->loss, &scaled);
    *loss = 1.0;
    if (status != AMP_OK) return status;
    const int at = device.fake->fail_at, calls = device.fake->calls;
    device.fake->fail_at = 0;
    host_backward(host, scaled.loss, 1.0f);
    device.fake->calls = calls, device.fake->fail_at = at;
    return amp_scale_loss_end(&scaled);
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
    static const struct kind fused = { "fused", AMP_O2, STEP_FUSED, false, false, 1, 0 };
    static float weights[2 * ELEMENTS];
    const enum between what = (enum between)(_i % BETWEENS);
    struct fake *fake = device.fake;
    int failures = 0;
    for (int at = 1;; at += what == VERIFIES || sweep_step() > 1 ? 7 : 1) {
        struct host *host = _i / BETWEENS == 2 ? host_new_on_two(false, false, STEP_FUSED)
                                               : host_new(false, _i / BETWEENS == 1, false, STEP_FUSED);
        const int blocks = fake->blocks, streams = fake->streams;
        amp_context *context;
        amp_config config = AMP_CONFIG_INIT;
        amp_model *model = &host->model;
        amp_optimizer *optimizer = &host->optimizer;
        config.level = AMP_O2, config.emulate = what == EMULATES ? AMP_ON : AMP_DEFAULT;
        if (what == LAMB) {
            ck_assert_int_eq(amp_optim_defaults(AMP_OPTIM_LAMB, &host->rule), AMP_OK);
            host->rule.lr = 0.125;
        }
        ck_assert_int_eq(amp_initialize_many(&model, 1, &optimizer, 1, &config, &context), AMP_OK);
        if (at % 2) run_iterate(host, &fused, 0.25f);
        host_clear(host);
        host_set_targets(host, 0.25f);
        fake->calls = 0, fake->fail_at = at, fake->fail_with = at % 3 ? LAUNCH_FAILURE : OUT_OF_MEMORY;
        const amp_status status = run_between(host, context, what);
        const bool failed = fake->calls >= at;
        fake->fail_at = 0;
        failures += status != AMP_OK;
        fake->current = 0;
        if (status != AMP_OK)
            ck_assert_msg(status == (at % 3 ? AMP_ERR_BACKEND : AMP_ERR_NO_MEMORY), "%d: %s", at, amp_last_error());
        for (int i = 0; i < 3; i++) run_iterate(host, &fused, 0.25f);
        host_clear(host);
        host_read(host, weights, ELEMENTS);
        for (size_t i = 0; i < host_elements(); i++) ck_assert(isfinite(weights[i]));
        ck_assert_int_eq(amp_shutdown(context), AMP_OK);
        host_free(host);
        device.tools->flush();
        ck_assert_int_le(fake->blocks, blocks);
        ck_assert_int_le(fake->streams, streams);
        if (!failed) break;
    }
    ck_assert_int_gt(failures, what == VERIFIES || sweep_step() > 1 ? 0 : 2);
}

/* An error that the host's own launch left behind is said to be no one's in particular. */
TEST(test_error_of_the_host) {
    struct fake *fake = device.fake;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_status status;
    struct host *host = host_new(false, false, false, STEP_FUSED);
    struct run run = run_try_start(host, AMP_O1, &status);
    ck_assert_int_eq(status, AMP_OK);
    ck_assert_int_eq(amp_scale_loss_begin(&host->optimizer, &host->loss, &scaled), AMP_OK);
    host_backward(host, scaled.loss, 1.0f);
    fake->calls = 0, fake->fail_at = 1, fake->fail_with = LAUNCH_FAILURE;
    ck_assert_int_eq(amp_scale_loss_end(&scaled), AMP_ERR_BACKEND);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "It may come from earlier work on this device"));
    ck_assert_int_eq(scaled.action, AMP_SKIP);
    fake->fail_at = 0;
    ck_assert_int_eq(amp_shutdown(run.context), AMP_OK);
    host_free(host);
}

/* What the host's own launch left behind, and does not stick, is neither libamp's error nor taken from the host. */
TEST(test_pending_error) {
    static const struct kind pending = { "O2 fused", AMP_O2, STEP_FUSED, false, false, 1, 0 };
    static char state[1 << 18];
    size_t size;
    struct fake *fake = device.fake;
    struct run run = run_start(&pending);
    fake->last_error = INVALID_CONFIGURATION;
    for (int i = 0; i < 3; i++) run_iterate(run.host, &pending, 0.25f);
    if (TEST_STATES) {
        ck_assert_int_eq(amp_state_save_memory(run.context, AMP_STATE_SAFETENSORS, state, sizeof state, &size), AMP_OK);
        ck_assert_int_eq(amp_state_load_memory(run.context, state, size), AMP_OK);
    }
    host_clear(run.host);
    ck_assert_int_eq(amp_shutdown(run.context), AMP_OK);
    ck_assert_int_eq(fake->last_error, INVALID_CONFIGURATION);
    fake->last_error = 0;
    host_free(run.host);
}

/* ---- checkpoints ---- */

static const struct kind saved[] = {
    { "O1 fused", AMP_O1, STEP_FUSED, false, false, 1, 0 },   { "O2 fused", AMP_O2, STEP_FUSED, false, false, 1, 0 },
    { "O3 fused", AMP_O3, STEP_FUSED, false, false, 1, 0 },   { "O2 there", AMP_O2, STEP_THERE, false, false, 1, 0 },
    { "O2 mixed", AMP_O2, STEP_FUSED, true, false, 1, 0 },
};
enum { SAVED = sizeof saved / sizeof *saved, STATE_BYTES = 1 << 18 };

static size_t save(const struct run *run, char *state) {
    size_t size = 0;
    ck_assert_msg(amp_state_save_memory(run->context, AMP_STATE_SAFETENSORS, state, STATE_BYTES, &size) == AMP_OK, "%s",
                  amp_last_error());
    return size;
}

/* One call of CUDA's fails while a state is saved: that is said, no size is given, and it can be saved again. */
TEST_TIMES(test_faults_of_saving, TEST_STATES * SAVED) {
    static char expected[STATE_BYTES], again[STATE_BYTES];
    struct fake *fake = device.fake;
    struct run run = run_start(&saved[_i]);
    for (int i = 0; i < 5; i++) run_iterate(run.host, &saved[_i], 0.25f);
    host_clear(run.host);
    const size_t bytes = save(&run, expected);
    for (int at = 1;; at++) {
        size_t size = 12345;
        fake->calls = 0, fake->fail_at = at, fake->fail_with = at % 2 ? OUT_OF_MEMORY : LAUNCH_FAILURE;
        const amp_status status = amp_state_save_memory(run.context, AMP_STATE_SAFETENSORS, again, sizeof again, &size);
        const bool reached = fake->calls >= at;
        fake->fail_at = 0;
        if (status != AMP_OK) {
            ck_assert_int_eq(status, at % 2 ? AMP_ERR_NO_MEMORY : AMP_ERR_BACKEND);
            ck_assert_ptr_nonnull(strstr(amp_last_error(), "amp_state_save_memory: "));
            ck_assert_ptr_nonnull(strstr(amp_last_error(), "CUDA: "));
            ck_assert_uint_eq(size, 12345);
        }
        ck_assert_uint_eq(save(&run, again), bytes);
        ck_assert(!memcmp(expected, again, bytes));
        if (!reached) {
            ck_assert_int_gt(at, 4);
            break;
        }
    }
    ck_assert_int_eq(amp_shutdown(run.context), AMP_OK);
    host_free(run.host);
}

/* A context after two iterations, of which nothing was saved yet. */
static struct run fresh(const struct kind *kind) {
    struct run run = run_start(kind);
    for (int i = 0; i < 2; i++) run_iterate(run.host, kind, 0.25f);
    host_clear(run.host);
    return run;
}

static void end(struct run *run) {
    ck_assert_int_eq(amp_shutdown(run->context), AMP_OK);
    host_free(run->host);
}

/* There is no memory, wherever a load asks for some (it should not): all is as it was, and it can be loaded again. */
TEST_TIMES(test_faults_of_loading, TEST_STATES * SAVED) {
    static char wanted[STATE_BYTES], before[STATE_BYTES], after[STATE_BYTES];
    static float weights[ELEMENTS], weights_after[ELEMENTS];
    struct fake *fake = device.fake;
    const struct kind *kind = &saved[_i];
    struct run source = run_start(kind), twin = fresh(kind);
    for (int i = 0; i < 7; i++) run_iterate(source.host, kind, i == 3 ? INFINITY : 0.5f);
    host_clear(source.host);
    const size_t bytes = save(&source, wanted), old = save(&twin, before);
    host_read(twin.host, weights, ELEMENTS);
    for (int at = 1;; at++) {
        struct run run = fresh(kind);
        fake->allocations = 0, fake->fail_allocation = at;
        const amp_status status = amp_state_load_memory(run.context, wanted, bytes);
        const bool reached = fake->allocations >= at;
        fake->fail_allocation = 0;
        ck_assert_int_eq(status, reached ? AMP_ERR_NO_MEMORY : AMP_OK);
        if (status != AMP_OK) {
            ck_assert_ptr_nonnull(strstr(amp_last_error(), "amp_state_load_memory: CUDA: out of memory"));
            host_read(run.host, weights_after, ELEMENTS);
            ck_assert_msg(!memcmp(weights, weights_after, sizeof weights), "%s: half loaded, allocation %d", kind->name,
                          at);
            ck_assert_uint_eq(save(&run, after), old);
            ck_assert_msg(!memcmp(before, after, old), "%s: half loaded, allocation %d", kind->name, at);
        }
        ck_assert_int_eq(amp_state_load_memory(run.context, wanted, bytes), AMP_OK);
        ck_assert_uint_eq(save(&run, after), bytes);
        ck_assert(!memcmp(wanted, after, bytes));
        end(&run);
        if (!reached) break;
    }
    end(&source), end(&twin);
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
    if (TEST_STATES) ck_assert_int_eq(run_phase(run, kind, SAVING, NULL, 0), AMP_ERR_BACKEND);
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
    int unchanged = 0;
    train_here(expected);
    for (int at = 1 + _i % sweep_step();; at += sweep_step()) {
        struct host *host = host_new(false, kind->mixed, kind->fixed, kind->stepping);
        const int blocks = fake->blocks, streams = fake->streams;
        amp_status status;
        struct run run = run_try_start(host, kind->level, &status);
        ck_assert_msg(status == AMP_OK, "%s", amp_last_error());
        run_iterate(host, kind, 0.25f);
        const size_t bytes = TEST_STATES ? save(&run, wanted) : 0;
        run_iterate(host, kind, 0.5f); /* what is loaded is another state */
        host_clear(host);
        host_set_targets(host, 0.25f);
        const struct tensor *last = &host->params[HOST_PARAMS - 1]; /* in the CPU's memory, where kind->mixed */
        if (kind->mixed) memcpy(kept, last->data, (size_t)last->size * sizeof *kept);
        fake->calls = 0, fake->fail_at = at, fake->fail_with = LAUNCH_FAILURE, fake->sticky = 1;
        status = run_phase(&run, kind, phase, wanted, bytes);
        const bool reached = fake->calls >= at;
        if (!reached) fake->fail_at = 0, fake->sticky = 0;
        if (reached && status != AMP_OK) {
            ck_assert_int_eq(status, AMP_ERR_BACKEND);
            ck_assert_ptr_nonnull(strstr(amp_last_error(), "CUDA: "));
            unchanged += kind->mixed && !memcmp(kept, last->data, (size_t)last->size * sizeof *kept);
            expect_lost(&run, kind);
        }
        train_here(here);
        ck_assert(!memcmp(expected, here, sizeof here));
        host_clear(host);
        /* on the device, for want of masters: its parameters stay as they are */
        const bool widens = kind->level == AMP_O3;
        const amp_status ended = amp_shutdown(run.context);
        if (!reached || widens) ck_assert_int_eq(ended, reached ? AMP_ERR_BACKEND : AMP_OK);
        /* what the host wrote last cannot be seen any more */
        if (ended != AMP_OK) ck_assert_int_eq(ended, AMP_ERR_BACKEND);
        fake->fail_at = 0, fake->sticky = 0, fake->last_error = 0;
        device.tools->flush();
        for (int i = 0; i < HOST_PARAMS && !widens; i++) ck_assert_int_eq(host->params[i].dtype, AMP_FLOAT32);
        host_free(host);
        device.tools->flush();
        ck_assert_msg(fake->blocks <= blocks && fake->streams <= streams,
                      "%s, phase %d, call %d: %d blocks, %d streams left", kind->name, (int)phase, at,
                      fake->blocks - blocks, fake->streams - streams);
        if (!reached) {
            ck_assert_int_gt(at, 4);
            /* what is loaded into a device's memory comes first: the CPU's is left alone where one of those copies
             * fails */
            if (phase == LOADING && kind->mixed) ck_assert_int_gt(unchanged, 3 * HOST_PARAMS / sweep_step());
            break;
        }
    }
}

TEST_FIXTURE(device_lazily, device_at_once)
