/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of the files in src/api and initialize.c. */
#ifndef AMP_API_H
#define AMP_API_H

#include "common/common.h"

/* shutdown.c: frees a context with restored slots and parameters, or an unfinished one. */
void amp__context_destroy(amp_context *context);
/* register.c: ends the registration of ops, and frees its look-up tables. */
void amp__register_over(amp_model *model);

#endif
