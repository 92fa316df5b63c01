# SPDX-License-Identifier: Apache-2.0
"""python -m libamp.doctor: its status, its files, and ranks. The result in a notebook."""

import json
import os
import subprocess
import sys
import textwrap

import forks
import pytest
import torch
from libamp.torch import amp
from libamp.torch.doctor import result
from torch import nn

SCRIPT = """
    import sys
    import torch
    from torch import nn

    def main():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 4))
        if "wrong" in sys.argv:
            model.to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0)
        x = torch.randn(64, 32).to(next(model.parameters()).dtype)
        for step in range(0 if "none" in sys.argv else 20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x).float(), torch.zeros(64, dtype=torch.long)).backward()
            optimizer.step()
        print("done", sys.argv[1:], flush=True)
        if "raise" in sys.argv:
            raise ValueError("the script's own")
        if "exit" in sys.argv:
            sys.exit(7)

    if __name__ == "__main__":
        main()
"""


def command(folder, *args, options=(), ranks=1, script=SCRIPT):
    (folder / "script.py").write_text(textwrap.dedent(script))
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return forks.run("-m", "libamp.doctor", *options, "script.py", *args, cwd=folder, env=env, ranks=ranks)


@pytest.mark.parametrize(
    "args,options,status",
    [
        ([], [], 0),
        ([], ["--strict"], 0),
        (["wrong"], [], 0),
        (["wrong"], ["--strict"], 1),
        (["wrong", "exit"], ["--strict"], 7),
        (["wrong", "raise"], ["--strict"], 1),
        (["none"], ["--strict"], 2),
        (["none", "exit"], [], 7),
    ],
)
def test_the_status(tmp_path, args, options, status):
    done = command(tmp_path, *args, options=options)
    assert (done.returncode, done.stdout) == (status, f"done {args}\n"), done.stderr
    assert ("looked at nothing: no step of a torch.optim.Optimizer ran" in done.stderr) == ("none" in args)
    assert ("script.py:16: AMP-D01 " in done.stderr and "(1.weight)" in done.stderr) == ("wrong" in args)
    assert "libamp.doctor: no finding in 20 steps of 6 parameters\n" in done.stderr or args
    assert ("ValueError: the script's own" in done.stderr) == ("raise" in args)


def test_a_script_without_torch_and_wrong_options(tmp_path):
    done = command(tmp_path, script="print(5)")
    assert done.returncode == 2 and "looked at nothing" in done.stderr
    for args, words in ((["--other"], "unknown option"), (["--json"], "needs a name"), (["--wait", "x"], "seconds")):
        done = forks.run("-m", "libamp.doctor", *args, cwd=tmp_path)
        assert done.returncode == 2 and words in done.stderr


IN_A_FOLDER = """
    import os, sys
    argv = list(sys.argv)
    os.chdir(sys.argv[1])
    print(argv[0], __package__, __spec__, os.path.exists(__file__), vars(sys.modules["__main__"]) is globals())
    sys.stdout.close()
"""


def test_a_script_has_its_own_file_and_may_close_its_output(tmp_path):
    (tmp_path / "folder").mkdir()
    done = command(tmp_path, "folder", script=IN_A_FOLDER)
    assert done.stdout == "script.py None None True True\n" and "looked at nothing" in done.stderr
    assert done.returncode == 2 and "Error" not in done.stderr
    shell = ["sh", "-c", f"'{sys.executable}' -m libamp.doctor script.py >&-"]
    (tmp_path / "script.py").write_text("raise SystemExit(7)")
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 7 and "looked at nothing" in done.stderr and "Error" not in done.stderr


def test_json_comes_back(tmp_path):
    done = command(tmp_path, "wrong", options=["--json", "found.json"])
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "found.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert data["status"] == 1 and data["findings"][0]["code"] == "AMP-D01" and data["findings"][0]["remedy"]
    back = result.read(str(tmp_path / "found.json"))
    assert back.data() == data and back.run.params[0].shape == (32, 32) and back.found[0].place.lineno == 16


DDP = SCRIPT.replace(
    "optimizer = torch",
    """torch.distributed.init_process_group("gloo")
        if "shards" in sys.argv:
            from torch.distributed.fsdp import fully_shard
            fully_shard(model)
        else:
            model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch""",
).replace(
    'print("done", sys.argv[1:]',
    """parts = [getattr(param, "_local_tensor", param) for param in model.parameters()]
        print("done", sum(part.double().sum().item() for part in parts)""",
)
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
WHOLE = pytest.mark.skipif(TORCH < (2, 1), reason="gloo of this torch sends no bf16")
SHARDS = pytest.mark.skipif(TORCH < (2, 9), reason="fully_shard of this torch does not average on CPUs")


@pytest.mark.parametrize("kind", [pytest.param("whole", marks=WHOLE), pytest.param("shards", marks=SHARDS)])
def test_ranks_write_and_the_first_merges(tmp_path, kind):
    (tmp_path / "script.py").write_text(textwrap.dedent(DDP))
    bare = forks.run("script.py", "wrong", kind, cwd=tmp_path, ranks=2)
    done = command(tmp_path, "wrong", kind, options=["--strict", "--folder", "told"], ranks=2, script=DDP)
    said, meant = (sorted("".join(each.stdout.split())) for each in (done, bare))  # two ranks write at once
    assert said == meant and bare.stdout.count("done") == 2, done.stderr
    assert done.returncode == 1 and done.stderr.count("libamp.doctor: ") == 1, done.stderr
    assert "AMP-D01" in done.stderr and "[ranks 0, 1]" in done.stderr
    assert sorted(path.name for path in (tmp_path / "told").iterdir()) == [
        "libamp-doctor-rank-0.json", "libamp-doctor-rank-1.json"
    ]  # fmt: skip


def test_a_rank_that_writes_nothing_is_named(tmp_path):
    with amp.doctor(quiet=True) as doctor:
        param = nn.Parameter(torch.ones(4))
        param.sum().backward()
        torch.optim.SGD([param], lr=0.1).step()
    doctor.result.ranks = [0]
    result.write(doctor.result, result.path_of(str(tmp_path), "rank-0"))
    whole = result.merge(result.gather(str(tmp_path), range(3), wait=0.0), range(3))
    assert whole.missing == [1, 2] and "ranks 1, 2 wrote nothing" in whole.text()


FORK = """
    import multiprocessing
    import sys
    import torch
    from torch import nn

    def main():
        model = nn.Linear(32, 4).to(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
        for step in range(20):
            optimizer.zero_grad()
            model(torch.ones(2, 32).bfloat16()).float().sum().backward()
            optimizer.step()

    process = multiprocessing.get_context("fork").Process(target=main)
    process.start()
    process.join()
"""


def test_a_process_of_the_script_is_looked_at(tmp_path):
    done = command(tmp_path, options=["--strict"], script=FORK)
    assert done.returncode == 1 and "no finding" not in done.stderr, done.stderr
    assert "AMP-D01" in done.stderr and " in 20 steps of 2 parameters" in done.stderr


def test_a_result_before_the_end_says_what_to_do():
    with pytest.raises(AttributeError, match="use `with"):
        _ = amp.doctor().result
    with amp.doctor(quiet=True) as doctor, pytest.raises(AttributeError, match="leave its `with` block first"):
        _ = doctor.result
    assert doctor.result.status() == 2


def test_five_optimizers_have_one_finding_and_it_is_short():
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.LayerNorm(16).bfloat16() for _ in range(5))
    optimizers = [torch.optim.AdamW(layer.parameters(), lr=1e-4, weight_decay=0) for layer in layers]
    with amp.doctor(quiet=True) as doctor:
        for _ in range(12):
            x = torch.randn(8, 16).bfloat16()
            sum(layer(x).float().square().mean() for layer in layers).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    lost, state = doctor.result.found
    assert (lost.code, state.code) == ("AMP-D01", "AMP-D22")
    assert "in 5 optimizers (AdamW)" in lost.saw and "1.weight, 2.weight, 3.weight and 1 more" in lost.saw
    text = repr(doctor.result)
    assert text.count("AMP-D01") == 1 and len(text) < 1000 and text.startswith("<libamp.doctor: 2 findings in 60 steps")
