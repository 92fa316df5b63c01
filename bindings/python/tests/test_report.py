# SPDX-License-Identifier: Apache-2.0
"""`python -m libamp.report`: traces, whole and damaged, as text, as a page, as events for TensorBoard."""

import json
import os
import pathlib
import random
import subprocess
import sys
import textwrap

import forks
import pytest

np = pytest.importorskip("numpy")

import libamp  # noqa: E402
from libamp import report  # noqa: E402
from libamp._report import board, compare, facts, figures, page, read, text  # noqa: E402
from traces import Elements, lines, maker, seen  # noqa: E402

RELEASED = sorted((pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden").glob("*/*.jsonl"))
HOSTILE = "</script><img src=x onerror=alert(1)>&amp;\"'\x1b[2J"


def chosen(path):
    trace = read.read(path)
    return [(trace, training) for training in trace.trainings]


@pytest.fixture
def make(tmp_path):
    return maker(tmp_path)


def test_the_text_says_what_happened(make):
    said = text.report(chosen(make(more=[seen(3, values=[1e-9, 1e5, 1.0], fp16=[1, 0, 1])])))
    for part in (
        "O1 (fp16): 3 brackets, 1 skipped (33.3 %), loss scale at last 2^15, 1 iteration observed",
        "bracket 2: softmax#2, call 4 of the iteration, by the cast of its input; first gradient: w",
        "made return (fp16): 1 of 8 not finite, else 0.001 to 6e+04",
        "w: gradient     fp32         0    33.3 %     33.3 %          0    1e+05",
        "warning, bracket 1: 3 of them",
        "O2     yes, with ops in FP32       1    2 KiB      2 KiB    4 KiB             8 B",
        "AMP-A01 op softmax: 3 of 8 [O2]",
        "advised: O1, initial loss scale 2^12",
        "linear  lower      3             0      6           2         0",
    ):
        assert part in said, part
    assert "\x1b" not in text.report(chosen(make(more=[seen(3, name=HOSTILE, fp16=[1, 0, 0])])))


def test_a_culprit_is_told_once(make, monkeypatch):
    trainings = chosen(make(skips=(1, 2, 3)))
    for said in (text.report(trainings), page.page(trainings)):
        assert said.count("first gradient: w; the same in 2 more") == 1
        assert said.count("by the cast of its input") == 1


def test_what_a_scale_loses_is_what_a_cast_loses():
    """Values in the middle of their binades: where a cast moves none into the next, binades tell exactly."""
    at = np.arange(-40, 40)
    values = np.float64(1.3) * 2.0**at
    binades = facts.add_binades([seen(1, values=values)])
    for exponent in facts.SCALES:
        scaled = values * 2.0**exponent
        with np.errstate(over="ignore"):
            cast = scaled.astype(np.float16)
        lost = facts.lost_at(binades, facts.FP16, exponent)
        assert lost.zeros == (cast == 0).sum()
        assert lost.infinities == np.isinf(cast).sum()
        assert lost.subnormals == ((cast != 0) & (abs(cast) < 2.0**-14)).sum()
    assert facts.best_scale(facts.add_binades([seen(1, values=[3.0])])) == 14  # 2^14 * 3 = 49152
    assert facts.best_scale({}) is None


def test_memory_is_that_of_the_parameters(make):
    ((_, training),) = chosen(make(level="O2"))
    fp32, now, *_ = facts.memory_of(training)
    assert (fp32.weights, fp32.gradients, fp32.masters) == (4096, 4096, 0)
    assert (now.level, now.weights, now.gradients, now.masters) == ("O2", 2048, 2048, 4096)
    measured = {"weights": 2048, "gradients": 2048, "masters": 4096, "master_gradients": 4096, "moments": 8192}
    more = [{"kind": "memory", "context": 1, "n": n, **measured, "casts": 0, "most_casts": 64, "outputs": n * 10}
            for n in (1, 3, 2)]  # fmt: skip
    ((_, training),) = chosen(make(level="O2", more=more))
    _, now, *predicted = facts.memory_of(training)
    assert (now.level, now.total, now.outputs) == ("O2, measured", 20544, 30)
    assert [row.level for row in predicted] == [f"O{i}, predicted" for i in (0, 1, 3, 4, 5)]
    assert [facts.size(n) for n in (0, 1023, 4096, 3 << 30)] == ["0 B", "1023 B", "4 KiB", "3 GiB"]


def test_where_two_trainings_part(make):
    grown = [1.5, 2.0, 3.0]
    a = make(
        "a.jsonl", level="O0", skips=(), more=[seen(1, name="a"), seen(1, name="b"), seen(3, name="a", values=grown)]
    )
    b = make("b.jsonl", more=[seen(1, name="a"), seen(1, name="b", values=[np.inf, 1, 0]), seen(3, name="a")])
    (_, first), (_, second) = chosen(a) + chosen(b)
    found, both = compare.partings(first, second)
    assert both == 2
    assert [(p.n, p.label) for p in found] == [(1, "b: gradient"), (3, "a: gradient")]
    assert found[0].how == "0 and 1 that are not finite"
    decision = compare.first_decision(first, second)
    assert (decision.n, decision.how) == (2, "step and skip")
    assert "bracket 2: the step: step and skip" in text.report(chosen(a) + chosen(b))
    assert text.report(chosen(a) + chosen(a)).endswith("nowhere\n")
    assert compare.partings(first, first)[0] == []


def test_gradients_are_compared_without_their_scale(make):
    """FP32 at a scale of 1 and O1 at 65536: what backward makes, and may get, carries it."""
    small, large = [0.5, 1.0, 0.0], [32768.0, 65536.0, 0.0]

    def shots(values, other=1.0):
        back = {"op": "fc (backward)", "in_backward": True}
        return [
            seen(1, name="b", what="scaled", values=values),
            seen(1, name="dy", what="input", values=values, **back),
            seen(1, name="x", what="input", values=[other, 2.0], **back),
            seen(1, name="dx", what="output", values=values, **back),
        ]

    a, b = make("a.jsonl", level="O0", skips=(), more=shots(small)), make("b.jsonl", skips=(), more=shots(large))
    text_of_a = pathlib.Path(a).read_text().replace('"scale": 65536', '"scale": 1')
    pathlib.Path(a).write_text(text_of_a)
    (_, first), (_, second) = chosen(a) + chosen(b)
    assert compare.partings(first, second) == ([], 4)
    c = make("c.jsonl", skips=(), more=shots(small, other=9.0))
    found, _ = compare.partings(first, chosen(c)[0][1])
    assert [p.label for p in found] == [
        "b: gradient, scaled", "fc (backward): input x", "fc (backward): output dx",
    ]  # fmt: skip; dy may be of forward
    assert found[0].how == "root mean square 0.6455 and 9.85e-06 without the loss scale"


# ---- the page ----


def test_the_page_is_whole_and_needs_no_network(make, monkeypatch):
    made = page.page(chosen(make(level="O2", more=[seen(n, values=[1e-9, 1e5, 1.0], fp16=[1, 0, 1]) for n in (1, 3)])))
    elements = Elements(made)
    assert not [value for name, value in elements.attributes if name in ("src", "href")]
    assert elements.tags.count("script") == 2
    data = json.loads(elements.scripts[0])
    (run,) = data["runs"]
    skips = [[2, 65536, "w"]]
    assert run["scale"] == [{"loss": 0, "n": [1, 3], "scale": [65536, 32768], "skips": skips, "values": []}]
    assert run["subjects"][0]["label"] == "w: gradient"
    assert [shot[0] for shot in run["subjects"][0]["shots"]] == [1, 3]
    assert sum(run["subjects"][0]["shots"][0][2]) == 3
    assert run["byScale"]["zeros"][0] == 2  # of both shots, at scale 1: 1e-9
    for name in ("scale", "exponents", "time", "byscale"):
        assert ("id", name) in elements.attributes
    titles = [
        "Findings",
        "Which level fits",
        "Loss scale",
        "Exponents",
        "Lost in 16 and 8 bits",
        "Where overflows began",
        "Ops",
        "Memory",
    ]
    assert [title for title in titles if title not in elements.texts] == []


@pytest.mark.parametrize("place", ["name", "op", "message", "level", "parameter", "file"])
def test_hostile_names_are_text(make, monkeypatch, tmp_path, place):
    name = "<img src=x>.jsonl" if place == "file" else "run.jsonl"
    path = make(
        name, more=[seen(3, name=HOSTILE, fp16=[1, 0, 0]) if place == "name" else seen(3, "input", "f", fp16=[1, 0, 0])]
    )
    kept = []
    for line in map(json.loads, pathlib.Path(path).read_text().splitlines()):
        if place in line and place != "name":
            line[place] = HOSTILE
        kept.append(json.dumps(line))
    (tmp_path / name).write_text("\n".join(kept) + "\n")
    elements = Elements(page.page(chosen(path)))
    assert "img" not in elements.tags
    assert elements.tags.count("script") == 2
    json.loads(elements.scripts[0])


def test_a_long_training_fits_a_page(make, monkeypatch):
    made = page.page(chosen(make(more=[seen(n) for n in range(4, 5004)])))
    data = json.loads(Elements(made).scripts[0])
    shots = data["runs"][0]["subjects"][0]["shots"]
    assert len(shots) == figures.SHOTS
    assert (shots[0][0], shots[-1][0]) == (4, 5003)


def test_it_is_written_readable(make, tmp_path):
    output = tmp_path / "report.html"
    assert report.main([make(), "-o", str(output)]) == 0
    assert os.stat(output).st_mode & 0o444
    assert "Failing" not in output.read_text()


def test_figures_have_a_sentence_and_the_gate_is_told(make):
    path = pathlib.Path(make(skips=(2,), more=[seen(3, values=[1e-9, 1e5, 1.0])]))
    told = {"kind": "told", "context": 1, "n": 0, "as": "note", "code": None, "status": None, "about": "gate",
            "message": "products in FP32"}  # fmt: skip
    path.write_text(path.read_text() + json.dumps(told) + "\n")
    made = page.page(chosen(str(path)))
    assert "<dt>gate</dt><dd>products in FP32</dd>" in made
    assert "Loss scale over 3 steps: from 2^16 to 2^15, at least 2^15 and at most 2^16; skipped: 1." in made
    assert "The greatest scale without an infinity is 2^-1." in made


def test_a_large_model_fits_a_page(make):
    """400 tensors in 60 steps: a page below 1 MB, with the sum of all steps whatever was left out."""
    values = np.random.default_rng(7).lognormal(-9, 4, 400)  # seed 7
    more = [seen(n, name=f"layer{i}.weight", values=values) for i in range(400) for n in range(1, 61)]
    made = page.page(chosen(make(more=more)))
    assert 100_000 < len(made) < 1_000_000
    first = json.loads(Elements(made).scripts[0])["runs"][0]["subjects"][0]
    assert first["all"][3] == 60 * 400 and sum(first["all"][2]) == 60 * 400


def test_fp8_has_its_columns_and_its_answer(make):
    one = seen(3, "input", "fc: linear", "input", [1.0] * 8, e4m3=[4, 1], e5m2=[0, 2], mxfp8=[8, 2, 0, 1, 0, 0, 0],
               product=True, line="model.py:7")  # fmt: skip
    two = seen(3, "input", "fc: linear (backward)", "gradient", [1.0] * 8, e4m3=[4, 1], e5m2=[0, 0], in_backward=True,
               product=True)  # fmt: skip
    trainings = chosen(make(more=[one, two]))
    answer = "1 of 2 inputs of products would have to stay in 16 bits: fc: linear: input (50 % to 0)."
    assert answer in text.report(trainings)
    made = page.page(trainings)
    assert answer in made and "fc: linear: input, model.py:7" in made
    cells = ["50 %", "12.5 %", "0", "25 %", "25 %", "12.5 %", "0", "stays"]
    assert facts.fp8_rows(trainings[0][1])[0].cells[1:] == cells


# ---- TensorBoard ----


class Writer:
    made: list = []  # noqa: RUF012

    def __init__(self, folder):
        self.folder, self.scalars, self.histograms, self.texts = folder, [], [], []
        Writer.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))

    def add_histogram_raw(self, tag, **members):
        self.histograms.append((tag, members))

    def add_text(self, tag, message, step):
        self.texts.append((tag, message, step))


def test_events_for_tensorboard(make, tmp_path, monkeypatch):
    monkeypatch.setattr(board, "writer_class", lambda: Writer)
    Writer.made = []
    path = make(more=[seen(3, values=[0.5, 0.75, 4.0, 0.0], fp16=[1, 0, 0]), seen(3, name="empty", values=[])])
    assert report.main([path, "--tensorboard", str(tmp_path / "board")]) == 0
    (writer,) = Writer.made
    assert ("loss/log2 scale", 16.0, 2) in writer.scalars
    assert ("loss/skipped", 1, 2) in writer.scalars
    assert ("lost in fp16/gradient/w: gradient", 1 / 3, 3) in writer.scalars
    ((tag, members),) = writer.histograms
    assert tag == "gradient/w: gradient"
    assert (members["min"], members["max"], members["num"], members["sum"]) == (-1, 3, 3, 0)
    assert members["bucket_limits"] == [0, 1, 2, 3]
    assert members["bucket_counts"] == [2, 0, 0, 1]
    assert writer.texts == [("told/AMP-M07", "3 of them", 1)]
    assert not (tmp_path / "report.html").exists()


def test_without_a_writer_it_says_what_to_install(make, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert report.main([make(), "--tensorboard", str(tmp_path)]) == 2
    assert "pip install tensorboardX" in capsys.readouterr().err


# ---- what is damaged ----


@pytest.mark.parametrize(
    "damage, says",
    [
        ('{"kind": "bracket", "con', "line 4: not JSON"),
        ("[]", "line 4: not an object"),
        ("\x00\x00\x00", "line 4: not JSON"),
        ('{"kind": "spell", "context": 1}', 'line 4: kind is "spell"'),
        ('{"kind": "bracket", "context": 1, "n": 1}', "line 4: bracket has no loss"),
        ('{"kind": "bracket", "context": true}', "line 4: bracket has no n"),
        ('{"kind": "end", "context": NaN}', "line 4: not JSON"),
        ("[" * 100_000, "line 4: not JSON"),
    ],
)
def test_a_damaged_line_is_named_and_left_out(make, damage, says, tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    whole = pathlib.Path(make()).read_text().splitlines()
    whole[3] = damage
    path.write_text("\n".join(whole) + "\n")
    assert report.main([str(path), "--text"]) == 1
    out, err = capsys.readouterr()
    assert f"{path}: {says}" in err and says in out
    assert "O1 (fp16): 3 brackets" in out


def test_a_cut_trace_says_where_it_ends(make, tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    path.write_text(pathlib.Path(make()).read_text()[:-20])
    assert report.main([str(path), "--text"]) == 1
    err = capsys.readouterr().err
    count = len(path.read_text().splitlines())
    assert f"line {count}: not JSON" in err and "the file ends in it" in err
    assert f"line {count}: the end of context 1 is missing: that training did not reach amp.shutdown" in err


@pytest.mark.parametrize("trace", RELEASED, ids=[f"{trace.parent.name}-{trace.stem}" for trace in RELEASED])
def test_the_traces_of_a_release(trace, tmp_path, capsys):
    """They are read without a remark. Cut ones say where."""
    assert report.main([str(trace), "--text"]) == 0
    out, err = capsys.readouterr()
    assert not err and ": 13 brackets" in out
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(trace.read_bytes()[:-20])
    assert report.main([str(cut), "--text"]) == 1
    assert "the file ends in it" in capsys.readouterr().err


def test_another_version_is_refused(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    start = next(iter(lines()))
    path.write_text(json.dumps(start | {"version": 2}) + "\n")
    assert report.main([str(path), "--text"]) == 2
    assert "version 2: this libamp.report reads version 1" in capsys.readouterr().err


def test_what_is_no_trace_makes_nothing(tmp_path, capsys):
    output = tmp_path / "report.html"
    output.write_text("the last one")
    (tmp_path / "empty").write_text("")
    (tmp_path / "prose").write_text("It was a dark night.\n")
    for name, says in (
        ("empty", "it is empty"),
        ("prose", "not a libamp trace: line 1: not JSON"),
        ("none", "No such file"),
    ):
        assert report.main([str(tmp_path / name), "-o", str(output)]) == 2
        assert says in capsys.readouterr().err
    assert output.read_text() == "the last one"


def test_a_context_that_is_not_there(make, capsys):
    assert report.main([make(), "--text", "--context", "5"]) == 2
    assert "there is no context 5: there are 1" in capsys.readouterr().err
    assert report.main([make(), "--text", "--context", "1"]) == 0


def test_a_page_that_cannot_be_written_is_named(make, tmp_path, monkeypatch, capsys):
    assert report.main([make(), "-o", str(tmp_path / "no" / "x.html")]) == 2
    assert capsys.readouterr().err == f"libamp.report: {tmp_path / 'no'}: there is no such folder\n"


def test_no_damage_is_fatal(make, tmp_path, monkeypatch):
    """Members dropped, exchanged and broken at random: a report, or words."""
    rng = random.Random(1)
    whole = [json.dumps(line) for line in lines(more=[seen(n, values=[1e-9, 1e5, 1.0]) for n in (1, 3)])]
    strange = [None, True, -1, 10**30, 1e308, "x", [], [1], {}, [[]], -(10**30), "\ud800"]
    path = tmp_path / "run.jsonl"
    for _ in range(400):
        broken = list(whole)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(broken))
            line = json.loads(broken[at])
            name = rng.choice(list(line))
            if rng.random() < 0.3:
                del line[name]
            else:
                line[name] = rng.choice(strange)
            broken[at] = json.dumps(line)
        path.write_text("\n".join(broken) + "\n")
        try:
            kept = chosen(str(path))
        except read.Unreadable:
            continue
        page.page(kept + kept)
        text.report(kept + kept)


# ---- a real one ----


def test_a_real_training(tmp_path):
    """Through the package as it is installed: the program, and what libamp itself wrote."""
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
            import torch
            from libamp.torch import amp
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
            for _ in range(4):
                loss = model(torch.randn(8, 4)).float().square().mean()
                with amp.scale_loss(loss, optimizer) as scaled:
                    scaled.backward()
                optimizer.step()
                optimizer.zero_grad()
            amp.shutdown()
        """)
    )
    environment = os.environ | {"AMP_OBSERVE": "every=1"}
    trace = tmp_path / "run.jsonl"
    ran = forks.run("-m", "libamp.run", "--trace", trace, script, env=environment)
    assert ran.returncode == 0, ran.stderr
    command = [sys.executable, "-m", "libamp.report", str(trace), "--text"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "O2 (fp16): 4 brackets, 0 skipped (0)" in ended.stdout


def test_it_runs_without_the_package_around_it():
    """As tools/demo has it: from the tree, where nothing is compiled."""
    folder = pathlib.Path(libamp.__file__).parent
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); from _report.program import main; main(['--help'])"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--tensorboard" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"cause": "input"}, "softmax#2, call 4 of the iteration. Its input was not finite: the batch"),
        ({"cause": "weight", "weight": "a.w", "since": 4, "since_least": 4}, "the parameter a.w itself is not finite "
         "since bracket 4"),
        ({"cause": "weight", "weight": "a.w", "since": 9, "since_least": 3}, "since one of the brackets 3 to 9"),
    ],
)  # fmt: skip
def test_a_culprit_is_told_with_its_cause(make, told, says):
    line = {"kind": "culprit", "context": 1, "n": 2, "op": "softmax", "index": 1, "call": 4, "was_cast": False,
            "in_backward": False, "parameter": None, "arguments": [], **told}  # fmt: skip
    assert says in text.report(chosen(make(more=[line])))
