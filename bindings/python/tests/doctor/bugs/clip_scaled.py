# SPDX-License-Identifier: Apache-2.0
"""milesial/Pytorch-UNet#468: gradients are clipped while the scale is still on them."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.999, foreach=True)
grad_scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
criterion = nn.CrossEntropyLoss()
for _ in range(20):
    images, true_masks = torch.rand(2, 3, 16, 16), torch.randint(0, 2, (2, 16, 16))
    with torch.autocast("cpu", torch.float16):
        loss = criterion(model(images), true_masks)
    optimizer.zero_grad(set_to_none=True)
    grad_scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here
    grad_scaler.step(optimizer)
    grad_scaler.update()
