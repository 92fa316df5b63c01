/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/round.h"

#include <amp_kernels.h>
#include <string.h>

enum { BLOCK = 1024 };

void amp__count_rounded(struct amp__counts *counts, const float *exact, const uint16_t *rounded, uint64_t n,
                        amp_dtype low) {
    const uint16_t infinity = low == AMP_FLOAT16 ? 0x7c00 : 0x7f80, least = low == AMP_FLOAT16 ? 0x0400 : 0x0080;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &exact[i], sizeof bits);
        const uint16_t magnitude = rounded[i] & 0x7fff;
        counts->overflowed += magnitude == infinity && (bits & 0x7f800000u) != 0x7f800000u;
        counts->zeroed += magnitude == 0 && (bits & 0x7fffffffu) != 0;
        counts->subnormal += magnitude != 0 && magnitude < least;
    }
}

void amp__count_widened(struct amp__counts *counts, const float *exact, const float *rounded, uint64_t n, amp_dtype low) {
    const uint32_t infinity = 0x7f800000u, least = low == AMP_FLOAT16 ? (127u - 14u) << 23 : 1u << 23;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t from, to;
        memcpy(&from, &exact[i], sizeof from);
        memcpy(&to, &rounded[i], sizeof to);
        from &= 0x7fffffffu;
        to &= 0x7fffffffu;
        counts->overflowed += to == infinity && from < infinity;
        counts->zeroed += to == 0 && from != 0;
        counts->subnormal += to != 0 && to < least;
    }
}

void amp__round(float *dst, const float *src, uint64_t n, amp_dtype low, struct amp__counts *counts) {
    uint16_t rounded[BLOCK];
    float exact[BLOCK];
    for (uint64_t at = 0; at < n; at += BLOCK) {
        const uint64_t length = n - at < BLOCK ? n - at : BLOCK;
        memcpy(exact, src + at, (size_t)length * sizeof *exact);
        const amp_span narrow = { rounded, length, low, 0 }, from = { exact, length, AMP_FLOAT32, 0 };
        const amp_span to = { dst + at, length, AMP_FLOAT32, 0 };
        if (amp_cast_list(&narrow, &from, 1) != AMP_OK || amp_cast_list(&to, &narrow, 1) != AMP_OK) continue;
        if (counts) amp__count_rounded(counts, exact, rounded, length, low);
    }
}
