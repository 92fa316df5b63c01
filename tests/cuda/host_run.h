/* SPDX-License-Identifier: Apache-2.0 */
/* A host with a context at one level, and its iterations. */
#ifndef AMP_TESTS_CUDA_HOST_RUN_H
#define AMP_TESTS_CUDA_HOST_RUN_H

#include "host.h"

enum { ELEMENTS = 8192, OUT_OF_MEMORY = 2 };

struct kind {
    const char *name;
    amp_level level;
    enum stepping stepping;
    bool mixed, fixed;
    int accumulate; /* brackets a step */
    float static_scale;
};

struct run {
    struct host *host;
    amp_context *context;
};

struct run run_try_start(struct host *host, amp_level level, amp_status *status);
struct run run_start(const struct kind *kind);
/* Gradients towards the target, and a step; from none. */
void run_iterate(struct host *host, const struct kind *kind, float target);
/* The same from the gradients there are, towards the target there is. */
void run_again(struct host *host, const struct kind *kind);

#endif
