/* SPDX-License-Identifier: Apache-2.0 */
/* The counts of amp_statistics, element by element, as doubles, which have every value of every type. */
#include "kernels/ref/convert.h"
#include "kernels/ref/ref.h"

enum { MANTISSA = 52, BIAS = 1023 };
static const uint64_t one = UINT64_C(1) << MANTISSA; /* in the exponent */

static void count_finite(amp_statistics *s, uint64_t magnitude) {
    const double x = amp__f64_from_bits(magnitude);
    const uint64_t mantissa = magnitude & (one - 1);
    const int at = (int)(magnitude >> MANTISSA) - BIAS - AMP_BINADE_LEAST;
    s->largest = x > s->largest ? x : s->largest;
    s->least = s->least > 0.0 && s->least < x ? s->least : x;
    if (at < 0) {
        s->below++;
    } else if (at >= AMP_BINADES) {
        s->above++;
    } else {
        s->binades[at].elements++;
        s->binades[at].powers += mantissa == 0;
        s->binades[at].tops_bf16 += mantissa >= one - (one >> 8);
        s->binades[at].tops_fp16 += mantissa >= one - (one >> 11);
    }
}

static void count_element(amp_statistics *s, double x) {
    const uint64_t bits = amp__f64_bits(x), minus = bits >> 63, magnitude = bits & ~(UINT64_C(1) << 63);
    const uint64_t infinity = amp__infinity(amp__format_f64());
    if (magnitude == 0) s->zeros++;
    else if (magnitude > infinity) s->nans++;
    else if (magnitude < infinity) count_finite(s, magnitude);
    else if (minus) s->minus_infinities++;
    else s->plus_infinities++;
}

/* Those of AMP__SUM_SQUARES's lanes, of x and of x * x. */
struct lanes {
    double sums[AMP__SUM_LANES], squares[AMP__SUM_LANES];
};

static void add_one_by_one(struct lanes *lanes, const double *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        lanes->sums[i % AMP__SUM_LANES] += x[i];
        lanes->squares[i % AMP__SUM_LANES] += x[i] * x[i];
    }
}

static void add_in_float(struct lanes *lanes, const double *x, size_t n) {
    float work[AMP__SUM_STRETCH] = { 0 }, squares[AMP__SUM_STRETCH];
    for (size_t i = 0; i < n; i++) work[i] = (float)x[i];
    for (size_t i = 0; i < AMP__SUM_STRETCH; i++) squares[i] = work[i] * work[i];
    for (size_t at = 0; at < n; at += AMP__SUM_STRIPE) {
        amp__ref_add_stripe(lanes->sums, work + at);
        amp__ref_add_stripe(lanes->squares, squares + at);
    }
}

static bool is_tame(const double *x, size_t n) {
    bool tame = true;
    for (size_t i = 0; i < n; i++) {
        const double magnitude = x[i] < 0.0 ? -x[i] : x[i];
        tame &= magnitude == 0.0 || (magnitude >= 0x1p-60 && magnitude <= 0x1p60);
    }
    return tame;
}

static void statistics(const char *src, amp_dtype from, size_t n, amp_statistics *s) {
    double work[AMP__SUM_STRETCH];
    struct lanes lanes = { { 0 }, { 0 } };
    const size_t width = amp__dtype_size(from);
    for (size_t at = 0, length; at < n; at += length) {
        length = n - at < AMP__SUM_STRETCH ? n - at : AMP__SUM_STRETCH;
        amp__ref_cast[AMP_FLOAT64][from](work, src + at * width, length);
        for (size_t i = 0; i < length; i++) count_element(s, work[i]);
        if (from != AMP_FLOAT64 && is_tame(work, length)) add_in_float(&lanes, work, length);
        else add_one_by_one(&lanes, work, length);
    }
    s->elements += n;
    s->sum += amp__ref_sum_lanes(lanes.sums);
    s->sum_squares += amp__ref_sum_lanes(lanes.squares);
}

static AMP__STATISTICS(statistics_f32) { statistics(src, AMP_FLOAT32, n, s); }
static AMP__STATISTICS(statistics_f16) { statistics(src, AMP_FLOAT16, n, s); }
static AMP__STATISTICS(statistics_bf16) { statistics(src, AMP_BFLOAT16, n, s); }
static AMP__STATISTICS(statistics_f64) { statistics(src, AMP_FLOAT64, n, s); }

amp__statistics_fn *const amp__ref_statistics[AMP__TYPES] = {
    NULL, statistics_f32, statistics_f16, statistics_bf16, statistics_f64,
};
