/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nothing is lost where an allocation on the CPU or a call of CUDA's fails once: exact weights, weights that the host
 * has just written, gradients of earlier brackets. On the fake device alone.
 */
#include "host_run.h"

static int allocations, fail_allocation; /* libamp's own, by --wrap */

static bool is_refused(void) { return ++allocations == fail_allocation; }
static void refuse(int at) { allocations = 0, fail_allocation = at; }

WRAP(void *, calloc, size_t count, size_t size) { return is_refused() ? NULL : __real_calloc(count, size); }
WRAP(void *, realloc, void *block, size_t bytes) { return is_refused() ? NULL : __real_realloc(block, bytes); }

/* Emulation keeps the exact weights apart. Whichever allocation fails once, while they are set apart, lent to a step
 * that changes nothing, or put back, they come back to the last bit. */
TEST(test_memory_of_emulation) {
    static float before[ELEMENTS], after[ELEMENTS];
    int failures = 0;
    bool reached = true;
    for (int at = 1; reached; at++) {
        struct host *host = host_new(false, false, false, STEP_KNOWS);
        amp_step_info info = AMP_STEP_INFO_INIT;
        amp_status status;
        host->hooks.swap_data = NULL;
        host_read(host, before, ELEMENTS);
        refuse(at);
        struct run run = run_try(host, CONFIG(AMP_O2, .emulate = AMP_ON), &status);
        if (status == AMP_OK) status = amp_step_begin(&host->optimizer, &info);
        if (status == AMP_OK) status = amp_step_end(&host->optimizer);
        const amp_status ended = run.context ? amp_shutdown(run.context) : AMP_OK;
        reached = allocations >= at;
        refuse(0);
        failures += status != AMP_OK;
        if (status != AMP_OK) ck_fails(AMP_ERR_NO_MEMORY, status);
        ck_ok(ended);
        host_read(host, after, ELEMENTS);
        ck_assert_msg(!memcmp(before, after, host_elements() * sizeof *after), "allocation %d", at);
        host_free(host);
    }
    ck_assert_int_gt(failures, 20);
}

/* What fails next: an allocation of libamp's on the CPU, or a call of CUDA's. */
static void fail_next(bool memory, int at) {
    struct fake *fake = device.fake;
    if (memory) refuse(at);
    else fake->calls = 0, fake->fail_at = at, fake->fail_with = OUT_OF_MEMORY;
}
static bool failed_before(bool memory, int at) { return at && at <= (memory ? allocations : device.fake->calls); }

enum { WROTE_HALF = 0x3800 };

static void write_weights(struct host *host) {
    static uint16_t halves[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) halves[i] = WROTE_HALF;
    for (int i = 0; i < HOST_PARAMS; i++) {
        struct tensor *param = &host->params[i];
        ck_assert_int_eq(param->dtype, AMP_FLOAT16);
        memory_in(false, param->data, halves, (size_t)param->size * sizeof *halves);
        param->version++;
    }
}

static const struct kind written[] = { KIND(O2, STEP_FUSED), KIND(O2, STEP_KNOWS), KIND(O2, STEP_FUSED, .fixed = true),
                                       KIND(O2, STEP_THERE) };
enum { WRITTEN = sizeof written / sizeof *written };

/* The host writes its weights, and then something fails once, anywhere in an iteration: what it wrote is there at the
 * end. The learning rate is 0. */
TEST_TIMES(test_written_weights_stay, 2 * WRITTEN) {
    static float weights[ELEMENTS];
    const struct kind *kind = &written[_i / 2];
    const bool memory = _i % 2;
    int failures = 0;
    bool failed = true;
    for (int at = 1; failed; at++) {
        struct host *host = host_of(kind, false);
        amp_status status;
        host->rule.lr = 0.0;
        struct run run = run_with(host, CONFIG(kind->level));
        if (at % 2) run_iterate(host, kind, 0.25f);
        host_clear(host);
        host_set_targets(host, 0.25f);
        write_weights(host);
        fail_next(memory, at);
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        status = amp_scale_loss_begin(&host->optimizer, &host->loss, &scaled);
        failed = failed_before(memory, at);
        fail_next(memory, 0);
        failures += status != AMP_OK;
        if (status == AMP_OK) ck_ok(amp_scale_loss_cancel(&scaled));
        fail_next(memory, at);
        amp_step_info info = AMP_STEP_INFO_INIT;
        if (kind->stepping == STEP_FUSED) status = amp_fused_step(&host->optimizer, NULL);
        else status = amp_step_begin(&host->optimizer, &info);
        failed |= failed_before(memory, at);
        fail_next(memory, 0);
        failures += status != AMP_OK;
        if (status == AMP_OK && kind->stepping != STEP_FUSED) ck_ok(amp_step_end(&host->optimizer));
        run_iterate(host, kind, 0.25f);
        host_clear(host);
        ck_ok(amp_shutdown(run.context));
        host_read(host, weights, ELEMENTS);
        host_free(host);
        for (size_t i = 0; i < host_elements(); i++)
            ck_assert_msg(weights[i] == 0.5f, "%s, failure %d: weight %zu is %g", kind->name, at, i,
                          (double)weights[i]);
    }
    ck_assert_int_gt(failures, 0);
}

/* ---- split masters ---- */

/* Between a bracket and the end, without the work of the host's optimizer: how many calls failed. */
static int use_split(struct host *host, amp_context *context, enum stepping stepping) {
    amp_master masters[HOST_PARAMS] = { AMP_MASTER_INIT };
    amp_step_info info = AMP_STEP_INFO_INIT;
    size_t count;
    int failures = amp_master_params(&host->optimizer, masters, HOST_PARAMS, &count) != AMP_OK;
    amp_status status = stepping == STEP_FUSED ? amp_fused_step(&host->optimizer, NULL)
                                               : amp_step_begin(&host->optimizer, &info);
    if (stepping != STEP_FUSED && status == AMP_OK) status = amp_step_end(&host->optimizer);
    failures += status != AMP_OK;
    failures += amp_masters_write_back(context) != AMP_OK;
    failures += amp_master_params(&host->optimizer, masters, HOST_PARAMS, &count) != AMP_OK;
    return failures;
}

/* What shutdown left: FP32 to the last bit, or where it failed what was in 16 bits. */
static void ck_left(const struct host *host, const float *before, const float *after, int at) {
    size_t first = 0;
    for (int i = 0; i < HOST_PARAMS; first += (size_t)host->params[i++].size) {
        const uint64_t size = (uint64_t)host->params[i].size;
        static float wanted[ELEMENTS];
        static uint16_t low[ELEMENTS];
        const amp_span exact = { (void *)(uintptr_t)(before + first), size, AMP_FLOAT32, 0 },
                       wide = { wanted, size, AMP_FLOAT32, 0 }, rounded = { low, size, AMP_BFLOAT16, 0 };
        const bool is_low = host->params[i].dtype == AMP_BFLOAT16;
        if (is_low) ck_ok(amp_cast_list(&rounded, &exact, 1));
        ck_ok(amp_cast_list(&wide, is_low ? &rounded : &exact, 1));
        ck_assert_msg(!memcmp(wanted, after + first, size * sizeof *wanted), "failure %d: parameter %d", at, i);
    }
}

/* Wherever something fails once, no bit of a master is lost. The learning rate is 0. */
TEST_TIMES(test_split_masters_stay, 9) { /* after a step libamp asks for no memory */
    static float before[ELEMENTS], after[ELEMENTS];
    const struct kind kind = { .level = AMP_O5, .stepping = (enum stepping)(_i / 3), .split = true };
    const bool memory = _i % 3 == 0, first = _i % 3 < 2;
    int failures = 0;
    bool failed = true;
    for (int at = 1; failed; at++) {
        struct host *host = host_of(&kind, false);
        host->rule.lr = 0.0;
        host_read(host, before, ELEMENTS);
        struct run run = run_with(host, config_of(&kind, 0));
        if (!first) run_iterate(host, &kind, 0.25f);
        host_clear(host);
        host_set_targets(host, 0.25f);
        (void)host_bracket(host);
        fail_next(memory, at);
        failures += use_split(host, run.context, kind.stepping);
        failed = failed_before(memory, at);
        fail_next(memory, 0);
        if (at % 3 == 0) run_iterate(host, &kind, 0.25f); /* it works on */
        host_clear(host);
        ck_ok(amp_shutdown(run.context));
        host_read(host, after, ELEMENTS);
        ck_left(host, before, after, at);
        host_free(host);
    }
    ck_assert_int_gt(failures, 2);
}

/* A parameter that cannot be made whole keeps what it has. */
TEST_TIMES(test_split_masters_end, 2) {
    static float before[ELEMENTS], after[ELEMENTS];
    static const struct kind kind = KIND(O5, STEP_FUSED, .split = true);
    int failures = 0;
    bool failed = true;
    for (int at = 1; failed; at++) {
        struct host *host = host_of(&kind, false);
        host_read(host, before, ELEMENTS);
        struct run run = run_with(host, config_of(&kind, 0));
        fail_next(_i, at);
        failures += amp_shutdown(run.context) != AMP_OK;
        failed = failed_before(_i, at);
        fail_next(_i, 0);
        host_read(host, after, ELEMENTS);
        ck_left(host, before, after, at);
        host_free(host);
    }
    ck_assert_int_gt(failures, 0);
}

/* A gradient is there, and the next bracket's begin fails: the step is that of the gradient. */
TEST_TIMES(test_gradients_stay, 2 * WRITTEN) {
    static float expected[ELEMENTS], weights[ELEMENTS];
    const struct kind *kind = &written[_i / 2];
    const bool memory = _i % 2;
    int failures = 0;
    bool failed = true;
    for (int at = 0; failed || at < 2; at++) {
        struct run run = run_start(kind);
        struct host *host = run.host;
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        if (!kind->fixed) run_iterate(host, kind, 0.5f);
        else run_iterate(host, kind, INFINITY), host_clear(host); /* skipped */
        host_clear(host);
        host_set_targets(host, 0.25f);
        (void)host_bracket(host);
        fail_next(memory, at);
        const amp_status status = at ? amp_scale_loss_begin(&host->optimizer, &host->loss, &scaled) : AMP_ERR_BACKEND;
        failed = failed_before(memory, at);
        fail_next(memory, 0);
        failures += at && status != AMP_OK;
        if (status == AMP_OK) ck_ok(amp_scale_loss_cancel(&scaled));
        host_step(host, kind->stepping);
        host_clear(host);
        ck_ok(amp_shutdown(run.context));
        host_read(host, at ? weights : expected, ELEMENTS);
        host_free(host);
        for (size_t i = 0; at && i < host_elements(); i++)
            ck_assert_msg(weights[i] == expected[i], "%s, failure %d: weight %zu is %g, not %g", kind->name, at, i,
                          (double)weights[i], (double)expected[i]);
    }
    if (kind->stepping == STEP_FUSED) ck_assert_int_gt(failures, 0); /* of others begin may ask nothing */
}

TEST_FIXTURE(device_lazily, device_at_once)
