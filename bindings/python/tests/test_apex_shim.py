# SPDX-License-Identifier: Apache-2.0
"""`import apex`: alone, inside an NVIDIA Apex that has lost parts, and where PyPI's unrelated package is installed.
Each case is a process of its own, with made-up packages on its path; most do not mind that torch is imported."""

import subprocess
import sys
import textwrap

import forks
import pytest

NVIDIA = {  # what is left of it since May 2025, and what every installation had
    "apex/__init__.py": "from . import optimizers, normalization\n__all__ = ['optimizers', 'normalization']\n",
    "apex/optimizers/__init__.py": "class FusedAdam:\n    origin = 'nvidia'\n",
    "apex/normalization/__init__.py": "class FusedLayerNorm:\n    origin = 'nvidia'\n",
    "apex/contrib/__init__.py": "",
    "apex/contrib/xentropy.py": "origin = 'nvidia'\n",
    "amp_C.py": "origin = 'nvidia'\n",
}
OLD_NVIDIA = NVIDIA | {"apex/amp/__init__.py": "origin = 'nvidia'\n", "apex/amp/scaler.py": "origin = 'nvidia'\n"}
PYRAMID = {
    "apex/__init__.py": "from pyramid.session import UnencryptedCookieSessionFactoryConfig\n",
    "apex/models.py": "",
    "apex/views.py": "",
    "apex/forms.py": "",
}


@pytest.fixture
def python(tmp_path):
    """python(code, packages): what a process with these packages on its path prints and says. new: without torch."""

    def run(code, packages=(), new=False):
        for name, text in dict(packages).items():
            path = tmp_path / "site" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        script = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n" + textwrap.dedent(code)
        if new:
            result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        else:
            result = forks.run("-c", script)
        assert result.returncode == 0, result.stderr
        return result.stdout.split(), result.stderr

    return run


def test_import_of_libamp_gives_no_apex(python):
    out, _ = python("""
        import importlib.util, libamp, libamp.apex_shim
        print(importlib.util.find_spec("apex"), importlib.util.find_spec("amp_C"))
    """, new=True)
    assert out == ["None", "None"]


def test_a_part_is_one_module_with_two_names(python):
    out, _ = python("""
        import libamp
        libamp.install_apex()
        import apex.parallel.LARC
        from apex.parallel import distributed, sync_batchnorm
        import libamp.torch.parallel as own
        import apex.parallel.optimized_sync_batchnorm
        print(apex.parallel is own, sys.modules["apex.parallel.LARC"] is sys.modules["libamp.torch.parallel.LARC"],
              distributed is own.distributed, apex.parallel.optimized_sync_batchnorm is sync_batchnorm,
              own.__spec__.name)
    """)
    assert out == ["True"] * 4 + ["libamp.torch.parallel"]


def test_attributes_come_without_an_import_of_their_own(python):
    out, _ = python("""
        import libamp
        libamp.install_apex()
        import apex
        print(apex.parallel.DistributedDataParallel.__module__.startswith("libamp."), hasattr(apex, "contrib"))
        print(issubclass(apex.DeprecatedFeatureWarning, FutureWarning))
    """)
    assert out == ["True", "False", "True"]


def test_what_nobody_has_is_named(python):
    out, _ = python("""
        import importlib.util, libamp
        libamp.install_apex()
        try:
            import apex.contrib.sparsity
        except ModuleNotFoundError as error:
            print(error.name)
        try:
            import apex
            apex.transformer
        except AttributeError as error:
            print("'transformer'" in str(error), "fp16_utils" in str(error))
        print(importlib.util.find_spec("apex.transformer"))
    """)
    assert out == ["apex", "True", "True", "None"]


def test_what_was_in_apex_says_what_to_use_instead(python):
    code = """
        import importlib, importlib.util, libamp
        libamp.install_apex()
        missing = "apex.contrib.sparsity apex.contrib.bottleneck apex.transformer apex.transformer.functional"
        for name in missing.split():
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                print(error.name, repr(name) in str(error) and "In its place: " in str(error), file=sys.stderr)
        try:
            from apex import pyprof
        except ImportError as error:
            print("torch.profiler" in str(error))
        try:
            from apex.contrib import sparsity
        except ImportError as error:
            print("to_sparse_semi_structured" in str(error))
        for name in ("apex.pyprof", "apex.contrib.sparsity", "apex.nothing"):
            print(importlib.util.find_spec(name))
        try:
            import apex.nothing
        except ModuleNotFoundError as error:
            print(str(error) == "No module named 'apex.nothing'")
        from apex.contrib.optimizers import FP16_Optimizer
        from apex.optimizers import FP16_Optimizer as first
        from apex.fp16_utils import FP16_Optimizer as now
        from apex.contrib.optimizers.fp16_optimizer import FP16_Optimizer as then
        from apex.contrib.optimizers.fused_adam import FusedAdam
        from apex.contrib.optimizers.distributed_fused_adam import DistributedFusedAdam
        from apex.contrib.optimizers.distributed_fused_lamb import DistributedFusedLAMB
        from apex.contrib.multihead_attn import EncdecMultiheadAttn, SelfMultiheadAttn
        from apex.optimizers.fp16_optimizer import FP16_Optimizer as old
        print(FP16_Optimizer is now and then is now, first is now and old is now)
        print(FusedAdam.__module__, SelfMultiheadAttn.__module__)
    """
    out, said = python(code)
    modules = "optimizers.fused_adam", "multihead_attn.self_multihead_attn"
    contrib = [f"libamp.torch.contrib.{name}" for name in modules]
    assert out == ["True", "True", "None", "None", "None", "True", "True", "True", *contrib]
    assert said.splitlines() == ["apex True"] * 3 + ["apex False"]  # of the last one the parent is missing


def test_compiled_and_private_modules_of_apex_say_what_to_use_instead(python):
    """What a try around the import shall catch is an ImportError; who asks whether it is there hears that it is not."""
    named = {
        "fused_adam_cuda": "apex.optimizers.FusedAdam",
        "mlp_cuda": "libamp.torch.mlp.mlp_function",
        "syncbn": "apex.parallel.SyncBatchNorm",
        "apex.amp.wrap": "amp.register_half_function",
        "apex.amp._process_optimizer": "amp.initialize",
    }
    out, _ = python(f"""
        import importlib, importlib.util, libamp
        libamp.install_apex()
        for name, instead in {named!r}.items():
            assert importlib.util.find_spec(name) is None, name
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                print(f"{{error.name}}:{{'In its place: ' in str(error) and instead in str(error)}}")
        try:
            from apex.amp import wrap
        except ImportError as error:
            print("amp.register_half_function" in str(error))
        from apex._autocast_utils import _cast_if_autocast_enabled
        print(*_cast_if_autocast_enabled(3))
    """)
    names = ["fused_adam_cuda", "mlp_cuda", "syncbn", "apex", "apex"]
    assert out == [*(f"{name}:True" for name in names), "True", "3"]


def test_compiled_modules_that_are_installed_are_those(python):
    code = """
        import libamp
        libamp.install_apex()
        import syncbn
        print(syncbn.origin)
    """
    assert python(code, {"syncbn.py": "origin = 'built'"})[0] == ["built"]


@pytest.mark.parametrize("replace", ["", "replace=True"])
def test_contrib_stays_nvidias_where_it_is_installed(python, replace):
    out, _ = python(
        f"""
        import libamp
        libamp.install_apex({replace})
        from apex.contrib import xentropy
        from apex import contrib
        print(xentropy.origin, contrib.__name__)
        """,
        NVIDIA,
    )
    assert out == ["nvidia", "apex.contrib"]


def test_inside_nvidias_what_it_has_stays(python):
    out, said = python(
        """
        import libamp
        libamp.install_apex()
        import apex, amp_C
        from apex.optimizers import FusedAdam
        from apex.normalization import FusedLayerNorm
        from apex.contrib import xentropy
        from apex.parallel import DistributedDataParallel
        from apex import fp16_utils
        import xentropy_cuda  # not built
        print(xentropy_cuda.__name__)
        print(apex.__file__.endswith("site/apex/__init__.py"), type(apex.__spec__.loader).__name__)
        print(FusedAdam.origin, FusedLayerNorm.origin, xentropy.origin, amp_C.origin)
        print(DistributedDataParallel.__module__.split(".")[0], fp16_utils.__name__.split(".")[0])
        print(apex.__all__ == ['optimizers', 'normalization'], hasattr(apex, "DeprecatedFeatureWarning"))
        """,
        NVIDIA,
    )
    assert out[:3] == ["libamp.torch.xentropy_cuda", "True", "SourceFileLoader"]
    assert out[3:] == [*["nvidia"] * 4, "libamp", "libamp", "True", "True"]
    assert said == ""


def test_inside_nvidias_that_is_imported_already(python):
    out, _ = python(
        """
        import apex, libamp
        libamp.install_apex()
        print(apex.optimizers.FusedAdam.origin, apex.parallel.__name__)
        """,
        NVIDIA,
    )
    assert out == ["nvidia", "libamp.torch.parallel"]


def test_pypis_apex_is_told_apart(python):
    out, said = python(
        """
        import libamp
        libamp.install_apex()
        from apex import parallel
        import apex
        print(parallel.__name__, hasattr(apex, "models"))
        """,
        PYRAMID,
    )
    assert out == ["libamp.torch.parallel", "False"]
    assert "Pyramid" in said and "NVIDIA" in said and "pip uninstall apex" in said
    assert said.count("RuntimeWarning") == 1


def test_pypis_apex_that_is_imported_already_is_an_error(python):
    out, _ = python(
        """
        import apex, libamp
        try:
            libamp.install_apex()
        except ImportError as error:
            print("not NVIDIA's" in str(error), any("apex_shim" in type(finder).__module__ for finder in sys.meta_path))
        """,
        PYRAMID | {"apex/__init__.py": ""},
    )
    assert out == ["True", "False"]


def test_a_clone_of_the_repository_in_the_working_directory_is_no_apex(python):
    out, said = python(
        """
        import libamp
        libamp.install_apex()
        from apex import parallel
        print(parallel.__name__)
        """,
        {"apex/setup.py": "", "apex/README.md": ""},
    )
    assert out == ["libamp.torch.parallel"]
    assert said == ""


def test_metadata_for_those_who_ask_first(python):
    code = """
        import importlib.metadata, importlib.util, libamp
        libamp.install_apex()
        print(importlib.util.find_spec("apex") is not None)
        try:
            print(importlib.metadata.version("apex"))
        except importlib.metadata.PackageNotFoundError:
            print("none")
        print("torch" in sys.modules, any(d.metadata["Name"] == "apex" for d in importlib.metadata.distributions()))
    """
    assert python(code, new=True)[0] == ["True", "0.1+libamp", "False", "False"]
    assert python(code, NVIDIA, new=True)[0] == [
        "True",
        "none",
        "False",
        "False",
    ]  # NVIDIA's own metadata, of which there is none


def test_remove_takes_everything_back(python):
    code = """
        import libamp
        from libamp import apex_shim
        before = list(sys.meta_path)
        libamp.install_apex()
        libamp.install_apex()
        from apex import parallel
        apex_shim.remove()
        apex_shim.remove()
        print(sys.meta_path == before, [name for name in sys.modules if name.startswith("apex.par")])
        try:
            from apex import fp16_utils
        except ImportError as error:
            print("gone")
    """
    for packages in ({}, NVIDIA):
        assert python(code, packages)[0] == ["True", "[]", "gone"]


def test_alone_every_part_is_libamps(python):
    out, said = python("""
        import libamp
        libamp.install_apex()
        import apex
        for part in [*libamp.apex_shim.PARTS, *libamp.apex_shim.LAST]:
            print(__import__(part, fromlist=["x"]).__name__)
        from apex.contrib.focal_loss import focal_loss
        print(focal_loss.FocalLoss.__module__)
    """)
    assert len(out) >= 19 and all(name.startswith("libamp.torch.") for name in out)
    assert said == ""



def test_an_amp_of_nvidias_own_is_kept_and_said(python):
    code = """
        import libamp
        libamp.install_apex({})
        import apex.amp.scaler
        from apex.contrib import xentropy
        print(getattr(apex.amp, "origin", "libamp"), xentropy.origin)
    """
    out, said = python(code.format(""), OLD_NVIDIA)
    assert out == ["nvidia", "nvidia"]
    assert said.count("--replace") == 1
    out, said = python(code.format("replace=True"), OLD_NVIDIA)
    assert out == ["libamp", "nvidia"]
    assert said == ""


def test_a_name_that_is_a_module_and_an_object(python):
    out, _ = python("""
        import libamp
        libamp.install_apex()
        from apex import amp
        from apex.amp import _amp_state as one
        from apex.amp._amp_state import _amp_state as two
        import apex.amp._amp_state
        print(one is two, amp._amp_state is one, apex.amp._amp_state is one, hasattr(one, "hard_override"))
    """)
    assert out == ["True", "True", "True", "True"]
