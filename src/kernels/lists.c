/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The elementwise list functions of amp_kernels.h, each as one planned call: arguments are checked before anything is
 * written, the kernel table is read once, the list is walked once (walk.h), and adjacent entries of the same types go
 * to their kernel together. In the default floating-point environment where it matters (see fpenv.h).
 */
#include "kernels/fpenv.h"
#include "kernels/kernels.h"
#include "kernels/random.h"
#include "kernels/spans.h"
#include "kernels/walk.h"

#include <stdatomic.h>
#include <string.h>

struct call;

/* n entries of the same types, and one if they go past the caches. */
typedef void run_fn(const struct call *c, const amp_span *dst, const amp_span *x, const amp_span *y, size_t n,
                    bool stream, uint32_t *nonfinite);

struct call {
    run_fn *run;
    const amp_span *dst, *x, *y; /* x or y may be dst: there is none, or in place */
    const struct amp__kernels *k;
    float a, b;
    bool mixed, stream;
    _Atomic uint32_t nonfinite;
};

/* ---- past the caches ---- */

/* Short entries are not worth waiting for their stores' end. */
enum { SHORTEST_STREAM = 64 << 10 };

static bool can_stream(const amp_span *dst, const amp_span *src) {
    return (dst == src || dst->data != src->data) && dst->size * amp__width(dst->dtype) >= SHORTEST_STREAM;
}

/* True if the reads and writes of a call exceed the caches, so that its results are not found there anyway. x == dst:
 * no reads. */
static bool exceeds_caches(const amp_span *dst, const amp_span *x, size_t n, uint64_t elements) {
    enum { MOST_BYTES = 16 }; /* read and written for an element */
    uint64_t bytes = 0;
    if (elements < SHORTEST_STREAM / sizeof(double) || elements * MOST_BYTES <= amp__cache_bytes()) return false;
    for (size_t i = 0; i < n; i++)
        if (can_stream(&dst[i], &x[i]))
            bytes += dst[i].size * (amp__width(dst[i].dtype) + (x == dst ? 0 : amp__width(x[i].dtype)));
    return bytes > amp__cache_bytes();
}

/* ---- one call ---- */

static bool same_types(const struct call *c, const amp_span *dst, const amp_span *x, const amp_span *y, size_t i) {
    return dst[i].dtype == dst->dtype && (c->x == c->dst || x[i].dtype == x->dtype) &&
           (c->y == c->dst || y[i].dtype == y->dtype);
}

static void run_entries(const struct call *c, const amp_span *dst, const amp_span *x, const amp_span *y, size_t n,
                        uint32_t *nonfinite) {
    while (n) {
        const bool stream = c->stream && can_stream(dst, x);
        size_t same = c->stream ? 1 : c->mixed ? 1 : n;
        while (c->mixed && !c->stream && same < n && same_types(c, dst, x, y, same)) same++;
        c->run(c, dst, x, y, same, stream, nonfinite);
        dst += same, x += same, y += same, n -= same;
    }
}

static void run_list_part(void *call, const struct amp__part *part) {
    struct call *c = call;
    uint32_t nonfinite = 0;
    const size_t i = part->first;
    if (part->n == 1) {
        const amp_span dst = amp__span_cut(&c->dst[i], part->begin, part->end);
        const amp_span x = amp__span_cut(&c->x[i], part->begin, part->end);
        const amp_span y = amp__span_cut(&c->y[i], part->begin, part->end);
        run_entries(c, &dst, c->x == c->dst ? &dst : &x, &y, 1, &nonfinite);
    } else {
        run_entries(c, c->dst + i, c->x + i, c->y + i, part->n, &nonfinite);
    }
    if (nonfinite) atomic_store_explicit(&c->nonfinite, 1, memory_order_relaxed);
}

/* Goes through the checked list; whether a result is not finite. */
static bool run_list(struct call *c, size_t n, const struct amp__facts *facts) {
    c->k = amp__kernels_get();
    c->mixed = facts->mixed;
    amp__walk(c->dst, n, facts->elements, run_list_part, c);
    return atomic_load_explicit(&c->nonfinite, memory_order_relaxed) != 0;
}

/* Runs arithmetic in the default environment. */
static void run_arithmetic(struct call *c, size_t n, const struct amp__facts *facts, float *found_inf) {
    const amp__fpenv saved = amp__fpenv_enter();
    const bool nonfinite = run_list(c, n, facts);
    amp__fpenv_leave(saved);
    if (nonfinite && found_inf) *found_inf = 1.0f;
}

/* ---- casts and copies: they do not see the environment ---- */

static void run_cast(const struct call *c, const amp_span *dst, const amp_span *x, const amp_span *y, size_t n,
                     bool stream, uint32_t *nonfinite) {
    (void)y, (void)nonfinite;
    if (stream) c->k->cast_stream[dst->dtype][x->dtype](dst->data, x->data, (size_t)dst->size);
    else c->k->cast_list[dst->dtype][x->dtype](dst, x, n);
}

static void cast_checked(const amp_span *dst, const amp_span *src, size_t n, const struct amp__facts *facts) {
    struct call c = { .run = run_cast, .dst = dst, .x = src, .y = dst,
                      .stream = dst != src && exceeds_caches(dst, src, n, facts->elements) };
    if (dst != src) run_list(&c, n, facts);
}

AMP_API amp_status amp_cast_list(const amp_span *dst, const amp_span *src, size_t n) {
    struct amp__facts facts = { 0, false };
    AMP_TRY(amp__spans_check_pair(dst, src, n, "src", &facts));
    cast_checked(dst, src, n, &facts);
    return AMP_OK;
}

struct random_cast {
    const amp_span *dst, *src;
    uint64_t seed;
    const struct amp__kernels *k;
};

/* Elements [begin, end) of entry i, 16-bit ones through a block of FP32. */
static void cast_at_random(const struct random_cast *c, size_t i, size_t begin, size_t end) {
    enum { BLOCK = 512 };
    float wide[BLOCK];
    const amp_dtype type = c->src[i].dtype;
    const uint64_t key = amp__pack_key(c->seed, i);
    for (size_t at = begin, n; at < end; at += n) {
        const amp_span from = amp__span_cut(&c->src[i], at, end), to = amp__span_cut(&c->dst[i], at, end);
        n = type == AMP_FLOAT32 || end - at < BLOCK ? end - at : BLOCK;
        if (type != AMP_FLOAT32) c->k->cast[AMP_FLOAT32][type](wide, from.data, n);
        c->k->cast_random(to.data, type == AMP_FLOAT32 ? from.data : wide, n, key, at);
    }
}

static void run_random_part(void *cast, const struct amp__part *part) {
    const struct random_cast *c = cast;
    for (size_t i = part->first; i < part->first + part->n; i++) {
        const bool cut = part->n == 1;
        cast_at_random(c, i, cut ? part->begin : 0, cut ? part->end : (size_t)c->dst[i].size);
    }
}

AMP_API amp_status amp_cast_random(const amp_span *dst, const amp_span *src, size_t n, uint64_t seed) {
    struct amp__facts facts = { 0, false };
    AMP_TRY(amp__spans_check_pair(dst, src, n, "src", &facts));
    for (size_t i = 0; i < n; i++)
        AMP_RETURN_IF(dst[i].dtype != AMP_BFLOAT16 || src[i].dtype == AMP_FLOAT64, AMP_ERR_INVALID_ARGUMENT,
                      "amp_cast_random: dst[%zu] is %s and src[%zu] is %s: it rounds fp32, fp16 and bf16 to bf16", i,
                      amp__dtype_name(dst[i].dtype), i, amp__dtype_name(src[i].dtype));
    struct random_cast c = { dst, src, seed, amp__kernels_get() };
    const amp__fpenv saved = amp__fpenv_enter();
    amp__walk(dst, n, facts.elements, run_random_part, &c);
    amp__fpenv_leave(saved);
    return AMP_OK;
}

AMP_API amp_status amp_copy_list(const amp_span *dst, const amp_span *src, size_t n) {
    struct amp__facts facts = { 0, false };
    AMP_TRY(amp__spans_check_pair(dst, src, n, "src", &facts));
    for (size_t i = 0; i < n; i++)
        AMP_RETURN_IF(dst[i].dtype != src[i].dtype, AMP_ERR_INVALID_ARGUMENT,
                      "dst[%zu] is %s and src[%zu] is %s: a copy has the type of its source. For other types use "
                      "amp_cast_list", i,
                      amp__dtype_name(dst[i].dtype), i, amp__dtype_name(src[i].dtype));
    cast_checked(dst, src, n, &facts);
    return AMP_OK;
}

static void run_zero(const struct call *c, const amp_span *dst, const amp_span *x, const amp_span *y, size_t n,
                     bool stream, uint32_t *nonfinite) {
    (void)x, (void)y, (void)nonfinite;
    if (stream) c->k->zero_stream(dst->data, (size_t)dst->size * amp__width(dst->dtype));
    else
        for (size_t i = 0; i < n; i++)
            if (dst[i].size) memset(dst[i].data, 0, (size_t)dst[i].size * amp__width(dst[i].dtype));
}

AMP_API amp_status amp_zero_list(const amp_span *dst, size_t n) {
    struct amp__facts facts = { 0, false };
    AMP_TRY(amp__spans_check(dst, n, "dst", &facts));
    struct call c = { .run = run_zero, .dst = dst, .x = dst, .y = dst,
                      .stream = exceeds_caches(dst, dst, n, facts.elements) };
    run_list(&c, n, &facts);
    return AMP_OK;
}

/* ---- arithmetic ---- */

static void run_scale(const struct call *c, const amp_span *dst, const amp_span *x, const amp_span *y, size_t n,
                      bool stream, uint32_t *nonfinite) {
    (void)y;
    if (stream) c->k->scale_stream[dst->dtype][x->dtype](dst->data, x->data, (size_t)dst->size, c->a, nonfinite);
    else c->k->scale_list[dst->dtype][x->dtype](dst, x, n, c->a, nonfinite);
}

AMP_API amp_status amp_scale_list(const amp_span *dst, const amp_span *src, size_t n, float scale, float *found_inf) {
    struct amp__facts facts = { 0, false };
    AMP_TRY(amp__spans_check_pair(dst, src, n, "src", &facts));
    struct call c = { .run = run_scale, .dst = dst, .x = src, .y = dst, .a = scale,
                      .stream = dst != src && exceeds_caches(dst, src, n, facts.elements) };
    run_arithmetic(&c, n, &facts, found_inf);
    return AMP_OK;
}

static void run_axpby(const struct call *c, const amp_span *dst, const amp_span *x, const amp_span *y, size_t n,
                      bool stream, uint32_t *nonfinite) {
    amp__axpby_fn *const kernel = c->k->axpby[dst->dtype][x->dtype][y->dtype];
    (void)stream;
    for (size_t i = 0; i < n; i++)
        kernel(dst[i].data, c->a, x[i].data, c->b, y[i].data, (size_t)dst[i].size, nonfinite);
}

AMP_API amp_status amp_axpby_list(const amp_span *dst, float a, const amp_span *x, float b, const amp_span *y, size_t n,
                                  float *found_inf) {
    struct amp__facts facts = { 0, false };
    AMP_TRY(amp__spans_check_pair(dst, x, n, "x", &facts));
    AMP_TRY(amp__spans_check_pair(dst, y, n, "y", &facts));
    struct call c = { .run = run_axpby, .dst = dst, .x = x, .y = y, .a = a, .b = b };
    run_arithmetic(&c, n, &facts, found_inf);
    return AMP_OK;
}

/* ---- clipping ---- */

static void run_clamp(const struct call *c, const amp_span *dst, const amp_span *x, const amp_span *y, size_t n,
                      bool stream, uint32_t *nonfinite) {
    (void)y, (void)stream, (void)nonfinite;
    c->k->clamp_list[dst->dtype][x->dtype](dst, x, n, c->a);
}

/* In double. A norm that is not finite compares false. */
float amp__clip_factor(float norm, float max_norm) {
    const float factor = (float)((double)max_norm / ((double)norm + 1e-6));
    return norm <= 3.402823466e38f && factor < 1.0f ? factor : 1.0f;
}

/* The bracket is around all of it: a limit that is not a number would raise a flag. */
static amp_status clip_values(const amp_span *dst, const amp_span *src, size_t n, float max_value) {
    struct amp__facts facts = { 0, false };
    AMP_RETURN_IF(!(max_value > 0.0f), AMP_ERR_INVALID_ARGUMENT, "max_value is %g; it must be above 0",
                  (double)max_value);
    AMP_TRY(amp__spans_check_pair(dst, src, n, "src", &facts));
    struct call c = { .run = run_clamp, .dst = dst, .x = src, .y = dst, .a = max_value };
    run_list(&c, n, &facts);
    return AMP_OK;
}

AMP_API amp_status amp_clip_value_list(const amp_span *dst, const amp_span *src, size_t n, float max_value) {
    const amp__fpenv saved = amp__fpenv_enter();
    const amp_status status = clip_values(dst, src, n, max_value);
    amp__fpenv_leave(saved);
    return status;
}

static amp_status clip_norm(const amp_span *dst, const amp_span *src, size_t n, float max_norm, float *norm) {
    struct amp__facts facts = { 0, false };
    float total = 0.0f;
    AMP_RETURN_IF(!(max_norm > 0.0f), AMP_ERR_INVALID_ARGUMENT, "max_norm is %g; it must be above 0", (double)max_norm);
    AMP_TRY(amp__spans_check_pair(dst, src, n, "src", &facts));
    AMP_TRY(amp_l2norm_list(src, n, &total, NULL));
    const float factor = amp__clip_factor(total, max_norm);
    if (norm) *norm = total;
    if (factor < 1.0f) return amp_scale_list(dst, src, n, factor, NULL);
    cast_checked(dst, src, n, &facts);
    return AMP_OK;
}

AMP_API amp_status amp_clip_norm_list(const amp_span *dst, const amp_span *src, size_t n, float max_norm, float *norm) {
    const amp__fpenv saved = amp__fpenv_enter();
    const amp_status status = clip_norm(dst, src, n, max_norm, norm);
    amp__fpenv_leave(saved);
    return status;
}
