# SPDX-License-Identifier: Apache-2.0
"""Apex's layers against the formulas and tolerances of NVIDIA's tests, in smaller shapes, and at every level of amp."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from levels import LEVELS  # noqa: E402
from libamp.torch import amp, fused_layer_norm_cuda, normalization  # noqa: E402
from libamp.torch.contrib.group_norm import GroupNorm  # noqa: E402
from libamp.torch.contrib.layer_norm import FastLayerNorm, layer_norm  # noqa: E402
from libamp.torch.fused_dense import DenseNoBiasFunc, FusedDense, FusedDenseGeluDense  # noqa: E402
from libamp.torch.mlp import MLP, mlp_function  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
COMPILES = pytest.mark.skipif(not hasattr(torch, "get_autocast_dtype"), reason="no autograd functions in its graphs")
SIZES = [48, 64, 64, 32, 16, 1]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(5)


def close(a, b, rtol=1e-3, atol=1e-3):
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


# ---- mlp ----


def twin(mlp, activation):
    """torch's layers with the same weights; the last one has the activation too."""
    layers = []
    for i, weight in enumerate(mlp.weights):
        linear = torch.nn.Linear(*reversed(weight.shape), bias=bool(mlp.bias))
        linear.weight.data = weight.detach().clone()
        if mlp.bias:
            linear.bias.data = mlp.biases[i].detach().clone()
        layers += [linear, *([] if activation == "none" else [getattr(torch.nn, activation)()])]
    return torch.nn.Sequential(*layers)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["none", "ReLU", "Sigmoid"])
def test_mlp_is_linear_and_activation_in_turn(activation, bias):
    mlp = MLP(SIZES, bias=bias, activation=activation.lower())
    reference = twin(mlp, activation)
    x = torch.empty(32, SIZES[0]).uniform_(-1, 1).requires_grad_()
    outs = [module(x) for module in (mlp, reference)]
    assert torch.equal(*outs)
    mine, wanted = (
        torch.autograd.grad(out.mean() * 10, [x, *parameters])
        for out, parameters in zip(outs, ([*mlp.weights, *mlp.biases], [*reference.parameters()]), strict=True)
    )
    by_kind = wanted[1:] if not bias else [*wanted[1::2], *wanted[2::2]]
    assert all(torch.equal(a, b) for a, b in zip(mine, [wanted[0], *by_kind], strict=True))


def test_mlp_has_apexs_names():
    mlp = MLP([3, 4, 2])
    assert list(mlp.state_dict()) == ["weight_0", "bias_0", "weight_1", "bias_1"]
    assert repr(mlp) == "MLP(MLP sizes: [3, 4, 2], Bias=1, activation=1)"
    assert (mlp.num_layers, mlp.mlp_sizes, mlp.biases[1].shape) == (2, [3, 4, 2], (2,))
    x = torch.randn(5, 3)
    assert torch.equal(mlp(x), mlp_function(1, 1, x, *mlp.weights, *mlp.biases))
    with pytest.raises(TypeError, match="'gelu'"):
        MLP([3, 4], activation="gelu")


def test_mlp_finds_parameters_that_were_replaced():
    mlp = MLP([3, 4, 2])
    for other in (copy.deepcopy(mlp), pickle.loads(pickle.dumps(mlp)), copy.deepcopy(mlp)):
        other.weight_0 = torch.nn.Parameter(torch.zeros(4, 3))
        assert other.weights[0] is other.weight_0
        assert torch.equal(other(torch.randn(1, 3)), other(torch.randn(1, 3)))
        assert mlp.weights[0].any()


# ---- fused_dense ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dense_is_matmul_and_bias(dtype):
    dense = FusedDense(48, 96).to(dtype)
    x = torch.randn(3 * 16, 48).to(dtype).requires_grad_()
    y = dense(x)
    dy = torch.randn_like(y)
    got = torch.autograd.grad(y, [x, dense.weight, dense.bias], dy)
    tolerance = 1e-3 if dtype != torch.bfloat16 else 8e-3  # bias added before rounding, and after
    close(y, x @ dense.weight.t() + dense.bias, tolerance, tolerance)
    for mine, wanted in zip(got, [dy @ dense.weight, dy.t() @ x, dy.sum(0)], strict=True):
        close(mine, wanted, tolerance, tolerance)


def test_dense_without_bias():
    dense, x = FusedDense(6, 4, bias=False), torch.randn(5, 6)
    assert list(dense.state_dict()) == ["weight"] and dense.bias is None
    close(dense(x), x @ dense.weight.t(), 1e-6, 1e-6)
    assert torch.equal(DenseNoBiasFunc.apply(x, dense.weight), dense(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dense_gelu_dense_has_cublas_gelu(dtype):
    module = FusedDenseGeluDense(24, 48, 8).to(dtype)
    assert list(module.state_dict()) == ["weight1", "bias1", "weight2", "bias2"]
    x = (4 * torch.randn(16, 24)).to(dtype).requires_grad_()
    hidden = (x.double() @ module.weight1.t().double() + module.bias1.double()).to(dtype).double()
    gelu = 0.5 * hidden * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (hidden + 0.044715 * hidden**3)))
    wanted = gelu @ module.weight2.t().double() + module.bias2.double()
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    close(module(x).double(), wanted, tolerance, tolerance)
    parameters = [x, *module.parameters()]
    for mine, exact in zip(*(torch.autograd.grad(y.sum(), parameters) for y in (module(x), wanted)), strict=True):
        assert (mine - exact).double().norm() <= tolerance * (1 + exact.double().norm())


def test_dense_begins_as_linear_and_wants_biases_between():
    torch.manual_seed(0)
    linear = torch.nn.Linear(5, 3)
    torch.manual_seed(0)
    dense = FusedDense(5, 3)
    assert torch.equal(dense.weight, linear.weight) and torch.equal(dense.bias, linear.bias)
    with pytest.raises(AssertionError, match="bias=False"):
        FusedDenseGeluDense(2, 2, 2, bias=False)


# ---- normalization ----


@pytest.mark.parametrize("mixed", ["", "Mixed"])
@pytest.mark.parametrize("kind", ["FusedLayerNorm", "FusedRMSNorm"])
@pytest.mark.parametrize(
    ("dtype", "tolerances"),
    [(torch.float32, (2e-3, 2e-4)), (torch.float16, (1.6e-2, 3e-3)), (torch.bfloat16, (1.6e-2, 3e-2))],
    ids=str,
)
def test_gradients_from_the_output_are_those_from_the_input(kind, mixed, dtype, tolerances):
    x = torch.randn(16 * 3, 32 * 5, 16 * 3)[::3, ::5, ::3].to(dtype).requires_grad_()
    modules = [getattr(normalization, mixed + kind)([32, 16], memory_efficient=lean) for lean in (True, False)]
    for module in modules:
        for parameter in module.to(dtype).parameters():
            parameter.data = (1 + torch.arange(512.0).reshape(32, 16) / 512).to(dtype)
    lean, plain = outs = [module(x) for module in modules]
    close(lean, plain, 1.6e-2 if dtype == torch.bfloat16 else 1e-3, 1e-3)
    above = plain.detach() + 1
    grads = [torch.autograd.grad(y, [x, *m.parameters()], above) for y, m in zip(outs, modules, strict=True)]
    for mine, wanted in zip(*grads, strict=True):
        assert mine.dtype == wanted.dtype
        close(mine.float(), wanted.float(), tolerances[0], tolerances[1] * max(1, wanted.abs().max().item()))


def test_memory_efficient_keeps_the_output_and_no_second_derivative():
    x = torch.randn(16, 32, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = normalization.FusedRMSNorm(32, memory_efficient=True)(x)
    assert [t.data_ptr() for t in kept if t.numel() >= x.numel()] == [y.data_ptr()]
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_memory_efficient_with_weights_of_zero_has_finite_gradients():
    module, x = normalization.FusedLayerNorm(4, memory_efficient=True), torch.randn(3, 4, requires_grad=True)
    torch.nn.init.zeros_(module.weight)
    grads = torch.autograd.grad(module(x).sum(), [x, *module.parameters()])
    assert all(torch.isfinite(grad).all() for grad in grads) and torch.equal(grads[2], torch.full((4,), 3.0))


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("kind", ["FusedLayerNorm", "FusedRMSNorm"])
def test_another_width_is_an_error(kind, lean):
    module = getattr(normalization, kind)([2, 3], elementwise_affine=False, memory_efficient=lean)
    assert repr(module) == f"{kind}(torch.Size([2, 3]), eps=1e-05, elementwise_affine=False)"
    with pytest.raises(RuntimeError, match=r"\[\*, 2, 3\]"):
        module(torch.randn(4, 3, 2))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("rms", [False, True])
def test_fused_layer_norm_cuda_is_called_as_copies_of_apexs_functions_call_it(rms, affine):
    names = ["rms_" * rms + way + "_affine" * affine for way in ("forward", "backward")]
    forward, backward = (getattr(fused_layer_norm_cuda, name) for name in names)
    x = torch.randn(4, 3, 6, 5, dtype=torch.float64, requires_grad=True)
    signs = 1 - 2 * (torch.arange(30, dtype=torch.float64) % 2).reshape(6, 5)
    parameters = [(signs * (torch.rand(6, 5) + 0.5)).requires_grad_() for _ in range((2 - rms) * affine)]
    y, *statistics = forward(x, (6, 5), *parameters, 1e-5)
    assert [t.shape for t in statistics] == [(12,)] * (2 - rms)
    if not rms:
        close(y, F.layer_norm(x, (6, 5), *parameters, eps=1e-5), 1e-12, 1e-12)
    wanted = torch.autograd.grad(y, [x, *parameters], y.detach() + 1)
    for kept, lean in ((x, False), (y, True)):
        grads = backward((y + 1).detach(), *statistics, kept, (6, 5), *parameters, 1e-5, lean)
        for mine, exact in zip([grads] if torch.is_tensor(grads) else grads, wanted, strict=True):
            close(mine, exact, 1e-9, 1e-9)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("weight", DTYPES, ids=str)
def test_fast_layer_norm_returns_its_weights_type(weight, lean):
    module = FastLayerNorm(768, memory_efficient=lean).to(weight)
    assert list(module.state_dict()) == ["weight", "bias"] and repr(module) == "FastLayerNorm()"
    x = torch.randn(8, 2, 768, requires_grad=True)
    y, wanted = module(x), F.layer_norm(x, (768,))
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}[weight]
    assert y.dtype == weight
    close(y.float(), wanted, tolerance, tolerance)
    grads = [torch.autograd.grad(out.square().sum(), x)[0] for out in (y.float(), wanted)]
    assert (grads[0] - grads[1]).norm() <= 4 * tolerance * x.numel() ** 0.5
    assert torch.equal(layer_norm.FastLayerNormFN.apply(x, module.weight, module.bias, 1e-5, lean), y)


LAYERS = {
    "MLP": lambda: MLP([8, 4, 8]),
    "FusedDense": lambda: FusedDense(8, 4),
    "FusedDenseGeluDense": lambda: FusedDenseGeluDense(8, 4, 8),
    "FastLayerNorm": lambda: FastLayerNorm(8),
}


@pytest.mark.parametrize("name", LAYERS)
def test_in_autocast_they_return_its_type(name):
    module, x = LAYERS[name](), torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = module(x)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert {parameter.grad.dtype for parameter in module.parameters()} == {torch.float32}


@pytest.mark.parametrize("act", [None, "", "silu", "Swish"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_group_norm_has_a_silu_and_returns_its_inputs_type(dtype, act):
    module = GroupNorm(4, 16, act=act)
    x = torch.randn(2, 16, 3, 5).to(dtype).contiguous(memory_format=torch.channels_last)
    wanted = F.group_norm(x.double(), 4)
    y = module(x)
    assert y.dtype == dtype and list(module.state_dict()) == ["weight", "bias"]
    close(y.double(), F.silu(wanted) if act else wanted, 8e-3, 8e-3)
    assert repr(module) == "GroupNorm(4, 16, eps=1e-05, affine=True" + (f", act={act.lower()})" if act else ")")
    with pytest.raises(ValueError, match="'gelu'"):
        GroupNorm(4, 16, act="gelu")


# ---- amp ----


def tower():
    return torch.nn.Sequential(
        MLP([8, 16, 16]), FusedDense(16, 16), FastLayerNorm(16), FusedDenseGeluDense(16, 32, 16),
        normalization.FusedRMSNorm(16, memory_efficient=True), FusedDense(16, 4, bias=False),
    )  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
def test_they_train_at_every_level(level):
    torch.manual_seed(2)
    model = tower()
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), 0.05), opt_level=level, verbosity=0)
    seen = []
    for module in model:
        module.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    x, y = torch.randn(16, 8), torch.randn(16, 4)
    losses = []
    for _ in range(8):
        loss = (model(x).float() - y).square().mean()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    low = {"O0": torch.float32, "O4": torch.bfloat16, "O5": torch.bfloat16}.get(level, torch.float16)
    assert {seen[0], seen[1], seen[3], seen[5]} == {low}  # products, whatever the norms between return


@COMPILES
def test_they_compile():
    model, x = tower(), torch.randn(4, 8)
    close(torch.compile(model, backend="aot_eager", fullgraph=True)(x), model(x), 1e-5, 1e-5)


@pytest.mark.parametrize("module", [MLP([6, 5, 4], activation="sigmoid"), FusedDenseGeluDense(6, 5, 4)])
def test_they_have_second_derivatives(module):
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(module.double(), x)
