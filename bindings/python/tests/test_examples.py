# SPDX-License-Identifier: Apache-2.0
"""examples/python, run in small: what their tables and last lines say."""

import os
import pathlib
import re

import forks
import pytest

pytest.importorskip("torch")

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples" / "python"


def run(script, *args):
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = forks.run(EXAMPLES / script, *args, env=env)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


@pytest.mark.skipif(os.environ.get("AMP_SLOW") != "true", reason="slow: half a minute; the other examples are run")
def test_resnet_has_one_row_for_each_experiment():
    names = ["fp32", "by-hand", "O1", "O2", "O3", "O4", "O5", "O2-ddp-syncbn", "torch-fp16", "torch-bf16"]
    out = run("resnet.py", "--epochs", 1)
    rows = {line.split()[0]: line.replace(",", "").split()[1:] for line in out.splitlines()[-len(names) :]}
    assert list(rows) == names
    for name, (accuracy, loss, seconds, _, params, beside, saved, skipped, scale) in rows.items():
        assert float(accuracy) > 15 and 0 < float(loss) < 2.3, name  # ten digits: from 10 % and log 10
        assert float(seconds) > 0 and int(beside) >= int(params) and int(skipped) >= 0
        low = name in ("by-hand", "O2", "O3", "O5", "O2-ddp-syncbn")
        assert int(params) < 0.6 * int(rows["fp32"][4]) if low else int(params) == int(rows["fp32"][4]), name
        assert int(saved) < 0.6 * int(rows["fp32"][6]) or name == "fp32", name
        dynamic = name in ("O1", "O2", "O2-ddp-syncbn", "torch-fp16")
        assert (float(scale) > 128) is dynamic, name


def test_resnet_refuses_what_it_does_not_know():
    result = forks.run(EXAMPLES / "resnet.py", "O9")
    assert result.returncode == 2 and "O9" in result.stderr


def test_transformer_learns_with_clipped_masters():
    out = run("transformer.py", "--opt-level", "O5", "--epochs", 2)
    losses = [float(value) for value in re.findall(r"loss ([\d.]+)", out)]
    assert len(losses) == 2 and losses[1] < losses[0] < 2.31
    assert sum(int(value) for value in re.findall(r"(\d+) steps clipped", out)) > 0


def test_gan_has_three_scalers():
    out = run("gan.py", "--opt-level", "O2", "--epochs", 2)
    scalers = re.findall(r"(loss_scaler\d): scale 65536, 38 steps", out)
    assert scalers == ["loss_scaler0", "loss_scaler1", "loss_scaler2"]
    assert float(re.search(r"mean image: ([\d.]+) from", out).group(1)) < 0.6
