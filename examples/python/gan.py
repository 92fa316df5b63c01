# SPDX-License-Identifier: Apache-2.0
"""A GAN on the digits: two models and two optimizers in one initialize, three losses, each with a scaler of its own.

python gan.py --opt-level O2
"""

import argparse

import torch
from digits import load
from libamp.torch import amp
from torch import nn

LATENT = 16


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opt-level", default="O1")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = load(train=True)[0].flatten(1).to(device)

    critic = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    painter = nn.Sequential(nn.Linear(LATENT, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh())
    critic, painter = critic.to(device), painter.to(device)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
    painter_optimizer = torch.optim.Adam(painter.parameters(), lr=2e-3, betas=(0.5, 0.999))
    [critic, painter], [critic_optimizer, painter_optimizer] = amp.initialize(
        [critic, painter],
        [critic_optimizer, painter_optimizer],
        opt_level=args.opt_level,
        num_losses=3,
        verbosity=0,
    )
    # The sigmoid inside this loss is FP32 at every level. binary_cross_entropy itself is refused at O1.
    criterion = nn.BCEWithLogitsLoss()

    for epoch in range(args.epochs):
        sums = torch.zeros(3)
        batches = torch.randperm(len(images)).split(args.batch_size)
        for batch in batches:
            real = images[batch]
            ones, zeros = torch.ones(len(batch), 1, device=device), torch.zeros(len(batch), 1, device=device)

            # Two losses of one optimizer: each is scaled, unscaled and watched on its own, their gradients add up.
            critic_optimizer.zero_grad()
            loss_real = criterion(critic(real), 0.9 * ones)
            with amp.scale_loss(loss_real, critic_optimizer, loss_id=0) as scaled:
                scaled.backward()
            fake = painter(torch.randn(len(batch), LATENT, device=device))
            loss_fake = criterion(critic(fake.detach()), zeros)
            with amp.scale_loss(loss_fake, critic_optimizer, loss_id=1) as scaled:
                scaled.backward()
            critic_optimizer.step()

            painter_optimizer.zero_grad()
            loss_painter = criterion(critic(fake), ones)
            with amp.scale_loss(loss_painter, painter_optimizer, loss_id=2) as scaled:
                scaled.backward()
            painter_optimizer.step()
            sums += torch.tensor([loss_real.item(), loss_fake.item(), loss_painter.item()])
        real, fake, painted = (sums / len(batches)).tolist()
        print(f"epoch {epoch}: critic {real:.4f} + {fake:.4f}, painter {painted:.4f}", flush=True)

    with torch.no_grad():
        painted = painter(torch.randn(256, LATENT, device=device)).float()
    distance = (painted.mean(0) - images.mean(0)).abs().mean().item()
    print(f"mean image: {distance:.4f} from the digits'")
    for name, state in amp.state_dict().items():
        if name.startswith("loss_scaler"):
            print(f"{name}: scale {state['loss_scale']:g}, {state['unskipped']} steps since it last changed")


if __name__ == "__main__":
    main()
