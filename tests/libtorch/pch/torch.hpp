/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled once for all tests of this folder: torch's headers take ten times as long as a test. */
#include <amp_torch.hpp>
