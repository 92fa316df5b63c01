/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of squares in the 16 lanes that kernels.h lays down, and the search for non-finite elements. */
#include "kernels/vector/vector.h"

/* ---- sum of squares ---- */

/* Products of floats are exact in double: one operation gives the bits of two. Those of doubles are rounded first. */
#define ADD_SQUARE_f32(sum, x) vd_add_exact(sum, x, x)
#define ADD_SQUARE_f16(sum, x) vd_add_exact(sum, x, x)
#define ADD_SQUARE_bf16(sum, x) vd_add_exact(sum, x, x)
#define ADD_SQUARE_f64(sum, x) vd_add(sum, vd_mul(x, x))

#define SUM_ZERO(j, type) vd sum##j = vd_set1(0.0);
#define SUM_ADD(j, type)                                                                                               \
    {                                                                                                                  \
        const vd x = vd_load_##type(s + (j) * LANES);                                                                  \
        sum##j = ADD_SQUARE_##type(sum##j, x);                                                                         \
    }
/* The lanes of the rest; adding +0 to the others changes nothing, since no lane is -0. */
#define SUM_ADD_PART(j, type)                                                                                          \
    if (n > (j) * LANES) {                                                                                             \
        const size_t length = n - (j) * LANES;                                                                         \
        const vd x = length < LANES ? vd_load_part_##type(s + (j) * LANES, length) : vd_load_##type(s + (j) * LANES);  \
        sum##j = ADD_SQUARE_##type(sum##j, x);                                                                         \
    }
#define SUM_STORE(j, type) vd_store_f64(lane + (j) * LANES, sum##j);

#define SUM_SQUARES(type)                                                                                              \
    static AMP__SUM_SQUARES(sum_squares_##type) {                                                                      \
        const amp__##type *s = src;                                                                                    \
        double lane[AMP__SUM_LANES];                                                                                   \
        EACH_SUM(SUM_ZERO, type)                                                                                       \
        for (; n >= AMP__SUM_LANES; n -= AMP__SUM_LANES, s += AMP__SUM_LANES) {                                        \
            read_ahead(s, AMP__SUM_LANES * sizeof *s);                                                                 \
            EACH_SUM(SUM_ADD, type)                                                                                    \
        }                                                                                                              \
        EACH_SUM(SUM_ADD_PART, type)                                                                                   \
        EACH_SUM(SUM_STORE, type)                                                                                      \
        return sum_lanes(lane);                                                                                        \
    }
SUM_SQUARES(f32)
SUM_SQUARES(f64)

/* ---- sum of squares of 16 bits ---- */

/* fp16 has no number beyond [2^-60, 2^60]; its infinities and NaNs pass through float as through double. */
static inline bool is_tame_f16(const amp__f16 *s, const amp__f16 *end) { return (void)s, (void)end, true; }
/* Whole stripes. */
static inline bool is_tame_bf16(const amp__bf16 *s, const amp__bf16 *end) {
    enum { LEAST = (127 - 60) << 7, LARGEST = (127 + 60) << 7, HALVES = sizeof(vw) / sizeof *s };
    struct seen_16 seen = unseen_16();
    for (; s < end; s += 2 * HALVES) {
        read_ahead(s, 2 * sizeof(vw));
        seen = see_16(see_16(seen, vw_load(s)), vw_load(s + HALVES));
    }
    return largest_16(seen) <= LARGEST && least_16(seen) >= LEAST;
}

/* Squares are exact: one operation gives the bits of two. */
#define ROW(type, row) vf_load_##type(s + (row) * AMP__SUM_LANES)
#define ADD_ROW(sum, type, row)                                                                                        \
    {                                                                                                                  \
        const vf x = ROW(type, row);                                                                                   \
        sum = vf_add_exact(sum, x, x);                                                                                 \
    }
#define STRIPE_ADD(j, type) sum##j = vd_add(sum##j, widen(squares_of_##type(s + (j) * LANES)));
#define STRIPES(type)                                                                                                  \
    static inline vf squares_of_##type(const amp__##type *s) {                                                         \
        const vf first = ROW(type, 0), second = ROW(type, 1);                                                          \
        vf even = vf_mul(first, first), odd = vf_mul(second, second);                                                  \
        ADD_ROW(even, type, 2) ADD_ROW(odd, type, 3)                                                                   \
        ADD_ROW(even, type, 4) ADD_ROW(odd, type, 5)                                                                   \
        ADD_ROW(even, type, 6) ADD_ROW(odd, type, 7)                                                                   \
        return vf_add(even, odd);                                                                                      \
    }                                                                                                                  \
    /* What is behind the end of a stretch's last stripe is 0, which changes no sum. Returns the stripes' end. */      \
    static inline const amp__##type *fill_stripe_##type(const amp__##type **s, size_t length,                          \
                                                        amp__##type rest[AMP__SUM_STRETCH]) {                          \
        const size_t filled = (length + AMP__SUM_STRIPE - 1) / AMP__SUM_STRIPE * AMP__SUM_STRIPE;                      \
        if (filled > length) {                                                                                         \
            memset(rest + length, 0, (filled - length) * sizeof *rest);                                                \
            *s = memcpy(rest, *s, length * sizeof *rest);                                                              \
        }                                                                                                              \
        return *s + filled;                                                                                            \
    }                                                                                                                  \
    static AMP__SUM_SQUARES(sum_squares_##type) {                                                                      \
        const amp__##type *from = src;                                                                                 \
        amp__##type rest[AMP__SUM_STRETCH];                                                                            \
        double lane[AMP__SUM_LANES];                                                                                   \
        EACH_SUM(SUM_ZERO, type)                                                                                       \
        for (size_t length; n; n -= length, from += length) {                                                          \
            length = n < AMP__SUM_STRETCH ? n : AMP__SUM_STRETCH;                                                      \
            const amp__##type *s = from, *const end = fill_stripe_##type(&s, length, rest);                            \
            if (is_tame_##type(s, end)) {                                                                              \
                for (; s < end; s += AMP__SUM_STRIPE) {                                                                \
                    read_ahead(s, AMP__SUM_STRIPE * sizeof *s);                                                        \
                    EACH_SUM(STRIPE_ADD, type)                                                                         \
                }                                                                                                      \
            } else {                                                                                                   \
                for (; s < end; s += AMP__SUM_LANES) {                                                                 \
                    EACH_SUM(SUM_ADD, type)                                                                            \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        EACH_SUM(SUM_STORE, type)                                                                                      \
        return sum_lanes(lane);                                                                                        \
    }
STRIPES(f16)
STRIPES(bf16)

amp__sum_squares_fn *const AMP__TABLE(sum_squares)[AMP__TYPES] = {
    NULL, sum_squares_f32, sum_squares_f16, sum_squares_bf16, sum_squares_f64,
};

/* ---- the largest, and non-finite elements ---- */

/* Magnitudes as integers, the largest of each place; then those and the rest one by one. Every step-th word, from the
 * first one's last: the upper half of a double has its exponent. */
#define LARGEST(type, bits, step, limit)                                                                               \
    static inline uint32_t largest_word_##type(const void *src, size_t n) {                                            \
        enum { STRETCH = 2 * sizeof(vw), WORD = bits / 8 };                                                            \
        const char *s = src;                                                                                           \
        size_t bytes = n * sizeof(amp__##type);                                                                        \
        vw largest[2] = { vw_zero(), vw_zero() };                                                                      \
        for (; bytes >= STRETCH; bytes -= STRETCH, s += STRETCH) {                                                     \
            read_ahead(s, STRETCH);                                                                                    \
            largest[0] = vw_see_magnitude_##bits(largest[0], vw_load(s));                                              \
            largest[1] = vw_see_magnitude_##bits(largest[1], vw_load(s + sizeof(vw)));                                 \
        }                                                                                                              \
        uint##bits##_t words[2 * STRETCH / WORD] = { 0 };                                                              \
        memcpy(words, largest, STRETCH);                                                                               \
        if (bytes) memcpy(words + STRETCH / WORD, s, bytes);                                                           \
        uint32_t most = 0;                                                                                             \
        for (size_t i = step - 1; i < 2 * STRETCH / WORD; i += step) {                                                 \
            const uint32_t magnitude = words[i] & ~(UINT32_C(1) << (bits - 1));                                        \
            most = magnitude > most ? magnitude : most;                                                                \
        }                                                                                                              \
        return most;                                                                                                   \
    }                                                                                                                  \
    static AMP__NONFINITE(nonfinite_##type) { return largest_word_##type(src, n) >= limit; }
LARGEST(f32, 32, 1, UINT32_C(0x7f800000))
LARGEST(f16, 16, 1, UINT32_C(0x7c00))
LARGEST(bf16, 16, 1, UINT32_C(0x7f80))
LARGEST(f64, 32, 2, UINT32_C(0x7ff00000))

static AMP__LARGEST(largest_f32) { return largest_word_f32(src, n); }
static AMP__LARGEST(largest_f16) { return largest_word_f16(src, n); }
static AMP__LARGEST(largest_bf16) { return largest_word_bf16(src, n); }

amp__largest_fn *const AMP__TABLE(largest)[AMP__TYPES] = { NULL, largest_f32, largest_f16, largest_bf16, NULL };
amp__nonfinite_fn *const AMP__TABLE(nonfinite)[AMP__TYPES] = {
    NULL, nonfinite_f32, nonfinite_f16, nonfinite_bf16, nonfinite_f64,
};

/* ---- both at once, of scaled elements ---- */

/* Behind the end lie zeros, whose products with infinity are not to be seen. */
#define CHECK_ADD(j, type)                                                                                             \
    {                                                                                                                  \
        const vec_##type x = scaled_##type(s + (j) * LANES, by_scale, by_factor, twice);                               \
        see_##type(&seen, x);                                                                                          \
        sum##j = add_square_##type(sum##j, x);                                                                         \
    }
#define CHECK_ADD_PART(j, type)                                                                                        \
    if (n > (j) * LANES) {                                                                                             \
        const size_t length = n - (j) * LANES < LANES ? n - (j) * LANES : LANES;                                       \
        const vec_##type x = first_##type(scaled_##type(s + (j) * LANES, by_scale, by_factor, twice), length);         \
        see_##type(&seen, x);                                                                                          \
        sum##j = add_square_##type(sum##j, x);                                                                         \
    }

/* v: vector type of the products. `twice`, a constant: the factor is not 1. */
#define CHECK(type, v, square)                                                                                         \
    typedef v vec_##type;                                                                                              \
    static inline v scaled_##type(const amp__##type *src, v by_scale, v by_factor, bool twice) {                       \
        const v once = v##_mul(v##_load_##type(src), by_scale);                                                        \
        return twice ? v##_mul(once, by_factor) : once;                                                                \
    }                                                                                                                  \
    static inline v first_##type(v x, size_t n) { return n < LANES ? v##_first(x, n) : x; }                            \
    static inline vd add_square_##type(vd sum, v x) { return square; }                                                 \
    static inline __attribute__((always_inline)) double checked_##type(                                                \
        const amp__##type *s, size_t n, float scale, float factor, bool twice, uint32_t *nonfinite) {                  \
        amp__##type rest[AMP__SUM_LANES] = { 0 };                                                                      \
        double lane[AMP__SUM_LANES];                                                                                   \
        const v by_scale = v##_set1(scale), by_factor = v##_set1(factor);                                              \
        SEEN_##v seen = v##_unseen();                                                                                  \
        EACH_SUM(SUM_ZERO, type)                                                                                       \
        for (; n >= AMP__SUM_LANES; n -= AMP__SUM_LANES, s += AMP__SUM_LANES) {                                        \
            read_ahead(s, AMP__SUM_LANES * sizeof *s);                                                                 \
            EACH_SUM(CHECK_ADD, type)                                                                                  \
        }                                                                                                              \
        if (n) s = memcpy(rest, s, n * sizeof *s);                                                                     \
        EACH_SUM(CHECK_ADD_PART, type)                                                                                 \
        EACH_SUM(SUM_STORE, type)                                                                                      \
        const double sum = sum_lanes(lane);                                                                            \
        *nonfinite |= not_finite_##type(sum, seen);                                                                    \
        return sum;                                                                                                    \
    }                                                                                                                  \
    static AMP__CHECK(check_##type) {                                                                                  \
        return factor == 1.0f ? checked_##type(src, n, scale, factor, false, nonfinite)                                \
                              : checked_##type(src, n, scale, factor, true, nonfinite);                                \
    }

/* A block's sum of squares of floats is finite in double if they are, and not if one of them is not. */
#define SEEN_IN_THE_SUM(type)                                                                                          \
    static inline void see_##type(seen_f *seen, vf x) { (void)seen, (void)x; }                                         \
    static inline uint32_t not_finite_##type(double sum, seen_f seen) { return (void)seen, !(sum <= 0x1p1023); }
SEEN_IN_THE_SUM(f32)
SEEN_IN_THE_SUM(f16)
SEEN_IN_THE_SUM(bf16)
static inline void see_f64(seen_d *seen, vd x) { *seen = vd_see(*seen, x, LIMIT_vd_f64); }
static inline uint32_t not_finite_f64(double sum, seen_d seen) { return (void)sum, vd_seen(seen, LIMIT_vd_f64); }

CHECK(f32, vf, vd_add_exact(sum, widen(x), widen(x)))
CHECK(f16, vf, vd_add_exact(sum, widen(x), widen(x)))
CHECK(bf16, vf, vd_add_exact(sum, widen(x), widen(x)))
CHECK(f64, vd, vd_add(sum, vd_mul(x, x)))

amp__check_fn *const AMP__TABLE(check)[AMP__TYPES] = { NULL, check_f32, check_f16, check_bf16, check_f64 };
