# SPDX-License-Identifier: Apache-2.0
"""PPO with autocast in bf16: exp of a ratio in FP32, several epochs of one rollout, two heads, one optimizer."""
import torch
from torch import nn

torch.manual_seed(0)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, 3), nn.Linear(32, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)

    def forward(self, x):
        x = self.body(x)
        return self.actor(x), self.critic(x).squeeze(-1)


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
updates = 6
for update in range(updates):
    optimizer.param_groups[0]["lr"] = 2.5e-4 * (1 - update / updates)
    states = torch.randn(32, 6)
    with torch.no_grad():
        old = torch.distributions.Categorical(logits=agent(states)[0])
        actions = old.sample()
        old_logprob, reward = old.log_prob(actions), (actions == 1).float()
    for _ in range(4):
        with torch.autocast("cpu", torch.bfloat16):
            logits, value = agent(states)
        choice = torch.distributions.Categorical(logits=logits.float())
        ratio = (choice.log_prob(actions) - old_logprob).exp()
        advantage = reward - value.detach().float()
        loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
        loss = loss + 0.5 * (value.float() - reward).pow(2).mean() - 0.01 * choice.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
