/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON library, for this room's files only. */
#ifndef AMP_STATE_JSON_H
#define AMP_STATE_JSON_H

#include "state/state.h"

#include <jansson.h>

/* Strict: one object, UTF-8, no key twice, no NaN, nothing behind it, nested at most 4 deep, and no more objects and
 * arrays than a state of this size can have, so that memory stays within AMP__STATE_MEMORY times the text. */
amp_status amp__json_parse(const char *text, size_t bytes, const char *what, json_t **root);

/* Compact text with a final NUL that is not counted; ours to free. */
amp_status amp__json_text(const json_t *root, char **text, size_t *bytes);

/* Returns true if `text`, without blanks at its end, is the text that libamp would write for this value. The reader of
 * the library drops bytes silently if its buffer cannot grow, so the result is compared with the text. */
bool amp__json_is(const json_t *root, const char *text, size_t bytes);

/* A piece of untrusted text for a message: printable, at most 80 bytes. */
const char *amp__json_quote(const char *text, char quoted[96]);

#endif
