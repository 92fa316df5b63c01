# SPDX-License-Identifier: Apache-2.0
"""In the style of timm's train.py: channels_last, an EMA, a prefetching loader, torch's own autocast and GradScaler
where Apex is not asked for."""
import argparse
import copy
import os
import tempfile
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore", category=FutureWarning)  # torch.cuda.amp is an old name
parser = argparse.ArgumentParser()
parser.add_argument("--apex-amp", default="")
args = parser.parse_args()
args.device = "cuda:0"
torch.cuda.set_device(args.device)


class PrefetchLoader:
    def __init__(self, loader, mean=(127.5, 127.5, 127.5)):
        self.loader = loader
        self.mean = torch.tensor([float(x) for x in mean]).cuda().view(1, 3, 1, 1)

    def __iter__(self):
        stream = torch.cuda.Stream()
        for input, target in self.loader:
            with torch.cuda.stream(stream):
                input = input.cuda(non_blocking=True).float().sub_(self.mean).div_(self.mean)
                target = target.cuda(non_blocking=True)
            torch.cuda.current_stream().wait_stream(stream)
            yield input, target


class ModelEma(nn.Module):
    def __init__(self, model, decay=0.9):
        super().__init__()
        self.module, self.decay = copy.deepcopy(model).eval(), decay
        self.module.to(device="cuda")

    @torch.no_grad()
    def update(self, model):
        for ema, new in zip(self.module.state_dict().values(), model.state_dict().values()):
            ema.copy_(self.decay * ema + (1 - self.decay) * new.to(device="cuda"))


torch.manual_seed(42)
images = torch.randint(0, 256, (32, 3, 8, 8), dtype=torch.uint8)
dataset = torch.utils.data.TensorDataset(images, (images[:, 0].float().mean((1, 2)) > 127).long())
loader = PrefetchLoader(torch.utils.data.DataLoader(dataset, batch_size=8, pin_memory=True, drop_last=True))
model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2))
model.cuda()
model = model.to(memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
if args.apex_amp:
    from apex import amp

    model, optimizer = amp.initialize(model, optimizer, opt_level=args.apex_amp)
scaler, ema = torch.cuda.amp.GradScaler(enabled=not args.apex_amp), ModelEma(model)
start, losses, types = copy.deepcopy(ema.module[0].weight), [], set()
best = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
for _ in range(4):
    for input, target in loader:
        with torch.cuda.amp.autocast(enabled=not args.apex_amp):
            output = model(input.contiguous(memory_format=torch.channels_last))
            types.add(output.dtype)
            loss = nn.functional.cross_entropy(output.float(), target)
        optimizer.zero_grad()
        if args.apex_amp:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
        ema.update(model)
        torch.cuda.synchronize()
        losses.append(loss.item())
path = os.path.join(tempfile.mkdtemp(), "last.pth")
torch.save(ema.module.state_dict(), path)
ema.module.load_state_dict(torch.load(path, map_location="cuda"))
assert not torch.equal(start, ema.module[0].weight)
assert torch.equal(best["0.weight"], start.cpu()), "a copy on the CPU moved along with the GPU's"
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {types.pop()}")
