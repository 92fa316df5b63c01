/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_blas.h"

#include "kernels/ref/convert.h"

#include <cublasLt.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#ifndef FAKE_BLAS_VERSION
#define FAKE_BLAS_VERSION CUBLAS_VERSION
#endif
#define EXPORT __attribute__((visibility("default")))

EXPORT struct fake_blas amp_fake_blas = { .candidates = 1 };
#define F amp_fake_blas

#define CALLED()                                                                                                       \
    do {                                                                                                               \
        if (++F.calls == F.fail_at) return (cublasStatus_t)F.fail_with;                                                \
    } while (0)

/* ---- descriptors ---- */

struct operation {
    cublasComputeType_t compute;
    int32_t transpose_a, transpose_b;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t ld_aux, stride_aux;
};
struct layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld, stride;
    int32_t batch;
};
struct preference {
    uint64_t limit;
    uint32_t schemes, alignments[4];
};

static cublasStatus_t make(void *out, size_t bytes) {
    void *made = calloc(1, bytes);
    if (!made) return CUBLAS_STATUS_ALLOC_FAILED;
    memcpy(out, &made, sizeof made);
    F.objects++;
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t destroy(void *object) {
    F.objects--;
    free(object);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT size_t cublasLtGetVersion(void) { return FAKE_BLAS_VERSION; }
EXPORT const char *cublasLtGetStatusName(cublasStatus_t status) {
    return status ? "CUBLAS_STATUS_OF_THE_FAKE" : "SUCCESS";
}
EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    CALLED();
    F.handles++;
    *handle = (cublasLtHandle_t)(void *)&amp_fake_blas;
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    (void)handle;
    F.handles--;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
    CALLED();
    if (scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
    const cublasStatus_t status = make(desc, sizeof(struct operation));
    if (status == CUBLAS_STATUS_SUCCESS)
        *(struct operation *)(void *)*desc = (struct operation){ .compute = compute,
                                                                 .epilogue = CUBLASLT_EPILOGUE_DEFAULT };
    return status;
}
EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }

static cublasStatus_t set(void *to, size_t size, const void *from, size_t given) {
    if (given != size) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, size);
    return CUBLAS_STATUS_SUCCESS;
}
#define SET(member) return set(&(member), sizeof(member), value, size)

EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which,
                                                     const void *value, size_t size) {
    struct operation *op = (void *)desc;
    CALLED();
    switch ((int)which) {
    case CUBLASLT_MATMUL_DESC_TRANSA: SET(op->transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB: SET(op->transpose_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: SET(op->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: SET(op->bias);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: SET(op->aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: SET(op->ld_aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE: SET(op->stride_aux);
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                                 uint64_t cols, int64_t ld) {
    CALLED();
    if (!rows || !cols || ld < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
    const cublasStatus_t status = make(layout, sizeof(struct layout));
    if (status == CUBLAS_STATUS_SUCCESS)
        *(struct layout *)(void *)*layout = (struct layout){ type, rows, cols, ld, 0, 1 };
    return status;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }
EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t given,
                                                       cublasLtMatrixLayoutAttribute_t which, const void *value,
                                                       size_t size) {
    struct layout *layout = (void *)given;
    CALLED();
    if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) SET(layout->batch);
    if (which == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) SET(layout->stride);
    return CUBLAS_STATUS_INVALID_VALUE;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    enum { DEFAULT = 256 };
    CALLED();
    const cublasStatus_t status = make(preference, sizeof(struct preference));
    struct preference *made = status == CUBLAS_STATUS_SUCCESS ? (void *)*preference : NULL;
    for (int i = 0; made && i < 4; i++) made->alignments[i] = DEFAULT;
    return status;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return destroy(preference);
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t given,
                                                           cublasLtMatmulPreferenceAttributes_t which,
                                                           const void *value, size_t size) {
    struct preference *p = (void *)given;
    CALLED();
    switch ((int)which) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: SET(p->limit);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: SET(p->schemes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: SET(p->alignments[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: SET(p->alignments[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: SET(p->alignments[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: SET(p->alignments[3]);
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

/* ---- what there are algorithms for, as NVIDIA's tables of supported types have it ---- */

enum { AUX = 128, BGRAD = 16 };

static bool takes(const struct operation *op, const struct layout *a, const struct layout *b, const struct layout *c,
                  const struct layout *d) {
    const bool transposes_a = op->transpose_a != 0, transposes_b = op->transpose_b != 0;
    const uint64_t m = transposes_a ? a->cols : a->rows, k = transposes_a ? a->rows : a->cols;
    const uint64_t k_b = transposes_b ? b->cols : b->rows, n = transposes_b ? b->rows : b->cols;
    if (m != d->rows || n != d->cols || k != k_b || c->rows != m || c->cols != n) return false;
    if (a->type != b->type || c->type != d->type) return false;
    if (d->type != CUDA_R_32F && d->type != a->type) return false;
    if (a->batch != d->batch || b->batch != d->batch || c->batch != d->batch) return false;
    const bool mask = op->epilogue & AUX && op->epilogue & (CUBLASLT_EPILOGUE_RELU | 8);
    if (op->epilogue & AUX && (!op->aux || op->ld_aux % (mask ? 128 : 8) || op->ld_aux < (int64_t)m)) return false;
    if (op->epilogue & (CUBLASLT_EPILOGUE_BIAS | BGRAD | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB) &&
        !op->bias)
        return false;
    return true;
}

static bool refuses(const struct operation *op) {
    return F.refuses_all || F.refused == op->epilogue ||
        (F.refused == UINT32_MAX && op->epilogue != CUBLASLT_EPILOGUE_DEFAULT);
}

/* What an algorithm was made for. */
struct algorithm {
    uint64_t id, workspace, m, n, k, alignments, schemes, limit;
};
_Static_assert(sizeof(struct algorithm) == sizeof(cublasLtMatmulAlgo_t), "a fake algorithm");

EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                                     cublasLtMatrixLayout_t a_layout, cublasLtMatrixLayout_t b_layout,
                                                     cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
                                                     cublasLtMatmulPreference_t preference, int most,
                                                     cublasLtMatmulHeuristicResult_t results[], int *n) {
    const struct layout *d = (void *)d_layout, *a = (void *)a_layout;
    const struct operation *op = (void *)desc;
    const struct preference *p = (void *)preference;
    (void)handle;
    F.asked++;
    CALLED();
    *n = 0;
    if (!takes(op, a, (void *)b_layout, (void *)c_layout, d) || (!F.refuses_late && refuses(op)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (; *n < most && *n < F.candidates; ++*n) {
        struct algorithm made = { (uint64_t)*n + 40, F.workspace <= p->limit ? F.workspace : 0, d->rows, d->cols,
                                  op->transpose_a ? a->rows : a->cols, 0, p->schemes, p->limit };
        for (int i = 0; i < 4; i++) made.alignments |= (uint64_t)p->alignments[i] << (16 * i);
        results[*n] = (cublasLtMatmulHeuristicResult_t){ .workspaceSize = made.workspace,
                                                         .state = CUBLAS_STATUS_SUCCESS };
        memcpy(&results[*n].algo, &made, sizeof made);
    }
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                           cublasLtMatmulAlgoConfigAttributes_t which, void *value,
                                                           size_t size, size_t *written) {
    struct algorithm made;
    memcpy(&made, algorithm, sizeof made);
    *written = size;
    if (which != CUBLASLT_ALGO_CONFIG_ID || size != sizeof(int32_t)) return CUBLAS_STATUS_INVALID_VALUE;
    *(int32_t *)value = (int32_t)made.id;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- numbers ---- */

static float get(cudaDataType type, const void *data, int64_t i) {
    return type == CUDA_R_32F    ? ((const float *)data)[i]
           : type == CUDA_R_16F ? amp__f16_to_f32(((const uint16_t *)data)[i])
                                : amp__bf16_to_f32(((const uint16_t *)data)[i]);
}
static void written(const void *address, size_t bytes) {
    if (F.written) F.written(address, bytes);
}
static void put(cudaDataType type, void *data, int64_t i, float x) {
    if (type == CUDA_R_32F) ((float *)data)[i] = x;
    else ((uint16_t *)data)[i] = type == CUDA_R_16F ? amp__f32_to_f16(x) : amp__f32_to_bf16(x);
    written((const char *)data + i * (type == CUDA_R_32F ? 4 : 2), type == CUDA_R_32F ? 4 : 2);
}

static float rounded(cudaDataType type, float x) {
    return type == CUDA_R_16F    ? amp__f16_to_f32(amp__f32_to_f16(x))
           : type == CUDA_R_16BF ? amp__bf16_to_f32(amp__f32_to_bf16(x))
                                 : x;
}

/* 11 significant bits. */
static float tf32(float x) { return amp__f32_from_bits((amp__f32_bits(x) + 0x1000u) & ~UINT32_C(0x1fff)); }

static float gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }

/* ---- a product ---- */

/* With copies of all that describes it: who asked for it may forget that. */
struct product {
    struct operation op;
    struct layout a, b, c, d;
    const char *a_data, *b_data, *c_data;
    char *d_data, *aux, *workspace;
    uint64_t bytes; /* of the workspace that are used */
    float alpha, beta;
    bool rounds_sums; /* to d's type, before what the epilogue adds */
};

static int64_t width(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

/* op(x)[i][j], as it is multiplied. */
static float factor(const struct product *p, const struct layout *x, const char *data, int32_t transpose, int64_t i,
                    int64_t j) {
    const float value = get(x->type, data, transpose ? i * x->ld + j : j * x->ld + i);
    return p->op.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? tf32(value) : value;
}

/* A column of sums, each in the order of k. packed: op(a) column by column. */
static void sum_column(const struct product *p, const float *packed, int64_t j, double *sums) {
    const int64_t m = (int64_t)p->d.rows, k = (int64_t)(p->op.transpose_a ? p->a.rows : p->a.cols);
    for (int64_t i = 0; i < m; i++) sums[i] = 0.0;
    for (int64_t q = 0; q < k; q++) {
        const double b = (double)factor(p, &p->b, p->b_data, p->op.transpose_b, q, j);
        for (int64_t i = 0; i < m; i++) sums[i] += (double)packed[q * m + i] * b;
    }
}

/* What becomes of an element. A NaN is no maximum, as on many GPUs. */
static float epilogue(const struct product *p, float x, int64_t i, int64_t j, char *aux) {
    const uint32_t e = p->op.epilogue;
    const int64_t bit = j * p->op.ld_aux + i;
    if (e & CUBLASLT_EPILOGUE_BIAS) x += get(p->d.type, p->op.bias, i);
    if ((e & ~(uint32_t)BGRAD) == CUBLASLT_EPILOGUE_DRELU) return aux[bit / 8] >> bit % 8 & 1 ? x : 0.0f;
    if (e & AUX && e & CUBLASLT_EPILOGUE_RELU) {
        aux[bit / 8] = (char)((aux[bit / 8] & ~(1 << bit % 8)) | (x > 0.0f) << bit % 8);
        written(&aux[bit / 8], 1);
    }
    if (e & CUBLASLT_EPILOGUE_GELU) x = gelu(x);
    return e & CUBLASLT_EPILOGUE_RELU ? fmaxf(x, 0.0f) : x;
}

/* Of the first and only product of a batch. */
static void sum_bias_grad(const struct product *p) {
    const uint32_t e = p->op.epilogue;
    const bool of_a = e & CUBLASLT_EPILOGUE_BGRADA, of_b = e & CUBLASLT_EPILOGUE_BGRADB;
    const int64_t m = (int64_t)p->d.rows, n = (int64_t)p->d.cols,
                  k = (int64_t)(p->op.transpose_a ? p->a.rows : p->a.cols);
    if (!of_a && !of_b && !(e & BGRAD)) return;
    for (int64_t i = 0; i < (of_b ? n : m); i++) {
        float sum = 0.0f;
        for (int64_t q = 0; q < (of_a || of_b ? k : n); q++)
            sum += of_a   ? get(p->a.type, p->a_data, p->op.transpose_a ? i * p->a.ld + q : q * p->a.ld + i)
                   : of_b ? get(p->b.type, p->b_data, p->op.transpose_b ? q * p->b.ld + i : i * p->b.ld + q)
                          : get(p->d.type, p->d_data, q * p->d.ld + i);
        put(p->d.type, p->op.bias, i, sum);
    }
}

static void multiply(const struct product *p, char *aux) {
    const int64_t m = (int64_t)p->d.rows, k = (int64_t)(p->op.transpose_a ? p->a.rows : p->a.cols);
    float *packed = malloc((size_t)(m * k + 1) * sizeof *packed);
    double *sums = malloc((size_t)m * sizeof *sums);
    if (!packed || !sums) abort();
    for (int64_t q = 0; q < k; q++)
        for (int64_t i = 0; i < m; i++) packed[q * m + i] = factor(p, &p->a, p->a_data, p->op.transpose_a, i, q);
    for (int64_t j = 0; j < (int64_t)p->d.cols; j++) {
        sum_column(p, packed, j, sums);
        for (int64_t i = 0; i < (int64_t)p->d.rows; i++) {
            float x = p->alpha * (float)sums[i];
            if (p->beta != 0.0f) x += p->beta * get(p->c.type, p->c_data, j * p->c.ld + i);
            if (p->rounds_sums) x = rounded(p->d.type, x);
            put(p->d.type, p->d_data, j * p->d.ld + i, epilogue(p, x, i, j, aux));
        }
    }
    free(packed), free(sums);
}

static bool is_fit(const struct product *p, const struct algorithm *made) {
    const void *const data[] = { p->a_data, p->b_data, p->c_data, p->d_data };
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)data[i] % (made->alignments >> (16 * i) & 0xffff)) return false;
    return made->m == p->d.rows && made->n == p->d.cols && takes(&p->op, &p->a, &p->b, &p->c, &p->d);
}

static void note(const struct product *p, const struct algorithm *made, const void *workspace, size_t bytes) {
    F.products++;
    F.epilogue = p->op.epilogue, F.compute = (int32_t)p->op.compute, F.schemes = (uint32_t)made->schemes;
    F.algorithm = (int32_t)made->id, F.limit = made->limit;
    for (int i = 0; i < 4; i++) F.alignments[i] = made->alignments >> (16 * i) & 0xffff;
    F.workspace_bytes = bytes, F.workspace_at = workspace, F.d = p->d_data;
    if (F.clock) *F.clock += (int)made->id - 40 == F.fastest ? 0.5f : 1.0f;
}

static void run_product(const void *given) {
    struct product p = *(const struct product *)given;
    const bool mask = p.op.epilogue & (CUBLASLT_EPILOGUE_RELU | 8);
    if (p.bytes) memset(p.workspace, 0xff, p.bytes), written(p.workspace, p.bytes); /* it is this call's own */
    for (int32_t item = 0; item < p.d.batch; item++) {
        multiply(&p, p.aux);
        p.a_data += p.a.stride * width(p.a.type), p.b_data += p.b.stride * width(p.b.type);
        p.c_data += p.c.stride * width(p.c.type), p.d_data += p.d.stride * width(p.d.type);
        if (p.aux) p.aux += mask ? p.op.stride_aux / 8 : p.op.stride_aux * width(p.d.type);
    }
    sum_bias_grad(given);
}

EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                                     const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                                     cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                                     cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                                     const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t bytes,
                                     cudaStream_t stream) {
    struct algorithm made;
    struct product p = {
        *(struct operation *)(void *)desc, *(struct layout *)(void *)a_layout, *(struct layout *)(void *)b_layout,
        *(struct layout *)(void *)c_layout, *(struct layout *)(void *)d_layout, a, b, c, d, NULL, workspace, 0,
        *(const float *)alpha, *(const float *)beta, false,
    };
    CALLED();
    memcpy(&made, algorithm, sizeof made);
    p.aux = p.op.aux, p.bytes = made.workspace;
    /* as algorithms of cuBLASLt 13.1 on an H200: where they may split the sum, with a c, and before a GELU */
    p.rounds_sums = made.schemes != CUBLASLT_REDUCTION_SCHEME_NONE || p.beta != 0.0f ||
        p.op.epilogue & CUBLASLT_EPILOGUE_GELU;
    if (handle != (cublasLtHandle_t)(void *)&amp_fake_blas || !stream || !is_fit(&p, &made) || bytes < made.workspace)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (refuses(&p.op)) return CUBLAS_STATUS_NOT_SUPPORTED;
    note(&p, &made, workspace, bytes);
    if (F.work) F.work(stream, run_product, &p, sizeof p);
    else run_product(&p);
    return CUBLAS_STATUS_SUCCESS;
}
