# SPDX-License-Identifier: Apache-2.0
"""The verdict of a report: one sentence, with the culprit first."""

import json
import pathlib

import pytest

np = pytest.importorskip("numpy")

from libamp import report  # noqa: E402
from libamp._report import page, read, text, verdict  # noqa: E402
from traces import Elements, maker, seen  # noqa: E402


def chosen(path):
    trace = read.read(path)
    return [(trace, training) for training in trace.trainings]


@pytest.fixture
def make(tmp_path):
    return maker(tmp_path)


def culprit(n, **more):
    argument = {"output": False, "name": "input", "type": "fp16", "elements": 8, "nonfinite": 0, "largest": 2.0,
                "least": 0.5}  # fmt: skip
    made = {**argument, "output": True, "name": "output", "nonfinite": 3, "largest": 6e4}
    return {"kind": "culprit", "context": 1, "n": n, "op": "blocks.1.fc2: linear", "index": 0, "call": 4,
            "was_cast": False, "in_backward": False, "parameter": "w", "cause": "op", "weight": None, "since": 0,
            "since_least": 0, "line": "model.py:41", "arguments": [argument, made], **more}  # fmt: skip


def failing(make, tmp_path, change=lambda line: line, language="python", more=()):
    """A training of 40 steps that are all skipped."""
    path = pathlib.Path(make(more=more))
    kept = [line for line in map(json.loads, path.read_text().splitlines())
            if line["kind"] not in ("bracket", "culprit", "told") and line.get("op") != "softmax"]  # fmt: skip
    kept[1]["language"] = language
    told = []
    for n in range(1, 41):
        told += [change(culprit(n)),
                 {"kind": "bracket", "context": 1, "n": n, "loss": 0, "action": "skip", "scale": 2.0 ** (17 - n),
                  "next": 2.0 ** (16 - n), "overflow": "w", "value": None, "left_out": 0}]  # fmt: skip
    kept[-1] |= {"brackets": 40, "skipped": 40}
    path.write_text("\n".join(map(json.dumps, kept[:2] + told + kept[2:])) + "\n")
    return chosen(str(path))


@pytest.mark.parametrize("language, change, says", [
    ("python", {}, "40 of 40 steps were skipped: blocks.1.fc2 (linear, model.py:41) made 3 of 8 results infinite or "
                   "NaN from values up to 2 (fp16 holds 65504); keep it in FP32: amp.exempt(model.get_submodule("
                   '"blocks.1.fc2"), cast_inputs=torch.float32), or use bfloat16 (O4).'),
    ("c", {"op": "conv2d", "index": 1, "line": None}, "conv2d#2 made 3 of 8 results infinite or NaN from values up to "
     '2 (fp16 holds 65504); keep it in FP32: amp_register(&model, "conv2d", AMP_FP32), or use bfloat16 (O4).'),
    ("python", {"op": "Net: mul"}, "keep it in FP32: .float() on its inputs (model.py:41), or use bfloat16 (O4)"),
    ("python", {"was_cast": True, "cause": "cast"}, "got values above 65504, more than fp16 holds"),
    ("python", {"cause": "input"}, "got values that were not finite already; check the batch"),
    ("python", {"cause": "weight", "weight": "a.w", "since": 7}, "the parameter a.w itself is not finite since step 7; "
                                                                  "load the last good checkpoint"),
    ("python", {"op": None, "cause": "unknown"}, "no op was observed that made them so; AMP_OBSERVE=every=1 names"),
])  # fmt: skip
def test_a_failing_run_has_its_culprit_in_the_verdict(make, tmp_path, language, change, says):
    trainings = failing(make, tmp_path, lambda line: line | change, language)
    assert says in text.report(trainings)
    assert verdict.verdict_of(trainings[0][1]).kind == "bad"


def test_the_cast_before_a_culprit_has_its_largest_value(make, tmp_path):
    argument = {"name": "input", "type": "fp32", "elements": 8, "least": 1.0}
    call = {"kind": "call", "context": 1, "n": 1, "call": 4, "op": "cast", "index": 0, "arguments": [
        {**argument, "output": False, "nonfinite": 0, "largest": 9e4},
        {**argument, "output": True, "nonfinite": 2, "largest": 6e4}]}  # fmt: skip
    trainings = failing(make, tmp_path, lambda line: line | {"was_cast": True, "cause": "cast"}, more=[call])
    said = verdict.sentence(verdict.verdict_of(trainings[0][1]))
    assert "blocks.1.fc2 (linear, model.py:41) got values up to 9e+04, more than fp16 holds" in said


def test_the_culprit_is_first_open_and_preselected(make, tmp_path):
    more = [seen(1), seen(1, "output", "blocks.1.fc2: linear", "output", [1.0, np.inf]),
            seen(1, "input", "blocks.1.fc2: linear", "input")]  # fmt: skip
    made = page.page(failing(make, tmp_path, more=more))
    data = json.loads(Elements(made).scripts[0])
    assert data["first"] == json.dumps(["output", "blocks.1.fc2: linear", 0, "output"])
    assert data["runs"][0]["subjects"][0]["key"] == data["first"]
    assert made.index("class='verdict bad'") < made.index("<details open>") < made.index("<h2>Exponents")
    assert made.index("<h2>Exponents") < made.index("<h2>Loss and loss scale")
    assert made.count("<details open>") == 1


@pytest.mark.parametrize("kind, says, change", [
    ("good", "No finding in 3 steps, 0 skipped", {}),
    ("good", "the loss went from 2.5 to 0.5", {"value": [2.5, 1.0, 0.5]}),
    ("bad", "The loss is not finite from step 2 on", {"value": [2.5, None, None]}),
    ("fair", "AMP-M07 3 of them", {"told": True}),
])  # fmt: skip
def test_the_verdict_of_others(make, kind, says, change):
    path = pathlib.Path(make(skips=()))
    kept = [line for line in map(json.loads, path.read_text().splitlines()) if line["kind"] != "told"
            or "told" in change]  # fmt: skip
    values = iter(change.get("value", []))
    for line in kept:
        if line["kind"] == "bracket" and "value" in change:
            line["value"] = next(values)
        if line["kind"] == "told":
            line["message"] = "AMP-M07 3 of them"
    path.write_text("\n".join(map(json.dumps, kept)) + "\n")
    found = verdict.verdict_of(chosen(str(path))[0][1])
    assert found.kind == kind and says in verdict.sentence(found)


def test_gradients_that_are_zero_at_the_scale_are_the_verdict(make):
    found = verdict.verdict_of(chosen(make(skips=(), told=False, more=[seen(3, values=[1e-14, 1e-13, 1.0])]))[0][1])
    assert (found.kind, found.text) == ("fair", "66.7 % of the gradients are 0 in fp16 at the loss scale 2^16")


def test_updates_without_masters_are_the_verdict(make):
    more = [seen(3, "update", name="norm.w", values=[1e-5] * 4, lost_fp16=3, lost_bf16=4)]
    path = pathlib.Path(make(skips=(), told=False, more=more))
    path.write_text(path.read_text().replace('"low": 0', '"low": 1024'))
    said = verdict.sentence(verdict.verdict_of(chosen(str(path))[0][1]))
    assert "75 % of the updates change nothing in fp16 weights (norm.w: 75 %); keep FP32 masters" in said


# ---- the doctor's result ----


def examined(tmp_path, found):
    """A result of the doctor, as it writes it."""
    pytest.importorskip("torch")
    from libamp.torch.doctor import result, watch

    place = watch.Place("/home/x/train.py", 12)
    run = watch.Run(script="train.py", torch="2.15", iterations=40, looked=100, unseen=["ops of <compiled> code"])
    run.params = [watch.Param("norm.weight", (8,), "bfloat16", sampled=8, looks=5, moved=0, grad_max=1e-3)]
    run.optimizers = [watch.Optimizer("AdamW", place, steps=38, tried=40, skipped=2, looks=5)]
    history = [(1, 2.0**16), (3, 2.0**15), (9, 2.0**14)]
    run.scalers = [watch.Scaler("GradScaler", scale=2.0**14, first_scale=2.0**16, steps=40, skips=2, history=history,
                                skip_iterations=[3, 9])]  # fmt: skip
    run.losses = [watch.Loss(1, 2.5), watch.Loss(2, float("nan")), watch.Loss(40, 0.5)]
    run.causes = [watch.Cause(3, "op", "exp", place=place, input_largest=1e3, output_dtype="float16")]
    listed = [watch.Found(code, "norm.weight", f"0 of 8 elements {HOSTILE}", place) for code in found]
    path = tmp_path / "found.json"
    result.write(result.Result(run, listed, ranks=[0]), str(path))
    return str(path)


HOSTILE = "</script><img src=x>"


def test_the_doctors_result_is_a_page(tmp_path, capsys):
    path, output = examined(tmp_path, ["AMP-D01", "AMP-D22"]), tmp_path / "report.html"
    assert report.main([path, "-o", str(output)]) == 0
    made = output.read_text()
    elements = Elements(made)
    assert "img" not in elements.tags and elements.tags.count("script") == 2
    (run,) = json.loads(elements.scripts[0])["runs"]
    assert run["scale"] == [{"loss": 0, "n": [1, 3, 9, 40], "scale": [2.0**16, 2.0**15, 2.0**14, 2.0**14],
                             "skips": [[3, 2.0**15, None], [9, 2.0**14, None]],
                             "values": [[1, 2.5], [2, None], [40, 0.5]]}]  # fmt: skip
    assert made.index("class='verdict bad'") < made.index("<details open>") < made.index("AMP-D22")
    for part in ("norm.weight, train.py:12", "1 more below", "GradScaler: from 2^16 to 2^14, 2 of 40 steps skipped.",
                 "ops of &lt;compiled&gt; code", "Loss over 40 iterations: from 2.5 to 0.5", ">exp<"):  # fmt: skip
        assert part in made, part
    assert report.main([path, "--text"]) == 0
    assert "AMP-D01 updates are lost in 16-bit weights (norm.weight, train.py:12): 0 of 8" in capsys.readouterr().out


def test_a_result_without_findings_and_one_beside_a_trace(tmp_path, make, capsys):
    path = examined(tmp_path, [])
    assert report.main([path, "-o", str(tmp_path / "report.html")]) == 0
    assert "class='verdict good'" in (tmp_path / "report.html").read_text()
    assert report.main([path, make()]) == 2
    assert "is shown alone" in capsys.readouterr().err
