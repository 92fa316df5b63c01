# SPDX-License-Identifier: Apache-2.0
"""What Apex had for PyTorch. Importing this patches nothing."""
