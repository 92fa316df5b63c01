# SPDX-License-Identifier: Apache-2.0
"""Every function that Apex's lists name: which types come out, that the bits are those of casting by hand, and that
gradients return in the types of the leaves."""
import contextlib

import casting
import pytest
from casting import LOW, Logged, Maker, by_hand, cast, function, policy, words
from levels import PATCHES

torch = casting.torch
TYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
LOWER = [
    *(("F", name, make) for name, make in casting.FUNCTIONAL_LOWER.items()),
    *(("torch", name, make) for name, make in casting.TORCH_LOWER.items()),
    *(("Tensor", name, make) for name, make in casting.methods(casting.TORCH_LOWER).items()),
    *(("Tensor", name, make) for name, make in casting.TENSOR_LOWER.items()),
]
FP32 = [
    *(("F", name, make) for name, make in casting.FUNCTIONAL_FP32.items()),
    *(("torch", name, make) for name, make in casting.TORCH_FP32.items()),
    *(("Tensor", name, make) for name, make in casting.methods(casting.TORCH_FP32).items()),
    *(("Tensor", name, make) for name, make in casting.TENSOR_FP32.items()),
]
PROMOTE = [
    *(("torch", name, make) for name, make in casting.TORCH_PROMOTE.items()),
    *(("Tensor", name, make) for name, make in casting.methods(casting.TORCH_PROMOTE).items()),
    *(("Tensor", name, make) for name, make in casting.TENSOR_PROMOTE.items()),
]


@pytest.fixture(scope="module")
def contexts():
    """One context a level for the whole file, all installed: a test enters the scope of the one it means."""
    with contextlib.ExitStack() as stack:
        yield {level: stack.enter_context(policy(level)) for level in LOW}


@contextlib.contextmanager
def entered(context):
    context.enter()
    try:
        yield
    finally:
        context.leave()


def named(cases):
    return [pytest.param(*case, id=f"{case[0]}.{case[1]}") for case in cases]


def bits(tensor):
    return tensor.detach().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def same(got, expected):
    if not isinstance(expected, torch.Tensor):
        return type(got) is type(expected) and got == expected
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    return torch.equal(bits(got), bits(expected)) if expected.is_floating_point() else torch.equal(got, expected)


def check(where, name, make, dtypes, target, level):
    """One op under the policy, against the original on arguments cast by hand to `target`, and its gradients."""
    call = function(where, name)
    mine, theirs = Maker(*dtypes), Maker(*dtypes)
    args, by_hand_args = make(mine), make(theirs)
    with by_hand():
        try:
            expected = call(*cast(by_hand_args, target))
        except (RuntimeError, NotImplementedError) as error:
            if "not implemented" in str(error) or "not support" in str(error):
                pytest.skip(f"torch has no {name} in {target} here: {error}")
            raise
    got = function(where, name)(*args)
    assert same(got, expected), f"{getattr(got, 'dtype', got)} instead of {getattr(expected, 'dtype', expected)}"
    if isinstance(got, torch.Tensor) and got.requires_grad and got.is_floating_point():
        weights = torch.ones_like(got)
        try:
            got.backward(weights)
        except (RuntimeError, NotImplementedError) as error:
            if "not implemented" in str(error):
                pytest.skip(f"torch has no derivative of {name} in {target} here: {error}")
            raise
        with by_hand():
            expected.backward(weights)
        for leaf, other in zip(mine.made, theirs.made, strict=True):
            if leaf.requires_grad:
                assert leaf.grad is not None and leaf.grad.dtype == leaf.dtype
                assert same(leaf.grad, other.grad)
    return got


@pytest.mark.parametrize("level", PATCHES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("where", "name", "make"), named(LOWER))
def test_lower(contexts, where, name, make, dtype, level):
    with entered(contexts[level]):
        got = check(where, name, make, [dtype], LOW[level], level)
        assert got.dtype == LOW[level]


# But cpu(), which makes no type narrower: test_cpu_keeps_double.
NARROWED = [pytest.param(*row, dtype, id=f"{row[0]}.{row[1]}-{dtype}") for row in FP32 for dtype in TYPES
            if (row[1], dtype) != ("cpu", torch.float64)]


@pytest.mark.parametrize(("where", "name", "make", "dtype"), NARROWED)
def test_fp32(contexts, where, name, make, dtype):
    with entered(contexts["O1"]):
        got = check(where, name, make, [dtype], torch.float32, "O1")
        assert got.dtype == torch.float32


def test_cpu_keeps_double():
    double = torch.ones(2, dtype=torch.float64)
    with policy():
        assert double.cpu().dtype == torch.float64
        single = torch.ones(2)
        assert single.cpu() is single


PAIRS = [
    (torch.float16, torch.float32, torch.float32),
    (torch.float32, torch.float16, torch.float32),
    (torch.float16, torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.float32, torch.float32),
    (torch.float64, torch.float16, torch.float64),
    (torch.float32, torch.float64, torch.float64),
    *((dtype, dtype, dtype) for dtype in TYPES),
]


@pytest.mark.parametrize(("first", "second", "widest"), PAIRS, ids=str)
@pytest.mark.parametrize(("where", "name", "make"), named(PROMOTE))
def test_promote(contexts, where, name, make, first, second, widest):
    with entered(contexts["O1"]):
        check(where, name, make, [first, second], widest, "O1")


@pytest.mark.parametrize("by_keyword", [False, True], ids=["positional", "keyword"])
@pytest.mark.parametrize(("first", "second", "widest"), PAIRS, ids=str)
@pytest.mark.parametrize("name", ["cat", "stack"])
def test_sequences_promote(contexts, name, first, second, widest, by_keyword):
    (tensors,) = casting.SEQUENCE[name](Maker(first, second))
    with entered(contexts["O1"]):
        got = getattr(torch, name)(tensors=tensors, dim=0) if by_keyword else getattr(torch, name)(tensors, 0)
        with by_hand():
            expected = getattr(torch, name)(cast(tensors, widest), 0)
    assert same(got, expected) and got.dtype == widest


@pytest.mark.parametrize("other", TYPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", [n for n in casting.IN_PLACE_OPERATORS if hasattr(torch.Tensor, n)])
def test_in_place_operators_keep_their_tensor(contexts, name, dtype, other):
    value = torch.tensor([0.5, 2.0], dtype=dtype)
    alias, argument = value.view(2), torch.tensor([1.25, 0.5], dtype=other)
    with entered(contexts["O1"]):
        with by_hand():
            expected = getattr(value.clone(), name)(argument.to(dtype))
        got = getattr(value, name)(argument)
    assert got is value and got.dtype == dtype and same(alias, expected)


def test_augmented_assignment_changes_who_shares_the_storage():
    half, single = torch.ones(2, dtype=torch.float16), torch.full((2,), 2.0)
    shared = half.view(2)
    with policy():
        before = half
        half += single
        half *= single
        half **= 2
    assert half is before and half.dtype == torch.float16
    assert shared.tolist() == [36.0, 36.0]


@pytest.mark.parametrize("name", ["add_", "mul_", "div_", "addcmul_", "addmm_", "addmv_", "atan2_"])
def test_in_place_methods_take_the_type_of_their_tensor(name):
    arguments = {
        "addcmul_": [(2, 2)] * 2,
        "addmm_": [(2, 2)] * 2,
        "addmv_": [(2, 2), (2,)],
    }.get(name, [(2, 2)])
    for dtype in (torch.float16, torch.float32):
        value = torch.ones((2,) if name == "addmv_" else (2, 2), dtype=dtype)
        others = [torch.full(shape, 0.3, dtype=torch.float32) for shape in arguments]
        with policy():
            with by_hand():
                expected = getattr(value.clone(), name)(*cast(others, dtype))
            got = getattr(value, name)(*others)
        assert got is value and same(got, expected)


@pytest.mark.parametrize("name", ["exp_", "log_", "cumsum_", "pow_", "reciprocal_", "renorm_"])
def test_fp32_methods_in_place_refuse_16_bits(name):
    arguments = {"cumsum_": (0,), "pow_": (2,), "renorm_": (2, 0, 1.0)}.get(name, ())
    half, single = torch.full((2, 2), 0.5, dtype=torch.float16), torch.full((2, 2), 0.5)
    with policy():
        with pytest.raises(NotImplementedError, match=name):
            getattr(half, name)(*arguments)
        assert half.tolist() == [[0.5, 0.5]] * 2
        assert getattr(single, name)(*arguments) is single
        with by_hand():
            getattr(half, name)(*arguments)


def test_fp32_functions_in_place_refuse_16_bits():
    half = torch.ones(2, dtype=torch.float16)
    with policy():
        with pytest.raises(NotImplementedError):
            torch.exp_(half)
        assert torch.exp_(torch.zeros(2)).tolist() == [1.0, 1.0]


class TestBanned:
    half = torch.full((3,), 0.5, dtype=torch.float16)

    def test_16_bits_are_refused_with_advice(self):
        with policy(), pytest.raises(NotImplementedError, match="binary_cross_entropy_with_logits"):
            torch.nn.functional.binary_cross_entropy(self.half, self.half)
        with policy(), pytest.raises(NotImplementedError):
            torch.nn.BCELoss()(torch.full((3,), 0.5), target=self.half)

    def test_fp32_passes(self):
        single = self.half.float()
        with policy():
            assert torch.nn.functional.binary_cross_entropy(single, single).dtype == torch.float32

    def test_it_can_be_allowed(self):
        with policy(allow_banned=True):
            assert torch.nn.functional.binary_cross_entropy(self.half, self.half).dtype == torch.float32
        with policy(), pytest.raises(NotImplementedError):
            torch.nn.functional.binary_cross_entropy(self.half, self.half)


def test_operators_written_in_python_are_one_op():
    """torch writes 2 / x as x.reciprocal() * 2; reciprocal is in the FP32 list, / is not."""
    half, double = torch.full((2,), 0.3, dtype=torch.float16), torch.full((2,), 0.3, dtype=torch.float64)
    with policy():
        assert (2 / half).dtype == torch.float16 and (2 - half).dtype == torch.float16
        quotient = 2 / double
    assert same(quotient, 2 / double)


UNLISTED = "sub rsub true_divide softmax log_softmax layer_norm sigmoid tanh mean logsumexp sin cos erf log1p einsum"
UNLISTED_FUNCTIONAL = "dropout embedding batch_norm instance_norm relu silu huber_loss scaled_dot_product_attention"


def test_what_no_list_names_stays_torchs_own():
    before = {name: getattr(torch, name) for name in words(UNLISTED)}
    methods = {name: vars(torch.Tensor).get(name) for name in words(UNLISTED)}
    functional = {name: getattr(torch.nn.functional, name) for name in words(UNLISTED_FUNCTIONAL)}
    with policy():
        assert all(getattr(torch, name) is before[name] for name in before)
        assert all(vars(torch.Tensor).get(name) is methods[name] for name in methods)
        assert all(getattr(torch.nn.functional, name) is functional[name] for name in functional)


def test_integers_and_booleans_are_never_cast():
    whole, truth = torch.arange(4), torch.tensor([True, False])
    with policy():
        assert torch.sum(whole).dtype == torch.int64 and (whole + whole).dtype == torch.int64
        assert torch.mm(whole.view(2, 2), whole.view(2, 2)).dtype == torch.int64
        assert torch.cat([truth, truth]).dtype == torch.bool
        assert (torch.ones(4, dtype=torch.float16) * whole).dtype == torch.float16


def test_keyword_arguments_are_cast_and_the_callers_dict_is_not():
    single = torch.ones(2, 2)
    keywords = {"input": single, "weight": single, "bias": None}
    with policy():
        assert torch.nn.functional.linear(**keywords).dtype == torch.float16
        assert torch.mm(single, mat2=single).dtype == torch.float16
        assert torch.nn.functional.softmax(input=single.half(), dim=0).dtype == torch.float32
    assert keywords == {"input": single, "weight": single, "bias": None} and keywords["input"] is single


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_result_lands_in_out_in_its_type(dtype):
    single, out = torch.full((2, 2), 0.3), torch.empty(2, 2, dtype=dtype)
    with policy():
        with by_hand():
            expected = torch.mm(single.to(dtype), single.to(dtype))
        got = torch.mm(single, single, out=out)
    assert got is out and same(out, expected)


def test_out_of_fp32_functions():
    out = torch.empty(2, dtype=torch.float16)
    with policy():
        assert torch.exp(torch.zeros(2), out=out) is out  # torch narrows by itself
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2), out=None).dtype == torch.float16
    assert out.tolist() == [1.0, 1.0]


def test_containers_keep_their_class_and_what_is_in_them():
    from collections import namedtuple

    pair = namedtuple("pair", "first second")
    seen = []

    def look(value, *rest, **named):
        seen.append((value, rest, named))

    from libamp.torch import amp

    looked = amp.registry.half_function(look)
    single = torch.ones(1)
    with policy():
        looked(pair(single, 3), [single, (single, None)], name={"kept": single})
    value, rest, named_arguments = seen[0]
    assert type(value) is pair and value.first.dtype == torch.float16 and value.second == 3
    assert type(rest[0]) is list and rest[0][0].dtype == torch.float16
    assert type(rest[0][1]) is tuple and rest[0][1][0].dtype == torch.float16 and rest[0][1][1] is None
    assert named_arguments["name"]["kept"] is single


def test_sparse_and_quantized_tensors_stay_as_they_are():
    sparse = torch.eye(2).to_sparse()
    with policy():
        assert torch.sum(torch.eye(2, dtype=torch.float16).to_sparse()).dtype == torch.float16
        # FP32 with FP32: the dense operand of a sparse product is lowered, which torch then refuses as by hand.
        assert (sparse + sparse).dtype == torch.float32
        quantized = torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8)
        assert torch.cat([quantized, quantized]).dtype == torch.qint8


@pytest.mark.parametrize("layout", [torch.strided, getattr(torch, "jagged", torch.strided)], ids=str)
def test_nested_tensors_are_cast(layout):
    """As under torch.autocast."""
    rows = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)], layout=layout)
    model = torch.nn.Linear(8, 8)
    with policy("O4", enter=True):
        out = model(rows)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(rows)
    assert out.dtype == expected.dtype == torch.bfloat16
    assert all(torch.equal(a, b) for a, b in zip(out.unbind(), expected.unbind(), strict=True))


def test_other_devices_and_layers_of_tensors():
    with policy():
        meta = torch.ones(2, 2, device="meta")
        assert torch.mm(meta, meta).dtype == torch.float16
        vmapped = torch.vmap(torch.mm)(torch.ones(3, 2, 2), torch.ones(3, 2, 2))
        assert vmapped.dtype == torch.float16 and vmapped.shape == (3, 2, 2)
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            fake = torch.ones(2, 2)
            assert torch.mm(fake, fake).dtype == torch.float16
        grad = torch.func.grad(lambda x: torch.mm(x, x).sum())(torch.ones(2, 2))
        assert grad.dtype == torch.float32


@pytest.mark.plain_half
@pytest.mark.parametrize(("level", "cast"), [("O1", "half"), ("O4", "bfloat16")])
def test_subclasses_see_the_cast_and_the_op(level, cast):
    value = torch.ones(2, 2).as_subclass(Logged)
    with policy(level):
        Logged.calls.clear()
        got = torch.mm(value, value)
        assert type(got) is Logged and got.dtype == casting.LOW[level]
        assert Logged.calls == ["dtype", cast, cast, "mm"] or {cast, "mm"} <= set(Logged.calls)
        assert (value + value.half()).dtype == torch.float32


def test_verbosity_2_tells_every_cast(capsys):
    with policy(verbosity=2):
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
        torch.nn.functional.softmax(torch.ones(2, dtype=torch.float16), 0)
    assert capsys.readouterr().out == "Float->Half (mm)\nFloat->Half (mm)\nHalf->Float (softmax)\n"
