# SPDX-License-Identifier: Apache-2.0
"""apex.amp.rnn_compat. Recurrent functions are ordinary entries of the cast list here."""
RNN_NAMES = ["rnn_relu", "rnn_tanh", "gru", "lstm"]


def has_old_rnns() -> bool:
    """Returns False: only torch before 1.0 has them."""
    return False
