/* SPDX-License-Identifier: Apache-2.0 */
/* A float is an integer of 24 bits times a power of two, a double one of 53; written so, it needs no decimal point and
 * so no locale. Bits alone are moved: no rounding mode, flush-to-zero or trap of the host's has a say. */
#include "state/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct format {
    int mantissa_bits, lowest_exponent, highest_exponent;
} single = { 23, -149, 127 }, twice = { 52, -1074, 1023 };

static void to_text(uint64_t bits, const struct format *format, char text[AMP__NUMBER_SIZE]) {
    const uint64_t one = (uint64_t)1 << format->mantissa_bits, biased = bits >> format->mantissa_bits;
    uint64_t mantissa = bits & (one - 1);
    int exponent = format->lowest_exponent;
    if (biased) {
        mantissa |= one;
        exponent += (int)biased - 1;
    }
    for (; mantissa && !(mantissa & 1); exponent++) mantissa >>= 1;
    snprintf(text, AMP__NUMBER_SIZE, "0x%" PRIx64 "p%+d", mantissa, mantissa ? exponent : 0);
}

static bool assemble(uint64_t mantissa, int exponent, const struct format *format, uint64_t *bits) {
    const int width = format->mantissa_bits, lowest = format->lowest_exponent;
    if (mantissa >> (width + 1) || exponent < lowest || exponent > format->highest_exponent) return false;
    while (mantissa && !(mantissa >> width) && exponent > lowest) {
        mantissa <<= 1;
        exponent--;
    }
    const bool normal = mantissa >> width;
    const uint64_t biased = normal ? (uint64_t)(exponent - lowest + 1) : 0;
    if (biased > 2 * (uint64_t)format->highest_exponent) return false;
    *bits = biased << width | (mantissa & (((uint64_t)1 << width) - 1));
    return true;
}

/* A number has one spelling, that of to_text, so reading ends with writing and comparing. */
static bool from_text(const char *text, const struct format *format, uint64_t *bits) {
    uint64_t mantissa;
    int exponent;
    char canonical[AMP__NUMBER_SIZE];
    if (strlen(text) >= AMP__NUMBER_SIZE || sscanf(text, "0x%14" SCNx64 "p%6d", &mantissa, &exponent) != 2)
        return false;
    if (!assemble(mantissa, mantissa ? exponent : format->lowest_exponent, format, bits)) return false;
    to_text(*bits, format, canonical);
    return !strcmp(canonical, text);
}

void amp__float_to_text(float value, char text[AMP__NUMBER_SIZE]) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    to_text(bits & 0x7fffffffu, &single, text);
}

bool amp__float_from_text(const char *text, float *value) {
    uint64_t bits;
    if (!from_text(text, &single, &bits)) return false;
    const uint32_t narrow = (uint32_t)bits;
    memcpy(value, &narrow, sizeof narrow);
    return true;
}

void amp__double_to_text(double value, char text[AMP__NUMBER_SIZE]) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    to_text(bits & INT64_MAX, &twice, text);
}

bool amp__double_from_text(const char *text, double *value) {
    uint64_t bits;
    if (!from_text(text, &twice, &bits)) return false;
    memcpy(value, &bits, sizeof bits);
    return true;
}

bool amp__uint_from_text(const char *text, uint64_t max, uint64_t *value) {
    const size_t length = strlen(text);
    uint64_t result = 0;
    if (!length || (text[0] == '0' && length > 1)) return false;
    for (size_t i = 0; i < length; i++) {
        const unsigned digit = (unsigned char)text[i] - (unsigned)'0';
        if (digit > 9 || result > (UINT64_MAX - digit) / 10) return false;
        result = result * 10 + digit;
    }
    if (result > max) return false;
    *value = result;
    return true;
}
