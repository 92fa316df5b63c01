/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills as work on a fake stream: for the runtime, the driver and the demo's framework. */
#ifndef TRANSFER_H
#define TRANSFER_H

#include <stddef.h>
#include <string.h>

struct transfer {
    void *dst;
    const void *src;
    size_t bytes;
    int value; /* of each byte, for a fill */
};

static inline void transfer_copy(const void *given) {
    const struct transfer *copy = given;
    memmove(copy->dst, copy->src, copy->bytes);
}

static inline void transfer_fill(const void *given) {
    const struct transfer *fill = given;
    memset(fill->dst, fill->value, fill->bytes);
}

#endif
