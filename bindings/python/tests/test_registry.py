# SPDX-License-Identifier: Apache-2.0
"""Functions that a script registers by name: of modules and classes, for every initialize until taken back."""
import functools
import types

import casting
import pytest
from casting import policy

torch = casting.torch
F = torch.nn.functional
from libamp.torch import amp  # noqa: E402

HALF, SINGLE = torch.float16, torch.float32
REGISTRARS = {HALF: amp.register_half_function, SINGLE: amp.register_float_function}


def mine(x, y=None):
    return x if y is None else x + y


def module_of(**names):
    module = types.ModuleType("users_module")
    vars(module).update(names)
    return module


def test_they_hold_for_every_initialize_until_taken_back():
    module = module_of(lower=mine, full=mine, widest=mine)
    originals = dict(vars(module))
    single, half = torch.ones(2), torch.ones(2, dtype=HALF)
    with pytest.raises(ValueError, match="no_such"):
        amp.register_half_function(module, "no_such")
    lower = amp.register_half_function(module, "lower")
    full = amp.register_float_function(module, "full")
    amp.register_promote_function(module, "widest")
    assert module.lower is mine
    for _ in range(3):
        with policy():
            assert module.lower(single).dtype == HALF and module.full(half).dtype == SINGLE
            assert module.widest(half, single).dtype == SINGLE
        assert all(vars(module)[name] is originals[name] for name in ("lower", "full", "widest"))
    lower.remove()
    lower.remove()
    with policy():
        assert module.lower(single) is single and module.full(half).dtype == SINGLE
        full.remove()
        assert module.full(half).dtype == SINGLE  # until the next initialize
        with policy("O4"):
            assert module.full(half) is half and module.widest(half, single).dtype == SINGLE


def test_the_last_one_of_a_name_counts_and_the_list_is_below_it():
    original, single = F.softmax, torch.ones(2)
    holder = module_of(softmax=F.softmax)
    first = amp.register_half_function(F, "softmax")
    second = amp.register_float_function(F, "softmax")
    sigmoid = amp.register_float_function(torch, "sigmoid")
    with policy():
        assert F.softmax(single.half(), 0).dtype == SINGLE and torch.sigmoid(single.half()).dtype == SINGLE
        second.remove()
        with policy("O1"):
            assert F.softmax(single, 0).dtype == HALF and torch.sigmoid(single.half()).dtype == SINGLE
            first.remove()
            sigmoid.remove()
            with policy("O1"):
                assert F.softmax(single.half(), 0).dtype == SINGLE and torch.sigmoid(single.half()).dtype == HALF
    assert F.softmax is original and holder.softmax is original


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


class Other(torch.autograd.Function):
    forward, backward = Square.forward, Square.backward


class Fourth(Square):
    @staticmethod
    def forward(ctx, x):
        return Square.forward(ctx, x) ** 2


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.square, self.other = torch.nn.Linear(4, 4), Square.apply, Other.apply

    def forward(self, x):
        x = self.linear(x)
        return [function(x) for function in (Square.apply, self.square, Fourth.apply, Other.apply, self.other)]


def test_apply_of_a_function():
    """Also where it was kept before initialize, and of a class below it; of no other."""
    amp.register_float_function(Square, "apply")
    names = dict(vars(Square))
    model = amp.initialize(Net(), opt_level="O1", verbosity=0)
    kept = model.square
    outs = model(torch.randn(2, 4))
    assert [out.dtype for out in outs] == [SINGLE] * 3 + [HALF] * 2
    sum(out.float().sum() for out in outs).backward()
    assert bool(model.linear.weight.grad.isfinite().all())
    compiled = torch.compile(lambda x: Square.apply(x) + 1, backend="eager")
    assert compiled(torch.ones(2, dtype=HALF)).dtype == SINGLE
    amp.shutdown()
    assert dict(vars(Square)) == names and "apply" not in names
    assert model.square == Square.apply and kept != model.square
    assert compiled(torch.ones(2, dtype=HALF)).dtype == HALF


class Ops:
    @staticmethod
    def static(x):
        return x.dtype

    @classmethod
    def cls(cls, x):
        return cls, x.dtype

    def method(self, x, *more):
        return x.dtype

    part = functools.partialmethod(method, torch.ones(1))
    builtin = torch.add


class Below(Ops):
    pass


def make_ops():
    class Ops:
        @classmethod
        def cls(cls, x):
            return x.dtype

    return Ops


def test_every_kind_of_a_class():
    single = torch.ones(2)
    static, bound, method = Ops.static, Ops.cls, Ops.method
    for name in ("static", "cls", "method", "builtin", "part"):
        amp.register_half_function(Ops, name)
    first, second = make_ops(), make_ops()
    amp.register_half_function(first, "cls")
    amp.register_float_function(second, "cls")
    before = dict(vars(Ops))
    globals().update(kept_static=static, kept_bound=bound, kept_method=method)
    for _ in range(2):
        with policy():
            assert Ops.static(single) == Ops().static(single) == Below.static(single) == HALF
            assert Ops.cls(single) == (Ops, HALF) and Below().cls(single) == (Below, HALF)
            assert Ops().method(single) == Below().method(single) == Ops.method(Ops(), single) == HALF
            assert Ops.builtin(single, single).dtype == HALF and Ops().part(single) == SINGLE
            assert kept_static(single) == HALF and kept_bound(single) == (Ops, HALF)  # noqa: F821
            assert kept_method(Ops(), single) == HALF  # noqa: F821
            assert first.cls(single) == HALF and second.cls(single.half()) == SINGLE
            assert type(vars(Ops)["static"]) is staticmethod and type(vars(Ops)["cls"]) is classmethod
        assert dict(vars(Ops)) == before
        assert (kept_static, kept_bound, kept_method) == (static, bound, method)  # noqa: F821
        assert kept_static is static and kept_bound(single) == (Ops, SINGLE)  # noqa: F821


def test_a_method_that_a_class_inherits():
    """The registration is for the class that it names, and not for its base."""
    amp.register_half_function(Below, "method")
    amp.register_half_function(Below, "cls")
    with policy():
        assert Below().method(torch.ones(2)) == HALF and Ops().method(torch.ones(2)) == SINGLE
        assert Below.cls(torch.ones(2)) == (Below, HALF) and Ops.cls(torch.ones(2)) == (Ops, SINGLE)
    assert "method" not in vars(Below) and "cls" not in vars(Below)


def test_methods_of_tensors_over_the_list():
    taken = amp.register_half_function(torch.Tensor, "sum")
    with policy():
        assert torch.ones(2).sum().dtype == HALF
        taken.remove()
        with policy():
            assert torch.ones(2, dtype=HALF).sum().dtype == SINGLE
