#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo program as its users meet it: test_program.py TRAIN DLOPEN_HOST LIBAMP

Options and refusals, results.json, curves.svg, what is printed where. Trainings take five steps (one epoch of large
batches); with AMP_TEST_SHORT=1 the sweep is left out.
"""
import json
import math
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

KEYS = ["level", "low_dtype", "seed", "device", "test_accuracy", "train_loss", "steps", "skipped", "loss_scale",
        "param_bytes", "master_bytes", "grad_bytes", "activation_peak_bytes", "seconds", "samples_per_second"]
LOW = {"FP32": "none", "O0": "none", "O1": "fp16", "O2": "fp16", "O3": "fp16", "O4": "bf16", "O5": "bf16"}
FIVE_STEPS = ["--epochs", "1", "--batch", "240", "--seeds", "1"]
SVG = "{http://www.w3.org/2000/svg}"

TRAIN, DLOPEN_HOST, LIBAMP = sys.argv[1:4]
TESTS = []


class Skip(Exception):
    """Cannot be checked here, and why."""


def test(function):
    TESTS.append(function)
    return function


def expect(condition, message):
    if not condition:
        raise AssertionError(message)


def run(*command, status=0, cwd=None):
    """Runs to that status; (stdout, stderr)."""
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=cwd)
    expect(result.returncode == status,
           f"{command}: status {result.returncode}, wanted {status}\n{result.stdout}{result.stderr}")
    return result.stdout, result.stderr


def train(folder, *options, status=0):
    return run(TRAIN, "--output", str(folder), *options, status=status)


def results_of(folder):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")
    return json.loads((folder / "results.json").read_text(encoding="utf-8"), parse_constant=refuse)


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


def check_svg(path, labels):
    root = xml.etree.ElementTree.parse(path).getroot()
    expect(root.tag == SVG + "svg", root.tag)
    texts = ["".join(element.itertext()) for element in root.iter(SVG + "text")]
    for word in [*labels, "training loss", "loss scale", "step"]:
        expect(word in texts, f"no '{word}' among {texts}")
    curves = [path for path in root.iter(SVG + "path") if path.get("stroke-width") in ("1.6", "2.5")]
    expect(len(curves) == 2 * len(labels), f"{len(curves)} curves for {labels}")
    for curve in curves:
        expect(not re.search("nan|inf", curve.get("d")), curve.get("d"))


# ---- what is written and printed

@test
def default_levels(folder):
    """all levels: a table line and a result each, progress in plain lines, both files and nothing else"""
    out, err = train(folder, *FIVE_STEPS)
    results = results_of(folder)
    expect([r["level"] for r in results] == list(LOW), results)
    for r in results:
        expect(list(r) == KEYS, list(r))
        expect(r["low_dtype"] == LOW[r["level"]] and r["seed"] == 1 and r["steps"] == 5 and r["skipped"] == 0, r)
        expect(0 <= r["test_accuracy"] <= 100 and math.isfinite(r["train_loss"]), r)
        expect(r["seconds"] > 0 and r["samples_per_second"] > 0 and r["param_bytes"] > 0, r)
        expect(r["loss_scale"] == (65536 if r["level"] in ("O1", "O2") else 1), r)
        expect((r["master_bytes"] > 0) == (r["level"] in ("O2", "O5")), r)
        expect(re.search(rf"^{r['level']} ", out, re.M), out)
    expect("the same weights bit for bit" in next(line for line in out.splitlines() if line.startswith("  O0")), out)
    expect("7 of 7" in err and "\r" not in err, err)
    expect(not re.search(r"^\w+: *$", err, re.M), "events without words: " + err)
    expect(out.endswith("\nWiring: sound\n"), out)
    check_svg(folder / "curves.svg", list(LOW))
    expect(files_in(folder) == ["curves.svg", "results.json"], files_in(folder))


@test
def json_and_quiet(folder):
    """--json prints the file; --quiet leaves stderr to errors; seeds and levels in their order"""
    out, err = train(folder, "--json", "--quiet", "--level", "O5,FP32", "--level=O5", "--seed", "7", "--epochs", "1",
                     "--batch=240", "--seeds", "2")
    expect(out == (folder / "results.json").read_text(encoding="utf-8"), out)
    expect([(r["level"], r["seed"]) for r in json.loads(out)] == [("O5", 7), ("O5", 8), ("FP32", 7), ("FP32", 8)], out)
    expect(re.fullmatch(r"Results: .*\nWiring: sound\n", err), err)
    check_svg(folder / "curves.svg", ["O5", "FP32"])


@test
def ops(folder):
    """--ops explains each op and counts its calls"""
    out, _ = train(folder, *FIVE_STEPS, "--level", "O1", "--ops")
    expect(re.search(r"^conv2d: lower ", out, re.M), out)
    counters = re.search(r"^conv2d +lower +fp16 +(\d+) +\d+ +(\d+)", out, re.M)
    # Five convolutions in five steps and in the test; six casts each time: the weights and the images.
    expect(counters and counters.groups()[0] == "30", out)
    expect(counters.groups()[1] == "36", out)


@test
def gate(folder):
    """--gate measures: the decisions are told, and what they held back is counted; --host-kernels: nothing to
    measure"""
    out, _ = train(folder, *FIVE_STEPS, "--level", "O4,O5", "--gate", "--ops")
    decision = "gate: (always fp32|always bf16|bf16 from \\d+ elements on, else fp32)"
    expect(re.search(rf"^conv2d: lower .*; {decision} \(amp_gate_set\)$", out, re.M), out)
    expect(re.search(r"^linear: lower .*; gate: always fp32 \(amp_gate_set\)$", out, re.M), out)
    rows = re.findall(r"^conv2d +(\w+) +\w+ +(\d+)(?: +\d+){3} +(\d+)$", out, re.M)
    expect([row[0] for row in rows] == ["lower", "leave"], rows)
    expect(rows[0][1] == "30" and 0 <= int(rows[0][2]) <= 30, rows)
    expect(rows[1][2] == "0", rows)  # at O5 everything comes in 16 bits
    out, _ = train(folder, *FIVE_STEPS, "--level", "O4", "--gate", "--host-kernels", "--ops")
    expect(re.search(r"^conv2d: lower .*; gate: always fp32 \(nothing is known", out, re.M), out)
    expect(re.search(r"^conv2d +lower +fp32 +30(?: +\d+){3} +30$", out, re.M), out)
    out, _ = train(folder, *FIVE_STEPS, "--level", "O0,O4", "--gate", "--fp32-kernels", "--ops")
    expect(len(re.findall(r"^conv2d: .*wrapped; fp32 by an implementation", out, re.M)) == 2, out)
    expect(len(re.findall(r"^conv2d +(?:leave +fp32|lower +\w+) +30 ", out, re.M)) == 2, out)


@test
def skips(folder):
    """2^30: the first skip is explained, all are counted"""
    out, err = train(folder, *FIVE_STEPS, "--level=O2", "--init-scale=1073741824", "--max-scale=2^30")
    result = results_of(folder)[0]
    expect(result["skipped"] == 5 and result["loss_scale"] == 2 ** 25, result)
    expect(err.count("gradient overflow") == 1, err)
    expect("Skipped" in out and "speed count those of skipped steps" in out, out)
    expect(round(result["samples_per_second"] * result["seconds"]) == 1197, result)  # those of an epoch


@test
def diverged(folder):
    """a loss that is not finite is null in JSON and a gap in the curves"""
    train(folder, *FIVE_STEPS, "--level", "FP32,O3", "--lr", "1e30")
    expect(all(r["train_loss"] is None for r in results_of(folder)), results_of(folder))
    check_svg(folder / "curves.svg", ["FP32", "O3"])


@test
def terminal(folder):
    """a bar on a terminal"""
    try:
        master, slave = pty.openpty()
    except OSError as error:
        raise Skip(f"this system gives no terminal: {error}") from error
    subprocess.run([TRAIN, "--output", str(folder), *FIVE_STEPS, "--level", "FP32"], stdout=subprocess.DEVNULL,
                   stderr=slave, stdin=subprocess.DEVNULL, check=True, env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    said = os.read(master, 65536).decode()
    os.close(master)
    expect("\r" in said and "[##" in said and "FP32 seed 1, epoch 1 of 1" in said, repr(said))


@test
def survey(folder):
    """--survey: which level fits, and nothing else"""
    out, _ = train(folder, "--survey", *FIVE_STEPS, "--quiet")
    expect(out.startswith("survey of 5 iterations at O0\n"), out)
    expect(re.search(r"^O2 +yes ", out, re.MULTILINE), out)
    # where the CPU's products are not faster in fp16, bfloat16
    expect("\nadvised: O2, init_scale " in out or "\nadvised: O5 (products in fp16 are not faster " in out, out)
    expect(re.search(r"^O3 +no ", out, re.MULTILINE) and "\n  parameter conv" in out, out)
    expect(not list(folder.iterdir()), sorted(folder.iterdir()))


@test
def sweep(folder):
    """--sweep: every cell in the table and in the results"""
    if os.environ.get("AMP_TEST_SHORT") == "1":
        raise Skip("AMP_TEST_SHORT: 45 trainings are not short")
    out, _ = train(folder, "--sweep", "--epochs", "1", "--quiet")
    results = results_of(folder)
    cells = {(r["batch"], r["lr"], r["level"]) for r in results}
    expect(len(results) == len(cells) == 45, f"{len(results)} results, {len(cells)} cells")
    expect(set(results[0]) == {*KEYS, "batch", "lr"}, results[0])
    rows = re.findall(r"^ *\d+ +[\d.]+((?: +(?:NaN|[\d.]+)\*?){5}) *$", out, re.M)
    expect(len(rows) == 9, out)


# ---- what is refused

@test
def help_writes_nothing(folder):
    """--help lists the options, writes no file"""
    out, err = train(folder, "--help")
    for option in ("--level", "--epochs", "--batch", "--lr", "--optimizer", "--seed", "--seeds", "--loss-scale",
                   "--loss-multiplier", "--keep-batchnorm-fp32", "--master-weights", "--ops", "--json", "--quiet",
                   "--sweep", "--survey", "--output", "--data", "--help", "--gate", "--host-kernels", "--fp32-kernels",
                   "--device"):
        expect(re.search(rf"^  {option} ", out, re.M), f"{option}: {out}")
    expect(err == "" and files_in(folder) == [], err)


@test
def refusals(folder):
    """unknown options, missing and malformed values: status 2, what is wrong, the list"""
    for options, words in [
            (["--epoch", "3"], "no option '--epoch'"), (["fast"], "no option 'fast'"), (["--epochs"], "needs a value"),
            (["--quiet=1"], "takes no value"), (["--epochs", "3x"], "whole number"),
            (["--epochs", "0"], "whole number"),
            (["--batch", "1198"], "1197"), (["--lr", "0"], "greater than 0"), (["--lr", "nan"], "greater than 0"),
            (["--lr", "inf"], "greater than 0"), (["--optimizer", "lion"], "sgd or adam"),
            (["--loss-scale", "automatic"], "dynamic"), (["--loss-multiplier", "2^0.5"], "2^-16"),
            (["--loss-multiplier", "2^"], "2^-16"), (["--master-weights", "yes"], "on, off, split or stochastic"),
            (["--activations", "3"], "8, 4 or 2"),
            (["--device", "gpu"], "cpu or cuda"), (["--level", "O6"], "O6"), (["--level", "O1,"], "--level"),
            (["--level", ""], "--level"),
            (["--output", "--json"], "a folder"), (["--sweep", "--level", "O1"], "does not go with --sweep"),
            (["--survey", "--level", "FP32"], "use a level, O0 to O5")]:
        out, err = train(folder, *options, status=2)
        expect(out == "" and words in err and "--help" in err, f"{options}: {out}{err}")
    for name in ("o1", "01"):
        _, err = train(folder, "--level", name, status=2)
        expect("O1" in err.split("options:")[0], err)
    expect(files_in(folder) == [], files_in(folder))


@test
def errors(folder):
    """libamp's own refusals and the system's: status 1, in words, no file"""
    for options, words in [
            (["--level", "FP32,O1", "--keep-batchnorm-fp32", "on"], "keep_batchnorm_fp32"),
            (["--level", "O1", "--master-weights", "on"], "master_weights"),
            (["--init-scale", "2^30"], "max_scale"), (["--data", "/nowhere/digits"], "/nowhere/digits"),
            (["--data", __file__], "test_program.py:1")]:
        out, err = train(folder, *FIVE_STEPS, *options, status=1)
        expect(out == "" and words in err, f"{options}: {out}{err}")
    expect(files_in(folder) == [], files_in(folder))
    _, err = train(folder / "no" / "such", status=1)
    expect("no/such" in err, err)


# ---- a GPU

@test
def no_gpu(folder):
    """--device cuda where there is none: status 2, what is missing, no file"""
    result = subprocess.run([TRAIN, "--output", str(folder), *FIVE_STEPS, "--device", "cuda"], capture_output=True,
                            text=True, stdin=subprocess.DEVNULL, check=False,
                            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    expect(result.returncode == 2 and result.stdout == "", f"{result.returncode}: {result.stdout}{result.stderr}")
    expect(re.fullmatch(r"train: --device cuda: (.*NVIDIA.*driver.*|.*built without CUDA.*nvcc.*)\n", result.stderr),
           result.stderr)
    expect(files_in(folder) == [], files_in(folder))


@test
def gpu(folder):
    """--device cuda: the same table, every level"""
    result = subprocess.run([TRAIN, "--output", str(folder), *FIVE_STEPS, "--device", "cuda"], capture_output=True,
                            text=True, stdin=subprocess.DEVNULL, check=False)
    if result.returncode == 2:
        raise Skip(result.stderr.strip())
    expect(result.returncode == 0, result.stderr)
    for r in results_of(folder):
        expect(list(r) == KEYS and r["device"] == "cuda" and r["steps"] == 5 and r["skipped"] == 0, r)
        expect(0 <= r["test_accuracy"] <= 100 and math.isfinite(r["train_loss"]) and r["samples_per_second"] > 0, r)
    expect(" on " in result.stdout, result.stdout)
    check_svg(folder / "curves.svg", list(LOW))


# ---- the other program

@test
def dlopen_host(folder):
    """dlopen_host trains by the library's path, registers its function, and fails without the library"""
    out, err = run(DLOPEN_HOST, LIBAMP)
    expect(not err, f"it has no hook event, and was warned of:\n{err}")
    losses = [float(loss) for loss in re.findall(r"loss ([\d.e-]+)$", out, re.M)]
    expect(losses[-1] < 1e-3 < losses[0], out)
    expect(re.search(r"^linear +fp16", out, re.M) and re.search(r"^misfit +fp32", out, re.M), out)
    _, err = run(DLOPEN_HOST, str(folder / "libamp.so"), status=1)
    expect("libamp.so" in err, err)


def main():
    print(f"1..{len(TESTS)}")
    for number, function in enumerate(TESTS, 1):
        what = function.__doc__
        with tempfile.TemporaryDirectory(prefix="amp-train-") as folder:
            try:
                function(pathlib.Path(folder))
                print(f"ok {number} - {what}")
            except Skip as skip:
                print(f"ok {number} - {what} # SKIP {skip}")
            except Exception as error:  # pylint: disable=broad-except
                print(f"not ok {number} - {what}")
                for line in f"{type(error).__name__}: {error}".splitlines()[-60:]:
                    print(f"# {line}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
