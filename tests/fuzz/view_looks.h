/* SPDX-License-Identifier: Apache-2.0 */
/* How a tensor may look: a view read from the input, the rule whether it is well-formed, and its memory. */
#ifndef TEST_VIEW_LOOKS_H
#define TEST_VIEW_LOOKS_H

#include "amp_all.h"

#include <stdbool.h>
#include <stddef.h>

enum { LOOK_BYTES = 512, LOOKS = 16 }; /* at most so many bytes of elements; so many looks at once */

struct input {
    const uint8_t *at, *end;
};
static inline uint8_t look_byte(struct input *input) { return input->at < input->end ? *input->at++ : 0; }
static inline unsigned look_below(struct input *input, unsigned n) { return look_byte(input) % n; }

struct look {
    amp_tensor_view view;
    bool well_shaped; /* dimensions and extents */
    bool good;        /* and strides, type, device, data */
    bool compact;
    amp_dtype dtype;  /* if good */
    uint64_t size;    /* elements, if well shaped */
    uint64_t span;    /* and with the gaps between them */
    int64_t lowest;   /* the first in memory, counted from the first element: strides may run backwards */
    unsigned number;
    unsigned char *block;
    size_t bytes; /* of it: just what the view claims */
};

/* `number`: of the memory that it uses. simple: most looks are plain FP32 vectors. */
void look_read(struct input *input, struct look *look, bool simple, unsigned number);
void look_free(struct look *look);
double look_element(const struct look *look, size_t i);
/* Nothing was written around the blocks. */
bool looks_intact(void);

#endif
