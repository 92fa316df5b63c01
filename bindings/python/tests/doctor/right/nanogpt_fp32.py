# SPDX-License-Identifier: Apache-2.0
"""The same in FP32, with a scaler that is switched off."""
import pathlib
import runpy

runpy.run_path(str(pathlib.Path(__file__).with_name("nanogpt.py")), {"DTYPE": "float32"}, "__main__")
