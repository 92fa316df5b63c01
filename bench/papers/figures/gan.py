# SPDX-License-Identifier: Apache-2.0
"""Samples of a DCGAN on the digits at O0, O1 and O2, of the same noise."""
from __future__ import annotations

from typing import Any

from ..figure import PAPER, Budget, Data, Figure, Source, table
from ..svg import Picture

FIGURE = Figure(
    "gan", "DCGAN samples",
    Source("faces by DCGAN in FP32, and in mixed precision without a loss scale, look alike. The paper has pictures "
           "and no score.", {"score": "none: by eye"}, f"{PAPER}, figure 6"),
    seconds=120, quick=40, cuda=60)
LEVELS, LATENT, BATCH, RATE = ("O0", "O1", "O2"), 32, 64, 1e-3
ROWS, GAP = 6, 10  # images in a row of the picture, and pixels of one with its frame


def networks() -> tuple[Any, Any]:
    """Returns generator and discriminator in DCGAN's form, for 8 x 8 pixels."""
    from torch import nn

    def up(inputs: int, outputs: int, size: int) -> list[Any]:
        first = size == 2
        sizes = (2, 1, 0) if first else (4, 2, 1)
        return [nn.ConvTranspose2d(inputs, outputs, *sizes, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    generator = nn.Sequential(*up(LATENT, 64, 2), *up(64, 32, 4), nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Tanh())
    critic = nn.Sequential(nn.Conv2d(1, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1, bias=False),
                           nn.BatchNorm2d(64), nn.LeakyReLU(0.2), nn.Conv2d(64, 1, 2), nn.Flatten())
    for module in (*generator, *critic):
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(module.weight, 0, 0.02 if module.kernel_size != (2, 2) else 0.05)
    return generator, critic


def train(level: str, steps: int, noise: Any, device: str) -> tuple[Any, bool]:
    """Trains once. Returns the images of the noise, and whether every loss was finite."""
    import torch
    from libamp.torch import amp
    from torch import nn

    from ..training import batches, digits

    images = digits(device)[0]
    torch.manual_seed(0)
    pair = [net.to(device) for net in networks()]
    optimizers = [torch.optim.Adam(net.parameters(), lr=RATE, betas=(0.5, 0.999)) for net in pair]
    (generator, critic), (of_generator, of_critic) = amp.initialize(
        pair, optimizers, opt_level=level, num_losses=3, verbosity=0)
    criterion, finite = nn.BCEWithLogitsLoss(), True
    source = torch.Generator().manual_seed(0)
    for batch in batches(len(images), BATCH, steps, 0):
        real = images[batch]
        made = generator(torch.randn(len(batch), LATENT, 1, 1, generator=source).to(device))
        of_critic.zero_grad()
        for loss_id, (shown, label) in enumerate(((real, 1.0), (made.detach(), 0.0))):
            scores = critic(shown).float()
            loss = criterion(scores, torch.full_like(scores, label))
            with amp.scale_loss(loss, of_critic, loss_id=loss_id) as scaled:
                scaled.backward()
            finite = finite and bool(torch.isfinite(loss))
        of_critic.step()
        of_generator.zero_grad()
        scores = critic(made).float()
        with amp.scale_loss(criterion(scores, torch.ones_like(scores)), of_generator, loss_id=2) as scaled:
            scaled.backward()
        of_generator.step()
    with torch.no_grad():
        painted = torch.cat([generator(part).float() for part in noise.to(device).split(BATCH)])
    amp.shutdown()
    return painted.cpu(), finite


def judge(steps: int, device: str) -> tuple[Any, float]:
    """Returns a network that tells digits, trained in FP32, and its accuracy on the test images."""
    import torch
    from torch.nn import functional

    from ..training import Mode, ResNet, Training, accuracy, batches, digits

    images, labels, test_images, test_labels = digits(device)
    torch.manual_seed(0)
    training = Training(Mode("FP32"), ResNet(), lambda these: torch.optim.Adam(these, lr=3e-3), device)
    for batch in batches(len(labels), BATCH, steps, 0):
        training.step(functional.cross_entropy(training.forward(images[batch]), labels[batch]))
    right = accuracy(training, test_images, test_labels)
    training.model.eval()
    training.close()
    return training.model, right or 0.0


def scores(model: Any, painted: Any, real: Any) -> Data:
    """Returns how images compare with the digits: the share that the judge is sure of, kinds among them, and the
    distances of mean image and of pixels' deviations."""
    import torch

    with torch.no_grad():
        sure, kind = model(painted).softmax(1).max(1)
    kinds = torch.bincount(kind[sure > 0.9], minlength=10)
    return {"sure": round(100 * float((sure > 0.9).float().mean()), 1), "kinds": int((kinds > 0).sum()),
            "least": int(kinds.min()), "most": int(kinds.max()),
            "mean": round(float((painted.mean(0) - real.mean(0)).abs().mean()), 4),
            "deviation": round(float((painted.std(0) - real.std(0)).abs().mean()), 4)}


def as_text(images: Any) -> list[str]:
    """Returns 64 hexadecimal digits for each image: 16 greys."""
    greys = ((images.clamp(-1, 1) + 1) * 7.5).round().int().flatten(1).tolist()
    return ["".join(f"{grey:x}" for grey in image) for image in greys]


def measure(budget: Budget) -> Data:
    import torch

    from ..training import digits, half_products

    steps = budget.steps(1000, 400)
    images = digits("cpu")[0]
    noise = torch.randn(1000, LATENT, 1, 1, generator=torch.Generator().manual_seed(1))
    model, right = judge(budget.steps(300, 300), "cpu")
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    rows = {"real": {**scores(model, images, images), "images": as_text(images[chosen[: ROWS * ROWS]])}}
    stopped = ""
    for level in LEVELS:
        before = budget.left()
        painted, finite = train(level, steps, noise, budget.device)
        rows[level] = {**scores(model, painted, images), "finite": finite, "images": as_text(painted[: ROWS * ROWS])}
        if level != LEVELS[-1] and budget.left() < 0.8 * (before - budget.left()):
            stopped = f"after {level}"
            break
    return {"seeds": [0], "steps": steps, "batch": BATCH, "rate": RATE, "judge": right, "stopped": stopped,
            "half": half_products(budget.device), "rows": rows}


def words(data: Data) -> str:
    rows = [[name, f"{row['sure']} %", row["kinds"], f"{row['least']} to {row['most']}", f"{row['mean']:.3f}",
             f"{row['deviation']:.3f}"] for name, row in data["rows"].items()]
    head = ["images", "judge is sure", "kinds of digits", "images of a kind", "mean image off by",
            "deviations off by"]
    return (f"Generator and discriminator as in DCGAN, for 8 x 8 pixels, {data['steps']:,} steps of batch "
            f"{data['batch']} with a dynamic loss scale for each of the three losses, the same noise in each grid. A "
            f"network that tells {data['judge']:.1f} % of the test digits judges 1,000 images of each level: it is "
            "sure above 90 %. The real images are those of the training.\n\n"
            + table(head, rows))


def draw(data: Data) -> dict[str, str]:
    picture = Picture(880, 310, "Digits by a DCGAN at three levels, beside real ones",
                      "Four grids of 64 images: real digits, and samples at O0, O1 and O2 of the same noise.")
    for i, (name, row) in enumerate(data["rows"].items()):
        side = ROWS * GAP
        pixels = [[96] * side for _ in range(side)]
        for number, image in enumerate(row["images"]):
            for place, grey in enumerate(image):
                y, x = GAP * (number // ROWS) + place // 8 + 1, GAP * (number % ROWS) + place % 8 + 1
                pixels[y][x] = 17 * int(grey, 16)
        picture.text(16 + 216 * i, 62, {"real": "real digits", "O0": "O0 (FP32)"}.get(name, name), "")
        picture.image(16 + 216 * i, 72, 200, 200, pixels)
        picture.text(16 + 216 * i, 292, f"judge is sure of {row['sure']} %")
    return {"gan.svg": picture.svg()}
