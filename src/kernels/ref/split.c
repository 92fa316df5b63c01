/* SPDX-License-Identifier: Apache-2.0 */
/* Split masters: between FP32 and a bf16 number with its remainder. */
#include "kernels/ref/split.h"
#include "kernels/ref/ref.h"

#include <string.h>

static AMP__SPLIT(split) {
    if (begin == end) return;
    memset(ties + begin / 32, 0, (end - begin + 31) / 32 * sizeof *ties);
    for (size_t i = begin; i < end; i++) amp__split_set(low, rest, ties, i, src[i]);
    if (end % 2) rest[end] = 0;
}

static AMP__JOIN(join) {
    for (size_t i = begin; i < end; i++) dst[i] = amp__split_get(low, rest, ties, i);
}

static AMP__JOIN_SQUARES(join_squares) {
    double lane[AMP__SUM_LANES] = { 0 };
    float block[AMP__REF_BLOCK];
    for (size_t at = begin, n; at < end; at += n) {
        n = end - at < AMP__REF_BLOCK ? end - at : AMP__REF_BLOCK;
        for (size_t i = 0; i < n; i++) block[i] = amp__split_get(low, rest, ties, at + i);
        amp__ref_add_squares(lane, block, n);
    }
    return amp__ref_sum_lanes(lane);
}

amp__split_fn *const amp__ref_split = split;
amp__join_fn *const amp__ref_join = join;
amp__join_squares_fn *const amp__ref_join_squares = join_squares;
