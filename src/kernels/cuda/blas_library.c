/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search for cuBLASLt: only the file in AMP_CUBLASLT if that is set. Otherwise the library already loaded by the
 * process (by PyTorch for example), then the search of the system loader, then the folder of this file and those of pip
 * and of NVIDIA's installers. Major versions 12 and 13 both work, whichever this file was built with, since the
 * functions and values in use are the same. Descriptors come from cublasLt...Create, since ...Init would write the
 * sizes of the header.
 */
#include "kernels/cuda/blas_library.h"
#include "kernels/cuda/library.h"

#include <pthread.h>
#include <stdio.h>

#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)
#define MAJOR TEXT_OF(CUBLAS_VER_MAJOR)

/* The one that this file was built with first. */
static const char *const files[] = { ("libcublasLt.so." MAJOR), "libcublasLt.so.13", "libcublasLt.so.12" };

/* The versions from 12.4, the oldest toolkit that builds libamp, to the newest major version with a compared header. */
enum { OLDEST = 120400, NEWEST_MAJOR = CUBLAS_VER_MAJOR > 13 ? CUBLAS_VER_MAJOR : 13 };

/* The values of 12.4's header, and of 13.0's and 13.1's: a header with others needs a second set of them. */
#define SAME(name, value) _Static_assert((int)(name) == (value), #name)
SAME(CUBLASLT_MATMUL_DESC_TRANSA, 3);
SAME(CUBLASLT_MATMUL_DESC_TRANSB, 4);
SAME(CUBLASLT_MATMUL_DESC_EPILOGUE, 7);
SAME(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8);
SAME(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 11);
SAME(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 12);
SAME(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, 13);
SAME(CUBLASLT_EPILOGUE_BIAS, 4);
SAME(CUBLASLT_EPILOGUE_DRELU_BGRAD, 152);
SAME(CUBLASLT_EPILOGUE_DRELU, 136);
SAME(CUBLASLT_EPILOGUE_BGRADB, 512);
SAME(CUBLASLT_EPILOGUE_BGRADA, 256);
SAME(CUBLASLT_EPILOGUE_RELU, 2);
SAME(CUBLASLT_EPILOGUE_RELU_AUX, 130);
SAME(CUBLASLT_EPILOGUE_DEFAULT, 1);
SAME(CUBLAS_OP_T, 1);
SAME(CUBLAS_OP_N, 0);
SAME(CUBLAS_COMPUTE_32F_FAST_TF32, 77);
SAME(CUBLAS_COMPUTE_32F, 68);
SAME(CUDA_R_32F, 0);
SAME(CUDA_R_16F, 2);
SAME(CUDA_R_16BF, 14);
SAME(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5);
SAME(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6);
SAME(CUBLASLT_REDUCTION_SCHEME_NONE, 0);
SAME(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2);
SAME(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1);
SAME(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3);
SAME(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5);
SAME(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6);
SAME(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7);
SAME(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8);
SAME(CUBLASLT_ALGO_CONFIG_ID, 0);
SAME(CUBLASLT_ALGO_CONFIG_TILE_ID, 1);
SAME(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 2);
SAME(CUBLASLT_ALGO_CONFIG_STAGES_ID, 6);
SAME(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 8);
SAME(CUBLAS_STATUS_SUCCESS, 0);
SAME(CUBLAS_STATUS_NOT_SUPPORTED, 15);
SAME(CUBLAS_STATUS_INVALID_VALUE, 7);
SAME(CUBLAS_STATUS_ALLOC_FAILED, 3);
SAME(sizeof(cublasLtMatmulHeuristicResult_t), 96);

static struct blas_library library;
static const struct blas_library *found;
static char text[700];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- where it is ---- */

/* From the folder of libamp_cuda.so, and from the root. In a Python environment that is site-packages/libamp. */
static const char *const places[] = {
    "./",
    "../nvidia/cu" MAJOR "/lib/",
    "../nvidia/cu13/lib/",
    "../nvidia/cublas/lib/", /* of version 12 */
    "../../nvidia/cu" MAJOR "/lib/",
    "../../nvidia/cu13/lib/",
    "../../nvidia/cublas/lib/",
    "/usr/local/cuda-" MAJOR "/lib64/",
    "/usr/local/cuda/lib64/",
    "/opt/cuda/lib64/",
};

static void *open_library(char *why, size_t size) {
    const struct cuda_library_search search = { "AMP_CUBLASLT", files,  sizeof files / sizeof *files,
                                                false,          places, sizeof places / sizeof *places };
    return cuda_library_open(&search, why, size);
}

/* ---- checks of the library ---- */

/* The first function that it has not, or NULL. */
static const char *take_functions(void *handle) {
    const struct cuda_function functions[] = {
#define BLAS_ROW(name) { #name, &library.name },
        BLAS_FUNCTIONS(BLAS_ROW)
#undef BLAS_ROW
    };
    return cuda_library_take(handle, functions, sizeof functions / sizeof *functions);
}

static void load_library(void) {
    char why[400];
    void *handle = open_library(why, sizeof why);
    if (!handle) {
        snprintf(text, sizeof text,
                 "products on a GPU need cuBLASLt 12 or 13 (libcublasLt.so.12 or .13), which is not there: %s. Install "
                 "NVIDIA's CUDA " MAJOR " libraries (the package libcublas of the CUDA toolkit, or of pip "
                 "nvidia-cublas), or name the file in AMP_CUBLASLT",
                 why);
        return;
    }
    const char *missing = take_functions(handle);
    if (missing) {
        snprintf(text, sizeof text,
                 "the loaded libcublasLt.so has no function %s: it is no cuBLASLt, or too old. Install that of "
                 "CUDA " MAJOR,
                 missing);
        return;
    }
    library.version = library.cublasLtGetVersion();
    if (library.version < OLDEST || library.version / 10000 > NEWEST_MAJOR) {
        snprintf(text, sizeof text, "cuBLASLt %zu.%zu.%zu does not fit: libamp_cuda.so needs %d.%d to %d",
                 library.version / 10000, library.version / 100 % 100, library.version % 100, OLDEST / 10000,
                 OLDEST / 100 % 100, NEWEST_MAJOR);
        return;
    }
    found = &library;
}

const struct blas_library *cuda_blas_library(const char **why) {
    (void)pthread_once(&once, load_library);
    *why = text;
    return found;
}
