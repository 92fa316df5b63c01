# SPDX-License-Identifier: Apache-2.0
"""zjunlp/HVPNeT#5: the groups of fc and crf are built, but never appended to the optimizer's."""
import torch
from torch import nn

torch.manual_seed(0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert, self.fc, self.crf = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 5), nn.Linear(5, 5)

    def forward(self, x):
        return self.crf(self.fc(self.bert(x)[0]))


model = Tagger()
parameters = []
params = {"lr": 3e-5, "weight_decay": 1e-2}
params["params"] = [p for name, p in model.named_parameters() if "bert" in name]
parameters.append(params)
params = {"lr": 5e-2, "weight_decay": 1e-2}
params["params"] = [p for name, p in model.named_parameters() if "crf" in name or name.startswith("fc")]
optimizer = torch.optim.AdamW(parameters)
for _ in range(15):
    x, y = torch.randn(8, 12, 16), torch.randint(0, 5, (8, 12))
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    model.zero_grad()
    loss.backward()
    optimizer.step()
