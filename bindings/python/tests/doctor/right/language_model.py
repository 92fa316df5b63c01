# SPDX-License-Identifier: Apache-2.0
"""A word-level LSTM whose weights are updated by hand, with gradients clipped (as in PyTorch's examples)."""
import torch
from torch import nn

torch.manual_seed(1111)


class RNNModel(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(tokens, width), nn.LSTM(width, width, 2, dropout=0.2)
        self.decoder = nn.Linear(width, tokens)
        self.decoder.weight = self.encoder.weight  # tied
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.encoder(tokens), hidden)
        return self.decoder(output), hidden


model, lr = RNNModel(60, 32), 5.0
corpus = torch.randint(0, 60, (241, 4))
hidden = (torch.zeros(2, 4, 32), torch.zeros(2, 4, 32))
for i in range(0, 240, 12):
    data, targets = corpus[i:i + 12], corpus[i + 1:i + 13]
    model.zero_grad()
    hidden = tuple(h.detach() for h in hidden)
    output, hidden = model(data, hidden)
    loss = nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)
    if i == 120:
        lr /= 4.0
