/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda.h"
#include "digits.h"
#include "memory.h"

#include <amp_kernels.h>

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *bench_cuda_stream;

static const unsigned char ordinary = 0x38; /* fp32 and bf16 4e-5, fp16 0.5 */

/* The driver's functions, with their types as in cuda.h, which a machine with a driver alone has not. */
static struct {
    int (*init)(unsigned), (*version)(int *), (*device_get)(int *, int), (*name)(char *, int, int);
    int (*attribute)(int *, int, int), (*memory)(size_t *, size_t *);
    int (*retain)(void **, int), (*set_current)(void *), (*stream_create)(void **, unsigned), (*stream_wait)(void *);
    int (*alloc)(uint64_t *, size_t), (*fill)(uint64_t, unsigned char, size_t, void *);
    int (*write)(uint64_t, const void *, size_t, void *), (*copy)(uint64_t, uint64_t, size_t, void *);
    int (*event_create)(void **, unsigned), (*event_record)(void *, void *), (*event_wait)(void *);
    int (*event_elapsed)(float *, void *, void *);
    int (*capture_begin)(void *, int), (*capture_end)(void *, void **);
    int (*graph_make)(void **, void *, unsigned long long), (*graph_launch)(void *, void *);
} driver;

static void *clock_events[2];

static bool take_functions(void *library) {
    const struct {
        const char *name;
        void *member;
    } functions[] = {
        { "cuInit", &driver.init },
        { "cuDriverGetVersion", &driver.version },
        { "cuDeviceGet", &driver.device_get },
        { "cuDeviceGetName", &driver.name },
        { "cuDeviceGetAttribute", &driver.attribute },
        { "cuMemGetInfo_v2", &driver.memory },
        { "cuDevicePrimaryCtxRetain", &driver.retain },
        { "cuCtxSetCurrent", &driver.set_current },
        { "cuStreamCreate", &driver.stream_create },
        { "cuStreamSynchronize", &driver.stream_wait },
        { "cuMemAlloc_v2", &driver.alloc },
        { "cuMemsetD8Async", &driver.fill },
        { "cuMemcpyHtoDAsync_v2", &driver.write },
        { "cuMemcpyDtoDAsync_v2", &driver.copy },
        { "cuEventCreate", &driver.event_create },
        { "cuEventRecord", &driver.event_record },
        { "cuEventSynchronize", &driver.event_wait },
        { "cuEventElapsedTime", &driver.event_elapsed },
        { "cuStreamBeginCapture_v2", &driver.capture_begin },
        { "cuStreamEndCapture", &driver.capture_end },
        { "cuGraphInstantiateWithFlags", &driver.graph_make },
        { "cuGraphLaunch", &driver.graph_launch },
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(library, functions[i].name);
        if (!symbol) return false;
        memcpy(functions[i].member, &symbol, sizeof symbol);
    }
    return true;
}

/* The one that counts its waits (waits/), which is not installed. */
static void counting_plugin(void) {
    char path[4096], file[sizeof path + 32];
    const char *folder = beside_program(path, sizeof path, "waits");
    snprintf(file, sizeof file, "%s/libamp_cuda.so", folder);
    if (access(file, R_OK) == 0) setenv("AMP_BACKEND_PATH", folder, 0);
}

const char *bench_cuda_start(void) {
    enum { NON_BLOCKING = 1 };
    void *context, *library = dlopen("libcuda.so.1", RTLD_NOW);
    int first;
    if (!library) return "there is no NVIDIA driver (libcuda.so.1)";
    if (!take_functions(library)) return "the NVIDIA driver is too old";
    if (driver.init(0) || driver.device_get(&first, 0)) return "there is no NVIDIA GPU";
    if (driver.retain(&context, first) || driver.set_current(context)) return "the GPU gives no context";
    if (driver.stream_create(&bench_cuda_stream, NON_BLOCKING)) return "the GPU gives no stream";
    for (int i = 0; i < 2; i++)
        if (driver.event_create(&clock_events[i], 0)) return "the GPU gives no event";
    counting_plugin();
    return amp_backend_load("cuda") == AMP_OK ? NULL : amp_last_error();
}

/* ---- what it is ---- */

/* The first word with a digit and a dot: "580.65.06". */
static void print_driver(void) {
    char line[256] = "";
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    if (file && !fgets(line, sizeof line, file)) *line = '\0';
    if (file) fclose(file);
    for (const char *word = strtok(line, " \t\n"); word; word = strtok(NULL, " \t\n"))
        if (*word >= '0' && *word <= '9' && strchr(word, '.')) {
            printf("driver: %s\n", word);
            return;
        }
}

void bench_cuda_print(void) {
    enum { SMS = 16, L2_BYTES = 38, MAJOR = 75, MINOR = 76 }; /* CUdevice_attribute */
    int values[4] = { 0 };
    const int attributes[] = { SMS, L2_BYTES, MAJOR, MINOR };
    char name[128] = "";
    size_t available = 0, total = 0, n = 0;
    (void)driver.name(name, (int)sizeof name, 0), (void)driver.memory(&available, &total);
    for (int i = 0; i < 4; i++) (void)driver.attribute(&values[i], attributes[i], 0);
    printf("GPU: %s, compute capability %d.%d, %d multiprocessors, L2 %d KiB, %.1f GiB, of which free %.1f\n", name,
           values[2], values[3], values[0], values[1] / 1024, (double)total * 0x1p-30, (double)available * 0x1p-30);
    print_driver();
    amp_backend_info infos[8] = { AMP_BACKEND_INFO_INIT };
    bench_must(amp_get_backends(infos, 8, &n), "amp_get_backends");
    for (size_t i = 0; i < n && i < 8; i++)
        if (!strcmp(infos[i].name, "cuda")) printf("toolkit: %s\n", infos[i].version);
    printf("tensors: %.4g MB\n", (double)bench_cuda_arena().bytes * 1e-6);
}

/* ---- memory ---- */

static uint64_t address_of(const void *memory) { return (uint64_t)(uintptr_t)memory; }

static void fill(void *memory, unsigned char value, size_t bytes) {
    bench_must(driver.fill(address_of(memory), value, bytes, bench_cuda_stream), "writing the GPU's memory");
    bench_cuda_wait();
}

void *bench_cuda_memory(size_t bytes, unsigned char value) {
    uint64_t address = 0;
    bench_must(driver.alloc(&address, bytes), "memory of the GPU");
    fill((void *)(uintptr_t)address, value, bytes);
    return (void *)(uintptr_t)address;
}

void bench_cuda_write(void *dst, const void *src, size_t bytes) {
    bench_must(driver.write(address_of(dst), src, bytes, bench_cuda_stream), "writing the GPU's memory");
    bench_cuda_wait();
}

void bench_cuda_copy(void *dst, const void *src, size_t bytes) {
    bench_must(driver.copy(address_of(dst), address_of(src), bytes, bench_cuda_stream), "copying the GPU's memory");
}

struct bench_arena bench_cuda_arena(void) {
    static struct bench_arena arena;
    const size_t gaps = (size_t)BENCH_CUDA_GAP * BENCH_CUDA_GAPS;
    size_t available = 0, total = 0;
    if (!arena.memory) { /* products, a peer's process and its tensors want as much */
        bench_must(driver.memory(&available, &total), "the size of the GPU's memory");
        arena.bytes = bench_bytes < available / 4 ? bench_bytes : available / 4;
        arena.memory = bench_cuda_memory(arena.bytes + gaps, ordinary);
    }
    fill(arena.memory, ordinary, arena.bytes + gaps);
    return arena;
}

void bench_cuda_copies(void *data) {
    const struct bench_copies *c = data;
    const size_t half = c->arena.bytes / 2;
    for (size_t left = (size_t)(c->moved / 2); left > 0;) {
        const size_t now = left < half ? left : half;
        bench_cuda_copy(c->arena.memory + half, c->arena.memory, now);
        left -= now;
    }
}

/* ---- time ---- */

void bench_cuda_wait(void) { bench_must(driver.stream_wait(bench_cuda_stream), "the GPU's work"); }

void bench_cuda_clock_start(void) {
    bench_cuda_wait();
    bench_must(driver.event_record(clock_events[0], bench_cuda_stream), "an event of the GPU's");
}

double bench_cuda_clock_stop(void) {
    float milliseconds = 0.0f;
    bench_must(driver.event_record(clock_events[1], bench_cuda_stream), "an event of the GPU's");
    bench_must(driver.event_wait(clock_events[1]), "the GPU's work");
    bench_must(driver.event_elapsed(&milliseconds, clock_events[0], clock_events[1]), "the GPU's clock");
    return (double)milliseconds * 1e-3;
}

/* ---- graphs ---- */

void *bench_cuda_graph(void (*work)(void *data), void *data) {
    enum { RELAXED = 2 };
    void *graph = NULL, *made = NULL;
    bench_cuda_wait();
    bench_must(driver.capture_begin(bench_cuda_stream, RELAXED), "capturing the stream");
    work(data);
    bench_must(driver.capture_end(bench_cuda_stream, &graph) || driver.graph_make(&made, graph, 0), "a graph");
    return made;
}

void bench_cuda_launch(void *graph) {
    bench_must(driver.graph_launch(graph, bench_cuda_stream), "launching a graph");
}
