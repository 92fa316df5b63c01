# SPDX-License-Identifier: Apache-2.0
"""`python -m libamp.report`: a trace is read (read), asked (facts, compare) and shown (text, page, board)."""
