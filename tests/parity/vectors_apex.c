/* SPDX-License-Identifier: Apache-2.0 */
/* Rule: apex.amp.scaler; hysteresis: amp_C.update_scale_hysteresis. u is `unskipped`, h the hysteresis tracker. */
#include "vectors.h"

const struct vector vectors_apex[VECTORS] = {
    /* Defaults: 2^16, halved, halved again. */
    { "halves", { 0 }, "xx", { 32768, 16384 } },
    /* u = 1 2 3: 8 * 2; u = 1 2 3: 16 * 2. */
    { "doubles after each window", { .init_scale = 8, .window = 3 }, "......", { 8, 8, 16, 16, 16, 32 } },
    /* u = 1 2; overflow: 8 / 2, u = 0; u = 1 2 3: 4 * 2. */
    { "an overflow restarts the window", { .init_scale = 8, .window = 3 }, "..x...", { 8, 8, 4, 4, 4, 8 } },
    /* 2^23 * 2 = 2^24, the default ceiling; min(2^24, 2^25). */
    { "the ceiling is 2^24", { .init_scale = 0x1p23f, .window = 1 }, "..", { 0x1p24f, 0x1p24f } },
    /* min(100, 60 * 2) = 100; 100 / 2. */
    { "a ceiling of 100", { .init_scale = 60, .max_scale = 100, .window = 1 }, ".x", { 100, 50 } },
    /* 8 / 2 = 4; max(4, 4 / 2) = 4. */
    { "a floor of 4", { .init_scale = 8, .min_scale = 4 }, "xxx", { 4, 4, 4 } },
    /* u = 1; max(4, 2) = 4, u = 0; u = 1 2: 4 * 2. At the floor an overflow restarts the window all the same. */
    { "restart at the floor", { .init_scale = 4, .min_scale = 4, .window = 2 }, ".x..", { 4, 4, 4, 8 } },
    /* h = 3: 2 and 1 are tolerated, 0 and -1 back off: 16, 16, 16 / 2, 8 / 2. */
    { "hysteresis 3", { .init_scale = 16, .hysteresis = 3 }, "xxxx", { 16, 16, 8, 4 } },
    /* h = 1, back to 2; h = 1, back to 2; h = 1, h = 0: 16 / 2. */
    { "a clean bracket restores hysteresis", { .init_scale = 16, .hysteresis = 2 }, "x.x.xx",
      { 16, 16, 16, 16, 16, 8 } },
    /* u = 1 2: 16 * 4; 64 / 4; u = 1 2: 16 * 4. */
    { "factors 4 and 1/4", { .init_scale = 16, .growth = 4, .backoff = 0.25f, .window = 2 }, "..x..",
      { 16, 64, 16, 16, 64 } },
};
