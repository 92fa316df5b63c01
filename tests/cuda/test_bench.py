#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/bench's groups for a GPU, over the fake one: test_bench.py BENCH FAKE_DRIVER FAKE_PLUGIN FAKE_CUBLASLT. Prints
TAP.

The fake measures nothing: what is tested is that each group comes to its end, that each line stands there, with what it
is compared with and its goal, that an iteration waits for nothing, and what is said where there is nothing to measure.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

BYTES = 16384  # of tensors
COPY, ONE, BLAS = "copying as many bytes", "one tensor", "cuBLASLt, best of its heuristics"

# group: [(how many lines, with what reference, with what goal)]
GROUPS = {
    "casts": [(4, COPY, 0.92)],
    "unscale": [(4, COPY, 0.92), (1, "sloth 1.0, _amp_foreach_non_finite_check_and_unscale_", 1)],
    "axpby": [(2, COPY, 0.92)],
    "norm": [(3, COPY, 0.92), (2, COPY, 0.5)],
    "lists": [(4, ONE, 0.9)],
    "optim": [(4, COPY, 0.9), (2, "sloth 1.0, _fused_adam_ of fp32 alone", 1.1),
              (2, "sloth 1.0, foreach copy, _fused_adam_, foreach copy", 1.1),
              (1, "sloth 1.0, _fused_adam_, fp32", 1.1)],
    "pack": [(16, COPY, 0.7)],
    "bracket": [(2, "0.1 ms of the host's time", 1), (2, "0.1 ms of the host's time", 0), (4, "none", 1)],
    "matmul": [(12, BLAS, 0), (8, BLAS, 0.98)],
    "step": [(2, "the same host in FP32", 2), (1, "the same at O1", 1.1)],
}

# Says that it is torch, and answers; what it was told stands beside it.
PEER = """#!{python}
import sys
print("ok sloth 1.0" if sys.argv[2:] == ["cuda"] else "none " + str(sys.argv), flush=True)
for line in sys.stdin:
    print(line, end="", file=open(__file__ + ".log", "a"))
    print({{"make": "ok 7", "run": "ok 0.25", "drop": "ok"}}[line.split()[0]], flush=True)
"""


class Rig:
    def __init__(self, bench, driver, plugin, products, folder):
        self.bench, self.folder = bench, folder
        self.environment = {**{k: v for k, v in os.environ.items() if not k.startswith("AMP_")},
                            "LD_LIBRARY_PATH": os.path.dirname(driver), "AMP_BACKEND_PATH": os.path.dirname(plugin),
                            "AMP_CUBLASLT": products, "MINITAPE_CUBLASLT": products}
        self.number, self.done = 0, {}

    def run(self, *arguments, status=0, **environment):
        done = subprocess.run([self.bench, "--quick", "--device", "cuda", *map(str, arguments)],
                              env={**self.environment, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        must(done.returncode == status, f"{arguments}: status {done.returncode}, not {status}:\n{done.stdout}")
        return done.stdout

    def point(self, what, test, *arguments):
        self.number += 1
        try:
            test(self, *arguments)
            print(f"ok {self.number} - {what}")
        except AssertionError as failure:
            print(f"not ok {self.number} - {what}")
            print("# " + str(failure).replace("\n", "\n# "))


def must(condition, message):
    if not condition:
        raise AssertionError(message)


def peer(folder):
    script = folder / "peer"
    script.write_text(PEER.format(python=sys.executable), encoding="utf-8")
    script.chmod(0o755)
    return script


def every_line(rig, group):
    if group in rig.done:
        return rig.done[group]
    written, log = rig.folder / "results.json", rig.folder / "peer.log"
    log.unlink(missing_ok=True)
    said = rig.run("--group", group, "--bytes", BYTES, "--peers", peer(rig.folder), "--json", written)
    results = json.loads(written.read_text(encoding="utf-8"))
    for count, reference, goal in GROUPS[group]:
        found = [line for line in results if line["reference_name"] == reference and math.isclose(line["goal"], goal)]
        must(len(found) == count, f"{len(found)} lines, not {count}, against {reference}, goal {goal}:\n{said}")
    must(len(results) == sum(count for count, _, _ in GROUPS[group]), f"other lines too:\n{said}")
    for line in results:
        must(line["group"] == group and line["name"] in said and line["reference_name"] in said, line)
        must(all(math.isfinite(line[key]) for key in ("ours", "reference", "ratio")), line)
    must(f"\n{len(results)} lines, " in said and "left out" not in said, said)
    rig.done[group] = said, results, log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return rig.done[group]


def head(rig):
    said, _, _ = every_line(rig, "norm")
    for word in ("GPU: a fake GPU, compute capability 9.0", "toolkit: CUDA ", "peers: sloth 1.0, cuda", "date: ",
                 "tensors: 0.01638 MB"):
        must(word in said, f"no '{word}':\n{said}")


def small_products(rig):
    """The host's time, graphs and algorithms tell whether the host or the GPU limits them."""
    said, results, _ = every_line(rig, "matmul")
    for kind in ("bf16", "fp16"):
        for what, unit in (("the host's time", "ns"), ("in a graph", "ms")):
            must([line["unit"] for line in results if line["name"] == f"{kind}, {what}"] == [unit], said)
    must(said.count("algorithm 40") == 4 and said.count(": libamp: cuda (cuBLASLt") == 2, said)


def no_waits(rig):
    _, results, _ = every_line(rig, "bracket")
    counted = [line for line in results if line["unit"] == "count"]
    must(len(counted) == 4 and all(line["ours"] == 0 and line["ratio"] == 1 for line in counted), results)


def bert(rig):
    """The sizes go to the peer, shrunk to what fits; whole ones are BERT-base's 109,482,240."""
    _, _, log = every_line(rig, "unscale")
    sizes = [int(word) for word in log[0].split()[2:]]
    must(log[0].startswith("make unscale_sizes ") and len(sizes) == 199 and log[-1] == "drop 7", log[:1])
    must(sum(sizes) <= BYTES / 4 + 199 and sizes[0] == max(sizes) and min(sizes) == 1, sizes)
    must(abs(sizes[0] - BYTES / 4 * 30522 * 768 / 109482240) < 1, sizes[0])


def steps(rig):
    _, _, log = every_line(rig, "optim")
    made = [line.split()[1:4] for line in log if line.startswith("make")]
    must(made == [["adam", kind, "200"] for kind in ("fp32", "fp16", "fp32", "bf16", "fp32")], made)


def no_peers(rig):
    said = rig.run("--group", "optim", "--bytes", BYTES)
    must(said.count("left out: against torch: there are no peers") == 3 and "\n4 lines, " in said, said)


def no_products(rig):
    """Without cuBLASLt the other groups have their lines."""
    said = rig.run("--group", "matmul", "--bytes", BYTES, AMP_CUBLASLT="/no/such/file")
    must("matmul   left out: " in said and "/no/such/file" in said and "\n0 lines, " in said, said)


def no_host(rig):
    said = rig.run("--group", "step", "--bytes", BYTES, MINITAPE_CUBLASLT="/no/such/file")
    must("step     left out: cuBLASLt (" in said and "/no/such/file" in said and "\n0 lines, " in said, said)


def no_gpu(rig):
    said = rig.run(LD_LIBRARY_PATH="", CUDA_VISIBLE_DEVICES="")
    must("bench: skipped: there is no NVIDIA" in said and "ratio" not in said, said)


def no_plugin(rig):
    """A plugin that cannot work is a reason, in its words."""
    folder = rig.folder / "broken"
    folder.mkdir()
    (folder / "libamp_cuda.so").write_text("no library\n", encoding="utf-8")
    said = rig.run(AMP_BACKEND_PATH=f"{folder}:{rig.environment['AMP_BACKEND_PATH']}")
    must("bench: skipped: " in said and "backend cuda" in said and "cannot be loaded" in said and "ratio" not in said,
         said)


def main():
    bench, driver, plugin, products = map(os.path.abspath, sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="amp-bench-") as name:
        rig = Rig(bench, driver, plugin, products, pathlib.Path(name))
        for group in GROUPS:
            rig.point(f"{group}: every line, its reference and its goal", every_line, group)
        rig.point("the machine comes first", head)
        rig.point("an iteration waits for nothing", no_waits)
        rig.point("small products are looked at closer", small_products)
        rig.point("BERT-base's tensors are torch's too", bert)
        rig.point("torch's steps are asked for", steps)
        rig.point("without peers it says what is left out", no_peers)
        rig.point("without cuBLASLt it says what is left out", no_products)
        rig.point("without the host's it says so too", no_host)
        rig.point("a plugin that cannot be loaded is said", no_plugin)
        rig.point("too few bytes are refused", lambda rig: rig.run("--bytes", 7, status=2))
        rig.point("where there is no GPU that is said, and no line is written", no_gpu)
    print(f"1..{rig.number}")


if __name__ == "__main__":
    main()
