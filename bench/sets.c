/* SPDX-License-Identifier: Apache-2.0 */
/* Each instruction set of this machine against the scalar code, as the compiler made it, on 64 Ki elements. */
#include "bench.h"

#include <amp_kernels.h>

#include <stdio.h>

enum { ELEMENTS = 65536 };

struct job {
    void (*work)(const amp_span *dst, const amp_span *src);
    amp_span dst, src;
};

static void cast(const amp_span *dst, const amp_span *src) { bench_must(amp_cast_list(dst, src, 1), "amp_cast_list"); }

static void scale(const amp_span *dst, const amp_span *src) {
    float found = 0.0f;
    bench_must(amp_scale_list(dst, src, 1, 1.0f, &found), "amp_scale_list");
}

static void axpby(const amp_span *dst, const amp_span *src) {
    float found = 0.0f;
    bench_must(amp_axpby_list(dst, 1.0f, src, 0.5f, src, 1, &found), "amp_axpby_list");
}

static void norm(const amp_span *dst, const amp_span *src) {
    float result;
    (void)dst;
    bench_must(amp_l2norm_list(src, 1, &result, NULL), "amp_l2norm_list");
}

/* The job with the sets that `mask` says. */
struct masked {
    const struct job *job;
    uint32_t mask;
};

static void run_masked(void *data) {
    const struct masked *m = data;
    amp_set_cpu_mask(m->mask);
    m->job->work(&m->job->dst, &m->job->src);
}

static const struct {
    const char *name;
    void (*work)(const amp_span *dst, const amp_span *src);
    amp_dtype to, from;
    size_t bytes; /* of an element, read and written */
} kernels[] = {
    { "cast, fp32 to fp16", cast, AMP_FLOAT16, AMP_FLOAT32, 6 },
    { "cast, fp16 to fp32", cast, AMP_FLOAT32, AMP_FLOAT16, 6 },
    { "cast, fp32 to bf16", cast, AMP_BFLOAT16, AMP_FLOAT32, 6 },
    { "cast, bf16 to fp32", cast, AMP_FLOAT32, AMP_BFLOAT16, 6 },
    { "cast, fp64 to fp16", cast, AMP_FLOAT16, AMP_FLOAT64, 10 },
    { "cast, fp64 to fp32", cast, AMP_FLOAT32, AMP_FLOAT64, 12 },
    { "scale, fp32", scale, AMP_FLOAT32, AMP_FLOAT32, 8 },
    { "scale, fp16 to fp32", scale, AMP_FLOAT32, AMP_FLOAT16, 6 },
    { "scale, fp16", scale, AMP_FLOAT16, AMP_FLOAT16, 4 },
    { "axpby, fp32", axpby, AMP_FLOAT32, AMP_FLOAT32, 8 },
    { "L2 norm, fp32", norm, AMP_FLOAT32, AMP_FLOAT32, 4 },
    { "L2 norm, fp16", norm, AMP_FLOAT16, AMP_FLOAT16, 2 },
};

static void run(const char *set, uint32_t flag) {
    enum { BYTES = ELEMENTS * sizeof(double) };
    void *dst = bench_memory(BYTES), *src = bench_memory(BYTES);
    const amp_span floats = { bench_memory(BYTES), ELEMENTS, AMP_FLOAT32, 0 };
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        struct job job = { kernels[i].work, { dst, ELEMENTS, kernels[i].to, 0 },
                           { src, ELEMENTS, kernels[i].from, 0 } };
        struct masked ours = { &job, flag }, scalar = { &job, 0 };
        cast(&job.src, &floats);
        bench_run(&(struct bench_case){ .group = "sets", .name = kernels[i].name, .size = set, .unit = "GB/s",
                                        .bytes = (double)(ELEMENTS * kernels[i].bytes), .ours = run_masked,
                                        .ours_data = &ours, .reference = run_masked, .reference_data = &scalar,
                                        .reference_name = "scalar" });
    }
    bench_release(dst, BYTES), bench_release(src, BYTES), bench_release(floats.data, BYTES);
}

void bench_sets(void) {
    static const struct {
        const char *name;
        uint32_t flag;
    } sets[] = { { "SSE2", AMP_CPU_SSE2 },
                 { "AVX2", AMP_CPU_AVX2 },
                 { "AVX-512", AMP_CPU_AVX512 },
                 { "NEON", AMP_CPU_NEON } };
    const uint32_t in_use = amp_cpu_flags();
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (in_use & sets[i].flag) run(sets[i].name, sets[i].flag);
    amp_set_cpu_mask(in_use);
}
