/* SPDX-License-Identifier: Apache-2.0 */
/* Rule: deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler.update_scale. s is `stable_interval`, the iteration less
 * the last one that overflowed (at first -1) less 1; h is `cur_hysteresis`, which starts at 2. */
#include "vectors.h"

const struct vector vectors_deepspeed[VECTORS] = {
    /* Defaults: 2^16; h = 2: tolerated; h = 1: halved. */
    { "the second overflow backs off", { 0 }, "xx", { 65536, 32768 } },
    /* s = 0 1 2 3 4 5 6 7: 3 and 6 are multiples of 3 above 0. The first window has four brackets. */
    { "s from 0", { .init_scale = 4, .window = 3 }, "........", { 4, 4, 4, 8, 8, 8, 16, 16 } },
    /* s = 0 does not count; s = 1 2 3 do. */
    { "window 1", { .init_scale = 4, .window = 1 }, "....", { 4, 8, 16, 32 } },
    /* s = 0 1 2: 32; overflow: 16; s = 0 1 2: 32; s = 3. */
    { "windows from the overflow", { .init_scale = 16, .window = 2, .hysteresis = 1 }, "...x....",
      { 16, 16, 32, 16, 16, 16, 32, 32 } },
    /* s = 0 1; h = 3: tolerated, but it counts as the last overflow; s = 0 1 2: 16. */
    { "a tolerated overflow restarts", { .init_scale = 8, .window = 2, .hysteresis = 3 }, "..x...",
      { 8, 8, 8, 8, 8, 16 } },
    /* h = 2: tolerated; clean; h = 1: 8; clean; h = 1 still: 4. */
    { "a clean bracket restores nothing", { .init_scale = 16 }, "x.x.x", { 16, 16, 8, 8, 4 } },
    /* h = 2: tolerated; s = 0; s = 1: 32, h = 2; tolerated; h = 1: 16. */
    { "growth restores hysteresis", { .init_scale = 16, .window = 1 }, "x..xx", { 16, 16, 32, 32, 16 } },
    /* consecutive_hysteresis: every clean bracket makes h = 2 again. */
    { "consecutive hysteresis", { .init_scale = 16, .consecutive_hysteresis = AMP_ON }, "x.x.xx",
      { 16, 16, 16, 16, 16, 8 } },
    /* max(2 / 2, 1); max(0.5, 1): raise_error_at_min_scale is max_skips' business here. */
    { "the floor is 1", { .init_scale = 2, .hysteresis = 1 }, "xxx", { 1, 1, 1 } },
    /* Option: s = 0; s = 1: min(100, 120); overflow: 100 / 2. */
    { "a ceiling of 100", { .init_scale = 60, .max_scale = 100, .window = 1, .hysteresis = 1 }, "..x",
      { 60, 100, 50 } },
};
