# SPDX-License-Identifier: Apache-2.0
"""Pre-trains a small BERT on made-up sentences the way the large one was with Apex: LAMB, gradient accumulation with
delayed unscaling, clipping of the masters, or accumulation in 16 bits and one all-reduce behind it; the masters in the
checkpoint by hand, through the private names that recipes used.

    python bert_pretrain.py --opt_level O2 --gradient_accumulation_steps 4
    torchrun --nproc_per_node 2 bert_pretrain.py --allreduce_post_accumulation
"""

import argparse
import os

import amp_C
import apex_C
import torch
import torch.nn as nn
import torch.nn.functional as F
from apex import amp
from apex.amp import _amp_state
from apex.normalization import FusedLayerNorm as BertLayerNorm
from apex.optimizers import FusedAdam, FusedLAMB
from apex.parallel import DistributedDataParallel as DDP
from apex.parallel.distributed import flat_dist_call

VOCABULARY, LENGTH, MASK, IGNORED = 16, 12, 0, -1


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", choices=["lamb", "adam", "adamw"], default="lamb")
    parser.add_argument("--opt_level", default="O2")
    parser.add_argument("--loss_scale", type=float, default=0.0, help="0: dynamic")
    parser.add_argument("--init_loss_scale", type=int, default=2**14)
    parser.add_argument("--learning_rate", type=float, default=2e-2)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument("--train_batch_size", type=int, default=16)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--allreduce_post_accumulation", action="store_true")
    parser.add_argument("--hidden_size", type=int, default=32)
    parser.add_argument("--max_steps", type=int, default=40)
    parser.add_argument("--stop_after", type=int, default=None, help="leave after this step, as if interrupted")
    parser.add_argument("--checkpoint", default="")
    parser.add_argument("--resume_from_checkpoint", action="store_true")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0)
    return parser.parse_args()


class Layer(nn.Module):
    def __init__(self, hidden, heads=4):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.output = nn.Linear(hidden, hidden)
        self.norm1, self.norm2 = BertLayerNorm(hidden, eps=1e-12), BertLayerNorm(hidden, eps=1e-12)
        self.intermediate, self.back = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(query, key.transpose(-1, -2)) / query.shape[-1] ** 0.5
        probabilities = F.softmax(scores, dim=-1)
        context = torch.matmul(probabilities.to(value.dtype), value).transpose(1, 2).reshape(x.shape)
        x = self.norm1(x + self.output(context))
        return self.norm2(x + self.back(F.gelu(self.intermediate(x))))


class BertForPreTraining(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, hidden), nn.Embedding(LENGTH, hidden)
        self.norm = BertLayerNorm(hidden, eps=1e-12)
        self.layers = nn.ModuleList(Layer(hidden) for _ in range(2))
        self.pooler, self.seq_relationship = nn.Linear(hidden, hidden), nn.Linear(hidden, 2)
        self.decoder = nn.Linear(hidden, VOCABULARY, bias=False)
        self.decoder.weight = self.words.weight
        self.apply(self.initialize)

    @staticmethod
    def initialize(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(0, 0.1)

    def forward(self, input_ids):
        x = self.norm(self.words(input_ids) + self.positions.weight)
        for layer in self.layers:
            x = layer(x)
        return self.decoder(x), self.seq_relationship(torch.tanh(self.pooler(x[:, 0])))


def pretraining_loss(scores, relationship, labels, next_sentence):
    masked = F.cross_entropy(scores.view(-1, VOCABULARY), labels.view(-1), ignore_index=IGNORED)
    return masked + F.cross_entropy(relationship.view(-1, 2), next_sentence)


def batch(args, index, rank):
    """Sentences that count up by 1 or by 3 (which of the two is the second task), with words masked."""
    g = torch.Generator().manual_seed(args.seed + 1000 * rank + index)
    next_sentence = torch.randint(2, (args.train_batch_size,), generator=g)
    start = torch.randint(VOCABULARY - 1, (args.train_batch_size, 1), generator=g)
    words = 1 + (start + (1 + 2 * next_sentence[:, None]) * torch.arange(LENGTH)) % (VOCABULARY - 1)
    masked = torch.rand(words.shape, generator=g) < 0.15
    masked[:, 1] = True
    return words.masked_fill(masked, MASK), words.masked_fill(~masked, IGNORED), next_sentence


def prepare_model_and_optimizer(args, device, distributed):
    model = BertForPreTraining(args.hidden_size).to(device)
    named = list(model.named_parameters())
    no_decay = ["bias", "norm"]
    groups = [
        {"params": [p for n, p in named if not any(word in n for word in no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in named if any(word in n for word in no_decay)], "weight_decay": 0.0},
    ]
    kind = {"lamb": FusedLAMB, "adam": FusedAdam, "adamw": torch.optim.AdamW}[args.optimizer]
    optimizer = kind(groups, lr=args.learning_rate * (1 if args.optimizer == "lamb" else 0.2))
    if args.loss_scale == 0:
        model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level, loss_scale="dynamic")
        amp._amp_state.loss_scalers[0]._loss_scale = args.init_loss_scale
    else:
        model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level, loss_scale=args.loss_scale)
    step = 0
    if args.resume_from_checkpoint:
        checkpoint = torch.load(args.checkpoint, map_location=device, weights_only=False)
        step = checkpoint["step"]
        model.load_state_dict(checkpoint["model"])
        if args.opt_level == "O2":
            # The masters have to be there before the optimizer's state is read, or its moments pass through 16 bits.
            optimizer._lazy_init_maybe_master_weights()
            optimizer._amp_stash.lazy_init_called = True
        optimizer.load_state_dict(checkpoint["optimizer"])
        amp.load_state_dict(checkpoint["amp"])
        for param, saved in zip(amp.master_params(optimizer), checkpoint["master params"], strict=True):
            param.data.copy_(saved.data)
    if distributed:
        if args.allreduce_post_accumulation:
            flat_dist_call([p.data for p in model.parameters()], torch.distributed.broadcast, (0,))
        else:
            model = DDP(model, message_size=250000000, gradient_predivide_factor=torch.distributed.get_world_size())
    return model, optimizer, step


def take_optimizer_step(args, optimizer, model, distributed):
    """One step; with allreduce_post_accumulation the scaled gradients of all micro-batches are summed over the ranks
    first, through a flat buffer, and unscaled behind it."""
    if not args.allreduce_post_accumulation:
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), args.max_grad_norm)
        optimizer.step()
        for param in model.parameters():
            param.grad = None
        return
    scaler = _amp_state.loss_scalers[0]
    masters = [p for p in amp.master_params(optimizer) if p.grad is not None]
    flat = apex_C.flatten([p.grad for p in masters])
    world = torch.distributed.get_world_size() if distributed else 1
    overflow = torch.zeros(1, dtype=torch.int32, device=flat.device)
    amp_C.multi_tensor_scale(65536, overflow, [[flat], [flat]], scaler.loss_scale() / world)
    if distributed:
        torch.distributed.all_reduce(flat)
    overflow.zero_()
    grads = apex_C.unflatten(flat, [p.grad for p in masters])
    amp_C.multi_tensor_scale(65536, overflow, [grads, [p.grad for p in masters]], 1.0 / scaler.loss_scale())
    kept, scaler._overflow_buf = scaler._overflow_buf, overflow
    had_overflow = scaler.update_scale()
    scaler._overflow_buf = kept
    if not had_overflow:
        optimizer.step()
    else:
        if args.local_rank == 0:
            print(f"Rank 0 :: Gradient overflow.  Skipping step, reducing loss scale to {scaler.loss_scale()}")
        if _amp_state.opt_properties.master_weights:
            for param in optimizer._amp_stash.all_fp32_from_fp16_params:
                param.grad = None
    for param in model.parameters():
        param.grad = None


def main():
    args = parse()
    distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if distributed:
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = args.local_rank = torch.distributed.get_rank() if distributed else 0
    torch.manual_seed(args.seed)
    model, optimizer, step = prepare_model_and_optimizer(args, device, distributed)
    model.train()
    accumulate = args.gradient_accumulation_steps
    while step < args.max_steps:
        average = 0.0
        for micro in range(accumulate):
            words, labels, relation = (t.to(device) for t in batch(args, step * accumulate + micro, rank))
            scores, relationship = model(words)
            loss = pretraining_loss(scores.float(), relationship.float(), labels, relation) / accumulate
            delay_unscale = micro + 1 < accumulate and not args.allreduce_post_accumulation
            with amp.scale_loss(
                loss,
                optimizer,
                delay_unscale=delay_unscale,
                delay_overflow_check=args.allreduce_post_accumulation,
            ) as scaled_loss:
                scaled_loss.backward()
            average += loss.item()
        take_optimizer_step(args, optimizer, model, distributed)
        step += 1
        if rank == 0 and (step % 10 == 0 or step == 1):
            print(f"Step:{step} Average Loss = {average:.4f} Loss Scale = {_amp_state.loss_scalers[0].loss_scale()}")
        if args.checkpoint and rank == 0 and step in (args.stop_after, args.max_steps):
            inner = model.module if hasattr(model, "module") else model
            state = {
                "step": step,
                "model": inner.state_dict(),
                "optimizer": optimizer.state_dict(),
                "amp": amp.state_dict(),
                "master params": list(amp.master_params(optimizer)),
            }
            torch.save(state, args.checkpoint)
        if step == args.stop_after:
            break
    if distributed:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
