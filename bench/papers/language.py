# SPDX-License-Identifier: Apache-2.0
"""A recurrent language model over characters, and its text: the topics of Python's own `help()`, which each Python
has (Python's license). It imports torch."""
from __future__ import annotations

import hashlib
import pydoc_data.topics
from typing import Any

import torch
from torch import nn


class Text:
    """Characters as numbers. The last tenth is the test. digest: of the text, which differs between Pythons."""

    def __init__(self, device: str) -> None:
        text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
        common = sorted(set(text) & {chr(code) for code in range(128)})
        place = {letter: number for number, letter in enumerate(common)}
        numbers = torch.tensor([place[letter] for letter in text if letter in place])
        self.letters, self.digest = len(common), hashlib.sha256(text.encode()).hexdigest()[:16]
        self.count = len(numbers)
        self.train, self.test = numbers[: self.count * 9 // 10].to(device), numbers[self.count * 9 // 10 :].to(device)

    def batch(self, generator: Any, rows: int, length: int) -> tuple[Any, Any]:
        """Returns inputs and targets, each length x rows."""
        starts = torch.randint(len(self.train) - length - 1, (rows,), generator=generator)
        index = (starts[None, :] + torch.arange(length + 1)[:, None]).to(self.train.device)
        part = self.train[index]
        return part[:-1], part[1:]

    def examined(self, rows: int, length: int) -> tuple[Any, Any]:
        """Returns the first parts of the test, in the same form."""
        part = self.test[: rows * (length + 1)].reshape(rows, length + 1).T
        return part[:-1], part[1:]


class Layer(nn.Module):
    """An LSTM, op by op: at O2 each result is rounded to fp16, on any processor."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.from_input, self.from_state = nn.Linear(inputs, 4 * width), nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Any) -> Any:
        gates = self.from_input(x)
        state = x.new_zeros(x.shape[1], self.width)
        cell, states = state, []
        for gate in gates:
            add, forget, out, new = (gate + self.from_state(state)).chunk(4, 1)
            cell = torch.sigmoid(forget + 1) * cell + torch.sigmoid(add) * torch.tanh(new)
            state = torch.sigmoid(out) * torch.tanh(cell)
            states.append(state)
        return torch.stack(states)


class Language(nn.Module):
    """Letters to scores of the next ones, by `layers` LSTMs."""

    def __init__(self, letters: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, width)
        self.layers = nn.ModuleList(Layer(width, width) for _ in range(layers))
        self.scores = nn.Linear(width, letters)

    def forward(self, x: Any) -> Any:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.scores(x)
