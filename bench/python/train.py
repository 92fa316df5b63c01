#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Whole training steps of GPT-2, BERT, a ResNet and an MLP with LayerNorm: libamp's levels beside torch.autocast and a
bfloat16 model whose FP32 masters are kept by hand, eager and compiled. A group of tools/bench --python, and a program
that needs torch and libamp alone (transformers and torchvision for three of the models):

    train.py --device cuda --seconds 200 --json FILE [gpt2] [bert] [resnet50] [mlp]

On a GPU, torch's profiler counts and times the kernels of one step. On the CPU the models are tiny, and aten calls are
counted instead. A second process does the work; it is started again if a mode ended it.
"""
import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import Bench

HERE = pathlib.Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from training_steps import report  # noqa: E402

STUCK = 300.0  # seconds that one mode may take
GRACE = 30.0  # seconds beyond --seconds, for what was begun


def arguments_of(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="training steps beside torch.autocast")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(report.EVERY)} (all)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin nothing that would end later (no limit)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", action="append", default=[], metavar="PATTERN",
                        help="as 'O4*'; may be repeated (on the CPU all that are not compiled)")
    parser.add_argument("--compiled", action=argparse.BooleanOptionalAction, default=None,
                        help="also compiled by inductor, last (on a GPU)")
    parser.add_argument("--layers", type=int, help="of the transformers and the MLP")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="what was measured; kept as it goes")
    parser.add_argument("--quick", action="store_true", help="fewer steps a round")
    parser.add_argument("--check", action="store_true", help="status 1 if a goal is missed")
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)  # the second process
    arguments = parser.parse_args(words)
    unknown = [name for name in arguments.models if name not in report.EVERY]
    if unknown:
        parser.error(f"no model is named {unknown[0]}: {', '.join(report.EVERY)}")
    if arguments.rounds < 1 or arguments.seconds < 0 or (arguments.layers is not None and arguments.layers < 1):
        parser.error("--rounds and --layers are 1 at least, --seconds 0 (no limit)")
    arguments.models = arguments.models or list(report.EVERY)
    return arguments


def work(arguments: argparse.Namespace) -> int:
    """The second process. It goes on from what the file has."""
    import torch
    from training_steps.gauges import gauge_of
    from training_steps.session import Session, chosen, describe

    state = json.loads(arguments.json.read_text(encoding="utf-8"))
    if arguments.device == "cuda":
        if not torch.cuda.is_available():
            state["left_out"]["all"] = "torch sees no GPU"
            arguments.json.write_text(json.dumps(state), encoding="utf-8")
            return 0
        torch.backends.cudnn.benchmark = True
    else:
        torch.set_num_threads(1)
    state["machine"] = describe(arguments.device)
    compiled = arguments.device == "cuda" if arguments.compiled is None else arguments.compiled
    session = Session(state, arguments.json, deadline=arguments.until or float("inf"), layers=arguments.layers,
                      gauge=gauge_of(arguments.device, arguments.quick))
    session.run(arguments.models, chosen(arguments.modes, compiled), arguments.rounds)
    return 0


def measure(bench: "Bench") -> None:
    """The group of tools/bench --python: here, in this process. On the CPU other models, which are whole ones."""
    if bench.device == "cpu":
        from training_steps import cpu

        return cpu.measure(bench)
    from training_steps.gauges import gauge_of
    from training_steps.session import Session, chosen

    trial = bench.rounds == 1  # does it run?
    state = report.new_state(bench.device)
    until = time.monotonic() + bench.seconds if bench.seconds else float("inf")
    session = Session(state, deadline=until, gauge=gauge_of(bench.device, bench.quick or trial))
    modes = chosen(["*bf16", "O4", "O5", "bf16-*s"] if trial else [], bench.device == "cuda" and not bench.quick)
    session.run(["mlp"] if trial else list(report.EVERY), modes, 1 if trial else 2 if bench.quick else 3)
    for line in report.compare(state["results"], bench.device):
        what, unit, times = report.METRICS[line["metric"]][bench.device]
        name = f"{report.TITLES[line['model']]}, {line['mode']}, {what}"
        bench.compared(name, state["sizes"][line["model"]], unit, times * line["ours"], times * line["reference"],
                       line["ratios"], line["against"], line["goal"])
    for what in ("left_out", "failed"):
        for name, why in state[what].items():
            print(f"{bench.group:<8} {name:<34} {'':<15} {what.replace('_', ' ')}: {why[:80]}")
    bench.failed += len(state["failed"])


def wait(process: "subprocess.Popen[bytes]", file: pathlib.Path, until: float, patience: float) -> str:
    """To its end: why it was ended, or an empty text."""
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
            break
        late, stuck = time.monotonic() > until + GRACE, time.time() - file.stat().st_mtime > patience
        if late or stuck:
            process.kill()
            process.wait()
            return "there was no time for it" if late else f"it took more than {patience:.0f} s"
    return ""


def supervise(command: list[str], file: pathlib.Path, until: float, patience: float = STUCK) -> dict[str, Any]:
    """Runs the command, which keeps `file`, until it ends by itself. A mode that ends the process or takes too long is
    a failure, and the command is started again for the rest."""
    while True:
        process = subprocess.Popen(command)
        why = wait(process, file, until, patience)
        state = json.loads(file.read_text(encoding="utf-8"))
        running, state["running"] = state["running"], None
        late = time.monotonic() > until
        if process.returncode == 0:
            return state
        if late and why:
            state["left_out"][running or "the rest"] = why
        elif running in state["failed"] and process.returncode == report.LOST:
            pass
        else:
            state["failed"][running or "the process"] = why or f"it ended the process: status {process.returncode}"
        if late or running is None:
            return state
        file.write_text(json.dumps(state), encoding="utf-8")


def main() -> int:
    arguments = arguments_of()
    if arguments.until:
        return work(arguments)
    file = (arguments.json or pathlib.Path(f"train-{arguments.device}.json")).resolve()
    until = time.monotonic() + arguments.seconds if arguments.seconds else 1e18
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report.new_state(arguments.device)), encoding="utf-8")
    command = [sys.executable, str(HERE / "train.py"), *sys.argv[1:], "--json", str(file), "--until", repr(until)]
    state = supervise(command, file, until)
    lines = report.compare(state["results"], state["device"])
    file.write_text(json.dumps(state | {"comparisons": lines}, indent=1) + "\n", encoding="utf-8")
    print(", ".join(f"{name} {value}" for name, value in state["machine"].items() if value))
    print(report.text_of(state))
    if state["failed"] or not state["results"]:
        return 1
    return int(arguments.check and any(line["ratio"] < line["goal"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
