/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated kernels as a table of libamp's. */
#include "../kernels/support.h"
#include "emulated.h"

#include <stdlib.h>
#include <string.h>

/* ---- one tensor, as the table of kernels wants it ---- */

static amp_span span_of(const void *data, size_t n, amp_dtype dtype) {
    union {
        const void *given;
        void *taken;
    } pointer = { data };
    return (amp_span){ pointer.taken, n, dtype, 0 };
}

static uint32_t once(const amp_span spans[], uint32_t n_spans, emulated_fn *fn, const void *arguments) {
    struct cuda_plan plan = { 0 };
    const amp_span *lists[CUDA_SPANS];
    for (uint32_t k = 0; k < n_spans; k++) lists[k] = &spans[k];
    const uint32_t any = emulate(&plan, lists, n_spans, 1, fn, arguments, NULL);
    cuda_plan_free(&plan);
    return any;
}

static uint32_t many(const amp_span *dst, const amp_span *src, size_t n, emulated_fn *fn, const void *arguments) {
    struct cuda_plan plan = { 0 };
    const amp_span *const lists[2] = { dst, src };
    const uint32_t any = emulate(&plan, lists, 2, n, fn, arguments, NULL);
    cuda_plan_free(&plan);
    return any;
}

static uint32_t cast_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *arguments,
                        double sums[2]) {
    (void)arguments, (void)sums;
    cuda_cast_group(t, at);
    return 0;
}
static uint32_t scale_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *arguments,
                         double sums[2]) {
    (void)sums;
    return cuda_scale_group(t, at, *(const float *)arguments);
}
static uint32_t axpby_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *arguments,
                         double sums[2]) {
    const float *f = arguments;
    (void)sums;
    return cuda_axpby_group(t, at, f[0], f[1]);
}
static uint32_t nonfinite_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *arguments,
                             double sums[2]) {
    (void)arguments;
    return cuda_check_group(t, at, 1.0f, 1.0f, &sums[0]);
}

#define CAST(to, from)                                                                                                 \
    static AMP__CAST(cast_##to##_##from) {                                                                             \
        const amp_span spans[2] = { span_of(dst, n, to), span_of(src, n, from) };                                      \
        (void)once(spans, 2, cast_fn, NULL);                                                                           \
    }                                                                                                                  \
    static AMP__CAST_LIST(cast_list_##to##_##from) { (void)many(dst, src, n, cast_fn, NULL); }                         \
    static AMP__SCALE_LIST(scale_list_##to##_##from) { *nonfinite |= many(dst, src, n, scale_fn, &scale); }
#define AXPBY(to, x_type, y_type)                                                                                      \
    static AMP__AXPBY(axpby_##to##_##x_type##_##y_type) {                                                              \
        const amp_span spans[3] = { span_of(dst, n, to), span_of(x, n, x_type), span_of(y, n, y_type) };               \
        const float f[2] = { a, b };                                                                                   \
        *nonfinite |= once(spans, 3, axpby_fn, f);                                                                     \
    }
#define NONFINITE(type)                                                                                                \
    static AMP__NONFINITE(nonfinite_##type) {                                                                          \
        const amp_span span = span_of(src, n, type);                                                                   \
        return once(&span, 1, nonfinite_fn, NULL);                                                                     \
    }

#define FOR_TYPES(X)                                                                                                   \
    X(AMP_FLOAT32)                                                                                         \
    X(AMP_FLOAT16)                                                                                         \
    X(AMP_BFLOAT16)                                                                                        \
    X(AMP_FLOAT64)
#define CASTS_TO(to) CAST(to, AMP_FLOAT32) CAST(to, AMP_FLOAT16) CAST(to, AMP_BFLOAT16) CAST(to, AMP_FLOAT64)
#define AXPBY_OF(to, x) \
    AXPBY(to, x, AMP_FLOAT32) AXPBY(to, x, AMP_FLOAT16) AXPBY(to, x, AMP_BFLOAT16) AXPBY(to, x, AMP_FLOAT64)
#define AXPBY_TO(to)                                                                                                   \
    AXPBY_OF(to, AMP_FLOAT32) AXPBY_OF(to, AMP_FLOAT16) AXPBY_OF(to, AMP_BFLOAT16) AXPBY_OF(to, AMP_FLOAT64)

FOR_TYPES(CASTS_TO)
FOR_TYPES(AXPBY_TO)
FOR_TYPES(NONFINITE)

/* ---- optimizers ---- */

static struct cuda_update update_of(const struct amp__update *u) {
    return (struct cuda_update){
        u->inv_scale, u->factor, u->lr, u->weight_decay, u->beta1, u->rest1, u->beta2, u->rest2, u->eps, u->correction1,
        u->correction2, u->ratio, u->denominator,
        (u->first ? CUDA_FIRST : 0u) | (u->nesterov ? CUDA_NESTEROV : 0u) | (u->decay_after ? CUDA_DECAY_AFTER : 0u) |
            (u->decoupled ? CUDA_DECOUPLED : 0u) | (u->stochastic ? CUDA_STOCHASTIC : 0u),
        u->key, u->low_key, u->before,
    };
}

/* Elements [begin, begin + n) as a tensor's block, and back. */
static void *remainder_of(const struct amp__update *u, size_t begin, size_t n) {
    void *block = calloc(1, amp_remainder_bytes(n));
    if (!block) abort();
    uint32_t *const ties = amp__ties_of(block, n);
    memcpy(amp__rest_of(block), u->rest + begin, n * sizeof *u->rest);
    for (size_t i = 0; i < n; i++) ties[i / 32] |= (u->ties[(begin + i) / 32] >> (begin + i) % 32 & 1) << i % 32;
    return block;
}
static void put_back(const struct amp__update *u, size_t begin, size_t n, void *block) {
    const uint32_t *const ties = amp__ties_of(block, n);
    memcpy(u->rest + begin, amp__rest_of(block), n * sizeof *u->rest);
    for (size_t i = 0; i < n; i++) {
        const uint32_t bit = UINT32_C(1) << (begin + i) % 32;
        u->ties[(begin + i) / 32] = (u->ties[(begin + i) / 32] & ~bit) | (ties[i / 32] >> i % 32 & 1 ? bit : 0);
    }
    free(block);
}

static struct cuda_table table_of(struct cuda_plan *plan, const amp_span spans[], uint32_t n_spans) {
    const amp_span *lists[CUDA_SPANS];
    struct cuda_plan_error error;
    bool changed;
    for (uint32_t k = 0; k < n_spans; k++) lists[k] = &spans[k];
    if (!cuda_plan_update(plan, lists, n_spans, 1, &changed, &error)) abort();
    return cuda_plan_table(plan, plan->table);
}

static void step_codes(const struct amp__update *u, size_t begin, const amp_span given[],
                       const struct cuda_update *update) {
    OWN_PLAN all_plan = { 0 }, codes_plan = { 0 };
    amp_span all[CUDA_UPDATE_SPANS], codes[CUDA_CODED_SPANS];
    const size_t n = (size_t)given->size;
    memcpy(all, given, sizeof all);
    all[CUDA_GRAD].size = 0; /* no chunks */
    for (int k = 0; k < 2; k++) {
        codes[CUDA_CODES + k] = span_of(u->codes[k] + begin, n, AMP_DTYPE_OTHER);
        codes[CUDA_SCALES + k] = span_of(u->scales[k] + begin / AMP__BYTES_BLOCK, n, AMP_FLOAT32);
    }
    codes[CUDA_KEYS] = codes[CUDA_BEFORE] = span_of(NULL, n, AMP_DTYPE_OTHER); /* the update has them */
    const struct cuda_table of_all = table_of(&all_plan, all, CUDA_UPDATE_SPANS);
    const struct cuda_table of_codes = table_of(&codes_plan, codes, CUDA_CODED_SPANS);
    emulate_adam8(&of_all, &of_codes, update);
}

/* fn NULL: adam8. */
static void step(const struct amp__update *u, size_t begin, size_t end, emulated_fn *fn) {
    struct cuda_update update = update_of(u);
    const size_t n = end - begin;
    update.before += begin;
    const void *grad = (const char *)u->grad + begin * amp__dtype_size(u->grad_type);
    amp_span spans[CUDA_UPDATE_SPANS] = {
        span_of(grad, n, u->grad_type),
        span_of(u->param ? u->param + begin : NULL, n, AMP_FLOAT32),
        span_of(u->low ? (char *)u->low + 2 * begin : NULL, n, u->low_type),
    };
    void *block = NULL;
    if (u->rest) {
        spans[CUDA_PARAM] = spans[CUDA_LOW];
        block = remainder_of(u, begin, n);
        spans[CUDA_LOW] = span_of(block, n, AMP_BFLOAT16);
    }
    for (int k = 0; k < 3; k++)
        spans[CUDA_MOMENTS + k] = span_of(u->moments[k] ? u->moments[k] + begin : NULL, n, AMP_FLOAT32);
    if (fn) (void)once(spans, CUDA_UPDATE_SPANS, fn, &update);
    else step_codes(u, begin, spans, &update);
    if (block) put_back(u, begin, n, block);
}

#define RULE(name, constant, moments) \
    static uint32_t name##_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *u, \
                              double sums[2]) { \
        cuda_update_group(CUDA_##constant, true, t, u, at, sums); \
        return 0; \
    } \
    static AMP__UPDATE(name) { step(u, begin, end, name##_fn); }
CUDA_RULE_MAP(RULE)
static AMP__UPDATE(adam8) { step(u, begin, end, NULL); }

/* ---- the table ---- */

#define ROW2(name, to) \
    { \
        NULL, name##_##to##_AMP_FLOAT32, name##_##to##_AMP_FLOAT16, name##_##to##_AMP_BFLOAT16, \
            name##_##to##_AMP_FLOAT64 \
    }
#define ROWS2(name) \
    { { NULL }, ROW2(name, AMP_FLOAT32), ROW2(name, AMP_FLOAT16), ROW2(name, AMP_BFLOAT16), ROW2(name, AMP_FLOAT64) }
#define ROW3(to)                                                                                                       \
    { { NULL }, ROW2(axpby_##to, AMP_FLOAT32), ROW2(axpby_##to, AMP_FLOAT16), ROW2(axpby_##to, AMP_BFLOAT16),          \
      ROW2(axpby_##to, AMP_FLOAT64) }

void emulated_kernels_init(struct amp__kernels *k, uint32_t cpu_flags) {
    static amp__cast_fn *const casts[AMP__TYPES][AMP__TYPES] = ROWS2(cast);
    static amp__cast_list_fn *const cast_lists[AMP__TYPES][AMP__TYPES] = ROWS2(cast_list);
    static amp__scale_list_fn *const scale_lists[AMP__TYPES][AMP__TYPES] = ROWS2(scale_list);
    static amp__axpby_fn *const axpbys[AMP__TYPES][AMP__TYPES][AMP__TYPES] = {
        { { NULL } }, ROW3(AMP_FLOAT32), ROW3(AMP_FLOAT16), ROW3(AMP_BFLOAT16), ROW3(AMP_FLOAT64),
    };
    static amp__nonfinite_fn *const nonfinites[AMP__TYPES] = {
        NULL, nonfinite_AMP_FLOAT32, nonfinite_AMP_FLOAT16, nonfinite_AMP_BFLOAT16, nonfinite_AMP_FLOAT64,
    };
    (void)cpu_flags;
    amp__kernels_init(k, 0);
    memcpy(k->cast, casts, sizeof casts);
    memcpy(k->cast_list, cast_lists, sizeof cast_lists);
    memcpy(k->scale_list, scale_lists, sizeof scale_lists);
    memcpy(k->axpby, axpbys, sizeof axpbys);
    memcpy(k->nonfinite, nonfinites, sizeof nonfinites);
#define SET_RULE(name, constant, moments) k->name = name;
    CUDA_RULE_MAP(SET_RULE)
#undef SET_RULE
    k->adam8 = adam8;
}
