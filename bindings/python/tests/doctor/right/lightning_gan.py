# SPDX-License-Identifier: Apache-2.0
"""Lightning, optimized by hand: two optimizers, each with the other network's parameters left alone."""
import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class GAN(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
        self.discriminator = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def training_step(self, batch, index):
        (real,), loss = batch, nn.functional.binary_cross_entropy_with_logits
        optimizer_g, optimizer_d = self.optimizers()
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        self.toggle_optimizer(optimizer_g)
        fake = self.generator(torch.randn(len(real), 4))
        optimizer_g.zero_grad()
        self.manual_backward(loss(self.discriminator(fake), ones))
        optimizer_g.step()
        self.untoggle_optimizer(optimizer_g)
        self.toggle_optimizer(optimizer_d)
        optimizer_d.zero_grad()
        judged = loss(self.discriminator(real), ones) + loss(self.discriminator(fake.detach()), zeros)
        self.manual_backward(judged / 2)
        optimizer_d.step()
        self.untoggle_optimizer(optimizer_d)

    def configure_optimizers(self):
        return [torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999))
                for net in (self.generator, self.discriminator)]


torch.manual_seed(0)
trainer = pl.Trainer(
    accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False)
trainer.fit(GAN(), DataLoader(TensorDataset(torch.randn(160, 8)), 8))
