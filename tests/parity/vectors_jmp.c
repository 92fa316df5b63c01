/* SPDX-License-Identifier: Apache-2.0 */
/* Rule: jmp.DynamicLossScale.adjust. c is the counter; growth grows where c was period - 1. */
#include "vectors.h"

const struct vector vectors_jmp[VECTORS] = {
    /* Defaults: 2^15, halved, halved again. */
    { "halves", { 0 }, "xx", { 16384, 8192 } },
    /* c was 0 1 2: 8 * 2; 0 1 2: 16 * 2. */
    { "doubles after each period", { .init_scale = 8, .window = 3 }, "......", { 8, 8, 16, 16, 16, 32 } },
    /* c was 0 1; overflow: 8 / 2, c = 0; c was 0 1 2: 4 * 2. */
    { "an overflow resets the counter", { .init_scale = 8, .window = 3 }, "..x...", { 8, 8, 4, 4, 4, 8 } },
    /* max(1, 2 / 2); max(1, 0.5). */
    { "the floor is 1", { .init_scale = 2 }, "xx", { 1, 1 } },
    /* 10 / 3 in FP32: binary 11.0101..., 24 bits, the next is 0: rounded down. 10 times 1/3 in FP32 is 1 ulp more. */
    { "divides by a factor of 3", { .init_scale = 10, .growth = 3 }, "x", { 0x1.aaaaaap1f } },
    /* 2^128 is not finite: stays; overflow: 2^126. */
    { "not to infinity", { .init_scale = 0x1p127f, .window = 1 }, ".x", { 0x1p127f, 0x1p126f } },
    /* 6 * 1.5 = 9; 9 / 1.5 = 6. */
    { "a factor of 1.5", { .init_scale = 6, .growth = 1.5f, .window = 1 }, ".x", { 9, 6 } },
    /* Option: min(24, 32), again; 24 / 2. */
    { "a ceiling of 24", { .init_scale = 16, .max_scale = 24, .window = 1 }, "..x", { 24, 24, 12 } },
    /* Option: 16 / 4, then 4 * 2. */
    { "a backoff of its own", { .init_scale = 16, .backoff = 0.25f, .window = 1 }, "x.", { 4, 8 } },
    /* Option, as Apex's kernel: tolerated; restored; tolerated; 16 / 2. */
    { "hysteresis 2", { .init_scale = 16, .hysteresis = 2 }, "x.xx", { 16, 16, 16, 8 } },
};
