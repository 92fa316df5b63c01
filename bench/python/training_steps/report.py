# SPDX-License-Identifier: Apache-2.0
"""Tables and ratios of what was measured, as JSON has it. Knows no torch."""
import statistics
from typing import Any

LOST = 70  # the status of a process that the GPU no longer answers
EVERY, TRANSFORMERS = ("gpt2", "bert", "resnet50", "mlp"), ("gpt2", "bert")
TITLES = {"gpt2": "GPT-2", "bert": "BERT", "resnet50": "ResNet-50", "mlp": "MLP"}
METRICS: dict[str, dict[str, tuple[str, str, float]]] = {  # on each device: its name, its unit, how many a value has
    "gpu_ms": {"cuda": ("GPU time", "ms", 1.0)},
    "kernels": {"cuda": ("kernels", "", 1.0), "cpu": ("aten calls", "", 1.0)},
    "copies": {"cuda": ("copies", "", 1.0), "cpu": ("copies", "", 1.0)},
    "host_ms": {"cuda": ("host time", "ms", 1.0), "cpu": ("host time", "ms", 1.0)},
    "step_ms": {"cuda": ("step", "ms", 1.0), "cpu": ("step", "ms", 1.0)},
    "mib": {"cuda": ("memory", "MiB", 1.0), "cpu": ("kept for backward", "KiB", 1024.0)},
}
# On a GPU, what the reference takes over what the mode takes: modes, reference, metric, models, least ratio
GOALS = [
    (("O1-torch", "O4-torch"), "autocast", "gpu_ms", EVERY, 1.0),
    (("O1", "O4"), "autocast", "gpu_ms", ("gpt2", "resnet50"), 0.99),
    (("O2", "O5"), "autocast", "gpu_ms", TRANSFORMERS, 1.2),
    (("O2", "O5"), "autocast", "gpu_ms", ("resnet50",), 1.0),
    (("O5", "O5-bf16-outputs"), "bf16-masters", "gpu_ms", EVERY, 1.0),  # by hand no output becomes FP32
    (("O2-fused", "O5-fused"), "torch's optimizer", "gpu_ms", EVERY, 1.0),
    (("O2-fused", "O5-fused"), "torch's optimizer", "host_ms", EVERY, 1.0),
    (("O1", "O1-torch", "O2", "O4", "O4-torch", "O5"), "autocast", "mib", EVERY, 1.0),
]


def new_state(device: str) -> dict[str, Any]:
    """As the file has it, before anything is measured. results: model, mode, round -> a record of gauges.py."""
    return {"device": device, "tiny": device == "cpu", "machine": {}, "sizes": {}, "results": {}, "seconds": {},
            "left_out": {}, "failed": {}, "running": None}


def plain(mode: str) -> str:
    return mode.removesuffix("-compiled")


def references(mode: str) -> dict[str, str]:
    """What a mode is compared with: what that is called in GOALS, and the mode that it is. Compiled with compiled."""
    tail, mode = mode[len(plain(mode)):], plain(mode)
    if not mode.startswith("O"):
        return {}
    found = {"autocast": ("autocast-fp16" if mode.startswith(("O1", "O2", "O3")) else "autocast-bf16") + tail}
    if mode in ("O5", "O5-bf16-outputs"):
        found["bf16-masters"] = "bf16-masters" + tail
    if mode.endswith("-fused"):
        found["torch's optimizer"] = mode.removesuffix("-fused")
    return found


def goal_of(model: str, mode: str, against: str, metric: str, device: str) -> float:
    for modes, other, what, models, least in GOALS:
        if device == "cuda" and plain(mode) in modes and (other, what) == (against, metric) and model in models:
            return least
    return 0.0


def median(records: list[dict[str, Any]], metric: str) -> float | None:
    values = [record[metric] for record in records if record.get(metric) is not None]
    return statistics.median(values) if values else None


def compare(results: dict[str, Any], device: str) -> list[dict[str, Any]]:
    """A line for each mode, reference and metric: medians, and the ratios of the rounds that both have."""
    lines = []
    for model, modes in results.items():
        for mode, rounds in modes.items():
            for against, other in references(mode).items():
                both = [(rounds[r], modes[other][r]) for r in sorted(rounds) if r in modes.get(other, {})]
                for metric in METRICS:
                    pairs = [(a[metric], b[metric]) for a, b in both if a.get(metric) and b.get(metric)]
                    if not pairs:
                        continue
                    ratios = [theirs / ours for ours, theirs in pairs]
                    first, middle, last = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
                    lines.append({
                        "model": model, "mode": mode, "against": other, "metric": metric, "rounds": len(ratios),
                        "ours": statistics.median(a for a, _ in pairs),
                        "reference": statistics.median(b for _, b in pairs),
                        "ratio": middle, "quartiles": [first, last], "ratios": ratios,
                        "goal": goal_of(model, mode, against, metric, device)})
    return lines


# ---- text -----------------------------------------------------------------------------------------------------------


def number(value: float | None, digits: int, width: int) -> str:
    return f"{'-' if value is None else f'{value:.{digits}f}':>{width}}"


def table(state: dict[str, Any]) -> list[str]:
    cuda = state["device"] == "cuda"
    lines = [f"{'model':<10}{'mode':<24}{'kernels' if cuda else 'aten calls':>10}{'GPU ms':>10}{'copies':>8}{'ms':>8}"
             f"{'host ms':>10}{'MiB':>11}{'step ms':>10}{'loss':>10}{'rounds':>8}"]
    for model, modes in state["results"].items():
        for mode, rounds in modes.items():
            records = list(rounds.values())
            columns = (("kernels", 0, 10), ("gpu_ms", 3, 10), ("copies", 0, 8), ("copies_ms", 3, 8), ("host_ms", 2, 10),
                       ("mib", 1 if cuda else 3, 11), ("step_ms", 3, 10), ("loss", 4, 10))
            lines.append(f"{model:<10}{mode:<24}" + "".join(number(median(records, m), d, w) for m, d, w in columns)
                         + f"{len(records):>8}")
    return lines


def cell(line: dict[str, Any] | None) -> str:
    """The ratio, its quartiles where they differ, and the goal; as bench's other groups, "!" where it is missed."""
    if line is None:
        return "-"
    low, high = line["quartiles"]
    spread = f" ({low:.2f}-{high:.2f})" if f"{low:.2f}" != f"{high:.2f}" else ""
    missed = " !" if line["ratio"] < line["goal"] else ""
    return f"{line['ratio']:.3f}{spread}" + (f" goal {line['goal']:.2f}{missed}" if line["goal"] else "")


def ratios(lines: list[dict[str, Any]], device: str) -> list[str]:
    """A row for each mode and reference: what the reference takes over what the mode takes."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in lines:
        rows.setdefault((line["model"], line["mode"], line["against"]), {})[line["metric"]] = line
    names = {metric: on[device][0] for metric, on in METRICS.items() if device in on}
    text = [f"{'model':<10}{'mode':<24}{'reference / ours':<24}" + "".join(f"{name:<30}" for name in names.values())]
    for (model, mode, against), row in rows.items():
        text.append(f"{model:<10}{mode:<24}{against:<24}" + "".join(f"{cell(row.get(metric)):<30}" for metric in names))
    return [line.rstrip() for line in text]


def text_of(state: dict[str, Any]) -> str:
    lines = compare(state["results"], state["device"])
    said = [*table(state), "", *ratios(lines, state["device"]), ""]
    left_out: dict[str, list[str]] = {}
    for name, why in state["left_out"].items():
        left_out.setdefault(why, []).append(name)
    said += [f"left out: {', '.join(names)}: {why}" for why, names in left_out.items()]
    said += [f"FAILED: {name}: {why}" for name, why in state["failed"].items()]
    goals = [line for line in lines if line["goal"]]
    missed = sum(line["ratio"] < line["goal"] for line in goals)
    said.append(f"{len(goals)} goals, {missed} missed; {len(state['failed'])} modes failed, "
                f"{len(state['left_out'])} left out")
    return "\n".join(said)
