# SPDX-License-Identifier: Apache-2.0
"""Reinforcement learning at O2 on the shards of fully_shard: torchrun --nproc_per_node 2 rl.py

docs/guide/rl-in-fp16.md is its guide. A token is right if it follows the one before, as in 1 2 3 0 1 2.
"""

import torch
import torch.distributed as dist
from libamp.torch import amp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

LEVEL, NUMBERS, LENGTH, GROUP = "O2", 4, 6, 32


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(NUMBERS, 32), nn.Embedding(LENGTH, 32)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(32, NUMBERS)

    def forward(self, tokens):
        n = tokens.shape[1]
        x = self.tokens(tokens) + self.places(torch.arange(n, device=tokens.device))
        future = torch.ones(n, n, dtype=torch.bool, device=tokens.device).triu(1)
        for block in self.blocks:
            x = block(x, src_mask=future)
        return self.head(x)


def log_probs(model, tokens):
    """Returns those of each token but the first. The softmax is FP32 in both programs."""
    logits = model(tokens[:, :-1]).float().log_softmax(-1)
    return logits.gather(2, tokens[:, 1:, None]).squeeze(2)


@torch.no_grad()
def generate(engine):
    """Returns sequences, and the engine's own log-probabilities of their tokens."""
    tokens, chosen = torch.randint(NUMBERS, (GROUP, 1)), []
    for _ in range(LENGTH - 1):
        logits = engine(tokens)[:, -1].float().log_softmax(-1)
        token = torch.multinomial(logits.exp(), 1)
        chosen.append(logits.gather(1, token))
        tokens = torch.cat([tokens, token], 1)
    return tokens, torch.cat(chosen, 1)


dist.init_process_group("gloo")  # "nccl" on GPUs
torch.manual_seed(0)  # equal weights on all ranks
policy = Policy()
engine = Policy().to(torch.float16 if LEVEL == "O2" else torch.bfloat16).eval()  # in place of vLLM
for module in (*policy.blocks, policy):
    fully_shard(module, mp_policy=amp.fsdp_policy(LEVEL))
optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-3)
policy, optimizer = amp.initialize(policy, optimizer, opt_level=LEVEL, window=400, verbosity=0)

torch.manual_seed(1 + dist.get_rank())  # other sequences on each rank
for step in range(11):
    engine.load_state_dict(get_model_state_dict(policy, options=StateDictOptions(full_state_dict=True)))
    tokens, old = generate(engine)
    reward = (tokens[:, 1:] == (tokens[:, :-1] + 1) % NUMBERS).float()
    to_come = reward.flip(1).cumsum(1).flip(1)
    advantage = to_come - to_come.mean(0)
    new = log_probs(policy, tokens)
    ratio = (new - old).exp()
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    optimizer.step()
    told = torch.stack([reward.mean(), (new - old).detach().abs().mean()])
    dist.all_reduce(told)
    if dist.get_rank() == 0 and step % 5 == 0:
        share, mismatch = (told / dist.get_world_size()).tolist()
        print(f"step {step:2}: reward {share:.2f}, mismatch {mismatch:.1e}, stepped: {amp.stepped(optimizer)}")
dist.destroy_process_group()
