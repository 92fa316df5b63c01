# SPDX-License-Identifier: Apache-2.0
"""In the style of the semantic segmentation toolboxes: a process for each GPU, torch's SyncBatchNorm and
DistributedDataParallel, a confusion matrix that is summed over NCCL."""
import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from apex import amp
from torch import nn


def train(gpu, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
    dist.init_process_group(backend="nccl", init_method="env://", world_size=args.gpus, rank=gpu)
    torch.cuda.set_device(gpu)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda(gpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level=args.level)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[gpu], output_device=gpu)
    torch.manual_seed(gpu)
    images = torch.randn(4, 3, 6, 6)
    labels, losses = (images.sum(1) > 0).long().cuda(gpu, non_blocking=True), []
    images = images.to(gpu)
    for _ in range(10):
        output = model(images)
        loss = nn.functional.cross_entropy(output.float(), labels)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / args.gpus)
    pairs = labels.view(-1) * 2 + output.argmax(1).view(-1)
    histogram = torch.bincount(pairs, minlength=4).cuda().float()
    dist.all_reduce(histogram)
    assert histogram.sum() == 144 * args.gpus
    mean = model.module[1].running_mean.clone()
    dist.all_reduce(mean)
    assert torch.allclose(mean / args.gpus, model.module[1].running_mean), "batch norm is each rank's own"
    if gpu == 0:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} on {args.gpus}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", default="O1")
    args = parser.parse_args()
    args.gpus = torch.cuda.device_count()
    assert args.gpus > 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        args.port = probe.getsockname()[1]
    if args.gpus > 1:
        mp.spawn(train, nprocs=args.gpus, args=(args,))
    else:
        train(0, args)
