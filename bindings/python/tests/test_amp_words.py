# SPDX-License-Identifier: Apache-2.0
"""Bad arguments are told by their names, with what they must be; what goes wrong slowly is told once."""
import pytest

torch = pytest.importorskip("torch")

import libamp  # noqa: E402
import libamp.kernels  # noqa: E402
from libamp.torch import amp  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture(autouse=True)
def _ends():
    yield
    amp.shutdown()
    _kept.clear()


_kept: list = []  # a session ends with its model and optimizer, which no test need hold


def _start(level="O2", **settings):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _kept.append(amp.initialize(model, optimizer, opt_level=level, **{"verbosity": 0, **settings}))
    return _kept[-1]


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
        ({"scaler": "nope"}, ValueError, "scaler cannot be 'nope': it is one of apex, torch, megatron"),
        ({"master_weights": "no"}, AssertionError, "master_weights is True .* 'stochastic', or None; not 'no'"),
        ({"patch_torch_functions": 1}, AssertionError, "patch_torch_functions is True or False, .* not 1"),
        ({"enabled": "False"}, TypeError, "enabled must be a boolean, not 'False'"),
        ({"process_group": 3}, TypeError, "process_group is a group of torch.distributed, True, False or None, not 3"),
        ({"loss_scale": [1]}, ValueError, r"loss_scale is \"dynamic\" or a number, not \[1\]"),
        ({"loss_scale": float("inf")}, ValueError, 'loss_scale is "dynamic" or a finite number above 0'),
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


def test_switches_may_be_strings_as_apexs_scripts_pass_them():
    _, optimizer = _start("O2", master_weights="False", keep_batchnorm_fp32="True")
    assert [p.dtype for p in amp.master_params(optimizer)] == [torch.float16] * 2


def test_other_calls():
    model, _ = _start()
    with pytest.raises(TypeError, match="optimizers is an empty list"):
        amp.scale_loss(model(torch.ones(2, 4)).sum(), [])
    with pytest.raises(TypeError, match=r"amp\.shutdown takes a model or an optimizer, .* not a int"):
        amp.shutdown(3)
    assert amp.initialized(model)
    with pytest.raises(ValueError, match=r"float32 in .* is a dtype, and no function"):
        amp.register_half_function(torch, "float32")
    params, grads = [torch.ones(3)], [torch.ones(3)]
    with pytest.raises(libamp.ArgumentError, match="a list is missing in state: the rule keeps exp_avg"):
        libamp.kernels.optimizer_step("adam", params, grads, {}, steps=[0])


def test_levels_speak_of_types_as_python_does():
    with pytest.raises(RuntimeError, match=r"cast_model_type may only be torch\.float32 or False"):
        _start("O1", cast_model_type=torch.float16)


def test_a_banned_function_names_what_to_do_in_python():
    model, _ = _start("O1")
    words = r"amp\.register_float_function\(module, name\) before amp\.initialize"
    with pytest.raises(NotImplementedError, match=words) as told:
        nn.functional.binary_cross_entropy(torch.sigmoid(model(torch.ones(2, 4))), torch.ones(2, 4))
    assert "AMP_" not in str(told.value)


# ---- float16 where it is too small ----


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3", "O4", "O5"])
def test_no_level_is_advised_against_on_a_cpu(level, capsys):
    amp.initialize(torch.nn.Linear(2, 2), opt_level=level)
    assert "Warning:" not in capsys.readouterr().out


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_loss_that_is_not_finite_is_told_once_at_a_static_scale_of_1(value, capsys):
    def losses(level, verbosity=1, **kwargs):
        """What is said in each of five steps, of which three have such a loss."""
        model, optimizer = _start(level, verbosity=verbosity, **kwargs)
        capsys.readouterr()
        said = []
        for factor in (1.0, value, value, 1.0, value):
            with amp.scale_loss(model(torch.ones(1, 4)).float().sum() * 0 + factor, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
            said.append("the loss is infinite or NaN" in capsys.readouterr().out)
        amp.shutdown()
        return said

    assert losses("O3") == losses("O1", loss_scale=1.0) == [False, True, False, False, False]
    assert losses("O3", verbosity=0) == losses("O0") == losses("O5") == [False] * 5
    # their steps are skipped, or not, and that is told
    assert losses("O2") == losses("O3", loss_scale=128.0) == [False] * 5
