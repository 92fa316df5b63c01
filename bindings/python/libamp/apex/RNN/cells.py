# SPDX-License-Identifier: Apache-2.0
"""One step of each recurrent layer, on torch's linear, so that amp's casts apply."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .RNNBackend import RNNCell


def _lstm(gates: Any, cx: Any) -> tuple[Any, Any]:
    enter, forget, cell, leave = gates.chunk(4, 1)
    cy = torch.sigmoid(forget) * cx + torch.sigmoid(enter) * torch.tanh(cell)
    return torch.sigmoid(leave) * torch.tanh(cy), cy


def LSTMCell(input: Any, hidden: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> tuple[Any, Any]:
    return _lstm(F.linear(input, w_ih, b_ih) + F.linear(hidden[0], w_hh, b_hh), hidden[1])


def mLSTMCell(
    input: Any, hidden: Any, w_ih: Any, w_hh: Any, w_mih: Any, w_mhh: Any, b_ih: Any = None, b_hh: Any = None
) -> tuple[Any, Any]:
    """Computes a step of the multiplicative LSTM: the hidden state at the gates depends on the input."""
    m = F.linear(input, w_mih) * F.linear(hidden[0], w_mhh)
    return LSTMCell(input, (m, hidden[1]), w_ih, w_hh, b_ih, b_hh)


def GRUCell(input: Any, hidden: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    reset, update, new = F.linear(input, w_ih, b_ih).chunk(3, 1)
    h_reset, h_update, h_new = F.linear(hidden, w_hh, b_hh).chunk(3, 1)
    new = torch.tanh(new + torch.sigmoid(reset + h_reset) * h_new)
    return new + torch.sigmoid(update + h_update) * (hidden - new)


def RNNReLUCell(input: Any, hidden: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    return torch.relu(F.linear(input, w_ih, b_ih) + F.linear(hidden, w_hh, b_hh))


def RNNTanhCell(input: Any, hidden: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    return torch.tanh(F.linear(input, w_ih, b_ih) + F.linear(hidden, w_hh, b_hh))


class mLSTMRNNCell(RNNCell):
    def __init__(self, input_size: int, hidden_size: int, bias: bool = False, output_size: int | None = None):
        super().__init__(4, input_size, hidden_size, mLSTMCell, 2, bias, output_size)
        self.w_mih = torch.nn.Parameter(torch.empty(self.output_size, self.input_size))
        self.w_mhh = torch.nn.Parameter(torch.empty(self.output_size, self.output_size))
        self.reset_parameters()

    def weights(self) -> tuple[Any, ...]:
        return self.w_ih, self.w_hh, self.w_mih, self.w_mhh

    def new_like(self, new_input_size: int | None = None) -> mLSTMRNNCell:
        return type(self)(new_input_size or self.input_size, self.hidden_size, self.bias, self.output_size)
