# SPDX-License-Identifier: Apache-2.0
"""huggingface/accelerate#4242: a fused AdamW skips inside its kernel, and the scheduler, prepared too, goes on."""
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from torch import nn

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)  # on a GPU: mixed_precision="fp16"
model = accelerator.prepare(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)))
inner = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
optimizer = AcceleratedOptimizer(inner, scaler=scaler)
scheduler = AcceleratedScheduler(torch.optim.lr_scheduler.LinearLR(inner, 1.0, 0.1, total_iters=30), optimizer)
for _ in range(30):
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    optimizer.step()
    scheduler.step()  # here
    optimizer.zero_grad()
