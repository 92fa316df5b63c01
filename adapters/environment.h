/* SPDX-License-Identifier: Apache-2.0 */
/* What preloaded libraries read from the environment. */
#ifndef ADAPTERS_ENVIRONMENT_H
#define ADAPTERS_ENVIRONMENT_H

#include <stddef.h>
#include <stdlib.h>
#include <strings.h>

/* NULL: it is not set, or empty. */
static inline const char *given(const char *name) {
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

/* As libamp reads switches: 1 or 0, -1 for another word or none. */
static inline int given_switch(const char *name) {
    static const char *const words[] = { "0", "1", "false", "true", "no", "yes", "off", "on" };
    const char *text = given(name);
    for (int i = 0; text && i < 8; i++)
        if (!strcasecmp(text, words[i])) return i % 2;
    return -1;
}

#endif
