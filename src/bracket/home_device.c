/* SPDX-License-Identifier: Apache-2.0 */
/* The scaler in a device's memory, and which home a context's scalers have (home.h). */
#include "bracket/bracket.h"
#include "bracket/home.h"
#include "context/brackets.h"
#include "context/devices.h"
#include "context/optimizer.h"
#include "context/params.h"
#include "context/parts.h"
#include "context/policy.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static struct amp__place *place_of(const struct amp__bracket *bracket) {
    return amp__devices_of(bracket->context)->places[0];
}

/* ---- decisions that the host needs ---- */

/* The decision is the same whatever is found. */
static bool never_skips(const amp_context *context) {
    return !amp__scaler_skips(&amp__policy_of(context)->properties.scaler);
}

/* The decision concerns the bracket's optimizers, and those of brackets that delayed their check. */
static bool concerns(const struct amp__bracket *bracket, const struct amp__optimizer *optimizer) {
    const bool *unchecked = bracket->unchecked.by_optimizer;
    bool concerned = unchecked && unchecked[optimizer - amp__optimizers_of(bracket->context)->list];
    for (size_t i = 0; i < bracket->n_optimizers; i++) concerned |= bracket->optimizers[i] == optimizer;
    return concerned;
}

static bool can_decide_alone(const struct amp__bracket *bracket, bool with_loss) {
    const struct amp__optimizers *optimizers = amp__optimizers_of(bracket->context);
    const amp_host *host = bracket->host;
    const bool ranks = host && amp__host_has_ranks(host), there = ranks && amp__home_agrees_there(bracket);
    if (never_skips(bracket->context) && !there) return true;
    if (!host || (ranks && !there)) return false;
    for (size_t i = 0; i < optimizers->n; i++)
        if (concerns(bracket, &optimizers->list[i]) && !optimizers->list[i].skips_on_device) return false;
    if (!amp__policy_of(bracket->context)->properties.scaler.dynamic) return true;
    return (with_loss && host->scale_by) || (host->flags & AMP_HOST_SEEDS_ON_DEVICE);
}

static amp_status begin(struct amp__bracket *bracket, bool with_loss) {
    bracket->device.decides_alone = can_decide_alone(bracket, with_loss);
    /* an earlier decision still in flight must not be taken for this one */
    if (bracket->device.decides_alone)
        return bracket->device.last == AMP__DECISION_COPYING ? amp__home_wait(bracket->context) : AMP_OK;
    AMP_TRY(amp__home_refuse_capture(bracket->context, AMP__BRACKET_IN_CAPTURE));
    return bracket->device.last == AMP__DECISION_ON_DEVICE ? amp__home_device.read(bracket)
                                                           : amp__home_wait(bracket->context);
}

const float *amp__home_device_scale(const struct amp__bracket *bracket) {
    if (!bracket->device.decides_alone || !bracket->host || !bracket->host->scale_by) return NULL;
    return amp__policy_of(bracket->context)->properties.scaler.dynamic ? &bracket->device.scaler->state.scale : NULL;
}

amp_factor amp__home_inverse(const struct amp__bracket *bracket) {
    const float scale = amp__bracket_is_open(bracket) ? bracket->scale : bracket->scaler.scale;
    if (bracket->device.scaler) return (amp_factor){ &bracket->device.scaler->inverse, 0.0f, AMP_FACTOR_AS_IT_IS };
    return (amp_factor){ NULL, amp__rule_inverse(scale), AMP_FACTOR_AS_IT_IS };
}

/* ---- an end ---- */

static amp_status arm(const struct amp__bracket *bracket) {
    struct amp__device_scaler *scaler = bracket->device.scaler;
    struct amp__place *place = place_of(bracket);
    struct amp__place_args *args = &place->args;
    const float inverse = amp__rule_inverse(bracket->scale);
    args->inverse = (amp_factor){ &scaler->inverse, inverse, AMP_FACTOR_AS_IT_IS };
    args->deferred = (amp_factor){ &scaler->left, inverse, AMP_FACTOR_AS_IT_IS };
    args->found = &scaler->found;
    args->first = &scaler->first;
    args->restore_if = &scaler->found;
    place->n_inspected = 0;
    return AMP_OK;
}

static amp_status find(const struct amp__bracket *bracket, struct amp__grads_result *result) {
    (void)bracket, (void)result;
    return AMP_OK;
}

static amp_status overflowed(const struct amp__bracket *bracket, bool *overflow) {
    float found = 0.0f;
    if (never_skips(bracket->context)) return AMP_OK;
    AMP_TRY(amp__place_out(place_of(bracket), &found, &bracket->device.scaler->found, sizeof found));
    *overflow = found != 0.0f;
    return AMP_OK;
}

/* Keeps the names of the inspected gradients, to find the first non-finite one later. */
static amp_status keep_looked(struct amp__bracket *bracket, const struct amp__place *place) {
    const size_t n = place->n_inspected;
    if (n == bracket->device.n_looked &&
        (!n || !memcmp(bracket->device.looked, place->inspected, n * sizeof *place->inspected)))
        return AMP_OK;
    if (n > bracket->device.looked_capacity) {
        void *grown = amp__grow(bracket->device.looked, bracket->device.looked_capacity, n,
                                sizeof *bracket->device.looked);
        if (!grown) return amp__fail_memory();
        bracket->device.looked = grown;
        bracket->device.looked_capacity = n;
    }
    if (n) memcpy(bracket->device.looked, place->inspected, n * sizeof *place->inspected);
    bracket->device.looked_changed |= bracket->device.n_looked != 0 && bracket->device.last == AMP__DECISION_ON_DEVICE;
    bracket->device.n_looked = n;
    return AMP_OK;
}

/* Counts the optimizers that it concerns and that skip on the device; the others wait for it. */
static size_t list_concerned(struct amp__bracket *bracket) {
    const amp_context *context = bracket->context;
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    size_t n = 0;
    for (size_t i = 0; i < optimizers->n; i++) {
        if (!concerns(bracket, &optimizers->list[i])) continue;
        if (optimizers->list[i].skips_on_device) bracket->device.which[n++] = (uint32_t)i;
        else bracket->device.waiting[i] = true;
    }
    return n;
}

/* decides: false leaves the results to a later end. overflow: also of another rank. */
static amp_status end_on_device(struct amp__bracket *bracket, bool decides, bool overflow) {
    const struct amp__devices *devices = amp__devices_of(bracket->context);
    const struct amp__place *place = devices->places[0];
    struct amp__memory_call call = { .scaler = bracket->device.scaler,
                                     .settings = &amp__policy_of(bracket->context)->properties.scaler,
                                     .decides = decides, .found_elsewhere = overflow, .skips = devices->skips,
                                     .which = bracket->device.which };
    AMP_TRY(keep_looked(bracket, place));
    call.n = decides ? list_concerned(bracket) : 0;
    AMP_TRY(amp__place_end_bracket(place, &call));
    if (!decides) return AMP_OK;
    bracket->device.last = AMP__DECISION_ON_DEVICE;
    if (bracket->device.decides_alone) return AMP_OK;
    AMP_TRY(amp__place_fetch(place, &bracket->device.copy, bracket->device.scaler, sizeof *bracket->device.scaler));
    bracket->device.last = AMP__DECISION_COPYING;
    return AMP_OK;
}

static amp_status keep(struct amp__bracket *bracket) { return end_on_device(bracket, false, false); }

static amp_status decide(struct amp__bracket *bracket, const struct amp__grads_result *result, bool overflow,
                         amp_action *action) {
    (void)result;
    *action = AMP_STEP_ON_DEVICE;
    return end_on_device(bracket, true, overflow);
}

/* Withdraws the vote of this rank. */
static amp_status take_back(const struct amp__bracket *bracket) {
    const struct amp__place *place = place_of(bracket);
    AMP_TRY(amp__place_zero(place, &bracket->device.scaler->gave_up, sizeof(float)));
    return amp__place_raise(place, &bracket->device.scaler->ended);
}

static void forget(struct amp__bracket *bracket) {
    (void)amp__place_nothing_found(place_of(bracket), bracket->device.scaler);
    if (bracket->host && amp__home_agrees_there(bracket)) (void)take_back(bracket);
}

/* ---- ranks ---- */

bool amp__home_agrees_there(const struct amp__bracket *bracket) {
    return bracket->device.scaler && bracket->host->reduce_on_device;
}

amp_status amp__home_agree(const struct amp__bracket *bracket, bool gave_up, bool *anybody_ended) {
    struct amp__device_scaler *scaler = bracket->device.scaler;
    const struct amp__place *place = place_of(bracket);
    enum { WORDS = 3 };
    float words[WORDS];
    void *stream = NULL;
    _Static_assert(offsetof(struct amp__device_scaler, found) - offsetof(struct amp__device_scaler, gave_up) == 8 &&
                   offsetof(struct amp__device_scaler, found) - offsetof(struct amp__device_scaler, ended) == 4,
                   "one array of WORDS");
    if (gave_up) AMP_TRY(amp__place_raise(place, &scaler->gave_up));
    if (anybody_ended) AMP_TRY(amp__place_zero(place, &scaler->ended, sizeof scaler->ended));
    AMP_TRY(amp__place_stream(place, &stream));
    AMP_TRY(amp__host_reduce_on_device(bracket->host, stream, &scaler->gave_up, WORDS));
    if (!anybody_ended) return AMP_OK;
    AMP_TRY(amp__place_out(place, words, &scaler->gave_up, sizeof words));
    *anybody_ended = words[1] > 0.0f;
    return *anybody_ended ? AMP_OK : take_back(bracket);
}

/* ---- copies to the host ---- */

static void absorb(struct amp__bracket *bracket, const struct amp__device_scaler *now) {
    amp_context *context = bracket->context;
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    amp_record *record = &bracket->record;
    const uint32_t number = now->first_nonfinite;
    const struct amp__param *first = number < bracket->device.n_looked ? bracket->device.looked[number] : NULL;
    bracket->scaler = now->state;
    bracket->scale = now->state.scale;
    bracket->found_inf = now->found_inf;
    if (now->skipped != record->skipped || now->found_inf != 0.0f)
        record->first_nonfinite = first && !bracket->device.looked_changed ? first->name : NULL;
    record->action = now->action;
    record->scale_before = now->scale_before;
    record->scale_after = now->state.scale;
    record->brackets = now->brackets;
    record->skipped = now->skipped;
    record->skips_in_row = now->state.skips_in_row;
    record->unskipped = now->state.unskipped;
    for (size_t i = 0; i < optimizers->n; i++) {
        amp__step_decides(&optimizers->list[i],
                          bracket->device.waiting[i] && amp__rule_decided(now) == AMP_SKIP);
        bracket->device.waiting[i] = false;
    }
    bracket->device.looked_changed = false;
    bracket->device.last = AMP__DECISION_KNOWN;
}

static amp_status take(struct amp__bracket *bracket) {
    struct amp__device_scaler now;
    AMP_TRY(amp__place_fetched(place_of(bracket), bracket->device.copy, &now, sizeof now));
    absorb(bracket, &now);
    if (now.given_up) amp__bracket_tell_given_up(bracket);
    else amp__bracket_tell(bracket, now.action, now.first_nonfinite != AMP__NO_TENSOR);
    return AMP_OK;
}

amp_status amp__home_wait(amp_context *context) {
    struct amp__brackets *brackets = amp__brackets_of(context);
    for (uint32_t i = 0; i < brackets->n; i++)
        if (brackets->list[i].device.last == AMP__DECISION_COPYING) AMP_TRY(take(&brackets->list[i]));
    return AMP_OK;
}

static amp_status read(struct amp__bracket *bracket) {
    struct amp__device_scaler now;
    bool capturing = false;
    if (bracket->device.last == AMP__DECISION_COPYING) return take(bracket);
    const struct amp__place *place = place_of(bracket);
    AMP_TRY(amp__place_capturing(place, &capturing));
    AMP_RETURN_IF(capturing, AMP_ERR_WRONG_STATE,
                  "the loss scale is on the device, which cannot be asked while its stream is being captured in a "
                  "graph");
    AMP_TRY(amp__place_out(place, &now, bracket->device.scaler, sizeof now));
    absorb(bracket, &now);
    return AMP_OK;
}

amp_status amp__home_read_all(amp_context *context) {
    struct amp__brackets *brackets = amp__brackets_of(context);
    for (uint32_t i = 0; i < brackets->n; i++)
        AMP_TRY(brackets->list[i].home->read(&brackets->list[i]));
    return AMP_OK;
}

static amp_status write(struct amp__bracket *bracket) {
    struct amp__device_scaler now;
    amp__scaler_for_device(&now, &bracket->scaler, bracket->record.brackets, bracket->record.skipped);
    return amp__place_in(place_of(bracket), bracket->device.scaler, &now, sizeof now);
}

const struct amp__scaler_home amp__home_device = {
    .begin = begin,
    .arm = arm,
    .find = find,
    .overflowed = overflowed,
    .keep = keep,
    .decide = decide,
    .forget = forget,
    .read = read,
    .write = write,
};

/* ---- a step ---- */

/* NULL: there is none to read, for one thing where a scale that never skips has no other ranks to give up with it. */
static float *skip_of(const struct amp__optimizer *optimizer) {
    const amp_context *context = optimizer->context;
    const struct amp__devices *devices = amp__devices_of(context);
    const bool may_skip = !never_skips(context) || optimizer->host.reduce_on_device;
    const bool reads = devices->skips && optimizer->skips_on_device && may_skip;
    return reads ? devices->skips + amp__optimizer_number(optimizer) : NULL;
}

const float *amp__home_skip(const struct amp__optimizer *optimizer) { return skip_of(optimizer); }

amp_status amp__home_stepped(struct amp__optimizer *optimizer) {
    float *skip = skip_of(optimizer);
    return skip ? amp__place_zero(amp__devices_of(optimizer->context)->places[0], skip, sizeof *skip) : AMP_OK;
}

/* ---- where the scalers live ---- */

static bool all_on_one_device(const amp_context *context) {
    const struct amp__params *params = amp__params_of(context);
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    if (amp__devices_of(context)->n_places != 1 || !optimizers->n) return false;
    if (amp__scaling_is_trivial(&amp__policy_of(context)->properties)) return false;
    for (size_t i = 0; i < params->n; i++)
        if (params->list[i]->in_optimizer && !params->list[i]->on_device) return false;
    return true;
}

static amp_status move_to_device(size_t n_optimizers, struct amp__bracket *bracket,
                                 struct amp__device_scaler *scaler) {
    bracket->device.waiting = amp__alloc(n_optimizers, sizeof *bracket->device.waiting);
    bracket->device.which = amp__alloc(n_optimizers, sizeof *bracket->device.which);
    if (!bracket->device.waiting || !bracket->device.which) return amp__fail_memory();
    bracket->home = &amp__home_device;
    bracket->device.scaler = scaler;
    bracket->shown.scale = &scaler->state.scale;
    bracket->shown.found_inf = &scaler->found_inf;
    return write(bracket);
}

/* Checks that the host has the hook that replaces questions to it. */
static amp_status need_reduce(const amp_context *context) {
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    const bool trivial = amp__scaling_is_trivial(&amp__policy_of(context)->properties);
    const bool there = all_on_one_device(context);
    char who[48];
    for (size_t i = 0; i < optimizers->n; i++) {
        const struct amp__optimizer *optimizer = &optimizers->list[i];
        const amp_host *host = &optimizer->host;
        snprintf(who, sizeof who, "optimizer %zu:", i);
        if (!host->reduce_on_device || host->reduce) continue;
        AMP_TRY(amp__host_need(!optimizer->sharded, "reduce", who,
                               "AMP_OPTIMIZER_SHARDED adds norms up on the host, whatever reduce_on_device does"));
        AMP_TRY(amp__host_need(there || trivial, "reduce", who,
                               "its context's parameters are not all in one device's memory, so that its loss scalers "
                               "live on the host, beyond reduce_on_device"));
    }
    return AMP_OK;
}

amp_status amp__home_start(amp_context *context) {
    struct amp__devices *devices = amp__devices_of(context);
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    const struct amp__brackets *brackets = amp__brackets_of(context);
    const size_t scalers = brackets->n * sizeof(struct amp__device_scaler),
                 bytes = scalers + optimizers->n * sizeof(float);
    void *block = NULL;
    AMP_TRY(need_reduce(context));
    if (!all_on_one_device(context)) {
        for (size_t i = 0; i < optimizers->n; i++) optimizers->list[i].skips_on_device = false;
        for (size_t i = 0; i < devices->n_places; i++) {
            AMP_TRY(amp__place_alloc(devices->places[i], sizeof(struct amp__device_scaler), &block));
            devices->places[i]->words = block;
        }
        return AMP_OK;
    }
    const struct amp__place *place = devices->places[0];
    AMP_TRY(amp__place_alloc(place, bytes, &block));
    devices->scalers = block;
    devices->skips = (float *)(void *)((char *)block + scalers);
    AMP_TRY(amp__place_zero(place, devices->skips, optimizers->n * sizeof(float)));
    for (uint32_t i = 0; i < brackets->n; i++)
        AMP_TRY(move_to_device(optimizers->n, &brackets->list[i], &devices->scalers[i]));
    return AMP_OK;
}

void amp__home_end(amp_context *context) {
    struct amp__brackets *brackets = amp__brackets_of(context);
    struct amp__devices *devices = amp__devices_of(context);
    for (uint32_t i = 0; i < brackets->n && devices->n_places; i++) {
        struct amp__bracket *bracket = &brackets->list[i];
        amp__place_fetch_free(devices->places[0], bracket->device.copy);
        amp__free(bracket->device.waiting);
        amp__free(bracket->device.which);
        amp__free(bracket->device.looked);
    }
    if (devices->scalers) amp__place_free(devices->places[0], devices->scalers);
}
