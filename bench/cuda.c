/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda.h"
#include "bench.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

void *bench_cuda_stream;

/* The driver's functions, with their types as in cuda.h, which a machine with a driver alone has not. */
static struct {
    int (*init)(unsigned), (*version)(int *), (*device_get)(int *, int), (*name)(char *, int, int);
    int (*retain)(void **, int), (*set_current)(void *), (*stream_create)(void **, unsigned), (*stream_wait)(void *);
    int (*alloc)(uint64_t *, size_t), (*fill)(uint64_t, unsigned char, size_t);
} driver;

static char words[256];

static bool take_functions(void *library) {
    const struct {
        const char *name;
        void *member;
    } functions[] = {
        { "cuInit", &driver.init },
        { "cuDriverGetVersion", &driver.version },
        { "cuDeviceGet", &driver.device_get },
        { "cuDeviceGetName", &driver.name },
        { "cuDevicePrimaryCtxRetain", &driver.retain },
        { "cuCtxSetCurrent", &driver.set_current },
        { "cuStreamCreate", &driver.stream_create },
        { "cuStreamSynchronize", &driver.stream_wait },
        { "cuMemAlloc_v2", &driver.alloc },
        { "cuMemsetD8_v2", &driver.fill },
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(library, functions[i].name);
        if (!symbol) return false;
        memcpy(functions[i].member, &symbol, sizeof symbol);
    }
    return true;
}

const char *bench_cuda_start(void) {
    enum { NON_BLOCKING = 1 };
    void *context, *library = dlopen("libcuda.so.1", RTLD_NOW);
    int first, version = 0;
    char name[128] = "";
    if (!library) return "there is no NVIDIA driver (libcuda.so.1)";
    if (!take_functions(library)) return "the NVIDIA driver is too old";
    if (driver.init(0) || driver.device_get(&first, 0)) return "there is no NVIDIA GPU";
    if (driver.retain(&context, first) || driver.set_current(context)) return "the GPU gives no context";
    if (driver.stream_create(&bench_cuda_stream, NON_BLOCKING)) return "the GPU gives no stream";
    (void)driver.name(name, (int)sizeof name, first), (void)driver.version(&version);
    snprintf(words, sizeof words, "%s, driver for CUDA %d.%d", name, version / 1000, version % 1000 / 10);
    return NULL;
}

const char *bench_cuda_name(void) { return words; }

void *bench_cuda_memory(size_t bytes, unsigned char value) {
    uint64_t address = 0;
    bench_must(driver.alloc(&address, bytes), "memory of the GPU");
    bench_must(driver.fill(address, value, bytes), "writing the GPU's memory");
    return (void *)(uintptr_t)address;
}

void bench_cuda_wait(void) { bench_must(driver.stream_wait(bench_cuda_stream), "the GPU's work"); }
