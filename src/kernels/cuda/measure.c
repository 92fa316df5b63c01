/* SPDX-License-Identifier: Apache-2.0 */
/* The time of each algorithm that cuBLASLt proposes, on the stream of the caller. */
#include "kernels/cuda/product.h"

#include <math.h>
#include <string.h>

enum { ROUNDS = 3, RUNS = 10 };

struct stopwatch {
    cudaEvent_t begin, end;
};

static amp_status open_stopwatch(struct stopwatch *watch) {
    TRY(cuda_explain(cudaEventCreate(&watch->begin)));
    const cudaError_t error = cudaEventCreate(&watch->end);
    if (error != cudaSuccess) (void)cudaEventDestroy(watch->begin);
    return cuda_explain(error);
}

static void close_stopwatch(struct stopwatch *watch) {
    (void)cudaEventDestroy(watch->begin);
    (void)cudaEventDestroy(watch->end);
}

/* Calls cuBLASLt RUNS times. */
static bool run_often(const struct product *p, const cublasLtMatmulHeuristicResult_t *candidate) {
    for (int i = 0; i < RUNS; i++)
        if (cuda_multiply(p, &candidate->algo, candidate->workspaceSize) != CUBLAS_STATUS_SUCCESS) return false;
    return true;
}

/* RUNS products as a graph: launched one by one, small ones would take the host's time and not the device's. NULL: it
 * cannot be made. */
static cudaGraphExec_t record_runs(const struct product *p, const cublasLtMatmulHeuristicResult_t *candidate) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t made = NULL;
    if (cudaStreamBeginCapture(p->stream, cudaStreamCaptureModeRelaxed) == cudaSuccess) {
        const bool good = run_often(p, candidate);
        if (cudaStreamEndCapture(p->stream, &graph) != cudaSuccess || !good ||
            cudaGraphInstantiate(&made, graph, 0) != cudaSuccess)
            made = NULL;
    }
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    return made;
}

/* Milliseconds of RUNS products, the least of ROUNDS. INFINITY: cuBLASLt will not run this one. */
static amp_status time_runs(const struct product *p, const struct stopwatch *watch,
                            const cublasLtMatmulHeuristicResult_t *candidate, cudaGraphExec_t graph, float *least) {
    for (int round = 0; round < ROUNDS; round++) {
        float time = 0.0f;
        TRY(cuda_explain(cudaEventRecord(watch->begin, p->stream)));
        if (graph) TRY(cuda_explain(cudaGraphLaunch(graph, p->stream)));
        else if (!run_often(p, candidate)) return *least = INFINITY, AMP_OK;
        TRY(cuda_explain(cudaEventRecord(watch->end, p->stream)));
        TRY(cuda_explain(cudaEventSynchronize(watch->end)));
        TRY(cuda_explain(cudaEventElapsedTime(&time, watch->begin, watch->end)));
        if (time < *least) *least = time;
    }
    return AMP_OK;
}

/* The first call warms up. */
static amp_status time_one(const struct product *p, const struct stopwatch *watch,
                           const cublasLtMatmulHeuristicResult_t *candidate, float *least) {
    const bool runs = cuda_multiply(p, &candidate->algo, candidate->workspaceSize) == CUBLAS_STATUS_SUCCESS;
    const cudaGraphExec_t graph = runs ? record_runs(p, candidate) : NULL;
    *least = INFINITY;
    const amp_status status = runs ? time_runs(p, watch, candidate, graph, least) : AMP_OK;
    if (graph) (void)cudaGraphExecDestroy(graph);
    else (void)cudaGetLastError(); /* of what cuBLASLt refused */
    return status;
}

amp_status cuda_measure(struct product *p, const cublasLtMatmulHeuristicResult_t *found, int n) {
    struct stopwatch watch;
    float best = INFINITY;
    amp_status status = open_stopwatch(&watch);
    if (status != AMP_OK) return status;
    for (int i = 0; i < n && status == AMP_OK; i++) {
        float time;
        status = time_one(p, &watch, &found[i], &time);
        if (status != AMP_OK || !(time < best)) continue;
        best = time;
        memcpy(p->at->choice.algorithm, &found[i].algo, sizeof found[i].algo);
        p->at->choice.workspace = found[i].workspaceSize;
        p->at->choice.rank = (uint16_t)i, p->at->choice.measured = (uint16_t)n;
    }
    close_stopwatch(&watch);
    return status;
}
