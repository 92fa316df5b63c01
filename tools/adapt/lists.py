# SPDX-License-Identifier: Apache-2.0
"""What libamp's cast lists say of a C function's name: Lists(folder).find("nn_dense_forward", "nn_") -> Listed."""
import pathlib
import re
from dataclasses import dataclass

# What C programs call an op of the lists. "": known, and of no list.
SYNONYMS = {
    "gemm": "matmul", "sgemm": "matmul", "dgemm": "matmul", "hgemm": "matmul", "mulmat": "matmul", "matmult": "matmul",
    "gemv": "mv", "sgemv": "mv", "dgemv": "mv", "matvec": "mv", "ger": "addr", "sger": "addr", "sdot": "dot",
    "ddot": "dot", "dense": "linear", "fc": "linear", "fullyconnected": "linear", "connected": "linear",
    "innerproduct": "linear", "conv": "conv2d", "convolutional": "conv2d", "convolve": "convolution", "conv2": "conv2d",
    "deconv": "conv_transpose2d", "deconvolutional": "conv_transpose2d", "attention": "scaled_dot_product_attention",
    "layernorm": "layer_norm", "groupnorm": "group_norm", "rmsnorm": "rms_norm", "l2norm": "normalize",
    "normalization": "local_response_norm", "lrn": "local_response_norm", "mse": "mse_loss", "nll": "nll_loss",
    "crossentropy": "cross_entropy", "xent": "cross_entropy", "logxent": "cross_entropy", "logsoftmax": "log_softmax",
    "rnn": "rnn_tanh", "batchnorm": "batch_norm", "bn": "batch_norm",
}
UNLISTED = ["batch_norm", "relu", "sigmoid", "tanh", "dropout", "max_pool2d", "avg_pool2d", "embedding"]  # by no list
BACKWARD = {"backward", "back", "bwd", "bprop", "grad", "gradient", "backprop"}
NOISE = BACKWARD | {"forward", "fwd", "fprop", "cpu", "layer", "kernel", "op", "f32",
         "float", "apply", "compute", "run"}
LOSS = re.compile(r"loss|cost|entropy|xent|criterion|(^|_)(mse|nll)(_|$)", re.IGNORECASE)
ENTRY = re.compile(r"^AMP_LIST_OP\((\w+), [^,]+, (\w+), (\w+)\)|^/\* (.*?) \*/$", re.MULTILINE)
MEANS = {"LOWER": "16 bits at O1 and O4", "FP32": "FP32", "PROMOTE": "the widest type among its arguments",
         "PROMOTE_SEQUENCE": "the widest type in its list", "BANNED": "refuses 16 bits"}


@dataclass
class Listed:
    name: str   # in the lists, or among those that are known to stand in none
    policy: str  # LOWER, ..., or ""
    why: str    # the heading that it stands under

    @property
    def lower(self):
        return self.policy == "LOWER"

    def words(self):
        """What that means at O1 and O4."""
        if not self.policy:
            return "in no cast list: it runs as it comes"
        why = "" if self.policy.startswith("PROMOTE") else f" ({self.why})"
        return f"by the cast lists {MEANS[self.policy]}{why}"


def words_of(name):
    """nn_denseForward2D -> ["nn", "dense", "forward", "2d"]"""
    return [each.lower() for each in re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*d?(?![a-z])|\d+[a-z]?", name)]


def is_backward(name):
    return bool(BACKWARD & set(words_of(name))) or bool(re.match(r"d[A-Z]|d_", name))


def stem(name):
    """What is left of a name without forward, backward and the like: pairs have one."""
    return "_".join(each for each in words_of(name) if each not in NOISE)


def common_prefix(names):
    """"nn_" of nn_dense and nn_softmax."""
    words = [name.split("_") for name in names]
    first = words[0][0] + "_" if len(names) > 1 and len(words[0]) > 1 else ""
    return first if first and all(name.startswith(first) for name in names) else ""


class Lists:
    def __init__(self, folder):
        self.entries = {}
        for file in ("apex.inc", "today.inc", "wide.inc"):
            why = ""
            for name, fp16, _, heading in ENTRY.findall((pathlib.Path(folder) / file).read_text(encoding="utf-8")):
                why = heading or why
                if name:
                    self.entries[name] = Listed(name, fp16, why)
        for name in UNLISTED:
            self.entries.setdefault(name, Listed(name, "", ""))
        self.flat = {name.replace("_", ""): entry for name, entry in self.entries.items() if not name.startswith("__")}

    def find(self, name, prefix=""):
        """By the longest run of words that a list, or a habit of C programs, knows; None: there is none."""
        words = [each for each in words_of(name[len(prefix):] if name.startswith(prefix) else name)
                 if each not in NOISE]
        runs = [words[i:j] for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
        for run in sorted(runs, key=len, reverse=True):
            flat = "".join(run)
            found = self.flat.get(SYNONYMS.get(flat, flat).replace("_", ""))
            if found:
                return found
        return None
