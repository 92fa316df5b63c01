# SPDX-License-Identifier: Apache-2.0
"""A trace (AMP_TRACE, docs/trace.md) as a page to look at: python -m libamp.report run.jsonl -o report.html"""

import sys

from ._report.program import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
