/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does the time per tensor, or slot, rise with their number? Both sides do the same work on as many tensors: ours in
 * one context, the reference in several smaller ones that live at the same time, so that the caches weigh on both
 * alike. "in the caches": the reference is one small context again and again, whose data never leave them.
 */
#include "world.h"

#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 100000, SLOTS = 10000, LENGTH = 16, MANY = 1000 };

/* ---- contexts of tensors ---- */

struct worlds {
    struct bench_world *all;
    size_t n, times;
};

static struct worlds make_worlds(size_t n, size_t tensors) {
    struct worlds w = { calloc(n, sizeof *w.all), n, 1 };
    if (!w.all) bench_must(1, "memory");
    for (size_t i = 0; i < n; i++) bench_world_make(&w.all[i], tensors, LENGTH, false);
    return w;
}

static void start(struct worlds *w) {
    for (size_t i = 0; i < w->n; i++) bench_world_start(&w->all[i]);
}

static void start_training(struct worlds *w) {
    start(w);
    for (size_t i = 0; i < w->n; i++) bench_world_train(&w->all[i]);
}

static void stop(struct worlds *w) {
    for (size_t i = w->n; i--;) bench_world_stop(&w->all[i]);
}

static void free_worlds(struct worlds *w) {
    for (size_t i = 0; i < w->n; i++) bench_world_free(&w->all[i]);
    free(w->all);
}

/* As in training: a backward pass lies between a begin and its end, and leaves nothing of them in the caches. */
static void brackets_and_steps(void *data) {
    const struct worlds *w = data;
    for (size_t t = 0; t < w->times; t++) {
        for (size_t i = 0; i < w->n; i++) bench_world_begin(&w->all[i]);
        for (size_t i = 0; i < w->n; i++) {
            bench_world_end(&w->all[i]);
            bench_world_step(&w->all[i]);
        }
    }
}

static void lives(void *data) {
    start(data);
    stop(data);
}

static void compare(const char *name, bench_fn *work, double calls, void *ours, void *reference, size_t least,
                    double goal) {
    char size[32], what[64];
    snprintf(size, sizeof size, "%zu -> %.0f", least, calls);
    snprintf(what, sizeof what, strstr(name, "caches") ? "%zu, again and again" : "as many, %zu in a context", least);
    bench_run(&(struct bench_case){ .group = "growth", .name = name, .size = size, .unit = "ns", .calls = calls,
                                    .ours = work, .ours_data = ours, .reference = work, .reference_data = reference,
                                    .reference_name = what, .goal = goal });
}

static void run_brackets(struct worlds *all, size_t least) {
    struct worlds parts = make_worlds(TENSORS / least, least);
    start_training(&parts);
    compare("bracket and step", brackets_and_steps, TENSORS, all, &parts, least, 1 / 1.3);
    stop(&parts);
    free_worlds(&parts);
}

static void run_small_bracket(struct worlds *all, size_t least) {
    struct worlds one = make_worlds(1, least);
    one.times = TENSORS / least;
    start_training(&one);
    compare("bracket and step, in the caches", brackets_and_steps, TENSORS, all, &one, least, 0);
    stop(&one);
    free_worlds(&one);
}

static void run_lives(struct worlds *all, size_t least, double goal) {
    struct worlds parts = make_worlds(TENSORS / least, least);
    compare("initialize and shutdown", lives, TENSORS, all, &parts, least, goal);
    free_worlds(&parts);
}

/* ---- contexts of slots ---- */

struct tables {
    amp_model *models;
    size_t n;
    amp_op *ops;
    amp_fn *slots;
};

static amp_dtype dtype_of(void *self, void *tensor) {
    (void)self;
    return *(const amp_dtype *)tensor;
}

static amp_status no_cast(void *self, void *tensor, amp_dtype to, void **out) {
    (void)self, (void)tensor, (void)to, (void)out;
    return AMP_ERR_HOST_FAILED;
}

static void no_release(void *self, void *tensor) { (void)self, (void)tensor; }

static int32_t linear(void *input, void *weight) { return input == weight; }

static struct tables make_tables(const amp_host *host, size_t n, size_t slots) {
    struct tables t = { calloc(n, sizeof *t.models), n, calloc(n * slots, sizeof *t.ops),
                        calloc(n * slots, sizeof *t.slots) };
    if (!t.models || !t.ops || !t.slots) bench_must(1, "memory");
    for (size_t i = 0; i < n * slots; i++) {
        t.slots[i] = (amp_fn)linear;
        t.ops[i] = (amp_op)AMP_OP_INIT;
        t.ops[i].name = "linear", t.ops[i].schema = "linear(Tensor input, Tensor weight) -> int32";
        t.ops[i].slot = &t.slots[i];
    }
    for (size_t i = 0; i < n; i++) {
        t.models[i] = (amp_model)AMP_MODEL_INIT;
        t.models[i].host = host, t.models[i].ops = t.ops + i * slots, t.models[i].n_ops = slots;
    }
    return t;
}

static void wire(void *data) {
    const struct tables *t = data;
    for (size_t i = 0; i < t->n; i++) bench_must(amp_initialize(&t->models[i], NULL, AMP_O1), "amp_initialize");
    for (size_t i = t->n; i--;) bench_must(amp_shutdown(t->models[i].amp), "amp_shutdown");
}

static void run_slots(size_t least) {
    amp_host host = AMP_HOST_INIT;
    host.flags = AMP_HOST_TAPE_RETAINS_INPUTS;
    host.dtype = dtype_of, host.cast = no_cast, host.release = no_release;
    struct tables all = make_tables(&host, 1, SLOTS), parts = make_tables(&host, SLOTS / least, least);
    compare("initialize and shutdown, slots", wire, SLOTS, &all, &parts, least, 1 / 1.3);
    free(all.models), free(all.ops), free(all.slots);
    free(parts.models), free(parts.ops), free(parts.slots);
}

/* A large context's memory goes back to the system when it ends, a small one's stays with libc: that is not what is
 * asked. */
static void keep_memory(void) {
#ifdef M_MMAP_MAX
    (void)mallopt(M_MMAP_MAX, 0);
    (void)mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

void bench_growth(void) {
    keep_memory();
    struct worlds all = make_worlds(1, TENSORS);
    start_training(&all);
    run_brackets(&all, MANY);
    run_brackets(&all, 10 * MANY);
    run_small_bracket(&all, 10);
    run_small_bracket(&all, MANY);
    stop(&all);
    run_lives(&all, 10, 1 / 1.3);
    run_lives(&all, MANY, 0); /* README.md says why */
    free_worlds(&all);
    run_slots(10);
    run_slots(MANY);
}
