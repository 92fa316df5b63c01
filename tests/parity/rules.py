# SPDX-License-Identifier: Apache-2.0
"""rules.py MODE OUTPUT: traces of a literal transcription of each mode's published rule, written at build time.
rules.py --modes: the modes, as include/amp_scaler.h has them.

Independent of src/scaler/: written from the originals' documentation and from docs/guide/loss-scaling.md, with the
originals' own variables. What an original does not have (a floor, a ceiling, hysteresis) is libamp's option, marked
"option".
"""
import math
import sys

import traces
from traces import ON, f32

SMALLEST, LARGEST = 2.0**-126, f32(3.4028234663852886e38)
DEFAULTS = {  # init, min, max, growth, backoff (0: 1 / growth), window, hysteresis, consecutive
    "apex": (2.0**16, SMALLEST, 2.0**24, 2.0, 0.5, 2000, 1, True),
    "torch": (2.0**16, SMALLEST, LARGEST, 2.0, 0.5, 2000, 1, True),
    "megatron": (2.0**32, 1.0, 2.0**127, 2.0, 0.5, 1000, 2, False),
    "deepspeed": (2.0**16, 1.0, 2.0**127, 2.0, 0.0, 1000, 2, False),
    "jmp": (2.0**15, 1.0, LARGEST, 2.0, 0.0, 2000, 1, True),
    "mxnet": (2.0**16, SMALLEST, 2.0**24, 2.0, 0.0, 2000, 1, True),
}
FP32_FACTORS = {"megatron", "jmp"}  # an array in FP32 times a Python number: both round the number first


def single(value):
    """Rounded to FP32 as an FP32 scale variable is; infinite if it does not fit."""
    try:
        return f32(value)
    except OverflowError:
        return math.inf


class Rule:
    def __init__(self, mode, s):
        init, low, high, growth, backoff, window, hysteresis, consecutive = DEFAULTS[mode]
        self.min, self.max = s.min or low, s.max or high
        self.growth, self.backoff = s.growth or growth, s.backoff or backoff
        if mode in FP32_FACTORS:
            self.growth, self.backoff = f32(self.growth), f32(self.backoff)
        self.window, self.hysteresis = s.window or window, s.hysteresis or hysteresis
        self.consecutive = s.consecutive == ON if s.consecutive else consecutive
        self.scale = s.init or min(max(init, self.min), self.max)
        self.left, self.tracker = self.hysteresis, 0

    def smaller(self, scale):
        return max(self.min, single(scale * self.backoff if self.backoff else scale / self.growth))

    def tolerated(self):
        """apex's update_scale_hysteresis: h -= 1, and as long as h > 0 the overflow only skips."""
        self.left -= 1
        return self.left > 0

    def tick(self, overflow):
        words = self.update(overflow)
        return words, (self.scale,)


class Apex(Rule):
    def update(self, overflow):
        if overflow:
            self.tracker = 0
            if not self.tolerated():
                self.scale = self.smaller(self.scale)
        else:
            self.tracker += 1
            if self.consecutive or self.tracker == self.window:
                self.left = self.hysteresis
            if self.tracker == self.window:
                self.scale = min(self.max, single(self.scale * self.growth))
                self.tracker = 0
        return self.tracker, max(1, self.left)


class Torch(Rule):
    def update(self, overflow):
        if overflow:
            self.tracker = 0
            if not self.tolerated():  # option
                self.scale = self.smaller(self.scale)
        else:
            successful = self.tracker + 1
            if self.consecutive or successful == self.window:
                self.left = self.hysteresis
            if successful == self.window:
                new_scale = single(self.scale * self.growth)
                if math.isfinite(new_scale):
                    self.scale = min(self.max, new_scale)
                self.tracker = 0
            else:
                self.tracker = successful
        return self.tracker, 0


class Megatron(Rule):
    def update(self, overflow):
        if overflow:
            self.tracker = 0
            self.left -= 1
            if self.left <= 0:
                self.scale = self.smaller(self.scale)
        else:
            if self.consecutive:  # option
                self.left = self.hysteresis
            self.tracker += 1
            if self.tracker == self.window:
                self.tracker = 0
                self.left = self.hysteresis
                self.scale = min(self.max, single(self.scale * self.growth))
        return self.tracker, max(1, self.left)


class DeepSpeed(Rule):
    cur_iter, last_overflow_iter = 0, -1

    def update(self, overflow):
        if overflow:
            if self.hysteresis == 1 or self.left == 1:
                self.scale = self.smaller(self.scale)
            else:
                self.left -= 1
            self.last_overflow_iter = self.cur_iter
        else:
            if self.consecutive:
                self.left = self.hysteresis
            stable_interval = self.cur_iter - self.last_overflow_iter - 1
            if stable_interval > 0 and stable_interval % self.window == 0:
                if not self.consecutive:
                    self.left = self.hysteresis
                self.scale = min(self.max, single(self.scale * self.growth))
        self.cur_iter += 1
        return self.cur_iter - self.last_overflow_iter - 1, self.left


class Jmp(Rule):
    def update(self, overflow):
        if overflow:
            self.tracker = 0
            if not self.tolerated():  # option
                self.scale = self.smaller(self.scale)
        else:
            if self.tracker == self.window - 1:
                larger = single(self.scale * self.growth)
                self.scale = min(self.max, larger) if math.isfinite(larger) else self.scale
            self.tracker = (self.tracker + 1) % self.window
            if self.consecutive or self.tracker == 0:
                self.left = self.hysteresis
        return self.tracker, 0


class Mxnet(Rule):
    coming = None

    def update(self, overflow):
        self.scale = self.scale if self.coming is None else self.coming
        self.coming = self.scale
        if overflow:
            if not self.tolerated():  # option
                self.coming = self.smaller(self.scale)
            self.tracker = 0
        else:
            self.tracker += 1
            if self.consecutive:
                self.left = self.hysteresis
        if self.tracker == self.window:
            self.tracker = 0
            self.left = self.hysteresis
            self.coming = min(self.max, single(self.scale * self.growth))
        return self.tracker, traces.bits(self.coming)


RULES = {rule.__name__.lower(): rule for rule in Rule.__subclasses__()}

if sys.argv[1:] == ["--modes"]:
    print(*traces.MODES)
    sys.exit()
name, output = sys.argv[1:]
OPTIONS = {"min", "max", "growth", "backoff", "window", "hysteresis", "consecutive"}
traces.record(output, name, f"the transcription in rules.py, mode {name}", OPTIONS, lambda s: RULES[name](name, s),
              traces.Settings(*DEFAULTS[name]))
