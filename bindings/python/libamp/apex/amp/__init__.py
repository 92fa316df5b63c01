# SPDX-License-Identifier: Apache-2.0
"""Modules of libamp.torch.amp. See libamp/apex/__init__.py."""
