# SPDX-License-Identifier: Apache-2.0
"""
Activations in 8, 4 and 2 bits by amp.compress_activations: time of whole steps at O4, and bytes that wait for backward.
Beside O4 alone, torch's checkpointing of each block, and the same bits by PyTorch's own operators.
"""
import functools
import pathlib
import sys

import torch
from libamp.torch import amp
from libamp.torch.amp.packed import origin
from sides import ours
from torch.utils.checkpoint import checkpoint
from training_steps.cpu import ResidualBlock, resnet18, transformer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))
from resnet_model import BasicBlock, ResNet

BLOCKS = (ResidualBlock, BasicBlock, torch.nn.TransformerEncoderLayer)
GROUP, LEAST = 256, 1024


def digits(batch):
    return ResNet(), torch.randn(batch, 1, 8, 8)


MODELS = {"digits": (digits, 64), "ResNet-18": (resnet18, 16), "transformer, 4 layers": (transformer, 8)}


class Operators(torch.autograd.graph.saved_tensors_hooks):
    """What a script would write: minimum and step of each 256 elements, rounded at random, packed by shifts. Masks of
    ReLU are not exact, and storages that are saved twice are packed twice."""

    def __init__(self, bits):
        self.bits, self.bytes, self.seen = bits, 0, {}
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor):
        node = tensor.grad_fn
        if node is None or tensor.numel() < LEAST or origin(node) == "AccumulateGrad":
            if not (tensor.requires_grad or tensor.data_ptr() in self.seen):
                self.seen[tensor.data_ptr()] = tensor.nbytes
                self.bytes += tensor.nbytes
            return tensor if tensor.is_leaf else tensor.detach()
        flat = tensor.detach().reshape(-1)
        flat = torch.nn.functional.pad(flat, (0, -flat.numel() % GROUP)).view(-1, GROUP).float()
        least, most = flat.aminmax(dim=1, keepdim=True)
        step = ((most - least) / (2**self.bits - 1)).clamp_(min=1e-30)
        codes = flat.sub(least).div_(step).add_(torch.rand_like(flat)).clamp_(max=2**self.bits - 1).to(torch.uint8)
        codes, per = codes.view(-1, 8 // self.bits), 8 // self.bits
        packed = functools.reduce(torch.bitwise_or, [codes[:, i] << self.bits * i for i in range(per)])
        least, step = least.bfloat16(), step.bfloat16()
        self.bytes += packed.nbytes + least.nbytes + step.nbytes
        return packed, least, step, tensor.shape, tensor.dtype

    def unpack(self, saved):
        if isinstance(saved, torch.Tensor):
            return saved
        packed, least, step, shape, dtype = saved
        mask = 2**self.bits - 1
        codes = torch.stack([packed >> self.bits * i & mask for i in range(8 // self.bits)], 1).view(-1, GROUP)
        return codes.float().mul_(step).add_(least).to(dtype).view(-1)[: shape.numel()].view(shape)


class Saved(Operators):
    """Counts what torch keeps, each storage once."""

    def pack(self, tensor):
        node, storage = tensor.grad_fn, tensor.untyped_storage()
        if not tensor.requires_grad or (node is not None and origin(node) != "AccumulateGrad"):
            self.seen[storage.data_ptr()] = storage.nbytes()
        return tensor if tensor.is_leaf else tensor.detach()


def model_of(make, batch):
    torch.manual_seed(0)
    model, x = make(batch)
    return model, x, torch.optim.SGD(model.parameters(), lr=1e-5)


def under(model, hooks):
    """The model's forward under hooks of ours."""
    forward = model.forward

    def run(x):
        with hooks:
            return forward(x)

    model.forward = run


def checkpointed(model):
    for block in model.modules():
        if isinstance(block, BLOCKS):
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def bytes_of(step, hooks):
    hooks.bytes, hooks.seen = 0, {}
    step()
    return hooks.bytes or sum(hooks.seen.values())


def measure(bench):
    trial = bench.rounds == 1  # does it run? The least of the models, with one number of bits
    for name, (make, batch) in list(MODELS.items())[: 1 if trial else None]:
        for bits in (4,) if trial else (8, 4, 2):
            size = f"batch {batch}"
            model, x, optimizer = model_of(make, batch)
            mine = ours(model, x, optimizer, "O4")
            handle = amp.compress_activations(model, bits)
            plain, x, optimizer = model_of(make, batch)
            operators = Operators(bits)
            under(plain, operators)
            by_operators = ours(plain, x, optimizer, "O4")
            again, x, optimizer = model_of(make, batch)
            checkpointed(again)
            references = {
                "O4": (ours(*model_of(make, batch), "O4"), 1 / 1.2 if bits == 4 else 0.0),
                "O4, checkpoints": (ours(again, x, optimizer, "O4"), 0.0),
                "O4, torch's operators": (by_operators, 0.0),
            }
            bench.turns(f"{name}, {bits} bits", size, mine, references)
            kept, saved = handle.bytes.now, Saved(0)
            by_hand = bytes_of(by_operators, operators)
            under(again, saved)
            checkpoints = bytes_of(references["O4, checkpoints"][0], saved)
            whole = handle.bytes.before
            for against, other in (("O4", whole), ("O4, checkpoints", checkpoints), ("O4, torch's operators", by_hand)):
                bench.amounts(f"{name}, {bits} bits, saved", size, "KiB", kept / 1024, other / 1024, against,
                              goal=4.0 if bits == 4 and against == "O4" else 0.0)
            amp.shutdown()
