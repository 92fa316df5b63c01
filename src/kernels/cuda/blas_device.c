/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/blas_device.h"
#include "kernels/cuda/blas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct amp__backend_host *amp;
static struct blas_device *devices; /* under the lock; entries are never taken away */
pthread_mutex_t cuda_blas_lock = PTHREAD_MUTEX_INITIALIZER;

void cuda_blas_device_init(const struct amp__backend_host *host) { amp = host; }

amp_status cuda_blas_explain(const struct blas_device *device, cublasStatus_t status, const char *what) {
    char text[300];
    if (status == CUBLAS_STATUS_SUCCESS) return AMP_OK;
    (void)cudaGetLastError(); /* must not appear as an error in the next CUDA call of the host */
    if (status == CUBLAS_STATUS_ALLOC_FAILED) return amp->fail(AMP_ERR_NO_MEMORY, "cuBLASLt: out of memory");
    const char *name = device->lt->cublasLtGetStatusName(status);
    const bool unsupported = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
    snprintf(text, sizeof text, "cuBLASLt %zu.%zu.%zu%s: %s (%s)", device->lt->version / 10000,
             device->lt->version / 100 % 100, device->lt->version % 100,
             unsupported ? " has no algorithm for this product" : " failed", name ? name : "?", what);
    return amp->fail(unsupported ? AMP_ERR_UNSUPPORTED : AMP_ERR_BACKEND, text);
}

/* ---- devices ---- */

static struct blas_device *find_device(int id) {
    pthread_mutex_lock(&cuda_blas_lock);
    struct blas_device *device = devices;
    while (device && device->device != id) device = device->next;
    pthread_mutex_unlock(&cuda_blas_lock);
    return device;
}

/* Adds it, unless another thread was faster. */
static struct blas_device *add_device(struct blas_device *made) {
    pthread_mutex_lock(&cuda_blas_lock);
    struct blas_device *device = devices;
    while (device && device->device != made->device) device = device->next;
    if (!device) made->next = devices, devices = made;
    pthread_mutex_unlock(&cuda_blas_lock);
    return device ? device : made;
}

/* Opens a pool for libamp alone, so that the pool of the host keeps its settings. It retains the workspaces of two
 * streams. By default all free memory is returned at every wait for the device, and the next product must map it
 * again. */
static cudaError_t open_pool(struct blas_device *d) {
    const struct cudaMemPoolProps properties = { .allocType = cudaMemAllocationTypePinned,
                                                 .location = { .type = cudaMemLocationTypeDevice, .id = d->device } };
    uint64_t kept = (uint64_t)64 << 20;
    const cudaError_t error = cudaMemPoolCreate(&d->pool, &properties);
    return error == cudaSuccess ? cudaMemPoolSetAttribute(d->pool, cudaMemPoolAttrReleaseThreshold, &kept) : error;
}

static cudaError_t ask_device(struct blas_device *d) {
    int major = 0, minor = 0, pools = 0;
    cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d->device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, d->device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, d->device);
    d->capability = 10 * major + minor;
    return error == cudaSuccess && pools ? open_pool(d) : error;
}

static void free_device(struct blas_device *d) {
    if (d->handle) (void)d->lt->cublasLtDestroy(d->handle);
    if (d->pool) (void)cudaMemPoolDestroy(d->pool);
    free(d);
}

amp_status cuda_blas_device(int id, struct blas_device **device) {
    const char *why;
    const struct blas_library *lt = cuda_blas_library(&why);
    if (!lt) return amp->fail(AMP_ERR_BACKEND, why);
    *device = find_device(id);
    if (*device) return AMP_OK;
    struct blas_device *made = calloc(1, sizeof *made);
    if (!made) return amp->fail(AMP_ERR_NO_MEMORY, "out of memory");
    made->device = id, made->lt = lt;
    amp_status status = cuda_explain(ask_device(made));
    if (status == AMP_OK) status = cuda_blas_explain(made, lt->cublasLtCreate(&made->handle), "cublasLtCreate");
    *device = status == AMP_OK ? add_device(made) : NULL;
    if (*device != made) free_device(made);
    return status;
}

/* ---- descriptors ---- */

static cudaDataType_t type_of(amp_dtype type) {
    return type == AMP_FLOAT16 ? CUDA_R_16F : type == AMP_BFLOAT16 ? CUDA_R_16BF : CUDA_R_32F;
}

static uint32_t epilogue_of(const struct blas_plan *plan, const amp_device_epilogue *e) {
    const uint32_t fused = plan->fused;
    const bool sums = (fused & BLAS_BIAS_GRAD) != 0;
    uint32_t epilogue = fused & BLAS_BIAS ? CUBLASLT_EPILOGUE_BIAS : 0;
    if (fused & BLAS_ACTIVATION && e->backward) return sums ? CUBLASLT_EPILOGUE_DRELU_BGRAD : CUBLASLT_EPILOGUE_DRELU;
    /* its b is the caller's a */
    if (sums) return e->bias_grad_of == AMP_BIAS_GRAD_A ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA;
    if (fused & BLAS_ACTIVATION) {
        epilogue |= CUBLASLT_EPILOGUE_RELU;
        if (fused & BLAS_AUX) epilogue |= CUBLASLT_EPILOGUE_RELU_AUX & ~CUBLASLT_EPILOGUE_RELU;
    }
    return epilogue ? epilogue : CUBLASLT_EPILOGUE_DEFAULT;
}

#define BLAS_TRY(expression)                                                                                           \
    do {                                                                                                               \
        const cublasStatus_t blas_try_status_ = (expression);                                                          \
        if (blas_try_status_ != CUBLAS_STATUS_SUCCESS) return blas_try_status_;                                        \
    } while (0)

#define SET(call, attribute, value)                                                                                    \
    BLAS_TRY((call)->device->lt->cublasLtMatmulDescSetAttribute((call)->operation, attribute, &(value), sizeof(value)))

static cublasStatus_t describe_operation(struct blas_call *call, const amp_matmul_args *g,
                                         const amp_device_epilogue *e) {
    const struct blas_plan *plan = call->plan;
    const cublasOperation_t a = plan->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                            b = plan->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t transpose_a = (int32_t)a, transpose_b = (int32_t)b;
    const uint32_t epilogue = epilogue_of(plan, e);
    /* FAST_TF32 is the only one that may round fp32 operands. */
    const cublasComputeType_t compute = plan->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    BLAS_TRY(call->device->lt->cublasLtMatmulDescCreate(&call->operation, compute, CUDA_R_32F));
    SET(call, CUBLASLT_MATMUL_DESC_TRANSA, transpose_a);
    SET(call, CUBLASLT_MATMUL_DESC_TRANSB, transpose_b);
    SET(call, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (plan->fused & BLAS_BIAS) SET(call, CUBLASLT_MATMUL_DESC_BIAS_POINTER, g->bias);
    if (plan->fused & BLAS_BIAS_GRAD) SET(call, CUBLASLT_MATMUL_DESC_BIAS_POINTER, e->bias_grad);
    if (plan->fused & BLAS_ACTIVATION && e->aux) {
        SET(call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, e->aux);
        SET(call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, e->ld_aux);
        if (plan->batch > 1) SET(call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, e->stride_aux);
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t describe_matrix(const struct blas_call *call, const struct blas_matrix *x,
                                      cublasLtMatrixLayout_t *layout) {
    const struct blas_library *lt = call->device->lt;
    const int32_t batch = call->plan->batch;
    BLAS_TRY(lt->cublasLtMatrixLayoutCreate(layout, type_of(x->type), x->rows, x->cols, x->ld));
    if (batch == 1) return CUBLAS_STATUS_SUCCESS;
    BLAS_TRY(lt->cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
    return lt->cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &x->stride,
                                                sizeof x->stride);
}

static cublasStatus_t describe_all(struct blas_call *call, const amp_matmul_args *g, const amp_device_epilogue *e) {
    BLAS_TRY(describe_operation(call, g, e));
    BLAS_TRY(describe_matrix(call, &call->plan->a, &call->a));
    BLAS_TRY(describe_matrix(call, &call->plan->b, &call->b));
    BLAS_TRY(describe_matrix(call, &call->plan->c, &call->c));
    return describe_matrix(call, &call->plan->d, &call->d);
}

/* Returns the alignment of an address as a power of two. Scratch memory has 256. */
static uint32_t alignment_of(const void *data) {
    uint32_t power = 0;
    while (power < 8 && ((uintptr_t)data >> power & 1) == 0) power++;
    return power;
}

static void make_key(struct blas_call *call, const amp_matmul_args *g, const amp_device_epilogue *e, uint64_t limit) {
    const struct blas_plan *p = call->plan;
    uint64_t *w = call->key.words;
    w[0] = (uint64_t)p->a.type | (uint64_t)p->c.type << 4 | (uint64_t)p->d.type << 8 | (uint64_t)p->transpose_a << 12 |
           (uint64_t)p->transpose_b << 13 | (uint64_t)p->tf32 << 14 | (uint64_t)(p->beta != 0.0f) << 15 |
           (uint64_t)epilogue_of(p, e) << 16;
    w[1] = p->d.rows, w[2] = p->d.cols, w[3] = (uint64_t)g->k, w[4] = (uint64_t)p->batch, w[5] = limit;
    const struct blas_matrix *const all[] = { &p->a, &p->b, &p->c, &p->d };
    for (int i = 0; i < 4; i++) {
        w[6 + i] = (uint64_t)all[i]->ld;
        w[10 + i] = p->batch > 1 ? (uint64_t)all[i]->stride : 0;
        w[14] |= (uint64_t)alignment_of(all[i]->data) << (4 * i);
    }
    if (p->fused & BLAS_BIAS) w[14] |= (uint64_t)alignment_of(g->bias) << 16;
    if (p->fused & BLAS_BIAS_GRAD) w[14] |= (uint64_t)alignment_of(e->bias_grad) << 16;
    if (p->fused & BLAS_ACTIVATION && e->aux) {
        w[14] |= (uint64_t)alignment_of(e->aux) << 20;
        w[15] = (uint64_t)e->ld_aux, w[16] = p->batch > 1 ? (uint64_t)e->stride_aux : 0;
    }
}

amp_status cuda_blas_describe(struct blas_device *device, const amp_matmul_args *g, const amp_device_epilogue *e,
                              const struct blas_plan *plan, uint64_t limit, struct blas_call *call) {
    *call = (struct blas_call){ .device = device, .plan = plan };
    make_key(call, g, e, limit);
    const cublasStatus_t status = describe_all(call, g, e);
    if (status != CUBLAS_STATUS_SUCCESS) cuda_blas_forget(call);
    return cuda_blas_explain(device, status, "describing it");
}

void cuda_blas_forget(struct blas_call *call) {
    const struct blas_library *lt = call->device->lt;
    const cublasLtMatrixLayout_t layouts[] = { call->a, call->b, call->c, call->d };
    for (int i = 0; i < 4; i++)
        if (layouts[i]) (void)lt->cublasLtMatrixLayoutDestroy(layouts[i]);
    if (call->operation) (void)lt->cublasLtMatmulDescDestroy(call->operation);
    *call = (struct blas_call){ .device = call->device };
}

/* ---- algorithms ---- */

#define PREFER(attribute, value)                                                                                       \
    BLAS_TRY(lt->cublasLtMatmulPreferenceSetAttribute(preference, attribute, &(value), sizeof(value)))

static cublasStatus_t set_preference(const struct blas_call *call, cublasLtMatmulPreference_t preference) {
    const struct blas_library *lt = call->device->lt;
    const uint64_t limit = call->key.words[5];
    /* Parts of a sum may be added in fp32 alone: the other schemes round each to d's type. */
    const uint32_t schemes =
        call->plan->unsplit ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t bytes[4];
    for (int i = 0; i < 4; i++) bytes[i] = UINT32_C(1) << (call->key.words[14] >> (4 * i) & 15);
    PREFER(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, limit);
    PREFER(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes[0]);
    PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes[1]);
    PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes[2]);
    PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes[3]);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cuda_blas_propose(const struct blas_call *call, int most, cublasLtMatmulHeuristicResult_t *results,
                                 int *n) {
    const struct blas_library *lt = call->device->lt;
    cublasLtMatmulPreference_t preference = NULL;
    int good = 0;
    *n = 0;
    BLAS_TRY(lt->cublasLtMatmulPreferenceCreate(&preference));
    cublasStatus_t status = set_preference(call, preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->cublasLtMatmulAlgoGetHeuristic(call->device->handle, call->operation, call->a, call->b, call->c,
                                                    call->d, preference, most, results, n);
    (void)lt->cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < *n; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS) results[good++] = results[i];
    *n = good;
    return status == CUBLAS_STATUS_SUCCESS && !good ? CUBLAS_STATUS_NOT_SUPPORTED : status;
}

void cuda_blas_remember(struct blas_device *device, const struct blas_call *call, const struct blas_choice *choice) {
    pthread_mutex_lock(&cuda_blas_lock);
    cuda_blas_add(&device->cache, &call->key, choice);
    pthread_mutex_unlock(&cuda_blas_lock);
}

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == BLAS_ALGORITHM_WORDS * sizeof(uint64_t), "an algorithm's words");

void cuda_blas_choose(struct blas_device *device, const struct blas_call *call, struct blas_choice *choice) {
    cublasLtMatmulHeuristicResult_t result;
    int n;
    pthread_mutex_lock(&cuda_blas_lock);
    const bool known = cuda_blas_find(&device->cache, &call->key, choice);
    pthread_mutex_unlock(&cuda_blas_lock);
    if (known) return;
    *choice = (struct blas_choice){ 0 };
    const cublasStatus_t status = cuda_blas_propose(call, 1, &result, &n);
    choice->status = (int32_t)status;
    if (status == CUBLAS_STATUS_SUCCESS) {
        memcpy(choice->algorithm, &result.algo, sizeof result.algo);
        choice->workspace = result.workspaceSize;
    } else if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) {
        return; /* the next time it may be another */
    }
    cuda_blas_remember(device, call, choice);
}
