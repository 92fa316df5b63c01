/* SPDX-License-Identifier: Apache-2.0 */
/* A host whose tensors are types and shapes alone, and whose ops note who ran them on what. */
#ifndef TEST_GATEHOST_H
#define TEST_GATEHOST_H

#include "checks.h"

#include <amp_kernels.h>
#include <stdatomic.h>

enum { DIMS = 4 };

struct tensor {
    amp_dtype dtype;
    int32_t ndim, device;
    int64_t shape[DIMS];
};

static _Atomic int alive; /* tensors made and not released */

static inline struct tensor *make(amp_dtype dtype, int32_t ndim, const int64_t *shape) {
    struct tensor *tensor = calloc(1, sizeof *tensor);
    ck_assert_ptr_nonnull(tensor);
    *tensor = (struct tensor){ .dtype = dtype, .ndim = ndim, .device = 1 };
    memcpy(tensor->shape, shape, (size_t)ndim * sizeof *shape);
    atomic_fetch_add(&alive, 1);
    return tensor;
}

#define TENSOR(type, ...) \
    make((type), (int32_t)(sizeof((const int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), \
         (const int64_t[]){ __VA_ARGS__ })

static inline void drop(void *tensor) {
    atomic_fetch_sub(&alive, 1);
    free(tensor);
}

/* ---- hooks ---- */

static inline amp_status view(void *self, void *handle, amp_tensor_view *out) {
    static char memory[64 * 64 * 4]; /* the largest: AMP_VERIFY reads all of it */
    struct tensor *tensor = handle;
    (void)self;
    out->data = memory;
    out->ndim = tensor->ndim;
    out->shape = tensor->shape;
    out->device.type = tensor->device;
    out->dtype.code = tensor->dtype == AMP_BFLOAT16 ? 4 : tensor->dtype == AMP_DTYPE_OTHER ? 0 : 2;
    out->dtype.bits = tensor->dtype == AMP_FLOAT32 || tensor->dtype == AMP_DTYPE_OTHER ? 32 : 16;
    out->dtype.lanes = 1;
    return AMP_OK;
}

static inline amp_dtype dtype(void *self, void *tensor) { return (void)self, ((struct tensor *)tensor)->dtype; }

static inline amp_status cast(void *self, void *tensor, amp_dtype to, void **out) {
    const struct tensor *from = tensor;
    struct tensor *made = make(to, from->ndim, from->shape);
    (void)self;
    made->device = from->device;
    *out = made;
    return AMP_OK;
}

static inline void release(void *self, void *tensor) { (void)self, drop(tensor); }
static inline amp_status grad(void *self, void *tensor, void **out) {
    return (void)self, (void)tensor, *out = NULL, AMP_OK;
}

/* ---- ops: `original` takes every type ---- */

enum ran { NOBODY, ORIGINAL, FP16, BF16, FP32 };

static _Thread_local struct {
    enum ran who;
    amp_dtype got[3];
} last;

static inline void *run(enum ran who, void *a, void *b, void *c) {
    const int64_t one[] = { 1 };
    void *args[] = { a, b, c };
    last.who = who;
    for (int i = 0; i < 3; i++) last.got[i] = args[i] ? ((struct tensor *)args[i])->dtype : AMP_DTYPE_DEFAULT;
    return make(((struct tensor *)a)->dtype, 1, one);
}

static inline void *original(void *a, void *b, void *c) { return run(ORIGINAL, a, b, c); }
static inline void *in_fp16(void *a, void *b, void *c) { return run(FP16, a, b, c); }
static inline void *in_bf16(void *a, void *b, void *c) { return run(BF16, a, b, c); }
static inline void *in_fp32(void *a, void *b, void *c) { return run(FP32, a, b, c); }

/* X(name, flags, has 16-bit implementations) */
#define GATE_OPS(X)                                                                                                    \
    X(linear, AMP_OP_MATMUL, true)   /* what libamp knows */                                                           \
    X(plain, AMP_OP_MATMUL, false)   /* the same, but one function for all types */                                    \
    X(own, 0, true)                  /* of which it knows nothing */                                                   \
    X(other, 0, false)                                                                                                 \
    X(direct, AMP_OP_DIRECT | AMP_OP_MATMUL, false)

#define GATE_INDEX(name, flags, low) THE_##name,
enum { GATE_OPS(GATE_INDEX) N_OPS };

#define GATE_ROW(name, flags, low) { #name, flags, low },
static const struct {
    const char *name;
    uint32_t flags;
    bool has_low;
} gate_ops[] = { GATE_OPS(GATE_ROW) };

struct world {
    void *(*table[N_OPS])(void *, void *, void *);
    amp_host host;
    amp_op ops[N_OPS];
    amp_model model;
    amp_context *context;
};

/* The world stays where it is: the slots are in it. */
static inline void make_world(struct world *w, amp_class op_class, bool has_fp32) {
    memset(w, 0, sizeof *w);
    w->host = SIZED(amp_host, .flags = AMP_HOST_TAPE_RETAINS_INPUTS, .view = view, .dtype = dtype, .cast = cast,
                    .release = release, .grad = grad);
    for (int i = 0; i < N_OPS; i++) {
        amp_op *op = &w->ops[i];
        w->table[i] = original;
        *op = SIZED(amp_op, .name = gate_ops[i].name, .flags = gate_ops[i].flags, .op_class = op_class);
        if (op->flags & AMP_OP_DIRECT) continue;
        op->schema = "op(Tensor a, Tensor b, Tensor? c) -> Tensor";
        op->slot = (amp_fn *)(void *)&w->table[i];
        if (gate_ops[i].has_low) op->fp16 = (amp_fn)in_fp16, op->bf16 = (amp_fn)in_bf16;
        if (has_fp32) op->fp32 = (amp_fn)in_fp32;
    }
    w->model = SIZED(amp_model, .host = &w->host, .ops = w->ops, .n_ops = N_OPS);
}

static inline void initialize(struct world *w, amp_level level, amp_switch gate) {
    const amp_config config = CONFIG(level, .gate = gate);
    amp_model *model = &w->model;
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &w->context));
}

static inline void start_with(struct world *w, amp_level level, amp_switch gate, amp_class op_class, bool has_fp32) {
    make_world(w, op_class, has_fp32);
    initialize(w, level, gate);
}

static inline void start(struct world *w, amp_level level, amp_switch gate) {
    start_with(w, level, gate, AMP_LOWER, false);
}

static inline void finish(struct world *w) {
    ck_ok(amp_check(w->context));
    ck_ok(amp_shutdown(w->context));
    ck_assert_int_eq(alive, 0);
}

/* One that ends with its block. */
#define WORLD(name) __attribute__((cleanup(finish))) struct world name
#define WORLD_START(name, level, gate) WORLD(name); start(&name, level, gate)

/* The type of what the op returned; its arguments go. */
static inline amp_dtype call(struct world *w, int op, struct tensor *a, struct tensor *b) {
    last.who = NOBODY;
    struct tensor *result = w->table[op](a, b, NULL);
    const amp_dtype type = result->dtype;
    drop(result), drop(a), drop(b);
    return type;
}

static inline amp_dtype call_square(struct world *w, int op, int64_t edge) {
    return call(w, op, TENSOR(AMP_FLOAT32, edge, edge), TENSOR(AMP_FLOAT32, edge, edge));
}

/* What the call just made returned; who ran, on what. */
static inline void ck_ran(amp_dtype returned, amp_dtype type, enum ran who, amp_dtype got) {
    ck_assert_int_eq(returned, type);
    ck_assert_int_eq(last.who, who);
    ck_assert_int_eq(last.got[0], got);
}

static inline amp_op_stats stats_of(struct world *w, int op) {
    amp_op_stats stats[N_OPS] = { AMP_OP_STATS_INIT };
    size_t count = 0;
    ck_ok(amp_get_op_stats(w->context, stats, N_OPS, &count));
    return stats[op];
}

#endif
