/* SPDX-License-Identifier: Apache-2.0 */
/* The lines whose reference is a peer: torch, which does the same work in its own process. */
#include "bench.h"

#include <amp_kernels.h>
#include <amp_optim.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Measures against the work `peer`, which is dropped, as is what was called there: `how`. */
static void compare(struct bench_case c, int peer, const char *how) {
    char reference[96];
    snprintf(reference, sizeof reference, "%s, %s", bench_peers_name(), how);
    c.peer = peer, c.reference_name = reference;
    bench_run(&c);
    bench_peer_drop(peer);
}

static const struct type {
    const char *name;
    amp_dtype dtype;
    size_t size;
} types[] = { { "fp32", AMP_FLOAT32, 4 }, { "fp16", AMP_FLOAT16, 2 }, { "bf16", AMP_BFLOAT16, 2 },
              { "fp64", AMP_FLOAT64, 8 } };
enum { TYPES = sizeof types / sizeof *types };

/* n elements of a type, the peers' numbers. */
static void *numbers(size_t n, const struct type *type) {
    float *floats = bench_memory(n * sizeof *floats);
    if (type->dtype == AMP_FLOAT32) return floats;
    void *memory = bench_memory(n * type->size);
    const amp_span from = { floats, n, AMP_FLOAT32, 0 }, to = { memory, n, type->dtype, 0 };
    bench_must(amp_cast_list(&to, &from, 1), "amp_cast_list");
    bench_release(floats, n * sizeof *floats);
    return memory;
}

/* ---- casts ---- */

static void cast(void *data) {
    const amp_span *spans = data;
    bench_must(amp_cast_list(&spans[0], &spans[1], 1), "amp_cast_list");
}

/* `bytes` are those of the longer side. */
static void run_cast(const struct type *to, const struct type *from, size_t bytes, const char *size, double goal) {
    const size_t n = bytes / (to->size > from->size ? to->size : from->size);
    amp_span spans[] = { { numbers(n, to), n, to->dtype, 0 }, { numbers(n, from), n, from->dtype, 0 } };
    char name[32];
    snprintf(name, sizeof name, "%s to %s", from->name, to->name);
    compare((struct bench_case){ .group = "casts", .name = name, .size = size, .unit = "GB/s",
                                 .bytes = (double)(n * (to->size + from->size)), .ours = cast, .ours_data = spans,
                                 .goal = goal },
            bench_peer_make("cast %s %s %zu", to->name, from->name, n), "copy_");
    bench_release(spans[0].data, n * to->size), bench_release(spans[1].data, n * from->size);
}

static void casts(void) {
    for (size_t large = 2; large-- > 0;)
        for (size_t to = 0; to < TYPES; to++)
            for (size_t from = 0; from < TYPES; from++)
                if (to != from)
                    run_cast(&types[to], &types[from], (size_t)(large ? 256 : 1) << 20, large ? "256 MiB" : "1 MiB",
                             large ? 1.0 : 1.2);
}

/* ---- lists of tensors: unscaling, steps ---- */

enum { GRAD, PARAM, FIRST, SECOND, LOW, LISTS };

/* n tensors of `size` elements, in each of the first `lists` lists one after the other. */
struct model {
    size_t n, size;
    int lists;
    const struct type *low;
    void *memory[LISTS];
    amp_span *spans[LISTS];
    float **scales[2]; /* of moments in 8 bits (NULL: FP32) */
    uint64_t *steps;
    amp_optim rule;
    float factor; /* 1/2 and 2 in turns, so that what is unscaled in place stays what it is */
};

static const struct type *type_of(const struct model *m, int list) { return list == LOW ? m->low : &types[0]; }

static struct model new_model(size_t n, size_t size, int lists, const struct type *low) {
    struct model m = { .n = n, .size = size, .lists = lists, .low = low, .steps = calloc(n, sizeof *m.steps),
                       .factor = 2.0f };
    if (!m.steps) bench_must(1, "memory");
    for (int list = 0; list < lists; list++) {
        const struct type *type = type_of(&m, list);
        m.memory[list] = numbers(n * size, type);
        m.spans[list] = calloc(n, sizeof *m.spans[list]);
        if (!m.spans[list]) bench_must(1, "memory");
        for (size_t i = 0; i < n; i++)
            m.spans[list][i] = (amp_span){ (char *)m.memory[list] + i * size * type->size, size, type->dtype, 0 };
    }
    for (size_t i = 0; i < n * size; i++) ((float *)m.memory[GRAD])[i] = 1e-3f;
    for (int list = FIRST; list <= SECOND && list < lists; list++) memset(m.memory[list], 0, n * size * sizeof(float));
    return m;
}

static size_t blocks_of(size_t size) { return (size + AMP_STATE_BLOCK - 1) / AMP_STATE_BLOCK; }

/* Moments in 8 bits, in a quarter of the memory. */
static void code_model(struct model *m) {
    for (int k = 0; k < 2; k++) {
        float *scales = bench_memory(m->n * blocks_of(m->size) * sizeof *scales);
        m->scales[k] = calloc(m->n, sizeof *m->scales[k]);
        if (!m->scales[k]) bench_must(1, "memory");
        for (size_t i = 0; i < m->n; i++) {
            m->scales[k][i] = scales + i * blocks_of(m->size);
            char *codes = (char *)m->memory[FIRST + k] + i * m->size;
            m->spans[FIRST + k][i] = (amp_span){ codes, m->size, AMP_DTYPE_OTHER, 0 };
        }
    }
}

static void end_model(struct model *m) {
    for (int list = 0; list < m->lists; list++) {
        bench_release(m->memory[list], m->n * m->size * type_of(m, list)->size);
        free(m->spans[list]);
    }
    for (int k = 0; k < 2 && m->scales[k]; k++) {
        bench_release(m->scales[k][0], m->n * blocks_of(m->size) * sizeof(float));
        free(m->scales[k]);
    }
    free(m->steps);
}

static void unscale(void *data) {
    struct model *m = data;
    float found = 0.0f;
    m->factor = 1 / m->factor;
    bench_must(amp_scale_list(m->spans[GRAD], m->spans[GRAD], m->n, m->factor, &found), "amp_scale_list");
}

static void update(struct model *m, const float *found, const float *factor, const amp_span *low) {
    amp_optim_tensors t = AMP_OPTIM_TENSORS_INIT;
    t.n = m->n, t.grad = m->spans[GRAD], t.param = m->spans[PARAM], t.low = low, t.steps = m->steps;
    t.moments[0] = m->spans[FIRST], t.moments[1] = m->spans[SECOND];
    t.scales[0] = m->scales[0], t.scales[1] = m->scales[1];
    t.found_inf = found, t.inv_scale = factor;
    bench_must(amp_optim_list(&m->rule, &t), "amp_optim_list");
}

static void step(void *data) { update(data, NULL, NULL, NULL); }

static void unscale_step_write(void *data) {
    struct model *m = data;
    float found = 0.0f;
    m->factor = 1 / m->factor;
    bench_must(amp_check_list(m->spans[GRAD], m->n, m->factor, 1.0f, NULL, NULL, &found), "amp_check_list");
    update(m, &found, &m->factor, m->spans[LOW]);
}

static void unscales(void) {
    static const struct {
        size_t n, size;
        const char *name;
        double goal;
    } sizes[] = { { 200, 50000, "200 x 50000", 1 }, { 1000, 1000, "1000 x 1000", 4 } };
    for (size_t i = 0; i < 2; i++) {
        struct model m = new_model(sizes[i].n, sizes[i].size, GRAD + 1, NULL);
        compare((struct bench_case){ .group = "unscale", .name = "fp32 in place, checked", .size = sizes[i].name,
                                     .unit = "GB/s", .bytes = 8.0 * (double)(m.n * m.size), .ours = unscale,
                                     .ours_data = &m, .goal = sizes[i].goal },
                bench_peer_make("unscale %zu %zu", m.n, m.size), "_amp_foreach_non_finite_check_and_unscale_");
        end_model(&m);
    }
}

static amp_optim rule_of(amp_optim_kind kind) {
    amp_optim rule = AMP_OPTIM_INIT;
    bench_must(amp_optim_defaults(kind, &rule), "amp_optim_defaults");
    rule.lr = 1e-3;
    if (kind == AMP_OPTIM_SGD) rule.momentum = 0.9;
    return rule;
}

static void optimizers(void) {
    static const struct {
        const char *name, *request, *how;
        bench_fn *work;
        amp_optim_kind kind;
        double bytes, goal; /* bytes of one element */
    } lines[] = {
        { "Adam, fp32", "step adam fused", "_fused_adam_", step, AMP_OPTIM_ADAM, 28, 1 },
        { "Adam, fp32", "step adam foreach", "optim.Adam(foreach=True)", step, AMP_OPTIM_ADAM, 28, 4 },
        { "SGD with momentum, fp32", "step sgd fused", "_fused_sgd_", step, AMP_OPTIM_SGD, 20, 1 },
        { "SGD with momentum, fp32", "step sgd foreach", "optim.SGD(foreach=True)", step, AMP_OPTIM_SGD, 20, 0 },
        { "unscale, check, Adam, fp16 written", "unscale_step_write fp16",
          "foreach unscale, _fused_adam_, foreach copy", unscale_step_write, AMP_OPTIM_ADAM, 30, 1.3 },
        { "unscale, check, Adam, bf16 written", "unscale_step_write bf16",
          "foreach unscale, _fused_adam_, foreach copy", unscale_step_write, AMP_OPTIM_ADAM, 30, 1.3 },
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct model m = new_model(200, 50000, LISTS, strstr(lines[i].request, "bf16") ? &types[2] : &types[1]);
        m.rule = rule_of(lines[i].kind);
        compare((struct bench_case){ .group = "optim", .name = lines[i].name, .size = "200 x 50000", .unit = "GB/s",
                                     .bytes = lines[i].bytes * (double)(m.n * m.size), .ours = lines[i].work,
                                     .ours_data = &m, .goal = lines[i].goal },
                bench_peer_make("%s %zu %zu", lines[i].request, m.n, m.size), lines[i].how);
        end_model(&m);
    }
}

/* AdamW with moments in 8 bits: against torch's FP32 step, and others' 8-bit ones where the Python has them. */
static void optimizers8(void) {
    static const struct {
        const char *module, *request, *how;
        double goal;
    } lines[] = {
        { "torch", "step adam fused", "_fused_adam_ in FP32", 0.9 },
        { "bitsandbytes", "step8 bitsandbytes", "bitsandbytes.optim.AdamW8bit", 20 },
        { "torchao", "step8 torchao", "torchao.optim.AdamW8bit", 20 },
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        if (!bench_peer_has(lines[i].module)) {
            printf("%-8s AdamW, 8-bit moments: left out: this Python has no %s\n", "optim", lines[i].module);
            continue;
        }
        struct model m = new_model(200, 50000, LOW, NULL);
        code_model(&m);
        m.rule = rule_of(AMP_OPTIM_ADAMW);
        compare((struct bench_case){ .group = "optim", .name = "AdamW, 8-bit moments", .size = "200 x 50000",
                                     .unit = "GB/s", .bytes = 16.0625 * (double)(m.n * m.size), .ours = step,
                                     .ours_data = &m, .goal = lines[i].goal },
                bench_peer_make("%s %zu %zu", lines[i].request, m.n, m.size), lines[i].how);
        end_model(&m);
    }
}

/* ---- matmul ---- */

static void matmul(void *data) { bench_must(amp_matmul(data), "amp_matmul"); }

/* work: of peers.py. call: its name in the table. */
static void run_matmul(const char *work, const char *call, const struct type *type, int64_t n, double goal) {
    const size_t elements = (size_t)(n * n);
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    char size[16], how[32];
    g.a_dtype = g.b_dtype = g.d_dtype = type->dtype;
    g.m = g.n = g.k = n;
    g.a = numbers(elements, type), g.b = numbers(elements, type), g.d = numbers(elements, type);
    snprintf(size, sizeof size, "%d", (int)n);
    snprintf(how, sizeof how, "%s, %s", call, type->name);
    compare((struct bench_case){ .group = "matmul", .name = type->name, .size = size, .unit = "ns", .calls = 1,
                                 .ours = matmul, .ours_data = &g, .goal = goal },
            bench_peer_make("%s %s %d", work, type->name, (int)n), how);
    void *const memory[] = { (void *)(uintptr_t)g.a, (void *)(uintptr_t)g.b, g.d };
    for (size_t i = 0; i < 3; i++) bench_release(memory[i], elements * type->size);
}

static void matmuls(void) {
    const bool fp16_unit = bench_cpu_has("avx512_fp16") || bench_cpu_has("amx_fp16") || bench_cpu_has("asimdhp");
    for (int64_t n = 512; n <= 2048; n *= 2)
        for (size_t type = 0; type < 3; type++)
            run_matmul("matmul", "mm", &types[type], n, types[type].dtype == AMP_FLOAT16 && !fp16_unit ? 50 : 0);
    if (!bench_peer_has("numkong")) {
        printf("%-8s products: left out: this Python has no numkong\n", "matmul");
        return;
    }
    for (int64_t n = 512; n <= 2048; n *= 2)
        for (size_t type = 0; type < 3; type++) run_matmul("numkong", "numkong.dots_packed", &types[type], n, 0);
}

void bench_peers(const char *group) {
    static const struct {
        const char *name;
        void (*lines)(void);
    } groups[] = { { "casts", casts }, { "unscale", unscales }, { "optim", optimizers }, { "optim", optimizers8 },
                 { "matmul", matmuls } };
    if (!bench_peers_name()) return;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (!group || !strcmp(group, groups[i].name)) groups[i].lines();
}
