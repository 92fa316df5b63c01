# SPDX-License-Identifier: Apache-2.0
"""The bound of products in 16 bits with sums in FP32 and one rounding."""
import torch

UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
LEAST = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}


def tensors(shapes, dtype, seed):
    """Normal numbers with a few small ones, whose products are subnormal in 16 bits."""
    torch.manual_seed(seed)
    made = [torch.randn(shape) for shape in shapes]
    return [torch.where(torch.rand(each.shape) < 0.1, each * 2.0**-14, each).to(dtype) for each in made]


def results(function, leaves, grad=None):
    """The output and the gradients, of copies in FP64 if no type is given."""
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    out = function(*leaves)
    grad = torch.ones_like(out) if grad is None else grad.to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)], out


def check_bound(found, function, leaves, grad, rounded=lambda i: True, low=None):
    """|found - exact| <= (k + 4) 2^-24 (|A| |B| + |C|), and one rounding. k and |A| |B| are the same function of ones
    and of magnitudes. alpha and beta are at most 3."""
    exact, _ = results(function, [leaf.double() for leaf in leaves], grad)
    sizes, _ = results(lambda *args: function(*args).abs(), [leaf.double().abs() for leaf in leaves], grad.abs())
    terms, _ = results(lambda *args: function(*args).abs(), [torch.ones_like(leaf).double() for leaf in leaves])
    low = low or leaves[0].dtype
    for i, (y, wanted, size, k) in enumerate(zip(found, exact, sizes, terms, strict=True)):
        sums = (k.abs() + 4) * 2.0**-24 * size.abs() * 3
        rounding = torch.clamp(UNIT[low] * (wanted.abs() + sums), min=LEAST[low] / 2) if rounded(i) else 0
        assert ((y.double() - wanted).abs() <= sums + rounding).all(), i
