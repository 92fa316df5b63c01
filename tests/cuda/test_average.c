/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients averaged over two ranks: the same bits on both, and those of the formula; whatever the types, the sizes,
 * the buckets and the order; with the stream beside the host's as early and as late as its events let it be.
 */
#include "ranks.h"

#include "../kernels/support.h"

#include <stdlib.h>
#include <string.h>

TEST_FIXTURE(ranks_begin, ranks_end)

enum { N = 9, LONGEST = 5000, ELEMENTS = 16384, WIDEST = 8 };

static const struct {
    uint64_t size;
    amp_dtype dtype;
} list[N] = {
    { 1, AMP_FLOAT16 },   { 1000, AMP_FLOAT32 }, { 7, AMP_BFLOAT16 },     { LONGEST, AMP_FLOAT16 }, { 33, AMP_FLOAT64 },
    { 0, AMP_FLOAT32 },   { 515, AMP_BFLOAT16 }, { 4099, AMP_FLOAT16 },   { 3, AMP_FLOAT32 },
};

static const amp_nccl_options kinds[] = {
    { sizeof(amp_nccl_options), AMP_DEFAULT, AMP_DEFAULT, 0, 0, 0.0 },
    { sizeof(amp_nccl_options), AMP_DEFAULT, AMP_DEFAULT, 0, 1, 0.0 },
    { sizeof(amp_nccl_options), AMP_DEFAULT, AMP_OFF, 0, 2100, 0.0 },
    { sizeof(amp_nccl_options), AMP_DEFAULT, AMP_ON, 0, 2100, 3.0 },
    { sizeof(amp_nccl_options), AMP_OFF, AMP_OFF, 0, 10000, 2.0 },
    { sizeof(amp_nccl_options), AMP_ON, AMP_DEFAULT, 0, 0, 0.0 },
    { sizeof(amp_nccl_options), AMP_ON, AMP_ON, 0, 3000, 7.0 },
    { sizeof(amp_nccl_options), AMP_ON, AMP_OFF, 0, 17, 0.25 },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- a host: its gradients, what backward makes of them, and a copy of what came of it ---- */

struct rig {
    amp_nccl *nccl;
    amp_nccl_average *average;
    amp_span grads[N], made[N], copies[N];
    amp_device_list *backward[N], *copy;
};

static size_t width(amp_dtype dtype) { return dtype == AMP_FLOAT64 ? 8 : dtype == AMP_FLOAT32 ? 4 : 2; }

/* A number of a rank's; fp16 overflows in some sums, and is subnormal in others. */
static float value(int rank, int pass, size_t tensor, size_t e) {
    const size_t h = (e * 2654435761u + tensor * 977u + (size_t)pass * 131u + (size_t)rank * 7919u) % 4096u;
    const float scale = e % 5 == 0 ? 0x1p-14f : e % 7 == 0 ? 16.0f : 0.01f;
    return ((float)h - 2048.0f) * scale;
}

static void make(int rank, int pass, amp_span *spans) {
    static float values[LONGEST];
    for (size_t i = 0; i < N; i++) {
        for (size_t e = 0; e < list[i].size; e++) values[e] = value(rank, pass, i, e);
        const amp_span from = { values, list[i].size, AMP_FLOAT32, 0 };
        ck_assert_int_eq(amp_cast_list(&spans[i], &from, 1), AMP_OK);
    }
}

static void allocate(amp_span *spans, void *(*alloc)(size_t bytes)) {
    for (size_t i = 0; i < N; i++)
        spans[i] = (amp_span){ alloc((size_t)list[i].size * width(list[i].dtype) + 1), list[i].size, list[i].dtype, 0 };
}

static void start(struct rig *rig, const amp_nccl_options *options) {
    *rig = (struct rig){ .nccl = ranks_open() };
    allocate(rig->grads, device_alloc);
    allocate(rig->made, device_alloc);
    allocate(rig->copies, device_alloc);
    for (size_t i = 0; i < N; i++)
        ck_assert_int_eq(amp_device_list_open((amp_device){ 2, 0 }, &rig->backward[i]), AMP_OK);
    ck_assert_int_eq(amp_device_list_open((amp_device){ 2, 0 }, &rig->copy), AMP_OK);
    amp_span shapes[N];
    for (size_t i = 0; i < N; i++) shapes[i] = (amp_span){ NULL, list[i].size, list[i].dtype, 0 };
    ck_assert_msg(amp_nccl_average_open(rig->nccl, shapes, N, options, &rig->average) == AMP_OK, "%s",
                  amp_last_error());
}

static void stop(struct rig *rig) {
    amp_nccl_average_close(rig->average);
    for (size_t i = 0; i < N; i++) amp_device_list_close(rig->backward[i]);
    amp_device_list_close(rig->copy);
    amp_nccl_close(rig->nccl);
    ck_assert_int_eq(device.fake->streams, 0);
    device.tools->flush();
    ck_assert_int_eq(device.fake->blocks, 0);
}

static void backward(struct rig *rig, size_t i) {
    ck_assert_int_eq(amp_device_cast(rig->backward[i], device.stream, &rig->grads[i], &rig->made[i], 1), AMP_OK);
}

static void copy(struct rig *rig) {
    ck_assert_int_eq(amp_device_cast(rig->copy, device.stream, rig->copies, rig->grads, N), AMP_OK);
}

/* Gradient i of the order `how`: as listed, the other way round, or from the middle. */
static size_t nth(int how, size_t i) { return how == 0 ? i : how == 1 ? N - 1 - i : (i * 4 + 2) % N; }

static void pass(struct rig *rig, int how) {
    ck_assert_msg(amp_nccl_average_begin(rig->average, device.stream) == AMP_OK, "%s", amp_last_error());
    for (size_t i = 0; i < N; i++) {
        const size_t index = nth(how, i);
        backward(rig, index);
        ck_assert_msg(amp_nccl_average_ready(rig->average, index, rig->grads[index].data) == AMP_OK, "%s",
                      amp_last_error());
    }
    ck_assert_msg(amp_nccl_average_finish(rig->average) == AMP_OK, "%s", amp_last_error());
    copy(rig);
}

/* ---- what it should be ---- */

static void *keep(size_t bytes) {
    void *memory = calloc(1, bytes);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

/* Apex: allreduce_bucket of apex/parallel/distributed.py. */
static void average(const amp_nccl_options *options, int number, const bool *without, amp_span *out) {
    amp_span own[2][N];
    static double words[3][LONGEST];
    const double predivide = options->predivide == 0.0 ? 1.0 : options->predivide;
    for (int rank = 0; rank < 2; rank++) {
        allocate(own[rank], keep);
        make(rank, number, own[rank]);
    }
    for (size_t i = 0; i < N; i++) {
        const amp_dtype dtype =
            options->fp32 == AMP_ON && list[i].dtype != AMP_FLOAT64 ? AMP_FLOAT32 : list[i].dtype;
        amp_span parts[3];
        for (int k = 0; k < 3; k++) parts[k] = (amp_span){ words[k], list[i].size, dtype, 0 };
        for (int rank = 0; rank < 2; rank++)
            ck_assert_int_eq(amp_scale_list(&parts[rank], &own[rank][i], 1,
                                            without && rank == 1 && without[i] ? 0.0f : (float)(1.0 / predivide), NULL),
                             AMP_OK);
        ck_assert_int_eq(amp_axpby_list(&parts[2], 1.0f, &parts[0], 1.0f, &parts[1], 1, NULL), AMP_OK);
        ck_assert_int_eq(amp_scale_list(&out[i], &parts[2], 1,
                                        options->average == AMP_OFF ? 1.0f : (float)(predivide / 2.0), NULL), AMP_OK);
    }
    for (int rank = 0; rank < 2; rank++)
        for (size_t i = 0; i < N; i++) free(own[rank][i].data);
}

static void check(struct rig *rig, const amp_nccl_options *options, int number, const bool *without) {
    amp_span expected[N];
    allocate(expected, keep);
    average(options, number, without, expected);
    for (size_t i = 0; i < N; i++) {
        const size_t bytes = (size_t)list[i].size * width(list[i].dtype);
        ck_assert_msg(!memcmp(rig->copies[i].data, expected[i].data, bytes), "gradient %zu, pass %d, rank %d", i,
                      number, ranks.rank);
        if (!without) ranks_equal(rig->copies[i].data, bytes);
        free(expected[i].data);
    }
}

/* ---- tests ---- */

enum { ORDERS = 3, PASSES = 3 };

/* The fake's order of streams, and the host's of gradients. */
TEST_TIMES(test_averages, KINDS * ORDERS) {
    const amp_nccl_options *options = &kinds[_i / ORDERS];
    struct rig rig;
    start(&rig, _i / ORDERS ? options : NULL);
    device.fake->order = _i % ORDERS;
    for (int number = 0; number < PASSES; number++) {
        make(ranks.rank, number, rig.made);
        device.fake->waits = device.fake->event_waits = 0;
        pass(&rig, number);
        ck_assert_int_eq(device.fake->waits + device.fake->event_waits, 0);
        device.tools->flush();
        check(&rig, options, number, NULL);
    }
    stop(&rig);
}

/* Buckets are as large as was asked for, and go while backward goes on. */
TEST(test_buckets) {
    struct rig rig;
    start(&rig, &(amp_nccl_options){ sizeof(amp_nccl_options), AMP_DEFAULT, AMP_DEFAULT, 0, 4000, 0.0 });
    static const int groups[N] = { 0, 1, 1, 2, 2, 2, 2, 3, 3 }; /* after each; the last is sent when it is there */
    make(ranks.rank, 0, rig.made);
    ranks.nccl->groups = ranks.nccl->sent = 0;
    ck_assert_int_eq(amp_nccl_average_begin(rig.average, device.stream), AMP_OK);
    for (size_t i = 0; i < N; i++) {
        backward(&rig, i);
        ck_assert_int_eq(amp_nccl_average_ready(rig.average, i, rig.grads[i].data), AMP_OK);
        ck_assert_int_eq(ranks.nccl->groups, groups[i] + (i == N - 1));
    }
    ck_assert_int_eq(ranks.nccl->sent, 2 + 2 + 3 + 1); /* a section for each type */
    ck_assert_int_eq(amp_nccl_average_finish(rig.average), AMP_OK);
    ck_assert_int_eq(ranks.nccl->groups, 4);
    stop(&rig);
}

/* Nothing is allocated or waited for, and each replay averages what it finds. */
TEST_TIMES(test_capture, ORDERS * 2) {
    const amp_nccl_options *options = &kinds[_i / ORDERS ? 6 : 2];
    struct rig rig;
    start(&rig, options);
    device.fake->order = _i % ORDERS;
    pass(&rig, 0);
    device.tools->flush();
    for (int again = 0; again < 2; again++) {
        const int blocks = device.fake->blocks;
        device_capture_begin();
        device.fake->waits = device.fake->event_waits = 0;
        pass(&rig, again);
        ck_assert_int_eq(device.fake->waits + device.fake->event_waits, 0);
        ck_assert_int_eq(device.fake->blocks, blocks);
        device_capture_end();
        for (int number = 0; number < PASSES; number++) {
            make(ranks.rank, number, rig.made);
            device_replay();
            check(&rig, options, number, NULL);
        }
    }
    ck_assert_int_eq(device.fake->broke_capture, 0);
    stop(&rig);
}

/* What one rank does not announce is zeros there, in a bucket that is sent early too. */
TEST_TIMES(test_not_announced, ORDERS) {
    static const bool without[N] = { false, true, false, false, true, false, false, false, true };
    struct rig rig;
    start(&rig, &kinds[3]);
    device.fake->order = _i;
    for (int number = 0; number < PASSES; number++) {
        make(ranks.rank, number, rig.made);
        ck_assert_int_eq(amp_nccl_average_begin(rig.average, device.stream), AMP_OK);
        for (size_t i = 0; i < N; i++) {
            if (ranks.rank == 1 && without[i] && number) continue;
            backward(&rig, i);
            ck_assert_int_eq(amp_nccl_average_ready(rig.average, i, rig.grads[i].data), AMP_OK);
        }
        const amp_status status = amp_nccl_average_finish(rig.average);
        ck_assert_int_eq(status, ranks.rank && number ? AMP_ERR_WRONG_STATE : AMP_OK);
        if (status) ck_assert_ptr_nonnull(strstr(amp_last_error(), "gradient 1 was not announced"));
        copy(&rig);
        device.tools->flush();
        if (ranks.rank == 0 || !number) check(&rig, &kinds[3], number, number ? without : (const bool[N]){ false });
    }
    stop(&rig);
}

static void says(amp_status status, amp_status expected, const char *words) {
    ck_assert_msg(status == expected && strstr(amp_last_error(), words), "%d: %s", (int)status, amp_last_error());
}

/* What is not equal on the ranks is told on both, before anything else. */
TEST(test_lists_differ) {
    amp_nccl *nccl = ranks_open();
    amp_nccl_average *made = NULL;
    for (int what = 0; what < 6; what++) {
        amp_span grads[2] = { { NULL, 10, AMP_FLOAT16, 0 }, { NULL, 20, AMP_FLOAT32, 0 } };
        amp_nccl_options options = AMP_NCCL_OPTIONS_INIT;
        const bool other = ranks.rank == 1;
        if (what == 0 && other) grads[0].size = 11;
        if (what == 1 && other) grads[1].dtype = AMP_BFLOAT16;
        if (what == 2 && other) options.fp32 = AMP_ON;
        if (what == 3 && other) options.predivide = 2.0;
        if (what == 4 && other) options.bucket_bytes = 100;
        if (what == 5 && other) options.average = AMP_OFF;
        says(amp_nccl_average_open(nccl, grads, 2, &options, &made), AMP_ERR_CONFLICT, "the ranks do not average");
        ck_assert_ptr_null(made);
    }
    ck_assert_int_eq(amp_nccl_average_open(nccl, NULL, 0, NULL, &made), AMP_OK);
    ck_assert_int_eq(amp_nccl_average_begin(made, device.stream), AMP_OK);
    ck_assert_int_eq(amp_nccl_average_finish(made), AMP_OK);
    amp_nccl_average_close(made);
    amp_nccl_average_close(NULL);
    amp_nccl_close(nccl);
    ck_assert_int_eq(device.fake->blocks, 0);
}

TEST(test_arguments) {
    struct rig rig;
    amp_nccl_average *made = NULL;
    amp_nccl_options options = AMP_NCCL_OPTIONS_INIT;
    amp_span bad = { NULL, 1, AMP_DTYPE_OTHER, 0 };
    start(&rig, NULL);
    says(amp_nccl_average_open(NULL, &bad, 1, NULL, &made), AMP_ERR_INVALID_ARGUMENT, "nccl is NULL");
    says(amp_nccl_average_open(rig.nccl, NULL, 1, NULL, &made), AMP_ERR_INVALID_ARGUMENT, "grads is NULL");
    says(amp_nccl_average_open(rig.nccl, &bad, 1, NULL, NULL), AMP_ERR_INVALID_ARGUMENT, "average is NULL");
    says(amp_nccl_average_open(rig.nccl, &bad, 1, NULL, &made), AMP_ERR_INVALID_ARGUMENT, "gradient 0 has no floating");
    bad = (amp_span){ NULL, UINT64_MAX, AMP_FLOAT32, 0 };
    says(amp_nccl_average_open(rig.nccl, &bad, 1, NULL, &made), AMP_ERR_INVALID_ARGUMENT, "gradient 0 is too large");
    options.fp32 = 3;
    says(amp_nccl_average_open(rig.nccl, NULL, 0, &options, &made), AMP_ERR_INVALID_ARGUMENT, "fp32 is 3");
    options.fp32 = AMP_ON, options.average = -1;
    says(amp_nccl_average_open(rig.nccl, NULL, 0, &options, &made), AMP_ERR_INVALID_ARGUMENT, "average is -1");
    options.average = AMP_ON, options.predivide = -2.0;
    says(amp_nccl_average_open(rig.nccl, NULL, 0, &options, &made), AMP_ERR_INVALID_ARGUMENT, "predivide is -2");
    options.predivide = 1e-60;
    says(amp_nccl_average_open(rig.nccl, NULL, 0, &options, &made), AMP_ERR_INVALID_ARGUMENT, "predivide is 1e-60");
    says(amp_nccl_average_begin(NULL, device.stream), AMP_ERR_INVALID_ARGUMENT, "average is NULL");
    says(amp_nccl_average_begin(rig.average, NULL), AMP_ERR_INVALID_ARGUMENT, "stream is NULL");
    says(amp_nccl_average_ready(NULL, 0, &rig), AMP_ERR_INVALID_ARGUMENT, "average is NULL");
    says(amp_nccl_average_ready(rig.average, 0, &rig), AMP_ERR_WRONG_STATE, "amp_nccl_average_begin before backward");
    says(amp_nccl_average_finish(NULL), AMP_ERR_INVALID_ARGUMENT, "average is NULL");
    says(amp_nccl_average_finish(rig.average), AMP_ERR_WRONG_STATE, "no pass was begun");
    ck_assert_int_eq(amp_nccl_average_begin(rig.average, device.stream), AMP_OK);
    says(amp_nccl_average_begin(rig.average, device.stream), AMP_ERR_WRONG_STATE, "the pass before is not over");
    says(amp_nccl_average_ready(rig.average, N, &rig), AMP_ERR_INVALID_ARGUMENT, "there is no gradient 9");
    says(amp_nccl_average_ready(rig.average, 3, NULL), AMP_ERR_INVALID_ARGUMENT, "data of gradient 3 is NULL");
    ck_assert_int_eq(amp_nccl_average_ready(rig.average, 5, NULL), AMP_OK); /* of no elements */
    says(amp_nccl_average_ready(rig.average, 5, NULL), AMP_ERR_WRONG_STATE, "gradient 5 was announced before");
    ck_assert_int_eq(amp_nccl_average_finish(rig.average), AMP_ERR_WRONG_STATE);
    ranks.nccl->async_error = 6;
    says(amp_nccl_average_begin(rig.average, device.stream), AMP_ERR_BACKEND, "in an earlier call");
    ranks.nccl->async_error = 0;
    stop(&rig);
}

/* One call fails, NCCL's or CUDA's, on both ranks; the pass ends all the same, and the next one is sound. */
TEST_TIMES(test_failing_pass, 2) {
    int *const calls = _i ? &device.fake->calls : &ranks.nccl->calls;
    int *const fail_at = _i ? &device.fake->fail_at : &ranks.nccl->fail_at;
    struct rig rig;
    start(&rig, &kinds[3]);
    ranks.nccl->fail_with = 3, device.fake->fail_with = 700;
    int failures = 0, at = 0;
    for (bool reached = true; reached;) {
        amp_status first = AMP_OK;
        bool begun = false;
        for (size_t i = 0; i < N; i++) backward(&rig, i);
        *calls = 0, *fail_at = ++at;
        first = amp_nccl_average_begin(rig.average, device.stream);
        begun = first == AMP_OK;
        for (size_t i = 0; i < N && begun; i++) {
            const amp_status status = amp_nccl_average_ready(rig.average, i, rig.grads[i].data);
            if (first == AMP_OK) first = status;
        }
        if (begun) {
            const amp_status status = amp_nccl_average_finish(rig.average);
            if (first != AMP_OK) ck_assert_int_eq(status, first); /* and once more here */
            first = status;
        }
        reached = *calls >= at;
        *fail_at = 0;
        failures += first != AMP_OK;
        if (!_i && reached) says(first, AMP_ERR_BACKEND, "an error of the fake NCCL");
        if (!reached) ck_assert_int_eq(first, AMP_OK);
        device.tools->flush();
    }
    ck_assert_int_ge(failures, 10);
    make(ranks.rank, 1, rig.made);
    pass(&rig, 1);
    device.tools->flush();
    check(&rig, &kinds[3], 1, NULL);
    stop(&rig);
}

/* The first error of several is the one that all of the pass tells. */
TEST(test_two_errors) {
    struct rig rig;
    start(&rig, &kinds[1]);
    device.fake->fail_with = 2, ranks.nccl->fail_with = 3;
    ck_assert_int_eq(amp_nccl_average_begin(rig.average, device.stream), AMP_OK);
    for (size_t i = 0; i < 3; i++) {
        backward(&rig, i);
        ranks.nccl->fail_at = i == 0 ? ranks.nccl->calls + 1 : 0;
        device.fake->fail_at = i == 1 ? device.fake->calls + 2 : 0; /* of the device; of the event */
        says(amp_nccl_average_ready(rig.average, i, rig.grads[i].data), AMP_ERR_BACKEND, "ncclGroupStart");
    }
    says(amp_nccl_average_finish(rig.average), AMP_ERR_BACKEND, "ncclGroupStart");
    device.fake->fail_at = 0;
    stop(&rig);
}

/* A pass of zeros alone is a part of the graph as well. */
TEST(test_nothing_announced_in_capture) {
    struct rig rig;
    start(&rig, NULL);
    device_capture_begin();
    ck_assert_int_eq(amp_nccl_average_begin(rig.average, device.stream), AMP_OK);
    ck_assert_int_eq(amp_nccl_average_finish(rig.average), AMP_ERR_WRONG_STATE);
    device_capture_end();
    device_replay();
    ck_assert_int_eq(device.fake->broke_capture, 0);
    stop(&rig);
}

/* Whatever fails in opening, nothing is left behind. */
TEST_TIMES(test_failing_average_open, 3) {
    int *const calls[3] = { &ranks.nccl->calls, &device.fake->calls, &device.fake->allocations };
    int *const fail_at[3] = { &ranks.nccl->fail_at, &device.fake->fail_at, &device.fake->fail_allocation };
    amp_span shapes[N];
    for (size_t i = 0; i < N; i++) shapes[i] = (amp_span){ NULL, list[i].size, list[i].dtype, 0 };
    ranks.nccl->fail_with = 3, device.fake->fail_with = 700;
    int at = 0, failures = 0;
    for (bool reached = true; reached;) {
        amp_nccl *nccl = ranks_open();
        amp_nccl_average *made = NULL;
        *calls[_i] = 0, *fail_at[_i] = ++at;
        const amp_status status = amp_nccl_average_open(nccl, shapes, N, &kinds[3], &made);
        reached = *calls[_i] >= at;
        *fail_at[_i] = 0;
        failures += status != AMP_OK;
        if (status != AMP_OK) ck_assert_ptr_null(made);
        if (status != AMP_OK) ck_assert_ptr_nonnull(strstr(amp_last_error(), "amp_nccl_average_open"));
        amp_nccl_average_close(made);
        amp_nccl_close(nccl);
        device.tools->flush();
        ck_assert_int_eq(device.fake->blocks, 0);
        ck_assert_int_eq(device.fake->streams, 0);
    }
    ck_assert_int_ge(failures, 2);
}
