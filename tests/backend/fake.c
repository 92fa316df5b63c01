/* SPDX-License-Identifier: Apache-2.0 */
/* A backend that does nothing: meson.build makes a good one of it, and one for each way to be unusable. */
#include "kernels/backend.h"

#include <sched.h>
#include <stdio.h>

#ifndef FAKE_MAGIC
#define FAKE_MAGIC AMP__BACKEND_MAGIC
#endif
#ifndef FAKE_ABI
#define FAKE_ABI AMP__BACKEND_ABI
#endif
#ifndef FAKE_NAME
#define FAKE_NAME "onednn"
#endif
#ifndef FAKE_INIT
#define FAKE_INIT AMP_OK
#endif
#ifndef FAKE_MATMUL
#define FAKE_MATMUL AMP_OK
#endif
#ifndef FAKE_SYMBOL
#define FAKE_SYMBOL amp_backend
#endif

#define VISIBLE __attribute__((visibility("default")))

static const struct amp__backend_host *host;
static int inits;

static amp_status init(const struct amp__backend_host *given, char *version, size_t size) {
    host = given;
    for (int i = 0; i < 20000; i++) sched_yield(); /* so that other threads come meanwhile */
    inits++;
    snprintf(version, size, "fake %d", inits);
    return FAKE_INIT == AMP_OK ? AMP_OK : host->fail(FAKE_INIT, "the fake was told to fail. Do nothing.");
}

/* Leaves a mark that no product has: 1000 and how often init ran. */
#ifndef FAKE_NO_PRODUCT
static amp_status matmul(const amp_matmul_args *args, int32_t threads) {
    (void)threads;
    if (FAKE_MATMUL != AMP_OK) return host->fail(FAKE_MATMUL, "the fake was told not to multiply");
    *(float *)args->d = (float)(1000 + inits);
    return AMP_OK;
}
#endif

static amp_status explain(const amp_matmul_args *args, int32_t threads, char *text, size_t size) {
    (void)args, (void)threads;
    snprintf(text, size, "the fake");
    return AMP_OK;
}

#ifdef FAKE_UNDEFINED
extern int a_function_that_nobody_has(void);
#endif

VISIBLE const struct amp__backend *FAKE_SYMBOL(void);

VISIBLE const struct amp__backend *FAKE_SYMBOL(void) {
    static const struct amp__backend table = {
        .magic = FAKE_MAGIC, .abi = FAKE_ABI, .name = FAKE_NAME, .init = init, .matmul_explain = explain,
#ifndef FAKE_NO_PRODUCT
        .matmul = matmul,
#endif
    };
#ifdef FAKE_UNDEFINED
    if (a_function_that_nobody_has()) return NULL;
#endif
#ifdef FAKE_NO_TABLE
    return NULL;
#endif
    return &table;
}
