# SPDX-License-Identifier: Apache-2.0
"""Products in 16 bits on the CPU, with sums in FP32 and one rounding of the result.

torch multiplies float16 element by element on CPUs without float16 units, 100 times slower than FP32. Products of two
16-bit numbers are exact in FP32, so that torch's FP32 kernels, on widened arguments, have only the roundings of FP32
sums. They also are as fast as libamp.kernels.matmul or faster, so that both answers of the gate lead here.

`replacement(op, original)` makes the function that a patched function calls (src/patch_product.c): its arguments are
the 16-bit type, the reason for it, and those of the original. It returns NotImplemented for a call that torch's own
kernel has to serve.

In eager mode a product is a node of autograd (product_nodes.py). Everywhere else (torch.compile, torch.func, forward
derivatives, torch.jit, tensors of classes like DTensor) it is the composition of cast, FP32 op and cast, which each of
them understands.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from . import compiling
from .product_nodes import Convolution, MatrixProduct, in_slices, no_autocast
from .product_rules import TORCH, route, slow_types

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NO_FUNCTION: Any = torch._C._disabled_torch_function_impl
_functorch: Any = getattr(torch._C, "_functorch", None)
_in_transform: Callable[[], Any] = getattr(_functorch, "peek_interpreter_stack", lambda: None)


# Elements of 16-bit arguments from which a product is a node, which saves them as they are. The composition of casts
# and the FP32 op saves FP32 copies, and takes less time: no Python in its backward, and no second widening.
_NODE = 1 << 19


class Plan(NamedTuple):
    """A product: its kind and sizes for the gate, the number of such products (0: none, or none that FP32 kernels may
    compute), the call of its node, None if it has none, and whether the node takes less time for any arguments."""

    kind: str
    shape: Sequence[int]
    number: int
    node: Callable[[], Any] | None
    prefers_node: bool = False


# ---- torch's functions as matrix products ----


def _matrices(low: torch.dtype, c: Any, a: Any, b: Any, alpha: float = 1, beta: float = 1) -> Any:
    return MatrixProduct.apply(low, alpha, beta, c, a, b)


def _linear(low: torch.dtype, input: Any, weight: Any, bias: Any = None) -> Plan | None:  # torch's names
    if weight.dim() != 2 or input.dim() < 1 or input.shape[-1] != weight.shape[1]:
        return None
    n, k = weight.shape

    def node() -> Any:
        if input.dim() == 2:
            return _matrices(low, bias, input, weight.t())
        return _matrices(low, bias, input.reshape(-1, k), weight.t()).view(*input.shape[:-1], n)

    return Plan("matmul", (math.prod(input.shape[:-1]), n, k), 1, node)


def _two(dims: int) -> Callable[..., Plan | None]:
    def product(low: torch.dtype, input: Any, mat2: Any) -> Plan | None:
        if not input.dim() == mat2.dim() == dims:
            return None
        shape = input.shape[-2], mat2.shape[-1], input.shape[-1]
        return Plan("matmul", shape, math.prod(input.shape[:-2]), lambda: _matrices(low, None, input, mat2))

    return product


def _three(dims: int) -> Callable[..., Plan | None]:
    def product(low: torch.dtype, input: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Plan | None:
        numbers = isinstance(alpha, (int, float)) and isinstance(beta, (int, float))
        if not numbers or a.dim() != dims or b.dim() != dims:
            return None
        shape = a.shape[-2], b.shape[-1], a.shape[-1]
        return Plan("matmul", shape, math.prod(a.shape[:-2]), lambda: _matrices(low, input, a, b, alpha, beta))

    return product


def _matmul(low: torch.dtype, input: Any, other: Any) -> Plan | None:
    if input.dim() < 2 or other.dim() < 2:
        return None
    m, n, k = input.shape[-2], other.shape[-1], input.shape[-1]

    def folded() -> Any:
        a = input if input.dim() == 2 else input.reshape(-1, k)
        out = _matrices(low, None, a, other)
        return out if input.dim() == 2 else out.view(*input.shape[:-1], n)

    if other.dim() == 2:
        return Plan("matmul", (math.prod(input.shape[:-1]), n, k), 1, folded)
    number = math.prod(max(input, other, key=torch.Tensor.dim).shape[:-2])
    return Plan("matmul", (m, n, k), number, lambda: _matrices(low, None, input, other))


# ---- convolutions ----


def _overruns(x: Any, weight: Any, stride: Any) -> bool:
    """Returns True for FP32 convolutions that write past their memory in torch 2.15 without AVX-512: 1x1 with a stride,
    fewer than 8 channels, channels last."""
    return max(weight.shape[2:]) == 1 < max(stride) and x.shape[-1 - len(stride)] < 8 and not x.is_contiguous()


def _convolve(dims: int, transposed: bool) -> Callable[..., Plan | None]:
    def tupled(value: Any) -> Any:
        return (value,) * dims if isinstance(value, int) else tuple(value) * (dims if len(value) == 1 else 1)

    def plan(low: torch.dtype, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, more: Any) -> Plan | None:
        if weight.dim() != dims + 2 or x.dim() not in (dims + 1, dims + 2):
            return None
        dilation, output_padding, groups = more
        stride = tupled(stride)
        pixels = (x.shape[0] if x.dim() == dims + 2 else 1) * math.prod(x.shape[-dims:])
        if transposed:
            shape = pixels, math.prod(weight.shape[1:]), weight.shape[0] // groups
        else:
            shape = pixels // math.prod(stride), weight.shape[0] // groups, math.prod(weight.shape[1:])
        if _overruns(x, weight, stride):
            return Plan("conv", shape, 0, None)
        if x.dim() == dims + 1 or isinstance(padding, str):
            return Plan("conv", shape, groups, None)
        settings = stride, tupled(padding), tupled(dilation), transposed, tupled(output_padding), groups
        made = pixels * math.prod(stride) * weight.shape[1] * groups if transposed else shape[0] * weight.shape[0]
        elements = x.numel() + made
        known = type(elements) is int  # no symbol of torch.compile
        slices = in_slices(x.shape[0], elements, weight.numel()) if known else 1

        def node() -> Any:
            return Convolution.apply(low, settings, slices, x, weight, bias)

        return Plan("conv", shape, groups, node, slices > 1)

    def convolution(
        low: torch.dtype,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Plan | None:
        return plan(low, input, weight, bias, stride, padding, (dilation, 0, groups))

    def transpose(
        low: torch.dtype,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Plan | None:
        return plan(low, input, weight, bias, stride, padding, (dilation, output_padding, groups))

    return transpose if transposed else convolution


def _attention(low: torch.dtype, query: Any, key: Any, value: Any, *_rest: Any, **_named: Any) -> Plan:
    shape = query.shape[-2], key.shape[-2], query.shape[-1]
    return Plan("attention", shape, 2 * math.prod(query.shape[:-2]), None)


# ---- the list ----

_PLANS: dict[str, Callable[..., Plan | None]] = {
    "linear": _linear,
    "mm": _two(2),
    "bmm": _two(3),
    "addmm": _three(2),
    "baddbmm": _three(3),
    "matmul": _matmul,
    "linalg_matmul": _matmul,
    "__matmul__": _matmul,
    "scaled_dot_product_attention": _attention,
    **{f"conv{n}d": _convolve(n, False) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _convolve(n, True) for n in (1, 2, 3)},
}
# Products without a plan. They are compositions, and have the sizes of their largest argument.
_OTHERS = (
    "addbmm", "addmv", "bilinear", "chain_matmul", "conv_tbc", "einsum", "gru", "gru_cell", "inner",
    "linalg_multi_dot", "lstm", "lstm_cell", "mv", "rnn_relu", "rnn_relu_cell", "rnn_tanh", "rnn_tanh_cell",
)  # fmt: skip
# Those that no cast list names, by module: functions in C++ that multiply inside.
UNLISTED = (
    ("torch", "tensordot"),
    ("torch", "_native_multi_head_attention"),  # the quick paths of torch.nn.MultiheadAttention and its layers
    ("torch", "_transformer_encoder_layer_fwd"),
)
OPS = frozenset((*_PLANS, *_OTHERS, *(name for _module, name in UNLISTED)))
# torch.autocast on the CPU leaves these in FP32.
_NOT_IN_AUTOCAST = frozenset(("addmv", "bilinear", "gru", "gru_cell", "lstm_cell", "mv"))
GIVEN, BY_POLICY, BY_AUTOCAST = range(3)  # reasons: arguments of the type, or FP32 ones beside it
_OUT_OF_PLACE = {f"{name}_": getattr(torch.Tensor, name) for name in ("addbmm", "addmm", "addmv", "baddbmm")}


def autocast_type() -> torch.dtype | None:
    """Returns the 16-bit type of torch.autocast on the CPU if the gate looks at its products."""
    low = getattr(torch, "get_autocast_dtype", lambda _: torch.get_autocast_cpu_dtype())("cpu")
    return low if low in slow_types() else None


# Called before each product in FP32 while fast_half is in force: in C. Before torch 2.4 it is a function of its own.
in_autocast: Callable[[], bool] = (
    functools.partial(torch.is_autocast_enabled, "cpu")
    if hasattr(torch, "get_autocast_dtype")
    else torch.is_autocast_cpu_enabled
)


# ---- the call ----


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _is_served(tensor: torch.Tensor, low: torch.dtype, reason: int) -> bool:
    kind = type(tensor)
    if kind not in _PLAIN and kind.__torch_function__ is not _NO_FUNCTION:
        return False  # a class with its own products
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        return False
    dtype = tensor.dtype
    wide = reason != GIVEN and dtype is torch.float32
    return dtype is low or wide or not (dtype.is_floating_point or dtype.is_complex)


def _is_eager(tensors: list[torch.Tensor]) -> bool:
    """Returns True if autograd, or nothing, records the call."""
    return (
        all(type(tensor) in _PLAIN for tensor in tensors)
        and _in_transform() is None
        and torch.autograd.forward_ad._current_level < 0
        and torch._C._get_tracing_state() is None
    )


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(_map(item, change) for item in value)
    return value


def _composed(original: Any, low: torch.dtype, args: Any, kwargs: Any) -> Any:
    def widen(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.is_floating_point() else tensor

    def narrow(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(low) if tensor.dtype is torch.float32 else tensor

    with no_autocast():
        wide = original(*_map(args, widen), **{name: _map(value, widen) for name, value in kwargs.items()})
        return _map(wide, narrow)


def _plan(op: str, tensors: list[torch.Tensor], low: torch.dtype, args: Any, kwargs: Any) -> Plan:
    make = _PLANS.get(op)
    plan = None
    if make is not None:
        try:
            plan = make(low, *args, **kwargs)
        except (TypeError, AttributeError):  # torch's own error is better, or it has another spelling of the call
            plan = None
    if plan is None:
        sizes = [tensor.numel() for tensor in tensors]
        side = math.isqrt(max(sizes)) if all(type(size) is int for size in sizes) else 4096
        # torch's LSTM is oneDNN's in FP32 and bf16. In fp16 it is many products, as slow as the convolutions
        plan = Plan("conv" if op == "lstm" else "matmul", (side, side, side), 1, None)
    if any(type(size) is not int for size in (*plan.shape, plan.number)):  # symbols of torch.compile, which stay free
        plan = plan._replace(shape=(4096, 4096, 4096), number=1)
    return plan


def replacement(op: str, original: Callable[..., Any]) -> Callable[..., Any] | None:
    """Returns the function for products of this op in 16 bits on the CPU, None for an op that is no product."""
    name = op.removesuffix("_") if op in _OUT_OF_PLACE else op
    if name not in OPS:
        return None
    compute = _OUT_OF_PLACE.get(op, original)

    def product(low: torch.dtype, reason: int, *args: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        out = args[0] if name != op else out
        tensors = list(_tensors((*args, *kwargs.values(), out)))
        if not tensors or not all(_is_served(tensor, low, reason) for tensor in tensors):
            return NotImplemented
        if reason == BY_AUTOCAST and (name in _NOT_IN_AUTOCAST or (name == "einsum" and len(tensors) < 2)):
            return NotImplemented
        plan = _plan(name, tensors, low, args, kwargs)
        if not plan.number or route(plan.kind, low, plan.shape) is TORCH:
            return NotImplemented
        large = plan.prefers_node or sum(tensor.numel() for tensor in tensors if tensor.dtype is low) >= _NODE
        node = plan.node if large and _is_eager(tensors) else None
        result = _composed(compute, low, args, kwargs) if node is None else node()
        if out is None:
            return result
        return out.copy_(result) if out.shape == result.shape and out.dtype is low else NotImplemented

    compiling.run_as_it_is(product.__code__, calls=True)  # a graph contains it, or no part of it
    return product
