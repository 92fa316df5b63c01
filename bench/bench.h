/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a group of measurements needs. To add a group: a file with a function of the shape of bench_casts, its line in
 * BENCH_GROUPS, the file in meson.build, a section in README.md.
 */
#ifndef AMP_BENCH_H
#define AMP_BENCH_H

#include "memory.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_GROUPS(X)                                                                                                \
    X(casts)                                                                                                           \
    X(unscale)                                                                                                         \
    X(norm)                                                                                                            \
    X(pack)                                                                                                            \
    X(lists)                                                                                                           \
    X(sets)                                                                                                            \
    X(optim)                                                                                                           \
    X(matmul)                                                                                                          \
    X(gate)                                                                                                            \
    X(calls)                                                                                                           \
    X(bracket)                                                                                                         \
    X(growth)                                                                                                          \
    X(step)                                                                                                            \
    X(storage)                                                                                                         \
    X(demo)                                                                                                            \
    X(darknet)                                                                                                         \
    X(observe)

/* One piece of work: `work(data)` does it once. */
typedef void bench_fn(void *data);

struct bench_case {
    const char *group, *name, *size;
    const char *unit;           /* "GB/s": of `bytes`; "ns", "ms": of one of `calls` in a piece of work */
    double bytes, calls;        /* in one piece of work */
    bench_fn *ours, *reference;
    void *ours_data, *reference_data;
    int peer;                   /* in place of `reference`: a peer's piece of work, from bench_peer_make; 0: none */
    const char *reference_name;
    double allowed;             /* not 0: what ours may take beyond the reference, in `unit`; the difference is shown,
                                   against this. Both make `calls` calls */
    double goal;                /* least ratio; 0: none */
    /* by the clock on the wall, where other threads share the work; each time after a first call */
    bool wall;
    bool gpu;                   /* by events of the GPU's stream, from idle to idle */
    size_t rounds;              /* where the goal needs a finer median than the usual rounds give; 0: the usual */
};

/* Measures both, in turns, prints the line and keeps the result. */
void bench_run(const struct bench_case *c);

/* The same for what is counted (unit "count", fewer are better): group, name, size, reference_name and goal of *c.
 * Where the reference is 0, the ratio is 1 for none and 0 for any. */
void bench_count(const struct bench_case *c, double ours, double reference);

/* The fastest of n ways to do the same work, by a short measurement; the one to compare with. */
size_t bench_best(bench_fn *const *ways, size_t n, void *data);

/* A line of the group cannot be measured: says why, and the program goes on. */
void bench_left_out(const char *group, const char *why);

/* Does the processor say that it has these instructions, by their name in /proc/cpuinfo ("avx512_bf16")? */
bool bench_cpu_has(const char *name);
void bench_print_machine(void);

/*
 * Peers: the same work in torch, in a process that runs peers.py and takes turns with ours. Works are made, run and
 * dropped one line at a time; peers.py says which there are. What fails ends the program.
 */
/* says in a line which peers there are, or why there are none */
void bench_peers_start(const char *python, const char *device);
const char *bench_peers_name(void);         /* "torch 2.15.0"; NULL: there are none */
int bench_peer_has(const char *module);     /* its Python can import this */
__attribute__((format(printf, 1, 2))) int bench_peer_make(const char *work, ...);
double bench_peer_run(int peer, size_t times); /* as measured there: seconds of one piece of `times` in a row */
void bench_peer_drop(int peer);

/* The lines that have a peer for reference, of one group or (NULL) all; nothing where there are no peers. */
void bench_peers(const char *group);

/* Loops that move bytes and compute nothing. To `to` bytes from `from` bytes: one is the other times a power of two. */
struct bench_move {
    void *dst;
    const void *src;
    size_t to, from;
};
extern bench_fn *const bench_moves[]; /* of struct bench_move */
extern const char *const bench_move_names[];
size_t bench_n_moves(void);

/* Loops over floats in place, data[i] *= factor, without a check; and loops that read alone. */
struct bench_floats {
    float *data;
    size_t n;
    float factor;
};
extern bench_fn *const bench_multiplies[], *const bench_reads[]; /* of struct bench_floats */
size_t bench_n_floats(void);

/* Loops with the streams of an optimizer's step, over n tensors of `length` elements, a multiple of 16, one behind the
 * other. They compute nothing: what they write to `floats` is what was there. */
struct bench_stream {
    const void *grad; /* read: fp32, or 16-bit where `low` is */
    float *floats[3]; /* read and written: parameter, moments */
    uint16_t *low;    /* written; NULL: none */
    size_t n_floats, n, length;
};
extern bench_fn *const bench_streams[]; /* of struct bench_stream */
extern const char *const bench_stream_names[];
size_t bench_n_streams(void);

#define BENCH_GROUP(name) void bench_##name(void);
BENCH_GROUPS(BENCH_GROUP)
#undef BENCH_GROUP

#endif
