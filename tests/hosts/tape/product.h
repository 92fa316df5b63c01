/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix product as minitape takes them: each sum in one float, in order. */
#ifndef TEST_PRODUCT_H
#define TEST_PRODUCT_H

#include "minitape.h"

static inline float at(const mt_product *p, const void *matrix, int i) {
    size_t offset = (size_t)i * mt_dtype_size(p->dtype);
    float value;
    mt_convert(MT_F32, &value, p->dtype, (const char *)matrix + offset, 1);
    return value;
}

static inline int product(const mt_product *p) {
    for (int i = 0; i < p->m * p->n; i++) {
        int j = i % p->n;
        float sum = p->add ? at(p, p->d, i) : 0.0f;
        for (int k = 0; k < p->k; k++)
            sum += at(p, p->a, p->transpose_a ? k * p->m + i / p->n : i / p->n * p->k + k) *
                   at(p, p->b, p->transpose_b ? j * p->k + k : k * p->n + j);
        mt_convert(p->dtype, (char *)p->d + (size_t)i * mt_dtype_size(p->dtype), MT_F32, &sum, 1);
    }
    return 0;
}

#endif
