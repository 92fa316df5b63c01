# SPDX-License-Identifier: Apache-2.0
"""A transformer that reads the digits row by row, with Adam, a warm-up schedule, and gradients clipped through
amp.master_params: the right place at every level, because there they are FP32 and unscaled.

    python transformer.py --opt-level O2
    python transformer.py --opt-level O4 --activations 4     # what waits for backward in 4 bits an element
"""

import argparse

import torch
from digits import load
from libamp.torch import amp
from torch import nn


class Reader(nn.Module):
    """Eight rows are eight words of eight numbers."""

    def __init__(self, width=32, layers=2, classes=10):
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.position = nn.Parameter(torch.randn(8, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, rows):
        return self.head(self.encoder(self.embed(rows) + self.position).mean(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opt-level", default="O1")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--activations", type=int, choices=(8, 4, 2), help="bits of what waits for backward")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images, labels = (tensor.to(device) for tensor in load(train=True))

    model = Reader().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level, verbosity=0)
    if args.activations:
        amp.compress_activations(model, args.activations)
    steps = args.epochs * -(-len(labels) // args.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 20, 1 - step / steps))

    for epoch in range(args.epochs):
        total = clipped = 0
        for batch in torch.randperm(len(labels)).split(args.batch_size):
            loss = nn.functional.cross_entropy(model(images[batch, 0]), labels[batch])
            optimizer.zero_grad()
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            norm = nn.utils.clip_grad_norm_(amp.master_params(optimizer), args.max_norm)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(batch)
            clipped += bool(norm > args.max_norm)
        print(f"epoch {epoch}: loss {total / len(labels):.4f}, {clipped} steps clipped", flush=True)

    images, labels = (tensor.to(device) for tensor in load(train=False))
    model.eval()
    with torch.no_grad():
        right = (model(images[:, 0]).argmax(1) == labels).float().mean().item()
    print(f"{args.opt_level}: accuracy {100 * right:.2f} %")


if __name__ == "__main__":
    main()
