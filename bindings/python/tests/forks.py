# SPDX-License-Identifier: Apache-2.0
"""Programs in forks of one process that has imported PyTorch: of the seven seconds that a small script takes, five are
that import. For programs that find PyTorch imported and do not mind; what starting up does (test_run) is tested in
processes of its own. This file is that process, too."""

import atexit
import contextlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading

_server = None


def _start():
    global _server
    env = os.environ | {"OMP_NUM_THREADS": "1"}  # which an import reads
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    _server = subprocess.Popen([sys.executable, __file__], env=env, **pipes)
    atexit.register(_server.communicate)


def _rank(rank, ranks, port):
    """What torchrun puts into the environment."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    return dict(zip(names, map(str, (rank, rank, ranks, ranks, port)), strict=True)) | {"MASTER_ADDR": "127.0.0.1"}


def run(*args, cwd=None, env=None, ranks=1, whole=False):
    """As subprocess.run([sys.executable, *args], capture_output=True, text=True), with -m, -c or a script.

    ranks: so many of it at a time, as torchrun starts them; the status is the worst. whole: at its end Python frees all
    modules and objects, which with PyTorch takes more than a second; else it ends behind the functions of atexit."""
    if _server is None:
        _start()
    args = [str(argument) for argument in args]
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        wish = {"args": args, "cwd": str(cwd or os.getcwd()), "env": dict(env or os.environ), "ranks": [{}],
                "whole": whole}
        if ranks > 1:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            wish["ranks"] = [_rank(rank, ranks, port) for rank in range(ranks)]
        print(json.dumps(wish | {"files": [out.name, err.name]}), file=_server.stdin, flush=True)
        status = int(_server.stdout.readline())
        return subprocess.CompletedProcess(args, status, out.read(), err.read())


def _become(wish):
    """The program, as Python would begin it."""
    os.chdir(wish["cwd"])
    os.environ.clear()
    os.environ.update(wish["env"])
    for stream, path in enumerate(wish["files"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    first, *rest = wish["args"]
    sys.path[0] = wish["cwd"]
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.argv = [first, *rest]
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


def _end_early(status):
    threading._shutdown()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _status(exit_code):
    """The status of a program that calls sys.exit."""
    if exit_code is None or isinstance(exit_code, int):
        return (exit_code or 0) & 255
    print(exit_code, file=sys.stderr)
    return 1


def _run_early(wish):
    status = 0
    try:
        _become(wish)
    except SystemExit as end:
        status = _status(end.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    _end_early(status)


def _serve():
    """What this fork is to be; None in the server itself, at its end."""
    for line in sys.stdin:
        wish, children = json.loads(line), []
        for rank in wish["ranks"]:
            children.append(os.fork())
            if not children[-1]:
                wish["env"] |= rank
                return wish
        print(max((os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children), key=abs), flush=True)
    return None


if __name__ == "__main__":
    import gc

    import torch._dynamo  # noqa: F401 (optimizers import it)

    gc.freeze()  # no collection of a fork's copies these pages
    if (_wish := _serve()) is None:
        os._exit(0)
    if not _wish["whole"]:
        _run_early(_wish)
    gc.unfreeze()
    _become(_wish)
