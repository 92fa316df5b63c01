# SPDX-License-Identifier: Apache-2.0
"""Products with a 16-bit result and sums in FP32 as nodes of autograd. The arguments are saved for backward as they
came, not their FP32 copies, which are made again there. Backward is made of torch's operations where it may be derived
again.

FP32 arguments are not rounded. A gradient has the type of its argument and is rounded once.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def _multiply(
    dtype: torch.dtype, a: Any, b: Any, c: Any = None, alpha: float = 1, beta: float = 1
) -> torch.Tensor:
    """Returns alpha * (a @ b) + beta * c in FP32, or rounded to the type already. a, c: FP32."""
    if b.dim() == 2 and b.dtype is not torch.float32 and not torch.is_grad_enabled():
        r = _rows(b)
        if widening.is_worth_it(r, a.shape[0]):
            if r is b:
                return widening.by_columns(a, r, c, alpha, beta)
            return widening.by_rows(a, r, c, alpha, beta, dtype)
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
            out = _multiply(low, _stacked(a, stack).float(), _stacked(b, stack), wide_c, alpha, beta).to(low)
            return out if len(stack) < 2 else out.view(*stack, a.shape[-2], b.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        with no_autocast():
            a, b = ctx.saved_tensors
            wide, stack = grad.float(), ctx.stack
            scaled = _stacked(wide if ctx.alpha == 1 else wide * ctx.alpha, stack)
            grad_a = grad_b = grad_c = None
            if b is not None:
                # rounded once, after the sum over matrices that a was multiplied by
                dtype = ctx.types[0] if ctx.shapes[0][:-2] == stack else torch.float32
                made = _multiply(dtype, scaled, _stacked(b, stack).mT)
                grad_a = _unstacked(made, stack, ctx.shapes[0]).to(ctx.types[0])
            if a is not None:
                # rounded once, after the sum over matrices that b was multiplied by
                dtype = ctx.types[1] if ctx.shapes[1][:-2] == stack else torch.float32
                made = _gradient_of_b(_stacked(a, stack).float(), scaled, ctx.by_columns, dtype)
                grad_b = _unstacked(made, stack, ctx.shapes[1]).to(ctx.types[1])
            if ctx.needs_input_grad[3]:
                shape, dtype = ctx.c
                grad_c = (wide if ctx.beta == 1 else wide * ctx.beta).sum_to_size(shape).to(dtype)
        return None, None, None, grad_c, grad_a, grad_b


# FP32 elements of a convolution's argument and result that stay in the cache of a core: 2 MiB.
_SLICE = 1 << 19


def in_slices(samples: int, elements: int, weights: int) -> int:
    """Returns the number of slices of a batch in which a convolution is computed. elements: of its argument and result.
    weights: elements of its weight, at most a quarter of a slice's, because each slice reads it and adds a gradient.
    The FP32 form of a slice stays in the cache, and its memory serves the next one too. As a whole it goes through
    memory three times, and the system maps new pages for it in each step."""
    wanted = min(samples, -(-elements // max(_SLICE * torch.get_num_threads(), 4 * weights)))
    return next((n for n in range(max(wanted, 1), 2 * wanted) if samples % n == 0), max(wanted, 1))


def _batch(like: torch.Tensor, samples: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns memory for a whole batch in the layout of some of its samples."""
    return torch.empty_strided((samples, *like.shape[1:]), (like[0].numel(), *like.stride()[1:]), dtype=dtype)


def _widened(slices: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yields the slices in FP32, one after the other in the same memory."""
    if slices[0].dtype is torch.float32:
        yield from slices
        return
    wide = torch.empty_like(slices[0], dtype=torch.float32)
    for each in slices[:-1]:
        yield wide.copy_(each)
    yield wide[: len(slices[-1])].copy_(slices[-1])


def _convolve(x: torch.Tensor, weight: Any, bias: Any, settings: Any, low: torch.dtype, slices: int) -> torch.Tensor:
    """Returns the convolution rounded to a 16-bit type. weight, bias: FP32."""
    if slices == 1:
        return _convolution(x.float(), weight, bias, *settings).to(low)
    parts = x.chunk(slices)
    outs: Any = None
    for i, part in enumerate(_widened(parts)):
        made = _convolution(part, weight, bias, *settings)
        if outs is None:
            out = _batch(made, x.shape[0], low)
            outs = out.split(made.shape[0])
        outs[i].copy_(made)
    return out


def _gradients(
    grad: torch.Tensor, x: torch.Tensor, weight: Any, bias: Any, settings: Any, wanted: Any, slices: int
) -> tuple[Any, Any, Any]:
    """Returns the gradients of x, in its type, and of weight and bias, in FP32. weight: FP32. bias: its shape."""
    if slices == 1:
        of_x, *sums = _convolution_backward(grad.float(), x.float(), weight, bias, *settings, wanted)
        return None if of_x is None else of_x.to(x.dtype), *sums
    of_x = torch.empty_like(x) if wanted[0] else None
    rounded = None if of_x is None else of_x.chunk(slices)
    sums = None
    for i, pair in enumerate(zip(_widened(grad.chunk(slices)), _widened(x.chunk(slices)), strict=True)):
        made, *others = _convolution_backward(*pair, weight, bias, *settings, wanted)
        if rounded is not None:
            rounded[i].copy_(made)
        if sums is None:
            sums = others
        else:
            for each, other in zip(sums, others, strict=True):
                if each is not None:
                    each.add_(other)
    return of_x, *sums


class Convolution(torch.autograd.Function):
    """torch.convolution. settings: its arguments from stride to groups. slices: of the batch, see in_slices."""

    @staticmethod
    def forward(ctx: Any, low: torch.dtype, settings: Any, slices: int, x: Any, weight: Any, bias: Any) -> Any:
        with no_autocast():
            wants_x, wants_weight, wants_bias = ctx.needs_input_grad[3:]
            # The kernel of the gradients takes both in any case.
            both = wants_x or wants_weight or wants_bias
            ctx.save_for_backward(*((x, weight) if both else (None, None)))
            ctx.settings, ctx.slices = settings, slices
            ctx.types = weight.dtype, None if bias is None else bias.dtype
            ctx.bias = None if bias is None else bias.shape
            wide_bias = None if bias is None else bias.float()
            return _convolve(x, weight.float(), wide_bias, settings, low, slices)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        with no_autocast():
            x, weight = ctx.saved_tensors
            slices = 1 if torch.is_grad_enabled() else ctx.slices
            wanted = ctx.needs_input_grad[3:]
            of_x, *others = _gradients(grad, x, weight.float(), ctx.bias, ctx.settings, wanted, slices)
            made = (None if each is None else each.to(to) for each, to in zip(others, ctx.types, strict=True))
            return None, None, None, of_x, *made
