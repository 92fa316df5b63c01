/* SPDX-License-Identifier: Apache-2.0 */
/* The variables of the environment that libamp reads, and what their values may be. */
#ifndef AMP_ENVIRONMENT_H
#define AMP_ENVIRONMENT_H

#include "common/common.h"

/* AMP-M80 for each variable whose value means nothing. A wrong AMP_TRACE_BYTES or AMP_OBSERVE has failed amp_initialize
 * by then. */
void amp__environment_check(amp_context *context);

#endif
