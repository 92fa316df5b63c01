/* SPDX-License-Identifier: Apache-2.0 */
/* amp_device_optim on a GPU: Adam over 200 tensors, its gradients unscaled on the way, against copying as many bytes
 * and against torch's fused Adam. */
#include "cuda_lists.h"

#include <amp_optim.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { TENSORS = 200, GRAD, PARAM, LOW, FIRST, SECOND, LISTS };

struct model {
    amp_device_list *list;
    amp_span *spans[LISTS];
    void *remainders[TENSORS];
    amp_optim rule;
    amp_optim_tensors tensors;
};

static void step(void *data) {
    const struct model *m = data;
    bench_must(amp_device_optim(m->list, bench_cuda_stream, &m->rule, &m->tensors), "amp_device_optim");
}

/* Without masters there is no LOW, and with split ones it is the parameter's other half. */
static amp_dtype type_of(int list, amp_dtype type, bool split) {
    if (list == LOW && (type == AMP_FLOAT32 || split)) return 0;
    return list == GRAD || list == LOW || (list == PARAM && split) ? type : AMP_FLOAT32;
}

static void *take(char **at, size_t bytes) {
    void *taken = *at;
    *at += (bytes + BENCH_CUDA_GAP - 1) / BENCH_CUDA_GAP * BENCH_CUDA_GAP;
    return taken;
}

static size_t make(struct model *m, const struct bench_arena *arena, amp_dtype type, bool split) {
    size_t width = split ? 3 : 0; /* a remainder: 2 1/8 bytes */
    char *at = arena->memory;
    for (int l = GRAD; l < LISTS; l++) width += type_of(l, type, split) ? cuda_width(type_of(l, type, split)) : 0;
    const size_t most = arena->bytes / width / TENSORS, size = most ? most : 1;
    *m = (struct model){ .rule = AMP_OPTIM_INIT, .tensors = AMP_OPTIM_TENSORS_INIT };
    bench_must(amp_device_list_open((amp_device){ 2, 0 }, &m->list), "amp_device_list_open");
    for (int l = GRAD; l < LISTS; l++) {
        const amp_dtype dtype = type_of(l, type, split);
        if (!dtype) continue;
        m->spans[l] = malloc(TENSORS * sizeof *m->spans[l]);
        if (!m->spans[l]) bench_must(1, "memory");
        for (size_t i = 0; i < TENSORS; i++)
            m->spans[l][i] = (amp_span){ take(&at, size * cuda_width(dtype)), size, dtype, 0 };
    }
    for (size_t i = 0; split && i < TENSORS; i++) m->remainders[i] = take(&at, (size_t)amp_remainder_bytes(size));
    return size;
}

/* Of the step's own numbers, on the device: no overflow, a scale of 1, no step yet. */
static void prepare(struct model *m, bool split) {
    static float *numbers; /* found_inf, 1 / scale */
    const float values[] = { 0.0f, 1.0f };
    if (!numbers) numbers = bench_cuda_memory(sizeof values, 0);
    bench_cuda_write(numbers, values, sizeof values);
    bench_must(amp_optim_defaults(AMP_OPTIM_ADAM, &m->rule), "amp_optim_defaults");
    m->rule.lr = 1e-9; /* values stay what they are, however often */
    m->tensors.n = TENSORS;
    m->tensors.grad = m->spans[GRAD], m->tensors.param = m->spans[PARAM], m->tensors.low = m->spans[LOW];
    m->tensors.moments[0] = m->spans[FIRST], m->tensors.moments[1] = m->spans[SECOND];
    m->tensors.remainders = split ? m->remainders : NULL;
    m->tensors.steps = bench_cuda_memory(TENSORS * sizeof(uint64_t), 0);
    m->tensors.found_inf = &numbers[0], m->tensors.inv_scale = &numbers[1];
}

/* `work` of peers.py, which takes a type and the tensors' number and size. */
static void against_torch(struct bench_case c, const char *work, const char *type, size_t size, const char *how) {
    char reference[96];
    snprintf(reference, sizeof reference, "%s, %s", bench_peers_name(), how);
    c.peer = bench_peer_make("%s %s %d %zu", work, type, TENSORS, size);
    c.reference_name = reference, c.goal = 1.1;
    bench_run(&c);
    bench_peer_drop(c.peer);
}

static void run(const char *name, amp_dtype type, const char *type_name, bool split) {
    const struct bench_arena arena = bench_cuda_arena();
    struct model m;
    char text[32];
    const size_t size = make(&m, &arena, type, split);
    prepare(&m, split);
    snprintf(text, sizeof text, "%d x %zu", TENSORS, size);
    /* read: gradient; read and written: parameter or master, moments; written: the 16-bit parameter. Split: the halves
     * of the master, and with it an eighth of a byte, are read and written. */
    const double bytes = (split ? 26.25 : 28.0) * TENSORS * (double)size;
    struct bench_copies copies = { arena, bytes };
    struct bench_case c = { .group = "optim", .name = name, .size = text, .unit = "GB/s", .bytes = bytes,
                            .ours = step, .ours_data = &m, .reference = bench_cuda_copies, .reference_data = &copies,
                            .reference_name = "copying as many bytes", .goal = 0.9, .gpu = true };
    bench_run(&c);
    if (split) {
        /* for FP32 masters the others are the peers */
    } else if (!bench_peers_name()) {
        bench_left_out("optim", "against torch: there are no peers (--peers PYTHON)");
    } else if (type == AMP_FLOAT32) {
        against_torch(c, "adam", "fp32", size, "_fused_adam_, fp32");
    } else {
        against_torch(c, "adam", "fp32", size, "_fused_adam_ of fp32 alone");
        against_torch(c, "adam", type_name, size, "foreach copy, _fused_adam_, foreach copy");
    }
    bench_cuda_wait();
    amp_device_list_close(m.list);
    for (int l = GRAD; l < LISTS; l++) free(m.spans[l]);
}

void bench_cuda_optim(void) {
    run("Adam, fp16, masters", AMP_FLOAT16, "fp16", false);
    run("Adam, bf16, masters", AMP_BFLOAT16, "bf16", false);
    run("Adam, bf16, split masters", AMP_BFLOAT16, "bf16", true);
    run("Adam, fp32", AMP_FLOAT32, "fp32", false);
}
