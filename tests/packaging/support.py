# SPDX-License-Identifier: Apache-2.0
"""What the packaging tests share: TAP, commands whose output is shown when they fail, scratch copies of the tree.

Tests of the packaging configure, build and test libamp in scratch folders. AMP_TEST_NESTED marks those inner runs, in
which the packaging tests skip themselves.
"""
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


class Failed(Exception):
    """A command did not do what it had to; the text is what it printed."""


class Tap:
    """with tap.test("what"): ... is one point; an exception in it is its failure."""

    def __init__(self):
        self.number = 0
        if os.environ.get("AMP_TEST_NESTED"):
            self.skip_all("inside another packaging test")

    def skip_all(self, reason):
        print(f"1..0 # SKIP {reason}")
        sys.exit(0)

    @contextlib.contextmanager
    def test(self, what):
        self.number += 1
        try:
            yield
        except Exception as error:  # pylint: disable=broad-except
            print(f"not ok {self.number} - {what}")
            for line in f"{type(error).__name__}: {error}".splitlines()[-60:]:
                print(f"# {line}")
        else:
            print(f"ok {self.number} - {what}")
        sys.stdout.flush()

    def skip(self, what, reason):
        self.number += 1
        print(f"ok {self.number} - {what} # SKIP {reason}")

    def done(self):
        print(f"1..{self.number}")


def run(*command, status=0, **options):
    """Runs to the status wanted (None: any but 0) and returns what was printed."""
    env = {**os.environ, "AMP_TEST_NESTED": "1", **options.pop("env", {})}
    result = subprocess.run([str(word) for word in command], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, errors="replace", check=False, **options)
    if (result.returncode == 0) if status is None else (result.returncode != status):
        wanted = "any but 0" if status is None else status
        raise Failed(f"{' '.join(map(str, command))}: status {result.returncode}, wanted {wanted}\n{result.stdout}")
    return result.stdout


def expect(condition, message):
    if not condition:
        raise Failed(message)


@contextlib.contextmanager
def scratch():
    with tempfile.TemporaryDirectory(prefix="amp-packaging-") as folder:
        yield pathlib.Path(folder)


def compiler():
    return (os.environ.get("CC") or "cc").split()


# Inner builds prove that things fit together, not that they are fast.
QUICK = ["--buildtype=debug", "-Doptimization=0"]


def setup(build, source, *arguments, status=0, env=None):
    return run("meson", "setup", build, source, *arguments, status=status, env=env or {})


def snapshot(source, to, *only):
    """The working tree as it is (tracked and new files, not ignored ones) as a git repository with one commit. `only`
    these files and folders, if any are given."""
    names = run("git", "-C", source, "ls-files", "-z", "--cached", "--others", "--exclude-standard", *only).split("\0")
    for name in filter(None, names):
        file = pathlib.Path(source) / name
        if file.is_symlink() or file.is_file():  # not deleted
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, to / name, follow_symlinks=False)
    run("git", "-C", to, "init", "-q")
    run("git", "-C", to, "add", "--all")
    run("git", "-C", to, "-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false",
        "commit", "-q", "-m", "snapshot")
