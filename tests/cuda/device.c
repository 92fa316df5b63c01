/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"
#include "capability.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device device;

/* The driver's functions, with their types as in cuda.h, which a machine with a driver alone has not. */
static struct {
    int (*init)(unsigned), (*device_get)(int *, int), (*retain)(void **, int), (*set_current)(void *);
    int (*managed)(uint64_t *, size_t, unsigned), (*stream_create)(void **, unsigned), (*stream_wait)(void *);
} driver;

static void *library;

static int take(void *slot, const char *name) {
    void *symbol = dlsym(library, name);
    memcpy(slot, &symbol, sizeof symbol);
    return symbol != NULL;
}

static const char *start_gpu(void) {
    enum { NON_BLOCKING = 1 };
    void *context;
    int first;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return "there is no NVIDIA driver";
    if (!take(&driver.init, "cuInit") || !take(&driver.device_get, "cuDeviceGet") ||
        !take(&driver.retain, "cuDevicePrimaryCtxRetain") || !take(&driver.set_current, "cuCtxSetCurrent") ||
        !take(&driver.managed, "cuMemAllocManaged") || !take(&driver.stream_create, "cuStreamCreate") ||
        !take(&driver.stream_wait, "cuStreamSynchronize"))
        return "the NVIDIA driver is too old";
    if (driver.init(0) || driver.device_get(&first, 0)) return "there is no NVIDIA GPU";
    if (driver.retain(&context, first) || driver.set_current(context)) return "the GPU gives no context";
    return driver.stream_create(&device.stream, NON_BLOCKING) ? "the GPU gives no stream" : NULL;
}

static const char *start_fake(void) {
    static int stream;
    char path[1024];
    if (amp_backend_load("cuda") != AMP_OK) return amp_last_error();
    snprintf(path, sizeof path, "%s/libamp_cuda.so", getenv("AMP_BACKEND_PATH"));
    library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    device.fake = library ? dlsym(library, FAKE_SYMBOL_NAME) : NULL;
    device.tools = library ? dlsym(library, FAKE_TOOLS_NAME) : NULL;
    device.stream = &stream;
    if (!device.fake || !device.tools) return "the plugin is not the fake one";
    void *blas = getenv("AMP_CUBLASLT") ? dlopen(getenv("AMP_CUBLASLT"), RTLD_NOW) : NULL;
    device.blas = blas ? dlsym(blas, FAKE_BLAS_SYMBOL_NAME) : NULL;
    if (device.blas) device.blas->work = device.tools->work;
    return device.blas ? NULL : "AMP_CUBLASLT is not the fake cuBLASLt";
}

const char *device_start(int real) { return real ? start_gpu() : start_fake(); }

enum { BLOCKS = 4096 };
static void *blocks[BLOCKS];
static int n_blocks;

void device_end(void) {
    while (device.fake && n_blocks) free(blocks[--n_blocks]);
}

void *device_alloc(size_t bytes) {
    enum { GLOBAL = 1 };
    uint64_t address = 0;
    void *memory = NULL;
    if (device.fake) {
        ck_assert_int_lt(n_blocks, BLOCKS);
        memory = blocks[n_blocks++] = aligned_alloc(256, (bytes + 256) / 256 * 256);
    } else {
        ck_assert_int_eq(driver.managed(&address, bytes + 1, GLOBAL), 0);
        memory = (void *)(uintptr_t)address;
    }
    ck_assert_ptr_nonnull(memory);
    return memset(memory, 0, bytes);
}

void device_set_capability(int capability) { device.fake->capability = capability; }

void device_wait(void) {
    if (!device.fake) ck_assert_int_eq(driver.stream_wait(device.stream), 0);
}
