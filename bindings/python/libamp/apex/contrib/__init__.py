# SPDX-License-Identifier: Apache-2.0
"""What scripts of apex.amp's time took from apex.contrib: its optimizers."""
