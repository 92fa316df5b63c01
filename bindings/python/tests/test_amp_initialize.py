# SPDX-License-Identifier: Apache-2.0
"""amp.initialize: arguments, shapes of what it returns, properties, overrides, errors, and Apex's private names."""
import inspect

import pytest

torch = pytest.importorskip("torch")

from libamp.torch import amp  # noqa: E402
from libamp.torch.amp import _amp_state  # noqa: E402
from torch import nn  # noqa: E402

LEVELS = ("O0", "O1", "O2", "O3")


@pytest.fixture(autouse=True)
def _ends():
    yield
    amp.shutdown()
    _amp_state.hard_override = False


def _pair():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_order_and_defaults_are_apexs():
    names = [
        ("models", inspect.Parameter.empty),
        ("optimizers", None),
        ("enabled", True),
        ("opt_level", "O1"),
        ("cast_model_type", None),
        ("patch_torch_functions", None),
        ("keep_batchnorm_fp32", None),
        ("master_weights", None),
        ("loss_scale", None),
        ("cast_model_outputs", None),
        ("num_losses", 1),
        ("verbosity", 1),
        ("min_loss_scale", None),
        ("max_loss_scale", 2.0**24),
    ]
    found = list(inspect.signature(amp.initialize).parameters.values())
    assert [(p.name, p.default) for p in found[: len(names)]] == names
    names = ["loss", "optimizers", "loss_id", "model", "delay_unscale", "delay_overflow_check"]
    assert list(inspect.signature(amp.scale_loss).parameters) == names


@pytest.mark.parametrize("enabled", (True, False))
def test_returns_have_the_shape_of_the_arguments(enabled):
    def initialize(*args):
        result = amp.initialize(*args, enabled=enabled, verbosity=0)
        amp.shutdown()
        return result

    model, optimizer = _pair()
    assert initialize(model) is model
    assert initialize([model]) == [model]
    assert initialize(model, optimizer) == (model, optimizer)
    assert initialize([model], optimizer) == ([model], optimizer)
    assert initialize(model, [optimizer]) == (model, [optimizer])
    assert initialize(model, []) == (model, [])
    assert initialize([model], [optimizer]) == ([model], [optimizer])


TABLE = {
    "O0": (True, "O0", torch.float32, False, None, False, 1.0),
    "O1": (True, "O1", None, True, None, None, "dynamic"),
    "O2": (True, "O2", torch.float16, False, True, True, "dynamic"),
    "O3": (True, "O3", torch.float16, False, False, False, 1.0),
    "O4": (True, "O4", None, True, None, None, 1.0),
    "O5": (True, "O5", torch.bfloat16, False, True, True, 1.0),
}
NAMES = (
    "enabled",
    "opt_level",
    "cast_model_type",
    "patch_torch_functions",
    "keep_batchnorm_fp32",
    "master_weights",
    "loss_scale",
)


@pytest.mark.parametrize("level", TABLE)
def test_properties(level):
    amp.initialize(*_pair(), opt_level=level, verbosity=0)
    assert tuple(getattr(_amp_state.opt_properties, name) for name in NAMES) == TABLE[level]


def test_properties_without_amp():
    amp.initialize(*_pair(), enabled=False)
    assert tuple(getattr(_amp_state.opt_properties, name) for name in NAMES) == (
        False,
        None,
        None,
        False,
        None,
        None,
        1.0,
    )
    with pytest.raises(ValueError):
        _amp_state.opt_properties._update_options_dict({"colour": 1})


REFUSED = [
    ("O1", {"cast_model_type": torch.float16}),
    ("O1", {"keep_batchnorm_fp32": True}),
    ("O1", {"keep_batchnorm_fp32": False}),
    ("O1", {"master_weights": True}),
    ("O1", {"master_weights": False}),
    ("O0", {"patch_torch_functions": True}),
    ("O2", {"patch_torch_functions": True}),
    ("O3", {"patch_torch_functions": True}),
]
ALLOWED = [
    ("O0", {"cast_model_type": torch.float16}),
    ("O1", {"cast_model_type": torch.float32}),
    ("O1", {"cast_model_type": False}),
    ("O2", {"cast_model_type": False}),
    ("O3", {"cast_model_type": torch.bfloat16}),
    ("O1", {"patch_torch_functions": False}),
    ("O0", {"keep_batchnorm_fp32": "True"}),
    ("O3", {"master_weights": True, "loss_scale": "dynamic"}),
    ("O2", {"master_weights": False}),
    ("O2", {"loss_scale": "128.0"}),
    ("O0", {"loss_scale": 64}),
    ("O0", {"loss_scale": "dynamic"}),
]


@pytest.mark.parametrize(("level", "overrides"), REFUSED)
def test_overrides_that_a_level_refuses(level, overrides, capsys):
    with pytest.raises(RuntimeError, match=next(iter(overrides))):
        amp.initialize(*_pair(), opt_level=level, verbosity=0, **overrides)
    _amp_state.hard_override = True
    amp.initialize(*_pair(), opt_level=level, verbosity=0, **overrides)
    assert capsys.readouterr().out.startswith("Warning:  ")


@pytest.mark.parametrize(("level", "overrides"), ALLOWED)
def test_overrides_that_a_level_takes(level, overrides):
    model, optimizer = amp.initialize(*_pair(), opt_level=level, verbosity=0, **overrides)
    for name, value in overrides.items():
        value = {"True": True, "128.0": 128.0}.get(value, value) if isinstance(value, str) else value
        assert getattr(_amp_state.opt_properties, name) == value
    with amp.scale_loss(model(torch.randn(4, 2).to(model[0].weight.dtype)).float().mean(), optimizer) as scaled:
        scaled.backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("error", "kwargs"),
    [
        (RuntimeError, {"opt_level": "02"}),
        (RuntimeError, {"opt_level": 1}),
        (AssertionError, {"keep_batchnorm_fp32": 1}),
        (AssertionError, {"opt_level": "O2", "keep_batchnorm_fp32": "yes"}),
        (ValueError, {"loss_scale": "big"}),
        (TypeError, {"colour": 1}),
        (TypeError, {"num_losses": 1.5}),
        (ValueError, {"num_losses": 0}),
        (ValueError, {"num_losses": -1}),
        (ValueError, {"loss_scale": 1e-50}),
        (ValueError, {"loss_scale": float("inf")}),
        (ValueError, {"loss_scale": float("nan")}),
    ],
)
def test_bad_values(error, kwargs):
    with pytest.raises(error):
        amp.initialize(*_pair(), verbosity=0, **kwargs)


def test_bad_models_and_optimizers():
    model, optimizer = _pair()
    with pytest.raises(TypeError, match="models must be"):
        amp.initialize((model,), optimizer, verbosity=0)
    with pytest.raises(TypeError, match="optimizers must be"):
        amp.initialize(model, (optimizer,), verbosity=0)
    with pytest.raises(TypeError):
        amp.initialize(model, "optimizer", verbosity=0)
    with pytest.raises(RuntimeError, match="initialized already, or listed twice"):
        amp.initialize(model, [optimizer, optimizer], opt_level="O0", verbosity=0)
    amp.initialize(model, optimizer, opt_level="O0", verbosity=0)
    with pytest.raises(RuntimeError, match="initialized already, or listed twice"):
        amp.initialize(model, optimizer, opt_level="O0", verbosity=0)
    optimizer = torch.optim.SGD(_pair()[0].parameters(), lr=0.1)
    optimizer._post_amp_backward = None
    with pytest.raises(RuntimeError, match="_post_amp_backward"):
        amp.initialize(model, optimizer, opt_level="O0", verbosity=0)

    class FP16_Optimizer(torch.optim.SGD):
        pass

    with pytest.raises(RuntimeError, match="bare"):
        amp.initialize(model, FP16_Optimizer(model.parameters(), lr=0.1), verbosity=0)


def test_what_fails_changes_nothing():
    model, optimizer = _pair()
    params = list(model.parameters())
    with pytest.raises(Exception, match="num_losses"):
        amp.initialize(model, optimizer, opt_level="O2", num_losses=70000, verbosity=0)
    assert type(model) is nn.Sequential
    assert not hasattr(optimizer, "_amp_stash")
    assert all(p.dtype is torch.float32 for p in params)
    assert optimizer.param_groups[0]["params"] == params or all(
        a is b for a, b in zip(optimizer.param_groups[0]["params"], params, strict=True)
    )


def test_disabled_is_neutral_everywhere():
    model, optimizer = amp.initialize(*_pair(), enabled=False, opt_level="nonsense")
    loss = model(torch.randn(4, 2)).mean()
    with amp.scale_loss(loss, optimizer) as scaled:
        assert scaled is loss
        scaled.backward()
    optimizer.step()
    assert amp.state_dict() == {}
    amp.load_state_dict({})
    with amp.disable_casts():
        pass
    assert [id(p) for p in amp.master_params(optimizer)] == [id(p) for p in model.parameters()]


def test_the_banner(capsys):
    amp.initialize(*_pair(), opt_level="O2", loss_scale=128.0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Selected optimization level O2: ")
    assert "Its properties:" in lines
    assert "loss_scale             : dynamic" in lines
    assert "loss_scale             : 128.0" in lines
    amp.shutdown()
    amp.initialize(*_pair(), opt_level="O2", verbosity=0)
    assert capsys.readouterr().out == ""


def test_limits_of_the_scale():
    amp.initialize(*_pair(), opt_level="O2", max_loss_scale=1024.0, verbosity=0)
    assert _amp_state.loss_scalers[0].loss_scale() == 1024.0
    amp.shutdown()
    model, optimizer = amp.initialize(*_pair(), opt_level="O2", min_loss_scale=16384, max_loss_scale=None, verbosity=0)
    for _ in range(4):
        with amp.scale_loss(model(torch.randn(4, 2)).mean(), optimizer) as scaled:
            (scaled * float("inf")).backward()
        optimizer.step()
    assert _amp_state.loss_scalers[0].loss_scale() == 16384.0
    amp.shutdown()
    amp.initialize(*_pair(), opt_level="O2", min_loss_scale=0, verbosity=0)


def test_private_names():
    model, optimizer = amp.initialize(*_pair(), opt_level="O2", num_losses=2, verbosity=0)
    stash = optimizer._amp_stash
    assert stash.lazy_init_called
    assert [[p.dtype for p in group] for group in stash.fp16_groups] == [[torch.float16] * 2]
    assert [[p.dtype for p in group] for group in stash.fp32_from_fp16_groups] == [[torch.float32] * 2]
    assert [len(group) for group in stash.fp32_from_fp32_groups] == [2]
    assert (
        len(stash.all_fp16_params) == len(stash.all_fp32_from_fp16_params) == len(stash.all_fp32_from_fp32_params) == 2
    )
    assert stash.all_fp16_grad_stash == [None, None]
    assert stash.fp16_groups[0][0] is model[0].weight
    with torch.no_grad():
        stash.all_fp32_from_fp16_params[0].fill_(3.0)
    optimizer._lazy_init_maybe_master_weights()
    optimizer._master_params_to_model_params()
    assert torch.equal(model[0].weight, torch.full((2, 2), 3.0).half())
    scaler = _amp_state.loss_scalers[1]
    assert (scaler.loss_scale(), scaler._loss_scale, scaler._unskipped, scaler._has_overflow) == (
        65536.0,
        65536.0,
        0,
        False,
    )
    scaler._loss_scale, scaler._unskipped = 4.0, 1999
    with amp.scale_loss(model(torch.randn(4, 2)).mean(), optimizer, loss_id=1) as scaled:
        scaled.backward()
    assert (scaler.loss_scale(), scaler._unskipped) == (8.0, 0)
    assert _amp_state.loss_scalers[0].loss_scale() == 65536.0
    optimizer.step()


@pytest.mark.parametrize("level", LEVELS)
def test_state_that_an_optimizer_has_already_is_kept(level):
    model, optimizer = _pair()
    model(torch.randn(4, 2)).pow(2).mean().backward()
    optimizer.step()
    old = [optimizer.state[p]["momentum_buffer"].clone() for p in model.parameters()]
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    for param, buffer in zip(amp.master_params(optimizer), old, strict=True):
        found = optimizer.state[param]["momentum_buffer"]
        assert found.dtype is param.dtype
        torch.testing.assert_close(found.float(), buffer, rtol=1e-3, atol=1e-4)


def test_errors_speak_of_what_python_has():
    with pytest.raises(RuntimeError) as told:
        amp.initialize(*_pair(), opt_level="O1", keep_batchnorm_fp32=True, verbosity=0)
    assert "None" in str(told.value) and "AMP_" not in str(told.value)
    with pytest.raises(RuntimeError) as told:
        amp.initialize(*_pair(), opt_level="O2", patch_torch_functions=True, verbosity=0)
    assert "patch_torch_functions" in str(told.value)
    model, optimizer = amp.initialize(*_pair(), opt_level="O1", verbosity=0)
    with amp.scale_loss(model(torch.randn(4, 2)).mean(), optimizer) as scaled:
        scaled.backward()
        for call in (optimizer.step, amp.state_dict):
            with pytest.raises(RuntimeError) as told:
                call()
            assert "amp_" not in str(told.value)


@pytest.mark.parametrize(("level", "scale"), (("O0", None), ("O3", None), ("O1", 1.0)))
def test_nothing_is_counted_where_nothing_is_scaled(level, scale):
    model, optimizer = amp.initialize(*_pair(), opt_level=level, loss_scale=scale, verbosity=0)
    with amp.scale_loss(model(torch.randn(4, 2)).float().mean(), optimizer) as scaled:
        scaled.backward()
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 1.0, "unskipped": 0}
