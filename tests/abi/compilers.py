# SPDX-License-Identifier: Apache-2.0
"""The compilers that this machine has, for the tests of the headers."""
import os
import shutil
import subprocess


def compiles(compiler, language, arguments, program):
    """None, or what the compiler said."""
    result = subprocess.run([*compiler, "-x", language, *arguments, "-fsyntax-only", "-"], input=program, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return None if result.returncode == 0 else result.stdout or f"exit status {result.returncode}"


def mpi_arguments():
    """Where Open MPI's mpi.h is, for amp_mpi.h; None: nowhere."""
    if not shutil.which("pkg-config"):
        return None
    result = subprocess.run(["pkg-config", "--cflags-only-I", "ompi-c"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True, check=False)
    return None if result.returncode else [flag.replace("-I", "-isystem", 1) for flag in result.stdout.split()]


def find(language, candidates):
    """Each that works, with its library's headers, and is not another's second name: {version line: command}."""
    include = "#include <cstddef>\n" if language == "c++" else "#include <stddef.h>\n"
    found = {}
    for command in candidates:
        if shutil.which(command[0]) and compiles(command, language, [], include) is None:
            version = subprocess.run([*command, "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout
            found.setdefault(version.splitlines()[0].partition(" ")[2], command)
    return list(found.values())


def c_compilers(own):
    """The build's own first."""
    return find("c", [own, ["gcc"], ["clang"]])


def cxx_compilers():
    return find("c++", [name.split() for name in (os.environ.get("CXX"), "g++", "clang++", "c++") if name])
