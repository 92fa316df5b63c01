#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The loader of backends: test_loader.py PROBE LIBAMP STATIC FAKE... Prints TAP. STATIC is a program with libamp.a.

Each case is a process of its own, since a backend is tried once in a process: a folder with a copy of libamp.so, fakes
under the name of a backend in this folder or that, an environment, a working directory. The probe says what came of it.
A FAKE is the file libamp_fake_<what>.so.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

NOT_TRIED, READY, NOT_FOUND, CANNOT_LOAD, NO_DEVICE = range(5)
OK, UNSUPPORTED, NOT_KNOWN, BACKEND, NO_DEVICE_STATUS = 0, -5, -9, -16, -19
MARK, PRODUCT = "1001", "64"  # of a fake that was started once; of the built-in code
PLUGIN = "libamp_onednn.so"


class Rig:
    def __init__(self, probe, library, static, fakes):
        self.probe, self.library, self.static = probe, library, static
        self.fakes = {re.fullmatch(r"libamp_fake_(\w+)\.so", pathlib.Path(fake).name).group(1): fake for fake in fakes}

    def __enter__(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.temporary.name)
        for folder in ("lib/libamp", "path", "other", "cwd/sub"):
            (self.root / folder).mkdir(parents=True)
        shutil.copy(self.library, self.root / "lib" / "libamp.so")
        return self

    def __exit__(self, *unused):
        self.temporary.cleanup()

    def put(self, fake, folder):
        target = self.root / folder / PLUGIN
        if fake in self.fakes:
            shutil.copy(self.fakes[fake], target)
        elif isinstance(fake, bytes):
            target.write_bytes(fake)
        elif fake == "folder":
            target.mkdir()
        elif fake == "pipe":
            os.mkfifo(target)
        elif fake == "dangling":
            target.symlink_to("nowhere")
        else:
            raise KeyError(fake)

    def run(self, how="load", path=None, library=None, matmul=None):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AMP_") and k != "LD_LIBRARY_PATH"}
        if path is not None:
            environment["AMP_BACKEND_PATH"] = path
        if matmul is not None:
            environment["AMP_MATMUL_BACKEND"] = matmul
        done = subprocess.run([self.probe, library or str(self.root / "lib" / "libamp.so"), how], env=environment,
                              cwd=self.root / "cwd", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise AssertionError(f"the probe ended with {done.returncode}: {done.stderr}")
        if "LeakSanitizer" not in done.stderr and done.stderr.strip():
            raise AssertionError(f"libamp printed: {done.stderr}")
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    def folder(self, name):
        return str(self.root / name)


def expect(said, **wanted):
    for name, value in wanted.items():
        name = name.replace("__", ".")
        if said.get(name) != str(value):
            raise AssertionError(f"{name} is {said.get(name)!r}, not {str(value)!r}; all: {said}")


def expect_words(said, name, *words):
    """A list of words: one of them."""
    for word in words:
        if not any(each in said[name] for each in (word if isinstance(word, list) else [word])):
            raise AssertionError(f"{name} does not say {word!r}: {said[name]!r}")


def expect_builtin(said, state, status):
    """Unusable: libamp is as it was, and whoever asks for the backend by name hears why."""
    expect(said, load=status, again=status, after__onednn__state=state, auto__status=OK, auto__d=PRODUCT,
           builtin__d=PRODUCT, named__status=status, named__d=-1)
    expect_words(said, "load.error", "backend onednn: ")
    expect_words(said, "auto.explain", "built-in: ", "onednn")
    if said["named.error"] != said["load.error"]:
        raise AssertionError(f"two reasons: {said}")


def expect_fake(said, folder, version="fake 1"):
    expect(said, after__onednn__state=READY, after__onednn__version=version, auto__d=MARK, auto__explain="the fake",
           builtin__d=PRODUCT, named__d=MARK, named__status=OK, after__onednn__file=f"{folder}/{PLUGIN}")


# ---- cases

def beside_libamp(rig):
    rig.put("good", "lib")
    said = rig.run()
    expect(said, load=OK, again=OK, unknown=NOT_KNOWN, before__onednn__state=NOT_TRIED, after__cuda__state=NOT_TRIED)
    expect_fake(said, rig.folder("lib"))
    expect_words(said, "unknown.error", "nobody", "onednn", "cuda")


def in_a_folder_beside_libamp(rig):
    rig.put("good", "lib/libamp")
    expect_fake(rig.run(), rig.folder("lib/libamp"))
    rig.put("not_the_one", "lib")  # comes first
    expect_builtin(rig.run(), CANNOT_LOAD, BACKEND)


def on_the_path(rig):
    rig.put("good", "other")
    rig.put("not_the_one", "lib")  # later, so never opened
    said = rig.run(path=f"{rig.folder('path')}:{rig.folder('other')}/")
    expect_fake(said, rig.folder("other"))


def by_the_first_product(rig):
    rig.put("good", "lib")
    said = rig.run("lazy")
    expect(said, small__onednn__state=NOT_TRIED, small__d=4, lazy__d=MARK)
    expect_words(said, "small.explain", "built-in: 64 multiplications are fewer")
    expect_fake(said, rig.folder("lib"))


def once_by_many_threads(rig):
    rig.put("good", "lib")
    said = rig.run("threads")
    expect(said, threads__same=1, load=OK)
    expect_fake(said, rig.folder("lib"))


def nothing_there(rig):
    said = rig.run(path=rig.folder("path"))
    expect_builtin(said, NOT_FOUND, BACKEND)
    expect(said, after__onednn__file="")
    expect_words(said, "load.error", "libamp_onednn.so", "beside", rig.folder("lib"), "AMP_BACKEND_PATH")


def a_missing_backend_is_no_error_of_the_product(rig):
    rig.put("init_fails", "lib")
    said = rig.run("lazy")
    expect(said, lazy__d=PRODUCT, lazy__status=OK, after__onednn__state=CANNOT_LOAD)
    expect_words(said, "lazy.last", "nobody")


def first_file_decides(rig):
    rig.put(b"no library", "path")
    rig.put("good", "lib")
    expect_builtin(rig.run(path=rig.folder("path")), CANNOT_LOAD, BACKEND)


def unusable(fake, *words, state=CANNOT_LOAD, status=BACKEND):
    def case(rig):
        rig.put(fake, "lib")
        said = rig.run()
        expect_builtin(said, state, status)
        expect_words(said, "load.error", *words)
        if state != NOT_FOUND:
            expect_words(said, "load.error", rig.folder("lib") + "/" + PLUGIN)
    return case


def its_end_is_missing(rig):
    """However much of it: dlopen would die of SIGBUS at most of these lengths (glibc 2.36), and load the longest."""
    whole = pathlib.Path(rig.fakes["good"]).read_bytes()
    for length in (64, 1000, *range(4096, len(whole), 4096), len(whole) - 1):
        rig.put(whole[:length], "lib")
        said = rig.run()
        expect_builtin(said, CANNOT_LOAD, BACKEND)
        expect_words(said, "load.error", "cannot be loaded", "its end is missing")


def not_from_the_working_directory(rig):
    rig.put("good", "cwd")
    said = rig.run(path="")
    expect_builtin(said, NOT_FOUND, BACKEND)
    expect_builtin(rig.run(path="::"), NOT_FOUND, BACKEND)


def not_from_relative_folders(rig):
    rig.put("good", "cwd")
    rig.put("good", "cwd/sub")
    for path in (".", "sub", "./sub", "../cwd/sub", "."):
        said = rig.run(path=path)
        expect_builtin(said, NOT_FOUND, BACKEND)
        expect_words(said, "load.error", f"'{path}' is not an absolute folder")


def a_relative_folder_is_a_warning(rig):
    rig.put("good", "path")
    rig.put("good", "cwd/sub")
    said = rig.run(path=f"sub:{rig.folder('path')}")
    expect_fake(said, rig.folder("path"))
    expect_words(said, "after.onednn.text", "'sub' is not an absolute folder")


def not_beside_a_relative_libamp(rig):
    rig.put("good", "cwd")
    shutil.copy(rig.root / "lib" / "libamp.so", rig.root / "cwd" / "libamp.so")
    said = rig.run(library="./libamp.so")
    expect_builtin(said, NOT_FOUND, BACKEND)
    expect_words(said, "load.error", "relative path")


class Skip(Exception):
    pass


def run_static(path, trace, folder=None, **rights):
    env = {"AMP_TRACE": str(trace), **({"AMP_BACKEND_PATH": str(folder)} if folder else {})}
    done = subprocess.run([path], env=env, cwd="/", stdout=subprocess.PIPE, check=True, text=True,
                          **rights)
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def not_beside_a_privileged_program(rig):
    """A set-user-id program that somebody linked to a folder of his own, with a backend of his beside it."""
    rig.put("good", "other")
    program, link, trace = rig.root / "lib" / "program", rig.root / "other" / "link", rig.root / "other" / "trace"
    shutil.copy(rig.static, program)
    os.link(program, link)
    expect(run_static(link, trace), secure=0, load=OK, initialize=OK)
    trace.unlink()  # it was written
    if os.geteuid() != 0:
        raise Skip("not root, who alone can make a program of root's and run it as another")
    program.chmod(0o4755)
    for folder in (rig.root, rig.root / "other"):
        folder.chmod(0o755)
    said = run_static(link, trace, user=65534, group=65534, extra_groups=[])
    if said["secure"] == "0":
        raise Skip("the file system of temporary files honours no set-user-id bits")
    expect(said, load=BACKEND, initialize=OK)
    expect_words(said, "load.error", "more rights than its caller", "not searched")
    assert not trace.exists(), "the caller named a file, and root wrote it"
    said = run_static(link, trace, rig.root / "other", user=65534, group=65534, extra_groups=[])
    expect(said, load=BACKEND)
    expect_words(said, "load.error", "AMP_BACKEND_PATH is ignored")


def without_matmul(rig):
    rig.put("without", "lib")
    said = rig.run()
    expect(said, load=OK, after__onednn__state=READY, auto__d=PRODUCT, named__status=UNSUPPORTED, named__d=-1)


def a_product_that_it_cannot_do(rig):
    rig.put("cannot", "lib")
    said = rig.run()
    expect(said, load=OK, auto__status=OK, auto__d=PRODUCT, named__status=UNSUPPORTED, named__d=-1)
    expect_words(said, "named.error", "told not to multiply")


def a_product_that_fails(rig):
    rig.put("fails", "lib")
    said = rig.run()
    expect(said, load=OK, auto__status=BACKEND, named__status=BACKEND, builtin__d=PRODUCT)


def the_environment_chooses(rig):
    rig.put("good", "lib")
    said = rig.run("lazy", matmul="builtin")
    expect(said, lazy__d=PRODUCT, after__onednn__state=NOT_TRIED, auto__d=PRODUCT, named__d=MARK)
    expect_words(said, "auto.explain", "AMP_MATMUL_BACKEND")
    expect(rig.run("lazy", matmul="onednn"), small__d=MARK, auto__d=MARK, builtin__d=PRODUCT)
    expect(rig.run("lazy", matmul="nonsense"), small__d=4, auto__d=MARK)


CASES = [
    beside_libamp, in_a_folder_beside_libamp, on_the_path, by_the_first_product, once_by_many_threads, nothing_there,
    a_missing_backend_is_no_error_of_the_product, first_file_decides, not_from_the_working_directory,
    not_from_relative_folders, a_relative_folder_is_a_warning, not_beside_a_relative_libamp,
    not_beside_a_privileged_program,
    its_end_is_missing, without_matmul, a_product_that_it_cannot_do, a_product_that_fails,
    the_environment_chooses,
]
UNUSABLE = [
    (b"", "cannot be loaded"),
    (b"this is no library\n" * 100, "cannot be loaded", ["ELF", "Exec format error"]),  # glibc's words, musl's
    ("folder", "cannot be loaded", "no plain file"),
    ("pipe", "cannot be loaded", "no plain file"),
    ("dangling", "no libamp_onednn.so beside"),
    ("undefined", "a_function_that_nobody_has"),
    ("no_symbol", "no backend of libamp", "no function amp_backend"),
    ("no_table", "no backend of libamp"),
    ("foreign", "no backend of libamp", "mark"),
    ("too_old", "of another libamp", "speaks version"),
    ("too_new", "of another libamp", "speaks version"),
    ("not_the_one", "another backend"),
    ("init_fails", "the fake was told to fail"),
    ("no_device", "the fake was told to fail"),
]
SPECIAL = {"dangling": (NOT_FOUND, BACKEND), "no_device": (NO_DEVICE, NO_DEVICE_STATUS)}


def main():
    probe, library, static, *fakes = (os.path.abspath(path) for path in sys.argv[1:])
    cases = [(case.__name__, case) for case in CASES]
    for fake, *words in UNUSABLE:
        state, status = SPECIAL.get(fake, (CANNOT_LOAD, BACKEND))
        name = fake if isinstance(fake, str) else f"{len(fake)} bytes"
        cases.append((f"unusable: {name}", unusable(fake, *words, state=state, status=status)))
    print(f"1..{len(cases)}")
    for number, (name, case) in enumerate(cases, 1):
        try:
            with Rig(probe, library, static, fakes) as rig:
                case(rig)
            print(f"ok {number} - {name}")
        except Skip as why:
            print(f"ok {number} - {name} # SKIP {why}")
        except AssertionError as failure:
            print(f"not ok {number} - {name}")
            print("# " + str(failure).replace("\n", "\n# "))


if __name__ == "__main__":
    main()
