/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char own = 0; /* its address is in this file */

static void *open_in(const char *place, const char *file) {
    char path[1200];
    Dl_info info;
    int length = 0;
    if (place[0] != '/') {
        if (!dladdr(&own, &info) || !info.dli_fname || info.dli_fname[0] != '/') return NULL;
        length = (int)(strrchr(info.dli_fname, '/') - info.dli_fname) + 1;
    }
    const int needed = snprintf(path, sizeof path, "%.*s%s%s", length, length ? info.dli_fname : "", place, file);
    return needed > 0 && (size_t)needed < sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static void explain_missing(const char *variable, char *why, size_t size) {
    const char *error = dlerror();
    snprintf(why, size, "%s%s%.300s", variable, *variable ? ": " : "", error ? error : "no reason given");
}

static void *open_named(const char *variable, const char *path, char *why, size_t size) {
    if (*path != '/') { /* a relative path depends on the current folder of the process */
        snprintf(why, size, "%s: '%.100s' is not an absolute path", variable, path);
        return NULL;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) explain_missing(variable, why, size);
    return handle;
}

/* By the system's loader. flags: RTLD_NOLOAD or 0 */
static void *open_known(const struct cuda_library_search *search, int flags, char *why, size_t size) {
    void *handle = NULL;
    for (size_t i = 0; !handle && i < search->n_files; i++) {
        handle = dlopen(search->files[i], RTLD_NOW | RTLD_LOCAL | flags);
        if (!handle && i == 0) explain_missing("", why, size);
    }
    return handle;
}

void *cuda_library_open(const struct cuda_library_search *search, char *why, size_t size) {
    const char *named = secure_getenv(search->variable);
    if (named && *named) return open_named(search->variable, named, why, size);
    void *handle = open_known(search, RTLD_NOLOAD, why, size);
    if (!handle && !search->only_loaded) handle = open_known(search, 0, why, size);
    for (size_t i = 0; !handle && i < search->n_files; i++)
        for (size_t j = 0; !handle && j < search->n_places; j++)
            handle = open_in(search->places[j], search->files[i]);
    return handle;
}

void cuda_library_close(void *handle) {
    if (handle) dlclose(handle);
}

const char *cuda_library_take(void *handle, const struct cuda_function *functions, size_t n) {
    for (size_t i = 0; i < n; i++) {
        void *symbol = dlsym(handle, functions[i].name);
        if (!symbol) return functions[i].name;
        memcpy(functions[i].member, &symbol, sizeof symbol);
    }
    return NULL;
}
