# SPDX-License-Identifier: Apache-2.0
"""A right script, which one edit makes another of, and what that one hears."""

import re
import warnings

import pytest

torch = pytest.importorskip("torch")

from levels import LEVELS  # noqa: E402
from libamp import FindingWarning  # noqa: E402
from libamp.torch import amp  # noqa: E402

SCRIPT = """
import copy
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from libamp.torch import amp
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
# before
model, optimizer = amp.initialize(model, optimizer, opt_level=LEVEL, verbosity=0)
# after
for step in range(10):
    x, y = torch.randn(16, 8), torch.randn(16, 4)
    optimizer.zero_grad()
    out = model(x)
    loss = nn.functional.mse_loss(out.float(), y)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    optimizer.step()
    # last
"""
BRACKET = "    with amp.scale_loss(loss, optimizer) as scaled_loss:\n        scaled_loss.backward()\n"
CLIP = "torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)"
TWIN = "nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))"
ANY = LEVELS
LAYER = "model.append(nn.Linear(4, 4).to(model[0].weight))"
FIRST, TEN, AT_INITIALIZE = "first bracket", "10 steps", "initialize"


OF_C = re.compile(r"\bamp_\w|\bAMP_(?!OBSERVE|NUM_THREADS)|\bslot|\bhook")  # words of the C API, no variables


def run(old, new, level):
    """[(code, how soon, the line)], and what was raised."""
    assert old in SCRIPT, old
    text = SCRIPT.replace(old, new, 1).replace("LEVEL", repr(level))
    if "scaler." in text and not hasattr(torch.amp, "GradScaler"):
        pytest.skip("this torch has a GradScaler for CUDA alone")
    if "scaler." in text:
        text = text.replace("# before", "scaler = torch.amp.GradScaler('cpu', init_scale=2.0)")
    names, heard, lines = {"__name__": "script"}, [], text.split("\n")

    def hear(message, category, filename, lineno, *rest):
        if issubclass(category, FindingWarning):
            assert not OF_C.search(str(message)), message
            step = names.get("step")
            soon = AT_INITIALIZE if step is None else FIRST if step == 0 else TEN
            at = lines[lineno - 1] if filename == "script.py" else f"{filename}:{lineno}"
            heard.append((str(message)[:7], soon, at))

    own, raised = amp.scale_loss, None
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = hear
        try:
            exec(compile(text, "script.py", "exec"), names)
        except Exception as error:
            raised = error
        finally:
            amp.scale_loss = own
            amp.shutdown()
    return heard, raised
