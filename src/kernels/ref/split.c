/* SPDX-License-Identifier: Apache-2.0 */
/* Split masters, element by element. */
#include "kernels/ref/ref.h"

static AMP__SPLIT(split) {
    for (size_t i = begin; i < end; i++) amp__ref_split_one(low, r->rest, r->ties, i, src[i]);
}

static AMP__JOIN(join) {
    for (size_t i = begin; i < end; i++) dst[i] = amp__ref_join_one(low, r->rest, r->ties, i);
}

amp__split_fn *const amp__ref_split = split;
amp__join_fn *const amp__ref_join = join;
