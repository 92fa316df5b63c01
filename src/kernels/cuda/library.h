/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that are opened at run time, and by this file's functions alone. */
#ifndef AMP_KERNELS_CUDA_LIBRARY_H
#define AMP_KERNELS_CUDA_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

struct cuda_library_search {
    const char *variable;     /* of the environment: names the file, which is then the only one that is tried */
    const char *const *files; /* names, the preferred one first */
    size_t n_files;
    bool only_loaded;          /* the one that the process has, or none */
    const char *const *places; /* folders to look in last; relative ones from that of libamp_cuda.so */
    size_t n_places;
};

/* A library that the process has loaded under any of the names, else the first that is found. NULL: none, and in `why`
 * the system loader's words about the preferred one. */
void *cuda_library_open(const struct cuda_library_search *search, char *why, size_t size);
void cuda_library_close(void *handle); /* NULL: nothing */

struct cuda_function {
    const char *name;
    void *member; /* a pointer to the function, to be written */
};
/* The first function that it has not, or NULL. */
const char *cuda_library_take(void *handle, const struct cuda_function *functions, size_t n);

#endif
