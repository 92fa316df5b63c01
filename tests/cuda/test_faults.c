/* SPDX-License-Identifier: Apache-2.0 */
/* What a call costs, what a captured one leaves alone, and what happens when CUDA fails: on the fake device alone. */
#include "device.h"

#include <stdlib.h>

enum { MANY = 1000, SIZE = 100, OUT_OF_MEMORY = 2, LAUNCH_FAILURE = 719 };

static amp_span dst[MANY], src[MANY];
static float *memory;

static amp_device_list *start(void) {
    amp_device_list *list = NULL;
    if (!memory) memory = device_alloc(2 * MANY * SIZE * sizeof *memory);
    for (size_t i = 0; i < MANY; i++) {
        dst[i] = (amp_span){ memory + 2 * i * SIZE, SIZE, AMP_FLOAT32, 0 };
        src[i] = (amp_span){ memory + (2 * i + 1) * SIZE, SIZE, AMP_FLOAT32, 0 };
    }
    for (size_t i = 0; i < 2 * MANY * SIZE; i++) memory[i] = (float)i;
    ck_ok(amp_device_list_open((amp_device){ 2, 0 }, &list));
    return list;
}

static struct fake *reset(void) {
    struct fake *fake = device.fake;
    *fake = (struct fake){ .devices = 2, .current = 1, .pools = 1, .blocks = fake->blocks, .streams = fake->streams };
    return fake;
}

static const amp_factor half = { NULL, 0.5f, AMP_FACTOR_AS_IT_IS };

static amp_status scale(amp_device_list *list) {
    return amp_device_scale(list, device.stream, dst, src, MANY, &half, NULL);
}

static void expect_scaled(void) {
    for (size_t i = 0; i < MANY; i++)
        for (size_t e = 0; e < SIZE; e++)
            CHECK_THAT(((float *)dst[i].data)[e] == 0.5f * ((const float *)src[i].data)[e], "tensor %zu element %zu", i,
                       e);
}

TEST(test_costs) {
    struct fake *fake = reset();
    const int blocks = fake->blocks, streams = fake->streams;
    amp_device_list *list = start();
    ck_ok(scale(list));
    expect_scaled();
    ck_assert_int_eq(fake->launches, 1);
    ck_assert_int_eq(fake->uploads, 1);
    const int held = fake->blocks;
    for (int i = 0; i < 10; i++) ck_ok(scale(list));
    ck_assert_int_eq(fake->launches, 11);
    ck_assert_int_eq(fake->uploads, 1); /* nothing changed */
    dst[MANY - 1].data = src[MANY - 1].data;
    ck_ok(scale(list));
    ck_assert_int_eq(fake->uploads, 2);
    ck_assert_int_eq(fake->blocks, held); /* in the memory that is there */
    for (int i = 0; i < 3; i++) ck_ok(amp_device_check(list, device.stream, src, MANY, NULL, NULL, memory, NULL, NULL));
    ck_assert_int_eq(fake->launches, 12 + 3 * 2);
    ck_assert_int_eq(fake->waits, 0);
    ck_assert_int_eq(fake->on_null_stream, 0);
    ck_assert_int_eq(fake->current, 1); /* the caller's device */
    fake->current = 0, fake->switches = 0; /* there already: a context that the host made on it stays current */
    ck_ok(scale(list));
    ck_assert_int_eq(fake->switches, 0);
    fake->current = 1;
    amp_device_list_close(list);
    ck_assert_int_eq(fake->switches, 1); /* there; the context that was current is set again */
    ck_assert_int_eq(fake->blocks, blocks);
    ck_assert_int_eq(fake->streams, streams);
    ck_assert_int_eq(fake->current, 1);
}

/* As amp_device.h counts them. */
TEST_TIMES(test_launches_of_steps, 9) {
    static const struct {
        int32_t kind;
        int given, launches; /* norms that the caller has */
    } rows[] = {
        { AMP_OPTIM_SGD, 0, 2 },      { AMP_OPTIM_ADAM, 0, 2 },     { AMP_OPTIM_ADAGRAD, 0, 2 },
        { AMP_OPTIM_LAMB, 0, 6 },     { AMP_OPTIM_LAMB, 1, 4 },     { AMP_OPTIM_NOVOGRAD, 0, 4 },
        { AMP_OPTIM_NOVOGRAD, 1, 2 }, { AMP_OPTIM_LARC, 0, 6 },     { AMP_OPTIM_LARC, 1, 4 },
    };
    struct fake *fake = reset();
    OWN_LIST *list = start();
    amp_optim rule = AMP_OPTIM_INIT;
    amp_optim_tensors t = AMP_OPTIM_TENSORS_INIT;
    uint64_t *steps = device_alloc(sizeof *steps);
    amp_span *const moments[] = { &src[1], &src[2], &src[3] };
    ck_ok(amp_optim_defaults(rows[_i].kind, &rule));
    if (rows[_i].kind == AMP_OPTIM_LAMB) rule.max_grad_norm = 1.0;
    if (rows[_i].kind == AMP_OPTIM_NOVOGRAD) src[2].size = 1;
    t.n = 1, t.grad = src, t.param = dst, t.steps = steps;
    for (int k = 0; k < 3; k++) t.moments[k] = moments[k];
    if (rows[_i].given) t.grad_norm = t.grad_norms = src[4].data;
    ck_ok(amp_device_optim(list, device.stream, &rule, &t));
    ck_assert_int_eq(fake->launches, rows[_i].launches);
}

/* A rank that works on the second device has a context there alone, whoever never asked for the first one. */
TEST_TIMES(test_stray_contexts, 2) {
    struct fake *fake = reset();
    amp_device_list *list = NULL;
    float *number = device_alloc(sizeof *number);
    const amp_span one = { number, 1, AMP_FLOAT32, 0 };
    fake->current = 0, fake->unbound = !_i;
    ck_ok(amp_device_list_open((amp_device){ 2, 1 }, &list));
    for (int i = 0; i < 3; i++) ck_ok(amp_device_scale(list, device.second_stream, &one, &one, 1, &half, NULL));
    amp_device_list_close(list);
    ck_assert_int_eq(fake->contexts[1], 1);
    ck_assert_int_eq(fake->contexts[0], 0);
    ck_assert_int_eq(fake->current, 0);
    ck_assert_int_eq(fake->unbound, !_i); /* a context of the host's own is current again, and not the primary one */
    ck_assert_int_eq(fake->on_wrong_device, 0);
    fake->unbound = 0;
}

/* A list is closed while its calls are still to run: they run before its memory is freed. */
TEST_TIMES(test_close_waits, 2) {
    struct fake *fake = reset();
    const int blocks = fake->blocks;
    float *norm = device_alloc(sizeof *norm);
    fake->pools = _i;
    amp_device_list *list = start();
    fake->lazy = 1;
    ck_ok(scale(list));
    ck_ok(amp_device_check(list, device.stream, dst, MANY, NULL, NULL, norm, NULL, NULL));
    ck_assert(*norm == 0.0f);
    amp_device_list_close(list);
    expect_scaled();
    ck_assert(*norm > 0.0f);
    ck_assert_int_eq(fake->strays, 0);
    ck_assert_int_eq(fake->blocks, blocks);
    fake->lazy = 0;
}

/* A captured call may be replayed at any time: its table and its scratch are never touched again. */
TEST_TIMES(test_capture, 2) {
    struct fake *fake = reset();
    const int blocks = fake->blocks;
    fake->pools = _i;
    amp_device_list *list = start();
    ck_ok(scale(list));
    const int before = fake->blocks, uploads = fake->uploads;
    fake->capturing = 1;
    ck_ok(scale(list));
    ck_assert_int_eq(fake->uploads, uploads);
    ck_assert_int_eq(fake->blocks, before);
    dst[0].data = src[0].data;
    ck_ok(scale(list));
    ck_assert_int_eq(fake->blocks, before + 1); /* a new table; the old one stays */
    ck_ok(amp_device_check(list, device.stream, src, MANY, NULL, NULL, memory, NULL, NULL));
    ck_assert_int_eq(fake->broke_capture, 0);
    fake->capturing = 0;
    const int captured = fake->blocks;
    ck_ok(scale(list)); /* another plan: not written over the captured one */
    ck_assert_int_eq(fake->blocks, captured + 1);
    dst[1].data = src[1].data;
    ck_ok(scale(list)); /* this one no graph knows */
    ck_assert_int_eq(fake->blocks, captured + 1);
    ck_assert_int_eq(fake->relaxed, 0);
    amp_device_list_close(list);
    ck_assert_int_eq(fake->blocks, blocks);
}

/* Each call of CUDA's fails once, in every way to be called: a status with words, nothing kept, and the next
 * try works. */
TEST_TIMES(test_every_failure, 4) {
    static const struct {
        int error;
        amp_status status;
    } errors[] = { { OUT_OF_MEMORY, AMP_ERR_NO_MEMORY }, { LAUNCH_FAILURE, AMP_ERR_BACKEND } };
    struct fake *fake = reset();
    const int blocks = fake->blocks, streams = fake->streams;
    const amp_statistics none = AMP_STATISTICS_INIT;
    amp_statistics *statistics = device_alloc(MANY * sizeof none);
    int failures = 0;
    fake->capturing = _i / 2;
    for (int at = 1;; at++) {
        float *norm = memory;
        amp_device_list *list = start();
        for (int i = 0; i < MANY; i++) statistics[i] = none;
        fake->calls = 0, fake->fail_at = at, fake->fail_with = errors[_i % 2].error;
        amp_status status = scale(list);
        if (status == AMP_OK)
            status = amp_device_check(list, device.stream, src, MANY, NULL, NULL, norm, NULL, NULL);
        if (status == AMP_OK) status = amp_device_statistics(list, device.stream, src, MANY, statistics);
        const bool reached = fake->calls >= at;
        fake->fail_at = 0;
        if (reached && status != AMP_OK) {
            ck_assert_int_eq(status, errors[_i % 2].status);
            ck_says("CUDA: ");
            ck_assert_int_eq(fake->last_error, 0);
            failures++;
        }
        ck_ok(scale(list));
        expect_scaled();
        ck_ok(amp_device_check(list, device.stream, src, MANY, NULL, NULL, norm, NULL, NULL));
        fake->capturing = 0;
        amp_device_list_close(list);
        fake->capturing = _i / 2;
        ck_assert_int_eq(fake->blocks, blocks);
        ck_assert_int_eq(fake->streams, streams);
        ck_assert_int_eq(fake->relaxed, 0);
        if (!reached) break;
    }
    ck_assert_int_gt(failures, 10);
}

/* Built for other GPUs, or with a toolkit that is newer than the driver: what to do is said. */
TEST_TIMES(test_no_code, 5) {
    static const struct {
        int error;
        const char *words;
    } errors[] = { { 209, "no code for this GPU" }, { 98, "no code for this GPU" }, { 222, "newer driver" },
                   { 221, "newer driver" }, { 223, "newer driver" } };
    struct fake *fake = reset();
    OWN_LIST *list = start();
    ck_ok(scale(list));
    fake->calls = 0, fake->fail_at = 2, fake->fail_with = errors[_i].error; /* cudaSetDevice */
    ck_refused(AMP_ERR_NO_DEVICE, errors[_i].words, scale(list));
    ck_says("gpu_archs");
    fake->fail_at = 0;
    ck_ok(scale(list));
}

TEST(test_open_fails) {
    struct fake *fake = reset();
    const int blocks = fake->blocks, streams = fake->streams;
    for (int at = 1, opened = 0; !opened; at++) {
        amp_device_list *list = NULL;
        fake->calls = 0, fake->fail_at = at, fake->fail_with = OUT_OF_MEMORY;
        const amp_status status = amp_device_list_open((amp_device){ 2, 0 }, &list);
        opened = fake->calls < at;
        fake->fail_at = 0;
        ck_assert_msg((status == AMP_OK) == (list != NULL), "call %d", at);
        amp_device_list_close(list);
        ck_assert_int_eq(fake->streams, streams);
        ck_assert_int_eq(fake->blocks, blocks);
        ck_assert_int_lt(at, 50);
    }
}
