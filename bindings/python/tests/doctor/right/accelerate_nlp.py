# SPDX-License-Identifier: Apache-2.0
"""accelerate's loop: prepare, accumulate, clip, a schedule that is prepared too, bf16."""
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16")
model = nn.Sequential(nn.EmbeddingBag(100, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
rows = TensorDataset(torch.randint(0, 100, (160, 12)), torch.randint(0, 4, (160,)))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, DataLoader(rows, 4), scheduler)
for tokens, labels in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(tokens), labels)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
