/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients that a step has used and that are unchanged at the next begin: they were not cleared. Backward adds to
 * them, or the buffers change if backward clears or assigns them itself. Checked after the first few steps only. A
 * finding at begin is reported at the end, since zero_grad may come between begin and backward.
 */
#include "bracket/wiring.h"
#include "context/findings.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/progress.h"

#include <stdio.h>

enum { LOOKS = 4 };
enum { PIECE = 4096 }; /* elements of a gradient that are looked at: its first ones */

/* Of either sign: a host may clear by multiplying with 0. */
static bool is_zero(const unsigned char *data, size_t n, size_t width) {
    unsigned bits = 0;
    for (size_t i = 0; i < n && !bits; i++, data += width) {
        bits = data[width - 1] & 0x7fu; /* the last byte has the sign */
        for (size_t byte = 0; byte + 1 < width; byte++) bits |= data[byte];
    }
    return !bits;
}

/* Returns a sum, never 0 for a nonzero gradient. Gradients on a device or with gaps are not read. */
static uint64_t sum_of(amp_context *context, const struct amp__param *param) {
    struct amp__elements now;
    void *grad = NULL;
    if (param->on_device || !param->host->view || !param->host->grad) return 0;
    amp_status status = amp__host_grad(param->host, param->tensor, param->name, &grad);
    if (status == AMP_OK && grad) status = amp__param_layout(param, grad, "gradient", &now);
    if (status != AMP_OK) amp__wiring_tell_failure(context);
    if (status != AMP_OK || !grad || now.strides || !amp__is_floating(now.dtype)) return 0;
    const size_t n = now.size < PIECE ? (size_t)now.size : PIECE, width = amp__dtype_size(now.dtype);
    return is_zero(now.data, n, width) ? 0 : amp__sum64(0, now.data, n * width) | 1;
}

void amp__wiring_note_step(struct amp__optimizer *optimizer) {
    amp__sampled_note_step(optimizer);
    if (optimizer->grads_stay || optimizer->scans.steps >= LOOKS) return;
    if (amp__progress_of(optimizer->context)->verifying) return;
    for (size_t i = 0; i < optimizer->n_params; i++)
        optimizer->params[i]->looked.sum = sum_of(optimizer->context, optimizer->params[i]);
    optimizer->scans.step_noted = true;
}

void amp__wiring_look_for_stayed(struct amp__optimizer *optimizer) {
    struct amp__scans *scans = &optimizer->scans;
    const bool stepped = scans->step_noted;
    scans->step_noted = false;
    if (stepped || !amp__step_is_delayed(optimizer)) scans->stayed = NULL;
    for (size_t i = 0; i < optimizer->n_params && stepped && !scans->stayed; i++) {
        const struct amp__param *param = optimizer->params[i];
        if (param->looked.sum && param->looked.sum == sum_of(optimizer->context, param)) scans->stayed = param;
    }
    scans->steps += stepped;
}

void amp__wiring_tell_stayed(struct amp__optimizer *optimizer) {
    struct amp__scans *scans = &optimizer->scans;
    amp_context *context = optimizer->context;
    const size_t number = amp__optimizer_number(optimizer);
    char subject[32];
    if (!scans->stayed) return;
    snprintf(subject, sizeof subject, "optimizer %zu", number);
    amp__find(context, AMP__GRADIENTS_STAY, subject, "optimizer %zu: the gradient of %s was the same after a step and "
              "when the next bracket began", number, scans->stayed->name);
    scans->steps = LOOKS;
}
