# SPDX-License-Identifier: Apache-2.0
"""The package as it is installed: its version, and what importing it does not do."""
import pathlib
import subprocess
import sys

import libamp


def test_version_is_the_librarys():
    header = pathlib.Path(__file__).parents[3] / "include" / "amp.h"
    parts = [line.split()[2] for line in header.read_text().splitlines() if line.startswith("#define AMP_VERSION_")]
    assert libamp.__version__ == ".".join(parts)


def test_import_brings_no_torch_and_no_numpy():
    code = "import sys, libamp; sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_errors_are_what_python_users_catch():
    assert issubclass(libamp.Error, RuntimeError)
    assert issubclass(libamp.ArgumentError, (libamp.Error, ValueError))
    assert issubclass(libamp.FileError, libamp.Error) and issubclass(libamp.FileError, OSError)
