# SPDX-License-Identifier: Apache-2.0
version: str

class Error(RuntimeError):
    status: int
    status_name: str

class ArgumentError(Error, ValueError): ...
class FileError(Error, OSError): ...
