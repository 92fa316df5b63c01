# SPDX-License-Identifier: Apache-2.0
"""The models that are trained: their size on a GPU, and a tiny one for the CPU, where operations are counted."""
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Task:
    """A model on the CPU, never trained itself: each mode trains a copy."""

    size: str
    module: nn.Module
    batch: tuple[torch.Tensor, ...]
    loss: Callable[..., torch.Tensor]  # loss(call, *batch)
    momentum: bool = False  # SGD with momentum instead of AdamW
    channels_last: bool = False


def mlp(tiny: bool, layers: int) -> Task:
    """LayerNorm and GELU between small products: bound by the host on a GPU."""
    width, batch = (16, 4) if tiny else (512, 256)
    blocks = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())]
    inputs = torch.randn(batch, width), torch.randint(0, 10, (batch,))
    return Task(f"{layers} x {width}, {batch}", nn.Sequential(*blocks, nn.Linear(width, 10)), inputs, classified)


def classified(call: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(call(x).float(), y)


def gpt2(tiny: bool, layers: int) -> Task:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_embd": 32, "n_head": 2, "vocab_size": 64} if tiny else {}
    config = GPT2Config(n_layer=layers, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **small)
    batch, length = (2, 8) if tiny else (16, 512)
    tokens = torch.randint(0, config.vocab_size, (batch, length))
    return Task(f"{layers} layers, {batch} x {length}", GPT2LMHeadModel(config), (tokens,), next_token)


def next_token(call: Any, tokens: torch.Tensor) -> torch.Tensor:
    return call(input_ids=tokens, labels=tokens).loss


def bert(tiny: bool, layers: int) -> Task:
    from transformers import BertConfig, BertForMaskedLM

    small = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 64} if tiny else {}
    config = BertConfig(
        num_hidden_layers=layers, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **small)
    batch, length = (2, 8) if tiny else (64, 128)
    tokens = torch.randint(0, config.vocab_size, (batch, length))
    inputs = tokens, torch.ones_like(tokens)
    return Task(f"{layers} layers, {batch} x {length}", BertForMaskedLM(config), inputs, masked_token)


def masked_token(call: Any, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return call(input_ids=tokens, attention_mask=mask, labels=tokens).loss


def resnet50(tiny: bool, layers: int) -> Task:
    """Tiny, it is a ResNet-18."""
    from torchvision.models import resnet18, resnet50

    batch, side = (2, 32) if tiny else (192, 224)
    inputs = torch.randn(batch, 3, side, side), torch.randint(0, 1000, (batch,))
    model = (resnet18 if tiny else resnet50)(weights=None)
    size = f"{'ResNet-18, ' if tiny else ''}{batch} x {side} x {side}"
    return Task(size, model, inputs, classified, momentum=True, channels_last=True)


MODELS = {"gpt2": gpt2, "bert": bert, "resnet50": resnet50, "mlp": mlp}
LAYERS = {"gpt2": 12, "bert": 12, "mlp": 8}  # on a GPU


def make(name: str, *, tiny: bool, layers: int | None = None) -> Task:
    """ImportError where a package is missing, which the caller reports."""
    torch.manual_seed(0)
    return MODELS[name](tiny, layers or (2 if tiny else LAYERS.get(name, 0)))
