# SPDX-License-Identifier: Apache-2.0
"""The package as it is installed: its version, its files, and what importing it does not do."""
import ast
import base64
import hashlib
import importlib.metadata
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types
import zipfile

import extras
import libamp
import pytest
from libamp import _core, kernels

FOLDER = pathlib.Path(libamp.__file__).parent
TOOLS = pathlib.Path(__file__).parents[3] / "tools"
SYSTEM = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1"}


@pytest.fixture
def installed():
    if not (FOLDER / "libamp.so.0").exists():
        pytest.skip("an editable install: its libraries lie in the build folder")
    return FOLDER


def test_version_is_the_librarys():
    header = pathlib.Path(__file__).parents[3] / "include" / "amp.h"
    parts = [line.split()[2] for line in header.read_text().splitlines() if line.startswith("#define AMP_VERSION_")]
    assert libamp.__version__ == ".".join(parts)
    assert importlib.metadata.version("libamp") == libamp.__version__


def test_import_brings_no_torch_and_no_numpy():
    code = "import sys, libamp, libamp.kernels; sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_environment_with_neither_torch_nor_numpy():
    script = pathlib.Path(__file__).with_name("without_torch.py")
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"torch/__init__.py": "__version__ = '1.13.1'"}, "PyTorch 2.0 or later, and this is 1.13.1"),
        ({"torch/data.txt": ""}, "the `torch` that was found is another one: "),
        ({"torch/__init__.py": "import nothing_of_the_kind"}, "No module named 'nothing_of_the_kind'"),
        ({"mlx/core.py": "__version__ = '0.20.1'"}, "MLX 0.32 or later, and this is 0.20.1"),
        ({"mlx/core.py": "import nothing_of_the_kind"}, "No module named 'nothing_of_the_kind'"),
        ({"mlx.py": "__path__ = []"}, "this Python has none: pip install mlx"),
    ][: None if extras.is_there("mlx") else 3],
)
def test_a_framework_that_will_not_do(tmp_path, files, words):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "libamp").symlink_to(FOLDER)  # without its neighbours, of which torch may be one
    framework = re.split("[/.]", min(files))[0]
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import libamp.{framework}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and words in done.stderr, done.stderr


@pytest.mark.parametrize(("version", "warnings"), [("2.0.1", 0), ("2.11.0+cu130", 0), ("2.99.0.dev20300101", 1)])
def test_a_torch_that_nobody_tried_is_named_once(tmp_path, version, warnings):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"__version__ = {version!r}")
    (tmp_path / "libamp").symlink_to(FOLDER)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import libamp.torch; from libamp import torch"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning") == done.stderr.count("amp.health()") == warnings
    assert done.stderr.count(version) == warnings


def test_errors_are_what_python_users_catch():
    assert issubclass(libamp.Error, RuntimeError)
    assert issubclass(libamp.ArgumentError, (libamp.Error, ValueError))
    assert issubclass(libamp.FileError, libamp.Error) and issubclass(libamp.FileError, OSError)
    with pytest.raises(libamp.Error) as raised:
        kernels.set_num_threads(-1)
    assert (raised.value.status, raised.value.status_name) == (-1, "AMP_ERR_INVALID_ARGUMENT")


def test_one_wheel_for_every_python(installed):
    text = importlib.metadata.distribution("libamp").read_text("WHEEL")
    assert re.search(r"^Tag: cp310-abi3-\w+$", text, re.MULTILINE), text
    assert (installed / "_core.abi3.so").exists() and (installed / "py.typed").exists()
    licenses = [str(file) for file in importlib.metadata.files("libamp") if "licenses" in str(file)]
    assert any(name.endswith("LICENSE") for name in licenses) and any("third-party" in name for name in licenses)


def test_every_file_of_the_package_is_installed(installed):
    """Meson installs what bindings/python/meson.build lists."""
    source = pathlib.Path(__file__).parents[1] / "libamp"
    files = [file.relative_to(source) for file in source.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    listed = {str(file) for file in importlib.metadata.files("libamp")}
    wanted = [str(file) for file in files if not extras.left_out(str(file))]
    assert len(wanted) > 100 and not [file for file in wanted if f"libamp/{file}" not in listed]


@pytest.fixture
def bundled(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("bundled")


def test_every_component_has_its_notice_and_license_text(installed, bundled):
    files = {str(file): file.locate().read_bytes() for file in importlib.metadata.files("libamp")
             if ".so" in file.name or "/licenses/" in str(file) or file.name == "METADATA"}
    found, unknown = bundled.inside(files)
    assert {"libffi", "jansson"} <= {part.name for part in found} and not unknown
    # A toolkit may lack NVIDIA's terms.
    assert set(bundled.complaints(files)) <= {"the license text of cudart is missing: LICENSE.cuda-runtime"}


def published(bundled, **changed):
    """The files of a wheel with all components, as far as notices and the bill of materials read them."""
    texts = {"LICENSE.third-party": "\n".join(part.notice for part in bundled.COMPONENTS)}
    for part in bundled.COMPONENTS:
        texts[part.terms[0]] = texts.get(part.terms[0], "") + part.terms[1]
    marks = {part.name: part.mark for part in bundled.COMPONENTS}
    files = {"libamp/libamp.so.0": b"\x7fELF" + marks["libffi"], "libamp/libamp_cuda.so": b"\x7fELF" + marks["cudart"],
             "libamp.libs/libjansson-0a1b2c3d.so.4.14.0": b"\x7fELF"}
    texts = {f"licenses/bindings/python/{name}": text for name, text in texts.items()}
    texts["METADATA"] = "License-Expression: Apache-2.0 AND MIT AND LicenseRef-NVIDIA-CUDA-EULA\n"
    return {**files, **{f"libamp-1.dist-info/{name}": text.encode() for name, text in texts.items()}, **changed}


def test_a_component_without_a_notice_is_named(bundled):
    assert bundled.complaints(published(bundled)) == []
    (wrong,) = bundled.complaints(published(bundled, **{"libamp.libs/libgomp-0a1b2c3d.so.1": b"\x7fELF"}))
    assert "libgomp" in wrong
    for part in bundled.COMPONENTS:
        for words in (part.notice, part.terms[1]):
            files = {name: data.replace(words.encode(), b"") for name, data in published(bundled).items()}
            assert any(part.name in wrong for wrong in bundled.complaints(files)), words


def test_the_license_names_all_that_is_inside(bundled):
    files = published(bundled)
    for marks, wanted in (((), "Apache-2.0"), (("libffi", "jansson"), "Apache-2.0 AND MIT"),
                          (("cudart",), "Apache-2.0 AND LicenseRef-NVIDIA-CUDA-EULA")):
        own = b"\x7fELF" + b" ".join(part.mark for part in bundled.COMPONENTS if part.name in marks)
        assert bundled.expression({"libamp/libamp.so.0": own, "libamp/__init__.py": b""}) == wanted
    for line in (b"License-Expression: Apache-2.0\n", b"Name: libamp\n"):
        (wrong,) = bundled.complaints({**files, "libamp-1.dist-info/METADATA": line})
        assert wrong.endswith("and inside is Apache-2.0 AND MIT AND LicenseRef-NVIDIA-CUDA-EULA")
    licenses = {part.license for part in bundled.COMPONENTS}
    assert all(re.fullmatch(r"[A-Za-z0-9.-]+", name) for name in licenses)  # one license each, to be joined by AND


@pytest.fixture
def backend(monkeypatch):
    """build_backend.py over a meson-python that makes the wheel in its `made`."""
    names = ("build_editable", "build_sdist", "get_requires_for_build_editable", "get_requires_for_build_sdist",
             "get_requires_for_build_wheel")
    fake = types.SimpleNamespace(**dict.fromkeys(names))
    monkeypatch.setitem(sys.modules, "mesonpy", fake)
    monkeypatch.syspath_prepend(str(TOOLS.parent / "bindings" / "python"))
    backend = importlib.import_module("build_backend")
    yield backend
    del sys.modules["build_backend"]


@pytest.mark.parametrize("python", ("cp310", "cp313"))
@pytest.mark.parametrize("place", ("EULA.txt", "dist-info/nvidia_cuda_runtime-7.dist-info/licenses/License.txt", None))
def test_a_wheel_with_the_cuda_plugin_has_nvidias_terms(backend, bundled, tmp_path, monkeypatch, capsys, python, place):
    """From the toolkit that built the plugin; without them the builder is told."""
    info, notices = "libamp-1.dist-info", "bindings/python/LICENSE.third-party"
    files = {name: data for name, data in published(bundled).items() if not name.endswith("LICENSE.cuda-runtime")}
    files |= {f"{info}/WHEEL": f"Tag: {python}-abi3-any\n".encode(),
              f"{info}/METADATA": f"License-Expression: Apache-2.0\nLicense-File: {notices}\n".encode()}
    record = "".join(f"{name},sha256=x,{len(data)}\n" for name, data in files.items()) + f"{info}/RECORD,,\n"
    name = f"libamp-1-{python}-abi3-any.whl"
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        for path, data in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(path, data)
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("")
    nvcc.chmod(0o755)
    if place:
        (tmp_path / "cuda" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cuda" / place).write_text("NVIDIA's End User License Agreement\n")
    monkeypatch.setenv("PATH", str(nvcc.parent))
    monkeypatch.setattr(sys.modules["mesonpy"], "build_wheel", lambda *_: name, raising=False)
    assert backend.build_wheel(tmp_path) == "libamp-1-cp310-abi3-any.whl" and not list(tmp_path.glob("*.new"))
    made = bundled.read_wheel(tmp_path / "libamp-1-cp310-abi3-any.whl")
    assert bool(bundled.complaints(made)) == (not place) == ("LICENSE.cuda-runtime" in capsys.readouterr().err)
    assert made[f"{info}/WHEEL"] == b"Tag: cp310-abi3-any\n"
    assert (b"LICENSE.cuda-runtime" in made[f"{info}/METADATA"]) == bool(place)
    assert made[f"{info}/METADATA"].startswith(f"License-Expression: {bundled.expression(made)}\n".encode())
    assert bundled.expression(made) == "Apache-2.0 AND MIT AND LicenseRef-NVIDIA-CUDA-EULA"
    listed = dict(line.split(",", 1) for line in made[f"{info}/RECORD"].decode().splitlines())
    assert listed.keys() == made.keys() and listed.pop(f"{info}/RECORD") == ","
    for path in (path for path in made if made[path] != files.get(path) and path in listed):
        digest = base64.urlsafe_b64encode(hashlib.sha256(made[path]).digest()).rstrip(b"=").decode()
        assert listed[path] == f"sha256={digest},{len(made[path])}"


@pytest.mark.skipif(not os.environ.get("AMP_SPDX"), reason="spdx-tools is not installed")
def test_the_bill_of_materials_has_the_versions_of_the_build(bundled, tmp_path):
    wheel, build, out = tmp_path / "libamp-0-x.whl", tmp_path / "build", tmp_path / "out.spdx.json"
    (tmp_path / "nvidia_cuda_runtime-77.0.1.dist-info").mkdir()
    (tmp_path / "pkgconfig").mkdir()
    build.mkdir()
    cuda = f"{tmp_path}/nvidia/cu77/bin/../lib/libcudart_static.a"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in published(bundled).items():
            archive.writestr(name, data)
    command = [sys.executable, TOOLS / "sbom.py", "--source", TOOLS.parent, "--commit", "abc", "--date", "1000000000",
               "--out", out, "--built", f"{wheel.name}={build}", wheel]

    def made(**known):
        archives = [f"{tmp_path}/{name}.a" for name in known]
        (build / "build.ninja").write_text(f" LINK_ARGS = -shared {' '.join(archives)} {cuda} -lm\n")
        for name, version in known.items():
            file = "jansson.pc" if name == "libjansson" else f"{name}.pc"
            (tmp_path / "pkgconfig" / file).write_text(f"Name: x\nVersion: {version}\n")
        env = {**os.environ, "PYTHONPATH": os.environ["AMP_SPDX"]}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return out.read_bytes()

    text = made(libffi="88.1", libjansson="99.2")
    packages = {part["name"]: part["versionInfo"] for part in json.loads(text)["packages"]}
    assert packages == {"libamp": libamp.__version__, "libffi": "88.1", "jansson": "99.2", "cudart": "77.0.1"}
    assert json.loads(text)["creationInfo"]["created"] == "2001-09-09T01:46:40Z"
    assert made(libffi="88.1", libjansson="99.2") == text
    with pytest.raises(AssertionError, match="has jansson inside; "):
        made(libffi="88.1")


def test_metadata_says_what_it_is():
    told = importlib.metadata.metadata("libamp")
    assert told["License-Expression"].startswith("Apache-2.0 AND MIT") and told["Requires-Python"] == ">=3.10"
    assert "Typing :: Typed" in told.get_all("Classifier") and told["Summary"]
    assert told["Description-Content-Type"] == "text/markdown" and "# libamp for Python" in told.get_payload()


def test_no_folder_of_the_machine_that_built_it(installed):
    tree = str(pathlib.Path(__file__).parents[3]).encode()
    naming = [file.name for file in installed.iterdir() if file.is_file() and tree in file.read_bytes()]
    assert not naming


def dynamic(path):
    return subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
def test_nothing_is_needed_of_the_users_machine(installed):
    """Plugins may need more: they are loaded where that is there."""
    for name in ("_core.abi3.so", "libamp.so.0"):
        text = dynamic(installed / name)
        for library in re.findall(r"\(NEEDED\).*\[(.*)\]", text):
            if library not in SYSTEM and not library.startswith("ld-linux"):
                assert (installed / library).exists(), f"{name} needs {library}"
                assert "[$ORIGIN]" in text, f"{name} does not look for {library} beside itself"
    assert "[libamp.so.0]" in dynamic(installed / "libamp.so.0"), "it has no soname"
    sections = subprocess.run(
        ["readelf", "-S", "-W", installed / "libamp.so.0"], capture_output=True, text=True, check=True
    )
    assert ".debug_info" not in sections.stdout and ".symtab" not in sections.stdout


def test_stubs_and_functions_have_the_same_arguments():
    stub = ast.parse((pathlib.Path(__file__).parents[1] / "libamp" / "kernels.pyi").read_text())
    declared = {node.name: node.args for node in stub.body if isinstance(node, ast.FunctionDef)}  # the last overload
    types = {name for name in kernels.__all__ if isinstance(getattr(kernels, name), type)}
    assert types == {node.name for node in stub.body if isinstance(node, ast.ClassDef)} - {"Tensor"}
    assert set(declared) == set(kernels.__all__) - types
    for name, arguments in declared.items():
        real = inspect.signature(getattr(kernels, name)).parameters.values()
        told = [a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
        fixed = [p.name for p in real if p.kind is not p.VAR_KEYWORD]
        assert told == fixed or (len(fixed) < len(told) and told[: len(fixed)] == fixed and name == "optimizer_step"), (
            name
        )
        assert getattr(kernels, name).__doc__


def test_a_rule_that_there_is_not_is_refused_with_all_names():
    declared = list(_core.optim_rules())
    with pytest.raises(libamp.ArgumentError, match="libamp has ") as refused:
        kernels.optimizer_step("no rule", [], [], {})
    assert str(refused.value).split("libamp has ")[1].split() == declared


def test_no_files_of_the_extension_need_each_other():
    """By the functions that they call: what stands lower knows nothing of what stands above it."""
    texts = {file.stem: file.read_text() for file in (pathlib.Path(__file__).parents[1] / "src").glob("*.c")}
    homes = {}
    for file, text in texts.items():
        homes |= dict.fromkeys(re.findall(r"^(?!static|extern)\w[\w *]*?\b(amp_py_\w+)\(", text, re.M), file)
    calls = {file: {homes[name] for name in re.findall(r"\bamp_py_\w+", text) if name in homes} - {file}
             for file, text in texts.items()}
    assert len(homes) > 100 and sum(map(len, calls.values())) > 60
    while free := [file for file, others in calls.items() if not others]:
        calls = {file: others - set(free) for file, others in calls.items() if file not in free}
    assert not calls


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_another_version_of_the_library_is_refused_by_its_file(tmp_path):
    """As a preload brings it in."""
    (tmp_path / "old.c").write_text('const char *amp_version(void) { return "0.0.9"; }\n')
    old = tmp_path / "libold.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", old, tmp_path / "old.c"], check=True)
    env = {**os.environ, "LD_PRELOAD": str(old)}
    run = subprocess.run([sys.executable, "-c", "import libamp"], env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 1 and "ImportError" in run.stderr, run.stderr
    assert "0.0.9" in run.stderr and str(old) in run.stderr and "LD_PRELOAD" in run.stderr
