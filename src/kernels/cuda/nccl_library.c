/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search for NCCL. A communicator works only with the library that made it, so it is the file in AMP_NCCL if that
 * is set, or else the library already loaded by the process. None is loaded otherwise.
 */
#include "kernels/cuda/nccl_library.h"
#include "kernels/cuda/library.h"

#include <stdio.h>

#define FILE_NAME "libnccl.so.2"

static const char *take_functions(void *handle, struct nccl_library *library) {
    const struct cuda_function functions[] = {
#define NCCL_ROW(name, parameters) { #name, &library->name },
        NCCL_FUNCTIONS(NCCL_ROW)
#undef NCCL_ROW
        { "ncclGetErrorString", &library->ncclGetErrorString },
    };
    return cuda_library_take(handle, functions, sizeof functions / sizeof *functions);
}

const char *cuda_nccl_open(struct nccl_library *library, char *text, size_t size) {
    static const char *const files[] = { FILE_NAME };
    static const struct cuda_library_search search = { "AMP_NCCL", files, 1, true, NULL, 0 };
    char why[400];
    int version = 0;
    library->handle = cuda_library_open(&search, why, sizeof why);
    if (!library->handle) {
        snprintf(text, size,
                 "a communicator is of use to the NCCL alone that made it, and this process has not loaded " FILE_NAME
                 ": %s. Install NVIDIA's NCCL 2 (the package libnccl2, or of pip nvidia-nccl-cu12 or -cu13) and link "
                 "with it or load it first, or name the file that made it in AMP_NCCL",
                 why);
        return text;
    }
    const char *missing = take_functions(library->handle, library);
    if (missing) snprintf(text, size, FILE_NAME ", or what AMP_NCCL names, has no function %s: it is no NCCL", missing);
    else if (library->ncclGetVersion(&version) != NCCL_SUCCESS || version < NCCL_OLDEST)
        snprintf(text, size, "NCCL's version code is %d: libamp needs %d (2.10.3) or later", version, NCCL_OLDEST);
    else return NULL;
    return text;
}

void cuda_nccl_close(struct nccl_library *library) { cuda_library_close(library->handle); }
