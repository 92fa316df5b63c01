/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_device_matmul against cuBLASLt called directly: descriptors made once, the fastest of what its heuristics
 * propose, the same workspace. Square products, RUNS of them one after the other, by the clock of the stream. Of the
 * smallest ones, whose calls take the host about as long as the GPU, also the host's time alone, the same products in a
 * graph, which has none of it, and the algorithms.
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
    size_t number; /* its place among the proposals */
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
    x.number = count ? bench_best(ways, count, &x) : 0;
    x.algorithm = proposals[x.number].algo;
    return x;
}

static void forget(struct direct *x) {
    must(x->lt->cublasLtMatmulDescDestroy(x->operation), "a description");
    must(x->lt->cublasLtMatrixLayoutDestroy(x->layout), "a layout");
}

/* ---- the lines ---- */

/* Both sides, if not their graphs. */
static const struct bench_case lines = { .group = "matmul", .unit = "ms", .calls = RUNS, .gpu = true, .ours = run_ours,
                                         .reference = run_direct,
                                         .reference_name = "cuBLASLt, best of its heuristics" };

static void compare(struct bench_case c, const char *type, const char *what, struct ours *ours,
                    struct direct *direct) {
    char name[64], size[32];
    snprintf(name, sizeof name, "%s, %s", type, what);
    snprintf(size, sizeof size, "%lld", (long long)ours->args.n);
    c.name = name, c.size = size;
    if (!c.ours_data) c.ours_data = ours, c.reference_data = direct;
    bench_run(&c);
}

static void print_algorithms(const char *type, struct ours *ours, const struct direct *direct) {
    static const struct {
        const char *name;
        cublasLtMatmulAlgoConfigAttributes_t attribute;
        size_t size;
    } parts[] = { { "algorithm", CUBLASLT_ALGO_CONFIG_ID, 4 },    { "tile", CUBLASLT_ALGO_CONFIG_TILE_ID, 4 },
                  { "stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, 4 }, { "parts", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4 },
                  { "reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4 },
                  { "cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2 } };
    char words[500];
    bench_must(amp_device_matmul_explain(ours->list, &ours->args, &ours->epilogue, words, sizeof words, NULL),
               "amp_device_matmul_explain");
    printf("# %s, %lld: libamp: %s\n# cuBLASLt: number %zu", type, (long long)ours->args.n, words,
           direct->number + 1);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int32_t value = 0;
        size_t written;
        if (direct->lt->cublasLtMatmulAlgoConfigGetAttribute(&direct->algorithm, parts[i].attribute, &value,
                                                             parts[i].size, &written) == CUBLAS_STATUS_SUCCESS)
            printf(", %s %d", parts[i].name, (int)value);
    }
    printf("\n");
}

static void look_closer(const char *type, struct ours *ours, struct direct *direct) {
    struct bench_case host = lines, graph = lines;
    print_algorithms(type, ours, direct);
    host.unit = "ns", host.gpu = false, host.wall = true;
    compare(host, type, "the host's time", ours, direct);
    graph.ours = graph.reference = bench_cuda_launch;
    graph.ours_data = bench_cuda_graph(run_ours, ours), graph.reference_data = bench_cuda_graph(run_direct, direct);
    compare(graph, type, "in a graph", ours, direct);
}

static void run_size(const struct blas_library *lt, struct ours *ours, bool is_bf16, bool closer) {
    const char *type = is_bf16 ? "bf16" : "fp16";
    struct direct direct = make_direct(lt, ours, is_bf16 ? CUDA_R_16BF : CUDA_R_16F);
    struct bench_case measured = lines;
    measured.goal = 0.98;
    compare(lines, type, "cuBLASLt's first", ours, &direct);
    bench_must(amp_device_matmul_measure(ours->list, bench_cuda_stream, &ours->args, &ours->epilogue),
               "amp_device_matmul_measure");
    compare(measured, type, "measured", ours, &direct);
    if (closer) look_closer(type, ours, &direct);
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
            run_size(lt, &ours, !type, n == largest / 8);
        }
    amp_device_list_close(ours.list);
}
#else
void bench_cuda_matmul(void) { bench_left_out("matmul", "built without the CUDA toolkit's headers (cublasLt.h)"); }
#endif
