# SPDX-License-Identifier: Apache-2.0
"""A DQN: replay, a target network that follows softly, gradients clipped by value."""
import copy
import random

import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
policy_net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
target_net = copy.deepcopy(policy_net)
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
memory, state = [], torch.randn(4)
for _ in range(60):
    with torch.no_grad():
        greedy = policy_net(state).argmax().item()
    action = random.randrange(2) if random.random() < 0.3 else greedy
    following = torch.randn(4)
    memory.append((state, action, float(state[0] > 0) == action, following))
    state = following
    if len(memory) < 16:
        continue
    states, actions, rewards, followings = zip(*random.sample(memory, 16))
    values = policy_net(torch.stack(states)).gather(1, torch.tensor(actions)[:, None])
    with torch.no_grad():
        best = target_net(torch.stack(followings)).max(1).values
    loss = nn.SmoothL1Loss()(values, (torch.tensor(rewards).float() + 0.9 * best)[:, None])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    weights = target_net.state_dict()
    for key, value in policy_net.state_dict().items():
        weights[key] = value * 0.005 + weights[key] * 0.995
    target_net.load_state_dict(weights)
