/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a launch: from lists of tensors to the table of table.h. Only host memory and integers, so that all of it
 * is tested without a GPU. The cut of tensors depends only on their sizes, types and addresses modulo 16, so that sums
 * by chunks have the same bits on every device and in every run.
 */
#ifndef AMP_KERNELS_CUDA_PLAN_H
#define AMP_KERNELS_CUDA_PLAN_H

#include "kernels/cuda/table.h"

#include "amp_kernels.h"

#include <stdbool.h>

/* All zeros: no plan yet. */
struct cuda_plan {
    unsigned char *table; /* as the device shall have it: `bytes` bytes (NULL: no plan yet) */
    size_t bytes;
    uint64_t *sizes; /* of the tensors */
    uint32_t n_spans, n_tensors, n_chunks;
};

/* A fault in the lists of a call: status, message and entry. */
struct cuda_plan_error {
    amp_status status; /* AMP_ERR_NO_MEMORY, AMP_ERR_UNSUPPORTED, AMP_ERR_INVALID_ARGUMENT */
    const char *text;
    size_t span, tensor; /* of INVALID_ARGUMENT */
};

/*
 * Updates *plan for these lists: lists[0..n_spans), n entries each. lists[k] NULL, or data NULL in an entry: the tensor
 * has no such span. Sizes are those of lists[0]. *changed: the table has changed. An unchanged list costs one
 * comparison an entry and writes nothing. If the chunks are unchanged, only the changed tensors are written. false with
 * *error: the plan is unchanged.
 */
bool cuda_plan_update(struct cuda_plan *plan, const amp_span *const lists[], uint32_t n_spans, size_t n, bool *changed,
                      struct cuda_plan_error *error);

/* The plan's table, once its bytes are at `base`, which is a multiple of 16. */
struct cuda_table cuda_plan_table(const struct cuda_plan *plan, const void *base);

void cuda_plan_free(struct cuda_plan *plan);

#endif
