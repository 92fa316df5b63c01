/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A product: it is planned, given an algorithm and memory, started on the stream of the caller and finished there. Only
 * measuring waits. The current device of the caller stays unchanged.
 */
#include "kernels/cuda/blas.h"
#include "kernels/cuda/blas_device.h"
#include "kernels/cuda/blas_kernels.h"
#include "kernels/cuda/device.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct amp__backend_host *amp;

void cuda_blas_init(const struct amp__backend_host *host) {
    amp = host;
    cuda_blas_device_init(host);
}

/* One product under way. */
struct product {
    const amp_matmul_args *g;
    const amp_device_epilogue *e;
    struct cuda_list *list; /* NULL: memory in the stream's order */
    int device;
    cudaStream_t stream;
    bool capturing;

    struct blas_device *blas; /* NULL: nothing to multiply */
    struct blas_plan plan;
    struct blas_call call;
    struct blas_choice choice;
    unsigned char *memory; /* scratch, then the workspace */
    bool owned;            /* memory is this product's alone */
};

/* ---- memory ---- */

static uint64_t scratch_bytes(const struct blas_plan *plan) { return (plan->scratch + 255) / 256 * 256; }

/* Returns the largest workspace for cuBLASLt: NVIDIA advises 32 MiB from Hopper on and 4 MiB before. */
static uint64_t workspace_limit(const struct product *p) {
    const uint64_t scratch = scratch_bytes(&p->plan);
    if (p->e->workspace) return p->e->workspace_size > scratch ? p->e->workspace_size - scratch : 0;
    if (!p->list && !p->blas->pool) return 0;
    return (uint64_t)(p->blas->capability >= 90 ? 32 : 4) << 20;
}

static amp_status use_workspace(struct product *p, uint64_t bytes) {
    char text[160];
    p->memory = p->e->workspace;
    if (bytes <= p->e->workspace_size) return AMP_OK;
    snprintf(text, sizeof text, "the workspace has size %llu, and this product needs %llu bytes",
             (unsigned long long)p->e->workspace_size, (unsigned long long)bytes);
    return amp->fail(AMP_ERR_INVALID_ARGUMENT, text);
}

static amp_status allocate_workspace(struct product *p, uint64_t bytes) {
    void *memory = NULL;
    if (!p->blas->pool && p->capturing)
        return amp->fail(AMP_ERR_UNSUPPORTED, "this device allocates nothing while a stream is captured: use "
                                              "amp_device_matmul with a list, or a workspace");
    TRY(cuda_explain(p->blas->pool ? cudaMallocFromPoolAsync(&memory, bytes, p->blas->pool, p->stream)
                                   : cudaMalloc(&memory, bytes)));
    p->memory = memory, p->owned = true;
    return AMP_OK;
}

static amp_status take_memory(struct product *p) {
    const uint64_t bytes = scratch_bytes(&p->plan) + p->choice.workspace;
    bool fresh;
    if (!bytes) return AMP_OK;
    if (p->e->workspace) return use_workspace(p, bytes);
    if (!p->list) return allocate_workspace(p, bytes);
    struct cuda_room *room = &p->list->product;
    TRY(cuda_explain(cuda_room_fit(&p->list->memory, room, bytes, false, p->capturing, p->stream, &fresh)));
    p->memory = room->memory;
    return AMP_OK;
}

static void give_memory(struct product *p) {
    if (p->owned) (void)(p->blas->pool ? cudaFreeAsync(p->memory, p->stream) : cudaFree(p->memory));
    p->memory = NULL, p->owned = false;
}

/* ---- the plan ---- */

static amp_status describe_product(struct product *p, bool fuses) {
    const char *why = cuda_blas_plan(p->g, p->e, fuses, &p->plan);
    if (why) return amp->fail(AMP_ERR_UNSUPPORTED, why);
    p->choice = (struct blas_choice){ 0 };
    if (!p->plan.multiplies) return AMP_OK;
    TRY(cuda_blas_device(p->device, &p->blas));
    TRY(cuda_blas_describe(p->blas, p->g, p->e, &p->plan, workspace_limit(p), &p->call));
    cuda_blas_choose(p->blas, &p->call, &p->choice);
    return AMP_OK;
}

static void forget_product(struct product *p) {
    if (p->call.device) cuda_blas_forget(&p->call);
}

/* With as much in cuBLASLt's epilogue as it can do, else with nothing there. */
static amp_status plan_product(struct product *p) {
    TRY(describe_product(p, true));
    if (p->choice.status == CUBLAS_STATUS_NOT_SUPPORTED || p->choice.status == CUBLAS_STATUS_INVALID_VALUE)
        if (p->plan.fused & ~(uint32_t)BLAS_C) {
            forget_product(p);
            TRY(describe_product(p, false));
        }
    if (p->choice.status == CUBLAS_STATUS_SUCCESS) return AMP_OK;
    const amp_status status = cuda_blas_explain(p->blas, (cublasStatus_t)p->choice.status, "asked for an algorithm");
    forget_product(p);
    return status;
}

/* ---- the work ---- */

static cublasStatus_t call_cublas(const struct product *p, const cublasLtMatmulAlgo_t *algorithm, void *memory,
                                  uint64_t workspace) {
    const struct blas_plan *x = &p->plan;
    unsigned char *const scratch = memory;
    void *const d = x->scratch ? (void *)scratch : p->g->d;
    const void *const c = x->fused & BLAS_C ? x->c.data : d;
    return p->blas->lt->cublasLtMatmul(p->blas->handle, p->call.operation, &x->alpha, x->a.data, p->call.a, x->b.data,
                                       p->call.b, &x->beta, c, p->call.c, d, p->call.d, algorithm,
                                       workspace ? scratch + scratch_bytes(x) : NULL, workspace, p->stream);
}

static amp_status run_product(struct product *p) {
    struct cuda_finish finish;
    struct cuda_sums sums;
    cublasLtMatmulAlgo_t algorithm;
    memcpy(&algorithm, p->choice.algorithm, sizeof algorithm);
    if (p->plan.multiplies)
        TRY(cuda_blas_explain(p->blas, call_cublas(p, &algorithm, p->memory, p->choice.workspace), "multiplying"));
    if (cuda_blas_finish(p->g, p->e, &p->plan, p->memory, &finish))
        TRY(cuda_explain(cuda_launch_finish(&finish, p->stream)));
    if (cuda_blas_sums(p->g, p->e, &p->plan, &sums)) TRY(cuda_explain(cuda_launch_sums(&sums, p->stream)));
    return AMP_OK;
}

static amp_status run_planned(struct product *p) {
    TRY(take_memory(p));
    const amp_status status = run_product(p);
    give_memory(p);
    return status;
}

/* Starts the product. cuBLASLt may refuse an algorithm of its own heuristics, without starting anything: then it is
 * tried without its epilogue, now and for this shape in future. */
static amp_status start_product(struct product *p) {
    TRY(plan_product(p));
    amp_status status = run_planned(p);
    if (status == AMP_ERR_UNSUPPORTED && p->plan.fused & ~(uint32_t)BLAS_C) {
        p->choice = (struct blas_choice){ .status = CUBLAS_STATUS_NOT_SUPPORTED };
        cuda_blas_remember(p->blas, &p->call, &p->choice);
        forget_product(p);
        TRY(plan_product(p));
        status = run_planned(p);
    }
    forget_product(p);
    return status;
}

/* ---- measuring ---- */

enum { CANDIDATES = 16, ROUNDS = 3, RUNS = 5 };

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

/* Milliseconds of RUNS products, the least of ROUNDS; INFINITY: cuBLASLt will not run this one. */
static amp_status time_one(const struct product *p, const struct stopwatch *watch,
                           const cublasLtMatmulHeuristicResult_t *candidate, float *least) {
    *least = INFINITY;
    for (int round = -1; round < ROUNDS; round++) { /* the first one warms up */
        float time = 0.0f;
        TRY(cuda_explain(cudaEventRecord(watch->begin, p->stream)));
        for (int i = 0; i < (round < 0 ? 1 : RUNS); i++)
            if (call_cublas(p, &candidate->algo, p->memory, candidate->workspaceSize) != CUBLAS_STATUS_SUCCESS) {
                (void)cudaGetLastError();
                return AMP_OK;
            }
        TRY(cuda_explain(cudaEventRecord(watch->end, p->stream)));
        TRY(cuda_explain(cudaEventSynchronize(watch->end)));
        TRY(cuda_explain(cudaEventElapsedTime(&time, watch->begin, watch->end)));
        if (round >= 0 && time < *least) *least = time;
    }
    return AMP_OK;
}

static amp_status time_all(struct product *p, const cublasLtMatmulHeuristicResult_t *candidates, int n) {
    struct stopwatch watch;
    float best = INFINITY;
    amp_status status = open_stopwatch(&watch);
    if (status != AMP_OK) return status;
    for (int i = 0; i < n && status == AMP_OK; i++) {
        float time;
        status = time_one(p, &watch, &candidates[i], &time);
        if (status != AMP_OK || !(time < best)) continue;
        best = time;
        memcpy(p->choice.algorithm, &candidates[i].algo, sizeof candidates[i].algo);
        p->choice.workspace = candidates[i].workspaceSize;
        p->choice.rank = (uint16_t)i, p->choice.measured = (uint16_t)n;
    }
    close_stopwatch(&watch);
    return status;
}

static amp_status measure_planned(struct product *p) {
    cublasLtMatmulHeuristicResult_t candidates[CANDIDATES];
    int n = 0;
    TRY(cuda_blas_explain(p->blas, cuda_blas_propose(&p->call, CANDIDATES, candidates, &n), "asked for algorithms"));
    for (int i = 0; i < n; i++) /* room for whichever needs most */
        if (candidates[i].workspaceSize > p->choice.workspace) p->choice.workspace = candidates[i].workspaceSize;
    TRY(take_memory(p));
    amp_status status = time_all(p, candidates, n);
    if (status == AMP_OK) {
        cuda_blas_remember(p->blas, &p->call, &p->choice);
        status = run_product(p);
    }
    give_memory(p);
    return status;
}

static amp_status measure_product(struct product *p) {
    if (p->capturing) return amp->fail(AMP_ERR_WRONG_STATE, "the stream is being captured: measure before");
    TRY(plan_product(p));
    const amp_status status = p->plan.multiplies ? measure_planned(p) : run_product(p);
    forget_product(p);
    return status;
}

/* ---- in words ---- */

struct words {
    char *text;
    size_t size, length;
};

static void add_words(struct words *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add_words(struct words *w, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int more = w->length < w->size ? vsnprintf(w->text + w->length, w->size - w->length, format, arguments) : 0;
    va_end(arguments);
    w->length += more > 0 ? (size_t)more : 0;
}

static void say_parts(struct words *w, uint32_t parts, const char *who) {
    static const char *const names[] = { "c", "bias", "activation", "aux", "bias gradient", "rounding" };
    int said = 0;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (parts & 1u << i) add_words(w, "%s%s", said++ ? ", " : "; ", names[i]);
    if (said) add_words(w, " by %s", who);
}

/* Advises on the 16-byte alignment that tensor cores prefer. */
static void say_advice(struct words *w, const struct product *p) {
    const amp_matmul_args *g = p->g;
    const int64_t unit = g->a_dtype == AMP_FLOAT32 ? 4 : 8;
    const struct {
        const char *name;
        int64_t value;
    } extents[] = { { "m", g->m },       { "n", g->n },       { "k", g->k },
                    { "ld_a", g->ld_a }, { "ld_b", g->ld_b }, { "ld_d", g->ld_d } };
    for (size_t i = 0; i < sizeof extents / sizeof *extents; i++)
        if (extents[i].value % unit) {
            add_words(w, "; %s = %lld is no multiple of %d: padded to %lld it may be faster", extents[i].name,
                      (long long)extents[i].value, (int)unit, (long long)((extents[i].value + unit - 1) / unit * unit));
            return;
        }
    if (((uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->d) % 16)
        add_words(w, "; an address is no multiple of 16 bytes");
}

static void say_choice(struct words *w, const struct product *p) {
    static const struct {
        const char *name;
        cublasLtMatmulAlgoConfigAttributes_t attribute;
    } parts[] = { { "; algorithm", CUBLASLT_ALGO_CONFIG_ID },     { ", tile", CUBLASLT_ALGO_CONFIG_TILE_ID },
                  { ", stages", CUBLASLT_ALGO_CONFIG_STAGES_ID }, { ", parts", CUBLASLT_ALGO_CONFIG_SPLITK_NUM },
                  { ", cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID } };
    cublasLtMatmulAlgo_t algorithm;
    memcpy(&algorithm, p->choice.algorithm, sizeof algorithm);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int32_t value = 0; /* the cluster's has 16 bits */
        size_t size = parts[i].attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID ? sizeof(uint16_t) : sizeof value;
        if (p->blas->lt->cublasLtMatmulAlgoConfigGetAttribute(&algorithm, parts[i].attribute, &value, size, &size) ==
            CUBLAS_STATUS_SUCCESS)
            add_words(w, "%s %d", parts[i].name, (int)value);
    }
    if (p->choice.measured) add_words(w, ", number %d of %d, fastest", p->choice.rank + 1, p->choice.measured);
    else add_words(w, ", cuBLASLt's first");
    add_words(w, ", workspace %llu bytes", (unsigned long long)(p->choice.workspace + scratch_bytes(&p->plan)));
}

static amp_status explain_product(struct product *p, struct words *w) {
    int32_t capability = 0;
    TRY(plan_product(p));
    if (!p->plan.multiplies) {
        add_words(w, "cuda: nothing to multiply");
    } else {
        const bool narrow = p->g->a_dtype != AMP_FLOAT32;
        const amp_dtype type = p->g->a_dtype;
        const size_t version = p->blas->lt->version;
        add_words(w, "cuda (cuBLASLt %zu.%zu.%zu, compute capability %d.%d): %s, sums fp32", version / 10000,
                  version / 100 % 100, version % 100, p->blas->capability / 10, p->blas->capability % 10,
                  p->plan.tf32              ? "tf32"
                : type == AMP_FLOAT16 ? "fp16"
                : narrow              ? "bf16"
                                      : "fp32");
        if (cuda_tensor_cores(p->device, type, &capability) == 0 && narrow) add_words(w, ", no tensor cores for it");
        say_choice(w, p);
    }
    say_parts(w, p->plan.fused, "cuBLASLt");
    say_parts(w, p->plan.left, "libamp");
    if (p->plan.multiplies && (p->plan.tf32 || p->g->a_dtype != AMP_FLOAT32)) say_advice(w, p);
    forget_product(p);
    return AMP_OK;
}

/* ---- for libamp's table ---- */

/* `text` NULL: the call is run. */
static amp_status on_device(const struct amp__device_product *call, struct words *text) {
    struct product p = { .g = call->args, .e = call->epilogue, .list = call->list, .stream = call->args->stream };
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    p.device = p.list ? p.list->device : call->args->device.id;
    TRY(cuda_explain(cuda_make_current(p.device)));
    if (text) return explain_product(&p, text);
    TRY(cuda_explain(cudaStreamIsCapturing(p.stream, &capture)));
    p.capturing = capture == cudaStreamCaptureStatusActive;
    if (p.list) p.list->last = p.stream;
    return call->kind == AMP__PRODUCT_MEASURE ? measure_product(&p) : start_product(&p);
}

static amp_status enter_product(const struct amp__device_product *call, struct words *text) {
    struct cuda_visit visit;
    amp_status status = cuda_visit_begin(&visit);
    if (status == AMP_OK) status = on_device(call, text);
    cuda_visit_end(&visit);
    return status;
}

amp_status cuda_product(const struct amp__device_product *call) { return enter_product(call, NULL); }

amp_status cuda_product_explain(const struct amp__device_product *call, char *text, size_t size) {
    struct words words = { text, size, 0 };
    return enter_product(call, &words);
}

/* fp16 from Volta on, bf16 and tf32 from Ampere on. */
int32_t cuda_tensor_cores(int32_t id, amp_dtype type, int32_t *capability) {
    int major = 0, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id) != cudaSuccess) {
        (void)cudaGetLastError();
        return -1;
    }
    *capability = 10 * major + minor;
    return *capability >= (type == AMP_FLOAT16 ? 70 : 80);
}
