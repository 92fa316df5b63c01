# SPDX-License-Identifier: Apache-2.0
"""What reads a model's code or signature meets the model's own after initialize."""

import inspect
import warnings

import pytest

torch = pytest.importorskip("torch")

from libamp.torch import amp  # noqa: E402

LEVELS = ["O0", "O1", "O2", "O4"]
X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, double: bool = False):
        """Its own words."""
        x = torch.relu(self.fc(x))
        return x + x if double else x


def initialized(level):
    torch.manual_seed(0)
    return amp.initialize(Net(), opt_level=level, verbosity=0)


@pytest.mark.parametrize("level", LEVELS)
def test_forward_keeps_its_signature_and_its_words(level):
    """Trainers choose a batch's columns by it."""
    model = initialized(level)
    assert list(inspect.signature(model.forward).parameters) == ["x", "double"]
    assert model.forward.__doc__ == "Its own words."
    assert torch.equal(model(X, double=True), model(X) + model(X))


@pytest.mark.parametrize("level", LEVELS)
def test_fx_traces_the_casts(level):
    model = initialized(level)
    graph = torch.fx.symbolic_trace(model, concrete_args={"double": False})
    assert graph(X).dtype == model(X).dtype and torch.equal(graph(X), model(X))


@pytest.mark.parametrize("level", LEVELS)
def test_script_compiles_the_models_own_forward(level):
    model = initialized(level)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about torch.jit
        scripted = torch.jit.script(model)
    assert scripted.fc.weight.data_ptr() == model.fc.weight.data_ptr()
    arrives = X.to(model.fc.weight.dtype)
    with amp.disable_casts():
        wanted = torch.relu(torch.nn.functional.linear(arrives, model.fc.weight, model.fc.bias))
        assert torch.equal(scripted(arrives), wanted)


def test_an_initialized_model_stays_one_after_script():
    outer = torch.nn.Sequential(initialized("O1"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(outer[0])
    assert outer[0](X).dtype == torch.float16


@pytest.mark.parametrize("lists", ["apex", "torch"])
def test_a_spectral_norm(lists):
    """It has torch.vdot of an FP32 and an FP16 vector, which Apex's lists do not know and torch's do."""
    if lists == "apex":
        amp.register_promote_function(torch, "vdot")
    model = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 4))
    model = amp.initialize(model, opt_level="O1", verbosity=0, lists=lists)
    assert model(X).dtype == torch.float16


def test_moving_a_model_to_the_cpu_keeps_its_types():
    """Beside one at O1, whose policy holds outside forwards and makes what Tensor.cpu gives FP32."""
    model, other = initialized("O2"), initialized("O1")
    assert X.half().cpu().dtype == torch.float32
    assert model.cpu() is model and model.fc.weight.dtype == torch.float16
    assert model(X).dtype == torch.float32 and other.cpu()(X).dtype == torch.float16
    amp.shutdown()
    assert not hasattr(torch.nn.Module.cpu, "__wrapped__")
