# SPDX-License-Identifier: Apache-2.0
"""Actor-critic over a tiny world: episodes of different lengths, a loss of several terms for each."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine, self.action, self.value = nn.Linear(4, 32), nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, x):
        x = F.relu(self.affine(x))
        return F.softmax(self.action(x), dim=-1), self.value(x)


torch.manual_seed(543)
model = Policy()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
for episode in range(15):
    state, saved, rewards = torch.randn(4), [], []
    for _ in range(3 + episode % 5):
        probs, value = model(state)
        choice = Categorical(probs)
        action = choice.sample()
        saved.append((choice.log_prob(action), value))
        rewards.append(float(action == (state[0] > 0)))
        state = torch.randn(4)
    R, returns = 0.0, []
    for r in rewards[::-1]:
        R = r + 0.99 * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + torch.finfo(torch.float32).eps)
    policy_losses = [-log_prob * (R - value.item()) for (log_prob, value), R in zip(saved, returns)]
    value_losses = [F.smooth_l1_loss(value, R.reshape(1)) for (_, value), R in zip(saved, returns)]
    optimizer.zero_grad()
    (torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()).backward()
    optimizer.step()
