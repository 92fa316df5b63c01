# SPDX-License-Identifier: Apache-2.0
"""The wheel alone, as in an environment with neither torch nor NumPy: kernels work, and what needs torch says so."""
import ctypes
import sys

for absent in ("torch", "numpy"):
    sys.modules[absent] = None

import libamp  # noqa: E402
from libamp import kernels  # noqa: E402
from producer import Producer  # noqa: E402


class Floats:
    """As much of an array as a Producer wants, in memory of ctypes."""

    class dtype:
        kind = "f"

    ndim, itemsize, strides = 1, 4, (4,)

    def __init__(self, *values):
        self.memory = (ctypes.c_float * len(values))(*values)
        self.shape = (len(values),)
        self.ctypes = self

    @property
    def data(self):
        return ctypes.addressof(self.memory)


def main():
    x, y = Floats(3.0, 4.0), Floats(0.0, 0.0)
    assert not kernels.scale(Producer(y), [Producer(x, version=None)], 0.5)
    assert list(y.memory) == [1.5, 2.0]
    assert kernels.l2norm(Producer(x)) == 5.0
    weights, grads = Floats(1.0, -2.0), Floats(4.0, 8.0)  # scaled by 4
    assert kernels.optimizer_step("sgd", [Producer(weights)], [Producer(grads)], {}, steps=1, inv_scale=0.25, lr=0.5)
    assert list(weights.memory) == [0.5, -3.0]
    x.memory[0] = float("inf")
    assert kernels.scale([Producer(y)], [Producer(x)], 1.0)
    for given in (None, [1.0], "text"):
        try:
            kernels.l2norm(given)
        except TypeError as error:
            assert "is no tensor: it has no __dlpack__" in str(error)
        else:
            raise AssertionError(f"{given!r} was taken")
    for statement in ("from libamp.torch import amp", "import libamp.torch.optimizers", "from apex import amp"):
        if "apex" in statement:
            libamp.install_apex()
        try:
            exec(statement)
        except ModuleNotFoundError as error:
            assert error.name == "torch" and "PyTorch 2.0 or later" in str(error) and "pip install torch" in str(error)
        else:
            raise AssertionError(f"{statement} did not fail")
    print("done")


main()
