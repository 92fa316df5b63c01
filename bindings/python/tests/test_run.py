# SPDX-License-Identifier: Apache-2.0
"""`python -m libamp.run`: a script sees what it would see alone, and `import apex` besides, in all of its processes."""

import hashlib
import importlib.util
import json
import os
import pathlib
import site
import socket
import subprocess
import sys
import textwrap
import threading
import venv

import forks
import pytest
from libamp import _at_exit
from libamp._script import STARTUP

PROBE = """
    import sys, os
    spec = __spec__.name if __spec__ else None
    file = __file__ if "__file__" in globals() else None
    print([sys.argv, __name__, spec, file, sys.path, sys.flags, sys.warnoptions])
    if "APEX" in os.environ:
        import apex
    if "fail" in sys.argv:
        raise ValueError("as the script alone")
    if "exit" in sys.argv:
        sys.exit(int(sys.argv[-1]))
"""
PROBE_ARGUMENTS = "import sys; print(sys.argv)"
RUN = ["-m", "libamp.run"]


def free_port():
    with socket.socket() as probed:
        probed.bind(("127.0.0.1", 0))
        return probed.getsockname()[1]


def environment(more):
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | (more or {})


def python(*args, cwd=None, env=None, stdin=None, executable=sys.executable):
    command, env = [executable, *args], environment(env)
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env, input=stdin)


def forked(*args, cwd=None, env=None):
    """For scripts that import torch, where starting them is not what is tested: in a fork that has it."""
    return forks.run(*args, cwd=cwd, env=environment(env), whole=True)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture
def probe(tmp_path):
    write(tmp_path / "package" / "__init__.py", "")
    write(tmp_path / "package" / "inside.py", PROBE)
    return write(tmp_path / "probe.py", PROBE)


@pytest.mark.parametrize("options", [[], ["-u"], ["-W", "error", "-X", "utf8=1", "-O"]], ids=["plain", "u", "many"])
@pytest.mark.parametrize(
    "args",
    [
        ["probe.py", "a", "--help", "-m", "x"],
        ["./probe.py"],
        ["-m", "package.inside", "--version", "b"],
        ["-c", textwrap.dedent(PROBE), "--replace"],
        ["-", "a"],
        ["probe.py", "fail"],
        ["probe.py", "exit", "7"],
        ["absent.py"],
        ["-m", "absent"],
    ],
    ids=["args", "path", "module", "code", "stdin", "traceback", "exit", "no-file", "no-module"],
)
def test_a_script_sees_what_it_sees_alone(probe, options, args):
    alone = python(*options, *args, cwd=probe.parent, stdin=PROBE)
    run = python(*options, *RUN, *args, cwd=probe.parent, stdin=PROBE, env={"APEX": "1"})
    assert (run.returncode, run.stdout, run.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    assert run.stdout or run.returncode


def test_from_another_folder_the_scripts_own_is_searched(probe, tmp_path):
    write(tmp_path / "neighbour.py", "value = 5")
    script = write(tmp_path / "uses.py", "import neighbour, apex; print(neighbour.value)")
    assert python(*RUN, str(script), cwd="/").stdout == "5\n"


def test_where_the_environment_is_ignored_it_runs_in_this_process(probe):
    for args, out in ((["-m", "package.inside", "exit", "3"], "__main__"), (["probe.py", "exit", "3"], "__main__")):
        run = python("-E", *RUN, *args, cwd=probe.parent, env={"APEX": "1"})
        assert run.returncode == 3 and out in run.stdout
    run = python("-E", *RUN, "-c", "import apex, sys; print(sys.argv)", "a", cwd=probe.parent)
    assert run.stdout == "['-c', 'a']\n"


WORKERS = """
    import multiprocessing, subprocess, sys
    import apex  # without torch, which takes seconds in each process
    from libamp.apex_shim import is_ours

    class Numbers:
        def __len__(self):
            return 4
        def __getitem__(self, i):
            import apex as mine
            return i if is_ours(mine) else -1

    def child(queue):
        queue.put(is_ours(apex))

    if __name__ == "__main__":
        for method in ("spawn", "forkserver", "fork"):
            context = multiprocessing.get_context(method)
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            print(method, queue.get(timeout=60))
            process.join()
        import torch
        loader = torch.utils.data.DataLoader(Numbers(), num_workers=1, multiprocessing_context="spawn")
        print(sum(int(x) for x in loader), flush=True)
        subprocess.run([sys.executable, "-c", "import apex; print(apex.__name__)"], check=True)
"""


def test_processes_that_the_script_starts_have_it_too(tmp_path):
    run = forked(*RUN, str(write(tmp_path / "workers.py", WORKERS)))
    assert run.stdout.split() == ["spawn", "True", "forkserver", "True", "fork", "True", "6", "apex"], run.stderr


RANK = """
    import argparse, time, torch
    from apex.parallel import Reducer
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0)
    parser.parse_args()
    torch.distributed.init_process_group("gloo")
    value = torch.tensor([float(torch.distributed.get_rank())])
    Reducer([value]).reduce()
    print(f"mean {value.item()}\\n", end="", flush=True)
    time.sleep(0.05)  # torch 2.0 waits for ever where a thread still gives up tensors
    torch.distributed.destroy_process_group()
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


@pytest.mark.parametrize("order", ["launcher-first", "libamp-first"])
def test_launchers(tmp_path, order):
    script = str(write(tmp_path / "rank.py", RANK))
    if order == "launcher-first":
        run = forked(*TORCHRUN, *RUN, script, env={"OMP_NUM_THREADS": "1"})
    else:
        run = python(*RUN, *TORCHRUN, script, env={"OMP_NUM_THREADS": "1"})
    assert run.stdout.split("\n").count("mean 0.5") == 2, run.stderr


SCRIPT_OF_2020 = """
    import argparse, sys, torch
    from apex.parallel import DistributedDataParallel, Reducer
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", default=0, type=int)
    parser.add_argument("data")
    args = parser.parse_args()
    today = argparse.ArgumentParser()  # and a script of today
    today.add_argument("--local-rank", default=7, type=int)
    other, rest = today.parse_known_args()
    torch.distributed.init_process_group(backend="gloo", init_method="env://")
    assert args.local_rank == other.local_rank == torch.distributed.get_rank(), (args, other)
    assert sys.argv[1:] == [f"--local_rank={args.local_rank}", "folder"] and rest == ["folder"], sys.argv
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    model(torch.tensor([[1.0 + args.local_rank]])).sum().backward()
    print(f"mean {model.module.weight.grad.item()} {args.data}\\n", end="", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""
LAUNCH = ["-m", "torch.distributed.launch", "--nproc_per_node=2"]


@pytest.mark.parametrize("order", ["launcher-first", "libamp-first"])
def test_scripts_of_2020_under_their_launcher(tmp_path, order):
    """torch.distributed.launch passes --local-rank today; it was --local_rank."""
    script = [str(write(tmp_path / "train.py", SCRIPT_OF_2020)), "folder"]
    args = [*LAUNCH, f"--master_port={free_port()}", *(RUN if order == "launcher-first" else []), *script]
    run = forked(*(RUN if order == "libamp-first" else []), *args, env={"OMP_NUM_THREADS": "1"})
    assert run.stdout.split("\n").count("mean 1.5 folder") == 2, run.stderr


SCRIPT_OF_TODAY = """
    import os, sys, apex
    rank = [int(argument.split("=")[1]) for argument in sys.argv if argument.startswith("--local-rank=")]
    assert rank == [int(os.environ["LOCAL_RANK"])], sys.argv
    print(f"{apex.__name__} of today\\n", end="", flush=True)
"""


@pytest.mark.parametrize("how", ["file", "module"])
@pytest.mark.parametrize("order", ["launcher-first", "libamp-first"])
def test_scripts_of_today_that_read_the_rank_by_hand(tmp_path, order, how):
    script = write(tmp_path / "work" / "train.py", SCRIPT_OF_TODAY)
    args = [*LAUNCH, f"--master_port={free_port()}", *(RUN if order == "launcher-first" else [])]
    if how == "module":
        args += ["-m", "work.train"]
    else:
        args += [str(script)]
    run = forked(*(RUN if order == "libamp-first" else []), *args, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"})
    assert run.stdout.split("\n").count("apex of today") == 2, run.stderr


def test_the_launchers_rank_is_the_first_argument_of_what_is_run(probe):
    env = {"LOCAL_RANK": "1"}
    ways = ((["probe.py"], []), (["-m", "package.inside"], []), (["-c", PROBE_ARGUMENTS], []), (["probe.py"], ["-E"]))
    for args, before in ways:
        run = python(*before, *RUN, "--local-rank=1", *args, "--lr", "2", cwd=probe.parent, env=env)
        assert "'--local_rank=1', '--lr', '2']" in run.stdout, run.stderr
    alone = python("probe.py", "--local-rank=1", cwd=probe.parent, env=env)
    assert "'--local-rank=1']" in alone.stdout  # without libamp.run nothing changes
    by_hand = python(*RUN, "probe.py", "--local-rank=1", cwd=probe.parent)
    assert "'--local-rank=1']" in by_hand.stdout  # nor without a launcher


def test_a_parser_gets_the_spelling_it_knows():
    code = """
        import argparse, sys
        for known in (["--local_rank"], ["--local-rank"], ["--local-rank", "--local_rank"], ["--lr"]):
            parser = argparse.ArgumentParser()
            parser.add_argument(*known, type=int, dest="value")
            for given in (["--local_rank=3"], ["--local-rank=3"]):
                print(*parser.parse_known_args(given)[1], getattr(parser.parse_known_args(given)[0], "value"))
    """
    run = python(*RUN, "-c", textwrap.dedent(code), env={"LOCAL_RANK": "3"})
    assert run.stdout.splitlines() == ["3"] * 6 + ["--local_rank=3 None", "--local-rank=3 None"], run.stderr


def test_a_sitecustomize_of_the_users_runs_too(tmp_path):
    write(tmp_path / "own" / "sitecustomize.py", "import sys; sys.from_sitecustomize = 'mine'")
    env = {"PYTHONPATH": str(tmp_path / "own")}
    run = python(*RUN, "-c", "import sys, apex; print(sys.from_sitecustomize)", env=env)
    assert run.stdout == "mine\n", run.stderr


@pytest.mark.parametrize("error", ["RuntimeError('mine')", "ImportError('half installed')", "SyntaxError('too old')"])
def test_a_process_that_cannot_be_prepared_runs_alone(tmp_path, error):
    """One line for a script and all the processes that it starts, and the user's own sitecustomize."""
    write(tmp_path / "own" / "sitecustomize.py", "import sys; sys.from_sitecustomize = 'mine'")
    write(tmp_path / "own" / "libamp" / "__init__.py", f"raise {error}")
    code = "import subprocess, sys; print(sys.from_sitecustomize)"
    again = f"{code}; sys.stdout.flush(); subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    run = python("-c", again, env={"PYTHONPATH": os.pathsep.join([STARTUP, str(tmp_path / "own")])})
    assert run.returncode == 0 and run.stdout == "mine\nmine\n", run.stderr
    assert run.stderr.count("libamp: this Python") == 1 and eval(error).args[0] in run.stderr


def test_a_python_without_libamp_says_nothing(tmp_path):
    copy = write(tmp_path / "sitecustomize.py", pathlib.Path(STARTUP, "sitecustomize.py").read_text())
    run = python("-S", "-c", f"exec(open({str(copy)!r}).read(), {{'__file__': {str(copy)!r}}})", env={"PYTHONPATH": ""})
    assert run.returncode == 0 and run.stderr == ""


def test_replace_reaches_children(tmp_path):
    write(tmp_path / "apex" / "__init__.py", "raise ImportError('too old for this torch')")
    write(tmp_path / "apex" / "parallel" / "__init__.py", "")
    code = "import apex; from libamp.apex_shim import is_ours; print(is_ours(apex))"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    env = {"PYTHONPATH": str(tmp_path)}
    assert python(*RUN, "--replace", "-c", child, env=env).stdout == "True\n"
    assert "too old for this torch" in python(*RUN, "-c", child, env=env).stderr


def test_trace_leaves_a_line_for_each_step(tmp_path):
    write(tmp_path / "elsewhere" / "empty", "")
    script = write(
        tmp_path / "train.py",
        """
        import os, torch
        from apex import amp
        os.chdir("elsewhere")
        model = torch.nn.Linear(4, 1)
        model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level="O5")
        for _ in range(3):
            optimizer.zero_grad()
            with amp.scale_loss(model(torch.ones(2, 4)).sum(), optimizer) as scaled:
                scaled.backward()
            optimizer.step()
        """,
    )
    ran = python(*RUN, "--trace", "t.jsonl", str(script), cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    kinds = [line["kind"] for line in lines if line["kind"] in ("start", "wired", "bracket", "end")]
    assert kinds == ["start", "wired", *["bracket"] * 3, "end"]
    assert lines[0]["level"] == "O5"
    assert [line["language"] for line in lines if line["kind"] == "wired"] == ["python"]


def test_trace_has_its_file_however_it_is_spelled(tmp_path):
    code = "import os; print(os.environ['AMP_TRACE'])"
    for how in (["--trace", "t.jsonl"], ["--trace=t.jsonl"], ["--replace", "--trace=t.jsonl"]):
        assert python(*RUN, *how, "-c", code, cwd=tmp_path).stdout == f"{tmp_path / 't.jsonl'}\n"


@pytest.mark.parametrize(
    "args",
    [[], ["--no-such"], ["-q", "x.py"], ["-m"], ["--trace"], ["--trace=", "x.py"], ["--trace", "--survey", "x.py"]],
)
def test_misuse_is_told(args):
    run = python(*RUN, *args)
    assert run.returncode == 2 and "usage:" in run.stderr and run.stdout == ""


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--trace", "no/where.jsonl", "x.py"], "no/where.jsonl: there is no folder "),
        (["--trace", "folder", "x.py"], "--trace folder: it is a folder"),
        (["--trace", "x.py", "x.py"], "--trace x.py: it is there and is no trace"),  # the name was forgotten
        (["--survey", "absent.py"], "absent.py: there is no such script"),
        (["--check", "absent.py"], "absent.py: there is no such script"),
        (["--survey", "-m", "no.module.here"], "no module named no.module.here"),
        (["--survey", "-mabsent"], "no module named absent"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(tmp_path, args, says):
    (tmp_path / "folder").mkdir()
    write(tmp_path / "x.py", "print('it ran')")
    run = python(*RUN, *args, cwd=tmp_path)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("libamp.run: ") and run.stderr.count("\n") == 1
    assert says in run.stderr
    assert "it ran" in (tmp_path / "x.py").read_text()


def test_an_older_trace_is_written_over(tmp_path):
    write(tmp_path / "t.jsonl", '{"kind":"start","context":1}')
    assert python(*RUN, "--trace", "t.jsonl", "-c", "print(1)", cwd=tmp_path).stdout == "1\n"


def test_help_and_version():
    import libamp

    assert python(*RUN, "--help").stdout == python(*RUN, "-h").stdout != ""
    assert python(*RUN, "--version").stdout.strip() == libamp.__version__


def test_the_pth_is_put_there_and_taken_back(tmp_path):
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    executable = str(tmp_path / "venv" / "bin" / "python")
    code = "import sys; print(sys.path[-1])"
    folder = python("-c", code, executable=executable).stdout.strip()
    # What this environment has, libamp among it, is in that one too.
    with open(os.path.join(folder, "all.pth"), "w", encoding="utf-8") as file:
        file.write("".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()))
    apex = ["-c", "import apex, sys; print(any(name.startswith('torch') for name in sys.modules))"]
    assert python(*apex, executable=executable).returncode == 1
    assert python(*RUN, "--install-pth", executable=executable).returncode == 0
    assert python(*apex, executable=executable).stdout == "False\n"
    assert python(*RUN, "--remove-pth", executable=executable).returncode == 0
    assert python(*apex, executable=executable).returncode == 1
    assert python(*RUN, "--remove-pth", executable=executable).returncode == 0


GROUP = """
    import sys
    import torch.distributed as dist
    if sys.argv[1] == "parallel":
        import libamp.torch.parallel
    destroy = dist.destroy_process_group
    dist.destroy_process_group = lambda *group: (print("destroyed", *group), destroy(*group))
    dist.init_process_group(sys.argv[2], init_method="file://" + sys.argv[3], rank=0, world_size=1)
    dist.new_group([0])
    if sys.argv[4:]:
        destroy()
    print("done")
"""


@pytest.mark.parametrize("way", ["run", "parallel"])
def test_process_groups_that_a_script_leaves_behind_are_destroyed(tmp_path, way):
    """torch's own exit ends in an abort now and then where threads of gloo's are still there."""
    script = write(tmp_path / "group.py", GROUP)
    cases = [(["gloo"], "done\ndestroyed\n"), (["gloo", "again"], "done\n"), (["fake"], "done\n")]
    cases = cases[:1] if way == "parallel" else cases
    if importlib.util.find_spec("torch.testing._internal.distributed.fake_pg") is None:  # torch 2.0
        cases = [case for case in cases if case[0] != ["fake"]]
    for i, (arguments, printed) in enumerate(cases):
        before = "import torch.testing._internal.distributed.fake_pg\n" if arguments == ["fake"] else ""
        script.write_text(before + textwrap.dedent(GROUP))
        command = [
            *(RUN if way == "run" else []),
            str(script),
            way,
            arguments[0],
            str(tmp_path / f"store{i}"),
            *arguments[1:],
        ]
        result = forked(*command)
        assert (result.returncode, result.stdout) == (0, printed), result.stderr


def test_the_end_waits_for_threads_that_run():
    """Not for those that wait: a thread of gloo's that has to give up tensors needs Python for it."""
    started, ended, done = threading.Event(), threading.Event(), []

    def work():
        started.set()
        done.append(hashlib.pbkdf2_hmac("sha256", b"", b"", 300_000))  # without Python's lock

    threads = [threading.Thread(target=ended.wait), threading.Thread(target=work)]
    for thread in threads:
        thread.start()
    started.wait()
    _at_exit._wait_for_threads(limit=60)
    ended.set()
    assert done
