# SPDX-License-Identifier: Apache-2.0
"""Edits of a right script that are right, too: none of them hears anything, at any level."""

import pytest
from slips import ANY, BRACKET, LAYER, TWIN, run

OTHER = "other = " + TWIN + "; plain = torch.optim.SGD(other.parameters(), lr=0.01)"

# name: (what is there, what is put there): no mistakes
RIGHT = {
    "as it is": ("# last", "pass"),
    "gradients add up over three brackets": ("    optimizer.step()", "    if step % 3 == 2: optimizer.step()"),
    "and are cleared after the step": ("# last", "optimizer.zero_grad(set_to_none=False)"),
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
        "    if not step: ema = torch.optim.swa_utils.AveragedModel(model)\n    ema.update_parameters(model)\n"
        "    with torch.no_grad():\n        ema(x)\n    ema.eval()(x)",
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
    "a layer, with an optimizer of its own where nothing is scaled": (
        "    # last",
        "    if LEVEL in ('O0', 'O4'):\n"
        "        if not step: " + LAYER + "; own = torch.optim.SGD(model[3].parameters(), lr=0.01)\n"
        "        own.step(); own.zero_grad()",
    ),
    "gradients that are thrown away once": (
        "    optimizer.step()",
        "    if not step: optimizer.zero_grad()\n    optimizer.step()",
    ),
    "zero_grad in the block, before backward": (
        "        scaled_loss.backward()",
        "        optimizer.zero_grad()\n        scaled_loss.backward()",
    ),
    "clips another model inside the block": (
        "        scaled_loss.backward()",
        "        " + OTHER + "; other(x).float().mean().backward()\n"
        "        torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)\n        scaled_loss.backward()",
    ),
    "clips inside the block where the scale is 1": (
        BRACKET,
        BRACKET
        + "        if LEVEL in ('O0', 'O4'): torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)\n",
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


@pytest.mark.parametrize("level", ANY)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_script_hears_nothing(name, level):
    heard, raised = run(*RIGHT[name], level)
    assert (heard, raised) == ([], None)
