/* SPDX-License-Identifier: Apache-2.0 */
/* Probable mistakes in the wiring: each kind has a code, is stored and counted, and reported once. */
#ifndef AMP_FINDINGS_H
#define AMP_FINDINGS_H

#include "amp_diagnostics.h"
#include "context/op.h"

struct amp__reporting;

enum amp__finding_kind {
#define FINDING(name, ...) AMP__##name,
#include "context/findings.inc"
#undef FINDING
    AMP__FINDINGS
};

struct amp__finding {
    struct amp__finding *next; /* the next younger one */
    enum amp__finding_kind kind;
    amp_status status; /* AMP_OK: a warning */
    uint64_t times;
    const char *subject; /* behind the structure, in its block, as is */
    char message[];
};

const char *amp__finding_code(enum amp__finding_kind kind);
const char *amp__finding_mend(enum amp__finding_kind kind, bool python); /* the remedy, in the host's language */

/* A warning: reported the first time for this kind and subject (an op, a parameter; "": the whole), counted each time.
 * The text has the observation, and the remedy is added. */
void amp__find(amp_context *context, enum amp__finding_kind kind, const char *subject, const char *format, ...)
    AMP_PRINTF(4, 5);
/* An error: the same, and the thread's last error. */
amp_status amp__find_error(amp_context *context, enum amp__finding_kind kind, amp_status status, const char *subject,
                           const char *format, ...) AMP_PRINTF(5, 6);
/* An error before there is a context. */
amp_status amp__refuse(enum amp__finding_kind kind, amp_status status, const char *format, ...) AMP_PRINTF(3, 4);
/* Was this kind found, of whatever subject? */
bool amp__found(amp_context *context, enum amp__finding_kind kind);
void amp__find_copies(amp_context *context); /* AMP-M88 */
void amp__findings_free(struct amp__reporting *reporting);

#endif
