# SPDX-License-Identifier: Apache-2.0
"""pytorch/examples#1196: minGPT's Trainer clips without unscale_ when it uses AMP."""
import torch
from torch import nn


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(40, 32), nn.Parameter(torch.zeros(1, 16, 32))
        self.block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 40, bias=False)

    def forward(self, x, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        logits = self.head(self.block(self.tokens(x) + self.positions, src_mask=mask, is_causal=True))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    def __init__(self, model, optimizer, use_amp, grad_norm_clip=1.0):
        self.model, self.optimizer, self.use_amp, self.grad_norm_clip = model, optimizer, use_amp, grad_norm_clip
        if use_amp:
            self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def run_batch(self, source, targets):
        with torch.amp.autocast("cpu", dtype=torch.float16, enabled=self.use_amp):
            _, loss = self.model(source, targets)
        self.optimizer.zero_grad(set_to_none=True)
        if self.use_amp:
            self.scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_norm_clip)  # here
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_norm_clip)
            self.optimizer.step()
        return loss.item()


torch.manual_seed(0)
model = GPT()
trainer = Trainer(model, torch.optim.AdamW(model.parameters(), lr=3e-4), use_amp=True)
for _ in range(15):
    text = torch.randint(0, 40, (4, 17))
    trainer.run_batch(text[:, :-1], text[:, 1:])
