# SPDX-License-Identifier: Apache-2.0
"""Traces of loss scalers: what record_*.py and rules.py share, and the file format that replay.c reads.

To record again, run the recorder in an environment outside the tree; the same versions write the same bytes:

    python3 -m venv /tmp/recorder && . /tmp/recorder/bin/activate && export PYTHONDONTWRITEBYTECODE=1
    pip install torch==2.15.0                                && python record_torch.py data/torch.txt
    pip install jmp==0.0.4 'jax[cpu]'                        && python record_jmp.py data/jmp.txt
    pip install --no-deps megatron-core==0.16.1              && python record_megatron.py data/megatron.txt
    DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed==0.19.8 && python record_deepspeed.py data/deepspeed.txt
    pip install mxnet==1.9.1 numpy==1.23.5                   && python record_mxnet.py data/mxnet.txt

megatron-core and deepspeed need torch; mxnet and jax want environments of their own (mxnet's numpy is old).

A file: comment lines, `mode N` (AMP_SCALER_*), where known `defaults INIT MIN MAX GROWTH BACKOFF WINDOW HYSTERESIS
CONSECUTIVE` (what libamp has where nothing is set, CONSECUTIVE 0 or 1), then one line a run:

    run SEED ENTER STAY STEPS INIT MIN MAX GROWTH BACKOFF WINDOW HYSTERESIS CONSECUTIVE CHECKSUM SAMPLE...

Floats are written as the eight hexadecimal digits of their bits, GROWTH and BACKOFF, which are doubles, as sixteen; a
setting of 0 is left at the default. The overflows of a run come from a generator: x = x * 6364136223846793005 +
1442695040888963407 mod 2^64, from x = SEED; a step overflows if (x >> 33) % 1000 < p, where p is STAY after an overflow
and ENTER otherwise. After each step the state is observed as three words, the scale's bits and two more (see `observe`
in replay.c), and mixed into the checksum: for each word h = (h ^ word) * 0x100000001b3 mod 2^64, from h =
0xcbf29ce484222325. A SAMPLE is the scale after every 100th step.

A run ends before the step at which a scale of the original leaves [2^-126, 2^127]: there the parity ends.
"""
import dataclasses
import pathlib
import random
import re
import struct

STEPS = 100_000
HEADER = (pathlib.Path(__file__).resolve().parents[2] / "include" / "amp_scaler.h").read_text(encoding="utf-8")
MODES = {name: int(value) for value, name in re.findall(r'X\(AMP_SCALER_\w+, (\d+), "[^"]*",\s*\\?\s*(\w+)', HEADER)}
ON, OFF = 2, 1


@dataclasses.dataclass
class Settings:
    """As in amp_config: 0 is the mode's default."""
    init: float = 0.0
    min: float = 0.0
    max: float = 0.0
    growth: float = 0.0
    backoff: float = 0.0
    window: int = 0
    hysteresis: int = 0
    consecutive: int = 0


def f32(value):
    """The nearest float, as a Python number."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def bits(value):
    assert f32(value) == value, f"{value!r} is not a float"
    return struct.unpack("<I", struct.pack("<f", value))[0]


def double_bits(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def overflows(seed, enter, stay):
    x, overflow = seed, False
    while True:
        x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
        overflow = (x >> 33) % 1000 < (stay if overflow else enter)
        yield overflow


def draw_settings(rng, vary):
    """Random settings; what is not in `vary` the original does not have, and is left at its default."""
    s = Settings()
    span = rng.choice([(-10, 20), (-10, 20), (-120, -90), (100, 126)])
    s.init = f32(2.0 ** rng.randint(*span) * rng.choice([1, 1, rng.uniform(1, 2)]))
    if "min" in vary:  # the original's own default may lie above init
        s.min = f32(max(2.0**-126, s.init * 2.0 ** -rng.randint(0, 30)))
    if "max" in vary:
        s.max = f32(min(2.0**127, s.init * 2.0 ** rng.randint(0, 30)))
    if "growth" in vary:
        s.growth = float(rng.choice([2, 2, 4, 1.5, 1.0001, 3, rng.uniform(1.01, 20)]))
    if "backoff" in vary:
        s.backoff = rng.choice([0.5, 0.5, 0.25, 0.9, 0.1, rng.uniform(0.01, 0.99)])
    if "window" in vary:
        s.window = rng.choice([1, 2, 3, 5, 10, 20, 50, 200, rng.randint(1, 100)])
    if "hysteresis" in vary:
        s.hysteresis = rng.randint(1, 6)
    if "consecutive" in vary:
        s.consecutive = rng.choice([0, ON, OFF])
    return s


def written(s):
    """Settings as a line has them."""
    floats = " ".join(f"{bits(value):08x}" for value in (s.init, s.min, s.max))
    factors = f"{double_bits(s.growth):016x} {double_bits(s.backoff):016x}"
    return f"{floats} {factors} {s.window} {s.hysteresis} {s.consecutive:d}"


def run_line(settings, seed, enter, stay, limit, make):
    """One run of the original: (steps, line)."""
    original = make(settings)
    checksum, samples, steps = 0xCBF29CE484222325, [], 0
    for overflow in overflows(seed, enter, stay):
        if steps == limit:
            break
        words, scales = original.tick(overflow)
        if not all(2.0**-126 <= scale <= 2.0**127 for scale in scales):
            break
        steps += 1
        for word in (bits(scales[0]), *words):
            checksum = (checksum ^ word) * 0x100000001B3 % 2**64
        if steps % 100 == 0:
            samples.append(f"{bits(scales[0]):08x}")
    line = f"run {seed} {enter} {stay} {steps} {written(settings)} {checksum:016x}"
    return steps, " ".join([line, *samples])


def record(path, mode, source, vary, make, defaults=None):
    """Writes STEPS steps of make(settings) to path.

    make(settings).tick(overflow) makes a step and returns (the two further words, the scales); scales[0] is the scale
    that the next step has, the others are scales that the original holds as well.
    """
    rng = random.Random(MODES[mode])
    lines, total = [], 0
    while total < STEPS:
        seed = rng.getrandbits(63)
        if len(lines) < 3:  # the original's own defaults
            settings, enter, stay, limit = Settings(), rng.choice([0, 1, 2]), 300, 5000
        else:
            settings, limit = draw_settings(rng, vary), 500
            enter = rng.choice([0, 5, 20, 50, 150, 300, 1000 // max(1, settings.window)])
            stay = rng.choice([enter, 0, 500, 800])
        steps, line = run_line(settings, seed, enter, stay, limit, make)
        if steps >= 10:
            lines.append(line)
            total += steps
    with open(path, "w", encoding="ascii") as out:
        out.write("# SPDX-License-Identifier: Apache-2.0\n")
        out.write(f"# Format: tests/parity/traces.py. Recorded from: {source}\n")
        out.write(f"# {total} steps in {len(lines)} runs\nmode {MODES[mode]}\n")
        if defaults:
            out.write(f"defaults {written(defaults)}\n")
        out.write("\n".join(lines) + "\n")
