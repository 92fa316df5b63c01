# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, overload

class Tensor(Protocol):
    """What has memory: torch.Tensor, numpy.ndarray and others."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

Tensors: TypeAlias = Tensor | Iterable[Tensor]
Number: TypeAlias = float | Tensor
Rule: TypeAlias = str  # a name of AMP_OPTIM_MAP: "adam", ...; another is refused with the list

def cast(dst: Tensors, src: Tensors, *, stream: Any = None) -> None: ...
def copy(dst: Tensors, src: Tensors, *, stream: Any = None) -> None: ...
def zero(dst: Tensors, *, stream: Any = None) -> None: ...
@overload
def scale(dst: Tensors, src: Tensors, scale: Number, *, found_inf: None = None, stream: Any = None) -> bool: ...
@overload
def scale(dst: Tensors, src: Tensors, scale: Number, *, found_inf: Tensor, stream: Any = None) -> None: ...
@overload
def axpby(
    dst: Tensors, a: Number, x: Tensors, b: Number, y: Tensors, *, found_inf: None = None, stream: Any = None
) -> bool: ...
@overload
def axpby(
    dst: Tensors, a: Number, x: Tensors, b: Number, y: Tensors, *, found_inf: Tensor, stream: Any = None
) -> None: ...
@overload
def check(
    src: Tensors,
    scale: Number = 1.0,
    *,
    norm: None = None,
    norms: Tensor | None = None,
    found_inf: None = None,
    stream: Any = None,
) -> tuple[float, bool]: ...
@overload
def check(
    src: Tensors,
    scale: Number = 1.0,
    *,
    norm: Tensor | None = None,
    norms: Tensor | None = None,
    found_inf: Tensor | None = None,
    stream: Any = None,
) -> tuple[float | None, bool | None] | None: ...
@overload
def l2norm(src: Tensors, *, norm: None = None, stream: Any = None) -> float: ...
@overload
def l2norm(src: Tensors, *, norm: Tensor, stream: Any = None) -> None: ...
@overload
def l2norms(
    src: Tensors, *, norm: None = None, norms: None = None, stream: Any = None
) -> tuple[float, list[float]]: ...
@overload
def l2norms(
    src: Tensors, *, norm: Tensor | None = None, norms: Tensor | None = None, stream: Any = None
) -> tuple[float | None, list[float] | None] | None: ...
def first_nonfinite(src: Tensors) -> int: ...

class Losses(NamedTuple):
    zeros: int
    subnormals: int
    infinities: int

class Statistics(NamedTuple):
    elements: int
    zeros: int
    nans: int
    plus_infinities: int
    minus_infinities: int
    largest: float
    least: float
    sum: float
    sum_squares: float
    binades: dict[int, int]
    memory: bytes
    def lost(self, dtype: Any, scale: float = 1.0) -> Losses: ...

def statistics(src: Tensors) -> Statistics: ...
@overload
def clip_norm(dst: Tensors, src: Tensors, max_norm: float, *, norm: None = None, stream: Any = None) -> float: ...
@overload
def clip_norm(dst: Tensors, src: Tensors, max_norm: float, *, norm: Tensor, stream: Any = None) -> None: ...
def clip_value(dst: Tensors, src: Tensors, max_value: float) -> None: ...
def split(dst: Tensors, remainders: Tensors, src: Tensors) -> None: ...
def join(dst: Tensors, src: Tensors, remainders: Tensors) -> None: ...
def encode_moment(
    codes: Tensors, scales: Tensors, values: Tensors, second: bool, keep_scales: bool = False
) -> None: ...
def decode_moment(values: Tensors, codes: Tensors, scales: Tensors, second: bool) -> None: ...
def optim_key(seed: int, name: str, /) -> int: ...
def remainder_bytes(elements: int, /) -> int: ...
def matmul(
    d: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    transpose_a: bool = False,
    transpose_b: bool = False,
    activation: Literal["none", "relu", "gelu", "gelu_tanh"] | None = None,
    backend: Literal["auto", "builtin", "onednn"] | None = None,
    tf32: bool = False,
    stream: Any = None,
) -> None: ...
def optimizer_step(
    rule: Rule,
    params: Tensors,
    grads: Tensors,
    state: Mapping[str, Sequence[Tensor | None] | Tensor] | None,
    *,
    steps: int | list[int] | Tensor,
    model_params: Iterable[Tensor | None] | Tensor | None = None,
    remainders: Iterable[Tensor | None] | Tensor | None = None,
    inv_scale: Number = 1.0,
    grad_factor: float = 1.0,
    found_inf: Number | None = None,
    grad_norm: Number | None = None,
    grad_norms: Tensor | None = None,
    keys: list[int] | None = None,
    before: list[int] | None = None,
    stochastic: bool = False,
    stream: Any = None,
    lr: float = ...,
    weight_decay: float = ...,
    momentum: float = ...,
    dampening: float = ...,
    beta1: float = ...,
    beta2: float = ...,
    betas: tuple[float, float] = ...,
    eps: float = ...,
    max_grad_norm: float = ...,
    trust_coefficient: float = ...,
    nesterov: bool = ...,
    decay_after_momentum: bool = ...,
    bias_correction: bool = ...,
    amsgrad: bool = ...,
    decoupled: bool = ...,
    grad_averaging: bool = ...,
    nvlamb: bool = ...,
    init_zero: bool = ...,
    clip: bool = ...,
) -> bool | None: ...
def packed_bytes(size: int, bits: int, /) -> int: ...
@overload
def pack(
    packed: Tensor, src: Tensor, bits: int, seed: int, context: Any = None, flags: None = None, /
) -> tuple[bool, bool]: ...
@overload
def pack(packed: Tensor, src: Tensor, bits: int, seed: int, context: Any, flags: Tensor, /) -> None: ...
def unpack(dst: Tensor, packed: Tensor, bits: int, /) -> None: ...
def set_num_threads(n: int, /) -> None: ...
def get_num_threads() -> int: ...
def cpu_flags() -> int: ...
