# SPDX-License-Identifier: Apache-2.0
"""meson-python, but for the tag: its own names the Python that builds; the limited API is one for all of them."""
import base64
import hashlib
import pathlib
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


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    built = pathlib.Path(wheel_directory, mesonpy.build_wheel(wheel_directory, config_settings, metadata_directory))
    name, version, python, abi, platform = built.stem.split("-")
    if abi != "abi3" or python == OLDEST:
        return built.name
    wanted = built.with_name(f"{name}-{version}-{OLDEST}-{abi}-{platform}.whl")
    retag(built, wanted, f"Tag: {python}-", f"Tag: {OLDEST}-")
    built.unlink()
    return wanted.name


def retag(source, target, old, new):
    """Copies a wheel; in its WHEEL file `old` becomes `new`, and RECORD follows."""
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as after:
        path = next(entry for entry in before.namelist() if entry.endswith(".dist-info/WHEEL"))
        text = before.read(path).decode().replace(old, new).encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
        for entry in before.infolist():
            data = before.read(entry)
            if entry.filename == path:
                data = text
            elif entry.filename.endswith(".dist-info/RECORD"):
                lines = [line for line in data.decode().splitlines() if not line.startswith(path + ",")]
                data = "\n".join([*lines, f"{path},sha256={digest},{len(text)}", ""]).encode()
            after.writestr(entry, data, zipfile.ZIP_DEFLATED)
