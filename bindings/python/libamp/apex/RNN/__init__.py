# SPDX-License-Identifier: Apache-2.0
"""apex.RNN: recurrent layers that keep their hidden states between calls."""

from .models import GRU, LSTM, ReLU, Tanh, mLSTM

__all__ = ["GRU", "LSTM", "ReLU", "Tanh", "mLSTM"]
