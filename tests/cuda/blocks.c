/* SPDX-License-Identifier: Apache-2.0 */
#include "emulated.h"

#include <stdlib.h>
#include <string.h>

/* ---- blocks ---- */

double emulated_sum(double values[CUDA_THREADS]) {
    for (size_t width = CUDA_THREADS / 2; width; width /= 2)
        for (size_t i = 0; i < width; i++) values[i] = values[i] + values[i + width];
    return values[0];
}

double emulated_strided(const double *values, size_t begin, size_t end, size_t stride) {
    double of_thread[CUDA_THREADS] = { 0 };
    for (size_t i = begin, at = 0; i < end; i += stride, at++)
        of_thread[at % CUDA_THREADS] = of_thread[at % CUDA_THREADS] + values[i];
    return emulated_sum(of_thread);
}

uint32_t emulated_tensor, emulated_first;

/* Threads in falling order: nothing may depend on it. Those behind the last group have nothing to do. */
static uint32_t run_chunk(const struct cuda_table *table, uint32_t c, uint32_t n_spans, emulated_fn *fn,
                          const void *arguments, double *sums) {
    const struct cuda_chunk *chunk = &table->chunks[c];
    const struct cuda_tensor t = cuda_tensor_of(table, chunk->tensor, (int)n_spans);
    const uint32_t groups = cuda_groups(chunk, t.shape), threads = groups < CUDA_THREADS ? groups : CUDA_THREADS;
    double of_thread[2][CUDA_THREADS];
    uint32_t any = 0;
    emulated_tensor = chunk->tensor;
    if (sums) memset(of_thread, 0, sizeof of_thread);
    for (uint32_t thread = threads; thread-- > 0;) {
        double mine[2] = { 0.0, 0.0 };
        for (uint32_t g = thread; g < groups; g += CUDA_THREADS) {
            const struct cuda_range at = cuda_range_of(chunk, t.shape, g);
            any |= fn(&t, &at, arguments, mine) != 0;
        }
        of_thread[0][thread] = mine[0], of_thread[1][thread] = mine[1];
    }
    if (sums) sums[0] = emulated_sum(of_thread[0]), sums[1] = emulated_sum(of_thread[1]);
    return any;
}

uint32_t emulate_table(const struct cuda_table *table, uint32_t n_spans, emulated_fn *fn, const void *arguments,
                       double *chunk_sums) {
    uint32_t any = 0;
    emulated_first = UINT32_MAX;
    for (uint32_t c = table->n_chunks; c-- > 0;) {
        const uint32_t found = run_chunk(table, c, n_spans, fn, arguments,
                                         chunk_sums ? chunk_sums + 2 * (size_t)c : NULL);
        if (found) emulated_first = table->chunks[c].tensor; /* tensors in falling order too */
        any |= found;
    }
    return any;
}

uint32_t emulate(struct cuda_plan *plan, const amp_span *const lists[], uint32_t n_spans, size_t n, emulated_fn *fn,
                 const void *arguments, double **chunk_sums) {
    struct cuda_plan_error error = { AMP_OK, NULL, 0, 0 };
    bool changed;
    if (!cuda_plan_update(plan, lists, n_spans, n, &changed, &error)) abort();
    const struct cuda_table table = cuda_plan_table(plan, plan->table);
    if (chunk_sums && !(*chunk_sums = calloc(2 * (size_t)table.n_chunks + 1, sizeof **chunk_sums))) abort();
    return emulate_table(&table, n_spans, fn, arguments, chunk_sums ? *chunk_sums : NULL);
}

/* ---- moments in 8 bits ---- */

static void run_coded_block(const struct cuda_coded *c, const struct cuda_update *u, uint64_t block) {
    struct cuda_lane lanes[CUDA_LANES];
    struct cuda_extremes all = { 0.0f, 0.0f };
    for (uint32_t lane = CUDA_LANES; lane-- > 0;) {
        const struct cuda_extremes seen = cuda_step_lane(&lanes[lane], c, u, block, lane);
        cuda_see_moments(&all, &seen);
    }
    for (uint32_t lane = CUDA_LANES; lane-- > 0;) cuda_code_lane(&lanes[lane], c, u, block, lane, &all);
}

void emulate_adam8(const struct cuda_table *all, const struct cuda_table *codes, const struct cuda_update *updates) {
    for (uint32_t i = codes->n_chunks; i-- > 0;) {
        const struct cuda_chunk *chunk = &codes->chunks[i];
        const struct cuda_blocks blocks = cuda_blocks_of(chunk);
        const struct cuda_coded c = cuda_coded_of(all, codes, chunk->tensor);
        if (updates[chunk->tensor].flags & CUDA_SKIPPED) continue;
        for (uint64_t block = blocks.end; block-- > blocks.begin;)
            run_coded_block(&c, &updates[chunk->tensor], block);
    }
}
