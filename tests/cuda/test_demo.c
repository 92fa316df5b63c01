/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The demo on a device: its network, its data and its program's training (demo/run.c), by the framework's kernels
 * and its products, under every level; beside the same training on the CPU. Argument: the digits.
 */
#include "minitape_cuda_fake.h"
#include "net.h"
#include "run.h"

#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct digits *data;

enum { STEPS = 4, BATCH = 16 };

static struct run_setup setup_of(amp_level level, mt_device device) {
    struct run_setup setup = { .label = "test", .config = AMP_CONFIG_INIT, .epochs = 1, .steps = STEPS, .tested = 60,
                               .batch = BATCH, .lr = 0.05, .seed = 1, .loss_multiplier = 1.0, .device = device };
    setup.config.level = level;
    return setup;
}

/* Whatever a training does, afterwards its memory is free, and nothing was on the default stream. */
static struct run_result train(const struct run_setup *setup) {
    const int blocks = minitape_fake.blocks;
    struct run_result result;
    const int status = run_training(setup, data, NULL, &result);
    ck_assert_msg(status == 0, "%s", result.error);
    minitape_fake.tools->flush();
    for (int i = 0; i < MT_MEM_CATEGORIES; i++) ck_assert_uint_eq(mt_mem_now((mt_category)i), 0);
    ck_assert_int_eq(minitape_fake.blocks, blocks);
    ck_assert_int_eq(minitape_fake.amp->on_null_stream, 0);
    return result;
}

/* ---- as on the CPU ---- */

static double distance(const float *a, const float *b, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum);
}

/* How far the weights came from where the seed had put them. */
static double way(const struct run_setup *setup, const struct run_result *result) {
    float start[16384];
    struct net net;
    size_t n = 0;
    ck_assert_int_eq(net_init(&net, mt_ops_default(), setup->seed), 0);
    for (int i = 0; i < net.n_list; i++) {
        ck_assert_uint_le(n + mt_numel(net.list[i].tensor), sizeof start / sizeof *start);
        mt_read(net.list[i].tensor, start + n);
        n += mt_numel(net.list[i].tensor);
    }
    net_done(&net);
    ck_assert_uint_eq(n, result->n_weights);
    return distance(result->weights, start, n);
}

/*
 * How far the two may come apart, as a part of the way that the weights go. They do the same arithmetic but for the
 * order of sums, so that a result of an op differs by at most one rounding on either side: 2 u, where u is half a unit
 * in the last place of the level's type: 2^-24, 2^-11, 2^-8. A gradient comes through 40 ops (20 forward, as many
 * back); roundings are as often up as down, so that what 40 of them make is sqrt 40 times what one does. In FP32 the
 * sums themselves are rounded at each of their terms, 1,024 at most: sqrt 1024 more. The steps after the first start
 * from weights that differ already: twice that, for so few.
 */
static double granted(amp_level level) {
    const double u = level <= AMP_O0 ? 0x1p-24 * sqrt(1024.0) : level >= AMP_O4 ? 0x1p-8 : 0x1p-11;
    return 2.0 * 2.0 * u * sqrt(40.0);
}

static void compare(const struct run_setup *there, struct run_result *on_cpu, struct run_result *on_device) {
    struct run_setup here = *there;
    here.device = MT_CPU;
    *on_cpu = train(&here);
    *on_device = train(there);
    const double bound = granted(there->config.level), whole = way(there, on_cpu);
    const double apart = distance(on_cpu->weights, on_device->weights, on_cpu->n_weights);
    ck_assert_double_gt(whole, 0.1); /* or nothing was compared */
    ck_assert_msg(apart <= bound * whole, "level %d: weights apart by %g of their way, not %g", there->config.level,
                  apart / whole, bound);
    for (int i = 0; i < on_cpu->steps; i++) {
        const double a = (double)on_cpu->losses[i], b = (double)on_device->losses[i];
        ck_assert_msg(fabs(a - b) <= bound * a, "level %d, step %d: loss %g, on the CPU %g", there->config.level, i, b,
                      a);
        ck_assert(on_cpu->scales[i] == on_device->scales[i]);
    }
}

/* AMP_TEST_SHORT=1: O1 and O2 alone, and waits at O2; with sanitizers the rest takes a minute. */
static int is_short(void) {
    const char *asked = getenv("AMP_TEST_SHORT");
    return asked && strcmp(asked, "1") == 0;
}

TEST_RANGE(every_level_trains_as_on_the_cpu, is_short() ? AMP_O1 : 0, is_short() ? AMP_O3 : AMP_O5 + 1) {
    struct run_setup setup = setup_of((amp_level)_i, MT_CUDA);
    struct run_result here, there;
    compare(&setup, &here, &there);
    ck_assert_int_eq(there.steps, STEPS);
    ck_assert_int_eq(there.skipped, 0);
    ck_assert(there.loss_scale == here.loss_scale);
    /* The table's memory. */
    ck_assert_uint_eq(there.param_bytes, here.param_bytes);
    ck_assert_uint_eq(there.master_bytes, here.master_bytes);
    ck_assert_uint_eq(there.grad_bytes, here.grad_bytes);
    ck_assert_uint_eq(there.activation_peak_bytes, here.activation_peak_bytes);
    /* 60 images: one more or less, which nearly was of another class. */
    ck_assert_double_le(fabs(there.test_accuracy - here.test_accuracy), 100.0 / 60.0 + 1e-9);
    run_result_done(&here);
    run_result_done(&there);
}

TEST(adam_and_the_hosts_own_kernels) {
    const amp_level levels[] = { 0, AMP_O2 };
    for (int i = 0; i < 2; i++) {
        struct run_setup setup = setup_of(levels[i], MT_CUDA);
        struct run_result here, there;
        setup.optimizer = RUN_ADAM;
        setup.lr = 0.005;
        setup.host_kernels = 1;
        const int steps = minitape_fake.launched[MTK_adam_begin];
        compare(&setup, &here, &there);
        ck_assert_int_eq(minitape_fake.launched[MTK_adam_begin] - steps, STEPS * 17); /* parameters */
        run_result_done(&here);
        run_result_done(&there);
    }
}

TEST(o0_is_plain_fp32_bit_for_bit) {
    const struct run_setup plain = setup_of(0, MT_CUDA), o0 = setup_of(AMP_O0, MT_CUDA);
    struct run_result a = train(&plain), b = train(&o0);
    ck_assert_mem_eq(a.weights, b.weights, a.n_weights * sizeof *a.weights);
    ck_assert_mem_eq(a.losses, b.losses, STEPS * sizeof *a.losses);
    run_result_done(&a);
    run_result_done(&b);
}

/* ---- what the device decides ---- */

/* libamp's optimizer and the host's: nothing moves, the scale halves, and Adam counts no step. */
TEST(overflows_are_skipped_on_the_device) {
    for (int optimizer = RUN_SGD; optimizer <= RUN_ADAM; optimizer++)
        for (int host = 0; host < 2; host++) {
            struct run_setup setup = setup_of(AMP_O2, MT_CUDA);
            setup.optimizer = (enum run_optimizer)optimizer;
            setup.host_kernels = host;
            setup.config.init_scale = setup.config.max_scale = 0x1p40F;
            struct run_result result = train(&setup);
            ck_assert_int_eq(result.skipped, STEPS);
            for (int i = 0; i < STEPS; i++) ck_assert(result.scales[i] == 0x1p40F / (float)(1 << i));
            ck_assert(result.loss_scale == 0x1p40 / (1 << STEPS));
            /* Running statistics move; weights and biases do not, but for their rounding to 16 bits: masters
             * have 32. */
            struct net net;
            size_t at = 0;
            ck_assert_int_eq(net_init(&net, mt_ops_default(), setup.seed), 0);
            for (int i = 0; i < net.n_list; i++) {
                const size_t n = mt_numel(net.list[i].tensor);
                const float *start = net.list[i].tensor->storage->data;
                if (!net.list[i].is_buffer) ck_assert_mem_eq(start, result.weights + at, n * sizeof *start);
                at += n;
            }
            net_done(&net);
            run_result_done(&result);
        }
}

/* ---- nobody waits ---- */

static int waits(void) { return minitape_fake.waits + minitape_fake.amp->waits + minitape_fake.amp->event_waits; }

/* Twice as many steps wait for the device as often as half of them. */
TEST_RANGE(no_step_waits_for_the_device, is_short() ? 2 : 0, 3) {
    const amp_level levels[] = { 0, AMP_O1, AMP_O2 }; /* the others go the same ways */
    for (int host = 0; host < 2; host++) {
        struct run_setup setup = setup_of(levels[_i], MT_CUDA);
        int counts[2];
        setup.host_kernels = host;
        for (int twice = 0; twice < 2; twice++) {
            const int before = waits();
            setup.steps = 2 << twice;
            struct run_result result = train(&setup);
            counts[twice] = waits() - before;
            run_result_done(&result);
        }
        ck_assert_int_gt(counts[0], 0);
        ck_assert_msg(counts[0] == counts[1], "level %d: 2 steps wait %d times, 4 steps %d", levels[_i], counts[0],
                      counts[1]);
    }
}

/* ---- what goes wrong ---- */

/* Wherever memory ends, it is said, and all is given back. */
TEST(no_memory_is_an_error_in_words) {
    struct run_setup setup = setup_of(AMP_O2, MT_CUDA);
    int failures = 0;
    setup.steps = 1;
    for (int at = 1; at < 400; at += 37) {
        const int blocks = minitape_fake.blocks;
        struct run_result result;
        minitape_fake.calls = 0, minitape_fake.fail_at = at;
        const int status = run_training(&setup, data, NULL, &result);
        const int reached = minitape_fake.calls >= at;
        minitape_fake.fail_at = 0;
        minitape_fake.tools->flush();
        if (reached)
            ck_assert_msg(status == -1 && *result.error, "allocation %d: status %d %s", at, status, result.error);
        failures += reached;
        run_result_done(&result);
        ck_assert_int_eq(minitape_fake.blocks, blocks);
        for (int i = 0; i < MT_MEM_CATEGORIES; i++) ck_assert_uint_eq(mt_mem_now((mt_category)i), 0);
    }
    ck_assert_int_gt(failures, 5);
}

/* The last test: after this nothing works on the device. */
TEST(a_kernel_that_cannot_start_ends_the_training) {
    const struct run_setup setup = setup_of(AMP_O1, MT_CUDA);
    struct run_result result;
    minitape_fake.launches = 0, minitape_fake.fail_launch = 200;
    ck_assert_int_eq(run_training(&setup, data, NULL, &result), -1);
    ck_assert_msg(strstr(result.error, "cannot start a kernel") != NULL, "%s", result.error);
    ck_assert_int_lt(result.steps, STEPS);
    run_result_done(&result);
    for (int i = 0; i < MT_MEM_CATEGORIES; i++) ck_assert_uint_eq(mt_mem_now((mt_category)i), 0);
}

int main(int argc, char **argv) {
    char error[256] = "no digits";
    const char *why = minitape_fake_open();
    data = argc > 1 ? digits_load(argv[1], error, sizeof error) : NULL;
    if (why || !data) {
        fprintf(stderr, "%s\n", why ? why : error);
        return EXIT_FAILURE;
    }
    minitape_fake.amp->lazy = 1; /* work is done as late as CUDA allows */
    const int result = suite_run_here(NULL); /* one process has the device */
    free(data);
    return result;
}
