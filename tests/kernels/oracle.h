/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels should give, found in another way and slowly: a number is rounded to a 16-bit type by searching the
 * list of all its values for the nearest, to float by the processor, and float arithmetic is done in double, which has
 * more than twice float's bits plus two, so that rounding the double result once more gives the float result.
 * To be called in the default floating-point environment.
 */
#ifndef AMP_TESTS_ORACLE_H
#define AMP_TESTS_ORACLE_H

#include "amp_all.h"

#include <stdbool.h>
#include <string.h>

/* The four types in the order in which loops go through them. */
#define TYPES 4
static const amp_dtype all_types[TYPES] = { AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16, AMP_FLOAT64 };

/* Of a type: bytes, bits of mantissa and of exponent, the sign, and +infinity, above which are NaNs. */
struct format {
    uint32_t size;
    int32_t mantissa, exponent;
    uint64_t sign, infinity;
};
extern const struct format formats[AMP_FLOAT64 + 1];

static inline uint64_t sign_bit(amp_dtype type) { return formats[type].sign; }
static inline uint64_t infinity_bits(amp_dtype type) { return formats[type].infinity; }
static inline bool bits_are_nan(amp_dtype type, uint64_t bits) {
    return (bits & ~formats[type].sign) > formats[type].infinity;
}
static inline bool bits_are_nonfinite(amp_dtype type, uint64_t bits) {
    return (bits & ~formats[type].sign) >= formats[type].infinity;
}
static inline bool bits_agree(amp_dtype type, uint64_t a, uint64_t b) { /* equal, or both NaN */
    return a == b || (bits_are_nan(type, a) && bits_are_nan(type, b));
}

/* Elements as bit patterns (little-endian, as all machines that libamp knows) and as values, which are doubles. */
static inline uint64_t get_bits(amp_dtype type, const void *data, size_t i) {
    uint64_t bits = 0;
    memcpy(&bits, (const char *)data + i * formats[type].size, formats[type].size);
    return bits;
}
static inline void set_bits(amp_dtype type, void *data, size_t i, uint64_t bits) {
    memcpy((char *)data + i * formats[type].size, &bits, formats[type].size);
}
double value_of_bits(amp_dtype type, uint64_t bits);

/* The magnitude nearest to |x|, ties to even, by search in the list of all values; x not NaN. */
uint64_t search_nearest(amp_dtype type, double x);

/* The bits in `type` nearest to x, ties to even. NaN gives a quiet NaN. */
uint64_t round_to_bits(amp_dtype type, double x);

/* The values between which ties lie: i is a magnitude below infinity_bits(type). At the upper end the next value is
 * the power of two that infinity stands for in rounding. */
double midpoint_above(amp_dtype type, uint64_t i);

uint64_t oracle_cast(amp_dtype to, amp_dtype from, uint64_t bits);
uint64_t oracle_scale(amp_dtype to, amp_dtype from, uint64_t bits, float scale);
uint64_t oracle_axpby(amp_dtype to, float a, amp_dtype x_type, uint64_t x, float b, amp_dtype y_type, uint64_t y);
double oracle_sum_squares(amp_dtype type, const void *src, size_t n); /* any n: a whole tensor */
void oracle_statistics(amp_dtype type, const void *src, size_t n, amp_statistics *s); /* any n; s is replaced */
bool statistics_agree(const amp_statistics *a, const amp_statistics *b); /* to the bit; all NaN are one */

#endif
