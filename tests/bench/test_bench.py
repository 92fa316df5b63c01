#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the bench's program writes, says and refuses, with its shortest groups: test_bench.py BENCH PEERS_PY

No time is judged. Peers are played by a script that speaks their language, so that torch is not needed; where this
Python has torch, peers.py does each of its works too.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

KEYS = {"group": str, "name": str, "size": str, "unit": str, "ours": float, "reference": float, "reference_name": str,
        "ratio": float, "goal": float}

# Answers each line; what it was told stands in its log.
PEER = """#!{python}
import sys
print({greeting!r}, flush=True)
for line in sys.stdin:
    print(line, end="", file=open({log!r}, "a"))
    word, argument = line.split()[:2]
    print({{"make": "ok 7", "run": "ok {seconds}", "drop": "ok"}}[word], flush=True)
"""


class Points:
    """TAP: a point for each `with`; an exception in it is its failure."""

    def __init__(self):
        self.number, self.what = 0, ""

    def __call__(self, what):
        self.number += 1
        self.what = what
        return self

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        print(f"{'not ok' if kind else 'ok'} {self.number} - {self.what}")
        for line in str(error).splitlines() if kind else ():
            print(f"# {line}")
        return kind is not None and issubclass(kind, Exception)


def expect(condition, message):
    if not condition:
        raise AssertionError(message)


def run_any(bench, *arguments, **environment):
    """To its end: the status; standard output and error together."""
    result = subprocess.run([bench, *map(str, arguments)], env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return result.returncode, result.stdout


def run(bench, *arguments, status=0, **environment):
    """What it said, if it ended with this status."""
    ended, said = run_any(bench, *arguments, **environment)
    expect(ended == status, f"{arguments}: status {ended}, not {status}:\n{said}")
    return said


def missed(said):
    """From the last line: "4 lines, 1 below their goal"."""
    return int(said.splitlines()[-1].split()[2])


def check_results(results):
    expect(isinstance(results, list) and results, "it is no list, or an empty one")
    for line in results:
        expect(set(line) == {*KEYS, "quartiles"}, f"other members: {line}")
        low, high = line["quartiles"]
        expect(0 <= low <= line["ratio"] * 1.001 and line["ratio"] <= high * 1.001, line)  # of 4 digits
        for key, kind in KEYS.items():
            is_number = isinstance(line[key], (int, float)) and not isinstance(line[key], bool)
            expect(is_number if kind is float else isinstance(line[key], str) and line[key], f"{key} of {line}")
        expect(all(math.isfinite(line[key]) and line[key] > 0 for key in ("ours", "reference", "ratio")), line)
        expect(line["goal"] >= 0 and line["unit"] in ("GB/s", "ns", "ms"), line)


def test_results(point, bench, folder):
    with point("--json writes each line of the table, with the members that README.md promises"):
        said = run(bench, "--quick", "--group", "calls", "--json", folder / "results.json")
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        check_results(results)
        expect(all(line["group"] == "calls" for line in results), results)
        expect(said.splitlines()[-1].startswith(f"{len(results)} lines, "), said)
        for line in results:
            expect(line["name"] in said and line["reference_name"] in said, line)
    with point("the machine comes first"):
        head = said.split("group ", 1)[0]
        for word in ("processor: ", "flags:", "cores: ", "kernels:", "oneDNN: ", "load: ", "compiler: ", "rounds: 15"):
            expect(word in head, f"no '{word}' in:\n{head}")
    with point("a file that cannot be written is an error"):
        run(bench, "--quick", "--group", "calls", "--json", folder / "nowhere" / "results.json", status=1)


def test_hosts(point, bench):
    with point("the hosts of brackets are wired well: libamp warns of none"):
        said = run(bench, "--quick", "--group", "bracket")
        expect("AMP-" not in said and "beyond its kernels" in said, said)


def test_arguments(point, bench):
    with point("a group that does not exist is refused with the list of groups"):
        said = run(bench, "--group", "nonesuch", status=2)
        expect("nonesuch" in said and "casts" in said and "demo" in said, said)
    for arguments in (["--bogus"], ["stray"], ["--group"], ["--json"], ["--peers"], ["--device"], ["--device", "tpu"],
                      ["--bytes"], ["--bytes", "few"]):
        with point(f"{' '.join(arguments)} is refused with the list of options"):
            expect("usage: bench" in run(bench, *arguments, status=2), "no list")
    with point("a GPU has groups of its own"):
        said = run(bench, "--device", "cuda", "--group", "growth", status=2)
        expect("growth" in said and "matmul" in said and "demo" not in said, said)
    with point("where there is no GPU that is said, and no line is written"):
        said = run(bench, "--device", "cuda", "--group", "matmul", CUDA_VISIBLE_DEVICES="")
        expect("bench: skipped: there is no NVIDIA" in said and "ratio" not in said, said)
    with point("a Python that does not exist is refused by name"):
        expect("/no/such/python" in run(bench, "--peers", "/no/such/python", status=2), "it is not named")


def fake_peer(folder, name, greeting="ok sloth 1.0", seconds=0.25):
    script, log = folder / name, folder / (name + ".log")
    script.write_text(PEER.format(python=sys.executable, greeting=greeting, log=str(log), seconds=seconds),
                      encoding="utf-8")
    script.chmod(0o755)
    return script, log


def test_peers(point, bench, folder):
    slow, log = fake_peer(folder, "slow")
    with point("a peer's lines stand beside ours, under their group, in the peer's name"):
        ended, said = run_any(bench, "--quick", "--group", "unscale", "--peers", slow, "--check", "--json",
                              folder / "peers.json")
        results = json.loads((folder / "peers.json").read_text(encoding="utf-8"))
        check_results(results)
        lines = [line for line in results if line["reference_name"].startswith("sloth 1.0, ")]
        expect([line["size"] for line in lines] == ["200 x 50000", "1000 x 1000"] and len(results) > 2, results)
        expect({line["group"] for line in lines} == {"unscale"}, lines)
    with point("its seconds are the reference: bytes, and the ratio"):
        for line in lines:
            bytes_moved = 8 * math.prod(map(int, line["size"].split(" x ")))
            expect(math.isclose(line["reference"], bytes_moved / 0.25e9, rel_tol=1e-3), line)
            expect(line["ratio"] > 1 and line["ours"] > line["reference"], line)
    with point("each work is made, run in turns, and dropped"):
        told = log.read_text(encoding="utf-8").splitlines()
        expect([word for word in told if not word.startswith("run ")] == [
            "make unscale 200 50000", "drop 7", "make unscale 1000 1000", "drop 7"], told)
        expect(told.count("run 7 1") == len(told) - 4 and told.count("run 7 1") >= 2 * 4, told)
    with point("--check makes the status 1 where a goal is missed, and only there"):
        expect(ended == (missed(said) > 0), said)  # our own lines may miss theirs here
        fast, _ = fake_peer(folder, "fast", seconds=1e-9)
        said = run(bench, "--quick", "--group", "unscale", "--peers", fast, "--check", status=1)
        expect(missed(said) >= 2 and said.count("!   sloth 1.0") == 2, said)
    with point("without it a missed goal is no failure"):
        expect(missed(run(bench, "--quick", "--group", "unscale", "--peers", fast)) >= 2, "none was missed")
    with point("what a peer complains of is an error with its words"):
        complaining, _ = fake_peer(folder, "complaining", greeting="error too slow today")
        said = run(bench, "--quick", "--group", "unscale", "--peers", complaining, status=1)
        expect("too slow today" in said, said)
    with point("a peer that ends is an error"):
        leaving = folder / "leaving"
        leaving.write_text("#!/bin/sh\n", encoding="utf-8")
        leaving.chmod(0o755)
        expect("their process ended" in run(bench, "--quick", "--group", "unscale", "--peers", leaving, status=1),
               "no word")


def test_no_torch(point, bench, folder):
    (folder / "torch.py").write_text("raise ImportError('no torch of that name')\n", encoding="utf-8")
    with point("without torch a line says that peers are left out, and all else is as ever"):
        said = run(bench, "--quick", "--group", "calls", "--peers", sys.executable, PYTHONPATH=str(folder))
        expect("peers: left out: " in said and "no torch of that name" in said and " lines, " in said, said)
        expect("torch" not in said.split("group ", 1)[1], said)


def test_torch(point, peers):
    """Every work of peers.py, small; and what it refuses."""
    what = "peers.py does what it is asked"
    works = ["cast fp16 fp32 5000", "cast fp64 bf16 1", "unscale 3 70", "unscale_sizes 3 70 1", "adam fp32 3 70",
             "adam fp16 3 70", "step adam fused 3 70", "step adam foreach 3 70",
             "step sgd fused 3 70", "step sgd foreach 3 70", "unscale_step_write fp16 3 70",
             "unscale_step_write bf16 3 70", "matmul fp32 20", "matmul fp16 20", "matmul bf16 20"]
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode:
        point.number += 1
        print(f"ok {point.number} - {what} # SKIP this Python has no torch")
        return
    with point(what):
        asked = [line for i, work in enumerate(works, 1) for line in (f"make {work}", f"run {i} 2", f"drop {i}")]
        asked = ["has torch", "has no_such_module", *asked, "make nonsense", "run 1 1", "make cast fp8 fp32 5"]
        answers = subprocess.run([sys.executable, peers], input="\n".join(asked) + "\n", capture_output=True, text=True,
                                 check=True).stdout.splitlines()
        expect(answers[0].startswith("ok torch ") and len(answers) == 1 + len(asked), answers)
        for question, said in zip(asked, answers[1:-3]):
            expect(said.split()[0] == "ok" and (not question.startswith("run") or float(said.split()[1]) > 0),
                   f"{question}: {said}")
        expect(answers[1:3] == ["ok 1", "ok 0"], answers[1:3])
        expect(all(said.startswith("error ") for said in answers[-3:]), answers[-3:])


def main():
    (bench, peers), point = sys.argv[1:], Points()
    with tempfile.TemporaryDirectory(prefix="amp-bench-") as name:
        folder = pathlib.Path(name)
        test_results(point, bench, folder)
        test_hosts(point, bench)
        test_arguments(point, bench)
        test_peers(point, bench, folder)
        test_no_torch(point, bench, folder)
        test_torch(point, peers)
    print(f"1..{point.number}")


if __name__ == "__main__":
    main()
