#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/release on a repository of the working tree: test_release.py SOURCE [--full]

Without --full the source tarball alone, of a few files, on a machine without root and without a network, and the call
of tools/sbom.py. With it the whole, twice."""
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import sbom_stand_ins
from support import Tap, expect, run, scratch, snapshot

UNROOTED = {"AMP_PYTHON_CACHE": "/nonexistent", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0",
            "PIP_EXTRA_INDEX_URL": "", "PIP_NO_CACHE_DIR": "1"}


@contextlib.contextmanager
def edited(file, old, new):
    text = file.read_text(encoding="utf-8")
    expect(old in text, f"{file.name} has no '{old}'")
    file.write_text(text.replace(old, new), encoding="utf-8")
    yield
    file.write_text(text, encoding="utf-8")


def machine(folder):
    """One where nobody is root and no index of packages answers."""
    folder.mkdir()
    for name, text in {"id": "echo 1000", "sudo": "exit 1", "apt-get": "exit 1"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return {**UNROOTED, "AMP_PYTHON_CACHE": str(folder / "cache"), "PATH": f"{folder}:{os.environ['PATH']}"}


def commit_all(repository):
    run("git", "-C", repository, "-c", "user.name=test", "-c", "user.email=test@localhost", "-c",
        "commit.gpgsign=false", "commit", "-q", "-a", "-m", "change")


def test_requests(tap, repository, folder, env):
    release = repository / "tools" / "release"
    for words, wanted in ((["--bogus"], "unknown option"), (["--only", "music"], "--only needs"), (["--out"], "--out"),
                          (["a", "b"], "one commit at a time"), ([""], "this one is empty")):
        with tap.test(f"tools/release {' '.join(words)} is refused with the list"):
            said = run(release, *words, status=2, env=env)
            expect(wanted in said and "--unchecked" in said, said)
    with tap.test("tools/release --help"):
        expect("CONTENTS.txt" in run(release, "--help", env=env), "no list")
    with tap.test("a commit that is not there is named"):
        expect("no commit 'nonesuch'" in run(release, "nonesuch", status=2, env=env), "it is not")
    with tap.test("in a shallow clone it is said that it is one"):
        run("git", "clone", "-q", "--depth=1", f"file://{repository}", folder / "shallow")
        said = run(folder / "shallow" / "tools" / "release", "nonesuch", status=2, env=env)
        expect("shallow clone" in said, said)


def test_folders(tap, repository, folder, env):
    release, here = repository / "tools" / "release", repository / "build" / "release"
    (folder / "file").write_text("", encoding="utf-8")
    (folder / "link").symlink_to(folder / "nowhere")
    (folder / "old.part").mkdir()
    for out, wanted in ((folder / "file" / "out", "cannot be made: "), (folder / "link", "is a link"),
                        (folder / "old", "old.part is there already"), (here / "made", "works in"),
                        (here / "libamp" / "out", "works in"), (here, "works in")):
        with tap.test(f"--out {out.relative_to(folder)} is refused before anything is made"):
            said = run(release, "--out", out, status=2, env=env)
            expect(wanted in said and "made: libamp" not in said, said)
    with tap.test("two runs in one clone: the second is refused and changes nothing"):
        with (here / "lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = sorted(here.iterdir())
            said = run(release, "--only", "source", "--out", folder / "never", status=2, env=env)
        expect("another tools/release works in" in said and sorted(here.iterdir()) == before, said)
    with tap.test("a clone in which nothing can be written is named"):
        shutil.rmtree(folder / "shallow" / "build")
        (folder / "shallow" / "build").write_text("", encoding="utf-8")  # root could write into a read-only folder
        said = run(folder / "shallow" / "tools" / "release", status=2, env=env)
        expect("/build/release cannot be written" in said and len(said.splitlines()) == 1, said)


def test_source(tap, folder, repository, env):
    release, out = repository / "tools" / "release", folder / "first"
    only = ["--only", "source"]
    with tap.test("without root and a network the status is 1, and what is missing is said"):
        said = run(release, *only, "--out", out, status=1, env=env)
        for words in ("not made: the bill of materials", "not tried: the tarball: it needs root"):
            expect(words in said and words in (out / "CONTENTS.txt").read_text(encoding="utf-8"), said)
    with tap.test("CONTENTS.txt names what --only left out"):
        words = (out / "CONTENTS.txt").read_text(encoding="utf-8").partition("Left out by --only:\n")[2]
        expect(re.findall(r"^    (.*)", words, re.MULTILINE) == ["the wheels and the sdist", "the Debian packages"],
               words)
    with tap.test("a release that is there is not touched"):
        before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
        expect("is there already" in run(release, *only, "--out", out, status=2, env=env), "it was made")
        expect(before == {path.name: path.stat().st_mtime_ns for path in out.iterdir()}, "it was")
    with tap.test("a second run gives the same bytes, beside changes, umask, git settings and no home of another user"):
        (repository / "NEWS").write_text("libamp 9\n", encoding="utf-8")
        (folder / "gitconfig").write_text("[tar]\n\tumask = 0077\n[core]\n\tautocrlf = true\n", encoding="utf-8")
        other = {"GIT_CONFIG_GLOBAL": str(folder / "gitconfig"), "TZ": "Asia/Tokyo",
                 "AMP_PYTHON_CACHE": "/dev/null/cache"}
        said = run("sh", "-c", 'umask 077; exec "$@"', "sh", release, *only, "--unchecked", "--out", folder / "second",
                   "HEAD", env={**env, **other})
        expect("/dev/null/cache cannot be written" in said and "changes that are not committed" in said, said)
        sums = [(place / "SHA256SUMS").read_text(encoding="utf-8") for place in (out, folder / "second")]
        expect(sums[0] == sums[1] and len(sums[0].splitlines()) == 2, sums)
    with tap.test("SHA256SUMS has every file"):
        for line in sums[0].splitlines():
            digest, name = line.split("  ")
            expect(hashlib.sha256((out / name).read_bytes()).hexdigest() == digest, line)
        expect({path.name for path in out.iterdir()} == set(re.findall(r"  (.*)", sums[0])) | {"SHA256SUMS"}, sums[0])
    with tap.test("the tarball has the files of the commit, with its date and no owner"):
        names = run("git", "-C", repository, "ls-tree", "-r", "--name-only", "HEAD").splitlines()
        date = int(run("git", "-C", repository, "log", "-1", "--format=%ct"))
        with tarfile.open(next(out.glob("libamp-*.tar.xz"))) as archive:
            members = [member for member in archive if not member.isdir()]
        expect(sorted(member.name.partition("/")[2] for member in members) == sorted(names), "other names")
        expect({(m.uid, m.uname, m.mtime) for m in members} == {(0, "root", date)}, {(m.uid, m.mtime) for m in members})
        expect({m.mode for m in members if m.isfile()} == {0o644, 0o755}, {oct(m.mode) for m in members})
    with tap.test("where the disk becomes full while the folder is written, there is no folder"):
        (folder / "full").mkdir()
        (folder / "full" / "cp").write_text('#!/bin/sh\nfor to; do :; done\n: >"$to/SHA256SUMS"\necho full >&2\n'
                                            'exit 1\n', encoding="utf-8")
        (folder / "full" / "cp").chmod(0o755)
        said = run(release, *only, "--unchecked", "--out", folder / "third", status=1,
                   env={**env, "PATH": f"{folder / 'full'}:{env['PATH']}", "AMP_PYTHON_CACHE": "/dev/null/cache"})
        expect("third cannot be written: full; the files are in " in said, said)
        expect(not [path for path in folder.iterdir() if path.name.startswith("third")], "there is")
    run("git", "-C", repository, "checkout", "-q", ".")


def test_versions(tap, folder, repository, env):
    release = repository / "tools" / "release"
    for name, old, new in (("NEWS", "libamp 0", "libamp 7"), ("CITATION.cff", "\nversion: 0", "\nversion: 7"),
                           ("debian/changelog", "libamp (0", "libamp (7"),
                           ("CITATION.cff", "\ndate-released: 2", "\ndate-released: 7")):
        with tap.test(f"{name} with '{new.strip()}' is refused"):
            with edited(repository / name, old, new):
                commit_all(repository)
                said = run(release, "--out", folder / "never", status=2, env=env)
            run("git", "-C", repository, "reset", "-q", "--hard", "HEAD~1")
            expect(f"and {name} '7" in said and not (folder / "never").exists(), said)


SBOM = """set -eu
say() { echo "$@"; }
lack() { say "$@"; }
stop() { say "$@"; exit 1; }
logged() { shift; "$@"; }
setup_want() { :; }
python_spdx() { spdx=$stand_ins; }
"""


def test_sbom(tap, folder, repository):
    """tools/release's own call of tools/sbom.py: every wheel comes after an option that names its build folder."""
    made, stand_ins = folder / "of-sbom", folder / "stand-ins"
    made.mkdir()
    sbom_stand_ins.write(stand_ins)
    (part,) = (part for part in load_bundled(repository).COMPONENTS if part.name == "libffi")
    wheels = {"manylinux_2_28_x86_64": ("x86_64", "3.1"), "manylinux_2_28_aarch64": ("aarch64", "3.2"),
              "musllinux_1_2_x86_64": ("musl", "3.3")}
    for name in ("libamp-9.tar.xz", "libamp0_9_amd64.deb"):
        (made / name).write_text(name, encoding="utf-8")
    for tag, (build, version) in wheels.items():
        linked = repository / "build" / "wheels" / f"build-{build}"
        (linked / "pkgconfig").mkdir(parents=True)
        (linked / "build.ninja").write_text(f" LINK_ARGS = -shared {linked}/libffi.a\n", encoding="utf-8")
        (linked / "pkgconfig" / "libffi.pc").write_text(f"Version: {version}\n", encoding="utf-8")
        with zipfile.ZipFile(made / f"libamp-9-cp310-abi3-{tag}.whl", "w") as archive:
            archive.writestr("libamp/libamp.so.0", b"\x7fELF" + part.mark)
    text = (repository / "tools" / "release").read_text(encoding="utf-8")
    call = re.search(r"^make_sbom\(\) \{\n.*?^\}\n", text, re.MULTILINE | re.DOTALL)
    (folder / "make_sbom").write_text(f"{SBOM}{call.group(0)}make_sbom\n", encoding="utf-8")
    with tap.test("tools/sbom.py takes the files of a release as tools/release gives them"):
        run("sh", folder / "make_sbom", env={
            "root": str(repository), "made": str(made), "dir": str(folder), "commit": "abc", "tree": "libamp-9",
            "SOURCE_DATE_EPOCH": "1000000000", "stand_ins": str(stand_ins)})
        lines = (made / "libamp-9.spdx.json").read_text(encoding="utf-8").splitlines()
        whole = {line.partition(" DESCRIBES SPDXRef-")[2] for line in lines if " DESCRIBES " in line}
        names = {path.name for path in made.iterdir() if path.suffix != ".json"}
        expect(whole == {re.sub(r"[^A-Za-z0-9.]", "-", name) for name in names}, lines)
        for tag, (_, version) in wheels.items():
            wheel = f"SPDXRef-libamp-9-cp310-abi3-{tag.replace('_', '-')}.whl"
            expect(f"{wheel} CONTAINS SPDXRef-libffi-{version}" in lines, f"{tag}: {lines}")


def load_bundled(repository):
    spec = importlib.util.spec_from_file_location("bundled", repository / "tools" / "bundled.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_whole(tap, folder, repository):
    """Where this machine can."""
    release, out = repository / "tools" / "release", folder / "whole"
    why = [] if os.geteuid() == 0 else ["it needs root"]
    if not shutil.which("debootstrap"):
        why.append("there is no debootstrap")
    if why:
        tap.skip("the whole release", ", ".join(why))
        return
    with tap.test("the whole release: everything is made and tried"):
        said = run(release, "--out", out)
        tried = (out / "CONTENTS.txt").read_text(encoding="utf-8")
        expect("Missing" not in tried and tried.count("\n    packages: ") == 2 and "\n    wheel: " in tried, said)
    with tap.test("a second whole release has the same bytes, except for records of the build"):
        run(release, "--out", folder / "again")
        sums = [{name: digest for digest, name in map(str.split, (place / "SHA256SUMS").read_text().splitlines())}
                for place in (out, folder / "again")]
        other = {name for name in sums[0].keys() | sums[1].keys() if sums[0].get(name) != sums[1].get(name)}
        expect(not [name for name in other if not re.search(r"\.(?:buildinfo|changes)$", name)], other)


def main():
    source, tap = pathlib.Path(sys.argv[1]), Tap()
    if subprocess.run(["git", "-C", source, "rev-parse"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                      check=False).returncode if shutil.which("git") else True:
        tap.skip_all(f"no git, or {source} is not a git checkout")
    with scratch() as folder:
        repository = folder / "libamp"
        repository.mkdir()
        if "--full" in sys.argv:
            snapshot(source, repository)
            test_whole(tap, folder, repository)
        else:
            snapshot(source, repository, "tools", "debian", "meson.build", "NEWS", "CITATION.cff")
            env = machine(folder / "bin")
            test_requests(tap, repository, folder, env)
            test_folders(tap, repository, folder, env)
            test_source(tap, folder, repository, env)
            test_sbom(tap, folder, repository)
            test_versions(tap, folder, repository, env)
    tap.done()


if __name__ == "__main__":
    main()
