/* SPDX-License-Identifier: Apache-2.0 */
/* The scaler on the host. Gradients may be on devices all the same: then a bracket's end waits for one word
 * from each. */
#include "bracket/home.h"
#include "context/devices.h"
#include "context/parts.h"
#include "context/policy.h"
#include "kernels/place.h"

amp_status amp__home_refuse_capture(const amp_context *context, const char *function, const char *needs) {
    struct amp__devices *devices = amp__devices_of(context);
    bool capturing = false;
    for (size_t i = 0; i < devices->n_places && !capturing; i++)
        AMP_TRY(amp__place_capturing(devices->places[i], &capturing));
    AMP_RETURN_IF(capturing, AMP_ERR_WRONG_STATE,
                  "%s while the stream is being captured: a graph cannot ask the host. %s", function, needs);
    return AMP_OK;
}

static amp_status begin(struct amp__bracket *bracket, bool with_loss) {
    (void)with_loss;
    if (amp__scaling_is_trivial(&amp__policy_of(bracket->context)->properties)) return AMP_OK;
    return amp__home_refuse_capture(bracket->context, AMP__BRACKET_IN_CAPTURE);
}

static amp_status arm_place(const struct amp__bracket *bracket, struct amp__place *place) {
    const amp_factor inverse = { NULL, amp__rule_inverse(bracket->scale), AMP_FACTOR_AS_IT_IS };
    struct amp__device_scaler *words = place->words;
    struct amp__place_args *args = &place->args;
    args->inverse = args->deferred = inverse;
    args->found = &words->found;
    args->first = &words->first;
    args->restore_if = &words->found;
    place->n_inspected = 0;
    return amp__place_nothing_found(place, words);
}

static amp_status arm(const struct amp__bracket *bracket) {
    const struct amp__devices *devices = amp__devices_of(bracket->context);
    for (size_t i = 0; i < devices->n_places; i++) AMP_TRY(arm_place(bracket, devices->places[i]));
    return AMP_OK;
}

static amp_status find(const struct amp__bracket *bracket, struct amp__grads_result *result) {
    const struct amp__devices *devices = amp__devices_of(bracket->context);
    for (size_t i = 0; i < devices->n_places; i++) {
        const struct amp__place *place = devices->places[i];
        struct amp__device_scaler words;
        if (!place->n_inspected) continue;
        AMP_TRY(amp__place_out(place, &words, place->words, sizeof words));
        if (words.found == 0.0f) continue;
        result->found_inf = true;
        if (!result->first_nonfinite && words.first < place->n_inspected)
            result->first_nonfinite = place->inspected[words.first];
    }
    return AMP_OK;
}

static amp_status decide(struct amp__bracket *bracket, const struct amp__grads_result *result, bool overflow,
                         amp_action *action) {
    const struct amp__properties *properties = &amp__policy_of(bracket->context)->properties;
    amp_record *record = &bracket->record;
    /* where nothing is scaled nothing is counted either: Apex's way out (apex/amp/handle.py) */
    *action = amp__scaling_is_trivial(properties) ? AMP_STEP
                                                  : amp__scaler_update(&bracket->scaler, &properties->scaler, overflow);
    record->action = *action;
    record->scale_before = bracket->scale;
    record->scale_after = bracket->scaler.scale;
    record->brackets++;
    record->skipped += *action == AMP_SKIP;
    record->skips_in_row = bracket->scaler.skips_in_row;
    record->unskipped = bracket->scaler.unskipped;
    if (overflow) record->first_nonfinite = result->first_nonfinite ? result->first_nonfinite->name : NULL;
    bracket->found_inf = overflow ? 1.0f : 0.0f;
    return AMP_OK;
}

/* The host has the true state. */
static amp_status overflowed(const struct amp__bracket *bracket, bool *overflow) {
    (void)bracket, (void)overflow;
    return AMP_OK;
}
static amp_status nothing(struct amp__bracket *bracket) {
    (void)bracket;
    return AMP_OK;
}
static void forget(struct amp__bracket *bracket) { (void)bracket; }

const struct amp__scaler_home amp__home_host = {
    .begin = begin,
    .arm = arm,
    .find = find,
    .overflowed = overflowed,
    .keep = nothing,
    .decide = decide,
    .forget = forget,
    .read = nothing,
    .write = nothing,
};
