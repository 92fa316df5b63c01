/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a context for reports: log, trace, stored error, warnings and findings. */
#ifndef AMP_CONTEXT_REPORTING_H
#define AMP_CONTEXT_REPORTING_H

#include "common/common.h"

struct amp__reporting {
    int32_t log;             /* AMP_LOG_*, where the host has no hook event */
    struct amp__trace *trace; /* NULL: no trace */
    bool explained_skip, explained_growth; /* events reported once with an explanation */

    amp_status kept;               /* error of a call, for the bracket's end, under the context's lock */
    char kept_text[512];           /* its text, under the context's lock */
    char *warnings;                /* lines, under the context's lock */
    struct amp__finding *findings; /* the oldest first, under the context's lock */
};

#endif
