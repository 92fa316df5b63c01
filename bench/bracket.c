/* SPDX-License-Identifier: Apache-2.0 */
/* What a bracket costs beyond its kernels. */
#include "world.h"

static void bracket(void *world) {
    bench_world_begin(world);
    bench_world_end(world);
}

static void kernels(void *world) { bench_world_kernels(world); }

static void bracket_and_step(void *world) {
    bracket(world);
    bench_world_step(world);
}

static void run(size_t n, size_t length, bool masters, const char *size, double allowed) {
    struct bench_world world;
    bench_world_make(&world, n, length, masters);
    bench_world_start(&world);
    bench_world_train(&world);
    struct bench_case c = { .group = "bracket", .size = size, .unit = "ns", .calls = 1, .ours = bracket,
                            .ours_data = &world, .reference = kernels, .reference_data = &world };
    if (allowed > 0) {
        c.name = masters ? "beyond its kernels, masters" : "beyond its kernels, fp32";
        c.reference_name = masters ? "20 us beyond scale and cast lists" : "20 us beyond amp_scale_list";
        c.allowed = allowed, c.goal = 1;
        bench_run(&c);
    }
    c.name = masters ? "with its step, masters" : "with its step, fp32";
    c.reference_name = masters ? "its kernels: scale and cast lists" : "its kernels: amp_scale_list";
    c.ours = bracket_and_step, c.allowed = 0, c.goal = 0;
    bench_run(&c);
    bench_world_stop(&world);
    bench_world_free(&world);
}

void bench_bracket(void) {
    const double allowed = 20000;
    run(200, 1000, false, "200 x 1000", allowed);
    run(200, 16, false, "200 x 16", allowed);
    run(200, 1000, true, "200 x 1000", allowed);
    run(200, 16, true, "200 x 16", allowed);
    run(2000, 300, false, "2000 x 300", 0);
}
