# SPDX-License-Identifier: Apache-2.0
"""timm's parts: a small vision transformer, its optimizer factory, its averages of weights, its NativeScaler, bf16."""
import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3

torch.manual_seed(0)
model = timm.create_model(
    "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, num_classes=10,
    drop_path_rate=0.1)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
ema = ModelEmaV3(model, decay=0.99)
scheduler = CosineLRScheduler(optimizer, t_initial=3, warmup_t=1, warmup_lr_init=1e-5)
criterion = LabelSmoothingCrossEntropy(0.1)
for epoch in range(3):
    model.train()
    for _ in range(8):
        images, target = torch.rand(4, 3, 32, 32), torch.randint(0, 10, (4,))
        with torch.amp.autocast("cpu", torch.bfloat16):
            loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        timm.utils.dispatch_clip_grad(model.parameters(), 1.0, mode="norm")
        optimizer.step()
        ema.update(model)
    model.eval()
    with torch.no_grad():
        ema.module(torch.rand(2, 3, 32, 32))
    scheduler.step(epoch + 1)
