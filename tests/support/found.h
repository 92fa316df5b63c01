/* SPDX-License-Identifier: Apache-2.0 */
/* What a context has found. */
#ifndef TEST_FOUND_H
#define TEST_FOUND_H

#include "amp_diagnostics.h"
#include "asserts.h"

#include <string.h>

/* How often a finding was seen, of this subject or, NULL, of any; 0: it was not found. */
static inline uint64_t found_of(amp_context *context, const char *code, const char *subject) {
    amp_finding findings[16];
    size_t n;
    findings[0] = (amp_finding)AMP_FINDING_INIT;
    ck_ok(amp_get_findings(context, findings, 16, &n));
    for (size_t i = 0; i < n; i++) {
        ck_assert_msg(!strncmp(findings[i].message, findings[i].code, strlen("AMP-M00")), "%s", findings[i].message);
        if (!strcmp(findings[i].code, code) && (!subject || !strcmp(findings[i].subject, subject)))
            return findings[i].times;
    }
    return 0;
}

static inline uint64_t found(amp_context *context, const char *code) { return found_of(context, code, NULL); }

static inline size_t n_findings(amp_context *context) {
    size_t n;
    ck_ok(amp_get_findings(context, NULL, 0, &n));
    return n;
}

static inline const char *health(amp_context *context) {
    static char text[8192];
    size_t length, again;
    ck_ok(amp_health(context, NULL, 0, &length));
    ck_ok(amp_health(context, text, sizeof text, &again));
    ck_assert_uint_eq(length, again);
    ck_assert_uint_eq(length, strlen(text));
    return text;
}

#endif
