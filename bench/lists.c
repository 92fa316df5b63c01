/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of tensors against one tensor of the same bytes; what a call of 2000 tensors asks for; and two threads against
 * one. */
#include "bench.h"
#include "digits.h"

#include <amp_kernels.h>

#include <stdio.h>
#include <stdlib.h>

struct list {
    amp_span *dst, *src;
    size_t n;
};

static void unscale(void *data) {
    const struct list *l = data;
    float found = 0.0f;
    bench_must(amp_scale_list(l->src, l->src, l->n, 1.0f, &found), "amp_scale_list");
}

static void cast(void *data) {
    const struct list *l = data;
    bench_must(amp_cast_list(l->dst, l->src, l->n), "amp_cast_list");
}

static void norm(void *data) {
    const struct list *l = data;
    float result;
    bench_must(amp_l2norm_list(l->src, l->n, &result, NULL), "amp_l2norm_list");
}

/* Tensors of `least` elements, or of sizes up to twice as many where they differ. */
static void run(size_t n, size_t least, bool differ, const char *size, double goal) {
    amp_span *spans = malloc(2 * n * sizeof *spans);
    if (!spans) bench_must(1, "memory");
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += spans[i].size = least + (differ ? i * 7919 % least : 0);
    char *src = bench_memory(total * 4), *dst = bench_memory(total * 2);
    for (size_t i = 0, at = 0; i < n; at += spans[i++].size) {
        spans[n + i] = (amp_span){ dst + at * 2, spans[i].size, AMP_FLOAT16, 0 };
        spans[i] = (amp_span){ src + at * 4, spans[i].size, AMP_FLOAT32, 0 };
    }
    amp_span whole[] = { { src, total, AMP_FLOAT32, 0 }, { dst, total, AMP_FLOAT16, 0 } };
    struct list list = { spans + n, spans, n }, one = { &whole[1], &whole[0], 1 };
    const struct {
        const char *name;
        bench_fn *work;
        size_t width;
    } works[] = { { "unscale fp32 in place, checked", unscale, 8 }, { "cast fp32 to fp16", cast, 6 },
                  { "L2 norm, fp32", norm, 4 } };
    for (size_t i = 0; i < sizeof works / sizeof *works; i++)
        bench_run(&(struct bench_case){ .group = "lists", .name = works[i].name, .size = size, .unit = "GB/s",
                                        .bytes = (double)(total * works[i].width), .ours = works[i].work,
                                        .ours_data = &list, .reference = works[i].work, .reference_data = &one,
                                        .reference_name = "one tensor", .goal = goal });
    bench_release(src, total * 4);
    bench_release(dst, total * 2);
    free(spans);
}

/* ---- plans ---- */

/* Counted by a program of its own, which has the library inside. */
static void run_counts(void) {
    enum { TENSORS = 2000 };
    char path[4096], command[sizeof path + 8];
    unsigned plans, look_ups, kernels;
    snprintf(command, sizeof command, "'%s'", beside_program(path, sizeof path, "counts"));
    FILE *counts = popen(command, "r");
    if (!counts) bench_must(1, command);
    for (int types = 1; types <= 3; types += 2) {
        if (fscanf(counts, "%u %u %u", &plans, &look_ups, &kernels) != 3) bench_must(1, command);
        const struct {
            const char *name;
            unsigned n;
            int goal; /* clipping by norm takes two calls: a norm, then a scale */
        } rows[] = { { "plans, most of any function", plans, 2 }, { "table look-ups, most of any", look_ups, 2 },
                     { "calls of kernels, most of any", kernels, types } };
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            bench_count(&(struct bench_case){ .group = "lists", .name = rows[i].name,
                                              .size = types == 1 ? "2000, 1 type" : "2000, 3 types",
                                              .reference_name = "tensors", .goal = TENSORS / rows[i].goal },
                        rows[i].n, TENSORS);
    }
    if (pclose(counts)) bench_must(1, command);
}

/* ---- threads ---- */

struct threaded {
    bench_fn *work;
    void *data;
    int32_t threads;
};

static void with_threads(void *data) {
    const struct threaded *t = data;
    if (amp_get_num_threads() != t->threads) bench_must(amp_set_num_threads(t->threads), "amp_set_num_threads");
    t->work(t->data);
}

static void run_threads(const char *name, bench_fn *work, size_t width, size_t bytes, const char *size) {
    float *memory = bench_memory(bytes);
    amp_span whole = { memory, bytes / 4, AMP_FLOAT32, 0 };
    struct list one = { NULL, &whole, 1 };
    struct threaded two_threads = { work, &one, 2 }, one_thread = { work, &one, 1 };
    bench_run(&(struct bench_case){ .group = "lists", .name = name, .size = size, .unit = "GB/s",
                                    .bytes = (double)(bytes / 4 * width), .ours = with_threads,
                                    .ours_data = &two_threads, .reference = with_threads, .reference_data = &one_thread,
                                    .reference_name = "one thread", .wall = true });
    bench_must(amp_set_num_threads(1), "amp_set_num_threads");
    bench_release(memory, bytes);
}

void bench_lists(void) {
    run(200, 50000, false, "200 x 50000", 0.8);
    run(1000, 1000, false, "1000 x 1000", 0.8);
    run(2000, 1000, true, "2000 x 1000-2000", 0.8);
    run(2000, 200, true, "2000 x 200-400", 0.8); /* in the second-level cache: a mispredicted branch per tensor shows */
    run_counts();
    run_threads("unscale, two threads", unscale, 8, (size_t)256 << 20, "256 MiB");
    run_threads("L2 norm, two threads", norm, 4, (size_t)16 << 20, "16 MiB");
}
