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
    _Atomic(bool) sorted; /* also read by who fills it on another thread */
};

/* `tag` tells kinds of texts apart. Several values of one text stay in the order that they were added in. */
amp_status amp__names_add(struct amp__names *names, int tag, const char *text, void *value);
/* Once, after the last add and before the first find. */
amp_status amp__names_sort(struct amp__names *names);
/* The first of *n entries whose text is this one, or has its hash: the caller compares. */
const struct amp__keyed *amp__names_find(const struct amp__names *names, int tag, const char *text, size_t *n);
void amp__names_free(struct amp__names *names);

#endif
