/* SPDX-License-Identifier: Apache-2.0 */
#include "oracle.h"

#include <math.h>
#include <string.h>

#define FORMAT(bytes, m)                                                                                               \
    {                                                                                                                  \
        bytes, m, 8 * (bytes)-1 - (m), UINT64_C(1) << (8 * (bytes)-1),                                                 \
            ((UINT64_C(1) << (8 * (bytes)-1 - (m))) - 1) << (m)                                                        \
    }
const struct format formats[AMP_FLOAT64 + 1] = {
    [AMP_FLOAT32] = FORMAT(4, 23),
    [AMP_FLOAT16] = FORMAT(2, 10),
    [AMP_BFLOAT16] = FORMAT(2, 7),
    [AMP_FLOAT64] = FORMAT(8, 52),
};

static inline int mantissa_bits(amp_dtype type) { return formats[type].mantissa; }

/* 2^exponent, which is a normal double. ldexp takes longer than all else here. */
static double power_of_two(int exponent) {
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* A magnitude below infinity as a number; infinity as the power of two that would come next. */
static double number(amp_dtype type, uint64_t magnitude) {
    const int m = mantissa_bits(type), bias = (1 << (formats[type].exponent - 1)) - 1;
    const int exponent = (int)(magnitude >> m);
    const double fraction = (double)(magnitude & ((UINT64_C(1) << m) - 1));
    if (type == AMP_FLOAT64) return exponent ? ldexp(0x1p52 + fraction, exponent - 1075) : ldexp(fraction, -1074);
    return exponent ? (power_of_two(m) + fraction) * power_of_two(exponent - bias - m)
                    : fraction * power_of_two(1 - bias - m);
}

double value_of_bits(amp_dtype type, uint64_t bits) {
    const uint64_t magnitude = bits & ~sign_bit(type);
    const double value = magnitude > infinity_bits(type)    ? (double)NAN
                         : magnitude == infinity_bits(type) ? (double)INFINITY
                                                            : number(type, magnitude);
    return bits & sign_bit(type) ? -value : value;
}

double midpoint_above(amp_dtype type, uint64_t i) { return (number(type, i) + number(type, i + 1)) / 2; }

/* All magnitudes of a 16-bit type up to infinity, as numbers; NULL: the type has too many. */
static const double *list_of(amp_dtype type) {
    static double lists[2][1 << 15];
    if (type != AMP_FLOAT16 && type != AMP_BFLOAT16) return NULL;
    double *list = lists[type == AMP_BFLOAT16];
    if (list[1] == 0.0)
        for (uint64_t i = 0; i <= infinity_bits(type); i++) list[i] = number(type, i);
    return list;
}

/* Magnitudes around one below infinity: a power of two, or 0, and the next power. */
static void binade_of(amp_dtype type, double magnitude, uint64_t *low, uint64_t *high) {
    const int m = formats[type].mantissa, bias = (1 << (formats[type].exponent - 1)) - 1;
    if (type == AMP_FLOAT64) return;
    uint64_t bits;
    memcpy(&bits, &magnitude, sizeof bits);
    const int exponent = (int)(bits >> 52) - 1023 + bias;
    *low = exponent > 0 ? (uint64_t)exponent << m : 0;
    *high = exponent > 0 ? *low + (UINT64_C(1) << m) : UINT64_C(1) << m;
}

uint64_t search_nearest(amp_dtype type, double x) {
    const double magnitude = fabs(x), *list = list_of(type);
    uint64_t low = 0, high = infinity_bits(type); /* the result lies in low..high */
    if (magnitude >= number(type, high)) return high;
    binade_of(type, magnitude, &low, &high);
    while (high - low > 1) {
        const uint64_t middle = (low + high) / 2;
        if ((list ? list[middle] : number(type, middle)) <= magnitude) low = middle;
        else high = middle;
    }
    const double tie = midpoint_above(type, low);
    return magnitude > tie || (magnitude == tie && low % 2) ? high : low;
}

uint64_t round_to_bits(amp_dtype type, double x) {
    uint64_t bits = 0;
    if (isnan(x)) return infinity_bits(type) | (UINT64_C(1) << (mantissa_bits(type) - 1));
    if (type == AMP_FLOAT64) {
        memcpy(&bits, &x, sizeof x);
    } else if (type == AMP_FLOAT32) {
        const volatile float rounded = (float)x;
        const float plain = rounded;
        memcpy(&bits, &plain, sizeof plain);
    } else {
        bits = search_nearest(type, x) | (signbit(x) ? sign_bit(type) : 0);
    }
    return bits;
}

uint64_t oracle_cast(amp_dtype to, amp_dtype from, uint64_t bits) {
    if (to == from) return bits;
    if (!bits_are_nan(from, bits)) return round_to_bits(to, value_of_bits(from, bits));
    /* Quiet, the same sign, and as much of the payload from its upper end as there is room for. */
    const uint64_t payload = bits << (64 - mantissa_bits(from)) >> (64 - mantissa_bits(to));
    return (bits & sign_bit(from) ? sign_bit(to) : 0) | round_to_bits(to, (double)NAN) | payload;
}

/* The double result of one float operation (of one double operation, if in_double) as its type rounds it. */
static double rounded(bool in_double, double x) {
    const volatile float single = (float)x;
    return in_double ? x : (double)single;
}

uint64_t oracle_scale(amp_dtype to, amp_dtype from, uint64_t bits, float scale) {
    const volatile double product = value_of_bits(from, bits) * (double)scale;
    return round_to_bits(to, rounded(from == AMP_FLOAT64, product));
}

uint64_t oracle_axpby(amp_dtype to, float a, amp_dtype x_type, uint64_t x, float b, amp_dtype y_type, uint64_t y) {
    const bool in_double = x_type == AMP_FLOAT64 || y_type == AMP_FLOAT64;
    const volatile double left = rounded(in_double, (double)a * value_of_bits(x_type, x));
    const volatile double right = rounded(in_double, (double)b * value_of_bits(y_type, y));
    return round_to_bits(to, rounded(in_double, left + right));
}

/* The tree of kernels.h from its root: lanes j, j + w, j + 2w, ... */
static double tree(const double lane[16], size_t j, size_t w) {
    return w == 16 ? lane[j] : tree(lane, j, 2 * w) + tree(lane, j + w, 2 * w);
}

/* All are 0 or between 2^-60 and 2^60. */
static bool is_tame(amp_dtype type, const void *src, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) {
        const double x = fabs(value_of_bits(type, get_bits(type, src, i)));
        if (x != 0.0 && !(x >= 0x1p-60 && x <= 0x1p60)) return false;
    }
    return true;
}

/* x, or its square as it is. */
static double term(amp_dtype type, const void *src, size_t i, bool square) {
    const volatile double x = value_of_bits(type, get_bits(type, src, i)), squared = x * x;
    return square ? squared : x;
}

/* Element by element: each is added in its stripe's float sum of its lane and its row's parity. */
static void oracle_stripe(double lane[16], amp_dtype type, const void *src, size_t begin, size_t end, bool square) {
    float sums[2][16] = { { 0.0f } };
    for (size_t i = begin; i < end; i++) {
        float *sum = &sums[(i - begin) / 16 % 2][i % 16];
        *sum = (float)rounded(false, (double)*sum + rounded(false, term(type, src, i, square)));
    }
    for (size_t j = 0; j < 16; j++) lane[j] += rounded(false, (double)sums[0][j] + (double)sums[1][j]);
}

static double oracle_terms(amp_dtype type, const void *src, size_t n, bool in_float, bool square) {
    double total = 0.0;
    for (size_t at = 0; at < n; at += 65536) {
        double lane[16] = { 0 };
        for (size_t i = at; i < n && i < at + 65536; i += 1024) {
            const size_t end = i + 1024 < n ? i + 1024 : n;
            const bool stripes = in_float && is_tame(type, src, i, end);
            for (size_t j = i; stripes && j < end; j += 128)
                oracle_stripe(lane, type, src, j, j + 128 < end ? j + 128 : end, square);
            for (size_t j = i; !stripes && j < end; j++) lane[j % 16] += term(type, src, j, square);
        }
        total += tree(lane, 0, 1);
    }
    return total;
}

double oracle_sum_squares(amp_dtype type, const void *src, size_t n) {
    return oracle_terms(type, src, n, type == AMP_FLOAT16 || type == AMP_BFLOAT16, true);
}

/* frexp has [0.5, 1) where binades have [1, 2). */
static void oracle_count(amp_statistics *s, double magnitude) {
    int exponent;
    const double mantissa = 2.0 * frexp(magnitude, &exponent);
    if (magnitude > s->largest) s->largest = magnitude;
    if (s->least == 0.0 || magnitude < s->least) s->least = magnitude;
    if (magnitude < 0x1p-149) s->below++;
    else if (magnitude >= 0x1p128) s->above++;
    else {
        amp_binade *binade = &s->binades[exponent - 1 - AMP_BINADE_LEAST];
        binade->elements++;
        binade->powers += mantissa == 1.0;
        binade->tops_bf16 += mantissa >= 2.0 - 0x1p-8;
        binade->tops_fp16 += mantissa >= 2.0 - 0x1p-11;
    }
}

void oracle_statistics(amp_dtype type, const void *src, size_t n, amp_statistics *s) {
    *s = (amp_statistics)AMP_STATISTICS_INIT;
    s->elements = n;
    for (size_t i = 0; i < n; i++) {
        const double value = value_of_bits(type, get_bits(type, src, i));
        if (isnan(value)) s->nans++;
        else if (isinf(value)) value > 0.0 ? s->plus_infinities++ : s->minus_infinities++;
        else if (value == 0.0) s->zeros++;
        else oracle_count(s, fabs(value));
    }
    s->sum = oracle_terms(type, src, n, type != AMP_FLOAT64, false);
    s->sum_squares = oracle_terms(type, src, n, type != AMP_FLOAT64, true);
}

bool statistics_agree(const amp_statistics *a, const amp_statistics *b) {
    amp_statistics x = *a, y = *b;
    if (isnan(x.sum) && isnan(y.sum)) x.sum = y.sum = 0.0;
    if (isnan(x.sum_squares) && isnan(y.sum_squares)) x.sum_squares = y.sum_squares = 0.0;
    return !memcmp(&x, &y, sizeof x);
}
