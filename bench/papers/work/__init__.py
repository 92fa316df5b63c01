# SPDX-License-Identifier: Apache-2.0
"""Measurements that need torch, for figures of the same names. They use the models and tools of bench/python."""
import pathlib
import sys

PYTHON = pathlib.Path(__file__).resolve().parents[2] / "python"
if str(PYTHON) not in sys.path:
    sys.path.insert(0, str(PYTHON))
