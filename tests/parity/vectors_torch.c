/* SPDX-License-Identifier: Apache-2.0 */
/* Rule: torch.amp.GradScaler.update, _amp_update_scale_. t is the growth tracker. */
#include "vectors.h"

const struct vector vectors_torch[VECTORS] = {
    /* PyTorch's own test of the op: t = 1, t = 2: 4 * 2; overflow: 8 / 4. */
    { "PyTorch's numbers", { .init_scale = 4, .backoff = 0.25f, .window = 2 }, "..x", { 4, 8, 2 } },
    /* Defaults: 2^16, halved, halved again. */
    { "halves", { 0 }, "xx", { 32768, 16384 } },
    /* t = 1 2; overflow: 8 / 2, t = 0; t = 1 2 3: 4 * 2. */
    { "an overflow resets the tracker", { .init_scale = 8, .window = 3 }, "..x...", { 8, 8, 4, 4, 4, 8 } },
    /* 2^24 * 2, * 2: unlike Apex there is no ceiling. */
    { "no ceiling at 2^24", { .init_scale = 0x1p24f, .window = 1 }, "..", { 0x1p25f, 0x1p26f } },
    /* 2^128 is not finite: the scale stays 2^127, twice; overflow: 2^126. */
    { "not to infinity", { .init_scale = 0x1p127f, .window = 1 }, "..x", { 0x1p127f, 0x1p127f, 0x1p126f } },
    /* 1.5 * 2^127 * 1.5 = 1.125 * 2^128 is not finite: stays; / 2 = 1.5 * 2^126; * 1.5 = 1.125 * 2^127. */
    { "a refused growth is not a clamp", { .init_scale = 0x1.8p127f, .growth = 1.5f, .window = 1 }, ".x.",
      { 0x1.8p127f, 0x1.8p126f, 0x1.2p127f } },
    /* 16 * 1.5 = 24; 24 * 0.75 = 18. */
    { "factors 1.5 and 0.75", { .init_scale = 16, .growth = 1.5f, .backoff = 0.75f, .window = 1 }, ".x", { 24, 18 } },
    /* 2^-125 / 2 = 2^-126, the default floor. Here the parity ends: torch's next would be 2^-127. */
    { "the floor is 2^-126", { .init_scale = 0x1p-125f }, "xxx", { 0x1p-126f, 0x1p-126f, 0x1p-126f } },
    /* Options: min(24, 16 * 2) = 24; 24 / 2 = 12; max(8, 6) = 8. */
    { "floor and ceiling", { .init_scale = 16, .min_scale = 8, .max_scale = 24, .window = 1 }, ".xx", { 24, 12, 8 } },
    /* Option, as Apex's kernel: the first in a row is tolerated; tolerated; backs off: 16 / 2. */
    { "hysteresis 2", { .init_scale = 16, .hysteresis = 2 }, "x.xx", { 16, 16, 16, 8 } },
};
