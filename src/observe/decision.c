/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decisions of a device, read without waiting: a copy starts at the end of a bracket, and is read at the end of a later
 * one if it is complete. That of an observed bracket is waited for with its counts.
 */
#include "observe/observe.h"

static void arm(struct amp__observer *observer) { observer->armed = observer->options.after_skip; }

/* Decisions between two copies that came are not seen, but their skips are counted. */
static void hear(struct amp__observer *observer, uint32_t loss_id, const struct amp__device_scaler *scaler) {
    uint64_t *known = &observer->skips_known[loss_id];
    if (scaler->action == AMP_SKIP || (*known && *known != scaler->skipped + 1)) arm(observer);
    *known = scaler->skipped + 1;
}

static bool take(struct amp__observer *observer, struct amp__device_scaler *scaler) {
    struct amp__coming_decision *decision = &observer->decision;
    if (!decision->coming) return false;
    decision->coming = false;
    if (amp__place_fetched(decision->place, decision->copy, scaler, sizeof *scaler) != AMP_OK) return false;
    hear(observer, decision->loss_id, scaler);
    return true;
}

static void start(struct amp__coming_decision *decision, const struct amp__decided_bracket *bracket) {
    bool capturing = true;
    decision->place = bracket->place;
    decision->loss_id = bracket->loss_id;
    decision->coming = amp__place_capturing(bracket->place, &capturing) == AMP_OK && !capturing &&
        amp__place_fetch(bracket->place, &decision->copy, bracket->on_device, sizeof *bracket->on_device) == AMP_OK;
}

void amp__decision_follow(struct amp__observer *observer, const struct amp__decided_bracket *bracket) {
    struct amp__coming_decision *decision = &observer->decision;
    struct amp__device_scaler older;
    bool arrived = observer->due.bracket; /* its copy is wanted, and there is one at a time */
    if (!bracket->on_device) {
        if (bracket->skips) arm(observer);
        return;
    }
    if (decision->coming && !arrived && amp__place_arrived(decision->place, decision->copy, &arrived) != AMP_OK) return;
    if (decision->coming && arrived) (void)take(observer, &older);
    if (!decision->coming) start(decision, bracket);
}

void amp__decision_wait(struct amp__observer *observer) {
    struct amp__decided_bracket *decided = &observer->due.decided;
    struct amp__device_scaler scaler;
    if (!observer->due.bracket || !decided->on_device || !take(observer, &scaler)) return;
    decided->number = scaler.brackets;
    decided->skips = scaler.action == AMP_SKIP;
    decided->overflowed = scaler.found_inf != 0.0f;
}

void amp__decision_end(struct amp__observer *observer) {
    if (observer->decision.place) amp__place_fetch_free(observer->decision.place, observer->decision.copy);
}
