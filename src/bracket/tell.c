/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The events of a bracket, from its record. Every skip and every scale change is an event, since schedulers count them.
 * Texts become rarer and rarer.
 */
#include "amp_diagnostics.h"
#include "bracket/bracket.h"
#include "bracket/wiring.h"
#include "context/findings.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/report.h"
#include "context/reporting.h"
#include "context/trace.h"
#include "observe/observe.h"

#include <stdio.h>

void amp__bracket_tell_loss(const struct amp__bracket *bracket, void *loss) {
    amp_context *context = bracket->context;
    const amp_host *host = bracket->host;
    amp_tensor_view view = { .data = NULL };
    amp_span span;
    float value;
    if (!amp__reporting_of(context)->trace || !loss || !host || !host->view) return;
    if (host->view(host->self, loss, &view) != AMP_OK || view.device.type > AMP__DEVICE_CPU) return;
    if (!amp__view_is_plain(&view, &span) || span.size != 1) return;
    const amp_span to = { &value, 1, AMP_FLOAT32, 0 };
    if (amp_cast_list(&to, &span, 1) == AMP_OK) amp__trace_loss(context, bracket->loss_id, (double)value);
}

enum { IN_FULL = 10, MANY = 10 };

/* Returns true for the first lines, then for powers of two. *since: lines left out before this one. */
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

/* The last line in full says that those after it are fewer. */
static void announce(amp__text *text, uint64_t n, const char *of_what) {
    if (n == IN_FULL) amp__text_add(text, " From here on %s have a line when their number is a power of two.", of_what);
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
                      !amp__policy_of(bracket->context)->properties.scaler.dynamic ? "" :
                      once(&amp__reporting_of(bracket->context)->explained_skip,
                           " This is normal: dynamic loss scaling finds the largest scale that fits by trying; only "
                           "many skips in a row are a problem."));
        announce(&text, record->skipped, "skips");
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
    if (worth_a_line(++bracket->told.changes, &since)) {
        amp__text_add(&text, "loss scale %u goes from %g to %g", (unsigned)bracket->loss_id,
                      (double)record->scale_before, (double)record->scale_after);
        if (record->scale_after > record->scale_before)
            amp__text_add(&text, "%s",
                          once(&amp__reporting_of(bracket->context)->explained_growth,
                               ". This is normal: after a window of clean iterations a larger scale is tried"));
        announce(&text, bracket->told.changes, "changes");
        left_out(&text, since, "more changes");
    }
    event->kind = AMP_EVENT_SCALE_CHANGE;
    event->message = line;
    amp__event(bracket->context, bracket->host, event);
}

/* The cause of skips, if it is known. */
static bool add_cause(const struct amp__bracket *bracket, amp__text *text) {
    const struct amp__param *param = amp__wiring_nonfinite_param(bracket->context);
    if (!param) return amp__observe_words(bracket->context, text);
    amp__text_add(text, "the parameter %s itself is not finite (AMP-M16)", param->name);
    return true;
}

/* Once in each row of skips that is that long: the cause, where it is known, or how to find it. */
static void tell_cause(const struct amp__bracket *bracket) {
    char cause[1024] = "";
    amp__text text = { cause, sizeof cause, 0 };
    if (!add_cause(bracket, &text))
        amp__text_add(&text, "AMP_OBSERVE=every=1 in the environment names the op where the overflow begins "
                      "(docs/guide/it-went-wrong.md)");
    (void)amp__warn(bracket->context, "loss %u: %d steps in a row were skipped, and the loss scale is %g: %s",
                    (unsigned)bracket->loss_id, (int)MANY, (double)bracket->record.scale_after, cause);
}

static const char *at_floor(const struct amp__bracket *bracket) {
    const struct amp__scaler_settings *scaler = &amp__policy_of(bracket->context)->properties.scaler;
    if (!scaler->dynamic) return ", which is static: no skip lowers it";
    return bracket->record.scale_after <= scaler->min_scale ? ", its floor (min_scale): no skip lowers it" : "";
}

void amp__bracket_find_skips(struct amp__bracket *bracket) {
    const amp_record *record = &bracket->record;
    amp_context *context = bracket->context;
    char subject[32], cause[1024] = "";
    amp__text text = { cause, sizeof cause, 0 };
    const bool none = record->skipped && record->skipped == record->brackets;
    const bool most = record->brackets >= MANY && 2 * record->skipped > record->brackets;
    if (bracket->told.most || (!none && !most && record->skips_in_row < MANY)) return;
    /* these name the cause, or the same */
    if (amp__found(context, AMP__NONFINITE_PARAMETER) || amp__found(context, AMP__SKIPS_WITHOUT_END)) return;
    bracket->told.most = true;
    snprintf(subject, sizeof subject, "loss %u", (unsigned)bracket->loss_id);
    amp__text_add(&text, "; ");
    if (!add_cause(bracket, &text) && record->first_nonfinite)
        amp__text_add(&text, "the first gradient that was not finite is that of %s", record->first_nonfinite);
    amp__find(context, AMP__MOSTLY_SKIPPED, subject,
              "%s: %llu of %llu steps were skipped, %u in a row at the end, and the loss scale is %g%s%s", subject,
              (unsigned long long)record->skipped, (unsigned long long)record->brackets,
              (unsigned)record->skips_in_row, (double)record->scale_after, at_floor(bracket),
              text.length > 2 ? cause : "");
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
    if (action == AMP_SKIP && record->skips_in_row == MANY) tell_cause(bracket);
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
