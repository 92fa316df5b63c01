# SPDX-License-Identifier: Apache-2.0
"""timm: a small residual network with adaptive gradient clipping and LAMB, FP32, layers frozen at first."""
import timm
import torch
from timm.optim import create_optimizer_v2
from timm.utils import adaptive_clip_grad

torch.manual_seed(0)
model = timm.create_model("resnet10t", num_classes=10)
timm.utils.freeze(model, ["conv1", "layer1", "layer2"])
optimizer = create_optimizer_v2(model, opt="lamb", lr=5e-3, weight_decay=0.02)
model.train()
for _ in range(6):
    loss = torch.nn.functional.cross_entropy(model(torch.rand(2, 3, 32, 32)), torch.randint(0, 10, (2,)))
    optimizer.zero_grad()
    loss.backward()
    adaptive_clip_grad(filter(lambda p: p.requires_grad, model.parameters()), 0.02)
    optimizer.step()
