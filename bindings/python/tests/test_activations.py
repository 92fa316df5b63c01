# SPDX-License-Identifier: Apache-2.0
"""Activations in fewer bits: what is packed, once, what comes back, and what must stay as it is."""

import copy
import gc
import io
import itertools
import threading

import pytest

torch = pytest.importorskip("torch")

import packing  # noqa: E402
from libamp import kernels  # noqa: E402
from libamp.torch import amp  # noqa: E402
from libamp.torch.amp import sensitivity  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

F = nn.functional


@pytest.fixture(autouse=True)
def nothing_left():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small
    yield
    torch.set_num_threads(threads)
    amp.shutdown()


# ---- what is saved ----


def saves(module, *inputs, **options):
    """A handle, and what the model makes under it."""
    handle = amp.compress_activations(module, min_size=1, **options)
    out = module(*inputs)
    return handle, out


class Of(nn.Module):
    """A function as a model."""

    def __init__(self, function, size=64):
        super().__init__()
        self.function, self.linear = function, nn.Linear(size, size)

    def forward(self, *inputs):
        return self.function(self.linear, *inputs)


def kinds(handle):
    return {why: count[0] for why, count in handle.store.counts.items() if why != "as given"}


X = torch.randn(32, 64, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    "function, wanted",
    [
        (lambda f, x: F.linear(F.relu(f(x)), f.weight), {"4 bits": 1}),  # ReLU's result is the next one's input
        (lambda f, x: f(x).relu().t() @ f(x), {"4 bits": 2}),
        (lambda f, x: torch.softmax(f(x), -1) @ f.weight, {"softmax": 1}),
        (lambda f, x: torch.softmax(f(x), -1).view(2, 16, 64).bfloat16() @ f.weight.bfloat16(), {"softmax": 2}),
        (lambda f, x: F.dropout(f(x), 0.5), {"1 bit": 1}),
        (lambda f, x: f(x) * (x > 0), {"1 bit": 1}),
        (lambda f, x: F.max_pool1d(f(x)[None], 2, return_indices=True)[0], {"narrowed": 1, "4 bits": 1}),
        (lambda f, x: f(x) * f.weight[:32].bfloat16().float(), {"4 bits": 1}),  # casts of parameters
        (lambda f, x: [part.square() for part in f(x).chunk(4, -1)], {"4 bits": 1}),  # four slices of one
        (lambda f, x: f(x)[:, :8].square(), {"4 bits": 1}),
        (lambda f, x: f(x).double().square(), {"type": 1}),
        (lambda f, x: f(x).mul(1e38).mul(1e38).square(), {"not finite": 1}),
    ],
)
def test_what_is_packed(function, wanted):
    model = Of(function)
    handle, out = saves(model, X)
    assert kinds(handle) == wanted
    del out
    assert not handle.store._alive


def gradients(model, *inputs, seed=3):
    model.zero_grad()
    torch.manual_seed(seed)
    out = model(*inputs)
    out.float().square().mean().backward()
    return [param.grad.clone() for param in model.parameters()]


def test_what_must_be_exact_is():
    """Masks of ReLU and of dropout, and indices: a backward that needs nothing else is the same to the bit."""
    model = Of(lambda f, x: F.max_pool1d(F.dropout(F.relu(f(x)), 0.5)[None], 2))
    x = X.clone().requires_grad_()
    made = []
    for handle in (None, amp.compress_activations(model, 2, min_size=1)):
        torch.manual_seed(1)
        made.append(torch.autograd.grad(model(x).sum(), [x, *model.parameters()]))
        assert handle is None or kinds(handle)["1 bit"] == 1
    assert all(map(torch.equal, *made))


def test_what_comes_back_is_what_was_packed():
    """By a node that shows what it saved."""
    model = Of(lambda f, x: f(x).t().square())
    handle, out = saves(model, X, seed=11, bits=4)
    exact = model.linear(X)
    assert torch.equal(out.grad_fn._saved_self, packing.roundtrip(exact, 4, 11).t())
    assert out.grad_fn._saved_self.stride() == exact.t().stride()
    assert handle.bytes == (2 * X.nbytes, X.nbytes + kernels.packed_bytes(X.numel(), 4))  # X stays as given


def test_any_order_of_memory_comes_back():
    """Channels last, a transposed slice, every second row: the node sees the sizes and strides that it saved."""
    class Convolves(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 8, 3, padding=1).to(memory_format=torch.channels_last)

        def forward(self, x):
            y = self.conv(x)
            return y, [part.square() for part in (y, y[:, 2:5].transpose(1, 3), y[::2], y[:1, :1])]

    model = Convolves()
    handle = amp.compress_activations(model, 8, min_size=1)
    y, squares = model(torch.randn(8, 4, 8, 8).to(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
    step = (y.max() - y.min()).item() / 255 * 1.02
    for part, square in zip((y, y[:, 2:5].transpose(1, 3), y[::2], y[:1, :1]), squares, strict=True):
        saved = square.grad_fn._saved_self
        assert saved.shape == part.shape and (saved - part).abs().max() < step
        assert saved.stride() == part.stride()
    assert kinds(handle) == {"8 bits": 1}


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128),
        nn.Linear(128, 64),
    )


def off(some, others):
    return max(((a - b).norm() / b.norm().clamp(min=1e-9)).item() for a, b in zip(some, others, strict=True))


def test_gradients_are_unbiased():
    """The mean of n gradients is off by the standard deviation of one over sqrt(n); no single one may be the mean."""
    model = network()
    exact = gradients(model, X)
    with amp.compress_activations(model, 4, min_size=1):
        many = [gradients(model, X) for _ in range(64)]
    assert gradients(model, X)[0].equal(exact[0])  # removed
    for one, *drawn in zip(exact, *many, strict=True):
        stack = torch.stack(drawn)
        scatter = stack.std(0).norm().item()
        # 1 / 8 of one's deviation, within a half; GELU and LayerNorm are not linear in what they save
        assert (stack.mean(0) - one).norm().item() <= 0.1875 * scatter + 0.01 * one.norm().item()


def test_more_bits_are_nearer_and_seeds_repeat():
    model = network()
    exact = gradients(model, X)
    errors = []
    for bits in (8, 4, 2):
        with amp.compress_activations(model, bits, min_size=1, seed=1):
            first = gradients(model, X)
            assert off(gradients(model, X), first) > 0  # another rounding
        with amp.compress_activations(model, bits, min_size=1, seed=1):
            assert all(map(torch.equal, gradients(model, X), first))
        errors.append(off(first, exact))
    assert 0 < 8 * errors[0] < errors[1] < errors[2] / 2


def test_a_second_backward_sees_the_same():
    model = network()
    amp.compress_activations(model, 4, min_size=1)
    loss = model(X).square().mean()
    params = list(model.parameters())
    first = torch.autograd.grad(loss, params, retain_graph=True)
    assert all(map(torch.equal, torch.autograd.grad(loss, params), first))


def test_gradients_of_gradients():
    model = Of(lambda f, x: f(x).tanh().square().sum())
    x = X.clone().requires_grad_()

    def penalty():
        (grad,) = torch.autograd.grad(model(x), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), model.linear.weight)[0]

    exact = penalty()
    amp.compress_activations(model, 8, min_size=1)
    assert 0 < ((penalty() - exact).norm() / exact.norm()).item() < 0.1


def test_memory_is_let_go():
    model = network()
    handle = amp.compress_activations(model, 4, min_size=1)
    out = model(X)
    assert handle.store._alive
    out.square().mean().backward()
    assert handle.store._last[:2] == (None, None)  # what was unpacked last
    del out
    assert not handle.store._alive
    gc.disable()
    try:
        before = len(gc.get_objects())
        for _ in range(5):
            model(X)
        assert len(gc.get_objects()) < before + 50  # no cycles
    finally:
        gc.enable()


def test_addresses_that_are_used_again_are_others():
    """A storage that is freed once it is packed leaves its address to the next."""
    model = Of(lambda f, x: sum((f(x) * i).tanh().square().sum() for i in range(1, 6)))
    exact = gradients(model, X)
    amp.compress_activations(model, 8, min_size=1)
    assert off(gradients(model, X), exact) < 0.1


@pytest.mark.parametrize("keep", [lambda y: y.square(), lambda y: torch.softmax(y, -1)], ids=["packed", "exact"])
def test_in_place_afterwards(keep):
    """What was packed is what it was; what is kept as it is has torch's check."""
    def function(f, x):
        y = f(x)
        z = keep(y)
        (y if z.grad_fn.name() == "PowBackward0" else z).data.add_(0)
        (y if z.grad_fn.name() == "PowBackward0" else z).add_(1)
        return z.sum()

    model = Of(function)
    handle, loss = saves(model, X)
    if "softmax" in handle.store.counts:
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            loss.backward()
    else:
        loss.backward()
        assert model.linear.weight.grad.isfinite().all()


def test_a_parameter_written_between_is_refused():
    model = Of(lambda f, x: f(f(x)))
    _, out = saves(model, X)
    with torch.no_grad():
        model.linear.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        out.sum().backward()


# ---- when ----


def test_only_where_something_is_trained():
    model = network()
    handle = amp.compress_activations(model, 4, min_size=1)
    with torch.no_grad():
        model(X)
    model.eval()
    model(X)
    assert not handle.store.counts
    model.train()
    model(X)
    assert handle.store.counts


def test_errors_end_it():
    def raises(f, x):
        raise KeyError("inside")

    model = Of(raises)
    handle = amp.compress_activations(model, 4, min_size=1)
    with pytest.raises(KeyError):
        model(X)
    layer = nn.Linear(64, 64)
    layer(layer(X)).sum().backward()
    assert not handle.store.counts


def test_a_model_called_twice_and_one_inside_of_another():
    model = network()
    handle = amp.compress_activations(model, 8, min_size=1)
    inner = amp.compress_activations(model[3], 2, min_size=1)
    (model(X) + model(X + 1)).sum().backward()
    assert kinds(inner) and "2 bits" not in handle.store.counts
    with pytest.raises(ValueError, match="compressed already"):
        amp.compress_activations(model, 4)


def test_copies_and_files():
    model = network()
    handle = amp.compress_activations(model, 4, min_size=1)
    twin = copy.deepcopy(model)
    twin(X)
    assert handle.store.counts
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    handle.store.begin()
    read(X)
    assert not handle.store.counts
    handle.remove()
    twin(X)
    assert not handle.store.counts


def test_threads():
    model = network()
    exact = gradients(model, X)
    amp.compress_activations(model, 8, min_size=1)
    errors = []

    def work():
        torch.manual_seed(3)
        grads = torch.autograd.grad(model(X).square().mean(), list(model.parameters()))
        errors.append(all(grad.isfinite().all() for grad in grads))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [True] * 4 and off(gradients(model, X), exact) < 0.2


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant):
    """Inside nothing is kept that could be packed; what they keep of their input is packed."""
    model = Of(lambda f, x: checkpoint(lambda y: f(f(y).tanh()), f(x), use_reentrant=reentrant).square())
    exact = gradients(model, X)
    handle = amp.compress_activations(model, 8, min_size=1)
    assert off(gradients(model, X), exact) < 0.1
    assert kinds(handle)["8 bits"] == 2


def test_functional_transforms_are_left_alone():
    model = network()
    handle = amp.compress_activations(model, 4, min_size=1)
    params = {name: param.detach() for name, param in model.named_parameters()}

    def loss(params, x):
        return torch.func.functional_call(model, params, (x,)).square().mean()

    torch.func.grad(loss)(params, X)
    assert not handle.store.counts


def test_odd_tensors():
    """Without elements, without dimensions, sparse, with gaps."""
    model = Of(lambda f, x: sum([
        f(x)[:0].square().sum(), f(x).sum().square(), torch.sparse.mm(x.to_sparse(), f(x.t())).sum(),
        f(x)[::3, 5:].square().sum(),
    ]))
    x = torch.randn(64, 64)
    exact = gradients(model, x)
    amp.compress_activations(model, 8, min_size=0)
    assert off(gradients(model, x), exact) < 0.1


@pytest.mark.parametrize("level", ["O0", "O1", "O4", "O5"])
def test_levels(level):
    """Losses stay those of the level, within what 8 bits may do to them; weights' casts are not packed."""
    losses = {}
    for bits in (None, 8):
        model = network()
        model, optimizer = amp.initialize(
            model, torch.optim.Adam(model.parameters(), 1e-2), opt_level=level, verbosity=0
        )
        handle = amp.compress_activations(model, bits, min_size=1) if bits else None
        torch.manual_seed(2)
        losses[bits] = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = (model(X).float() - X.flip(0)).square().mean()
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
            losses[bits].append(loss.item())
        if handle is not None:
            memory = amp.memory()
            rounded = [count for why, count in handle.store.counts.items() if why.endswith(("bit", "bits"))]
            assert memory.packed == sum(now for _, _, now in rounded) < memory.packed_from / 2
            # of each layer its input once, and GELU's, whose result is not what it saves
            assert kinds(handle).get("8 bits", 0) in (5, 6, 7) and kinds(handle)["1 bit"] == 1
        amp.shutdown()
    assert losses[8][-1] < 0.9 * losses[8][0]
    assert max(abs(a - b) for a, b in zip(*losses.values(), strict=True)) < 0.05 * losses[None][0]


# ---- which bits where ----


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = network(), nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))

    def forward(self, x):
        return self.head(self.encoder(x)).square()


def test_patterns():
    model = Two()
    handle = amp.compress_activations(model, {"encoder": 2, "encoder.3": 8, "head": None, "": 4}, min_size=1)
    model(X)
    # of head: its input is the encoder's result; Tanh's result is the next one's input; the square's
    assert kinds(handle) == {"2 bits": 4, "1 bit": 1, "8 bits": 1, "skipped": 2, "4 bits": 1}
    handle.remove()
    handle = amp.compress_activations(model, 4, skip=[model.encoder, "head.*"], min_size=1)
    model(X)
    assert kinds(handle) == {"skipped": 7, "1 bit": 1, "4 bits": 1}
    handle.remove()
    handle = amp.compress_activations(model, 4, skip=lambda name, module: isinstance(module, nn.GELU), min_size=1)
    model(X)
    assert kinds(handle)["skipped"] == 1


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"bits": 3}, ValueError, "bits is 3"),
        ({"bits": True}, ValueError, "bits is True"),
        ({"bits": {"encodr": 4}}, ValueError, "'encodr' is no module"),
        ({"skip": "hea"}, ValueError, "'hea' is no module"),
        ({"skip": nn.ReLU()}, ValueError, "ReLU"),
        ({"bits": "auto", "budget": 1.5}, ValueError, "budget"),
        ({"bits": "auto", "steps": 0}, ValueError, "steps"),
    ],
)
def test_words(arguments, error, words):
    with pytest.raises(error, match=words):
        amp.compress_activations(Two(), **arguments)


def test_words_about_the_model():
    with pytest.raises(ValueError, match="no parameter"):
        amp.compress_activations(nn.ReLU())
    with pytest.raises(TypeError, match="Module"):
        amp.compress_activations(lambda x: x)


def test_allotted_bits_are_the_best():
    """Against all that are within the budget, where sizes are alike."""
    costs, sizes = {"a": 9.0, "b": 1.0, "c": 0.1, "d": 30.0}, dict.fromkeys("abcd", 10)

    def variance(bits):
        return sum(cost / (2**b - 1) ** 2 for cost, b in zip(costs.values(), bits, strict=True))

    for budget in (2, 3, 3.5, 4, 6, 8):
        chosen = sensitivity.allot(costs, sizes, budget)
        within = [bits for bits in itertools.product((2, 4, 8), repeat=4) if sum(bits) <= 4 * budget]
        # greedy: one step of the largest may be left over
        assert sum(chosen.values()) <= 4 * budget and variance(chosen.values()) <= 1.5 * min(map(variance, within))


def test_auto_measures_what_roundings_do():
    """A branch that counts a thousand times as much gets the bits."""
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.large, self.small = network()[:2], network()[:2]
            self.out = nn.Linear(128, 64), nn.Linear(128, 64)
            self.kept = nn.ModuleList(self.out)

        def forward(self, x):
            return self.out[0](self.large(x).sin()) + 1e-3 * self.out[1](self.small(x).sin())

    torch.manual_seed(0)
    model = Branches()
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), 1e-3), opt_level="O0", verbosity=0)
    handle = amp.compress_activations(model, "auto", budget=5.0, steps=2, min_size=1)
    for step in range(3):
        exact = gradients(model, X) if step == 0 else None
        optimizer.zero_grad()
        loss = model(X).square().mean()
        assert handle.bytes.now == handle.bytes.before if step < 2 else handle.bytes.now < handle.bytes.before / 3
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        if exact is not None:  # measuring changes nothing
            assert all(torch.equal(a.grad, b) for a, b in zip(model.parameters(), exact, strict=True))
        optimizer.step()
    bits = handle.bits
    assert bits and min(b for (name, _), b in bits.items() if "0" in name and "kept" in name) == 8
    assert max(b for (name, _), b in bits.items() if name == "small.1") == 2
    with pytest.raises(RuntimeError, match="auto"):
        amp.compress_activations(Two(), 4).measure(loss)
