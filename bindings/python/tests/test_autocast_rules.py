# SPDX-License-Identifier: Apache-2.0
"""What authors of kernels write for torch.autocast holds at O1 and O4: custom_fwd, custom_bwd, register_autocast."""
import contextlib
import functools
import gc
import inspect
import warnings
import weakref

import casting
import pytest
from casting import LOW

torch = casting.torch
from libamp import _core  # noqa: E402
from libamp._cpu.autocast import _of_cpu  # noqa: E402
from libamp.torch import amp  # noqa: E402

SINGLE = torch.float32
if hasattr(torch.amp, "custom_fwd"):  # from torch 2.4 on
    CPU = {"device_type": "cpu"}
    custom_fwd, custom_bwd = torch.amp.custom_fwd, torch.amp.custom_bwd
else:
    pytest.skip("torch's custom_fwd is for CUDA alone before 2.4", allow_module_level=True)


def unmarked(function):
    def wrapper(*args):
        return function(*args)

    return wrapper


def marked(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def energy(dtype, wrap=lambda function: function, **device):
    """A Function that notes the types it gets, and those of a product in its forward and its backward."""

    seen = []

    class Energy(torch.autograd.Function):
        @staticmethod
        @wrap
        @custom_fwd(cast_inputs=dtype, **(device or CPU))
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            seen.extend([x.dtype, torch.mm(x, weight.to(x.dtype)).dtype])
            return x * x * 1000

        @staticmethod
        @wrap
        @custom_bwd(**(device or CPU))
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            seen.extend([grad.dtype, torch.mm(weight, weight).dtype])
            return grad * 2000 * x, None

    Energy.seen = seen
    return Energy


class Net(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.weight = torch.nn.Linear(8, 8), torch.nn.Parameter(torch.eye(8))
        self.apply_it = function

    def forward(self, x):
        return self.apply_it(self.linear(x) * 20, self.weight)


def by_autocast(function, low, x):
    with warnings.catch_warnings(), torch.autocast("cpu", low):
        warnings.simplefilter("ignore")
        out = Net(function)(x)
    out.sum().backward()
    return out


@pytest.mark.parametrize("level", LOW)
@pytest.mark.parametrize("dtype", [SINGLE, torch.float16, None], ids=str)
@pytest.mark.parametrize("wrap", [lambda function: function, marked, unmarked], ids=["plain", "wrapped", "closure"])
def test_custom_fwd_is_answered_as_autocast_answers_it(level, dtype, wrap):
    theirs, ours = energy(dtype, wrap), energy(dtype, wrap)
    x = torch.randn(8, 8)
    expected = by_autocast(theirs.apply, LOW[level], x)
    out = amp.initialize(Net(ours.apply), opt_level=level, verbosity=0)(x)
    out.sum().backward()
    assert ours.seen == theirs.seen
    assert out.dtype == expected.dtype and torch.equal(out, expected)
    if dtype is SINGLE:
        assert ours.seen == [SINGLE] * 4 and bool(out.isfinite().all())


def test_classes_that_come_later_and_calls_outside_a_forward():
    before = energy(SINGLE)
    amp.initialize(torch.nn.Linear(2, 2), opt_level="O1", verbosity=0)
    x = torch.ones(8, 8, dtype=torch.float16, requires_grad=True)
    for function in (before, energy(SINGLE)):
        out = function.apply(x, torch.eye(8))
        out.sum().backward()
        assert out.dtype == SINGLE and function.seen == [SINGLE] * 4
    with amp.disable_casts():
        assert before.apply(x, torch.eye(8)).dtype == torch.float16
    amp.shutdown()
    before.seen.clear()
    assert before.apply(x, torch.eye(8)).dtype == torch.float16 and before.seen == [torch.float16] * 2


def test_an_annotation_for_another_device_means_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = energy(SINGLE, device_type="cuda")
        x = torch.randn(8, 8)
        model = amp.initialize(Net(function.apply), opt_level="O1", verbosity=0)
        model(x)
    assert function.seen == [torch.float16] * 2


def test_gpu_spellings_mean_the_cpu_under_cpu():
    """As `--cpu` replaces them: torch.cuda.amp's function passes the author's own by keyword."""
    for torchs, inner in ((custom_fwd, "fwd"), (custom_bwd, "bwd")):
        of_cpu = _of_cpu(torchs)
        for made in (
            of_cpu(**{inner: unmarked}, device_type="cuda"),
            of_cpu(unmarked, device_type="cuda"),
            of_cpu(device_type="cuda")(unmarked),
        ):
            assert inspect.getclosurevars(made).nonlocals["device_type"] == "cpu" and made.__wrapped__ is unmarked


def test_the_policy_of_the_forward_holds_in_its_backward():
    """Two models of two levels; outside forwards the last one's policy holds."""
    functions = [energy(None), energy(None), energy(None)]
    models = [amp.initialize(Net(functions[i].apply), opt_level=level, verbosity=0) for i, level in enumerate(LOW)]
    for model in models:
        model(torch.randn(8, 8)).float().sum().backward()
    assert [function.seen for function in functions[:2]] == [[low] * 4 for low in LOW.values()]
    with amp.disable_casts():
        out = functions[2].apply(torch.randn(8, 8, requires_grad=True), torch.eye(8))
    out.sum().backward()
    assert functions[2].seen == [SINGLE] * 4


class Cube(torch.autograd.Function):
    @staticmethod
    @custom_fwd(cast_inputs=SINGLE, **CPU)
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.mm(x * x * x, weight)

    @staticmethod
    @custom_bwd(**CPU)
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return torch.mm(grad, weight) * 3 * x * x, None


def test_compiled_models_obey_custom_fwd():
    model = amp.initialize(Net(Cube.apply), opt_level="O1", verbosity=0)
    x = torch.randn(8, 8)
    compiled, gradients = torch.compile(model, backend="aot_eager", fullgraph=True), []
    for each in (compiled, model):
        out = each(x)
        assert out.dtype == SINGLE and bool(out.isfinite().all())
        gradients += torch.autograd.grad(out.mean() / 1000, model.linear.weight)
    assert torch.equal(*gradients) and bool(gradients[0].isfinite().all())


# ---- torch.library ----

with_rules = pytest.mark.skipif(
    not hasattr(torch.library, "register_autocast"), reason="torch.library.register_autocast is younger"
)


def make_op(name, seen):
    @torch.library.custom_op(f"libamp_tests::{name}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        seen.extend([x.dtype, torch.mm(x, x).dtype])
        return x * x * 1000

    def backward(ctx, grad):
        seen.extend([grad.dtype, torch.mm(grad, grad).dtype])
        return grad * 2000

    op.register_autograd(backward)
    op.register_fake(torch.empty_like)
    return op


@with_rules
@pytest.mark.parametrize("level", LOW)
def test_ops_with_a_rule_for_autocast(level):
    """Registered before initialize or after, called by its Python name, by torch.ops' packet or by the overload."""
    seen, x = [], torch.randn(4, 4)
    op = make_op(f"rule_{level}", seen)
    ways = [op, getattr(torch.ops.libamp_tests, f"rule_{level}"), op._opoverload]
    model = amp.initialize(torch.nn.Linear(4, 4), opt_level=level, verbosity=0)
    assert ways[0](model(x)).dtype == LOW[level]  # no rule yet
    op.register_autocast("cpu", SINGLE)
    for call in ways:
        seen.clear()
        out = call(model(x) * 20)
        assert not torch.is_autocast_enabled("cpu") and out.dtype == SINGLE
        out.sum().backward()
        assert seen == [SINGLE] * 4
        with amp.disable_casts():
            assert call(x.to(LOW[level])).dtype == LOW[level]
    amp.shutdown()
    assert all(call(x.to(LOW[level])).dtype == LOW[level] for call in ways)
    model = amp.initialize(torch.nn.Linear(4, 4), opt_level=level, verbosity=0)
    assert all(call(model(x)).dtype == SINGLE for call in ways)


@with_rules
def test_a_rule_is_what_it_is_under_autocast():
    """Also one for 16 bits, by the function of torch.library, and one whose kernel asks for autocast's type."""
    library = torch.library.Library("libamp_tests", "FRAGMENT")
    library.define("asks(Tensor x) -> Tensor")
    library.impl("asks", lambda x: x + 1, "CPU")

    def kernel(x):
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            return torch.ops.libamp_tests.asks(x.to(torch.get_autocast_dtype("cpu")))

    library.impl("asks", kernel, "AutocastCPU")
    make_op("lowered", [])
    torch.library.register_autocast("libamp_tests::lowered", "cpu", torch.bfloat16)
    x = torch.randn(4, 4)
    amp.initialize(torch.nn.Linear(2, 2), opt_level="O1", verbosity=0)
    calls = [torch.ops.libamp_tests.asks, torch.ops.libamp_tests.lowered]
    ours = [call(x) for call in calls]
    with pytest.raises(RuntimeError, match="multiplied"):
        torch.ops.libamp_tests.lowered(torch.ones(2, 3))
    assert _core.current_scope() == () and not torch.is_autocast_enabled("cpu")
    amp.shutdown()
    with torch.autocast("cpu", torch.float16):
        theirs = [call(x) for call in calls]
    assert [each.dtype for each in ours] == [torch.float16, torch.bfloat16]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    library._destroy()


@with_rules
def test_ops_with_a_rule_in_graphs():
    op = make_op("in_graphs", [])
    op.register_autocast("cpu", SINGLE)

    class Calls(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return op(self.linear(x) * 20)

    model = amp.initialize(Calls(), opt_level="O1", verbosity=0)
    x = torch.randn(4, 4)
    out = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    assert out.dtype == SINGLE and torch.equal(out, model(x))


def test_functions_end_with_their_classes():
    """And a later one is answered, wherever in memory it lies."""
    with casting.policy():
        ended = weakref.ref(energy(SINGLE).forward)
        gc.collect()
        assert ended() is None
        for _ in range(20):
            function = energy(SINGLE)
            function.apply(torch.ones(8, 8, dtype=torch.float16), torch.eye(8))
            assert function.seen == [SINGLE] * 2
            del function
            gc.collect()


def test_nothing_is_left_behind():
    function = energy(SINGLE)
    cells = list(function.forward.__closure__)
    own = [cell.cell_contents for cell in cells]
    places = [(torch._ops.OpOverload, "__call__"), (torch._ops.OpOverloadPacket, "__call__")]
    before = [vars(owner)[name] for owner, name in places]
    with casting.policy(), casting.policy("O4"), contextlib.suppress(ValueError):
        assert [cell.cell_contents for cell in cells] != own
        raise ValueError
    assert [cell.cell_contents for cell in cells] == own
    assert [vars(owner)[name] for owner, name in places] == before
