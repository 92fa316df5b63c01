/* SPDX-License-Identifier: Apache-2.0 */
/* The environment variables of libamp, with their possible values. */
#ifndef AMP_ENVIRONMENT_H
#define AMP_ENVIRONMENT_H

#include "common/common.h"

/* AMP-M80 for each variable with an unknown value. A wrong AMP_TRACE_BYTES or AMP_OBSERVE has made amp_initialize fail
 * before. */
void amp__environment_check(amp_context *context);

#endif
