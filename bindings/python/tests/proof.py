# SPDX-License-Identifier: Apache-2.0
"""The doctor's proof: bugs of public projects, made again as scripts, and what the doctor must name in each; right
scripts, in which it must find nothing.

    python proof.py [NAME]...

runs the scripts, or those of these names, and prints a row for each, then the counts. They share one process, so that
torch is imported once, and each has a doctor of its own.
"""
import contextlib
import dataclasses
import gc
import importlib.util
import io
import pathlib
import re
import runpy
import sys
import time
import warnings

import torch
from libamp import _doctor_findings
from libamp.torch import amp

FOLDER = pathlib.Path(__file__).parent / "doctor"
LINE = ""  # the line that the script marks with "# here"

# name: (the codes that say what is wrong, the parameter, module or Function that must be named)
BUGS = {
    "accelerate_fused_skip": ("AMP-D08", LINE),
    "adam_epsilon_fp16": ("AMP-D18", "AdamW"),
    "backward_in_autocast": ("AMP-D09", LINE),
    "batch_norm_half": ("AMP-D24", "bn"),
    "bf16_finetuned_norms": ("AMP-D01", "input_layernorm.weight"),
    "bf16_norms": ("AMP-D01", "norm.weight"),
    "clip_scaled": ("AMP-D07", LINE),
    "clip_scaled_trainer": ("AMP-D07", LINE),
    "ema_half": ("AMP-D21", LINE),
    "epsilon_fp16": ("AMP-D18", LINE),
    "exp_fp16": ("AMP-D16", LINE),
    "fixed_scale": ("AMP-D06", LINE),
    "fp16_no_scaler": ("AMP-D03", LINE),
    "fsdp_adam_bf16": ("AMP-D22", "0.weight"),
    "function_fp16": ("AMP-D20", "Energy"),
    "lightning_schedule": ("AMP-D08", LINE),
    "mask_fp16": ("AMP-D17", LINE),
    "nan_batch": ("AMP-D14", "depth"),
    "no_update": ("AMP-D11", LINE),
    "not_in_optimizer": ("AMP-D23", "fc.weight"),
    "position_buffer": ("AMP-D25", "positions"),
    "rms_norm_fp16": ("AMP-D02", "norm.weight"),
    "rope_buffer": ("AMP-D25", "rotary.inv_freq"),
    "scale_to_zero": ("AMP-D04", LINE),
    "schedule_on_skips": ("AMP-D08", LINE),
    "t5_overflow": ("AMP-D16", "ff.wo"),
    "trainer_bf16": ("AMP-D01", "layernorm.weight"),
    "unscale_twice": ("AMP-D10", LINE),
}
RIGHT = sorted(path.stem for path in (FOLDER / "right").glob("*.py"))
# bugs that are not named: why not
UNNAMED: dict[str, str] = {}
# scripts that --slow runs: others of their kind are the sample
LONG = {
    "compiled_step", "lightning_bf16", "lightning_gan", "nanogpt_fp16", "nanogpt_fp32", "timm_resnet_agc", "timm_vit",
    "trainer_bert", "ignite_trainer",
}
SOURCE = re.compile(r"[\w.-]+/[\w.-]+#[0-9]+")  # a public thread
PACKAGES = ("accelerate", "ignite", "lightning", "timm", "transformers")


@dataclasses.dataclass
class Result:
    found: list  # faults, without the advice about speed
    heard: list  # reports of libamp's own sessions that have findings
    error: str  # of the script
    seconds: float  # processor time


def path_of(name):
    return FOLDER / ("bugs" if name in BUGS else "right") / f"{name}.py"


def packages_of(name):
    """Returns the packages beside torch that a script imports."""
    text = path_of(name).read_text(encoding="utf-8")
    return [package for package in PACKAGES if f"import {package}" in text or f"from {package}" in text]


def missing(name):
    """Returns the packages of a script that are not installed."""
    return [package for package in packages_of(name) if importlib.util.find_spec(package) is None]


def _clean_up():
    """What a script leaves in the process: sessions of libamp, states of frameworks, compiled code."""
    amp.shutdown()
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(True)
        state.GradientState._reset_state()
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
        dynamo.utils.counters.clear()  # else the ops of later scripts are taken for compiled ones
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    gc.collect()


def diagnose(name):
    """Runs a script under a doctor of its own. A script that fails, as some of the bugs do, has a result too."""
    error, begin = "", time.process_time()
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with warnings.catch_warnings(), quiet[0], quiet[1]:
        warnings.simplefilter("ignore")
        with amp.doctor(quiet=True) as doctor:
            try:
                runpy.run_path(str(path_of(name)), run_name="__main__")
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"
    _clean_up()
    result = doctor.result
    faults = [each for each in result.found if not _doctor_findings.is_advice(each.code)]
    heard = [text for text in result.run.libamp if result.libamp]
    return Result(faults, heard, error, time.process_time() - begin)


def is_marked(name, place):
    """Returns True for the line that a script marks."""
    lines = path_of(name).read_text(encoding="utf-8").splitlines()
    return pathlib.Path(place.filename) == path_of(name) and lines[place.lineno - 1].endswith("# here")


def naming(name, found, code=""):
    """Returns the finding that names a bug: by its code, and by the line or the word of BUGS. None if there is none.
    code: another one than that of BUGS."""
    code, word = code or BUGS[name][0], BUGS[name][1]
    for each in found:
        there = is_marked(name, each.place) if word == LINE else word in f"{each.subject} {each.saw}"
        if each.code == code and there:
            return each
    return None


def main(names):
    named = right = false = 0
    for name in names or [*BUGS, *RIGHT]:
        if missing(name):
            print(f"skipped  {name}: no {missing(name)[0]}")
            continue
        result = diagnose(name)
        if name in BUGS:
            good = naming(name, result.found) is not None
            named += good
        else:
            good = not result.found and not result.heard and not result.error
            right += 1
            false += len(result.found) + len(result.heard)
        print(f"{'right' if name in RIGHT else 'bug':<6} {'ok' if good else 'NOT OK':<7} {name} {result.seconds:.2f} s "
              f"{result.error[:90]}")
        for each in result.found:
            place = f"{pathlib.Path(each.place.filename).name}:{each.place.lineno}"
            print(f"    {each.code} {each.subject} ({place}): {each.saw}")
        for text in result.heard:
            print(f"    {text}")
    print(f"{named} bugs named, {false} false findings in {right} right scripts")


if __name__ == "__main__":
    main(sys.argv[1:])
