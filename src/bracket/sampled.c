/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples of parameters over the first steps: 16-bit weights that stand still although gradients come, and gradients
 * that vanish in fp16. A few elements of each, always the same ones, in CPU memory. Nothing is read after the last
 * look. Scripts in Python have libamp.doctor for that.
 */
#include "bracket/wiring.h"
#include "context/findings.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ELEMENTS = 32, FIRST = 12, EVERY = 4, BRACKETS = 256 }; /* looks: from this bracket on, one in so many */
enum { LEAST_LOOKS = 5 }; /* before there is a finding: a warm-up begins at a rate of 0 */

/* Of a parameter. Masks have a bit for each sampled element. */
struct sample {
    uint16_t before[ELEMENTS]; /* weights at the last look */
    bool known;                /* there is one */
    uint32_t now;              /* elements with a gradient in this bracket */
    uint32_t came, moved;      /* that ever had one before a step, and that ever changed */
    uint64_t gradients, zeros, small; /* sampled, over all looks; small: subnormal in fp16 */
};

struct amp__samples {
    uint32_t brackets, looks, steps;
    float scale; /* of the last look's gradients */
    size_t n;
    struct sample of[]; /* by the number of the parameter in its optimizer */
};

/* ---- looking ---- */

static bool is_low_alone(const struct amp__param *param) {
    return amp__is_low(param->dtype) && !param->has_master && param->host->view;
}

/* Reads elements at even distances. Returns their number, 0 if they cannot be read. */
static size_t read(amp_context *context, const struct amp__param *param, void *handle, void *elements, size_t *width,
                   amp_dtype *dtype) {
    struct amp__elements now;
    if (param->on_device || !handle) return 0;
    if (amp__param_layout(param, handle, param->name, &now) != AMP_OK) {
        amp__wiring_tell_failure(context);
        return 0;
    }
    if (now.strides || !amp__is_floating(now.dtype) || !now.size) return 0;
    const size_t n = now.size < ELEMENTS ? (size_t)now.size : ELEMENTS;
    *width = amp__dtype_size(now.dtype);
    *dtype = now.dtype;
    for (size_t i = 0; i < n; i++)
        memcpy((char *)elements + i * *width, (const char *)now.data + (size_t)(now.size / n) * i * *width, *width);
    return n;
}

static void look_at_gradient(amp_context *context, const struct amp__param *param, struct sample *sample) {
    double elements[ELEMENTS];
    float values[ELEMENTS];
    size_t width = 0;
    amp_dtype dtype = AMP_FLOAT32;
    void *grad = NULL;
    sample->now = 0;
    if (!param->host->view || !param->host->grad || param->on_device) return;
    if (amp__host_grad(param->host, param->tensor, param->name, &grad) != AMP_OK) {
        amp__wiring_tell_failure(context);
        return;
    }
    const size_t n = read(context, param, grad, elements, &width, &dtype);
    const amp_span from = { elements, n, dtype, 0 }, to = { values, n, AMP_FLOAT32, 0 };
    if (!n || amp_cast_list(&to, &from, 1) != AMP_OK) return;
    for (size_t i = 0; i < n; i++) {
        if (isfinite(values[i]) && values[i] != 0.0f) sample->now |= 1u << i;
        sample->gradients++;
        sample->zeros += values[i] == 0.0f;
        sample->small += values[i] != 0.0f && fabsf(values[i]) < 0x1p-14f;
    }
}

static void look_at_weight(amp_context *context, const struct amp__param *param, struct sample *sample) {
    uint16_t now[ELEMENTS];
    size_t width = 0;
    amp_dtype dtype = AMP_FLOAT32;
    if (!is_low_alone(param)) return;
    const size_t n = read(context, param, param->tensor, now, &width, &dtype);
    if (!n || width != sizeof now[0]) return;
    for (size_t i = 0; i < n && sample->known; i++) sample->moved |= (uint32_t)(now[i] != sample->before[i]) << i;
    memcpy(sample->before, now, n * sizeof now[0]);
    sample->known = true;
}

/* NULL: there is nothing that 16 bits could lose, or no memory. */
static struct amp__samples *samples_of(struct amp__optimizer *optimizer) {
    struct amp__samples *samples = optimizer->scans.samples;
    const struct amp__properties *properties = &amp__policy_of(optimizer->context)->properties;
    bool any = properties->low == AMP_FLOAT16 && amp__may_be_low(properties);
    if (samples && samples->n == optimizer->n_params) return samples;
    for (size_t i = 0; i < optimizer->n_params && !any; i++) any = is_low_alone(optimizer->params[i]);
    if (!any || !optimizer->n_params) return NULL;
    amp__free(samples); /* of fewer parameters: it begins again */
    samples = amp__alloc(1, sizeof *samples + optimizer->n_params * sizeof samples->of[0]);
    if (samples) samples->n = optimizer->n_params;
    return optimizer->scans.samples = samples;
}

void amp__sampled_look(const struct amp__bracket *bracket) {
    amp_context *context = bracket->context;
    if (amp__is_python(context) || amp__progress_of(context)->verifying) return;
    for (size_t i = 0; i < bracket->n_optimizers; i++) {
        struct amp__optimizer *optimizer = bracket->optimizers[i];
        struct amp__samples *samples = samples_of(optimizer);
        if (!samples || samples->brackets > BRACKETS) continue;
        const uint32_t at = samples->brackets++;
        if (at == BRACKETS) amp__sampled_judge(optimizer);
        if (at < FIRST || at % EVERY) continue;
        samples->looks++;
        samples->scale = bracket->scale;
        for (size_t j = 0; j < samples->n; j++) {
            look_at_gradient(context, optimizer->params[j], &samples->of[j]);
            look_at_weight(context, optimizer->params[j], &samples->of[j]);
        }
    }
}

void amp__sampled_note_step(struct amp__optimizer *optimizer) {
    struct amp__samples *samples = optimizer->scans.samples;
    if (!samples || samples->brackets > BRACKETS || samples->n != optimizer->n_params) return;
    samples->steps++;
    for (size_t i = 0; i < samples->n; i++) samples->of[i].came |= samples->of[i].now, samples->of[i].now = 0;
}

/* ---- judging ---- */

/* The worst parameter, and the number of others. */
struct worst {
    const struct amp__param *param;
    const struct sample *sample;
    double part;
    size_t others;
};

static void consider(struct worst *worst, const struct amp__param *param, const struct sample *sample, double part) {
    worst->others += worst->param != NULL;
    if (worst->param && part <= worst->part) return;
    worst->param = param, worst->sample = sample, worst->part = part;
}

static const char *and_others(const struct worst *worst, char *text, size_t size) {
    if (worst->others) snprintf(text, size, "; the same in %zu other%s", worst->others, AMP__S(worst->others));
    else *text = '\0';
    return text;
}

/* Large weights of a good training stand still for some steps. A quarter that never moved does not. */
static void judge_weights(const struct amp__optimizer *optimizer, const struct amp__samples *samples) {
    struct worst worst = { 0 };
    char others[48];
    for (size_t i = 0; i < samples->n; i++) {
        const struct sample *sample = &samples->of[i];
        const int came = __builtin_popcount(sample->came), still = __builtin_popcount(sample->came & ~sample->moved);
        if (sample->known && came && 4 * still >= came)
            consider(&worst, optimizer->params[i], sample, (double)still / came);
    }
    if (!worst.param) return;
    amp__find(optimizer->context, AMP__UPDATES_LOST_IN_LOW, worst.param->name,
              "parameter %s: %d of %d sampled elements of its %s weights never moved in %u step%s, although their "
              "gradients are not 0%s", worst.param->name, __builtin_popcount(worst.sample->came & ~worst.sample->moved),
              __builtin_popcount(worst.sample->came), amp__dtype_name(worst.param->dtype), (unsigned)samples->steps,
              AMP__S(samples->steps), and_others(&worst, others, sizeof others));
}

/* Zeros alone are no underflow: a ReLU or an embedding has many. Where fp16 cuts them off, most of the others are
 * subnormal. All zeros are AMP-M08. */
static void judge_gradients(const struct amp__optimizer *optimizer, const struct amp__samples *samples) {
    struct worst worst = { 0 };
    char others[48];
    if (!amp__wiring_computes_in_fp16(optimizer->context)) return;
    for (size_t i = 0; i < samples->n; i++) {
        const struct sample *sample = &samples->of[i];
        const uint64_t numbers = sample->gradients - sample->zeros;
        if (numbers && 2 * sample->zeros >= sample->gradients && 2 * sample->small >= numbers)
            consider(&worst, optimizer->params[i], sample, (double)sample->zeros / (double)sample->gradients);
    }
    if (!worst.param) return;
    const uint64_t numbers = worst.sample->gradients - worst.sample->zeros;
    amp__find(optimizer->context, AMP__GRADIENTS_UNDERFLOW, worst.param->name,
              "parameter %s: %.3g %% of its sampled gradients are 0, and %.3g %% of the others are subnormal in fp16, "
              "at a loss scale of %g%s", worst.param->name, 100.0 * worst.part,
              100.0 * (double)worst.sample->small / (double)numbers, (double)samples->scale,
              and_others(&worst, others, sizeof others));
}

void amp__sampled_judge(const struct amp__optimizer *optimizer) {
    const struct amp__samples *samples = optimizer->scans.samples;
    if (!samples || samples->looks < LEAST_LOOKS) return;
    if (!amp__found(optimizer->context, AMP__UPDATES_LOST_IN_LOW)) judge_weights(optimizer, samples);
    if (!amp__found(optimizer->context, AMP__GRADIENTS_UNDERFLOW)) judge_gradients(optimizer, samples);
}
