# SPDX-License-Identifier: Apache-2.0
"""Converts models to 16 bits and makes lists of FP32 masters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ..parallel.flat import flatten, unflatten

clip_grad_norm = nn.utils.clip_grad_norm_


class tofp16(nn.Module):
    """A layer that casts its input to fp16."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input.half()


def _is_affine_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and bool(module.affine)


def BN_convert_float(module: nn.Module) -> nn.Module:
    """Converts batch norms with weights back to FP32, anywhere in the module. Returns the module."""
    for part in module.modules():
        if _is_affine_batch_norm(part):
            part.float()
    return module


def network_to_half(network: nn.Module) -> nn.Module:
    """Returns the network in fp16 after a layer that casts its input. Batch norms are as in BN_convert_float."""
    return nn.Sequential(tofp16(), BN_convert_float(network.half()))


@torch.no_grad()
def convert_module(module: nn.Module, dtype: torch.dtype) -> None:
    """Casts the module's own floating parameters, gradients and buffers, but not those of its children."""
    for param in module.parameters(recurse=False):
        if param.is_floating_point():
            grad = param.grad
            param.grad = None
            param.data = param.data.to(dtype)
            param.grad = None if grad is None else grad.to(dtype)
    for buffer in module.buffers(recurse=False):
        if buffer.is_floating_point():
            buffer.data = buffer.data.to(dtype)


def convert_network(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Casts the network except for batch norms with weights. Returns it."""
    for module in network.modules():
        if _is_affine_batch_norm(module):
            continue
        convert_module(module, dtype)
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
    return network


class FP16Model(nn.Module):
    """The network in fp16, as from convert_network, with its floating inputs cast."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = convert_network(network, dtype=torch.half)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        def cast(value: Any) -> Any:
            return value.half() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

        return self.network(*map(cast, inputs), **{name: cast(value) for name, value in kwargs.items()})


def prep_param_lists(
    model: nn.Module, flat_master: bool = False
) -> tuple[list[nn.Parameter], list[nn.Parameter | torch.Tensor]]:
    """Returns the model's trainable parameters and FP32 masters of them, for an optimizer.

    flat_master: bool, one master for all. Raises RuntimeError then if the parameters have several types.
    """
    model_params = [param for param in model.parameters() if param.requires_grad]
    if flat_master:
        if len({param.dtype for param in model_params}) > 1:
            raise RuntimeError(
                "prep_param_lists: the parameters have several types, which one flat master cannot hold; use "
                "flat_master=False, or FP16_Optimizer"
            )
        master = nn.Parameter(flatten([param.detach() for param in model_params]).float())
        master.grad = torch.zeros_like(master)
        return model_params, [master]
    masters = [param.detach().clone().float().requires_grad_() for param in model_params]
    return model_params, masters


@torch.no_grad()
def model_grads_to_master_grads(
    model_params: Sequence[torch.Tensor], master_params: Sequence[torch.Tensor], flat_master: bool = False
) -> None:
    """Copies gradients to the masters, in the masters' type. Without a gradient the master has none, or zeros if it is
    flat."""
    grads = [param.grad for param in model_params]
    if flat_master:
        whole = [torch.zeros_like(p) if g is None else g for p, g in zip(model_params, grads, strict=True)]
        master_params[0].grad = flatten(whole).to(master_params[0].dtype)
        return
    for master, grad in zip(master_params, grads, strict=True):
        if grad is None:
            master.grad = None
        elif master.grad is None:
            master.grad = grad.to(master.dtype, copy=True)
    copy_all([m.grad for m in master_params if m.grad is not None], [grad for grad in grads if grad is not None])


@torch.no_grad()
def master_params_to_model_params(
    model_params: Sequence[torch.Tensor], master_params: Sequence[torch.Tensor], flat_master: bool = False
) -> None:
    """Copies the masters to the model's parameters, rounded to their types."""
    masters = unflatten(master_params[0], model_params) if flat_master else master_params
    copy_all(model_params, masters)


def copy_all(targets: Iterable[torch.Tensor], sources: Iterable[torch.Tensor]) -> None:
    """Copies each source to its target, in the type of the target."""
    pairs = list(zip(targets, sources, strict=True))
    if pairs and hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])
        return
    for target, source in pairs:
        target.copy_(source)


def to_python_float(t: Any) -> float:
    return t.item() if hasattr(t, "item") else t[0]
