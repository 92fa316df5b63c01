# SPDX-License-Identifier: Apache-2.0
"""apex.amp.utils: helpers about types and casts that scripts import. libamp does not use them for its own casts."""
from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from libamp.torch.amp.old_api import replace_function


def is_cuda_enabled() -> bool:
    """Returns True if torch was built for CUDA."""
    return torch.version.cuda is not None


def get_cuda_version() -> tuple[int, ...]:
    """Returns the CUDA version of torch's build as a tuple, empty without CUDA."""
    return tuple(int(part) for part in (torch.version.cuda or "").split(".") if part)


def is_nested(x: Any) -> bool:
    """Returns True for a tuple or list."""
    return isinstance(x, (tuple, list))


def is_fp_tensor(x: Any) -> bool:
    """Returns True for a floating tensor, or a nested tuple or list that contains only such."""
    if is_nested(x):
        return all(is_fp_tensor(item) for item in x)
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def type_string(x: torch.Tensor) -> str:
    """Returns "HalfTensor", "FloatTensor" and so on, for any device."""
    return x.type().rpartition(".")[2]


def should_cache(x: Any) -> bool:
    """Returns True for an FP32 parameter, or a tuple or list that contains only such."""
    if is_nested(x):
        return all(should_cache(item) for item in x)
    return isinstance(x, torch.nn.Parameter) and x.dtype is torch.float32


def _leaves(x: Any) -> Iterator[torch.Tensor]:
    if is_nested(x):
        for item in x:
            yield from _leaves(item)
    else:
        yield x


def collect_fp_tensor_types(args: Iterable[Any], kwargs: dict[str, Any]) -> set[str]:
    """Returns the type_strings of all floating tensors among the arguments."""
    floating = (x for x in itertools.chain(args, kwargs.values()) if is_fp_tensor(x))
    return {type_string(leaf) for x in floating for leaf in _leaves(x)}


def _cast(x: Any, dtype: torch.dtype, into: str, name: str, verbose: bool) -> Any:
    if is_nested(x):
        return type(x)([_cast(item, dtype, into, name, verbose) for item in x])
    if x.dtype is dtype:
        return x
    if verbose:
        print(f"{type_string(x).removesuffix('Tensor')}->{into} ({name})")
    return x.to(dtype)


def maybe_half(x: Any, name: str = "", verbose: bool = False) -> Any:
    """Returns a floating tensor, or a tuple or list of them, in FP16."""
    return _cast(x, torch.float16, "Half", name, verbose)


def maybe_bfloat16(x: Any, name: str = "", verbose: bool = False) -> Any:
    """Returns a floating tensor, or a tuple or list of them, in bfloat16."""
    return _cast(x, torch.bfloat16, "BFloat16", name, verbose)


def maybe_float(x: Any, name: str = "", verbose: bool = False) -> Any:
    """Returns a floating tensor, or a tuple or list of them, in FP32."""
    return _cast(x, torch.float32, "Float", name, verbose)


def casted_args(cast_fn: Callable[[Any], Any], args: Iterable[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Casts the floating arguments. Returns a new list of `args`, and changes `kwargs` in place."""
    kwargs.update({name: cast_fn(value) for name, value in kwargs.items() if is_fp_tensor(value)})
    return [cast_fn(x) if is_fp_tensor(x) else x for x in args]


def verbosify(cast_fn: Callable[..., Any], fn_name: str, verbose: bool) -> Callable[..., Any]:
    """Returns a maybe_… function that prints its casts with the name of the function."""
    return functools.partial(cast_fn, name=fn_name, verbose=verbose) if verbose else cast_fn


def as_inplace(fns: Iterable[str]) -> Iterator[str]:
    """Returns the names of the in-place variants."""
    return (name + "_" for name in fns)


def has_func(mod: Any, fn: str) -> bool:
    """Returns True if the module, class or dict has the function."""
    return fn in mod if isinstance(mod, dict) else hasattr(mod, fn)


def get_func(mod: Any, fn: str) -> Any:
    """Returns the function of a module, class or dict."""
    return mod[fn] if isinstance(mod, dict) else getattr(mod, fn)


def set_func(mod: Any, fn: str, new_fn: Any) -> None:
    """Replaces the function in a module, class or dict."""
    replace_function(mod, fn, new_fn)
