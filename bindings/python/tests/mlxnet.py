# SPDX-License-Identifier: Apache-2.0
"""What the tests of libamp.mlx train: the digits, a net with a convolution, a batch norm and a GELU, and a loop."""
import csv
import ctypes
import functools
import gzip
import pathlib

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import pytest
from libamp.mlx import amp
from mlx.utils import tree_flatten

NO_FUSE, ENABLED = 2, 3  # mlx::core::CompileMode


def compile_mode(mode):
    """NO_FUSE: mx.compile traces, simplifies and remembers, but makes no kernels: on processors each is a run of the
    C++ compiler, and a training has dozens. Only MLX's C++ has this switch; where it is not found nothing changes."""
    name = "_ZN3mlx4core16set_compile_modeENS0_11CompileModeE"
    library = next(pathlib.Path(mx.__file__).parent.glob("lib/libmlx.*"), None)
    switch = getattr(ctypes.CDLL(str(library)), name, None) if library else None
    if switch:
        switch(ctypes.c_int(mode))
    return switch is not None


@pytest.fixture(autouse=True, scope="module")
def unfused():
    compile_mode(NO_FUSE)
    yield
    compile_mode(ENABLED)


@pytest.fixture(autouse=True)
def ends():
    yield
    amp.shutdown()


DIGITS = pathlib.Path(__file__).parents[3] / "examples" / "data" / "digits.csv.gz"
TRAINED = 1400  # the rows after them are for the test


@functools.cache
def data():
    with gzip.open(DIGITS, "rt") as file:
        rows = mx.array([[float(value) for value in row] for row in csv.reader(file)])
    return (rows[:, :64] / 16).reshape(-1, 8, 8, 1), rows[:, 64].astype(mx.int32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm(8)
        self.layers = nn.Sequential(nn.Linear(128, 32), nn.GELU(), nn.Linear(32, 10))

    def __call__(self, x):
        return self.layers(nn.relu(self.norm(self.conv(x))).reshape(x.shape[0], -1))


def loss_fn(model, x, y):
    return nn.losses.cross_entropy(model(x), y, reduction="mean")


class Training:
    """level None: plain MLX."""

    def __init__(self, level, seed=0, optimizer=None, **settings):
        mx.random.seed(seed)
        self.model, self.optimizer = Net(), optimizer or optim.SGD(0.05, momentum=0.9)
        if level is None:
            self.gradients = nn.value_and_grad(self.model, loss_fn)
        else:
            amp.initialize(self.model, self.optimizer, level, **settings)
            self.gradients = amp.value_and_grad(self.model, loss_fn)
        self.state = [self.model.state, self.optimizer.state]

    def step(self, x, y):
        loss, grads = self.gradients(self.model, x, y)
        self.optimizer.update(self.model, grads)
        return loss

    def run(self, x, y, steps, first=0, batch=64):
        for i in range(first, first + steps):
            rows = mx.arange(i * batch, (i + 1) * batch) % TRAINED
            loss = self.step(x[rows], y[rows])
            mx.eval(loss, self.model.state, self.optimizer.state)
        return loss.item()

    def accuracy(self, x, y):
        self.model.eval()
        right = mx.argmax(self.model(x[TRAINED:]), axis=1) == y[TRAINED:]
        self.model.train()
        return right.astype(mx.float32).mean().item()


def arrays(*trees):
    """Copies that later steps do not change."""
    return {f"{i}.{path}": mx.array(value) for i, tree in enumerate(trees)
            for path, value in tree_flatten(tree) if isinstance(value, mx.array)}


def dtypes(tree):
    return {value.dtype for _, value in tree_flatten(tree) if isinstance(value, mx.array)}


def same(a, b):
    """To the bit."""
    def bits(value):
        return value.view(mx.uint8) if value.ndim else value.reshape(1).view(mx.uint8)

    return a.keys() == b.keys() and all(
        a[path].dtype == b[path].dtype and mx.array_equal(bits(a[path]), bits(b[path])).item() for path in a
    )
