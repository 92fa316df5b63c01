/* SPDX-License-Identifier: Apache-2.0 */
/* The contexts there are. */
#ifndef AMP_CONTEXT_LIVE_H
#define AMP_CONTEXT_LIVE_H

#include "common/common.h"

amp_status amp__live_add(amp_context *context);
void amp__live_remove(amp_context *context);
/* Returns true if this is the address of a live context. Accepts any address. */
bool amp__context_is_live(const amp_context *context);
/* Is any other context so? */
bool amp__live_any(bool (*is)(const amp_context *live, const amp_context *context), const amp_context *context);
/* Never 0, never the same twice. */
uintptr_t amp__new_serial(void);

#endif
