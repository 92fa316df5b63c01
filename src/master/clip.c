/* SPDX-License-Identifier: Apache-2.0 */
/* Clipping: all gradients are looked at before one is written. And clearing. */
#include "kernels/fpenv.h"
#include "master/grad.h"

#include <string.h>

enum { BLOCK = 512 };

/* A NaN compares false and stays. */
#define CLAMP(type)                                                                                                    \
    static void clamp_##type(type *values, size_t n, type limit) {                                                     \
        const amp__fpenv saved = amp__fpenv_enter();                                                                   \
        for (size_t i = 0; i < n; i++) {                                                                               \
            if (values[i] > limit) values[i] = limit;                                                                  \
            if (values[i] < -limit) values[i] = -limit;                                                                \
        }                                                                                                              \
        amp__fpenv_leave(saved);                                                                                       \
    }
CLAMP(float)
CLAMP(double)

/* 16-bit elements pass through float; a limit that their type does not have is rounded as any value is. */
static amp_status clamp_low(const amp_span *span, float limit) {
    const size_t width = amp__dtype_size(span->dtype);
    float work[BLOCK];
    for (uint64_t at = 0; at < span->size; at += BLOCK) {
        const uint64_t n = span->size - at < BLOCK ? span->size - at : BLOCK;
        const amp_span low = { (char *)span->data + at * width, n, span->dtype, 0 }, wide = { work, n, AMP_FLOAT32, 0 };
        AMP_TRY(amp_cast_list(&wide, &low, 1));
        clamp_float(work, n, limit);
        AMP_TRY(amp_cast_list(&low, &wide, 1));
    }
    return AMP_OK;
}

static amp_status clamp(const amp_span *span, float limit) {
    if (span->dtype == AMP_FLOAT32) clamp_float(span->data, span->size, limit);
    else if (span->dtype == AMP_FLOAT64) clamp_double(span->data, span->size, (double)limit);
    else return clamp_low(span, limit);
    return AMP_OK;
}

/* Of gradients that wait for the step, it remembers the first factor. */
static amp_status multiply(const amp_span *span, float factor) { return amp_scale_list(span, span, 1, factor, NULL); }

/* The host's handle shows the new value, rounded where it is the master's; one with gaps gets it scattered. */
static amp_status change(struct amp__param *param, const amp_span *exact, const amp_span *shown,
                         amp_status (*with)(const amp_span *, float), float value) {
    void *grad;
    AMP_TRY(with(exact, value));
    if (exact->data != shown->data) {
        AMP_TRY(amp_cast_list(shown, exact, 1));
        param->grad_version = amp__grad_version(param, param->grad_handle);
    }
    if (shown->data != param->flat) return AMP_OK;
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    return amp__grad_store(param, grad, shown);
}

static amp_status change_all(struct amp__param *const *params, size_t n, amp_status (*with)(const amp_span *, float),
                             float value) {
    amp_span *spans = amp__alloc(2 * n, sizeof *spans);
    if (!spans) return amp__fail_memory();
    amp_status status = AMP_OK;
    for (size_t i = 0; i < n && status == AMP_OK; i++)
        if (with != multiply || !amp__grads_takes_factor(params[i]))
            status = amp__grads_look(params[i], &spans[2 * i], &spans[2 * i + 1]);
    for (size_t i = 0; i < n && status == AMP_OK; i++)
        if (spans[2 * i].data) status = change(params[i], &spans[2 * i], &spans[2 * i + 1], with, value);
        else if (with == multiply && amp__grads_takes_factor(params[i])) params[i]->pending.factor = value;
    amp__free(spans);
    return status;
}

amp_status amp__grads_clamp(struct amp__param *const *params, size_t n, float limit) {
    return change_all(params, n, clamp, limit);
}

amp_status amp__grads_scale(struct amp__param *const *params, size_t n, float factor) {
    return change_all(params, n, multiply, factor);
}

/* ---- clearing ---- */

static amp_status clear_one(struct amp__param *param) {
    void *grad;
    amp_span shown;
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    if (!grad) return AMP_OK;
    if (param->host->set_grad) {
        AMP_TRY(amp__host_set_grad(param->host, param->tensor, param->name, NULL));
        amp__host_release(param->host, grad);
        return AMP_OK;
    }
    AMP_TRY(amp__grad_elements(param, grad, &shown));
    if (amp__span_bytes(&shown)) memset(shown.data, 0, amp__span_bytes(&shown));
    return amp__grad_store(param, grad, &shown);
}

amp_status amp__grads_clear(struct amp__param *const *params, size_t n) {
    for (size_t i = 0; i < n; i++) AMP_TRY(clear_one(params[i]));
    return AMP_OK;
}
