# SPDX-License-Identifier: Apache-2.0
"""Which functions are replaced, where they are found, whose policy they obey, and that all is put back."""
import copy
import functools
import inspect
import pickle
import sys
import threading
import types

import casting
import pytest
from casting import policy

torch = casting.torch
F = torch.nn.functional
from libamp import _core  # noqa: E402
from libamp.torch import amp  # noqa: E402
from libamp.torch.amp import patching  # noqa: E402
from torch.nn.functional import gelu, softmax  # noqa: E402

HALF, SINGLE = torch.float16, torch.float32
ACTIVATIONS = {"softmax": F.softmax, "partial": functools.partial(F.softmax, dim=0)}
LISTED = [torch.mm, F.linear]
PARTIAL = functools.partial(F.softmax, dim=0)


def with_default(x, act=F.softmax, *, other=torch.sum):
    return act(x, 0), other(x)


def make_closure(act):
    return lambda x: act(x, 0)


CLOSURE = make_closure(F.softmax)


class Holder:
    act = staticmethod(F.gelu)
    builtin = F.gelu

    class Inner:
        total = torch.Tensor.sum

    def method(self, x, act=F.softmax):
        return act(x, 0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.act, self.softmax = F.gelu, F.softmax
        self.table = {"softmax": F.softmax}

    def forward(self, x):
        return self.softmax(self.act(self.linear(x)), -1)


def holders():
    return ACTIVATIONS["softmax"], *LISTED, PARTIAL.func, with_default.__defaults__, vars(Holder)["builtin"]


def everything():
    """All functions of the modules and the class that are ever patched, by identity."""
    owners = [torch, F, torch.Tensor, torch._VF, torch.linalg, torch._C._nn]
    owners += [torch.nn.RNNBase, torch.jit, torch.autocast]
    found = {(owner.__name__, name): value for owner in owners for name, value in vars(owner).items()}
    return found, [list(vars(owner)) for owner in owners]


def test_shutdown_restores_every_object():
    before, order = everything()
    held = holders()
    with policy("O1"), policy("O4", lists="torch"):
        during, _ = everything()
        changed = [key for key in before if during[key] is not before[key]]
        assert len(changed) > 150
    after, order_after = everything()
    assert after.keys() == before.keys() and all(after[key] is before[key] for key in before)
    assert order_after == order
    now = holders()
    assert all(x is y or x == y for x, y in zip(now, held, strict=True))
    assert softmax is F.softmax and type(softmax) is types.FunctionType
    assert not any(
        isinstance(value, (_core.PatchedFunction, _core.PatchedMethod))
        for name, module in list(sys.modules.items())
        if not name.startswith("libamp")
        for value in list(getattr(module, "__dict__", {}).values())
    )


def test_names_bound_before_are_found():
    half = torch.ones(2, 2, dtype=HALF)
    with policy():
        assert softmax(half, 0).dtype == SINGLE and gelu(half).dtype == SINGLE
        assert ACTIVATIONS["softmax"](half, 0).dtype == SINGLE and ACTIVATIONS["partial"](half).dtype == SINGLE
        assert PARTIAL(half).dtype == SINGLE and LISTED[0](half.float(), half).dtype == HALF
        assert [out.dtype for out in with_default(half)] == [SINGLE, SINGLE]
        assert CLOSURE(half).dtype == SINGLE
        assert Holder.act(half).dtype == SINGLE and Holder().builtin(half).dtype == SINGLE
        assert Holder.Inner.total(half).dtype == SINGLE and Holder().method(half).dtype == SINGLE
        late = {name: types.ModuleType(name) for name in ("late_module", "torch.late_module")}
        sys.modules.update(late)
        for module in late.values():
            exec("from torch.nn.functional import softmax", vars(module))
            assert module.softmax(half, 0).dtype == SINGLE
    for name, module in late.items():
        assert module.softmax is F.softmax and type(module.softmax) is types.FunctionType
        del sys.modules[name]
    for out in (softmax(half, 0), PARTIAL(half), CLOSURE(half), with_default(half)[1], Holder().builtin(half)):
        assert out.dtype == HALF


def test_attributes_of_models_are_found_and_restored():
    net = Net()
    own = dict(vars(net))
    amp.initialize(net, verbosity=0)
    assert net.act is F.gelu and net.softmax is F.softmax and net.table["softmax"] is F.softmax
    assert net(torch.ones(2, 4)).dtype == SINGLE and net.linear(torch.ones(2, 4)).dtype == HALF
    amp.shutdown()
    assert vars(net)["act"] is own["act"] and vars(net)["softmax"] is own["softmax"]
    assert net.table["softmax"] is own["softmax"] and type(net.softmax) is types.FunctionType


@pytest.mark.parametrize("where", ["F.softmax", "F.gelu", "F.linear", "torch.mm", "torch.norm", "T.add", "T.__add__"])
def test_they_look_like_what_they_replace(where):
    owner, _, name = where.partition(".")
    owner = {"F": F, "torch": torch, "T": torch.Tensor}[owner]
    original = getattr(owner, name)
    with policy():
        patched = getattr(owner, name)
        assert patched is not original and patched == original and original == patched
        assert hash(patched) == hash(original) and {original: 1}[patched] == 1 and patched != torch.sum
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            assert getattr(patched, attribute, None) == getattr(original, attribute, None)
        assert repr(patched) == repr(original) and isinstance(patched, type(original))
        questions = (inspect.isfunction, inspect.isbuiltin, inspect.isroutine, inspect.ismethoddescriptor, callable)
        for question in questions:
            assert question(patched) == question(original)
        try:
            signature = inspect.signature(original)
        except ValueError:
            pass
        else:
            assert inspect.signature(patched) == signature
        assert patching.original(patched) is original
        assert copy.copy(patched) is patched and copy.deepcopy(patched) is patched
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(patched, protocol)) is patched
        pickled = pickle.dumps(patched)
        assert b"libamp" not in pickled
    assert pickle.loads(pickled) is original


def test_models_pickle_and_copy_before_during_and_after():
    net, x = Net(), torch.ones(2, 4)
    before = pickle.dumps(net)
    with policy(models=[net]):
        during = pickle.dumps(net)
        loaded, copied = pickle.loads(before), copy.deepcopy(net)
        assert copied.softmax is F.softmax and loaded.softmax is F.softmax
        assert copied(x).dtype == loaded(x).dtype == SINGLE and copied.linear(x).dtype == HALF
        assert pickle.loads(during).act is F.gelu
    after = pickle.loads(during)
    assert after.softmax is F.softmax and type(after.softmax) is types.FunctionType
    assert torch.equal(after(x), net(x)) and torch.equal(pickle.loads(pickle.dumps(net))(x), net(x))


def test_a_stranger_on_top_is_left_and_passes_through():
    original = F.softmax
    with policy():
        inner = F.softmax
        F.softmax = lambda *args, **kwargs: inner(*args, **kwargs)
        stranger = F.softmax
    try:
        assert F.softmax is stranger and F.softmax(torch.ones(2, dtype=HALF), 0).dtype == HALF
    finally:
        F.softmax = original


# ---- whose policy ----


def mm():
    return torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype


def test_several_contexts_each_in_its_scope():
    with policy("O1") as first:
        assert mm() == HALF
        with policy("O4") as second:
            assert mm() == torch.bfloat16  # outside scopes: the one that came last
            first.enter()
            assert mm() == HALF
            second.enter()
            assert mm() == torch.bfloat16
            second.leave()
            assert mm() == HALF
            first.leave()
        assert mm() == HALF
    assert mm() == SINGLE


def test_a_context_without_patches_has_no_policy():
    with policy("O1"):
        plain = _core.Context("O2", [], [], {})
        plain.enter()
        assert mm() == SINGLE
        plain.leave()
        plain.shutdown()
        assert mm() == HALF


def test_threads_have_scopes_of_their_own():
    seen = {}

    def look(name, barrier):
        barrier.wait(timeout=60)
        seen[name] = mm()
        barrier.wait(timeout=60)

    barrier = threading.Barrier(2)
    with policy("O1") as first, policy("O4"):
        thread = threading.Thread(target=look, args=("other", barrier))
        thread.start()
        first.enter()
        look("mine", barrier)
        first.leave()
        thread.join()
    assert seen == {"mine": HALF, "other": torch.bfloat16}


def test_many_threads_at_once():
    wrong = []

    def work(level, context):
        for _ in range(200):
            context.enter()
            if mm() != casting.LOW[level]:
                wrong.append(level)
            context.leave()

    with policy("O1") as first, policy("O4") as second:
        pairs = [("O1", first), ("O4", second)] * 2
        threads = [threading.Thread(target=work, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_context_that_was_shut_down_has_no_policy():
    context = _core.Context("O1", [], [], {})
    patching.install(context)
    context.shutdown()
    assert mm() == SINGLE
    patching.uninstall(context)
    patching.uninstall(context)  # again: nothing
    assert not patching.installed()


def test_a_context_that_is_collected_in_the_middle_of_an_install():
    """The garbage collector may end a context anywhere; the functions of the one that comes stay in place."""
    old, new = _core.Context("O1", [], [], {}), _core.Context("O4", [], [], {})
    original = torch.mm
    patching.install(old)
    put = patching.Site.put

    def collected(site):
        put(site)
        patching.uninstall(old, collected=True)

    patching.Site.put = collected
    try:
        patching.install(new, lists="torch")  # puts what the other list has not
    finally:
        patching.Site.put = put
    assert mm() == torch.bfloat16 and torch.mm is not original
    patching.uninstall(new)
    assert torch.mm is original and not patching.installed()
    for context in (old, new):
        context.shutdown()


def test_disable_casts_nests_and_survives_exceptions():
    net = Net()
    amp.initialize(net, verbosity=0)
    try:
        with amp.disable_casts():
            with pytest.raises(KeyError), amp.disable_casts():
                raise KeyError
            assert mm() == SINGLE
        assert mm() == HALF
    finally:
        amp.shutdown()


class TestExempt:
    @pytest.fixture(autouse=True, params=["as it is", "without hooks after errors"])
    def _torch(self, request, monkeypatch):
        if request.param != "as it is":  # as torch 2.0
            monkeypatch.setattr(sys.modules["libamp.torch.amp.exempt"], "_AFTER_ERRORS", False)

    def test_a_block(self):
        with policy():
            with amp.exempt():
                assert mm() == SINGLE
                with pytest.raises(KeyError), amp.exempt():
                    raise KeyError
                assert mm() == SINGLE
            assert mm() == HALF

    def test_a_module_until_it_is_removed(self):
        net, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), torch.ones(2, 4)
        with policy():
            handle = amp.exempt(net[1], cast_inputs=SINGLE)
            assert net(x).dtype == SINGLE and net[0](x).dtype == HALF and mm() == HALF
            copied = copy.deepcopy(net)
            loaded = pickle.loads(pickle.dumps(net))
            handle.remove()
            assert net(x).dtype == HALF
            assert copied(x).dtype == loaded(x).dtype == SINGLE
            with amp.exempt(net):
                assert net(x).dtype == SINGLE
            assert net(x).dtype == HALF

    def test_a_forward_that_fails_leaves(self):
        layer = torch.nn.Linear(4, 4)
        with policy():
            amp.exempt(layer)
            with pytest.raises(RuntimeError):
                layer(torch.ones(2, 3))
            assert mm() == HALF

    def test_what_it_refuses(self):
        with pytest.raises(TypeError):
            amp.exempt(print)
        with pytest.raises(ValueError):
            amp.exempt(cast_inputs=SINGLE)


class TestAutocast:
    def test_disabled_inside_a_forward_means_no_casts(self):
        with policy() as context:
            context.enter()
            with torch.autocast("cpu", enabled=False):
                assert mm() == SINGLE
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    assert mm() == torch.bfloat16  # torch's own
                assert mm() == SINGLE
            assert mm() == HALF
            context.leave()

    def test_disabled_around_a_script_says_nothing(self):
        with policy(), torch.autocast("cpu", enabled=False):
            assert mm() == HALF


# ---- the user's own functions ----


def one_of_mine(x, y=None):
    return x if y is None else x + y


def test_decorators():
    half, single = torch.ones(2, dtype=HALF), torch.ones(2)
    lower, full, widest = (
        decorate(one_of_mine) for decorate in (amp.half_function, amp.float_function, amp.promote_function)
    )
    assert lower(single) is single and full(half) is half  # no policy
    assert lower.__name__ == "one_of_mine" and inspect.signature(lower) == inspect.signature(one_of_mine)
    with policy():
        assert lower(single).dtype == HALF and full(half).dtype == SINGLE
        assert widest(half, y=single).dtype == SINGLE and widest(half) is half
        with amp.exempt():
            assert lower(single) is single
    with policy("O4"):
        assert lower(single).dtype == torch.bfloat16


class WithMethod:
    @amp.half_function
    def method(self, x):
        return x

    @staticmethod
    @amp.float_function
    def static(x):
        return x


def test_decorated_methods_bind():
    with policy():
        assert WithMethod().method(torch.ones(2)).dtype == HALF
        assert WithMethod.static(torch.ones(2, dtype=HALF)).dtype == SINGLE


def test_a_module_of_a_script_may_have_a_name_of_pythons(monkeypatch):
    """Python's own modules are not looked into."""
    module, half = types.ModuleType("code"), torch.ones(2, 2, dtype=HALF)
    module.__file__ = "/home/somebody/code.py"
    exec("from torch.nn.functional import softmax", vars(module))
    monkeypatch.setitem(sys.modules, "code", module)
    with policy():
        assert module.softmax(half, 0).dtype == SINGLE
    assert module.softmax is F.softmax


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        assert grad.dtype == ctx.saved_tensors[0].dtype
        return grad * 2


def test_custom_autograd_functions():
    apply = amp.float_function(Double.apply)
    x = torch.ones(2, dtype=HALF, requires_grad=True)
    with policy():
        out = apply(x)
        out.sum().backward()
    assert out.dtype == SINGLE and x.grad.dtype == HALF and x.grad.tolist() == [2.0, 2.0]


# ---- the torch list ----


def test_the_torch_list():
    half, single = torch.ones(2, 2, dtype=HALF), torch.ones(2, 2)
    with policy(lists="torch"):
        assert torch.softmax(half, 0).dtype == half.log_softmax(0).dtype == SINGLE
        assert torch.einsum("ij,jk->ik", single, single).dtype == HALF
        assert F.gelu(half).dtype == HALF and (half + half).dtype == HALF
        assert torch.linalg.vector_norm(half).dtype == SINGLE
        assert torch.mm(single.double(), single.double()).dtype == torch.float64  # autocast leaves fp64 alone
        assert F.scaled_dot_product_attention(single[None], single[None], single[None]).dtype == HALF
