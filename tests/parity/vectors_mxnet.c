/* SPDX-License-Identifier: Apache-2.0 */
/* Rule: mxnet.contrib.amp.loss_scaler.LossScaler.has_overflow. Each tick first makes `next` the scale, then derives a
 * new `next` from it. u is `_unskipped`. */
#include "vectors.h"

const struct vector vectors_mxnet[VECTORS] = {
    /* Defaults: scale 2^16, next 2^15; scale 2^15. */
    { "one bracket late", { 0 }, "x.", { 65536, 32768 } },
    /* u = 1; u = 2: next 16; scale 16, u = 1; u = 2: next 32; scale 32. */
    { "grows one late", { .init_scale = 8, .window = 2 }, ".....", { 8, 8, 16, 16, 32 } },
    /* next 8; scale 8, next 4; scale 4. The second overflow had gradients of scale 16 still, and counts as one of 8. */
    { "two in a row", { .init_scale = 16 }, "xx.", { 16, 8, 4 } },
    /* u = 1; next 8, u = 0; scale 8, u = 1; u = 2: next 16; scale 16. */
    { "an overflow restarts the window", { .init_scale = 16, .window = 2 }, ".x...", { 16, 16, 8, 8, 16 } },
    /* next 16; scale 16, next 8; scale 8. */
    { "growth, then an overflow", { .init_scale = 8, .window = 1 }, ".x.", { 8, 16, 8 } },
    /* next 2^24; scale 2^24, next min(2^24, 2^25); 2^24. */
    { "the ceiling is 2^24", { .init_scale = 0x1p23f, .window = 1 }, "...", { 0x1p23f, 0x1p24f, 0x1p24f } },
    /* Option: next 4; scale 4, next max(4, 2) = 4; 4. */
    { "a floor of 4", { .init_scale = 8, .min_scale = 4 }, "xxx", { 8, 4, 4 } },
    /* next 8; scale 8, next 16; scale 16, next 32; scale 32. */
    { "window 1", { .init_scale = 4, .window = 1 }, "....", { 4, 8, 16, 32 } },
    /* Option, as Apex's kernel: tolerated; restored; tolerated; next 8; scale 8. */
    { "hysteresis 2", { .init_scale = 16, .hysteresis = 2 }, "x.xx.", { 16, 16, 16, 16, 8 } },
    /* Option: next 64; scale 64, next 16; scale 16, next 4; scale 4. */
    { "factors 4 and 1/4", { .init_scale = 16, .growth = 4, .backoff = 0.25f, .window = 1 }, ".xx.",
      { 16, 64, 16, 4 } },
};
