/* SPDX-License-Identifier: Apache-2.0 */
#include "context/findings.h"
#include "context/parts.h"
#include "context/report.h"
#include "context/reporting.h"
#include "system/system.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *code, *mend, *script; /* script: the remedy in Python, NULL: `mend` */
} kinds[] = {
#define SAME NULL
#define C_ONLY NULL
#define FINDING(name, code, title, why, mend, script) [AMP__##name] = { code, mend, script },
#include "context/findings.inc"
#undef FINDING
#undef C_ONLY
#undef SAME
};
_Static_assert(AMP_COUNT(kinds) == AMP__FINDINGS, "a row for each kind");

const char *amp__finding_code(enum amp__finding_kind kind) { return kinds[kind].code; }

const char *amp__finding_mend(enum amp__finding_kind kind, bool python) {
    return python && kinds[kind].script ? kinds[kind].script : kinds[kind].mend;
}

static struct amp__finding *known(const struct amp__reporting *reporting, enum amp__finding_kind kind,
                                  const char *subject) {
    struct amp__finding *finding = reporting->findings;
    while (finding && (finding->kind != kind || (subject && strcmp(finding->subject, subject) != 0)))
        finding = finding->next;
    return finding;
}

bool amp__found(amp_context *context, enum amp__finding_kind kind) {
    pthread_mutex_t *lock = amp__lock_of(context);
    pthread_mutex_lock(lock);
    const bool found = known(amp__reporting_of(context), kind, NULL) != NULL;
    pthread_mutex_unlock(lock);
    return found;
}

/* "AMP-M05 optimizer 0: observation: remedy" */
static void write_message(char *text, size_t capacity, const amp_context *context, enum amp__finding_kind kind,
                          const char *format, va_list arguments) {
    char seen[640];
    vsnprintf(seen, sizeof seen, format, arguments);
    snprintf(text, capacity, "%s %s: %s", kinds[kind].code, seen,
             amp__finding_mend(kind, context && amp__is_python(context)));
}

/* Counts a finding. Returns the text to report, NULL: none. Without memory it is reported without counting. */
static const char *keep(amp_context *context, enum amp__finding_kind kind, amp_status status, const char *subject,
                        const char *text) {
    pthread_mutex_t *lock = amp__lock_of(context);
    struct amp__reporting *reporting = amp__reporting_of(context);
    const size_t length = strlen(text) + 1;
    const char *told = text;
    pthread_mutex_lock(lock);
    struct amp__finding *finding = known(reporting, kind, subject), **last = &reporting->findings;
    if (finding) {
        finding->times++;
        told = NULL;
    } else if ((finding = amp__alloc(1, sizeof *finding + length + strlen(subject) + 1)) != NULL) {
        *finding = (struct amp__finding){ .kind = kind, .status = status, .times = 1 };
        memcpy(finding->message, text, length);
        memcpy(finding->message + length, subject, strlen(subject) + 1);
        finding->subject = finding->message + length;
        while (*last) last = &(*last)->next;
        *last = finding;
        told = finding->message;
    }
    pthread_mutex_unlock(lock);
    return told;
}

static void tell(amp_context *context, enum amp__finding_kind kind, amp_status status, const char *message) {
    if (!message) return;
    const amp_event event = { .kind = status == AMP_OK ? AMP_EVENT_WARNING : AMP_EVENT_ERROR,
                              .status = status,
                              .message = message,
                              .code = kinds[kind].code };
    amp__event(context, amp__any_host(context), &event);
}

void amp__find(amp_context *context, enum amp__finding_kind kind, const char *subject, const char *format, ...) {
    char text[1536];
    va_list arguments;
    va_start(arguments, format);
    write_message(text, sizeof text, context, kind, format, arguments);
    va_end(arguments);
    tell(context, kind, AMP_OK, keep(context, kind, AMP_OK, subject, text));
}

amp_status amp__find_error(amp_context *context, enum amp__finding_kind kind, amp_status status, const char *subject,
                           const char *format, ...) {
    char text[1536];
    va_list arguments;
    va_start(arguments, format);
    write_message(text, sizeof text, context, kind, format, arguments);
    va_end(arguments);
    tell(context, kind, status, keep(context, kind, status, subject, text));
    return amp__fail(status, "%s", text);
}

amp_status amp__refuse(enum amp__finding_kind kind, amp_status status, const char *format, ...) {
    char text[1536];
    va_list arguments;
    va_start(arguments, format);
    write_message(text, sizeof text, NULL, kind, format, arguments);
    va_end(arguments);
    return amp__fail(status, "%s", text);
}

void amp__find_copies(amp_context *context) {
    struct amp__copies copies;
    if (amp__find_copy(&copies))
        amp__find(context, AMP__TWO_COPIES, "", "this is the libamp of %s, and another copy comes from %s",
                  copies.own, copies.other);
}

void amp__findings_free(struct amp__reporting *reporting) {
    for (struct amp__finding *finding = reporting->findings, *next; finding; finding = next) {
        next = finding->next;
        amp__free(finding);
    }
    reporting->findings = NULL;
}
