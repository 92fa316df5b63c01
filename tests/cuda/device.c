/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"
#include "capability.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct device device;

/* The driver's functions, with their types as in cuda.h, which a machine with a driver alone has not. */
static struct {
    int (*init)(unsigned), (*device_get)(int *, int), (*retain)(void **, int), (*set_current)(void *);
    int (*managed)(uint64_t *, size_t, unsigned), (*stream_create)(void **, unsigned), (*stream_wait)(void *);
    int (*capture_begin)(void *, int), (*capture_end)(void *, void **),
        (*instantiate)(void **, void *, unsigned long long);
    int (*graph_launch)(void *, void *);
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
        !take(&driver.stream_wait, "cuStreamSynchronize") || !take(&driver.capture_begin, "cuStreamBeginCapture_v2") ||
        !take(&driver.capture_end, "cuStreamEndCapture") || !take(&driver.instantiate, "cuGraphInstantiateWithFlags") ||
        !take(&driver.graph_launch, "cuGraphLaunch"))
        return "the NVIDIA driver is too old";
    if (driver.init(0) || driver.device_get(&first, 0)) return "there is no NVIDIA GPU";
    if (driver.retain(&context, first) || driver.set_current(context)) return "the GPU gives no context";
    return driver.stream_create(&device.stream, NON_BLOCKING) ? "the GPU gives no stream" : NULL;
}

static const char *start_fake(void) {
    char path[1024];
    if (amp_backend_load("cuda") != AMP_OK) return amp_last_error();
    snprintf(path, sizeof path, "%s/libamp_cuda.so", getenv("AMP_BACKEND_PATH"));
    library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    device.fake = library ? dlsym(library, FAKE_SYMBOL_NAME) : NULL;
    device.tools = library ? dlsym(library, FAKE_TOOLS_NAME) : NULL;
    if (!device.fake || !device.tools) return "the plugin is not the fake one";
    device.stream = device.tools->stream(0);
    device.second_stream = device.tools->stream(1);
    void *blas = getenv("AMP_CUBLASLT") ? dlopen(getenv("AMP_CUBLASLT"), RTLD_NOW) : NULL;
    device.blas = blas ? dlsym(blas, FAKE_BLAS_SYMBOL_NAME) : NULL;
    if (device.blas) device.blas->work = device.tools->work_on, device.blas->written = device.tools->written;
    return device.blas ? NULL : "AMP_CUBLASLT is not the fake cuBLASLt";
}

const char *device_start(int real) { return real ? start_gpu() : start_fake(); }


void *device_alloc(size_t bytes) {
    enum { GLOBAL = 1 };
    uint64_t address = 0;
    void *memory = NULL;
    if (device.fake) {
        memory = device.tools->managed(bytes);
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

static void *executable;

void device_capture_begin(void) {
    enum { THREAD_LOCAL = 1 };
    if (device.fake) device.tools->capture_begin();
    else ck_assert_int_eq(driver.capture_begin(device.stream, THREAD_LOCAL), 0);
}

void device_capture_end(void) {
    void *graph = NULL;
    if (device.fake) {
        device.tools->capture_end();
        return;
    }
    ck_assert_int_eq(driver.capture_end(device.stream, &graph), 0);
    ck_assert_int_eq(driver.instantiate(&executable, graph, 0), 0);
}

void device_replay(void) {
    if (device.fake) device.tools->replay();
    else ck_assert_int_eq(driver.graph_launch(executable, device.stream), 0);
}

void device_lazily(void) {
    if (device.fake) *device.fake = (struct fake){ .devices = 2, .pools = 1, .lazy = 1, .blocks = device.fake->blocks,
                                                   .streams = device.fake->streams };
}

void device_at_once(void) {
    if (!device.fake) return;
    device.tools->flush();
    ck_assert_int_eq(device.fake->on_null_stream, 0);
    ck_assert_int_eq(device.fake->on_wrong_device, 0);
    ck_assert_int_eq(device.fake->strays, 0);
    device.fake->lazy = 0;
}

static const char *const *files_alone;

static int is_alone(const char *file) {
    for (const char *const *name = files_alone; *name; name++)
        if (strstr(file, *name)) return 1;
    return 0;
}

static int is_shared(const char *file) { return !is_alone(file); }

int device_main(int argc, char **argv, const char *const *fake_alone) {
    const int real = argc > 1 && argv[1][0] == 'g';
    const char *why = argc > 2 ? argv[2] : device_start(real);
    const char *gpu = getenv("AMP_TEST_GPU");
    if (why && gpu && !strcmp(gpu, "required")) {
        printf("1..1\nnot ok 1 - AMP_TEST_GPU=required, and %s\n", why);
        return EXIT_FAILURE;
    }
    if (why && (real || argc > 2)) {
        printf("1..0 # SKIP %s\n", why);
        return 0;
    }
    if (why) {
        fprintf(stderr, "%s\n", why);
        return EXIT_FAILURE;
    }
    printf("# AMP_TEST_SEED=%llu\n", (unsigned long long)test_seed());
    fflush(stdout);
    files_alone = fake_alone;
    const bool every = argc < 2 || !strcmp(argv[1], "fake");
    /* here: a child could not use CUDA */
    return suite_run_here(every ? NULL : strcmp(argv[1], "alone") ? is_shared : is_alone);
}
