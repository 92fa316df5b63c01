/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of libamp_cuda.so on the processor: real plans, real group functions, threads one after the other. What
 * is left to a GPU is what nvcc makes of the same lines.
 */
#ifndef AMP_TESTS_CUDA_EMULATED_H
#define AMP_TESTS_CUDA_EMULATED_H

#include "kernels/cuda/adam8.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/prepare.h"

#include "kernels/kernels.h"

/* A plan that is freed at the end of its block. */
#define OWN_PLAN __attribute__((cleanup(cuda_plan_free))) struct cuda_plan

/* What a thread does to a group, with `arguments` of the call's own; it adds to the sums of its own thread. */
typedef uint32_t emulated_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *arguments,
                             double sums[2]);

/* The tensor whose chunk is being run: what a kernel knows from its chunk. */
extern uint32_t emulated_tensor;
/* The first tensor of the last table for which a group gave something; UINT32_MAX: none. */
extern uint32_t emulated_first;

/* Plans the lists and runs every group of every chunk; returns the OR of what the groups gave. chunk_sums (may be
 * NULL): two sums a chunk in the order of the blocks' reduction, *chunk_sums for the caller to free. plan: kept for the
 * caller. */
uint32_t emulate(struct cuda_plan *plan, const amp_span *const lists[], uint32_t n_spans, size_t n, emulated_fn *fn,
                 const void *arguments, double **chunk_sums);

/* The same for a table that is there; chunk_sums: two a chunk. */
uint32_t emulate_table(const struct cuda_table *table, uint32_t n_spans, emulated_fn *fn, const void *arguments,
                       double *chunk_sums);

/* optim.cu's kernel_adam8. */
void emulate_adam8(const struct cuda_table *all, const struct cuda_table *codes, const struct cuda_update *updates);

/* A block's sum of 256 values, which are overwritten. */
double emulated_sum(double values[CUDA_THREADS]);

/* The sum of values[begin], [begin + stride], ... before end, in the order of the second pass. */
double emulated_strided(const double *values, size_t begin, size_t end, size_t stride);

/* A table of kernels like amp__kernels_init's: those that CUDA has are emulated, all others are ref/. */
void emulated_kernels_init(struct amp__kernels *k, uint32_t cpu_flags);

#endif
