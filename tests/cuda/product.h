/* SPDX-License-Identifier: Apache-2.0 */
/* One product on a device with everything that it can be asked for, and its check against sums in double. */
#ifndef AMP_TESTS_CUDA_PRODUCT_H
#define AMP_TESTS_CUDA_PRODUCT_H

#include "device.h"

#include <stdbool.h>

enum product_layout { FOLLOWING, SIDE_BY_SIDE, SHARED_A, SHARED_B, PRODUCT_LAYOUTS };

struct device_product {
    amp_matmul_args args;       /* sizes, types, flags, factors, activation; the rest is filled in */
    amp_device_epilogue epilogue;
    bool with_c, with_bias, with_aux, in_place, gaps;
    enum product_layout layout;
};

/* Gives it memory, filled with ordinary numbers: the same memory each time. */
void product_place(struct device_product *p);
/* Holds d, aux and bias_grad against the bounds of docs/reference/numerics.md; p was placed and run. */
void product_compare(const struct device_product *p);
/* a's elements, to be written. */
void *product_a(const struct device_product *p);
/* In words, for messages. */
const char *product_words(const struct device_product *p);

#endif
