# SPDX-License-Identifier: Apache-2.0
"""The doctor: looks at any training in PyTorch, and names what its numbers lose."""
