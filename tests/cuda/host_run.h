/* SPDX-License-Identifier: Apache-2.0 */
/* A host with a context at one level, and its iterations. */
#ifndef AMP_TESTS_CUDA_HOST_RUN_H
#define AMP_TESTS_CUDA_HOST_RUN_H

#include "host.h"

#include <math.h>
#include <stdlib.h>

enum { ELEMENTS = 8192, STATE_BYTES = 1 << 18, OUT_OF_MEMORY = 2 };

struct kind {
    const char *name;
    amp_level level;
    enum stepping stepping;
    bool mixed, fixed, split;
    int more_brackets; /* of a step, before the last */
    float static_scale;
};
/* KIND(O2, STEP_FUSED, .mixed = true), with these words for a name. */
#define KIND(at, ...) { .name = #at " " #__VA_ARGS__, .level = AMP_##at, .stepping = __VA_ARGS__ }

struct run {
    struct host *host;
    amp_context *context;
};

/* window: the scaler's; 0: the default. */
amp_config config_of(const struct kind *kind, uint32_t window);
/* The host of a kind, on a device or, never mixed, on the CPU. */
struct host *host_of(const struct kind *kind, bool on_cpu);
struct run run_try(struct host *host, amp_config config, amp_status *status);
struct run run_with(struct host *host, amp_config config); /* which is not refused */
struct run run_start(const struct kind *kind);             /* on a device */
/* Gradients towards the target, and a step; from none. */
void run_iterate(struct host *host, const struct kind *kind, float target);
/* The same from the gradients there are, towards the target there is. */
void run_again(struct host *host, const struct kind *kind);
/* The context ends, which is not refused, and the host. */
void run_end(struct run *run);

/* The size of the context's state. */
size_t run_save(const struct run *run, char state[STATE_BYTES]);

#endif
