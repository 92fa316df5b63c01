/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host framework for the tests of amp_initialize over a device's memory, or over the CPU's with the same numbers: its
 * parameters are pulled to targets, loss = sum of 0.5 * (w - x)^2, and its kernels are libamp's functions for lists.
 */
#ifndef AMP_TESTS_CUDA_HOST_H
#define AMP_TESTS_CUDA_HOST_H

/* Built with Jansson? Without it there are no state files. */
#ifndef TEST_STATES
#error "-DTEST_STATES=0 or 1"
#endif

#include "device.h"

#include <stdbool.h>

enum { HOST_PARAMS = 5 };

struct tensor {
    int32_t kind; /* TENSOR or LOSS */
    amp_device device;
    amp_dtype dtype;
    void *data;
    int64_t size;
    struct tensor *grad;
    uint64_t version;
};

struct loss {
    int32_t kind;
    float factor;
    const float *factor_there; /* in place of factor */
};

struct host {
    amp_host hooks;
    amp_model model;
    amp_optimizer optimizer;
    amp_optim rule;
    amp_fused fused;
    bool fixed;   /* gradients are buffers that stay */
    bool mixed;   /* the last parameter is in the CPU's memory */
    bool two;     /* every other one is on the second device */
    bool on_cpu;
    struct tensor params[HOST_PARAMS], targets[HOST_PARAMS], scratch[HOST_PARAMS];
    amp_param listed[HOST_PARAMS];
    void *handles[HOST_PARAMS];
    struct tensor step_rooms[3]; /* of the host's own optimizer: here, on the first device, on the second */
    struct loss loss;
    amp_device_list *lists[2][4];
    int tensors, streams_asked; /* alive; asked for */
    int64_t event_skips;
};

/* How the host steps. */
enum stepping { STEP_FUSED, STEP_KNOWS, STEP_THERE };

struct host *host_new(bool on_cpu, bool mixed, bool fixed, enum stepping stepping);
/* The same over two devices; NULL: there is one. */
struct host *host_new_on_two(bool mixed, bool fixed, enum stepping stepping);
void host_free(struct host *host);
/* The target of every element of every parameter; not finite: the gradients are not either. */
void host_set_targets(struct host *host, float value);
/* Adds the gradients of `loss` times `times` to those there are. */
void host_backward(struct host *host, const struct loss *loss, float times);
/* A bracket around the gradients of its loss; the action at its end. */
amp_action host_bracket(struct host *host);
void host_clear(struct host *host);
/* Steps as it can: by amp_fused_step, or its own SGD between amp_step_begin and amp_step_end. */
void host_step(struct host *host, enum stepping stepping);
/* All parameters' elements as FP32, `n` of them. */
void host_read(struct host *host, float *out, size_t n);
size_t host_elements(void);

/* Memory of either side, for tests. */
void *memory_alloc(bool on_cpu, size_t bytes);
void memory_free(bool on_cpu, void *memory);
void memory_in(bool on_cpu, void *dst, const void *src, size_t bytes);
void memory_out(bool on_cpu, void *dst, const void *src, size_t bytes);

#endif
