# SPDX-License-Identifier: Apache-2.0
"""Apex's packages for PyTorch: amp, optimizers, parallel, fp16_utils and others. Importing this imports PyTorch and
patches nothing.

`fast_half` is for 16-bit products on the CPU without amp.
"""

from ..apex import FOLDER
from . import _tested_versions

__path__.append(FOLDER)  # libamp.torch.RNN is libamp/apex/RNN


def _check_torch() -> None:
    """Raises ImportError with advice if PyTorch is missing, too old or another package of that name."""
    wanted = "libamp.torch needs PyTorch {}.{} or later".format(*_tested_versions.TORCH[0])
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise  # torch is there, and lacks something itself
        raise ModuleNotFoundError(f"{wanted}, and this Python has none: pip install torch", name="torch") from None
    version = str(getattr(torch, "__version__", ""))
    if not version:
        where = list(getattr(torch, "__path__", ())) or torch.__file__
        raise ImportError(f"{wanted}; the `torch` that was found is another one: {where}", name="torch")
    if int(version.split(".")[0]) < _tested_versions.TORCH[0][0]:
        raise ImportError(f"{wanted}, and this is {version}", name="torch")
    _tested_versions.check(version)


_check_torch()


def __getattr__(name: str) -> object:
    if name != "fast_half":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .amp.fast_half import fast_half

    return fast_half
