# SPDX-License-Identifier: Apache-2.0
"""unslothai/unsloth-zoo#680: full finetuning in bf16 never moves 60 % of a pretrained norm's weights."""
import torch
from torch import nn

torch.manual_seed(0)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(50, 128)
        self.input_layernorm = nn.RMSNorm(128)
        self.proj = nn.Linear(128, 50)

    def forward(self, tokens):
        return self.proj(self.input_layernorm(self.embed_tokens(tokens)))


def pretrained():
    model = Decoder()
    # Above 0.5 half the distance of two bf16 numbers is 0.00195, below it at most 0.00098.
    model.input_layernorm.weight.data = torch.linspace(0.27, 0.65, 128)[torch.randperm(128)]
    return model.to(torch.bfloat16)


model = pretrained()
optimizer = torch.optim.Adam(model.parameters(), lr=1.2e-3)
for _ in range(40):
    tokens = torch.randint(0, 50, (8, 17))
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
