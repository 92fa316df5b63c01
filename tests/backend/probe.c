/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a libamp and says what it does with its backends, for test_loader.py: probe LIBAMP [load|lazy|threads]
 *   load     asks for the backend before the products (default)
 *   lazy     leaves that to the first product
 *   threads  eight threads ask at once
 * Prints lines "name=value".
 */
#include "amp_kernels.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 64, THREADS = 8 };

static struct {
    amp_status (*load)(const char *);
    amp_status (*list)(amp_backend_info *, size_t, size_t *);
    amp_status (*matmul)(const amp_matmul_args *);
    amp_status (*explain)(const amp_matmul_args *, char *, size_t, size_t *);
    const char *(*last_error)(void);
} amp;

static void take(void *library, const char *name, void *slot) {
    void *symbol = dlsym(library, name);
    if (!symbol) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    memcpy(slot, &symbol, sizeof symbol);
}

static float a[N * N], b[N * N], d[N * N];

/* Ones times ones: every element is N, unless the fake left its mark. */
static void print_product(const char *name, int32_t backend, int64_t size) {
    char text[512] = "";
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    for (int i = 0; i < N * N; i++) a[i] = b[i] = 1.0f, d[i] = -1.0f;
    g.a_dtype = g.b_dtype = g.d_dtype = AMP_FLOAT32;
    g.m = g.n = g.k = size, g.a = a, g.b = b, g.d = d, g.backend = backend;
    const amp_status status = amp.matmul(&g);
    printf("%s.status=%d\n%s.d=%g\n%s.error=%s\n", name, (int)status, name, (double)d[0], name,
           status == AMP_OK ? "" : amp.last_error());
    const amp_status explained = amp.explain(&g, text, sizeof text, NULL);
    printf("%s.explain=%s\n", name, explained == AMP_OK ? text : amp.last_error());
}

static void print_backends(const char *when) {
    amp_backend_info infos[8] = { AMP_BACKEND_INFO_INIT };
    size_t count = 0;
    if (amp.list(infos, 8, &count) != AMP_OK) exit(3);
    for (size_t i = 0; i < count; i++)
        printf("%s.%s.state=%d\n%s.%s.version=%s\n%s.%s.file=%s\n%s.%s.text=%s\n", when, infos[i].name,
               (int)infos[i].state, when, infos[i].name, infos[i].version, when, infos[i].name, infos[i].file, when,
               infos[i].name, infos[i].text);
}

static pthread_barrier_t start;

static void *load_on_thread(void *status) {
    pthread_barrier_wait(&start);
    *(amp_status *)status = amp.load("onednn");
    return NULL;
}

static void load_on_threads(void) {
    pthread_t threads[THREADS];
    amp_status statuses[THREADS];
    int same = 1;
    if (pthread_barrier_init(&start, NULL, THREADS)) exit(4);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, load_on_thread, &statuses[i])) exit(4);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) same &= statuses[i] == statuses[0];
    printf("threads.same=%d\n", same);
}

int main(int argc, char **argv) {
    const char *how = argc > 2 ? argv[2] : "load";
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "usage: probe LIBAMP [load|lazy|threads]");
        return 2;
    }
    take(library, "amp_backend_load", &amp.load);
    take(library, "amp_get_backends", &amp.list);
    take(library, "amp_matmul", &amp.matmul);
    take(library, "amp_matmul_explain", &amp.explain);
    take(library, "amp_last_error", &amp.last_error);
    printf("unknown=%d\nunknown.error=%s\n", (int)amp.load("nobody"), amp.last_error());
    print_backends("before");
    print_product("small", AMP_MATMUL_AUTO, 4);
    print_backends("small");
    if (!strcmp(how, "threads")) load_on_threads();
    if (strcmp(how, "lazy")) {
        const amp_status status = amp.load("onednn");
        printf("load=%d\nload.error=%s\n", (int)status, status == AMP_OK ? "" : amp.last_error());
        setenv("AMP_BACKEND_PATH", "/nowhere", 1); /* what was tried stays */
        printf("again=%d\n", (int)amp.load("onednn"));
    } else {
        (void)!amp.load("nobody"); /* leaves words that a product must not touch */
        print_product("lazy", AMP_MATMUL_AUTO, N);
        printf("lazy.last=%s\n", amp.last_error());
    }
    print_backends("after");
    print_product("auto", AMP_MATMUL_AUTO, N);
    print_product("builtin", AMP_MATMUL_BUILTIN, N);
    print_product("named", AMP_MATMUL_ONEDNN, N);
    return 0;
}
