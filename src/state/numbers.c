/* SPDX-License-Identifier: Apache-2.0 */
/* A float is an integer of 24 bits times a power of two; written so, it needs no decimal point and so no locale. Bits
 * alone are moved: no rounding mode, flush-to-zero or trap of the host's has a say. */
#include "state/state.h"

#include <stdio.h>
#include <string.h>

enum { MANTISSA_BITS = 23, LOWEST_EXPONENT = -149 };

void amp__float_to_text(float value, char text[AMP__NUMBER_SIZE]) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t biased = bits >> MANTISSA_BITS & 0xff;
    uint32_t mantissa = bits & ((1u << MANTISSA_BITS) - 1);
    int exponent = LOWEST_EXPONENT;
    if (biased) {
        mantissa |= 1u << MANTISSA_BITS;
        exponent += (int)biased - 1;
    }
    for (; mantissa && !(mantissa & 1); exponent++) mantissa >>= 1;
    snprintf(text, AMP__NUMBER_SIZE, "0x%xp%+d", (unsigned)mantissa, mantissa ? exponent : 0);
}

static bool assemble(uint32_t mantissa, int exponent, float *value) {
    if (mantissa >> (MANTISSA_BITS + 1) || exponent < LOWEST_EXPONENT || exponent > 127) return false;
    while (mantissa && !(mantissa >> MANTISSA_BITS) && exponent > LOWEST_EXPONENT) {
        mantissa <<= 1;
        exponent--;
    }
    const bool normal = mantissa >> MANTISSA_BITS;
    const uint32_t biased = normal ? (uint32_t)(exponent - LOWEST_EXPONENT + 1) : 0;
    if (biased > 254) return false;
    const uint32_t bits = biased << MANTISSA_BITS | (mantissa & ((1u << MANTISSA_BITS) - 1));
    memcpy(value, &bits, sizeof bits);
    return true;
}

/* What amp__float_to_text writes is the only spelling of a number, so reading ends with writing and comparing. */
bool amp__float_from_text(const char *text, float *value) {
    unsigned mantissa;
    int exponent;
    float result;
    char canonical[AMP__NUMBER_SIZE];
    if (strlen(text) >= AMP__NUMBER_SIZE || sscanf(text, "0x%6xp%6d", &mantissa, &exponent) != 2) return false;
    if (!assemble(mantissa, mantissa ? exponent : LOWEST_EXPONENT, &result)) return false;
    amp__float_to_text(result, canonical);
    if (strcmp(canonical, text)) return false;
    *value = result;
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
