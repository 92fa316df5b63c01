/* SPDX-License-Identifier: Apache-2.0 */
/* The model's brackets: gradients set aside, unscaled and added, the scale, the decision. */
#include "rules.h"

#include <math.h>
#include <string.h>

/* ---- setting aside ---- */

/* A fixed buffer of FP32 or FP64 takes the scale, whatever it holds. */
static bool multiply(struct param_model *p, double scale) {
    if (p->grad.type == AMP_FLOAT16 || p->grad.type == AMP_BFLOAT16) return false;
    for (int i = 0; i < p->n; i++) p->grad.v[i] = model_product(p->grad.type, p->grad.v[i], scale);
    return true;
}

static void put_aside(const struct model *model, struct param_model *p, double scale) {
    p->multiplied = false;
    if (model->fixed && model_is_zero(p, p->grad.v)) return;
    p->stash = p->grad;
    p->stash_is = true;
    if (model->fixed) p->multiplied = multiply(p, scale);
    if (p->multiplied) return;
    if (model->fixed) memset(p->grad.v, 0, sizeof p->grad.v);
    else p->grad.handle = 0;
}

static void take_back(const struct model *model, struct param_model *p, struct grad *aside, bool *is) {
    if (!model->fixed) {
        p->grad = *aside;
        if (!*is) p->grad.handle = 0;
    } else {
        for (int i = 0; i < p->n; i++) p->grad.v[i] = *is && aside->handle ? aside->v[i] : 0.0;
        p->exact_version = p->grad.version;
    }
    *aside = (struct grad){ 0 };
    *is = false;
}

static void set_grad_aside(const struct model *model, struct param_model *p, double scale) {
    if (p->in_bracket && (!p->scaled || p->delaying)) return;
    const bool inner = p->in_bracket;
    if (!p->grad.handle) {
        if (!inner) p->exact_of = 0;
    } else if (inner) { /* it stays, and backward adds to it */
        p->delayed = p->grad;
        p->delayed_is = true;
    } else {
        if (p->mastered) model_follow_grad(model, p, !model->versions);
        if (model->fixed && !p->first_saved) memcpy(p->first, p->mastered ? p->exact : p->grad.v, sizeof p->first);
        p->first_saved = model->fixed;
        put_aside(model, p, scale);
        p->stash_is |= p->mastered;
    }
    p->delaying = inner;
    p->in_bracket = true;
}

/* Its elements are what they were when the bracket that is cancelled began. What the host has dropped meanwhile is
 * gone. The master gradient is that of the stash meanwhile: this gradient's version says nothing about it. */
static void restore_delayed(const struct model *model, struct param_model *p) {
    if (!p->delayed_is || model->fixed) {
        take_back(model, p, &p->delayed, &p->delayed_is);
        return;
    }
    memcpy(p->grad.v, p->delayed.v, sizeof p->grad.v);
}

void model_cancel_grad(const struct model *model, struct param_model *p, bool all) {
    const bool inner = p->delaying;
    if (!p->in_bracket || (!inner && p->scaled && !all)) return;
    if (inner && !all) restore_delayed(model, p);
    p->delayed_is = p->delaying = false;
    if (inner && !all) return;
    take_back(model, p, &p->stash, &p->stash_is);
    p->in_bracket = p->scaled = false;
}

/* ---- brackets ---- */

amp_status model_begin(struct model *model, unsigned optimizers, uint32_t number, uint32_t flags) {
    struct loss_model *loss = &model->losses[number];
    float carried = 0.0f; /* by gradients whose brackets delayed: such a bracket has their scale */
    if (number >= model->config.num_losses) return AMP_ERR_INVALID_ARGUMENT;
    if (loss->open) return AMP_ERR_WRONG_STATE;
    EACH_OPTIMIZER(optimizers, k) {
        const struct optimizer_model *optimizer = &model->optimizers[k];
        if (optimizer->in_bracket) return AMP_ERR_WRONG_STATE;
        if (optimizer->delayed && optimizer->delayed_loss != number && /* one scale that never moves is both losses' */
            (model->dynamic || optimizer->delayed_scale != loss->scale)) return AMP_ERR_CONFLICT;
        if (optimizer->delayed && carried != 0.0f && optimizer->delayed_scale != carried) return AMP_ERR_CONFLICT;
        if (optimizer->delayed) carried = optimizer->delayed_scale;
    }
    loss->bracket_scale = carried != 0.0f ? carried : loss->scale;
    EACH_OPTIMIZER(optimizers, k) {
        model->optimizers[k].in_bracket = true;
        if (!model->trivial) EACH_PARAM(model, k, p) set_grad_aside(model, p, (double)loss->bracket_scale);
    }
    loss->open = true;
    loss->delay = flags & AMP_DELAY_UNSCALE;
    loss->delay_check = flags & AMP_DELAY_OVERFLOW_CHECK;
    loss->optimizers = optimizers;
    return AMP_OK;
}

static void keep_scaled(struct param_model *p) {
    p->delayed_is = p->delaying = false;
    p->scaled = p->in_bracket;
}

/* new / scale + what was set aside: into the master gradient, or in place. True: a result is not finite. tainted: an
 * earlier bracket found an overflow that no step of its optimizer has followed; then what was set aside and is not
 * finite counts no second time. */
static bool unscale(struct param_model *p, float scale, bool tainted) {
    const double inverse = (double)(float)(1.0 / (double)scale);
    const bool adds = p->stash_is && !p->multiplied && (!p->mastered || p->exact_of);
    bool found = false, made = false, stale = false;
    for (int i = 0; i < p->n; i++) {
        const double old = p->mastered ? p->exact[i] : p->stash.v[i];
        double value = model_product(p->grad.type, p->grad.v[i], inverse);
        made |= !isfinite(value);
        stale |= adds && !isfinite(old);
        if (adds) value = model_sum(p->grad.type, value, old);
        value = model_round(p->mastered ? AMP_FLOAT32 : p->grad.type, value);
        found |= !isfinite(value);
        if (p->mastered) p->exact[i] = value;
        else p->grad.v[i] = value;
    }
    if (p->mastered) model_show_grad(p);
    return tainted && stale ? made : found;
}

/* The parameter whose gradient was the first that is not finite, over all optimizers of the bracket. Fixed buffers hold
 * again what stood there at begin, where an overflow skips. */
static const char *unscale_all(struct model *model, const struct loss_model *loss) {
    const bool skips = model->dynamic || loss->bracket_scale != 1.0f;
    const char *first = NULL;
    bool has_new[PARAMS] = { false };
    EACH_OPTIMIZER(loss->optimizers, k) EACH_PARAM(model, k, p) {
        p->delayed_is = p->delaying = false;
        has_new[p - model->params] = p->in_bracket && p->grad.handle;
        if (has_new[p - model->params] && unscale(p, loss->bracket_scale, model->optimizers[k].skip) && !first)
            first = p->name;
    }
    EACH_OPTIMIZER(loss->optimizers, k) EACH_PARAM(model, k, p) {
        if (first && skips && model->fixed && has_new[p - model->params]) {
            take_back(model, p, &p->stash, &p->stash_is);
            p->exact_of = 0;
        }
        if (p->in_bracket && !model->fixed && p->stash.handle && !has_new[p - model->params]) p->grad = p->stash;
        p->stash = (struct grad){ 0 };
        p->stash_is = p->in_bracket = p->scaled = false;
    }
    return first;
}

static float within(const amp_config *config, double scale) {
    return scale > (double)config->max_scale ? config->max_scale
        : scale < (double)config->min_scale  ? config->min_scale
                                             : (float)scale;
}

/* apex/amp/scaler.py update_scale, with the hysteresis of update_scale_hysteresis. */
static amp_action update_scale(const struct model *model, struct loss_model *loss, bool found) {
    const amp_config *config = &model->config;
    if (model->trivial) return AMP_STEP; /* apex/amp/handle.py leaves before it comes to that */
    if (!model->dynamic) {
        const bool skip = found && loss->scale != 1.0f;
        loss->unskipped = skip ? 0 : loss->unskipped + 1;
        return skip ? AMP_SKIP : AMP_STEP;
    }
    if (found) {
        loss->unskipped = 0;
        if (loss->hysteresis_left > 1) loss->hysteresis_left--;
        else loss->scale = within(config, (double)loss->scale * config->backoff);
        return AMP_SKIP;
    }
    loss->hysteresis_left = config->hysteresis;
    if (++loss->unskipped == config->window) {
        loss->scale = within(config, (double)loss->scale * config->growth);
        loss->unskipped = 0;
    }
    return AMP_STEP;
}

static void close(struct model *model, struct loss_model *loss) {
    EACH_OPTIMIZER(loss->optimizers, k) model->optimizers[k].in_bracket = false;
    loss->open = false;
}

static void cancel_all(struct model *model, const struct loss_model *loss, bool all) {
    EACH_OPTIMIZER(loss->optimizers, k) {
        EACH_PARAM(model, k, p) model_cancel_grad(model, p, all);
        model->optimizers[k].delayed &= !all;
    }
}

/* The decision reaches those whose check was delayed. */
static void end_delayed_check(struct model *model, struct loss_model *loss, bool skip) {
    EACH_OPTIMIZER(loss->unchecked, k) model->optimizers[k].skip |= skip;
    loss->unchecked = 0;
    loss->unchecked_first = NULL;
}

static amp_status fail_end(struct model *model, struct loss_model *loss, amp_action *action) {
    const amp_status kept = model->kept;
    cancel_all(model, loss, true);
    EACH_OPTIMIZER(loss->optimizers, k) model->optimizers[k].skip = true;
    if (!loss->delay && !loss->delay_check) end_delayed_check(model, loss, true);
    close(model, loss);
    model->kept = AMP_OK;
    *action = AMP_SKIP;
    return kept;
}

amp_status model_end(struct model *model, uint32_t number, amp_action *action) {
    struct loss_model *loss = &model->losses[number];
    amp_record *record = &loss->record;
    const char *first = loss->unchecked_first;
    *action = AMP_STEP;
    if (model->kept != AMP_OK) return fail_end(model, loss, action);
    EACH_OPTIMIZER(loss->optimizers, k) {
        if (loss->delay) EACH_PARAM(model, k, p) keep_scaled(p);
        model->optimizers[k].delayed = loss->delay;
        model->optimizers[k].delayed_loss = number;
        model->optimizers[k].delayed_scale = loss->bracket_scale;
    }
    const char *found = loss->delay || model->trivial ? NULL : unscale_all(model, loss);
    if (!first) first = found;
    close(model, loss);
    if (loss->delay) return AMP_OK;
    if (loss->delay_check) {
        loss->unchecked |= loss->optimizers;
        loss->unchecked_first = first;
        return AMP_OK;
    }
    *action = record->action = update_scale(model, loss, first != NULL);
    record->scale_before = loss->bracket_scale;
    record->scale_after = loss->scale;
    record->brackets++;
    record->skipped += *action == AMP_SKIP;
    record->skips_in_row = *action == AMP_SKIP ? record->skips_in_row + 1 : 0;
    record->unskipped = loss->unskipped;
    if (first) record->first_nonfinite = first;
    EACH_OPTIMIZER(loss->optimizers, k) model->optimizers[k].skip |= *action == AMP_SKIP;
    end_delayed_check(model, loss, *action == AMP_SKIP);
    const bool told = loss->told;
    loss->told = record->skips_in_row && record->skips_in_row >= model->config.max_skips;
    return loss->told && !told ? AMP_ERR_TOO_MANY_SKIPS : AMP_OK;
}

amp_status model_cancel(struct model *model, uint32_t number) {
    cancel_all(model, &model->losses[number], false);
    close(model, &model->losses[number]);
    return AMP_OK;
}
