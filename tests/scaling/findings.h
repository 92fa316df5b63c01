/* SPDX-License-Identifier: Apache-2.0 */
/* What a context has found, for tests of it. */
#ifndef TEST_FINDINGS_H
#define TEST_FINDINGS_H

#include "bracket.h"

/* How often a finding was seen; 0: it was not found. */
static inline uint64_t found(amp_context *context, const char *code) {
    amp_finding findings[16];
    size_t n;
    findings[0] = (amp_finding)AMP_FINDING_INIT;
    ck_ok(amp_get_findings(context, findings, 16, &n));
    for (size_t i = 0; i < n; i++) {
        ck_assert_msg(!strncmp(findings[i].message, findings[i].code, strlen("AMP-M00")), "%s", findings[i].message);
        if (!strcmp(findings[i].code, code)) return findings[i].times;
    }
    return 0;
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

#define ck_health(rig, words) ck_assert_msg(strstr(health((rig)->context), (words)), "%s", health((rig)->context))
#define ck_found(rig, code) ck_assert_msg(found((rig)->context, (code)), "%s", health((rig)->context))

static inline void train(struct rig *rig, int steps) {
    for (int i = 0; i < steps; i++) ck_ok(net_train_step(&rig->net, 0.5));
}

#endif
