# SPDX-License-Identifier: Apache-2.0
"""meson-python, with three changes in a wheel. The tag: its own names the Python that builds, and the limited API is
one for all of them. With a CUDA plugin also NVIDIA's terms for the runtime inside, from the toolkit that built it. The
license: also those of the libraries that are inside (tools/bundled.py)."""
import base64
import hashlib
import importlib.util
import os
import pathlib
import shutil
import sys
import zipfile

import mesonpy
from mesonpy import (  # noqa: F401 - the other hooks are meson-python's own
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

OLDEST = "cp310"


def load_bundled():
    """tools/bundled.py."""
    path = pathlib.Path(__file__).resolve().parents[2] / "tools" / "bundled.py"
    spec = importlib.util.spec_from_file_location("bundled", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bundled = load_bundled()
TERMS, WORDS = next(part.terms for part in bundled.COMPONENTS if part.name == "cudart")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    built = pathlib.Path(wheel_directory, mesonpy.build_wheel(wheel_directory, config_settings, metadata_directory))
    name, version, python, abi, platform = built.stem.split("-")
    wanted, changed = built, {}
    with zipfile.ZipFile(built) as wheel:
        if abi == "abi3" and python != OLDEST:
            wanted = built.with_name(f"{name}-{version}-{OLDEST}-{abi}-{platform}.whl")
            edit(wheel, changed, "/WHEEL", f"Tag: {python}-", f"Tag: {OLDEST}-")
        if any(entry.endswith("/libamp_cuda.so") for entry in wheel.namelist()):
            add_cuda_terms(wheel, changed, find_terms(find_nvcc()))
        license_line = "License-Expression: {}\n".format
        edit(wheel, changed, "/METADATA", license_line(bundled.LICENSE),
             license_line(bundled.expression(bundled.read_wheel(built))))
    if changed:
        new = built.with_suffix(".new")
        rewrite(built, new, changed)
        built.unlink()
        new.rename(wanted)
    return wanted.name


def find_nvcc():
    """As src/kernels/cuda/meson.build does."""
    return shutil.which("nvcc", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin",
                                                      "/opt/cuda/bin"]))


def find_terms(nvcc):
    """The text in NVIDIA's toolkit, in the package for pip that has the runtime, or in Debian's; None: nowhere."""
    if not nvcc:
        return None
    toolkit = pathlib.Path(nvcc).resolve().parents[1]
    found = [toolkit / "EULA.txt"]
    for folder in (toolkit, toolkit / "dist-info", *toolkit.parents[:2]):
        found += sorted(folder.glob("nvidia_cuda_runtime*.dist-info/**/License.txt"))
    found.append(toolkit / "share" / "doc" / "nvidia-cuda-toolkit" / "copyright")
    texts = (path.read_bytes() for path in found if path.is_file())
    return next((text for text in texts if WORDS.encode() in text), None)


def edit(wheel, changed, ending, old, new):
    """Changes a file of the metadata, which may be changed already."""
    path = next(entry for entry in wheel.namelist() if entry.endswith(f".dist-info{ending}"))
    text = changed.get(path, wheel.read(path)).decode()
    if old not in text:
        sys.exit(f"libamp: {path} has no '{old.strip()}'")
    if old != new:
        changed[path] = text.replace(old, new).encode()


def add_cuda_terms(wheel, changed, text):
    notices = next(entry for entry in wheel.namelist() if entry.endswith("/LICENSE.third-party"))
    path = notices.replace("LICENSE.third-party", TERMS)
    if path in wheel.namelist():
        return
    if text is None:
        print(f"libamp: CUDA's toolkit has no license text here: before you pass the wheel on, add {TERMS} to it",
              file=sys.stderr)
        return
    line = f"License-File: {notices.partition('/licenses/')[2]}\n"
    changed[path] = text
    edit(wheel, changed, "/METADATA", line, line + line.replace("LICENSE.third-party", TERMS))


def rewrite(source, target, changed):
    """Copies a wheel with these files, new or changed, by name. RECORD follows."""
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as after:
        record = before.getinfo(next(entry for entry in before.namelist() if entry.endswith(".dist-info/RECORD")))
        lines = [line for line in before.read(record).decode().splitlines()
                 if line.rpartition(",sha256=")[0] not in changed]
        for path, data in changed.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{path},sha256={digest},{len(data)}")
        for entry in before.infolist():
            if entry is not record:
                after.writestr(entry, changed.get(entry.filename, before.read(entry)), zipfile.ZIP_DEFLATED)
        for path in changed.keys() - set(before.namelist()):
            added = zipfile.ZipInfo(path, record.date_time)
            added.external_attr = record.external_attr
            after.writestr(added, changed[path], zipfile.ZIP_DEFLATED)
        after.writestr(record, "\n".join([*lines, ""]), zipfile.ZIP_DEFLATED)
