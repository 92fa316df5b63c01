# SPDX-License-Identifier: Apache-2.0
"""In the style of the re-identification baselines: identities by a sampler of its own, DataParallel, triplets."""
import argparse
import os
import random

os.environ["CUDA_VISIBLE_DEVICES"] = "0"
import torch
from apex import amp
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

parser = argparse.ArgumentParser()
parser.add_argument("--level", default="O1")
args = parser.parse_args()


class People(Dataset):
    def __init__(self):
        self.pids = [i // 4 for i in range(32)]
        self.images = torch.randn(8, 3, 4, 4)[torch.tensor(self.pids)] + 0.1 * torch.randn(32, 3, 4, 4)

    def __len__(self):
        return len(self.pids)

    def __getitem__(self, index):
        return self.images[index], self.pids[index]


class RandomIdentitySampler(Sampler):
    def __init__(self, pids):
        self.pids = pids

    def __iter__(self):
        people = random.sample(sorted(set(self.pids)), 8)
        return iter([i for pid in people for i in range(len(self.pids)) if self.pids[i] == pid])

    def __len__(self):
        return len(self.pids)


class CenterLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(8, 16).cuda())

    def forward(self, x, labels):
        return (x.float() - self.centers[labels]).pow(2).sum(1).mean()


def triplet(x, labels):
    distance = torch.cdist(x, x)
    same = labels.expand(len(x), len(x)).eq(labels.expand(len(x), len(x)).t())
    hardest = (distance - 1e4 * (~same).float().cuda()).max(1)[0]
    nearest = (distance + 1e4 * same.type("torch.cuda.FloatTensor")).min(1)[0]
    return nn.functional.margin_ranking_loss(nearest, hardest, torch.ones(len(x)).cuda(), margin=0.3)


random.seed(0)
torch.manual_seed(0)
torch.cuda.manual_seed_all(0)
dataset = People()
loader = DataLoader(dataset, batch_size=16, sampler=RandomIdentitySampler(dataset.pids), num_workers=1, pin_memory=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.BatchNorm1d(16)).cuda()
center = CenterLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
center_optimizer = torch.optim.SGD(center.parameters(), lr=0.5)
model, optimizer = amp.initialize(model, optimizer, opt_level=args.level)
model = nn.DataParallel(model, device_ids=list(range(torch.cuda.device_count())))
losses = []
for _ in range(5):
    for images, pids in loader:
        feature = model(images.cuda())
        loss = triplet(feature.float(), pids.cuda()) + 0.005 * center(feature, pids.cuda())
        optimizer.zero_grad()
        center_optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
