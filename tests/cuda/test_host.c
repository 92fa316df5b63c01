/* SPDX-License-Identifier: Apache-2.0 */
/* Trainings over a device's memory against the same trainings on the CPU, bit for bit: every level, every kind of host. */
#include "host.h"

#include "../kernels/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ITERATIONS = 40, ELEMENTS = 8192 };

struct kind {
    const char *name;
    amp_level level;
    enum stepping stepping;
    bool mixed, fixed;
    int accumulate; /* brackets a step */
    float static_scale;
};

/* Some iterations overflow: by an infinite target, or one that the scale makes infinite. */
static float target_of(int iteration) { return iteration % 7 == 3 ? INFINITY : iteration % 11 == 5 ? 1e36f : 0.25f; }

static void iterate(struct host *host, const struct kind *kind, int iteration) {
    host_clear(host);
    host_set_targets(host, target_of(iteration));
    for (int k = 0; k < kind->accumulate; k++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        ck_assert_msg(amp_scale_loss_begin(&host->optimizer, &host->loss, &scaled) == AMP_OK, "%s", amp_last_error());
        host_backward(host, scaled.loss, 1.0f);
        ck_assert_msg(amp_scale_loss_end(&scaled) == AMP_OK, "%s", amp_last_error());
    }
    host_step(host, kind->stepping);
}

/* The record of a context that is about to end, with a name that does not end with it. */
static void keep_record(amp_context *context, amp_record *record) {
    *record = (amp_record)AMP_RECORD_INIT;
    ck_assert_int_eq(amp_get_record(context, 0, record), AMP_OK);
    const char *name = record->first_nonfinite;
    record->first_nonfinite = !name ? NULL : strcmp(name, "c") ? "another" : "c";
}

static void train(const struct kind *kind, bool on_cpu, float *weights, amp_record *record, int64_t *events) {
    struct host *host = host_new(on_cpu, kind->mixed && !on_cpu, kind->fixed, kind->stepping);
    amp_model *model = &host->model;
    amp_optimizer *optimizer = &host->optimizer;
    amp_config config = AMP_CONFIG_INIT;
    amp_context *context = NULL;
    config.level = kind->level;
    config.loss_scale = kind->static_scale;
    config.window = 4;
    ck_assert_msg(amp_initialize_many(&model, 1, &optimizer, 1, &config, &context) == AMP_OK, "%s", amp_last_error());
    for (int i = 0; i < ITERATIONS; i++) iterate(host, kind, i);
    keep_record(context, record);
    host_clear(host);
    host_read(host, weights, ELEMENTS);
    *events = host->event_skips;
    ck_assert_msg(amp_shutdown(context) == AMP_OK, "%s", amp_last_error());
    for (int i = 0; i < HOST_PARAMS; i++) ck_assert_int_eq(host->params[i].dtype, AMP_FLOAT32);
    host_read(host, weights + ELEMENTS, ELEMENTS);
    host_free(host);
}

static const struct kind kinds[] = {
    { "O0 fused", AMP_O0, STEP_FUSED, false, false, 1, 0.0f },
    { "O1 fused", AMP_O1, STEP_FUSED, false, false, 1, 0.0f },
    { "O2 fused", AMP_O2, STEP_FUSED, false, false, 1, 0.0f },
    { "O3 fused", AMP_O3, STEP_FUSED, false, false, 1, 0.0f },
    { "O3 fused, dynamic", AMP_O3, STEP_FUSED, false, false, 1, AMP_DYNAMIC },
    { "O4 fused", AMP_O4, STEP_FUSED, false, false, 1, 0.0f },
    { "O5 fused", AMP_O5, STEP_FUSED, false, false, 1, 0.0f },
    { "O1 fused, fixed", AMP_O1, STEP_FUSED, false, true, 1, 0.0f },
    { "O1 fused, accumulating", AMP_O1, STEP_FUSED, false, false, 3, 0.0f },
    { "O1 fused, fixed, accumulating", AMP_O1, STEP_FUSED, false, true, 3, 0.0f },
    { "O2 fused, accumulating", AMP_O2, STEP_FUSED, false, false, 3, 0.0f },
    { "O1 knows", AMP_O1, STEP_KNOWS, false, false, 1, 0.0f },
    { "O2 knows", AMP_O2, STEP_KNOWS, false, false, 1, 0.0f },
    { "O2 knows, accumulating", AMP_O2, STEP_KNOWS, false, false, 2, 0.0f },
    { "O3 knows", AMP_O3, STEP_KNOWS, false, false, 1, 128.0f },
    { "O5 knows", AMP_O5, STEP_KNOWS, false, false, 1, 0.0f },
    { "O1 knows, fixed, accumulating", AMP_O1, STEP_KNOWS, false, true, 2, 0.0f },
    { "O1 there", AMP_O1, STEP_THERE, false, false, 1, 0.0f },
    { "O2 there", AMP_O2, STEP_THERE, false, false, 1, 0.0f },
    { "O2 there, static", AMP_O2, STEP_THERE, false, false, 1, 1024.0f },
    { "O2 there, accumulating", AMP_O2, STEP_THERE, false, false, 2, 0.0f },
    { "O1 there, fixed, accumulating", AMP_O1, STEP_THERE, false, true, 2, 0.0f },
    { "O1 fused, mixed", AMP_O1, STEP_FUSED, true, false, 1, 0.0f },
    { "O2 fused, mixed", AMP_O2, STEP_FUSED, true, false, 2, 0.0f },
    { "O2 knows, mixed", AMP_O2, STEP_KNOWS, true, false, 1, 0.0f },
};

START_TEST(test_trainings) {
    const struct kind *kind = &kinds[_i];
    static float here[2 * ELEMENTS], there[2 * ELEMENTS];
    amp_record expected, record;
    int64_t events, events_there;
    train(kind, true, here, &expected, &events);
    train(kind, false, there, &record, &events_there);
    for (size_t i = 0; i < 2 * ELEMENTS; i++)
        ck_assert_msg(here[i] == there[i] || (isnan(here[i]) && isnan(there[i])), "%s, element %zu: %a on the device, %a here",
                      kind->name, i, (double)there[i], (double)here[i]);
    ck_assert_msg(record.brackets == expected.brackets && record.skipped == expected.skipped, "%s: %d of %d skipped, not %d of %d",
                  kind->name, (int)record.skipped, (int)record.brackets, (int)expected.skipped, (int)expected.brackets);
    ck_assert(record.scale_after == expected.scale_after && record.scale_before == expected.scale_before);
    ck_assert_int_eq(record.action, expected.action);
    ck_assert_uint_eq(record.unskipped, expected.unskipped);
    ck_assert_uint_eq(record.skips_in_row, expected.skips_in_row);
    ck_assert_pstr_eq(record.first_nonfinite, expected.first_nonfinite);
    if (kind->stepping == STEP_KNOWS) ck_assert_int_eq(events_there, events);
}
END_TEST

/* ---- graphs ---- */

struct run {
    struct host *host;
    amp_context *context;
};

static struct run start(const struct kind *kind) {
    struct run run = { host_new(false, kind->mixed, kind->fixed, kind->stepping), NULL };
    amp_model *model = &run.host->model;
    amp_optimizer *optimizer = &run.host->optimizer;
    amp_config config = AMP_CONFIG_INIT;
    config.level = kind->level;
    config.window = 4;
    ck_assert_msg(amp_initialize_many(&model, 1, &optimizer, 1, &config, &run.context) == AMP_OK, "%s", amp_last_error());
    return run;
}

static void stop(struct run *run, float *weights, amp_record *record) {
    keep_record(run->context, record);
    host_read(run->host, weights, ELEMENTS);
    ck_assert_msg(amp_shutdown(run->context) == AMP_OK, "%s", amp_last_error());
    host_read(run->host, weights + ELEMENTS, ELEMENTS);
    host_free(run->host);
}

static void bracket_and_step(struct host *host, const struct kind *kind) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_assert_msg(amp_scale_loss_begin(&host->optimizer, &host->loss, &scaled) == AMP_OK, "%s", amp_last_error());
    host_backward(host, scaled.loss, 1.0f);
    ck_assert_msg(amp_scale_loss_end(&scaled) == AMP_OK, "%s", amp_last_error());
    ck_assert_int_eq(scaled.action, AMP_STEP_ON_DEVICE);
    host_step(host, kind->stepping);
}

enum { REPLAYS = 1000, WARM_UP = 3 };

static const struct kind graphs[] = {
    { "O1 fused", AMP_O1, STEP_FUSED, false, false, 1, 0.0f },
    { "O2 fused", AMP_O2, STEP_FUSED, false, false, 1, 0.0f },
    { "O1 there", AMP_O1, STEP_THERE, false, false, 1, 0.0f },
    { "O2 there", AMP_O2, STEP_THERE, false, false, 1, 0.0f },
};

/* begin, backward, end and step once, and then as a graph: the same weights and the same record as without. */
START_TEST(test_graph) {
    const struct kind *kind = &graphs[_i];
    static float expected[2 * ELEMENTS], weights[2 * ELEMENTS];
    amp_record plain, replayed;
    struct run run = start(kind);
    for (int i = 0; i < WARM_UP + REPLAYS; i++) {
        host_clear(run.host);
        host_set_targets(run.host, target_of(i));
        bracket_and_step(run.host, kind);
    }
    stop(&run, expected, &plain);
    run = start(kind);
    for (int i = 0; i < WARM_UP + REPLAYS; i++) {
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
    ck_assert_uint_gt(plain.skipped, 100);
    ck_assert(plain.brackets == replayed.brackets && plain.skipped == replayed.skipped);
    ck_assert(plain.scale_after == replayed.scale_after && plain.unskipped == replayed.unskipped);
    ck_assert_pstr_eq(replayed.first_nonfinite, "c");
}
END_TEST

/* A graph cannot ask the host: what would is refused, and leaves nothing behind. */
START_TEST(test_graph_refused) {
    const struct kind kinds_refused[] = {
        { "O1 knows", AMP_O1, STEP_KNOWS, false, false, 1, 0.0f }, { "O1 mixed", AMP_O1, STEP_FUSED, true, false, 1, 0.0f },
    }, kind = kinds_refused[_i];
    static float weights[2 * ELEMENTS];
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_record record = AMP_RECORD_INIT;
    struct run run = start(&kind);
    iterate(run.host, &kind, 0);
    device_capture_begin();
    ck_assert_int_eq(amp_scale_loss_begin(&run.host->optimizer, &run.host->loss, &scaled), AMP_ERR_WRONG_STATE);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "while the stream is being captured"));
    device_capture_end();
    iterate(run.host, &kind, 1);
    stop(&run, weights, &record);
    ck_assert_uint_eq(record.brackets, 2);
}
END_TEST

/* ---- what it costs ---- */

START_TEST(test_waits) {
    static const struct {
        struct kind kind;
        int waits, launches;
    } rows[] = {
        /* backward 2; a check and the scaler; two of the step */
        { { "O1 fused", AMP_O1, STEP_FUSED, false, false, 1, 0.0f }, 0, 6 },
        { { "O2 fused", AMP_O2, STEP_FUSED, false, false, 1, 0.0f }, 0, 6 },
        { { "O1 there", AMP_O1, STEP_THERE, false, false, 1, 0.0f }, 0, 6 },
        /* the gradients are shown rounded once, and the masters */
        { { "O2 there", AMP_O2, STEP_THERE, false, false, 1, 0.0f }, 0, 8 },
        { { "O1 knows", AMP_O1, STEP_KNOWS, false, false, 1, 0.0f }, 1, 6 },
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
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        ck_assert_int_eq(amp_scale_loss_begin(&run.host->optimizer, &run.host->loss, &scaled), AMP_OK);
        host_backward(run.host, scaled.loss, 1.0f);
        ck_assert_int_eq(amp_scale_loss_end(&scaled), AMP_OK);
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
END_TEST

/* ---- clipping, masters, checkpoints ---- */

static void clipped(const struct kind *kind, bool on_cpu, float *weights, float *norms) {
    struct host *host = host_new(on_cpu, kind->mixed && !on_cpu, kind->fixed, kind->stepping);
    ck_assert_int_eq(amp_initialize(&host->model, &host->optimizer, kind->level), AMP_OK);
    for (int i = 0; i < 10; i++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        host_clear(host);
        host_set_targets(host, i == 4 ? INFINITY : 0.25f);
        ck_assert_int_eq(amp_scale_loss_begin(&host->optimizer, &host->loss, &scaled), AMP_OK);
        host_backward(host, scaled.loss, 1.0f);
        ck_assert_int_eq(amp_scale_loss_end(&scaled), AMP_OK);
        norms[i] = -1.0f;
        if (i % 3 == 0) ck_assert_msg(amp_clip_grad_norm(&host->optimizer, 1.5f, &norms[i]) == AMP_OK, "%s", amp_last_error());
        if (i % 3 == 1) ck_assert_int_eq(amp_clip_grad_norm(&host->optimizer, 1.5f, NULL), AMP_OK);
        if (i % 3 == 2) ck_assert_int_eq(amp_clip_grad_value(&host->optimizer, 0.01f), AMP_OK);
        host_step(host, kind->stepping);
    }
    host_read(host, weights, ELEMENTS);
    ck_assert_int_eq(amp_shutdown(host->model.amp), AMP_OK);
    host_free(host);
}

START_TEST(test_clipping) {
    static const struct kind clipping[] = {
        { "O1 fused", AMP_O1, STEP_FUSED, false, false, 1, 0.0f }, { "O2 fused", AMP_O2, STEP_FUSED, false, false, 1, 0.0f },
        { "O2 there", AMP_O2, STEP_THERE, false, false, 1, 0.0f }, { "O1 mixed", AMP_O1, STEP_FUSED, true, false, 1, 0.0f },
        { "O2 knows", AMP_O2, STEP_KNOWS, false, false, 1, 0.0f },
    };
    static float here[ELEMENTS], there[ELEMENTS];
    float norms[10], norms_there[10];
    clipped(&clipping[_i], true, here, norms);
    clipped(&clipping[_i], false, there, norms_there);
    for (int i = 0; i < 10; i++)
        ck_assert_msg(fabsf(norms[i] - norms_there[i]) <= 1e-6f * fabsf(norms[i]) || !isfinite(norms[i]), "norm %d: %g, not %g", i,
                      (double)norms_there[i], (double)norms[i]);
    for (size_t i = 0; i < host_elements(); i++) /* a norm may differ in its last bit, and weights of 16 bits by one of theirs */
        ck_assert_msg(fabsf(here[i] - there[i]) <= 0x1p-10f * fabsf(here[i]) + 1e-6f, "%s, element %zu: %a, not %a",
                      clipping[_i].name, i, (double)there[i], (double)here[i]);
}
END_TEST

/* Saved in the middle, loaded into another: both end alike, and the file is the CPU's. */
START_TEST(test_checkpoints) {
    static const struct kind saved[] = {
        { "O1 fused", AMP_O1, STEP_FUSED, false, false, 1, 0.0f }, { "O2 fused", AMP_O2, STEP_FUSED, false, false, 1, 0.0f },
        { "O3 fused", AMP_O3, STEP_FUSED, false, false, 1, 0.0f }, { "O2 there", AMP_O2, STEP_THERE, false, false, 1, 0.0f },
        { "O2 mixed", AMP_O2, STEP_FUSED, true, false, 1, 0.0f },
    };
    const struct kind *kind = &saved[_i];
    static float first[2 * ELEMENTS], second[2 * ELEMENTS];
    static char state[1 << 18], again[sizeof state];
    size_t size = 0, size_again = 0;
    amp_record of_first, of_second;
    struct run run = start(kind), other = start(kind);
    for (int i = 0; i < 9; i++) iterate(run.host, kind, i);
    host_clear(run.host);
    if (amp_state_save_memory(run.context, AMP_STATE_SAFETENSORS, state, sizeof state, &size) == AMP_ERR_UNSUPPORTED) return;
    ck_assert_msg(size > 0, "%s", amp_last_error());
    ck_assert_msg(amp_state_load_memory(other.context, state, size) == AMP_OK, "%s", amp_last_error());
    ck_assert_int_eq(amp_state_save_memory(other.context, AMP_STATE_SAFETENSORS, again, sizeof again, &size_again), AMP_OK);
    ck_assert_uint_eq(size, size_again);
    ck_assert(!memcmp(state, again, size));
    for (int i = 9; i < 20; i++) iterate(run.host, kind, i), iterate(other.host, kind, i);
    host_clear(run.host), host_clear(other.host);
    stop(&run, first, &of_first), stop(&other, second, &of_second);
    ck_assert(!memcmp(first, second, sizeof first));
    ck_assert(of_first.scale_after == of_second.scale_after && of_first.brackets == of_second.brackets);
    ck_assert_uint_eq(of_second.brackets, 20);
}
END_TEST

/* ---- faults: on the fake device alone ---- */

enum { OUT_OF_MEMORY = 2, LAUNCH_FAILURE = 719 };

static struct run try_start(struct host *host, amp_level level, amp_status *status) {
    struct run run = { host, NULL };
    amp_model *model = &host->model;
    amp_optimizer *optimizer = &host->optimizer;
    amp_config config = AMP_CONFIG_INIT;
    config.level = level;
    *status = amp_initialize_many(&model, 1, &optimizer, 1, &config, &run.context);
    return run;
}

/* Each call of CUDA's in amp_initialize fails once: an error in words, no parameter has changed, and nothing leaks. */
START_TEST(test_faults_of_initialize) {
    static float before[ELEMENTS], after[ELEMENTS];
    struct fake *fake = device.fake;
    int failures = 0;
    if (!fake) return;
    for (int at = 1; ; at++) {
        struct host *host = host_new(false, _i / 3, false, (enum stepping)(_i % 3));
        const int blocks = fake->blocks, streams = fake->streams;
        amp_status status;
        host_read(host, before, ELEMENTS);
        fake->calls = 0, fake->fail_at = at, fake->fail_with = at % 2 ? OUT_OF_MEMORY : LAUNCH_FAILURE;
        struct run run = try_start(host, AMP_O2, &status);
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
END_TEST

/* One iteration that may fail anywhere; what it returns is the first error. */
static amp_status fragile(struct host *host, enum stepping stepping) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    amp_status status = amp_scale_loss_begin(&host->optimizer, &host->loss, &scaled);
    if (status != AMP_OK) return status;
    const int at = device.fake->fail_at;
    if (device.fake->calls < at) device.fake->fail_at = 0;
    const int calls = device.fake->calls;
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

/* Each call of CUDA's in an iteration fails once. The error comes back, the bracket is closed, the context works on, no block
 * is lost, and the weights stay finite. */
START_TEST(test_faults_of_an_iteration) {
    static float weights[2 * ELEMENTS];
    static const struct kind fragile_kinds[] = {
        { "O1 fused", AMP_O1, STEP_FUSED, false, false, 1, 0.0f }, { "O2 fused", AMP_O2, STEP_FUSED, false, false, 1, 0.0f },
        { "O2 knows", AMP_O2, STEP_KNOWS, false, false, 1, 0.0f }, { "O2 fused, mixed", AMP_O2, STEP_FUSED, true, false, 1, 0.0f },
        { "O1 fixed", AMP_O1, STEP_FUSED, false, true, 1, 0.0f },
    };
    const struct kind *kind = &fragile_kinds[_i];
    struct fake *fake = device.fake;
    int failures = 0;
    if (!fake) return;
    for (int at = 1; ; at++) {
        struct host *host = host_new(false, kind->mixed, kind->fixed, kind->stepping);
        const int blocks = fake->blocks, streams = fake->streams;
        amp_record record;
        amp_status status;
        struct run run = try_start(host, kind->level, &status);
        ck_assert_int_eq(status, AMP_OK);
        if (at % 2) iterate(host, kind, 0); /* else the first one, which allocates */
        host_clear(host);
        host_set_targets(host, 0.25f);
        fake->calls = 0, fake->fail_at = at, fake->fail_with = at % 3 ? LAUNCH_FAILURE : OUT_OF_MEMORY;
        status = fragile(host, kind->stepping);
        const bool failed = fake->calls >= at;
        fake->fail_at = 0;
        failures += status != AMP_OK;
        if (status != AMP_OK) ck_assert_int_eq(status, at % 3 ? AMP_ERR_BACKEND : AMP_ERR_NO_MEMORY);
        for (int i = 1; i < 4; i++) iterate(host, kind, 0);
        host_clear(host);
        stop(&run, weights, &record);
        for (size_t i = 0; i < host_elements(); i++) ck_assert(isfinite(weights[i]));
        device.tools->flush();
        /* the host's lists came back too */
        ck_assert_int_le(fake->blocks, blocks);
        ck_assert_int_le(fake->streams, streams);
        if (!failed) break;
    }
    ck_assert_int_gt(failures, 5);
}
END_TEST

/* An error that the host's own launch left behind is said to be no one's in particular. */
START_TEST(test_error_of_the_host) {
    struct fake *fake = device.fake;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_status status;
    if (!fake) return;
    struct host *host = host_new(false, false, false, STEP_FUSED);
    struct run run = try_start(host, AMP_O1, &status);
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
END_TEST

Suite *suite_host(void) {
    Suite *suite = suite_create("hosts");
    TCase *tcase = tcase_create("trainings");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, device_lazily, device_at_once);
    tcase_add_loop_test(tcase, test_trainings, 0, sizeof kinds / sizeof *kinds);
    tcase_add_loop_test(tcase, test_graph, 0, sizeof graphs / sizeof *graphs);
    tcase_add_loop_test(tcase, test_graph_refused, 0, 2);
    tcase_add_loop_test(tcase, test_waits, 0, 5);
    tcase_add_loop_test(tcase, test_clipping, 0, 5);
    tcase_add_loop_test(tcase, test_checkpoints, 0, 5);
    tcase_add_loop_test(tcase, test_faults_of_initialize, 0, 6);
    tcase_add_loop_test(tcase, test_faults_of_an_iteration, 0, 5);
    tcase_add_test(tcase, test_error_of_the_host);
    suite_add_tcase(suite, tcase);
    return suite;
}
