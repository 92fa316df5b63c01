# SPDX-License-Identifier: Apache-2.0
"""FusedAdam(..., state_bits=8) and master_weights="stochastic": the types of the state, equal bytes of resumed runs and
layouts, states of FP32 and of torch's Adam, levels and skips, refusals. tests/optim/test_codes.c has the numbers."""

import copy
import io
import pickle

import pytest
import torch
from libamp import ArgumentError, kernels
from libamp.torch import amp
from libamp.torch.optimizers import FusedAdagrad, FusedAdam, FusedLAMB, FusedNovoGrad, FusedSGD
from torch import nn

SHAPES = [(64, 80), (8, 9, 8, 8), (64,)]  # 5120 and 4608 elements, and one below 4096
CODES = {"exp_avg", "exp_avg_sq", "exp_avg_scale", "exp_avg_sq_scale"}


def parameters(layout=torch.contiguous_format):
    torch.manual_seed(3)
    params = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    params[1].data = params[1].data.to(memory_format=layout)
    return params


def train(optimizer, params, steps):
    for step in steps:
        torch.manual_seed(100 + step)
        for param in params:
            param.grad = torch.randn(param.shape)
        optimizer.step()


def bits(optimizer):
    """All tensors of the parameters and the state."""
    state = [part[name] for part in optimizer.state_dict()["state"].values() for name in sorted(part)]
    return [param.detach() for group in optimizer.param_groups for param in group["params"]] + state


def assert_equal(a, b):
    for x, y in zip(bits(a), bits(b), strict=True):
        assert x.dtype == y.dtype and x.stride() == y.stride() and torch.equal(x, y)


def test_the_state_is_small():
    params = parameters()
    optimizer = FusedAdam(params, state_bits=8)
    train(optimizer, params, range(2))
    large, _, small = (optimizer.state[param] for param in params)
    assert set(large) == CODES and set(small) == {"exp_avg", "exp_avg_sq"}
    assert large["exp_avg"].dtype is torch.int8 and large["exp_avg_sq"].dtype is torch.uint8
    assert small["exp_avg"].dtype is torch.float32
    assert sum(each.nbytes for each in large.values()) == 2 * 5120 + 2 * 4 * 20  # 2 1/32 bytes an element
    assert large["exp_avg"].any() and large["exp_avg_sq"].min() > 0


@pytest.mark.parametrize("way", ["state_dict", "pickle", "deepcopy"])
def test_resumed_runs_write_the_same_bytes(way):
    params, again = parameters(), parameters()
    straight, resumed = (FusedAdam(each, lr=0.01, state_bits=8, seed=5) for each in (params, again))
    train(straight, params, range(4))
    if way == "state_dict":
        file = io.BytesIO()
        torch.save(straight.state_dict(), file)
        file.seek(0)
        train(resumed, again, range(2))  # a state of its own, which the saved one replaces
        for param, value in zip(again, params, strict=True):
            param.data.copy_(value.detach())
        resumed.load_state_dict(torch.load(file, weights_only=True))
    else:
        resumed = pickle.loads(pickle.dumps(straight)) if way == "pickle" else copy.deepcopy(straight)
        again = resumed.param_groups[0]["params"]
    train(straight, params, range(4, 7))
    train(resumed, again, range(4, 7))
    assert_equal(straight, resumed)


def test_seeds_and_threads():
    made = []
    for seed, threads in ((1, 1), (1, 3), (2, 1)):
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(700, 700))]  # enough for several threads
        before = kernels.get_num_threads()
        kernels.set_num_threads(threads)
        optimizer = FusedAdam(params, state_bits=8, seed=seed)
        train(optimizer, params, range(2))
        kernels.set_num_threads(before)
        made.append(optimizer)
    assert_equal(made[0], made[1])
    assert not torch.equal(bits(made[0])[1], bits(made[2])[1])


def test_layouts():
    """channels_last has blocks of its own order, and steps on after a change of the layout, or beside a parameter with
    gaps, which libamp steps as a copy."""
    params = parameters(torch.channels_last)
    optimizer = FusedAdam(params, state_bits=8)
    train(optimizer, params, range(2))
    assert optimizer.state[params[1]]["exp_avg"].stride() == params[1].stride()
    params[1].data = params[1].data.contiguous()
    wide = nn.Parameter(torch.ones(64, 160)[:, ::2])
    optimizer.add_param_group({"params": [wide]})
    optimizer.param_groups[0]["params"].append(optimizer.param_groups.pop()["params"][0])
    alone = [*(nn.Parameter(torch.ones(1)) for _ in params), nn.Parameter(torch.ones(64, 80))]  # of the same index
    other = FusedAdam(alone, state_bits=8)
    other.param_groups[0]["step"] = 2
    for step in range(2, 4):
        train(optimizer, [*params, wide], [step])
        alone[-1].grad = wide.grad.clone()
        other.step()
    assert optimizer.state[params[1]]["exp_avg"].is_contiguous()
    assert torch.equal(wide, alone[-1])
    assert torch.equal(optimizer.state[wide]["exp_avg"], other.state[alone[-1]]["exp_avg"])


@pytest.mark.parametrize("saved_bits", [32, 8])
def test_states_of_either_width_load(saved_bits):
    params, again = parameters(), parameters()
    saved = FusedAdam(params, lr=1e-3, state_bits=saved_bits)
    train(saved, params, range(20))
    loaded = FusedAdam(again, lr=1e-3, state_bits=40 - saved_bits)
    loaded.load_state_dict(saved.state_dict())
    assert loaded.param_groups[0]["step"] == 20
    coded, plain = (saved, loaded) if saved_bits == 8 else (loaded, saved)
    for a, b in zip(*(each.param_groups[0]["params"] for each in (coded, plain)), strict=True):
        x, y = coded.state[a], plain.state[b]
        assert set(y) == {"exp_avg", "exp_avg_sq"} and y["exp_avg"].dtype is torch.float32
        if set(x) == set(y):
            assert torch.equal(x["exp_avg"], y["exp_avg"])
            continue
        values = {name: torch.empty_like(a) for name in ("exp_avg", "exp_avg_sq")}
        for name, value in values.items():
            kernels.decode_moment(value, x[name], x[f"{name}_scale"], name == "exp_avg_sq")
        scales = x["exp_avg_scale"].repeat_interleave(256)[: a.numel()].view_as(a)
        off = (values["exp_avg"] - y["exp_avg"]).abs()
        assert (off <= (0.5001 if saved_bits == 32 else 0.0) * scales).all()  # half a code, or nothing


def test_torchs_state_loads():
    params, again = parameters(), parameters()
    plain = torch.optim.AdamW(params, lr=0.01, weight_decay=0.0)
    train(plain, params, range(3))
    loaded = FusedAdam(again, lr=0.01, state_bits=8)
    loaded.load_state_dict(plain.state_dict())
    assert set(loaded.state[again[0]]) == CODES and loaded.param_groups[0]["step"] == 3
    for param, value in zip(again, params, strict=True):
        param.data.copy_(value.detach())
    train(plain, params, range(3, 6))
    train(loaded, again, range(3, 6))
    for param, value in zip(again, params, strict=True):
        assert (param - value).abs().max() < 3 * 0.01 * 0.25 and torch.isfinite(param).all()


@pytest.mark.parametrize("level, masters", [("O2", None), ("O4", None), ("O5", None), ("O5", "split")])
def test_levels_and_skips(level, masters):
    """A run without the skipped step writes the same bytes."""
    made = []
    for overflows in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(80, 64)
        optimizer = FusedAdam(model.parameters(), lr=0.01, state_bits=8)
        extra = {} if masters is None else {"master_weights": masters}
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale="dynamic", **extra)
        for step in range(4):
            torch.manual_seed(step)
            data = torch.randn(16, 80) * (float("inf") if step == 2 else 1.0)
            if step == 2 and not overflows:
                continue
            with amp.scale_loss(model(data).float().square().mean(), optimizer) as loss:
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert optimizer.param_groups[0]["step"] == 3
        made.append([each.detach().float().clone() for each in model.parameters()])
        assert any(set(state) >= CODES for state in optimizer.state.values())
        amp.shutdown()
    for after_skip, never in zip(*made, strict=True):
        assert torch.isfinite(after_skip).all()
        assert level == "O2" or torch.equal(after_skip, never)  # fp16's gradients depend on the scale


def test_refusals():
    param = nn.Parameter(torch.ones(64, 80))
    with pytest.raises(ValueError, match="state_bits is 4"):
        FusedAdam([param], state_bits=4)
    with pytest.raises(RuntimeError, match="capturable"):
        FusedAdam([param], state_bits=8, capturable=True)
    codes = {"exp_avg": [torch.zeros(64, 80, dtype=torch.int8)], "exp_avg_sq": [torch.zeros(64, 80, dtype=torch.uint8)]}
    scales = {"exp_avg_scale": [torch.zeros(20)], "exp_avg_sq_scale": [torch.zeros(19)]}
    with pytest.raises(ArgumentError, match="has 19 scales"):
        kernels.optimizer_step("adam", [param.detach()], [torch.ones(64, 80)], codes | scales, steps=0)
    with pytest.raises(ArgumentError, match="fp32"):
        kernels.optimizer_step("adam", [param.detach()], [torch.ones(64, 80)], codes, steps=0)
    with pytest.raises(ArgumentError, match="keys"):
        kernels.optimizer_step("adam", [param.detach()], [torch.ones(64, 80)], codes, steps=0, keys=[1, 2])


# ---- master_weights="stochastic" ----


def stochastic(kind=FusedAdam, steps=range(6), state=None, **given):
    """A net at O5 without masters, its optimizer, and its weights and the optimizer's state afterwards."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(80, 64), nn.LayerNorm(64), nn.Linear(64, 8))
    optimizer = kind(model.parameters(), lr=1e-3, **given)
    model, optimizer = amp.initialize(
        model, optimizer, opt_level="O5", verbosity=0, master_weights="stochastic", loss_scale="dynamic"
    )
    if state is not None:
        with torch.no_grad():
            for param, value in zip(model.parameters(), state[0], strict=True):
                param.copy_(value)
        optimizer.load_state_dict(state[1])
    for step in steps:
        torch.manual_seed(step)
        data = torch.randn(16, 80) * (float("inf") if step < 0 else 1.0)
        with amp.scale_loss(model(data).float().square().mean(), optimizer) as loss:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    params = list(model.parameters())
    assert all(param.dtype is torch.bfloat16 for param in params) and amp.memory().masters == 0
    result = [param.detach().clone() for param in params], copy.deepcopy(optimizer.state_dict())
    amp.shutdown()
    return result


KINDS = [(FusedAdam, {}), (FusedSGD, {"momentum": 0.9, "dampening": 0.1}), (FusedSGD, {}), (FusedLAMB, {}),
         (FusedNovoGrad, {}), (FusedAdagrad, {})]


@pytest.mark.parametrize("kind, given", KINDS)
def test_stochastic_weights_resume_and_skip(kind, given):
    straight = stochastic(kind, **given)
    assert all(map(torch.equal, straight[0], stochastic(kind, **given)[0]))
    resumed = stochastic(kind, range(3, 6), stochastic(kind, range(3), **given), **given)
    assert all(map(torch.equal, straight[0], resumed[0]))
    skipped = stochastic(kind, [0, 1, -1, 2, 3, 4, 5], **given)  # -1 overflows
    assert all(map(torch.equal, straight[0], skipped[0]))
    assert skipped[1]["param_groups"][0]["step"] == 6


def test_stochastic_weights_with_8_bits_take_6_bytes():
    params, state = stochastic(state_bits=8)
    large = state["state"][0]
    bytes_of = params[0].nbytes + sum(each.nbytes for each in large.values())
    assert bytes_of == (2 + 2) * 5120 + 2 * 4 * 20  # and a gradient of 2: 6.03 bytes a parameter
    assert all(map(torch.equal, params, stochastic(state_bits=8)[0]))


def test_small_steps_move_the_mean():
    """Steps of 2^-12 at 1, a sixteenth of a unit of bfloat16: after 32 the mean is 1 - 2^-7, and to nearest it is 1. A
    rounding's deviation is at most half of the unit 2^-8. 32 of them add up, and the mean is of 5120 elements."""
    for rounds, moved in ((True, -(2.0**-7)), (False, 0.0)):
        param = torch.ones(64, 80, dtype=torch.bfloat16)
        for step in range(32):
            grads = [torch.ones(64, 80)]
            kernels.optimizer_step("sgd", [param], grads, {}, steps=step, lr=2.0**-12, stochastic=rounds)
        assert abs(param.double().mean().item() - 1.0 - moved) <= 5 * 2.0**-9 * (32 / 5120) ** 0.5


def test_stochastic_weights_are_refused():
    def start(make, level="O5"):
        model = nn.Linear(8, 8)
        amp.initialize(model, make(model.parameters()), opt_level=level, verbosity=0, master_weights="stochastic")

    for make in (torch.optim.AdamW, torch.optim.SGD):
        with pytest.raises(RuntimeError, match=f"torch.optim.*{make.__name__} does not round at random"):
            start(lambda params, make=make: make(params, lr=0.1))
    with pytest.raises(RuntimeError, match="FusedAdam does not round"):
        start(lambda params: FusedAdam(params, capturable=True))
    with pytest.raises(RuntimeError, match="bfloat16 parameters"):
        start(FusedAdam, "O2")
    with pytest.raises(AssertionError, match="'split', 'stochastic'"):
        amp.initialize(nn.Linear(8, 8), opt_level="O5", master_weights="sometimes")


@pytest.mark.parametrize("kind, given", KINDS[1:3] + KINDS[5:])
def test_steps_are_counted_for_random_numbers_only(kind, given):
    """Without them no step is counted, and with them each step has numbers of its own."""
    moved = []
    for rounds in (False, True):
        param = nn.Parameter(torch.ones(64, 80, dtype=torch.bfloat16))
        optimizer = kind([param], lr=2.0**-10, **given)
        if rounds:
            param._amp_random_key = kernels.optim_key(0, "weight")
        for _ in range(2):
            param.data.fill_(1.0)
            param.grad = torch.ones_like(param)
            optimizer.step()
            moved.append(param.detach() < 1.0)
        assert optimizer.param_groups[0].get("step") == (2 if rounds else None)
        assert optimizer.state_dict()["param_groups"][0].get("step") == (2 if rounds else None)
    assert not moved[0].any() and moved[2].any() and moved[3].any() and not torch.equal(moved[2], moved[3])


# ---- memory ----


@pytest.mark.parametrize("make, each, coded", [
    (lambda params: torch.optim.Adam(params, lr=1e-3), 8, False),
    (lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.9), 4, False),
    (FusedAdam, 8, True), (lambda params: FusedAdam(params, state_bits=8), None, True),
])
def test_memory_has_the_moments(make, each, coded):
    """Of any optimizer, from its first step on, in memory, predictions and the survey."""
    model = nn.Linear(80, 64)
    model, optimizer = amp.initialize(model, make(model.parameters()), opt_level="O5", verbosity=0)
    amp.observe(model, every=1)
    assert amp.memory().moments == 0
    with amp.scale_loss(model(torch.ones(4, 80)).float().sum(), optimizer) as loss:
        loss.backward()
    optimizer.step()
    memory, predicted, text = amp.memory(), amp.memory(level="O0"), str(amp.survey())
    codes = 2 * (5120 + 4 * 20)
    assert memory.moments == predicted.moments == (codes + 8 * 64 if each is None else each * 5184)
    assert memory.moments_8bit == (codes + 8 * 64 if coded else memory.moments)
    assert ("state_bits=8) take" in text) == (coded and each is not None)
    assert 'master_weights = "stochastic"' in text
    amp.shutdown()
