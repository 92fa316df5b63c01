/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_device_matmul against cuBLASLt called directly: descriptors made once, the fastest of what its heuristics
 * propose, the same workspace. Square products; the time of RUNS of them and the wait for the last, on the wall's
 * clock.
 */
#include "bench.h"
#include "cuda.h"

#include <amp.h>
#include <amp_device.h>

#include <stdio.h>

#ifdef BENCH_CUDA
#include "kernels/cuda/blas_library.h"

enum { RUNS = 10, PROPOSALS = 16, WORKSPACE = 32 << 20 };

/* ---- ours ---- */

struct ours {
    amp_device_list *list;
    amp_matmul_args args;
    amp_device_epilogue epilogue;
};

static void run_ours(void *data) {
    const struct ours *x = data;
    for (int i = 0; i < RUNS; i++)
        bench_must(amp_device_matmul(x->list, bench_cuda_stream, &x->args, &x->epilogue), "amp_device_matmul");
}

/* ---- cuBLASLt by itself ---- */

struct direct {
    const struct blas_library *lt;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t layout; /* of all three */
    cublasLtMatmulAlgo_t algorithm;
    const struct ours *ours;
};

static void must(cublasStatus_t status, const char *what) { bench_must(status != CUBLAS_STATUS_SUCCESS, what); }

static void run_direct(void *data) {
    const struct direct *x = data;
    const amp_matmul_args *g = &x->ours->args;
    const float alpha = 1.0f, beta = 0.0f;
    for (int i = 0; i < RUNS; i++)
        must(x->lt->cublasLtMatmul(x->handle, x->operation, &alpha, g->b, x->layout, g->a, x->layout, &beta, g->d,
                                   x->layout, g->d,
                                   x->layout, &x->algorithm, x->ours->epilogue.workspace, WORKSPACE, bench_cuda_stream),
             "cublasLtMatmul");
}

/* Each of these runs another proposal, for bench_best. */
static cublasLtMatmulHeuristicResult_t proposals[PROPOSALS];
#define WAYS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define WAY(i)                                                                                                         \
    static void run_proposal_##i(void *data) {                                                                         \
        ((struct direct *)data)->algorithm = proposals[i].algo;                                                        \
        run_direct(data);                                                                                              \
    }
WAYS(WAY)

static size_t propose(const struct direct *x) {
    const uint64_t limit = WORKSPACE;
    cublasLtMatmulPreference_t preference;
    int n = 0;
    must(x->lt->cublasLtMatmulPreferenceCreate(&preference), "a preference");
    must(x->lt->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit,
                                                     sizeof limit),
         "a preference");
    must(x->lt->cublasLtMatmulAlgoGetHeuristic(x->handle, x->operation, x->layout, x->layout, x->layout, x->layout,
                                               preference, PROPOSALS, proposals, &n),
         "cuBLASLt's heuristics");
    must(x->lt->cublasLtMatmulPreferenceDestroy(preference), "a preference");
    return (size_t)n;
}

static struct direct make_direct(const struct blas_library *lt, struct ours *ours, cudaDataType_t type) {
    static cublasLtHandle_t handle;
    static bench_fn *const ways[] = {
#define WAY_ENTRY(i) run_proposal_##i,
        WAYS(WAY_ENTRY)
    };
    const uint64_t n = (uint64_t)ours->args.n;
    struct direct x = { .lt = lt, .ours = ours };
    if (!handle) must(lt->cublasLtCreate(&handle), "cublasLtCreate");
    x.handle = handle;
    must(lt->cublasLtMatmulDescCreate(&x.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a description");
    must(lt->cublasLtMatrixLayoutCreate(&x.layout, type, n, n, (int64_t)n), "a layout");
    const size_t count = propose(&x);
    x.algorithm = proposals[count ? bench_best(ways, count, &x) : 0].algo;
    return x;
}

static void forget(struct direct *x) {
    must(x->lt->cublasLtMatmulDescDestroy(x->operation), "a description");
    must(x->lt->cublasLtMatrixLayoutDestroy(x->layout), "a layout");
}

/* ---- the lines ---- */

static void compare(const char *name, const char *size, struct ours *ours, struct direct *direct, double goal) {
    bench_run(&(struct bench_case){ .group = "matmul", .name = name, .size = size, .unit = "ms", .calls = RUNS,
                                    .gpu = true,
                                    .ours = run_ours, .ours_data = ours, .reference = run_direct,
                                    .reference_data = direct,
                                    .reference_name = "cuBLASLt, best of its heuristics", .goal = goal });
}

static void run_size(const struct blas_library *lt, struct ours *ours, bool is_bf16) {
    char size[32];
    amp_matmul_args *g = &ours->args;
    snprintf(size, sizeof size, "%lld", (long long)g->n);
    struct direct direct = make_direct(lt, ours, is_bf16 ? CUDA_R_16BF : CUDA_R_16F);
    compare(is_bf16 ? "bf16, cuBLASLt's first" : "fp16, cuBLASLt's first", size, ours, &direct, 0.0);
    bench_must(amp_device_matmul_measure(ours->list, bench_cuda_stream, g, &ours->epilogue),
               "amp_device_matmul_measure");
    compare(is_bf16 ? "bf16, measured" : "fp16, measured", size, ours, &direct, 0.98);
    forget(&direct);
}

/* 8192, unless the tensors' bytes are few. */
static int64_t largest_size(void) {
    const int64_t bytes = (int64_t)bench_cuda_arena().bytes;
    int64_t n = 8192;
    while (n > 8 && 6 * n * n > bytes / 2) n /= 2;
    return n;
}

void bench_cuda_matmul(void) {
    const char *why;
    const struct blas_library *lt = cuda_blas_library(&why);
    const int64_t largest = largest_size();
    const size_t bytes = sizeof(uint16_t) * (size_t)(largest * largest);
    struct ours ours = { .args = AMP_MATMUL_ARGS_INIT, .epilogue = AMP_DEVICE_EPILOGUE_INIT };
    if (!lt) {
        bench_left_out("matmul", why);
        return;
    }
    bench_must(amp_device_list_open((amp_device){ 2, 0 }, &ours.list), "amp_device_list_open");
    ours.args.a = bench_cuda_memory(bytes, 0x38), ours.args.b = bench_cuda_memory(bytes, 0x38); /* ordinary numbers */
    ours.args.d = bench_cuda_memory(bytes, 0);
    ours.epilogue.workspace = bench_cuda_memory(WORKSPACE, 0), ours.epilogue.workspace_size = WORKSPACE;
    for (int64_t n = largest / 8; n <= largest; n *= 2)
        for (int type = 0; type < 2; type++) {
            ours.args.m = ours.args.n = ours.args.k = n;
            ours.args.a_dtype = ours.args.b_dtype = ours.args.d_dtype = type ? AMP_FLOAT16 : AMP_BFLOAT16;
            run_size(lt, &ours, !type);
        }
    amp_device_list_close(ours.list);
}
#else
void bench_cuda_matmul(void) { bench_left_out("matmul", "built without the CUDA toolkit's headers (cublasLt.h)"); }
#endif
