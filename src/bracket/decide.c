/* SPDX-License-Identifier: Apache-2.0 */
/* From the results of a bracket to its decision, with delayed checks of earlier brackets, and with other ranks. */
#include "amp_diagnostics.h"
#include "bracket/bracket.h"
#include "bracket/home.h"
#include "bracket/wiring.h"
#include "context/devices.h"
#include "context/findings.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/report.h"

#include <stdio.h>

/* all: gradients delayed by earlier brackets too. */
static amp_status cancel_gradients(const struct amp__bracket *bracket, bool all) {
    amp_status status = AMP_OK;
    for (size_t i = 0; i < bracket->n_optimizers; i++) {
        struct amp__optimizer *optimizer = bracket->optimizers[i];
        const amp_status one_status = amp__grads_cancel(optimizer->params, optimizer->n_params, all);
        if (one_status != AMP_OK) status = one_status;
        if (all) amp__step_drops_delay(optimizer);
    }
    const amp_status launched = amp__places_flush(amp__devices_of(bracket->context));
    return status == AMP_OK ? launched : status;
}

/* ---- delayed checks ---- */

amp_status amp__bracket_delay_check(struct amp__bracket *bracket, const struct amp__grads_result *result) {
    bracket->unchecked.found_inf = result->found_inf;
    bracket->unchecked.first = result->first_nonfinite;
    bracket->found_inf = result->found_inf ? 1.0f : 0.0f;
    for (size_t i = 0; i < bracket->n_optimizers; i++) {
        struct amp__optimizer *optimizer = bracket->optimizers[i];
        bool *unchecked = &bracket->unchecked.by_optimizer[amp__optimizer_number(optimizer)];
        optimizer->delay.unchecked += !*unchecked;
        amp__step_drops_delay(optimizer);
        *unchecked = true;
    }
    return bracket->home->keep(bracket);
}

/* Applies the decision to all optimizers with a check delayed to this bracket. */
static void end_delayed_check(struct amp__bracket *bracket, bool skip) {
    const struct amp__optimizers *optimizers = amp__optimizers_of(bracket->context);
    for (size_t i = 0; bracket->unchecked.by_optimizer && i < optimizers->n; i++) {
        struct amp__optimizer *optimizer = &optimizers->list[i];
        if (!bracket->unchecked.by_optimizer[i]) continue;
        bracket->unchecked.by_optimizer[i] = false;
        optimizer->delay.unchecked--;
        amp__step_decides(optimizer, skip);
    }
    bracket->unchecked.found_inf = false;
    bracket->unchecked.first = NULL;
}

/* ---- several ranks ---- */

/*
 * The data that ranks exchange at the end of a bracket, by maximum. Every rank comes here once for every bracket that
 * is not delayed, whatever its result: a missing rank would make the others wait.
 */
struct agreement {
    bool overflow;
    bool gave_up; /* an error, or amp_scale_loss_cancel: no rank steps, no scale changes */
    bool ended;   /* false everywhere: all cancelled, so there was no bracket */
};

static amp_status agree_here(const struct amp__bracket *bracket, struct agreement *agreement) {
    double values[] = { agreement->overflow, agreement->gave_up, agreement->ended };
    AMP_TRY(amp__host_reduce(bracket->host, AMP_REDUCE_MAX, values, AMP_COUNT(values)));
    *agreement = (struct agreement){ !(values[0] <= 0.0), !(values[1] <= 0.0), !(values[2] <= 0.0) };
    return AMP_OK;
}

/* Exchanges the data where the scaler is. On a device the host only learns of it in a cancel. */
static amp_status agree_there(const struct amp__bracket *bracket, struct agreement *agreement) {
    return amp__home_agree(bracket, agreement->gave_up, agreement->ended ? NULL : &agreement->ended);
}

static amp_status agree(const struct amp__bracket *bracket, struct agreement *agreement) {
    if (!amp__bracket_has_ranks(bracket)) return AMP_OK;
    for (size_t i = 0; i < bracket->n_optimizers; i++) /* errors unknown to other ranks */
        agreement->gave_up |= bracket->optimizers[i]->delay.failed;
    AMP_TRY(amp__home_agrees_there(bracket) ? agree_there(bracket, agreement) : agree_here(bracket, agreement));
    for (size_t i = 0; i < bracket->n_optimizers; i++) bracket->optimizers[i]->delay.failed &= !agreement->ended;
    return AMP_OK;
}

static void skip_all(const struct amp__bracket *bracket) {
    for (size_t i = 0; i < bracket->n_optimizers; i++) {
        amp__step_decides(bracket->optimizers[i], true);
        amp__step_drops_delay(bracket->optimizers[i]);
    }
}

amp_status amp__bracket_conclude(struct amp__bracket *bracket, const struct amp__grads_result *result,
                                 amp_action *action) {
    struct agreement agreement = { result->found_inf, false, true };
    if (amp__bracket_has_ranks(bracket) && !amp__home_agrees_there(bracket))
        AMP_TRY(bracket->home->overflowed(bracket, &agreement.overflow));
    AMP_TRY(agree(bracket, &agreement));
    if (agreement.gave_up) {
        skip_all(bracket);
        end_delayed_check(bracket, true);
        bracket->home->forget(bracket);
        *action = AMP_SKIP;
        amp__bracket_tell_given_up(bracket);
        return AMP_OK;
    }
    AMP_TRY(bracket->home->decide(bracket, result, agreement.overflow, action));
    for (size_t i = 0; i < bracket->n_optimizers; i++) {
        amp__step_decides(bracket->optimizers[i], *action == AMP_SKIP);
        bracket->optimizers[i]->decision.made++;
        amp__step_drops_delay(bracket->optimizers[i]);
    }
    end_delayed_check(bracket, *action == AMP_SKIP);
    if (*action != AMP_STEP_ON_DEVICE) amp__bracket_tell(bracket, *action, result->found_inf);
    return AMP_OK;
}

/* Reports an error to other ranks. If the end of a delayed bracket cannot, the end of the one that unscales does. */
void amp__bracket_give_up(struct amp__bracket *bracket, bool agreed) {
    struct agreement agreement = { false, true, true };
    amp__places_drop(amp__devices_of(bracket->context));
    if (!agreed) (void)agree(bracket, &agreement);
    (void)cancel_gradients(bracket, true);
    bracket->home->forget(bracket);
    skip_all(bracket);
    for (size_t i = 0; i < bracket->n_optimizers; i++)
        bracket->optimizers[i]->delay.failed |= amp__bracket_puts_off(bracket);
    if (!amp__bracket_puts_off(bracket)) end_delayed_check(bracket, true);
}

amp_status amp__bracket_cancel(struct amp__bracket *bracket) {
    struct agreement agreement = { false, true, false };
    const amp_status told = agree(bracket, &agreement);
    const bool alone = agreement.ended || told != AMP_OK; /* other ranks wanted to step: none does */
    const amp_status status = cancel_gradients(bracket, alone);
    if (alone) skip_all(bracket);
    if (alone) end_delayed_check(bracket, true);
    if (alone) bracket->home->forget(bracket);
    return told != AMP_OK ? told : status;
}

/* Finding the scale may take a few skips in a row; where the host stepped on one of them they will not end. */
enum { SUSPICIOUS_SKIPS = 4 };

static void look_for_the_cause(const struct amp__bracket *bracket) {
    const struct amp__param *param = amp__wiring_nonfinite_param(bracket->context);
    if (param)
        amp__find(bracket->context, AMP__NONFINITE_PARAMETER, param->name,
                  "loss %u: %d steps in a row were skipped, because %s itself has NaN or infinity",
                  (unsigned)bracket->loss_id, (int)SUSPICIOUS_SKIPS, param->name);
}

amp_status amp__bracket_check_skips(struct amp__bracket *bracket, bool overflow_here) {
    amp_context *context = bracket->context;
    const amp_record *record = &bracket->record;
    if (record->skips_in_row == SUSPICIOUS_SKIPS) look_for_the_cause(bracket);
    const uint32_t limit = amp__policy_of(context)->properties.max_skips;
    const bool too_many = record->skips_in_row && record->skips_in_row >= limit && limit != AMP_NEVER;
    const bool told = bracket->told.skips;
    bracket->told.skips = too_many;
    if (!too_many || told) return AMP_OK;
    const char *first = !overflow_here && amp__bracket_has_ranks(bracket) ? "another rank"
        : record->first_nonfinite                                         ? record->first_nonfinite
                                                                          : "an unknown parameter";
    const struct amp__param *param = amp__wiring_nonfinite_param(context);
    if (param)
        return amp__find_error(context, AMP__NONFINITE_PARAMETER, AMP_ERR_TOO_MANY_SKIPS, param->name,
                               "loss %u: %u step%s in a row %s skipped, because %s itself has NaN or infinity (the "
                               "first gradient that was not finite is that of %s)", (unsigned)bracket->loss_id,
                               (unsigned)record->skips_in_row, AMP__S(record->skips_in_row),
                               record->skips_in_row == 1 ? "was" : "were", param->name, first);
    char subject[32];
    snprintf(subject, sizeof subject, "loss %u", (unsigned)bracket->loss_id);
    return amp__find_error(context, AMP__SKIPS_WITHOUT_END, AMP_ERR_TOO_MANY_SKIPS, subject,
                           "%s: %u step%s in a row %s skipped, and the loss scale is %g; the first gradient that was "
                           "not finite is that of %s; all described parameters are finite", subject,
                           (unsigned)record->skips_in_row, AMP__S(record->skips_in_row),
                           record->skips_in_row == 1 ? "was" : "were", (double)record->scale_after, first);
}
