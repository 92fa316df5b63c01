# SPDX-License-Identifier: Apache-2.0
"""Backward of scaled_dot_product_attention on the CPU in 16 bits. It replaces torch's while a session needs it.

torch works on blocks of 32 queries, in products so small that their preparation takes longer than the products. Here a
product is a batch of whole heads, as many as have their scores in the cache of a core. Scores, probabilities and their
gradients are FP32, from the logarithms of the sums that forward saved. For long sequences torch's blocks are large
enough, and its backward is used.
"""
from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch

from ._casting import disable_casts

_OP = "_scaled_dot_product_flash_attention_for_cpu_backward"
_LOW = (torch.bfloat16, torch.float16)
_CACHED = 1 << 17  # scores of a thread at a time: their FP32, and that of their gradients, is 1 MiB
_MOST_KEYS = 512
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

_sessions: weakref.WeakSet[Any] = weakref.WeakSet()
_library: Any = None  # that has the registration
_torchs: Any = None  # the kernel that stood there


def serve(session: Any) -> None:
    """Replaces the backward as long as this session, or another one that needs it, is in force."""
    global _library, _torchs
    # Until torch 2.9 a replaced kernel cannot be called.
    casts = session.resolved["patch_ops"] or session.resolved["cast_model_type"] in ("float16", "bfloat16")
    if not casts or not hasattr(torch.library, "get_kernel"):
        return
    _sessions.add(session)
    session.undo.append(lambda: _leave(session))
    if _library is None:
        _torchs = torch.library.get_kernel(f"aten::{_OP}", "CPU")
        _library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():  # torch 2.11 tells its users
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            _library.impl(_OP, _backward, "CPU", with_keyset=True, allow_override=True)


def _leave(session: Any) -> None:
    global _library
    _sessions.discard(session)
    if _library is not None and not any(each.alive for each in _sessions):
        _library._destroy()
        _library = None


def _backward(
    keys: Any,
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    alike = query.shape[:2] == key.shape[:2] == value.shape[:2] and query.shape[3] == value.shape[3]
    few = 0 < key.shape[2] <= _MOST_KEYS and query.shape[2] > 0
    if query.dtype in _LOW and alike and few and any(session.alive for session in _sessions):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        with disable_casts(), torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):  # backward may be in an autocast block
            added = _added(query, key, is_causal, attn_mask)
            return _gradients(grad, query, key, value, out, logsumexp, added, scale)
    rest = (grad, query, key, value, out, logsumexp, dropout_p, is_causal)
    return _torchs.call_boxed(keys, *rest, attn_mask=attn_mask, scale=scale)


def _added(query: torch.Tensor, key: torch.Tensor, is_causal: bool, mask: torch.Tensor | None) -> torch.Tensor | None:
    """Returns the mask to add to the scores, as a view for each head."""
    shape = *query.shape[:3], key.shape[2]
    if is_causal:
        mask = torch.full(shape[2:], -torch.inf).triu_(1)
    return None if mask is None else mask.expand(shape)


def _heads(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, *tensor.shape[2:])


def _product_type(low: torch.dtype) -> torch.dtype:
    """Returns the type of products. CPUs have no float16 products that torch uses, and not all have bfloat16 ones."""
    quick = low is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return low if quick else torch.float32


def _gradients(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    added: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    low = _product_type(query.dtype)
    inputs = [_heads(tensor) for tensor in (query, key, value)]
    made = [torch.empty_like(tensor, dtype=low) for tensor in inputs]
    given = [*inputs, *map(_heads, (grad, out, logsumexp))]
    heads = torch.arange(len(inputs[0]))
    at_a_time = max(1, _CACHED * torch.get_num_threads() // (query.shape[2] * key.shape[2]))
    for part in heads.split(at_a_time):
        some = slice(int(part[0]), int(part[-1]) + 1)
        mask = None if added is None else added[part // query.shape[1], part % query.shape[1]]
        _some_heads([tensor[some] for tensor in given], mask, scale, [tensor[some] for tensor in made])
    return tuple(_laid_out(each, like) for each, like in zip(made, (query, key, value), strict=True))


def _laid_out(made: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns the result in the layout of torch's kernel, on which compiled code of inductor relies."""
    return torch.empty_permuted(like.shape, (0, 2, 1, 3), dtype=like.dtype).copy_(made.view(like.shape))


def _some_heads(given: list[torch.Tensor], mask: torch.Tensor | None, scale: float, made: list[torch.Tensor]) -> None:
    """Computes the gradients of some heads. P are the probabilities: dP = dO V^T, dS = P (dP - sum(dO O)), dQ = dS K,
    dK = dS^T Q, dV = P^T dO."""
    query, key, value, grad, out, logsumexp = given
    low, wide_grad = made[0].dtype, grad.float()
    p = torch.bmm(query.float().mul_(scale), key.float().mT)
    if mask is not None:
        p.add_(mask)
    p.sub_(logsumexp.unsqueeze(-1)).exp_()
    along = (wide_grad * out).sum(-1, keepdim=True)
    ds = torch.bmm(wide_grad, value.float().mT).sub_(along).mul_(p).mul_(scale).to(low)
    torch.bmm(ds, key.to(low), out=made[0])
    torch.bmm(ds.mT, query.to(low), out=made[1])
    torch.bmm(p.to(low).mT, grad.to(low), out=made[2])
