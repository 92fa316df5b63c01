# SPDX-License-Identifier: Apache-2.0
"""A module for each figure. It has FIGURE, measure, words and draw, as figure.py says, and imports torch in measure
alone: the page is made, and tested, without it. run.py has their list."""
