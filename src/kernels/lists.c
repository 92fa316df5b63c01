/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list functions of amp_kernels.h: everything is checked before anything is written, then the kernels walk the
 * entries in the default floating-point environment. What is computed in floating point here lies in functions that
 * take and give it through memory (see fpenv.h).
 */
#include "amp_optim.h"
#include "kernels/fpenv.h"
#include "kernels/kernels.h"

#include <math.h>

/* Bytes of an element, 0 of other types: without a call per entry. */
static size_t width_of(amp_dtype dtype) {
    static const uint8_t widths[AMP__TYPES] = { [AMP_FLOAT32] = 4, [AMP_FLOAT16] = 2, [AMP_BFLOAT16] = 2, [AMP_FLOAT64] = 8 };
    return (uint32_t)dtype < AMP__TYPES ? widths[dtype] : 0;
}

static amp_status explain_span(const amp_span *span, const char *list, size_t i) {
    AMP_RETURN_IF(!width_of(span->dtype), AMP_ERR_INVALID_ARGUMENT,
                  "%s[%zu].dtype is %s (%d): use fp32, fp16, bf16 or fp64", list, i, amp__dtype_name(span->dtype),
                  (int)span->dtype);
    AMP_RETURN_IF(span->reserved, AMP_ERR_INVALID_ARGUMENT, "%s[%zu].reserved is not 0", list, i);
    AMP_RETURN_IF(span->size && !span->data, AMP_ERR_INVALID_ARGUMENT, "%s[%zu] has %llu elements and data NULL", list,
                  i, (unsigned long long)span->size);
    AMP_RETURN_IF(span->size > PTRDIFF_MAX / width_of(span->dtype), AMP_ERR_INVALID_ARGUMENT,
                  "%s[%zu].size is %llu elements, more than there can be", list, i, (unsigned long long)span->size);
    return AMP_OK;
}

static amp_status check_list(const amp_span *spans, size_t n, const char *list) {
    AMP_RETURN_IF(n && !spans, AMP_ERR_INVALID_ARGUMENT, "%s is NULL and n is %zu", list, n);
    for (size_t i = 0; i < n; i++) {
        const amp_span *s = &spans[i];
        const bool fine = width_of(s->dtype) && !s->reserved && (s->data || !s->size) && s->size <= PTRDIFF_MAX / 8;
        if (!fine) AMP_TRY(explain_span(s, list, i));
    }
    return AMP_OK;
}

/* dst and src are lists that pass check_list and agree in their sizes. */
static amp_status check_pair(const amp_span *dst, const amp_span *src, size_t n, const char *list) {
    AMP_TRY(check_list(dst, n, "dst"));
    if (src == dst) return AMP_OK; /* in place */
    AMP_TRY(check_list(src, n, list));
    for (size_t i = 0; i < n; i++)
        AMP_RETURN_IF(dst[i].size != src[i].size, AMP_ERR_INVALID_ARGUMENT,
                      "dst[%zu] has %llu elements and %s[%zu] has %llu: they must be equal", i,
                      (unsigned long long)dst[i].size, list, i, (unsigned long long)src[i].size);
    return AMP_OK;
}

/* ---- past the caches ---- */

/* Short entries are not worth waiting for their stores' end. */
enum { SHORTEST_STREAM = 64 << 10 };

static bool can_stream(const amp_span *dst, const amp_span *src) {
    return dst->data != src->data && dst->size * width_of(dst->dtype) >= SHORTEST_STREAM;
}

/* Does what a call reads and writes displace itself in the caches? Then what it wrote is not found there anyway. */
static bool exceeds_caches(const amp_span *dst, const amp_span *src, size_t n) {
    uint64_t bytes = 0;
    if (dst == src) return false;
    for (size_t i = 0; i < n; i++)
        if (can_stream(&dst[i], &src[i]))
            bytes += dst[i].size * (width_of(dst[i].dtype) + width_of(src[i].dtype));
    return bytes > amp__cache_bytes();
}

/* ---- elementwise ---- */

AMP_API amp_status amp_cast_list(const amp_span *dst, const amp_span *src, size_t n) {
    AMP_TRY(check_pair(dst, src, n, "src"));
    const struct amp__kernels *k = amp__kernels_get();
    const bool stream = exceeds_caches(dst, src, n);
    for (size_t i = 0; i < n; i++) {
        amp__cast_fn *const(*group)[AMP__TYPES] = stream && can_stream(&dst[i], &src[i]) ? k->cast_stream : k->cast;
        group[dst[i].dtype][src[i].dtype](dst[i].data, src[i].data, (size_t)dst[i].size);
    }
    return AMP_OK; /* no bracket: casts do not see the environment */
}

AMP_API amp_status amp_scale_list(const amp_span *dst, const amp_span *src, size_t n, float scale, float *found_inf) {
    AMP_TRY(check_pair(dst, src, n, "src"));
    const struct amp__kernels *k = amp__kernels_get();
    const bool stream = exceeds_caches(dst, src, n);
    uint32_t nonfinite = 0;
    const amp__fpenv saved = amp__fpenv_enter();
    for (size_t i = 0; i < n; i++) {
        amp__scale_fn *const(*group)[AMP__TYPES] = stream && can_stream(&dst[i], &src[i]) ? k->scale_stream : k->scale;
        group[dst[i].dtype][src[i].dtype](dst[i].data, src[i].data, (size_t)dst[i].size, scale, &nonfinite);
    }
    amp__fpenv_leave(saved);
    if (nonfinite && found_inf) *found_inf = 1.0f;
    return AMP_OK;
}

AMP_API amp_status amp_axpby_list(const amp_span *dst, float a, const amp_span *x, float b, const amp_span *y, size_t n,
                                  float *found_inf) {
    AMP_TRY(check_pair(dst, x, n, "x"));
    AMP_TRY(check_pair(dst, y, n, "y"));
    const struct amp__kernels *k = amp__kernels_get();
    uint32_t nonfinite = 0;
    const amp__fpenv saved = amp__fpenv_enter();
    for (size_t i = 0; i < n; i++)
        k->axpby[dst[i].dtype][x[i].dtype][y[i].dtype](dst[i].data, a, x[i].data, b, y[i].data, (size_t)dst[i].size,
                                                       &nonfinite);
    amp__fpenv_leave(saved);
    if (nonfinite && found_inf) *found_inf = 1.0f;
    return AMP_OK;
}

/* ---- norms ---- */

/* One tensor's sum, as kernels.h defines it. */
static double sum_squares(const struct amp__kernels *k, const amp_span *span) {
    const size_t n = (size_t)span->size, width = width_of(span->dtype);
    double sum = 0.0;
    for (size_t at = 0; at < n; at += AMP__SUM_BLOCK) {
        const size_t length = n - at < AMP__SUM_BLOCK ? n - at : AMP__SUM_BLOCK;
        sum += k->sum_squares[span->dtype]((const char *)span->data + at * width, length);
    }
    return sum;
}

double amp__check_span(const amp_span *span, float scale, float factor, uint32_t *nonfinite) {
    const struct amp__kernels *k = amp__kernels_get();
    const size_t n = (size_t)span->size, width = amp__dtype_size(span->dtype);
    double sum = 0.0;
    for (size_t at = 0; at < n; at += AMP__SUM_BLOCK) {
        const size_t length = n - at < AMP__SUM_BLOCK ? n - at : AMP__SUM_BLOCK;
        sum += k->check[span->dtype]((const char *)span->data + at * width, length, scale, factor, nonfinite);
    }
    return sum;
}

static void compute_norms(const amp_span *src, size_t n, float *norm, float *norms) {
    const struct amp__kernels *k = amp__kernels_get();
    double total = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double sum = sum_squares(k, &src[i]);
        if (norms) norms[i] = (float)sqrt(sum);
        total += sum;
    }
    if (norm) *norm = (float)sqrt(total);
}

AMP_API amp_status amp_l2norm_list(const amp_span *src, size_t n, float *norm, float *norms) {
    AMP_TRY(check_list(src, n, "src"));
    const amp__fpenv saved = amp__fpenv_enter();
    compute_norms(src, n, norm, norms);
    amp__fpenv_leave(saved);
    return AMP_OK;
}

AMP_API amp_status amp_first_nonfinite(const amp_span *src, size_t n, int64_t *index) {
    AMP_RETURN_IF(!index, AMP_ERR_INVALID_ARGUMENT, "index is NULL");
    AMP_TRY(check_list(src, n, "src"));
    const struct amp__kernels *k = amp__kernels_get();
    size_t i = 0;
    while (i < n && !k->nonfinite[src[i].dtype](src[i].data, (size_t)src[i].size)) i++;
    *index = i < n ? (int64_t)i : -1;
    return AMP_OK; /* no bracket: the search reads bits */
}

static void check_all(const amp_span *src, size_t n, const float factors[2], float *norm, float *norms,
                      uint32_t *nonfinite) {
    double total = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double sum = amp__check_span(&src[i], factors[0], factors[1], nonfinite);
        if (norms) norms[i] = (float)sqrt(sum);
        total += sum;
    }
    if (norm) *norm = (float)sqrt(total);
}

AMP_API amp_status amp_check_list(const amp_span *src, size_t n, float scale, float factor, float *norm, float *norms,
                                  float *found_inf) {
    AMP_TRY(check_list(src, n, "src"));
    const float factors[2] = { scale, factor };
    uint32_t nonfinite = 0;
    const amp__fpenv saved = amp__fpenv_enter();
    check_all(src, n, factors, norm, norms, &nonfinite);
    amp__fpenv_leave(saved);
    if (nonfinite && found_inf) *found_inf = 1.0f;
    return AMP_OK;
}
