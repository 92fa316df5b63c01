# SPDX-License-Identifier: Apache-2.0
"""The fused optimizers against torch.optim, or against their formulas, in FP64."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from libamp.torch import optimizers as fused
from libamp.torch.multi_tensor_apply import multi_tensor_applier
from torch import nn

SHAPES = [(33, 7), (129,), (3, 2, 5, 4), (1,), (0,)]
TYPES = [torch.float32, torch.float16, torch.bfloat16]
STEPS = 6


def values(dtype=torch.float64, shapes=SHAPES):
    torch.manual_seed(11)
    return [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]


def gradient(step, like):
    torch.manual_seed(1000 + step)
    return [torch.randn(p.shape, dtype=torch.float64).to(p.dtype) for p in like]


def run(make, params, steps=STEPS, begin=0):
    optimizer = make(params)
    train(optimizer, params, range(begin, begin + steps))
    return optimizer


def train(optimizer, params, steps):
    for step in steps:
        for p, g in zip(params, gradient(step, params), strict=True):
            p.grad = g
        optimizer.step()


def by_reference(make, dtype, steps=STEPS):
    """FP64 of the same numbers; where the parameter has 16 bits it is rounded to them after each step."""
    params = [nn.Parameter(v.double()) for v in values(dtype)]
    optimizer = make(params)
    for step in range(steps):
        for p, g in zip(params, gradient(step, values(dtype)), strict=True):
            p.grad = g.double()
        optimizer.step()
        with torch.no_grad():
            for p in params:
                p.copy_(p.to(dtype))
    return [p.detach() for p in params]


def assert_close(found, wanted, dtype, lr, steps=STEPS):
    """A step rounds the parameter once in its type, and computes an update of about lr in FP32 with some 16 roundings;
    a rounding that fell to the other side is one unit of the type, and stays."""
    for f, w in zip(found, wanted, strict=True):
        if w.numel() == 0:
            continue
        unit = torch.finfo(dtype).eps * float(w.abs().max())
        bound = steps * (unit + 16 * torch.finfo(torch.float32).eps * lr * 10)
        assert f.dtype == dtype
        assert float((f.double() - w).abs().max()) <= bound


class Formula(torch.optim.Optimizer):
    """LAMB and NovoGrad as their papers and Apex have them, in the parameters' own type, which is FP64."""

    def __init__(self, params, update, **numbers):
        super().__init__(params, numbers)
        self.update, self.t = update, 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        for group in self.param_groups:
            grads = [p.grad for g in self.param_groups for p in g["params"]]
            whole = torch.sqrt(sum(g.square().sum() for g in grads))
            for p in group["params"]:
                if p.numel():
                    self.update(p, p.grad.clone(), self.state[p], self.t, whole, **group)


def lamb(p, g, s, t, whole, lr, wd=0.01, max_norm=1.0, nvlamb=False, averaging=True, decoupled=True, bias=True, **_):
    b1, b2, eps = 0.9, 0.999, 1e-6
    if max_norm and whole > max_norm:
        g = g * max_norm / whole
    if not decoupled:
        g = g + wd * p
    s["m"] = b1 * s.get("m", 0) + (1 - b1 if averaging else 1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
    c1, c2 = (1 - b1**t, 1 - b2**t) if bias else (1, 1)
    u = (s["m"] / c1) / ((s["v"] / c2).sqrt() + eps) + (wd * p if decoupled else 0)
    ratio = p.norm() / u.norm() if (wd != 0 or nvlamb) and p.norm() != 0 and u.norm() != 0 else 1
    p -= lr * ratio * u


def novograd(p, g, s, t, whole, lr, wd=0.0, inside=False, averaging=True, inf=False, init_zero=False, bias=True, **_):
    b1, b2, eps = 0.9, 0.999, 1e-8
    norm = g.abs().max() if inf else g.norm()
    before = s.get("n", torch.zeros_like(norm) if init_zero else norm)
    s["n"] = b2 * before + (1 - b2) * norm if inf else (b2 * before**2 + (1 - b2) * norm**2).sqrt()
    c1, c2 = (1 - b1**t, (1 - b2**t) ** 0.5) if bias else (1, 1)
    k = 1 - b1 if averaging else 1
    denominator = s["n"] / c2 + eps
    s["m"] = b1 * s.get("m", 0) + k * (g / denominator + wd * p if inside else g)
    p -= lr * (s["m"] / c1 if inside else s["m"] / c1 / denominator + wd * p)


def sgd_decay_after(p, g, s, t, whole, lr, momentum, wd, **_):
    s["m"] = momentum * s["m"] + g if "m" in s else g
    p -= lr * (s["m"] + wd * p)


def adagrad_w(p, g, s, t, whole, lr, wd, **_):
    s["h"] = s.get("h", 0) + g * g
    p -= lr * (g / (s["h"].sqrt() + 1e-10) + wd * p)


LR = 0.05
CASES = {
    "sgd": (lambda p: fused.FusedSGD(p, lr=LR), lambda p: torch.optim.SGD(p, lr=LR)),
    "sgd-all": (
        lambda p: fused.FusedSGD(p, LR, momentum=0.9, dampening=0.3, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, LR, momentum=0.9, dampening=0.3, weight_decay=0.1),
    ),
    "sgd-nesterov": (
        lambda p: fused.FusedSGD(p, LR, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, LR, momentum=0.9, nesterov=True),
    ),
    "sgd-after": (
        lambda p: fused.FusedSGD(p, LR, momentum=0.9, weight_decay=0.1, wd_after_momentum=True),
        lambda p: Formula(p, sgd_decay_after, lr=LR, momentum=0.9, wd=0.1),
    ),
    "adamw": (
        lambda p: fused.FusedAdam(p, lr=LR, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=LR, weight_decay=0.1),
    ),
    "adam": (
        lambda p: fused.FusedAdam(p, lr=LR, weight_decay=0.1, adam_w_mode=False, betas=(0.8, 0.9)),
        lambda p: torch.optim.Adam(p, lr=LR, weight_decay=0.1, betas=(0.8, 0.9)),
    ),
    "adam-capturable": (
        lambda p: fused.FusedAdam(p, lr=torch.tensor(LR), capturable=True),
        lambda p: torch.optim.AdamW(p, lr=float(torch.tensor(LR)), weight_decay=0.0),
    ),
    "adagrad": (
        lambda p: fused.FusedAdagrad(p, lr=LR, weight_decay=0.1),
        lambda p: torch.optim.Adagrad(p, lr=LR, weight_decay=0.1),
    ),
    "adagrad-w": (
        lambda p: fused.FusedAdagrad(p, lr=LR, weight_decay=0.1, adagrad_w_mode=True),
        lambda p: Formula(p, adagrad_w, lr=LR, wd=0.1),
    ),
    "lamb": (lambda p: fused.FusedLAMB(p, lr=LR), lambda p: Formula(p, lamb, lr=LR)),
    "lamb-l2": (
        lambda p: fused.FusedLAMB(p, lr=LR, adam_w_mode=False, grad_averaging=False, max_grad_norm=0.0),
        lambda p: Formula(p, lamb, lr=LR, decoupled=False, averaging=False, max_norm=0.0),
    ),
    "lamb-nv": (
        lambda p: fused.FusedLAMB(p, lr=LR, weight_decay=0.0, use_nvlamb=True, bias_correction=False),
        lambda p: Formula(p, lamb, lr=LR, wd=0.0, nvlamb=True, bias=False),
    ),
    "lamb-no-ratio": (
        lambda p: fused.FusedLAMB(p, lr=LR, weight_decay=0.0),
        lambda p: Formula(p, lamb, lr=LR, wd=0.0),
    ),
    "novograd": (
        lambda p: fused.FusedNovoGrad(p, lr=LR, weight_decay=0.1),
        lambda p: Formula(p, novograd, lr=LR, wd=0.1),
    ),
    "novograd-inside": (
        lambda p: fused.FusedNovoGrad(
            p, lr=LR, weight_decay=0.1, reg_inside_moment=True, grad_averaging=False, init_zero=True
        ),
        lambda p: Formula(p, novograd, lr=LR, wd=0.1, inside=True, averaging=False, init_zero=True),
    ),
    "novograd-inf": (
        lambda p: fused.FusedNovoGrad(p, lr=LR, weight_decay=0.1, norm_type=0),
        lambda p: Formula(p, novograd, lr=LR, wd=0.1, inf=True),
    ),
    "novograd-inf-inside": (
        lambda p: fused.FusedNovoGrad(p, lr=LR, norm_type=0, reg_inside_moment=True, bias_correction=False),
        lambda p: Formula(p, novograd, lr=LR, inf=True, inside=True, bias=False),
    ),
}
FUSED = {name: make for name, (make, _) in CASES.items()}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", CASES)
def test_steps_are_the_references(name, dtype):
    make, reference = CASES[name]
    params = [nn.Parameter(v) for v in values(dtype)]
    run(make, params)
    assert_close([p.detach() for p in params], by_reference(reference, dtype), dtype, LR)


@pytest.mark.parametrize("name", ["sgd-all", "adamw", "adagrad", "novograd", "novograd-inf"])
def test_types_and_layouts_mix_in_a_group(name):
    """Each tensor has the bits that it has alone, row-major."""
    shape = (4, 6, 3, 3)
    torch.manual_seed(0)
    plain = [torch.randn(shape).to(dtype) for dtype in TYPES * 3]
    strided = [torch.empty(6, 4, 3, 3, dtype=v.dtype).transpose(0, 1) for v in plain]
    sliced = [torch.zeros(4, 6, 3, 5, dtype=v.dtype)[..., :3] for v in plain]
    laid = [
        nn.Parameter(v.clone() if i < 3 else (strided if i < 6 else sliced)[i].copy_(v)) for i, v in enumerate(plain)
    ]
    laid[1] = nn.Parameter(laid[1].detach().contiguous(memory_format=torch.channels_last))
    assert not laid[1].is_contiguous() and not laid[4].is_contiguous() and not laid[7].is_contiguous()
    optimizer = run(FUSED[name], laid)
    for i, v in enumerate(plain):
        alone = nn.Parameter(v.clone())
        other = FUSED[name]([alone])
        for step in range(STEPS):
            alone.grad = gradient(step, laid)[i].contiguous()
            other.step()
        assert torch.equal(laid[i].detach(), alone.detach()), i
    assert all(t.dtype == torch.float32 for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t))


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_state_survives_every_way(name, dtype):
    params = [nn.Parameter(v) for v in values(dtype)]
    optimizer = run(FUSED[name], params)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    twin = [nn.Parameter(p.detach().clone()) for p in params]
    loaded = FUSED[name](twin)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    copied = copy.deepcopy(optimizer)
    pickled = pickle.loads(pickle.dumps(optimizer))
    train(optimizer, params, range(STEPS, STEPS + 3))
    train(loaded, twin, range(STEPS, STEPS + 3))
    for other in (copied, pickled):
        own = other.param_groups[0]["params"]
        train(other, own, range(STEPS, STEPS + 3))
        assert all(torch.equal(a, b) for a, b in zip(own, params, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(twin, params, strict=True))


@pytest.mark.parametrize("name", FUSED)
def test_what_every_optimizer_does(name):
    params = [nn.Parameter(v.float()) for v in values()[:2]]
    optimizer = FUSED[name]([{"params": params[:1]}])
    assert isinstance(optimizer, torch.optim.Optimizer)
    optimizer.add_param_group({"params": params[1:], "lr": 0.0})
    for p in params:
        p.grad = torch.ones_like(p)
    before = [p.detach().clone() for p in params]
    version = params[0]._version

    def closure():
        assert torch.is_grad_enabled()
        return 7.0

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        assert optimizer.step(closure) == 7.0
        scheduler.step()
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(LR / 10)
    assert not torch.equal(params[0].detach(), before[0]) and params[0]._version > version
    assert torch.equal(params[1].detach(), before[1])  # lr 0
    optimizer.zero_grad(set_to_none=False)
    assert all(int(p.grad.count_nonzero()) == 0 for p in params)
    optimizer.zero_grad(set_to_none=True)
    assert all(p.grad is None for p in params)
    optimizer.step()  # nothing to do
    params[0].grad = torch.ones_like(params[0]).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


def test_zero_grad_does_what_set_grad_none_says():
    for make, kept in ((fused.FusedSGD, True), (fused.FusedAdam, False), (fused.FusedLAMB, False)):
        for say in (None, True, False):
            p = nn.Parameter(torch.ones(2))
            p.grad = torch.ones(2)
            make([p], lr=0.1, **({} if say is None else {"set_grad_none": say})).zero_grad()
            assert (p.grad is not None) == (kept if say is None else not say)


def test_materialize_master_grads_changes_nothing():
    results = []
    for say in (True, False):
        params = [nn.Parameter(v) for v in values(torch.float32)]
        run(lambda p, say=say: fused.FusedSGD(p, LR, momentum=0.9, materialize_master_grads=say), params)
        assert all(p.grad is not None for p in params)
        results.append(params)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_rate_in_a_tensor_may_change():
    p, lr = nn.Parameter(torch.ones(1)), torch.tensor(0.5)
    optimizer = fused.FusedSGD([p], lr)
    for wanted in (0.5, 0.25):
        p.grad = torch.ones(1)
        optimizer.step()
        assert float(p.detach()) == wanted
        lr.mul_(0.5)


def test_errors_in_apexs_types():
    p = [nn.Parameter(torch.ones(2))]
    for make in (fused.FusedAdam, fused.FusedLAMB, fused.FusedNovoGrad, fused.FusedMixedPrecisionLamb):
        with pytest.raises(RuntimeError, match="AMSGrad"):
            make(p, amsgrad=True)
    with pytest.raises(RuntimeError, match="capturable"):
        fused.FusedAdam(p, master_weights=True)
    with pytest.raises(RuntimeError, match="norm_type"):
        fused.FusedNovoGrad(p, norm_type=1)
    for bad in ({"lr": -1.0}, {"momentum": -1.0}, {"weight_decay": -1.0}, {"nesterov": True}):
        with pytest.raises(ValueError):
            fused.FusedSGD(p, **{"lr": 0.1, **bad})
    for old in ({"scale": 2.0}, {"grads": [1]}, {"output_params": [1]}, {"grad_norms": [1]}):
        with pytest.raises(RuntimeError, match="closure and grad_scaler"):
            fused.FusedAdam(p).step(**old)
    wide = nn.Parameter(torch.ones(2, dtype=torch.float64))
    wide.grad = torch.ones_like(wide)
    with pytest.raises(RuntimeError, match="float64"):
        fused.FusedAdam([wide]).step()


def test_a_parameter_that_joins_late():
    """Its momentum begins with its own first gradient; Adam counts the group's steps, as Apex does."""
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))]
    for make in (lambda p: fused.FusedSGD(p, 0.1, momentum=0.9, dampening=0.5), lambda p: fused.FusedNovoGrad(p, 0.1)):
        optimizer = make(params)
        params[0].grad, params[1].grad = torch.ones(3), None
        optimizer.step()
        before = params[1].detach().clone()
        params[1].grad = torch.full((3,), 2.0)
        optimizer.step()
        if isinstance(optimizer, fused.FusedSGD):
            assert torch.allclose(params[1].detach(), before - 0.2)
        else:
            assert float(optimizer.state[params[1]]["exp_avg_sq"]) == pytest.approx(12**0.5)


def test_novograd_takes_apexs_checkpoints():
    params = [nn.Parameter(torch.ones(2).half()), nn.Parameter(torch.ones(3))]
    optimizer = run(lambda p: fused.FusedNovoGrad(p, 0.1), params, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    norms = [saved["state"][i].pop("exp_avg_sq") for i in (0, 1)]
    saved["param_groups"][0]["exp_avg_sq"] = [norms[0].reshape(1), norms[1].reshape(1)]
    other = fused.FusedNovoGrad(params, 0.1)
    other.load_state_dict(saved)
    for i, p in enumerate(params):
        assert torch.equal(other.state[p]["exp_avg_sq"], norms[i])
    assert "exp_avg_sq" not in other.param_groups[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", CASES)
def test_steps_on_cuda_are_those_on_the_cpu(name, dtype):
    """Elementwise the same bits; what a norm goes into may differ in its last bit, by a unit of the type a step."""
    mine, its = ([nn.Parameter(v.to(device)) for v in values(dtype)] for device in ("cpu", "cuda"))
    run(FUSED[name], mine)
    optimizer = FUSED[name](its)
    for step in range(STEPS):
        for p, g in zip(its, gradient(step, mine), strict=True):
            p.grad = g.cuda()
        optimizer.step()
    assert_close([p.detach().cpu() for p in its], [p.detach().double() for p in mine], dtype, LR)


def test_a_class_of_fairseqs_calls_the_kernels_by_the_optimizers_names():
    """It derives from FusedAdam, and its step hands its own lists to self.multi_tensor_adam."""
    param, twin = (torch.nn.Parameter(torch.linspace(-1, 1, 5)) for _ in range(2))
    ours, plain = fused.FusedAdam([param], lr=0.1), fused.FusedAdam([twin], lr=0.1)
    twin.grad = grad = torch.linspace(1, 2, 5)
    plain.step()
    assert ours._dummy_overflow_buf is ours._dummy_overflow_buf and ours._dummy_overflow_buf.dtype == torch.int32
    lists = [[grad], [param.data], [torch.zeros(5)], [torch.zeros(5)]]
    rates = (0.1, 0.9, 0.999, 1e-8, 1, ours.adam_w_mode, 1, 0.0)
    multi_tensor_applier(ours.multi_tensor_adam, ours._dummy_overflow_buf, lists, *rates)
    assert torch.equal(param, twin)
    assert not hasattr(ours, "multi_tensor_sgd") and not hasattr(ours, "_of_no_optimizer")


def test_max_grad_norm_of_the_first_fused_adam():
    """Each group is clipped by its own norm; below it nothing changes."""
    params = [torch.nn.Parameter(torch.ones(4)) for _ in range(4)]
    clipped = fused.FusedAdam([{"params": params[:1]}, {"params": params[1:2]}], eps=1.0, max_grad_norm=1.0)
    plain = fused.FusedAdam([{"params": params[2:3]}, {"params": params[3:]}], eps=1.0)
    small, large = torch.full((4,), 0.1), torch.full((4,), 30.0)
    params[0].grad = params[2].grad = small
    params[1].grad, params[3].grad = large, large / (float(large.norm()) + 1e-6)
    clipped.step()
    plain.step()
    assert torch.equal(params[0], params[2])
    torch.testing.assert_close(params[1], params[3], rtol=1e-6, atol=0)
    assert float(large[0]) == 30.0
    with pytest.raises(RuntimeError, match="max_grad_norm"):
        fused.FusedAdam(params, capturable=True, max_grad_norm=1.0)


TORCHS = {
    "AdamW": (torch.optim.AdamW, fused.FusedAdam, {"lr": 0.01, "weight_decay": 0.1}),
    "Adagrad": (torch.optim.Adagrad, fused.FusedAdagrad, {"lr": 0.01}),
    "SGD": (torch.optim.SGD, fused.FusedSGD, {"lr": 0.01, "momentum": 0.9}),
}


@pytest.mark.parametrize("name", TORCHS)
def test_what_torchs_optimizer_saved_goes_on(name):
    theirs, ours, numbers = TORCHS[name]
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(7, 3)), torch.nn.Parameter(torch.randn(5))]
    twins = [torch.nn.Parameter(param.detach().clone()) for param in params]
    plain, own = theirs(params, **numbers), ours(twins, **numbers)
    for i in range(9):
        for param, twin in zip(params, twins, strict=True):
            param.grad = twin.grad = torch.randn_like(param)
        plain.step()
        if i > 3:
            own.step()
        if i == 3:
            own.load_state_dict(copy.deepcopy(plain.state_dict()))
            for param, twin in zip(params, twins, strict=True):
                twin.data.copy_(param.data)
    for param, twin in zip(params, twins, strict=True):
        torch.testing.assert_close(twin, param, rtol=1e-5, atol=1e-6)
    again = ours(twins, **numbers)
    again.load_state_dict(own.state_dict())
    assert all("step" not in state for state in again.state.values())
    assert again.param_groups[0].get("step") == (9 if name == "AdamW" else None)


def test_what_torchs_optimizer_saved_and_cannot_go_on_is_refused():
    params = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))]
    own = fused.FusedAdam(params)
    for settings, both, words in (({"amsgrad": True}, True, "amsgrad"), ({}, False, "1 to 2")):
        plain = torch.optim.AdamW(params, **settings)
        for i in range(2):
            params[0].grad, params[1].grad = torch.ones(3), torch.ones(3) if both or i else None
            plain.step()
        before = own.state_dict()
        with pytest.raises(RuntimeError, match=words):
            own.load_state_dict(plain.state_dict())
        assert own.state_dict() == before


def test_a_state_that_is_not_whole_is_named_by_the_step():
    param = torch.nn.Parameter(torch.ones(3))
    own = fused.FusedAdam([param])
    param.grad = torch.ones(3)
    own.step()
    state = own.state_dict()
    del state["state"][0]["exp_avg"]
    own.load_state_dict(state)
    with pytest.raises(RuntimeError, match="has no 'exp_avg', but has exp_avg_sq: it was loaded"):
        own.step()
    assert torch.equal(param.detach(), torch.full((3,), 1 - 1e-3))
