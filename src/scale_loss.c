/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bracket around backward. begin checks everything, sets gradients aside and scales the loss; end unscales, updates
 * the scale and decides; cancel leaves things as if backward had not happened.
 */
#include "amp_train.h"
#include "bracket/bracket.h"
#include "bracket/step.h"
#include "bracket/home.h"
#include "bracket/wiring.h"
#include "call/cache.h"
#include "common/thread.h"
#include "context/context.h"
#include "context/live.h"
#include "context/op.h"
#include "context/optimizer.h"
#include "context/report.h"
#include "observe/observe.h"
#include "raw/raw.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const amp_device cpu = { 1, 0 };

/* ---- begin ---- */

static const amp_host *loss_host(const amp_context *context, const struct amp__bracket *bracket) {
    if (bracket->n_optimizers) return &bracket->optimizers[0]->host;
    return context->models.n ? &context->models.list[0].host : NULL;
}

/* Sets the factor for seeds of ops: the scale of an open bracket with seeds as carrier. */
static void tell_seeds(amp_context *context) {
    context->progress.seed_scale = 1.0f;
    for (size_t i = context->policy.properties.num_losses; i--;) {
        const struct amp__bracket *bracket = &context->brackets.list[i];
        if (amp__bracket_is_open(bracket) && bracket->opening.carrier == AMP__CARRIER_SEEDS)
            context->progress.seed_scale = bracket->scale;
    }
}

static void drop_temporaries(struct amp__bracket *bracket) {
    void **temporary = bracket->opening.temporary;
    for (size_t i = AMP_COUNT(bracket->opening.temporary); i--;) {
        amp__host_release(bracket->host, temporary[i]);
        temporary[i] = NULL;
    }
}

/* Apex: loss.float() * scale. Exactly one thing carries the scale: the loss, seeds of ops, or the host's own seed. */
static amp_status scale_the_loss(struct amp__bracket *bracket, void *loss, void **scaled, float *seed_factor) {
    const amp_host *host = bracket->host;
    *scaled = loss;
    bracket->opening.carrier = bracket->context->policy.seeds ? AMP__CARRIER_SEEDS : AMP__CARRIER_NONE;
    *seed_factor = bracket->context->policy.seeds ? 1.0f : bracket->scale;
    const bool alone = bracket->device.decides_alone;
    const float *on_device = loss ? amp__home_device_scale(bracket) : NULL;
    const struct amp__policy *policy = &bracket->context->policy;
    if (alone && policy->properties.scaler.dynamic && !policy->seeds) *seed_factor = NAN;
    if (!loss || !host || (!host->scale && !on_device)) return AMP_OK;
    bracket->opening.carrier = AMP__CARRIER_LOSS;
    if (amp__is_low(amp__host_dtype(host, loss)) && host->cast) {
        AMP_TRY(amp__host_cast(host, loss, AMP_FLOAT32, &bracket->opening.temporary[0]));
        *scaled = bracket->opening.temporary[0];
    }
    *seed_factor = 1.0f;
    if (bracket->scale == 1.0f && !on_device) return AMP_OK;
    if (on_device) AMP_TRY(amp__host_scale_by(host, *scaled, on_device, &bracket->opening.temporary[1]));
    else AMP_TRY(amp__host_scale(host, *scaled, bracket->scale, &bracket->opening.temporary[1]));
    if (!on_device) amp__wiring_check_loss(bracket, *scaled, bracket->opening.temporary[1]);
    *scaled = bracket->opening.temporary[1];
    return AMP_OK;
}

/* Makes room to record delayed checks, so that end cannot fail for lack of memory. */
static amp_status need_unchecked(struct amp__bracket *bracket) {
    bool **unchecked = &bracket->unchecked.by_optimizer;
    if (!*unchecked) *unchecked = amp__alloc(bracket->context->optimizers.n, sizeof **unchecked);
    return *unchecked ? AMP_OK : amp__fail_memory();
}

static amp_status begin_gradients(const struct amp__bracket *bracket) {
    if (amp__scaling_is_trivial(&bracket->context->policy.properties)) return AMP_OK;
    const float scale = bracket->device.decides_alone ? 0.0f : bracket->scale; /* 0: the device alone knows it */
    for (size_t i = 0; i < bracket->n_optimizers; i++) {
        const struct amp__optimizer *optimizer = bracket->optimizers[i];
        /* a step that left out slots (frozen layers) is over now: no later skip goes back beyond it */
        if (optimizer->slots.called) amp__grads_stepped(optimizer->params, optimizer->n_params, false);
        const amp_status status = amp__grads_begin(optimizer->params, optimizer->n_params, scale,
                                                   &bracket->context->brackets.plan);
        if (status == AMP_OK) continue;
        amp__places_drop(&bracket->context->devices);
        while (i--)
            (void)amp__grads_cancel(bracket->optimizers[i]->params, bracket->optimizers[i]->n_params, false);
        return status;
    }
    const amp_status status = amp__places_flush(&bracket->context->devices);
    for (size_t i = 0; i < bracket->n_optimizers && status != AMP_OK; i++)
        (void)amp__grads_cancel(bracket->optimizers[i]->params, bracket->optimizers[i]->n_params, false);
    return status;
}

/* An overflow in backward is the scaler's business, not a reason to trap. */
static void mask_traps(struct amp__bracket *bracket) {
    struct amp__thread *thread = bracket->opening.thread = amp__thread_state();
    if (!thread->brackets++) amp__traps_mask(&thread->traps);
}

/* Only the thread that masked its traps can put them back. */
static void restore_traps(const struct amp__bracket *bracket) {
    struct amp__thread *thread = bracket->opening.thread;
    if (thread != amp__thread_state() || !thread->brackets) return;
    if (!--thread->brackets) amp__traps_restore(&thread->traps);
}

static void open_bracket(struct amp__bracket *bracket, bool with_loss, uint32_t flags) {
    bracket->state = flags & AMP_DELAY_UNSCALE ? AMP__BRACKET_DELAYS
        : flags & AMP_DELAY_OVERFLOW_CHECK     ? AMP__BRACKET_DELAYS_CHECK
                                               : AMP__BRACKET_DECIDES;
    mask_traps(bracket);
    bracket->opening.with_loss = with_loss;
    atomic_fetch_add(&bracket->context->progress.open, 1);
    if (with_loss) atomic_fetch_add(&bracket->context->progress.backward, 1);
    for (size_t i = 0; i < bracket->n_optimizers; i++) {
        struct amp__optimizer *optimizer = bracket->optimizers[i];
        if (optimizer->slots.called) amp__decision_used(optimizer);
        if (optimizer->decision.skip) optimizer->decision.skip = AMP__SKIP_OLD;
        optimizer->decision.bracketed = true;
        amp__step_enters_bracket(optimizer);
        optimizer->decision.loss = bracket->loss_id;
    }
    tell_seeds(bracket->context);
}

static amp_status begin(amp_context *context, amp_optimizer *const *optimizers, size_t n, uint32_t loss_id,
                        uint32_t flags, void *loss, amp_scaled_loss *filled) {
    struct amp__bracket *bracket = NULL;
    AMP_TRY(amp__bracket_find(context, loss_id, flags, &bracket));
    if (flags & AMP_DELAY_OVERFLOW_CHECK) AMP_TRY(need_unchecked(bracket));
    AMP_TRY(amp__bracket_optimizers(bracket, optimizers, n));
    bracket->host = loss_host(context, bracket);
    bracket->scale = bracket->scaler.scale;
    bracket->opening.seeds_before = context->progress.seeds_shown;
    amp_status status = amp__gradients_follow(context);
    for (size_t i = 0; i < bracket->n_optimizers && status == AMP_OK; i++) {
        amp__wiring_look_for_stayed(bracket->optimizers[i]);
        status = amp__report_unseen_steps(bracket->optimizers[i]);
        if (status == AMP_OK && amp__may_be_low(&context->policy.properties))
            status = amp__masters_found(bracket->optimizers[i]->params, bracket->optimizers[i]->n_params);
    }
    if (status == AMP_OK) status = bracket->home->begin(bracket, loss != NULL);
    if (bracket->opening.carried != 0.0f) bracket->scale = bracket->opening.carried;
    if (status == AMP_OK) status = scale_the_loss(bracket, loss, &filled->loss, &filled->factor_);
    if (status == AMP_OK) status = begin_gradients(bracket);
    if (status != AMP_OK) {
        drop_temporaries(bracket);
        bracket->n_optimizers = 0;
        return status;
    }
    open_bracket(bracket, loss != NULL, flags);
    amp__bracket_tell_loss(bracket, loss);
    bracket->opening.serial = amp__new_serial();
    filled->scale = bracket->shown.scale;
    filled->found_inf = bracket->shown.found_inf;
    filled->device = bracket->device.scaler ? context->devices.places[0]->device : cpu;
    filled->priv[0] = bracket;
    filled->priv[1] = context;
    filled->priv[2] = (void *)bracket->opening.serial;
    return AMP_OK;
}

/* With enabled = OFF the bracket does nothing, and needs nothing. */
static const float one = 1.0f, zero = 0.0f;
static void begin_disabled(void *loss, amp_context *context, amp_scaled_loss *filled) {
    filled->loss = loss;
    filled->scale = &one;
    filled->found_inf = &zero;
    filled->device = cpu;
    filled->factor_ = 1.0f;
    filled->priv[1] = context;
}

AMP_API amp_status amp_scale_loss_begin_many(amp_context *context, amp_optimizer *const *optimizers, size_t n,
                                             uint32_t loss_id, uint32_t flags, void *loss, amp_scaled_loss *scaled) {
    amp_scaled_loss filled = AMP_SCALED_LOSS_INIT;
    AMP_RETURN_IF(!scaled, AMP_ERR_INVALID_ARGUMENT, "amp_scale_loss_begin: scaled is NULL");
    AMP_TRY(amp__check_struct(scaled->struct_size, sizeof filled, "amp_scaled_loss"));
    AMP_RETURN_IF(scaled->priv[1], AMP_ERR_WRONG_STATE,
                  "amp_scale_loss_begin: this amp_scaled_loss is in use by an open bracket: end it first, or start "
                  "from AMP_SCALED_LOSS_INIT");
    AMP_RETURN_IF(n && !optimizers, AMP_ERR_INVALID_ARGUMENT, "amp_scale_loss_begin: optimizers is NULL");
    for (size_t i = 0; i < n; i++) {
        struct amp__optimizer *unused;
        AMP_TRY(amp__optimizer_find(optimizers[i], &unused));
        if (!context) context = optimizers[i]->amp;
    }
    AMP_RETURN_IF(context && !amp__context_is_live(context), AMP_ERR_WRONG_STATE,
                  "amp_scale_loss_begin: there is no such context: was it shut down?");
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT,
                  "amp_scale_loss_begin: neither a context nor an optimizer is given");
    struct amp__thread *thread = amp__thread_state();
    amp__thread_recover(thread, __builtin_frame_address(0));
    if (!context->policy.properties.enabled) begin_disabled(loss, context, &filled);
    else AMP_TRY(begin(context, optimizers, n, loss_id, flags, loss, &filled));
    return amp__fill_struct(scaled, scaled->struct_size, sizeof filled, &filled, sizeof filled, "amp_scaled_loss");
}

AMP_API amp_status amp_scale_loss_begin(amp_optimizer *optimizer, void *loss, amp_scaled_loss *scaled) {
    AMP_RETURN_IF(!optimizer, AMP_ERR_INVALID_ARGUMENT, "amp_scale_loss_begin: optimizer is NULL");
    return amp_scale_loss_begin_many(optimizer->amp, &optimizer, 1, 0, 0, loss, scaled);
}

/* ---- end ---- */

void amp__bracket_close(struct amp__bracket *bracket) {
    drop_temporaries(bracket);
    atomic_fetch_sub(&bracket->context->progress.open, 1);
    if (bracket->opening.with_loss) atomic_fetch_sub(&bracket->context->progress.backward, 1);
    for (size_t i = 0; i < bracket->n_optimizers; i++) amp__step_leaves_bracket(bracket->optimizers[i]);
    bracket->n_optimizers = 0;
    bracket->state = AMP__BRACKET_CLOSED;
    tell_seeds(bracket->context);
    restore_traps(bracket);
    /* backward has run: casts recorded before it are bound to a tape that is over */
    amp__cache_drop(&bracket->context->cache, true);
}

static void close_bracket(struct amp__bracket *bracket, amp_scaled_loss *scaled) {
    amp__bracket_close(bracket);
    memset(scaled->priv, 0, sizeof scaled->priv);
    scaled->loss = NULL;
    scaled->scale = NULL;
}

/* The parameters of all optimizers as one list, so that an error leaves the gradients of none of them unscaled. */
static amp_status list_params(const struct amp__bracket *bracket, struct amp__param *const **out, size_t *out_n) {
    struct amp__brackets *brackets = &bracket->context->brackets;
    size_t n = 0, filled = 0;
    for (size_t i = 0; i < bracket->n_optimizers; i++) n += bracket->optimizers[i]->n_params;
    if (n > brackets->listed_capacity) {
        void *grown = amp__grow(brackets->listed, brackets->listed_capacity, n, sizeof *brackets->listed);
        if (!grown) return amp__fail_memory();
        brackets->listed = grown;
        brackets->listed_capacity = n;
    }
    for (size_t i = 0; i < bracket->n_optimizers; i++) {
        const struct amp__optimizer *optimizer = bracket->optimizers[i];
        if (optimizer->n_params)
            memcpy(brackets->listed + filled, optimizer->params, optimizer->n_params * sizeof *brackets->listed);
        filled += optimizer->n_params;
    }
    *out = brackets->listed;
    *out_n = n;
    return AMP_OK;
}

static void mark(const struct amp__optimizer *optimizer, bool overflowed) {
    for (size_t i = 0; i < optimizer->n_params; i++) optimizer->params[i]->gradient.overflowed = overflowed;
}

/* After an overflow without a step: marks the parameters that no optimizer of the bracket will step on. */
static bool mark_overflowed(const struct amp__bracket *bracket) {
    bool any = false;
    for (size_t i = 0; i < bracket->n_optimizers; i++) any |= bracket->optimizers[i]->decision.skip;
    for (size_t i = 0; i < bracket->n_optimizers && any; i++)
        if (bracket->optimizers[i]->decision.skip) mark(bracket->optimizers[i], true);
    for (size_t i = 0; i < bracket->n_optimizers && any; i++)
        if (!bracket->optimizers[i]->decision.skip) mark(bracket->optimizers[i], false);
    return any;
}

static amp_status unscale_all(const struct amp__bracket *bracket, struct amp__grads_result *result) {
    amp_context *context = bracket->context;
    struct amp__param *const *params = NULL;
    size_t n = 0;
    if (bracket->n_optimizers == 1) {
        params = bracket->optimizers[0]->params;
        n = bracket->optimizers[0]->n_params;
    } else {
        AMP_TRY(list_params(bracket, &params, &n));
    }
    const bool skips = amp__scaler_skips(&context->policy.properties.scaler);
    const bool tainted = mark_overflowed(bracket);
    return amp__grads_end(params, n, bracket->scale, skips, tainted, &context->brackets.plan, result);
}

/* Unscales, with the results of earlier brackets with a delayed check. */
static amp_status unscale(const struct amp__bracket *bracket, struct amp__grads_result *result) {
    struct amp__grads_result now = { false, NULL };
    if (!amp__scaling_is_trivial(&bracket->context->policy.properties)) {
        AMP_TRY(bracket->home->arm(bracket));
        AMP_TRY(unscale_all(bracket, &now));
        AMP_TRY(bracket->home->find(bracket, &now));
    }
    result->found_inf = now.found_inf || bracket->unchecked.found_inf;
    result->first_nonfinite = bracket->unchecked.first ? bracket->unchecked.first : now.first_nonfinite;
    return AMP_OK;
}

/* Ends a bracket with an error, which is returned. The rest is done by amp__bracket_give_up. */
static amp_status fail_bracket(struct amp__bracket *bracket, amp_scaled_loss *scaled, amp_status status, bool agreed) {
    char text[AMP__ERROR_SIZE];
    snprintf(text, sizeof text, "%s", amp_last_error());
    amp__bracket_give_up(bracket, agreed);
    close_bracket(bracket, scaled);
    scaled->action = AMP_SKIP;
    return amp__fail(status, "%s", text);
}

static bool is_bracket_of(const amp_context *context, const struct amp__bracket *bracket) {
    for (uint32_t i = 0; i < context->policy.properties.num_losses; i++)
        if (&context->brackets.list[i] == bracket) return true;
    return false;
}

/* Accepts any amp_scaled_loss, also a copy, or one older than the opening. */
static bool is_open_as(const amp_context *context, const struct amp__bracket *bracket, uintptr_t serial) {
    return is_bracket_of(context, bracket) && amp__bracket_is_open(bracket) && bracket->opening.serial == serial;
}

static amp_status open_bracket_of(amp_scaled_loss *scaled, const char *who, struct amp__bracket **out) {
    AMP_RETURN_IF(!scaled, AMP_ERR_INVALID_ARGUMENT, "%s: scaled is NULL", who);
    AMP_TRY(amp__check_struct(scaled->struct_size, sizeof *scaled, "amp_scaled_loss"));
    AMP_RETURN_IF(!scaled->priv[1], AMP_ERR_WRONG_STATE,
                  "%s without amp_scale_loss_begin: this amp_scaled_loss has no open bracket", who);
    struct amp__bracket *bracket = scaled->priv[0];
    const uintptr_t serial = (uintptr_t)scaled->priv[2];
    if (bracket && !amp__context_is_live(scaled->priv[1])) {
        memset(scaled->priv, 0, sizeof scaled->priv);
        return amp__fail(AMP_ERR_WRONG_STATE, "%s: the context was shut down meanwhile, which cancelled the bracket",
                         who);
    }
    if (bracket && !is_open_as(scaled->priv[1], bracket, serial)) {
        memset(scaled->priv, 0, sizeof scaled->priv);
        return amp__fail(AMP_ERR_WRONG_STATE, "%s: the bracket is closed already; was this amp_scaled_loss copied?",
                         who);
    }
    *out = bracket;
    return AMP_OK;
}

AMP_API float amp_seed_factor(const amp_scaled_loss *scaled) {
    struct amp__bracket *bracket = scaled ? scaled->priv[0] : NULL;
    if (!bracket) return scaled ? scaled->factor_ : 1.0f;
    const bool open = amp__context_is_live(scaled->priv[1]) &&
        is_open_as(scaled->priv[1], bracket, (uintptr_t)scaled->priv[2]);
    if (open && bracket->opening.carrier == AMP__CARRIER_NONE) bracket->opening.carrier = AMP__CARRIER_HOST;
    return scaled->factor_;
}

static amp_status delay_end(struct amp__bracket *bracket, amp_scaled_loss *scaled) {
    for (size_t i = 0; i < bracket->n_optimizers; i++) {
        struct amp__optimizer *optimizer = bracket->optimizers[i];
        amp__grads_delay(optimizer->params, optimizer->n_params, bracket->loss_id, bracket->scale);
        amp__step_delays(optimizer);
        optimizer->delay.loss = bracket->loss_id;
        optimizer->delay.scale = bracket->scale;
    }
    scaled->action = AMP_STEP;
    close_bracket(bracket, scaled);
    return AMP_OK;
}

static void observe(const struct amp__bracket *bracket, bool overflowed, amp_action action) {
    const struct amp__decided_bracket decided = {
        .number = bracket->record.brackets, .skips = action == AMP_SKIP, .overflowed = overflowed,
        .on_device = bracket->device.scaler, .loss_id = bracket->loss_id,
        .place = bracket->device.scaler ? bracket->context->devices.places[0] : NULL,
    };
    amp__observe_decided(bracket->context, bracket->optimizers, bracket->n_optimizers, &decided);
}

/* Keeps the numbers of the last training iteration if nothing was packed (an evaluation). */
static void count_packed(struct amp__packed *packed) {
    const uint64_t from = atomic_exchange(&packed->from, 0), to = atomic_exchange(&packed->to, 0);
    if (!from) return;
    atomic_store(&packed->last_from, from);
    atomic_store(&packed->last_to, to);
}

AMP_API amp_status amp_scale_loss_end(amp_scaled_loss *scaled) {
    struct amp__bracket *bracket = NULL;
    AMP_TRY(open_bracket_of(scaled, "amp_scale_loss_end", &bracket));
    if (!bracket) { /* disabled */
        memset(scaled->priv, 0, sizeof scaled->priv);
        scaled->action = AMP_STEP;
        return AMP_OK;
    }
    amp_context *context = bracket->context;
    amp__thread_recover(amp__thread_state(), __builtin_frame_address(0));
    amp_status status = amp__take_error(context);
    if (status == AMP_OK) status = amp__wiring_check_scale(bracket);
    if (status != AMP_OK) return fail_bracket(bracket, scaled, status, false);
    if (bracket->state == AMP__BRACKET_DELAYS) return delay_end(bracket, scaled);
    for (size_t i = 0; i < bracket->n_optimizers; i++) amp__wiring_tell_stayed(bracket->optimizers[i]);
    struct amp__grads_result result;
    status = context->progress.looks < AMP__LOOKS ? amp__gradients_follow(context) : AMP_OK;
    if (status == AMP_OK) status = amp__wiring_check_gradients(bracket);
    for (size_t i = 0; i < bracket->n_optimizers && status == AMP_OK; i++)
        status = amp__report_changes_inside(bracket->optimizers[i]);
    if (status == AMP_OK) amp__sampled_look(bracket);
    if (status == AMP_OK && amp__observing(context))
        amp__observe_scaled(context, bracket->optimizers, bracket->n_optimizers);
    if (status == AMP_OK) status = unscale(bracket, &result);
    if (status != AMP_OK) return fail_bracket(bracket, scaled, status, false);
    if (bracket->state == AMP__BRACKET_DELAYS_CHECK) {
        status = amp__bracket_delay_check(bracket, &result);
        if (status != AMP_OK) return fail_bracket(bracket, scaled, status, true);
        scaled->action = AMP_STEP;
        close_bracket(bracket, scaled);
        return AMP_OK;
    }
    const bool overflow_here = result.found_inf, stepped_on = amp__wiring_check_finite(bracket, &result);
    status = amp__bracket_conclude(bracket, &result, &scaled->action);
    if (status != AMP_OK) return fail_bracket(bracket, scaled, status, true);
    count_packed(&context->progress.packed);
    if (context->observer && !context->progress.verifying)
        observe(bracket, overflow_here || stepped_on, scaled->action);
    close_bracket(bracket, scaled);
    amp__wiring_check_ops(context);
    if (bracket->device.last == AMP__DECISION_ON_DEVICE) return AMP_OK; /* amp_check asks it */
    return amp__bracket_check_skips(bracket, overflow_here);
}

AMP_API amp_status amp_scale_loss_cancel(amp_scaled_loss *scaled) {
    struct amp__bracket *bracket = NULL;
    AMP_TRY(open_bracket_of(scaled, "amp_scale_loss_cancel", &bracket));
    if (!bracket) {
        memset(scaled->priv, 0, sizeof scaled->priv);
        return AMP_OK;
    }
    const amp_status status = amp__bracket_cancel(bracket);
    close_bracket(bracket, scaled);
    return status;
}
