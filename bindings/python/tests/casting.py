# SPDX-License-Identifier: Apache-2.0
"""A policy for a test, and the arguments of every function that the cast lists name."""
import contextlib

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional
from libamp import _core  # noqa: E402
from libamp.torch.amp import patching  # noqa: E402

LOW = {"O1": torch.float16, "O4": torch.bfloat16}


class Logged(torch.Tensor):
    """A subclass that keeps the names of what was called on it."""

    calls: list = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


@contextlib.contextmanager
def policy(level="O1", params=(), lists="apex", enter=False, **how):
    """A context at this level, its functions installed; `enter`: as inside a model's forward."""
    named = [(param, f"p{i}", False) for i, param in enumerate(params)]
    context = _core.Context(level, named, [], {"lists": lists})
    patching.install(context, how.pop("verbosity", 0), lists, **how)
    try:
        if enter:
            context.enter()
        try:
            yield context
        finally:
            if enter:
                context.leave()
    finally:
        patching.uninstall(context)
        context.shutdown()


@contextlib.contextmanager
def by_hand():
    """torch as it is, while a policy is installed."""
    _core.enter_none()
    try:
        yield
    finally:
        _core.leave()


def cast(value, dtype):
    """Floating tensors of a structure in another type."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(cast(item, dtype) for item in value)
    return value


class Maker:
    """Tensors for an op's arguments: of the given types in turn, leaves that want a gradient."""

    def __init__(self, *dtypes, low=0.1, high=0.9):
        self.dtypes, self.low, self.high, self.made = dtypes, low, high, []
        self.random = torch.Generator().manual_seed(7)

    def __call__(self, *shape, grad=True):
        dtype = self.dtypes[len(self.made) % len(self.dtypes)]
        values = torch.rand(shape, generator=self.random, dtype=torch.float64)
        tensor = (self.low + (self.high - self.low) * values).to(dtype).requires_grad_(grad)
        self.made.append(tensor)
        return tensor


def words(text):
    return text.split()


def _sign(n):
    return torch.tensor([1 if i % 2 else -1 for i in range(n)])


# op: arguments from a Maker. Shapes that every op of the group takes.
FUNCTIONAL_LOWER = {
    "conv1d": lambda t: (t(1, 2, 6), t(3, 2, 3), t(3)),
    "conv2d": lambda t: (t(1, 2, 6, 6), t(3, 2, 3, 3), t(3)),
    "conv3d": lambda t: (t(1, 2, 4, 4, 4), t(3, 2, 3, 3, 3), t(3)),
    "conv_transpose1d": lambda t: (t(1, 2, 6), t(2, 3, 3), t(3)),
    "conv_transpose2d": lambda t: (t(1, 2, 6, 6), t(2, 3, 3, 3), t(3)),
    "conv_transpose3d": lambda t: (t(1, 2, 4, 4, 4), t(2, 3, 3, 3, 3), t(3)),
    "conv_tbc": lambda t: (t(6, 1, 2), t(3, 2, 4), t(4)),
    "linear": lambda t: (t(2, 3), t(4, 3), t(4)),
}
FUNCTIONAL_FP32 = {
    "interpolate": lambda t: (t(1, 2, 4), 8),
    "grid_sample": lambda t: (t(1, 2, 4, 4), t(1, 3, 3, 2), "bilinear", "zeros", False),
    "softplus": lambda t: (t(3, 4),),
    "softmin": lambda t: (t(3, 4), 1),
    "log_softmax": lambda t: (t(3, 4), 1),
    "softmax": lambda t: (t(3, 4), 1),
    "gelu": lambda t: (t(3, 4),),
    "layer_norm": lambda t: (t(3, 4), (4,), t(4), t(4)),
    "group_norm": lambda t: (t(3, 4), 2, t(4), t(4)),
    "local_response_norm": lambda t: (t(1, 4, 5), 2),
    "normalize": lambda t: (t(3, 4),),
    "cosine_similarity": lambda t: (t(3, 4), t(3, 4)),
    "poisson_nll_loss": lambda t: (t(3, 4), t(3, 4, grad=False)),
    "cosine_embedding_loss": lambda t: (t(3, 4), t(3, 4), _sign(3)),
    "cross_entropy": lambda t: (t(3, 4), torch.tensor([0, 3, 1])),
    "hinge_embedding_loss": lambda t: (t(3), _sign(3)),
    "kl_div": lambda t: (t(3, 4), t(3, 4, grad=False), None, None, "batchmean"),
    "l1_loss": lambda t: (t(3, 4), t(3, 4, grad=False)),
    "mse_loss": lambda t: (t(3, 4), t(3, 4, grad=False)),
    "margin_ranking_loss": lambda t: (t(3), t(3), _sign(3)),
    "multilabel_margin_loss": lambda t: (t(1, 4), torch.tensor([[3, 0, -1, 1]])),
    "multilabel_soft_margin_loss": lambda t: (t(3, 4), t(3, 4, grad=False)),
    "multi_margin_loss": lambda t: (t(3, 4), torch.tensor([0, 3, 1])),
    "nll_loss": lambda t: (t(3, 4), torch.tensor([0, 3, 1])),
    "binary_cross_entropy_with_logits": lambda t: (t(3, 4), t(3, 4, grad=False)),
    "smooth_l1_loss": lambda t: (t(3, 4), t(3, 4, grad=False)),
    "soft_margin_loss": lambda t: (t(3), _sign(3)),
    "triplet_margin_loss": lambda t: (t(3, 4), t(3, 4), t(3, 4)),
    "ctc_loss": lambda t: (t(5, 2, 4), torch.tensor([[1, 2], [2, 3]]), torch.tensor([5, 5]), torch.tensor([2, 2])),
}
TORCH_LOWER = {
    **{name: FUNCTIONAL_LOWER[name] for name in FUNCTIONAL_LOWER if name != "linear"},
    "prelu": lambda t: (t(2, 3), t(1)),
    "addmm": lambda t: (t(2, 4), t(2, 3), t(3, 4)),
    "addmv": lambda t: (t(2), t(2, 3), t(3)),
    "addr": lambda t: (t(2, 3), t(2), t(3)),
    "matmul": lambda t: (t(2, 3), t(3, 4)),
    "mm": lambda t: (t(2, 3), t(3, 4)),
    "mv": lambda t: (t(2, 3), t(3)),
    "addbmm": lambda t: (t(2, 4), t(5, 2, 3), t(5, 3, 4)),
    "baddbmm": lambda t: (t(5, 2, 4), t(5, 2, 3), t(5, 3, 4)),
    "bmm": lambda t: (t(5, 2, 3), t(5, 3, 4)),
}
TORCH_FP32 = {
    **{
        name: lambda t: (t(3, 4),)
        for name in words(
            "acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan norm prod std sum var"
        )
    },
    "pow": lambda t: (t(3, 4), 2),
    "cumprod": lambda t: (t(3, 4), 1),
    "cumsum": lambda t: (t(3, 4), 1),
    "dist": lambda t: (t(3, 4), t(3, 4)),
    "renorm": lambda t: (t(3, 4), 2, 0, 1.0),
}
TORCH_PROMOTE = {
    "addcdiv": lambda t: (t(3), t(3), t(3)),
    "addcmul": lambda t: (t(3), t(3), t(3)),
    "atan2": lambda t: (t(3), t(3)),
    "cross": lambda t: (t(2, 3), t(2, 3)),
    "bilinear": lambda t: (t(2, 3), t(2, 4), t(5, 3, 4), t(5)),
    "dot": lambda t: (t(3), t(3)),
    **{name: lambda t: (t(3), t(3)) for name in ["add", "div", "mul", "eq", "equal", "ge", "gt", "le", "lt", "ne"]},
}
SEQUENCE = {"cat": lambda t: ([t(2, 3), t(2, 3)],), "stack": lambda t: ((t(2, 3), t(2, 3)),)}
TENSOR_LOWER = {"__matmul__": TORCH_LOWER["matmul"]}
TENSOR_FP32 = {
    "__pow__": lambda t: (t(3), 2),
    "__rpow__": lambda t: (t(3), 2),
    "cpu": lambda t: (t(3),),
}
TENSOR_PROMOTE = {
    name: lambda t: (t(3), t(3))
    for name in words(
        "__add__ __div__ __eq__ __ge__ __gt__ __le__ __lt__ __mul__ __ne__ __radd__ __rdiv__ __rmul__ __rsub__ "
        "__rtruediv__ __sub__ __truediv__"
    )
}
IN_PLACE_OPERATORS = ["__iadd__", "__idiv__", "__imul__", "__isub__", "__itruediv__", "__ipow__"]


def methods(table):
    """The names of a torch table that are methods too."""
    return {name: make for name, make in table.items() if hasattr(torch.Tensor, name)}


def function(where, name):
    return getattr({"F": F, "torch": torch, "Tensor": torch.Tensor}[where], name)
