# SPDX-License-Identifier: Apache-2.0
"""What README.md says about Python, tried: its snippets as they stand, its commands, its table of torch.amp."""

import os
import pathlib
import re
import subprocess
import sys

import forks
import pytest

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).parents[3]
PART = (ROOT / "README.md").read_text().split("## Python\n", 1)[1].split("\n## ", 1)[0]
SNIPPETS = re.findall(r"```python\n(.*?)```", PART, re.DOTALL)

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


def rows(heading):
    """The cells of the first table behind a heading."""
    table = PART.split(heading + "\n", 1)[1]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_there_are_two_snippets():
    assert len(SNIPPETS) == 2


@pytest.mark.parametrize("level", ["O1", "O2", "O5"])
def test_the_loop_trains(level):
    out = python(
        PRELUDE
        + SNIPPETS[0].replace('"O1"', f'"{level}"')
        + "print(all(not torch.equal(a, b.float()) for a, b in zip(before, model.parameters())))\n"
        + "print(loss.item())\n"
    )
    moved, loss = out.split()[-2:]
    assert moved == "True" and float(loss) < 1.0  # from log 3


def test_install_apex_in_a_notebook():
    code = SNIPPETS[1] + "import libamp.torch.amp\nprint(amp is libamp.torch.amp)\n"
    assert python(code) == "True\n"


def test_the_parts_it_lists_are_there():
    from libamp import apex_shim

    listed = PART.split("### Coming from Apex", 1)[1].split("Inside an installed", 1)[0]
    for part in apex_shim.PARTS:
        assert f"`{part.removeprefix('apex.')}`" in listed or f"`{part}`" in listed, part


def test_every_row_of_torch_amp_is_code_that_runs():
    """The right column, in a training: what is a whole call runs as it stands, what is a part of one is used."""
    cells = [row[1] for row in rows("### Coming from torch.amp")]
    code = " ".join(cells)
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
    for option in set(re.findall(r"`(?:python -m libamp\.run )?(--[a-z-]+)`", PART)):
        assert option in usage, option


def test_old_checkpoints_load_as_it_says(tmp_path):
    """A file with an object in it, as scripts of 2020 saved them, in a script that says nothing of weights_only."""
    setting = re.search(r"`(TORCH_\w+)=1 python -m libamp\.run train\.py`", PART).group(1)
    script = tmp_path / "train.py"
    script.write_text(f"""
import argparse, torch, apex
torch.save({{"args": argparse.Namespace(lr=0.5)}}, {str(tmp_path / "old.pt")!r})
print(torch.load({str(tmp_path / "old.pt")!r})["args"].lr)
""")
    result = forks.run("-m", "libamp.run", script, env={**os.environ, setting: "1"})
    assert result.stdout == "0.5\n", result.stderr
