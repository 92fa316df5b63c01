/* SPDX-License-Identifier: Apache-2.0 */
/* Events on standard error, for hosts that have no hook for them. */
#ifndef AMP_LOG_ROOM_H
#define AMP_LOG_ROOM_H

#include "amp_diagnostics.h"

#include <stdbool.h>

/* AMP_LOG_*: the configuration's, else the environment's, else the default. */
int32_t amp__log_level(int32_t configured);
/* A line on standard error, if the level has the event. Keeps errno. */
void amp__log(int32_t level, const amp_event *event);

/* Is it a level's name, as in AMP_LOG? */
bool amp__log_knows(const char *name);

#endif
