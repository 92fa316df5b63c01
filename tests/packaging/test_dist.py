#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`meson dist`: a tarball that builds and passes its own tests: test_dist.py SOURCE [--full]

Works on a scratch repository that holds the working tree as it is. Without --full the tarball is configured, and the
suite lint runs from it; with it `meson dist` runs everything itself."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

from support import QUICK, Tap, expect, run, scratch, setup, snapshot


def is_checkout(source):
    git = shutil.which("git")
    return git and subprocess.run([git, "-C", source, "ls-files"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  check=False).returncode == 0


def pip_options(source):
    """Meson's options that pip's build passes."""
    text = re.search(r"^setup = (\[.*\])$", (source / "pyproject.toml").read_text(encoding="utf-8"),
                     re.MULTILINE).group(1)
    return [option for option in json.loads(text) if option != "-Dpython=enabled"]


def gpus(folder, script):
    """A PATH on which nvidia-smi is `script`."""
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / "nvidia-smi").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def kinds(build):
    """The kinds of GPU for which nvcc would compile there."""
    rules = (build / "build.ninja").read_text(encoding="utf-8")
    return set(re.findall(r"code=(sm_\w+)", rules))


def main():
    source, full, tap = pathlib.Path(sys.argv[1]), "--full" in sys.argv, Tap()
    if not is_checkout(source):
        tap.skip_all(f"no git, or {source} is not a git checkout")
    with scratch() as folder:
        repository, build, unpacked = folder / "libamp", folder / "build", folder / "unpacked"
        repository.mkdir()
        with tap.test("the working tree makes a repository that configures"):
            snapshot(source, repository)
            # Only the full run tests, and trains, in there.
            how = ["--buildtype=release", "-Dtests=enabled", "-Dexamples=enabled", "-Dgpu_archs=90"] if full else [
                *QUICK, *pip_options(source), "--libdir=lib64"]
            said = setup(build, repository, *how, env=gpus(folder / "none", "echo it has failed; exit 9"))
        if full:
            with tap.test("meson dist builds, tests and installs the tarball"):
                run("meson", "dist", "-C", build, "--formats", "gztar")
            tap.done()
            return

        if pathlib.Path("/etc/debian_version").exists():
            with tap.test("lib64, where Debian does not look, is warned of"):
                expect("libdir is lib64" in said, said)
        with tap.test("what pip builds has nothing for GPUs where there is none"):
            expect(not kinds(build), kinds(build))
        with tap.test("meson dist makes a tarball"):
            run("meson", "dist", "-C", build, "--no-tests", "--formats", "gztar")
            tarball = next((build / "meson-dist").glob("libamp-*.tar.gz"))
            with tarfile.open(tarball) as archive:
                archive.extractall(unpacked)
        tree = next(unpacked.iterdir(), unpacked) if unpacked.exists() else unpacked
        with tap.test("the tarball has what a user needs, and the commands still run"):
            for name in ("README.md", "LICENSE", "include/amp.h", "examples/data", "tools/demo", "tools/test"):
                expect((tree / name).exists(), f"{name} is missing")
            expect(os.access(tree / "tools" / "demo", os.X_OK), "tools/demo is not executable")
        with tap.test("it has the files of tools/release's tarball"):
            mine = {str(path.relative_to(tree)) for path in tree.rglob("*") if not path.is_dir()}
            expect(mine == set(run("git", "-C", repository, "ls-files").splitlines()), "other files")
        with tap.test("the tarball configures: Meson misses no file"):
            setup(folder / "again", tree, *QUICK, "-Dtests=enabled", "-Dexamples=enabled", "-Dgpu_archs=native",
                  env=gpus(folder / "two", "printf '9.0\\n9.0\\n'"))
        built = kinds(folder / "again")
        if built:
            with tap.test("and is for the GPU that is here alone"):
                expect(built == {"sm_90"}, built)
        else:
            tap.skip("is for the GPU that is here alone", "there is no nvcc that does")
        with tap.test("suite lint passes from the tarball"):
            # which needs nothing built, and older versions of Meson would build all there is
            run("meson", "test", "-C", folder / "again", "--suite", "lint", "--no-rebuild", "--print-errorlogs")
    tap.done()


if __name__ == "__main__":
    main()
