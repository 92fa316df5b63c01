# SPDX-License-Identifier: Apache-2.0
"""apex.amp._amp_state."""
from libamp.torch.amp.process_state import AmpState, _amp_state, master_params, maybe_print, rank, warn_or_err

__all__ = ["AmpState", "_amp_state", "master_params", "maybe_print", "rank", "warn_or_err"]
