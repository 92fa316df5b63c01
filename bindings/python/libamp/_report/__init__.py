# SPDX-License-Identifier: Apache-2.0
"""`python -m libamp.report`: reads a trace (read), computes facts (facts, compare) and shows them (text, page,
board)."""
