/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brackets whose gradients are on devices. The decision is made there. Nobody on the host needs to know it if every optimizer
 * of the bracket reads the flag on the device and the loss is scaled there: such a bracket is blind, and costs no wait.
 * Otherwise its end posts the scaler to the host, one copy, and what needs it, a step or the next begin, waits for that.
 */
#include "amp_diagnostics.h"
#include "bracket/there.h"
#include "bracket/bracket.h"
#include "context/context.h"
#include "context/optimizer.h"

#include <string.h>

/* ---- who knows ---- */

/* The decision is the same whatever is found. */
static bool never_skips(const amp_context *context) { return !amp__scaler_skips(&context->properties.scaler); }

static bool is_blind(const struct amp__bracket *bracket, bool with_loss) {
    const amp_host *host = bracket->host;
    if (never_skips(bracket->context)) return true;
    if (!host || amp__host_has_ranks(host)) return false;
    for (size_t i = 0; i < bracket->n_optimizers; i++)
        if (!bracket->optimizers[i]->skips_there) return false;
    if (!bracket->context->properties.scaler.dynamic) return true;
    return (with_loss && host->scale_by) || (host->flags & AMP_HOST_SEEDS_ON_DEVICE);
}

amp_status amp__there_begin(struct amp__bracket *bracket, bool with_loss) {
    const amp_context *context = bracket->context;
    bool capturing = false;
    bracket->blind = bracket->there && is_blind(bracket, with_loss);
    if (bracket->blind || amp__scaling_is_trivial(&context->properties)) return AMP_OK;
    for (size_t i = 0; i < context->n_places && !capturing; i++) AMP_TRY(amp__place_capturing(context->places[i], &capturing));
    AMP_RETURN_IF(capturing, AMP_ERR_WRONG_STATE,
                  "amp_scale_loss_begin while the stream is being captured: a graph cannot ask the host. It needs optimizers that "
                  "skip on the device (amp_optimizer.fused or AMP_OPTIMIZER_SKIPS_ON_DEVICE) with all parameters there, the hook "
                  "scale_by or AMP_HOST_SEEDS_ON_DEVICE, and no ranks to agree with (the hook reduce)");
    if (!bracket->there) return AMP_OK;
    AMP_TRY(bracket->unheard ? amp__there_learn(bracket) : amp__there_hear(bracket->context));
    bracket->scale = bracket->scaler.scale;
    return AMP_OK;
}

/* ---- an end ---- */

static amp_status arm_place(const struct amp__bracket *bracket, struct amp__place *place) {
    struct amp__device_scaler *words = bracket->there ? bracket->there : place->words, fresh;
    struct amp__place_args *args = &place->args;
    const amp_factor inverse = { bracket->there ? &words->inverse : NULL, amp__rule_inverse(bracket->scale), AMP_FACTOR_AS_IT_IS };
    args->inverse = args->left = inverse;
    if (bracket->there) args->left.pointer = &words->left;
    args->found = &words->found;
    args->first = &words->first;
    args->restore_if = &words->found;
    place->n_looked = 0;
    if (bracket->there) return AMP_OK;
    amp__rule_begin(&fresh);
    _Static_assert(offsetof(struct amp__device_scaler, first) == offsetof(struct amp__device_scaler, found) + sizeof(float),
                   "found and first are written together");
    return amp__place_in(place, &words->found, &fresh.found, sizeof fresh.found + sizeof fresh.first);
}

amp_status amp__there_arm(const struct amp__bracket *bracket) {
    const amp_context *context = bracket->context;
    for (size_t i = 0; i < context->n_places; i++) AMP_TRY(arm_place(bracket, context->places[i]));
    return AMP_OK;
}

static const struct amp__param *looked_at(const void *const *looked, size_t n, uint32_t number) {
    return number < n ? looked[number] : NULL;
}

amp_status amp__there_find(const struct amp__bracket *bracket, struct amp__grads_result *result) {
    const amp_context *context = bracket->context;
    for (size_t i = 0; i < context->n_places && !bracket->there; i++) {
        const struct amp__place *place = context->places[i];
        struct amp__device_scaler words;
        if (!place->n_looked) continue;
        AMP_TRY(amp__place_out(place, &words, place->words, sizeof words));
        if (words.found == 0.0f) continue;
        result->found_inf = true;
        if (!result->first_nonfinite) result->first_nonfinite = looked_at(place->looked, place->n_looked, words.first);
    }
    return AMP_OK;
}

amp_status amp__there_ask(const struct amp__bracket *bracket, bool *found_inf) {
    float found = 0.0f;
    if (never_skips(bracket->context)) return AMP_OK;
    AMP_TRY(amp__place_out(bracket->context->places[0], &found, &bracket->there->found, sizeof found));
    *found_inf = found != 0.0f;
    return AMP_OK;
}

/* Names of what this end looked at, for whoever asks later which gradient was not finite. */
static amp_status keep_looked(struct amp__bracket *bracket, const struct amp__place *place) {
    const size_t n = place->n_looked;
    if (n == bracket->n_looked && (!n || !memcmp(bracket->looked, place->looked, n * sizeof *place->looked))) return AMP_OK;
    if (n > bracket->looked_capacity) {
        void *grown = amp__grow(bracket->looked, bracket->looked_capacity, n, sizeof *bracket->looked);
        if (!grown) return amp__fail_memory();
        bracket->looked = grown;
        bracket->looked_capacity = n;
    }
    if (n) memcpy(bracket->looked, place->looked, n * sizeof *place->looked);
    bracket->looked_changed |= bracket->n_looked != 0 && bracket->unheard;
    bracket->n_looked = n;
    return AMP_OK;
}

/* Which optimizers it concerns: those of the bracket, and those of brackets that delayed their check. */
static size_t concern(struct amp__bracket *bracket) {
    const amp_context *context = bracket->context;
    size_t n = 0;
    for (size_t i = 0; i < context->n_optimizers; i++) {
        const struct amp__optimizer *optimizer = &context->optimizers[i];
        bool concerned = bracket->unchecked && bracket->unchecked[i];
        for (size_t k = 0; k < bracket->n_optimizers; k++) concerned |= bracket->optimizers[k] == optimizer;
        if (concerned && optimizer->skips_there) bracket->which[n++] = (uint32_t)i;
        else if (concerned) bracket->told[i] = true;
    }
    return n;
}

amp_status amp__there_decide(struct amp__bracket *bracket, bool decides, bool found_elsewhere) {
    const amp_context *context = bracket->context;
    const struct amp__place *place = context->places[0];
    struct amp__memory_call call = { .scaler = bracket->there, .settings = &context->properties.scaler, .decides = decides,
                                     .found_elsewhere = found_elsewhere, .skips = context->skips, .which = bracket->which };
    AMP_TRY(keep_looked(bracket, place));
    call.n = decides ? concern(bracket) : 0;
    AMP_TRY(amp__place_end_bracket(place, &call));
    bracket->unheard |= decides && bracket->blind;
    if (!decides || bracket->blind) return AMP_OK;
    AMP_TRY(amp__place_post(place, &bracket->letter, bracket->there, sizeof *bracket->there));
    bracket->posted = true;
    return AMP_OK;
}

void amp__there_forget(struct amp__bracket *bracket) {
    static const struct amp__device_scaler nothing = { .found = 0.0f, .first = AMP__NO_TENSOR };
    if (!bracket->there) return;
    (void)amp__place_in(bracket->context->places[0], &bracket->there->found, &nothing.found,
                        sizeof nothing.found + sizeof nothing.first);
}

/* ---- hearing of it ---- */

static void absorb(struct amp__bracket *bracket, const struct amp__device_scaler *now) {
    amp_context *context = bracket->context;
    amp_record *record = &bracket->record;
    const struct amp__param *first = looked_at(bracket->looked, bracket->n_looked, now->first_nonfinite);
    bracket->scaler = now->state;
    bracket->found_inf = now->found_inf;
    if (now->skipped != record->skipped || now->found_inf != 0.0f)
        record->first_nonfinite = first && !bracket->looked_changed ? first->name : NULL;
    record->action = now->action;
    record->scale_before = now->scale_before;
    record->scale_after = now->state.scale;
    record->brackets = now->brackets;
    record->skipped = now->skipped;
    record->skips_in_row = now->state.skips_in_row;
    record->unskipped = now->state.unskipped;
    for (size_t i = 0; i < context->n_optimizers; i++) {
        context->optimizers[i].skip |= bracket->told[i] && now->action == AMP_SKIP;
        bracket->told[i] = false;
    }
    bracket->looked_changed = bracket->unheard = false;
}

static amp_status take(struct amp__bracket *bracket) {
    struct amp__device_scaler now;
    AMP_TRY(amp__place_take(bracket->context->places[0], bracket->letter, &now, sizeof now));
    bracket->posted = false;
    absorb(bracket, &now);
    amp__bracket_tell(bracket, now.action, now.first_nonfinite != AMP__NO_TENSOR);
    return AMP_OK;
}

amp_status amp__there_hear(amp_context *context) {
    for (uint32_t i = 0; context->skips && i < context->properties.num_losses; i++)
        if (context->brackets[i].posted) AMP_TRY(take(&context->brackets[i]));
    return AMP_OK;
}

amp_status amp__there_learn(struct amp__bracket *bracket) {
    struct amp__device_scaler now;
    bool capturing = false;
    if (!bracket->there) return AMP_OK;
    if (bracket->posted) return take(bracket);
    const struct amp__place *place = bracket->context->places[0];
    AMP_TRY(amp__place_capturing(place, &capturing));
    AMP_RETURN_IF(capturing, AMP_ERR_WRONG_STATE,
                  "the loss scale is on the device, which cannot be asked while its stream is being captured in a graph");
    AMP_TRY(amp__place_out(place, &now, bracket->there, sizeof now));
    absorb(bracket, &now);
    return AMP_OK;
}

amp_status amp__there_learn_all(amp_context *context) {
    for (uint32_t i = 0; context->skips && i < context->properties.num_losses; i++)
        AMP_TRY(amp__there_learn(&context->brackets[i]));
    return AMP_OK;
}

amp_status amp__there_set(struct amp__bracket *bracket) {
    struct amp__device_scaler now;
    if (!bracket->there) return AMP_OK;
    amp__scaler_for_device(&now, &bracket->scaler, bracket->record.brackets, bracket->record.skipped);
    return amp__place_in(bracket->context->places[0], bracket->there, &now, sizeof now);
}

/* ---- a step ---- */

const float *amp__there_skip(const struct amp__optimizer *optimizer) {
    const amp_context *context = optimizer->context;
    return context->skips && optimizer->skips_there ? context->skips + (optimizer - context->optimizers) : NULL;
}

amp_status amp__there_stepped(struct amp__optimizer *optimizer) {
    const float *skip = amp__there_skip(optimizer);
    if (!skip) return AMP_OK;
    return amp__place_zero(optimizer->context->places[0], optimizer->context->skips + (skip - optimizer->context->skips),
                           sizeof *skip);
}

/* ---- where the scalers live ---- */

static bool all_there(const amp_context *context) {
    if (context->n_places != 1 || !context->n_optimizers || amp__scaling_is_trivial(&context->properties)) return false;
    for (size_t i = 0; i < context->n_params; i++)
        if (context->params[i]->in_optimizer && !context->params[i]->on_device) return false;
    return true;
}

static amp_status start_bracket(amp_context *context, struct amp__bracket *bracket, struct amp__device_scaler *there) {
    bracket->told = amp__alloc(context->n_optimizers, sizeof *bracket->told);
    bracket->which = amp__alloc(context->n_optimizers, sizeof *bracket->which);
    if (!bracket->told || !bracket->which) return amp__fail_memory();
    bracket->there = there;
    return amp__there_set(bracket);
}

amp_status amp__there_start(amp_context *context) {
    const size_t losses = context->properties.num_losses;
    const size_t scalers = losses * sizeof(struct amp__device_scaler), bytes = scalers + context->n_optimizers * sizeof(float);
    void *block = NULL;
    if (!all_there(context)) {
        for (size_t i = 0; i < context->n_optimizers; i++) context->optimizers[i].skips_there = false;
        for (size_t i = 0; i < context->n_places; i++) {
            AMP_TRY(amp__place_alloc(context->places[i], sizeof(struct amp__device_scaler), &block));
            context->places[i]->words = block;
        }
        return AMP_OK;
    }
    const struct amp__place *place = context->places[0];
    AMP_TRY(amp__place_alloc(place, bytes, &block));
    context->scalers = block;
    context->skips = (float *)(void *)((char *)block + scalers);
    AMP_TRY(amp__place_zero(place, context->skips, context->n_optimizers * sizeof(float)));
    for (uint32_t i = 0; i < losses; i++) AMP_TRY(start_bracket(context, &context->brackets[i], &context->scalers[i]));
    return AMP_OK;
}

void amp__there_end(amp_context *context) {
    for (uint32_t i = 0; context->brackets && context->n_places && i < context->properties.num_losses; i++) {
        struct amp__bracket *bracket = &context->brackets[i];
        amp__place_letter_free(context->places[0], bracket->letter);
        amp__free(bracket->told);
        amp__free(bracket->which);
        amp__free(bracket->looked);
    }
    if (context->scalers) amp__place_free(context->places[0], context->scalers);
}
