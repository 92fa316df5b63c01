# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .cells import GRUCell, LSTMCell, RNNReLUCell, RNNTanhCell, mLSTMRNNCell
from .RNNBackend import RNNCell, bidirectionalRNN, stackedRNN


def toRNNBackend(inputRNN: Any, num_layers: int, bidirectional: bool = False, dropout: float = 0) -> Any:
    return (bidirectionalRNN if bidirectional else stackedRNN)(inputRNN, num_layers, dropout)


def _layers(cell: Callable[..., RNNCell], name: str) -> Callable[..., Any]:
    def layers(
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0,
        bidirectional: bool = False,
        output_size: int | None = None,
    ) -> Any:
        if batch_first:
            raise ValueError(f"apex.RNN.{name} takes [steps][batch][features]: give it input.transpose(0, 1)")
        return toRNNBackend(cell(input_size, hidden_size, bias, output_size), num_layers, bidirectional, dropout)

    layers.__name__ = layers.__qualname__ = name
    return layers


def _of(gates: int, cell: Callable[..., Any], states: int) -> Callable[..., RNNCell]:
    def make(input_size: int, hidden_size: int, bias: bool, output_size: int | None) -> RNNCell:
        return RNNCell(gates, input_size, hidden_size, cell, states, bias, output_size)

    return make


LSTM = _layers(_of(4, LSTMCell, 2), "LSTM")
GRU = _layers(_of(3, GRUCell, 1), "GRU")
ReLU = _layers(_of(1, RNNReLUCell, 1), "ReLU")
Tanh = _layers(_of(1, RNNTanhCell, 1), "Tanh")
mLSTM = _layers(mLSTMRNNCell, "mLSTM")
