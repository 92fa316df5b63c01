/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm a product of some shape is computed with: the last shapes of a device. Plain C; the caller locks. */
#ifndef AMP_KERNELS_CUDA_BLAS_CACHE_H
#define AMP_KERNELS_CUDA_BLAS_CACHE_H

#include <stdbool.h>
#include <stdint.h>

enum { BLAS_SETS = 64, BLAS_WAYS = 8, BLAS_KEY_WORDS = 18, BLAS_ALGORITHM_WORDS = 8 };

/* All that an algorithm may depend on; the same words, the same answer. */
struct blas_key {
    uint64_t words[BLAS_KEY_WORDS];
};

struct blas_choice {
    uint64_t algorithm[BLAS_ALGORITHM_WORDS]; /* cublasLtMatmulAlgo_t */
    uint64_t workspace;                       /* bytes that it needs */
    int32_t status;   /* cublasStatus_t: 0, or why there is none */
    uint16_t rank;    /* its place among those that were proposed */
    uint16_t measured; /* out of so many (0: the first one was taken) */
};

/* Sets of BLAS_WAYS entries; the one not used for longest makes room. All zeros: empty. */
struct blas_cache {
    struct blas_entry {
        struct blas_key key;
        struct blas_choice choice;
        uint64_t used; /* 0: free */
    } entries[BLAS_SETS][BLAS_WAYS];
    uint64_t clock;
};

bool cuda_blas_find(struct blas_cache *cache, const struct blas_key *key, struct blas_choice *choice);
void cuda_blas_add(struct blas_cache *cache, const struct blas_key *key, const struct blas_choice *choice);

#endif
