/* SPDX-License-Identifier: Apache-2.0 */
/* Element i of a split master (kernels.h, AMP__SPLIT). Vector code uses it for rare cases. */
#ifndef AMP_KERNELS_REF_SPLIT_H
#define AMP_KERNELS_REF_SPLIT_H

#include "kernels/ref/convert.h"

#include <stddef.h>

static inline float amp__split_get(const void *low, const uint16_t *rest, const uint32_t *ties, size_t i) {
    const uint32_t tie = rest[i] == AMP__REST_TIE ? ties[i / 32] >> i % 32 & 1 : 0;
    return amp__join(((const amp__bf16 *)low)[i], rest[i], tie);
}

static inline void amp__split_set(void *low, uint16_t *rest, uint32_t *ties, size_t i, float value) {
    ((amp__bf16 *)low)[i] = amp__f32_to_bf16(value);
    rest[i] = amp__rest(value);
    if (rest[i] == AMP__REST_TIE)
        ties[i / 32] = (ties[i / 32] & ~(UINT32_C(1) << i % 32)) | amp__tie(value) << i % 32;
}

#endif
