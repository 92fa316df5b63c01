# SPDX-License-Identifier: Apache-2.0
"""In the style of maskrcnn-benchmark: boxes in types of torch.cuda, timers of events, a rank-aware checkpointer."""
import argparse
import io
import logging

import torch
from apex import amp
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--level", default="O1")
args = parser.parse_args()
device = torch.device("cuda")
logger = logging.getLogger("detection")


class RPN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.boxes = nn.Conv2d(8, 4, 1)

    def forward(self, images, targets):
        features = torch.relu(self.conv(images))
        boxes = self.boxes(features).mean((2, 3))
        return {"loss_box": nn.functional.smooth_l1_loss(boxes.float(), targets)}


def nms(boxes, scores):
    """Greedy, as the CUDA kernel would."""
    keep = torch.zeros(boxes.size(0)).type(torch.cuda.ByteTensor)
    order = scores.sort(descending=True)[1]
    while order.numel():
        keep[order[0]] = 1
        order = order[1:][(boxes[order[1:]] - boxes[order[0]]).abs().sum(1) > 0.5]
    return keep.nonzero().view(-1)


torch.manual_seed(0)
model = RPN()
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
model, optimizer = amp.initialize(model, optimizer, opt_level=args.level)
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
images, targets = torch.randn(8, 3, 6, 6), torch.cuda.FloatTensor([[0.0, 1.0, 2.0, 3.0]]).repeat(8, 1)
losses = []
start.record()
for _ in range(20):
    loss_dict = model(images.to(device), targets.to("cuda:0"))
    total = sum(loss_dict.values())
    optimizer.zero_grad()
    with amp.scale_loss(total, optimizer) as scaled_losses:
        scaled_losses.backward()
    optimizer.step()
    losses.append(total.item())
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) > 0 and end.query()
assert torch.cuda.max_memory_allocated() / 1024.0 / 1024.0 > 0.001
kept = nms(torch.cuda.FloatTensor([[0, 0], [0, 0.1], [2, 2]]), torch.tensor([0.9, 0.8, 0.7], device="cuda"))
assert kept.tolist() == [0, 2], kept
saved = io.BytesIO()
torch.save({"model": model.state_dict(), "amp": amp.state_dict()}, saved)
saved.seek(0)
loaded = torch.load(saved, map_location=lambda storage, location: storage.cuda(0))
model.load_state_dict(loaded["model"])
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
