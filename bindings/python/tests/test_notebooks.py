# SPDX-License-Identifier: Apache-2.0
"""What notebooks show: HTML of what is asked of amp, and of a report; in a real kernel too."""

import html.parser
import json
import re
import sys

import pytest

torch = pytest.importorskip("torch")

import libamp.report  # noqa: E402
from libamp import _html  # noqa: E402
from libamp.torch import amp  # noqa: E402


class Shown(html.parser.HTMLParser):
    """The text of each cell and of what is not in a table, and that all that is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.rows, self.text = [], set(), [], ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        else:
            self.text += data


def shown(what):
    text = what._repr_html_()
    assert not re.search(r"<(script|link|img)|https?:|@import", text)  # nothing runs, nothing is fetched
    return Shown(text)


def train(level="O4", steps=2, observe=False, name="fc"):
    model = torch.nn.Module()
    model.forward = lambda x: getattr(model, name)(x)
    setattr(model, name, torch.nn.Linear(4, 2))
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), 0.1), opt_level=level, verbosity=0)
    if observe:
        amp.observe(model, every=1)
    for _ in range(steps):
        optimizer.zero_grad()
        with amp.scale_loss(model(torch.ones(3, 4)).float().square().mean(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("level, dtype, masters", [("O0", "float32", ""), ("O5", "bfloat16", "float32")])
def test_explain_tells_what_a_level_does_to_parameters(level, dtype, masters):
    model, optimizer = train(level)
    for what in (model, optimizer, None):
        said = amp.explain(what)
        assert said.startswith(f"level {level}: ") and f"2 parameters in {dtype}, 10 elements" in said
        assert shown(said).rows == [["parameters", "of type", "elements", "masters"], ["2", dtype, "10", masters]]


def test_explain_tells_of_a_function():
    model, _ = train("O4")
    assert amp.explain(model, op="linear") == "linear: lower (linear, in the apex lists)\n"
    assert "softmax" in shown(amp.explain(op="softmax")).text


def test_explain_of_what_amp_does_not_know():
    with pytest.raises(RuntimeError, match=r"explain: this Linear went through no amp\.initialize"):
        amp.explain(torch.nn.Linear(1, 1))


def test_health_is_a_str_with_its_verdict_first():
    model, _ = train()
    report = amp.health(model)
    assert isinstance(report, str) and report.endswith("sound\n")
    assert shown(report).text.startswith("✓ sound")


def test_findings_are_a_list_and_a_table():
    model, optimizer = train("O2", steps=0)
    assert amp.findings() == [] and shown(amp.findings()).text == "0 findings"
    with pytest.warns(libamp.FindingWarning, match="AMP-M30"):
        model(torch.ones(3, 4)).float().sum().backward()
        optimizer.step()
    codes = [row[0] for row in shown(amp.findings()).rows]
    assert codes == ["code", *(finding.code for finding in amp.findings())] and "AMP-M30" in codes
    assert shown(amp.health(model)).text.startswith("✗ ")
    row = next(row for row in shown(amp.findings()).rows if row[0] == "AMP-M30")
    assert "test_notebooks.py:" in row[1]


def test_memory_survey_and_observations_are_tables():
    model, _ = train("O0", observe=True)
    memory = dict(zip(*shown(amp.memory(model)).rows, strict=True))
    assert memory["weights"] == "40 B" and memory["masters"] == "0 B"
    survey = shown(amp.survey(model))
    assert [row[0] for row in survey.rows[1:7]] == ["O0", "O1", "O2", "O3", "O4", "O5"]
    assert survey.text.startswith("survey of 2 iterations; advised: ")
    seen = amp.observations(model)
    rows = shown(seen).rows
    assert isinstance(seen, list) and len(rows) == len(seen) + 1
    assert ["weights", "", "fc.weight", "float32"] in [row[:4] for row in rows]


def test_names_are_text():
    """A module may be called what it likes."""
    model, _ = train("O0", observe=True, name="<b>&")
    cells = [cell for row in shown(amp.observations(model)).rows for cell in row]
    assert "<b>&.weight" in cells


def test_statistics_say_numbers_alone():
    model, _ = train("O0", observe=True)
    said = repr(amp.observations(model)[0].total)
    assert said.startswith("Statistics(elements=") and "memory" not in said


def test_sizes():
    assert [_html.size(n) for n in (0, 1023, 1024, 3 << 30)] == ["0 B", "1023 B", "1 KiB", "3 GiB"]


def test_a_report_is_a_page_in_a_frame(tmp_path, monkeypatch):
    monkeypatch.setenv("AMP_TRACE", str(tmp_path / "run.jsonl"))
    train("O4")
    amp.shutdown()
    report = libamp.report.show(tmp_path / "run.jsonl")
    assert "2 brackets" in str(report) and repr(report) == str(report)
    frame = report._repr_html_()
    assert frame.startswith("<iframe") and frame.count("<") == 2  # the page is an attribute, whole and escaped
    inside = html.unescape(re.search('srcdoc="([^"]*)"', frame)[1])
    assert inside.startswith("<!") and "O4" in inside


def test_a_report_of_nothing_is_an_error(tmp_path):
    with pytest.raises(TypeError, match="name of a trace"):
        libamp.report.show()
    with pytest.raises(OSError):
        libamp.report.show(tmp_path / "nonesuch")


CELLS = [
    "import torch\nfrom libamp.torch import amp\nmodel = torch.nn.Linear(2, 2)\n"
    "optimizer = torch.optim.SGD(model.parameters(), 0.1)",
    'model, optimizer = amp.initialize(model, optimizer, opt_level="O5", loss_scale=8.0)',
    "amp.health(model)",
    "amp.explain(model)",
]


def test_a_kernel_shows_them(tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    spec = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "this",
            "language": "python"}
    folder = tmp_path / "kernels" / "this"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(book, timeout=120, kernel_name="this").execute()
    made, (banner, products), (health,), (explained,) = (cell.outputs for cell in book.cells)
    assert made == [] and banner.output_type == "display_data"  # no line of the banner is printed beside the table
    assert products.output_type == "stream" and products.text.startswith("Products") and products.text.count("\n") == 1
    rows = Shown(banner.data["text/html"]).rows
    assert rows[0] == ["property", "of the level", "in use"] and rows[-1] == ["loss_scale", "1.0", "8.0"]
    assert banner.data["text/plain"].startswith("Selected optimization level O5")
    assert "level O5" in Shown(health.data["text/html"]).text
    assert ["2", "bfloat16", "6", "float32"] in Shown(explained.data["text/html"]).rows
