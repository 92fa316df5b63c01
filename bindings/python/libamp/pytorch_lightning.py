# SPDX-License-Identifier: Apache-2.0
"""AmpPrecision for the Trainer of the package pytorch_lightning: `from libamp.pytorch_lightning import
AmpPrecision`."""
from pytorch_lightning.plugins.precision import Precision

from ._lightning import Amp

__all__ = ["AmpPrecision"]


class AmpPrecision(Amp, Precision):
    __doc__ = Amp.__doc__
