/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 of the tests, over the fake libamp_cuda.so in the last folder of AMP_BACKEND_PATH: as much of the
 * driver as programs take that have no CUDA of their own. Work runs when somebody waits for it, in its order, and an
 * event reads the clock on the wall then: of a GPU it measures nothing, of the host's own time all but launches.
 */
#include "fake.h"
#include "fake_blas.h"
#include "transfer.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

static const struct fake_tools *tools;
static int stream, context;
enum { OK, INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100, EVENTS = 64 };

/* ---- devices ---- */

EXPORT int cuInit(unsigned flags);
EXPORT int cuInit(unsigned flags) {
    const char *folder = getenv("AMP_BACKEND_PATH"), *products = getenv("AMP_CUBLASLT");
    char path[1024];
    (void)flags;
    if (folder && strrchr(folder, ':')) folder = strrchr(folder, ':') + 1;
    snprintf(path, sizeof path, "%s/libamp_cuda.so", folder ? folder : "");
    void *plugin = dlopen(path, RTLD_NOW), *blas = products ? dlopen(products, RTLD_NOW) : NULL;
    tools = plugin ? dlsym(plugin, FAKE_TOOLS_NAME) : NULL;
    struct fake *device = plugin ? dlsym(plugin, FAKE_SYMBOL_NAME) : NULL;
    struct fake_blas *fake = blas ? dlsym(blas, FAKE_BLAS_SYMBOL_NAME) : NULL;
    if (tools && fake) fake->work = tools->work_on, fake->written = tools->written;
    if (device) device->lazy = 1;
    return tools && device ? OK : NO_DEVICE;
}

EXPORT int cuDriverGetVersion(int *version);
EXPORT int cuDriverGetVersion(int *version) { return *version = 13000, OK; }
EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal == 0 ? OK : INVALID; }
EXPORT int cuDeviceGetName(char *name, int capacity, int device);
EXPORT int cuDeviceGetName(char *name, int capacity, int device) {
    (void)device;
    snprintf(name, (size_t)capacity, "a fake GPU");
    return OK;
}
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    enum { CAPABILITY_MAJOR = 75 };
    (void)device;
    return *value = attribute == CAPABILITY_MAJOR ? 9 : 0, OK;
}
EXPORT int cuDevicePrimaryCtxRetain(void **made, int device);
EXPORT int cuDevicePrimaryCtxRetain(void **made, int device) { return (void)device, *made = &context, OK; }
EXPORT int cuCtxSetCurrent(void *given);
EXPORT int cuCtxSetCurrent(void *given) { return given == &context ? OK : INVALID; }

/* ---- memory ---- */

EXPORT int cuMemGetInfo_v2(size_t *available, size_t *total);
EXPORT int cuMemGetInfo_v2(size_t *available, size_t *total) { return *available = *total = (size_t)128 << 20, OK; }
EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes);
EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    void *memory = tools->alloc(bytes);
    *address = (uint64_t)(uintptr_t)memory;
    return memory ? OK : NO_MEMORY;
}

EXPORT int cuMemAllocManaged(uint64_t *address, size_t bytes, unsigned flags);
EXPORT int cuMemAllocManaged(uint64_t *address, size_t bytes, unsigned flags) {
    void *memory = tools->managed(bytes);
    (void)flags;
    *address = (uint64_t)(uintptr_t)memory;
    return memory ? OK : NO_MEMORY;
}

/* The one made here, or the demo's framework's; not the legacy default stream. */
static int is_stream(const void *on) { return on == &stream || (on && on == tools->stream(0)); }

static int work(void (*run)(const void *arguments), uint64_t dst, uint64_t src, size_t bytes, int value,
                const void *on) {
    const struct transfer copy = { (void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes, value };
    if (!is_stream(on)) return INVALID;
    tools->work(run, &copy, sizeof copy);
    return OK;
}

EXPORT int cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void *on);
EXPORT int cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void *on) {
    return work(transfer_fill, address, 0, bytes, value, on);
}
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, size_t bytes, void *on);
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, size_t bytes, void *on) {
    return work(transfer_copy, dst, src, bytes, 0, on);
}
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t bytes, void *on);
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t bytes, void *on) {
    tools->flush();
    tools->copy((void *)(uintptr_t)dst, src, bytes); /* of memory that is not pinned: it may change afterwards */
    return is_stream(on) ? OK : INVALID;
}

/* ---- streams and events ---- */

static double events[EVENTS];
static int n_events;

EXPORT int cuStreamCreate(void **made, unsigned flags);
EXPORT int cuStreamCreate(void **made, unsigned flags) { return (void)flags, *made = &stream, OK; }
EXPORT int cuStreamSynchronize(void *on);
EXPORT int cuStreamSynchronize(void *on) {
    tools->flush();
    return is_stream(on) ? OK : INVALID;
}
/* A capture's graph is the device's own: one at a time. */
EXPORT int cuStreamBeginCapture_v2(void *on, int mode);
EXPORT int cuStreamBeginCapture_v2(void *on, int mode) {
    (void)mode;
    if (!is_stream(on)) return INVALID;
    tools->capture_begin();
    return OK;
}
EXPORT int cuStreamEndCapture(void *on, void **graph);
EXPORT int cuStreamEndCapture(void *on, void **graph) {
    if (!is_stream(on)) return INVALID;
    tools->capture_end();
    return *graph = &context, OK;
}
EXPORT int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags);
EXPORT int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags) {
    (void)flags;
    return *made = graph, graph == &context ? OK : INVALID;
}
EXPORT int cuGraphLaunch(void *made, void *on);
EXPORT int cuGraphLaunch(void *made, void *on) {
    if (made != &context || !is_stream(on)) return INVALID;
    tools->replay();
    return OK;
}

EXPORT int cuEventCreate(void **event, unsigned flags);
EXPORT int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    if (n_events == EVENTS) return NO_MEMORY;
    *event = &events[n_events++];
    return OK;
}
static void run_event(const void *given) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    **(double *const *)given = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}
EXPORT int cuEventRecord(void *event, void *on);
EXPORT int cuEventRecord(void *event, void *on) {
    tools->work(run_event, &event, sizeof event);
    return is_stream(on) ? OK : INVALID;
}
EXPORT int cuEventSynchronize(void *event);
EXPORT int cuEventSynchronize(void *event) {
    tools->flush();
    return event ? OK : INVALID;
}
EXPORT int cuEventElapsedTime(float *milliseconds, const void *begin, const void *end);
EXPORT int cuEventElapsedTime(float *milliseconds, const void *begin, const void *end) {
    const float least = 1e-4f;
    *milliseconds = (float)(*(const double *)end - *(const double *)begin);
    if (*milliseconds < least) *milliseconds = least;
    return OK;
}
