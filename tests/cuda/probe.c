/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a libamp, loads its backend "cuda" and multiplies on the CPU, for test_plugin.py and tools/wheels:
 * probe LIBAMP. Prints name=value. */
#include "kernels/backend.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;

static void take(const char *name, void *slot) {
    void *symbol = dlsym(library, name);
    if (!symbol) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    memcpy(slot, &symbol, sizeof symbol);
}

/* Does the plugin have products, whatever the machine has? Only for a plugin of this build's interface. */
static int has_products(const char *file) {
    void *plugin = *file ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    amp__backend_entry_fn *entry = NULL;
    void *symbol = plugin ? dlsym(plugin, AMP__BACKEND_SYMBOL) : NULL;
    memcpy(&entry, &symbol, sizeof symbol);
    return entry && entry()->abi == AMP__BACKEND_ABI && entry()->product;
}

int main(int argc, char **argv) {
    amp_status (*load)(const char *), (*list)(amp_backend_info *, size_t, size_t *);
    amp_status (*scale)(const amp_span *, const amp_span *, size_t, float, float *);
    const char *(*last_error)(void);
    float values[3] = { 1.0f, 2.0f, 3.0f };
    const amp_span span = { values, 3, AMP_FLOAT32, 0 };
    amp_backend_info infos[8] = { AMP_BACKEND_INFO_INIT };
    size_t count = 0;
    library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "usage: probe LIBAMP");
        return 2;
    }
    take("amp_backend_load", &load);
    take("amp_get_backends", &list);
    take("amp_scale_list", &scale);
    take("amp_last_error", &last_error);
    const amp_status status = load("cuda");
    printf("load=%d\nerror=%s\n", (int)status, status == AMP_OK ? "" : last_error());
    printf("again=%d\n", (int)load("cuda"));
    if (list(infos, 8, &count) != AMP_OK) return 3;
    for (size_t i = 0; i < count; i++)
        if (!strcmp(infos[i].name, "cuda"))
            printf("state=%d\nversion=%s\nfile=%s\ntext=%s\nproducts=%d\n", (int)infos[i].state, infos[i].version,
                   infos[i].file, infos[i].text, has_products(infos[i].file));
    printf("cpu=%d\n", (int)scale(&span, &span, 1, 2.0f, NULL));
    printf("cpu.sum=%g\n", (double)(values[0] + values[1] + values[2]));
    return 0;
}
