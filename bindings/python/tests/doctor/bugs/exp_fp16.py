# SPDX-License-Identifier: Apache-2.0
"""NVIDIA-NeMo/RL#876: the KL term's exp exceeds fp16 where the policy left the reference."""
import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 24))
nn.init.normal_(policy[2].weight, std=3.0)
reference = nn.Linear(16, 24).requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cpu")


def kl(logprobs_reference, logprobs):
    r = (logprobs_reference - logprobs).clamp(-20.0, 20.0)
    return torch.exp(r) - r - 1  # here


for _ in range(20):
    states = torch.randn(32, 16)
    with torch.autocast("cpu", torch.float16):
        ours, theirs = policy(states), reference(states)
        loss = kl(theirs - theirs.logsumexp(-1, keepdim=True), ours - ours.logsumexp(-1, keepdim=True)).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
