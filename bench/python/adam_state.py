# SPDX-License-Identifier: Apache-2.0
"""
What FusedAdam's state costs in accuracy: FP32, moments in 8 bits, and at O5 masters, and weights without masters that
are rounded at random, with FP32 moments and with 8 bits. Mean and standard deviation over five seeds of a training from
scratch and of a fine tuning at a tiny rate: an MLP, a small residual network and a thin ResNet-18 (not tuned) on the
digits, a character transformer on the text of docs/. It takes minutes. `run.py --group adam_state`, or
`adam_state.py MODEL...` for tables.
"""
import pathlib
import statistics
import sys

import torch
from accuracy import Coloured
from libamp.torch import amp
from libamp.torch.optimizers import FusedAdam
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))
from digits import load

ROOT = pathlib.Path(__file__).resolve().parents[2]


# ---- models ----


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU(),
                         nn.Linear(128, 10))


class Residual(nn.Module):
    def __init__(self, channels=32):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
                                  nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                                  nn.BatchNorm2d(channels))

    def forward(self, x):
        return torch.relu(x + self.body(x))


def residual():
    """57 thousand parameters."""
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), Residual(), Residual(), Residual(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


CONTEXT, WIDTH = 48, 64


class Characters(nn.Module):
    """Two layers of 64, 4 heads, 48 characters: 113 thousand parameters and the embeddings, unless others are given."""

    def __init__(self, size, width=WIDTH, layers=2, heads=4, context=CONTEXT):
        super().__init__()
        self.embed, self.place = nn.Embedding(size, width), nn.Embedding(context, width)
        blocks = [nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
                  for _ in range(layers)]
        self.layers, self.norm, self.head = nn.ModuleList(blocks), nn.LayerNorm(width), nn.Linear(width, size)
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1), persistent=False)

    def forward(self, text):
        x = self.embed(text) + self.place.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.mask.to(x.dtype))
        return self.head(self.norm(x))


# ---- data: a function gives batches for training, another measures ----


class Digits:
    unit = "% of the test images"

    def __init__(self, make):
        self.make, self.train, self.test = make, load(train=True), load(train=False)

    def batch(self):
        which = torch.randint(len(self.train[1]), (64,))
        return self.train[0][which], self.train[1][which]

    def loss(self, model, images, labels):
        return nn.functional.cross_entropy(model(images).float(), labels)

    def measure(self, model):
        return 100 * (model(self.test[0]).argmax(1) != self.test[1]).float().mean().item()


class Text:
    unit = "bits a character"

    def __init__(self):
        text = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
        known = {each: i for i, each in enumerate(sorted(set(text)))}
        codes = torch.tensor([known[each] for each in text])
        cut = len(codes) * 9 // 10
        self.make, self.train = (lambda: Characters(len(known))), codes[:cut]
        self.test = codes[cut : cut + 200 * CONTEXT + 1]

    def batch(self):
        first = torch.randint(len(self.train) - CONTEXT - 1, (16, 1))
        text = self.train[first + torch.arange(CONTEXT + 1)]
        return text[:, :-1], text[:, 1:]

    def loss(self, model, text, following):
        return nn.functional.cross_entropy(model(text).float().flatten(0, 1), following.flatten())

    def measure(self, model):
        text, following = self.test[:-1].view(-1, CONTEXT), self.test[1:].view(-1, CONTEXT)
        return self.loss(model, text, following).item() / 0.6931471805599453


# name: data, steps, rate, steps (0: none) and rate of the fine tuning
MODELS = {
    "MLP": (lambda: Digits(mlp), 270, 2e-3, 270, 1e-5),
    "residual network": (lambda: Digits(residual), 120, 2e-3, 60, 1e-5),
    "character transformer": (Text, 300, 3e-3, 80, 1e-5),
    "ResNet-18, width 16": (lambda: Digits(lambda: Coloured(16)), 120, 2e-3, 0, 0.0),
}
# name: level, master_weights, state_bits
WAYS = {
    "FP32": ("O0", None, 32),
    "FP32, moments in 8 bits": ("O0", None, 8),
    "O5, masters": ("O5", None, 32),
    'O5, "stochastic"': ("O5", "stochastic", 32),
    'O5, "stochastic", moments in 8 bits': ("O5", "stochastic", 8),
}


def trained(data, way, seed, steps, rate, weights=None):
    """Returns the measure after a training, and the weights."""
    level, masters, bits = WAYS[way]
    torch.manual_seed(seed)
    model = data.make()
    if weights is not None:
        model.load_state_dict(weights)
    optimizer = FusedAdam(model.parameters(), lr=rate, state_bits=bits, seed=seed)
    given = {} if masters is None else {"master_weights": masters}
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, **given)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 20, 1 - step / steps))
    for _ in range(steps):
        optimizer.zero_grad()
        with amp.scale_loss(data.loss(model, *data.batch()), optimizer) as loss:
            loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        result = data.measure(model)
    amp.shutdown()
    return result, {name: value.detach().float().clone() for name, value in model.state_dict().items()}


def results(name, seeds, part=1.0, tunes=True):
    """Yields (way, measures after a training, after a fine tuning of the same FP32 weights)."""
    make, steps, rate, more, tiny = MODELS[name]
    data, begun = make(), {}
    steps = max(int(steps * part), 2)
    for way in WAYS:
        first, second = [], []
        for seed in range(seeds):
            result, weights = trained(data, way, seed, steps, rate)
            begun.setdefault(seed, weights)  # FP32's: the first way
            first.append(result)
            if tunes and more:
                second.append(trained(data, way, 100 + seed, more, tiny, begun[seed])[0])
        yield way, first, second


def measure(bench):
    trial = bench.rounds == 1
    for name in list(MODELS)[: 1 if trial else None]:
        exact = None
        for way, first, _ in results(name, 2 if trial else 5, 0.02 if trial else 1.0, False):
            mean, spread = statistics.mean(first), statistics.stdev(first)
            exact = exact or (max(mean, 1e-3), spread)
            bench.amounts(f"{name}, {way}, ± {spread:.2f}", f"{len(first)} seeds", "%", max(mean, 1e-3), exact[0],
                          f"FP32, ± {exact[1]:.2f}")


def main(names):
    torch.set_num_threads(1)
    for name in names or MODELS:
        make, _, rate, more, tiny = MODELS[name]
        titles = [f"trained at {rate:g}", *([f"then tuned at {tiny:g}"] if more else [])]
        print(f"| {name}, {make().unit} | {' | '.join(titles)} |\n| --- |{' --- |' * len(titles)}", flush=True)
        for way, *found in results(name, 5):
            cells = [f"{statistics.mean(each):.2f} ± {statistics.stdev(each):.2f}" for each in found if each]
            print(f"| {way} | {' | '.join(cells)} |", flush=True)
        print(flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
