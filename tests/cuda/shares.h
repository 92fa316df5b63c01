/* SPDX-License-Identifier: Apache-2.0 */
/* Products on the fake device, and who is to do what of them. */
#ifndef AMP_TESTS_CUDA_SHARES_H
#define AMP_TESTS_CUDA_SHARES_H

#include "product.h"

/* cublasLtEpilogue_t */
enum {
    PLAIN = 1,
    RELU = 2,
    E_BIAS = 4,
    AUX = 128,
    DRELU = 136,
    BGRAD = 16,
    BGRADA = 256,
    BGRADB = 512
};

struct share {
    amp_dtype operands, d, c, bias, grad; /* c, bias 0: none */
    int32_t activation, backward, aux, bias_grad_of;
    uint32_t flags, epilogue; /* the epilogue that cuBLASLt is asked for */
    int launches, scratch;    /* of libamp's kernels; whether the sums stay in fp32 aside */
};
extern const struct share shares[];
extern const int n_shares;
enum { SHARE_SCRATCH = 15, SHARE_ALL = 20 }; /* one that needs scratch; one that launches all that there is */

/* A fixture: a list on a fake device with nothing counted. */
extern amp_device_list *list;
void start_products(void);
void stop_products(void);

/* Sizes that no test before had: what is remembered of others does not matter. */
struct device_product fresh(amp_dtype operands, amp_dtype d);
struct device_product shared(const struct share *s);
amp_status run(struct device_product *p);
/* Placed, run and compared. */
void run_right(struct device_product *p);

#endif
