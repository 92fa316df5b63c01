/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A product: it is planned, given an algorithm and memory, started on the stream of the caller and finished there. Only
 * measuring waits. The current device of the caller stays unchanged.
 */
#include "kernels/cuda/product.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/blas_kernels.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct amp__backend_host *amp;

void cuda_blas_init(const struct amp__backend_host *host) {
    amp = host;
    cuda_blas_device_init(host);
}

/* ---- memory ---- */

static uint64_t scratch_bytes(const struct blas_plan *plan) { return (plan->scratch + 255) / 256 * 256; }

/* Returns the largest workspace for cuBLASLt: NVIDIA advises 32 MiB from Hopper on and 4 MiB before. */
static uint64_t workspace_limit(const struct product *p) {
    const uint64_t scratch = scratch_bytes(&p->at->plan);
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
    const uint64_t bytes = scratch_bytes(&p->at->plan) + p->at->choice.workspace;
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
    const char *why = cuda_blas_plan(p->g, p->e, fuses, &p->at->plan);
    if (why) return amp->fail(AMP_ERR_UNSUPPORTED, why);
    p->at->choice = (struct blas_choice){ 0 };
    if (!p->at->plan.multiplies) return AMP_OK;
    TRY(cuda_blas_device(p->device, &p->blas));
    TRY(cuda_blas_describe(p->blas, p->g, p->e, &p->at->plan, workspace_limit(p), &p->at->call));
    p->at->changes = atomic_load(&p->blas->changes);
    cuda_blas_choose(p->blas, &p->at->call, &p->at->choice);
    return AMP_OK;
}

static void forget_product(struct product *p) {
    if (p->at->call.device) cuda_blas_forget(&p->at->call);
}

/* With as much in cuBLASLt's epilogue as it can do, else with nothing there. */
static amp_status plan_product(struct product *p) {
    TRY(describe_product(p, true));
    if (p->at->choice.status == CUBLAS_STATUS_NOT_SUPPORTED || p->at->choice.status == CUBLAS_STATUS_INVALID_VALUE)
        if (p->at->plan.fused & ~(uint32_t)BLAS_C) {
            forget_product(p);
            TRY(describe_product(p, false));
        }
    if (p->at->choice.status == CUBLAS_STATUS_SUCCESS) return AMP_OK;
    const cublasStatus_t refused = (cublasStatus_t)p->at->choice.status;
    const amp_status status = cuda_blas_explain(p->blas, refused, "asked for an algorithm");
    forget_product(p);
    return status;
}

/* ---- the work ---- */

cublasStatus_t cuda_multiply(const struct product *p, const cublasLtMatmulAlgo_t *algorithm, uint64_t workspace) {
    const struct blas_plan *x = &p->at->plan;
    unsigned char *const scratch = p->memory;
    void *const d = x->scratch ? (void *)scratch : p->g->d;
    const void *const c = x->fused & BLAS_C ? x->c.data : d;
    const struct blas_call *call = &p->at->call;
    return p->blas->lt->cublasLtMatmul(p->blas->handle, call->operation, &x->alpha, x->a.data, call->a, x->b.data,
                                       call->b, &x->beta, c, call->c, d, call->d, algorithm,
                                       workspace ? scratch + scratch_bytes(x) : NULL, workspace, p->stream);
}

static amp_status run_product(struct product *p) {
    struct cuda_finish finish;
    struct cuda_sums sums;
    cublasLtMatmulAlgo_t algorithm;
    memcpy(&algorithm, p->at->choice.algorithm, sizeof algorithm);
    if (p->at->plan.multiplies)
        TRY(cuda_blas_explain(p->blas, cuda_multiply(p, &algorithm, p->at->choice.workspace), "multiplying"));
    if (cuda_blas_finish(p->g, p->e, &p->at->plan, p->memory, &finish))
        TRY(cuda_explain(cuda_launch_finish(&finish, p->stream)));
    if (cuda_blas_sums(p->g, p->e, &p->at->plan, &sums)) TRY(cuda_explain(cuda_launch_sums(&sums, p->stream)));
    return AMP_OK;
}

static amp_status run_planned(struct product *p) {
    TRY(take_memory(p));
    const amp_status status = run_product(p);
    give_memory(p);
    return status;
}

/* ---- products that a list has run ---- */

/* For the next one with the same arguments: neither planned, described nor looked up again. */
struct cuda_kept {
    amp_matmul_args args;
    amp_device_epilogue epilogue;
    struct planned at;
};

static struct cuda_kept **slot_of(struct cuda_list *list, const amp_matmul_args *g) {
    const uint64_t all = (uint64_t)(uintptr_t)g->a * 3 + (uint64_t)(uintptr_t)g->b * 5 + (uint64_t)(uintptr_t)g->d * 7;
    return &list->kept[(all * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (CUDA_KEPT - 1)];
}

static void forget_kept(struct cuda_kept **slot) {
    if (*slot) cuda_blas_forget(&(*slot)->at.call);
    free(*slot);
    *slot = NULL;
}

static void forget_all_kept(struct cuda_list *list) {
    for (int i = 0; i < CUDA_KEPT; i++) forget_kept(&list->kept[i]);
}

/* Takes the descriptors. */
static void keep_product(struct product *p) {
    struct cuda_kept **slot = slot_of(p->list, p->g), *kept = *slot;
    if (kept) cuda_blas_forget(&kept->at.call);
    else kept = *slot = malloc(sizeof *kept);
    if (!kept) {
        forget_product(p);
        return;
    }
    memcpy(&kept->args, p->g, sizeof kept->args), memcpy(&kept->epilogue, p->e, sizeof kept->epilogue);
    kept->at = *p->at;
    kept->at.call.plan = &kept->at.plan;
    p->list->forget_products = forget_all_kept;
}

/* Takes the caller's memory, or the list's as it is. */
static bool has_memory(struct product *p) {
    const uint64_t bytes = scratch_bytes(&p->at->plan) + p->at->choice.workspace;
    struct cuda_room *room = &p->list->product;
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    p->memory = p->e->workspace ? p->e->workspace : room->memory;
    if (!bytes || p->e->workspace) return true;
    if (!room->memory || bytes > room->bytes) return false;
    if (!room->captured && cudaStreamIsCapturing(p->stream, &capture) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    room->captured = room->captured || capture == cudaStreamCaptureStatusActive;
    return true;
}

/* Runs the product as the list has run it before. false: it has not, or something is not as it was then. */
static bool run_kept(const struct amp__device_product *call, amp_status *status) {
    struct cuda_list *list = call->list;
    if (!list || call->kind != AMP__PRODUCT_RUN) return false;
    struct cuda_kept **slot = slot_of(list, call->args), *kept = *slot;
    if (!kept || memcmp(&kept->args, call->args, sizeof kept->args) != 0 ||
        memcmp(&kept->epilogue, call->epilogue, sizeof kept->epilogue) != 0)
        return false;
    struct product p = { .g = call->args, .e = call->epilogue, .list = list, .device = list->device,
                         .stream = call->args->stream, .blas = kept->at.call.device, .at = &kept->at };
    if (kept->at.changes != atomic_load(&p.blas->changes) || !cuda_is_current(list->context) || !has_memory(&p))
        return false;
    list->last = p.stream;
    *status = run_product(&p);
    if (*status != AMP_ERR_UNSUPPORTED) return true;
    forget_kept(slot);
    return false;
}

/* ---- one after the other ---- */

/* Starts the product. cuBLASLt may refuse an algorithm of its own heuristics, without starting anything: then it is
 * tried without its epilogue, now and for this shape in future. */
static amp_status start_product(struct product *p) {
    TRY(plan_product(p));
    amp_status status = run_planned(p);
    if (status == AMP_ERR_UNSUPPORTED && p->at->plan.fused & ~(uint32_t)BLAS_C) {
        p->at->choice = (struct blas_choice){ .status = CUBLAS_STATUS_NOT_SUPPORTED };
        cuda_blas_remember(p->blas, &p->at->call, &p->at->choice);
        forget_product(p);
        TRY(plan_product(p));
        status = run_planned(p);
    }
    if (status == AMP_OK && p->list && p->at->plan.multiplies) keep_product(p);
    else forget_product(p);
    return status;
}

/* ---- measuring ---- */

enum { CANDIDATES = 16 };

static amp_status measure_planned(struct product *p) {
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    struct blas_choice *choice = &p->at->choice;
    int n = 0;
    TRY(cuda_blas_explain(p->blas, cuda_blas_propose(&p->at->call, CANDIDATES, found, &n), "asked for algorithms"));
    for (int i = 0; i < n; i++) /* room for whichever needs most */
        if (found[i].workspaceSize > choice->workspace) choice->workspace = found[i].workspaceSize;
    TRY(take_memory(p));
    amp_status status = cuda_measure(p, found, n);
    if (status == AMP_OK) {
        cuda_blas_remember(p->blas, &p->at->call, choice);
        status = run_product(p);
    }
    give_memory(p);
    return status;
}

static amp_status measure_product(struct product *p) {
    if (p->capturing) return amp->fail(AMP_ERR_WRONG_STATE, "the stream is being captured: measure before");
    TRY(plan_product(p));
    const amp_status status = p->at->plan.multiplies ? measure_planned(p) : run_product(p);
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
    } parts[] = { { "; algorithm", CUBLASLT_ALGO_CONFIG_ID },         { ", tile", CUBLASLT_ALGO_CONFIG_TILE_ID },
                  { ", stages", CUBLASLT_ALGO_CONFIG_STAGES_ID },     { ", parts", CUBLASLT_ALGO_CONFIG_SPLITK_NUM },
                  { ", cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID } };
    const struct blas_choice *choice = &p->at->choice;
    cublasLtMatmulAlgo_t algorithm;
    memcpy(&algorithm, choice->algorithm, sizeof algorithm);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int32_t value = 0; /* the cluster's has 16 bits */
        size_t size = parts[i].attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID ? sizeof(uint16_t) : sizeof value;
        if (p->blas->lt->cublasLtMatmulAlgoConfigGetAttribute(&algorithm, parts[i].attribute, &value, size, &size) ==
            CUBLAS_STATUS_SUCCESS)
            add_words(w, "%s %d", parts[i].name, (int)value);
    }
    if (choice->measured) add_words(w, ", number %d of %d, fastest", choice->rank + 1, choice->measured);
    else add_words(w, ", cuBLASLt's first");
    add_words(w, ", workspace %llu bytes", (unsigned long long)(choice->workspace + scratch_bytes(&p->at->plan)));
}

static amp_status explain_product(struct product *p, struct words *w) {
    int32_t capability = 0;
    TRY(plan_product(p));
    if (!p->at->plan.multiplies) {
        add_words(w, "cuda: nothing to multiply");
    } else {
        const bool narrow = p->g->a_dtype != AMP_FLOAT32;
        const amp_dtype type = p->g->a_dtype;
        const size_t version = p->blas->lt->version;
        add_words(w, "cuda (cuBLASLt %zu.%zu.%zu, compute capability %d.%d): %s, sums fp32", version / 10000,
                  version / 100 % 100, version % 100, p->blas->capability / 10, p->blas->capability % 10,
                  p->at->plan.tf32              ? "tf32"
                : type == AMP_FLOAT16 ? "fp16"
                : narrow              ? "bf16"
                                      : "fp32");
        if (cuda_tensor_cores(p->device, type, &capability) == 0 && narrow) add_words(w, ", no tensor cores for it");
        say_choice(w, p);
    }
    say_parts(w, p->at->plan.fused, "cuBLASLt");
    say_parts(w, p->at->plan.left, "libamp");
    if (p->at->plan.multiplies && (p->at->plan.tf32 || p->g->a_dtype != AMP_FLOAT32)) say_advice(w, p);
    forget_product(p);
    return AMP_OK;
}

/* ---- for libamp's table ---- */

/* `text` NULL: the call is run. */
static amp_status on_device(const struct amp__device_product *call, struct words *text) {
    struct planned planned = { .call = { 0 } };
    struct product p = { .g = call->args, .e = call->epilogue, .list = call->list, .stream = call->args->stream,
                         .at = &planned };
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
    struct cuda_list *list = call->list;
    amp_status status;
    if (!text && run_kept(call, &status)) return status;
    status = cuda_visit_begin(&visit);
    if (status == AMP_OK) status = on_device(call, text);
    if (list) list->context = visit.known && cuda_is_current(visit.context) ? visit.context : NULL;
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
