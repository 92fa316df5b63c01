/* SPDX-License-Identifier: Apache-2.0 */
/* A small framework of handles whose kernels know FP32 only, and which may know a logical type. */
#ifndef TEST_FP32HOST_H
#define TEST_FP32HOST_H

#include "checks.h"

#include <amp_kernels.h>

/* ---- a framework of FP32 tensors that may carry a logical type ---- */

enum { N = 4 };
struct tensor {
    float data[N];
    amp_dtype logical;
    bool rounded_by_host; /* made by the cast hook */
};

static int alive; /* tensors made and not released */

static inline struct tensor *make(amp_dtype logical) {
    struct tensor *tensor = calloc(1, sizeof *tensor);
    ck_assert_ptr_nonnull(tensor);
    tensor->logical = logical;
    alive++;
    return tensor;
}

static inline void drop(struct tensor *tensor) {
    alive--;
    free(tensor);
}

static inline struct tensor *filled(float value) {
    struct tensor *tensor = make(AMP_FLOAT32);
    for (int i = 0; i < N; i++) tensor->data[i] = value;
    return tensor;
}

static bool saw_unrounded; /* an op that should run low was given a value that fp16 does not hold */

static inline float half(float x) { return amp_half_to_float(amp_float_to_half(x)); }

static inline void look(const struct tensor *tensor) {
    for (int i = 0; i < N; i++) saw_unrounded |= half(tensor->data[i]) != tensor->data[i];
}

static inline void *mul(void *a, void *b) {
    struct tensor *x = a, *y = b, *out = make(AMP_FLOAT32);
    look(x);
    look(y);
    for (int i = 0; i < N; i++) out->data[i] = x->data[i] * y->data[i];
    return out;
}

static inline int32_t add_in_place(void *a, void *b) {
    struct tensor *x = a, *y = b;
    for (int i = 0; i < N; i++) x->data[i] += y->data[i];
    return 0;
}

static struct {
    void *(*mul)(void *, void *);
    void *(*activate)(void *, void *);
    int32_t (*add_)(void *, void *);
} table;

/* ---- hooks ---- */

static inline amp_status view(void *self, void *handle, amp_tensor_view *out) {
    static int64_t shape[] = { N };
    (void)self;
    *out = (amp_tensor_view){ .data = ((struct tensor *)handle)->data, .device = { 1, 0 }, .dtype = { 2, 32, 1 },
                              .ndim = 1, .shape = shape };
    return AMP_OK;
}

static inline amp_dtype logical_type(void *self, void *handle) {
    (void)self;
    return ((struct tensor *)handle)->logical;
}

static inline amp_status cast(void *self, void *handle, amp_dtype to, void **out) {
    const struct tensor *source = handle;
    (void)self;
    struct tensor *result = make(to);
    for (int i = 0; i < N; i++) result->data[i] = to == AMP_FLOAT16 ? half(source->data[i]) : source->data[i];
    result->rounded_by_host = true;
    *out = result;
    return AMP_OK;
}

static inline void release(void *self, void *handle) { (void)self, drop(handle); }

struct world {
    struct tensor *weight, *gamma;
    amp_host host;
    amp_param params[2];
    amp_op ops[3];
    amp_model model;
    amp_context *context;
};

static inline struct world set_up(bool with_types) {
    table.mul = table.activate = mul;
    table.add_ = add_in_place;
    alive = 0;
    saw_unrounded = false;
    struct world w = {
        .weight = filled(1.0f + 0x1p-12f), .gamma = filled(1.0f + 0x1p-12f),
        .host = { .struct_size = sizeof(amp_host), .flags = AMP_HOST_TAPE_RETAINS_INPUTS, .view = view,
                  .dtype = with_types ? logical_type : NULL, .cast = cast, .release = release },
        .model = AMP_MODEL_INIT,
    };
    w.params[0] = SIZED(amp_param, .tensor = w.weight);
    w.params[1] = SIZED(amp_param, .tensor = w.gamma, .module_kind = AMP_MODULE_BATCH_NORM);
    w.ops[0] = OP("mul", "mul(Tensor a, Tensor b) -> Tensor", &table.mul, .op_class = AMP_LOWER);
    w.ops[1] = OP("activate", "activate(Tensor a, Tensor b) -> Tensor", &table.activate, .op_class = AMP_LEAVE);
    w.ops[2] = OP("add_", "add_(Tensor(a!) self, Tensor other) -> int32", &table.add_, .op_class = AMP_LOWER);
    return w;
}

static inline amp_status start_with(struct world *w, size_t n_params, amp_config config) {
    amp_model *model = &w->model;
    model->host = &w->host;
    model->ops = w->ops, model->n_ops = 3;
    model->params = w->params, model->n_params = n_params;
    return amp_initialize_many(&model, 1, NULL, 0, &config, &w->context);
}

static inline amp_status start(struct world *w, amp_level level) {
    return start_with(w, 2, CONFIG(level, .emulate = AMP_ON));
}

static inline void finish(struct world *w) {
    ck_ok(amp_check(w->context));
    ck_ok(amp_shutdown(w->context));
    ck_assert(table.mul == mul && table.activate == mul && table.add_ == add_in_place);
    drop(w->weight);
    drop(w->gamma);
    ck_assert_int_eq(alive, 0);
}

static inline void tensor_drop(struct tensor *const *tensor) { drop(*tensor); }

/* What ends with its block; tensors after the world that they are of. */
#define WORLD(name, with_types) __attribute__((cleanup(finish))) struct world name = set_up(with_types)
#define WORLD_AT(name, level, with_types) WORLD(name, with_types); ck_ok(start(&name, level))
#define OWN __attribute__((cleanup(tensor_drop), unused)) struct tensor

static inline amp_op_stats stats_of(const struct world *w, size_t i) {
    amp_op_stats stats[3] = { AMP_OP_STATS_INIT };
    size_t n;
    ck_ok(amp_get_op_stats(w->context, stats, 3, &n));
    return stats[i];
}

#endif
