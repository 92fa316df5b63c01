/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt, opened at run time: hundreds of megabytes that a program without products never loads. */
#ifndef AMP_KERNELS_CUDA_BLAS_LIBRARY_H
#define AMP_KERNELS_CUDA_BLAS_LIBRARY_H

#include <cublasLt.h>
#include <stddef.h>

#define BLAS_FUNCTIONS(X)                                                                                              \
    X(cublasLtCreate)                                                                                                  \
    X(cublasLtDestroy)                                                                                                 \
    X(cublasLtGetStatusName)                                                                                           \
    X(cublasLtGetVersion)                                                                                              \
    X(cublasLtMatmul)                                                                                                  \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                                            \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtMatmulDescCreate)                                                                                        \
    X(cublasLtMatmulDescDestroy)                                                                                       \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatmulPreferenceCreate)                                                                                  \
    X(cublasLtMatmulPreferenceDestroy)                                                                                 \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    X(cublasLtMatrixLayoutCreate)                                                                                      \
    X(cublasLtMatrixLayoutDestroy)                                                                                     \
    X(cublasLtMatrixLayoutSetAttribute)

struct blas_library {
#define BLAS_MEMBER(name) __typeof__(name) *name;
    BLAS_FUNCTIONS(BLAS_MEMBER)
#undef BLAS_MEMBER
    size_t version; /* as cuBLASLt counts: 130100 is 13.1.0 */
};

/* Returns the library, or NULL with the fault and the remedy in *why (static). Tried once in the life of the
 * process. */
const struct blas_library *cuda_blas_library(const char **why);

#endif
