# SPDX-License-Identifier: Apache-2.0
"""README.md and docs/start, tried: their snippets as they are written, their commands, the table of torch.amp. The
references have every function."""

import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys

import forks
import pytest

torch = pytest.importorskip("torch")

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
ROOT = pathlib.Path(__file__).parents[3]
README, PYTORCH, FROM_APEX, FROM_TORCH = (
    (ROOT / name).read_text()
    for name in ("README.md", "docs/start/pytorch.md", "docs/start/from-apex.md", "docs/start/from-torch-amp.md")
)


def snippet(page):
    """The only one of a page."""
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return code


RL = ROOT / "examples/python/rl.py"
PRELUDE = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = torch.nn.CrossEntropyLoss()
loader = [(torch.randn(16, 6), torch.randint(3, (16,)))] * 12
before = [p.detach().clone() for p in model.parameters()]
"""


def python(code):
    result = forks.run("-c", code)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("page", [README, PYTORCH], ids=["README", "pytorch"])
@pytest.mark.parametrize("level", ["O1", "O2", "O5"])
def test_the_loop_trains(level, page):
    out = python(
        PRELUDE
        + snippet(page).replace('"O1"', f'"{level}"')
        + "print(all(not torch.equal(a, b.float()) for a, b in zip(before, model.parameters())))\n"
        + "print(loss.item())\n"
    )
    moved, loss = out.split()[-2:]
    assert moved == "True" and float(loss) < 1.0  # from log 3


def test_install_apex_in_a_notebook():
    code = snippet(FROM_APEX) + "import libamp.torch.amp\nprint(amp is libamp.torch.amp)\n"
    assert python(code) == "True\n"


def test_the_parts_it_lists_are_there():
    from libamp import apex_shim

    listed = FROM_APEX.split("Inside an installed", 1)[0]
    for part in apex_shim.PARTS:
        assert f"`{part.removeprefix('apex.')}`" in listed or f"`{part}`" in listed, part


def test_every_row_of_torch_amp_is_code_that_runs():
    """The right column, in a training: what is a whole call runs as it stands, what is a part of one is used."""
    lines = [line for line in FROM_TORCH.splitlines() if line.startswith("|")][2:]
    code = " ".join(line.strip("|").split("|")[1] for line in lines)
    used = set(re.findall(r"amp\.(\w+)", code))
    assert used == {"initialize", "scale_loss", "master_params", "state_dict", "disable_casts"}
    out = python(
        PRELUDE
        + """
from libamp.torch import amp
class Decorated(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x):
        return x + 1
model, optimizer = amp.initialize(model, optimizer, opt_level="O1", num_losses=3, verbosity=0)
images, labels = loader[0]
loss = criterion(model(images), labels)
with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()
print(amp.state_dict()["loss_scaler0"]["loss_scale"], len([k for k in amp.state_dict() if k.startswith("loss_scaler")]))
norm = torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1e9)
print(0 < float(norm) < 100)
optimizer.step()
half = torch.ones(2, 2).half()
print(Decorated.apply(half).dtype, torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype)
with amp.disable_casts():
    print(torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype)
"""
    )
    assert out.split() == ["65536.0", "3", "True", "torch.float32", "torch.float16", "torch.float32"]


def test_every_command_has_its_option():
    usage = subprocess.run(
        [sys.executable, "-m", "libamp.run", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for option in set(re.findall(r"`(?:python -m libamp\.run )?(--[a-z-]+)`", FROM_APEX)):
        assert option in usage, option


def test_old_checkpoints_load_as_it_says(tmp_path):
    """A file with an object in it, as scripts of 2020 saved them, in a script that says nothing of weights_only."""
    setting = re.search(r"`(TORCH_\w+)=1 python -m libamp\.run train\.py`", FROM_APEX).group(1)
    script = tmp_path / "train.py"
    script.write_text(f"""
import argparse, torch, apex
torch.save({{"args": argparse.Namespace(lr=0.5)}}, {str(tmp_path / "old.pt")!r})
print(torch.load({str(tmp_path / "old.pt")!r})["args"].lr)
""")
    result = forks.run("-m", "libamp.run", script, env={**os.environ, setting: "1"})
    assert result.stdout == "0.5\n", result.stderr


@pytest.mark.parametrize("module, pages", [("torch.amp", ["python", "python-casts"]), ("kernels", ["python-kernels"])])
def test_the_reference_has_every_function(module, pages):
    public = importlib.import_module(f"libamp.{module}")
    text = "".join((ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8") for page in pages)
    functions = [name for name in public.__all__ if inspect.isroutine(getattr(public, name)) and name[0] != "_"]
    assert len(functions) > 20
    assert not [name for name in functions if not re.search(rf"`(?:amp\.)?{name}[`(]", text)]


# ---- docs/guide/rl-in-fp16.md and its program ----


def test_the_guide_of_reinforcement_learning_shows_lines_of_its_program():
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/rl-in-fp16.md").read_text(), re.DOTALL)
    assert len(shown) == 2 and all(lines in RL.read_text() for lines in shown)


def _on_two_ranks(folder, code):
    """The (reward, mismatch, did it step) of each line that the program prints."""
    (folder / "rl.py").write_text(code)
    result = forks.run(folder / "rl.py", ranks=2)
    assert result.returncode == 0, result.stderr
    lines = re.findall(r"reward ([\d.]+), mismatch ([\d.e+-]+), stepped: (\w+)", result.stdout)
    return [(float(reward), float(mismatch), stepped) for reward, mismatch, stepped in lines]


@pytest.mark.skipif(TORCH < (2, 7), reason="fully_shard of this torch does not run on CPUs")
def test_reinforcement_learning_in_fp16(tmp_path):
    """The program learns, and its probabilities are nearer to the engine's than in bfloat16: 3 more bits, less one for
    chance."""
    code = RL.read_text()
    told = _on_two_ranks(tmp_path, code)
    assert told[0][0] < 0.5 and told[-1][0] > 0.9, told
    assert {stepped for *_, stepped in told} == {"True"}
    first = code.replace('LEVEL, NUMBERS, LENGTH, GROUP = "O2"', 'LEVEL, NUMBERS, LENGTH, GROUP = "O5"')
    first = first.replace("in range(11)", "in range(1)")
    assert first != code and "range(1):" in first
    [(_, mismatch, _)] = _on_two_ranks(tmp_path, first)
    assert 0 < 4 * told[0][1] < mismatch
