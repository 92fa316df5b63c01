/* SPDX-License-Identifier: Apache-2.0 */
/* Which NCCL libamp takes, what it says where there is none or one of its calls fails, and reductions on a stream. */
#include "ranks.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/nccl_library.h"
#if __has_include(<nccl.h>)
#include <nccl.h>
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(NCCL_SUCCESS, ncclSuccess);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_MAX, ncclMax);
SAME(NCCL_FLOAT16, ncclFloat16);
SAME(NCCL_FLOAT32, ncclFloat32);
SAME(NCCL_FLOAT64, ncclFloat64);
SAME(NCCL_BFLOAT16, ncclBfloat16);
SAME(NCCL_OLDEST, NCCL_VERSION(2, 10, 3));
#endif

TEST_FIXTURE(ranks_begin, ranks_end)

static void says(amp_status status, amp_status expected, const char *words) {
    ck_assert_msg(status == expected && strstr(amp_last_error(), words), "%d: %s", (int)status, amp_last_error());
}

TEST(test_no_library) {
    int comm;
    amp_nccl *nccl = NULL;
    ranks_end();
    says(amp_nccl_open(&comm, &nccl), AMP_ERR_BACKEND, "Install NVIDIA's NCCL 2");
    setenv("AMP_NCCL", "libnccl.so.2", 1);
    says(amp_nccl_open(&comm, &nccl), AMP_ERR_BACKEND, "AMP_NCCL: 'libnccl.so.2' is not an absolute path");
    setenv("AMP_NCCL", "/there/is/no/libnccl.so.2", 1);
    says(amp_nccl_open(&comm, &nccl), AMP_ERR_BACKEND, "/there/is/no/libnccl.so.2");
    setenv("AMP_NCCL", getenv("AMP_CUBLASLT"), 1);
    says(amp_nccl_open(&comm, &nccl), AMP_ERR_BACKEND, "has no function ncclGetVersion");
    unsetenv("AMP_NCCL");
    ck_assert_ptr_null(nccl);
    ranks_begin();
}

TEST(test_named_library) {
    setenv("AMP_NCCL", getenv("FAKE_NCCL"), 1);
    amp_nccl_close(ranks_open());
    setenv("AMP_NCCL", "", 1);
    amp_nccl_close(ranks_open());
    unsetenv("AMP_NCCL");
}

TEST(test_refused) {
    amp_nccl *nccl = NULL;
    ranks.nccl->version = 2804;
    says(amp_nccl_open(ranks.nccl, &nccl), AMP_ERR_BACKEND, "NCCL's version code is 2804");
    ranks.nccl->version = 21003;
    amp_nccl_close(ranks_open());
    ranks.nccl->async_error = 7;
    says(amp_nccl_open(ranks.nccl, &nccl), AMP_ERR_UNSUPPORTED, "does not block");
    ranks.nccl->async_error = 0;
    ranks.nccl->device = 5;
    says(amp_nccl_open(ranks.nccl, &nccl), AMP_ERR_NO_DEVICE, "there is no CUDA device 5");
    ranks.nccl->device = 0;
    says(amp_nccl_open(NULL, &nccl), AMP_ERR_INVALID_ARGUMENT, "comm is NULL");
    says(amp_nccl_open(ranks.nccl, NULL), AMP_ERR_INVALID_ARGUMENT, "nccl is NULL");
    ck_assert_int_eq(device.fake->streams, 0);
    ranks.nccl->on_wrong_device = 0; /* of device 5 */
}

/* Each call of NCCL's and of CUDA's fails once. */
TEST_TIMES(test_failing_open, 2) {
    int *const calls = _i ? &device.fake->calls : &ranks.nccl->calls;
    int *const fail_at = _i ? &device.fake->fail_at : &ranks.nccl->fail_at;
    int failures = 0;
    ranks.nccl->fail_with = 3, device.fake->fail_with = 700;
    for (int at = 1, made = 0; !made; at++) {
        amp_nccl *nccl = NULL;
        *calls = 0, *fail_at = at;
        const amp_status status = amp_nccl_open(ranks.nccl, &nccl);
        *fail_at = 0;
        made = status == AMP_OK && *calls < at;
        failures += status != AMP_OK;
        if (status != AMP_OK) ck_assert_ptr_null(nccl);
        if (status != AMP_OK && at > 1 && !_i) says(status, AMP_ERR_BACKEND, "an error of the fake NCCL");
        if (status != AMP_OK && _i) ck_assert_ptr_nonnull(strstr(amp_last_error(), "CUDA"));
        amp_nccl_close(nccl);
        ck_assert_int_eq(device.fake->streams, 0);
    }
    ck_assert_int_ge(failures, 4);
}

TEST(test_reduce) {
    amp_nccl *nccl = ranks_open();
    float *values = device_alloc(5 * sizeof *values);
    for (int i = 0; i < 5; i++) values[i] = (float)(ranks.rank ? 10 - i : 7 + i);
    ck_assert_int_eq(amp_nccl_reduce(nccl, AMP_REDUCE_MAX, device.stream, values, 3), AMP_OK);
    ck_assert_int_eq(amp_nccl_reduce(nccl, AMP_REDUCE_SUM, device.stream, values + 3, 2), AMP_OK);
    ck_assert_int_eq(amp_nccl_reduce(nccl, AMP_REDUCE_SUM, device.stream, NULL, 0), AMP_OK);
    ck_assert_float_eq(values[0], ranks.rank ? 10.0f : 7.0f); /* not yet */
    ck_assert_int_eq(device.fake->waits + device.fake->event_waits, 0);
    device.tools->flush();
    const float expected[5] = { 10.0f, 9.0f, 9.0f, 17.0f, 17.0f };
    ck_assert_mem_eq(values, expected, sizeof expected);
    says(amp_nccl_reduce(NULL, AMP_REDUCE_MAX, device.stream, values, 1), AMP_ERR_INVALID_ARGUMENT, "nccl is NULL");
    says(amp_nccl_reduce(nccl, 0, device.stream, values, 1), AMP_ERR_INVALID_ARGUMENT, "reduction is 0");
    says(amp_nccl_reduce(nccl, AMP_REDUCE_MAX, NULL, values, 1), AMP_ERR_INVALID_ARGUMENT, "stream is NULL");
    says(amp_nccl_reduce(nccl, AMP_REDUCE_MAX, device.stream, NULL, 1), AMP_ERR_INVALID_ARGUMENT, "values is NULL");
    amp_nccl_close(nccl);
    amp_nccl_close(NULL);
}

TEST(test_failing_reduce) {
    static const char *const functions[] = { "ncclGroupStart: an error", "ncclAllReduce: an error",
                                             "ncclGroupEnd: an error" };
    amp_nccl *nccl = ranks_open();
    float *value = device_alloc(sizeof *value);
    ranks.nccl->fail_with = 3;
    for (int at = 0; at < 3; at++) {
        ranks.nccl->calls = 0, ranks.nccl->fail_at = at + 1;
        says(amp_nccl_reduce(nccl, AMP_REDUCE_MAX, device.stream, value, 1), AMP_ERR_BACKEND, functions[at]);
        ck_assert_int_eq(ranks.nccl->open, 0);
    }
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "ncclCommAbort"));
    ranks.nccl->calls = 0, ranks.nccl->fail_at = 2, ranks.nccl->fail_with = 7;
    says(amp_nccl_reduce(nccl, AMP_REDUCE_MAX, device.stream, value, 1), AMP_ERR_UNSUPPORTED, "does not block");
    ranks.nccl->fail_at = 0;
    amp_nccl_close(nccl);
}
