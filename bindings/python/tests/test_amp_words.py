# SPDX-License-Identifier: Apache-2.0
"""Bad arguments are told by their names, with what they must be."""
import pytest

torch = pytest.importorskip("torch")

import libamp  # noqa: E402
from libamp.torch import amp  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture(autouse=True)
def _ends():
    yield
    amp.shutdown()


def _start(level="O2", **settings):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return amp.initialize(model, optimizer, opt_level=level, **{"verbosity": 0, **settings})


@pytest.mark.parametrize(
    "settings, error, words",
    [
        ({"window": -5}, ValueError, "window is -5, and must be an integer, 0 or more"),
        ({"hysteresis": -1}, ValueError, "hysteresis is -1, and must be an integer"),
        ({"max_skips": "x"}, TypeError, "max_skips is 'x', and must be an integer"),
        ({"init_scale": "x"}, TypeError, "init_scale is 'x', and must be a number"),
        ({"backoff": []}, TypeError, r"backoff is \[\], and must be a number"),
        ({"min_loss_scale": "x"}, TypeError, "min_loss_scale is 'x', and must be a number"),
        ({"max_loss_scale": "big"}, TypeError, "max_loss_scale is 'big', and must be a number"),
        ({"max_loss_scale": -1.0}, libamp.Error, "max_loss_scale"),
        ({"verbosity": "loud"}, TypeError, "verbosity must be an int .* not 'loud'"),
        ({"loss_scale": "dyn"}, ValueError, "loss_scale is \"dynamic\" or a number, not 'dyn'"),
        ({"scaler": "nope"}, ValueError, "scaler cannot be 'nope': it is one of apex, torch, megatron, deepspeed, jmp, mxnet"),
        ({"lists": 3}, ValueError, "lists cannot be 3: it is one of apex, torch"),
    ],
)
def test_settings(settings, error, words):
    with pytest.raises(error, match=words):
        _start(**settings)
    assert not list(amp.frontend.session.live())
    _start()


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_a_model_without_elements(level):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta"))
    with pytest.raises(RuntimeError, match=r"^1\.weight is on the meta device and has no elements"):
        amp.initialize(model, torch.optim.SGD(model[0].parameters(), lr=0.1), opt_level=level, verbosity=0)


@pytest.mark.parametrize("loss", [1.0, None, "x"])
def test_a_loss_that_is_none(loss):
    model, optimizer = _start()
    block = amp.scale_loss(loss, optimizer)
    with pytest.raises(TypeError, match=f"the loss is a tensor.* not a {type(loss).__name__}"), block as scaled:
        scaled.backward()
    with amp.scale_loss(model(torch.ones(2, 4)).float().sum(), optimizer) as scaled:
        scaled.backward()


@pytest.mark.parametrize(
    "state, error, words",
    [
        (None, TypeError, "a dict as amp.state_dict.. gives it, not a NoneType"),
        ({"loss_scaler0": {"loss_scale": 2.0}}, ValueError, "loss_scaler0 is .*must be"),
        ({"loss_scaler0": 5}, ValueError, "loss_scaler0 is 5"),
        ({"loss_scaler0": {"loss_scale": "x", "unskipped": 0}}, ValueError, "loss_scaler0 is"),
        ({"loss_scaler0": {"loss_scale": float("nan"), "unskipped": 0}}, ValueError, "loss_scale is nan"),
        ({"loss_scaler0": {"loss_scale": float("inf"), "unskipped": 0}}, ValueError, "loss_scale is inf"),
        ({"loss_scaler0": {"loss_scale": 2.0, "unskipped": -4}}, libamp.Error, "unskipped is out of range"),
    ],
)
def test_states(state, error, words):
    _start()
    before = amp.state_dict()
    with pytest.raises(error, match=words):
        amp.load_state_dict(state)
    assert amp.state_dict() == before


def test_a_banned_function_names_what_to_do_in_python():
    model, _ = _start("O1")
    words = r"amp\.register_float_function\(module, name\) before amp\.initialize"
    with pytest.raises(NotImplementedError, match=words) as told:
        nn.functional.binary_cross_entropy(torch.sigmoid(model(torch.ones(2, 4))), torch.ones(2, 4))
    assert "AMP_" not in str(told.value)
