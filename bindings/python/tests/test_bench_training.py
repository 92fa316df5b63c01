# SPDX-License-Identifier: Apache-2.0
"""The group `train` of tools/bench --python: what it measures, how it goes on, what it says. No time is judged."""
import contextlib
import json
import os
import pathlib
import sys
import types

import pytest

torch = pytest.importorskip("torch")
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4):
    pytest.skip("this torch has not all that libamp is measured beside", allow_module_level=True)
FOLDER = pathlib.Path(__file__).parents[3] / "bench" / "python"


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import train
    from training_steps import gauges, models, modes, report, session

    yield types.SimpleNamespace(
        train=train, gauges=gauges, models=models, modes=modes, report=report, session=session)
    for name in [n for n in sys.modules if n in ("train", "harness") or n.startswith("training_steps")]:
        del sys.modules[name]


def run(parts, tmp_path, modes, rounds=1, **settings):
    state = parts.report.new_state("cpu")
    file = tmp_path / "state.json"
    parts.session.Session(state, file, gauge=parts.gauges.Cpu(1, 1), **settings).run(["mlp"], modes, rounds)
    assert json.loads(file.read_text()) == json.loads(json.dumps(state))
    return state


def test_every_mode_trains_the_mlp(parts, tmp_path):
    state = run(parts, tmp_path, list(parts.modes.EAGER))
    assert not state["failed"] and not state["left_out"] and state["running"] is None
    results = state["results"]["mlp"]
    assert set(results) == set(parts.modes.EAGER)
    counts = {mode: rounds["0"] for mode, rounds in results.items()}
    for mode, rounds in results.items():
        assert rounds["0"]["kernels"] > 20, mode
        assert rounds["0"]["loss"] == pytest.approx(counts["fp32"]["loss"], rel=0.01), mode  # bf16 rounds to 1 in 256
    assert counts["fp32"]["copies"] == 0 and counts["bf16-masters"]["copies"] <= 2  # one for each list
    assert counts["O5"]["copies"] < counts["autocast-bf16"]["copies"]
    assert counts["O5"]["mib"] < counts["fp32"]["mib"]
    said = parts.report.text_of(state)
    assert all(mode in said for mode in results) and "0 modes failed" in said


slow = pytest.mark.skipif(os.environ.get("AMP_SLOW") != "true", reason="slow: inductor takes a minute")


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=slow)])
def test_compiled_modes_train_the_mlp(parts, tmp_path, monkeypatch, backend):
    monkeypatch.setattr(parts.modes, "compiled_if", lambda mode, model: torch.compile(model, backend=backend))
    modes = [mode for mode in parts.modes.MODES if mode.endswith("-compiled")]
    state = run(parts, tmp_path, modes if backend == "inductor" else ["autocast-bf16-compiled", "O4-compiled"])
    assert not state["failed"] and not state["left_out"]
    results = state["results"]["mlp"]
    losses = [rounds["0"]["loss"] for rounds in results.values()]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=0.01)  # bf16 rounds to 1 in 256
    assert parts.report.compare({"mlp": results}, "cpu")


def test_whole_steps_on_the_cpu(parts, monkeypatch, capsys):
    """Made-up times: a mode that takes more than 20 times FP32's step is measured once, and left out afterwards."""
    from harness import Bench
    from training_steps import cpu

    taken = {"": 10.0, "O1": 11.0, "O2": 13.0, "O4": 8.0, "O5": 8.0}
    read = []

    @contextlib.contextmanager
    def training(model, mode, batch):
        yield model, mode

    def seconds(step, most, warm=cpu.WARM, steps=cpu.STEPS):
        model, mode = step
        read.append((model, mode))
        slow = mode.dtype is torch.bfloat16 and mode.optimizer == "AdamW"
        return 300.0 if slow else taken.get(mode.level, 9.0)

    monkeypatch.setattr(cpu, "training", training)
    monkeypatch.setattr(cpu, "seconds", seconds)
    bench = Bench("train", quick=True)
    parts.train.measure(bench)
    assert [mode for model, mode in read if model == "MLP"].count(cpu.MODES["autocast"]) == 1
    assert ("LSTM", cpu.MODES["autocast"]) not in read and ("LSTM", cpu.MODES["O4"]) in read
    found = {(line["name"], line["reference_name"]): (line["ratio"], line["goal"]) for line in bench.lines}
    assert found["MLP, O1", "FP32"] == (pytest.approx(10 / 11), pytest.approx(1 / 1.2))
    assert found["MLP, O4", "FP32"] == (1.25, 1.0) and found["MLP, O4", "autocast"] == (37.5, 1.0)
    assert found["transformer, O2", "FP32"] == (pytest.approx(10 / 13), pytest.approx(1 / 1.2))
    assert cpu.goal_of("MLP", "O5", "autocast") == 1.1 and cpu.goal_of("ResNet-18", "O5", "autocast") == 1.0
    said = capsys.readouterr().out
    assert said.count("left out: 30 times FP32's step in the MLP") == len(cpu.MODELS) - 1
    assert all(any(mode is each for _, each in read) for mode in cpu.MODES.values())


def test_an_error_of_one_mode_is_its_own(parts, tmp_path, monkeypatch):
    train = parts.modes.training

    def training(task, mode, device):
        if mode.level == "O5":
            raise RuntimeError("not today")
        return train(task, mode, device)

    monkeypatch.setattr(parts.session, "training", training)
    state = run(parts, tmp_path, ["O5", "bf16-masters", "O2"], 2)
    assert state["failed"] == {"mlp O5": "RuntimeError: not today"}
    assert {mode: list(rounds) for mode, rounds in state["results"]["mlp"].items()} == {
        "bf16-masters": ["0", "1"], "O2": ["0", "1"]}
    assert "FAILED: mlp O5" in parts.report.text_of(state)


def test_a_model_whose_package_is_missing_is_left_out(parts, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    state = parts.report.new_state("cpu")
    parts.session.Session(state, gauge=parts.gauges.Cpu(0, 1)).run(["gpt2", "mlp"], ["fp32"], 1)
    assert state["left_out"] == {"gpt2": "transformers is not there"} and list(state["results"]) == ["mlp"]


def test_nothing_begins_that_would_end_too_late(parts, tmp_path, monkeypatch):
    """A piece takes 10 seconds of this clock: four of the first turn end within 45, and one of the second would not."""
    now = [0.0]

    def measured(session, task, mode):
        now[0] += 10.0
        return {"kernels": 1}

    monkeypatch.setattr(parts.session.Session, "measured", measured)
    state = run(parts, tmp_path, ["O2-fused", "O1", "O4", "O5", "O2"], clock=lambda: now[0], deadline=45.0)
    assert list(state["results"]["mlp"]) == ["O1", "O4", "O5", "O2"]
    assert state["left_out"] == {"mlp O2-fused": "there was no time for it"}


def test_goals_and_ratios(parts):
    """Made-up figures: O4 with torch's lists takes less than autocast in two of three rounds."""
    def record(gpu, host=1.0, mib=100.0):
        return {"gpu_ms": gpu, "kernels": 10, "copies": 1, "host_ms": host, "step_ms": gpu, "mib": mib, "loss": 1.0}

    def rounds(*times, **others):
        return {str(r): record(t, **others) for r, t in enumerate(times)}

    modes = {"autocast-bf16": rounds(10.0, 12.0, 8.0), "O4-torch": rounds(8.0, 8.0, 16.0, mib=101.0),
             "O5": rounds(10.0), "bf16-masters": rounds(9.0), "O5-fused": rounds(5.0, host=2.0),
             "autocast-bf16-compiled": rounds(6.0), "O5-compiled": rounds(4.0)}
    lines = parts.report.compare({"gpt2": modes}, "cuda")
    found = {(line["mode"], line["against"], line["metric"]): (line["ratio"], line["goal"]) for line in lines}
    assert found["O4-torch", "autocast-bf16", "gpu_ms"] == (1.25, 1.0)
    assert found["O4-torch", "autocast-bf16", "mib"] == (pytest.approx(100 / 101), 1.0)
    assert found["O5", "autocast-bf16", "gpu_ms"] == (1.0, 1.2)
    assert found["O5", "bf16-masters", "gpu_ms"] == (0.9, 1.0)
    assert found["O5-fused", "O5", "gpu_ms"] == (2.0, 1.0) and found["O5-fused", "O5", "host_ms"] == (0.5, 1.0)
    assert found["O5-compiled", "autocast-bf16-compiled", "gpu_ms"] == (1.5, 1.2)
    assert not any(goal for _, goal in
                   [(line["ratio"], line["goal"]) for line in parts.report.compare({"gpt2": modes}, "cpu")])
    state = parts.report.new_state("cuda") | {"results": {"gpt2": modes}}
    assert "1.250 (0.50-1.50) goal 1.00" in parts.report.text_of(state)
    missed = sum(line["ratio"] < line["goal"] for line in lines)
    assert missed == 4 and f"{missed} missed" in parts.report.text_of(state)


class Cuda:
    """What gauges.Gpu needs of torch.cuda: each step takes 2 ms of it."""

    def __init__(self):
        self.now = 0.0

    def Event(self, enable_timing):
        event = types.SimpleNamespace(at=None)
        event.record = lambda: setattr(event, "at", self.now)
        event.elapsed_time = lambda other: other.at - event.at
        return event

    def synchronize(self):
        pass

    reset_peak_memory_stats = synchronize

    def max_memory_allocated(self):
        return 3 << 20


def test_what_is_read_of_a_gpu(parts, monkeypatch):
    cuda, there = Cuda(), torch.autograd.DeviceType
    work = [("volta_sgemm", 300.0, there.CUDA, "kernel"), ("Memcpy DtoD", 20.0, there.CUDA, "gpu_memcpy"),
            ("void at::native::bfloat16_copy_kernel_cuda", 30.0, there.CUDA, None),
            ("triton_poi_fused__to_copy_add_2", 40.0, there.CUDA, "kernel"),
            ("triton_poi_fused__to_copy_3", 50.0, there.CUDA, "kernel"),
            ("Optimizer.step#AdamW.step", 1e6, there.CUDA, None),  # ranges of the host's, and its own calls
            ("anything", 1e6, there.CUDA, "gpu_user_annotation"), ("aten::copy_", 1e6, there.CPU, "cpu_op")]
    events = [types.SimpleNamespace(name=name, device_type=device, activity_type=kind, is_user_annotation=False,
                                    time_range=types.SimpleNamespace(elapsed_us=lambda us=us: us))
              for name, us, device, kind in work]

    class Trace:
        def __init__(self, activities):
            self.events = lambda: events

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    def step():
        cuda.now += 2.0
        return torch.tensor(0.5)

    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(parts.gauges, "profile", Trace)
    record = parts.gauges.Gpu().read(step, False)
    assert record.pop("host_ms") >= 0
    assert record == {"kernels": 5, "gpu_ms": pytest.approx(0.44), "copies": 3, "copies_ms": pytest.approx(0.1),
                      "step_ms": 2.0, "mib": 3.0, "loss": 0.5}
    events.clear()
    assert parts.gauges.Gpu().read(step, False)["kernels"] is None  # no CUPTI: the rest is there


CHILD = """
import json, os, sys, time
file = sys.argv[1]
state = json.load(open(file))
for mode in ("first", "killed", "hangs", "last"):
    if mode in state["failed"] or mode in state["results"]:
        continue
    state["running"] = mode
    json.dump(state, open(file, "w"))
    if mode == "killed":
        os.abort()
    while mode == "hangs":
        time.sleep(60)
    state["results"][mode] = 1
json.dump(state | {"running": None}, open(file, "w"))
"""


def test_the_rest_is_measured_behind_a_mode_that_ends_or_hangs_its_process(parts, tmp_path):
    file = tmp_path / "state.json"
    file.write_text(json.dumps(parts.report.new_state("cpu")))
    child = [sys.executable, "-c", CHILD, str(file)]
    state = parts.train.supervise(child, file, float("inf"), patience=1.0)
    assert state["results"] == {"first": 1, "last": 1} and set(state["failed"]) == {"killed", "hangs"}
    assert "-6" in state["failed"]["killed"] and "1 s" in state["failed"]["hangs"]
