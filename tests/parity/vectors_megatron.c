/* SPDX-License-Identifier: Apache-2.0 */
/* Rule: megatron.core.optimizer.grad_scaler.DynamicGradScaler.update. g is the growth tracker, h the hysteresis
 * tracker, which starts at `hysteresis` (2). */
#include "vectors.h"

const struct vector vectors_megatron[VECTORS] = {
    /* Defaults: 2^32; h = 1; h = 0: 2^31. */
    { "the second overflow backs off", { 0 }, "xx", { 0x1p32f, 0x1p31f } },
    /* h = 1, 0, -1, -2: every one from 0 on backs off. */
    { "spent hysteresis stays spent", { .init_scale = 16 }, "xxxx", { 16, 8, 4, 2 } },
    /* h = 1; clean; h = 0: 8; clean; h = -1: 4. */
    { "a clean bracket restores nothing", { .init_scale = 16 }, "x.x.x", { 16, 16, 8, 8, 4 } },
    /* h = 1; g = 1 2: 32, h = 2; h = 1; h = 0: 16. */
    { "growth restores hysteresis", { .init_scale = 16, .window = 2 }, "x..xx", { 16, 16, 32, 32, 16 } },
    /* max(2 / 2, 1); max(0.5, 1). */
    { "the floor is 1", { .init_scale = 2, .hysteresis = 1 }, "xxx", { 1, 1, 1 } },
    /* g = 1 2; h = 2, g = 0; g = 1 2 3: 16. A tolerated overflow restarts the window. */
    { "window and tolerance", { .init_scale = 8, .window = 3, .hysteresis = 3 }, "..x...", { 8, 8, 8, 8, 8, 16 } },
    /* 2^40 * 2: no ceiling. */
    { "no ceiling at 2^24", { .init_scale = 0x1p40f, .window = 1 }, ".", { 0x1p41f } },
    /* libamp's ceiling, where Megatron's next would be infinite; h = 1; h = 0: 2^126. */
    { "the ceiling is 2^127", { .init_scale = 0x1p127f, .window = 1 }, ".xx", { 0x1p127f, 0x1p127f, 0x1p126f } },
    /* Option: h = 1, back to 2; h = 1, back to 2; h = 1, h = 0: 8. */
    { "consecutive hysteresis", { .init_scale = 16, .consecutive_hysteresis = AMP_ON }, "x.x.xx",
      { 16, 16, 16, 16, 16, 8 } },
    /* 12 * 3 = 36; 36 / 4 = 9. */
    { "factors 3 and 1/4", { .init_scale = 12, .growth = 3, .backoff = 0.25f, .window = 1, .hysteresis = 1 }, ".x",
      { 36, 9 } },
};
