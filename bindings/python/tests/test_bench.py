# SPDX-License-Identifier: Apache-2.0
"""The harness of tools/bench --python writes what it promises. No time is judged."""
import json
import os
import pathlib
import sys

import forks
import pytest

torch = pytest.importorskip("torch")
FOLDER = pathlib.Path(__file__).parents[3] / "bench" / "python"


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import harness

    yield harness
    del sys.modules["harness"]


class FakeClock:
    """Says that a call takes what its function returns, in microseconds."""

    def __init__(self, device):
        pass

    def seconds(self, work, times):
        return work() * times * 1e-6


def test_ratios_above_1_are_ours(harness, monkeypatch, capsys):
    monkeypatch.setattr(harness, "Clock", FakeClock)
    bench = harness.Bench("made-up", rounds=5)
    bench.pair("a pair", "1", lambda: 2, lambda: 5, "theirs", goal=3.0)
    bench.pair("its bytes", "1", lambda: 2, lambda: 5, "theirs", moved=4000)
    bench.overhead("beyond", "1", lambda: 3, lambda: 1, lambda: 9, lambda: 1, "theirs", goal=2.0)
    bench.allowance("allowed", "1", lambda: 3.04, lambda: 3, 50)
    bench.turns("several", "1", lambda: 2, {"one": (lambda: 3, 2.0), "another": (lambda: 8, 2.0)})
    values = [value for line in bench.lines for value in (line["ours"], line["reference"], line["ratio"])]
    assert values == pytest.approx([2.0, 5.0, 2.5, 2.0, 0.8, 2.5, 2000.0, 8000.0, 4.0, 40.0, 50.0, 1.25,
                                    2.0, 3.0, 1.5, 2.0, 8.0, 4.0])
    assert [line["unit"] for line in bench.lines] == ["us", "GB/s", "ns", "ns", "us", "us"]
    assert [line["reference_name"] for line in bench.lines[-2:]] == ["one", "another"]
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 6 and ["!" in line for line in said] == [True, False, False, False, True, False]
    assert "3.00 !" in said[0]


def run(*arguments):
    return forks.run(FOLDER / "run.py", *arguments)


SLOW = {"compile"}  # inductor: a minute
NOT_GROUPS = {"run", "harness", "sides"} | (SLOW if os.environ.get("AMP_SLOW") != "true" else set())
NOT_GROUPS |= set() if torch.cuda.is_available() else {"activations_gpu"}
GROUPS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in NOT_GROUPS)


TOO_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4)


@pytest.mark.skipif(TOO_OLD, reason="this torch has not all that libamp is measured beside")
@pytest.mark.parametrize("group", GROUPS)
def test_each_group_runs(group, tmp_path):
    done = run("--group", group, "--rounds", "1", "--json", tmp_path / "lines.json")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = json.loads((tmp_path / "lines.json").read_text())
    assert lines and all(line["group"] == group and line["ours"] > 0 and line["reference"] > 0 for line in lines)
    assert f"{len(lines)} lines, " in done.stdout.splitlines()[-1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    done = run("--group", "train", "--device", "cuda")
    assert done.returncode == 0 and done.stdout.startswith("skipped: torch "), done.stdout + done.stderr


def test_a_cpu_is_a_process_of_its_own(tmp_path):
    """Two sets of instructions: the environment of each process, and lines that name it."""
    file = tmp_path / "lines.json"
    done = run("--group", "kernels", "--rounds", "1", "--cpu", "avx2", "--cpu", "all", "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line["name"].partition(": ")[0] for line in json.loads(file.read_text())]
    assert set(names) == {"avx2", "all"} and names == sorted(names, reverse=True)
    machines = [line for line in done.stdout.splitlines() if line.startswith("processor: ")]
    limits = "ONEDNN_MAX_CPU_ISA=AVX2, MKL_ENABLE_INSTRUCTIONS=AVX2, ATEN_CPU_CAPABILITY=avx2, AMP_CPU_MASK=sse2,avx2"
    assert [limits in line for line in machines] == [True, False]


@pytest.fixture
def papers(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    from papers import figure, page, run

    yield figure, page, run
    for name in [name for name in sys.modules if name.split(".")[0] in ("papers", "digits", "resnet_model")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["masters", "gradients", "detector", "recurrent", "gan", "rates"])
def test_a_figure_of_papers_is_measured_written_and_drawn(papers, name, tmp_path, monkeypatch):
    figure, page, run = papers
    [module] = run.modules((name,))
    from papers import training

    whole = training.digits
    monkeypatch.setattr(training, "digits", lambda device: tuple(each[:128] for each in whole(device)))
    for part, smaller in (("EVERY", 2), ("BATCHES", (512, 1024))):
        monkeypatch.setattr(module, part, smaller, raising=False)
    measured = module.measure(figure.Budget(0.5, quick=True, part=0.01))  # a few steps
    known = {"quick": True, "seconds": 0.0, "versions": {"torch": "2"}}
    record = {**dict.fromkeys(figure.PROVENANCE, "-"), **known, **measured}
    page.write_json(tmp_path / f"{name}.json", record)
    made = page.files([module], tmp_path)
    assert set(made) == {"README.md", f"{name}.svg"}
    assert module.FIGURE.source.reference.split(",")[0] in made["README.md"].replace("\n", " ")
    assert "| ---" in made["README.md"] and len(made[f"{name}.svg"]) > 3000
    if name == "rates":  # half a second is too short for all
        assert measured["stopped"] and "The run stopped early" in made["README.md"]


def test_the_resnet_of_gpus_trains(papers, monkeypatch):
    [module] = papers[2].modules(("resnet50",))
    sizes = sum(each.numel() for each in module.resnet50().parameters())
    assert sizes == 25_557_032  # as torchvision's
    monkeypatch.setattr(module, "WARM", 0)
    assert module.train(module.modes()["O2"], 1, 2, 32, "cpu")["images"] > 0


def test_an_unknown_group_is_refused():
    assert run("--group", "nonesuch").returncode == 2


@pytest.mark.parametrize("mode", ["FP32", "autocast", "O2", "O5"])
def test_a_long_training_continues(mode, tmp_path, monkeypatch):
    """Of tools/results --slow: the losses are those of a training without a pause, bit for bit."""
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    from papers.work import long

    task, [mode] = long.Images("cpu", 6, 4), [each for each in long.MODES if each.name == mode]

    def losses(*parts):
        for number, end in enumerate(parts):
            run = long.Run(task, mode, 1, "cpu")
            if number:
                run.load(tmp_path / "training.pt")
            while len(run.losses) < end:
                run.step()
            run.save(tmp_path / "training.pt")
            run.training.close()
        return run.losses

    whole = losses(6)
    assert losses(3, 6) == whole and len(set(whole)) == 6
