# SPDX-License-Identifier: Apache-2.0
"""Averages of weights at O2 and O5 are those of FP32: torch's, timm's, diffusers' and ema_pytorch's, and by hand."""

import copy
import warnings
from types import MappingProxyType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from levels import WITH_MASTERS  # noqa: E402
from libamp import _findings  # noqa: E402
from libamp.torch import _living, amp  # noqa: E402
from libamp.torch.amp import averages  # noqa: E402
from torch.optim import swa_utils  # noqa: E402
from training import batches, far, net  # noqa: E402

DECAY, STEPS = 0.999, 12
MODES = [("O2", {}), ("O5", {}), ("O5", {"master_weights": "split"})]


class Torch:
    """What update(), average and use are, of a class."""

    def __init__(self, model, **settings):
        ema = hasattr(swa_utils, "get_ema_multi_avg_fn")
        how = {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(DECAY)} if ema else {"avg_fn": self._average}
        self.kept, self.model = swa_utils.AveragedModel(model, **how, **settings), model
        self.update()

    @staticmethod
    def _average(average, value, count):
        return average * DECAY + value * (1 - DECAY)

    def update(self):
        self.kept.update_parameters(self.model)

    def average(self):
        return [value.detach().float() for value in self.kept.module.state_dict().values()]

    def use(self, x):
        return self.kept(x)


class TorchBuffers(Torch):
    def __init__(self, model):
        super().__init__(model, use_buffers=True)


class Timm:
    name, settings, package = "ModelEmaV3", {"decay": DECAY}, "timm.utils.model_ema"

    def __init__(self, model):
        timm = pytest.importorskip(self.package)
        self.model, self.kept = model, getattr(timm, self.name)(model, **self.settings)

    def _copy(self):
        return self.kept.ema if self.name == "ModelEma" else self.kept.module

    def update(self):
        self.kept.update(self.model)

    def average(self):
        return [value.detach().float() for value in self._copy().state_dict().values()]

    def use(self, x):
        return self._copy()(x)


class TimmV3Params(Timm):
    settings = MappingProxyType({"decay": DECAY, "exclude_buffers": True, "foreach": True})


class TimmV2(Timm):
    name = "ModelEmaV2"


class TimmV1(Timm):
    name = "ModelEma"


class Diffusers:
    package = "diffusers.training_utils"

    def __init__(self, model, **settings):
        training_utils = pytest.importorskip(self.package)
        self.kept = training_utils.EMAModel(
            model.parameters(), decay=DECAY, min_decay=DECAY, update_after_step=-1, **settings
        )
        self.model = model

    def update(self):
        self.kept.step(self.model.parameters())

    def average(self):
        return [value.clone() for value in self.kept.shadow_params]

    def use(self, x):
        self.kept.store(self.model.parameters())
        before = [value.clone() for value in self.model.state_dict().values()]
        self.kept.copy_to(self.model.parameters())
        out = self.model(x)
        self.kept.restore(self.model.parameters())
        self.model(x)
        assert all(torch.equal(a, b) for a, b in zip(self.model.state_dict().values(), before))
        return out


class DiffusersForeach(Diffusers):
    def __init__(self, model):
        super().__init__(model, foreach=True)


class EmaPytorch:
    settings, package = {"use_foreach": False}, "ema_pytorch"

    def __init__(self, model):
        package = pytest.importorskip(self.package)
        self.model = model
        self.kept = package.EMA(
            model, beta=DECAY, min_value=DECAY, update_after_step=-1, update_every=1, **self.settings
        )
        self.update()

    def update(self):
        self.kept.update()

    def average(self):
        return [value.detach().float() for value in self.kept.ema_model.state_dict().values()]

    def use(self, x):
        average, out = self.average(), self.kept(x)
        self.kept.update_model_with_ema()
        assert torch.allclose(self.model(x).float(), out.float(), atol=0.02)
        assert all(torch.equal(a, b) for a, b in zip(self.model.state_dict().values(), average))
        return out


class EmaPytorchForeach(EmaPytorch):
    settings = MappingProxyType({"use_foreach": True, "coerce_dtype": True})


CLASSES = [
    Torch,
    TorchBuffers,
    Timm,
    TimmV3Params,
    TimmV2,
    TimmV1,
    Diffusers,
    DiffusersForeach,
    EmaPytorch,
    EmaPytorchForeach,
]


def _train(level, make, steps=STEPS, **settings):
    if hasattr(make, "package"):
        pytest.importorskip(make.package)  # as scripts do, at their head
    model = net()
    model.register_buffer("scale", torch.ones(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=1.0, **settings)
    average = make(model)
    right = [value.detach().float().clone() for value in model.parameters()]
    for name, value in model.state_dict().items():
        if name != "scale":
            right[[n for n, _ in model.named_parameters()].index(name)].copy_(value)
    start = [value.clone() for value in right]
    for x, y in batches(steps):
        loss = torch.nn.functional.mse_loss(model(x).float(), y)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update()
        state = model.state_dict()
        for value, (name, _) in zip(right, model.named_parameters()):
            value.lerp_(state[name].detach().float(), 1 - DECAY)
    return model, average, right, start


def _change(values, start):
    return sum((value - first).abs().sum().item() for value, first in zip(values, start))


@pytest.mark.parametrize("level,settings", MODES, ids=["O2", "O5", "O5-split"])
@pytest.mark.parametrize("make", CLASSES, ids=lambda make: make.__name__)
def test_an_average_is_that_of_the_masters(level, settings, make):
    with warnings.catch_warnings():
        warnings.simplefilter("error", _findings.FindingWarning)
        model, average, right, start = _train(level, make, **settings)
    names = [name for name, _ in model.named_parameters()]
    ours = [value for value in average.average() if value.shape != (3,)]
    assert all(value.dtype is torch.float32 for value in ours)
    by_shape = {value.shape: value for value in ours}
    ours = [by_shape[value.shape] for value in right]
    moved = _change(right, start)
    assert moved > 1e-3, names
    assert far(ours, right) < 1e-6  # some roundings of FP32
    x = batches(1)[0][0]
    with torch.no_grad():
        out = average.use(x).float()
        weights = [value.float() for value in ours]
        exact = torch.tanh(x @ weights[0].t() + weights[1]) @ weights[2].t() + weights[3]
    assert (out - exact).abs().max() < 0.05


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_classes_and_copies_are_as_they_were(level):
    original = swa_utils.AveragedModel.update_parameters, swa_utils.AveragedModel.__init__
    model, average, _, _ = _train(level, Torch, 2)
    assert swa_utils.AveragedModel.update_parameters is not original[0]
    amp.shutdown()
    assert (swa_utils.AveragedModel.update_parameters, swa_utils.AveragedModel.__init__) == original
    average.update()  # of the FP32 model, as ever
    assert copy.deepcopy(model)[0].weight.dtype is torch.float32
    other = torch.nn.Linear(4, 4).bfloat16()  # a model that amp has nothing to do with
    _train(level, Torch, 1)
    kept = swa_utils.AveragedModel(other)
    kept.update_parameters(other)
    kept.update_parameters(other)
    assert kept.module.weight.dtype is torch.bfloat16


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_an_average_that_began_before_initialize(level):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    average = swa_utils.AveragedModel(model)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    with torch.no_grad():
        for _ in range(2):
            average.update_parameters(model)
            for p in amp.master_params(optimizer):
                p.add_(1e-5)
    exact = [p - 5e-6 for p in (q.detach() for q in amp.master_params(optimizer))]
    assert far([p.detach() for p in average.module.parameters()], [p - 1e-5 for p in exact]) < 1e-6


# ---- by hand ----


class InPlace:
    """shadow.lerp_(parameter)"""

    def __init__(self, model):
        self.model, self.kept = model, {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self):
        for name, p in self.model.named_parameters():
            self.kept[name].lerp_(p, 0.1)


class Anew(InPlace):
    """The shadow of many tutorials."""

    @torch.no_grad()
    def update(self):
        for name, p in self.model.named_parameters():
            self.kept[name] = (0.1 * p.data + 0.9 * self.kept[name]).clone()


class Copied(InPlace):
    """A copy of the model whose parameters are averaged."""

    def __init__(self, model):
        self.model, self.copy = model, copy.deepcopy(model)
        self.kept = dict(self.copy.named_parameters())


class Backup(InPlace):
    """The last weights, for a way back: no average."""

    @torch.no_grad()
    def update(self):
        for name, p in self.model.named_parameters():
            self.kept[name].copy_(p)


class Renewed(InPlace):
    def update(self):
        self.kept = {name: p.detach().clone() for name, p in self.model.named_parameters()}


class Anchor(InPlace):
    """The first weights, to stay near them."""

    def update(self):
        pass


class Masters(InPlace):
    def __init__(self, model):
        self.model = model
        self.kept = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self):
        for name, value in self.model.state_dict().items():
            self.kept[name].lerp_(value, 0.1)


@pytest.mark.parametrize("level,settings", MODES, ids=["O2", "O5", "O5-split"])
@pytest.mark.parametrize(
    "make,times", [(InPlace, 1), (Anew, 1), (Copied, 1), (Backup, 0), (Renewed, 0), (Anchor, 0), (Masters, 0)]
)
def test_a_shadow_in_16_bits_is_told_of_once(level, settings, make, times):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _train(level, make, 12, **settings)
    heard = [str(each.message) for each in caught if issubclass(each.category, _findings.FindingWarning)]
    assert [message[:7] for message in heard] == ["AMP-M48"] * times, heard
    assert all("amp.master_params(optimizer)" in message and ".weight)" in message for message in heard)


def test_views_whose_base_was_changed_are_no_shadows():
    """Tensors of the script that torch refuses to say a grad_fn of do not end its training."""
    changed = {}

    def change(model):
        for level in (torch.float16, torch.bfloat16):
            base = torch.zeros(next(model.parameters()).shape, dtype=level)
            with torch.no_grad():
                view = base[:]
            base.mul_(torch.ones((), dtype=level, requires_grad=True))
            changed[level] = view
        return Anchor(model)

    _train("O2", change, 4)
    with pytest.raises(RuntimeError, match="view"):
        changed[torch.float16].grad_fn  # noqa: B018
    assert _living.has_grad_fn(changed[torch.bfloat16]) and not _living.has_grad_fn(torch.ones(1))


def test_tensors_of_compilers_are_no_shadows():
    """Their extents are symbols, which cannot be looked up."""
    symbols = pytest.importorskip("torch.fx.experimental.symbolic_shapes")
    assert averages._has_numbers(torch.ones(4, 2))
    assert not averages._has_numbers(SimpleNamespace(shape=(4, symbols.ShapeEnv().create_unbacked_symint())))
