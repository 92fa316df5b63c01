/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where cuBLASLt is: what AMP_CUBLASLT names, and nothing else if it is set; else the one that the process has loaded
 * already (a host's own, PyTorch's for one); else what the system's loader finds; else beside this file and where pip
 * and NVIDIA's installers put it. Of the major version that this file was built with: others have another ABI.
 */
#include "kernels/cuda/blas_library.h"
#include "kernels/cuda/library.h"

#include <pthread.h>
#include <stdio.h>

#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)
#define MAJOR TEXT_OF(CUBLAS_VER_MAJOR)
#define FILE_NAME "libcublasLt.so." MAJOR

/* Of each major version the oldest whose toolkit libamp builds with: 12.4. */
#define OLDEST (CUBLAS_VER_MAJOR * 10000u + (CUBLAS_VER_MAJOR == 12 ? 400u : 0u))

static struct blas_library library;
static const struct blas_library *found;
static char text[700];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- where it is ---- */

/* From the folder of libamp_cuda.so, and from the root. In a Python environment that is site-packages/libamp. */
static const char *const places[] = {
    "./",
    "../nvidia/cu" MAJOR "/lib/",
    "../nvidia/cublas/lib/",
    "../../nvidia/cu" MAJOR "/lib/",
    "../../nvidia/cublas/lib/",
    "/usr/local/cuda-" MAJOR "/lib64/",
    "/usr/local/cuda/lib64/",
    "/opt/cuda/lib64/",
};

static void *open_library(char *why, size_t size) {
    const struct cuda_library_search search = { "AMP_CUBLASLT", FILE_NAME, false, places,
                                                sizeof places / sizeof *places };
    return cuda_library_open(&search, why, size);
}

/* ---- what it is ---- */

/* The first function that it has not, or NULL. */
static const char *take_functions(void *handle) {
    const struct cuda_function functions[] = {
#define BLAS_ROW(name) { #name, &library.name },
        BLAS_FUNCTIONS(BLAS_ROW)
#undef BLAS_ROW
    };
    return cuda_library_take(handle, functions, sizeof functions / sizeof *functions);
}

static void load(void) {
    char why[400];
    void *handle = open_library(why, sizeof why);
    if (!handle) {
        snprintf(text, sizeof text,
                 "products on a GPU need cuBLASLt " MAJOR " (" FILE_NAME "), which is not there: %s. Install NVIDIA's "
                 "CUDA " MAJOR " libraries (the package libcublas of the CUDA toolkit, or of pip nvidia-cublas), or "
                 "name the file in AMP_CUBLASLT",
                 why);
        return;
    }
    const char *missing = take_functions(handle);
    if (missing) {
        snprintf(text, sizeof text,
                 FILE_NAME " has no function %s: it is no cuBLASLt, or too old. Install that of CUDA " MAJOR, missing);
        return;
    }
    library.version = library.cublasLtGetVersion();
    if (library.version < OLDEST || library.version / 10000 != CUBLAS_VER_MAJOR) {
        snprintf(text, sizeof text, "cuBLASLt %zu.%zu.%zu does not fit: libamp_cuda.so needs %u.%u or a later " MAJOR,
                 library.version / 10000, library.version / 100 % 100, library.version % 100, OLDEST / 10000,
                 OLDEST / 100 % 100);
        return;
    }
    found = &library;
}

const struct blas_library *cuda_blas_library(const char **why) {
    (void)pthread_once(&once, load);
    *why = text;
    return found;
}
