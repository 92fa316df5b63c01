# SPDX-License-Identifier: Apache-2.0
"""Sine waves by an LSTM in FP64 with LBFGS, which calls its closure many times a step."""
import torch
from torch import nn


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.linear = nn.LSTMCell(1, 8), nn.Linear(8, 1)

    def forward(self, x):
        outputs, h, c = [], torch.zeros(len(x), 8, dtype=x.dtype), torch.zeros(len(x), 8, dtype=x.dtype)
        for t in x.split(1, dim=1):
            h, c = self.lstm(t, (h, c))
            outputs.append(self.linear(h))
        return torch.cat(outputs, dim=1)


torch.manual_seed(0)
waves = torch.sin(torch.arange(13) / 3 + torch.arange(6)[:, None]).double()
seq = Sequence().double()
optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=6)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(seq(waves[:, :-1]), waves[:, 1:])
    loss.backward()
    return loss


for _ in range(4):
    optimizer.step(closure)
