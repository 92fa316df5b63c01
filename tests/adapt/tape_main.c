/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a linear layer on minitape through the adapter that amp-adapt wrote, tape.c, and prints the loss. */
#include "minitape.h"

#include <amp.h>

#include <stdio.h>

amp_status tape_start(mt_ops *table, mt_optimizer *owner);
amp_status tape_begin(void *loss, void **scaled_loss);
amp_status tape_end(void);
amp_status tape_stop(void);
void tape_health(void);

mt_tensor *weight, *bias; /* tape.c lists them */

enum { BATCH = 16, IN = 12, CLASSES = 3 };

static mt_tensor *leaf(mt_dtype dtype, int rows, int columns, int trained) {
    mt_tensor *made = mt_tensor_new(dtype, columns ? 2 : 1, (const int[]){ rows, columns }, MT_MEM_PARAMETER);
    made->requires_grad = trained;
    return made;
}

/* What is expected of row i stands out in it. */
static void fill(mt_tensor *x, mt_tensor *target) {
    for (int i = 0; i < BATCH; i++) {
        for (int k = 0; k < IN; k++) mt_set(x, (size_t)(i * IN + k), (k % CLASSES == i % CLASSES) + 0.01 * (i - k));
        mt_set(target, (size_t)i, i % CLASSES);
    }
}

static int check(amp_status status) {
    if (status != AMP_OK) fprintf(stderr, "%s: %s\n", amp_status_name(status), amp_last_error());
    return status != AMP_OK;
}

/* Two brackets a step: the second one sets the first one's gradients aside. */
static int half(mt_ops *ops, mt_optimizer *optimizer, mt_tensor *x, mt_tensor *target, int last, double *value) {
    void *scaled;
    mt_tensor *out = mt_then(NULL, ops->linear(x, weight, bias));
    mt_tensor *loss = ops->nll_loss(out = mt_then(out, ops->log_softmax(out)), target);
    *value = mt_get(loss, 0);
    if (check(tape_begin(loss, &scaled))) return 1;
    if (mt_backward(scaled)) return puts(mt_error());
    if (check(tape_end())) return 1;
    if (last) optimizer->step(optimizer), optimizer->zero_grad(optimizer);
    mt_release(out);
    mt_release(loss);
    return 0;
}

int main(void) {
    mt_tensor *x = leaf(MT_F32, BATCH, IN, 0), *target = leaf(MT_I32, BATCH, 0, 0);
    weight = leaf(MT_F32, CLASSES, IN, 1), bias = leaf(MT_F32, CLASSES, 0, 1);
    mt_optimizer *optimizer = mt_sgd_new((mt_tensor *[]){ weight, bias }, 2, 0.1f, 0.9f, 0.0f);
    double loss = 0;
    fill(x, target);
    if (check(tape_start(mt_ops_default(), optimizer))) return 1;
    for (int i = 0; i < 120; i++)
        if (half(mt_ops_default(), optimizer, x, target, i % 2, &loss)) return 1;
    tape_health();
    if (check(tape_stop())) return 1;
    printf("loss %.9f, %d steps\n", loss, optimizer->steps);
    mt_optimizer_free(optimizer);
    mt_release(x), mt_release(target), mt_release(weight), mt_release(bias);
    return 0;
}
