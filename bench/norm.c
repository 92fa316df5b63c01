/* SPDX-License-Identifier: Apache-2.0 */
/* The L2 norm, and statistics, against reading. */
#include "bench.h"

#include <amp_kernels.h>

#include <math.h>

static void norm(void *data) {
    float result;
    bench_must(amp_l2norm_list(data, 1, &result, NULL), "amp_l2norm_list");
}

static void statistics(void *data) {
    static amp_statistics of = AMP_STATISTICS_INIT;
    bench_must(amp_statistics_list(data, 1, &of), "amp_statistics_list");
}

static void sampled(void *data) {
    static amp_statistics of = AMP_STATISTICS_INIT;
    bench_must(amp_statistics_sample(data, 1, 64, 1, &of), "amp_statistics_sample");
}

/* Values as a training has them, in many binades, in `dtype`. */
static void spread(void *data, size_t n, amp_dtype dtype) {
    enum { STRETCH = 65536 };
    static float x[STRETCH];
    const size_t width = dtype == AMP_FLOAT32 ? 4 : 2;
    uint32_t seed = 1;
    for (size_t at = 0; at < n; at += STRETCH) {
        const size_t length = n - at < STRETCH ? n - at : STRETCH;
        for (size_t i = 0; i < length; i++) {
            seed = seed * 1664525u + 1013904223u;
            x[i] = ldexpf((float)(int32_t)seed * 0x1p-31f, -(int)(seed >> 3 & 15));
        }
        const amp_span src = { x, length, AMP_FLOAT32, 0 }, dst = { (char *)data + at * width, length, dtype, 0 };
        bench_must(amp_cast_list(&dst, &src, 1), "amp_cast_list");
    }
}

static void run_of(const char *name, bench_fn *ours, amp_dtype dtype, size_t width, size_t bytes, const char *size,
                   double goal) {
    struct bench_floats floats = { bench_memory(bytes), bytes / 4, 1.0f };
    amp_span span = { floats.data, bytes / width, dtype, 0 };
    if (ours != norm) spread(floats.data, bytes / width, dtype);
    bench_run(&(struct bench_case){ .group = "norm", .name = name, .size = size, .unit = "GB/s", .bytes = (double)bytes,
                                    .ours = ours, .ours_data = &span,
                                    .reference = bench_reads[bench_best(bench_reads, bench_n_floats(), &floats)],
                                    .reference_data = &floats, .reference_name = "reading", .goal = goal });
    bench_release(floats.data, bytes);
}

static void run(const char *name, amp_dtype dtype, size_t width, size_t bytes, const char *size, double goal) {
    run_of(name, norm, dtype, width, bytes, size, goal);
}

void bench_norm(void) {
    const size_t large = (size_t)256 << 20, small = (size_t)1 << 20, least = (size_t)16 << 10;
    run("L2 norm, fp32", AMP_FLOAT32, 4, large, "256 MiB", 0.95);
    run("L2 norm, fp16", AMP_FLOAT16, 2, large, "256 MiB", 0.95);
    run("L2 norm, bf16", AMP_BFLOAT16, 2, large, "256 MiB", 0.95);
    run("L2 norm, fp32", AMP_FLOAT32, 4, small, "1 MiB", 0);
    run("L2 norm, fp16", AMP_FLOAT16, 2, least, "16 KiB", 0); /* without waiting for memory */
    run("L2 norm, bf16", AMP_BFLOAT16, 2, least, "16 KiB", 0);
    run_of("statistics, fp32", statistics, AMP_FLOAT32, 4, large, "256 MiB", 0.5);
    run_of("statistics, fp16", statistics, AMP_FLOAT16, 2, large, "256 MiB", 0.5);
    run_of("statistics, bf16", statistics, AMP_BFLOAT16, 2, large, "256 MiB", 0.5);
    run_of("a sample's statistics, fp32", sampled, AMP_FLOAT32, 4, large, "256 MiB", 0.5);
    run_of("a sample's statistics, fp16", sampled, AMP_FLOAT16, 2, large, "256 MiB", 0.5);
    run_of("a sample's statistics, bf16", sampled, AMP_BFLOAT16, 2, large, "256 MiB", 0.5);
    run_of("statistics, fp32", statistics, AMP_FLOAT32, 4, small, "1 MiB", 0);
    run_of("statistics, fp32", statistics, AMP_FLOAT32, 4, least, "16 KiB", 0);
}
