# SPDX-License-Identifier: Apache-2.0
"""In the style of Apex's own ImageNet example: ranks, NCCL, a prefetcher on a stream of its own."""
import argparse
import os
import time

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
from apex import amp
from apex.parallel import DistributedDataParallel as DDP
from apex.parallel import convert_syncbn_model
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", default=0, type=int)
parser.add_argument("--opt-level", default="O1")
parser.add_argument("--loss-scale", default=None)
parser.add_argument("--keep-batchnorm-fp32", default=None)
args = parser.parse_args()
assert cudnn.enabled, "Amp requires cudnn backend to be enabled."
cudnn.benchmark = True


class Prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.mean = torch.tensor([0.485 * 255, 0.456 * 255, 0.406 * 255]).cuda().view(1, 3, 1, 1)
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = None
            return
        with torch.cuda.stream(self.stream):
            self.next_input = self.next_input.cuda(non_blocking=True).float().sub_(self.mean).div_(255)
            self.next_target = self.next_target.cuda(non_blocking=True)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        input, target = self.next_input, self.next_target
        if input is not None:
            input.record_stream(torch.cuda.current_stream())
            self.preload()
        return input, target


distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
gpu, world_size = 0, 1
if distributed:
    gpu = args.local_rank
    torch.cuda.set_device(gpu)
    dist.init_process_group(backend="nccl", init_method="env://")
    world_size = dist.get_world_size()
    assert torch.cuda.current_device() == gpu < torch.cuda.device_count()
torch.manual_seed(gpu)
images = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8)
targets = (images.float().mean((1, 2, 3)) > 127).long()
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(images, targets), batch_size=16, pin_memory=True, num_workers=0
)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
)
if distributed:
    model = convert_syncbn_model(model)
model = model.cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
model, optimizer = amp.initialize(
    model,
    optimizer,
    opt_level=args.opt_level,
    keep_batchnorm_fp32=args.keep_batchnorm_fp32,
    loss_scale=args.loss_scale,
)
if distributed:
    model = DDP(model, delay_allreduce=True)
criterion = nn.CrossEntropyLoss().cuda()
losses = []
for _ in range(4):
    prefetcher, end = Prefetcher(loader), time.time()
    input, target = prefetcher.next()
    while input is not None:
        loss = criterion(model(input), target)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        reduced = loss.data.clone()
        if distributed:
            dist.all_reduce(reduced, op=dist.ReduceOp.SUM)
            reduced /= world_size
        torch.cuda.synchronize()
        losses.append(reduced.item())
        input, target = prefetcher.next()
if args.local_rank == 0:
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} of {world_size}")
