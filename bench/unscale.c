/* SPDX-License-Identifier: Apache-2.0 */
/* Unscaling with a check, in place, against multiplying in place without one. */
#include "bench.h"

#include <amp_kernels.h>

static void unscale(void *data) {
    const amp_span *span = data;
    float found = 0.0f;
    bench_must(amp_scale_list(span, span, 1, 1.0f, &found), "amp_scale_list");
}

static void run(size_t bytes, const char *size, double goal) {
    struct bench_floats floats = { bench_memory(bytes), bytes / 4, 1.0f };
    amp_span span = { floats.data, floats.n, AMP_FLOAT32, 0 };
    bench_run(&(struct bench_case){
        .group = "unscale", .name = "fp32 in place, checked", .size = size, .unit = "GB/s",
        .bytes = 2.0 * (double)bytes, .ours = unscale, .ours_data = &span,
        .reference = bench_multiplies[bench_best(bench_multiplies, bench_n_floats(), &floats)],
        .reference_data = &floats, .reference_name = "in place, unchecked", .goal = goal });
    bench_release(floats.data, bytes);
}

void bench_unscale(void) {
    run((size_t)256 << 20, "256 MiB", 0.97);
    run((size_t)1 << 20, "1 MiB", 0);
}
