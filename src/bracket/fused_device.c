/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers of libamp's own over parameters in devices' memory: one call a group and device, with moments and step
 * counts there, and whether it happens decided there where all is on one device. The lists are those of all parameters,
 * whether they have a gradient or not, so that a parameter's step count stays where it is; without a gradient the entry
 * is empty and passed over.
 */
#include "bracket/fused.h"
#include "bracket/home.h"
#include "context/devices.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "kernels/device.h"

#include <string.h>

enum { GRAD, PARAM, LOW, MOMENT, SPANS = MOMENT + AMP__MOMENTS };

static amp_span *spans_of(const struct amp__optim_on_device *part, int k) { return part->spans + (size_t)k * part->n; }

/* ---- which are there ---- */

static size_t count_at(const struct amp__optimizer *optimizer, const struct amp__place *place) {
    size_t n = 0;
    for (size_t i = 0; i < optimizer->optim->n; i++) n += optimizer->params[i]->place == place;
    return n;
}

static void sort_by_group(const struct amp__optimizer *optimizer, struct amp__optim_on_device *part) {
    const struct amp__optim *optim = optimizer->optim;
    size_t at = 0;
    for (size_t k = 0; k < optim->n_groups; k++) {
        part->first[k] = at;
        for (size_t i = 0; i < optim->n; i++)
            if (optimizer->params[i]->place == part->place && optim->states[i].group == k)
                part->which[at++] = (uint32_t)i;
    }
    part->first[optim->n_groups] = at;
}

static amp_status make_on_device(const struct amp__optimizer *optimizer, struct amp__place *place, size_t n,
                             struct amp__optim_on_device *part) {
    const size_t groups = optimizer->optim->n_groups;
    void *steps = NULL;
    part->place = place;
    part->n = n;
    part->which = amp__alloc(n, sizeof *part->which);
    part->first = amp__alloc(groups + 1, sizeof *part->first);
    part->spans = amp__alloc(SPANS * n, sizeof *part->spans);
    part->remainders = amp__alloc(n, sizeof *part->remainders);
    for (int k = 0; k < 2; k++) part->scales[k] = amp__alloc(n, sizeof *part->scales[k]);
    part->keys = amp__alloc(n, sizeof *part->keys);
    part->elements = amp__alloc(n, sizeof *part->elements);
    part->lists = amp__alloc(groups + 1, sizeof(amp_device_list *));
    if (!part->which || !part->first || !part->spans || !part->remainders || !part->scales[0] || !part->scales[1] ||
        !part->keys || !part->elements || !part->lists)
        return amp__fail_memory();
    AMP_TRY(amp__place_alloc(place, n * sizeof *part->steps, &steps));
    part->steps = steps;
    sort_by_group(optimizer, part);
    for (size_t k = 0; k <= groups; k++) AMP_TRY(amp_device_list_open(place->device, &part->lists[k]));
    return AMP_OK;
}

amp_status amp__fused_device_attach(struct amp__optimizer *optimizer) {
    const struct amp__devices *devices = amp__devices_of(optimizer->context);
    struct amp__optim *optim = optimizer->optim;
    struct amp__optim_on_device *old = optim->devices, *made;
    const size_t n_old = optim->n_devices;
    size_t n_made = 0;
    if (!devices->n_places) return AMP_OK;
    AMP_TRY(amp__fused_device_steps(optimizer, false));
    made = amp__alloc(devices->n_places, sizeof *made);
    if (!made) return amp__fail_memory();
    amp_status status = AMP_OK;
    for (size_t i = 0; i < devices->n_places && status == AMP_OK; i++) {
        const size_t n = count_at(optimizer, devices->places[i]);
        if (n) status = make_on_device(optimizer, devices->places[i], n, &made[n_made++]);
    }
    if (status == AMP_OK) {
        optim->devices = made, optim->n_devices = n_made;
        status = amp__fused_device_steps(optimizer, true);
    }
    if (status != AMP_OK) optim->devices = old, optim->n_devices = n_old;
    if (status == AMP_OK) amp__optim_on_device_free(old, n_old, optim->n_groups);
    else amp__optim_on_device_free(made, n_made, optim->n_groups);
    return status;
}

static amp_status move_steps(const struct amp__optim *optim, const struct amp__optim_on_device *part, bool to_device) {
    uint64_t *steps = amp__alloc(part->n, sizeof *steps);
    if (!steps) return amp__fail_memory();
    const size_t bytes = part->n * sizeof *steps;
    for (size_t i = 0; i < part->n; i++) steps[i] = optim->states[part->which[i]].steps;
    const amp_status status = to_device ? amp__place_in(part->place, part->steps, steps, bytes)
                                        : amp__place_out(part->place, steps, part->steps, bytes);
    for (size_t i = 0; i < part->n && status == AMP_OK; i++) optim->states[part->which[i]].steps = steps[i];
    amp__free(steps);
    return status;
}

amp_status amp__fused_device_steps(const struct amp__optimizer *optimizer, bool to_device) {
    const struct amp__optim *optim = optimizer->optim;
    for (size_t d = 0; d < optim->n_devices; d++) AMP_TRY(move_steps(optim, &optim->devices[d], to_device));
    return AMP_OK;
}

/* ---- before the step ---- */

static void find_moments(const amp_optim *rule, const struct amp__optim_state *state, uint64_t size,
                         const struct amp__optim_on_device *part, size_t at) {
    for (int k = 0; k < AMP__MOMENTS; k++) {
        amp_span *span = spans_of(part, MOMENT + k) + at;
        if (k < 2) part->scales[k][at] = state->scales[k];
        if (k < 2 && state->codes[k]) *span = (amp_span){ state->codes[k], size, AMP_DTYPE_OTHER, 0 };
        else if (state->moments[k])
            *span = (amp_span){ state->moments[k], amp__optim_moment_size(rule, k, size), AMP_FLOAT32, 0 };
    }
    part->keys[at] = state->key;
}

static amp_status find_one(const struct amp__optimizer *optimizer, const struct amp__optim_on_device *part, size_t at,
                           struct amp__grad_for_step *grad) {
    const size_t i = part->which[at];
    const struct amp__optim_state *state = &optimizer->optim->states[i];
    const amp_optim *rule = amp__optim_rule(optimizer->optim, i);
    struct amp__param *param = optimizer->params[i];
    struct amp__elements now;
    for (int k = 0; k < SPANS; k++) spans_of(part, k)[at] = (amp_span){ NULL, 0, AMP_FLOAT32, 0 };
    part->remainders[at] = NULL, part->scales[0][at] = part->scales[1][at] = NULL;
    part->elements[at] = NULL;
    AMP_TRY(amp__grads_for_step(param, grad));
    if (!grad->span.data) return amp__fused_pass_over(param, &part->elements[at]);
    AMP_RETURN_IF(grad->span.dtype == AMP_FLOAT64, AMP_ERR_UNSUPPORTED,
                  "%s: its gradient is fp64: libamp's own optimizers take fp32 and 16-bit gradients", param->name);
    AMP_TRY(amp__master_reconcile(param, false));
    AMP_TRY(amp__master_part(param));
    AMP_TRY(amp__param_elements(param, &now));
    const bool apart = param->has_master && !amp__is_split(param);
    const amp_span elements = { now.data, now.size, now.dtype, 0 };
    spans_of(part, GRAD)[at] = grad->span;
    spans_of(part, PARAM)[at] =
        apart ? (amp_span){ param->master.fp32.data, now.size, AMP_FLOAT32, 0 } : elements;
    if (apart && !param->emulated) spans_of(part, LOW)[at] = elements;
    part->remainders[at] = param->master.rest.data;
    find_moments(rule, state, now.size, part, at);
    part->elements[at] = now.data;
    return AMP_OK;
}

static bool is_scaled(const struct amp__grad_for_step *grad) { return grad->device_inverse || grad->inverse != 1.0f; }

/* All gradients carry one scale, or none: where they do not, those that wait are unscaled. */
static amp_status find_all(const struct amp__optimizer *optimizer, const struct amp__optim_on_device *part,
                           bool *again) {
    amp_factor *by = &part->place->args.factor;
    bool first = true;
    *again = false;
    *by = (amp_factor){ NULL, 1.0f, AMP_FACTOR_AS_IT_IS };
    for (size_t at = 0; at < part->n; at++) {
        struct amp__grad_for_step grad;
        AMP_TRY(find_one(optimizer, part, at, &grad));
        if (!grad.span.data) continue;
        const amp_factor its = { grad.device_inverse, is_scaled(&grad) ? grad.inverse : 1.0f, AMP_FACTOR_AS_IT_IS };
        *again |= !first && (its.pointer != by->pointer || (!its.pointer && its.value != by->value));
        *by = its;
        first = false;
    }
    return AMP_OK;
}

static amp_status find(const struct amp__optimizer *optimizer, const struct amp__optim_on_device *part) {
    bool again = false;
    AMP_TRY(find_all(optimizer, part, &again));
    for (size_t at = 0; at < part->n && again; at++) AMP_TRY(amp__grads_unscale(optimizer->params[part->which[at]]));
    return again ? find_all(optimizer, part, &again) : AMP_OK;
}

amp_status amp__fused_device_find(const struct amp__optimizer *optimizer) {
    const struct amp__devices *devices = amp__devices_of(optimizer->context);
    const struct amp__optim *optim = optimizer->optim;
    amp_status status = AMP_OK;
    for (size_t d = 0; d < optim->n_devices && status == AMP_OK; d++) status = find(optimizer, &optim->devices[d]);
    if (status == AMP_OK) return amp__places_flush(devices);
    amp__places_drop(devices);
    return status;
}

/* ---- the step ---- */

static amp_status step_group(const struct amp__optimizer *optimizer, const struct amp__optim_on_device *part, size_t k,
                             void *stream, const float *norm) {
    const struct amp__optim *optim = optimizer->optim;
    const amp_optim *rule = &optim->groups[k];
    const amp_factor *by = &part->place->args.factor;
    const size_t first = part->first[k];
    amp_optim_tensors tensors = AMP_OPTIM_TENSORS_INIT;
    tensors.n = part->first[k + 1] - first;
    tensors.grad = spans_of(part, GRAD) + first;
    tensors.param = spans_of(part, PARAM) + first;
    tensors.low = spans_of(part, LOW) + first;
    tensors.remainders = part->remainders + first;
    for (int m = 0; m < AMP__MOMENTS; m++)
        if (amp__optim_moment(rule, m)) tensors.moments[m] = spans_of(part, MOMENT + m) + first;
    for (int m = 0; m < 2 && optim->codes; m++) tensors.scales[m] = part->scales[m] + first;
    tensors.keys = part->keys + first;
    tensors.flags = optim->stochastic ? AMP_TENSORS_STOCHASTIC : 0;
    tensors.steps = part->steps + first;
    tensors.found_inf = amp__home_skip(optimizer);
    tensors.inv_scale = by->pointer;
    tensors.grad_factor = by->pointer ? 1.0f : by->value;
    tensors.grad_norm = norm;
    const struct amp__list_call call = { .kind = AMP__LIST_OPTIM, .stream = stream, .n = tensors.n, .rule = rule,
                                         .tensors = &tensors, .passes_over = true };
    return tensors.n ? amp__device_run(part->lists[k], &call, "amp_fused_step") : AMP_OK;
}

/* LAMB's norm is that of the gradients of all groups, in all memories. */
static amp_status measure(const struct amp__optimizer *optimizer, const struct amp__optim_on_device *part, void *stream,
                          float **norm) {
    AMP_TRY(amp__place_norms(part->place, 1, norm));
    return amp_device_check(part->lists[optimizer->optim->n_groups], stream, spans_of(part, GRAD), part->n,
                            &part->place->args.factor, NULL, *norm, NULL, NULL);
}

bool amp__fused_adds_norms(const struct amp__optimizer *optimizer) {
    const struct amp__optim *optim = optimizer->optim;
    return optim->n_devices && amp__optim_needs_norm_of_all(optim) &&
        (optim->n_devices > 1 || optim->devices[0].n < optim->n);
}

amp_status amp__fused_device_squares(const struct amp__optimizer *optimizer, double *squares) {
    const struct amp__optim *optim = optimizer->optim;
    for (size_t d = 0; d < optim->n_devices; d++) {
        const struct amp__optim_on_device *part = &optim->devices[d];
        float *there = NULL, norm = 0.0f;
        void *stream = NULL;
        AMP_TRY(amp__place_stream(part->place, &stream));
        AMP_TRY(measure(optimizer, part, stream, &there));
        AMP_TRY(amp__place_out(part->place, &norm, there, sizeof norm));
        *squares += (double)norm * (double)norm;
    }
    return AMP_OK;
}

/* of_all: known here. NULL: all is on this device, which finds it. */
static amp_status step_on_device(const struct amp__optimizer *optimizer, const struct amp__optim_on_device *part,
                                 const float *of_all) {
    const struct amp__optim *optim = optimizer->optim;
    float *norm = NULL;
    void *stream = NULL;
    AMP_TRY(amp__place_stream(part->place, &stream));
    if (of_all) {
        AMP_TRY(amp__place_norms(part->place, 1, &norm));
        AMP_TRY(amp__place_in(part->place, norm, of_all, sizeof *norm));
    } else if (optim->n_groups > 1 && amp__optim_needs_norm_of_all(optim)) {
        AMP_TRY(measure(optimizer, part, stream, &norm));
    }
    for (size_t k = 0; k < optim->n_groups; k++) AMP_TRY(step_group(optimizer, part, k, stream, norm));
    for (size_t at = 0; at < part->n; at++)
        if (part->elements[at])
            amp__master_stepped(optimizer->params[part->which[at]], part->elements[at]);
    return AMP_OK;
}

amp_status amp__fused_device_step(const struct amp__optimizer *optimizer, const float *of_all) {
    const struct amp__optim *optim = optimizer->optim;
    for (size_t d = 0; d < optim->n_devices; d++) AMP_TRY(step_on_device(optimizer, &optim->devices[d], of_all));
    return AMP_OK;
}
