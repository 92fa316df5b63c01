/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of the fused optimizers (optim.cu); as kernels.h says of its own. */
#ifndef AMP_KERNELS_CUDA_OPTIM_H
#define AMP_KERNELS_CUDA_OPTIM_H

#include "kernels/cuda/adam8.h"
#include "kernels/cuda/prepare.h"

#include <cuda_runtime_api.h>

/* A step of n_tensors tensors. Pointers are to device memory, NULL where a rule does not ask. */
struct cuda_step {
    amp_optim rule;
    struct cuda_factor inv_scale, factor;
    const float *found_inf;   /* not 0: nothing happens */
    const uint32_t *shapes;   /* shapes of the table: without a gradient nothing is done (NULL: all have one) */
    const float *norm;        /* LAMB */
    const float *grad_norms;  /* NovoGrad, LARC */
    const float *param_norms; /* LARC */
    const uint64_t *second;   /* NovoGrad: addresses of the scalars */
    struct cuda_random random;
    uint64_t *steps;          /* advanced where the step is taken (NULL: all tensors have had `known`) */
    uint64_t known;
    uint32_t shares;          /* steps[0] is all tensors' */
    uint32_t *ticket;         /* 0, and 0 again when the launch is done */
    struct cuda_update *updates; /* written */
    uint32_t n_tensors;
};

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cuda_launch_prepare(const struct cuda_step *step, cudaStream_t stream);
/* Spans: those of update.h. `rule` is one of CUDA_RULE_MAP. stochastic: some of the updates are. */
cudaError_t cuda_launch_update(enum cuda_rule rule, bool stochastic, const struct cuda_table *table,
                               const struct cuda_update *updates, cudaStream_t stream);
/* The tensors of `codes` (adam8.h), which have no chunk in `all`. */
cudaError_t cuda_launch_adam8(const struct cuda_table *all, const struct cuda_table *codes,
                              const struct cuda_update *updates, cudaStream_t stream);
/* A rule of CUDA_KNOWN_RULE_MAP with the same numbers for all tensors: one launch, with nothing prepared before it.
 * inv_scale replaces u's. Tensors without a gradient are passed over; found_inf not 0: all are. */
cudaError_t cuda_launch_step(enum cuda_rule rule, const struct cuda_table *table, const struct cuda_update *u,
                             const struct cuda_factor *inv_scale, const float *found_inf, cudaStream_t stream);
/* LAMB's moments and learning rates, before CUDA_LAMB_APPLY. sums: two doubles a chunk. */
cudaError_t cuda_launch_lamb(const struct cuda_table *table, const amp_optim *rule, struct cuda_update *updates,
                             double *sums, cudaStream_t stream);
/* Spans: bf16, remainder, FP32. The first two become the third; join: the third becomes the first two. */
cudaError_t cuda_launch_split(const struct cuda_table *table, int join, cudaStream_t stream);
/* cuda_launch_check of parameters, some of them split masters: parameter, remainder. */
cudaError_t cuda_launch_squares(const struct cuda_table *table, double *sums, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
