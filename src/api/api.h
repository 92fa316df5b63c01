/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the top row share with each other. */
#ifndef AMP_API_H
#define AMP_API_H

#include "common/common.h"

/* shutdown.c: frees a context whose slots and parameters are back, or one that was never finished. */
void amp__context_destroy(amp_context *context);
/* register.c: the model's ops are registered; what was kept for looking them up goes. */
void amp__register_over(amp_model *model);

#endif
