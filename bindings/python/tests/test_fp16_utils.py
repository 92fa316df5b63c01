# SPDX-License-Identifier: Apache-2.0
"""fp16_utils against the same done by hand with FP32 copies."""

import copy
import io
import types

import pytest
import torch
from libamp.torch import fp16_utils as fu
from torch import nn


class Mixed(nn.Module):
    """Two 16-bit layers and an FP32 one between them."""

    def __init__(self, dtype=torch.float16):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(4, 4).to(dtype), nn.Linear(4, 4), nn.Linear(4, 2).to(dtype)

    def forward(self, x):
        x = torch.tanh(self.b(self.a(x.to(self.a.weight.dtype)).float()))
        return self.c(x.to(self.c.weight.dtype)).float()


def data(step):
    torch.manual_seed(50 + step)
    return torch.randn(8, 4)


def loss_of(model, step):
    return model(data(step)).square().mean()


def reference(dtype, steps, scale, micro=1):
    """FP32 masters by hand, plain SGD with momentum."""
    model = Mixed(dtype)
    masters = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9)
    for step in range(steps):
        model.zero_grad()
        for part in range(micro):
            (loss_of(model, step * micro + part) * scale).backward()
        for p, master in zip(model.parameters(), masters, strict=True):
            master.grad = p.grad.float() / scale
        optimizer.step()
        with torch.no_grad():
            for p, master in zip(model.parameters(), masters, strict=True):
                p.copy_(master)
    return [p.detach() for p in model.parameters()], [m.detach() for m in masters]


def assert_same(found, wanted):
    for f, w in zip(found, wanted, strict=True):
        assert torch.equal(f, w)  # a scale that is a power of two rounds nothing


def make(dtype=torch.float16, **options):
    model = Mixed(dtype)
    return model, fu.FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **options)


OPTIONS = [
    ({"static_loss_scale": 128.0}, 128.0),
    ({"dynamic_loss_scale": True, "dynamic_loss_args": {"init_scale": 64}}, 64.0),
]


@pytest.mark.parametrize(("options", "scale"), OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("how", ["each", "once", "closure"])
def test_steps_are_those_of_masters_by_hand(options, scale, dtype, how):
    micro = 2 if how in ("each", "once") else 1
    model, optimizer = make(dtype, verbose=False, **options)
    for step in range(3):
        if how == "closure":

            def closure(step=step):
                optimizer.zero_grad()
                loss = loss_of(model, step)
                optimizer.backward(loss)
                return loss

            assert float(optimizer.step(closure).detach()) > 0
            optimizer.loss_scale = scale
            continue
        optimizer.zero_grad(set_grads_to_None=step == 1)
        for part in range(micro):
            optimizer.backward(loss_of(model, step * micro + part), update_master_grads=how == "each")
        if how == "once":
            optimizer.update_master_grads()
        optimizer.step()
        optimizer.loss_scale = scale
    params, masters = reference(dtype, 3, scale, micro)
    assert_same([p.detach() for p in model.parameters()], params)
    assert_same([p.detach() for p in optimizer.param_groups[0]["params"]], masters)


def test_an_overflow_skips_and_lowers_the_scale(capsys):
    model, optimizer = make(dynamic_loss_scale=True, dynamic_loss_args={"init_scale": 2.0**15, "scale_window": 2})
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.backward(loss_of(model, 0) * float("inf"))
    assert optimizer.overflow and optimizer.clip_master_grads(1.0) == -1
    assert optimizer.inspect_master_grad_data() is None
    assert optimizer.step() is None
    assert "Overflow: this step is skipped, the loss scale 32768.0 becomes 16384.0" in capsys.readouterr().out
    assert_same([p.detach() for p in model.parameters()], before)
    for expected in (2.0**14, 2.0**15, 2.0**15, 2.0**16):  # one growth each window, counted from the overflow
        optimizer.zero_grad()
        optimizer.backward(loss_of(model, 0) * 0)
        optimizer.step()
        assert optimizer.loss_scale == expected


def test_a_closure_is_called_again_while_it_overflows():
    model, optimizer = make(dynamic_loss_scale=True, dynamic_loss_args={"init_scale": 16.0}, verbose=False)
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, 0) * (float("nan") if len(calls) < 2 else 1)
        calls.append(optimizer.loss_scale)
        optimizer.backward(loss)
        return loss

    assert torch.isfinite(optimizer.step(closure))
    # the scale is halved after each
    assert calls == [16.0, 8.0, 4.0]


def test_clipping_and_inspection():
    model, optimizer = make(static_loss_scale=8.0)
    optimizer.backward(loss_of(model, 0))
    grads = optimizer.inspect_master_grad_data()[0]
    wanted = torch.sqrt(sum(g.square().sum() for g in grads))
    assert all(g.dtype == torch.float32 for g in grads)
    norm = optimizer.clip_master_grads(0.01)
    torch.testing.assert_close(norm, wanted)
    torch.testing.assert_close(torch.sqrt(sum(g.square().sum() for g in grads)), torch.tensor(0.01), rtol=1e-4, atol=0)


@pytest.mark.parametrize("apex_scaler", [False, True])
def test_checkpoints_resume_to_the_bit(apex_scaler):
    def train(model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            optimizer.backward(loss_of(model, step))
            optimizer.step()

    def fresh():
        model = Mixed()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        return model, fu.FP16_Optimizer(optimizer, dynamic_loss_scale=True, dynamic_loss_args={"init_scale": 256.0})

    model, optimizer = fresh()
    train(model, optimizer, range(3))
    saved = optimizer.state_dict()
    if apex_scaler:
        saved = copy.deepcopy({**saved, "loss_scaler": types.SimpleNamespace(**saved["loss_scaler"])})
    else:
        file = io.BytesIO()
        torch.save(saved, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
    other, other_optimizer = fresh()
    with torch.no_grad():
        other.b.weight.copy_(model.b.weight), other.b.bias.copy_(model.b.bias)  # FP32 parameters are the model's
    other_optimizer.load_state_dict(saved)
    train(model, optimizer, range(3, 6))
    train(other, other_optimizer, range(3, 6))
    assert_same([p.detach() for p in other.parameters()], [p.detach() for p in model.parameters()])
    assert other_optimizer.loss_scaler.__dict__ == optimizer.loss_scaler.__dict__


def test_optimizer_state_from_before_becomes_the_masters():
    model = Mixed()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_of(model, 0).backward()
    inner.step()
    optimizer = fu.FP16_Optimizer(inner)
    masters = optimizer.param_groups[0]["params"]
    assert set(optimizer.state) == set(masters)
    assert all(optimizer.state[m]["momentum_buffer"].dtype == torch.float32 for m in masters)
    with pytest.raises(TypeError):
        fu.FP16_Optimizer(torch.optim.SGD([nn.Parameter(torch.ones(2, dtype=torch.float64))], lr=0.1))
    with pytest.raises(RuntimeError, match="state_dict"):
        optimizer.__getstate__()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.plain = nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False)
        self.rnn, self.norm = nn.LSTM(4, 4), nn.LayerNorm(4)
        self.register_buffer("index", torch.arange(3))

    def forward(self, x):
        return self.plain(self.bn(self.conv(x)))


def types_of(module):
    return {name: t.dtype for name, t in [*module.named_parameters(), *module.named_buffers()]}


def test_conversion_of_networks():
    net = Net()
    net(torch.randn(2, 3, 5)).sum().backward()
    kept = {name: id(p) for name, p in net.named_parameters()}
    assert fu.convert_network(net, torch.float16) is net
    for name, dtype in types_of(net).items():
        wanted = (
            torch.int64
            if name in ("index", "bn.num_batches_tracked", "plain.num_batches_tracked")
            else (torch.float32 if name.startswith("bn.") else torch.float16)
        )
        assert dtype == wanted, name
    assert net.conv.weight.grad.dtype == torch.float16 and net.bn.weight.grad.dtype == torch.float32
    assert kept == {name: id(p) for name, p in net.named_parameters()}
    fu.convert_module(net.norm, torch.bfloat16)
    assert net.norm.weight.dtype == torch.bfloat16
    half = fu.network_to_half(Net())
    assert isinstance(half[0], fu.tofp16) and half[1].bn.weight.dtype == torch.float32
    assert half[1].conv.weight.dtype == half[1].plain.running_mean.dtype == torch.float16
    assert half[0](torch.ones(2)).dtype == torch.float16
    assert fu.BN_convert_float(nn.BatchNorm1d(2).half()).weight.dtype == torch.float32


def test_fp16_model_casts_what_floats():
    class Pick(nn.Module):
        def forward(self, x, index, scale=None):
            return x[index] * scale

    out = fu.FP16Model(Pick())(torch.ones(3), torch.tensor([1]), scale=torch.ones(1))
    assert out.dtype == torch.float16
    assert fu.FP16Model(nn.Linear(3, 2))(torch.ones(1, 3)).dtype == torch.float16


@pytest.mark.parametrize("flat", [False, True])
def test_lists_of_masters(flat):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).half()
    model[0].bias.requires_grad_(False)
    params, masters = fu.prep_param_lists(model, flat_master=flat)
    assert len(params) == 3 and len(masters) == (1 if flat else 3)
    assert all(m.dtype == torch.float32 and m.requires_grad for m in masters)
    model(torch.ones(2, 3).half()).sum().backward()
    params[2].grad = None
    fu.model_grads_to_master_grads(params, masters, flat_master=flat)
    if flat:
        wanted = torch.cat([params[0].grad.flatten(), params[1].grad.flatten(), torch.zeros(2).half()]).float()
        assert torch.equal(masters[0].grad, wanted)
    else:
        assert masters[2].grad is None and torch.equal(masters[0].grad, params[0].grad.float())
    with torch.no_grad():
        for master in masters:
            master += 1.0001
    wanted = masters[0].detach()[:12].view(4, 3) if flat else masters[0].detach()
    fu.master_params_to_model_params(params, masters, flat_master=flat)
    assert torch.equal(params[0].detach(), wanted.half())
    if flat:
        model[1].float()
        with pytest.raises(RuntimeError, match="several types"):
            fu.prep_param_lists(model, flat_master=True)


def test_small_things():
    assert fu.to_python_float(torch.tensor(2.5)) == 2.5 and fu.to_python_float([3.0]) == 3.0
    assert fu.clip_grad_norm is nn.utils.clip_grad_norm_
    scaler = fu.DynamicLossScaler(init_scale=4.0)
    param = nn.Parameter(torch.ones(1))
    for _ in range(4):
        param.grad = torch.tensor([float("nan")])
        assert scaler.has_overflow([param])
        scaler.update_scale(True)
    assert scaler.loss_scale == 1
    assert scaler.scale_gradient(None, (torch.ones(1), None), None) == (torch.ones(1), None)
    x = torch.ones(1, requires_grad=True)
    fu.LossScaler(8).backward(x.sum())
    assert float(x.grad) == 8 and not fu.LossScaler().has_overflow([param])
