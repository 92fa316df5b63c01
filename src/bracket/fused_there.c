/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers of libamp's own over parameters in devices' memory: one call a group and device, with moments and step counts
 * there, and whether it happens decided there where all is on one device. The lists are those of all parameters, whether they
 * have a gradient or not, so that a parameter's step count stays where it is; without a gradient the entry is empty and passed
 * over.
 */
#include "bracket/fused.h"
#include "bracket/there.h"
#include "context/context.h"
#include "context/optimizer.h"
#include "kernels/device.h"

#include <string.h>

enum { GRAD, PARAM, LOW, MOMENT, SPANS = MOMENT + AMP__MOMENTS };

static amp_span *spans_of(const struct amp__optim_there *there, int k) { return there->spans + (size_t)k * there->n; }

/* ---- which are there ---- */

static size_t count_at(const struct amp__optimizer *optimizer, const struct amp__place *place) {
    size_t n = 0;
    for (size_t i = 0; i < optimizer->optim->n; i++) n += optimizer->params[i]->place == place;
    return n;
}

static void sort_by_group(const struct amp__optimizer *optimizer, struct amp__optim_there *there) {
    const struct amp__optim *optim = optimizer->optim;
    size_t at = 0;
    for (size_t k = 0; k < optim->n_groups; k++) {
        there->first[k] = at;
        for (size_t i = 0; i < optim->n; i++)
            if (optimizer->params[i]->place == there->place && optim->states[i].group == k) there->which[at++] = (uint32_t)i;
    }
    there->first[optim->n_groups] = at;
}

static amp_status make_there(const struct amp__optimizer *optimizer, struct amp__place *place, size_t n,
                             struct amp__optim_there *there) {
    const size_t groups = optimizer->optim->n_groups;
    void *steps = NULL;
    there->place = place;
    there->n = n;
    there->which = amp__alloc(n, sizeof *there->which);
    there->first = amp__alloc(groups + 1, sizeof *there->first);
    there->spans = amp__alloc(SPANS * n, sizeof *there->spans);
    there->elements = amp__alloc(n, sizeof *there->elements);
    there->lists = amp__alloc(groups + 1, sizeof(amp_device_list *));
    if (!there->which || !there->first || !there->spans || !there->elements || !there->lists) return amp__fail_memory();
    AMP_TRY(amp__place_alloc(place, n * sizeof *there->steps, &steps));
    there->steps = steps;
    sort_by_group(optimizer, there);
    for (size_t k = 0; k <= groups; k++) AMP_TRY(amp_device_list_open(place->device, &there->lists[k]));
    return AMP_OK;
}

amp_status amp__fused_there_attach(struct amp__optimizer *optimizer) {
    const amp_context *context = optimizer->context;
    struct amp__optim *optim = optimizer->optim;
    struct amp__optim_there *old = optim->there, *made;
    const size_t n_old = optim->n_there;
    size_t n_made = 0;
    if (!context->n_places) return AMP_OK;
    AMP_TRY(amp__fused_there_steps(optimizer, false));
    made = amp__alloc(context->n_places, sizeof *made);
    if (!made) return amp__fail_memory();
    amp_status status = AMP_OK;
    for (size_t i = 0; i < context->n_places && status == AMP_OK; i++) {
        const size_t n = count_at(optimizer, context->places[i]);
        if (n) status = make_there(optimizer, context->places[i], n, &made[n_made++]);
    }
    if (status == AMP_OK) {
        optim->there = made, optim->n_there = n_made;
        status = amp__fused_there_steps(optimizer, true);
    }
    if (status != AMP_OK) optim->there = old, optim->n_there = n_old;
    if (status == AMP_OK) amp__optim_there_free(old, n_old, optim->n_groups);
    else amp__optim_there_free(made, n_made, optim->n_groups);
    return status;
}

static amp_status move_steps(const struct amp__optim *optim, const struct amp__optim_there *there, bool to_device) {
    uint64_t *steps = amp__alloc(there->n, sizeof *steps);
    if (!steps) return amp__fail_memory();
    const size_t bytes = there->n * sizeof *steps;
    for (size_t i = 0; i < there->n; i++) steps[i] = optim->states[there->which[i]].steps;
    const amp_status status = to_device ? amp__place_in(there->place, there->steps, steps, bytes)
                                        : amp__place_out(there->place, steps, there->steps, bytes);
    for (size_t i = 0; i < there->n && status == AMP_OK; i++) optim->states[there->which[i]].steps = steps[i];
    amp__free(steps);
    return status;
}

amp_status amp__fused_there_steps(const struct amp__optimizer *optimizer, bool to_device) {
    const struct amp__optim *optim = optimizer->optim;
    for (size_t d = 0; d < optim->n_there; d++) AMP_TRY(move_steps(optim, &optim->there[d], to_device));
    return AMP_OK;
}

/* ---- before the step ---- */

static amp_status find_one(const struct amp__optimizer *optimizer, const struct amp__optim_there *there, size_t at,
                           struct amp__grad_for_step *grad) {
    const size_t i = there->which[at];
    const struct amp__optim_state *state = &optimizer->optim->states[i];
    const amp_optim *rule = amp__optim_rule(optimizer->optim, i);
    struct amp__param *param = optimizer->params[i];
    struct amp__elements now;
    for (int k = 0; k < SPANS; k++) spans_of(there, k)[at] = (amp_span){ NULL, 0, AMP_FLOAT32, 0 };
    AMP_TRY(amp__grads_for_step(param, grad));
    if (!grad->span.data) return AMP_OK;
    AMP_RETURN_IF(grad->span.dtype == AMP_FLOAT64, AMP_ERR_UNSUPPORTED,
                  "%s: its gradient is fp64: libamp's own optimizers take fp32 and 16-bit gradients", param->name);
    AMP_TRY(amp__master_reconcile(param, false));
    AMP_TRY(amp__param_elements(param, &now));
    const amp_span elements = { now.data, now.size, now.dtype, 0 };
    spans_of(there, GRAD)[at] = grad->span;
    spans_of(there, PARAM)[at] = param->has_master ? (amp_span){ param->fp32.data, now.size, AMP_FLOAT32, 0 } : elements;
    if (param->has_master && !param->emulated) spans_of(there, LOW)[at] = elements;
    for (int k = 0; k < AMP__MOMENTS; k++)
        if (state->moments[k])
            spans_of(there, MOMENT + k)[at] =
                (amp_span){ state->moments[k], amp__optim_moment_size(rule, k, now.size), AMP_FLOAT32, 0 };
    there->elements[at] = now.data;
    return AMP_OK;
}

static bool is_scaled(const struct amp__grad_for_step *grad) { return grad->inverse_there || grad->inverse != 1.0f; }

/* All gradients carry one scale, or none: where they do not, those that wait are unscaled. */
static amp_status find_all(const struct amp__optimizer *optimizer, const struct amp__optim_there *there, bool *again) {
    amp_factor *by = &there->place->args.factor;
    bool first = true;
    *again = false;
    *by = (amp_factor){ NULL, 1.0f, AMP_FACTOR_AS_IT_IS };
    for (size_t at = 0; at < there->n; at++) {
        struct amp__grad_for_step grad;
        AMP_TRY(find_one(optimizer, there, at, &grad));
        if (!grad.span.data) continue;
        const amp_factor its = { grad.inverse_there, is_scaled(&grad) ? grad.inverse : 1.0f, AMP_FACTOR_AS_IT_IS };
        *again |= !first && (its.pointer != by->pointer || (!its.pointer && its.value != by->value));
        *by = its;
        first = false;
    }
    return AMP_OK;
}

static amp_status find(const struct amp__optimizer *optimizer, const struct amp__optim_there *there) {
    bool again = false;
    AMP_TRY(find_all(optimizer, there, &again));
    for (size_t at = 0; at < there->n && again; at++) AMP_TRY(amp__grads_unscale(optimizer->params[there->which[at]]));
    return again ? find_all(optimizer, there, &again) : AMP_OK;
}

amp_status amp__fused_there_find(const struct amp__optimizer *optimizer) {
    const struct amp__optim *optim = optimizer->optim;
    amp_status status = AMP_OK;
    for (size_t d = 0; d < optim->n_there && status == AMP_OK; d++) status = find(optimizer, &optim->there[d]);
    if (status == AMP_OK) return amp__places_flush(optimizer->context);
    amp__places_drop(optimizer->context);
    return status;
}

/* ---- the step ---- */

static amp_status step_group(const struct amp__optimizer *optimizer, const struct amp__optim_there *there, size_t k,
                             void *stream, const float *norm) {
    const struct amp__optim *optim = optimizer->optim;
    const amp_optim *rule = &optim->groups[k];
    const amp_factor *by = &there->place->args.factor;
    const size_t first = there->first[k];
    amp_optim_tensors tensors = AMP_OPTIM_TENSORS_INIT;
    tensors.n = there->first[k + 1] - first;
    tensors.grad = spans_of(there, GRAD) + first;
    tensors.param = spans_of(there, PARAM) + first;
    tensors.low = spans_of(there, LOW) + first;
    for (int m = 0; m < AMP__MOMENTS; m++)
        if (amp__optim_moment(rule, m)) tensors.moments[m] = spans_of(there, MOMENT + m) + first;
    tensors.steps = there->steps + first;
    tensors.found_inf = amp__there_skip(optimizer);
    tensors.inv_scale = by->pointer;
    tensors.grad_factor = by->pointer ? 1.0f : by->value;
    tensors.grad_norm = norm;
    const struct amp__list_call call = { .kind = AMP__LIST_OPTIM, .stream = stream, .n = tensors.n, .rule = rule,
                                         .tensors = &tensors, .passes_over = true };
    return tensors.n ? amp__device_run(there->lists[k], &call, "amp_fused_step") : AMP_OK;
}

/* LAMB's norm is that of the gradients of all groups, in all memories. */
static amp_status measure(const struct amp__optimizer *optimizer, const struct amp__optim_there *there, void *stream,
                          float **norm) {
    AMP_TRY(amp__place_norms(there->place, 1, norm));
    return amp_device_check(there->lists[optimizer->optim->n_groups], stream, spans_of(there, GRAD), there->n,
                            &there->place->args.factor, NULL, *norm, NULL, NULL);
}

bool amp__fused_adds_norms(const struct amp__optimizer *optimizer) {
    const struct amp__optim *optim = optimizer->optim;
    return optim->n_there && amp__optim_needs_norm_of_all(optim) && (optim->n_there > 1 || optim->there[0].n < optim->n);
}

amp_status amp__fused_there_squares(const struct amp__optimizer *optimizer, double *squares) {
    const struct amp__optim *optim = optimizer->optim;
    for (size_t d = 0; d < optim->n_there; d++) {
        const struct amp__optim_there *there = &optim->there[d];
        float *norm = NULL, part = 0.0f;
        void *stream = NULL;
        AMP_TRY(amp__place_stream(there->place, &stream));
        AMP_TRY(measure(optimizer, there, stream, &norm));
        AMP_TRY(amp__place_out(there->place, &part, norm, sizeof part));
        *squares += (double)part * (double)part;
    }
    return AMP_OK;
}

/* of_all: known here; NULL: all is on this device, which finds it. */
static amp_status step_there(const struct amp__optimizer *optimizer, const struct amp__optim_there *there, const float *of_all) {
    const struct amp__optim *optim = optimizer->optim;
    float *norm = NULL;
    void *stream = NULL;
    AMP_TRY(amp__place_stream(there->place, &stream));
    if (of_all) {
        AMP_TRY(amp__place_norms(there->place, 1, &norm));
        AMP_TRY(amp__place_in(there->place, norm, of_all, sizeof *norm));
    } else if (optim->n_groups > 1 && amp__optim_needs_norm_of_all(optim)) {
        AMP_TRY(measure(optimizer, there, stream, &norm));
    }
    for (size_t k = 0; k < optim->n_groups; k++) AMP_TRY(step_group(optimizer, there, k, stream, norm));
    for (size_t at = 0; at < there->n; at++)
        if (spans_of(there, GRAD)[at].data)
            amp__master_stepped(optimizer->params[there->which[at]], there->elements[at]);
    return AMP_OK;
}

amp_status amp__fused_there_step(const struct amp__optimizer *optimizer, const float *of_all) {
    const struct amp__optim *optim = optimizer->optim;
    for (size_t d = 0; d < optim->n_there; d++) AMP_TRY(step_there(optimizer, &optim->there[d], of_all));
    return AMP_OK;
}
