# SPDX-License-Identifier: Apache-2.0
"""What the tests share. They test the libamp that is installed, wherever they lie."""
import sys

import pytest


def pytest_runtest_makereport(item, call):
    """torch before 2.1 computes little in half on the CPU; what it refuses there says nothing about libamp."""
    torch = sys.modules.get("torch")
    lacks_half = torch is not None and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 1)
    if lacks_half and call.excinfo is not None and "not implemented for 'Half'" in str(call.excinfo.value):
        try:
            pytest.skip(f"torch {torch.__version__}: {str(call.excinfo.value).splitlines()[0]}")
        except pytest.skip.Exception:
            call.excinfo = pytest.ExceptionInfo.from_current()
