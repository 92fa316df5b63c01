/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trainings on two ranks that decide on their devices (amp_host.reduce_on_device): an overflow, an error or a cancel on
 * one is every rank's; scales and parameters have the same bits; no host waits for a decision; graphs.
 */
#include "ranks.h"
#include "host_run.h"

#include "../kernels/support.h"

#include <math.h>
#include <string.h>

TEST_FIXTURE(ranks_begin, ranks_end)

enum { ITERATIONS = 24, ALONE = 2, TOGETHER = 3, WARM_UP = 3 };

static amp_nccl *nccl;
static int hook_fails, grad_fails, asked, nobody_else;
static amp_status (*own_grad)(void *self, void *tensor, void **grad);

static amp_status reduce_on_device(void *self, amp_reduction reduction, void *stream, float *values, size_t n) {
    (void)self;
    asked++;
    if (hook_fails) return AMP_ERR_HOST_FAILED;
    return amp_nccl_reduce(nccl, reduction, stream, values, n);
}
static amp_status grad(void *self, void *tensor, void **out) {
    return grad_fails ? AMP_ERR_HOST_FAILED : own_grad(self, tensor, out);
}
static int32_t has_ranks(void *self) {
    (void)self;
    return !nobody_else;
}

static const struct kind kinds[] = {
    KIND(O1, STEP_FUSED), KIND(O2, STEP_FUSED), KIND(O5, STEP_FUSED), KIND(O2, STEP_THERE),
    KIND(O2, STEP_KNOWS), KIND(O5, STEP_KNOWS), KIND(O1, STEP_THERE, .fixed = true, .more_brackets = 2),
};
enum { KINDS = sizeof kinds / sizeof *kinds, CAPTURED = 4 }; /* the first ones know nothing on the host */

static void hook(struct host *host) {
    hook_fails = grad_fails = asked = nobody_else = 0;
    own_grad = host->hooks.grad;
    host->hooks.grad = grad;
    host->hooks.reduce_on_device = reduce_on_device;
    host->hooks.has_ranks = has_ranks;
}

static struct run start(const struct kind *kind) {
    struct host *host = host_of(kind, false);
    nccl = ranks_open();
    hook(host);
    return run_with(host, CONFIG(kind->level));
}

static void stop(struct run *run) {
    run_end(run);
    amp_nccl_close(nccl);
}

static amp_record record_of(const struct run *run) {
    amp_record record = AMP_RECORD_INIT;
    ck_assert_int_eq(amp_get_record(run->context, 0, &record), AMP_OK);
    return record;
}

/* Parameters, and of the records what ranks have in common. */
static void compare(const struct run *run) {
    static float weights[ELEMENTS];
    const amp_record record = record_of(run);
    const double common[] = { (double)record.scale_before, (double)record.scale_after, (double)record.brackets,
                              (double)record.skipped, (double)record.skips_in_row, (double)record.action };
    memset(weights, 0, sizeof weights);
    host_read(run->host, weights, ELEMENTS);
    ranks_equal(weights, sizeof weights);
    ranks_equal(common, sizeof common);
}

/* Iteration 3 and every fifth: an overflow on rank 1 alone; every seventh: on both. */
static float target_of(int iteration) {
    return iteration % 7 == 6 || (iteration % 5 == 3 && ranks.rank == 1) ? INFINITY : 0.25f;
}
static bool overflows(int iteration) { return iteration % 7 == 6 || iteration % 5 == 3; }

TEST_TIMES(test_overflows, KINDS) {
    const struct kind *kind = &kinds[_i];
    const bool skips = kind->level != AMP_O5; /* a static scale of 1 */
    struct run run = start(kind);
    uint64_t skipped = 0;
    for (int i = 0; i < ITERATIONS; i++) {
        if (!skips && overflows(i)) continue;
        device.fake->waits = device.fake->event_waits = 0;
        host_clear(run.host);
        host_set_targets(run.host, target_of(i)); /* waits */
        device.fake->waits = device.fake->event_waits = asked = 0;
        run_again(run.host, kind);
        ck_assert_int_eq(asked, kind->more_brackets + 1);
        if (i >= WARM_UP && kind->stepping != STEP_KNOWS)
            ck_assert_int_eq(device.fake->waits + device.fake->event_waits, 0);
        skipped += overflows(i) ? (uint64_t)asked : 0;
        if (i < WARM_UP) skipped = record_of(&run).skipped; /* the first scale may be too large */
        compare(&run);
        ck_assert_uint_eq(record_of(&run).skipped, skipped);
    }
    if (skips) ck_assert_uint_gt(skipped, 0);
    stop(&run);
}

/* A bracket that does not end well on rank 1. */
enum trouble { CANCELS, BOTH_CANCEL, GRAD_FAILS, TROUBLES };

static void have_trouble(struct run *run, const struct kind *kind, enum trouble trouble) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    const bool here = ranks.rank == 1 || trouble == BOTH_CANCEL;
    host_clear(run->host);
    host_set_targets(run->host, 0.5f);
    ck_assert_msg(amp_scale_loss_begin(&run->host->optimizer, &run->host->loss, &scaled) == AMP_OK, "%s",
                  amp_last_error());
    host_backward(run->host, scaled.loss, 1.0f);
    if (!here || trouble == GRAD_FAILS) {
        grad_fails = here;
        const amp_status status = amp_scale_loss_end(&scaled);
        grad_fails = 0;
        ck_assert_int_eq(status, here ? AMP_ERR_HOST_FAILED : AMP_OK);
        if (here) ck_assert_ptr_nonnull(strstr(amp_last_error(), "hook grad"));
    } else {
        ck_assert_msg(amp_scale_loss_cancel(&scaled) == AMP_OK, "%s", amp_last_error());
    }
    float found_inf = 0.0f;
    if (!here) memory_out(false, &found_inf, scaled.found_inf, sizeof found_inf);
    ck_assert(here || found_inf != 0.0f);
    if (trouble != BOTH_CANCEL) host_step(run->host, kind->stepping); /* else there is nothing to step on */
}

TEST_TIMES(test_troubles, KINDS * TROUBLES) {
    const struct kind *kind = &kinds[_i / TROUBLES];
    const enum trouble trouble = (enum trouble)(_i % TROUBLES);
    static float before[ELEMENTS], after[ELEMENTS];
    struct run run = start(kind);
    for (int i = 0; i < ITERATIONS / 2; i++) {
        run_iterate(run.host, kind, 0.25f);
        if (i % 4 != 2) continue;
        const amp_record old = record_of(&run);
        host_read(run.host, before, ELEMENTS);
        const int64_t events = run.host->event_skips;
        have_trouble(&run, kind, trouble);
        if (trouble == BOTH_CANCEL && i == 2) have_trouble(&run, kind, CANCELS); /* the word of before is forgotten */
        const amp_record now = record_of(&run);
        host_read(run.host, after, ELEMENTS);
        ck_assert_uint_eq(now.brackets, old.brackets);
        ck_assert_uint_eq(now.skipped, old.skipped);
        ck_assert(now.scale_after == old.scale_after);
        ck_assert_mem_eq(before, after, host_elements() * sizeof *before);
        if (kind->stepping == STEP_KNOWS && ranks.rank == 0 && trouble != BOTH_CANCEL)
            ck_assert_int_eq(run.host->event_skips, events + 1);
        compare(&run);
        run_iterate(run.host, kind, 0.75f); /* is stepped on */
        host_read(run.host, after, ELEMENTS);
        ck_assert(memcmp(before, after, host_elements() * sizeof *before) != 0);
    }
    stop(&run);
}

/* A bracket that failed with its check put off is told at the end of the one that decides. */
TEST_TIMES(test_late_trouble, 2) {
    const struct kind *kind = &kinds[_i ? 4 : 1];
    static float before[ELEMENTS], after[ELEMENTS];
    struct run run = start(kind);
    amp_optimizer *optimizer = &run.host->optimizer;
    run_iterate(run.host, kind, 0.25f);
    host_read(run.host, before, ELEMENTS);
    for (int k = 0; k < 2; k++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        host_clear(run.host);
        ck_assert_int_eq(amp_scale_loss_begin_many(run.context, &optimizer, 1, 0, k ? 0 : AMP_DELAY_OVERFLOW_CHECK,
                                                   &run.host->loss, &scaled), AMP_OK);
        host_backward(run.host, scaled.loss, 1.0f);
        grad_fails = !k && ranks.rank == 1;
        const amp_status status = amp_scale_loss_end(&scaled);
        ck_assert_int_eq(status, grad_fails ? AMP_ERR_HOST_FAILED : AMP_OK);
        grad_fails = 0;
    }
    host_step(run.host, kind->stepping);
    host_read(run.host, after, ELEMENTS);
    ck_assert_mem_eq(before, after, host_elements() * sizeof *before);
    compare(&run);
    run_iterate(run.host, kind, 0.25f);
    host_read(run.host, after, ELEMENTS);
    ck_assert(memcmp(before, after, host_elements() * sizeof *before) != 0);
    compare(&run);
    stop(&run);
}

/* The hook fails on both: each end says so, and skips. */
TEST_TIMES(test_failing_hook, 2) {
    const struct kind *kind = &kinds[1];
    static float before[ELEMENTS], after[ELEMENTS];
    struct run run = start(kind);
    run_iterate(run.host, kind, 0.25f);
    host_read(run.host, before, ELEMENTS);
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_assert_int_eq(amp_scale_loss_begin(&run.host->optimizer, &run.host->loss, &scaled), AMP_OK);
    host_backward(run.host, scaled.loss, 1.0f);
    ck_assert_int_eq(amp_nccl_open(NULL, NULL), AMP_ERR_INVALID_ARGUMENT); /* an error of before is not its own */
    hook_fails = _i == 0;
    ranks.nccl->calls = 0, ranks.nccl->fail_at = _i ? 1 : 0, ranks.nccl->fail_with = 3;
    const amp_status status = amp_scale_loss_end(&scaled);
    ck_assert_int_eq(status, _i ? AMP_ERR_BACKEND : AMP_ERR_HOST_FAILED);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "hook reduce_on_device"));
    ck_assert_ptr_null(strstr(amp_last_error(), "comm is NULL"));
    if (_i) ck_assert_ptr_nonnull(strstr(amp_last_error(), "ncclGroupStart: an error of the fake"));
    hook_fails = 0, ranks.nccl->fail_at = 0;
    host_step(run.host, kind->stepping);
    host_read(run.host, after, ELEMENTS);
    ck_assert_mem_eq(before, after, host_elements() * sizeof *before);
    run_iterate(run.host, kind, 0.25f);
    compare(&run);
    stop(&run);
}

/* A rank that has no others for a while asks nobody. */
TEST(test_nobody_else) {
    struct run run = start(&kinds[0]);
    nobody_else = 1;
    for (int i = 0; i < 4; i++) run_iterate(run.host, &kinds[0], target_of(i));
    ck_assert_int_eq(asked, 0);
    ck_assert_uint_eq(record_of(&run).skipped, (uint64_t)ranks.rank);
    stop(&run);
}

/* Where nothing is scaled there is nothing to decide. */
TEST(test_nothing_to_decide) {
    static const struct kind kind = KIND(O4, STEP_FUSED);
    struct run run = start(&kind);
    for (int i = 0; i < 2; i++) run_iterate(run.host, &kind, 0.25f);
    ck_assert_int_eq(asked, 0);
    compare(&run);
    stop(&run);
}

/* An iteration as a graph: each replay decides with the other rank. */
TEST_TIMES(test_capture, CAPTURED) {
    const struct kind *kind = &kinds[_i];
    const bool skips = kind->level != AMP_O5;
    struct run run = start(kind);
    uint64_t brackets = 0, skipped = 0;
    for (int i = 0; i < ITERATIONS; i++) {
        if (!skips && overflows(i)) continue;
        if (i <= WARM_UP) {
            if (i < WARM_UP) host_clear(run.host);
            host_set_targets(run.host, 0.25f);
        } else {
            host_set_targets(run.host, target_of(i));
        }
        if (i == WARM_UP + 1) device_capture_begin();
        if (i <= WARM_UP + 1) {
            host_clear(run.host);
            run_again(run.host, kind);
        }
        if (i == WARM_UP + 1) device_capture_end();
        if (i > WARM_UP) device_replay();
        brackets++;
        skipped += i > WARM_UP && overflows(i);
        if (i <= WARM_UP) skipped = record_of(&run).skipped;
        compare(&run);
        ck_assert_uint_eq(record_of(&run).brackets, brackets);
        ck_assert_uint_eq(record_of(&run).skipped, skipped);
    }
    ck_assert_int_eq(device.fake->broke_capture, 0);
    stop(&run);
}

/* Until a machine with several GPUs has run it. */
TEST(test_said_to_be_experimental) {
    struct run run = start(&kinds[0]);
    char said[4096];
    size_t length;
    ck_ok(amp_explain(run.context, NULL, said, sizeof said, &length));
    ck_assert_ptr_nonnull(strstr(said, "experimental: ranks that decide on their GPUs"));
    stop(&run);
}

/* What the devices cannot decide needs the hook reduce. */
TEST_TIMES(test_needs_reduce, 2) {
    struct host *host = host_new(false, _i == 0, false, STEP_FUSED);
    amp_status status;
    hook(host);
    if (_i) host->optimizer.flags |= AMP_OPTIMIZER_SHARDED;
    const struct run run = run_try(host, CONFIG(AMP_O2), &status);
    ck_assert_int_eq(status, AMP_ERR_MISSING_HOOK);
    ck_assert_ptr_null(run.context);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), _i ? "AMP_OPTIMIZER_SHARDED" : "loss scalers live on the host"));
    host_free(host);
}
