# SPDX-License-Identifier: Apache-2.0
"""O1 as scripts meet it: weights used twice and changed in every way, recurrent layers, checkpoints, compilers."""
import casting
import pytest

torch = casting.torch
F = torch.nn.functional
from levels import PATCHES  # noqa: E402
from libamp import _core  # noqa: E402
from libamp.torch import amp  # noqa: E402

HALF, SINGLE = torch.float16, torch.float32


@pytest.fixture(autouse=True)
def end():
    yield
    amp.shutdown()
    assert type(F.linear).__name__ == "builtin_function_or_method"


class Twice(torch.nn.Module):
    """One weight, used twice in a forward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.weight = torch.nn.Parameter(torch.randn(4, 4) * 0.3)
        self.seen = []

    def forward(self, x):
        out = F.linear(x, self.weight)
        self.seen.append(out.dtype)
        return F.linear(out, self.weight)


def by_hand(weight, x):
    """The same with casts written out, one of the weight for both uses; the gradient of the weight."""
    leaf = weight.detach().clone().requires_grad_()
    half = leaf.half()
    out = F.linear(F.linear(x.half(), half), half)
    out.float().sum().backward()
    return out.detach(), leaf.grad


def start(model, level="O1", **settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=1.0, **settings)


def check(model, x):
    """Output and gradient against casting by hand with the weight as it is now."""
    model.weight.grad = None
    out = model(x)
    out.float().sum().backward()
    with amp.disable_casts():
        expected, gradient = by_hand(model.weight, x)
    assert out.dtype == HALF and torch.equal(out, expected)
    assert model.weight.grad.dtype == SINGLE and torch.equal(model.weight.grad, gradient)


EDITS = {
    "in place": lambda model: model.weight.mul_(0.5),
    "data": lambda model: model.weight.data.mul_(0.5),
    "another data": lambda model: setattr(model.weight, "data", torch.full((4, 4), 0.25)),
    "copy_": lambda model: model.weight.copy_(torch.eye(4)),
    "load_state_dict": lambda model: model.load_state_dict({"weight": torch.eye(4) * 0.75}),
    "another parameter": lambda model: setattr(model, "weight", torch.nn.Parameter(torch.eye(4) * 1.5)),
}


X = torch.linspace(-1, 1, 8).view(2, 4)


def test_used_twice_in_every_iteration():
    model, optimizer = start(Twice())
    for _ in range(3):
        check(model, X)
        with amp.scale_loss(model(X).float().sum(), optimizer) as loss:
            loss.backward()
        optimizer.step()


def test_under_no_grad_and_then_with_grad():
    model, _ = start(Twice())
    with torch.no_grad():
        assert not model(X).requires_grad
    check(model, X)
    with torch.inference_mode():
        model(X)
    check(model, X)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("evaluating", [False, True], ids=["train", "eval"])
def test_edited_between_forwards(edit, evaluating):
    model, _ = start(Twice())
    before = model(X).detach().clone()
    if evaluating:
        model.eval()
        with torch.no_grad():
            model(X)
    with torch.no_grad():
        EDITS[edit](model)
        if evaluating:
            assert not torch.equal(model(X), before)
    check(model, X)


@pytest.mark.parametrize("edit", ["in place", "data", "another data", "copy_"])
def test_edited_outside_any_forward(edit):
    """Calls outside a forward see an edit at once, even one that no version tells of."""
    model, _ = start(Twice())
    with torch.no_grad():
        F.linear(X, model.weight)
        EDITS[edit](model)
        got = F.linear(X, model.weight)
        with amp.disable_casts():
            assert torch.equal(got, F.linear(X.half(), model.weight.half()))


def test_each_weight_is_cast_once_a_forward():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        casts = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Count.casts += func is torch.ops.aten._to_copy.default
            return func(*args, **(kwargs or {}))

    model, _ = start(Twice())
    with Count():
        model(X)
    assert Count.casts == 2  # the input and the weight


def test_double_backward_and_autograd_grad():
    model, _ = start(Twice())
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).float().sum(), x, create_graph=True)
    assert gradient.dtype == SINGLE
    (gradient**2).sum().backward()
    assert model.weight.grad is not None and model.weight.grad.dtype == SINGLE


RECURRENT = {"RNN": torch.nn.RNN, "LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}
CELLS = {"RNNCell": torch.nn.RNNCell, "LSTMCell": torch.nn.LSTMCell, "GRUCell": torch.nn.GRUCell}


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("dtype", [SINGLE, HALF], ids=str)
@pytest.mark.parametrize("name", RECURRENT)
def test_layers(name, dtype, packed):
    torch.manual_seed(1)
    layer = RECURRENT[name](3, 4, num_layers=2, batch_first=True, bidirectional=True)
    by_hand = RECURRENT[name](3, 4, num_layers=2, batch_first=True, bidirectional=True)
    by_hand.load_state_dict(layer.state_dict())
    by_hand.half()
    x = torch.randn(2, 5, 3).to(dtype)

    def inputs(value):
        if not packed:
            return value
        return torch.nn.utils.rnn.pack_padded_sequence(value, [5, 3], batch_first=True)

    expected, _ = by_hand(inputs(x.half()))
    layer, _ = start(layer)
    out, _ = layer(inputs(x))
    out, expected = (value.data if packed else value for value in (out, expected))
    assert out.dtype == HALF and torch.equal(out, expected)
    out.float().sum().backward()
    assert all(param.grad is not None and param.grad.dtype == SINGLE for param in layer.parameters())


@pytest.mark.parametrize("name", CELLS)
def test_cells(name):
    cell = CELLS[name](3, 4)
    cell, _ = start(cell)
    out = cell(torch.randn(2, 3, dtype=HALF))
    out = out[0] if isinstance(out, tuple) else out
    assert out.dtype == HALF
    out.float().sum().backward()
    assert all(param.grad.dtype == SINGLE for param in cell.parameters())


def test_a_wrong_input_is_still_refused():
    layer, _ = start(torch.nn.LSTM(3, 4))
    with pytest.raises(RuntimeError):
        layer(torch.randn(5, 2, 7))
    amp.shutdown()
    with pytest.raises((ValueError, RuntimeError)):  # torch checks it first from 2.1 on
        layer(torch.randn(5, 2, 3, dtype=HALF))


@pytest.mark.parametrize("reentrant", [False, True], ids=["saved tensors", "reentrant"])
def test_checkpoints_recompute_with_the_same_casts(reentrant):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Twice):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=reentrant)

    model, optimizer = start(Checkpointed())
    # what runs outside any forward obeys this one
    other = amp.initialize(torch.nn.Linear(4, 4), opt_level="O4", verbosity=0)
    x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
    out = model(x)
    with amp.scale_loss(out.float().sum(), optimizer) as loss:
        loss.backward()
    assert model.seen == [HALF, HALF] and other is not None
    with amp.disable_casts():
        expected, gradient = by_hand(model.weight, x.detach())
    assert torch.equal(out, expected) and torch.equal(model.weight.grad, gradient)


@pytest.mark.parametrize("reentrant", [False, True], ids=["saved tensors", "reentrant"])
def test_checkpoints_in_a_block_without_casts_recompute_without(reentrant):
    from torch.utils.checkpoint import checkpoint

    class Exempt(Twice):
        def forward(self, x):
            with amp.disable_casts():
                return checkpoint(super().forward, x, use_reentrant=reentrant)

    model, optimizer = start(Exempt())
    x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
    with amp.scale_loss(model(x).sum(), optimizer) as loss:
        loss.backward()
    assert model.seen == [SINGLE, SINGLE]


def small():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    model, _ = start(small())
    compiled = torch.compile(model, backend=backend)
    out = compiled(X)
    assert out.dtype == HALF and torch.equal(out, model(X))
    out.float().sum().backward()
    assert all(param.grad.dtype == SINGLE for param in model.parameters())

    def loss(a, b):
        return F.softmax(torch.mm(a, b) + a, -1)

    compiled_loss = torch.compile(loss, backend=backend)
    assert torch.equal(compiled_loss(X @ X.T, torch.eye(2)), loss(X @ X.T, torch.eye(2)))
    product = torch.compile(lambda a: a @ a.T, backend=backend)
    assert product(X).dtype == HALF
    amp.shutdown()
    assert compiled(X).dtype == SINGLE and product(X).dtype == SINGLE


def test_trace_records_the_casts():
    traced_under_o1 = None
    model, _ = start(small())
    traced_under_o1 = torch.jit.trace(model, X, check_trace=False)
    expected = model(X)
    amp.shutdown()
    out = traced_under_o1(X)
    assert out.dtype == HALF and torch.equal(out, expected)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.LSTM(4, 4)

    def forward(self, x: torch.Tensor):
        return self.inner(x)[0]


def test_script_compiles_and_runs_as_it_comes():
    start(torch.nn.Linear(2, 2))
    patched = F.softmax

    @torch.jit.script
    def scripted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.softmax(torch.mm(a, b), -1)

    assert F.softmax is patched and _core.policy_active()
    assert torch.jit.script(Recurrent())(X[:, None]).dtype == SINGLE
    assert scripted(X, X.T).dtype == SINGLE


def test_fx_traces_and_finds_the_functions_by_name():
    start(torch.nn.Linear(2, 2))

    class Module(torch.nn.Module):
        def forward(self, x):
            return F.softmax(F.linear(x, x) + 1, -1)

    graph = torch.fx.symbolic_trace(Module())
    assert graph(X).dtype == SINGLE and torch.equal(graph(X), Module()(X))


def product_of(_):
    return torch.mm(torch.ones(2, 2), torch.ones(2, 2))


class Products(torch.utils.data.Dataset):
    """Items that a listed function makes, and its type as the worker saw it."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        out = product_of(index)
        return out.float(), str(out.dtype)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_dataloader_workers(method):
    """A forked worker has the process's policy, as in Apex; a spawned one starts without any."""
    start(torch.nn.Linear(2, 2))
    loader = torch.utils.data.DataLoader(Products(), num_workers=1, multiprocessing_context=method)
    seen = [kind[0] for _, kind in loader]
    assert seen == ["torch.float16" if method == "fork" else "torch.float32"] * 2


def test_optimizers_step_without_casts():
    seen = []

    class Looks(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype)
            return super().step(closure)

    model = torch.nn.Linear(2, 2)
    optimizer = Looks(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0, loss_scale=2.0)
    with amp.scale_loss(model(torch.ones(1, 2)).float().sum(), optimizer) as loss:
        loss.backward()
    optimizer.step()
    assert seen == [SINGLE]


def test_models_of_several_levels_in_one_process():
    first, _ = start(torch.nn.Linear(4, 4), "O1")
    second, _ = start(torch.nn.Linear(4, 4), "O4")
    third, _ = start(torch.nn.Linear(4, 4), "O2")
    x = torch.ones(1, 4)
    assert first(x).dtype == HALF and second(x).dtype == torch.bfloat16 and third(x).dtype == SINGLE
    assert F.linear(x, first.weight).dtype == torch.bfloat16  # outside: the last that patches


def test_dataparallel_without_devices_runs_the_module():
    model, _ = start(Twice())
    assert torch.nn.DataParallel(model)(torch.ones(2, 4)).dtype == HALF


@pytest.mark.parametrize("level", PATCHES)
@pytest.mark.parametrize("lists", ("apex", "torch"))
def test_functions_with_two_names_are_cast_by_both(level, lists):
    low = torch.float16 if level == "O1" else torch.bfloat16
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.PReLU())
    bilinear = torch.nn.Bilinear(4, 4, 2)
    originals = torch.nn.functional.prelu, torch.nn.functional.bilinear
    amp.initialize([model, bilinear], opt_level=level, lists=lists, verbosity=0)
    x = torch.ones(1, 4)
    assert model(x).dtype is low
    assert bilinear(x, model(x)).dtype is torch.float32  # promoted, by both lists
    amp.shutdown()
    assert (torch.nn.functional.prelu, torch.nn.functional.bilinear) == originals
    assert model(x).dtype is torch.float32


@pytest.mark.skipif(not hasattr(torch.backends, "mha"), reason="this torch cannot leave its fast path")
@pytest.mark.parametrize("level", PATCHES)
@pytest.mark.parametrize("lists", ("apex", "torch"))
def test_transformers_in_eval_mode(level, lists):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.TransformerEncoder(layer, 2), layer).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        expected = model(x)
        amp.initialize(model, opt_level=level, lists=lists, verbosity=0)
        torch.testing.assert_close(model(x).float(), expected, rtol=0.05, atol=0.05)
        amp.shutdown()
        torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("lists", ("apex", "torch"))
@pytest.mark.parametrize("level", PATCHES)
def test_ops_that_are_younger_than_the_lists(level, lists):
    """Types, bits and the types of gradients."""
    low = torch.float16 if level == "O1" else torch.bfloat16
    amp.initialize(torch.nn.Linear(2, 2), opt_level=level, lists=lists, verbosity=0)
    torch.manual_seed(1)
    a, b = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4).to(low).requires_grad_()

    def check(call, dtype, inside):
        got = call(a, b)
        with amp.disable_casts():
            expected = call(a.to(inside), b.to(inside))
        assert got.dtype is dtype and torch.equal(got, expected)
        assert [grad.dtype for grad in torch.autograd.grad(got.abs().sum(), (a, b))] == [SINGLE, low]

    for lower in (
        lambda x, y: torch.einsum("ij,kj->ik", x, y),
        lambda x, y: torch.linalg.matmul(x, y),
        lambda x, y: torch.linalg.multi_dot([x, y, x]),
        lambda x, y: torch.linalg.vecdot(x, y),
        lambda x, y: F.scaled_dot_product_attention(x[None], y[None], y[None]),
    ):
        check(lower, low, low)
    for single in (
        lambda x, y: torch.cdist(x, y),
        lambda x, y: torch.linalg.solve(x, y),
        lambda x, y: F.huber_loss(x, y),
        lambda x, y: torch.linalg.svdvals(x) + torch.quantile(y, 0.5),
    ):
        check(single, SINGLE, SINGLE)
    for promoted in (
        lambda x, y: torch.vdot(x[0], y[0]),
        lambda x, y: torch.tensordot(x, y, 1),
        lambda x, y: x.index_copy(0, torch.tensor([1]), y[:1]),
        lambda x, y: torch.scatter_add(x, 0, torch.zeros(1, 4, dtype=torch.int64), y[:1]),
    ):
        check(promoted, SINGLE, SINGLE)
    with torch.no_grad():
        assert torch.vdot(b[0], b[0]).dtype is low and torch.fft.rfft(b).dtype is torch.complex64
        q, r = torch.linalg.qr(b)
        assert q.dtype is r.dtype is SINGLE


@pytest.mark.parametrize("level", PATCHES)
def test_spectral_norm(level):
    """It multiplies a vector in FP32 with a product in 16 bits, by torch.vdot."""
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 2))
    )
    model, optimizer = start(model, level)
    for _ in range(2):
        optimizer.zero_grad()
        with amp.scale_loss(model(X).float().sum(), optimizer) as loss:
            loss.backward()
        optimizer.step()
    assert all(param.grad is not None and param.grad.dtype is SINGLE for param in model.parameters())


@pytest.mark.parametrize("lists", ("apex", "torch"))
def test_a_norm_that_names_its_type_is_of_that_type(lists):
    """torch refuses to narrow there, and the argument has become FP32."""
    amp.initialize(torch.nn.Linear(2, 2), opt_level="O1", lists=lists, verbosity=0)
    half = torch.ones(2, 2, dtype=HALF)
    for norm in (torch.norm, torch.Tensor.norm, torch.linalg.norm, torch.linalg.vector_norm, torch.linalg.matrix_norm):
        assert norm(half).dtype is norm(half, dtype=None).dtype is norm(half, dtype=SINGLE).dtype is SINGLE
        assert norm(half, dtype=HALF).dtype is HALF


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_with_torchs_lists(name):
    layer, _ = start(RECURRENT[name](3, 4), lists="torch")
    for dtype in (SINGLE, HALF):
        assert layer(torch.ones(2, 1, 3, dtype=dtype))[0].dtype is HALF


def test_banned_with_16_bits_alone():
    """torch.autocast on CPUs runs it in FP32: so does lists="torch" at O4."""
    half = torch.full((2,), 0.5, dtype=HALF)
    start(torch.nn.Linear(2, 2))
    with pytest.raises(NotImplementedError, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(half, half)
    amp.shutdown()
    with torch.autocast("cpu", torch.bfloat16):
        assert F.binary_cross_entropy(half, half).dtype is SINGLE
    start(torch.nn.Linear(2, 2), "O4", lists="torch")
    assert F.binary_cross_entropy(half, half).dtype is SINGLE


def test_what_apex_never_listed_and_runs_in_16_bits_runs_in_16_bits():
    half = torch.full((2, 2), 0.5, dtype=HALF)
    start(torch.nn.Linear(2, 2))
    for call in (torch.softmax, torch.log_softmax, torch.logsumexp):
        assert call(half, 0).dtype is HALF
    assert torch.log1p(half).dtype is F.max_pool2d(half[None], 1).dtype is F.pad(half, (1, 1)).dtype is HALF
    amp.shutdown()
    start(torch.nn.Linear(2, 2), lists="torch")
    for call in (torch.softmax, torch.log_softmax, torch.logsumexp):
        assert call(half, 0).dtype is SINGLE
    assert torch.log1p(half).dtype is SINGLE


class Young(torch.nn.Module):
    def forward(self, x):
        y = torch.einsum("ij,kj->ik", F.linear(x, x), x)
        return torch.linalg.matmul(y, x) + torch.linalg.vector_norm(y) + torch.fft.rfft(y).abs().sum()


@pytest.mark.parametrize("level", PATCHES)
def test_compiled_code_casts_what_it_calls_by_another_name(level):
    """torch.functional.einsum, torch._C._linalg.linalg_matmul, torch._C._fft.fft_rfft."""
    model = amp.initialize(Young(), opt_level=level, verbosity=0)
    x = torch.randn(4, 4)
    assert torch.equal(torch.compile(model, backend="eager")(x), model(x))
