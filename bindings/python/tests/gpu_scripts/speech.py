# SPDX-License-Identifier: Apache-2.0
"""In the style of Tacotron and Jasper: recurrent layers, CTC, a scripted activation, half() by hand."""
import argparse
import warnings

import torch
from apex import amp
from torch import nn

warnings.filterwarnings("ignore", category=FutureWarning)  # torch's of torch.jit.script
parser = argparse.ArgumentParser()
parser.add_argument("--amp-run", dest="level", default="O1")
parser.add_argument("--half-inputs", action="store_true")
args = parser.parse_args()


def to_gpu(x):
    return x.contiguous().cuda(non_blocking=True)


@torch.jit.script
def fused_add_tanh_sigmoid_multiply(a, b, n: int):
    in_act = a + b.cuda() + torch.zeros(1, device="cuda").to("cuda", non_blocking=True).to(a.dtype)
    return torch.tanh(in_act[:, :, :n]) * torch.sigmoid(in_act[:, :, n:])


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 16, bidirectional=True, batch_first=True)
        self.out = nn.Linear(16, 5)

    def forward(self, x):
        self.rnn.flatten_parameters()
        y, _ = self.rnn(x)
        return self.out(fused_add_tanh_sigmoid_multiply(y, y, 16))


torch.manual_seed(0)
torch.cuda.manual_seed(0)
model = Acoustic().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
model, optimizer = amp.initialize(model, optimizer, opt_level=args.level)
criterion = nn.CTCLoss().cuda()
x, y = to_gpu(torch.randn(4, 10, 8)), to_gpu(torch.randint(1, 5, (4, 3)))
x = x.half() if args.half_inputs else x
lengths, targets = torch.cuda.IntTensor([10] * 4), torch.cuda.IntTensor(4).fill_(3)
losses = []
for _ in range(15):
    model.zero_grad()
    log_probs = nn.functional.log_softmax(model(x).float(), -1).transpose(0, 1)
    loss = criterion(log_probs, y, lengths.cpu(), targets.cpu())
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
