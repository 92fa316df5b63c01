# SPDX-License-Identifier: Apache-2.0
"""Lines of a trace (docs/reference/trace.md), as libamp would write them."""

import html.parser
import json

import numpy as np


def maker(tmp_path):
    def made(name="run.jsonl", **options):
        path = tmp_path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines(**options)))
        return str(path)

    return made


class Elements(html.parser.HTMLParser):
    """What a browser would make of the page: elements and their attributes, texts, and what lies in scripts."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.attributes, self.texts, self.scripts, self.inside = [], [], [], [], None
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        else:
            self.texts.append(data)


FINDING = {"kind": "told", "context": 1, "n": 1, "as": "warning", "code": "AMP-M07", "status": None,
           "message": "3 of them"}  # fmt: skip


def seen(n, what="gradient", op=None, name="w", values=(0.5, 1.0, 0.0), **more):
    """As libamp would count these."""
    x = np.asarray(values, dtype=np.float64)
    finite = x[np.isfinite(x) & (x != 0)]
    exponents = np.frexp(np.abs(finite))[1] - 1
    first = int(exponents.min()) if len(exponents) else 0
    binades = np.bincount(exponents - first).tolist() if len(exponents) else []
    return {
        "kind": "seen",
        "context": 1,
        "n": n,
        "what": what,
        "op": op,
        "index": 0,
        "name": name,
        "type": "fp32",
        "tensors": 1,
        "elements": len(x),
        "zeros": int((x == 0).sum()),
        "nans": int(np.isnan(x).sum()),
        "plus_infinities": int((x == np.inf).sum()),
        "minus_infinities": int((x == -np.inf).sum()),
        "largest": float(abs(finite).max(initial=0)),
        "least": float(abs(finite).min(initial=1e300)),
        "sum": float(finite.sum()),
        "sum_squares": float((finite**2).sum()),
        "fp16": [0, 0, 0],
        "bf16": [0, 0, 0],
        "first": first,
        "binades": binades,
        **more,
    }


def lines(level="O1", skips=(2,), more=(), told=True):
    argument = {
        "output": True,
        "name": "return",
        "type": "fp16",
        "elements": 8,
        "nonfinite": 1,
        "largest": 6e4,
        "least": 1e-3,
    }
    yield {
        "kind": "start",
        "context": 1,
        "version": 1,
        "libamp": "0.1.0",
        "pid": 7,
        "rank": None,
        "level": level,
        "type": "fp16",
        "dynamic": True,
        "scale": 65536,
        "losses": 1,
    }
    yield {
        "kind": "wired",
        "context": 1,
        "language": "python",
        "models": 1,
        "optimizers": 1,
        "ops": 2,
        "params": 1,
        "elements": 1024,
        "trained": 1024,
        "low": 1024 if level == "O2" else 0,
        "masters": 1024 if level == "O2" else 0,
    }
    scale = 65536
    for n in (1, 2, 3):
        skipped = n in skips
        if skipped:
            yield {
                "kind": "call",
                "context": 1,
                "n": n,
                "call": 4,
                "op": "softmax",
                "index": 1,
                "arguments": [argument],
            }
            yield {
                "kind": "culprit",
                "context": 1,
                "n": n,
                "op": "softmax",
                "index": 1,
                "call": 4,
                "was_cast": True,
                "in_backward": False,
                "parameter": "w",
                "cause": "cast",
                "weight": None,
                "since": 0,
                "since_least": 0,
                "arguments": [argument],
            }
        yield {
            "kind": "bracket",
            "context": 1,
            "n": n,
            "loss": 0,
            "action": "skip" if skipped else "step",
            "scale": scale,
            "next": scale // 2 if skipped else scale,
            "overflow": "w" if skipped else None,
            "left_out": 0,
        }
        scale = scale // 2 if skipped else scale
    yield from more
    if told:
        yield FINDING
    yield {
        "kind": "advice",
        "context": 1,
        "code": "AMP-A01",
        "op": "softmax",
        "index": 0,
        "name": None,
        "levels": ["O2"],
        "elements": 3,
        "of": 8,
        "message": "AMP-A01 op softmax: 3 of 8",
    }
    of_level = {"advice": 1, "weights": 2048, "gradients": 2048, "masters": 4096, "outputs": 8}
    each_level = [{"level": f"O{i}", "fits": i % 3, **of_level} for i in range(6)]
    yield {"kind": "survey", "context": 1, "level": "O1", "init_scale": 4096, "iterations": 3, "levels": each_level}
    yield {
        "kind": "op",
        "context": 1,
        "model": 0,
        "name": "linear",
        "index": 0,
        "class": "lower",
        "calls": 3,
        "passed": 0,
        "casts": 6,
        "cache_hits": 2,
        "failures": 0,
    }
    yield {"kind": "end", "context": 1, "brackets": 3, "skipped": len(skips), "left_out": 0, "lost": 0}
