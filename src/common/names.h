/* SPDX-License-Identifier: Apache-2.0 */
/* Values by text, several for one text: looked up where a list would have to be gone through for each question. */
#ifndef AMP_NAMES_H
#define AMP_NAMES_H

#include "common/map.h"

#include <stdatomic.h>

/* Zeros are an empty one. */
struct amp__names {
    struct amp__keyed *entries;
    size_t n, capacity;
    _Atomic(bool) sorted; /* also read by the thread that fills it */
};

/* Adds a text. `tag`: its kind. Values with the same text stay in the order of adding. */
amp_status amp__names_add(struct amp__names *names, int tag, const char *text, void *value);
/* Once, after the last add and before the first find. */
amp_status amp__names_sort(struct amp__names *names);
/* Finds the first of *n entries with this text or its hash. The caller compares the texts. */
const struct amp__keyed *amp__names_find(const struct amp__names *names, int tag, const char *text, size_t *n);
void amp__names_free(struct amp__names *names);

#endif
