# SPDX-License-Identifier: Apache-2.0
"""A teacher in bf16 that never trains, a student in FP32 under autocast, temperatures and KL."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5)).to(torch.bfloat16).eval()
student = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
for _ in range(25):
    x, y = torch.randn(16, 16), torch.randint(0, 5, (16,))
    with torch.no_grad():
        theirs = teacher(x.to(torch.bfloat16)).float()
    with torch.autocast("cpu", torch.bfloat16):
        ours = student(x).float()
    soft = F.kl_div(F.log_softmax(ours / 4, -1), F.softmax(theirs / 4, -1), reduction="batchmean") * 16
    loss = 0.9 * soft + 0.1 * F.cross_entropy(ours, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
