# SPDX-License-Identifier: Apache-2.0
"""Scripts for GPUs, in the style of ten public projects of Apex's time: with libamp.run --cpu they train on the CPU,
without it they end with the offer of it, and with --bf16 what they say of FP16 is bfloat16."""

import json
import os
import pathlib
import re
import shutil

import forks
import pytest
from half import LACKS_HALF
from libamp._environment import switch

torch = pytest.importorskip("torch")

SCRIPTS = pathlib.Path(__file__).parent / "gpu_scripts"
RUN = ["-m", "libamp.run"]
TOO_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 5)
SAID = "LIBAMP_BF16=1: FP16 is read as bfloat16: O1 as O4, O2 as O5, O3 as O3 in bfloat16\n"
# Each script, with options, and what the banner of amp says of them in bfloat16.
IN_BF16 = {
    "bert": ([], "level O5:", "dynamic"),
    "dcgan": (["--opt_level", "O3"], "torch.bfloat16", "1.0"),
    "detection": ([], "level O4:", "1.0"),
    "imagenet": (["--opt-level=O2", "--loss-scale=128.0", "--keep-batchnorm-fp32=True"], "level O5:", "128.0"),
    "reid": (["--level", "O3"], "torch.bfloat16", "1.0"),
    "segmentation": (["--level", "O2"], "level O5:", "1.0"),
    "speech": (["--amp-run", "O2", "--half-inputs"], "level O5:", "1.0"),
    "timm_like": ([], "in torch.bfloat16", None),  # by torch.cuda.amp
    "translate_images": ([], "level O4:", "1.0"),
    "translation": ([], "level O5:", "128.0"),
}
OFFER = "`python -m libamp.run --cpu …` runs the script on the CPU\n"
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")


def environment(**more):
    env = {name: value for name, value in os.environ.items() if name not in ("CUDA_VISIBLE_DEVICES", "LIBAMP_BF16")}
    return env | {"OMP_NUM_THREADS": "1"} | more


def run_all(before, options, **env):
    """What each script printed: all in one process, each as if it were alone there."""
    wish = json.dumps([[str(SCRIPTS / f"{script}.py"), *options.get(script, [])] for script in IN_BF16])
    ended = forks.run(*RUN, *before, "-c", ALL, wish, env=environment(**env))
    printed = re.split(r"^== ", ended.stdout, flags=re.MULTILINE)[1:]
    assert [text.split()[0] for text in printed] == list(IN_BF16), ended.stdout[-1000:] + ended.stderr[-4000:]
    return dict(zip(IN_BF16, printed, strict=True))


ALL = """
import contextlib, json, os, runpy, sys, torch
from apex import amp
sys.stderr = sys.stdout
for script, *options in json.loads(sys.argv[1]):
    print("==", os.path.basename(script)[:-3])
    sys.argv = [script, *options]
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception:
        sys.excepthook(*sys.exc_info())
    amp.shutdown()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
"""


def assert_learnt(printed):
    found = re.search(r"^loss ([\d.]+) -> ([\d.]+)", printed, re.MULTILINE)
    assert found, printed[-4000:]
    assert float(found.group(2)) < 0.8 * float(found.group(1)), printed


def test_they_are_ten_and_know_nothing_of_libamp():
    texts = {path.stem: path.read_text() for path in SCRIPTS.glob("*.py")}
    assert sorted(texts) == sorted(IN_BF16) and len(texts) == 10
    assert all("libamp" not in text and "apex" in text for text in texts.values())


def test_on_the_cpu():
    for printed in run_all(["--cpu"], {}).values():
        assert_learnt(printed)


@without_gpu
def test_without_a_gpu_the_error_offers_it():
    for printed in run_all([], {}).values():
        assert printed.count(OFFER) == 1 and "Traceback" in printed and "loss " not in printed, printed


@pytest.mark.skipif(LACKS_HALF, reason="gloo has no bfloat16 in this torch")
def test_in_bfloat16():
    """What a script asks for beside its level stays."""
    options = {script: given for script, (given, _, _) in IN_BF16.items()}
    all_printed = run_all(["--cpu"], options, LIBAMP_BF16="1")
    for script, printed in all_printed.items():
        _, words, scale = IN_BF16[script]
        assert_learnt(printed)
        assert words in printed and "in float16" not in printed  # which is said of FP16 on CPUs
        assert re.findall(r"^loss_scale +: (.*)$", printed, re.MULTILINE)[-1:] == ([scale] if scale else [])
    assert "".join(all_printed.values()).count(SAID) == 1


def test_switches_are_read_alike(monkeypatch):
    """As the library reads AMP_VERIFY."""
    for on, values in enumerate((("", "0", "False", "no", "off"), ("1", "true", "Yes", "ON"))):
        for value in values:
            monkeypatch.setenv("LIBAMP_SWITCH", value)
            assert switch("LIBAMP_SWITCH") is bool(on), value
    for value in ("2", "ture", "on "):
        monkeypatch.setenv("LIBAMP_SWITCH", value)
        with pytest.raises(ValueError, match=f"LIBAMP_SWITCH is '{value}' in the environment, and must be 1"):
            switch("LIBAMP_SWITCH")


def test_the_variable_is_a_switch():
    code = "import torch\nfrom apex import amp\namp.initialize(torch.nn.Linear(1, 1))"
    ended = forks.run(*RUN, "-c", code, env=environment(LIBAMP_BF16="maybe"))
    assert ended.returncode == 1 and "LIBAMP_BF16 is 'maybe' in the environment, and must be 1" in ended.stderr
    assert OFFER not in ended.stderr


def test_processes_that_a_script_spawns_are_on_the_cpu_and_in_bfloat16():
    """As many as it is told of GPUs."""
    env = environment(CUDA_VISIBLE_DEVICES="0,1")
    ended = forks.run(*RUN, "--bf16", "--cpu", SCRIPTS / "segmentation.py", env=env)
    assert_learnt(ended.stdout + ended.stderr)
    assert " on 2\n" in ended.stdout and ended.stdout.count(SAID) == 1


@pytest.mark.skipif(TOO_OLD, reason="torch before 2.5 breaks more graphs by itself")
@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler for torch.compile")
def test_what_torch_answers():
    ended = forks.run(*RUN, "--cpu", SCRIPTS.parent / "gpu_answers.py", env=environment())
    assert ended.stdout == "done\n", ended.stderr[-3000:]
