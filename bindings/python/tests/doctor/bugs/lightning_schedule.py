# SPDX-License-Identifier: Apache-2.0
"""Lightning-AI/pytorch-lightning#18828: under 16-mixed the scheduler is stepped although the step was skipped."""
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


torch.manual_seed(0)
warnings.simplefilter("ignore")
data = DataLoader(TensorDataset(torch.randn(160, 8), 10 * torch.randn(160, 1)), batch_size=8)
precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**24))
trainer = pl.Trainer(
    accelerator="cpu", plugins=[precision], max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Regression(), data)  # here
