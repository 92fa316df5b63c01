/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of tensors in the arena of a GPU, and amp_device.h's work on them. */
#ifndef AMP_BENCH_CUDA_LISTS_H
#define AMP_BENCH_CUDA_LISTS_H

#include "bench.h"
#include "cuda.h"

#include <amp_device.h>

enum { CUDA_LISTS = 3 };

struct cuda_op {
    const char *group, *name;
    bench_fn *work;               /* of struct cuda_work */
    amp_dtype types[CUDA_LISTS];  /* of the lists that it takes, dst first; 0: no more */
    bool in_place;                /* the one list is read and written */
};

struct cuda_work {
    const struct cuda_op *op;
    amp_device_list *list;
    amp_span *spans[CUDA_LISTS];
    size_t n, elements;
    double moved; /* bytes */
    float *numbers; /* on the device: a scale of 1, found_inf, a norm */
    amp_statistics *statistics; /* there too, n of them; NULL: the op has none */
};

/* The op over n tensors of these sizes, which lie one list behind the other in the arena, from multiples of
 * BENCH_CUDA_GAP on. */
struct cuda_work cuda_work_make(const struct cuda_op *op, const struct bench_arena *arena, const uint64_t *sizes,
                                size_t n);
void cuda_work_free(struct cuda_work *work);

size_t cuda_width(amp_dtype type);

#endif
