# SPDX-License-Identifier: Apache-2.0
"""Buffers in FP32 at O2, O3 and O5, and the finding about those that 16 bits ruin. A model with rotary embeddings is
compared with FP64 beyond position 3000."""
import copy
import io
import math
import warnings

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from levels import CASTS_MODEL, LEVELS  # noqa: E402
from libamp import FindingWarning  # noqa: E402
from libamp.torch import amp  # noqa: E402
from libamp.torch.amp import buffer_rounding  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

LOW = {"O2": torch.float16, "O3": torch.float16, "O5": torch.bfloat16}
POSITIONS = torch.arange(3000, 3016)
# Frequencies up to 1 and angles up to 4096 are rounded to FP32, 2^-12 each; cosines to fp16, 2^-12, or bf16, 2^-9.
EXACT = {"O2": 2**-12 + 2**-11, "O3": 2**-12 + 2**-11, "O5": 2**-9 + 2**-11}


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    yield
    amp.shutdown()


def frequencies(dim=16):
    return 10000.0 ** (-torch.arange(0, dim, 2).float() / dim)


def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", frequencies(), persistent=False)

    def forward(self, x, positions):
        angles = positions[:, None].float() * self.inv_freq.float()
        angles = torch.cat([angles, angles], -1)
        self.cosines = angles.cos().to(x.dtype)
        return self.cosines, angles.sin().to(x.dtype)


class Tables(nn.Module):
    """Cached cosines and sines, given as they are."""

    def __init__(self):
        super().__init__()
        angles = torch.arange(4096)[:, None] * torch.cat([frequencies(), frequencies()])
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x, positions):
        return self.cos[positions], self.sin[positions]


class Layer(nn.Module):
    """casts: what apply_rotary_pos_emb returns has q's type."""

    def __init__(self, casts):
        super().__init__()
        self.norm, self.qkv, self.out, self.casts = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32), casts

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 16).permute(2, 0, 3, 1, 4)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        if self.casts:
            q, k = q.to(v.dtype), k.to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class Llama(nn.Module):
    def __init__(self, rotary=Rotary, casts=True, recomputes=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.rotary, self.recomputes = rotary(), recomputes
        self.layers = nn.ModuleList(Layer(casts) for _ in range(2))

    def forward(self, tokens):
        x = self.embed(tokens)
        cos, sin = self.rotary(x, POSITIONS)
        for layer in self.layers:
            x = checkpoint(layer, x, cos, sin, use_reentrant=False) if self.recomputes else layer(x, cos, sin)
        return self.head(x)


def initialized(model, level, **settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FindingWarning)
        return amp.initialize(model, optimizer, opt_level=level, verbosity=0, **settings)


def train(model, optimizer):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(torch.randint(64, (2, 16))).transpose(1, 2).float(), torch.randint(64, (2, 16)))
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    return loss.item()


def error_of_cosines(model):
    exact = POSITIONS[:, None].double() * 10000.0 ** (-torch.arange(0, 16, 2).double() / 16)
    return (model.rotary.cosines.double() - torch.cat([exact, exact], -1).cos()).abs().max().item()


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("level", CASTS_MODEL)
def test_rotary_positions_beyond_3000(level, recomputes):
    model, optimizer = initialized(Llama(recomputes=recomputes), level)
    train(model, optimizer)
    assert model.rotary.inv_freq.dtype is LOW[level]
    assert error_of_cosines(model) > 0.1  # 0.20 in fp16, 0.53 in bf16
    amp.shutdown()
    model, optimizer = initialized(Llama(recomputes=recomputes), level, keep_buffers_fp32="*.inv_freq")
    for _ in range(3):
        assert math.isfinite(train(model, optimizer))
    assert torch.equal(model.rotary.inv_freq, frequencies())
    assert model.rotary.cosines.dtype is LOW[level]
    assert error_of_cosines(model) < EXACT[level]


# ---- the argument ----


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn, self.plain = nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False)
        self.register_buffer("scale", torch.full((4,), 1 / 3))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        return self.plain(self.bn(x) * self.scale.to(x.dtype))


def types(model):
    return {name: buffer.dtype for name, buffer in model.named_buffers() if buffer.is_floating_point()}


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (False, ()),
        (None, ()),
        ("False", ()),
        ([], ()),
        (True, ("scale", "plain.running_mean", "plain.running_var")),
        ("True", ("scale", "plain.running_mean", "plain.running_var")),
        ("scale", ("scale",)),
        (("sc?le", "plain.*_var"), ("scale", "plain.running_mean", "plain.running_var")),
        ({"*.running_*"}, ("plain.running_mean", "plain.running_var")),
    ],
)
@pytest.mark.parametrize("level", CASTS_MODEL)
def test_the_choice(level, keep, kept):
    model, _ = initialized(Norms(), level, keep_buffers_fp32=keep)
    batch_norm = ("bn.running_mean", "bn.running_var") if level != "O3" else ()  # at O3 they have their weights' type
    wanted = {name: torch.float32 if name in (*kept, *batch_norm) else LOW[level] for name in types(model)}
    assert types(model) == wanted
    model(torch.randn(3, 4)).sum().backward()
    assert types(model) == wanted
    amp.shutdown()
    assert set(types(model).values()) == {torch.float32}
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (["rotary.inv_frq"], "no buffer has this name; near ones are rotary.inv_freq"),
        (["invfreq"], "near ones are rotary.inv_freq"),
        (["model1.rotary.*"], "no buffer has this name"),
        (["head.weight"], "head.weight is a parameter"),
        (["*.inv_freq", "nothing"], "'nothing': no buffer has this name; there are rotary.inv_freq"),
    ],
)
@pytest.mark.parametrize("level", LEVELS)
def test_a_name_of_no_buffer(level, keep, words):
    model = Llama()
    with pytest.raises(ValueError, match="keep_buffers_fp32 has ") as error:
        initialized(model, level, keep_buffers_fp32=keep)
    assert words in str(error.value)
    assert {param.dtype for param in model.parameters()} == {torch.float32}  # nothing has changed


def test_other_refusals():
    for keep, words in (("count", "int64, which no level casts"), ("bn.*", "keep_batchnorm_fp32=True")):
        with pytest.raises(ValueError, match=words):
            initialized(Norms(), "O3", keep_buffers_fp32=[keep])
    with pytest.raises(ValueError, match="the models have no floating buffers"):
        initialized(nn.Linear(2, 2), "O2", keep_buffers_fp32="mean")
    initialized(nn.Linear(2, 2), "O2", keep_buffers_fp32=True)  # all of none
    for keep in (1, [1], [None]):
        with pytest.raises(TypeError, match="names and patterns of buffers as strings"):
            initialized(Llama(), "O2", keep_buffers_fp32=keep)


def test_the_choice_is_printed(capsys):
    model = many()
    amp.initialize(model, opt_level="O5", keep_buffers_fp32=True)
    said = capsys.readouterr().out
    assert "Buffers that stay FP32: positions, 0.inv_freq, 1.inv_freq and 5 more\n" in said
    amp.initialize(nn.Linear(2, 2), opt_level="O5", keep_buffers_fp32=True)
    assert "Buffers" not in capsys.readouterr().out


def test_several_models_and_types():
    models = [Norms(), Norms()]
    models[0].scale, models[1].scale = models[0].scale.double(), models[1].scale.bfloat16()
    amp.initialize(models, opt_level="O2", verbosity=0, keep_buffers_fp32=["scale", "model1.plain.*"])
    assert [model.scale.dtype for model in models] == [torch.float64, torch.float32]  # FP32 or wider
    assert [model.plain.running_var.dtype for model in models] == [torch.float16, torch.float32]
    amp.shutdown()
    assert [model.scale.dtype for model in models] == [torch.float64, torch.bfloat16]


# ---- they stay ----


@pytest.mark.parametrize("level", CASTS_MODEL)
def test_kept_buffers_stay(level):
    model, _ = initialized(Llama(Tables), level, keep_buffers_fp32=True)
    exact = Tables()
    copies = [copy.deepcopy(model)]
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies.append(torch.load(file, weights_only=False))
    state = model.state_dict()
    assert torch.equal(state["rotary.cos"], exact.cos)
    with torch.no_grad():
        model.rotary.cos.zero_()
    model.load_state_dict(state | {"rotary.cos": exact.cos})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FindingWarning)
        for each in (model, *copies):
            each.half().bfloat16().to(torch.float16).to("cpu", LOW[level])
            assert torch.equal(each.rotary.cos, exact.cos) and torch.equal(each.rotary.sin, exact.sin)
            assert each.head.weight.dtype is LOW[level]
            each(torch.randint(64, (2, 16)))
    amp.shutdown()
    model.half()
    assert model.rotary.cos.dtype is torch.float16


# ---- FP32 results ----


@pytest.mark.parametrize("level", CASTS_MODEL)
def test_fp32_results_meet_16_bit_weights(level):
    class Encoder(nn.Module):
        """Normalises images, and adds sines: neither casts."""

        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.tensor([0.485, 0.456]).view(2, 1, 1))
            self.register_buffer("sines", torch.sin(torch.arange(16.0)).view(16, 1) * torch.ones(8))
            self.conv, self.norm, self.recurrent = nn.Conv2d(2, 8, 1), nn.LayerNorm(8), nn.GRU(8, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0)
            self.attention = nn.MultiheadAttention(8, 2)

        def forward(self, x):
            x = self.conv(x - self.mean).flatten(2).permute(2, 0, 1) + self.sines[:, None]
            x = self.layer(x) + self.recurrent(x)[0] * self.sines[:, None]
            return self.norm(x + self.attention(query=x, key=x, value=x)[0])

    model, optimizer = initialized(Encoder(), level, keep_buffers_fp32=True)
    with amp.scale_loss(model(torch.randn(2, 2, 4, 4)).float().pow(2).mean(), optimizer) as scaled_loss:
        scaled_loss.backward()
    assert all(param.grad.dtype is LOW[level] and param.grad.any() for name, param in model.named_parameters()
               if "k_proj" not in name and "linear1.bias" not in name)  # fmt: skip


@pytest.mark.parametrize("level", CASTS_MODEL)
def test_an_op_that_refuses_them(level):
    model, _ = initialized(Llama(Tables, casts=False), level, keep_buffers_fp32=True)
    with pytest.raises(RuntimeError, match="to have the same dtype") as error:
        model(torch.randint(64, (2, 16)))
    assert "rotary.cos, rotary.sin" in str(error.value) and "forward of Layer" in str(error.value)
    assert "keep_buffers_fp32" not in str(error.value.__cause__)
    with pytest.raises(RuntimeError) as error:  # another error is torch's alone
        model(torch.randint(64, (2, 17)))
    assert "keep_buffers_fp32" not in str(error.value)


# ---- the finding ----

RUINED = {
    "whole numbers": (torch.arange(3000.0), "476 of 3000 whole or half numbers change", "whole or half numbers change"),
    "half numbers": (torch.arange(100.0) * 16 + 0.5, "whole or half numbers change", "whole or half numbers change"),
    "whole numbers from 257": (torch.arange(300.0), None, "22 of 300 whole or half numbers change: 257 becomes 256"),
    "a step count": (torch.tensor(4097.0), "a whole number changes: 4097 becomes 4096", "4097 becomes 4096"),
    "times": (torch.linspace(0, 1, 5001), "neighbours become equal", "neighbours become equal"),
    "noise levels": (torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0), "become equal", "become equal"),
    "decay of RetNet": (1 - 2.0 ** (-5 - torch.arange(8.0)), None, "pairs of neighbours become equal"),
    "frequencies": (frequencies(128), "an angle at position 4096", "an angle at position 4096"),
    "a short head": (frequencies(8), "an angle at position 4096", "an angle at position 4096"),
    "angles": (torch.arange(4096)[:, None] * frequencies(64), "an angle of a position", "an angle of a position"),
    "an epsilon": (torch.tensor(1e-8), "its largest number, 1e-08, becomes 0", None),
    "large variances": (torch.tensor([1.0, 2.5, 1e5 + 0.3]), "100000 becomes infinite", None),
}
FINE = {
    "a mask of 0 and 1": torch.ones(64, 64).tril(),
    "a mask of -inf": torch.full((64, 64), -torch.inf).triu(1),
    "a mask of -1e9": torch.full((64, 64), -1e9).triu(1),
    "a mask of the least FP32": torch.full((64, 64), torch.finfo(torch.float32).min).triu(1),
    "cosines": Tables().cos,
    "sinusoidal positions": torch.cat([Tables().sin, Tables().cos], -1),
    "means of pixels": torch.tensor([123.675, 116.28, 103.53]),
    "deviations": torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1),
    "running means": torch.randn(512, generator=torch.Generator().manual_seed(1)),
    "a codebook": torch.randn(512, 64, generator=torch.Generator().manual_seed(1)),
    "slopes of ALiBi": 2.0 ** -torch.arange(1.0, 9.0),
    "class weights": torch.tensor([0.1, 0.7, 0.2]),
    "a window": torch.hann_window(400),
    "small numbers": torch.arange(256.0),
    "a temperature": torch.tensor(0.07),
    "GPT-2's masked_bias": torch.tensor(-1e4 + 1),
    "more than 2^26 numbers": torch.tensor(4097.0).expand(2**27),
    "nothing": torch.zeros(4, 4),
    "NaN": torch.full((3,), torch.nan),
}


@pytest.mark.parametrize("name", RUINED)
def test_damage(name):
    tensor, *wanted = RUINED[name]
    for low, words in zip((torch.float16, torch.bfloat16), wanted, strict=True):
        said = buffer_rounding.damage(tensor, low)
        assert (said is None) is (words is None) and (words or "") in (said or ""), (low, said)


@pytest.mark.parametrize("name", FINE)
def test_no_damage(name):
    for low in (torch.float16, torch.bfloat16):
        assert buffer_rounding.damage(FINE[name], low) is None


def findings(model, level, **settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        amp.initialize(model, optimizer, opt_level=level, verbosity=0, **settings)
    messages = [str(each.message) for each in seen if issubclass(each.category, FindingWarning)]
    return [message for message in messages if message.startswith("AMP-M50")]


def many():
    model = nn.ModuleList(Rotary() for _ in range(5))
    model.append(nn.BatchNorm1d(2))
    model[5].running_var += 1e6  # stays FP32, but at O3
    model.register_buffer("positions", torch.arange(3000.0))
    model.extra = nn.Linear(2, 2)
    return model


@pytest.mark.parametrize("level", LEVELS)
def test_initialize_names_them(level):
    said = findings(many(), level)
    if level not in CASTS_MODEL:
        assert said == []
        return
    (message,) = said
    type_name = str(LOW[level]).removeprefix("torch.")
    assert message.startswith(f"AMP-M50 16 bits ruin a buffer (positions): in {type_name} ")
    variance = ["5.running_var"] if level == "O3" else []
    assert f"keep_buffers_fp32={['positions', '*.inv_freq', *variance]!r}" in message
    finding = next(each for each in amp.findings() if each.code == "AMP-M50")
    assert finding.filename == __file__ and finding.times == 1
    amp.shutdown()
    assert findings(many(), level, keep_buffers_fp32=["positions", "*.inv_freq"]) == [] or level == "O3"
    amp.shutdown()
    assert findings(Llama(), level, keep_buffers_fp32=True) == []


def test_the_survey_names_them():
    model, optimizer = initialized(Llama(), "O0")
    amp.observe(model, every=1)
    train(model, optimizer)
    survey = amp.survey(model)
    advice = [each for each in survey.advice if each.code == "AMP-M50"]
    assert [(each.name, each.levels) for each in advice] == [
        ("rotary.inv_freq", ("O2", "O3")), ("rotary.inv_freq", ("O5",))
    ]  # fmt: skip
    assert "AMP-M50: 16 bits ruin a buffer\n  buffer rotary.inv_freq: in float16 an angle" in survey.text
    assert "keep_buffers_fp32=['rotary.inv_freq']" in survey.text
