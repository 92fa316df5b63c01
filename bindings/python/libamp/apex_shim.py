# SPDX-License-Identifier: Apache-2.0
"""Makes `import apex` work: libamp's modules replace exactly the missing parts.

Without an installed apex all of it is libamp's. An installed NVIDIA Apex has had no `amp` since May 2025. It keeps its
own modules (optimizers, normalization, contrib, its compiled amp_C), and libamp adds the rest. The package `apex` of
PyPI is neither: it belongs to the Pyramid web framework. libamp says so and replaces it.

Importing this module has no effect. `install()` puts a finder first on sys.meta_path, `remove()` removes it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, ModuleType
from typing import Any

from ._at_exit import at_exit

# Place of each part of Apex here. A submodule has the same name as in Apex, or a line of MOVED.
PARTS = {
    "apex.RNN": "libamp.torch.RNN",
    "apex.amp": "libamp.torch.amp",
    "apex.fused_dense": "libamp.torch.fused_dense",
    "apex.fp16_utils": "libamp.torch.fp16_utils",
    "apex.mlp": "libamp.torch.mlp",
    "apex.multi_tensor_apply": "libamp.torch.multi_tensor_apply",
    "apex.normalization": "libamp.torch.normalization",
    "apex.optimizers": "libamp.torch.optimizers",
    "apex.parallel": "libamp.torch.parallel",
    "amp_C": "libamp.torch.amp_C",
    "apex_C": "libamp.torch.apex_C",
    "fused_layer_norm_cuda": "libamp.torch.fused_layer_norm_cuda",
    "xentropy_cuda": "libamp.torch.xentropy_cuda",
}
MOVED = {
    "apex._autocast_utils": "libamp.torch._autocast_utils",
    "apex.parallel.optimized_sync_batchnorm": "libamp.torch.parallel.sync_batchnorm",
}
# An installed Apex has more of these, and keeps them even if its other parts are replaced.
LAST = {
    "apex.contrib.clip_grad": "libamp.torch.contrib.clip_grad",
    "apex.contrib.focal_loss": "libamp.torch.contrib.focal_loss",
    "apex.contrib.group_norm": "libamp.torch.contrib.group_norm",
    "apex.contrib.layer_norm": "libamp.torch.contrib.layer_norm",
    "apex.contrib.multihead_attn": "libamp.torch.contrib.multihead_attn",
    "apex.contrib.optimizers": "libamp.torch.contrib.optimizers",
    "apex.contrib.xentropy": "libamp.torch.contrib.xentropy",
}
# Former parts of Apex that libamp lacks, each with a replacement.
INSTEAD = {
    "apex.amp._process_optimizer": "amp.initialize, which wires an optimizer's step, zero_grad and add_param_group",
    "apex.amp.wrap": "amp.register_half_function, register_float_function and register_promote_function, before "
    "initialize",
    "apex.contrib.fmha": "torch.nn.functional.scaled_dot_product_attention",
    "apex.contrib.groupbn": "apex.parallel.SyncBatchNorm, which has channel_last and fuse_relu",
    "apex.contrib.sparsity": "torch.sparse.to_sparse_semi_structured",
    "apex.contrib": "Apex's own, built from https://github.com/NVIDIA/apex: libamp.run completes it",
    "apex.pyprof": "torch.profiler",
    "apex.reparameterization": "torch.nn.utils.parametrizations.weight_norm",
    "apex.transformer": "Megatron Core, which has continued it",
    "fast_layer_norm": "libamp.torch.contrib.layer_norm",
    "focal_loss_cuda": "libamp.torch.contrib.focal_loss",
    "fused_adam_cuda": "apex.optimizers.FusedAdam, or amp_C.multi_tensor_adam",
    "fused_dense_cuda": "libamp.torch.fused_dense",
    "fused_lamb_cuda": "apex.optimizers.FusedLAMB, or amp_C.multi_tensor_lamb",
    "mlp_cuda": "libamp.torch.mlp.mlp_function",
    "syncbn": "apex.parallel.SyncBatchNorm",
}

# Signs of NVIDIA's apex, and signs of the Pyramid toolkit of PyPI.
NVIDIA_HAS = (
    "amp",
    "contrib",
    "fp16_utils",
    "multi_tensor_apply",
    "normalization",
    "optimizers",
    "parallel",
    "transformer",
)
PYRAMID_HAS = ("forms", "models", "views")


class DeprecatedFeatureWarning(FutureWarning):
    """Apex's warning category, for scripts that filter it. libamp itself never uses it."""


def deprecated_warning(message: str) -> None:
    """Warns with Apex's category, on rank 0 only."""
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized() and distributed.get_rank() != 0:
        return
    warnings.warn(message, DeprecatedFeatureWarning, stacklevel=2)


def is_ours(module: ModuleType | None) -> bool:
    """Returns True if a module of sys.modules named apex… came from libamp."""
    return module is not None and (module.__name__.startswith("libamp.") or hasattr(module, "__libamp__"))


def complete(module: ModuleType) -> None:
    """Adds the missing parts to a package `apex`. They are imported on first use."""
    inherited = module.__dict__.get("__getattr__")

    def __getattr__(name: str) -> Any:
        if inherited is not None:
            try:
                return inherited(name)
            except AttributeError:
                pass
        if f"apex.{name}" in PARTS and _finder is not None:
            return importlib.import_module(f"apex.{name}")
        parts = ", ".join(sorted(part[5:] for part in PARTS if part.startswith("apex.")))
        raise AttributeError(
            f"module 'apex' has no attribute {name!r}: neither the apex that is installed (if any) nor libamp has it; "
            f"libamp has {parts}"
        )

    module.__dict__["__getattr__"] = __getattr__
    for extra in (DeprecatedFeatureWarning, deprecated_warning):
        module.__dict__.setdefault(extra.__name__, extra)


class PackageLoader(Loader):
    """Loads the package `apex` if NVIDIA's is not installed or is to be replaced."""

    def exec_module(self, module: ModuleType) -> None:
        module.__libamp__ = True  # type: ignore[attr-defined]
        module.__file__ = __file__  # for messages of the import system
        module.__doc__ = "Stand-in of libamp for NVIDIA's Apex."
        complete(module)


class FolderLoader(Loader):
    """Loads an empty package: the finder finds its modules."""

    def exec_module(self, module: ModuleType) -> None:
        module.__libamp__ = True  # type: ignore[attr-defined]


class BesideLoader(Loader):
    """Runs a module's own loader, then calls `then` with the module."""

    def __init__(self, own: Loader, then: Callable[[ModuleType], None]):
        self.own, self.then = own, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.own
        if module.__spec__ is not None:
            module.__spec__.loader = self.own
        self.own.exec_module(module)
        self.then(module)


class PartLoader(Loader):
    """Loads a libamp module under Apex's name. Both names have the same module object, and so the same state."""

    def __init__(self, target: str):
        self.target = target

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self.target)
        # Submodules imported with it: an import under the other name would set the parent's attribute again, and hide
        # an object of that name (amp._amp_state is a module, and an object in the package).
        for name, loaded in list(sys.modules.items()):
            if name.startswith(self.target + "."):
                sys.modules.setdefault(module.__name__ + name[len(self.target) :], loaded)

    def get_code(self, fullname: str) -> CodeType | None:
        """Returns the code for `python -m apex.parallel.multiproc`."""
        spec = importlib.util.find_spec(self.target)
        return spec.loader.get_code(self.target) if spec and isinstance(spec.loader, InspectLoader) else None


class Finder(MetaPathFinder):
    def __init__(self, replace: bool):
        self.replace = replace

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "apex":
            return self.package()
        if fullname not in PARTS and fullname not in INSTEAD and not fullname.startswith("apex."):
            return None
        parent = sys.modules.get(fullname.rpartition(".")[0])
        ours_first = self.replace or is_ours(parent)
        found = self.part(fullname) if ours_first else None
        if found is None and parent is not None and parent.__name__.startswith("libamp."):
            found = self.last(fullname)  # the parent's folder would give it again, under this name
        if found is None:
            found = self.installed(fullname, path)
            if found is not None and not ours_first:
                warn_kept(fullname, found)
        if found is None:
            found = self.part(fullname) or self.last(fullname)
        # importlib.util.find_spec expects None for an absent module. An import should raise advice.
        if found is None and sys._getframe(2).f_globals.get("__name__") == "importlib._bootstrap":
            raise_missing(fullname)
        return found

    def part(self, fullname: str) -> ModuleSpec | None:
        module = target_of(fullname)
        return None if module is None else ModuleSpec(fullname, PartLoader(module), origin=module)

    def last(self, fullname: str) -> ModuleSpec | None:
        if fullname == "apex.contrib":
            return ModuleSpec(fullname, FolderLoader(), origin=__file__, is_package=True)
        for name, module in LAST.items():
            if fullname == name or fullname.startswith(name + "."):
                found = module + fullname[len(name) :]
                if fullname == name or importlib.util.find_spec(found) is not None:
                    return ModuleSpec(fullname, PartLoader(found), origin=found)
        return None

    def package(self) -> ModuleSpec:
        installed = self.installed("apex", None)
        kind = kind_of(installed)
        if kind == "nvidia" and not self.replace:
            assert installed is not None and installed.loader is not None
            installed.loader = BesideLoader(installed.loader, complete)
            return installed
        spec = ModuleSpec("apex", PackageLoader(), origin=__file__, is_package=True)
        if kind == "nvidia":
            assert installed is not None
            spec.submodule_search_locations = list(installed.submodule_search_locations or [])
        elif kind is not None:
            warnings.warn(foreign_message(installed, kind), RuntimeWarning, stacklevel=3)
        return spec

    def installed(self, fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Returns the spec that other finders have for this name. A folder without __init__.py does not count."""
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path)
            if spec is not None and spec.loader is not None and spec.origin is not None:
                return spec
        return None

    def find_distributions(self, context: Any = None) -> Iterable[Any]:
        """Finds a distribution `apex`, because libraries ask importlib.metadata for it before they use apex."""
        if getattr(context, "name", None) != "apex" or kind_of(self.installed("apex", None)) == "nvidia":
            return []
        return [distribution()]


def target_of(fullname: str) -> str | None:
    """Returns libamp's module for one of Apex, or None."""
    if fullname in PARTS:
        return PARTS[fullname]
    if fullname in MOVED:
        return MOVED[fullname]
    for part, module in PARTS.items():
        if fullname.startswith(part + "."):
            name = module + fullname[len(part) :]
            return name if importlib.util.find_spec(name) is not None else None
    return None


def kind_of(spec: ModuleSpec | None) -> str | None:
    """Returns the kind of the installed apex: None (there is none), "nvidia", "pyramid" or "other"."""
    if spec is None:
        return None
    folders = spec.submodule_search_locations or []
    for kind, names in (("nvidia", NVIDIA_HAS), ("pyramid", PYRAMID_HAS)):
        if folders and any(PathFinder.find_spec(f"apex.{name}", folders) for name in names):
            return kind
    return "other"


def foreign_message(spec: ModuleSpec | None, kind: str) -> str:
    where = spec.origin if spec else ""
    what = (
        "the package `apex` of PyPI, a toolkit for the web framework Pyramid"
        if kind == "pyramid"
        else "another package"
    )
    return (
        f"the apex that is installed ({where}) is not NVIDIA's Apex but {what}. "
        "libamp answers `import apex` in its place in this process. To end this message: `pip uninstall apex` "
        "(NVIDIA's Apex is not on PyPI; `pip install apex` gives that package). A program that means the installed one "
        "has to run without libamp.run, install_apex() and the .pth."
    )


def warn_kept(fullname: str, spec: ModuleSpec) -> None:
    if fullname == "apex.amp":
        warnings.warn(
            f"the apex that is installed has an apex.amp of its own ({spec.origin}), which is kept. "
            "For libamp's in its place: `python -m libamp.run --replace …`, or libamp.install_apex(replace=True)",
            RuntimeWarning,
            stacklevel=3,
        )


def raise_missing(fullname: str) -> None:
    """Raises the error for a former part of Apex that is neither installed nor in libamp. `from apex import pyprof`
    would lose the text of an error with the name apex.pyprof."""
    parts = [fullname.rsplit(".", dots)[0] for dots in range(fullname.count(".") + 1)]
    for part in parts:
        if part in INSTEAD:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: {part} was a part of NVIDIA's Apex that libamp does not have. "
                f"In its place: {INSTEAD[part]}",
                name=fullname.partition(".")[0],
            )


def distribution() -> Any:
    from importlib import metadata

    class Distribution(metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            text = (
                "Metadata-Version: 2.1\nName: apex\nVersion: 0.1+libamp\nSummary: libamp's stand-in for NVIDIA Apex\n"
            )
            return text if filename == "METADATA" else None

        def locate_file(self, path: Any) -> Any:
            return path

    return Distribution()


_finder: Finder | None = None


def install(replace: bool = False) -> None:
    """Makes `import apex` work from now on. replace: True uses libamp's modules also where the installed Apex has its
    own."""
    global _finder
    at_exit()
    loaded = sys.modules.get("apex")
    if loaded is not None and not is_ours(loaded):
        kind = kind_of(loaded.__spec__)
        if kind != "nvidia":
            raise ImportError(
                f"another apex is imported already ({getattr(loaded, '__file__', None)}), and it is not NVIDIA's; call "
                "install_apex() before the first `import apex`, or `pip uninstall apex`",
                name="apex",
            )
        if replace:
            raise ImportError(
                "the installed apex is imported already; call install_apex(replace=True) before", name="apex"
            )
        if _finder is None:
            complete(loaded)
    if _finder is None:
        _finder = Finder(replace)
        sys.meta_path.insert(0, _finder)
    else:
        _finder.replace = replace


def remove() -> None:
    """Undoes install(). Imported modules remain usable."""
    global _finder
    if _finder is None:
        return
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    _finder = None
    for name, module in list(sys.modules.items()):
        if (name == "apex" or name.startswith("apex.") or name in PARTS) and is_ours(module):
            del sys.modules[name]
