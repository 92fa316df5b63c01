#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/demo and tools/test in a scratch tree with a project of a few lines, and on machines that lack something:
test_tools.py SOURCE

A "machine" is a PATH of links to this machine's programs, less some, plus fakes of apt-get, sudo and id. Where dpkg can
say what a bare Debian has, it has no others.
"""
import contextlib
import json
import os
import pathlib
import shutil
import sys
import zipfile

from support import Tap, expect, run, scratch
from test_bare import bare_path

MANAGERS = {"apt-get", "dnf", "pacman", "zypper", "apk", "sudo"}

PROJECT = """
project('mini', 'c', meson_version: '>=1.0')
if get_option('examples').enabled()
  subdir('demo')
endif
if get_option('tests').enabled()
  sh = find_program('sh')
  test('plain', sh, args: ['-c', 'echo fine'], suite: 'unit')
  test('missing', sh, args: ['-c', 'echo no device here; exit 77'], suite: 'gpu')
  test('points', sh, args: ['-c', 'echo 1..3; echo ok 1 - a; echo ok 2 - b; echo "ok 3 - c # SKIP no c"'],
    suite: 'unit', protocol: 'tap')
  test('broken', sh, args: ['-c', 'echo 1..2; echo ok 1 - a; echo not ok 2 - b; exit 1'],
    suite: 'broken', protocol: 'tap')
  test('crash', sh, args: ['-c', 'echo 1..2; echo ok 1 - a; kill -SEGV $$'], suite: 'crash', protocol: 'tap')
  test('empty', sh, args: ['-c', 'echo 1..0'], suite: 'empty', protocol: 'tap')
  test('long', sh, args: ['-c', 'exit 1'], suite: 'slow')
endif
"""
OPTIONS = """option('tests', type: 'feature')
option('examples', type: 'feature')
option('cuda', type: 'feature')
option('gpu_archs', type: 'array')
option('darknet_root', type: 'string')
option('ggml_root', type: 'string')
"""
REPORT = ("def main():\n    import sys\n"
          "    file = sys.argv[sys.argv.index('-o') + 1]\n"
          "    open(file, 'w').write('a line of the report\\n' * 190)\n"
          "    print(f'{file}: 1 training', file=sys.stderr)\n")
TRAIN = """#include <stdio.h>
int main(int c, char **v) { for (int i = 1; i < c; i++) puts(v[i]); return c == 5 ? 3 : 0; }
"""


def answers(program, *words):
    """A fake of `program` that succeeds at once where an argument is one of `words`, and is the real one otherwise."""
    real = shutil.which(program)
    otherwise = f'exec {real} "$@"' if real else "exit 127"
    return "".join(f'case " $* " in *" {word} "*) exit 0 ;; esac\n' for word in words) + otherwise


# All that tools/test would like to have, whatever this machine has: nothing is left to be installed.
EQUIPPED = {
    **{program: "exit 0" for program in ("cmake", "make", "doxygen", "abidiff", "git", "valgrind", "mpirun",
                                         "qemu-x86_64", "qemu-aarch64", "aarch64-linux-gnu-gcc", "g++", "rustc",
                                         "gfortran", "musl-gcc")},
    "gcc": answers("gcc", "-fsyntax-only"), "pkg-config": answers("pkg-config", "ompi-c"),
    "python3": 'case "$*" in "-c import pip" | "-c import pycparser" | "-c import jsonschema") exit 0 ;; esac\n'
               f'exec {sys.executable} "$@"',
}


class Machine:
    """A PATH without `without`, with all that tools/test would like to have, where `fakes` (name: shell text) stand
    in."""

    def __init__(self, folder, without=(), fakes=None, environment=None):
        self.folder = folder
        folder.mkdir()
        for entry in [pathlib.Path(sys.executable).parent, *map(pathlib.Path, os.environ["PATH"].split(os.pathsep))]:
            for program in entry.iterdir() if entry.is_dir() else ():
                link = folder / program.name
                if program.name not in MANAGERS | set(without) and not link.is_symlink():
                    link.symlink_to(program.resolve() if program.name.startswith("python3") else program)
        self.log = folder / "installed.log"
        self.log.touch()
        for name, text in {**EQUIPPED, **(fakes or {})}.items():
            if name in without:
                continue
            (folder / name).unlink(missing_ok=True)
            (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >>"{self.log}"\n{text}\n', encoding="utf-8")
            (folder / name).chmod(0o755)
        self.environment = {"PATH": str(folder), **(environment or {})}

    def run(self, *command, **options):
        return run(*command, env={**self.environment, **options.pop("env", {})}, **options)

    def calls(self):
        return self.log.read_text(encoding="utf-8")


ROOT, USER = {"id": "echo 0"}, {"id": "echo 1000"}
FAILING = "echo no network; exit 100"


def last_line(output):
    return output.rstrip("\n").rsplit("\n", 1)[-1]


def mini_tree(source, root):
    """The commands themselves, in a folder with a space in its name, around a project that is built in a second."""
    shutil.copytree(source / "tools", root / "tools")
    (root / "demo").mkdir()
    (root / "meson.build").write_text(PROJECT, encoding="utf-8")
    (root / "meson_options.txt").write_text(OPTIONS, encoding="utf-8")
    (root / "demo" / "meson.build").write_text("executable('train', 'train.c')\n", encoding="utf-8")
    (root / "demo" / "train.c").write_text(TRAIN, encoding="utf-8")
    (root / "include").mkdir()
    for name in ("demo/options.c", "include/amp.h"):  # whose tables tools/demo reads
        shutil.copy(source / name, root / name)
    report = root / "bindings" / "python" / "libamp" / "_report"
    report.mkdir(parents=True)
    (report / "program.py").write_text(REPORT, encoding="utf-8")
    darknet = root / "build" / "darknet" / "usr" / "lib" / "darknet" / "include"  # unpacked there already
    darknet.mkdir(parents=True)
    (darknet / "darknet.h").touch()
    ggml = root / "build" / "ggml" / "lib" / "src"  # and built
    ggml.mkdir(parents=True)
    (ggml / "libggml.a").touch()
    return root / "tools" / "demo", root / "tools" / "test"


def test_missing(tap, folder, commands):
    """Status 2 and the exact command, whatever it is that prevents the installation."""
    cases = [
        ("apt-get fails", {**ROOT, "apt-get": FAILING}, "\n    apt-get update && apt-get install -y "),
        ("no root and no sudo", {**USER, "apt-get": "exit 0"}, "\n    sudo apt-get update && sudo apt-get install -y "),
        ("sudo fails", {**USER, "apt-get": "exit 0", "sudo": FAILING}, "\n    sudo apt-get update && sudo apt-get"),
        ("apt-get has nothing new", {**ROOT, "apt-get": "exit 0"}, "missing or too old"),
        ("no package manager", ROOT, "no package manager"),
        ("dnf fails", {**ROOT, "dnf": FAILING}, "\n    dnf install -y meson"),
    ]
    for number, (what, fakes, wanted) in enumerate(cases):
        machine = Machine(folder / f"machine-{number}", ["meson"], fakes)
        for command in commands:
            with tap.test(f"tools/{command.name} without meson where {what}: status 2 and the command"):
                said = machine.run(command, status=2)
                expect("missing: meson >= 1.0.1" in said and wanted in said, said)
                expect(any(line.startswith("    ") and line.endswith(" meson") for line in said.splitlines()), said)
        if "sudo" not in fakes and fakes["id"] == USER["id"]:
            with tap.test(f"nothing was tried where {what}"):
                expect("apt-get" not in machine.calls(), machine.calls())

    with tap.test("an older meson counts as missing"):
        machine = Machine(folder / "old", ["meson"], {**ROOT, "meson": "echo 0.56.2", "apt-get": FAILING})
        expect("missing: meson >= 1.0.1" in machine.run(commands[0], status=2), "it was taken")
    with tap.test("a CC that does not work is named, and nothing is installed"):
        machine = Machine(folder / "compiler", [], {**ROOT, "apt-get": FAILING}, {"CC": "no-such-compiler"})
        expect("no-such-compiler" in machine.run(commands[0], status=2), "CC is not named")
        expect("apt-get" not in machine.calls(), machine.calls())


def test_installs(tap, folder, test):
    real = shutil.which("meson")
    machine = Machine(folder / "fresh", ["meson"], {
        **ROOT, "apt-get": f'case " $* " in *" meson"*) ln -s "{real}" "{folder}/fresh/meson" ;; esac'})
    with tap.test("tools/test installs what is missing, once, and says so"):
        said = machine.run(test, "--suite", "unit")
        expect("tools/test: installing: meson\n" in said, said)
        expect(machine.calls().count("install -y") == 1 and machine.calls().count("update") == 1, machine.calls())
        machine.run(test, "--suite", "unit")
        expect(machine.calls().count("install -y") == 1, machine.calls())


def test_wants(tap, folder, test):
    """What is optional is asked for together; where that fails one by one, and what cannot be had is named."""
    without = ["doxygen", "abidiff"]
    machine = Machine(folder / "wanting", without, {
        **ROOT, "apt-get": f'abidiff="{folder}/wanting/abidiff"; case " $* " in *" doxygen "*) exit 100 ;; '
                           '*" abigail-tools "*) echo "#!/bin/sh" >"$abidiff"; chmod +x "$abidiff" ;; esac'})
    with tap.test("tools/test goes on without what cannot be had, and names that alone"):
        said = machine.run(test, "--suite", "unit")
        expect("going on without doxygen" in said and "without abidiff" not in said, said)
    with tap.test("the lists of packages are fetched once"):
        expect(machine.calls().count(" update\n") == 1, machine.calls())
        expect(machine.calls().count("install -y") == 3, machine.calls())


def test_cmake(tap, folder, test):
    machine = Machine(folder / "makeless", ["make"], {**ROOT, "apt-get": FAILING})
    with tap.test("CMake without make counts as missing, and both are asked for"):
        said = machine.run(test, "--suite", "unit")
        expect("going on without CMake and make" in said and "install -y --no-install-recommends cmake make\n" in
               machine.calls(), said)


def test_bare_root(tap, folder, root, test):
    machine = Machine(folder / "user", [], {**USER, "apt-get": FAILING})
    with tap.test("tools/test --bare is a skip with its reason where nobody is root"):
        said = machine.run(test, "--bare")
        expect("skipped bare: it needs root" in said and last_line(said) == "0 passed, 0 failed, 1 skipped", said)
        expect("apt-get" not in machine.calls(), machine.calls())
    with tap.test("the bare root has nothing of the environment but the way to the network"):
        script = ('me=test; for part in setup python bare; do . "$root/tools/$part.sh"; done; '
                  'bare_settings; bare_network env')
        fakes = {"apt-get": "echo 'bookworm main http://mirror.example/debian/'",
                 "apt-config": "echo \"proxy='http://apt:1'\""}
        given = {"PYTHONPATH": "/x", "PIP_INDEX_URL": "http://x", "AMP_LEVEL": "O1", "CFLAGS": "-O1", "CC": "cc",
                 "HOME": "/home/x", "no_proxy": "here", "root": str(root)}
        said = Machine(folder / "networked", [], fakes, given).run("sh", "-c", script)
        expect(sorted(said.split()) == ["HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "http_proxy=http://apt:1",
                                        "no_proxy=here"], said)
    with tap.test("and apt's mirror is this machine's"):
        said = Machine(folder / "mirrored", [], fakes, given).run("sh", "-c",
                                                                  script.replace("bare_network env", 'echo "$mirror"'))
        expect(said == "http://mirror.example/debian\n", said)


def test_counts(tap, machine, test, elsewhere):
    for arguments, status, wanted in (
            (["--suite", "unit"], 0, "3 passed, 0 failed, 1 skipped"),
            (["--suite", "gpu"], 0, "0 passed, 0 failed, 1 skipped"),
            (["--suite=unit", "--suite=gpu", "--jobs=1"], 0, "3 passed, 0 failed, 2 skipped"),
            (["--suite", "broken"], 1, "1 passed, 1 failed, 0 skipped"),
            (["--suite", "crash"], 1, "1 passed, 1 failed, 0 skipped"),
            (["--suite", "empty"], 1, "0 passed, 1 failed, 0 skipped"),
            (["--suite", "slow"], 1, "0 passed, 1 failed, 0 skipped"),
            (["--suite", "nonesuch"], 1, "0 passed, 0 failed, 0 skipped"),
            ([], 1, "5 passed, 3 failed, 2 skipped"),
            (["--slow"], 1, "5 passed, 4 failed, 2 skipped")):
        with tap.test(f"tools/test {' '.join(arguments)}: {wanted}"):
            said = machine.run(test, *arguments, status=status, cwd=elsewhere)
            expect(last_line(said) == wanted and said.count("passed, ") >= 2, said)
    with tap.test("tools/test shows the reasons of skips and the names of failures"):
        said = machine.run(test, status=1, cwd=elsewhere)
        for wanted in ("skipped missing: no device here", "skipped points: c: no c", "FAILED  broken: b",
                       "FAILED  empty: it tested nothing", "FAILED  crash: "):
            expect(wanted in said, f"no '{wanted}' in:\n{said}")
    with tap.test("nothing was installed for that"):
        expect("apt-get" not in machine.calls(), machine.calls())


def test_skips(tap, machine, root, test):
    """A skip that the list does not allow is a failure, and so is a row of the list that allowed nothing."""
    listed = root / "tests" / "skips.txt"
    listed.parent.mkdir()
    wanted = "FAILED  points: c: a skip that tests/skips.txt does not allow: no c"
    for what, rows, status in (
            ("a planted skip", "file:/ | other: no device", 1),
            ("one that the list allows", "# c\nfile:/ | points: c: no *\n", 0),
            ("a row for other reasons", "file:/ | points: c: no d", 1),
            ("a row that does not hold", "gpu !gpu | *: *", 1),
            ("a row for another stage", "stage:test-gcc | points: c: no c", 1),
            ("a row for this stage and machine", "stage:test !program:nonesuch | points: c: no c", 0)):
        with tap.test(f"tools/test --skips, {what}: status {status}"):
            with edited(listed, rows):
                said = machine.run(test, "--skips", "--suite", "unit", status=status)
            expect((wanted in said) == bool(status) and ("skipped points: c: no c" in said) != bool(status), said)
            expect(last_line(said) == f"3 passed, {status} failed, {1 - status} skipped", said)
    with tap.test("of a Python file that is skipped whole the reason counts"):
        with edited(listed, "file:/ | test_b::gpu: no GPU *\nfile:/ | ::test_c: no torch\nfile:/ | ::test_d: never\n"):
            said = run(sys.executable, root / "tools" / "count_tests.py", "--junit", root.parent / "junit.xml", listed,
                       "any")
        expect(last_line(said) == "1 2 2" and "skipped ::test_c: no torch" in said, said)
    with tap.test("a row that allowed nothing where it held is named"):
        said = run(sys.executable, root / "tools" / "skips.py", "idle", status=1)
        expect(said.count("FAILED") == 1 and f"{listed}:3: ::test_d: never" in said, said)
    for rows, wanted in (("points: c: no c", "a row is"), ("| points: c: no c", "a row is"),
                         ("gqu | a: b", "there is no condition 'gqu'")):
        with tap.test(f"'{rows}' is refused"):
            with edited(listed, rows):
                said = machine.run(test, "--skips", "--suite", "unit", status=1)
            expect(wanted in said and f"{listed}:1: " in said, said)


def test_options(tap, machine, test):
    for arguments in (["--bogus"], ["stray"], ["--jobs"], ["--jobs", "0"], ["--jobs=many"], ["--suite"], ["--suite=;"],
                      ["--python", "--suite", "unit"]):
        with tap.test(f"tools/test {' '.join(arguments)} is refused with the list"):
            expect("--strict" in machine.run(test, *arguments, status=2), "no list")
    with tap.test("tools/test --help"):
        expect("--strict" in machine.run(test, "--help"), "no list")


def test_broken_build(tap, machine, root, test):
    with tap.test("a tree that does not build is a failure, and the last line says so"):
        with edited(root / "demo" / "train.c", "#error on purpose\n"):
            said = machine.run(test, status=1)
        expect(last_line(said) == "0 passed, 1 failed, 0 skipped" and "on purpose" in said, said)
    with tap.test("and is one no more when mended"):
        machine.run(test, "--suite", "unit")


JUNIT = """<?xml version="1.0"?><testsuites><testsuite name="pytest">
<testcase classname="test_a" name="fine"/>
<testcase classname="test_a" name="bad"><failure message="assert 1 == 2">line of the test</failure></testcase>
<testcase classname="test_b" name="broken"><error message="no fixture"/></testcase>
<testcase classname="test_b" name="gpu"><skipped message="no GPU here"/></testcase>
<testcase classname="" name="test_c"><skipped message="collection skipped">('c.py', 19, 'Skipped: no torch')</skipped>
</testcase>
</testsuite></testsuites>
"""


def test_python(tap, folder, root, test):
    """What tools/test --python needs and cannot have, it says, with status 2."""
    cache = {"AMP_PYTHON_CACHE": str(folder / "cache"), "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
             "PIP_RETRIES": "0", "PIP_EXTRA_INDEX_URL": "", "PIP_NO_CACHE_DIR": "1"}
    disks = {name: f"echo Filesystem; echo disk 1 1 {gigabytes << 20} 1% /"
             for name, gigabytes in (("full", 7), ("free", 99))}
    old = {"oldpython": "case $* in *version_info*) echo 3.9 ;; *) exit 1 ;; esac"}
    # Pythons that have no PyTorch and make environments without a network, or none at all, whatever this machine's
    # does.
    without = f"case $* in *torch*) exit 1 ;; '-m pip'*) echo no route; exit 1 ;; esac\nexec {sys.executable} \"$@\""
    made = """mkdir -p "$3/bin"; ln -s "$0" "$3/bin/python"; exit"""
    bare = {"barepython": f"case $* in '-m venv'*) {made} ;; esac\n{without}"}
    novenv = {"barepython": f"case $* in '-m venv'*) echo ensurepip is not available; exit 1 ;; esac\n{without}"}
    for name, what, fakes, environment, wanted in (
            ("disk", "a full disk", {**bare, "df": disks["full"]}, {"AMP_PYTHON": "barepython"},
             "needs 8 GB and there are 7"),
            ("network", "no network", {**bare, "df": disks["free"]}, {"AMP_PYTHON": "barepython"},
             "is there a network?"),
            ("venv", "a Python without venv", {**novenv, "df": disks["free"]}, {"AMP_PYTHON": "barepython"},
             "no virtual environment could be made"),
            ("old", "an old Python", old, {"AMP_PYTHON": "oldpython"}, "3.10 or later is needed"),
            ("none", "a Python that is not there", {}, {"AMP_PYTHON": "no-such-python"},
             "'no-such-python' does not run")):
        machine = Machine(folder / f"python-{name}", [], {**ROOT, **fakes}, {**cache, **environment})
        with tap.test(f"tools/test --python with {what}: status 2 and why"):
            expect(wanted in machine.run(test, "--python", status=2), "it does not say so")
        with tap.test(f"and nothing half made is left after {what}"):
            expect(not list((folder / "cache").glob("newest-*")), "an environment is left")
    with tap.test("pytest's results are counted like Meson's"):
        (folder / "junit.xml").write_text(JUNIT, encoding="utf-8")
        said = run(sys.executable, root / "tools" / "count_tests.py", "--junit", folder / "junit.xml")
        expect(last_line(said) == "1 2 2" and "skipped test_b::gpu: no GPU here" in said, said)
        expect("FAILED  test_a::bad: assert 1 == 2" in said and "line of the test" in said, said)
    with tap.test("two of Meson's tests may have one name"):
        build = folder / "one-name"
        (build / "meson-info").mkdir(parents=True)
        (build / "meson-logs").mkdir()
        both = [{"name": "same", "suite": [f"libamp:{suite}", "libamp:core"], "protocol": protocol}
                for suite, protocol in (("lint", "exitcode"), ("loop", "tap"))]
        (build / "meson-info" / "intro-tests.json").write_text(json.dumps(both), encoding="utf-8")
        logged = [{"name": f"libamp:{suite}+core / same", "result": "OK", "returncode": 0, "stdout": out}
                  for suite, out in (("lint", ""), ("loop", "1..2\nok 1 - a\nok 2 - b\n"))]
        (build / "meson-logs" / "testlog.json").write_text("\n".join(map(json.dumps, logged)), encoding="utf-8")
        said = run(sys.executable, root / "tools" / "count_tests.py", build)
        expect(last_line(said) == "3 0 0", said)


INSTALL = """set -eu
say() { echo "$@"; }
logged() { shift; "$@"; }
. "$tools/python.sh"
python_build() { wheel_dir=$1; } # it is there
venv=$shared
for clone in first second; do
    python_wheel "$work/$clone"
    echo "$own" >"$work/$clone/own"
done
"""


def tiny_wheel(folder, name, value):
    """A wheel of one module."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-1.dist-info"
    files = {f"{name}.py": f"value = {value!r}\n",
             f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
             f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]))


def test_clones(tap, folder, source):
    """Two clones with one folder of environments: each tests its own package, beside the packages of others there."""
    shared, work = folder / "cache" / "shared", folder / "clones"
    run(sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", shared)
    python = shared / "bin" / "python"
    if run(python, "-c", "import importlib.util; print(importlib.util.find_spec('pip') is not None)").strip() != "True":
        tap.skip("the package of each clone", "there is no pip")
        return
    packages = pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (folder / "elsewhere-torch").mkdir()
    (folder / "elsewhere-torch" / "torch.py").write_text("value = 'theirs'\n", encoding="utf-8")
    (packages / "torch.pth").write_text(f"{folder}/elsewhere-torch\n", encoding="utf-8")  # as tools/python.sh leaves it
    (packages / "libamp.py").write_text("value = 'of an older tools/test'\n", encoding="utf-8")
    for clone in ("first", "second"):
        tiny_wheel(work / clone, "libamp", clone)
    before = sorted(packages.rglob("*"))
    (work / "install").write_text(INSTALL, encoding="utf-8")
    with tap.test("tools/test --python in two clones: each has its own package and PyTorch"):
        run("sh", work / "install", env={"tools": str(source / "tools"), "root": str(source), "work": str(work),
                                         "shared": str(shared)})
        for clone in ("first", "second"):
            own = (work / clone / "own").read_text(encoding="utf-8").strip()
            said = run(f"{own}/bin/python", "-c", "import libamp, torch; print(libamp.value, torch.value)", cwd=folder)
            expect(said == f"{clone} theirs\n", said)
    with tap.test("nothing is installed into the environment of both"):
        expect([path for path in sorted(packages.rglob("*")) if "__pycache__" not in path.parts] == before, "it is")


@contextlib.contextmanager
def edited(file, text):
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    file.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(before, encoding="utf-8")


def test_demo(tap, folder, machine, root, demo, elsewhere):
    for what in ("builds and runs from another folder", "runs a second time"):
        with tap.test(f"tools/demo {what}"):
            said = machine.run(demo, "--level", "O1", status=3, cwd=elsewhere)
            expect(said.splitlines()[-4:] == ["--output", str(root / "build" / "demo"), "--level", "O1"], said)
    with tap.test("tools/demo compiles nothing for GPUs; where there is one, for that alone, and in another folder"):
        stamp = "build/{}/.configured-with"
        expect("-Dcuda=disabled" in (root / stamp.format("demo")).read_text(encoding="utf-8"), "CUDA is not left out")
        gpu = Machine(folder / "gpu", [], {**ROOT, "nvidia-smi": "printf '9.0\\n9.0\\n'"})
        gpu.run(demo, "--device", "cuda", status=3)
        expect("-Dgpu_archs=90\n" in (root / stamp.format("demo-cuda")).read_text(encoding="utf-8"), "not for that GPU")
        none = Machine(folder / "gpuless", [], {**ROOT, "nvidia-smi": "echo has failed; exit 9"})
        expect("nvidia-smi shows no NVIDIA GPU" in none.run(demo, "--device", "cuda", status=3), "it does not say so")
    with tap.test("tools/demo leaves a report, and the table stays on the screen"):
        said = Machine(folder / "reporting", [], {**ROOT, "apt-get": FAILING}).run(demo)
        expect(len(said.splitlines()) < 20, said)
        expect("build/demo/report.html: " in said.splitlines()[-1], said)
        made = (root / "build" / "demo" / "report.html").read_text(encoding="utf-8")
        expect(made.count("a line of the report") == 190, "it is no report")
    with tap.test("tools/demo refuses before it builds"):
        for arguments, words in ((["--level", "O1,O9"], "'O9'"), (["--level=x"], "'x'"), (["--frob", "1"], "'--frob'"),
                                 (["--level"], "--level needs a value")):
            refusing = Machine(folder / f"refusing{arguments[-1]}", ["ninja", "meson"], ROOT)
            said = refusing.run(demo, *arguments, status=2)
            expect(words in last_line(said) and "building" not in said, said)
    with tap.test("tools/demo --help is the program's"):
        expect(last_line(machine.run(demo, "--help", cwd=elsewhere)) == "--help", "it did not reach the program")


def main():
    source, tap = pathlib.Path(sys.argv[1]), Tap()
    with scratch() as folder:
        root, elsewhere = folder / "a tree", folder / "elsewhere"
        root.mkdir()
        elsewhere.mkdir()
        if shutil.which("dpkg-query"):
            os.environ["PATH"] = str(bare_path(source, folder / "bare"))
        demo, test = mini_tree(source, root)
        machine = Machine(folder / "complete", [], {**ROOT, "apt-get": FAILING})
        test_missing(tap, folder, (demo, test))
        test_installs(tap, folder, test)
        test_wants(tap, folder, test)
        test_cmake(tap, folder, test)
        test_bare_root(tap, folder, root, test)
        test_python(tap, folder, root, test)
        test_clones(tap, folder, source)
        test_options(tap, machine, test)
        test_counts(tap, machine, test, elsewhere)
        test_skips(tap, machine, root, test)
        test_broken_build(tap, machine, root, test)
        test_demo(tap, folder, machine, root, demo, elsewhere)
    tap.done()


if __name__ == "__main__":
    main()
