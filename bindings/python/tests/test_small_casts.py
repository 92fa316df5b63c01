# SPDX-License-Identifier: Apache-2.0
"""Small tensors that autograd does not record are cast without torch, where nobody can tell. What torch's profiler sees
says who cast."""
import pytest
from casting import LOW, by_hand, policy, torch

F = torch.nn.functional
pytestmark = pytest.mark.plain_half  # torch's own casts are counted
QUICK = hasattr(torch.Tensor, "__dlpack_c_exchange_api__") and not hasattr(torch.Tensor, "names")
quick = pytest.mark.skipif(not QUICK, reason=f"torch {torch.__version__} has no table for it, or names of dimensions")
SPECIAL = [0.0, -0.0, 1e-8, 6e-8, 65519.0, 65520.0, 1e-40, 3.4e38, float("inf"), -float("inf"), 1 / 3, 2049.0]


@pytest.fixture(params=sorted(LOW))
def level(request):
    with policy(request.param, enter=True):
        if QUICK:  # after a tensor that cannot be read a thousand casts are torch's
            x = torch.ones(2, 2)
            for _ in range(501):
                torch.mm(x, x)
        yield request.param


def casts_of_torch(function):
    """How many casts torch made in the call, and what came out."""
    with torch.autograd.profiler.profile() as profile:
        out = function()
    return sum(event.count for event in profile.key_averages() if event.key == "aten::_to_copy"), out


def same_bits(a, b):
    kind = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a.view(kind), b.view(kind))


@quick
def test_torch_makes_none_of_them(level):
    x, y = torch.randn(4, 6), torch.randn(6, 3)
    n, out = casts_of_torch(lambda: torch.mm(x, y))
    with by_hand():
        assert n == 0 and same_bits(out, torch.mm(x.to(LOW[level]), y.to(LOW[level])))


@quick
@pytest.mark.parametrize("wants", [False, True])
def test_parameters_where_nothing_is_recorded(level, wants):
    param = torch.nn.Parameter(torch.randn(6, 3).to(LOW[level]), requires_grad=wants)
    with torch.no_grad():
        n, out = casts_of_torch(lambda: torch.exp(param))
    assert n == 0 and out.dtype is torch.float32
    assert casts_of_torch(lambda: torch.exp(param))[0] == (1 if wants else 0)


@pytest.mark.parametrize("narrower", [False, True], ids=["to FP32", "to 16 bits"])
def test_every_value(level, narrower):
    """Through a product with one in 16 bits, and through exp, which is an FP32 op."""
    values = torch.tensor(SPECIAL).unsqueeze(1)
    if narrower:
        one = torch.ones(1, 1, dtype=LOW[level])
        n, out = casts_of_torch(lambda: torch.mm(values, one))
        with by_hand():
            expected = torch.mm(values.to(LOW[level]), one)
    else:
        low = values.to(LOW[level])
        n, out = casts_of_torch(lambda: torch.exp(low))
        with by_hand():
            expected = torch.exp(low.float())
    assert same_bits(out, expected) and n == (0 if QUICK else 1)


def test_what_autograd_records_torch_casts(level):
    x = torch.randn(4, 6, requires_grad=True)
    n, out = casts_of_torch(lambda: torch.exp(x.to(LOW[level])))
    out.sum().backward()
    assert n >= 2 and x.grad.dtype is torch.float32
    with torch.no_grad():
        assert torch.mm(x, x.t()).dtype is LOW[level]


def test_double_is_rounded_as_torch_does(level):
    x = torch.full((4, 4), 1 + 2.0**-11 + 2.0**-40, dtype=torch.float64)
    out = torch.mm(x, torch.eye(4))
    with by_hand():
        assert same_bits(out, torch.mm(x.to(LOW[level]), torch.eye(4).to(LOW[level])))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(6, 4).t(),
        lambda: torch.randn(4, 1).expand(4, 6),
        lambda: torch.randn(8, 6)[::2],
        lambda: torch.randn(4, 6, dtype=torch.complex64).conj().imag,
        lambda: torch.randn(1, 1, dtype=torch.complex64).conj().imag,
        lambda: torch.empty(0, 6),
        lambda: torch.randn(200, 200),
        lambda: torch.randn(9, 6)[3:],
    ],
    ids=["transposed", "expanded", "strided", "negated", "one, negated", "empty", "large", "offset"],
)
def test_any_layout(level, make):
    x = make()
    y = torch.randn(x.shape[1], 3)
    out = torch.mm(x, y)
    with by_hand():
        assert same_bits(out, torch.mm(x.to(LOW[level]), y.to(LOW[level])))


def test_channels_last_stays(level):
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    weight = torch.randn(5, 3, 1, 1)
    out = F.conv2d(x, weight)
    with by_hand():
        assert same_bits(out, F.conv2d(x.to(LOW[level]), weight.to(LOW[level])))


def test_the_source_may_go(level):
    """Blocks outlive what they were made from, and their memory is their own."""
    kept = [torch.mm(torch.full((3, 5), float(i)), torch.eye(5)) for i in range(100)]
    assert all(torch.equal(out, torch.full((3, 5), float(i), dtype=LOW[level])) for i, out in enumerate(kept))


def test_what_is_given_to_the_user_can_grow(level):
    """Tensor.cpu returns its argument."""
    out = torch.ones(2, 3, dtype=LOW[level]).cpu()
    assert out.dtype is torch.float32 and out.resize_(4, 5).shape == (4, 5)


def test_a_dispatch_mode_sees_them(level):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Seeing():
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert seen.count("aten._to_copy.default") == 2


def test_a_function_mode_sees_them(level):
    from torch.overrides import TorchFunctionMode

    seen = []

    class Seeing(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function.__name__)
            return function(*args, **(kwargs or {}))

    x = torch.ones(2, 2)
    with Seeing():
        torch.mm(x, x)
    assert seen.count("half") + seen.count("bfloat16") == 2


def test_a_tracer_sees_them(level):
    traced = torch.jit.trace(lambda x: torch.exp(x), (torch.ones(2, 2, dtype=LOW[level]),), check_trace=False)
    twos = torch.full((2, 2), 2.0, dtype=LOW[level])
    with by_hand():
        assert same_bits(traced(twos), torch.exp(twos.float()))


def test_a_tangent_goes_through(level):
    import torch.autograd.forward_ad as forward

    with forward.dual_level():
        x = forward.make_dual(torch.full((2, 2), 3.0), torch.full((2, 2), 5.0))
        primal, tangent = forward.unpack_dual(torch.mm(x, torch.eye(2)))
    assert torch.equal(primal, torch.full((2, 2), 3.0, dtype=LOW[level]))
    assert torch.equal(tangent, torch.full((2, 2), 5.0, dtype=LOW[level]))


def test_transforms(level):
    x, y = torch.randn(3, 2, 4), torch.randn(4, 2)
    out = torch.func.vmap(lambda each: torch.mm(each, y))(x)
    gradient = torch.func.grad(lambda each: torch.mm(each, y).float().sum())(x[0])
    with by_hand():
        assert torch.equal(out, torch.func.vmap(lambda each: torch.mm(each.to(LOW[level]), y.to(LOW[level])))(x))
    assert gradient.dtype is torch.float32 and gradient.abs().sum() > 0
    for _ in range(1100):  # past the pause after what could not be read
        torch.mm(x[0], y)
    assert casts_of_torch(lambda: torch.mm(x[0], y))[0] == (0 if QUICK else 2)


def test_inference_tensors(level):
    with torch.inference_mode():
        x = torch.randn(2, 2)
        out = torch.mm(x, x)
    assert out.is_inference() and out.dtype is LOW[level]
    assert not torch.mm(x, x).is_inference()


def test_a_subclass_is_asked(level):
    class Mine(torch.Tensor):
        pass

    assert isinstance(torch.mm(torch.ones(2, 2).as_subclass(Mine), torch.ones(2, 2)), Mine)
