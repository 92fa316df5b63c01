/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/levels.h"
#include "rules.h"

#include "../support/fakehost.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- numbers ---- */

double model_round(amp_dtype type, double value) {
    const int digits = type == AMP_FLOAT16 ? 11 : type == AMP_BFLOAT16 ? 8 : 24;
    const int least = type == AMP_FLOAT16 ? -14 : -126;
    const double largest = type == AMP_FLOAT16 ? 65504.0 : type == AMP_BFLOAT16 ? 0x1.fep127 : (double)FLT_MAX;
    if (type == AMP_FLOAT64 || value == 0.0 || !isfinite(value)) return value;
    const int exponent = ilogb(value) < least ? least : ilogb(value);
    const double rounded = ldexp(nearbyint(ldexp(value, digits - 1 - exponent)), exponent - digits + 1);
    return copysign(fabs(rounded) > largest ? (double)INFINITY : rounded, value);
}

double model_host_round(amp_dtype type, double value) {
    return type == AMP_FLOAT64 ? value : model_round(type, model_round(AMP_FLOAT32, value));
}

static bool same(double a, double b) { return (isnan(a) && isnan(b)) || !memcmp(&a, &b, sizeof a); }
static bool is_low(amp_dtype type) { return type == AMP_FLOAT16 || type == AMP_BFLOAT16; }

bool model_is_zero(const struct param_model *p, const double *v) {
    const double zero = 0.0;
    for (int i = 0; i < p->n; i++)
        if (memcmp(&v[i], &zero, sizeof zero)) return false;
    return true;
}

double model_product(amp_dtype type, double a, double b) {
    return type == AMP_FLOAT64 ? a * b : model_round(AMP_FLOAT32, a * b);
}
double model_sum(amp_dtype type, double a, double b) {
    return type == AMP_FLOAT64 ? a + b : model_round(AMP_FLOAT32, a + b);
}

/* ---- the beginning ---- */

static void retype(const struct model *model, struct param_model *p, bool trained) {
    if (!model->low || p->type != AMP_FLOAT32 || (p->batch_norm && model->keep_batch_norm)) return;
    p->type = model->low;
    p->mastered = model->masters && trained;
    for (int i = 0; i < p->n; i++) {
        p->master[i] = p->host[i];
        p->host[i] = model_round(p->type, p->host[i]);
    }
    p->agreed = p->version;
}

static void init_loss(struct loss_model *loss, const amp_config *config) {
    memset(loss, 0, sizeof *loss);
    loss->scale = config->init_scale;
    loss->hysteresis_left = config->hysteresis;
    loss->record.scale_before = loss->record.scale_after = loss->scale;
}

void model_init(struct model *model, const amp_config *config, unsigned options) {
    const amp_level level = config->level;
    const bool o2 = level_has_masters(level);
    const float scale = config->loss_scale != 0.0f ? config->loss_scale : level_is_dynamic(level) ? AMP_DYNAMIC : 1.0f;
    model->config = *config;
    model->dynamic = scale == AMP_DYNAMIC;
    if (!model->dynamic) model->config.init_scale = scale;
    model->masters = config->master_weights ? config->master_weights == AMP_ON : o2;
    model->keep_batch_norm = config->keep_batchnorm_fp32 ? config->keep_batchnorm_fp32 == AMP_ON : o2;
    model->low = level_retypes(level) ? level_low(level) : AMP_DTYPE_DEFAULT;
    model->trivial = scale == 1.0f && !model->masters;
    model->fixed = options & FAKE_NO_SET_GRAD;
    model->versions = !(options & FAKE_NO_VERSION);
    model->fp32_grads = options & FAKE_FP32_GRADS;
    for (int k = 0; k < LATE; k++) retype(model, &model->params[k], true);
    for (uint32_t k = 0; k < LOSSES; k++) init_loss(&model->losses[k], &model->config);
}

bool model_holds(const struct model *model, unsigned optimizer, enum param param) {
    return optimizer == 0 ? param <= WIDE
                          : param == BIAS || param == EMPTY || (param == LATE && model->optimizers[1].has_late);
}

/* ---- masters follow what the host did ---- */

static void reconcile(const struct model *model, struct param_model *p, bool always) {
    if (!p->mastered || (!always && (!model->versions || p->version == p->agreed))) return;
    for (int i = 0; i < p->n; i++)
        if (!same(model_round(p->type, p->master[i]), p->host[i])) p->master[i] = p->host[i];
    p->agreed = p->version;
}

void model_follow_grad(const struct model *model, struct param_model *p, bool look) {
    const bool changed = look || (model->versions && p->grad.version != p->exact_version);
    const bool another = p->exact_of != p->grad.handle || !is_low(p->grad.type);
    for (int i = 0; i < p->n; i++)
        if (another || (changed && model_is_zero(p, p->grad.v))) p->exact[i] = p->grad.v[i];
        else if (changed && !same(model_round(p->grad.type, p->exact[i]), p->grad.v[i])) p->exact[i] = p->grad.v[i];
    p->exact_of = p->grad.handle;
    p->exact_version = p->grad.version;
}

void model_show_grad(struct param_model *p) {
    for (int i = 0; i < p->n; i++) p->grad.v[i] = model_round(p->grad.type, p->exact[i]);
    p->exact_of = p->grad.handle;
    p->exact_version = p->grad.version;
}

static double *look_at_grad(const struct model *model, struct param_model *p) {
    if (!p->grad.handle) p->exact_of = 0;
    else if (p->mastered) model_follow_grad(model, p, false);
    return !p->grad.handle ? NULL : p->mastered ? p->exact : p->grad.v;
}

/* ---- what the host does ---- */

static void new_grad(struct model *model, struct param_model *p) {
    p->grad = (struct grad){ .handle = ++model->handles, .version = 1,
                             .type = model->fp32_grads ? AMP_FLOAT32 : p->type };
}

void model_backward(struct model *model, enum param param, double value) {
    struct param_model *p = &model->params[param];
    if (!p->grad.handle) new_grad(model, p);
    for (int i = 0; i < p->n; i++) p->grad.v[i] = model_host_round(p->grad.type, p->grad.v[i] + value);
    p->grad.version++;
}

void model_host_sets(struct model *model, enum param param, int i, double value) {
    struct param_model *p = &model->params[param];
    if (i >= p->n) return;
    p->host[i] = model_host_round(p->type, value);
    p->version++;
}

void model_host_sets_grad(struct model *model, enum param param, int at, double value) {
    struct param_model *p = &model->params[param];
    for (int i = 0; i < p->n; i++)
        if (at < 0 || i == at) p->grad.v[i] = model_host_round(p->grad.type, value);
    p->grad.version++;
}

void model_host_drops_grad(struct model *model, enum param param) { model->params[param].grad.handle = 0; }

void model_zero_grad(struct model *model, unsigned k) {
    struct optimizer_model *optimizer = &model->optimizers[k];
    EACH_PARAM(model, k, p) {
        if (model->fixed) model_host_sets_grad(model, (enum param)(p - model->params), -1, 0.0);
        else p->grad.handle = 0;
        p->exact_of = 0;
        p->stash = p->delayed = (struct grad){ 0 };
        p->stash_is = p->delayed_is = p->delaying = p->scaled = false;
        p->in_bracket &= optimizer->in_bracket;
    }
    optimizer->delayed &= optimizer->in_bracket;
}

/* ---- steps ---- */

static void restore_first(struct param_model *p) {
    if (!p->mastered) {
        memcpy(p->grad.v, p->first, sizeof p->first);
        return;
    }
    memcpy(p->exact, p->first, sizeof p->first);
    model_show_grad(p);
}

/* SGD in C: the product and the difference are floats. */
static void host_step(const struct model *model, struct param_model *p, float rate) {
    reconcile(model, p, false);
    const double *grad = look_at_grad(model, p);
    double *values = p->mastered ? p->master : p->host;
    for (int i = 0; grad && i < p->n; i++) {
        const float value = (float)values[i] - rate * (float)grad[i];
        values[i] = model_host_round(p->mastered ? AMP_FLOAT32 : p->type, (double)value);
    }
    if (grad) p->version++;
    if (!p->mastered) return;
    for (int i = 0; i < p->n; i++) p->host[i] = model_round(p->type, p->master[i]);
    p->agreed = p->version;
    if (grad) model_show_grad(p);
}

static bool is_unchecked(const struct model *model, unsigned k) {
    unsigned unchecked = 0;
    for (uint32_t i = 0; i < LOSSES; i++) unchecked |= model->losses[i].unchecked;
    return unchecked & 1u << k;
}

amp_status model_step(struct model *model, unsigned k, bool direct, float rate, bool *ran) {
    struct optimizer_model *optimizer = &model->optimizers[k];
    *ran = false;
    if (optimizer->in_bracket || optimizer->delayed || is_unchecked(model, k)) {
        if (direct) return AMP_ERR_WRONG_STATE;
        if (model->kept == AMP_OK) model->kept = AMP_ERR_WRONG_STATE;
        return AMP_OK;
    }
    *ran = !optimizer->skip && model->kept == AMP_OK;
    EACH_PARAM(model, k, p) {
        if (*ran) host_step(model, p, rate);
        else if (p->first_saved) restore_first(p);
        p->first_saved = false;
    }
    optimizer->skip = false;
    return AMP_OK;
}

/* ---- between brackets ---- */

static amp_status idle(const struct model *model, unsigned k) {
    return model->optimizers[k].in_bracket || model->optimizers[k].delayed ? AMP_ERR_WRONG_STATE : AMP_OK;
}

static void change(struct model *model, unsigned k, double (*with)(amp_dtype type, double value, double by),
                   double by) {
    EACH_PARAM(model, k, p) {
        double *grad = look_at_grad(model, p);
        const amp_dtype type = p->mastered ? AMP_FLOAT32 : p->grad.type;
        for (int i = 0; grad && i < p->n; i++) grad[i] = model_round(type, with(type, grad[i], by));
        if (grad && p->mastered) model_show_grad(p);
    }
}

static double clamped(amp_dtype type, double value, double limit) {
    (void)type;
    return value > limit ? limit : value < -limit ? -limit : value;
}

amp_status model_clip_norm(struct model *model, unsigned k, float limit, float *norm) {
    double total = 0.0;
    if (idle(model, k) != AMP_OK) return AMP_ERR_WRONG_STATE;
    EACH_PARAM(model, k, p) { /* four elements are lanes 0 to 3, added up as 2 + 2, 1 + 1 */
        const double *g = look_at_grad(model, p);
        if (g && p->n) total += (g[0] * g[0] + g[2] * g[2]) + (g[1] * g[1] + g[3] * g[3]);
    }
    *norm = model->optimizers[k].skip ? INFINITY : (float)sqrt(total);
    const float factor = (float)((double)limit / ((double)*norm + 1e-6));
    if (factor < 1.0f && isfinite(*norm)) change(model, k, model_product, (double)factor);
    return AMP_OK;
}

amp_status model_clip_value(struct model *model, unsigned k, float limit) {
    if (idle(model, k) != AMP_OK) return AMP_ERR_WRONG_STATE;
    change(model, k, clamped, (double)limit);
    return AMP_OK;
}

amp_status model_look(struct model *model, unsigned k) {
    if (idle(model, k) != AMP_OK) return AMP_ERR_WRONG_STATE;
    EACH_PARAM(model, k, p) {
        reconcile(model, p, false);
        (void)look_at_grad(model, p);
    }
    return AMP_OK;
}

void model_reconcile(struct model *model) {
    for (int k = 0; k < PARAMS; k++) reconcile(model, &model->params[k], true);
}

amp_status model_check(struct model *model) {
    const amp_status kept = model->kept;
    model->kept = AMP_OK;
    return kept;
}

amp_status model_add_late(struct model *model) {
    if (idle(model, 1) != AMP_OK) return AMP_ERR_WRONG_STATE;
    if (model->optimizers[1].has_late) return AMP_ERR_INVALID_ARGUMENT;
    model->optimizers[1].has_late = true;
    retype(model, &model->params[LATE], true);
    return AMP_OK;
}

/* ---- states ---- */

static bool busy(const struct model *model) {
    bool busy = false;
    for (uint32_t k = 0; k < LOSSES; k++) busy |= model->losses[k].open;
    for (unsigned k = 0; k < OPTIMIZERS; k++) busy |= idle(model, k) != AMP_OK || is_unchecked(model, k);
    return busy;
}

amp_status model_save(struct model *model) {
    if (busy(model)) return AMP_ERR_WRONG_STATE;
    model_reconcile(model);
    model->saved.is = true;
    model->saved.has_late = model->optimizers[1].has_late;
    for (int k = 0; k < PARAMS; k++)
        memcpy(model->saved.values[k], model->params[k].mastered ? model->params[k].master : model->params[k].host,
               sizeof model->saved.values[k]);
    memcpy(model->saved.losses, model->losses, sizeof model->losses);
    return AMP_OK;
}

amp_status model_load(struct model *model) {
    const struct saved_model *saved = &model->saved;
    if (busy(model)) return AMP_ERR_WRONG_STATE;
    if (saved->has_late != model->optimizers[1].has_late) return AMP_ERR_CONFLICT;
    for (int k = 0; k < PARAMS; k++) {
        struct param_model *p = &model->params[k];
        if (p->type == AMP_FLOAT64 || (k == LATE && !saved->has_late)) continue; /* not in the file */
        for (int i = 0; i < p->n; i++) {
            p->master[i] = saved->values[k][i];
            p->host[i] = model_round(p->type, saved->values[k][i]);
        }
        p->agreed = p->version;
    }
    for (uint32_t k = 0; k < model->config.num_losses; k++) {
        const amp_record was = model->losses[k].record;
        model->losses[k] = saved->losses[k];
        amp_record *record = &model->losses[k].record;
        record->action = was.action;
        record->first_nonfinite = was.first_nonfinite;
        record->scale_before = record->scale_after = model->losses[k].scale;
        model->losses[k].told = false;
    }
    return AMP_OK;
}

/* ---- the end ---- */

void model_shutdown(struct model *model) {
    for (unsigned k = 0; k < OPTIMIZERS; k++) EACH_PARAM(model, k, p) model_cancel_grad(model, p, true);
    for (int k = 0; k < PARAMS; k++) {
        struct param_model *p = &model->params[k];
        reconcile(model, p, !model->versions);
        for (int i = 0; i < p->n && p->mastered; i++) p->host[i] = p->master[i];
        if (is_low(p->type)) p->type = AMP_FLOAT32;
    }
}
