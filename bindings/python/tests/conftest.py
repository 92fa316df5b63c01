# SPDX-License-Identifier: Apache-2.0
"""What the tests share. They test the libamp that is installed, wherever they lie."""
