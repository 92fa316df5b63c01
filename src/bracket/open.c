/* SPDX-License-Identifier: Apache-2.0 */
/* The brackets of a context, and the checks before one opens, all before any change. */
#include "amp_train.h"
#include "bracket/bracket.h"
#include "bracket/home.h"
#include "bracket/step.h"
#include "context/addresses.h"
#include "context/brackets.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/policy.h"

amp_status amp__brackets_make(amp_context *context, struct amp__brackets *brackets,
                              const struct amp__properties *properties) {
    brackets->list = amp__alloc(properties->num_losses, sizeof *brackets->list);
    if (!brackets->list) return amp__fail_memory();
    brackets->n = properties->num_losses;
    for (uint32_t i = 0; i < brackets->n; i++) {
        struct amp__bracket *bracket = &brackets->list[i];
        bracket->context = context;
        bracket->loss_id = i;
        bracket->home = &amp__home_host;
        bracket->shown.scale = &bracket->scale;
        bracket->shown.found_inf = &bracket->found_inf;
        amp__scaler_init(&bracket->scaler, &properties->scaler);
        bracket->record.scale_before = bracket->record.scale_after = bracket->scaler.scale;
    }
    return AMP_OK;
}

amp_status amp__bracket_find(amp_context *context, uint32_t loss_id, uint32_t flags, struct amp__bracket **out) {
    struct amp__brackets *brackets = amp__brackets_of(context);
    AMP_RETURN_IF(loss_id >= brackets->n, AMP_ERR_INVALID_ARGUMENT,
                  "amp_scale_loss_begin: loss_id %u is out of range: amp_config.num_losses is %u", (unsigned)loss_id,
                  (unsigned)brackets->n);
    AMP_RETURN_IF(amp__addresses_of(context)->released, AMP_ERR_WRONG_STATE,
                  "amp_scale_loss_begin: weights are released: call amp_weights_restore first");
    AMP_RETURN_IF(flags & ~(uint32_t)(AMP_DELAY_UNSCALE | AMP_DELAY_OVERFLOW_CHECK), AMP_ERR_INVALID_ARGUMENT,
                  "amp_scale_loss_begin: unknown flags 0x%x", (unsigned)flags);
    AMP_RETURN_IF(amp__bracket_is_open(&brackets->list[loss_id]), AMP_ERR_WRONG_STATE,
                  "amp_scale_loss_begin: the bracket of loss_id %u is open already: end it first, or give each loss "
                  "its own loss_id (amp_config.num_losses)", (unsigned)loss_id);
    for (uint32_t i = 0; amp__policy_of(context)->seeds && i < brackets->n; i++)
        AMP_RETURN_IF(amp__bracket_is_open(&brackets->list[i]), AMP_ERR_WRONG_STATE,
                      "amp_scale_loss_begin: the bracket of loss_id %u is open, and a seed in an op's arguments "
                      "belongs to no particular bracket: end that one first", (unsigned)i);
    *out = &brackets->list[loss_id];
    return AMP_OK;
}

/* Another loss's gradients still carry its scale. One scale that never moves is both losses'. A dynamic one is not,
 * though it be equal now: the overflow that those gradients hide would be decided on by the wrong scaler. */
static bool is_foreign(const struct amp__bracket *bracket, uint32_t loss_id, float scale) {
    return loss_id != bracket->loss_id &&
           (amp__policy_of(bracket->context)->properties.scaler.dynamic || scale != bracket->scaler.scale);
}

#define WAY_OUT "end the last bracket of that loss without the flag, or give both losses one loss_id"

static amp_status check_optimizer(const struct amp__bracket *bracket, const struct amp__optimizer *optimizer) {
    const amp_context *context = bracket->context;
    AMP_RETURN_IF(optimizer->context != context, AMP_ERR_CONFLICT,
                  "amp_scale_loss_begin: the optimizers belong to different contexts: initialise them together");
    AMP_RETURN_IF(amp__step_in_bracket(optimizer), AMP_ERR_WRONG_STATE,
                  "amp_scale_loss_begin: an optimizer is in an open bracket already: end that one first");
    AMP_RETURN_IF(amp__step_is_running(optimizer) || amp__optimizer_is_lent(optimizer), AMP_ERR_WRONG_STATE,
                  "amp_scale_loss_begin inside a step of the same optimizer, or of one that shares a parameter with "
                  "it");
    AMP_RETURN_IF(amp__step_is_delayed(optimizer) &&
                      is_foreign(bracket, optimizer->delay.loss, optimizer->delay.scale),
                  AMP_ERR_CONFLICT,
                  "amp_scale_loss_begin: gradients still carry the scale of loss_id %u (AMP_DELAY_UNSCALE); loss_id %u "
                  "would unscale them wrongly: " WAY_OUT,
                  (unsigned)optimizer->delay.loss, (unsigned)bracket->loss_id);
    return AMP_OK;
}

/* Uses the scale of gradients that are still scaled, so that backward adds to them at the same scale. (The scale of a
 * scaler on a device is the present one.) */
static amp_status carry(struct amp__bracket *bracket, float scale, const char *whose) {
    if (bracket->device.scaler) return AMP_OK;
    AMP_RETURN_IF(bracket->opening.carried != 0.0f && bracket->opening.carried != scale, AMP_ERR_CONFLICT,
                  "amp_scale_loss_begin: the gradients of %s still carry a scale of %g (AMP_DELAY_UNSCALE), others of "
                  "this bracket one of %g: the scale of loss_id %u changed in between. Unscale them in a bracket each",
                  whose, (double)scale, (double)bracket->opening.carried, (unsigned)bracket->loss_id);
    bracket->opening.carried = scale;
    return AMP_OK;
}

/* Checks gradients shared with optimizers of other brackets: a gradient has the scale of one loss. */
static amp_status check_shared(struct amp__bracket *bracket, const struct amp__optimizer *optimizer) {
    const bool alone = amp__optimizers_of(optimizer->context)->n == 1;
    for (size_t i = 0; i < optimizer->n_params && !alone; i++) {
        const struct amp__param *param = optimizer->params[i];
        if (!amp__in_bracket(param)) continue;
        AMP_RETURN_IF(amp__in_open_bracket(param), AMP_ERR_WRONG_STATE,
                      "amp_scale_loss_begin: the gradient of %s is in the open bracket of another optimizer that "
                      "shares it: end that one first, or give both optimizers to one bracket", param->name);
        const struct amp__gradient *gradient = &param->gradient;
        AMP_RETURN_IF(is_foreign(bracket, gradient->delayed_loss, gradient->delayed_scale), AMP_ERR_CONFLICT,
                      "amp_scale_loss_begin: the gradient of %s, which another optimizer shares, still carries the "
                      "scale of loss_id %u (AMP_DELAY_UNSCALE); loss_id %u would unscale it wrongly: " WAY_OUT,
                      param->name, (unsigned)gradient->delayed_loss, (unsigned)bracket->loss_id);
        AMP_TRY(carry(bracket, gradient->delayed_scale, param->name));
    }
    return AMP_OK;
}

static amp_status find_optimizer(struct amp__bracket *bracket, amp_optimizer *const *users, size_t i) {
    AMP_TRY(amp__optimizer_find(users[i], &bracket->optimizers[i]));
    const struct amp__optimizer *optimizer = bracket->optimizers[i];
    AMP_TRY(check_optimizer(bracket, optimizer));
    AMP_TRY(check_shared(bracket, optimizer));
    if (amp__step_is_delayed(optimizer)) AMP_TRY(carry(bracket, optimizer->delay.scale, "an optimizer"));
    for (size_t j = 0; j < i; j++)
        AMP_RETURN_IF(bracket->optimizers[j] == optimizer, AMP_ERR_INVALID_ARGUMENT,
                      "amp_scale_loss_begin: optimizers %zu and %zu are the same", j, i);
    return AMP_OK;
}

/* The list is kept from bracket to bracket. */
amp_status amp__bracket_optimizers(struct amp__bracket *bracket, amp_optimizer *const *users, size_t n) {
    if (n > bracket->optimizers_capacity) {
        void *grown = amp__grow(bracket->optimizers, bracket->optimizers_capacity, n, sizeof *bracket->optimizers);
        if (!grown) return amp__fail_memory();
        bracket->optimizers = grown;
        bracket->optimizers_capacity = n;
    }
    bracket->opening.carried = 0.0f;
    for (size_t i = 0; i < n; i++) AMP_TRY(find_optimizer(bracket, users, i));
    bracket->n_optimizers = n;
    return AMP_OK;
}
