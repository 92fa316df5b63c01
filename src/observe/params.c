/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters, masters and gradients at the end of an observed bracket, and the changes by the step after it, read at
 * the end of the next bracket, since nothing else writes weights before.
 */
#include "context/parts.h"
#include "context/trace.h"
#include "observe/observe.h"

#include <string.h>

/* Of blocks of ours, which are well formed. */
static void cast(const amp_span *to, const amp_span *from) {
    const amp_status status = amp_cast_list(to, from, 1);
    (void)status;
}

/* ---- one block ---- */

static void add(struct amp__observer *observer, const struct amp__param *param, uint32_t what, amp_dtype dtype,
                const amp_statistics *statistics) {
    struct amp__seen *seen = amp__observe_param(observer, param, what);
    if (seen) amp__observe_add(observer, seen, dtype, statistics);
    if (what == AMP_SEE_SCALED && amp__nonfinite(statistics)) amp__observe_suspect(observer, param);
}

static void take(struct amp__observer *observer, const struct amp__param *param, uint32_t what, const amp_span *span) {
    amp_statistics statistics = AMP_STATISTICS_INIT;
    if (!span->data || !span->size) return;
    if (param->on_device) (void)amp__later_param(observer, param, what, span, NULL, 0);
    else if (amp__observe_count(observer, span, &statistics) == AMP_OK) /* of integers there are none */
        add(observer, param, what, span->dtype, &statistics);
}

/* Counts the elements under a handle of the parameter. */
static void take_handle(struct amp__observer *observer, const struct amp__param *param, uint32_t what, void *handle) {
    struct amp__elements now;
    if (!handle || amp__param_layout(param, handle, param->name, &now) != AMP_OK) return;
    void *block = now.strides ? amp__alloc((size_t)now.size, amp__dtype_size(now.dtype)) : now.data;
    if (!block) return;
    if (now.strides) amp__strides_gather(block, &now);
    take(observer, param, what, &(const amp_span){ block, now.size, now.dtype, 0 });
    if (now.strides) amp__free(block);
}

static bool is_readable(const struct amp__param *param) { return param->host->view != NULL; }
/* One that is split is made whole, and stays so until the step. */
static bool has_readable_master(struct amp__param *param) {
    if (!param->has_master || param->master.held_by_host || amp__master_is_lent(param)) return false;
    if (amp__master_join(param) != AMP_OK) return false;
    if (amp__is_split(param) && param->on_device && amp__place_flush(param->place) != AMP_OK) return false;
    return param->master.fp32.data;
}

/* ---- gradients ---- */

void amp__observe_scaled(amp_context *context, struct amp__optimizer *const *optimizers, size_t n) {
    struct amp__observer *observer = amp__observer_of(context);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < optimizers[i]->n_params; j++) {
            const struct amp__param *param = optimizers[i]->params[j];
            void *grad = NULL;
            if (!is_readable(param) || !param->host->grad ||
                !amp__observe_wants(observer, AMP_SEE_SCALED, param->name) ||
                amp__host_grad(param->host, param->tensor, param->name, &grad) != AMP_OK)
                continue;
            take_handle(observer, param, AMP_SEE_SCALED, grad);
        }
}

/* Times a factor, rounded to FP32, as an unscaled gradient is. */
static void take_scaled(struct amp__observer *observer, const struct amp__param *param, const amp_span *span,
                        float factor) {
    enum { CHUNK = 4096 };
    float chunk[CHUNK], unused = 0.0f;
    amp_statistics statistics = AMP_STATISTICS_INIT;
    for (uint64_t at = 0; at < span->size; at += CHUNK) {
        const uint64_t size = span->size - at < CHUNK ? span->size - at : CHUNK;
        const amp_span from = { (char *)span->data + at * amp__dtype_size(span->dtype), size, span->dtype, 0 };
        const amp_span to = { chunk, size, AMP_FLOAT32, 0 };
        if (amp_scale_list(&to, &from, 1, factor, &unused) != AMP_OK) return;
        (void)amp__observe_count(observer, &to, &statistics);
    }
    add(observer, param, AMP_SEE_GRADIENTS, AMP_FLOAT32, &statistics);
}

/* Counts the gradient for the step. One left to the step is not unscaled yet. */
static void take_gradient(struct amp__observer *observer, struct amp__param *param) {
    struct amp__grad_for_step grad;
    if (amp__grads_for_step(param, &grad) != AMP_OK || !grad.span.data) return;
    const amp_factor factors[] = { { grad.device_inverse, grad.inverse, AMP_FACTOR_AS_IT_IS },
                                   { NULL, grad.factor, AMP_FACTOR_AS_IT_IS } };
    const float factor = grad.inverse * grad.factor;
    if (!grad.device_inverse && factor == 1.0f) take(observer, param, AMP_SEE_GRADIENTS, &grad.span);
    else if (!param->on_device) take_scaled(observer, param, &grad.span, factor);
    else
        (void)amp__later_param(observer, param, AMP_SEE_GRADIENTS, &grad.span, factors,
                               grad.factor == 1.0f ? 1 : 2);
}

/* ---- updates ---- */

void amp__observe_forget_before(struct amp__observer *observer) {
    while (observer->before) {
        struct amp__before *before = observer->before;
        observer->before = before->next;
        observer->bytes -= sizeof *before + before->size * sizeof(float);
        if (before->param->on_device) amp__place_free(before->param->place, before->elements);
        amp__free(before);
    }
}

/* The exact weights: FP32, widened where that is all there is. False: they cannot be read, or have gaps. */
static bool exact_weights(struct amp__param *param, amp_span *span) {
    struct amp__elements now;
    if (has_readable_master(param)) {
        *span = (amp_span){ param->master.fp32.data, param->size, AMP_FLOAT32, 0 };
        return true;
    }
    if (!is_readable(param) || amp__param_layout(param, param->tensor, param->name, &now) != AMP_OK || now.strides)
        return false;
    *span = (amp_span){ now.data, now.size, now.dtype, 0 };
    return true;
}

/* NULL: there is no room. */
static struct amp__before *copy_of(struct amp__observer *observer, struct amp__param *param,
                                   const amp_span *weights) {
    const uint64_t elements = weights->size * sizeof(float);
    if (observer->bytes + sizeof(struct amp__before) + elements > observer->options.max_bytes) return NULL;
    struct amp__before *before = amp__alloc(1, sizeof *before + (param->on_device ? 0 : (size_t)elements));
    if (!before) return NULL;
    *before = (struct amp__before){ NULL, param, weights->size, (float *)(before + 1) };
    const amp_span copy = { before->elements, weights->size, AMP_FLOAT32, 0 };
    if (param->on_device) before->elements = amp__later_copy(observer, param, weights);
    if (param->on_device ? before->elements != NULL : amp_cast_list(&copy, weights, 1) == AMP_OK) return before;
    amp__free(before);
    return NULL;
}

static void keep_before(struct amp__observer *observer, struct amp__param *param) {
    amp_span weights;
    if (!amp__observe_wants(observer, AMP_SEE_UPDATES, param->name) || !exact_weights(param, &weights)) return;
    struct amp__before *before = copy_of(observer, param, &weights);
    if (!before) {
        observer->left_out++;
        return;
    }
    before->next = observer->before;
    observer->before = before;
    observer->bytes += sizeof *before + weights.size * sizeof(float);
}

enum { CHUNK = 1024 };

/* Returns the number of weights of this type that a nonzero update does not change. */
static uint64_t count_lost(const float *before, const float *update, uint64_t n, amp_dtype type) {
    uint16_t low[CHUNK];
    float was[CHUNK], is[CHUNK];
    const amp_span exact = { (float *)(uintptr_t)before, n, AMP_FLOAT32, 0 }, narrow = { low, n, type, 0 },
                   rounded = { was, n, AMP_FLOAT32, 0 }, updated = { is, n, AMP_FLOAT32, 0 };
    uint64_t lost = 0;
    cast(&narrow, &exact);
    cast(&rounded, &narrow);
    for (uint64_t i = 0; i < n; i++) is[i] = was[i] + update[i];
    cast(&narrow, &updated);
    cast(&updated, &narrow);
    for (uint64_t i = 0; i < n; i++) lost += update[i] != 0.0f && is[i] - was[i] == 0.0f;
    return lost;
}

/* Counts the changes of weights by the step. */
static void count_update(const struct amp__before *before, const amp_span *now, amp_statistics *statistics,
                         uint64_t lost[2]) {
    for (uint64_t at = 0; at < now->size; at += CHUNK) {
        const uint64_t n = now->size - at < CHUNK ? now->size - at : CHUNK;
        float update[CHUNK];
        const amp_span from = { (char *)now->data + at * amp__dtype_size(now->dtype), n, now->dtype, 0 },
                       to = { update, n, AMP_FLOAT32, 0 };
        cast(&to, &from);
        for (uint64_t i = 0; i < n; i++) update[i] -= before->elements[at + i];
        if (amp_statistics_list(&to, 1, statistics) != AMP_OK) return;
        lost[0] += count_lost(before->elements + at, update, n, AMP_FLOAT16);
        lost[1] += count_lost(before->elements + at, update, n, AMP_BFLOAT16);
    }
}

static void take_update(struct amp__observer *observer, const struct amp__before *before) {
    const amp_span was = { before->elements, before->size, AMP_FLOAT32, 0 };
    amp_statistics statistics = AMP_STATISTICS_INIT;
    uint64_t lost[2] = { 0, 0 };
    amp_span now;
    if (!exact_weights(before->param, &now) || now.size != before->size) return;
    if (before->param->on_device) {
        (void)amp__later_update(observer, before->param, &now, &was);
        return;
    }
    count_update(before, &now, &statistics, lost);
    struct amp__seen *seen = amp__observe_param(observer, before->param, AMP_SEE_UPDATES);
    if (!seen) return;
    memcpy(seen->lost_last, lost, sizeof lost);
    seen->lost_fp16 += lost[0];
    seen->lost_bf16 += lost[1];
    amp__observe_add(observer, seen, AMP_FLOAT32, &statistics);
}

static void take_updates(struct amp__observer *observer) {
    if (!observer->before) return;
    for (const struct amp__before *before = observer->before; before; before = before->next)
        take_update(observer, before);
    amp__observe_forget_before(observer);
    observer->due.updates = true;
    observer->due.updates_of = observer->before_of;
}

/* ---- the bracket ---- */

static void take_params(struct amp__observer *observer, const struct amp__optimizer *optimizer, bool steps) {
    for (size_t i = 0; i < optimizer->n_params; i++) {
        struct amp__param *param = optimizer->params[i];
        if (is_readable(param) && amp__observe_wants(observer, AMP_SEE_WEIGHTS, param->name))
            take_handle(observer, param, AMP_SEE_WEIGHTS, param->tensor);
        if (amp__observe_wants(observer, AMP_SEE_MASTERS, param->name) && has_readable_master(param))
            take(observer, param, AMP_SEE_MASTERS,
                 &(const amp_span){ param->master.fp32.data, param->size, AMP_FLOAT32, 0 });
        if (!steps) continue;
        if (is_readable(param) && amp__observe_wants(observer, AMP_SEE_GRADIENTS, param->name))
            take_gradient(observer, param);
        keep_before(observer, param);
    }
}

void amp__observe_decided(amp_context *context, struct amp__optimizer *const *optimizers, size_t n,
                          const struct amp__decided_bracket *bracket) {
    struct amp__observer *observer = amp__observer_of(context);
    struct amp__due *due = &observer->due;
    amp__observe_collect(context); /* of the bracket before */
    take_updates(observer);
    amp__observe_follow_weights(context, bracket);
    if (amp__observing(context)) {
        for (size_t i = 0; i < n; i++) take_params(observer, optimizers[i], !bracket->skips);
        observer->before_of = amp__trace_brackets(context);
        due->bracket = true;
        due->number = observer->before_of;
        due->decided = *bracket;
    }
    amp__decision_follow(observer, bracket);
    if (due->bracket || due->updates) amp__later_send(observer);
    if (!bracket->on_device) amp__observe_collect(context);
    amp__observe_next(context);
}
