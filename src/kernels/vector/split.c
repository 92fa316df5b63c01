/* SPDX-License-Identifier: Apache-2.0 */
/* Split masters: between FP32 and a bf16 number with its remainder. */
#include "kernels/vector/split.h"

#include <string.h>

static AMP__SPLIT(split_masters) {
    if (begin == end) return;
    memset(ties + begin / 32, 0, (end - begin + 31) / 32 * sizeof *ties);
    size_t at = begin;
    for (; end - at >= LANES; at += LANES) write_split(low, rest, ties, vf_load_f32(src + at), at, LANES);
    if (at < end) write_split(low, rest, ties, vf_load_part_f32(src + at, end - at), at, end - at);
    if (end % 2) rest[end] = 0;
}

static AMP__JOIN(join_masters) {
    size_t at = begin;
    for (; end - at >= LANES; at += LANES) vf_store_f32(dst + at, read_split(low, rest, ties, at, LANES));
    if (at < end) vf_store_part_f32(dst + at, read_split(low, rest, ties, at, end - at), end - at);
}

enum { SUMS = AMP__SUM_LANES / LANES };

static AMP__JOIN_SQUARES(join_squares) {
    vd sums[SUMS];
    double lane[AMP__SUM_LANES];
    for (int j = 0; j < SUMS; j++) sums[j] = vd_set1(0.0);
    for (size_t at = begin; at < end; at += AMP__SUM_LANES)
        for (size_t j = 0, i = at; j < SUMS && i < end; j++, i += LANES) {
            const vd x = widen(read_split(low, rest, ties, i, end - i < LANES ? end - i : LANES));
            sums[j] = vd_add_exact(sums[j], x, x);
        }
    for (size_t j = 0; j < SUMS; j++) vd_store_f64(lane + j * LANES, sums[j]);
    return sum_lanes(lane);
}

amp__split_fn *const AMP__TABLE(split) = split_masters;
amp__join_fn *const AMP__TABLE(join) = join_masters;
amp__join_squares_fn *const AMP__TABLE(join_squares) = join_squares;
