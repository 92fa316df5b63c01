#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bill of materials of a release, as SPDX 2.3 in JSON:

    sbom.py --source FOLDER --commit HASH --date SECONDS --out FILE [--built WHEEL=FOLDER]... FILE...

FILE is what is released; FOLDER of --built is the build folder of that wheel, from which the versions of its
components are read. The same arguments give the same bytes. spdx-tools writes and validates the document.
"""
import argparse
import datetime
import hashlib
import os
import pathlib
import re
import sys
import uuid

from bundled import COMPONENTS, LICENSE, inside, read_wheel
from license_expression import get_spdx_licensing
from spdx_tools.spdx.model import (
    Actor,
    ActorType,
    Checksum,
    ChecksumAlgorithm,
    CreationInfo,
    Document,
    ExternalPackageRef,
    ExternalPackageRefCategory,
    ExtractedLicensingInfo,
    Package,
    PackagePurpose,
    Relationship,
    RelationshipType,
    SpdxNoAssertion,
)
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
from spdx_tools.spdx.writer.write_anything import write_file

DOCUMENT = "SPDXRef-DOCUMENT"


def linked(build):
    """The archives that the build links."""
    text = (build / "build.ninja").read_text(encoding="utf-8")
    words = " ".join(re.findall(r"^ *LINK_ARGS = (.*)$", text, re.MULTILINE)).split()
    return {pathlib.Path(os.path.normpath(word)) for word in words if re.fullmatch(r"/.*\.a", word)}


def version_of(component, archive):
    """As the package says that the archive is of: a .pc file beside it, or the metadata of a Python package."""
    config = archive.parent / "pkgconfig" / f"{component.name}.pc"
    if config.exists():
        return re.search(r"^Version: *(\S+)", config.read_text(encoding="utf-8"), re.MULTILINE).group(1)
    for folder in archive.parents:
        for info in folder.glob("nvidia_cuda_runtime-*.dist-info"):
            return info.name.removesuffix(".dist-info").rpartition("-")[2]
    return sys.exit(f"{archive}: nothing beside it says a version")


def spdx_id(*words):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words))


def package(name, version, terms, **more):
    """`terms` is a license of SPDX's list, or a LicenseRef."""
    expression = get_spdx_licensing().parse(terms)
    more = {"download_location": SpdxNoAssertion(), "supplier": SpdxNoAssertion(), **more}
    return Package(name=name, version=version, files_analyzed=False, license_concluded=expression,
                   license_declared=expression, copyright_text=SpdxNoAssertion(), **more)


def release_package(path, version):
    """One file of the release."""
    purpose = PackagePurpose.SOURCE if re.search(r"\.tar\.\w+$", path.name) else PackagePurpose.INSTALL
    digest = Checksum(ChecksumAlgorithm.SHA256, hashlib.sha256(path.read_bytes()).hexdigest())
    return package("libamp", version, LICENSE, spdx_id=spdx_id(path.name), file_name=path.name, checksums=[digest],
                   primary_package_purpose=purpose, supplier=Actor(ActorType.ORGANIZATION, "The libamp authors"))


def source_data(source):
    """Data of others in the sources: paragraphs of debian/copyright but the first, with the names of their files."""
    for paragraph in (source / "debian" / "copyright").read_text(encoding="utf-8").split("\n\n"):
        fields = dict(re.findall(r"^(Files|License|Comment): (.*(?:\n .*)*)", paragraph, re.MULTILINE))
        if "Files" in fields and fields["Files"] != "*":
            comment = " ".join(fields.get("Comment", "").split())
            yield package(fields["Files"], None, fields["License"], spdx_id=spdx_id("source", fields["Files"]),
                          comment=comment or None, primary_package_purpose=PackagePurpose.FILE)


def wheel_parts(wheel, build):
    """The components of a wheel, each once for each version."""
    for component in inside(read_wheel(wheel))[0]:
        found = {version_of(component, path) for path in linked(build) if re.fullmatch(component.archive, path.name)}
        if len(found) != 1:
            sys.exit(f"{wheel.name} has {component.name} inside; {build} links versions {sorted(found)} of it")
        (version,) = found
        purl = ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl",
                                  f"pkg:generic/{component.name}@{version}")
        yield package(component.name, version, component.license, spdx_id=spdx_id(component.name, version),
                      download_location=component.home, external_references=[purl],
                      primary_package_purpose=PackagePurpose.LIBRARY)


def extracted():
    """Licenses that are not on SPDX's list."""
    return [ExtractedLicensingInfo(part.license, license_name="NVIDIA Software License Agreement for the CUDA Toolkit",
                                   extracted_text=f"{part.terms[0]} in the wheel")
            for part in COMPONENTS if part.license.startswith("LicenseRef-")]


def document(options):
    version = re.search(r"^  version: '(.*)'", (options.source / "meson.build").read_text(encoding="utf-8"),
                        re.MULTILINE).group(1)
    packages, relations = {}, []
    for path in options.files:
        whole = packages.setdefault(spdx_id(path.name), release_package(path, version))
        relations.append(Relationship(DOCUMENT, RelationshipType.DESCRIBES, whole.spdx_id))
        parts = []
        if path.suffix == ".whl":
            if path.name not in options.built:
                sys.exit(f"{path.name}: --built names no build folder for it")
            parts = wheel_parts(path, options.built[path.name])
        elif ".tar." in path.name:
            parts = source_data(options.source)
        for part in parts:
            packages.setdefault(part.spdx_id, part)
            relations.append(Relationship(whole.spdx_id, RelationshipType.CONTAINS, part.spdx_id))
    names = " ".join(f"{item.file_name} {item.checksums[0].value}" for item in packages.values() if item.file_name)
    unique = uuid.uuid5(uuid.NAMESPACE_URL, f"{options.commit} {names}")
    about = CreationInfo(
        "SPDX-2.3", DOCUMENT, f"libamp-{version}", f"https://spdx.org/spdxdocs/libamp-{version}-{unique}",
        [Actor(ActorType.TOOL, "libamp tools/sbom.py"), Actor(ActorType.TOOL, "spdx-tools")],
        datetime.datetime.fromtimestamp(options.date, datetime.timezone.utc).replace(tzinfo=None),
        document_comment=f"of commit {options.commit}")
    used = {str(item.license_declared) for item in packages.values()}
    return Document(about, list(packages.values()), relationships=relations,
                    extracted_licensing_info=[text for text in extracted() if text.license_id in used])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--date", type=int, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--built", action="append", default=[])
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE")
    options = parser.parse_intermixed_args()
    options.built = {name: pathlib.Path(folder) for name, _, folder in (text.partition("=") for text in options.built)}
    options.files.sort(key=lambda path: path.name)
    return options


def main():
    options = arguments()
    write_file(document(options), str(options.out), validate=False)
    wrong = validate_full_spdx_document(parse_file(str(options.out)))  # as a reader finds it
    if wrong:
        sys.exit("\n".join(f"{options.out}: {problem.validation_message}" for problem in wrong))


if __name__ == "__main__":
    main()
