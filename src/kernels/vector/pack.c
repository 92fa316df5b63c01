/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/isa.h"
#include AMP__ISA_H

amp__pack_fn *const AMP__TABLE(pack) = NULL;
amp__unpack_fn *const AMP__TABLE(unpack) = NULL;
