/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is told of a bracket: events, by the record that it left. Every skip and every change of the scale is an event,
 * for schedulers count on them; the text for people comes less and less often.
 */
#include "amp_diagnostics.h"
#include "bracket/bracket.h"
#include "context/context.h"
#include "context/findings.h"
#include "context/report.h"

#include <stdio.h>

enum { IN_FULL = 10 };

/* The first lines, then those whose number is a power of two. *since: lines left out before this one. */
static bool worth_a_line(uint64_t n, uint64_t *since) {
    *since = 0;
    if (n <= IN_FULL) return true;
    if (n & (n - 1)) return false;
    *since = n - (n / 2 > IN_FULL ? n / 2 : IN_FULL) - 1;
    return true;
}

static void left_out(amp__text *text, uint64_t since, const char *of_what) {
    if (since) amp__text_add(text, " (%llu %s since the last line)", (unsigned long long)since, of_what);
}

/* The explanation is the first line's alone. */
static const char *once(bool *said, const char *note) {
    const char *text = *said ? "" : note;
    *said = true;
    return text;
}

static void tell_skip(struct amp__bracket *bracket, amp_event *event, bool here) {
    const amp_record *record = &bracket->record;
    char line[512] = "";
    amp__text text = { line, sizeof line, 0 };
    uint64_t since;
    if (worth_a_line(record->skipped, &since)) {
        amp__text_add(&text, "gradient overflow %s%s: the step is skipped, loss scale %u goes from %g to %g.%s",
                      here ? "in " : "on another rank", !here ? "" : record->first_nonfinite ? record->first_nonfinite :
                      "a gradient", (unsigned)bracket->loss_id,
                      (double)record->scale_before, (double)record->scale_after,
                      once(&bracket->context->explained_skip,
                           " This is normal: dynamic loss scaling finds the largest scale that fits by trying; only "
                           "many skips in a row are a problem."));
        left_out(&text, since, "more skips");
    }
    event->kind = AMP_EVENT_SKIP;
    event->message = line;
    amp__event(bracket->context, bracket->host, event);
}

static void tell_change(struct amp__bracket *bracket, amp_event *event) {
    const amp_record *record = &bracket->record;
    char line[512] = "";
    amp__text text = { line, sizeof line, 0 };
    uint64_t since;
    if (worth_a_line(++bracket->changes, &since)) {
        amp__text_add(&text, "loss scale %u goes from %g to %g", (unsigned)bracket->loss_id,
                      (double)record->scale_before, (double)record->scale_after);
        if (record->scale_after > record->scale_before)
            amp__text_add(&text, "%s",
                          once(&bracket->context->explained_growth,
                               ". This is normal: after a window of clean iterations a larger scale is tried"));
        left_out(&text, since, "more changes");
    }
    event->kind = AMP_EVENT_SCALE_CHANGE;
    event->message = line;
    amp__event(bracket->context, bracket->host, event);
}

/* Each bracket, for schedulers that would else have to guess. */
static void tell_bracket(const struct amp__bracket *bracket, amp_event event, amp_action action, bool here) {
    event.kind = AMP_EVENT_BRACKET;
    event.action = action;
    event.first_nonfinite = here ? bracket->record.first_nonfinite : NULL;
    event.message = "";
    amp__event(bracket->context, bracket->host, &event);
}

void amp__bracket_tell(struct amp__bracket *bracket, amp_action action, bool overflow_here) {
    const amp_record *record = &bracket->record;
    amp_event event = { .loss_id = bracket->loss_id, .scale_before = record->scale_before,
                        .scale_after = record->scale_after };
    tell_bracket(bracket, event, action, overflow_here);
    if (action == AMP_SKIP) tell_skip(bracket, &event, overflow_here);
    if (record->scale_after != record->scale_before) tell_change(bracket, &event);
}

void amp__bracket_tell_given_up(const struct amp__bracket *bracket) {
    amp_event event = { .kind = AMP_EVENT_BRACKET,
                        .action = AMP_SKIP,
                        .loss_id = bracket->loss_id,
                        .scale_before = bracket->scale,
                        .scale_after = bracket->scale,
                        .message = "another rank had an error or cancelled: the step is skipped on every rank" };
    amp__event(bracket->context, bracket->host, &event);
    event.kind = AMP_EVENT_SKIP;
    amp__event(bracket->context, bracket->host, &event);
}

void amp__bracket_tell_nonfinite(struct amp__bracket *bracket, const char *param) {
    amp__find(bracket->context, AMP__NONFINITE, param,
              "bracket %llu of loss %u: the gradient of %s is not finite, and the step is taken at the static loss "
              "scale %g", (unsigned long long)bracket->record.brackets + 1, (unsigned)bracket->loss_id, param,
              (double)bracket->scale);
}
