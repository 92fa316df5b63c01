# SPDX-License-Identifier: Apache-2.0
"""docs/guide/it-worked-in-fp32.md, tried: each section's code mends its symptom, which is there without it."""

import pathlib
import re
import warnings

import pytest

torch = pytest.importorskip("torch")
from libamp import FindingWarning  # noqa: E402
from libamp.torch import amp  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

PAGE = (pathlib.Path(__file__).parents[3] / "docs" / "guide" / "it-worked-in-fp32.md").read_text()
BLOCKS = {
    heading: re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for heading, text in re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
MISMATCH, OVERFLOW = "must have the same dtype", "cannot be converted"


def code(heading, which=0, replaced=None, **names):
    """What a block defines; `replaced`: what the comment beside it warns of, in its place."""
    text = BLOCKS[heading][which]
    for right, wrong in (replaced or {}).items():
        assert right in text
        text = text.replace(right, wrong)
    scope = {"torch": torch, "nn": nn, "F": F, "amp": amp, **names}
    exec(compile(text, heading, "exec"), scope)
    return scope


def initialized(level, model=None):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level=level, verbosity=0)


def train(model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        with amp.scale_loss(model(torch.randn(4, 8)).float().pow(2).mean(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()


def test_each_section_has_code_and_a_test():
    source = pathlib.Path(__file__).read_text()
    assert BLOCKS and all(BLOCKS.values())
    assert [heading for heading in BLOCKS if f'"{heading}"' not in source] == []


def masked(attention):
    mask = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)[None].repeat(2, 1, 1)
    mask[0] = True  # a row of padding alone
    return attention(torch.randn(2, 4, 8), mask)


@pytest.mark.parametrize("level", ["O1", "O2", "O4", "O5"])
def test_masks(level):
    right = "torch.finfo(score.dtype).min"
    assert masked(initialized(level, code("Masks")["Attention"]())[0]).isfinite().all()
    infinite = code("Masks", replaced={right: 'float("-inf")'})["Attention"]()
    assert masked(initialized(level, infinite)[0]).isnan().any()
    constant = code("Masks", replaced={right: "-1e9"})["Attention"]()
    if level in ("O1", "O2"):
        with pytest.raises(RuntimeError, match=OVERFLOW):
            masked(initialized(level, constant)[0])
    else:
        assert masked(initialized(level, constant)[0]).isfinite().all()


def test_masks_registered():
    code("Masks", 1)
    constant = code("Masks", replaced={"torch.finfo(score.dtype).min": "-1e9"})["Attention"]()
    assert masked(initialized("O1", constant)[0]).isfinite().all()


@pytest.mark.parametrize("heading, right, wrong", [
    ("Tensors made inside the model", "x.new_zeros(len(x), 8)", "torch.zeros(len(x), 8)"),
    ("Calls that are not forward", "x.to(self.layer.weight.dtype)", "x"),
])  # fmt: skip
def test_types(heading, right, wrong):
    def call(level, **replaced):
        amp.shutdown()
        scope = code(heading, **replaced)
        model, _ = initialized(level, next(v for v in scope.values() if isinstance(v, type))())
        return getattr(model, "encode", model)(torch.randn(2, 8))

    for level in ("O1", "O2", "O3", "O4", "O5"):
        assert call(level).isfinite().all()
        if level in ("O1", "O4"):
            call(level, replaced={right: wrong})
        else:
            with pytest.raises(RuntimeError, match=MISMATCH):
                call(level, replaced={right: wrong})


def test_positions():
    rotary = code("Positions and tables", 1)["Rotary"]
    x = torch.randn(1, 3000, 8)
    exact = rotary()(x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rotary, self.layer = rotary(), nn.Linear(8, 8)
            self.register_buffer("floats", torch.arange(4096.0))

        def forward(self, x):
            return self.rotary(x)

    with pytest.warns(FindingWarning, match=r"AMP-M50 .*\(floats\)"):
        model, _ = initialized("O2", Model())
    assert model.floats[2049] == 2048 and model.rotary.positions[2049] == 2049
    assert torch.allclose(model(x), exact, atol=0.01)  # x rounded to fp16, and products of it


def test_a_rotary_table_that_stays_fp32():
    x, cast = torch.randn(1, 3000, 8).bfloat16().float(), {', keep_buffers_fp32=["*.inv_freq"]': ""}
    with pytest.warns(FindingWarning, match=r"AMP-M50 .*keep_buffers_fp32=\['1.inv_freq'\]"):
        ruined = code("Positions and tables", replaced=cast)["model"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FindingWarning)
        scope = code("Positions and tables")
    rotary = scope["Rotary"]()
    assert torch.equal(scope["model"][1].inv_freq, rotary.inv_freq)
    exact = rotary(x)
    for model, least, most in ((ruined, 0.1, 4), (scope["model"], 0, 2**-7)):  # a cosine and a product in bf16
        error = ((model[1](x.bfloat16()).float() - exact) / x.abs().max()).abs().max()
        assert least <= error <= most


def test_averages():
    model, optimizer = initialized("O5")
    scope = code("Averages of weights", model=model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FindingWarning)
        for _ in range(12):
            train(model, optimizer)
            scope["update"]()
    assert all(value.dtype == torch.float32 for value in scope["average"].values())


@pytest.mark.parametrize("level", ["O1", "O4"])
def test_custom_ops(level):
    energy = code("Custom ops")["Energy"]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return energy.apply(self.layer(x) * 20)

    model, _ = initialized(level, Model())
    result = model(torch.randn(4, 8))
    assert result.dtype == torch.float32 and result.isfinite().all()


def test_export():
    model, optimizer = initialized("O5")
    train(model, optimizer)
    exported = code("Export", model=model)["exported"]
    x = torch.randn(2, 8)
    assert exported.module()(x).dtype == torch.float32 and torch.equal(exported.module()(x), model(x))


def test_gradient_accumulation():
    batch = torch.randn(8, 8)

    def weights(chunks):
        model, optimizer = initialized("O2")
        code("Gradient accumulation", replaced={"4": str(chunks)}, model=model, optimizer=optimizer, batch=batch)
        return [value.clone() for value in model.state_dict().values()]

    for one, four in zip(weights(1), weights(4)):
        assert torch.allclose(one, four, atol=2**-11)  # gradients of magnitude 1, rounded to fp16


def test_steps_during_backward():
    def furthest(level):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        scope = code("Steps during backward", replaced={'opt_level="O4"': f'opt_level="{level}", verbosity=0'},
                     model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with amp.scale_loss(model(torch.randn(4, 8)).float().pow(2).mean(), scope["optimizer"]) as scaled_loss:
                scaled_loss.backward()
        return max(float(p.detach().abs().max()) for p in model.parameters())

    assert furthest("O4") < 1 and furthest("O1") > 100


@pytest.mark.parametrize("level", ["O2", "O5"])
def test_edits_of_weights(level):
    model, optimizer = initialized(level)
    train(model, optimizer)
    code("Edits of weights", model=model)
    optimizer.zero_grad()
    with amp.scale_loss(model(torch.randn(4, 8)).float().sum() * 0, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()  # from the masters
    assert max(float(value.abs().max()) for value in model.state_dict().values()) < 0.0101
