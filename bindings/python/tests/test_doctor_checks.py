# SPDX-License-Identifier: Apache-2.0
"""The doctor's checks, each by records in which it must find something and by those in which it must not."""
import ast
import copy
import inspect
import pathlib

import pytest

pytest.importorskip("torch")

from doctor_records import CASES, HERE, adam, half, lost, module, scaled, training, weight
from libamp import _doctor_findings
from libamp.torch.doctor import checks
from libamp.torch.doctor.checks import words
from libamp.torch.doctor.result import judge
from libamp.torch.doctor.watch import Run, Scheduler

FINDS = [(code, name) for code, (finds, _) in CASES.items() for name in finds]
PASSES = [(code, name) for code, (_, passes) in CASES.items() for name in passes]


def test_every_row_of_the_table_has_cases():
    assert set(CASES) == set(_doctor_findings.FAULTS) | set(_doctor_findings.ADVICE)
    assert all(finds and passes for finds, passes in CASES.values())


@pytest.mark.parametrize(("code", "name"), FINDS)
def test_it_finds(code, name):
    run, subject = CASES[code][0][name]
    (found,) = [each for each in judge(run) if each.code == code]
    assert found.subject == subject and found.saw and any(letter.isdigit() for letter in found.saw)
    assert found.place == HERE and found.number


@pytest.mark.parametrize(("code", "name"), PASSES)
def test_it_does_not_find(code, name):
    assert code not in [found.code for found in judge(CASES[code][1][name])]


@pytest.mark.parametrize("run", [Run(), training(), scaled()])
def test_a_healthy_record_has_no_finding(run):
    assert judge(run) == []


@pytest.mark.parametrize(
    ("run", "word"),
    [
        (training([lost(looks=8, grad_looks=8)], optimizers=[adam(steps=8, tried=8)]), "AMP-D01"),
        (training([lost(lr=1e-6, lr_first=1e-8, lr_max=1e-6)]), "warm-up"),
        (scaled([half(looks=2)]), "AMP-D02"),
        (training([weight(looks=0)]), "fc.weight"),
        (training(watched=[]), "op by op"),
    ],
)
def test_a_record_says_what_it_cannot_tell(run, word):
    (sentence,) = checks.unjudged(run)
    assert word in sentence


@pytest.mark.parametrize("run", [training(), scaled(), training(watched=[], compiled=True)])
def test_a_whole_record_has_nothing_to_add(run):
    assert checks.unjudged(run) == []


def test_a_check_changes_no_record():
    for finds, passes in CASES.values():
        for run in [*(run for run, _ in finds.values()), *passes.values()]:
            before = copy.deepcopy(run)
            judge(run)
            assert run == before


def test_advice_comes_last_and_is_told_apart():
    run = scaled(devices=["cuda"], models=[module(sizes={"out_features": 50257})], schedulers=[
        Scheduler("CosineAnnealingLR", HERE, 0, 40, 3)])
    assert [found.code for found in judge(run)] == ["AMP-D08", "AMP-D80"]
    assert not _doctor_findings.is_advice("AMP-D08") and _doctor_findings.is_advice("AMP-D80")


def test_a_thousand_layers_are_one_finding():
    (found,) = judge(training([lost(f"layers.{index}.norm.weight") for index in range(1000)]))
    assert found.subject == "layers.0.norm.weight" and "and 996 more" in found.saw


def test_the_list_has_every_check():
    folder = pathlib.Path(checks.__file__).parent
    written = {
        node.name
        for file in folder.glob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    }
    assert {check.__name__ for check in checks.CHECKS} == written and len(checks.CHECKS) == len(written)
    assert all("AMP-D" in (inspect.getdoc(check) or "") for check in checks.CHECKS)


@pytest.mark.parametrize("framework", sorted(_doctor_findings.FRAMEWORKS))
@pytest.mark.parametrize("code", sorted(CASES))
def test_each_framework_has_a_remedy(code, framework):
    assert _doctor_findings.remedy(code, framework) and _doctor_findings.title(code) and _doctor_findings.reason(code)


def test_shares_never_round_to_none_or_all():
    shares = [words.share(part, 1000) for part in (0, 1, 4, 600, 999, 1000)]
    assert shares == ["0 %", "0.1 %", "0.4 %", "60 %", "99.9 %", "100 %"]
