#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Code of others inside a wheel, and its notices: bundled.py WHEEL

Prints a line for each component of the wheel, and fails where one has no notice or no license text, or where the
wheel's License-Expression does not name its license. bindings/python/build_backend.py, tools/wheels, tools/sbom.py and
the tests of the package use the list.
"""
import pathlib
import re
import sys
import typing
import zipfile


class Component(typing.NamedTuple):
    name: str
    mark: bytes  # a string of its code, which no code of libamp has
    soname: str  # of its own file, where a build puts it beside libamp.so
    archive: str  # the file that is linked, as a regular expression
    license: str  # of SPDX's list, or a LicenseRef
    home: str
    notice: str  # its line in LICENSE.third-party
    terms: typing.Tuple[str, str]  # a file of licenses/ and words of the text that it has


MIT = ("LICENSE.third-party", "Permission is hereby granted, free of charge")
COMPONENTS = (
    Component("libffi", b"LIBFFI_TMPDIR", "libffi.so", r"libffi(_pic)?\.a", "MIT", "https://github.com/libffi/libffi",
              "libffi: Copyright (c)", MIT),
    Component("jansson", b"string or '}' expected", "libjansson.so", r"libjansson\.a", "MIT",
              "https://github.com/akheron/jansson", "Jansson: Copyright (c)", MIT),
    Component("cudart", b"no CUDA-capable device is detected", "libcudart.so", r"libcudart_static\.a",
              "LicenseRef-NVIDIA-CUDA-EULA", "https://developer.nvidia.com/cuda-toolkit",
              "CUDA runtime: Copyright (c) NVIDIA", ("LICENSE.cuda-runtime", "End User License Agreement")),
)
LICENSE = "Apache-2.0"  # of libamp's own code
OWN = re.compile(r"(?:libamp|_core)[\w.]*\.so[.\d]*")


def read_wheel(path):
    """Bytes by name."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def inside(files):
    """The components of a wheel by the files that they are in, and the libraries that no component is."""
    found, unknown = {}, []
    for name, data in files.items():
        if not data.startswith(b"\x7fELF"):
            continue
        file = re.sub(r"-[0-9a-f]{8,}(?=\.)", "", name.rpartition("/")[2])  # auditwheel's hash
        own = OWN.fullmatch(file) is not None
        here = [part for part in COMPONENTS if (part.mark in data if own else file.startswith(part.soname))]
        for component in here:
            found.setdefault(component, []).append(name)
        if not own and not here:
            unknown.append(name)
    return found, unknown


def expression(files):
    """The licenses of all that a wheel holds, as its License-Expression has them (PEP 639)."""
    return " AND ".join(dict.fromkeys([LICENSE, *(part.license for part in COMPONENTS if part in inside(files)[0])]))


def complaints(files):
    found, unknown = inside(files)
    metadata = next((data.decode() for name, data in files.items() if name.endswith(".dist-info/METADATA")), "")
    told = re.search(r"^License-Expression: *(.*)", metadata, re.MULTILINE)
    texts = {name.rpartition("/")[2]: data.decode() for name, data in files.items() if "/licenses/" in name}
    wrong = [f"{name} has no notice: it is of no component in tools/bundled.py" for name in unknown]
    if not told or told.group(1) != expression(files):
        wrong.append(f"License-Expression is {told and told.group(1)}, and inside is {expression(files)}")
    for component in found:
        file, words = component.terms
        if component.notice not in texts.get("LICENSE.third-party", ""):
            wrong.append(f"LICENSE.third-party has no notice of {component.name}")
        if words not in texts.get(file, ""):
            wrong.append(f"the license text of {component.name} is missing: {file}")
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    files = read_wheel(sys.argv[1])
    for component, names in inside(files)[0].items():
        print(f"{component.name}: {component.license}, in {', '.join(names)}")
    wrong = complaints(files)
    if wrong:
        sys.exit(f"{pathlib.Path(sys.argv[1]).name}: " + "\n".join(wrong))


if __name__ == "__main__":
    main()
