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

void *cuda_library_open(const struct cuda_library_search *search, char *why, size_t size) {
    const char *named = secure_getenv(search->variable);
    if (named && !*named) named = NULL;
    if (named && *named != '/') { /* what a relative one names depends on where somebody started the program */
        snprintf(why, size, "%s: '%.100s' is not an absolute path", search->variable, named);
        return NULL;
    }
    void *handle = named ? dlopen(named, RTLD_NOW | RTLD_LOCAL)
                         : dlopen(search->file, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!handle && !named && !search->only_loaded) handle = dlopen(search->file, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *error = dlerror();
        snprintf(why, size, "%s%s%.300s", named ? search->variable : "", named ? ": " : "",
                 error ? error : "no reason given");
    }
    for (size_t i = 0; !handle && !named && i < search->n_places; i++)
        handle = open_in(search->places[i], search->file);
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
