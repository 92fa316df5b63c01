# SPDX-License-Identifier: Apache-2.0
"""
What a training of a transformer takes beside its program, and how long its step is, with each means against either:
levels, split masters, activations in 4 bits, checkpoints, micro-batches. FusedAdam; all in one run.
"""
import torch
from activations import Saved, bytes_of, checkpointed, under
from libamp.torch import amp
from libamp.torch.optimizers import FusedAdam
from training_steps.cpu import transformer

BATCH, PARTS = 8, 4
# level, options of initialize, bits of activations, what else
WAYS = {
    "O0": ("O0", {}, None, ""),
    "O4": ("O4", {}, None, ""),
    "O4, 4 bits": ("O4", {}, 4, ""),
    "O4, checkpoints": ("O4", {}, None, "checkpoints"),
    f"O4, {PARTS} micro-batches": ("O4", {}, None, "parts"),
    "O5": ("O5", {}, None, ""),
    "O5, 4 bits": ("O5", {}, 4, ""),
    "O5, split": ("O5", {"master_weights": "split"}, None, ""),
    "O5, split, 4 bits": ("O5", {"master_weights": "split"}, 4, ""),
}


class Training:
    def __init__(self, batch, level, options, bits, what, state_bits=32):
        torch.manual_seed(0)
        model, x = transformer(batch)
        if what == "checkpoints":
            checkpointed(model)
        optimizer = FusedAdam(model.parameters(), lr=1e-5, weight_decay=0.01, state_bits=state_bits)
        self.model, self.optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)
        self.parts = x.chunk(PARTS) if what == "parts" else [x]
        self.handle = amp.compress_activations(self.model, bits) if bits else None

    def step(self):
        self.optimizer.zero_grad()
        for i, x in enumerate(self.parts, 1):
            loss = self.model(x).float().square().mean() / len(self.parts)
            with amp.scale_loss(loss, self.optimizer, delay_unscale=i < len(self.parts)) as scaled_loss:
                scaled_loss.backward()
        self.optimizer.step()

    def state(self):
        """Bytes of weights, masters, moments and gradients."""
        told = amp.memory(self.model)
        beside = [each for state in self.optimizer.state.values() for each in state.values() if torch.is_tensor(each)]
        kept = told.weights + told.gradients + told.masters + told.master_gradients
        return kept + sum(each.nbytes for each in beside)

    def saved(self):
        """Bytes that wait for backward, of one forward at a time."""
        if self.handle is not None:
            return self.handle.bytes.now
        hooks = Saved(0)
        under(self.model, hooks)
        kept = bytes_of(lambda: self.model(self.parts[0]), hooks)
        del self.model.forward
        return kept


def measure(bench):
    trial = bench.rounds == 1  # does it run? Two of the ways
    batch = 1 if trial else BATCH
    chosen = ("O0", "O5, split, 4 bits") if trial else WAYS
    ways = {name: Training(batch, *WAYS[name]) for name in chosen}
    *others, (last, ours) = ways.items()
    references = {name: (way.step, 0.0) for name, way in others}
    bench.turns(f"a step, {last}", f"batch {batch}", ours.step, references)
    base = ways["O0"].state(), ways["O0"].saved()
    for name, way in ways.items():
        for what, mine, reference in zip(("state", "saved"), (way.state(), way.saved()), base, strict=True):
            bench.amounts(f"{name}, {what}", f"batch {batch}", "MiB", mine / 2**20, reference / 2**20, "O0")
    amp.shutdown()
