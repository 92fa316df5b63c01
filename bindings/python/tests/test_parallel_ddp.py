# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel and Reducer on two gloo ranks, against the same model on the joint batch."""

import copy
import io
import pickle

import pytest
import torch
from libamp.torch import parallel
from ranks import on_ranks
from torch import nn

DDP = parallel.DistributedDataParallel


def net(dtype=torch.float32):
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def batch(rank, world, step=0, rows=4):
    torch.manual_seed(100 + step)
    whole = torch.randn(world * rows, 6)
    return whole if rank is None else whole[rank * rows : (rank + 1) * rows]


def loss_of(model, x):
    return (model(x.to(next(model.parameters()).dtype)).float() ** 2).mean()


def grads(model):
    return [None if p.grad is None else p.grad.detach().clone() for p in model.parameters()]


def expected(world, steps=1, dtype=torch.float32, first=0):
    """Gradients of the mean loss of all ranks: each rank's computed alone, and averaged in FP64."""
    total = None
    for rank in range(world):
        model = net(dtype)
        for step in range(first, first + steps):
            loss_of(model, batch(rank, world, step)).backward()
        own = [g.double() for g in grads(model)]
        total = own if total is None else [a + b for a, b in zip(total, own, strict=True)]
    return [g / world for g in total]


def assert_close(found, wanted, dtype, adds):
    """So many roundings, each half a unit of the type, of numbers no larger than twice the largest."""
    for f, w in zip(found, wanted, strict=True):
        bound = adds * torch.finfo(dtype).eps * max(float(w.abs().max()) * 2, 1e-6)
        assert float((f.double() - w).abs().max()) <= bound


OPTIONS = [
    {},
    {"delay_allreduce": True},
    {"message_size": 1},
    {"message_size": 100, "gradient_predivide_factor": 2.0},
    {"message_size": 100, "allreduce_always_fp32": True},
    {"message_size": 1, "num_allreduce_streams": 2},
    {"message_size": 100, "retain_allreduce_buffers": True},
]


def _train(rank, world, options, dtype):
    model = DDP(net(dtype), **options)
    seen = []
    for step in range(3):  # learns, then overlaps twice
        model.zero_grad()
        loss_of(model, batch(rank, world, step)).backward()
        seen.append(grads(model))
    if options.get("retain_allreduce_buffers"):
        inside = [
            any(0 <= p.grad.data_ptr() - b.data_ptr() < b.numel() * b.element_size() for b in model.allreduce_buffers)
            for p in model.parameters()
        ]
        assert all(inside)
    return seen


OTHER_TYPES = [torch.float16, torch.bfloat16, torch.float64]
CASES = [(o, torch.float32) for o in OPTIONS] + [(OPTIONS[i], dtype) for i in (0, 2, 3) for dtype in OTHER_TYPES]


@pytest.mark.parametrize(("options", "dtype"), CASES, ids=lambda value: str(value))
def test_gradients_are_the_mean_of_all_ranks(options, dtype):
    for results in on_ranks(_train, options, dtype):
        for step, found in enumerate(results):
            assert_close(found, expected(2, dtype=dtype, first=step), dtype, adds=4)


def _as_torch_2_0(rank, world, options):
    del torch.Tensor.register_post_accumulate_grad_hook
    torch._C._current_graph_task_id = None
    return _train(rank, world, options, torch.float32)


@pytest.mark.skipif(not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"), reason="this torch has none")
def test_without_hooks_after_accumulation():
    for results in on_ranks(_as_torch_2_0, {"message_size": 1}):
        for step, found in enumerate(results):
            assert_close(found, expected(2, first=step), torch.float32, adds=4)


def _sum(rank, world, factor):
    model = DDP(net(), gradient_average=False, gradient_predivide_factor=factor)
    loss_of(model, batch(rank, world)).backward()
    return grads(model)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_without_average_the_predivision_stays(factor):
    for found in on_ranks(_sum, factor):
        assert_close(found, [g * 2 / factor for g in expected(2)], torch.float32, adds=4)


def _accumulate(rank, world, off):
    model = DDP(net(), message_size=50)
    loss_of(model, batch(rank, world, 7)).backward()
    model.zero_grad()
    if off:
        model.disable_allreduce()
    loss_of(model, batch(rank, world, 0)).backward()
    local = grads(model)
    model.enable_allreduce()
    loss_of(model, batch(rank, world, 1)).backward()
    return local, grads(model)


@pytest.mark.parametrize("off", [False, True])
def test_gradients_accumulate(off):
    results = on_ranks(_accumulate, off)
    for _, found in results:
        assert_close(found, expected(2, steps=2), torch.float32, adds=8)
    same = all(torch.equal(a, b) for a, b in zip(results[0][0], results[1][0], strict=True))
    assert same != off  # what was not reduced is each rank's own


class Forked(nn.Module):
    """Each rank may take its own way; `never` is taken by none."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.left, self.right, self.never = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x, left):
        x = self.first(x)
        return self.left(x) if left else self.right(x)


def _unused(rank, world, options):
    model = DDP(Forked(), **options)
    x = torch.ones(2, 4)
    for step in range(3):
        model.zero_grad()
        model(x, left=(rank + step) % 2 == 0).sum().backward()
    return {name: p.grad for name, p in model.module.named_parameters()}


@pytest.mark.parametrize("options", [{}, {"message_size": 1}, {"delay_allreduce": True}], ids=str)
def test_parameters_that_not_all_ranks_use(options):
    first, second = on_ranks(_unused, options)
    model = Forked()
    (model(torch.ones(2, 4), True).sum() / 2 + model(torch.ones(2, 4), False).sum() / 2).backward()
    for name, param in model.named_parameters():
        if param.grad is None:
            assert first[name] is None and second[name] is None
        else:
            assert torch.equal(first[name], second[name])
            assert_close([first[name]], [param.grad.double()], torch.float32, adds=8)


def _broadcast(rank, world):
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2).half())
    model[1].running_mean.fill_(rank)
    DDP(model)
    reducer_model = nn.Linear(3, 3)
    parallel.Reducer(reducer_model)
    params, others = ([p.detach() for p in m.parameters()] for m in (model, reducer_model))
    return params, model[1].running_mean, others


def test_parameters_become_rank_0s_and_buffers_stay():
    (first, mean0, r0), (second, mean1, r1) = on_ranks(_broadcast)
    assert all(torch.equal(a, b) for a, b in zip(first + r0, second + r1, strict=True))
    torch.manual_seed(0)
    assert torch.equal(first[0], nn.Linear(3, 3).weight)
    assert mean0[0] == 0 and mean1[0] == 1


def _order(rank, world):
    """The ranks use layers in opposite orders: rank 0's order of buckets holds for both, and nothing hangs."""

    class Swapped(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(self.a(x)) if rank == 0 else self.a(self.b(x))

    model = DDP(Swapped(), message_size=1)
    for _ in range(3):
        model.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
    return grads(model), [bucket.indices for bucket in model._buckets]


def test_order_is_rank_0s():
    (first, order0), (second, order1) = on_ranks(_order)
    assert (
        order0 == order1
        and sorted(index for bucket in order0 for index in bucket) == [0, 1, 2, 3]
        and set(order0[0] + order0[1]) == {2, 3}
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _triggers(rank, world):
    model = net()
    ddp = DDP(model, allreduce_trigger_params=[model[2].weight], message_size=1)
    loss_of(ddp, batch(rank, world)).backward()
    ddp.zero_grad()
    loss_of(ddp, batch(rank, world)).backward()
    return [len(bucket.indices) for bucket in ddp._buckets], grads(model)


def test_trigger_parameters_end_buckets():
    for sizes, found in on_ranks(_triggers):
        assert len(sizes) == 2 and sum(sizes) == 6
        assert_close(found, expected(2), torch.float32, adds=4)


def _communicators(rank, world):
    groups = [torch.distributed.new_group(), torch.distributed.new_group()]
    model = DDP(net(), allreduce_communicators=(groups, [None, None]), message_size=1)
    for _ in range(2):
        model.zero_grad()
        loss_of(model, batch(rank, world)).backward()
    return grads(model), model._groups == groups


def test_groups_of_the_callers():
    for found, same in on_ranks(_communicators):
        assert same
        assert_close(found, expected(2), torch.float32, adds=4)


def _copies(rank, world):
    model = DDP(net(), message_size=1)
    loss_of(model, batch(rank, world)).backward()
    results = []
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        file = io.BytesIO()
        torch.save(other.state_dict(), file)
        for _ in range(2):
            other.zero_grad()
            loss_of(other, batch(rank, world)).backward()
        results.append(grads(other))
    return results, list(model.state_dict())


def test_pickles_and_copies_reduce_too():
    for results, names in on_ranks(_copies):
        assert all(name.startswith("module.") for name in names)
        for found in results:
            assert_close(found, expected(2), torch.float32, adds=4)


def _freeze(rank, world):
    model = DDP(net(), message_size=1)
    loss_of(model, batch(rank, world)).backward()
    model.module[0].requires_grad_(False)
    model.zero_grad()
    loss_of(model, batch(rank, world)).backward()
    model.module[0].requires_grad_(True)
    for _ in range(2):
        model.zero_grad()
        loss_of(model, batch(rank, world)).backward()
    back = grads(model)
    torch.manual_seed(0)
    model.module.append(nn.Linear(3, 2))
    for _ in range(2):
        model.zero_grad()
        loss_of(model, batch(rank, world)).backward()
    return back, grads(model)


def test_the_list_of_parameters_may_change():
    (back, grown), (_, other) = on_ranks(_freeze)
    assert_close(back, expected(2), torch.float32, adds=4)
    assert len(grown) == 8 and all(torch.equal(a, b) for a, b in zip(grown, other, strict=True))


def _checkpointed(rank, world, reentrant):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net()

        def forward(self, x):
            x = self.body[1](self.body[0](x))
            return self.body[4](checkpoint(self.body[2:4], x, use_reentrant=reentrant))

    model = DDP(Checkpointed(), message_size=1)
    for _ in range(2):
        model.zero_grad()
        loss_of(model, batch(rank, world)).backward()
    return grads(model)


@pytest.mark.parametrize("reentrant", [False, True])
def test_backward_nested_in_backward(reentrant):
    for found in on_ranks(_checkpointed, reentrant):
        assert_close(found, expected(2), torch.float32, adds=4)


def _penalty(rank, world):
    model = DDP(net(), message_size=1)
    x = batch(rank, world).requires_grad_()
    for step in range(2):
        model.zero_grad()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        assert all(p.grad is None for p in model.parameters()) and model.needs_refresh == (step == 0)
        slope.square().sum().backward()
    return grads(model.module[0:3])


def test_gradient_penalty():
    first, second = on_ranks(_penalty)
    assert all(
        torch.equal(a, b) and float(a.abs().sum()) > 0 for a, b in zip(first, second, strict=True) if a is not None
    )


def _failing(rank, world):
    model = DDP(net(), message_size=1)
    loss_of(model, batch(rank, world)).backward()
    model.zero_grad()
    out = model(batch(rank, world))

    def fail(_):
        raise KeyError("mine")

    out.register_hook(fail)
    with pytest.raises(KeyError):
        out.sum().backward()
    model.zero_grad()
    loss_of(model, batch(rank, world)).backward()
    return grads(model)


def test_a_backward_that_fails_leaves_no_trace():
    for found in on_ranks(_failing):
        assert_close(found, expected(2), torch.float32, adds=4)


def _reducer(rank, world):
    model = net()
    reducer = parallel.Reducer(model)
    loss_of(model, batch(rank, world)).backward()
    reducer.reduce()
    loose = [torch.full((3,), float(rank)), [torch.full((2,), 10.0 * rank, dtype=torch.bfloat16)]]
    parallel.Reducer(loose).reduce()
    return grads(model), loose


def test_reducer():
    for found, loose in on_ranks(_reducer):
        assert_close(found, expected(2), torch.float32, adds=4)
        assert loose[0].tolist() == [0.5] * 3 and loose[1][0].tolist() == [5.0] * 2


def _errors(rank, world):
    for bad in (
        {"shared_param": False},
        {"delay_allreduce": True, "num_allreduce_streams": 2},
        {"delay_allreduce": True, "allreduce_trigger_params": list(net().parameters())},
    ):
        with pytest.raises(ValueError):
            DDP(net(), **bad)
    model = DDP(nn.Embedding(4, 2, sparse=True), delay_allreduce=True)
    with pytest.raises(RuntimeError, match="sparse"):
        model(torch.tensor([1])).sum().backward()


def test_errors():
    on_ranks(_errors)
    with pytest.raises(RuntimeError, match="init_process_group"):
        DDP(net())
