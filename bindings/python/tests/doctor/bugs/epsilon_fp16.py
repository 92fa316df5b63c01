# SPDX-License-Identifier: Apache-2.0
"""lightonai/pylate#239: 1e-8, which guards a division, is 0 in fp16."""
import torch
from torch import nn

torch.manual_seed(0)


class Distillation(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.document = nn.Linear(16, 32), nn.Linear(16, 32)

    def forward(self, query, documents, teacher):
        scores = torch.bmm(self.document(documents), self.query(query).unsqueeze(2)).squeeze(2)
        low, high = scores.min(1, keepdim=True)[0], scores.max(1, keepdim=True)[0]
        scores = (scores - low) / (high - low + 1e-8)  # here
        return nn.functional.kl_div(scores.log_softmax(-1), teacher.log_softmax(-1), log_target=True)


model = Distillation()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cpu")
for _ in range(20):
    query, documents, teacher = torch.randn(4, 16), torch.randn(4, 8, 16), torch.randn(4, 8)
    documents[1], teacher[1] = documents[1, :1], 1.0  # copies of one document
    with torch.autocast("cpu", torch.float16):
        loss = model(query, documents, teacher)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
