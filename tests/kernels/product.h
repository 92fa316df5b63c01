/* SPDX-License-Identifier: Apache-2.0 */
/* One product with everything that amp_matmul can be asked for, and its check against sums in double. */
#ifndef AMP_TESTS_PRODUCT_H
#define AMP_TESTS_PRODUCT_H

#include "support.h"

#include "amp_kernels.h"

enum { A, B, C, D, BIAS, OPERANDS };

struct product {
    amp_matmul_args args; /* every ld and stride filled in */
    struct guard guard[OPERANDS];
    void *data[OPERANDS];
    size_t elements[OPERANDS];
    void *c_before;
};

/* How the products of a batch lie. */
enum layout { FOLLOWING, SIDE_BY_SIDE, SHARED_B, SHARED_A, LAYOUTS };

struct wish {
    amp_matmul_args args; /* sizes, types, flags, factors, batch, activation, backend */
    bool with_c, with_bias, in_place, gaps;
    enum layout layout;
};

struct wish random_wish(int64_t m, int64_t n, int64_t k);

/* Memory for it, filled with ordinary numbers. */
struct product product_new(const struct wish *wish);
void product_free(struct product *product);
/* Runs it and holds about `elements` of d against the bound of docs/reference/numerics.md; d's gaps and all borders are
 * as before. */
void product_check(struct product *product, int64_t elements);

#endif
