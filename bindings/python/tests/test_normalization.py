# SPDX-License-Identifier: Apache-2.0
"""apex.normalization over torch's: values against FP64 by hand, types as Apex's, gradients to every argument."""

import pytest

torch = pytest.importorskip("torch")

from libamp.torch import apex_C, normalization  # noqa: E402
from libamp.torch.normalization import fused_layer_norm as functions  # noqa: E402

LOW = [torch.float16, torch.bfloat16]
# torch.autocast on CPUs has fp16 since 2.4, which also asks for the type by the device.
AUTOCASTS = LOW if hasattr(torch, "get_autocast_dtype") else LOW[1:]
# A result is rounded once to its type, of values below 8; sums of 12 FP32 products are exact to a few 2^-22.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 8 * 2**-11, torch.bfloat16: 8 * 2**-8}


def layer_by_hand(x, w, b, eps):
    x = x.double()
    y = (x - x.mean((-2, -1), keepdim=True)) / torch.sqrt(x.var((-2, -1), correction=0, keepdim=True) + eps)
    return y if w is None else y * w.double() + b.double()


def rms_by_hand(x, w, _, eps):
    x = x.double()
    y = x / torch.sqrt(x.square().mean((-2, -1), keepdim=True) + eps)
    return y if w is None else y * w.double()


CASES = [
    ("FusedLayerNorm", layer_by_hand, False),
    ("MixedFusedLayerNorm", layer_by_hand, True),
    ("FusedRMSNorm", rms_by_hand, False),
    ("MixedFusedRMSNorm", rms_by_hand, True),
]


@pytest.mark.parametrize("dtype", [*LOW, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("weight_dtype", ["same", torch.float32], ids=str)
@pytest.mark.parametrize(("name", "by_hand", "mixed"), CASES, ids=[case[0] for case in CASES])
def test_values_types_and_gradients(name, by_hand, mixed, dtype, weight_dtype):
    torch.manual_seed(3)
    module = getattr(normalization, name)((3, 4), eps=1e-3).to(dtype if weight_dtype == "same" else weight_dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(3, 4))
    x = torch.randn(5, 3, 4).to(dtype).requires_grad_()
    y = module(x)
    assert y.dtype == (module.weight.dtype if mixed else x.dtype)
    wanted = by_hand(x, module.weight, getattr(module, "bias", None), 1e-3)
    worst = max(TOLERANCE[y.dtype], TOLERANCE[module.weight.dtype] if weight_dtype != "same" else 0)
    assert (y.double() - wanted).abs().max() <= worst
    grads = torch.autograd.grad(y.double().square().sum(), [x, *module.parameters()])
    exact = torch.autograd.grad(wanted.square().sum(), [x, *module.parameters()])
    for mine, right in zip(grads, exact, strict=True):
        assert mine.dtype == right.dtype
        assert (mine - right).double().norm() <= 8 * worst * (1 + right.double().norm())


@pytest.mark.parametrize("function", ["fused_layer_norm", "fused_rms_norm"])
def test_without_a_weight(function):
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1)).half()
    by_hand = layer_by_hand if "layer" in function else rms_by_hand
    y = getattr(functions, function)(x, (3, 4), 1e-5)
    assert y.dtype == torch.float16
    assert (y.double() - by_hand(x, None, None, 1e-5)).abs().max() <= TOLERANCE[torch.float16]


def test_a_16_bit_input_is_summed_in_fp32():
    x = torch.full((1, 4096), 200.0, dtype=torch.float16)  # 200² = 40,000; four such squares are beyond fp16
    assert torch.equal(normalization.FusedRMSNorm(4096)(x), torch.ones_like(x))


def test_state_dict_is_torchs_layer_norms():
    state = torch.nn.LayerNorm(7).state_dict()
    assert normalization.FusedLayerNorm(7).load_state_dict(state).missing_keys == []
    assert list(normalization.FusedRMSNorm(7).state_dict()) == ["weight"]
    assert list(normalization.FusedLayerNorm(7, elementwise_affine=False).state_dict()) == []


def test_mixed_refuses_to_be_without_a_weight():
    with pytest.raises(RuntimeError, match="elementwise_affine"):
        normalization.MixedFusedLayerNorm(4, elementwise_affine=False)
    with pytest.raises(TypeError, match="nonsense"):
        normalization.MixedFusedRMSNorm(4, nonsense=1)


def test_flatten_and_unflatten():
    tensors = [torch.arange(6.0).reshape(2, 3), torch.arange(4.0)]
    flat = apex_C.flatten(tensors)
    assert flat.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    views = apex_C.unflatten(flat, tensors)
    flat.add_(1)
    assert [view.shape for view in views] == [tensor.shape for tensor in tensors]
    assert views[0][1, 2] == 6


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_the_functions_by_apply(dtype):
    torch.manual_seed(4)
    x, w, b = (torch.randn(*shape, requires_grad=True) for shape in ((5, 3, 4), (3, 4), (3, 4)))
    x16 = x.to(dtype)
    for name, given, mixed in (
        ("fused_layer_norm", (), False),
        ("fused_layer_norm_affine", (w, b), False),
        ("mixed_dtype_fused_layer_norm_affine", (w, b), True),
        ("fused_rms_norm", (), False),
        ("fused_rms_norm_affine", (w,), False),
        ("mixed_dtype_fused_rms_norm_affine", (w,), True),
    ):
        kind = "RMSNorm" if "rms" in name else "LayerNorm"
        cls = f"Fused{kind}{'Affine' if given else ''}{'MixedDtypes' if mixed else ''}Function"
        y = getattr(functions, cls).apply(x16, *given, (3, 4), 1e-3)
        assert y.dtype == (torch.float32 if mixed else dtype)
        assert torch.equal(y, getattr(functions, name)(x16, *given, (3, 4), 1e-3))
        assert all(grad is not None for grad in torch.autograd.grad(y.sum(), [x, *given]))


@pytest.mark.parametrize("dtype", AUTOCASTS, ids=str)
@pytest.mark.parametrize(("name", "by_hand", "mixed"), CASES, ids=[case[0] for case in CASES])
def test_under_autocast_all_is_cast_to_its_type(name, by_hand, mixed, dtype):
    """As in Apex, whose casts are on the tape: gradients return in the types of their leaves. FP64 stays."""
    torch.manual_seed(5)
    module = getattr(normalization, name)((3, 4), eps=1e-3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(3, 4))
    double = torch.randn(2, 3, 4, dtype=torch.float64)
    for before in (torch.float32, *LOW):
        x = torch.randn(5, 3, 4).to(before).requires_grad_()
        leaves = [x, *module.parameters()]
        with torch.autocast("cpu", dtype):
            y = module(x)
            assert module(double).dtype is (dtype if mixed else torch.float64)
        assert y.dtype is dtype
        cast = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
        shape = (3, 4)
        function = ("mixed_dtype_" if mixed else "") + f"fused_{'rms' if 'RMS' in name else 'layer'}_norm_affine"
        expected = getattr(functions, function)(*cast, shape, 1e-3)
        assert torch.equal(y, expected)
        mine = torch.autograd.grad(y.float().square().sum(), leaves)
        right = torch.autograd.grad(expected.float().square().sum(), cast)
        for leaf, grad, wanted in zip(leaves, mine, right, strict=True):
            assert grad.dtype is leaf.dtype and torch.equal(grad, wanted.to(leaf.dtype))
    with torch.autocast("cpu", dtype, enabled=False):
        assert module(torch.ones(2, 3, 4)).dtype is torch.float32


@pytest.mark.parametrize("dtype", AUTOCASTS, ids=str)
def test_under_autocast_the_functions_too_and_by_keyword(dtype):
    x, w = torch.randn(5, 3), torch.ones(3)
    with torch.autocast("cpu", dtype):
        assert functions.fused_layer_norm(x, 3).dtype is dtype
        assert functions.fused_rms_norm_affine(x, weight=w, normalized_shape=3).dtype is dtype
        assert functions.mixed_dtype_fused_rms_norm_affine(x, weight=w, normalized_shape=3).dtype is dtype
        assert functions.FusedRMSNormAffineFunction.apply(x, w, 3).dtype is torch.float32  # the one below the casts
        assert torch.mm(x, x.T).dtype is dtype  # autocast is as it was
    assert functions.fused_layer_norm(input=x, normalized_shape=3).dtype is torch.float32
