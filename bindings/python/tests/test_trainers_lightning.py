# SPDX-License-Identifier: Apache-2.0
"""libamp.lightning under Lightning of PyPI, unedited."""
from __future__ import annotations

import pathlib
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

import libamp  # noqa: E402
from levels import DYNAMIC, LEVELS  # noqa: E402
from libamp.lightning import AmpPrecision  # noqa: E402
from libamp.torch import amp  # noqa: E402


class Rows(Dataset):
    def __init__(self, count: int = 8) -> None:
        made = torch.Generator().manual_seed(0)
        self.x, self.y = torch.randn(count, 8, generator=made), torch.randint(4, (count,), generator=made)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i]


def batches() -> DataLoader:
    return DataLoader(Rows(), batch_size=2)


class Net(pl.LightningModule):
    """overflow: the losses of these batches are infinite."""

    def __init__(self, overflow: tuple[int, ...] = ()) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.overflow = overflow
        self.losses: list[float] = []
        self.stepped: list[Any] = []
        self.after: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.losses.append(float(loss))
        return loss * float("inf") if index in self.overflow else loss

    def on_train_batch_end(self, *args: Any) -> None:
        optimizer = self.trainer.optimizers[0]
        self.stepped.append(amp.stepped(optimizer))
        self.after = [param.detach().clone() for param in amp.master_params(optimizer)]

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val", F.cross_entropy(self(batch[0]), batch[1]))

    def predict_step(self, batch: Any, index: int) -> torch.Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2, eps=1e-4)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), "interval": "step"}]


class Parts(Net):
    """Without a forward: training_step calls the parts."""

    forward = pl.LightningModule.forward
    wanted = torch.float32

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        out = self.net(batch[0])
        assert out.dtype == self.wanted
        return F.cross_entropy(out, batch[1])


def trainer(folder: Any, level: str, settings: Any = None, **arguments: Any) -> Any:
    given: dict[str, Any] = {
        "accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "default_root_dir": str(folder), "enable_checkpointing": False,
        "num_sanity_val_steps": 0, **arguments,
    }
    plugin = AmpPrecision(level, **{"verbosity": 0, **(settings or {})})
    return pl.Trainer(plugins=[plugin], **given)


def by_hand(level: str, settings: Any, epochs: int = 2) -> list[torch.Tensor]:
    model = Net()
    (optimizer,), (scheduler,) = model.configure_optimizers()
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, **settings)
    for _ in range(epochs):
        for i, (x, y) in enumerate(batches()):
            with amp.scale_loss(F.cross_entropy(model(x), y) / 2, optimizer) as scaled:
                scaled.backward()
            if i % 2:
                nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.1)
                optimizer.step()
                scheduler["scheduler"].step()
                optimizer.zero_grad()
    return [value.clone() for value in model.state_dict().values()]


def same(one: Any, other: Any) -> bool:
    one, other = list(one), list(other)
    return len(one) == len(other) > 0 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("level", LEVELS)
def test_fit_is_the_plain_loop(level: str, tmp_path: Any) -> None:
    settings = {"init_scale": 1024.0} if level in DYNAMIC else {}
    model = Net()
    made = trainer(tmp_path, level, settings, max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", libamp.FindingWarning)
        made.fit(model, batches())
    assert level == "O3" or sum(model.losses[-4:]) < sum(model.losses[:4])
    assert same(model.state_dict().values(), by_hand(level, settings))


@pytest.mark.parametrize("level", LEVELS)
def test_a_module_without_forward(level: str, tmp_path: Any) -> None:
    model = Parts()
    model.wanted = {"O1": torch.float16, "O4": torch.bfloat16}.get(level, torch.float32)
    before = [value.clone() for value in model.state_dict().values()]
    trainer(tmp_path, level, {"init_scale": 1024.0} if level in DYNAMIC else None).fit(model, batches())
    assert not same(before, model.state_dict().values())
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_the_model_is_fp32_afterwards(tmp_path: Any) -> None:
    model = Net()
    made = trainer(tmp_path, "O2", {"init_scale": 1024.0})
    made.fit(model, batches())
    assert not amp.initialized(model) and not amp.initialized(made.optimizers[0])
    assert all(param.dtype == torch.float32 for param in model.parameters())
    assert same(model.parameters(), model.after)


def test_evaluation_is_at_the_level(tmp_path: Any) -> None:
    model, seen = Net(), []
    model.net[0].register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    made = trainer(tmp_path, "O2")
    answers = made.predict(model, batches())
    assert set(seen) == {torch.float16} and answers[0].dtype == torch.float32
    made.validate(model, batches(), verbose=False)
    assert made.callback_metrics["val"].dtype == torch.float32
    assert model.net[0].weight.dtype == torch.float32


def test_an_overflow_is_skipped(tmp_path: Any) -> None:
    model = Net(overflow=(1,))
    made = trainer(tmp_path, "O2", {"init_scale": 1024.0})
    made.fit(model, batches())
    assert model.stepped == [True, False, True, True]
    assert made.optimizers[0].param_groups[0]["lr"] == 1e-2 / 16  # Lightning's schedulers advance with each step
    assert made.precision_plugin.state_dict()["loss_scaler0"] == {"loss_scale": 512.0, "unskipped": 2}
    assert all(value.isfinite().all() for value in model.state_dict().values())


@pytest.mark.parametrize("level", DYNAMIC)
def test_resume(level: str, tmp_path: Any) -> None:
    settings = {"init_scale": 1024.0, "window": 3}
    made = trainer(tmp_path, level, settings, max_epochs=1)
    made.fit(Net(), batches())
    made.save_checkpoint(tmp_path / "at4")
    whole, resumed = Net(), Net()
    trainer(tmp_path, level, settings, max_epochs=2).fit(whole, batches())
    again = trainer(tmp_path, level, {"init_scale": 2.0, "window": 3}, max_epochs=2)
    again.fit(resumed, batches(), ckpt_path=tmp_path / "at4")
    assert len(resumed.losses) == 4 and resumed.losses == whole.losses[4:]
    assert same(whole.state_dict().values(), resumed.state_dict().values())
    assert again.precision_plugin.state_dict()["loss_scaler0"]["loss_scale"] == 4096.0


class Manual(Net):
    """Two optimizers, two losses, as a GAN has."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        for optimizer in self.optimizers():
            self.toggle_optimizer(optimizer)
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.manual_backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            self.untoggle_optimizer(optimizer)
            self.losses.append(float(loss))

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (self.net[0], self.net[2])]


@pytest.mark.parametrize("level", ["O1", "O2", "O5"])
def test_manual_optimization(level: str, tmp_path: Any) -> None:
    model = Manual()
    trainer(tmp_path, level, {"init_scale": 1024.0} if level in DYNAMIC else None, max_epochs=4).fit(model, batches())
    assert len(model.losses) == 32 and sum(model.losses[-8:]) < sum(model.losses[:8])


def test_what_cannot_work_is_said(tmp_path: Any) -> None:
    with pytest.raises(RuntimeError, match="opt_level is 'O7'"):
        AmpPrecision("O7")
    with pytest.raises(ValueError, match="precision"):
        trainer(tmp_path, "O1", precision="bf16-mixed")
    model = Net()
    model.configure_optimizers = lambda: torch.optim.LBFGS(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match=r"use loss_scale=1\.0"):
        trainer(tmp_path, "O1").fit(model, batches())
    trainer(tmp_path, "O4").fit(model, batches())  # a static scale: any number of closures a step
    assert len(model.losses) > 4 and model.losses[10] < model.losses[0]


def test_the_other_package(tmp_path: Any) -> None:
    other = pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")
    from libamp.pytorch_lightning import AmpPrecision as Other

    class Small(other.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            assert self.layer.weight.dtype == torch.float16
            return F.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = Small()
    before = model.layer.weight.detach().clone()
    made = other.Trainer(
        plugins=[Other("O2", verbosity=0, init_scale=1024.0)], accelerator="cpu", max_epochs=1, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, default_root_dir=str(tmp_path),
    )
    made.fit(model, batches())
    assert model.layer.weight.dtype == torch.float32 and not torch.equal(before, model.layer.weight)


def test_the_page_runs() -> None:
    page = (pathlib.Path(__file__).parents[3] / "docs" / "start" / "trainers.md").read_text()
    exec(page.split("## Lightning\n")[1].split("```python\n")[1].split("```")[0], {"__name__": "page"})
