#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`meson install` into a prefix, and programs outside the tree built with pkg-config: test_install.py SOURCE"""
import os
import pathlib
import re
import shutil
import sys

from support import QUICK, Tap, compiler, expect, run, scratch, setup

HERE = pathlib.Path(__file__).resolve().parent
PUBLIC = {"amp.h", "amp_all.h", "amp_api.h", "amp_call.h", "amp_device.h", "amp_diagnostics.h", "amp_gate.h", "amp_kernels.h",
          "amp_optim.h", "amp_ranks.h", "amp_raw.h", "amp_scaler.h", "amp_state.h", "amp_symbol.h", "amp_train.h", "amp_types.h",
          "amp.hpp", "amp_result.hpp",
          "amp_torch.hpp", "amp_torch/dispatch.hpp", "amp_torch/files.hpp", "amp_torch/forward.hpp",
          "amp_torch/grad_scaler.hpp", "amp_torch/host.hpp", "amp_torch/session.hpp", "amp_torch/state.hpp"}


def versions_of(source):
    """(version, soversion)"""
    text = (source / "include" / "amp.h").read_text(encoding="utf-8")
    parts = [re.search(rf"^#define AMP_{part} (\d+)", text, re.MULTILINE).group(1)
             for part in ("VERSION_MAJOR", "VERSION_MINOR", "VERSION_PATCH", "SOVERSION")]
    return ".".join(parts[:3]), parts[3]


def build_consumer(program, pc_folder, *, static):
    """As a user would; static takes libamp.a and the private libraries from pkg-config --static."""
    flags = run("pkg-config", "--cflags", "--libs", *(["--static"] if static else []), "libamp",
                env={"PKG_CONFIG_PATH": str(pc_folder)}).split()
    if static:
        flags = ["-l:libamp.a" if flag == "-lamp" else flag for flag in flags]
    run(*compiler(), "-std=c11", "-Wall", "-Wextra", "-Werror", HERE / "consumer.c", "-o", program, *flags)
    return run("readelf", "-d", program, env={"LC_ALL": "C"})


def build_cxx_consumer(program, pc_folder):
    flags = run("pkg-config", "--cflags", "--libs", "libamp", env={"PKG_CONFIG_PATH": str(pc_folder)}).split()
    command = (os.environ.get("CXX") or "c++").split()
    run(*command, "-std=c++17", "-Wall", "-Wextra", "-Werror", HERE / "consumer.cpp", "-o", program, *flags)


def main():
    source, tap = pathlib.Path(sys.argv[1]), Tap()
    version, soversion = versions_of(source)
    with scratch() as folder:
        prefix, build = folder / "prefix", folder / "build"
        with tap.test("installs into a prefix"):
            setup(build, source, f"--prefix={prefix}", *QUICK, "-Dtests=disabled", "-Dexamples=disabled", "-Dgpu_archs=90")
            run("meson", "install", "-C", build)
        pc_folder = next((file.parent for file in prefix.rglob("libamp.pc")), prefix)

        with tap.test("installs what is public and nothing else"):
            include = prefix / "include"
            headers = {str(file.relative_to(include)) for file in include.rglob("*") if file.is_file()}
            expect(headers == PUBLIC, f"headers: {sorted(headers)}")
            libraries = {file.name for file in prefix.rglob("lib*") if file.is_file() and "libamp" in file.name}
            wanted = {"libamp.a", "libamp.so", f"libamp.so.{soversion}", "libamp.pc"}
            expect(wanted <= libraries, f"libraries: {sorted(libraries)}, wanted {sorted(wanted)}")
            expect(not (prefix / "bin").exists(), "programs were installed")
            for backend in ("libamp_onednn.so", "libamp_cuda.so"):
                built = (build / "src" / backend).exists()
                beside = any((file.parent / backend).exists() for file in prefix.rglob("libamp.so"))
                expect(built == beside, f"{backend}: built {built}, installed beside libamp.so {beside}")

        with tap.test("pkg-config knows the version"):
            said = run("pkg-config", "--modversion", "libamp", env={"PKG_CONFIG_PATH": str(pc_folder)})
            expect(said.strip() == version, f"pkg-config says {said.strip()}, amp.h {version}")

        with tap.test("a program outside builds and runs with the shared library"):
            dynamic = build_consumer(folder / "shared", pc_folder, static=False)
            expect("libamp.so" in dynamic, f"it was not linked with libamp.so:\n{dynamic}")
            said = run(folder / "shared", env={"LD_LIBRARY_PATH": str(pc_folder.parent)})
            expect(said.strip() == version, f"amp_version says {said.strip()}, amp.h {version}")

        with tap.test("a program outside builds and runs with the static library"):
            dynamic = build_consumer(folder / "static", pc_folder, static=True)
            expect("libamp.so" not in dynamic, f"it needs libamp.so:\n{dynamic}")
            expect(run(folder / "static").strip() == version, "amp_version")

        if shutil.which((os.environ.get("CXX") or "c++").split()[0]):
            with tap.test("a program in C++ outside builds and runs"):
                build_cxx_consumer(folder / "cxx", pc_folder)
                said = run(folder / "cxx", env={"LD_LIBRARY_PATH": str(pc_folder.parent)})
                expect(said.strip() == version, f"it says {said.strip()}, amp.h {version}")

        with tap.test("installs under DESTDIR too"):
            run("meson", "install", "-C", build, "--destdir", folder / "staged")
            staged = list((folder / "staged").rglob("amp.h"))
            expect(len(staged) == 1 and str(prefix)[1:] in str(staged[0]), f"amp.h: {staged}")
    tap.done()


if __name__ == "__main__":
    main()
