# SPDX-License-Identifier: Apache-2.0
"""libamp on a device that torch has and libamp has no kernels for: registered through PrivateUse1 (toydevice.py)."""
import pytest

torch = pytest.importorskip("torch")
import toydevice  # noqa: E402
from libamp.torch import _torch_ops as ops  # noqa: E402
from libamp.torch._torch_ops import rules  # noqa: E402
from test_torch_ops import LOW, RULES, all_same, clones, empty, lists  # noqa: E402
from toydevice import on_toy  # noqa: E402

TYPES = [*LOW, torch.float32]


def there(tensors):
    return [tensor.to("toy") for tensor in tensors]


def here(tensors):
    return [tensor.cpu() for tensor in tensors]


@on_toy
def test_the_device_is_none_that_libamp_knows():
    x = torch.ones(3).to("toy")
    before = toydevice.waits()
    assert x.device == torch.device("toy", 0) and not x.is_cpu and not x.is_cuda
    y = (x * 2).t()
    assert toydevice.waits() == before and y.device == x.device
    assert y.sum().item() == 6.0 and toydevice.waits() == before + 1
    with pytest.raises(RuntimeError, match="same device"):
        torch.mm(torch.ones(2, 2), torch.ones(2, 2).to("toy"))


class Both:
    """The same call on the CPU and there: the same bits, and no wait."""

    def __init__(self):
        self.waited = 0

    def __call__(self, function, *lists_, **named):
        def moved(value):
            if isinstance(value, torch.Tensor):
                return value.to("toy")
            if isinstance(value, dict):
                return {name: moved(of) for name, of in value.items()}
            return there(value) if isinstance(value, list) else value

        theirs, keywords = [moved(value) for value in lists_], {name: moved(value) for name, value in named.items()}
        before = toydevice.waits()
        function(*theirs, **keywords)
        self.waited += toydevice.waits() - before
        function(*lists_, **named)
        for mine, its in zip([*lists_, *named.values()], [*theirs, *keywords.values()], strict=True):
            if isinstance(mine, torch.Tensor) and not mine.is_floating_point():
                assert torch.equal(mine, its.cpu())
            elif isinstance(mine, torch.Tensor):
                assert all_same([mine], [its.cpu()])
            elif isinstance(mine, list):
                assert all_same(mine, here(its))


@on_toy
def test_lists_have_the_cpus_bits_and_nothing_waits():
    both = Both()
    src, y = lists(1, TYPES), lists(2, TYPES)
    for report in ({}, {"found_inf": torch.zeros(1), "first": torch.full((1,), -1, dtype=torch.int32), "base": 3}):
        for by in (torch.tensor([0.3]), 4.0, 0.5):
            both(ops.scale, empty(TYPES), src, by, **report)
        both(ops.axpby, empty(TYPES), torch.tensor([0.3]), src, 1.0, y, **report)
        both(ops.add, empty(TYPES), torch.tensor([0.3]), src, 1.0, y, **report)
        both(ops.round_through, empty([torch.float32]), lists(1, [torch.float32]), torch.float16, **report)
        norm, norms = torch.zeros(1), torch.zeros(len(src))
        both(ops.check, src, torch.tensor([0.3]), 1.0, norm=norm, norms=norms, **report)
    in_place = lists(1, [torch.float32])
    both(lambda lists_, found: ops.scale(lists_, lists_, 0.5, found_inf=found), in_place, torch.zeros(1))
    both(ops.cast, empty(TYPES), src)
    both(ops.cast, empty(TYPES), src, only_if=torch.ones(1))
    both(ops.zero, clones(src))
    both(ops.clamp, empty(TYPES), src, 0.1)
    both(ops.reconcile, lists(1, [torch.float32]), [t.half() for t in lists(2, TYPES)], norms=torch.zeros(len(src)))
    both(ops.statistics, [t for t in src if t.numel()], torch.zeros(6, 1120, dtype=torch.int64))
    assert both.waited == 0


@on_toy
def test_steps_have_the_cpus_bits_and_nothing_waits():
    both = Both()
    for rule, numbers in RULES:
        params, grads = lists(5, [torch.float32], special=0.0), lists(6, TYPES, special=0.0)
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
            both(step, params, grads, low, moments, steps, torch.full((1,), 0.125), torch.full((1,), found))
            assert steps.tolist() == [1 - found] * len(params)
    assert both.waited == 0
