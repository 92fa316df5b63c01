# SPDX-License-Identifier: Apache-2.0
"""In the style of fairseq's trainer: refuses the CPU, moves nested samples, asks what the GPU is, counts its memory."""
import argparse

import torch
from apex import amp
from torch import nn


def move_to_cuda(sample):
    if torch.is_tensor(sample):
        return sample.cuda()
    if isinstance(sample, dict):
        return {key: move_to_cuda(value) for key, value in sample.items()}
    return [move_to_cuda(x) for x in sample] if isinstance(sample, list) else sample


class Trainer:
    def __init__(self, args, model):
        if not torch.cuda.is_available():
            raise NotImplementedError("Training on CPU is not supported")
        self.model = model.cuda()
        if torch.cuda.get_device_capability(0)[0] < 7:
            print("| NOTE: your device does NOT support faster training with --fp16")
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level=args.level, loss_scale=128)
        self.cuda_env = torch.cuda.get_device_properties(torch.cuda.current_device())

    def train_step(self, sample):
        torch.manual_seed(1)
        torch.cuda.manual_seed(1)
        state = torch.cuda.get_rng_state()
        sample = move_to_cuda(sample)
        self.optimizer.zero_grad()
        x = sample["net_input"]["src_tokens"]
        out = self.model(x)
        target = sample["target"][0]
        loss = nn.functional.nll_loss(nn.functional.log_softmax(out, -1).float().view(-1, 12), target.view(-1))
        with amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        self.optimizer.step()
        torch.cuda.set_rng_state(state)
        torch.cuda.empty_cache()
        return loss.item()


parser = argparse.ArgumentParser()
parser.add_argument("--level", default="O2")
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(12, 16), nn.Dropout(0.1), nn.Linear(16, 12))
trainer = Trainer(parser.parse_args(), model)
tokens = torch.arange(24).view(2, 12) % 12
losses = [trainer.train_step({"net_input": {"src_tokens": tokens}, "target": [tokens.flip(0)]}) for _ in range(20)]
stats = torch.cuda.memory_stats()
assert 0 < torch.cuda.memory_allocated() <= torch.cuda.max_memory_allocated() < trainer.cuda_env.total_memory
assert stats["allocated_bytes.all.peak"] > 0 and torch.cuda.max_memory_reserved() > 0
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
