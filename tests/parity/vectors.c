/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors worked by hand, ten a mode of AMP_SCALER_MAP. */
#include "vectors.h"

/* Rule: apex.amp.scaler; hysteresis: amp_C.update_scale_hysteresis. u is `unskipped`, h the hysteresis tracker. */
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

/* Rule: torch.amp.GradScaler.update, _amp_update_scale_. t is the growth tracker. */
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

/* Rule: megatron.core.optimizer.grad_scaler.DynamicGradScaler.update. g is the growth tracker, h the hysteresis
 * tracker, which starts at `hysteresis` (2). */
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

/* Rule: deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler.update_scale. s is `stable_interval`, the iteration less
 * the last one that overflowed (at first -1) less 1; h is `cur_hysteresis`, which starts at 2. */
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

/* Rule: jmp.DynamicLossScale.adjust. c is the counter; growth grows where c was period - 1. */
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

/* Rule: mxnet.contrib.amp.loss_scaler.LossScaler.has_overflow. Each tick first makes `next` the scale, then derives a
 * new `next` from it. u is `_unskipped`. */
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
