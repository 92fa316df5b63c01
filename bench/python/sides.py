# SPDX-License-Identifier: Apache-2.0
"""The two sides of a whole training step: libamp's, and torch.amp's with all of libamp switched off. `prepare` makes of
the model what is called: torch.compile, for one."""
import contextlib

import torch
from libamp.torch import amp
from libamp.torch.amp import attention


def _as_it_is(model):
    return model


def ours(model, x, optimizer, level, prepare=_as_it_is, **settings):
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, **settings)
    call = prepare(model)

    def step():
        optimizer.zero_grad()
        loss = call(x).float().square().mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()

    return step


@contextlib.contextmanager
def without_libamp():
    serving = list(attention._sessions)
    attention._sessions.clear()
    try:
        with amp.disable_casts():
            yield
    finally:
        attention._sessions.update(serving)


def torchs(model, x, optimizer, dtype=torch.bfloat16, prepare=_as_it_is):
    """dtype: of autocast; torch.float32: without it. GradScaler in FP16 alone."""
    device = x.device.type
    call, scaler = prepare(model), torch.amp.GradScaler(device, enabled=dtype is torch.float16)

    def step():
        with without_libamp():
            optimizer.zero_grad()
            with torch.autocast(device, dtype, enabled=dtype is not torch.float32):
                loss = call(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return step
