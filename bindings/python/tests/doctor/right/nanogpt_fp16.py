# SPDX-License-Identifier: Apache-2.0
"""The same in fp16, where the scaler is switched on."""
import pathlib
import runpy

runpy.run_path(str(pathlib.Path(__file__).with_name("nanogpt.py")), {"DTYPE": "float16"}, "__main__")
