# SPDX-License-Identifier: Apache-2.0
"""`from libamp.lightning import AmpPrecision`, for the Trainer of the package lightning."""
from lightning.pytorch.plugins.precision import Precision

from ._lightning import Amp

__all__ = ["AmpPrecision"]


class AmpPrecision(Amp, Precision):
    __doc__ = Amp.__doc__
