/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the gate's table is made from: a product of FP32 values in 16 bits, as a call has it (the activation is cast,
 * the weight was cast before, the result becomes FP32 again), against the same product in FP32. Square matrices, one
 * thread, whoever computes amp_matmul here. From which size on is the ratio 1.05?
 */
#include "bench.h"

#include <amp_kernels.h>

#include <stdio.h>

struct product {
    amp_dtype type;
    int64_t edge;
    float *a, *b, *d;
    void *low_a, *low_b, *low_d;
};

static void multiply(const struct product *p, amp_dtype type, const void *a, const void *b, void *d) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.a_dtype = g.b_dtype = g.d_dtype = type;
    g.m = g.n = g.k = p->edge, g.a = a, g.b = b, g.d = d;
    bench_must(amp_matmul(&g), "amp_matmul");
}

static void cast(const struct product *p, amp_dtype to, void *dst, amp_dtype from, void *src) {
    const uint64_t n = (uint64_t)(p->edge * p->edge);
    bench_must(amp_cast_list(&(amp_span){ dst, n, to, 0 }, &(amp_span){ src, n, from, 0 }, 1), "amp_cast_list");
}

static void in_fp32(void *data) {
    const struct product *p = data;
    multiply(p, AMP_FLOAT32, p->a, p->b, p->d);
}

static void in_low(void *data) {
    const struct product *p = data;
    cast(p, p->type, p->low_a, AMP_FLOAT32, p->a);
    multiply(p, p->type, p->low_a, p->low_b, p->low_d);
    cast(p, AMP_FLOAT32, p->d, p->type, p->low_d);
}

void bench_gate(void) {
    enum { LARGEST = 1024 };
    static const int64_t edges[] = { 16, 24, 32, 48, 64, 96, 128, 256, 512, LARGEST };
    const size_t bytes = sizeof(float) * LARGEST * LARGEST;
    void *memory[6];
    for (int i = 0; i < 6; i++) memory[i] = bench_memory(bytes);
    for (int type = AMP_FLOAT16; type <= AMP_BFLOAT16; type++)
        for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
            char size[32];
            struct product p = { type,      edges[i],  memory[0], memory[1],
                                 memory[2], memory[3], memory[4], memory[5] };
            snprintf(size, sizeof size, "%lld", (long long)p.edge);
            cast(&p, p.type, p.low_b, AMP_FLOAT32, p.b);
            bench_run(&(struct bench_case){ .group = "gate", .name = type == AMP_FLOAT16 ? "fp16, casts included"
                                                                                         : "bf16, casts included",
                                            .size = size, .unit = "ns", .calls = 1, .ours = in_low, .ours_data = &p,
                                            .reference = in_fp32, .reference_data = &p,
                                            .reference_name = "fp32, same backend" });
        }
    for (int i = 0; i < 6; i++) bench_release(memory[i], bytes);
}
