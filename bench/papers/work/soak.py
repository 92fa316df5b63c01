# SPDX-License-Identifier: Apache-2.0
"""Long runs under a trace and observing: resident memory, size of the trace, processor time of a step. The C host is
the demo, built by tools/demo. In Python a small network, eager and compiled, in a process each:

    python -m papers.work.soak eager 100000     prints its samples as JSON
"""
import functools
import gc
import json
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from ..figure import Budget, Data

ROOT = pathlib.Path(__file__).resolve().parents[3]
KEPT = ROOT / "build" / "results" / "soak"
SAMPLES = 100
TRAINED, BATCH = 1197, 2  # images of the demo's training, of them in a step
EPOCH = TRAINED // BATCH
C_STEPS, PYTHON_STEPS = 10**6, 10**5
WINDOW = 20  # the loss scale grows until it overflows, again and again
LIMIT = 8 << 20  # bytes of the trace; 64 MiB unless AMP_TRACE_BYTES says otherwise


def resident(process: int | str) -> int:
    pages = pathlib.Path(f"/proc/{process}/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def sample(step: int, seconds: float, rss: int, trace: pathlib.Path) -> list[float]:
    """Step, microseconds of a step since the sample before, resident KiB, KiB of the trace."""
    return [step, round(seconds * 1e6, 1), rss // 1024, trace.stat().st_size // 1024 if trace.exists() else 0]


def traced(trace: pathlib.Path) -> dict[str, str]:
    return {**os.environ, "AMP_TRACE": str(trace), "AMP_TRACE_BYTES": str(LIMIT), "AMP_OBSERVE": "1"}


# ---- the C host ----


def processor_time(process: int) -> float:
    """Returns seconds of user and system time."""
    fields = pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def host(steps: int, seconds: float) -> Data:
    """tools/demo, whose progress on a terminal names each epoch. seconds: of the processor, after which it is ended."""
    epochs = max(1, round(steps / EPOCH))
    every = max(1, epochs // SAMPLES)
    samples: list[list[float]] = []
    terminal, other = pty.openpty()
    with tempfile.TemporaryDirectory(prefix="amp-soak-") as folder:
        trace = pathlib.Path(folder) / "run.jsonl"
        command = [str(ROOT / "tools" / "demo"), "--level", "O2", "--batch", str(BATCH), "--epochs", str(epochs),
                   "--seeds", "1", "--lr", "0.002", "--output", folder]
        subprocess.run([*command[:1], "--epochs", "1", "--level", "O0", "--seeds", "1", "--quiet", "--output", folder],
                       check=True, stdout=subprocess.DEVNULL)  # it is built
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=other, text=True,
                              env={**traced(trace), "TERM": "vt100"}) as run:
            os.close(other)
            said, last, spent = "", 0, 0.0
            while (text := _read(terminal)) and processor_time(run.pid) < seconds:
                said = (said + text)[-400:]
                done = [int(number) for number in re.findall(r"epoch (\d+) of", said)]
                if not done or done[-1] < last + every:
                    continue
                now = processor_time(run.pid)
                samples.append(sample(done[-1] * EPOCH, (now - spent) / ((done[-1] - last) * EPOCH), resident(run.pid),
                                      trace))
                last, spent = done[-1], now
            run.terminate()
        lines = trace.read_text(encoding="utf-8").splitlines()
    os.close(terminal)
    end = json.loads(lines[-1])
    return {"name": "C host (demo, O2)", "steps": last * EPOCH, "samples": samples,
            "end": end if end["kind"] == "end" else {}}


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 4096).decode("utf-8", "replace")
    except OSError:  # the other end is closed
        return ""


# ---- Python ----


def train(compiled: bool, steps: int) -> list[list[float]]:
    """O1, a dynamic scale, and an overflow in one step of a thousand beside those that the scale makes."""
    import torch
    from libamp.torch import amp
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0, loss_scale="dynamic",
                                      window=WINDOW)
    call = torch.compile(model) if compiled else model
    x = torch.randn(8, 16)
    trace, samples, every = pathlib.Path(os.environ["AMP_TRACE"]), [], max(1, steps // SAMPLES)
    gc.freeze()  # torch's own objects
    begin = time.thread_time()
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(call(x).float(), x)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
            if step % 1000 == 0:
                next(model.parameters()).grad.fill_(float("inf"))
        optimizer.step()
        if step % every == 0:
            spent = time.thread_time() - begin
            gc.collect()
            samples.append(sample(step, spent / every, resident("self"), trace))
            begin = time.thread_time()
    amp.shutdown()
    return samples


def python(kind: str, steps: int) -> Data:
    with tempfile.TemporaryDirectory(prefix="amp-soak-") as folder:
        trace = pathlib.Path(folder) / "run.jsonl"
        done = subprocess.run([sys.executable, "-m", __name__, kind, str(steps)], check=True, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              env=traced(trace))
        end = json.loads(trace.read_text(encoding="utf-8").splitlines()[-1])
    return {"name": f"Python, {kind} (O1)", "steps": steps, "samples": json.loads(done.stdout.splitlines()[-1]),
            "end": end}


def kept(name: str, budget: Budget, run: Callable[[], Data]) -> Data:
    """Returns the result of a run. One of the slow tier that ended is kept in a file, and not repeated."""
    file = KEPT / f"{name}.json"
    if budget.slow and file.exists():
        found: Data = json.loads(file.read_text(encoding="utf-8"))
        return found
    found = run()
    if budget.slow and found["end"]:
        KEPT.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found), encoding="utf-8")
    return found


def measure(budget: Budget) -> Data:
    """The C host has half of the time."""
    part = 1 if budget.slow else 0.03 if budget.quick else 0.1
    runs = [kept("host", budget, lambda: host(int(C_STEPS * part), 0.5 * budget.seconds))]
    for kind in ("eager", "compiled"):
        runs.append(kept(kind, budget, functools.partial(python, kind, int(PYTHON_STEPS * part))))
    data: Data = {"seeds": [0], "steps": {run["name"]: run["steps"] for run in runs}, "slow": budget.slow, "runs": runs}
    if not runs[0]["end"]:
        data["stopped"] = "the C host made fewer steps than planned."
    return data


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1] == "compiled", int(sys.argv[2]))))
