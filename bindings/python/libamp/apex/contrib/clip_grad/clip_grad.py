# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterable

import torch

from .... import kernels

_KERNELS_HAVE = (torch.float32, torch.float16, torch.bfloat16)


def _has_gaps(grad: torch.Tensor) -> bool:
    return not grad.is_contiguous() and torch.empty_like(grad, device="meta").stride() != grad.stride()


def _are_for_kernels(grads: list[torch.Tensor]) -> bool:
    return all(
        type(grad) is torch.Tensor
        and grad.layout == torch.strided
        and grad.dtype in _KERNELS_HAVE
        and grad.device == grads[0].device
        and grad.device.type != "meta"
        and not _has_gaps(grad)
        for grad in grads
    )


@torch.no_grad()
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scales gradients in place so that their total norm is at most max_norm. Returns the norm before."""
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return torch.tensor(0.0)
    if float(norm_type) != 2.0 or not _are_for_kernels(grads):
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)
    norm, found = torch.zeros(2, 1, device=grads[0].device)
    kernels.l2norm(grads, norm=norm)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise RuntimeError(
            f"clip_grad_norm_: the norm of the gradients is {norm.item()}, so that they cannot be clipped. "
            "libamp.kernels.first_nonfinite says which one is not finite; error_if_nonfinite=False scales them by it"
        )
    kernels.scale(grads, grads, torch.clamp(float(max_norm) / (norm + 1e-6), max=1.0), found_inf=found)
    return norm.reshape(())
