# SPDX-License-Identifier: Apache-2.0
"""Unscaling and skipping that torch's GradScaler leaves to an optimizer that unscales by itself."""

from __future__ import annotations

from typing import Any

import torch

from ... import kernels


class Scaling:
    """Reads the scale and found_inf from a scaler that step received, or from the attributes grad_scale (None if
    gradients are unscaled) and found_inf that GradScaler.step sets. Without either, gradients are used as they are."""

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
        self.scale: torch.Tensor | None = getattr(optimizer, "grad_scale", None)
        self.found_inf: torch.Tensor | None = getattr(optimizer, "found_inf", None)
        if scaler is not None and scaler.is_enabled():
            found = list(scaler._check_inf_per_device(optimizer).values())
            self.scale = scaler._get_scale_async()
            self.found_inf = sum((value.to(found[0].device) for value in found[1:]), found[0])

    def arguments(self, device: torch.device) -> dict[str, Any]:
        """Returns inv_scale and found_inf as kernel arguments on the device."""
        arguments: dict[str, Any] = {}
        if self.scale is not None:
            arguments["inv_scale"] = self.scale.to(device).double().reciprocal().float().reshape(1)
        if self.found_inf is not None:
            arguments["found_inf"] = self.found_inf.to(device).float().reshape(1)
        return arguments

    def unscale(self, grads: list[torch.Tensor]) -> None:
        """Unscales the gradients in place, for code that reads them after the step. After an overflow they remain as
        they are."""
        factors = self.arguments(grads[0].device)
        if "inv_scale" in factors:
            factor = factors["inv_scale"]
            if "found_inf" in factors:
                factor = torch.where(factors["found_inf"] != 0, torch.ones_like(factor), factor)
            kernels.scale(grads, grads, factor, found_inf=torch.zeros_like(factor))
