# SPDX-License-Identifier: Apache-2.0
"""Products in 16 bits with sums in FP32: their bound (docs/reference/numerics.md, "16-bit products in PyTorch"), what
they save, and where they work. The gate is told that torch has only slow ones, so that no test depends on the CPU."""
import copy
import sys

import casting
import pytest

torch = casting.torch
from libamp.torch import amp, fast_half  # noqa: E402
from libamp.torch.amp import product_nodes, product_rules, products, widening  # noqa: E402
from product_bounds import UNIT, check_bound, results, tensors  # noqa: E402
from ranks import on_ranks  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

F = nn.functional
HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
LOW = [HALF, BRAIN]


@pytest.fixture
def slow(monkeypatch):
    """A CPU on which every 16-bit product of torch is slow."""
    slow_cpu(monkeypatch)
    yield
    amp.shutdown()
    assert type(F.linear).__name__ == "builtin_function_or_method"
    assert type(torch.Tensor.__matmul__).__name__ in ("method_descriptor", "wrapper_descriptor", "function")


def slow_cpu(monkeypatch):
    monkeypatch.setattr(products, "route", lambda *_: product_rules.FP32)
    monkeypatch.setattr(products, "_NODE", 0)
    for module in (product_rules, products):
        monkeypatch.setattr(module, "slow_types", lambda *_: (HALF, BRAIN))


@pytest.fixture
def fast(slow):
    with fast_half():
        yield


@pytest.fixture
def calls(monkeypatch):
    """The products of this file's CPU so far: nodes by name, and compositions."""
    seen = []
    for node in (product_nodes.MatrixProduct, product_nodes.Convolution):
        own = node.forward
        monkeypatch.setattr(
            node, "forward", staticmethod(lambda *args, own=own, name=node.__name__: (seen.append(name), own(*args))[1])
        )
    composed = products._composed
    monkeypatch.setattr(products, "_composed", lambda *args: (seen.append("composed"), composed(*args))[1])
    return seen


# name: (function of its tensors, looked up at each call; their shapes; the recording: a node or the composition)
MATRICES, CONVOLUTION, COMPOSED = "MatrixProduct", "Convolution", "composed"
CASES = {
    "linear": (lambda *args: F.linear(*args), [(3, 5, 16), (7, 16), (7,)], MATRICES),
    "linear without bias": (lambda *args: F.linear(*args), [(16,), (7, 16)], MATRICES),
    "mm": (lambda a, b: torch.mm(a, b), [(5, 16), (16, 7)], MATRICES),
    "mm, transposed": (lambda a, b: a.t().mm(b.t()), [(16, 5), (7, 16)], MATRICES),
    "mm, strided": (lambda a, b: torch.mm(a[::2, ::3], b[::3]), [(9, 48), (48, 7)], MATRICES),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=3), [(7,), (5, 16), (16, 7)], MATRICES),
    "bmm": (lambda a, b: torch.bmm(a, b), [(4, 5, 16), (4, 16, 7)], MATRICES),
    "baddbmm": (lambda c, a, b: c.baddbmm(a, b, alpha=0.25), [(4, 5, 7), (4, 5, 16), (4, 16, 7)], MATRICES),
    "matmul": (lambda a, b: torch.matmul(a, b), [(2, 1, 5, 16), (4, 16, 7)], MATRICES),
    "matmul, folded": (lambda a, b: torch.matmul(a, b), [(2, 3, 5, 16), (16, 7)], MATRICES),
    "@": (lambda a, b: a @ b, [(5, 16), (3, 16, 7)], MATRICES),
    "matmul of a vector": (lambda a, b: torch.matmul(a, b), [(16,), (16, 7)], COMPOSED),
    "mv": (lambda a, b: torch.mv(a, b), [(5, 16), (16,)], COMPOSED),
    "addbmm": (lambda c, a, b: torch.addbmm(c, a, b), [(5, 7), (4, 5, 16), (4, 16, 7)], COMPOSED),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->ik", a, b), [(4, 5, 16), (4, 16, 7)], COMPOSED),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=2), [(5, 4, 16), (4, 16, 7)], COMPOSED),
    "conv1d": (lambda *args: F.conv1d(*args), [(2, 6, 20), (4, 6, 3), (4,)], CONVOLUTION),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, 2, (1, 2), 1, 2), [(2, 6, 9, 8), (4, 3, 3, 3), (4,)], CONVOLUTION),
    "conv2d, channels last": (
        lambda x, w: F.conv2d(x.contiguous(memory_format=torch.channels_last), w, padding=[1]),
        [(2, 6, 9, 8), (4, 6, 3, 3)],
        CONVOLUTION,
    ),
    "conv2d, same": (lambda x, w: F.conv2d(x, w, padding="same"), [(2, 6, 9, 8), (4, 6, 3, 3)], COMPOSED),
    "conv3d": (lambda *args: F.conv3d(*args), [(1, 2, 5, 6, 4), (3, 2, 2, 3, 2)], CONVOLUTION),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1, 2, 1),
        [(2, 6, 5, 4), (6, 2, 3, 3), (4,)],
        CONVOLUTION,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_keep_the_bound(fast, calls, name, dtype):
    function, shapes, recorded = CASES[name]
    leaves = tensors(shapes, dtype, 1)
    with torch.no_grad():
        inferred = function(*leaves)
    grad = torch.randn(inferred.shape).to(dtype)
    calls.clear()
    found, out = results(function, leaves, grad)
    assert calls == [recorded]
    assert out.dtype is dtype and all(each.dtype is dtype for each in found)
    assert torch.equal(inferred, out)
    check_bound(found, function, leaves, grad)


@pytest.mark.parametrize("dtype", LOW)
def test_large_weights_in_blocks_keep_the_bound(fast, dtype, monkeypatch):
    monkeypatch.setattr(widening, "_BLOCK", 64)
    blocks = []
    own = widening._blocks
    monkeypatch.setattr(widening, "_blocks", lambda r: (blocks.append(r.shape), own(r))[1])
    for name in ("linear", "mm", "addmm", "mm, transposed"):
        function, shapes, _ = CASES[name]
        shapes = [tuple(size * 8 if size in (16, 7) else size for size in shape) for shape in shapes]
        leaves = tensors(shapes, dtype, 2)
        with torch.no_grad():
            grad = torch.randn(function(*leaves).shape).to(dtype)
        blocks.clear()
        found, _ = results(function, leaves, grad)
        assert len(blocks) == 3, name  # forward, and both gradients
        check_bound(found, function, leaves, grad)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("samples", [2, 4, 7, 8])
def test_convolutions_in_slices_keep_the_bound(fast, calls, dtype, samples, monkeypatch):
    """Of a batch that is a multiple of the slices, or is not."""
    size = product_nodes._SLICE * torch.get_num_threads()
    for batch, n, weights, slices in [(0, 0, 0, 1), (16, 3, 0, 4), (7, 3, 0, 3), (2, 9, 0, 2), (8, 4, 1, 1)]:
        assert product_nodes.in_slices(batch, n * size, weights * size) == slices
    monkeypatch.setattr(products, "in_slices", lambda samples, *_: min(samples, 4))
    batches = []
    own, gradients = product_nodes._convolution, product_nodes._convolution_backward
    monkeypatch.setattr(product_nodes, "_convolution", lambda x, *a: (batches.append(len(x)), own(x, *a))[1])
    back = lambda g, *a: (batches.append(len(g)), gradients(g, *a))[1]  # noqa: E731
    monkeypatch.setattr(product_nodes, "_convolution_backward", back)
    for name in ("conv1d", "conv2d", "conv2d, channels last", "conv_transpose2d"):
        function, shapes, _ = CASES[name]
        leaves = tensors([(samples, *shapes[0][1:]), *shapes[1:]], dtype, 3)
        out = function(*leaves)
        grad = torch.randn(out.shape).to(dtype)
        batches.clear()
        found, made = results(function, leaves, grad)
        assert batches == {2: [1, 1], 4: [1] * 4, 7: [2, 2, 2, 1], 8: [2] * 4}[samples] * 2, name
        assert made.stride() == out.stride() and made.dtype is dtype
        check_bound(found, function, leaves, grad)
        assert torch.equal(out, made)
        x, *rest = (leaf.clone().requires_grad_() for leaf in leaves)
        (once,) = torch.autograd.grad(function(x, *rest), x, grad, create_graph=True)
        assert torch.autograd.grad(once.float().square().sum(), rest[0])[0].isfinite().all()


def test_a_long_sum_is_one_of_fp32(fast):
    """2^15 ones: a sum in float16 ends at 2048."""
    ones = torch.ones(1, 1 << 15, dtype=HALF)
    assert F.linear(ones, ones).item() == 1 << 15
    assert torch.einsum("ij,kj->ik", ones, ones).item() == 1 << 15
    assert torch.mm(ones, 2 * ones.t()).isinf().all()  # 65536 is beyond float16


def test_special_values(fast):
    tiny, most = torch.tensor([[2.0**-24]], dtype=HALF), torch.tensor([[65504.0]], dtype=HALF)
    one = torch.ones(1, 1, dtype=HALF)
    assert torch.equal(tiny @ one, tiny) and torch.equal(tiny @ most @ most, torch.tensor([[255.75]], dtype=HALF))
    assert torch.equal(F.linear(most, one, torch.tensor([15.0], dtype=HALF)), most)  # 65519 rounds down
    assert F.linear(most, one, torch.tensor([16.0], dtype=HALF)).item() == float("inf")
    assert torch.mm(most, -most).item() == -float("inf")
    assert torch.mm(one * float("nan"), one).isnan().all() and (one * float("inf") @ (one * 0)).isnan().all()


@pytest.mark.parametrize("m, n, k", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_empty_products(fast, m, n, k):
    x, w, b = (torch.ones(s, dtype=HALF, requires_grad=True) for s in [(m, k), (n, k), (n,)])
    y = F.linear(x, w, b)
    assert y.shape == (m, n) and y.dtype is HALF and (y == 1).all()
    y.sum().backward()
    assert x.grad.shape == x.shape and w.grad.shape == w.shape and (b.grad == m).all()


def saved(function):
    """The tensors that autograd keeps for the backward of a call."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (kept.append(tensor), tensor)[1], lambda each: each):
        function()
    return kept


def test_16_bits_are_saved(fast):
    for name, (function, shapes, recorded) in CASES.items():
        if recorded == COMPOSED:
            continue
        leaves = [leaf.requires_grad_() for leaf in tensors(shapes, HALF, 3)]
        kept = saved(lambda function=function, leaves=leaves: function(*leaves))
        assert kept and all(each.dtype is HALF for each in kept), name
    x, w = (leaf.requires_grad_() for leaf in tensors([(5, 16), (7, 16)], HALF, 3))
    assert [each.shape for each in saved(lambda: F.linear(x.detach(), w))] == [(5, 16)]
    assert [each.shape for each in saved(lambda: F.linear(x, w.detach()))] == [(16, 7)]


@pytest.mark.parametrize("dtype", LOW)
def test_autocast(fast, calls, dtype):
    """FP32 arguments are not rounded, and their gradients are FP32 sums. The result is rounded."""
    x, w, b = tensors([(5, 16), (7, 16), (7,)], SINGLE, 4)
    with torch.autocast("cpu", dtype):
        found, out = results(lambda x, w, b: F.linear(x * 1, w, b), [x, w, b])
        assert out.dtype is dtype and calls == [MATRICES]
        with torch.autocast("cpu", enabled=False):
            assert F.linear(x, w).dtype is SINGLE
        assert (x.double() @ w.double().t()).dtype is torch.float64
    assert F.linear(x, w).dtype is SINGLE and calls == [MATRICES]
    assert [each.dtype for each in found[1:]] == [SINGLE] * 3
    grad = torch.ones_like(out)
    check_bound(found, F.linear, [x, w, b], grad, rounded=lambda i: i == 0, low=dtype)
    assert not torch.equal(found[2], found[2].to(dtype).float())


def test_types_under_autocast_are_torchs(slow):
    """Also those of functions that torch.autocast leaves in FP32, and of those that are composed of products."""
    x, w, images, filters = torch.randn(4, 8), torch.randn(6, 8), torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    functions = [
        lambda: x @ w.t(), lambda: torch.mv(x, w[0]), lambda: torch.matmul(x, w[0]), lambda: torch.inner(x, w),
        lambda: torch.addmv(torch.zeros(4), x, w[0]), lambda: torch.addbmm(torch.zeros(4, 6), x[None], w.t()[None]),
        lambda: torch.einsum("ij,kj->ik", x, w), lambda: torch.einsum("ij->ji", x), lambda: nn.RNNCell(8, 4)(x),
        lambda: torch.tensordot(x, w, ([1], [1])), lambda: torch.linalg.multi_dot([x, w.t(), w]),
        lambda: torch.zeros(4, 6).addmm_(x, w.t()), lambda: torch.mm(x, w.t(), out=torch.zeros(4, 6)),
        lambda: F.conv2d(images, filters), lambda: F.conv2d(images[0], filters, padding="same"),
        lambda: nn.GRUCell(8, 4)(x), lambda: nn.LSTMCell(8, 4)(x)[0], lambda: nn.GRU(8, 4)(x[None])[0],
        lambda: nn.RNN(8, 4)(x[None])[0], lambda: F.bilinear(x, x, torch.randn(3, 8, 8)),
        lambda: F.scaled_dot_product_attention(x[None], x[None], x[None]),
        lambda: nn.MultiheadAttention(8, 2)(x[None], x[None], x[None])[1],
    ]  # fmt: skip
    for dtype in LOW:
        with torch.autocast("cpu", dtype):
            expected = [function().dtype for function in functions]
            with fast_half():
                assert [function().dtype for function in functions] == expected


def test_backward_inside_autocast_sums_in_fp32(fast):
    x, w = tensors([(5, 512), (7, 512)], HALF, 5)
    grad = torch.randn(5, 7).half()
    outside, _ = results(lambda *args: F.linear(*args), [x, w], grad)
    with torch.autocast("cpu", HALF):
        inside, _ = results(lambda *args: F.linear(*args), [x, w], grad)
    assert all(torch.equal(a, b) for a, b in zip(outside, inside, strict=True))


def second(function, leaves):
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    first = torch.autograd.grad(function(*leaves).float().pow(2).sum(), leaves, create_graph=True)
    return torch.autograd.grad(sum(each.float().pow(2).sum() for each in first), leaves)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2] != COMPOSED])
def test_gradients_of_gradients(fast, monkeypatch, name):
    """Against the composition of torch's own differentiable casts and FP32 ops: both round at the same places."""
    function, shapes, _ = CASES[name]
    leaves = [leaf / 4 for leaf in tensors(shapes, HALF, 6)]
    found = second(function, leaves)
    monkeypatch.setattr(products, "_is_eager", lambda tensors: False)
    for mine, wanted in zip(found, second(function, leaves), strict=True):
        scale = wanted.float().abs().max()
        assert (mine.float() - wanted.float()).abs().max() <= 8 * 2.0**-11 * scale  # eight roundings of such numbers


def test_gradients_of_gradients_of_fp32_weights(fast):
    x, w = tensors([(5, 16), (7, 16)], SINGLE, 7)
    x, w = x.half().float(), w.half().float().requires_grad_()
    with torch.autocast("cpu", HALF):
        mine = second(lambda w: F.linear(x, w), [w])[0]
        y = F.linear(x.requires_grad_(), w)
    wanted = second(lambda w: F.linear(x.detach().half().float(), w), [w])[0]
    assert (mine - wanted).abs().max() <= 8 * 2.0**-11 * wanted.abs().max()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def net():
    torch.manual_seed(8)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(1), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 3))


IMAGES = torch.linspace(-1, 1, 4 * 2 * 36).reshape(4, 2, 6, 6)


def trained(forward, model):
    model.zero_grad()
    out = forward(IMAGES.to(next(model.parameters()).dtype))
    out.float().pow(2).sum().backward()
    return [out.detach(), *(param.grad.clone() for param in model.parameters())]


def same(found, wanted):
    return all(a.dtype is b.dtype and torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_functional_call_vmap_and_jvp(fast, calls):
    model = net().half()
    params = dict(model.named_parameters())
    expected = trained(model, model)
    with torch.no_grad():
        called = torch.func.functional_call(model, params, (IMAGES.half(),))
    assert torch.equal(called, expected[0])
    calls.clear()

    def loss(params, image):
        return torch.func.functional_call(model, params, (image[None],)).float().pow(2).sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(params, IMAGES.half())
    assert set(calls) == {"composed"}
    for grad, wanted in zip(each.values(), expected[1:], strict=True):
        assert grad.dtype is HALF
        assert (grad.float().sum(0) - wanted.float()).abs().max() <= 8 * 2.0**-11 * wanted.float().abs().max()
    x, w = (leaf.double() for leaf in tensors([(5, 16), (7, 16)], HALF, 9))
    out, along = torch.func.jvp(lambda w: F.linear(x.half(), w), (w.half(),), (w.half(),))
    assert along.dtype is HALF and torch.equal(out, along)  # linear


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_recompute_the_same(fast, calls, reentrant):
    model = net().half()
    expected = trained(model, model)
    calls.clear()
    x = IMAGES.half().requires_grad_()
    again = trained(lambda _: checkpoint(model, x, use_reentrant=reentrant), model)
    assert same(again, expected) and calls == 2 * [CONVOLUTION, MATRICES, MATRICES]


def test_torch_compile(fast, calls):
    if tuple(int(number) for number in torch.__version__.split(".")[:2]) < (2, 5):
        pytest.skip("torch before 2.5 breaks more graphs by itself")
    model = net().half()
    expected = trained(model, model)
    calls.clear()
    try:
        assert same(trained(torch.compile(model, backend="aot_eager", fullgraph=True), model), expected)
        assert set(calls) == {"composed"}
        product = torch.compile(lambda a, b: a @ b, backend="aot_eager", fullgraph=True, dynamic=True)
        traced = []
        for size in (5, 6, 7):
            a, b = tensors([(size, 16), (16, size)], HALF, size)
            assert torch.equal(product(a, b), a @ b)
            traced.append(calls.count("composed"))
        assert traced[0] == traced[2]  # one graph for all sizes
    finally:
        torch._dynamo.reset()


def test_attention_and_recurrent_layers(fast, calls):
    torch.manual_seed(10)
    x = torch.randn(3, 6, 16)
    layer = nn.MultiheadAttention(16, 2, batch_first=True)
    low = copy.deepcopy(layer).half()
    for weights in ({"need_weights": False}, {}):
        for mode in (True, False):
            calls.clear()
            with torch.set_grad_enabled(mode):
                out = low.train(mode)(x.half(), x.half(), x.half(), **weights)[0]
            assert out.dtype is HALF and calls
            wide = layer.train(mode)(x, x, x, **weights)[0]
            assert (out.float() - wide).abs().max() <= 2.0**-8  # inputs, weights, four products rounded
    rnn = nn.LSTM(16, 5).half()
    calls.clear()
    out, (h, c) = rnn(x.half())
    out.float().sum().backward()
    assert calls == ["composed"] and {out.dtype, h.dtype, c.dtype, rnn.weight_hh_l0.grad.dtype} == {HALF}


def test_calls_that_are_torchs(fast, calls):
    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return function.__name__

    x, w = tensors([(5, 16), (7, 16)], HALF, 11)
    assert F.linear(x.as_subclass(Own), w) == "linear"
    assert torch.mm(x.to("meta"), w.to("meta").t()).device.type == "meta"
    with pytest.raises(RuntimeError, match="dtype"):
        F.linear(x, w.float())
    assert F.linear(x.float(), w.float()).dtype is SINGLE and F.linear(x.double(), w.double()).dtype is torch.float64
    x, w = torch.randn(2, 8, 8, 4, dtype=HALF).movedim(-1, 1), torch.randn(4, 4, 1, 1, dtype=HALF)
    assert F.conv2d(x, w, stride=2).dtype is HALF and calls == []  # FP32 kernels of torch 2.15 overrun here
    with pytest.raises(TypeError, match="linear"):  # torch's own error
        F.linear(x)


def test_fake_tensors(fast):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        x, w = (mode.from_tensor(each) for each in tensors([(5, 16), (7, 16)], HALF, 12))
        assert F.linear(x, w).dtype is HALF and F.linear(x, w).shape == (5, 7)


def test_written_results(fast, calls):
    a, b = tensors([(4, 5, 16), (4, 16, 7)], HALF, 13)
    out = torch.zeros(4, 5, 7, dtype=HALF)
    assert torch.bmm(a, b, out=out) is out and torch.equal(out, torch.bmm(a, b))
    kept = out.clone()
    assert out.baddbmm_(a, b, alpha=2) is out and torch.equal(out, torch.baddbmm(kept, a, b, alpha=2))
    assert calls == 4 * [MATRICES]


def test_it_ends(slow, calls):
    linear = F.linear
    x, w = tensors([(5, 16), (7, 16)], HALF, 14)
    outer, inner = fast_half(), fast_half()
    assert outer.types == (HALF, BRAIN) and F.linear is not linear and F.linear == linear
    outer.remove()
    outer.remove()
    F.linear(x, w)
    assert calls == [MATRICES]
    inner.remove()
    assert F.linear is linear
    F.linear(x, w)
    assert calls == [MATRICES]


def test_fp32_calls_stay_in_c(fast, monkeypatch):
    """A call in FP32 runs no Python."""
    x, w = tensors([(5, 16), (7, 16)], SINGLE, 15)
    seen = []
    sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code.co_name) if event == "call" else None)
    try:
        F.linear(x, w)
        torch.mm(x, w.t())
    finally:
        sys.setprofile(None)
    assert seen == []


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "O4", "O5"])
def test_levels_use_them(slow, calls, level):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    for _ in range(2):
        optimizer.zero_grad()
        with amp.scale_loss(model(IMAGES).float().pow(2).mean(), optimizer) as loss:
            loss.backward()
        optimizer.step()
    assert calls == 2 * [CONVOLUTION, MATRICES, MATRICES]
    amp.shutdown()
    calls.clear()
    net().half()(IMAGES.half())
    assert calls == []


def test_levels_and_fast_half_end_in_any_order(slow):
    linear = F.linear
    model = net()
    handle = fast_half()
    model = amp.initialize(model, opt_level="O1", verbosity=0)
    handle.remove()
    assert model(IMAGES).dtype is HALF
    with fast_half():
        amp.shutdown()
        assert F.linear is not linear
    assert F.linear is linear


def _on_a_rank(rank, world):
    patch = pytest.MonkeyPatch()
    slow_cpu(patch)
    with fast_half():
        model = nn.parallel.DistributedDataParallel(net().half())
        model(IMAGES[rank::world].half()).float().pow(2).sum().backward()
        found = [param.grad.float() for param in model.parameters()]
        alone = net().half()
        sums = [0] * len(found)
        for part in range(world):
            alone.zero_grad()
            alone(IMAGES[part::world].half()).float().pow(2).sum().backward()
            sums = [total + param.grad.float() / world for total, param in zip(sums, alone.parameters(), strict=True)]
    patch.undo()
    return [(float((a - b).abs().max()), float(b.abs().max())) for a, b in zip(found, sums, strict=True)]


def test_two_ranks(slow):
    for errors in on_ranks(_on_a_rank):
        assert all(error <= 2 * 2.0**-11 * most for error, most in errors)  # of the division, and of the sum


@pytest.mark.parametrize(("module", "kind"), [(nn.LSTM, "conv"), (nn.GRU, "matmul")])
def test_the_gate_has_an_lstm_as_a_convolution(fast, monkeypatch, module, kind):
    """torch's fp16 LSTM is slow on CPUs with fp16 units too, as its convolutions are."""
    asked = []
    monkeypatch.setattr(products, "route", lambda kind, *_: asked.append(kind) or product_rules.FP32)
    rnn, x = module(8, 8).half(), torch.randn(3, 2, 8, dtype=HALF)
    found = rnn(x)[0]
    assert asked == [kind] and found.dtype is HALF
    assert (found.float() - rnn.float()(x.float())[0]).abs().max() <= 2 * UNIT[HALF]  # of at most 1: one rounding
