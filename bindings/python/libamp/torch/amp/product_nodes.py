# SPDX-License-Identifier: Apache-2.0
"""Products with a 16-bit result and sums in FP32 as nodes of autograd. The arguments are saved for backward as they
came, not their FP32 copies, which are made again there. Backward is made of torch's operations where it may be derived
again.

FP32 arguments are not rounded. A gradient has the type of its argument and is rounded once.
"""
from __future__ import annotations

from typing import Any

import torch

from . import widening

# torch's own functions. This module is imported before any of them is patched.
_mm, _bmm, _addmm, _baddbmm = torch.mm, torch.bmm, torch.addmm, torch.baddbmm
_convolution, _convolution_backward = torch.convolution, torch.ops.aten.convolution_backward
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


def no_autocast() -> Any:
    """Opens a block without autocast: backward may run inside of one."""
    return torch._C._ExcludeDispatchKeyGuard(_AUTOCAST)


def _rows(b: torch.Tensor) -> torch.Tensor:
    """Returns the matrix with contiguous rows: b, or b transposed."""
    return b.t() if b.stride(0) == 1 and b.stride(1) > 1 else b


def _multiply(a: Any, b: Any, c: Any = None, alpha: float = 1, beta: float = 1) -> torch.Tensor:
    """Returns alpha * (a @ b) + beta * c in FP32. a, c: FP32."""
    if b.dim() == 2 and b.dtype is not torch.float32 and not torch.is_grad_enabled():
        r = _rows(b)
        if widening.is_worth_it(r, a.shape[0]):
            return (widening.by_columns if r is b else widening.by_rows)(a, r, c, alpha, beta)
    if c is None:
        return (_mm if b.dim() == 2 else _bmm)(a, b.float())
    return (_addmm if b.dim() == 2 else _baddbmm)(c, a, b.float(), alpha=alpha, beta=beta)


def _gradient_of_b(a: Any, grad: Any, by_columns: bool, dtype: torch.dtype) -> Any:
    """Returns a^T @ grad in the layout of b."""
    if by_columns:
        return _gradient_of_b(grad, a, False, dtype).mT
    if a.dim() == 2 and dtype is not torch.float32 and not torch.is_grad_enabled():
        like = a.new_empty((a.shape[1], grad.shape[1]), dtype=dtype)
        if widening.is_worth_it(like, a.shape[0]):
            return widening.gradient(a, grad, like)
    return (_mm if a.dim() == 2 else _bmm)(a.mT, grad).to(dtype)


def _stacked(tensor: torch.Tensor, stack: Any) -> torch.Tensor:
    """Returns the matrices one by one in a stack, those of a single one again."""
    if not stack or (len(stack) == 1 and tensor.dim() == 3 and tensor.shape[:1] == stack):
        return tensor
    return tensor.expand(*stack, *tensor.shape[-2:]).reshape(-1, *tensor.shape[-2:])


def _unstacked(gradient: torch.Tensor, stack: Any, shape: Any) -> torch.Tensor:
    return gradient if gradient.shape == shape else gradient.view(*stack, *shape[-2:]).sum_to_size(shape)


class MatrixProduct(torch.autograd.Function):
    """alpha * (a @ b) + beta * c, of matrices or stacks of them. a, b and c broadcast. None is no c."""

    @staticmethod
    def forward(ctx: Any, low: torch.dtype, alpha: float, beta: float, c: Any, a: Any, b: Any) -> Any:
        with no_autocast():
            wants_a, wants_b = ctx.needs_input_grad[4:]
            ctx.save_for_backward(a if wants_b else None, b if wants_a else None)
            ctx.alpha, ctx.beta = alpha, beta
            ctx.c = None if c is None else (c.shape, c.dtype)
            ctx.types = a.dtype, b.dtype
            ctx.by_columns = b.stride(-2) == 1 and b.stride(-1) > 1
            ctx.shapes = a.shape, b.shape
            ctx.stack = stack = () if a.dim() == b.dim() == 2 else torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            wide_c = None if c is None else c.float()
            out = _multiply(_stacked(a, stack).float(), _stacked(b, stack), wide_c, alpha, beta)
            out = out.to(low).contiguous()  # _multiply may make it transposed
            return out if len(stack) < 2 else out.view(*stack, a.shape[-2], b.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        with no_autocast():
            a, b = ctx.saved_tensors
            wide, stack = grad.float(), ctx.stack
            scaled = _stacked(wide if ctx.alpha == 1 else wide * ctx.alpha, stack)
            grad_a = grad_b = grad_c = None
            if b is not None:
                made = _multiply(scaled, _stacked(b, stack).mT)
                grad_a = _unstacked(made, stack, ctx.shapes[0]).to(ctx.types[0]).contiguous()
            if a is not None:
                # rounded once, after the sum over matrices that b was multiplied by
                dtype = ctx.types[1] if ctx.shapes[1][:-2] == stack else torch.float32
                made = _gradient_of_b(_stacked(a, stack).float(), scaled, ctx.by_columns, dtype)
                grad_b = _unstacked(made, stack, ctx.shapes[1]).to(ctx.types[1])
            if ctx.needs_input_grad[3]:
                shape, dtype = ctx.c
                grad_c = (wide if ctx.beta == 1 else wide * ctx.beta).sum_to_size(shape).to(dtype)
        return None, None, None, grad_c, grad_a, grad_b


class Convolution(torch.autograd.Function):
    """torch.convolution. settings: its arguments from stride to groups."""

    @staticmethod
    def forward(ctx: Any, low: torch.dtype, settings: Any, x: Any, weight: Any, bias: Any) -> Any:
        with no_autocast():
            wants_x, wants_weight, wants_bias = ctx.needs_input_grad[2:]
            # The kernel of the gradients takes both in any case.
            both = wants_x or wants_weight or wants_bias
            ctx.save_for_backward(*((x, weight) if both else (None, None)))
            ctx.settings, ctx.types = settings, (x.dtype, weight.dtype)
            ctx.bias = None if bias is None else (bias.shape, bias.dtype)
            wide_bias = None if bias is None else bias.float()
            return _convolution(x.float(), weight.float(), wide_bias, *settings).to(low)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        with no_autocast():
            x, weight = ctx.saved_tensors
            shape, dtype = ctx.bias or (None, None)
            wide = grad.float(), x.float(), weight.float()
            grads = _convolution_backward(*wide, shape, *ctx.settings, ctx.needs_input_grad[2:])
            types = (*ctx.types, dtype)
            made = (None if each is None else each.to(to) for each, to in zip(grads, types, strict=True))
        return None, None, *made
