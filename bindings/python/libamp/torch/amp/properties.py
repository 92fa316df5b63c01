# SPDX-License-Identifier: Apache-2.0
"""The properties of an opt level under Apex's names. The library determines their values and which of them may be
overridden."""
from __future__ import annotations

from typing import Any

import torch

from ... import _core, _html
from .process_state import _amp_state, maybe_print, rank, warn_or_err

_DTYPES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float64: "float64",
    False: "unchanged",
}
_TYPES = {name: dtype for dtype, name in _DTYPES.items() if dtype is not False}
_NAMES = (
    "enabled",
    "opt_level",
    "cast_model_type",
    "patch_torch_functions",
    "keep_batchnorm_fp32",
    "master_weights",
    "loss_scale",
)
_DYNAMIC = -1.0
_LEAST = 2.0**-149  # least number that FP32 does not round to 0


class Properties:
    """enabled, opt_level, cast_model_type, patch_torch_functions, keep_batchnorm_fp32, master_weights, loss_scale."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {
            "enabled": False,
            "opt_level": None,
            "cast_model_type": None,
            "patch_torch_functions": False,
            "keep_batchnorm_fp32": None,
            "master_weights": None,
            "loss_scale": 1.0,
        }

    def __getattr__(self, name: str) -> Any:
        options = self.__dict__.get("options", {})
        if name in options:
            return options[name]
        raise AttributeError(f"there is no property {name}")

    def _update_options_dict(self, new_options: dict[str, Any]) -> None:
        for name, value in new_options.items():
            if name not in self.options:
                raise ValueError(f"{name} is no option of amp.initialize: there are {', '.join(self.options)}")
            self.options[name] = value


def dtype_name(dtype: Any) -> str | None:
    """Returns the name of the type in _core, None for None."""
    if dtype is None:
        return None
    if dtype in _DTYPES:
        return _DTYPES[dtype]
    raise ValueError(f"{dtype!r} is no floating type that libamp knows")


def _bool_of(name: str, value: Any) -> Any:
    """Returns a bool. The strings "True" and "False" are accepted, as for keep_batchnorm_fp32 in Apex."""
    value = {"True": True, "False": False}.get(value, value) if isinstance(value, str) else value
    split = ", 'split', 'stochastic'" if name == "master_weights" else ""
    assert isinstance(value, bool), (
        f"{name} is True or False, as a bool or as a string{split}, or None; not {value!r}"
    )
    return value


def loss_scale_of(value: Any) -> float:
    """Returns the value for amp_config. Raises ValueError for a number that is not finite or not above 0 (0: the
    level's)."""
    try:
        number = _DYNAMIC if value == "dynamic" else float(value)
    except (TypeError, ValueError):
        raise ValueError(f'loss_scale is "dynamic" or a number, not {value!r}') from None
    usable = number == 0.0 or _LEAST <= number < float("inf")  # 0: as the level has it
    if not usable and value != "dynamic":
        raise ValueError(f'loss_scale is "dynamic" or a finite number above 0, not {value!r}')
    return number


def settings_of(overrides: dict[str, Any]) -> dict[str, Any]:
    """Returns Apex's overrides as members of amp_config."""
    settings: dict[str, Any] = {}
    for name, value in overrides.items():
        if value is None or name in ("enabled", "opt_level"):
            continue
        if name == "cast_model_type":
            settings[name] = dtype_name(value)
        elif name == "patch_torch_functions":
            settings["patch_ops"] = _bool_of(name, value)
        elif name == "master_weights" and value == "split":
            settings[name] = value
        elif name in ("keep_batchnorm_fp32", "master_weights"):
            settings[name] = _bool_of(name, value)
        elif name == "loss_scale":
            settings[name] = loss_scale_of(value)
        else:
            settings[name] = value
    return settings


def resolve(level: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the library's configuration. Under hard_override it removes refused members from `settings`, with a
    warning."""
    try:
        return _core.resolve(level, settings)
    except _core.ArgumentError as error:
        if "level" not in str(error) or not settings:
            raise
        warn_or_err(str(error))
    for name in list(settings):
        try:
            _core.resolve(level, {name: settings[name]})
        except _core.ArgumentError:
            del settings[name]
    return _core.resolve(level, settings)


def fill(properties: Properties, level: str, resolved: dict[str, Any], given: dict[str, Any]) -> None:
    """Sets the properties as Apex would show them: None where the level has no value."""
    cast = resolved["cast_model_type"]
    low = cast in ("float16", "bfloat16")
    unchanged = cast == "unchanged"
    properties._update_options_dict(
        {
            "enabled": True,
            "opt_level": level,
            "cast_model_type": (given.get("cast_model_type") if unchanged else _TYPES[cast]),
            "patch_torch_functions": bool(resolved["patch_ops"]),
            "keep_batchnorm_fp32": (
                bool(resolved["keep_batchnorm_fp32"]) if low or given.get("keep_batchnorm_fp32") is not None else None
            ),
            "master_weights": (
                None
                if resolved["patch_ops"] and given.get("master_weights") is None
                else resolved["master_weights"]
            ),
            "loss_scale": "dynamic" if resolved["loss_scale"] == _DYNAMIC else resolved["loss_scale"],
        }
    )
    if given.get("enabled") is not None:
        properties.options["enabled"] = given["enabled"]


def torch_type(name: str | None) -> torch.dtype | None:
    """Returns torch.float16 for "float16", None for "unchanged"."""
    return _TYPES.get(name) if name else None


class Banner:
    """The lines that initialize prints about a level, as in Apex. In a notebook a table, once all values are known."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[dict[str, Any]] = []
        self._in_notebook = _html.in_notebook() and _amp_state.verbosity > 0 and rank() == 0
        if not self._in_notebook:
            maybe_print(title, True)

    def part(self, words: str, properties: Properties) -> None:
        """Prints the properties of the level, or those in use."""
        self._parts.append(dict(properties.options))
        if not self._in_notebook:
            maybe_print(words, True)
            maybe_print(self._listed(), True)

    def end(self) -> None:
        """Ends the banner."""
        if self._in_notebook:
            _html.display(self)

    def _listed(self) -> str:
        return "\n".join(f"{name:22} : {self._parts[-1][name]}" for name in _NAMES)

    def __repr__(self) -> str:
        return f"{self._title}\n{self._listed()}"

    def _repr_html_(self) -> str:
        rows = [(name, *(str(part[name]) for part in self._parts)) for name in _NAMES]
        return _html.table(self._title, ("property", "of the level", "in use"), rows)
