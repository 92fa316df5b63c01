/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_work.h"
#include "transfer.h"

#include <cuda_runtime_api.h>

#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) struct fake amp_fake_cuda = { .devices = 2, .pools = 1 };

#define F amp_fake_cuda

/* whatever a handle points to, by device: of hosts; of libamp, for what is no part of a graph; and beside hosts' */
static int streams[2], own[2], sides[2];

cudaError_t fake_called(void) {
    F.calls++;
    if (!F.fail_at || (F.sticky ? F.calls < F.fail_at : F.calls != F.fail_at)) return cudaSuccess;
    F.last_error = F.fail_with;
    return (cudaError_t)F.fail_with;
}
int fake_is_lost(void) { return F.sticky && F.fail_at && F.calls >= F.fail_at; }
/* Of what ends things: it counts as no call, and what it ends is gone even where the device is lost. */
static cudaError_t ended(void) { return fake_is_lost() ? (cudaError_t)F.fail_with : cudaSuccess; }

#define CALLED() \
    do { \
        const cudaError_t called_error_ = fake_called(); \
        if (called_error_ != cudaSuccess) return called_error_; \
    } while (0)

/* What a capture forbids, but to a thread that said it knows. */
static void forbidden_in_capture(void) { F.broke_capture += (F.capturing || F.capturing_elsewhere) && !F.relaxed; }
static void on_stream(cudaStream_t stream) { fake_on_stream(stream); }

void *fake_stream(int device) { return &streams[device]; }
void *fake_side(int device) { return &sides[device]; }
static int is_side(const void *stream) { return stream == &sides[0] || stream == &sides[1]; }
/* What needs a context makes the primary one, and it stays current. */
static void bind(void) {
    F.contexts[F.current] = 1;
    F.unbound = 0;
}
void fake_on_stream(const void *stream) {
    const int other = !F.current;
    bind();
    F.on_null_stream += stream == NULL;
    F.on_wrong_device += stream == &streams[other] || stream == &own[other] || stream == &sides[other];
    F.broke_capture += F.capturing && is_side(stream) && !F.side_joined;
    fake_use_stream(stream);
}

/* ---- devices, errors ---- */

cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *count) {
    CALLED();
    return *count = F.devices, cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    CALLED();
    return *device = F.current, cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    CALLED();
    F.current = device;
    F.switches++;
    bind();
    return cudaSuccess;
}
static int get_current(void **context) {
    *context = F.unbound ? NULL : &F.contexts[F.current];
    return 0;
}
static int set_current(void *context) {
    F.unbound = !context;
    F.current = context == &F.contexts[1];
    return 0;
}
static cudaError_t driver_function(const char *name, void **function) {
    int (*const get)(void **) = get_current, (*const set)(void *) = set_current;
    if (!strcmp(name, "cuCtxGetCurrent")) memcpy(function, &get, sizeof *function);
    else if (!strcmp(name, "cuCtxSetCurrent")) memcpy(function, &set, sizeof *function);
    else return cudaErrorSymbolNotFound;
    return cudaSuccess;
}
#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    (void)version, (void)flags, (void)result;
    return driver_function(name, function);
}
#else
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result) {
    (void)flags, (void)result;
    return driver_function(name, function);
}
#endif
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    const int capability = F.capability ? F.capability : 90;
    (void)device;
    CALLED();
    *value = attribute == cudaDevAttrMemoryPoolsSupported           ? F.pools
             : attribute == cudaDevAttrComputeCapabilityMajor ? capability / 10
             : attribute == cudaDevAttrComputeCapabilityMinor ? capability % 10
                                                              : 0;
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void) {
    const cudaError_t error = (cudaError_t)F.last_error;
    if (!fake_is_lost()) F.last_error = cudaSuccess;
    return error;
}
const char *cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "a fake error"; }
const char *cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "cudaErrorOfTheFake"; }

/* ---- memory ---- */

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) {
    const int device = fake_device_of(address);
    CALLED();
    *attributes = (struct cudaPointerAttributes){ .type = device >= 0             ? cudaMemoryTypeDevice
                                                          : fake_shadow(address) ? cudaMemoryTypeManaged
                                                                                 : cudaMemoryTypeUnregistered,
                                                  .device = device < 0 ? F.current : device };
    return cudaSuccess;
}

static int out_of_memory(void) {
    if (++F.allocations != F.fail_allocation) return 0;
    F.last_error = cudaErrorMemoryAllocation;
    return 1;
}

static cudaError_t allocate(void **memory, size_t bytes) {
    CALLED();
    bind();
    if (out_of_memory()) return cudaErrorMemoryAllocation;
    *memory = fake_device_alloc(bytes);
    if (!*memory) return cudaErrorMemoryAllocation;
    fake_mark(*memory, bytes, FAKE_UNWRITTEN);
    F.blocks++;
    return cudaSuccess;
}
static void release(const void *given) {
    void *memory;
    size_t bytes;
    memcpy(&memory, given, sizeof memory);
    struct fake_pool *pool = fake_pool_of(memory, &bytes);
    if (pool) pool->kept += bytes;
    F.blocks -= memory != NULL;
    fake_device_free(memory);
}

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    forbidden_in_capture();
    return allocate(memory, bytes);
}
/* The devices' own, and those that were made. */
enum { POOLS = 8 };
static struct fake_pool pools[2 + POOLS];
static int n_pools;

/* Somebody waits: what is more than it keeps is given back. */
void fake_synchronize(void) {
    fake_flush();
    for (int i = 0; i < 2 + n_pools; i++)
        if (pools[i].kept > pools[i].threshold) pools[i].kept = pools[i].threshold;
}

static cudaError_t allocate_from(struct fake_pool *pool, void **memory, size_t bytes) {
    const cudaError_t error = allocate(memory, bytes);
    if (error != cudaSuccess) return error;
    fake_set_pool(*memory, pool);
    (void)fake_pool_of(*memory, &bytes);
    F.mapped += pool->kept < bytes;
    pool->kept -= pool->kept < bytes ? pool->kept : bytes;
    return cudaSuccess;
}
cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t stream) {
    on_stream(stream);
    F.broke_capture += F.capturing; /* it would be a part of the graph */
    return allocate_from(&pools[F.current], memory, bytes);
}
cudaError_t cudaMallocFromPoolAsync(void **memory, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
    on_stream(stream);
    return allocate_from((void *)pool, memory, bytes);
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties) {
    CALLED();
    if (n_pools == POOLS || properties->location.id != F.current) return cudaErrorInvalidValue;
    pools[2 + n_pools] = (struct fake_pool){ 0, 0 };
    *pool = (void *)&pools[2 + n_pools++];
    return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
    if ((void *)pool == &pools[1 + n_pools]) n_pools--;
    return ended();
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    CALLED();
    if (attribute != cudaMemPoolAttrReleaseThreshold) return cudaErrorInvalidValue;
    memcpy(&((struct fake_pool *)(void *)pool)->threshold, value, sizeof(uint64_t));
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **memory, size_t bytes) {
    forbidden_in_capture();
    CALLED();
    if (out_of_memory()) return cudaErrorMemoryAllocation;
    *memory = malloc(bytes);
    if (!*memory) return cudaErrorMemoryAllocation;
    memset(*memory, 0xa5, bytes);
    F.blocks++;
    return cudaSuccess;
}
cudaError_t cudaFree(void *memory) {
    forbidden_in_capture();
    size_t bytes;
    if (!fake_pool_of(memory, &bytes)) fake_flush(); /* else it is freed under work that is still to come */
    release(&memory);
    return ended();
}
cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream) {
    on_stream(stream);
    fake_work(release, &memory, sizeof memory);
    return ended();
}
cudaError_t cudaFreeHost(void *memory) {
    F.blocks -= memory != NULL;
    free(memory);
    return ended();
}

static void copy_there(const void *given) {
    const struct transfer *copy = given;
    transfer_copy(copy);
    fake_mark(copy->dst, copy->bytes, FAKE_WRITTEN);
}
static void fill_there(const void *given) {
    const struct transfer *fill = given;
    transfer_fill(fill);
    fake_mark(fill->dst, fill->bytes, FAKE_WRITTEN);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    const struct transfer copy = { dst, src, bytes, 0 };
    on_stream(stream);
    CALLED();
    /* libamp's own: no part of a graph */
    if (stream == (cudaStream_t)(void *)&own[F.current]) fake_copy(dst, src, bytes);
    else fake_work(copy_there, &copy, sizeof copy);
    /* each replay would copy from or to what the host's memory is used for by then */
    F.broke_capture += F.capturing && kind != cudaMemcpyDeviceToDevice &&
        stream != (cudaStream_t)(void *)&own[F.current];
    F.uploads += kind == cudaMemcpyHostToDevice;
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream) {
    on_stream(stream);
    CALLED();
    const struct transfer set = { dst, NULL, bytes, value };
    if (stream == (cudaStream_t)(void *)&own[F.current]) fake_at_once(fill_there, &set);
    else fake_work(fill_there, &set, sizeof set);
    return cudaSuccess;
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    CALLED();
    bind();
    *stream = (cudaStream_t)(void *)&own[F.current];
    F.streams++;
    return cudaSuccess;
}
/* Only what overlaps with the host's stream asks for a priority. */
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    CALLED();
    *least = 0, *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    CALLED();
    bind();
    if (flags != cudaStreamNonBlocking || priority != -5) return cudaErrorInvalidValue;
    *stream = (cudaStream_t)(void *)&sides[F.current];
    F.streams++;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    (void)stream;
    F.streams--;
    return ended();
}
/* A wait that fails has waited: nothing is under way on a device that is lost. */
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    fake_synchronize();
    CALLED();
    forbidden_in_capture();
    if (F.capturing && stream != (cudaStream_t)(void *)&own[F.current]) {
        F.broke_capture++;
        F.last_error = cudaErrorStreamCaptureUnsupported;
        return cudaErrorStreamCaptureUnsupported;
    }
    F.waits++;
    return cudaSuccess;
}
/* The two that the plugin never calls; the bench counts them all the same. */
cudaError_t cudaDeviceSynchronize(void) { return cudaStreamSynchronize(NULL); }
cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind) {
    (void)kind;
    CALLED();
    fake_flush();
    fake_copy(dst, src, bytes);
    F.waits++;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    const int captured = F.capturing && (!is_side(stream) || F.side_joined);
    if (captured || !is_side(stream)) on_stream(stream);
    CALLED();
    *status = captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    const int before = F.relaxed;
    F.relaxed = *mode == cudaStreamCaptureModeRelaxed;
    *mode = before ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeGlobal;
    return cudaSuccess;
}
/* What an event points to. */
struct moment {
    float time;
    int awaited;  /* so many records that the stream has not come to */
    int destroyed; /* and is gone when it has */
    int captured;  /* its last record is a graph's: nobody outside can ask or wait for it */
    int recorded, reached; /* by how many records, and by which; for streams that wait */
    int of_side;   /* it was recorded where the host's work is not */
};
static void reach(const void *given) {
    struct moment *moment;
    memcpy(&moment, given, sizeof(void *));
    if (!--moment->awaited && moment->destroyed) free(moment);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    CALLED();
    struct moment *moment = calloc(1, sizeof *moment);
    if (!moment) return cudaErrorMemoryAllocation;
    *event = (cudaEvent_t)(void *)moment;
    F.streams++;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    struct moment *moment = (void *)event;
    moment->destroyed = 1;
    if (!moment->awaited) free(moment);
    F.streams--;
    return ended();
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    on_stream(stream);
    CALLED();
    struct moment *moment = (void *)event;
    moment->time = F.clock;
    moment->captured = F.capturing;
    moment->of_side = is_side(stream);
    fake_record(&moment->reached, ++moment->recorded);
    if (F.capturing) return cudaSuccess;
    moment->awaited++;
    fake_work(reach, &moment, sizeof(void *));
    return cudaSuccess;
}
/* A stream that waits for a captured one is captured too. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    struct moment *moment = (void *)event;
    (void)flags;
    CALLED();
    F.broke_capture += moment->captured != F.capturing;
    if (F.capturing && is_side(stream)) F.side_joined = 1;
    on_stream(stream);
    if (moment->recorded) fake_wait(&moment->reached, moment->recorded);
    if (F.capturing && moment->of_side && !is_side(stream)) F.side_dirty = 0;
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    CALLED();
    *milliseconds = ((struct moment *)(void *)end)->time - ((struct moment *)(void *)begin)->time;
    return cudaSuccess;
}
static cudaError_t captured_event(cudaEvent_t event) {
    if (!((struct moment *)(void *)event)->captured) return cudaSuccess;
    F.broke_capture++;
    F.last_error = cudaErrorCapturedEvent;
    return cudaErrorCapturedEvent;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    CALLED();
    forbidden_in_capture();
    if (captured_event(event) != cudaSuccess) return cudaErrorCapturedEvent;
    if (!((struct moment *)(void *)event)->awaited) return cudaSuccess;
    F.last_error = cudaErrorNotReady;
    return cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    CALLED();
    forbidden_in_capture();
    if (captured_event(event) != cudaSuccess) return cudaErrorCapturedEvent;
    F.event_waits++;
    if (((struct moment *)(void *)event)->awaited) fake_flush();
    return cudaSuccess;
}
