# SPDX-License-Identifier: Apache-2.0
"""Lightning with bf16-mixed, accumulation, clipping, and a warmup from 0 at each step."""
import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 40)

    def training_step(self, batch, index):
        (tokens,) = batch
        logits = self.head(self.encoder(self.embed(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 6))
        return [optimizer], [{"scheduler": warmup, "interval": "step"}]


torch.manual_seed(0)
trainer = pl.Trainer(
    accelerator="cpu", precision="bf16-mixed", max_epochs=1, accumulate_grad_batches=2, gradient_clip_val=1.0,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), DataLoader(TensorDataset(torch.randint(0, 40, (160, 10))), 4))
