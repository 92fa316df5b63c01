#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The build that is tested, installed below a folder, and programs outside built with pkg-config: test_install.py
SOURCE BUILD"""
import json
import os
import pathlib
import re
import shutil
import sys

from support import Tap, compiler, expect, run, scratch

HERE = pathlib.Path(__file__).resolve().parent
PUBLIC = {"amp.h", "amp_all.h", "amp_api.h", "amp_call.h", "amp_device.h", "amp_diagnostics.h", "amp_gate.h",
          "amp_kernels.h", "amp_nccl.h", "amp_observe.h", "amp_optim.h", "amp_pack.h", "amp_ranks.h", "amp_raw.h",
          "amp_scaler.h", "amp_serve.h", "amp_state.h", "amp_symbol.h",
          "amp_train.h", "amp_types.h", "amp.hpp", "amp_result.hpp",
          "amp_torch.hpp", "amp_torch/dispatch.hpp", "amp_torch/files.hpp", "amp_torch/forward.hpp",
          "amp_torch/grad_scaler.hpp", "amp_torch/host.hpp", "amp_torch/iteration.hpp", "amp_torch/session.hpp",
          "amp_torch/state.hpp"}

MPI = {"amp_mpi.h", "amp_mpi_average.h", "amp_mpi_params.h", "amp_mpi_pass.h", "amp_mpi_ranks.h", "amp_mpi_shard.h"}
LANGUAGES = {
    "rust": {"libamp_sys.rs", "lib.rs", "Cargo.toml", "build.rs"},
    "fortran": {"libamp_c.f90", "libamp.f90", "digits.f90"},
}


def extras_of(build):
    """Those that this build has."""
    listed = json.loads(run("meson", "introspect", "--buildoptions", build))
    options = {option["name"]: option["value"] for option in listed}
    without = {"disabled"} if options["extras"] else {"disabled", "auto"}
    return {name for name in ("adapt", "fortran", "mpi", "rust") if options[name] not in without}


def versions_of(source):
    """(version, soversion)"""
    text = (source / "include" / "amp.h").read_text(encoding="utf-8")
    parts = [re.search(rf"^#define AMP_{part} (\d+)", text, re.MULTILINE).group(1)
             for part in ("VERSION_MAJOR", "VERSION_MINOR", "VERSION_PATCH", "SOVERSION")]
    return ".".join(parts[:3]), parts[3]


def pkg_config(staged, *arguments):
    folder = next((file.parent for file in staged.rglob("libamp.pc")), staged)
    return run("pkg-config", *arguments, "libamp",
               env={"PKG_CONFIG_PATH": str(folder), "PKG_CONFIG_SYSROOT_DIR": str(staged)}).split()


def compile_consumer(program, flags):
    run(*compiler(), "-std=c11", "-Wall", "-Wextra", "-Werror", HERE / "consumer.c", "-o", program, *flags)


def build_consumer(program, staged, *, static):
    """As a user would; static takes libamp.a and the private libraries from pkg-config --static."""
    flags = pkg_config(staged, "--cflags", "--libs", *(["--static"] if static else []))
    if static:
        flags = ["-l:libamp.a" if flag == "-lamp" else flag for flag in flags]
    compile_consumer(program, flags)
    return run("readelf", "-d", program, env={"LC_ALL": "C"})


def build_cxx_consumer(program, staged):
    flags = pkg_config(staged, "--cflags", "--libs")
    run(*cxx_compiler(), "-std=c++17", "-Wall", "-Wextra", "-Werror", HERE / "consumer.cpp", "-o", program, *flags)


def cxx_compiler():
    """None: there is no C++ compiler."""
    words = (os.environ.get("CXX") or "c++").split()
    return words if shutil.which(words[0]) else None


CMAKE_PROJECT = """cmake_minimum_required(VERSION 3.13)
project(consumer C)
find_package(libamp 99.0 QUIET)
if(libamp_FOUND)
  message(FATAL_ERROR "{version} is taken for 99.0")
endif()
find_package(libamp {version} REQUIRED)
add_executable(consumer {source})
target_link_libraries(consumer libamp::libamp)
get_target_property(folder libamp::libamp INTERFACE_INCLUDE_DIRECTORIES)
message(STATUS "headers: ${{folder}}")
"""


def build_with_cmake(folder, staged, version):
    """From a tree that was moved from where it was configured for. The program's file."""
    project = folder / "cmake"
    project.mkdir()
    text = CMAKE_PROJECT.format(version=version, source=HERE / "consumer.c")
    (project / "CMakeLists.txt").write_text(text, encoding="utf-8")
    include = next(file.parent for file in staged.rglob("amp.h"))
    said = run("cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={include.parent}",
               env={"CC": compiler()[-1]})
    expect(f"headers: {include.resolve()}\n" in said, said)
    run("cmake", "--build", project / "build")
    return project / "build" / "consumer"


def name_compilers(folder):
    """cc and c++ as the compilers of this run, for command lines that stand in guides."""
    folder.mkdir()
    for name, words in (("cc", compiler()), ("c++", cxx_compiler() or ["false"])):
        words = " ".join(shutil.which(word) or word for word in words)  # this script is no compiler of ccache's
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def compile_example(source, folder, staged, libraries):
    """By the very line in its head, where it is installed; then it runs, and says by its status that it trained."""
    line = re.search(r"^ \*     ((?:cc|c\+\+) .*)$", source.read_text(encoding="utf-8"), re.MULTILINE).group(1)
    pc = next(file.parent for file in staged.rglob("libamp.pc"))
    run("sh", "-ec", f"{line} -o {folder}/{source.stem}", cwd=source.parent,
        env={"PKG_CONFIG_PATH": str(pc), "PKG_CONFIG_SYSROOT_DIR": str(staged),
             "PATH": f"{folder}/bin:{os.environ['PATH']}"})
    run(folder / source.stem, env={"LD_LIBRARY_PATH": str(libraries)})


def test_debian_symbols(tap, source, library):
    """A program built against this library needs the first release that has the symbols that the program uses."""
    what = "debian/libamp0.symbols knows each symbol by the release of its node"
    if not shutil.which("dpkg-gensymbols"):
        tap.skip(what, "there is no dpkg-gensymbols")
        return
    with tap.test(what):
        said = run("dpkg-gensymbols", "-plibamp0", "-Idebian/libamp0.symbols", f"-e{library}", "-O", "-c4", cwd=source)
        expect(f"{library.name} libamp0 #MINVER#\n" in said, said)
        nodes = re.findall(r"^ amp_\w+@AMP_([\d.]+) ([\d.]+)$", said, re.MULTILINE)
        expect(len(nodes) > 100 and all(since == f"{node}.0" for node, since in nodes), said)


def main():
    source, build, tap = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), Tap()
    version, soversion = versions_of(source)
    extras = extras_of(build)
    with scratch() as folder:
        staged = folder / "staged"
        with tap.test("installs below DESTDIR"):
            run("meson", "install", "-C", build, "--no-rebuild", "--destdir", staged)
        include = next((file.parent for file in staged.rglob("amp.h")), staged)
        libraries = next((file.parent for file in staged.rglob("libamp.so")), staged)
        examples = next(staged.rglob("share/doc/libamp/examples"), staged)

        with tap.test("installs what is public and nothing else"):
            headers = {str(file.relative_to(include)) for file in include.rglob("*") if file.is_file()}
            expect(headers == (PUBLIC | MPI if "mpi" in extras else PUBLIC), f"headers: {sorted(headers)}")
            languages = {file for name in ("rust", "fortran") for file in staged.rglob(f"share/libamp/{name}/**/*")}
            others = {file.name for file in staged.rglob("*") if file.is_file() and file not in languages
                      and include not in file.parents and examples not in file.parents}
            wanted = {"libamp.a", "libamp.so", f"libamp.so.{soversion}", f"libamp.so.{version}", "libamp.pc",
                      "amp_api.json", "libampConfig.cmake", "libampConfigVersion.cmake", "libamp.7"}
            backends = {pathlib.Path(name).name for name in ("src/libamp_onednn.so", "src/libamp_cuda.so",
                        "adapters/blas/libamp_blas.so", "adapters/darknet/libamp_darknet.so")
                        if (build / name).exists()}
            adapt = {"amp-adapt", "amp-adapt.1", "apex.inc", "today.inc", "wide.inc"} | {
                file.name for file in (source / "tools" / "adapt").rglob("*") if file.suffix in (".py", ".in")}
            wanted |= backends | (adapt if "adapt" in extras else set())
            expect(others == wanted, f"beside headers: {sorted(others)}, wanted {sorted(wanted)}")
            names = {file.name for file in languages}
            for name, sources in LANGUAGES.items():
                expect(sources <= names if name in extras else not sources & names,
                       f"for other languages: {sorted(names)}")
            expect(all((libraries / name).exists() for name in backends), "a backend does not lie beside libamp.so")

        if "adapt" in extras:
            with tap.test("amp-adapt runs from where it is installed"):
                said = run(sys.executable, next(staged.rglob("amp-adapt")), "--help",
                           env={"PYTHONDONTWRITEBYTECODE": "1"})
                expect("amp-adapt net.h" in said, said)

        with tap.test("pkg-config knows the version"):
            said = pkg_config(staged, "--modversion")
            expect(said == [version], f"pkg-config says {said}, amp.h {version}")

        with tap.test("a program outside builds and runs with the shared library"):
            dynamic = build_consumer(folder / "shared", staged, static=False)
            expect("libamp.so" in dynamic, f"it was not linked with libamp.so:\n{dynamic}")
            said = run(folder / "shared", env={"LD_LIBRARY_PATH": str(libraries)})
            expect(said.strip() == version, f"amp_version says {said.strip()}, amp.h {version}")

        with tap.test("a program outside builds and runs with a build that is not installed"):
            compile_consumer(folder / "uninstalled", run("pkg-config", "--cflags", "--libs", "libamp", env={
                "PKG_CONFIG_PATH": str(build / "meson-uninstalled")}).split())
            said = run(folder / "uninstalled", env={"LD_LIBRARY_PATH": str(build / "src")})
            expect(said.strip() == version, f"amp_version says {said.strip()}, amp.h {version}")

        with tap.test("a program outside builds and runs with the static library"):
            dynamic = build_consumer(folder / "static", staged, static=True)
            expect("libamp.so" not in dynamic, f"it needs libamp.so:\n{dynamic}")
            expect(run(folder / "static").strip() == version, "amp_version")

        test_debian_symbols(tap, source, libraries / f"libamp.so.{soversion}")

        if cxx_compiler():
            with tap.test("a program in C++ outside builds and runs"):
                build_cxx_consumer(folder / "cxx", staged)
                said = run(folder / "cxx", env={"LD_LIBRARY_PATH": str(libraries)})
                expect(said.strip() == version, f"it says {said.strip()}, amp.h {version}")

        if shutil.which("cmake"):
            with tap.test("find_package of CMake finds it: a program builds and runs, and another version is refused"):
                said = run(build_with_cmake(folder, staged, version), env={"LD_LIBRARY_PATH": str(libraries)})
                expect(said.strip() == version, f"it says {said.strip()}, amp.h {version}")
        else:
            tap.skip("find_package of CMake", "there is no cmake")

        name_compilers(folder / "bin")
        programs = sorted(file for file in examples.glob("*.c*") if file.suffix == ".c" or cxx_compiler())
        for program in programs:
            with tap.test(f"{program.name} compiles where it is installed, by the line in its head, and trains"):
                compile_example(program, folder, staged, libraries)
        with tap.test("all programs of the guide are installed"):
            there = {file.name for file in (source / "examples" / "hosts").glob("*.c*")}
            found = {file.name for file in examples.iterdir() if file.is_file()}  # ggml's lies in a folder
            expect(found == there != set(), f"{sorted(found)}")
    tap.done()


if __name__ == "__main__":
    main()
