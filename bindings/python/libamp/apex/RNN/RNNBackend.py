# SPDX-License-Identifier: Apache-2.0
"""Layers of recurrent cells. A cell keeps its hidden states, with their graph, until detach_hidden or reset_hidden.
Another batch size begins with zeros."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ..._words import counted


class RNNCell(torch.nn.Module):
    """One recurrent layer. `cell` computes a step from input, hidden state (a list for several), weights and biases. If
    output_size differs from hidden_size, w_ho projects the first state, which is the output."""

    def __init__(
        self,
        gate_multiplier: int,
        input_size: int,
        hidden_size: int,
        cell: Callable[..., Any],
        n_hidden_states: int = 2,
        bias: bool = False,
        output_size: int | None = None,
    ):
        super().__init__()
        self.gate_multiplier = gate_multiplier
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.cell = cell
        self.bias = bias
        self.output_size = hidden_size if output_size is None else output_size
        self.gate_size = gate_multiplier * hidden_size
        self.n_hidden_states = n_hidden_states
        self.w_ih = torch.nn.Parameter(torch.empty(self.gate_size, input_size))
        self.w_hh = torch.nn.Parameter(torch.empty(self.gate_size, self.output_size))
        if self.output_size != hidden_size:
            self.w_ho = torch.nn.Parameter(torch.empty(self.output_size, hidden_size))
        for name in ("b_ih", "b_hh"):
            self.register_parameter(name, torch.nn.Parameter(torch.empty(self.gate_size)) if bias else None)
        self.hidden: list[Any] = [None] * n_hidden_states
        self.reset_parameters()

    def new_like(self, new_input_size: int | None = None) -> Any:
        return type(self)(
            self.gate_multiplier,
            new_input_size or self.input_size,
            self.hidden_size,
            self.cell,
            self.n_hidden_states,
            self.bias,
            self.output_size,
        )

    def reset_parameters(self, gain: float = 1) -> None:
        bound = 1.0 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -bound, bound)

    def init_hidden(self, bsz: int) -> None:
        for i, state in enumerate(self.hidden):
            if state is None or state.shape[0] != bsz:
                self.hidden[i] = self.w_ih.detach().new_zeros(bsz, self.hidden_size if i else self.output_size)

    def reset_hidden(self, bsz: int) -> None:
        self.hidden = [None] * self.n_hidden_states
        self.init_hidden(bsz)

    def detach_hidden(self) -> None:
        if any(state is None for state in self.hidden):
            raise RuntimeError("detach_hidden: there is no hidden state yet; init_hidden or a forward makes one")
        self.hidden = [state.detach() for state in self.hidden]

    def weights(self) -> tuple[Any, ...]:
        return self.w_ih, self.w_hh

    def forward(self, input: Any) -> tuple[Any, ...]:
        self.init_hidden(input.shape[0])
        hidden = self.hidden if self.n_hidden_states > 1 else self.hidden[0]
        states = self.cell(input, hidden, *self.weights(), b_ih=self.b_ih, b_hh=self.b_hh)
        self.hidden = list(states) if self.n_hidden_states > 1 else [states]
        if self.output_size != self.hidden_size:
            self.hidden[0] = F.linear(self.hidden[0], self.w_ho)
        return tuple(self.hidden)


class _Layers(torch.nn.Module):
    """Applies operations to each of `rnns`."""

    rnns: torch.nn.ModuleList

    def reset_parameters(self) -> None:
        for rnn in self.rnns:
            rnn.reset_parameters()

    def init_hidden(self, bsz: int) -> None:
        for rnn in self.rnns:
            rnn.init_hidden(bsz)

    def detach_hidden(self) -> None:
        for rnn in self.rnns:
            rnn.detach_hidden()

    def reset_hidden(self, bsz: int) -> None:
        for rnn in self.rnns:
            rnn.reset_hidden(bsz)


def _by_state(layers: Sequence[Any]) -> list[Any]:
    """Transposes the states: from a list for each layer to a list for each state."""
    return [torch.stack(state) for state in zip(*layers, strict=True)]


class stackedRNN(_Layers):
    """num_layers copies of inputRNN, or the layers of a list. Each runs on the outputs of the one before, with dropout
    between."""

    def __init__(self, inputRNN: RNNCell | list[RNNCell], num_layers: int = 1, dropout: float = 0):
        super().__init__()
        self.dropout = dropout
        if isinstance(inputRNN, RNNCell):
            inputRNN = [inputRNN, *(inputRNN.new_like(inputRNN.output_size) for _ in range(num_layers - 1))]
        if len(inputRNN) != num_layers:
            cells = counted(len(inputRNN), "cell")
            raise ValueError(f"stackedRNN: a list of {cells} is not of num_layers={num_layers}")
        self.nLayers = num_layers
        self.rnns = torch.nn.ModuleList(inputRNN)

    def _step(self, x: Any) -> list[Any]:
        """Returns the states of the layers in order."""
        layers: list[Any] = []
        for rnn in self.rnns:
            if layers and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            layers.append(rnn(x))
            x = layers[-1][0]
        return layers

    def forward(self, input: Any, collect_hidden: bool = False, reverse: bool = False) -> tuple[Any, list[Any]]:
        """Returns outputs [steps][batch][features], and for each state a tensor [layer][batch][features] of the last
        step, with collect_hidden a list of those of each step."""
        steps = [self._step(x) for x in (reversed(input.unbind()) if reverse else input)]
        last = _by_state(steps[-1])
        steps = steps[::-1] if reverse else steps
        output = torch.stack([layers[-1][0] for layers in steps])
        if not collect_hidden:
            return output, last
        return output, [list(state) for state in zip(*map(_by_state, steps), strict=True)]


class bidirectionalRNN(_Layers):
    """Two stackedRNN, one from the end. Outputs and states have the features of both."""

    def __init__(self, inputRNN: RNNCell, num_layers: int = 1, dropout: float = 0):
        super().__init__()
        self.dropout = dropout
        self.fwd = stackedRNN(inputRNN, num_layers, dropout)
        self.bckwrd = stackedRNN(inputRNN.new_like(), num_layers, dropout)
        self.rnns = torch.nn.ModuleList([self.fwd, self.bckwrd])

    def forward(self, input: Any, collect_hidden: bool = False) -> tuple[Any, Any]:
        ahead, ahead_states = self.fwd(input, collect_hidden)
        back, back_states = self.bckwrd(input, collect_hidden, reverse=True)
        pairs = zip(ahead_states, back_states, strict=True)
        if collect_hidden:
            states = tuple([torch.cat(step, -1) for step in zip(*pair, strict=True)] for pair in pairs)
        else:
            states = tuple(torch.cat(pair, -1) for pair in pairs)
        return torch.cat([ahead, back], -1), states
