# SPDX-License-Identifier: Apache-2.0
"""The doctor names the bugs of proof.py by parameter or line, and finds nothing in the right scripts."""
import functools
import os

import pytest

torch = pytest.importorskip("torch")
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    pytest.skip("the scripts use fp16, GradScaler and FSDP2 of torch 2.6 on CPUs", allow_module_level=True)

import proof  # noqa: E402

SLOW = os.environ.get("AMP_SLOW") == "true"
diagnosed = functools.cache(proof.diagnose)


def cases(names):
    made = []
    for name in names:
        why = f"no {', '.join(proof.missing(name))}" if proof.missing(name) else ""
        if name in proof.LONG and not SLOW:
            why = why or "slow: another script of its kind is the sample"
        made.append(pytest.param(name, marks=[pytest.mark.skip(reason=why)] if why else []))
    return made


@pytest.mark.parametrize("name", cases(proof.BUGS))
def test_a_public_bug_is_named(name):
    found = diagnosed(name).found
    assert (proof.naming(name, found) is not None) == (name not in proof.UNNAMED), found


@pytest.mark.parametrize("name", cases(proof.RIGHT))
def test_a_right_script_has_no_finding(name):
    result = diagnosed(name)
    assert (result.found, result.heard, result.error) == ([], [], "")


def test_the_numbers_of_60_percent():
    """unslothai/unsloth-zoo#680 counted 613 of 1024 weights that a step did not move."""
    found = proof.naming("bf16_finetuned_norms", diagnosed("bf16_finetuned_norms").found)
    assert 0.5 < found.number < 0.7


def test_updates_of_an_average_are_counted_once():
    proof.diagnose("libamp_fused")  # amp.initialize wraps that doctor's tap
    assert "in 60 updates" in proof.naming("ema_half", proof.diagnose("ema_half").found).saw


def test_a_class_is_named_whole():
    assert "Distillation gave NaN" in proof.naming("epsilon_fp16", diagnosed("epsilon_fp16").found, "AMP-D04").saw


def test_there_are_as_many_scripts_as_the_proof_needs():
    assert len(proof.BUGS) >= 20 and len(proof.BUGS) - len(proof.UNNAMED) >= 0.9 * len(proof.BUGS)
    assert len(proof.RIGHT) >= 40
    scripts = {path.stem for path in (proof.FOLDER / "bugs").glob("*.py")}
    assert scripts == set(proof.BUGS)
    for name in proof.BUGS:
        assert proof.SOURCE.search(proof.path_of(name).read_text(encoding="utf-8")), f"{name} names no public thread"
