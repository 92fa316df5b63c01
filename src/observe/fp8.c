/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP8 as a dry run: what casts to the OCP's E4M3 (its variant without infinities, up to 448) and E5M2 (up to 57344)
 * would lose. The scale of a tensor is the greatest power of two at which its largest element fits, so none overflows,
 * and saturating casts and others agree. Histograms have the powers of two in each binade, so zeros are exact: half the
 * least subnormal is a tie, and becomes 0. Blocks of MXFP8 have scales of their own, which no histogram knows: a few
 * are cast, element by element (OCP Microscaling Formats 1.0: the scale by the exponent of the largest, saturating).
 */
#include "observe/observe.h"

#include <math.h>
#include <string.h>

/* Exponents of the largest number that becomes 0, of the least normal one, of the largest; then the least that a block
 * saturates to the largest. */
static const struct format {
    int zero, normal, top;
    double saturates;
} formats[] = { [AMP__E4M3] = { -10, -6, 8, 464.0 }, [AMP__E5M2] = { -17, -14, 15, 61440.0 } };

/* Both largest numbers are 1.75 * 2^top. */
static int scale_of(double largest, const struct format *format) {
    int exponent;
    return frexp(largest, &exponent) > 0.875 ? format->top - exponent : format->top + 1 - exponent;
}

void amp__fp8_losses(const amp_statistics *s, enum amp__fp8 kind, struct amp__fp8_losses *out) {
    const struct format *format = &formats[kind];
    *out = (struct amp__fp8_losses){ s->below, 0, 0 };
    if (!(s->largest > 0.0)) return;
    const int scale = scale_of(s->largest, format);
    for (int i = 0; i < AMP_BINADES; i++) {
        const amp_binade *binade = &s->binades[i];
        const int e = i + AMP_BINADE_LEAST + scale;
        const uint64_t zeros = e < format->zero ? binade->elements : e == format->zero ? binade->powers : 0;
        out->zeros += zeros;
        out->subnormals += e < format->normal ? binade->elements - zeros : 0;
    }
}

bool amp__fp8_casts(const struct amp__seen *seen) {
    return seen->op && seen->what == AMP_SEE_INPUTS && seen->op->listed == AMP_LOWER && strcmp(seen->name, "bias") != 0;
}

void amp__fp8_total(const struct amp__seen *seen, enum amp__fp8 kind, struct amp__fp8_losses *out) {
    struct amp__fp8_losses last;
    amp__fp8_losses(&seen->last, kind, &last);
    *out = seen->fp8_before[kind]; /* out may be these */
    out->zeros += last.zeros;
    out->subnormals += last.subnormals;
}

/* ---- blocks ---- */

enum { BLOCK = 32, BLOCKS = 32 }; /* elements of one, and samples of a tensor */

static void count_block(const float *x, uint64_t n, struct amp__fp8_blocks *blocks) {
    double largest = 0.0;
    for (uint64_t i = 0; i < n; i++)
        if (isfinite(x[i])) largest = fmax(largest, fabs((double)x[i]));
    if (!(largest > 0.0)) return;
    for (uint64_t i = 0; i < n; i++) blocks->numbers += isfinite(x[i]) && x[i] != 0.0f;
    for (int kind = 0; kind < AMP__FP8S; kind++) {
        const struct format *format = &formats[kind];
        struct amp__fp8_losses *losses = &blocks->losses[kind];
        const int scale = -(int)fmin(fmax(ilogb(largest) - format->top, -127), 127); /* E8M0 has no more */
        const double factor = ldexp(1.0, scale), zero = ldexp(1.0, format->zero), normal = ldexp(1.0, format->normal);
        for (uint64_t i = 0; i < n; i++) {
            const double number = fabs((double)x[i]) * factor;
            if (!isfinite(x[i]) || x[i] == 0.0f) continue;
            losses->zeros += number <= zero;
            losses->subnormals += number > zero && number < normal;
            losses->saturated += kind == AMP__E4M3 ? number > format->saturates : number >= format->saturates;
        }
    }
}

void amp__fp8_sample(const amp_span *span, uint64_t seed, struct amp__fp8_blocks *blocks) {
    const uint64_t n = (span->size + BLOCK - 1) / BLOCK, step = n > BLOCKS ? n / BLOCKS : 1;
    const size_t width = amp__dtype_size(span->dtype);
    for (uint64_t block = seed % step, done = 0; block < n && done < BLOCKS; block += step, done++) {
        const uint64_t at = block * BLOCK, size = span->size - at < BLOCK ? span->size - at : BLOCK;
        float x[BLOCK];
        const amp_span from = { (char *)span->data + at * width, size, span->dtype, 0 };
        const amp_span to = { x, size, AMP_FLOAT32, 0 };
        if (amp_cast_list(&to, &from, 1) != AMP_OK) return;
        count_block(x, size, blocks);
    }
}

void amp__fp8_add(struct amp__fp8_blocks *into, const struct amp__fp8_blocks *blocks) {
    into->numbers += blocks->numbers;
    for (int kind = 0; kind < AMP__FP8S; kind++) {
        into->losses[kind].zeros += blocks->losses[kind].zeros;
        into->losses[kind].subnormals += blocks->losses[kind].subnormals;
        into->losses[kind].saturated += blocks->losses[kind].saturated;
    }
}
