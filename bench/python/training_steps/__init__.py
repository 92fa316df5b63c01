# SPDX-License-Identifier: Apache-2.0
"""Parts of ../train.py: models, the modes that train them, what is read off one step, and the order of it all."""
