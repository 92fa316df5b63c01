# SPDX-License-Identifier: Apache-2.0
"""AmpPrecision for the Trainer of the package lightning: `from libamp.lightning import AmpPrecision`."""
from lightning.pytorch.plugins.precision import Precision

from ._lightning import Amp

__all__ = ["AmpPrecision"]


class AmpPrecision(Amp, Precision):
    __doc__ = Amp.__doc__
