# SPDX-License-Identifier: Apache-2.0
"""Trainers of PyPI that call apex.amp themselves, unedited, under libamp's `import apex`: ignite and timm."""
from __future__ import annotations

import pathlib
import sys
from typing import Any

import pytest
import torch
from levels import DYNAMIC
from libamp import apex_shim
from torch import nn
from torch.nn import functional as F

LEVELS = ("O1", "O2", "O4", "O5")


@pytest.fixture(autouse=True, scope="module")
def apex() -> Any:
    """timm and ignite ask once, when they are imported, whether there is an apex."""
    forget(("timm", "ignite"))
    apex_shim.install()
    from apex import amp

    yield amp
    amp.shutdown()
    apex_shim.remove()
    forget(("timm", "ignite", "apex"))


def forget(packages: tuple[str, ...]) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] in packages:
            del sys.modules[name]


def parts(amp: Any, level: str) -> tuple[nn.Module, Any, list[Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    settings = {"init_scale": 1024.0} if level in DYNAMIC else {}
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, **settings)
    return model, optimizer, [(torch.randn(4, 8), torch.randint(4, (4,))) for _ in range(4)] * 3


def by_hand(amp: Any, level: str, every: int = 1, clip: float | None = None) -> list[torch.Tensor]:
    model, optimizer, batches = parts(amp, level)
    for i, (x, y) in enumerate(batches):
        if i % every == 0:
            optimizer.zero_grad()
        with amp.scale_loss(F.cross_entropy(model(x), y) / every, optimizer) as scaled:
            scaled.backward()
        if (i + 1) % every == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_(amp.master_params(optimizer), clip)
            optimizer.step()
    return values(amp, model)


def values(amp: Any, model: nn.Module) -> list[torch.Tensor]:
    found = [value.clone() for value in model.state_dict().values()]
    assert all(value.isfinite().all() for value in found)
    amp.shutdown()
    return found


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) > 0 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("level", LEVELS)
def test_ignite(level: str, apex: Any) -> None:
    engine = pytest.importorskip("ignite.engine", reason="pytorch-ignite is not installed")
    model, optimizer, batches = parts(apex, level)
    trainer = engine.create_supervised_trainer(
        model, optimizer, F.cross_entropy, amp_mode="apex", gradient_accumulation_steps=2
    )
    losses: list[float] = []
    trainer.add_event_handler(engine.Events.ITERATION_COMPLETED, lambda each: losses.append(each.state.output))
    trainer.run(batches, max_epochs=1)
    assert sum(losses[8:]) < sum(losses[:4])
    assert same(values(apex, model), by_hand(apex, level, every=2))


@pytest.mark.parametrize("level", LEVELS)
def test_timm(level: str, apex: Any) -> None:
    cuda = pytest.importorskip("timm.utils.cuda", reason="timm is not installed")
    assert cuda.has_apex
    model, optimizer, batches = parts(apex, level)
    scaler = cuda.ApexScaler()
    for x, y in batches:
        optimizer.zero_grad()
        scaler(
            F.cross_entropy(model(x), y), optimizer, clip_grad=0.5, clip_mode="norm", parameters=model.parameters()
        )
    state = scaler.state_dict()
    assert set(state) == {"loss_scaler0"}
    scaler.load_state_dict({"loss_scaler0": {"loss_scale": 4.0, "unskipped": 1}})
    assert scaler.state_dict()["loss_scaler0"]["unskipped"] == 1
    assert same(values(apex, model), by_hand(apex, level, clip=0.5))


@pytest.mark.parametrize("name", ["ignite", "timm"])
def test_the_page_runs(name: str, apex: Any) -> None:
    pytest.importorskip(name, reason=f"{name} is not installed")
    page = (pathlib.Path(__file__).parents[3] / "docs" / "start" / "trainers.md").read_text()
    exec(page.split(f"## {name}\n")[1].split("```python\n")[1].split("```")[0], {"__name__": "page"})
    apex.shutdown()
