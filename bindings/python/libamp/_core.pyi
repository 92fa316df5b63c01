# SPDX-License-Identifier: Apache-2.0
from types import ModuleType

version: str
kernels: ModuleType

class Error(RuntimeError):
    status: int
    status_name: str

class ArgumentError(Error, ValueError): ...
class FileError(Error, OSError): ...
