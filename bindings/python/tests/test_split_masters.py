# SPDX-License-Identifier: Apache-2.0
"""master_weights="split": the numbers and the files of FP32 masters, without a second copy of the upper halves."""
from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from libamp import kernels  # noqa: E402
from libamp.torch import amp, optimizers, parallel  # noqa: E402

MAKERS = {
    "FusedAdam": lambda params: optimizers.FusedAdam(params, lr=1e-2, weight_decay=0.01),
    "FusedSGD": lambda params: optimizers.FusedSGD(params, lr=0.1, momentum=0.9),
    "FusedLAMB": lambda params: optimizers.FusedLAMB(params, lr=1e-2),
    "FusedNovoGrad": lambda params: optimizers.FusedNovoGrad(params, lr=1e-2),
    "FusedAdagrad": lambda params: optimizers.FusedAdagrad(params, lr=1e-2),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=1e-2),
    "Adam": lambda params: torch.optim.Adam(params, lr=1e-2, foreach=False),
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=1e-3),
}


def make_model():
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(80, 7)
    )
    return model.to(memory_format=torch.channels_last)


def start(masters, make, **settings):
    model = make_model()
    optimizer = make(model.parameters())
    return amp.initialize(model, optimizer, opt_level="O5", master_weights=masters, verbosity=0, **settings)


def train(model, optimizer, steps, begin=0):
    for i in range(begin, begin + steps):
        torch.manual_seed(100 + i)
        inputs, targets = torch.randn(8, 2, 6, 6), torch.randint(7, (8,))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs).float(), targets)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def halves(model):
    return {name: param.detach().clone() for name, param in model.named_parameters()}


@pytest.mark.parametrize("name", MAKERS)
def test_steps_and_files_are_those_of_fp32_masters(name):
    whole, split = start(None, MAKERS[name]), start("split", MAKERS[name])
    for each in (whole, split):
        train(*each, 12)
    assert same(halves(whole[0]), halves(split[0]))
    assert same(whole[0].state_dict(), split[0].state_dict())
    assert same(whole[1].state_dict(), split[1].state_dict())
    assert {param.dtype for param in split[0].parameters()} == {torch.bfloat16, torch.float32}  # batch norm's
    amp.shutdown()
    assert same(halves(whole[0]), halves(split[0]))
    assert all(param.dtype is torch.float32 for param in split[0].parameters())


@pytest.mark.parametrize("name", ["FusedAdam", "AdamW"])
@pytest.mark.parametrize("forward", [True, False])
def test_a_training_goes_on_from_either_file(name, forward):
    a, b = start("split" if forward else None, MAKERS[name]), start(None if forward else "split", MAKERS[name])
    train(*a, 5)
    files = copy.deepcopy((a[0].state_dict(), a[1].state_dict()))
    b[0].load_state_dict(files[0])
    b[1].load_state_dict(files[1])
    for each in (a, b):
        train(*each, 5, begin=5)
    assert same(a[0].state_dict(), b[0].state_dict())
    assert same(a[1].state_dict(), b[1].state_dict())


def test_between_steps_there_is_no_fp32_copy():
    model, optimizer = start("split", MAKERS["AdamW"])
    train(model, optimizer, 2)
    param = model[4].weight
    assert param.dtype is torch.bfloat16 and param.untyped_storage().nbytes() == 2 * param.numel()
    assert any(each is param for group in optimizer.param_groups for each in group["params"])
    assert kernels.remainder_bytes(param.numel()) == 2 * param.numel() + 4 * -(-param.numel() // 32)
    assert param._amp_remainder.untyped_storage().nbytes() == kernels.remainder_bytes(param.numel())
    assert param.grad.dtype is torch.bfloat16
    memory = amp.memory(model)
    whole, _ = start(None, MAKERS["AdamW"])
    assert 0 < memory.masters == amp.memory(whole).masters_split < amp.memory(whole).masters


def test_an_overflow_skips_and_changes_nothing():
    model, optimizer = start("split", MAKERS["FusedAdam"], loss_scale="dynamic")
    train(model, optimizer, 2)
    before = copy.deepcopy(model.state_dict())
    inputs = torch.full((8, 2, 6, 6), float("inf"))
    with amp.scale_loss(model(inputs).float().sum(), optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    names = [name for name, _ in model.named_parameters()]
    assert all(torch.equal(before[name], model.state_dict()[name]) for name in names)


def test_closures_see_the_model_in_bfloat16():
    seen = []
    model, optimizer = start("split", lambda params: torch.optim.SGD(params, lr=0.1))

    def closure():
        seen.append(model[4].weight.dtype)
        optimizer.zero_grad()
        loss = model(torch.ones(2, 2, 6, 6)).float().square().mean()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        return loss

    before = copy.deepcopy(model.state_dict()["4.weight"])
    optimizer.step(closure)
    assert seen == [torch.bfloat16]
    assert not torch.equal(before, model.state_dict()["4.weight"])


def test_parameters_that_join_later_are_exact():
    results = []
    for masters in (None, "split"):
        model = make_model()
        optimizer = MAKERS["FusedAdam"](model[0].parameters())
        model, optimizer = amp.initialize(
            model, optimizer, opt_level="O5", master_weights=masters, verbosity=0
        )
        train(model, optimizer, 2)
        optimizer.add_param_group({"params": list(model[4].parameters())})
        train(model, optimizer, 3)
        results.append(copy.deepcopy(model.state_dict()))
    # the late ones were bfloat16 already: FP32 masters are made of that, too
    assert same(*results)


def test_what_is_written_before_training_is_the_master():
    """As DistributedDataParallel's broadcast writes it: every rank goes on from the same bits."""
    model, optimizer = start("split", MAKERS["FusedAdam"])
    with torch.no_grad():
        model[4].weight.fill_(0.3)
    train(model, optimizer, 1)
    assert torch.equal(model[4].weight.detach(), model.state_dict()["4.weight"].bfloat16())
    again, other = start("split", MAKERS["FusedAdam"])
    with torch.no_grad():
        again[4].weight.copy_(torch.full_like(again[4].weight, 0.3))
    train(again, other, 1)
    assert same(model.state_dict(), again.state_dict())


@pytest.mark.parametrize(("level", "says"), [("O2", "bfloat16"), ("O4", "master_weights"), ("O1", "master_weights")])
def test_levels_without_bfloat16_parameters_refuse(level, says):
    model = make_model()
    with pytest.raises(RuntimeError, match=says):
        amp.initialize(
            model, MAKERS["AdamW"](model.parameters()), opt_level=level, master_weights="split", verbosity=0
        )
    assert all(param.dtype is torch.float32 for param in model.parameters())


def test_kernels_split_and_join():
    values = torch.tensor([1.0, 1.00390625, 1.01171875, -0.0, 3.4028235e38, float("inf"), 1e-42])
    low, rest = torch.empty(7, dtype=torch.bfloat16), torch.empty(kernels.remainder_bytes(7) // 4)
    kernels.split([low], [rest], [values])
    assert torch.equal(low, values.bfloat16())
    back = torch.empty(7)
    kernels.join([back], [low], [rest])
    assert torch.equal(back.view(torch.int32), values.view(torch.int32))
    with pytest.raises(ValueError, match="remainder_bytes"):
        kernels.split([low], [rest[:2]], [values])
    with pytest.raises(ValueError, match="bf16"):
        kernels.split([values.half()], [rest], [values])


def leaf_of(param):
    return param.expand_as(param).grad_fn.next_functions[0][0]


def test_autograd_has_the_same_leaf_after_a_step():
    """DistributedDataParallel hooks it once."""
    model, optimizer = start("split", MAKERS["AdamW"])
    before = leaf_of(model[4].weight)
    train(model, optimizer, 2)
    assert leaf_of(model[4].weight) is before


class Derived(optimizers.FusedAdam):
    def step(self, *args, **kwargs):
        return super().step(*args, **kwargs)


@pytest.mark.parametrize(
    "make",
    [
        lambda params: Derived(params, lr=1e-2),
        lambda params: parallel.LARC.LARC(optimizers.FusedSGD(params, lr=0.1, momentum=0.9)),
        lambda params: optimizers.FusedAdam(params, lr=1e-2, capturable=True),
        lambda params: optimizers.FusedNovoGrad(params, lr=1e-4, norm_type=0),
    ],
)
def test_what_is_not_stepped_in_parts_has_fp32(make):
    whole, split = start(None, make), start("split", make)
    for each in (whole, split):
        train(*each, 6)
    assert same(whole[0].state_dict(), split[0].state_dict())


def test_a_frozen_parameter_stays():
    whole, split = start(None, MAKERS["FusedSGD"]), start("split", MAKERS["FusedSGD"])
    for model, optimizer in (whole, split):
        train(model, optimizer, 2)
        model[4].bias.requires_grad_(False)
        train(model, optimizer, 2, begin=2)
    assert same(whole[0].state_dict(), split[0].state_dict())


@pytest.mark.parametrize(
    "touch", [lambda optimizer: optimizer.load_state_dict(optimizer.state_dict()), lambda optimizer: optimizer.step()]
)
def test_an_optimizer_that_is_touched_first_loses_nothing(touch):
    model, optimizer = start("split", lambda params: torch.optim.SGD(params, lr=0.0))
    before = copy.deepcopy(model.state_dict()["4.weight"])
    touch(optimizer)
    train(model, optimizer, 1)
    assert torch.equal(before, model.state_dict()["4.weight"])


@pytest.mark.parametrize("masters", [True, "split"])
def test_a_model_may_be_laid_out_anew(masters):
    model, optimizer = start(masters, MAKERS["FusedAdam"])
    train(model, optimizer, 2)
    before = copy.deepcopy(model.state_dict())
    for layout in (torch.contiguous_format, torch.channels_last):
        model.to(memory_format=layout)
        assert same(model.state_dict(), before)
    model.to(memory_format=torch.contiguous_format)
    train(model, optimizer, 2, 2)
    moved = copy.deepcopy(model.state_dict())
    amp.shutdown()
    model, optimizer = start(masters, MAKERS["FusedAdam"])
    train(model, optimizer, 4)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(moved[name], value, rtol=1e-2, atol=1e-2)


def test_slices_of_one_tensor_keep_their_lower_halves():
    model, weights = torch.nn.Module(), torch.randn(96, 32)
    model.a, model.b, model.c = (torch.nn.Parameter(part) for part in weights.clone().chunk(3))
    model.forward = lambda x: sum(x @ each.t() for each in (model.a, model.b, model.c))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O5", master_weights="split", verbosity=0)
    with amp.scale_loss(model(torch.ones(4, 32)).float().sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
    state = model.state_dict()
    assert torch.equal(torch.cat([state[name] for name in "abc"]), weights)
