# SPDX-License-Identifier: Apache-2.0
"""Scripts that edit a model's 16-bit parameters between steps: no edit is lost, and none is missing in a checkpoint."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

from levels import WITH_MASTERS  # noqa: E402
from libamp import _findings, kernels  # noqa: E402
from libamp.torch import amp, optimizers  # noqa: E402
from libamp.torch.amp import session  # noqa: E402
from training import backward, batches, far, fp32_weights, net  # noqa: E402


@pytest.fixture(autouse=True)
def _ends():
    with warnings.catch_warnings():
        warnings.simplefilter("error", _findings.FindingWarning)
        yield
    amp.shutdown()


def _clip(p):  # a WGAN's critic
    p.data.clamp_(-0.1, 0.1)


def _spectral(p):
    if p.dim() == 2:
        p.data.div_(torch.linalg.matrix_norm(p.data.float(), 2).to(p.dtype))


def _unit_rows(p):  # weight norm by hand
    p.data.div_(p.data.flatten(1).norm(dim=1, keepdim=True) if p.dim() == 2 else 1.0)


def _prune(p):
    p.data.mul_(p.data.abs() > 0.05)


def _permute(p):  # every sum of its elements stays
    p.data.copy_(p.data.flip(0))


def _negate(p):
    p.data.neg_()


def _through_numpy(p):
    values = p.detach().view(torch.int16).numpy()
    values[..., :1] = 0


def _other_memory(p):
    p.data = p.data.clamp(-0.1, 0.1)


def _counted(p):
    with torch.no_grad():
        p.clamp_(-0.1, 0.1)


EDITS = [_clip, _spectral, _unit_rows, _prune, _permute, _negate, _other_memory, _counted]
OPTIMIZERS = {
    "loop": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.5, foreach=False),
    "foreach": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.5, foreach=True),
    "fused": lambda params: torch.optim.Adam(params, lr=0.01, fused=True),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=0.01),
    "FusedSGD": lambda params: optimizers.FusedSGD(params, lr=0.1, momentum=0.5),
    "FusedAdam": lambda params: optimizers.FusedAdam(params, lr=0.01),
}


def _train(level, make, edit, steps=5, **settings):
    model = net()
    optimizer = make(model.parameters())
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0, **settings)
    for batch in batches(steps):
        backward(model, optimizer, batch)
        optimizer.step()
        optimizer.zero_grad()
        for p in model.parameters() if edit is not None else ():
            edit(p)
    weights = fp32_weights(model)
    shown = [p.detach().float() for p in model.parameters()]
    assert far(weights, shown) <= max(w.abs().max().item() for w in weights) / 128, "a checkpoint is the model"
    amp.shutdown()
    return weights


MODES = [("O2", {}), ("O5", {}), ("O5", {"master_weights": "split"})]


@pytest.mark.parametrize("level,settings", MODES, ids=["O2", "O5", "O5-split"])
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__[1:])
def test_the_next_step_begins_with_what_was_edited(level, settings, edit):
    make = OPTIMIZERS["loop"]
    exact, ours = _train("O0", make, edit), _train(level, make, edit, **settings)
    assert far(exact, _train("O0", make, None)) > 0.05  # the edits matter
    # some roundings of 16 bits; where one decides whether an element is pruned, that element
    assert far(ours, exact) < (0.051 if edit is _prune else 0.005 if level == "O2" else 0.03)


@pytest.mark.parametrize("level", WITH_MASTERS)
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "loop"])
def test_edits_count_whatever_steps(level, name):
    ours = _train(level, OPTIMIZERS[name], _clip)
    assert far(ours, _train("O0", OPTIMIZERS[name], _clip)) < 0.03  # Adam's steps are signs at first
    low = torch.float16 if level == "O2" else torch.bfloat16
    assert max(w.abs().max().to(low).item() for w in ours) == torch.tensor(0.1).to(low).item()


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_a_closure_and_an_edit_of_memory_that_torch_does_not_see(level):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=1.0)
    for batch in batches(4):

        def closure(batch=batch):
            optimizer.zero_grad()
            backward(model, optimizer, batch, 0.0)
            return torch.zeros(())

        optimizer.step(closure)
        for p in model.parameters():
            _through_numpy(p)
    assert all((value[..., :1] == 0).all() for value in model.state_dict().values())


def _start(level, **settings):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0, **settings)
    for batch in batches(3):
        backward(model, optimizer, batch)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def _bits(tensors):
    return [tensor.detach().view(torch.int32).clone() for tensor in tensors]


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_elements_that_nobody_wrote_keep_every_bit_of_their_master(level):
    model, optimizer = _start(level)
    before = _bits(amp.master_params(optimizer))
    model[0].weight.data[3, 2:5] = 7.0
    after = _bits(amp.master_params(optimizer))
    changed = [(a != b).nonzero().tolist() for a, b in zip(after, before)]
    assert changed == [[[3, 2], [3, 3], [3, 4]], [], [], []]
    kept = [p.data.clone() for p in model.parameters()]
    before = _bits(amp.master_params(optimizer))
    for p in model.parameters():  # averages swapped in for an evaluation, and out
        p.data.zero_()
    model(batches(1)[0][0])
    for p, value in zip(model.parameters(), kept):
        p.data.copy_(value)
    optimizer.zero_grad()
    optimizer.step()  # without gradients
    assert all(torch.equal(a, b) for a, b in zip(_bits(amp.master_params(optimizer)), before))


@pytest.mark.parametrize("threads", [1, 4])
def test_an_edit_is_found_in_each_block_of_a_parameter(threads):
    """Threads share the blocks. Two of them exchange their elements at the end."""
    before = kernels.get_num_threads()
    kernels.set_num_threads(threads)
    try:
        model = torch.nn.Linear(700, 500, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        amp.initialize(model, optimizer, opt_level="O2", verbosity=0, loss_scale=128.0)
        (master,) = amp.master_params(optimizer)
        flat, wide = model.weight.data.view(-1), master.data.view(-1)
        for at in (None, 0, 8191, 8192, 65535, 65536, 262144, 349_999, slice(0, 131072)):
            if isinstance(at, slice):
                flat[at] = flat[at].view(2, -1).flip(0).reshape(-1)
            elif at is not None:
                flat[at] = 3.0
            edited, exact = flat.clone(), wide.clone()
            with amp.scale_loss(model(torch.ones(1, 700)).float().sum(), optimizer) as loss:
                loss.backward()
            optimizer.step()
            assert torch.equal(flat, edited)
            assert torch.equal(wide, torch.where(exact.half() == edited, exact, edited.float()))
            optimizer.zero_grad()
    finally:
        kernels.set_num_threads(before)


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_parameters_without_gradients_in_groups_and_shared(level):
    model = net()
    unused, tied = torch.nn.Linear(16, 8), torch.nn.Sequential(model[0], model[0])
    groups = [
        {"params": [model[0].weight, model[2].weight]},
        {"params": [model[0].bias, model[2].bias], "lr": 0.01},
        {"params": list(unused.parameters())},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    amp.initialize([model, tied, unused], optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
    for batch in batches(3):
        backward(model, optimizer, batch)
        optimizer.step()
        unused.weight.data.fill_(0.25)
        tied[1].weight.data[0] = 0.75
        low = model[0].weight.dtype  # a master that rounds to what was written stays
        assert torch.equal(unused.state_dict()["weight"].to(low), torch.full((8, 16), 0.25, dtype=low))
        assert torch.equal(model.state_dict()["0.weight"][0].to(low), torch.full((8,), 0.75, dtype=low))
        optimizer.zero_grad()


@pytest.mark.parametrize("level", WITH_MASTERS)
@pytest.mark.parametrize("edit", [_clip, _other_memory, _counted], ids=lambda edit: edit.__name__[1:])
def test_checkpoints_masters_copies_and_the_end_have_an_edit(level, edit):
    for read in (
        lambda model, optimizer: model.state_dict().values(),
        lambda model, optimizer: model[2].state_dict().values(),
        lambda model, optimizer: amp.master_params(optimizer),
        lambda model, optimizer: copy.deepcopy(model).state_dict().values(),
        lambda model, optimizer: amp.shutdown() or model.parameters(),
    ):
        model, optimizer = _start(level)
        for p in model.parameters():
            edit(p)
        shown = {p.shape: p.detach() for p in model.parameters()}
        for value in read(model, optimizer):
            assert value.dtype is torch.float32
            assert torch.equal(value.detach().to(shown[value.shape].dtype), shown[value.shape])
        amp.shutdown()


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_a_checkpoint_between_halves_of_a_step_has_an_edit(level):
    model, optimizer = _start(level)
    batch = batches(1)[0]
    with amp.scale_loss(
        torch.nn.functional.mse_loss(model(batch[0]).float(), batch[1]), optimizer, delay_unscale=True
    ) as scaled:
        scaled.backward()
    model[0].weight.data.fill_(0.5)
    assert torch.equal(model.state_dict()["0.weight"], torch.full((16, 8), 0.5))
    optimizer.zero_grad()


class Sam(torch.optim.SGD):
    """Climbs in the tensors of its groups, and steps from where it was."""

    @torch.no_grad()
    def climb(self):
        self.kept = [(p, p.clone()) for group in self.param_groups for p in group["params"]]
        for p, _ in self.kept:
            p.add_(0.05)

    @torch.no_grad()
    def back(self):
        for p, value in self.kept:
            p.copy_(value)


def _sam(level, edit=_clip):
    model = net()
    optimizer = Sam(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
    for batch in batches(4):
        backward(model, optimizer, batch)
        optimizer.climb()
        optimizer.zero_grad()
        backward(model, optimizer, batch)
        optimizer.back()
        optimizer.step()
        optimizer.zero_grad()
        for p in model.parameters() if edit is not None else ():
            edit(p)
    weights = fp32_weights(model)
    amp.shutdown()
    return weights


@pytest.mark.parametrize("level", WITH_MASTERS)
@pytest.mark.parametrize("edit", [_clip, _counted], ids=lambda edit: edit.__name__[1:])
def test_a_climb_in_masters_begins_from_an_edit(level, edit):
    assert far(_sam(level, edit), _sam("O0", edit)) < 0.005


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_writes_to_masters_are_not_taken_for_stale_parameters(level):
    """Between a forward and a step parameters are not their masters: the masters count, also through `.data`."""
    model, optimizer = _start(level)
    masters = list(amp.master_params(optimizer))
    backward(model, optimizer, batches(1)[0], 0.0)
    for p in masters[:2]:
        p.data.fill_(0.5)
    with torch.no_grad():
        for p in masters[2:]:
            p.fill_(0.5)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    assert all(torch.equal(value, torch.full_like(value, 0.5)) for value in model.state_dict().values())


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_a_load_and_an_edit_agree(level):
    model, _ = _start(level)
    model.load_state_dict({name: torch.full_like(value, 0.3) for name, value in model.state_dict().items()})
    with torch.no_grad():
        model[0].bias.fill_(2.0)
    model(batches(1)[0][0])
    assert torch.equal(model.state_dict()["0.bias"], torch.full((16,), 2.0))
    assert torch.equal(model.state_dict()["2.bias"], torch.full((4,), 0.3))


# ---- GPUs, where the library does not look for writes through `.data` ----


@pytest.mark.parametrize("level", WITH_MASTERS)
@pytest.mark.parametrize("edit", [_clip, _through_numpy, _counted, None])
def test_on_a_gpu_the_first_iterations_tell_of_writes_that_torch_does_not_count(level, edit, monkeypatch):
    """The CPU's tensors are taken for a GPU's."""
    monkeypatch.setattr(session, "is_elsewhere", lambda param: True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _train(level, OPTIMIZERS["loop"], edit)
        _sam(level, edit)
    codes = [str(each.message)[:7] for each in caught if issubclass(each.category, _findings.FindingWarning)]
    told = edit in (_clip, _through_numpy)
    assert set(codes) == ({"AMP-M49"} if told else set())
    assert len(codes) in ((7, 8) if told else (0,))  # each parameter once in a training; one bias is within the limits


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_on_a_gpu_writes_to_a_parameter_are_kept_once_one_was_seen(level, monkeypatch):
    monkeypatch.setattr(session, "is_elsewhere", lambda param: True)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
    mine, weight = optimizer._amp_stash.session, model[0].weight
    for step, batch in enumerate(batches(6)):
        backward(model, optimizer, batch)
        if step != 3:  # its parameter is the master's alone
            weight.data.clamp_(-0.02, 0.02)
        before = mine.masters[id(weight)].clone()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mine.collect_edits()
        assert torch.equal(mine.masters[id(weight)].to(weight.dtype), weight)
        assert (step == 3) == torch.equal(mine.masters[id(weight)], before)
        optimizer.step()
        optimizer.zero_grad()
    assert mine._edited == {id(weight)}


# ---- split masters ----


def test_what_is_written_to_the_state_of_split_masters_counts():
    model, optimizer = _start("O5", master_weights="split")
    x = batches(1)[0][0]
    with torch.no_grad():
        for value in model.state_dict().values():  # each is dropped at once
            value.fill_(0.3)
    assert all(torch.equal(value, torch.full_like(value, 0.3)) for value in model.state_dict().values())
    assert torch.equal(model[2].bias, torch.full((4,), 0.3, dtype=torch.bfloat16))
    for value in model.state_dict().values():
        value.data.zero_()
    assert model(x).abs().max() == 0
    state = model.state_dict()
    model(x)
    with torch.no_grad():
        state["2.bias"].fill_(1.5)  # still the model's, after a forward
    assert torch.equal(copy.deepcopy(model)[2].bias, torch.full((4,), 1.5, dtype=torch.bfloat16))
    assert torch.equal(model(x), torch.full((16, 4), 1.5))
    backward(model, optimizer, batches(1)[0])
    optimizer.step()
    assert torch.equal(state["2.bias"], model.state_dict()["2.bias"])  # it follows the training, as any model's
    assert 0 < (state["2.bias"] - 1.5).abs().max() < 0.1
    model.load_state_dict({name: torch.full_like(value, 0.7) for name, value in state.items()})
    assert torch.equal(state["0.weight"], torch.full((16, 8), 0.7))
    with torch.no_grad():
        state["0.weight"].fill_(0.2)
    amp.shutdown()
    assert torch.equal(model[0].weight, torch.full((16, 8), 0.2))
