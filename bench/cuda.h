/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU for groups that measure on one: bench --device cuda. By the driver alone, so that the program starts
 * anywhere. */
#ifndef AMP_BENCH_CUDA_H
#define AMP_BENCH_CUDA_H

#include <stddef.h>

/* Groups of --device cuda, by the names that they have without it. */
#define BENCH_CUDA_GROUPS(X) X(casts) X(unscale) X(axpby) X(norm) X(lists) X(optim) X(pack) X(bracket) X(matmul) X(step)

#define BENCH_CUDA_GROUP(name) void bench_cuda_##name(void);
BENCH_CUDA_GROUPS(BENCH_CUDA_GROUP)
#undef BENCH_CUDA_GROUP

/* The first GPU and libamp's backend; NULL, or why they cannot be had. Once. */
const char *bench_cuda_start(void);
void bench_cuda_print(void); /* what the figures are measured on */

extern void *bench_cuda_stream;

/* Memory of the device's, each byte `value`; kept to the end. The program ends if there is none. */
void *bench_cuda_memory(size_t bytes, unsigned char value);
void bench_cuda_write(void *dst, const void *src, size_t bytes); /* from the host's */
void bench_cuda_copy(void *dst, const void *src, size_t bytes);  /* from the device's, on the stream, asynchronously */
void bench_cuda_wait(void);

/* The stream's own clock: seconds from the first of these to the second, for which the host waits. */
void bench_cuda_clock_start(void);
double bench_cuda_clock_stop(void);

/* Work that only starts work on the stream, as a graph, kept to the end; and a launch of it, for bench_run. */
void *bench_cuda_graph(void (*work)(void *data), void *data);
void bench_cuda_launch(void *graph);

/* One block for the tensors of all groups, one after the other, of `bytes` bytes (--bytes; less where the GPU has not
 * so much), and some for gaps between them. Filled anew: every two bytes are an ordinary number of any type. */
enum { BENCH_CUDA_GAP = 512, BENCH_CUDA_GAPS = 8192 }; /* tensors begin at multiples; how many there may be */
struct bench_arena {
    char *memory;
    size_t bytes;
};
struct bench_arena bench_cuda_arena(void);

/* Work that is a limit: the driver copies, from the arena's first half to its second, until `moved` bytes were read or
 * written. */
struct bench_copies {
    struct bench_arena arena;
    double moved;
};
void bench_cuda_copies(void *copies);

#endif
