#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the libtorch of this interpreter's torch is: version, folder of its libraries, whether it was built with the
C++11 ABI (1 or 0), then its folders of headers; one a line."""
import pathlib

import torch
from torch.utils import cpp_extension

ROOT = pathlib.Path(torch.__file__).parent

if __name__ == "__main__":
    print(torch.__version__)
    print(ROOT / "lib")
    print(int(torch.compiled_with_cxx11_abi()))
    print("\n".join(path for path in cpp_extension.include_paths() if pathlib.Path(path).is_relative_to(ROOT)))
