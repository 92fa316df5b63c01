# SPDX-License-Identifier: Apache-2.0
"""One edit of a right script makes a mistake, and the script hears it: the code, the line, and how soon."""

import re

import pytest
from levels import CASTS_MODEL, DYNAMIC, WITH_MASTERS
from libamp import _findings
from slips import ANY, AT_INITIALIZE, BRACKET, CLIP, FIRST, LAYER, TEN, TWIN, run

O1, O2, BOTH, ALL = ["O1"], ["O2"], DYNAMIC, ["O0", "O1", "O2"]
AT_END = "with amp.scale_loss"

# name: (what is there, what is put there, code, the levels where it is a mistake, how soon, what the line has)
MISTAKES = {
    "positions as floats": (
        "# before",
        "model.register_buffer('positions', torch.arange(3000.0))",
        "AMP-M50",
        CASTS_MODEL,
        AT_INITIALIZE,
        "amp.initialize",
    ),
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
    "a layer that nobody steps": ("# after", LAYER, "AMP-M34", ["O0", "O4"], TEN, "with amp.scale_loss"),
    "a layer that nobody scales or steps": ("# after", LAYER, "AMP-M34", O1 + WITH_MASTERS, FIRST, AT_END),
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
        ["O1", "O2", "O5"],
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
    "clips scaled gradients": (
        BRACKET,
        BRACKET + "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        "AMP-M41",
        BOTH,
        FIRST,
        "clip_grad_norm_(",
    ),
    "clips masters that have no gradients yet": (
        BRACKET,
        BRACKET + "        torch.nn.utils.clip_grad_value_(amp.master_params(optimizer), 1.0)\n",
        "AMP-M41",
        O1 + WITH_MASTERS,
        FIRST,
        "clip_grad_value_(",
    ),
    "clips gradients that wait to be unscaled": (
        BRACKET,
        BRACKET.replace("optimizer)", "optimizer, delay_unscale=True)")
        + "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    loss = model(x).float().mean()\n"
        + BRACKET,
        "AMP-M41",
        BOTH,
        FIRST,
        "clip_grad_norm_(",
    ),
    "zero_grad inside the block": (BRACKET, BRACKET + "        optimizer.zero_grad()\n", "AMP-M42", ANY, FIRST, AT_END),
    "zero_grad inside the block, to zero": (
        BRACKET,
        BRACKET + "        optimizer.zero_grad(set_to_none=False)\n",
        "AMP-M42",
        ANY,
        FIRST,
        AT_END,
    ),
    "the model's zero_grad inside the block": (
        BRACKET,
        BRACKET + "        model.zero_grad()\n",
        "AMP-M42",
        ANY,
        FIRST,
        AT_END,
    ),
    "zero_grad before the step": (
        "    optimizer.step()",
        "    optimizer.zero_grad()\n    optimizer.step()",
        "AMP-M42",
        ANY,
        TEN,
        "optimizer.step()",
    ),
    "a parameter and its master are written": (
        "    # last",
        "    masters = list(amp.master_params(optimizer))\n    with torch.no_grad():\n"
        "        model[0].weight.zero_()\n        masters[0].fill_(1.0)",
        "AMP-M47",
        WITH_MASTERS,
        TEN,
        "out = model(x)",
    ),
    "an average in 16 bits": (
        "    # last",
        "    if not step: shadow = [p.detach().clone() for p in model.parameters()]\n"
        "    for average, p in zip(shadow, model.parameters()): average.lerp_(p.detach(), 0.1)",
        "AMP-M48",
        WITH_MASTERS,
        TEN,
        "optimizer.step()",
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
    "backward after an empty block": ["AMP-M08"],
    "an optimizer made anew steps": ["AMP-M05"],
    "a layer in the place of another": ["AMP-M08", "AMP-M34"],
    "a layer that nobody scales or steps": ["AMP-M34"],
    "a copy is trained": ["AMP-M40"],
}
HALVES = ["half", "half of a layer", "half in step 5", "to a type", "float"]


@pytest.mark.parametrize("name", [name for name, row in MISTAKES.items() if "O0" not in row[3]])
def test_what_is_no_mistake_where_nothing_is_scaled(name):
    heard, raised = run(*MISTAKES[name][:2], "O0")
    if name in HALVES:  # O0 is FP32: torch may refuse it
        assert {each[0] for each in heard} <= {"AMP-M35"} and (raised is None or "same dtype" in str(raised))
    else:
        assert ([each[0] for each in heard], raised) == (AT_O0.get(name, []), None)


# The library's own, as a script hears it. At O2 and O5 masters' gradients go with the step, as in Apex.
@pytest.mark.parametrize("level", ["O0", "O1", "O4"])
@pytest.mark.parametrize("clears", ["", "    if step % 3 == 0: optimizer.zero_grad(set_to_none=False)\n"])
def test_gradients_that_a_step_left_are_told(clears, level):
    heard, raised = run("    optimizer.zero_grad()\n", clears, level)
    assert ([each[:2] for each in heard], raised) == ([("AMP-M68", TEN)], None)


def test_what_the_library_finds_in_an_initialize_is_heard(monkeypatch):
    """At its line, in a script's words."""
    monkeypatch.setenv("AMP_NUM_THREADS", "two")
    heard, raised = run("verbosity=0", "verbosity=0, init_scale=1024.0", "O3")
    assert raised is None
    assert [each[:2] for each in heard] == [("AMP-M80", AT_INITIALIZE), ("AMP-M77", AT_INITIALIZE)]
    assert all("amp.initialize(" in each[2] for each in heard)
    monkeypatch.setenv("AMP_NUM_THREADS", "2")
    assert run("verbosity=0", "verbosity=0, init_scale=1024.0", "O4") == ([], None)


def test_the_table_is_large_and_has_every_code():
    assert len(MISTAKES) >= 25
    on_gpus = {"AMP-M49"}  # test_amp_edits.py
    assert {row[2] for row in MISTAKES.values()} | on_gpus == set(_findings.FINDINGS)
    assert all(re.fullmatch(r"AMP-M[3-9]\d", code) for code in _findings.FINDINGS)
