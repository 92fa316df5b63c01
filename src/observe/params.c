/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters, masters and gradients, at the end of an observed bracket; and what the step after it changed, seen at the
 * end of the next bracket: until then nothing else writes weights.
 */
#include "context/trace.h"
#include "observe/observe.h"

#include <string.h>

/* Of blocks of ours, which are well formed. */
static void cast(const amp_span *to, const amp_span *from) {
    const amp_status status = amp_cast_list(to, from, 1);
    (void)status;
}

/* ---- one block ---- */

static struct amp__place *place_of(const struct amp__param *param) { return param->on_device ? param->place : NULL; }

/* Elements of the parameter's, where they can be read. */
static bool reach(const struct amp__param *param, amp_span *span, void **copy) {
    const void *memory = span->data;
    if (!amp__observe_reach(place_of(param), &memory, span->size * amp__dtype_size(span->dtype), copy)) return false;
    span->data = (void *)(uintptr_t)memory;
    return true;
}

static void take(amp_context *context, const struct amp__param *param, uint32_t what, const amp_span *span) {
    amp_statistics statistics = AMP_STATISTICS_INIT;
    if (!span->data || !span->size) return;
    if (!amp__observe_statistics(place_of(param), span, 1.0f, &statistics)) return; /* of integers there are none */
    struct amp__seen *seen = amp__observe_param(context->observer, param, what);
    if (seen) amp__observe_add(context->observer, seen, span->dtype, &statistics);
    if (what == AMP_SEE_SCALED && amp__nonfinite(&statistics)) amp__observe_suspect(context->observer, param);
}

/* What stands under a handle of the parameter's. */
static void take_handle(amp_context *context, const struct amp__param *param, uint32_t what, void *handle) {
    struct amp__elements now;
    if (!handle || amp__param_layout(param, handle, param->name, &now) != AMP_OK) return;
    void *block = now.strides ? amp__alloc((size_t)now.size, amp__dtype_size(now.dtype)) : now.data;
    if (!block) return;
    if (now.strides) amp__strides_gather(block, &now);
    take(context, param, what, &(const amp_span){ block, now.size, now.dtype, 0 });
    if (now.strides) amp__free(block);
}

static bool is_readable(const struct amp__param *param) { return param->host->view != NULL; }
static bool has_readable_master(const struct amp__param *param) {
    return param->has_master && !param->master.held_by_host && param->master.fp32.data;
}

/* ---- gradients ---- */

void amp__observe_scaled(amp_context *context, struct amp__optimizer *const *optimizers, size_t n) {
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < optimizers[i]->n_params; j++) {
            const struct amp__param *param = optimizers[i]->params[j];
            void *grad = NULL;
            if (!is_readable(param) || !param->host->grad ||
                !amp__observe_wants(context->observer, AMP_SEE_SCALED, param->name) ||
                amp__host_grad(param->host, param->tensor, param->name, &grad) != AMP_OK)
                continue;
            take_handle(context, param, AMP_SEE_SCALED, grad);
        }
}

/* What the step reads; what is left to it is not unscaled yet. */
static void take_gradient(amp_context *context, struct amp__param *param) {
    struct amp__grad_for_step grad;
    amp_statistics statistics = AMP_STATISTICS_INIT;
    if (amp__grads_for_step(param, &grad) != AMP_OK || !grad.span.data) return;
    if (grad.device_inverse &&
        amp__place_out(param->place, &grad.inverse, grad.device_inverse, sizeof grad.inverse) != AMP_OK)
        return;
    const float factor = grad.inverse * grad.factor;
    if (factor == 1.0f) {
        take(context, param, AMP_SEE_GRADIENTS, &grad.span);
        return;
    }
    if (!amp__observe_statistics(place_of(param), &grad.span, factor, &statistics)) return;
    struct amp__seen *seen = amp__observe_param(context->observer, param, AMP_SEE_GRADIENTS);
    if (seen) amp__observe_add(context->observer, seen, AMP_FLOAT32, &statistics);
}

/* ---- updates ---- */

void amp__observe_forget_before(struct amp__observer *observer) {
    while (observer->before) {
        struct amp__before *before = observer->before;
        observer->before = before->next;
        observer->bytes -= sizeof *before + before->size * sizeof(float);
        amp__free(before);
    }
}

/* The exact weights: FP32, widened where that is all there is. False: they cannot be read, or have gaps. *copy is the
 * caller's to free. */
static bool exact_weights(const struct amp__param *param, amp_span *span, void **copy) {
    struct amp__elements now;
    *copy = NULL;
    if (has_readable_master(param)) {
        *span = (amp_span){ param->master.fp32.data, param->size, AMP_FLOAT32, 0 };
        return reach(param, span, copy);
    }
    if (!is_readable(param) || amp__param_layout(param, param->tensor, param->name, &now) != AMP_OK || now.strides)
        return false;
    *span = (amp_span){ now.data, now.size, now.dtype, 0 };
    return reach(param, span, copy);
}

/* NULL: there is no room. */
static struct amp__before *copy_of(struct amp__observer *observer, const amp_span *weights) {
    const uint64_t bytes = sizeof(struct amp__before) + weights->size * sizeof(float);
    struct amp__before *before =
        observer->bytes + bytes <= observer->options.max_bytes ? amp__alloc(1, (size_t)bytes) : NULL;
    const amp_span copy = { before ? before->elements : NULL, weights->size, AMP_FLOAT32, 0 };
    if (before && amp_cast_list(&copy, weights, 1) == AMP_OK) return before;
    amp__free(before);
    return NULL;
}

static void keep_before(struct amp__observer *observer, struct amp__param *param) {
    amp_span weights;
    void *copy;
    if (!amp__observe_wants(observer, AMP_SEE_UPDATES, param->name) || !exact_weights(param, &weights, &copy)) return;
    struct amp__before *before = copy_of(observer, &weights);
    amp__free(copy);
    if (!before) {
        observer->left_out++;
        return;
    }
    before->param = param;
    before->size = weights.size;
    before->next = observer->before;
    observer->before = before;
    observer->bytes += sizeof *before + weights.size * sizeof(float);
}

enum { CHUNK = 1024 };

/* Weights of this type that stay what they are, though the update is not 0. */
static uint64_t count_lost(const float *before, const float *update, uint64_t n, amp_dtype type) {
    uint16_t low[CHUNK], updated[CHUNK];
    float widened[CHUNK];
    const amp_span was = { (float *)(uintptr_t)before, n, AMP_FLOAT32, 0 }, narrow = { low, n, type, 0 },
                   wide = { widened, n, AMP_FLOAT32, 0 }, after = { updated, n, type, 0 };
    uint64_t lost = 0;
    cast(&narrow, &was);
    cast(&wide, &narrow);
    for (uint64_t i = 0; i < n; i++) widened[i] += update[i];
    cast(&after, &wide);
    for (uint64_t i = 0; i < n; i++) lost += update[i] != 0.0f && updated[i] == low[i];
    return lost;
}

/* What the step added to each weight. */
static void count_update(const struct amp__before *before, const amp_span *now, amp_statistics *statistics,
                         uint64_t lost[2]) {
    for (uint64_t at = 0; at < now->size; at += CHUNK) {
        const uint64_t n = now->size - at < CHUNK ? now->size - at : CHUNK;
        float update[CHUNK];
        const amp_span from = { (char *)now->data + at * amp__dtype_size(now->dtype), n, now->dtype, 0 },
                       to = { update, n, AMP_FLOAT32, 0 };
        cast(&to, &from);
        for (uint64_t i = 0; i < n; i++) update[i] -= before->elements[at + i];
        amp__observe_count(&to, statistics);
        lost[0] += count_lost(before->elements + at, update, n, AMP_FLOAT16);
        lost[1] += count_lost(before->elements + at, update, n, AMP_BFLOAT16);
    }
}

static void take_update(amp_context *context, const struct amp__before *before) {
    amp_span now;
    amp_statistics statistics = AMP_STATISTICS_INIT;
    uint64_t lost[2] = { 0, 0 };
    void *copy;
    if (!exact_weights(before->param, &now, &copy)) return;
    const bool same = now.size == before->size;
    if (same) count_update(before, &now, &statistics, lost);
    amp__free(copy);
    struct amp__seen *seen = same ? amp__observe_param(context->observer, before->param, AMP_SEE_UPDATES) : NULL;
    if (!seen) return;
    memcpy(seen->lost_last, lost, sizeof lost);
    seen->lost_fp16 += lost[0];
    seen->lost_bf16 += lost[1];
    amp__observe_add(context->observer, seen, AMP_FLOAT32, &statistics);
}

static void take_updates(amp_context *context) {
    struct amp__observer *observer = context->observer;
    if (!observer->before) return;
    for (const struct amp__before *before = observer->before; before; before = before->next)
        take_update(context, before);
    amp__observe_forget_before(observer);
    amp__observe_tell(context, observer->before_of, AMP_SEE_UPDATES);
}

/* ---- the bracket ---- */

static void take_params(amp_context *context, const struct amp__optimizer *optimizer, bool steps) {
    struct amp__observer *observer = context->observer;
    for (size_t i = 0; i < optimizer->n_params; i++) {
        struct amp__param *param = optimizer->params[i];
        if (is_readable(param) && amp__observe_wants(observer, AMP_SEE_WEIGHTS, param->name))
            take_handle(context, param, AMP_SEE_WEIGHTS, param->tensor);
        if (has_readable_master(param) && amp__observe_wants(observer, AMP_SEE_MASTERS, param->name))
            take(context, param, AMP_SEE_MASTERS,
                 &(const amp_span){ param->master.fp32.data, param->size, AMP_FLOAT32, 0 });
        if (!steps) continue;
        if (is_readable(param) && amp__observe_wants(observer, AMP_SEE_GRADIENTS, param->name))
            take_gradient(context, param);
        keep_before(observer, param);
    }
}

void amp__observe_decided(amp_context *context, struct amp__optimizer *const *optimizers, size_t n,
                          const struct amp__decided_bracket *bracket) {
    struct amp__observer *observer = context->observer;
    take_updates(context);
    if (amp__observing(context)) {
        for (size_t i = 0; i < n; i++) take_params(context, optimizers[i], !bracket->skips);
        observer->before_of = amp__trace_brackets(context);
        amp__observe_tell(context, observer->before_of, ~(uint32_t)AMP_SEE_UPDATES);
        amp__observe_tell_memory(context, observer->before_of);
        if (bracket->overflowed) amp__observe_accuse(context, bracket);
    }
    amp__observe_next(context, bracket->skips);
}
