/* SPDX-License-Identifier: Apache-2.0 */
/* The fused optimizers against loops that read and write the same streams and compute nothing. (Peers: peers.c.) */
#include "bench.h"

#include <amp_optim.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model {
    struct bench_stream step; /* n tensors of one length, one behind the other */
    amp_optim rule;
    amp_optim_tensors tensors;
    bool checks;    /* a pass over the gradients before */
    bench_fn *read; /* the same of the reference */
};

/* ---- ours and theirs ---- */

static void ours(void *data) {
    struct model *m = data;
    float found = 0.0f, norm = 0.0f;
    if (m->checks) {
        bench_must(amp_check_list(m->tensors.grad, m->tensors.n, 1.0f, 1.0f, &norm, NULL, &found), "amp_check_list");
        m->tensors.found_inf = &found;
    }
    bench_must(amp_optim_list(&m->rule, &m->tensors), "amp_optim_list");
}

static size_t chosen; /* of bench_streams */

static void streams(void *data) {
    struct model *m = data;
    const size_t bytes = m->step.n * m->step.length * (m->step.low ? 2 : 4);
    struct bench_floats grads = { (float *)(uintptr_t)m->step.grad, bytes / 4, 1.0f };
    if (m->checks) m->read(&grads);
    bench_streams[chosen](&m->step);
}

/* ---- memory ---- */

static amp_span *list(const struct bench_stream *s, void *data, amp_dtype type) {
    amp_span *spans = malloc(s->n * sizeof *spans);
    if (!spans) bench_must(1, "memory");
    for (size_t i = 0; i < s->n; i++)
        spans[i] = (amp_span){ (char *)data + i * s->length * (type == AMP_FLOAT32 ? 4 : 2), s->length, type, 0 };
    return spans;
}

/* type: of the gradients; a 16-bit one: of the copies too. */
static void make(struct model *m, amp_dtype type) {
    struct bench_stream *s = &m->step;
    const size_t total = s->n * s->length;
    const bool half = type != AMP_FLOAT32;
    void *grad = bench_memory(total * 4);
    for (size_t k = 0; k < s->n_floats; k++) s->floats[k] = bench_memory(total * 4);
    if (half) {
        const amp_span from = { grad, total, AMP_FLOAT32, 0 }, to = { bench_memory(total * 2), total, type, 0 };
        bench_must(amp_cast_list(&to, &from, 1), "amp_cast_list");
        bench_release(grad, total * 4);
        grad = to.data;
        s->low = bench_memory(total * 2);
    }
    s->grad = grad;
    m->tensors = (amp_optim_tensors)AMP_OPTIM_TENSORS_INIT;
    m->tensors.n = s->n;
    m->tensors.grad = list(s, grad, type);
    m->tensors.param = list(s, s->floats[0], AMP_FLOAT32);
    if (half) m->tensors.low = list(s, s->low, type);
    for (size_t k = 1; k < s->n_floats; k++) m->tensors.moments[k - 1] = list(s, s->floats[k], AMP_FLOAT32);
    m->tensors.steps = calloc(s->n, sizeof *m->tensors.steps);
    if (!m->tensors.steps) bench_must(1, "memory");
}

static void end(struct model *m) {
    const struct bench_stream *s = &m->step;
    const size_t total = s->n * s->length;
    bench_release((void *)(uintptr_t)s->grad, total * (s->low ? 2 : 4));
    if (s->low) bench_release(s->low, total * 2);
    for (size_t k = 0; k < s->n_floats; k++) bench_release(s->floats[k], total * 4);
    free((void *)(uintptr_t)m->tensors.grad), free((void *)(uintptr_t)m->tensors.param);
    free((void *)(uintptr_t)m->tensors.low), free(m->tensors.steps);
    for (int k = 0; k < 3; k++) free((void *)(uintptr_t)m->tensors.moments[k]);
}

/* ---- lines ---- */

struct line {
    const char *name;
    amp_optim_kind kind;
    double momentum;
    size_t n_floats; /* parameter and moments */
    bool half, checks;
    double goal;
};

static amp_optim rule_of(const struct line *line) {
    amp_optim rule = AMP_OPTIM_INIT;
    bench_must(amp_optim_defaults(line->kind, &rule), "amp_optim_defaults");
    rule.momentum = line->momentum;
    rule.lr = 1e-9; /* values stay what they are, however often */
    return rule;
}

static void run(const struct line *line, size_t n, size_t length, const char *size) {
    struct model m = { .step = { .n = n, .length = length, .n_floats = line->n_floats }, .rule = rule_of(line),
                       .checks = line->checks };
    char reference[64];
    make(&m, line->half ? AMP_FLOAT16 : AMP_FLOAT32);
    struct bench_floats grads = { (float *)(uintptr_t)m.step.grad, n * length / (line->half ? 2 : 1), 1.0f };
    m.read = bench_reads[bench_best(bench_reads, bench_n_floats(), &grads)];
    chosen = bench_best(bench_streams, bench_n_streams(), &m.step);
    snprintf(reference, sizeof reference, "the same streams: %s", bench_stream_names[chosen]);
    const double width = (line->half ? 4 + (line->checks ? 2 : 0) : 4) + 8.0 * (double)line->n_floats;
    bench_run(&(struct bench_case){ .group = "optim", .name = line->name, .size = size, .unit = "GB/s",
                                    .bytes = width * (double)(n * length), .ours = ours, .ours_data = &m,
                                    .reference = streams, .reference_data = &m, .reference_name = reference,
                                    .goal = line->goal });
    end(&m);
}

/* Many small tensors, in the caches, against one of the same bytes. */
static void run_small(const struct line *line, size_t n, size_t length, const char *size) {
    struct model m = { .step = { .n = n, .length = length, .n_floats = line->n_floats }, .rule = rule_of(line) };
    make(&m, AMP_FLOAT32);
    struct model whole = m;
    amp_span spans[] = { m.tensors.grad[0], m.tensors.param[0], m.tensors.moments[0][0], m.tensors.moments[1][0] };
    for (int k = 0; k < 4; k++) spans[k].size = n * length;
    whole.tensors.n = 1;
    whole.tensors.grad = &spans[0], whole.tensors.param = &spans[1];
    whole.tensors.moments[0] = &spans[2], whole.tensors.moments[1] = &spans[3];
    bench_run(&(struct bench_case){ .group = "optim", .name = line->name, .size = size, .unit = "GB/s",
                                    .bytes = 28.0 * (double)(n * length), .ours = ours, .ours_data = &m,
                                    .reference = ours, .reference_data = &whole, .reference_name = "one tensor",
                                    .goal = line->goal });
    end(&m);
}

/* Split masters against FP32 masters with a bf16 copy: the same step, of fewer bytes. */
static void run_split(const struct line *line, size_t n, size_t length, const char *size) {
    struct model split = { .step = { .n = n, .length = length, .n_floats = line->n_floats }, .rule = rule_of(line) };
    struct model wide = split;
    const size_t block = (size_t)amp_remainder_bytes(length);
    void **remainders = calloc(n, sizeof *remainders);
    char *blocks = bench_memory(n * block);
    if (!remainders) bench_must(1, "memory");
    for (size_t i = 0; i < n; i++) remainders[i] = blocks + i * block;
    make(&wide, AMP_BFLOAT16), make(&split, AMP_BFLOAT16);
    for (int k = 0; k < 2; k++) { /* numbers with all their digits, as steps leave them */
        const amp_span *const masters = (k ? &split : &wide)->tensors.param;
        bench_must(amp_scale_list(masters, masters, n, 0x1.6a09e6p-1f, NULL), "amp_scale_list");
    }
    bench_must(amp_split_list(split.tensors.low, remainders, split.tensors.param, n), "amp_split_list");
    amp_span *const masters = (amp_span *)(uintptr_t)split.tensors.param;
    split.tensors.param = split.tensors.low, split.tensors.low = NULL, split.tensors.remainders = remainders;
    const double width = 2 + 4 + 4 + 8.0 * (double)(line->n_floats - 1);
    bench_run(&(struct bench_case){ .group = "optim", .name = line->name, .size = size, .unit = "GB/s",
                                    .bytes = width * (double)(n * length), .ours = ours, .ours_data = &split,
                                    .reference = ours, .reference_data = &wide, .reference_name = "FP32 masters",
                                    .goal = line->goal });
    split.tensors.low = split.tensors.param, split.tensors.param = masters;
    end(&wide), end(&split);
    bench_release(blocks, n * block);
    free(remainders);
}

/* Moments in 8 bits against FP32 ones: the same step, 16 1/16 bytes an element instead of 28. */
static void run_codes(size_t n, size_t length, const char *size) {
    const struct line line = { "AdamW, 8-bit moments", AMP_OPTIM_ADAMW, 0.0, 3, false, false, 0.9 };
    struct model wide = { .step = { .n = n, .length = length, .n_floats = 3 }, .rule = rule_of(&line) };
    struct model coded = { .step = { .n = n, .length = length, .n_floats = 1 }, .rule = wide.rule };
    const size_t blocks = (length + AMP_STATE_BLOCK - 1) / AMP_STATE_BLOCK;
    uint8_t *codes[2];
    float *scales[2], **lists[2];
    make(&wide, AMP_FLOAT32), make(&coded, AMP_FLOAT32);
    for (int k = 0; k < 2; k++) {
        amp_span *moments = calloc(n, sizeof *moments);
        codes[k] = bench_memory(n * length), scales[k] = bench_memory(n * blocks * sizeof(float));
        lists[k] = calloc(n, sizeof *lists[k]);
        if (!moments || !lists[k]) bench_must(1, "memory");
        memset(codes[k], 0, n * length);
        for (size_t i = 0; i < n; i++) {
            moments[i] = (amp_span){ codes[k] + i * length, length, AMP_DTYPE_OTHER, 0 };
            lists[k][i] = scales[k] + i * blocks;
        }
        coded.tensors.moments[k] = moments, coded.tensors.scales[k] = lists[k];
    }
    bench_run(&(struct bench_case){ .group = "optim", .name = line.name, .size = size, .unit = "GB/s",
                                    .bytes = (16 + 4.0 * 4 / AMP_STATE_BLOCK) * (double)(n * length), .ours = ours,
                                    .ours_data = &coded, .reference = ours, .reference_data = &wide,
                                    .reference_name = "FP32 moments", .goal = line.goal });
    for (int k = 0; k < 2; k++) {
        bench_release(codes[k], n * length), bench_release(scales[k], n * blocks * sizeof(float));
        free(lists[k]);
    }
    end(&wide), end(&coded);
}

void bench_optim(void) {
    static const struct line lines[] = {
        { "SGD with momentum, fp32", AMP_OPTIM_SGD, 0.9, 2, false, false, 0.9 },
        { "Adam, fp32", AMP_OPTIM_ADAM, 0.0, 3, false, false, 0.9 },
        { "SGD with momentum, fp16, masters", AMP_OPTIM_SGD, 0.9, 2, true, false, 0.9 },
        { "Adam, fp16, masters", AMP_OPTIM_ADAM, 0.0, 3, true, false, 0.9 },
        { "check, Adam, fp16, masters", AMP_OPTIM_ADAM, 0.0, 3, true, true, 0 },
    };
    static const struct line splits[] = {
        { "SGD with momentum, bf16, split masters", AMP_OPTIM_SGD, 0.9, 2, true, false, 1.0 },
        { "Adam, bf16, split masters", AMP_OPTIM_ADAM, 0.0, 3, true, false, 1.0 },
    };
    const struct line adam = { "Adam, fp32", AMP_OPTIM_ADAM, 0.0, 3, false, false, 0 }; /* in the caches */
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) run(&lines[i], 200, 50000, "200 x 50000");
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) run_split(&splits[i], 200, 50000, "200 x 50000");
    run_codes(200, 50000, "200 x 50000");
    run(&adam, 16, 1024, "16 x 1024");
    run_small(&adam, 1000, 1000, "1000 x 1000");
    run_small(&adam, 2000, 300, "2000 x 300");
}
