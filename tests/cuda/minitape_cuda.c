/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA that the demo's framework is built with in these tests: its calls of the runtime and its kernels, which
 * run on the fake device that libamp's plugin has, in the order of its one stream. The arithmetic of the kernels is the
 * framework's. */
#include "minitape_cuda_fake.h"
#include "fake_blas.h"
#include "transfer.h"

#include "cuda.h"
#include "layers.h"
#include "minitape_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct minitape_fake minitape_fake;

#define FAKE minitape_fake

/* ---- opening ---- */

static void *symbol(const char *file, const char *name) {
    void *library = file ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    return library ? dlsym(library, name) : NULL;
}

static int find_plugin(void) {
    char plugin[1024];
    const char *folder = getenv("AMP_BACKEND_PATH");
    if (FAKE.stream) return 1;
    snprintf(plugin, sizeof plugin, "%s/libamp_cuda.so", folder ? folder : "");
    FAKE.tools = symbol(plugin, FAKE_TOOLS_NAME);
    FAKE.amp = symbol(plugin, FAKE_SYMBOL_NAME);
    FAKE.stream = FAKE.tools && FAKE.amp ? FAKE.tools->stream(0) : NULL;
    return FAKE.stream != NULL;
}

static int opened_by_test;

static int find_both(void) {
    struct fake_blas *blas = symbol(getenv("MINITAPE_CUBLASLT"), FAKE_BLAS_SYMBOL_NAME);
    if (!find_plugin()) return 0;
    if (blas) blas->work = FAKE.tools->work_on, blas->written = FAKE.tools->written;
    return blas != NULL;
}

const char *minitape_fake_open(void) {
    opened_by_test = 1;
    if (!find_both()) return "the plugin or cuBLASLt is not the fake one";
    return mt_cuda_open() == 0 ? NULL : mt_error();
}

/* ---- devices, errors ---- */

cudaError_t cudaGetDeviceCount(int *count) {
    if (find_both() && !opened_by_test) FAKE.amp->lazy = 1; /* a program that knows nothing of minitape_fake_open */
    *count = FAKE.stream != NULL;
    return *count ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    (void)device;
    *value = attribute == cudaDevAttrMemoryPoolsSupported;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    (void)device;
    strcpy(properties->name, "a fake GPU");
    return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    (void)device;
    *pool = NULL;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    (void)pool, (void)attribute, (void)value;
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t error) { return error ? "a fake error" : "no error"; }
const char *cudaGetErrorName(cudaError_t error) { return error ? "cudaErrorOfTheFake" : "cudaSuccess"; }

/* ---- memory ---- */

static void on_stream(cudaStream_t stream) {
    if (stream != (cudaStream_t)FAKE.stream) abort(); /* the framework has one, which is libamp's too */
}

/* CUDA's pool: what is freed on a stream is there again at once for what comes later on it, and for nobody else. */
enum { POOL = 8192 };
static struct {
    void *memory;
    size_t bytes;
    int used;
} pool[POOL];
static int n_pool;

static void *from_pool(size_t bytes) {
    for (int i = 0; i < n_pool; i++)
        if (!pool[i].used && pool[i].bytes == bytes) {
            pool[i].used = 1;
            return pool[i].memory;
        }
    if (n_pool == POOL) return NULL;
    pool[n_pool].memory = FAKE.tools->take(bytes);
    pool[n_pool].bytes = bytes;
    pool[n_pool].used = 1;
    return pool[n_pool].memory ? pool[n_pool++].memory : NULL;
}

/* With a pattern that is no number of anybody's. */
static cudaError_t allocate(void **memory, size_t bytes) {
    *memory = from_pool(bytes);
    const struct transfer pattern = { *memory, NULL, bytes, 0xff };
    if (!*memory) return cudaErrorMemoryAllocation;
    FAKE.blocks++;
    FAKE.tools->work(transfer_fill, &pattern, sizeof pattern);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes) { return allocate(memory, bytes); }
cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t stream) {
    on_stream(stream);
    if (++FAKE.calls == FAKE.fail_at) return cudaErrorMemoryAllocation;
    return allocate(memory, bytes);
}
cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream) {
    on_stream(stream);
    for (int i = 0; i < n_pool; i++)
        if (pool[i].memory == memory && pool[i].used) {
            pool[i].used = 0;
            FAKE.blocks--;
            return cudaSuccess;
        }
    return cudaErrorInvalidValue;
}
cudaError_t cudaMallocHost(void **memory, size_t bytes) {
    *memory = malloc(bytes);
    return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void *memory) {
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    const struct transfer copy = { dst, src, bytes, 0 };
    (void)kind;
    on_stream(stream);
    FAKE.tools->work(transfer_copy, &copy, sizeof copy);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream) {
    const struct transfer copy = { dst, NULL, bytes, value };
    on_stream(stream);
    FAKE.tools->work(transfer_fill, &copy, sizeof copy);
    return cudaSuccess;
}

/* ---- streams and events: an event is whether it has come ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    *stream = (cudaStream_t)FAKE.stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    on_stream(stream);
    FAKE.waits++;
    FAKE.tools->flush();
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    static int come[64], n;
    (void)flags;
    if (n == 64) return cudaErrorMemoryAllocation;
    come[n] = 1;
    *event = (cudaEvent_t)(void *)&come[n++];
    return cudaSuccess;
}
static void run_event(const void *given) {
    int *come;
    memcpy(&come, given, sizeof come);
    *come = 1;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    int *come = (int *)(void *)event;
    on_stream(stream);
    *come = 0;
    FAKE.tools->work(run_event, &come, sizeof come);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (*(const int *)(const void *)event) return cudaSuccess;
    FAKE.event_waits++;
    FAKE.tools->flush();
    return cudaSuccess;
}

/* ---- kernels.cu ---- */

#define EACH(name)                                                                                                     \
    struct call_##name {                                                                                               \
        mtk_args_##name args;                                                                                          \
        size_t n;                                                                                                      \
    };                                                                                                                 \
    static void run_##name(const void *given) {                                                                        \
        const struct call_##name *call = given;                                                                        \
        for (size_t i = 0; i < call->n; i++) mtk_each_##name(&call->args, i);                                          \
    }
#define ROWS(name)                                                                                                     \
    struct call_##name {                                                                                               \
        mtk_args_##name args;                                                                                          \
        size_t n;                                                                                                      \
    };                                                                                                                 \
    static void run_##name(const void *given) {                                                                        \
        const struct call_##name *call = given;                                                                        \
        for (size_t row = 0; row < call->n; row++) {                                                                   \
            double shares[MTK_THREADS][2] = { { 0.0 } };                                                               \
            for (size_t thread = 0; thread < MTK_THREADS; thread++)                                                    \
                mtk_share_##name(&call->args, row, thread, shares[thread]);                                            \
            for (size_t half = MTK_THREADS / 2; half; half /= 2)                                                       \
                for (size_t thread = 0; thread < half; thread++)                                                       \
                    for (int s = 0; s < 2; s++) shares[thread][s] += shares[thread + half][s];                         \
            mtk_finish_##name(&call->args, row, shares[0]);                                                            \
        }                                                                                                              \
    }
MTK_KERNELS(EACH, ROWS)

#define START(name)                                                                                                    \
    case MTK_##name: {                                                                                                 \
        const struct call_##name call = { *(const mtk_args_##name *)args, n };                                         \
        FAKE.tools->work(run_##name, &call, sizeof call);                                                              \
        break;                                                                                                         \
    }

cudaError_t mtc_launch(enum mtk_kernel kernel, const void *args, size_t n, cudaStream_t stream) {
    on_stream(stream);
    FAKE.launches++;
    FAKE.launched[kernel]++;
    if (FAKE.launches == FAKE.fail_launch) return cudaErrorLaunchFailure;
    switch (kernel) {
        MTK_KERNELS(START, START)
    default: return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}
