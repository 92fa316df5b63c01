/* SPDX-License-Identifier: Apache-2.0 */
/* The judgement of amp_verify_step: one forward and backward in FP32 and with the wiring, compared. */
#include "api/verify.h"
#include "context/findings.h"
#include "common/thread.h"
#include "context/parts.h"
#include "context/report.h"

#include <math.h>
#include <stdio.h>

enum { TOLD = 8 }; /* findings for so many parameters */

/* Two gradients of one parameter, the first one the measure. */
struct difference {
    double norm, distance; /* L2 norms of the first, and of the difference */
    double product;        /* of both */
    double rms;            /* norm over the root of the number of elements */
};

static struct difference compare(const struct amp__subject *subject, enum amp__pass first, enum amp__pass second) {
    const float *a = subject->grads[first], *b = subject->grads[second];
    struct difference d = { 0 };
    for (uint64_t i = 0; i < subject->param->size; i++) {
        const double x = subject->has_grad[first] ? (double)a[i] : 0.0;
        const double y = subject->has_grad[second] ? (double)b[i] : 0.0;
        d.norm += x * x;
        d.distance += (y - x) * (y - x);
        d.product += x * y;
    }
    d.rms = subject->param->size ? sqrt(d.norm / (double)subject->param->size) : 0.0;
    d.norm = sqrt(d.norm);
    d.distance = sqrt(d.distance);
    return d;
}

/* Of the plain gradients, per element: one that is 0 but for rounding (a bias in front of batch norm) is held against
 * the others. */
static double largest_rms(const struct amp__verification *v) {
    double largest = 0.0;
    for (size_t i = 0; i < v->n_subjects; i++)
        if (v->subjects[i].param->in_optimizer)
            largest = fmax(largest, compare(&v->subjects[i], AMP__PLAIN, AMP__PLAIN).rms);
    return largest;
}

static double share_of(const struct amp__subject *subject, const struct difference *d, double largest) {
    const double noise = largest / 16.0 * sqrt((double)subject->param->size);
    return d->distance == 0.0 ? 0.0 : d->distance / (d->norm + noise); /* NaN for non-finite values */
}

static bool is_within(const struct amp__subject *subject, const struct difference *d, double bound, double largest) {
    return share_of(subject, d, largest) <= bound;
}

/* Returns the allowed distance: that of rounding in a shallow model, and eight times the effect of rounding the
 * parameters on the gradients of this model (deep ones double each error many times). Always below 1, the distance of a
 * gradient that did not arrive or was divided by the loss scale. In FP32 nothing is rounded: the bits are equal, unless
 * a scale that is no power of two rounds twice. */
static double bound_of(const struct amp__verification *v, double largest) {
    const struct amp__properties *properties = &v->properties;
    int exponent;
    double noise = 0.0;
    if (!properties->patch_ops && !amp__may_be_low(properties))
        return frexpf(v->scale, &exponent) == 0.5f ? 0.0 : ldexp(1.0, -20);
    for (size_t i = 0; i < v->n_subjects; i++) {
        const struct amp__subject *subject = &v->subjects[i];
        if (!subject->param->in_optimizer) continue;
        const struct difference d = compare(subject, AMP__PLAIN, AMP__ROUNDED);
        const double share = share_of(subject, &d, largest);
        if (share > noise) noise = share;
    }
    return fmin(0.95, (properties->low == AMP_BFLOAT16 ? 0.25 : 0.0625) + 8.0 * noise);
}

static bool loss_is_within(const struct amp__verification *v, enum amp__pass second, double bound) {
    const double first = v->losses[AMP__PLAIN];
    return fabs(v->losses[second] - first) <= bound * (fabs(first) + (bound > 0.0 ? 1.0 / 64.0 : 0.0));
}

static bool differs_from_plain(const struct amp__verification *v, enum amp__pass second, double bound) {
    const double largest = largest_rms(v);
    bool differs = !loss_is_within(v, second, bound);
    for (size_t i = 0; i < v->n_subjects; i++) {
        const struct amp__subject *subject = &v->subjects[i];
        if (!subject->param->in_optimizer) continue;
        const struct difference d = compare(subject, AMP__PLAIN, second);
        differs |= !is_within(subject, &d, bound, largest);
    }
    return differs;
}

static void tell_result(const struct amp__verification *v, double bound, double largest) {
    char line[512];
    double worst = -1.0;
    const char *name = "none";
    size_t n = 0;
    for (size_t i = 0; i < v->n_subjects; i++) {
        if (!v->subjects[i].param->in_optimizer) continue;
        const struct difference d = compare(&v->subjects[i], AMP__PLAIN, AMP__WIRED);
        const double share = share_of(&v->subjects[i], &d, largest);
        n++;
        if (share <= worst) continue;
        worst = share;
        name = v->subjects[i].param->name;
    }
    snprintf(line, sizeof line, "amp_verify_step: the loss is %.7g without the wiring and %.7g through it; of %zu "
             "gradients %s differs most, by %.2g %% (bound: %.2g %%)", v->losses[AMP__PLAIN], v->losses[AMP__WIRED], n,
             name, 100.0 * fmax(worst, 0.0), 100.0 * bound);
    amp__event(v->context, amp__any_host(v->context), &(amp_event){ .kind = AMP_EVENT_LOG, .message = line });
}

/* ---- likely causes ---- */

static bool is_about(double ratio, double factor) { return ratio > 0.75 * factor && ratio < 1.25 * factor; }

static void say_how(const struct amp__verification *v, const struct amp__subject *subject, const struct difference *d,
                    char *text, size_t capacity) {
    const double ratio = d->norm > 0.0 ? d->product / (d->norm * d->norm) : 0.0, scale = (double)v->scale;
    if (!subject->has_grad[AMP__WIRED]) snprintf(text, capacity, "got none through the wiring");
    else if (!subject->has_grad[AMP__PLAIN]) snprintf(text, capacity, "got none as it is");
    else if (!isfinite(d->distance)) snprintf(text, capacity, "is not finite");
    else if (scale != 1.0 && is_about(ratio, scale))
        snprintf(text, capacity, "is times the loss scale %g: it was multiplied twice, or not divided", scale);
    else if (scale != 1.0 && is_about(ratio, 1.0 / scale))
        snprintf(text, capacity, "is divided by the loss scale %g, and never had it: backward did not begin at "
                 "amp_scaled_loss.loss", scale);
    else if (d->norm <= 0.0) snprintf(text, capacity, "is 0 as it is, and has the norm %.3g", d->distance);
    else
        snprintf(text, capacity, "differs by %.3g %% of its norm %.3g", 100.0 * d->distance / d->norm, d->norm);
}

static amp_status find_loss(const struct amp__verification *v) {
    return amp__find_error(v->context, AMP__LOSS_DIFFERS, AMP_ERR_CONFLICT, "loss",
                           "amp_verify_step: the loss is %.7g without the wiring, and %.7g through it",
                           v->losses[AMP__PLAIN], v->losses[AMP__WIRED]);
}

/* The finding of one parameter. */
static amp_status find_gradient(const struct amp__verification *v, const struct amp__subject *subject,
                                const struct difference *d, size_t *found) {
    char how[192];
    if ((*found)++ >= TOLD) return AMP_OK;
    say_how(v, subject, d, how, sizeof how);
    return amp__find_error(v->context, AMP__GRADIENT_DIFFERS, AMP_ERR_CONFLICT, subject->param->name,
                           "amp_verify_step: the gradient of %s %s", subject->param->name, how);
}

amp_status amp__verify_judge(const struct amp__verification *v) {
    const double largest = largest_rms(v), order = ldexp(1.0, -16); /* of sums, that threads change */
    const double least = differs_from_plain(v, AMP__AGAIN, 0.0) ? order : 0.0;
    const double bound = fmax(bound_of(v, largest), least);
    char first[AMP__ERROR_SIZE / 2] = "";
    size_t found = 0, n = 0;
    AMP_RETURN_IF(!isfinite(v->losses[AMP__PLAIN]), AMP_ERR_WRONG_STATE,
                  "amp_verify_step: the loss is %g as it is: there is nothing to compare with", v->losses[AMP__PLAIN]);
    AMP_RETURN_IF(v->n_optimizers && largest == 0.0, AMP_ERR_WRONG_STATE,
                  "amp_verify_step: run left no gradient in any parameter: call backward in it");
    AMP_RETURN_IF(differs_from_plain(v, AMP__AGAIN, fmax(bound / 4.0, order)), AMP_ERR_WRONG_STATE,
                  "amp_verify_step: two runs without the wiring have different results: give run the same batch, seed "
                  "its random numbers (dropout) at its beginning, and remove its own loss scaling");
    if (!differs_from_plain(v, AMP__WIRED, bound)) {
        tell_result(v, bound, largest);
        return AMP_OK;
    }
    if (!loss_is_within(v, AMP__WIRED, bound)) {
        (void)find_loss(v);
        snprintf(first, sizeof first, "%s", amp_last_error());
    }
    for (size_t i = 0; i < v->n_subjects; i++) {
        const struct amp__subject *subject = &v->subjects[i];
        if (!subject->param->in_optimizer) continue;
        n++;
        const struct difference d = compare(subject, AMP__PLAIN, AMP__WIRED);
        if (is_within(subject, &d, bound, largest)) continue;
        (void)find_gradient(v, subject, &d, &found);
        if (!*first) snprintf(first, sizeof first, "%s", amp_last_error());
    }
    return amp__fail(AMP_ERR_CONFLICT, "%s (%zu of %zu gradients differ by more than %.2g %%)", first, found, n,
                     100.0 * bound);
}
