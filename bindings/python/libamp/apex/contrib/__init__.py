# SPDX-License-Identifier: Apache-2.0
"""Parts of apex.contrib that scripts of apex.amp's time use."""
