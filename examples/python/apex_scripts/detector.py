# SPDX-License-Identifier: Apache-2.0
"""A small one-stage detector: digits on a larger canvas, a class and a box for each cell of a grid, synchronized batch
norm, losses in FP32 by decorator and by registration, a warm-up schedule.

    python detector.py
    torchrun --nproc_per_node 2 detector.py --opt-level O2
"""

import argparse
import os
from bisect import bisect_right

import apex
import torch
import torch.nn as nn
import torch.nn.functional as F
from apex import amp
from digits import load

CANVAS, STRIDE = 24, 4


class Boxes:
    """Functions that other modules call by attribute, as compiled extensions have them."""

    @staticmethod
    def iou(a, b):
        lt, rb = torch.max(a[:, :2], b[:, :2]), torch.min(a[:, 2:], b[:, 2:])
        inter = (rb - lt).clamp(min=0).prod(1)
        area = lambda box: (box[:, 2:] - box[:, :2]).clamp(min=0).prod(1)  # noqa: E731
        return inter / (area(a) + area(b) - inter)


amp.register_float_function(Boxes, "iou")


@amp.float_function
def focal_loss(logits, targets, alpha=0.25, gamma=2.0):
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    return ((alpha * targets + (1 - alpha) * (1 - targets)) * ce * (1 - p_t) ** gamma).sum()


class WarmupMultiStepLR(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer, milestones, gamma=0.1, warmup_iters=10, warmup_factor=1 / 3):
        self.milestones, self.gamma = milestones, gamma
        self.warmup_iters, self.warmup_factor = warmup_iters, warmup_factor
        super().__init__(optimizer)

    def get_lr(self):
        alpha = min(self.last_epoch / self.warmup_iters, 1)
        warmup = self.warmup_factor * (1 - alpha) + alpha
        decay = self.gamma ** bisect_right(self.milestones, self.last_epoch)
        return [base_lr * warmup * decay for base_lr in self.base_lrs]


class Detector(nn.Module):
    def __init__(self, width=8, classes=10):
        super().__init__()
        layers, inputs = [], 1
        for outputs, stride in ((width, 1), (2 * width, 2), (2 * width, 2), (2 * width, 1)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True)]
            inputs = outputs
        self.backbone = nn.Sequential(*layers)
        self.objectness = nn.Conv2d(inputs, 1, 3, padding=1)
        self.cls_logits = nn.Conv2d(inputs, classes, 3, padding=1)
        self.bbox_pred = nn.Conv2d(inputs, 4, 3, padding=1)
        nn.init.constant_(self.objectness.bias, -2.0)

    def forward(self, images, targets=None):
        features = self.backbone(images)
        heads = self.objectness(features), self.cls_logits(features), self.bbox_pred(features)
        size = features.shape[-1]
        centre = (torch.arange(size, device=images.device) + 0.5) * STRIDE
        grid = torch.stack([centre.repeat(size), centre.repeat_interleave(size)], 1)  # x, y
        objects, scores, deltas = (head.flatten(2).transpose(1, 2) for head in heads)
        sides = deltas.exp() * STRIDE
        boxes = torch.cat([grid - sides[..., :2], grid + sides[..., 2:]], 2)
        if targets is None:
            best = objects[..., 0].float().argmax(1)
            rows = torch.arange(len(images), device=images.device)
            return scores[rows, best].argmax(1), boxes[rows, best]
        labels, wanted = targets
        inside = ((grid[None] - (wanted[:, None, :2] + wanted[:, None, 2:]) / 2).abs() < 4).all(2)
        positives = inside.sum().clamp(min=1)
        iou = Boxes.iou(boxes[inside], wanted[:, None].expand_as(boxes)[inside])
        return {
            "loss_objectness": focal_loss(objects[..., 0], inside.float()) / positives,
            "loss_classifier": F.cross_entropy(scores[inside], labels[:, None].expand_as(inside)[inside]),
            "loss_box_reg": -torch.log(iou.clamp(min=1e-3)).sum() / positives,
        }


def batches(args, rank, device):
    """Digits at random places of the canvas, for ever."""
    images, labels = load()
    generator = torch.Generator().manual_seed(args.seed + rank)
    while True:
        chosen = torch.randint(len(labels), (args.batch_size,), generator=generator)
        at = torch.randint(CANVAS - 8, (args.batch_size, 2), generator=generator)
        canvas = torch.full((args.batch_size, 1, CANVAS, CANVAS), -1.0)
        for k, (x, y) in enumerate(at.tolist()):
            canvas[k, :, y : y + 8, x : x + 8] = images[chosen[k]]
        boxes = torch.cat([at, at + 8], 1).float()
        yield canvas.to(device), (labels[chosen].to(device), boxes.to(device))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--opt-level", default="O1")
    parser.add_argument("--max-iter", default=200, type=int)
    parser.add_argument("--batch-size", default=32, type=int)
    parser.add_argument("--lr", default=0.05, type=float)
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("--local_rank", "--local-rank", default=0, type=int)
    args = parser.parse_args()
    distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if distributed:
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = torch.distributed.get_rank() if distributed else 0

    torch.manual_seed(args.seed)
    model = apex.parallel.convert_syncbn_model(Detector()).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = WarmupMultiStepLR(optimizer, [int(args.max_iter * 0.8)])
    model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level)
    if distributed:
        model = apex.parallel.DistributedDataParallel(model, delay_allreduce=True)

    data = batches(args, rank, device)
    model.train()
    for iteration in range(args.max_iter):
        images, targets = next(data)
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        optimizer.zero_grad()
        with amp.scale_loss(losses, optimizer) as scaled_losses:
            scaled_losses.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 10.0)
        optimizer.step()
        scheduler.step()
        if rank == 0 and iteration % 10 == 0:
            parts = " ".join(f"{name}: {loss.item():.4f}" for name, loss in loss_dict.items())
            lr = optimizer.param_groups[0]["lr"]
            print(f"iter: {iteration} loss: {losses.item():.4f} {parts} lr: {lr:.6f}")

    model.eval()
    with torch.no_grad():
        images, (labels, boxes) = next(data)
        found, places = model(images)
        iou = Boxes.iou(places.float(), boxes).mean()
    if rank == 0:
        print(f"iou: {iou.item():.3f} correct: {(found == labels).float().mean().item():.3f}")
        running = next(m for m in model.modules() if isinstance(m, apex.parallel.SyncBatchNorm)).running_mean
        print(f"running mean {running.dtype} {running.abs().sum().item():.6f}")
    if distributed:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
