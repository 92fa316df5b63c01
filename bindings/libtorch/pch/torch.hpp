/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled once for all that includes it. */
#include <amp_torch.hpp>
