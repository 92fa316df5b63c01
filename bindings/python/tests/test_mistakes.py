# SPDX-License-Identifier: Apache-2.0
"""One edit of a right script makes a mistake, and the script hears it: the code, the line, and how soon."""

import re
import warnings

import pytest

torch = pytest.importorskip("torch")

from libamp import FindingWarning, _findings  # noqa: E402
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
O1, O2, BOTH, ALL = ["O1"], ["O2"], ["O1", "O2"], ["O0", "O1", "O2"]
WITH_MASTERS = ["O2", "O5"]
FIRST, TEN, AT_INITIALIZE = "first bracket", "10 steps", "initialize"

# name: (what is there, what is put there, code, the levels where it is a mistake, how soon, what the line has)
MISTAKES = {
    "backward outside": (BRACKET, "    loss.backward()\n", "AMP-M30", BOTH, FIRST, "loss.backward()"),
    "autograd.backward outside": (
        BRACKET,
        "    torch.autograd.backward([loss])\n",
        "AMP-M30",
        BOTH,
        FIRST,
        "torch.autograd.backward([loss])",
    ),
    "backward after an empty block": (
        "        scaled_loss.backward()\n",
        "        pass\n    loss.backward()\n",
        "AMP-M30",
        O2,
        FIRST,
        "loss.backward()",
    ),
    "a second loss outside, after": (
        BRACKET,
        BRACKET + "    model(x).float().mean().backward()\n",
        "AMP-M30",
        WITH_MASTERS,
        FIRST,
        "mean().backward()",
    ),
    "a second loss outside, before": (
        BRACKET,
        "    model(x).float().mean().backward()\n" + BRACKET,
        "AMP-M30",
        WITH_MASTERS,
        FIRST,
        "mean().backward()",
    ),
    "outside in every other iteration": (
        BRACKET,
        "    if step % 2:\n        loss.backward()\n    else:\n    " + BRACKET.replace("\n", "\n    ").rstrip(" "),
        "AMP-M30",
        BOTH,
        TEN,
        "loss.backward()",
    ),
    "backward of the bare loss": (
        "scaled_loss.backward()",
        "loss.backward()",
        "AMP-M31",
        BOTH,
        FIRST,
        "with amp.scale_loss",
    ),
    "backward of a mean of the bare loss": (
        "scaled_loss.backward()",
        "(loss / 2).backward()",
        "AMP-M31",
        BOTH,
        FIRST,
        "with amp.scale_loss",
    ),
    "clips the model by norm": (
        CLIP,
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "AMP-M32",
        WITH_MASTERS,
        FIRST,
        "clip_grad_norm_(",
    ),
    "clips the model by value": (
        CLIP,
        "torch.nn.utils.clip_grad_value_(list(model.parameters()), 1.0)",
        "AMP-M32",
        WITH_MASTERS,
        FIRST,
        "clip_grad_value_(",
    ),
    "clips the model by an imported name": (
        CLIP,
        "clip_grad_norm_(model.parameters(), 1.0)",
        "AMP-M32",
        WITH_MASTERS,
        FIRST,
        "optimizer.step()",
    ),
    "changes gradients by hand": (
        CLIP,
        "[p.grad.mul_(0.5) for p in model.parameters()]",
        "AMP-M32",
        WITH_MASTERS,
        FIRST,
        "optimizer.step()",
    ),
    "an optimizer from before, not given": (
        "model, optimizer = amp.initialize(model, optimizer,",
        "model = amp.initialize(model,",
        "AMP-M33",
        ALL,
        FIRST,
        AttributeError,
    ),
    "an optimizer from before, without brackets": (
        "model, optimizer = amp.initialize(model, optimizer,",
        "amp.scale_loss = lambda loss, _: __import__('contextlib').nullcontext(loss)\nmodel = amp.initialize(model,",
        "AMP-M33",
        WITH_MASTERS,
        FIRST,
        "optimizer.step()",
    ),
    "an optimizer made anew": (
        "# after",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)",
        "AMP-M33",
        ALL,
        FIRST,
        AttributeError,
    ),
    "an optimizer made anew steps": (
        "optimizer.step()",
        "torch.optim.SGD(model.parameters(), lr=0.01).step()",
        "AMP-M33",
        BOTH,
        FIRST,
        ".step()",
    ),
    "a second optimizer, not given": (
        "    # last",
        "    other = torch.optim.Adam(model[2].parameters()).step()",
        "AMP-M33",
        BOTH,
        FIRST,
        "other =",
    ),
    "a layer in the place of another": (
        "# after",
        "model[2] = nn.Linear(16, 4).to(model[0].weight)",
        "AMP-M34",
        BOTH,
        FIRST,
        "with amp.scale_loss",
    ),
    "a layer in the place of another, in step 5": (
        "    optimizer.zero_grad()",
        "    if step == 5:\n        model[2] = nn.Linear(16, 4).to(model[0].weight)\n    optimizer.zero_grad()",
        "AMP-M34",
        BOTH,
        TEN,
        "with amp.scale_loss",
    ),
    "half": ("# after", "model.half()", "AMP-M35", O1, FIRST, "model.half()"),
    "half of a layer": ("# after", "model[0].half()", "AMP-M35", O1, FIRST, "out = model(x)"),
    "float": ("# after", "model.float()", "AMP-M35", WITH_MASTERS, FIRST, "model.float()"),
    "to a type": ("# after", "model.to(torch.bfloat16)", "AMP-M35", O1 + O2, FIRST, "model.to("),
    "half in step 5": ("    # last", "    if step == 5: model.half()", "AMP-M35", O1, TEN, "model.half()"),
    "autocast around the forward": (
        "    out = model(x)",
        "    with torch.autocast('cpu', torch.bfloat16):\n        out = model(x)",
        "AMP-M36",
        BOTH,
        FIRST,
        "out = model(x)",
    ),
    "GradScaler in the place of scale_loss": (
        BRACKET + "    " + CLIP + "\n    optimizer.step()",
        "    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()",
        "AMP-M37",
        O1,
        FIRST,
        "scaler.step(optimizer)",
    ),
    "GradScaler beside scale_loss": (
        "scaled_loss.backward()\n    " + CLIP + "\n    optimizer.step()",
        "scaler.scale(scaled_loss).backward()\n    scaler.step(optimizer)\n    scaler.update()",
        "AMP-M37",
        O1,
        FIRST,
        "scaler.step(optimizer)",
    ),
    "two steps for a bracket": ("    # last", "    optimizer.step()  # again", "AMP-M38", BOTH, FIRST, "# again"),
    "the bracket is left out from step 5 on": (
        BRACKET,
        "    if step > 4:\n        loss.backward()\n    else:\n    " + BRACKET.replace("\n", "\n    ").rstrip(" "),
        "AMP-M38",
        BOTH,
        TEN,
        "optimizer.step()",
    ),
    "a copy is trained": (
        "# after",
        "original, model = model, copy.deepcopy(model)",
        "AMP-M39",
        BOTH,
        FIRST,
        "out = model(x)",
    ),
    "a copy has an optimizer": (
        "    # last",
        "    if not step: twin = copy.deepcopy(model); own = torch.optim.SGD(twin.parameters(), lr=0.01)\n"
        "    twin(x).float().mean().backward()\n    own.step()",
        "AMP-M39",
        BOTH,
        FIRST,
        "twin(x)",
    ),
    "a twin is trained": ("# after", "model = " + TWIN, "AMP-M40", ALL, FIRST, "with amp.scale_loss"),
    "the loss is another's": (
        "    loss = ",
        "    other = torch.ones(4, requires_grad=True)\n    loss = other.sum()\n    unused = ",
        "AMP-M40",
        ALL,
        FIRST,
        "with amp.scale_loss",
    ),
    "the output is detached": (
        "mse_loss(out.float(), y)",
        "mse_loss(out.detach().float(), y.requires_grad_())",
        "AMP-M40",
        ALL,
        FIRST,
        "with amp.scale_loss",
    ),
}

ANY = ["O0", "O1", "O2", "O3", "O4", "O5"]
OTHER = "other = " + TWIN + "; plain = torch.optim.SGD(other.parameters(), lr=0.01)"

# name: (what is there, what is put there): no mistakes
RIGHT = {
    "as it is": ("# last", "pass"),
    "gradients add up over three brackets": ("    optimizer.step()", "    if step % 3 == 2: optimizer.step()"),
    "and are cleared after the step": (
        "    optimizer.zero_grad()",
        "    if step % 3 == 0: optimizer.zero_grad(set_to_none=False)",
    ),
    "two losses": (BRACKET, BRACKET + "    loss = model(x).float().mean()\n" + BRACKET),
    "unscaled once": (
        BRACKET,
        BRACKET.replace("optimizer)", "optimizer, delay_unscale=True)")
        + "    loss = model(x).float().mean()\n"
        + BRACKET,
    ),
    "two optimizers, a bracket each": (
        "    # last",
        "    if not step:\n        m2, o2 = amp.initialize((t := "
        + TWIN
        + "), torch.optim.SGD(t.parameters(), lr=0.01), "
        "opt_level=LEVEL, verbosity=0)\n    o2.zero_grad()\n"
        "    with amp.scale_loss(m2(x).float().mean(), o2) as scaled_loss:\n        scaled_loss.backward()\n"
        "    o2.step()",
    ),
    "a bracket overflows": (
        "    loss = ",
        "    loss = (float('inf') if step == 1 and LEVEL in ('O1', 'O2') else 1.0) * ",
    ),
    "a block raises": (
        BRACKET,
        "    try:\n        with amp.scale_loss(loss, optimizer) as scaled_loss:\n            if step == 3: 1 / 0\n"
        "            scaled_loss.backward()\n    except ZeroDivisionError:\n        pass\n",
    ),
    "an evaluation": (
        "    # last",
        "    with torch.no_grad():\n        model(x)\n    model.eval(); model(x); model.train()",
    ),
    "averages of the weights": (
        "    # last",
        "    if not step: ema = copy.deepcopy(model)\n    with torch.no_grad():\n"
        "        for a, b in zip(ema.parameters(), model.parameters()): a.lerp_(b, 0.1)\n"
        "        ema(x)\n    ema.eval()(x)",
    ),
    "averages in FP32": ("    # last", "    if not step: ema = copy.deepcopy(model).float()"),
    "a teacher": ("    out = ", "    teacher = copy.deepcopy(model); teacher(x).detach()\n    out = "),
    "another model": (
        "    # last",
        "    if not step: " + OTHER + "\n    plain.zero_grad(); other(x).float().mean().backward(); plain.step()",
    ),
    "another model, before": (
        "    out = ",
        "    if not step: " + OTHER + "\n    other(x).float().mean().backward(); "
        "torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0); plain.step()\n    out = ",
    ),
    "another model inside the block": (
        "        scaled_loss.backward()",
        "        " + OTHER + "; other(x).float().mean().backward(); plain.step()\n        scaled_loss.backward()",
    ),
    "GradScaler for another model": (
        "    # last",
        "    if not step: " + OTHER + "\n"
        "    scaler.scale(other(x).float().mean()).backward(); scaler.step(plain); scaler.update()",
    ),
    "a GradScaler that is switched off": (
        "    optimizer.step()",
        "    torch.amp.GradScaler(enabled=False).step(optimizer)",
    ),
    "GradScaler of torch's where amp casts alone": (
        "# after",
        "if LEVEL in ('O0', 'O1', 'O4'):\n"
        "    amp.shutdown(); model = amp.initialize(model, opt_level=LEVEL, verbosity=0)\n"
        "    for _ in range(3):\n        scaler.scale(model(torch.randn(4, 8)).float().mean()).backward()\n"
        "        scaler.step(optimizer); scaler.update()\n"
        "    amp.shutdown(); model, optimizer = amp.initialize(model, optimizer, opt_level=LEVEL, verbosity=0)",
    ),
    "autocast that is switched off": (
        "    out = model(x)",
        "    with torch.autocast('cpu', enabled=False):\n        out = model(x)",
    ),
    "autocast for another model": (
        "    # last",
        "    with torch.autocast('cpu', torch.bfloat16):\n        " + TWIN + "(x)",
    ),
    "more than the scaled loss": ("scaled_loss.backward()", "(scaled_loss / 2 + out.float().sum() * 0).backward()"),
    "gradients by torch.autograd.grad": (
        "scaled_loss.backward()",
        "made = torch.autograd.grad(scaled_loss, list(model.parameters()))\n"
        "        for p, g in zip(model.parameters(), made): p.grad = g",
    ),
    "checkpoints with reentrance": (
        "model(x)",
        "torch.utils.checkpoint.checkpoint(model, x.requires_grad_(), use_reentrant=True)",
    ),
    "checkpoints": ("model(x)", "torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)"),
    "a scheduler": ("# after", "torch.optim.lr_scheduler.StepLR(optimizer, 2)"),
    "a layer, with add_param_group": (
        "# after",
        "model.append(nn.Linear(4, 4).to(model[0].weight)); "
        "optimizer.add_param_group({'params': list(model[3].parameters())})",
    ),
    "moved": ("# after", "model.to('cpu').cpu().to(memory_format=torch.contiguous_format)"),
    "half for a file, and back": (
        "    # last",
        "    types = [p.dtype for p in model.parameters()]; model.half()\n"
        "    for p, t in zip(model.parameters(), types): p.data = p.data.to(t)",
    ),
    "a closed-form step without gradients": ("    # last", "    optimizer.zero_grad(); optimizer.step()"),
    "a wrapper": ("# after", "inner = model; model = nn.DataParallel(model)"),
    "frozen": ("# before", "model[0].requires_grad_(False)"),
    "shutdown and again": (
        "# after",
        "amp.shutdown(model); model, optimizer = amp.initialize(model, optimizer, opt_level=LEVEL, verbosity=0)",
    ),
}


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


def cases():
    return [(name, level) for name, row in MISTAKES.items() for level in row[3]]


@pytest.mark.parametrize("name,level", cases())
def test_a_mistake_is_heard(name, level):
    old, new, code, _, soon, line = MISTAKES[name]
    heard, raised = run(old, new, level)
    if isinstance(line, type):
        assert isinstance(raised, line) and str(raised).startswith(code)
        return
    own = [each for each in heard if each[0] in _findings.FINDINGS]
    assert [each[:2] for each in own[:1]] == [(code, soon)], (heard, raised)
    assert line in own[0][2], own
    assert len({each[0] for each in own}) == len(own), own  # once each


# what these are heard as where nothing is scaled
AT_O0 = {
    "backward after an empty block": "AMP-M08",
    "an optimizer made anew steps": "AMP-M05",
    "a layer in the place of another": "AMP-M08",
    "a copy is trained": "AMP-M40",
}
HALVES = ["half", "half of a layer", "half in step 5", "to a type", "float"]


@pytest.mark.parametrize("name", [name for name, row in MISTAKES.items() if "O0" not in row[3]])
def test_what_is_no_mistake_where_nothing_is_scaled(name):
    heard, raised = run(*MISTAKES[name][:2], "O0")
    if name in HALVES:  # O0 is FP32: torch may refuse it
        assert {each[0] for each in heard} <= {"AMP-M35"} and (raised is None or "same dtype" in str(raised))
    else:
        assert ([each[0] for each in heard], raised) == ([AT_O0[name]] if name in AT_O0 else [], None)


@pytest.mark.parametrize("level", ANY)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_script_hears_nothing(name, level):
    heard, raised = run(*RIGHT[name], level)
    assert (heard, raised) == ([], None)


def test_the_table_is_large_and_has_every_code():
    assert len(MISTAKES) >= 25
    assert {row[2] for row in MISTAKES.values()} == set(_findings.FINDINGS)
    assert all(re.fullmatch(r"AMP-M[3-9]\d", code) for code in _findings.FINDINGS)
