# SPDX-License-Identifier: Apache-2.0
"""apex.amp for today's PyTorch, on CPU and CUDA tensors."""
