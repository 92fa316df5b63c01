/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device as the demo's framework sees it: what was asked of it, and what shall fail. */
#ifndef AMP_TESTS_CUDA_MINITAPE_CUDA_FAKE_H
#define AMP_TESTS_CUDA_MINITAPE_CUDA_FAKE_H

#include "fake.h"
#include "launch.h"

struct minitape_fake {
    const struct fake_tools *tools;
    struct fake *amp; /* what libamp does on the same device */
    void *stream;
    int calls, fail_at;         /* allocations; this one fails; 0: none */
    int launches, fail_launch;  /* kernels */
    int launched[MTK_COUNT];
    int blocks;                 /* allocated and not freed */
    int waits, event_waits;     /* for the stream; for a copy that was not yet done */
};

extern struct minitape_fake minitape_fake;

/* mt_cuda_open over the plugin that AMP_BACKEND_PATH names and the cuBLASLt that MINITAPE_CUBLASLT does. NULL, or why
 * not. */
const char *minitape_fake_open(void);

#endif
