/* SPDX-License-Identifier: Apache-2.0 */
/* Casts against loops that move the same bytes. */
#include "bench.h"

#include <amp_kernels.h>

#include <stdio.h>

static void cast(void *data) {
    const amp_span *spans = data;
    bench_must(amp_cast_list(&spans[0], &spans[1], 1), "amp_cast_list");
}

static const struct {
    const char *name;
    amp_dtype dtype;
    size_t size;
} types[] = { { "fp32", AMP_FLOAT32, 4 }, { "fp16", AMP_FLOAT16, 2 }, { "bf16", AMP_BFLOAT16, 2 },
              { "fp64", AMP_FLOAT64, 8 } };
enum { TYPES = sizeof types / sizeof *types };

/* `bytes` are those of the longer side. */
static void run(size_t to, size_t from, size_t bytes, const char *size) {
    char name[64];
    snprintf(name, sizeof name, "%s to %s", types[from].name, types[to].name);
    const size_t n = bytes / (types[to].size > types[from].size ? types[to].size : types[from].size);
    struct bench_move move = { bench_memory(n * types[to].size), bench_memory(n * types[from].size), n * types[to].size,
                               n * types[from].size };
    amp_span spans[] = { { move.dst, n, types[to].dtype, 0 }, { (void *)move.src, n, types[from].dtype, 0 } };
    const size_t best = bench_best(bench_moves, bench_n_moves(), &move);
    char reference[64];
    snprintf(reference, sizeof reference, "the same bytes: %s", bench_move_names[best]);
    bench_run(&(struct bench_case){ .group = "casts", .name = name, .size = size, .unit = "GB/s",
                                    .bytes = (double)(move.to + move.from), .ours = cast, .ours_data = spans,
                                    .reference = bench_moves[best], .reference_data = &move,
                                    .reference_name = reference, .goal = bytes > 1 << 24 ? 0.95 : 0 });
    bench_release(move.dst, move.to);
    bench_release((void *)move.src, move.from);
}

void bench_casts(void) {
    static const struct {
        size_t bytes;
        const char *name;
    } sizes[] = { { (size_t)256 << 20, "256 MiB" }, { (size_t)1 << 20, "1 MiB" } };
    for (size_t s = 0; s < 2; s++)
        for (size_t to = 0; to < TYPES; to++)
            for (size_t from = 0; from < TYPES; from++)
                if (to != from) run(to, from, sizes[s].bytes, sizes[s].name);
}
