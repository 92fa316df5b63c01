/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts, unscaling with a check, axpby and norms on a GPU: one tensor against copying as many bytes; 2,000 tensors of
 * mixed size against one of as many elements; BERT-base's gradients against copying them and against torch.
 */
#include "cuda_lists.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t cuda_width(amp_dtype type) { return type == AMP_FLOAT32 ? 4 : type == AMP_FLOAT64 ? 8 : 2; }

/* ---- the work ---- */

enum { SCALE, FOUND, NORM, NUMBERS };

static void cast(void *data) {
    const struct cuda_work *w = data;
    bench_must(amp_device_cast(w->list, bench_cuda_stream, w->spans[0], w->spans[1], w->n), "amp_device_cast");
}

static void unscale(void *data) {
    const struct cuda_work *w = data;
    const amp_factor by = { &w->numbers[SCALE], 0.0f, AMP_FACTOR_INVERSE };
    const amp_span *src = w->spans[w->op->in_place ? 0 : 1];
    bench_must(amp_device_scale(w->list, bench_cuda_stream, w->spans[0], src, w->n, &by, &w->numbers[FOUND]),
               "amp_device_scale");
}

static void axpby(void *data) {
    const struct cuda_work *w = data;
    const amp_factor a = { NULL, 0.5f, AMP_FACTOR_AS_IT_IS }, b = { &w->numbers[SCALE], 0.0f, AMP_FACTOR_AS_IT_IS };
    bench_must(amp_device_axpby(w->list, bench_cuda_stream, w->spans[0], &a, w->spans[1], &b, w->spans[2], w->n,
                                &w->numbers[FOUND]),
               "amp_device_axpby");
}

static void norm(void *data) {
    const struct cuda_work *w = data;
    bench_must(amp_device_check(w->list, bench_cuda_stream, w->spans[0], w->n, NULL, NULL, &w->numbers[NORM], NULL,
                                NULL),
               "amp_device_check");
}

static void statistics(void *data) {
    const struct cuda_work *w = data;
    bench_must(amp_device_statistics(w->list, bench_cuda_stream, w->spans[0], w->n, w->statistics),
               "amp_device_statistics");
}

static const struct cuda_op ops[] = {
    { "casts", "fp32 to fp16", cast, { AMP_FLOAT16, AMP_FLOAT32 }, false },
    { "casts", "fp32 to bf16", cast, { AMP_BFLOAT16, AMP_FLOAT32 }, false },
    { "casts", "fp16 to fp32", cast, { AMP_FLOAT32, AMP_FLOAT16 }, false },
    { "casts", "bf16 to fp32", cast, { AMP_FLOAT32, AMP_BFLOAT16 }, false },
    { "unscale", "fp32 in place, checked", unscale, { AMP_FLOAT32 }, true },
    { "unscale", "fp16 to fp32, checked", unscale, { AMP_FLOAT32, AMP_FLOAT16 }, false },
    { "unscale", "bf16 to fp32, checked", unscale, { AMP_FLOAT32, AMP_BFLOAT16 }, false },
    { "axpby", "fp32, checked", axpby, { AMP_FLOAT32, AMP_FLOAT32, AMP_FLOAT32 }, false },
    { "axpby", "fp16 and fp32 to fp32, checked", axpby, { AMP_FLOAT32, AMP_FLOAT16, AMP_FLOAT32 }, false },
    { "norm", "L2 norm, fp32", norm, { AMP_FLOAT32 }, false },
    { "norm", "L2 norm, fp16", norm, { AMP_FLOAT16 }, false },
    { "norm", "L2 norm, bf16", norm, { AMP_BFLOAT16 }, false },
    { "norm", "statistics, fp32", statistics, { AMP_FLOAT32 }, false },
    { "norm", "statistics, bf16", statistics, { AMP_BFLOAT16 }, false },
};
enum { OPS = sizeof ops / sizeof *ops };

/* Of an element of each list. */
static size_t widths(const struct cuda_op *op) {
    size_t sum = 0;
    for (int l = 0; l < CUDA_LISTS && op->types[l]; l++) sum += cuda_width(op->types[l]);
    return sum;
}

struct cuda_work cuda_work_make(const struct cuda_op *op, const struct bench_arena *arena, const uint64_t *sizes,
                                size_t n) {
    struct cuda_work w = { .op = op, .n = n, .numbers = bench_cuda_memory(NUMBERS * sizeof(float), 0) };
    const amp_statistics none = AMP_STATISTICS_INIT;
    const float one = 1.0f;
    char *at = arena->memory;
    bench_cuda_write(&w.numbers[SCALE], &one, sizeof one);
    if (op->work == statistics) {
        w.statistics = bench_cuda_memory(n * sizeof none, 0);
        for (size_t i = 0; i < n; i++) bench_cuda_write(&w.statistics[i], &none, sizeof none);
    }
    bench_must(amp_device_list_open((amp_device){ 2, 0 }, &w.list), "amp_device_list_open");
    for (size_t i = 0; i < n; i++) w.elements += sizes[i];
    for (int l = 0; l < CUDA_LISTS && op->types[l]; l++) {
        w.spans[l] = malloc(n * sizeof *w.spans[l]);
        if (!w.spans[l]) bench_must(1, "memory");
        for (size_t i = 0; i < n; i++) {
            w.spans[l][i] = (amp_span){ at, sizes[i], op->types[l], 0 };
            at += (sizes[i] * cuda_width(op->types[l]) + BENCH_CUDA_GAP - 1) / BENCH_CUDA_GAP * BENCH_CUDA_GAP;
        }
    }
    bench_must(at > arena->memory + arena->bytes + (size_t)BENCH_CUDA_GAP * BENCH_CUDA_GAPS, "a larger arena");
    w.moved = (double)w.elements * (double)widths(op) * (op->in_place ? 2 : 1);
    return w;
}

void cuda_work_free(struct cuda_work *w) {
    bench_cuda_wait();
    amp_device_list_close(w->list);
    for (int l = 0; l < CUDA_LISTS; l++) free(w->spans[l]);
}

/* ---- one tensor ---- */

static const char *size_name(char text[40], size_t n, double bytes) {
    if (n > 1) snprintf(text, 40, "%zu, %.4g MB", n, bytes * 1e-6);
    else snprintf(text, 40, "%.4g MB", bytes * 1e-6);
    return text;
}

static void against_copies(struct cuda_work *w, const struct bench_arena *arena, const char *name, const char *size) {
    struct bench_copies copies = { *arena, w->moved };
    bench_run(&(struct bench_case){ .group = w->op->group, .name = name, .size = size, .unit = "GB/s",
                                    .bytes = w->moved,
                                    .ours = w->op->work, .ours_data = w, .reference = bench_cuda_copies,
                                    .reference_data = &copies, .reference_name = "copying as many bytes",
                                    .goal = w->op->work == statistics ? 0.5 : 0.92,
                                    .gpu = true });
}

static void run_one(const struct cuda_op *op) {
    char size[40];
    const struct bench_arena arena = bench_cuda_arena();
    const uint64_t elements = arena.bytes / widths(op);
    struct cuda_work w = cuda_work_make(op, &arena, &elements, 1);
    against_copies(&w, &arena, op->name, size_name(size, 1, (double)(elements * widths(op))));
    cuda_work_free(&w);
}

static void run_group(const char *group) {
    for (size_t i = 0; i < OPS; i++)
        if (!strcmp(ops[i].group, group)) run_one(&ops[i]);
}

void bench_cuda_casts(void) { run_group("casts"); }
void bench_cuda_axpby(void) { run_group("axpby"); }
void bench_cuda_norm(void) { run_group("norm"); }

/* ---- many tensors ---- */

/* Biases and weights: each is four times the one before, six in turn, and none a multiple of eight. */
static uint64_t mixed_sizes(uint64_t *sizes, size_t n, uint64_t elements) {
    uint64_t sum = 0;
    const uint64_t least = elements / (n * (1 + 4 + 16 + 64 + 256 + 1024) / 6 + 1);
    for (size_t i = 0; i < n; i++) {
        const uint64_t size = least << (2 * (i * 7919 % 6));
        sizes[i] = size > 8 ? size / 8 * 8 - 1 - i % 7 : 1 + i % 7;
        sum += sizes[i];
    }
    return sum;
}

static void run_mixed(const struct cuda_op *op) {
    enum { MANY = 2000 };
    static uint64_t sizes[MANY];
    char size[40], name[64];
    const struct bench_arena arena = bench_cuda_arena();
    const uint64_t elements = mixed_sizes(sizes, MANY, arena.bytes / widths(op));
    struct cuda_work many = cuda_work_make(op, &arena, sizes, MANY), one = cuda_work_make(op, &arena, &elements, 1);
    snprintf(name, sizeof name, "%s, %s", op->group, op->name);
    bench_run(&(struct bench_case){ .group = "lists", .name = name, .unit = "GB/s", .bytes = many.moved,
                                    .ours = op->work,
                                    .size = size_name(size, MANY, (double)(elements * widths(op))), .ours_data = &many,
                                    .reference = op->work, .reference_data = &one, .reference_name = "one tensor",
                                    .goal = 0.9, .gpu = true });
    cuda_work_free(&many), cuda_work_free(&one);
}

void bench_cuda_lists(void) {
    for (size_t i = 0; i < OPS; i++)
        if (i == 0 || strcmp(ops[i].group, ops[i - 1].group) != 0) run_mixed(&ops[i]);
}

/* ---- BERT-base ---- */

enum { LAYERS = 12, LAYER_TENSORS = 16, BERT_TENSORS = 5 + LAYERS * LAYER_TENSORS + 2 };

/* The parameters of the base model, uncased, in their order: embeddings of words, positions and kinds, and their norm;
 * in each layer queries, keys, values, output, norm, the two products of the feed-forward part, norm; the pooler. */
static void bert_sizes(uint64_t sizes[BERT_TENSORS]) {
    enum { WIDTH = 768, INNER = 4 * WIDTH, WORDS = 30522, POSITIONS = 512, KINDS = 2 };
    static const uint64_t embeddings[] = { WORDS * WIDTH, POSITIONS * WIDTH, KINDS * WIDTH, WIDTH, WIDTH };
    static const uint64_t layer[LAYER_TENSORS] = {
        WIDTH *WIDTH, WIDTH, WIDTH *WIDTH, WIDTH, WIDTH *WIDTH, WIDTH, WIDTH *WIDTH, WIDTH, WIDTH, WIDTH,
        INNER *WIDTH, INNER, WIDTH *INNER, WIDTH, WIDTH,        WIDTH,
    };
    uint64_t *at = sizes;
    memcpy(at, embeddings, sizeof embeddings), at += 5;
    for (int l = 0; l < LAYERS; l++, at += LAYER_TENSORS) memcpy(at, layer, sizeof layer);
    *at++ = WIDTH * WIDTH, *at = WIDTH;
}

/* What of it fits. */
static void shrink(uint64_t *sizes, size_t n, uint64_t most) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += sizes[i];
    if (sum <= most) return;
    for (size_t i = 0; i < n; i++) sizes[i] = sizes[i] * most / sum > 0 ? sizes[i] * most / sum : 1;
}

static void against_torch(struct cuda_work *w, const uint64_t *sizes, const char *size) {
    char request[4000] = "unscale_sizes", reference[96];
    for (size_t i = 0, at = strlen(request); i < w->n; i++)
        at += (size_t)snprintf(request + at, sizeof request - at, " %llu", (unsigned long long)sizes[i]);
    if (!bench_peers_name()) {
        bench_left_out("unscale", "BERT-base against torch: there are no peers (--peers PYTHON)");
        return;
    }
    snprintf(reference, sizeof reference, "%s, _amp_foreach_non_finite_check_and_unscale_", bench_peers_name());
    const int peer = bench_peer_make("%s", request);
    bench_run(&(struct bench_case){ .group = "unscale", .name = "BERT-base, fp32 in place, checked", .size = size,
                                    .unit = "GB/s",
                                    .bytes = w->moved, .ours = w->op->work, .ours_data = w, .peer = peer,
                                    .reference_name = reference, .goal = 1, .gpu = true });
    bench_peer_drop(peer);
}

void bench_cuda_unscale(void) {
    static uint64_t sizes[BERT_TENSORS];
    char size[40];
    size_t i = 0;
    run_group("unscale");
    while (ops[i].work != unscale || !ops[i].in_place) i++;
    const struct bench_arena arena = bench_cuda_arena();
    bert_sizes(sizes), shrink(sizes, BERT_TENSORS, arena.bytes / 4);
    struct cuda_work w = cuda_work_make(&ops[i], &arena, sizes, BERT_TENSORS);
    size_name(size, BERT_TENSORS, w.moved / 2);
    against_copies(&w, &arena, "BERT-base, fp32 in place, checked", size);
    against_torch(&w, sizes, size);
    cuda_work_free(&w);
}
