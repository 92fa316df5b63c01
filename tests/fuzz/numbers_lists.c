/* SPDX-License-Identifier: Apache-2.0 */
/* Lists whose results are elements: cast, copy, zero, scale, axpby, both clips. */
#include "numbers.h"

#include "common/common.h"

#include <math.h>
#include <string.h>

struct lists {
    size_t n;
    amp_span dst[ENTRIES], x[ENTRIES], y[ENTRIES];
    uint64_t x_was[ENTRIES][LONGEST_ENTRY], y_was[ENTRIES][LONGEST_ENTRY], dst_was[ENTRIES][LONGEST_ENTRY];
};

enum { CAST, COPY, ZERO, SCALE, AXPBY, CLIP_NORM, CLIP_VALUE, CALLS };

static amp_span make(struct bytes *bytes, unsigned number, amp_dtype type, size_t size, uint64_t *was) {
    const size_t width = amp__dtype_size(type);
    amp_span span = { size ? block(number, size * width, width, bytes) : NULL, size, type, 0 };
    if (size) take_elements(bytes, type, span.data, size), memcpy(was, span.data, size * width);
    return span;
}

static void make_lists(struct lists *l, struct bytes *bytes, unsigned call) {
    l->n = take_below(bytes, ENTRIES + 1);
    for (unsigned i = 0; i < l->n; i++) {
        const amp_dtype x = all_types[take_below(bytes, TYPES)], y = all_types[take_below(bytes, TYPES)];
        const amp_dtype to = call == COPY ? x : all_types[take_below(bytes, TYPES)];
        const size_t size = take_size(bytes, LONGEST_ENTRY);
        const unsigned place = take_below(bytes, 4); /* over x, over y, or apart */
        l->x[i] = make(bytes, 3 * i, x, size, l->x_was[i]);
        l->y[i] = call == AXPBY ? make(bytes, 3 * i + 1, y, size, l->y_was[i]) : l->x[i];
        if (place == 0 && to == x) l->dst[i] = l->x[i], memcpy(l->dst_was[i], l->x_was[i], sizeof l->dst_was[i]);
        else if (place == 1 && to == y && call == AXPBY)
            l->dst[i] = l->y[i], memcpy(l->dst_was[i], l->y_was[i], sizeof l->dst_was[i]);
        else l->dst[i] = make(bytes, 3 * i + 2, to, size, l->dst_was[i]);
    }
}

/* Makes one entry of one list wrong: its type, its size, its pointer. */
static bool spoil(struct lists *l, struct bytes *bytes, unsigned call) {
    if (!l->n || take_below(bytes, 16)) return false;
    const unsigned at = take_below(bytes, (unsigned)l->n);
    amp_span *lists[] = { l->dst, call == ZERO ? l->dst : l->x, call == AXPBY ? l->y : l->dst };
    amp_span *span = &lists[take_below(bytes, 3)][at];
    switch (take_below(bytes, 3)) {
    case 0:
        span->dtype = (amp_dtype)(take_below(bytes, 2) ? AMP_DTYPE_DEFAULT : AMP_FLOAT64 + 1 + (int)take(bytes));
        return true;
    case 1:
        if (call == ZERO || !span->size) return false;
        span->size--;
        return true;
    default:
        if (!span->size) return false;
        span->data = NULL;
        return true;
    }
}

static void need_bits(const struct lists *l, size_t i, size_t e, uint64_t want, bool exact, const char *what) {
    const amp_dtype type = l->dst[i].dtype;
    const uint64_t got = get_bits(type, l->dst[i].data, e);
    need(exact ? got == want : bits_agree(type, got, want),
         "%s: entry %zu of %zu (%s from %s), element %zu of %zu: %#llx, not %#llx", what, i, l->n,
         amp__dtype_name(type), amp__dtype_name(l->x[i].dtype), e, l->dst[i].size, (unsigned long long)got,
         (unsigned long long)want);
}

/* The value in [-limit, limit], as its type computes it. */
static uint64_t clipped(amp_dtype to, amp_dtype from, uint64_t bits, float limit) {
    const double x = value_of_bits(from, bits);
    return isnan(x) ? infinity_bits(to) + 1 : round_to_bits(to, fmin(fmax(x, -(double)limit), (double)limit));
}

static float norm_of(const struct lists *l) {
    double total = 0.0;
    for (size_t i = 0; i < l->n; i++) total += oracle_sum_squares(l->x[i].dtype, l->x_was[i], l->x[i].size);
    return (float)sqrt(total);
}

static uint64_t expected(const struct lists *l, unsigned call, size_t i, size_t e, float a, float b) {
    const amp_dtype to = l->dst[i].dtype, from = l->x[i].dtype;
    const uint64_t x = get_bits(from, l->x_was[i], e);
    switch (call) {
    case CAST:
    case COPY: return oracle_cast(to, from, x);
    case ZERO: return 0;
    case SCALE: return oracle_scale(to, from, x, a);
    case AXPBY: return oracle_axpby(to, a, from, x, b, l->y[i].dtype, get_bits(l->y[i].dtype, l->y_was[i], e));
    case CLIP_NORM: return a == 1.0f ? oracle_cast(to, from, x) : oracle_scale(to, from, x, a);
    default: return clipped(to, from, x, a);
    }
}

static amp_status run(struct lists *l, unsigned call, float a, float b, float *found, float *norm) {
    switch (call) {
    case CAST: return amp_cast_list(l->dst, l->x, l->n);
    case COPY: return amp_copy_list(l->dst, l->x, l->n);
    case ZERO: return amp_zero_list(l->dst, l->n);
    case SCALE: return amp_scale_list(l->dst, l->x, l->n, a, found);
    case AXPBY: return amp_axpby_list(l->dst, a, l->x, b, l->y, l->n, found);
    case CLIP_NORM: return amp_clip_norm_list(l->dst, l->x, l->n, a, norm);
    default: return amp_clip_value_list(l->dst, l->x, l->n, a);
    }
}

static void need_unchanged(const struct lists *l, const amp_span *dst) {
    for (size_t i = 0; i < l->n; i++)
        for (size_t e = 0; e < dst[i].size; e++)
            need(get_bits(dst[i].dtype, dst[i].data, e) == get_bits(dst[i].dtype, l->dst_was[i], e), "a refusal wrote");
}

void fuzz_lists(struct bytes *bytes) {
    static const char *const names[] = { "cast", "copy", "zero", "scale", "axpby", "clip_norm", "clip_value" };
    static struct lists l;
    const unsigned call = take_below(bytes, CALLS);
    float a = take_factor(bytes), found = 7.0f, norm = 7.0f;
    const float b = take_factor(bytes);
    make_lists(&l, bytes, call);
    amp_span dst[ENTRIES];
    memcpy(dst, l.dst, sizeof dst);
    const bool bad_limit = call >= CLIP_NORM && !(a > 0.0f), spoilt = spoil(&l, bytes, call);
    const amp_status status = run(&l, call, a, b, &found, &norm);
    if (bad_limit || spoilt) {
        need_refused(status, names[call]);
        need_unchanged(&l, dst);
        need(found == 7.0f && norm == 7.0f, "a refusal wrote a result");
        return;
    }
    need(status == AMP_OK, "%s: refused", names[call]);
    bool nonfinite = false;
    if (call == CLIP_NORM) {
        const float want = norm_of(&l);
        need(norm == want || (isnan(norm) && isnan(want)), "clip_norm: the norm is %a, not %a", (double)norm,
             (double)want);
        const float factor = (float)((double)a / ((double)want + 1e-6)); /* torch.nn.utils.clip_grad_norm_ */
        a = isfinite(want) && factor < 1.0f ? factor : 1.0f;
    }
    for (size_t i = 0; i < l.n; i++)
        for (size_t e = 0; e < l.dst[i].size; e++) {
            const uint64_t want = expected(&l, call, i, e, a, b);
            need_bits(&l, i, e, want, call == COPY || call == ZERO, names[call]);
            nonfinite |= bits_are_nonfinite(l.dst[i].dtype, want);
        }
    if (call == SCALE || call == AXPBY)
        need(found == (nonfinite ? 1.0f : 7.0f), "%s: found_inf is %g", names[call], (double)found);
}
