# SPDX-License-Identifier: Apache-2.0
"""What initialize does to models: types, casts of inputs and outputs, copies, files, wrappers."""
import collections
import copy
import dataclasses
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

from levels import CASTS_MODEL, DYNAMIC, WITH_MASTERS  # noqa: E402
from libamp.torch import amp  # noqa: E402
from libamp.torch.amp import _amp_state  # noqa: E402
from torch import nn  # noqa: E402


def _one_of_each():
    return nn.ModuleDict(
        {
            "affine": nn.BatchNorm2d(2),
            "plain": nn.BatchNorm2d(2, affine=False),
            "sync": nn.SyncBatchNorm(2),
            "instance": nn.InstanceNorm2d(2, affine=True, track_running_stats=True),
            "layer": nn.LayerNorm(2),
            "group": nn.GroupNorm(1, 2),
            "conv": nn.Conv2d(2, 2, 1),
        }
    )


KEPT = ("affine", "sync")


@pytest.mark.parametrize(
    ("level", "low", "keeps"),
    [
        ("O0", torch.float32, True),
        ("O1", torch.float32, True),
        ("O2", torch.float16, True),
        ("O3", torch.float16, False),
        ("O4", torch.float32, True),
        ("O5", torch.bfloat16, True),
    ],
)
def test_types_of_parameters_and_buffers(level, low, keeps):
    model = _one_of_each()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    for name, module in model.items():
        for key, tensor in [*module.named_parameters(), *module.named_buffers()]:
            wanted = torch.float32 if keeps and name in KEPT else low
            assert tensor.dtype is (wanted if tensor.is_floating_point() else torch.int64), (name, key)
    amp.shutdown()
    assert all(t.dtype is torch.float32 for t in model.state_dict().values() if t.is_floating_point())


@pytest.mark.parametrize("keep", (True, False, "True", "False"))
@pytest.mark.parametrize("level", ("O2", "O3"))
def test_keep_batchnorm_override(level, keep):
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    amp.initialize(model, opt_level=level, keep_batchnorm_fp32=keep, verbosity=0)
    assert model[0].weight.dtype is (torch.float32 if keep in (True, "True") else torch.float16)
    assert model[1].weight.dtype is torch.float16


@pytest.mark.parametrize("incoming", (torch.float64, torch.bfloat16))
@pytest.mark.parametrize("level", ("O0", "O1", "O2", "O3", "O5"))
def test_other_types_train(incoming, level):
    """Apex: a TypeError at the first backward."""
    model = nn.Linear(2, 2).to(incoming)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, init_scale=64.0)
    x = torch.ones(1, 2, dtype=incoming if level == "O1" else torch.float32)
    with amp.scale_loss(model(x).sum(), optimizer) as scaled:
        scaled.backward()
    for param in amp.master_params(optimizer):
        assert torch.equal(param.grad.float(), torch.ones_like(param, dtype=torch.float32))
    optimizer.step()
    amp.shutdown()
    assert model.weight.dtype is incoming or level == "O1"


def test_half_models_are_refused_unless_they_are_welcome():
    model = nn.Linear(2, 2).half()
    with pytest.raises(RuntimeError, match="param weight"):
        amp.initialize(model, opt_level="O0", verbosity=0)
    buffered = nn.Module()
    buffered.register_buffer("table", torch.ones(2, dtype=torch.float16))
    with pytest.raises(RuntimeError, match="buffer table"):
        amp.initialize(buffered, opt_level="O1", verbosity=0)
    _amp_state.allow_incoming_model_not_fp32 = True
    try:
        amp.initialize(model, opt_level="O0", verbosity=0)
    finally:
        _amp_state.allow_incoming_model_not_fp32 = False
    assert model.weight.dtype is torch.float32


# ---- containers ----

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Record:
    image: torch.Tensor
    label: torch.Tensor


class Batch:
    def __init__(self, data):
        self.data = data

    def to(self, dtype):
        return Batch(self.data.to(dtype))


class Echo(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, *args, **kwargs):
        self.seen = (args, kwargs)
        return args[0] if args else kwargs


def test_casts_reach_into_containers_and_keep_their_kinds():
    model = Echo()
    amp.initialize(model, opt_level="O2", verbosity=0)
    x, n = torch.ones(1), torch.ones(1, dtype=torch.int64)
    inputs = [
        Pair(x, n),
        {"a": [x, (n, "text")]},
        collections.OrderedDict(b=x),
        collections.defaultdict(list, c=[x]),
        Record(x, n),
        Batch(x),
        [x, None, 3.5],
        (x,),
        collections.deque([x], maxlen=3),
    ]
    for value in inputs:
        out = model(value, keyword=value)
        (seen,), kwargs = model.seen
        assert type(seen) is type(value) is type(kwargs["keyword"]) is type(out)
    seen = model.seen
    model(Pair(x, n))
    assert model.seen[0][0].first.dtype is torch.float16
    assert model.seen[0][0].second is n
    assert model(Pair(x, n)).first.dtype is torch.float32
    model(collections.defaultdict(list, c=[x]))
    assert model.seen[0][0]["c"][0].dtype is torch.float16
    assert model.seen[0][0].default_factory is list
    model(Record(x, n))
    assert model.seen[0][0].image.dtype is torch.float16
    model(collections.deque([x], maxlen=3))
    assert model.seen[0][0].maxlen == 3
    model(Batch(x))
    assert model.seen[0][0].data.dtype is torch.float16
    generator = (t for t in [x])
    model(generator)
    assert model.seen[0][0] is generator
    assert next(generator) is x
    model("text", b"bytes")
    assert model.seen[0] == ("text", b"bytes")


@pytest.mark.parametrize(
    ("level", "outputs", "wanted"),
    [("O0", None, torch.float32), ("O2", None, torch.float32), ("O3", torch.float16, torch.float16),
     ("O1", torch.float32, torch.float32), ("O1", None, torch.float16), ("O5", torch.float64, torch.float64)],
)
def test_outputs(level, outputs, wanted):
    model = nn.Linear(2, 2)
    amp.initialize(model, opt_level=level, cast_model_outputs=outputs, verbosity=0)
    assert model(torch.ones(1, 2, dtype=torch.float32)).dtype is wanted
    assert model.forward(torch.ones(1, 2)).dtype is wanted


# ---- copies, files, wrappers ----


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    def forward(self, x):
        return self.body(x)


@pytest.mark.parametrize("level", ("O0", "O1", "O2", "O3", "O5"))
@pytest.mark.parametrize("how", ("deepcopy", "pickle", "torch.save"))
def test_models_are_copied_and_saved_whole(level, how):
    model = Net().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    x = torch.randn(3, 4)
    if how == "deepcopy":
        other = copy.deepcopy(model)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert isinstance(other, Net)
    assert other(x).dtype is model(x).dtype
    assert torch.equal(other(x), model(x))
    assert other.body[0].weight.data_ptr() != model.body[0].weight.data_ptr()
    assert all(t.dtype is not torch.float16 for t in other.state_dict().values())
    other.load_state_dict(model.state_dict())
    amp.shutdown()
    assert type(model) is Net
    assert "forward" not in model.__dict__
    assert other(x).dtype is (torch.float32 if level != "O1" else other(x).dtype)


@pytest.mark.parametrize("level", DYNAMIC)
def test_replicas_have_their_own_parameters(level):
    """What DataParallel does (apex#227: replicas ran the first one's forward)."""
    model = Net().eval()
    amp.initialize(model, opt_level=level, verbosity=0)
    x = torch.randn(3, 4)
    replica = model._replicate_for_data_parallel()
    replica._modules = {name: copy.deepcopy(child) for name, child in model._modules.items()}
    before = replica(x)
    with torch.no_grad():
        replica._modules["body"][2].bias.add_(1.0)
    torch.testing.assert_close(replica(x), before + 1.0, rtol=1e-2, atol=1e-2)
    assert torch.equal(model(x), before)


@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="no GPU")
@pytest.mark.parametrize("level", DYNAMIC)
def test_data_parallel(level):
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    wrapped = nn.DataParallel(model)
    with amp.scale_loss(wrapped(torch.randn(8, 4, device="cuda")).pow(2).mean(), optimizer) as scaled:
        scaled.backward()
    optimizer.step()


@pytest.mark.parametrize("wrapper", ("DataParallel", "DistributedDataParallel"))
def test_wrapped_models_are_refused(wrapper):
    model = nn.DataParallel(nn.Linear(2, 2)) if wrapper == "DataParallel" else nn.Linear(2, 2)
    if wrapper != "DataParallel":
        model.__class__ = type("DistributedDataParallel", (nn.Linear,), {})
    with pytest.raises(RuntimeError, match="AFTER"):
        amp.initialize(model, verbosity=0)


@pytest.mark.parametrize("level", ("O0", "O1", "O2", "O3"))
def test_channels_last_weights_keep_their_layout(level):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).to(memory_format=torch.channels_last)
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=64.0)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    for batch in (x, x + 1.0):
        reference(batch).pow(2).mean().backward()
        with amp.scale_loss(model(batch).float().pow(2).mean(), optimizer) as scaled:
            scaled.backward()
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    for master, param in zip(amp.master_params(optimizer), reference.parameters(), strict=True):
        assert master.stride() == param.stride()
        torch.testing.assert_close(
            master.grad.float(), param.grad, rtol=5e-2, atol=3e-2 * param.grad.abs().max().item()
        )


def test_parameters_with_gaps_are_packed():
    model = nn.Module()
    model.weight = nn.Parameter(torch.arange(16.0).reshape(4, 4)[:, :2])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0, init_scale=16.0)
    with amp.scale_loss(model.weight.float().sum(), optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    assert torch.equal(model.weight.float(), torch.arange(16.0).reshape(4, 4)[:, :2] - 1)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.plain_half
@pytest.mark.parametrize("level", WITH_MASTERS)
def test_script_modules(level):
    model = torch.jit.script(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, init_scale=16.0)
    assert model(torch.ones(1, 2)).dtype is torch.float32
    with amp.scale_loss(model(torch.ones(1, 2)).sum(), optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    amp.shutdown()
    assert model(torch.ones(1, 2)).dtype is torch.float32
    assert model.weight.dtype is torch.float32


def test_state_dicts_need_no_second_model():
    """Masters are shown as they are: nothing is copied where there is one (apex#589)."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    state = model.state_dict()
    for master, value in zip(amp.master_params(optimizer), state.values(), strict=True):
        assert value.data_ptr() == master.data_ptr()


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_recurrent_and_tied_weights(level):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.rnn = nn.LSTM(4, 4, batch_first=True)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.rnn(self.embed(tokens))[0])

    model = Tied()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    assert model.head.weight is model.embed.weight
    for _ in range(3):
        optimizer.zero_grad()
        with amp.scale_loss(model(torch.arange(5)[None]).pow(2).mean(), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
    for param, master in zip(model.parameters(), amp.master_params(optimizer), strict=True):
        assert torch.equal(param, master.to(param.dtype))


class Momentum(nn.Module):
    """As in MoCo: `slow` is in the optimizer, is not trained, and is written by hand."""

    def __init__(self):
        super().__init__()
        self.fast, self.slow = nn.Linear(4, 4), nn.Linear(4, 4)
        self.slow.requires_grad_(False)

    def forward(self, x):
        return self.fast(x) + self.slow(x).detach()


@pytest.mark.parametrize("level", ("O0", "O1", "O2", "O3", "O5"))
@pytest.mark.parametrize("how", ("data", "copy", "mul"))
def test_what_is_written_to_parameters_that_are_not_trained_stays(level, how):
    model = Momentum()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=8.0, verbosity=0)
    for i in range(1, 4):
        for param in model.slow.parameters():
            if how == "data":
                param.data = param.data * 0 + i
            elif how == "copy":
                param.data.copy_(torch.full_like(param, i))
            else:
                param.data.mul_(0.0).add_(float(i))
        with amp.scale_loss(model(torch.ones(2, 4)).float().mean(), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        assert {value.item() for param in model.slow.parameters() for value in param.flatten()} == {float(i)}
    amp.shutdown()
    assert {value.item() for param in model.slow.parameters() for value in param.flatten()} == {3.0}


@pytest.mark.parametrize("level", CASTS_MODEL)
def test_parameters_without_elements_have_the_models_type(level):
    model = nn.Sequential(nn.Linear(4, 0, bias=False), nn.Linear(0, 3))
    model = amp.initialize(model, opt_level=level, verbosity=0)
    low = torch.bfloat16 if level == "O5" else torch.float16
    assert {param.dtype for param in model.parameters()} == {low}
    assert model(torch.ones(2, 4)).shape == (2, 3)
    amp.shutdown()
    assert {param.dtype for param in model.parameters()} == {torch.float32}
