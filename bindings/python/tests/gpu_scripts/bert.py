# SPDX-License-Identifier: Apache-2.0
"""In the style of BERT's fine-tuning scripts: a rank's device, NCCL, accumulation, FusedAdam, a saved state."""
import argparse
import os
import random
import tempfile

import torch
from apex import amp
from apex.normalization import FusedLayerNorm
from apex.optimizers import FusedAdam
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
parser.add_argument("--fp16_opt_level", default="O2")
parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
args = parser.parse_args()
folder = tempfile.mkdtemp()
torch.cuda.set_device(args.local_rank)
args.device = torch.device("cuda", args.local_rank)
torch.distributed.init_process_group(backend="nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
args.n_gpu = 1
random.seed(1)
torch.manual_seed(1)
if args.n_gpu > 0:
    torch.cuda.manual_seed_all(1)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(16, 16)
        self.norm = FusedLayerNorm(16)
        self.dense = nn.Linear(16, 2)

    def forward(self, input_ids, labels):
        positions = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.embeddings(input_ids) + self.embeddings(positions)
        logits = self.dense(self.norm(x).mean(1))
        return nn.functional.cross_entropy(logits.float(), labels.view(-1)), logits


ids = torch.randint(0, 16, (64, 6))
dataset = TensorDataset(ids, (ids.float().mean(1) > 7.5).long())
sampler = RandomSampler(dataset) if args.local_rank == -1 else DistributedSampler(dataset)
loader = DataLoader(dataset, sampler=sampler, batch_size=8)
model = Classifier().to(args.device)
no_decay = ["bias", "norm"]
groups = [
    {"params": [p for n, p in model.named_parameters() if not any(w in n for w in no_decay)], "weight_decay": 0.01},
    {"params": [p for n, p in model.named_parameters() if any(w in n for w in no_decay)], "weight_decay": 0.0},
]
optimizer = FusedAdam(groups, lr=5e-2)
model, optimizer = amp.initialize(model, optimizer, opt_level=args.fp16_opt_level, loss_scale="dynamic")
model = nn.parallel.DistributedDataParallel(
    model, device_ids=[args.local_rank], output_device=args.local_rank, find_unused_parameters=True
)
losses = []
for _ in range(3):
    for step, batch in enumerate(loader):
        batch = tuple(t.to(args.device) for t in batch)
        loss = model(*batch)[0] / args.gradient_accumulation_steps
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        losses.append(loss.item())
        if (step + 1) % args.gradient_accumulation_steps == 0:
            nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
            optimizer.step()
            model.zero_grad()
path = os.path.join(folder, "model.bin")
torch.save(model.module.state_dict(), path)
again = Classifier()
again.load_state_dict(torch.load(path, map_location=args.device))
again.to(args.device)
torch.distributed.barrier(device_ids=[args.local_rank])
print(f"loss {losses[0]:.4f} -> {sum(losses[-4:]) / 4:.4f}")
