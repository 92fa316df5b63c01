# SPDX-License-Identifier: Apache-2.0
"""libamp.mlx: its scaler against the library's, tick by tick, and what becomes of gradients."""
import json
import random

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed")
from libamp import _core  # noqa: E402
from libamp.mlx import _scaler  # noqa: E402

SETTINGS = [
    {},
    {"window": 3},
    {"window": 2, "init_scale": 2.0**23},  # meets the ceiling
    {"window": 5, "init_scale": 8.0, "min_scale": 1.5, "max_scale": 100.0, "growth": 3.0, "backoff": 0.25},
    {"window": 4, "hysteresis": 3},
    {"window": 4, "hysteresis": 3, "consecutive_hysteresis": False},
    {"init_scale": 2.0**-124, "window": 2},  # and the floor
    {"scaler": "torch", "window": 2, "init_scale": 2.0**126},
    {"scaler": "torch", "window": 3, "growth": 1.5, "backoff": 0.75},
    {"scaler": "megatron", "window": 3},
    {"scaler": "jmp", "window": 3, "growth": 3.0},
    {"loss_scale": 128.0},
]


def library(settings, overflows):
    """(scale, unskipped) after each bracket, by amp_scale_loss_end."""
    torch = pytest.importorskip("torch")
    from libamp.torch.amp import storage

    probe = torch.nn.Parameter(torch.zeros(1))
    context = _core.Context("O0", [], [[probe]], {"max_skips": 2**32 - 1, **settings}, None, [], storage)
    for overflow in overflows:
        bracket = context.begin([0], 0, False, False)
        probe.grad = torch.full_like(probe, float("inf") if overflow else 0.0)
        bracket.end()
        context.step_begin(0)
        context.step_end(0)
        probe.grad = None
        state = json.loads(context.save(None, "apex"))["loss_scaler0"]
        yield context.scale(0), state["unskipped"]
    context.shutdown()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_tick_is_the_librarys(settings):
    settings = {"loss_scale": -1.0, **settings}
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    overflows = [rng.random() < 0.25 for _ in range(200)] + [True] * 20 + [False] * 60
    scaler = _scaler.Scaler(_core.resolve("O0", settings))
    state = scaler.state()
    for tick, wanted in enumerate(library(settings, overflows)):
        scaler.update(state, mx.array(not overflows[tick]), mx.array(0))
        assert (state["scale"].item(), state["unskipped"].item()) == wanted, tick
    assert state["brackets"].item() == len(overflows) and state["skipped"].item() == sum(overflows)


def grads(*values):
    return [mx.array([1.0, 2.0]), mx.array(values), mx.array([3.0], dtype=mx.float16)]


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_one_that_is_not_finite_makes_all_nan(bad):
    state = {"scale": mx.array(4.0)}
    found, finite, first = _scaler.unscale(state, grads(1.0, bad))
    assert not finite.item() and first.item() == 1
    assert all(mx.isnan(grad).all().item() for grad in found) and not _scaler.is_step(found).item()


def test_unscaled_is_divided_by_the_scale():
    found, finite, _ = _scaler.unscale({"scale": mx.array(4.0)}, grads(3e38, -1e-38))
    assert finite.item() and _scaler.is_step(found).item()
    assert [grad.tolist() for grad in found[::2]] == [[0.25, 0.5], [0.75]] and found[2].dtype == mx.float32


def test_a_scale_below_1_may_take_what_is_finite_to_infinity():
    assert not _scaler.unscale({"scale": mx.array(0.25)}, grads(1e38, 1.0))[1].item()
    assert _scaler.unscale({"scale": mx.array(0.25)}, grads(8e37, 1.0))[1].item()
