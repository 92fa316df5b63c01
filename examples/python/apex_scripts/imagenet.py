# SPDX-License-Identifier: Apache-2.0
"""Trains a residual network the way ImageNet was trained with Apex, on the digits: any opt level, one process or many,
synchronized batch norm, a prefetcher that copies beside the computation, checkpoints and resuming.

    python imagenet.py --opt-level O2 --epochs 3
    torchrun --nproc_per_node 2 imagenet.py --opt-level O1 --sync_bn
"""

import argparse
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from apex import amp
from apex.parallel import DistributedDataParallel as DDP
from apex.parallel import convert_syncbn_model
from digits import DATA, Digits


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=DATA)
    parser.add_argument("-j", "--workers", default=0, type=int)
    parser.add_argument("--epochs", default=3, type=int)
    parser.add_argument("--stop-after", default=None, type=int, help="leave after this epoch, as if interrupted")
    parser.add_argument("-b", "--batch-size", default=64, type=int)
    parser.add_argument("--width", default=8, type=int)
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("--momentum", default=0.9, type=float)
    parser.add_argument("--weight-decay", "--wd", default=1e-4, type=float)
    parser.add_argument("--print-freq", "-p", default=10, type=int)
    parser.add_argument("--resume", default="")
    parser.add_argument("--checkpoint", default="checkpoint.pth.tar")
    parser.add_argument("-e", "--evaluate", action="store_true")
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--local_rank", "--local-rank", default=int(os.environ.get("LOCAL_RANK", 0)), type=int)
    parser.add_argument("--sync_bn", action="store_true")
    parser.add_argument("--opt-level", type=str, default="O1")
    parser.add_argument("--keep-batchnorm-fp32", type=str, default=None)
    parser.add_argument("--loss-scale", type=str, default=None)
    return parser.parse_args()


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, width, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = Block(width, width, 1)
        self.layer2 = Block(width, 2 * width, 2)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class DataPrefetcher:
    """Copies the next batch to the device on a stream of its own while this one is computed."""

    def __init__(self, loader, device):
        self.loader = iter(loader)
        self.device = device
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = self.next_target = None
            return
        if self.stream is not None:
            with torch.cuda.stream(self.stream):
                self.next_input = self.next_input.to(self.device, non_blocking=True)
                self.next_target = self.next_target.to(self.device, non_blocking=True)

    def next(self):
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.next_input, self.next_target
        if self.stream is not None and batch[0] is not None:
            for tensor in batch:
                tensor.record_stream(torch.cuda.current_stream())
        self.preload()
        return batch


class AverageMeter:
    def __init__(self):
        self.val = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def reduce_tensor(tensor):
    result = tensor.clone()
    if args.distributed:
        torch.distributed.all_reduce(result)
        result /= args.world_size
    return result.item()


def accuracy(output, target):
    return 100.0 * (output.argmax(1) == target).float().mean()


def adjust_learning_rate(optimizer, epoch, step, steps):
    """A warm-up of one epoch, then a third in the last one."""
    lr = args.lr * (0.3 if epoch == args.epochs - 1 else 1)
    if epoch < 1:
        lr *= (1 + step + epoch * steps) / steps
    for group in optimizer.param_groups:
        group["lr"] = lr


def train(loader, model, criterion, optimizer, epoch):
    losses, top1, began = AverageMeter(), AverageMeter(), time.time()
    model.train()
    prefetcher = DataPrefetcher(loader, args.device)
    input, target = prefetcher.next()
    i = 0
    while input is not None:
        adjust_learning_rate(optimizer, epoch, i, len(loader))
        output = model(input)
        loss = criterion(output, target)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        losses.update(reduce_tensor(loss.data), input.size(0))
        top1.update(reduce_tensor(accuracy(output.data, target)), input.size(0))
        if args.local_rank == 0 and i % args.print_freq == 0:
            print(
                f"Epoch: [{epoch}][{i}/{len(loader)}]\tSpeed {top1.count / (time.time() - began):.0f}\t"
                f"Loss {losses.val:.4f} ({losses.avg:.4f})\tPrec@1 {top1.val:.2f} ({top1.avg:.2f})"
            )
        input, target = prefetcher.next()
        i += 1


def validate(loader, model, criterion):
    losses, top1 = AverageMeter(), AverageMeter()
    model.eval()
    prefetcher = DataPrefetcher(loader, args.device)
    input, target = prefetcher.next()
    while input is not None:
        with torch.no_grad():
            output = model(input)
            loss = criterion(output, target)
        losses.update(reduce_tensor(loss.data), input.size(0))
        top1.update(reduce_tensor(accuracy(output.data, target)), input.size(0))
        input, target = prefetcher.next()
    if args.local_rank == 0:
        print(f" * Loss {losses.avg:.4f} Prec@1 {top1.avg:.2f}")
    return top1.avg


def make_loader(train, epoch):
    dataset = Digits(train, args.data)
    if args.distributed:
        sampler = torch.utils.data.distributed.DistributedSampler(dataset, shuffle=train, seed=args.seed)
        sampler.set_epoch(epoch)
    elif train:
        sampler = torch.utils.data.RandomSampler(dataset, generator=torch.Generator().manual_seed(args.seed + epoch))
    else:
        sampler = None
    return torch.utils.data.DataLoader(
        dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers, drop_last=train
    )


def main():
    global args
    args = parse()
    args.distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    args.world_size = 1
    args.device = torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(args.local_rank % torch.cuda.device_count())
        args.device = torch.device("cuda")
    if args.distributed:
        torch.distributed.init_process_group(backend="nccl" if args.device.type == "cuda" else "gloo")
        args.world_size = torch.distributed.get_world_size()
    torch.manual_seed(args.seed)

    model = ResNet(args.width)
    if args.sync_bn:
        print("using apex synced BN")
        model = convert_syncbn_model(model)
    model = model.to(args.device)
    criterion = nn.CrossEntropyLoss().to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)

    model, optimizer = amp.initialize(
        model,
        optimizer,
        opt_level=args.opt_level,
        keep_batchnorm_fp32=args.keep_batchnorm_fp32,
        loss_scale=args.loss_scale,
    )
    if args.distributed:
        model = DDP(model, delay_allreduce=True)

    start_epoch, best_prec1 = 0, 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=args.device, weights_only=False)
        start_epoch, best_prec1 = checkpoint["epoch"], checkpoint["best_prec1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        amp.load_state_dict(checkpoint["amp"])
        print(f"=> loaded checkpoint '{args.resume}' (epoch {start_epoch})")
    if args.evaluate:
        validate(make_loader(False, 0), model, criterion)
        return

    for epoch in range(start_epoch, args.epochs):
        train(make_loader(True, epoch), model, criterion, optimizer, epoch)
        prec1 = validate(make_loader(False, epoch), model, criterion)
        best_prec1 = max(prec1, best_prec1)
        if args.local_rank == 0:
            state = {
                "epoch": epoch + 1,
                "state_dict": model.state_dict(),
                "best_prec1": best_prec1,
                "optimizer": optimizer.state_dict(),
                "amp": amp.state_dict(),
            }
            torch.save(state, args.checkpoint)
        if epoch == args.stop_after:
            break
    if args.distributed:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
