# SPDX-License-Identifier: Apache-2.0
"""libamp's list kernels by torch's own ops, beside the C kernels: bits, and what is reported. test_toydevice.py has
them on a device, and that nothing waits."""
import itertools
import math
import random

import pytest
from libamp import kernels

torch = pytest.importorskip("torch")
from libamp.torch import _torch_ops as ops  # noqa: E402
from libamp.torch._torch_ops import common, rules  # noqa: E402
from libamp.torch._torch_ops.lists import _has_torchs_kernel  # noqa: E402
from training import nothing_waits  # noqa: E402

INF, NAN = float("inf"), float("nan")
LOW, WIDE = [torch.float16, torch.bfloat16], [torch.float32, torch.float64]
SHAPES = [(5,), (3, 7), (), (0,), (2, 3, 4), (70,), (1,)]
SPECIAL = [INF, -INF, NAN, 0.0, -0.0, 1e-45, -1e-40, 6e-8, 65504.0, 3e38, -3e38]


def values(random_, shape, dtype, special=0.1):
    """Of all magnitudes; `special` of them are of SPECIAL."""
    n = math.prod(shape)
    made = [random_.gauss(0, 1) * 10 ** random_.uniform(-9, 9) for _ in range(n)]
    made = [random_.choice(SPECIAL) if random_.random() < special else value for value in made]
    return torch.tensor(made, dtype=torch.float64).reshape(shape).to(dtype)


def lists(seed, dtypes, special=0.1):
    random_ = random.Random(seed)
    return [values(random_, shape, dtypes[i % len(dtypes)], special) for i, shape in enumerate(SHAPES)]


def same(a, b):
    """The bits, but that any NaN is any other."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.dtype == b.dtype and bool(((a.view(bits) == b.view(bits)) | (a.isnan() & b.isnan())).all())


def all_same(left, right):
    return all(same(a, b) for a, b in zip(left, right, strict=True))


def clones(tensors):
    return [tensor.clone() for tensor in tensors]


def empty(dtypes):
    return [torch.zeros(shape, dtype=dtypes[i % len(dtypes)]) for i, shape in enumerate(SHAPES)]


def rounded_once(to, of):
    """torch rounds fp64 to 16 bits through FP32: those pairs have bits of their own."""
    return not any(d.dtype in LOW and s.dtype == torch.float64 for d, s in zip(to, of, strict=True))


MIXED = [[a] for a in LOW + WIDE] + [[*LOW, torch.float32], [torch.float32, torch.float16, torch.float64]]


@pytest.mark.parametrize("to", MIXED, ids=str)
def test_casts_and_products_have_the_kernels_bits(to):
    for seed, of in enumerate(MIXED):
        src = lists(seed, of)
        want, got = empty(to), empty(to)
        if not rounded_once(want, src):
            continue
        kernels.cast(want, src)
        ops.cast(got, src)
        assert all_same(want, got)
        for by in (1.0, 0.25, 1 / 3, 4.0, torch.tensor([0.1]), torch.tensor([1e30])):
            found = [torch.zeros(1), torch.zeros(1)]
            kernels.scale(want, src, by, found_inf=found[0])
            ops.scale(got, src, by, found_inf=found[1])
            assert all_same(want, got) and found[0] == found[1], (seed, by)
        y = lists(seed + 100, of)
        for a, b in ((1.0, 1.0), (0.3, -1.0), (torch.tensor(2.0**-16), 1.0)):
            kernels.axpby(want, a, src, b, y, found_inf=found[0])
            ops.axpby(got, a, src, b, y, found_inf=found[1])
            assert all_same(want, got), (seed, a, b)
        kernels.clip_value(want, src, 0.1)
        ops.clamp(got, src, 0.1)
        assert all_same(want, got)
    ops.zero(got)
    assert not any(tensor.any() for tensor in got)


def test_in_place_and_with_strides():
    for dtypes in MIXED:
        dense = lists(7, dtypes)
        strided = [torch.stack([t, t], -1)[..., 0] for t in dense]
        strided = [t.t() if t.dim() == 2 else t for t in strided]
        dense = [t.t().contiguous() if t.dim() == 2 else t for t in dense]
        found = [torch.zeros(1), torch.zeros(1)]
        assert rounded_once(dense, dense)
        kernels.scale(dense, dense, 1 / 3, found_inf=found[0])
        ops.scale(strided, strided, 1 / 3, found_inf=found[1])
        assert all_same(dense, [t.contiguous() for t in strided]) and found[0] == found[1]
        kernels.axpby(dense, 0.5, dense, 2.0, dense, found_inf=found[0])
        ops.axpby(strided, 0.5, strided, 2.0, strided, found_inf=found[1])
        assert all_same(dense, [t.contiguous() for t in strided])
    assert not any(tensor.is_contiguous() for tensor in strided if tensor.numel() > 1)


def found_by(call):
    """(found_inf, first) that a call reports, from base 10 on."""
    found, first = torch.zeros(1), torch.full((1,), -1, dtype=torch.int32)
    call({"found_inf": found, "first": first, "base": 10})
    return found.item(), first.item()


@pytest.mark.parametrize("dtype", LOW + WIDE)
def test_the_result_is_checked_and_not_the_input(dtype):
    """3e38 times 4: torch's own kernel finds nothing there."""
    big = {torch.float16: 3e4, torch.bfloat16: 3e38, torch.float32: 3e38, torch.float64: 1.7e308}[dtype]
    for by in (4.0, torch.tensor([4.0])):
        x = [torch.ones(3, dtype=dtype), torch.zeros(0, dtype=dtype), torch.tensor([1.0, big], dtype=dtype)]
        assert found_by(lambda f, x=x, by=by: ops.scale(x, x, by, **f)) == (1.0, 12)
        assert x[2][1].item() == INF
    small = [torch.full((2,), 3e38, dtype=torch.float32)]
    assert found_by(lambda f: ops.scale([torch.zeros(2, dtype=torch.float16)], small, 1.0, **f)) == (1.0, 10)
    for by in (0.5, torch.tensor([0.5])):
        found = torch.zeros(1)
        x = [torch.ones(3, dtype=dtype), torch.tensor([1.0, INF], dtype=dtype)]
        ops.scale(x, x, by, found_inf=found)
        assert found.item() == 1.0


def test_torchs_kernel_unscales_where_it_decides_alike(monkeypatch):
    kernel, calls = torch._amp_foreach_non_finite_check_and_unscale_, []
    monkeypatch.setattr(torch, "_amp_foreach_non_finite_check_and_unscale_", lambda *a: calls.append(kernel(*a)))
    there = _has_torchs_kernel(torch.device("cpu"))  # from torch 2.3 on
    for dtype, by, used in ((torch.float32, 0.5, there), (torch.float32, 4.0, 0), (torch.float16, 0.5, 0)):
        x = [torch.ones(3, dtype=dtype), torch.ones(2, dtype=dtype)]
        ops.scale(x, x, by, found_inf=torch.zeros(1))
        assert len(calls) == used and x[1][1] == by
        calls.clear()


def test_what_is_reported_lowers_the_first_and_raises_the_flag_alone():
    fine, bad = torch.ones(2), torch.tensor([1.0, NAN])
    assert found_by(lambda f: ops.scale([fine.clone()], [fine], 0.5, **f)) == (0.0, -1)
    first = torch.tensor([11], dtype=torch.int32)
    found = torch.full((1,), 0.25)
    ops.check([fine, fine, bad], found_inf=found, first=first, base=10)
    assert first.item() == 11 and found.item() == 1.0
    ops.check([bad, bad], found_inf=found, first=first, base=3)
    assert first.item() == 3
    ops.check([fine], found_inf=found, first=first)
    assert first.item() == 3 and found.item() == 1.0


def test_add_reports_what_the_older_gradient_did_not_bring():
    one, inf, big = torch.tensor([1.0, 1.0]), torch.tensor([1.0, INF]), torch.tensor([1.0, 3e38])

    def add(x, y):
        out = y.clone()
        report = found_by(lambda f: ops.axpby([out], 1.0, [x], 1.0, [out], **f, y_was_reported=True))
        assert same(out, x + y)
        return report

    assert add(one, inf) == (0.0, -1)
    assert add(inf, one) == (1.0, 10)
    assert add(inf, inf) == (1.0, 10)
    assert add(big, big) == (1.0, 10)
    assert add(torch.tensor([NAN, 1.0]), inf) == (1.0, 10)
    low = torch.full((2,), 6e4, dtype=torch.float16)
    assert found_by(lambda f: ops.axpby([low], 1.0, [low], 1.0, [low], **f, y_was_reported=True)) == (1.0, 10)


@pytest.mark.parametrize("low", LOW)
def test_rounding_and_reconciling(low):
    src = lists(3, [torch.float32])
    src[4][0, 0, 0] = 3.4e38
    want = [t.to(low).float() for t in src]
    got = empty([torch.float32])
    lost = [bool((t.isfinite() & ~w.isfinite()).any()) for t, w in zip(src, want, strict=True)]
    assert found_by(lambda f: ops.round_through(got, src, low, **f)) == (1.0, 10 + lost.index(True))
    assert all_same(got, want)
    assert found_by(lambda f: ops.round_through([torch.zeros(2)], [torch.tensor([INF, NAN])], low, **f)) == (0.0, -1)

    written = [t.to(low) for t in src]
    for shown in (written, [t.float() for t in written]):
        exact = clones(src)
        ops.reconcile(exact, shown, low)
        assert all_same(exact, src)  # untouched: no bit is lost
        changed = clones(shown)
        changed[1][0, 3], changed[1][2, 6], changed[4][0, 0, 0] = 2.0, NAN, -0.0
        changed[0][:] = 0.0
        ops.reconcile(exact, changed, low)
        for is_now, was, wrote in zip(exact, src, changed, strict=True):
            rounded, shows = was.to(low), wrote.to(low)
            keeps = (rounded.view(torch.int16) == shows.view(torch.int16)) | (rounded.isnan() & shows.isnan())
            assert same(is_now, torch.where(keeps, was, wrote.float()))
        assert exact[1][0, 3] == 2.0 and exact[1][2, 6].isnan() and exact[4][0, 0, 0].signbit()
    exact = clones(src)
    norms = torch.ones(len(src))
    norms[4] = 0.0
    ops.reconcile(exact, written, low, norms)
    assert same(exact[4], written[4].float()) and all_same(exact[:4] + exact[5:], src[:4] + src[5:])


def test_a_cast_that_happens_if_is_taken_or_changes_no_bit():
    for to, of in itertools.product([[d] for d in LOW + WIDE], [[torch.float32], [torch.float16, torch.float32]]):
        before, src = lists(1, to), lists(2, of)
        got = clones(before)
        ops.cast(got, src, only_if=torch.zeros(1))
        assert all_same(got, before)
        assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(got, before, strict=True)
                   if a.dim())  # NaNs and the signs of zeros too
        ops.cast(got, src, only_if=torch.full((1,), 0.75))
        assert all_same(got, [s.to(to[0]) for s in src])


def test_factors():
    assert ops.factor_of(value=0.1) == torch.tensor(0.1).item()
    assert ops.factor_of(torch.tensor([3.0]), how="inverse").item() == torch.tensor(1 / 3).item()
    for norm, want in ((4.0, 2.0 / (4.0 + 1e-6)), (1.0, 1.0), (INF, 1.0), (NAN, 1.0)):
        assert ops.factor_of(torch.tensor([norm]), 2.0, "clip").item() == torch.tensor(want).item()


@pytest.fixture(params=["fp64", "fp32"])
def double(request, monkeypatch):
    """A device with FP64, and one without."""
    dtype = torch.float64 if request.param == "fp64" else torch.float32
    monkeypatch.setitem(common._doubles, torch.device("cpu"), dtype)
    return dtype


def close(got, want, ulps):
    """Floats within so many units in the last place, infinities and NaNs where they are."""
    assert torch.equal(got.isfinite(), want.isfinite()) and torch.equal(got.isnan(), want.isnan())
    finite = want.isfinite()
    distance = (got[finite].double() - want[finite].double()).abs()
    assert bool((distance <= ulps * 2.0**-23 * want[finite].abs().double() + 1e-45).all()), distance


def test_a_rule_that_only_the_kernels_know_is_refused_in_words(monkeypatch):
    monkeypatch.setitem(rules._RULES, "newest", rules._RULES["adagrad"])
    monkeypatch.setitem(rules.MOMENTS, "newest", ("sum",))
    p, g = torch.ones(3), torch.ones(3)
    with pytest.raises(NotImplementedError, match="rule: no step of 'newest' is written over torch's operators"):
        ops.optimizer_step("newest", [p], [g], {"sum": [torch.zeros(3)]}, steps=0)
    assert p.equal(torch.ones(3))


def test_norms(double):
    """In double: the sums' order is another, 1e-13 of them at most, which rounding to FP32 shows in one ulp. In FP32:
    squares, sums and roots of at most 70 elements err by 2^-24 each, relatively."""
    ulps = 1 if double == torch.float64 else 40
    for seed, dtypes in enumerate(MIXED):
        if double == torch.float32 and torch.float64 in dtypes:
            continue
        src = lists(seed, dtypes, special=0.0 if seed % 2 else 0.01)
        for by in (1.0, torch.tensor([0.5])):
            want, got = ([torch.zeros(1), torch.zeros(len(src)), torch.zeros(1)] for _ in range(2))
            kernels.check(src, by, norm=want[0], norms=want[1], found_inf=want[2])
            ops.check(src, by, norm=got[0], norms=got[1], found_inf=got[2])
            close(got[0], want[0], ulps)
            close(got[1], want[1], ulps)
            assert got[2] == want[2]
    large = [torch.full((4,), 1e30), torch.full((3,), 1e-30)]  # squares are beyond FP32
    norm, norms, found = torch.zeros(1), torch.zeros(2), torch.zeros(1)
    ops.check(large, norm=norm, norms=norms, found_inf=found)
    close(norms, torch.tensor([2e30, 3**0.5 * 1e-30]), 3)
    assert norm == norms[0] and found == 0.0
    ops.check([], norm=norm)
    assert norm == 0.0


def test_statistics_add_what_the_kernels_count():
    for seed, dtypes in enumerate(MIXED):
        src = [t for t in lists(seed, dtypes) if t.numel()]
        out = torch.zeros(len(src), 1120, dtype=torch.int64)
        ops.statistics(src, out)
        ops.statistics(src[:1], out[:1])
        for tensor, words in zip(src, out, strict=True):
            want = kernels.statistics([tensor, tensor] if tensor is src[0] else tensor)
            told = torch.frombuffer(bytearray(want.memory), dtype=torch.int64)
            assert torch.equal(words[1:10], told[1:10]) and torch.equal(words[12:], told[12:])
            sums, theirs = words[10:12].view(torch.float64), told[10:12].view(torch.float64)
            terms = torch.stack([tensor.double().abs().sum(), tensor.double().square().sum()])
            near = (sums - theirs).abs() <= 2 * (5 * 2.0**-24 + 1e-12) * terms  # twice; docs/reference/numerics.md
            assert near.all() if theirs.isfinite().all() else torch.equal(sums[1:].isfinite(), theirs[1:].isfinite())


# ---- optimizers ----

RULES = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9, "dampening": 0.3, "decay_after_momentum": True, "weight_decay": 0.1}),
    ("adam", {"weight_decay": 0.1}),
    ("adamw", {"weight_decay": 0.1, "betas": (0.8, 0.95)}),
    ("adamw", {"amsgrad": True, "bias_correction": False}),
    ("lamb", {}),
    ("lamb", {"decoupled": False, "grad_averaging": False, "nvlamb": True, "weight_decay": 0.0, "max_grad_norm": 0.0}),
    ("novograd", {"weight_decay": 0.1}),
    ("novograd", {"decoupled": False, "init_zero": True, "weight_decay": 0.01, "grad_averaging": False}),
    ("adagrad", {"weight_decay": 0.1}),
    ("adagrad", {"decoupled": True, "weight_decay": 0.1}),
    ("larc", {"momentum": 0.9, "weight_decay": 0.1}),
    ("larc", {"clip": False}),
]


def take_exact_roots(setattr_):
    """torch's square root on the CPU is MKL's, off by an ulp now and then; GPUs' are IEEE's, as these."""
    torchs = torch._foreach_sqrt

    def roots(tensors):
        if tensors[0].is_cuda:
            return torchs(tensors)
        return [tensor.double().sqrt().to(tensor.dtype) for tensor in tensors]

    setattr_(torch, "_foreach_sqrt", roots)
    setattr_(torch, "_foreach_sqrt_", lambda tensors: torch._foreach_copy_(tensors, roots(tensors)))


@pytest.fixture
def exact_roots(monkeypatch):
    take_exact_roots(monkeypatch.setattr)


class Steps:
    """Parameters, half of them with 16-bit copies, one of 16 bits alone, and their state, stepped by one of the two."""

    def __init__(self, step, rule, numbers, on_device):
        self.step, self.rule, self.numbers = step, rule, numbers
        self.params = lists(5, [torch.float32], special=0.0)
        self.params[5] = self.params[5].to(torch.bfloat16)
        self.low = [p.to(LOW[i // 2 % 2]) if i % 2 == 0 else None for i, p in enumerate(self.params)]
        names = rules.rule_of(rule, **numbers).moments()
        self.state = {name: [torch.zeros(1 if (rule, name) == ("novograd", "exp_avg_sq") else p.shape)
                             for p in self.params] for name in names}
        self.steps = torch.zeros(len(SHAPES), dtype=torch.int64) if on_device else 0

    def run(self, grads, **numbers):
        self.step(self.rule, self.params, grads, self.state, steps=self.steps, model_params=self.low, **self.numbers,
                  **numbers)
        if isinstance(self.steps, int):
            self.steps += 1

    def tensors(self):
        return [*self.params, *(t for t in self.low if t is not None), *itertools.chain(*self.state.values())]


@pytest.mark.parametrize(("rule", "numbers"), RULES, ids=lambda value: value if isinstance(value, str) else "")
def test_steps_have_the_kernels_bits(rule, numbers, exact_roots):
    for on_device in (False, True):
        want, got = (Steps(step, rule, numbers, on_device) for step in (kernels.optimizer_step, ops.optimizer_step))
        for t in range(5):
            grads = lists(t, [torch.float16, torch.float32, torch.bfloat16], special=0.05 if t == 4 else 0.0)
            skips = {"found_inf": torch.full((1,), (0.0, 1.0, 0.0, NAN, 0.0)[t])} if on_device else {}
            before = clones(got.tensors())
            for one in (want, got):
                one.run(clones(grads), inv_scale=torch.tensor([2.0**-8]), grad_factor=0.7, **skips)
            assert all_same(want.tensors(), got.tensors()), t
            assert all_same(before, got.tensors()) == (on_device and t in (1, 3))
        assert on_device == isinstance(got.steps, torch.Tensor) and torch.equal(torch.as_tensor(got.steps),
                                                                                torch.as_tensor(want.steps))


@pytest.mark.parametrize("rule", ["adamw", "lamb", "novograd", "larc"])
def test_steps_without_fp64(rule, double):
    """1 - beta^t errs by four ulps in FP32, norms by 40 (above), and MKL's root by one: together below 2^-17 of what a
    step moves."""
    numbers = {"momentum": 0.9} if rule == "larc" else {"weight_decay": 0.1}
    want, got = (Steps(step, rule, numbers, True) for step in (kernels.optimizer_step, ops.optimizer_step))
    for t in range(4):
        before = clones(want.params)
        grads = lists(t, [torch.float32], special=0.0)
        for one in (want, got):
            one.run(grads)
        for old, a, b in zip(before, want.params, got.params, strict=True):
            if a.dtype == torch.float32:
                moved = (a - old).abs()
                assert bool(((a - b).abs() <= (t + 1) * 2.0**-17 * moved + 2.0**-23 * a.abs() + 1e-30).all())


def test_a_tensor_without_a_gradient_is_passed_over():
    got = Steps(ops.optimizer_step, "adamw", {}, True)
    before = clones(got.tensors())
    got.run([None if i % 2 else g for i, g in enumerate(lists(0, [torch.float32], special=0.0))])
    assert got.steps.tolist() == [1, 0, 1, 0, 1, 0, 1]
    assert all_same(before[1:7:2], got.params[1::2])
    assert [bool(m.any()) for m in got.state["exp_avg"]] == [True, False, True, False, True, False, True]
    one = torch.zeros(1, dtype=torch.int64)  # of all
    got.steps = one
    got.run(lists(0, [torch.float32], special=0.0))
    assert one.item() == 1


def test_batches_change_nothing(monkeypatch, exact_roots):
    for rule, numbers in RULES[3:11]:
        whole, cut = (Steps(ops.optimizer_step, rule, numbers, True) for _ in range(2))
        for t in range(2):
            whole.run(lists(t, [torch.float32]), found_inf=torch.zeros(1))
            with monkeypatch.context() as patch:
                patch.setattr(common, "BATCH", 40)
                assert len(list(common.batches(cut.params))) > 2
                cut.run(lists(t, [torch.float32]), found_inf=torch.zeros(1))
        assert all_same(whole.tensors(), cut.tensors())
    monkeypatch.setattr(common, "BATCH", 40)
    bad = [torch.ones(30), torch.ones(30), torch.tensor([NAN])]
    assert found_by(lambda f: ops.scale(bad, bad, 2.0, **f)) == (1.0, 12)


# ---- on a device, beside the CPU ----


class Both:
    """The same call on the CPU and there: the same bits, without a wait."""

    def __init__(self, device, nothing_waits):
        self.device, self.nothing_waits = device, nothing_waits

    def there(self, value):
        if isinstance(value, torch.Tensor):
            return value.to(self.device, copy=True)
        return [self.there(one) for one in value] if isinstance(value, list) else value

    def __call__(self, function, *lists_, ulps=0, **named):
        theirs, keywords = self.there(list(lists_)), {name: self.there(value) for name, value in named.items()}
        with self.nothing_waits():
            function(*theirs, **keywords)
        function(*lists_, **named)
        for mine, its in zip([*lists_, *named.values()], [*theirs, *keywords.values()], strict=True):
            pairs = [(mine, its)] if isinstance(mine, torch.Tensor) else zip(mine, its, strict=True) if isinstance(
                mine, list) else ()
            for a, b in pairs:
                b = b.cpu()
                if not a.is_floating_point():
                    assert torch.equal(a, b)
                elif ulps and a.dtype == torch.float32:
                    close(b, a, ulps)
                else:
                    assert same(a, b) or ulps
        return self


def compare_lists(both):
    types = [*LOW, torch.float32]
    src, y, exact = lists(1, types), lists(2, types), lists(1, [torch.float32])
    for report in ({}, {"found_inf": torch.zeros(1), "first": torch.full((1,), -1, dtype=torch.int32), "base": 3}):
        for by in (torch.tensor([0.3]), 4.0, 0.5):
            both(ops.scale, empty(types), src, by, **report)
        both(ops.axpby, empty(types), torch.tensor([0.3]), src, 1.0, y, **report)
        both(ops.axpby, empty(types), torch.tensor([0.3]), src, 1.0, y, y_was_reported=True, **report)
        both(ops.round_through, empty([torch.float32]), exact, torch.float16, **report)
        for special in (0.0, 0.1):  # the order of sums in double: an ulp when they are rounded
            both(ops.check, lists(4, types, special), torch.tensor([0.3]), 1.0, ulps=1, norm=torch.zeros(1),
                 norms=torch.zeros(len(src)), **report)
    both(lambda tensors, found: ops.scale(tensors, tensors, 0.5, found_inf=found), clones(exact), torch.zeros(1))
    both(ops.cast, empty(types), src)
    for take in (0.0, 1.0):
        both(ops.cast, empty(types), src, only_if=torch.full((1,), take))
    both(ops.zero, clones(src))
    both(ops.clamp, empty(types), src, 0.1)
    both(ops.reconcile, clones(exact), [t.half() for t in y], norms=torch.zeros(len(src)))

    def count(tensors, out, sums):
        ops.statistics(tensors, out)
        sums.copy_(out[:, 10:12].contiguous().view(torch.float64))
        out[:, 10:12] = 0

    both(count, [t for t in lists(3, types, 0.0) if t.numel()], torch.zeros(6, 1120, dtype=torch.int64),
         torch.zeros(6, 2), ulps=1)


def compare_steps(both):
    """Norms make a rate or a denominator, which an ulp of theirs moves: two at a value that is rounded after that."""
    types = [*LOW, torch.float32]
    for rule, numbers in RULES:
        params, grads = lists(5, [torch.float32], special=0.0), lists(6, types, special=0.0)
        low = [p.to(LOW[i % 2]) for i, p in enumerate(params)]
        names = rules.rule_of(rule, **numbers).moments()
        moments = [torch.zeros(1 if (rule, name) == ("novograd", "exp_avg_sq") else p.shape)
                   for name in names for p in params]

        def step(params, grads, low, moments, steps, scale, found, rule=rule, numbers=numbers, names=names):
            n = len(params)
            state = {name: moments[i * n : (i + 1) * n] for i, name in enumerate(names)}
            ops.optimizer_step(rule, params, grads, state, steps=steps, model_params=low, inv_scale=scale,
                               found_inf=found, **numbers)

        for found in (0.0, 1.0):
            steps = torch.zeros(len(params), dtype=torch.int64)
            both(step, params, grads, low, moments, steps, torch.full((1,), 0.125), torch.full((1,), found),
                 ulps=2 if rule in ("lamb", "novograd", "larc") else 0)
            assert steps.tolist() == [1 - found] * len(params)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_a_gpu_has_the_cpus_bits_and_nothing_waits(exact_roots):
    common.double_of(torch.device("cuda", torch.cuda.current_device()))
    both = Both(torch.device("cuda", torch.cuda.current_device()), nothing_waits)
    compare_lists(both)
    compare_steps(both)
