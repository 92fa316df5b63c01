# SPDX-License-Identifier: Apache-2.0
"""The experiments of the posts on mixed precision, on the digits: one network, trained with the same batches in FP32,
in half with FP32 batch norm by hand, at libamp's levels, on two ranks with synchronized batch norm, and with torch.amp;
one table at the end.

    python resnet.py                     # all of them, on the GPU if there is one
    python resnet.py fp32 O1 O2 --epochs 5
    python resnet.py fp32 O4 --activations 4     # what waits for backward in 4 bits an element
"""

import argparse
import contextlib
import socket
import time

import torch
import torch.nn.functional as F
from digits import load
from libamp.torch import amp
from libamp.torch.parallel import DistributedDataParallel, convert_syncbn_model
from resnet_model import ResNet
from torch import nn

LEVELS = ("O1", "O2", "O3", "O4", "O5")
EXPERIMENTS = ("fp32", "by-hand", *LEVELS, "O2-ddp-syncbn", "torch-fp16", "torch-bf16")


class Recipe:
    """FP32: what every experiment does, and the places where it may differ."""

    def __init__(self, args, device):
        torch.manual_seed(args.seed)
        self.device = device
        self.model = self.make_model().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
        self.skipped, self.scale = 0, 1.0
        self.packed = amp.compress_activations(self.model, args.activations) if args.activations else None

    def make_model(self):
        return ResNet()

    def forward(self, x):
        return self.model(x)

    def loss(self, x, y):
        return F.cross_entropy(self.forward(x).float(), y)

    def backward_and_step(self, loss):
        loss.backward()
        self.optimizer.step()

    def shard(self, batch):
        return batch

    def close(self):
        pass


class ByHand(Recipe):
    """model.half(), batch norm put back to FP32, a static scale: the recipe before there was a library."""

    def make_model(self):
        model = super().make_model().half()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.float()
        return model

    def forward(self, x):
        return self.model(x.half())

    def backward_and_step(self, loss):
        self.scale = 128.0
        (loss * self.scale).backward()
        for parameter in self.model.parameters():
            parameter.grad.div_(self.scale)
        self.optimizer.step()


class Level(Recipe):
    """One of libamp's levels: two lines and a `with`."""

    def __init__(self, args, device, level):
        super().__init__(args, device)
        self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level=level, verbosity=0)

    def backward_and_step(self, loss):
        before = amp.state_dict()["loss_scaler0"]["loss_scale"]
        with amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        self.optimizer.step()
        self.scale = amp.state_dict()["loss_scaler0"]["loss_scale"]
        self.skipped += self.scale < before

    def close(self):
        amp.shutdown()


class LevelOnRanks(Level):
    """The same on two ranks: batch norm sees both halves of a batch, gradients are averaged."""

    def __init__(self, args, device, level):
        super().__init__(args, device, level)
        self.model = DistributedDataParallel(self.model, delay_allreduce=True)

    def make_model(self):
        return convert_syncbn_model(super().make_model())

    def shard(self, batch):
        return batch[torch.distributed.get_rank() :: torch.distributed.get_world_size()]


class TorchAmp(Recipe):
    """torch.autocast and torch.amp.GradScaler."""

    def __init__(self, args, device, dtype):
        super().__init__(args, device)
        self.dtype = dtype
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)

    def forward(self, x):
        with torch.autocast(self.device.type, dtype=self.dtype):
            return self.model(x)

    def backward_and_step(self, loss):
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        before = self.scaler.get_scale()
        self.scaler.update()
        self.scale = self.scaler.get_scale()
        self.skipped += self.scale < before


def make(name, args, device):
    if name == "fp32":
        return Recipe(args, device)
    if name == "by-hand":
        return ByHand(args, device)
    if name == "O2-ddp-syncbn":
        return LevelOnRanks(args, device, "O2")
    if name.startswith("torch-"):
        return TorchAmp(args, device, torch.float16 if name.endswith("fp16") else torch.bfloat16)
    return Level(args, device, name)


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """Bytes that a forward pass keeps for backward, each storage once, the parameters' own left out."""

    def __init__(self, model):
        known = {tensor.untyped_storage().data_ptr() for tensor in model.parameters()}
        self.storages = {}

        def pack(tensor):
            if tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() not in known:
                self.storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        super().__init__(pack, lambda tensor: tensor)

    def total(self):
        return sum(self.storages.values())


def state_bytes(recipe):
    """Bytes of the model's parameters, and of what stands beside them: masters and the optimizer's state."""
    own = {p.data_ptr(): p.numel() * p.element_size() for p in recipe.model.parameters()}
    beside = {}
    for group in recipe.optimizer.param_groups:
        for parameter in group["params"]:
            tensors = [parameter, *recipe.optimizer.state[parameter].values()]
            for tensor in tensors:
                if torch.is_tensor(tensor) and tensor.data_ptr() not in own:
                    beside[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    return sum(own.values()), sum(beside.values())


def train(name, args, device):
    """Trains one experiment and measures it."""
    recipe = make(name, args, device)
    images, labels = (tensor.to(device) for tensor in load(train=True))
    generator = torch.Generator().manual_seed(args.seed)
    measured, seconds = SavedBytes(recipe.model), 0.0
    recipe.model.train()
    for epoch in range(args.epochs):
        for number, batch in enumerate(torch.randperm(len(labels), generator=generator).split(args.batch_size)):
            batch = recipe.shard(batch)
            first = epoch == 0 and number == 0
            began = time.perf_counter()
            recipe.optimizer.zero_grad()
            with measured if first else contextlib.nullcontext():
                loss = recipe.loss(images[batch], labels[batch])
            recipe.backward_and_step(loss)
            if device.type == "cuda":
                torch.cuda.synchronize()
            if not first:  # the first one also allocates and chooses kernels
                seconds += time.perf_counter() - began
    recipe.model.eval()
    images, labels = (tensor.to(device) for tensor in load(train=False))
    with torch.no_grad():
        output = recipe.forward(images).float()
    params, beside = state_bytes(recipe)
    result = {
        "name": name,
        "accuracy": 100 * (output.argmax(1) == labels).float().mean().item(),
        "loss": F.cross_entropy(output, labels).item(),
        "seconds": seconds,
        "params": params,
        "beside": beside,
        "saved": measured.total() + (recipe.packed.bytes.now if recipe.packed else 0),
        "skipped": recipe.skipped,
        "scale": recipe.scale,
    }
    recipe.close()
    return result


def on_rank(rank, name, args, port, answers):
    torch.set_num_threads(1)
    cuda = torch.cuda.device_count() > 1
    torch.distributed.init_process_group(
        "nccl" if cuda else "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    result = train(name, args, device)
    if rank == 0:
        answers.put(result)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def train_on_ranks(name, args):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = torch.multiprocessing.get_context("spawn").SimpleQueue()
    ranks = torch.multiprocessing.spawn(on_rank, (name, args, port, answers), nprocs=2, join=False)
    result = answers.get()
    ranks.join()
    return result


def table(results):
    base = next((result["seconds"] for result in results if result["name"] == "fp32"), None)
    print(
        f"\n{'experiment':14} {'accuracy %':>10} {'loss':>8} {'time s':>8} {'x fp32':>7} {'parameters':>10} "
        f"{'masters+state':>13} {'for backward':>12} {'skipped':>7} {'scale':>8}"
    )
    for r in results:
        speed = f"{base / r['seconds']:.2f}" if base else "-"
        print(
            f"{r['name']:14} {r['accuracy']:10.2f} {r['loss']:8.4f} {r['seconds']:8.2f} {speed:>7} {r['params']:10,} "
            f"{r['beside']:13,} {r['saved']:12,} {r['skipped']:7} {r['scale']:8g}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--activations", type=int, choices=(8, 4, 2), help="bits of what waits for backward")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    unknown = set(args.experiments) - set(EXPERIMENTS)
    if unknown:
        parser.error(f"no experiment {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    results = []
    for name in args.experiments or EXPERIMENTS:
        results.append(train_on_ranks(name, args) if "ddp" in name else train(name, args, torch.device(args.device)))
        print(f"{name}: {results[-1]['accuracy']:.2f} % in {results[-1]['seconds']:.1f} s", flush=True)
    table(results)


if __name__ == "__main__":
    main()
