# SPDX-License-Identifier: Apache-2.0
"""The pictures of papers and posts, made again with libamp. `tools/results` writes docs/results/ by it."""
