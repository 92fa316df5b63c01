# SPDX-License-Identifier: Apache-2.0
"""Scripts as people wrote them against Apex, unedited, by `python -m libamp.run`: what they print and save is right."""

import os
import pathlib
import re

import forks
import pytest
from levels import DYNAMIC

torch = pytest.importorskip("torch")

SCRIPTS = pathlib.Path(__file__).parents[3] / "examples" / "python" / "apex_scripts"
RUN = ["-m", "libamp.run"]
slow = pytest.mark.skipif(os.environ.get("AMP_SLOW") != "true", reason="slow: another test of its kind is the sample")


def run(script, *args, ranks=1):
    """What the script prints. It runs in the folder of its data, with one thread, and must end well."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    args = [SCRIPTS / script, *map(str, args)]
    result = forks.run(*RUN, "--check", *args, env=env, ranks=ranks)  # where findings are a status of 1
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


def numbers(pattern, text):
    found = [float(value) for value in re.findall(pattern, text)]
    assert found, f"{pattern} is nowhere in:\n{text}"
    return found


def load(path):
    return torch.load(path, weights_only=False)


def assert_same(a, b, at=""):
    """Equal to the last bit, through dicts and lists."""
    assert type(a) is type(b), at
    if isinstance(a, dict):
        assert list(a) == list(b), at
        for key in a:
            assert_same(a[key], b[key], f"{at}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), at
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{at}[{index}]")
    elif torch.is_tensor(a):
        assert a.dtype == b.dtype and torch.equal(a, b), at
    else:
        assert a == b, at


def test_they_do_not_know_who_answers():
    texts = [path.read_text() for path in SCRIPTS.glob("*.py")]
    assert len(texts) == 5
    for text in texts:
        assert "libamp" not in text


@pytest.mark.parametrize("level", [pytest.param("O0", marks=slow), "O1", "O2", pytest.param("O3", marks=slow)])
def test_imagenet_learns_at_each_level(level, tmp_path):
    saved = tmp_path / "last.pt"
    out = run("imagenet.py", "--opt-level", level, "--epochs", 2, "--checkpoint", saved)
    losses = numbers(r"Loss ([\d.]+) \(", out)
    assert losses[-1] < 0.7 * losses[0]
    state = load(saved)
    assert {tensor.dtype for tensor in state["state_dict"].values()} == {torch.float32, torch.int64}
    scaler = state["amp"]["loss_scaler0"]
    dynamic = level in DYNAMIC
    assert (scaler["loss_scale"], scaler["unskipped"]) == ((65536.0, 36) if dynamic else (1.0, 0))


@slow  # test_bert_resumed_is_bert_uninterrupted is its sample
def test_imagenet_resumed_is_imagenet_uninterrupted(tmp_path):
    first, whole, resumed = tmp_path / "first.pt", tmp_path / "whole.pt", tmp_path / "resumed.pt"
    common = ["--opt-level", "O2", "--loss-scale", "128.0", "--keep-batchnorm-fp32", "True", "--epochs", 2]
    run("imagenet.py", *common, "--checkpoint", whole)
    run("imagenet.py", *common, "--checkpoint", first, "--stop-after", 0)
    assert load(first)["epoch"] == 1
    out = run("imagenet.py", *common, "--checkpoint", resumed, "--resume", first)
    assert "loaded checkpoint" in out
    assert_same(load(whole), load(resumed))


def test_imagenet_on_two_ranks_with_synchronized_batch_norm(tmp_path):
    saved = tmp_path / "ranks.pt"
    out = run("imagenet.py", "--opt-level", "O1", "--sync_bn", "-b", 32, "--epochs", 2, "--checkpoint", saved, ranks=2)
    losses = numbers(r"Loss ([\d.]+) \(", out)
    assert losses[-1] < 0.8 * losses[0]
    assert all(name.startswith("module.") for name in load(saved)["state_dict"])


@pytest.mark.parametrize("level", DYNAMIC)
def test_dcgan_has_three_scalers(level):
    out = run("dcgan.py", "--opt_level", level, "--niter", 1)
    losses = numbers(r"Loss_D: ([\d.]+)", out)
    assert len(losses) == 18 and losses[-1] < losses[0]
    scalers = re.findall(r"loss_scaler(\d) ([\d.]+) (\d+)", out)  # an early loss may overflow once or twice
    assert [index for index, _, _ in scalers] == ["0", "1", "2"]
    for _, scale, unskipped in scalers:
        assert int(unskipped) == 18 if float(scale) == 2.0**16 else 2.0**12 <= float(scale) < 2.0**16
    low, high = map(float, re.search(r"images \(64, 1, 8, 8\) from (-[\d.]+) to ([\d.]+)", out).groups())
    assert -1 <= low < 0 < high <= 1


def test_bert_with_lamb_and_delayed_unscaling():
    out = run("bert_pretrain.py", "--gradient_accumulation_steps", 2, "--max_steps", 40)
    losses = numbers(r"Average Loss = ([\d.]+)", out)
    assert losses[-1] < 0.8 * losses[0]
    assert numbers(r"Loss Scale = ([\d.]+)", out)[-1] == 2**14


def test_bert_steps_down_from_a_scale_that_is_too_large():
    out = run("bert_pretrain.py", "--optimizer", "adamw", "--init_loss_scale", 2**24, "--max_steps", 20)
    assert "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 8388608.0" in out
    scales = numbers(r"Loss Scale = ([\d.]+)", out)
    assert 1 < scales[-1] < 2**24
    losses = numbers(r"Average Loss = ([\d.]+)", out)
    assert losses[-1] < losses[0]


def test_bert_resumed_is_bert_uninterrupted(tmp_path):
    whole, parts = tmp_path / "whole.pt", tmp_path / "parts.pt"
    common = ["--optimizer", "adam", "--max_steps", 8, "--train_batch_size", 8]
    run("bert_pretrain.py", *common, "--checkpoint", whole)
    run("bert_pretrain.py", *common, "--checkpoint", parts, "--stop_after", 4)
    assert load(parts)["step"] == 4
    run("bert_pretrain.py", *common, "--checkpoint", parts, "--resume_from_checkpoint")
    assert_same(load(whole), load(parts))


def test_bert_reduces_accumulated_gradients_behind_the_last_backward():
    args = ["--optimizer", "adam", "--allreduce_post_accumulation", "--max_steps", 30]
    losses = numbers(r"Average Loss = ([\d.]+)", run("bert_pretrain.py", *args, ranks=2))
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(("level", "ranks"), [("O1", 1), ("O2", 2)])
def test_detector(level, ranks):
    out = run("detector.py", "--opt-level", level, "--max-iter", 41, "--batch-size", 16, ranks=ranks)
    losses = numbers(r"iter: \d+ loss: ([\d.]+)", out)
    assert len(losses) == 5 and losses[-1] < 0.85 * losses[0]
    assert "running mean torch.float32" in out
    assert numbers(r"iou: ([\d.]+)", out)[0] > 0.5
