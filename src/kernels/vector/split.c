/* SPDX-License-Identifier: Apache-2.0 */
/* Split masters. */
#include "kernels/vector/split.h"

static AMP__SPLIT(split_all) {
    size_t at = begin;
    for (; end - at >= LANES; at += LANES) write_split(low, r->rest, r->ties, vf_load_f32(src + at), at, LANES);
    if (at < end) write_split(low, r->rest, r->ties, vf_load_part_f32(src + at, end - at), at, end - at);
}

static AMP__JOIN(join_all) {
    size_t at = begin;
    for (; end - at >= LANES; at += LANES) vf_store_f32(dst + at, read_split(low, r->rest, r->ties, at, LANES));
    if (at < end) vf_store_part_f32(dst + at, read_split(low, r->rest, r->ties, at, end - at), end - at);
}

amp__split_fn *const AMP__TABLE(split) = split_all;
amp__join_fn *const AMP__TABLE(join) = join_all;
