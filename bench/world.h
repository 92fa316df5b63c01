/* SPDX-License-Identifier: Apache-2.0 */
/* A host of buffers: n parameters with fixed gradients, in one optimizer, for what is measured of brackets. */
#ifndef AMP_BENCH_WORLD_H
#define AMP_BENCH_WORLD_H

#include "bench.h"

#include <amp.h>
#include <amp_raw.h>
#include <amp_kernels.h>

struct bench_world {
    size_t n, length;
    bool masters; /* O2: fp16 parameters and gradients, FP32 masters; else O1: all FP32 */
    amp_host host;
    amp_buffer *params, *grads;
    amp_param *listed;
    void **trained;
    amp_span *dst, *src; /* what the kernels of a bracket's end take: gradients to where they are unscaled */
    float *values, *unscaled;
    amp_optimizer optimizer;
    amp_model model;
    amp_scaled_loss scaled;
};

/* Gradients are 0, and stay 0 however often they are unscaled. */
void bench_world_make(struct bench_world *world, size_t n, size_t length, bool masters);
void bench_world_free(struct bench_world *world);
void bench_world_start(struct bench_world *world); /* amp_initialize */
void bench_world_stop(struct bench_world *world);  /* amp_shutdown */
/* The first four brackets, with gradients other than 0: libamp checks the wiring in those. */
void bench_world_train(struct bench_world *world);

void bench_world_begin(struct bench_world *world); /* amp_scale_loss_begin */
void bench_world_end(struct bench_world *world);   /* amp_scale_loss_end */
void bench_world_step(struct bench_world *world);    /* amp_step_begin and _end */
void bench_world_kernels(struct bench_world *world); /* what they cannot do without */

#endif
