/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_matmul by the code named in the argument, builtin or onednn: the same cases, within the same bound. What a
 * backend adds: packed weights, several threads of the caller's, one of its own.
 */
#include "../support/leave.h"
#include "../kernels/product.h"
#include "test.h"

#include "common/common.h"

#include <dirent.h>
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int32_t backend; /* AMP_MATMUL_... */

/* By the backend under test; nothing to multiply goes nowhere but to the built-in code. */
static void run_wish(struct wish *w, int64_t elements) {
    w->args.backend = backend;
    struct product p = product_new(w);
    product_check(&p, elements);
    product_free(&p);
}

static const int64_t sizes[] = { 1, 2, 5, 16, 33, 64, 100 };

TEST_TIMES(every_size, AMP_COUNT(sizes)) { /* one run per m */
    random_restart();
    for (size_t n = 0; n < AMP_COUNT(sizes); n++)
        for (size_t k = 0; k < AMP_COUNT(sizes); k++)
            for (int i = 0; i < 3; i += sweep_step()) {
                struct wish w = random_wish(sizes[_i], sizes[n], sizes[k]);
                run_wish(&w, 50);
            }
}

TEST_TIMES(every_type, 3) { /* one run per type of a */
    random_restart();
    for (int code = 0; code < 81; code++)
        for (int flags = code % sweep_step(); flags < 16; flags += sweep_step()) {
            struct wish w = random_wish(5, 19, 6);
            w.args.a_dtype = all_types[_i], w.args.b_dtype = all_types[code % 3],
            w.args.c_dtype = all_types[code / 3 % 3];
            w.args.d_dtype = all_types[code / 9 % 3], w.args.bias_dtype = all_types[code / 27];
            w.args.transpose_a = flags & 1, w.args.transpose_b = flags >> 1 & 1;
            w.with_c = flags & 4, w.with_bias = flags & 8, w.in_place = false;
            w.args.activation = (flags + code) % 5 ? AMP_ACTIVATION_NONE : AMP_ACTIVATION_GELU;
            run_wish(&w, 40);
        }
}

/* Each way to lie, each activation, plain and with everything. */
TEST(every_batch) {
    random_restart();
    for (int code = 0; code < LAYOUTS * 4 * 4; code++)
        for (int type = code % sweep_step(); type < 3; type += sweep_step()) {
            struct wish w = random_wish(17, 24, 32);
            const bool plain = code / 16 & 1;
            w.layout = (enum layout)(code % LAYOUTS), w.args.batch = 3, w.args.activation = code / 4 % 4;
            w.args.a_dtype = w.args.b_dtype = w.args.d_dtype = all_types[type];
            if (plain) w.with_c = false, w.args.alpha = 1.0f, w.gaps = false;
            run_wish(&w, 300);
        }
}

/* Beyond one panel in each direction: see PANEL_A, PANEL_B and WIDEST_SUMS in src/kernels/onednn/matmul.c. */
TEST_TIMES(several_panels, backend == AMP_MATMUL_ONEDNN) {
    static const int64_t shapes[][3] = { { 66, 130, 70000 }, { 9, 20000, 5 } };
    random_restart();
    for (size_t i = 0; i < AMP_COUNT(shapes); i++)
        for (int flags = 0; flags < 2; flags++) {
            struct wish w = random_wish(shapes[i][0], shapes[i][1], shapes[i][2]);
            w.args.a_dtype = w.args.b_dtype = AMP_FLOAT16, w.args.d_dtype = AMP_BFLOAT16;
            w.args.transpose_a = flags, w.args.transpose_b = !flags;
            w.args.alpha = 1.0f, w.args.batch = 1, w.with_bias = true;
            w.args.b_id = (uint64_t)flags;
            run_wish(&w, 40);
        }
}

/* ---- an overflow must be seen ---- */

TEST(activations_keep_nan) {
    const amp_dtype types[] = { AMP_FLOAT32, AMP_BFLOAT16, AMP_FLOAT16 };
    for (size_t t = 0; t < AMP_COUNT(types); t++)
        for (int32_t activation = AMP_ACTIVATION_NONE; activation <= AMP_ACTIVATION_GELU_TANH; activation++)
            for (int in = 0; in < 2; in++) {
                enum { N = 40 };
                const float values[2] = { NAN, INFINITY };
                float from[N * N], one[N * N];
                uint32_t a[N * N], b[N * N];
                float d[N * N];
                amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
                for (int i = 0; i < N * N; i++) from[i] = 1.0f, one[i] = 1.0f;
                from[3 * N + 5] = values[in];
                const amp_span spans[] = { { a, N * N, types[t], 0 }, { b, N * N, types[t], 0 } };
                const amp_span floats[] = { { from, N * N, AMP_FLOAT32, 0 }, { one, N * N, AMP_FLOAT32, 0 } };
                ck_assert_int_eq(amp_cast_list(spans, floats, 2), AMP_OK);
                g.a_dtype = g.b_dtype = types[t], g.d_dtype = AMP_FLOAT32, g.activation = activation;
                g.m = g.n = g.k = N, g.a = a, g.b = b, g.d = d, g.backend = backend;
                ck_assert_msg(amp_matmul(&g) == AMP_OK, "%s", amp_last_error());
                for (int j = 0; j < N; j++) {
                    CHECK_THAT(!isfinite(d[3 * N + j]), "activation %d hid it: %g", activation, (double)d[3 * N + j]);
                    CHECK_THAT(isfinite(d[4 * N + j]), "in another row");
                }
            }
}

/* ---- the caller's side ---- */

TEST(first_release_struct) {
    static float a[64], b[64], d[64];
    struct {
        amp_matmul_args args;
    } g = { AMP_MATMUL_ARGS_INIT };
    for (int i = 0; i < 64; i++) a[i] = b[i] = 1.0f;
    g.args.a_dtype = g.args.b_dtype = g.args.d_dtype = AMP_FLOAT32;
    g.args.m = g.args.n = g.args.k = 8, g.args.a = a, g.args.b = b, g.args.d = d;
    const size_t old = offsetof(amp_matmul_args, batch);
    memset((char *)&g.args + old, 0x77, sizeof g.args - old); /* not the caller's */
    g.args.struct_size = (uint32_t)old;
    ck_assert_msg(amp_matmul(&g.args) == AMP_OK, "%s", amp_last_error());
    for (int i = 0; i < 64; i++) ck_assert(d[i] == 8.0f);
}

TEST(rounding_mode_of_the_caller_is_ignored_and_kept) {
    enum { N = 48 };
    static float a[N * N], b[N * N], nearest[N * N], upward[N * N];
    random_restart();
    fill(PATTERN_NORMAL, AMP_FLOAT32, a, N * N);
    fill(PATTERN_NORMAL, AMP_FLOAT32, b, N * N);
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.a_dtype = g.b_dtype = g.d_dtype = AMP_FLOAT32, g.backend = backend;
    g.m = g.n = g.k = N, g.a = a, g.b = b, g.d = nearest;
    ck_assert_int_eq(amp_matmul(&g), AMP_OK);
    g.d = upward;
    ck_assert_int_eq(fesetround(FE_UPWARD), 0);
    const amp_status status = amp_matmul(&g);
    const int mode = fegetround();
    fesetround(FE_TONEAREST);
    ck_assert_int_eq(status, AMP_OK);
    ck_assert_int_eq(mode, FE_UPWARD);
    ck_assert_mem_eq(nearest, upward, sizeof nearest);
}

/* ---- several threads of the caller's ---- */

enum { THREADS = 4, ROUNDS = 40, SHAPES = 90 }; /* more shapes than are kept at a time */

struct worker {
    pthread_t thread;
    int first;
    const float *a, *b, *want;
    bool wrong;
};

enum { LARGEST = SHAPES + 10 };

/* The product of the leading parts, which adds the same numbers for any thread. */
static void run_shape_by(int32_t who, int shape, const float *a, const float *b, float *d) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.a_dtype = g.b_dtype = g.d_dtype = AMP_FLOAT32, g.backend = who;
    g.m = g.n = g.k = shape + 10, g.a = a, g.b = b, g.d = d;
    g.ld_a = g.ld_b = g.ld_d = LARGEST;
    if (amp_matmul(&g) != AMP_OK) d[0] = NAN;
}

static void run_shape(int shape, const float *a, const float *b, float *d) { run_shape_by(backend, shape, a, b, d); }

static void *work(void *user) {
    struct worker *w = user;
    float *d = calloc(LARGEST * LARGEST, sizeof *d);
    for (int i = 0; i < ROUNDS && d; i++) {
        const int shape = (w->first + i * 7) % SHAPES;
        run_shape(shape, w->a, w->b, d);
        if (memcmp(d, w->want + shape * LARGEST, (size_t)(shape + 10) * sizeof *d)) w->wrong = true;
    }
    w->wrong |= !d;
    free(d);
    return NULL;
}

TEST(many_threads) {
    static float a[LARGEST * LARGEST], b[LARGEST * LARGEST], d[LARGEST * LARGEST], want[SHAPES * LARGEST];
    struct worker workers[THREADS];
    random_restart();
    fill(PATTERN_NORMAL, AMP_FLOAT32, a, LARGEST * LARGEST);
    fill(PATTERN_NORMAL, AMP_FLOAT32, b, LARGEST * LARGEST);
    for (int i = 0; i < SHAPES; i++) {
        run_shape(i, a, b, d);
        memcpy(want + i * LARGEST, d, LARGEST * sizeof *d);
    }
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){ .first = i * 11, .a = a, .b = b, .want = want };
        ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < THREADS; i++) ck_assert_msg(!workers[i].wrong, "thread %d", i);
}

/* ---- libamp's own threads: the built-in code gives the same bits, oneDNN keeps its bound ---- */

TEST(threads_of_libamp) {
    random_restart();
    for (int i = 0; i < 12; i++) {
        struct wish w = random_wish(100 + (int64_t)random_below(500), 50 + (int64_t)random_below(700),
                                    50 + (int64_t)random_below(300));
        w.in_place = false;
        w.args.backend = backend;
        struct product p = product_new(&w);
        const size_t bytes = p.elements[D] * amp__dtype_size(p.args.d_dtype);
        void *alone = malloc(bytes);
        ck_assert_ptr_nonnull(alone);
        for (int32_t threads = 1; threads <= 7; threads += threads == 3 ? 4 : 1) {
            ck_assert_int_eq(amp_set_num_threads(threads), AMP_OK);
            product_check(&p, 200);
            if (threads == 1) memcpy(alone, p.data[D], bytes);
            ck_assert_msg(backend != AMP_MATMUL_BUILTIN || !memcmp(alone, p.data[D], bytes), "%d threads",
                          (int)threads);
        }
        free(alone);
        product_free(&p);
    }
}

/* ---- children ---- */

/* Not under sanitizers: the locks of their own allocators are not fork's business, and a child waits there. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CHILDREN 1

static atomic_bool stop;

static void *multiply_until_stopped(void *user) {
    const struct worker *w = user;
    float *d = calloc(LARGEST * LARGEST, sizeof *d);
    while (d && !stop) run_shape(40, w->a, w->b, d);
    free(d);
    return NULL;
}

/* OpenMP's threads do not go with a fork, and GNU's would be waited for. */
TEST(children_of_one_with_threads) {
    enum { SIDE = 200 };
    static float a[SIDE * SIDE], b[SIDE * SIDE], d[SIDE * SIDE];
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.a_dtype = g.b_dtype = g.d_dtype = AMP_FLOAT32, g.backend = backend;
    g.m = g.n = g.k = SIDE, g.a = a, g.b = b, g.d = d;
    for (size_t i = 0; i < AMP_COUNT(a); i++) a[i] = b[i] = 1.0f;
    ck_assert_int_eq(amp_set_num_threads(2), AMP_OK);
    ck_assert_int_eq(amp_matmul(&g), AMP_OK);
    ck_assert(d[0] == SIDE && d[SIDE * SIDE - 1] == SIDE);
    const pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        signal(SIGALRM, SIG_DFL);
        alarm(20);
        memset(d, 0, sizeof d);
        const amp_status status = amp_matmul(&g);
        leave(status == AMP_OK && d[0] == SIDE && d[SIDE * SIDE - 1] == SIDE ? 0 : 1);
    }
    int status = -1;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %x", (unsigned)status);
    ck_assert_int_eq(amp_matmul(&g), AMP_OK);
}

/* A lock that another thread held at the fork would never be free in the child, oneDNN's own among them: there the
 * built-in code must do it. The operands are zeros, so that both give the same bits. */
TEST(children_of_many_threads) {
    static float a[LARGEST * LARGEST], b[LARGEST * LARGEST], want[LARGEST * LARGEST], d[LARGEST * LARGEST];
    struct worker workers[2];
    run_shape(40, a, b, want);
    for (int i = 0; i < 2; i++) {
        workers[i] = (struct worker){ .a = a, .b = b };
        ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, multiply_until_stopped, &workers[i]), 0);
    }
    for (int i = 0; i < 300; i++) {
        const pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            signal(SIGALRM, SIG_DFL); /* Check has a handler */
            alarm(20); /* a child that waits for a lock has no other way out */
            d[0] = 7.0f;
            run_shape_by(backend == AMP_MATMUL_ONEDNN ? AMP_MATMUL_AUTO : backend, 40, a, b, d);
            leave(memcmp(d, want, 50 * sizeof *d) ? 1 : 0);
        }
        int status = -1;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d ended with %x", i, (unsigned)status);
    }
    stop = true;
    for (int i = 0; i < 2; i++) pthread_join(workers[i].thread, NULL);
}

#endif

/* ---- what onednn alone does ---- */

static int count_threads(void) {
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) return -1;
    for (const struct dirent *entry = readdir(tasks); entry; entry = readdir(tasks)) n += entry->d_name[0] != '.';
    closedir(tasks);
    return n;
}

TEST_TIMES(no_thread_is_started, backend == AMP_MATMUL_ONEDNN) { /* meson.build sets OMP_NUM_THREADS */
    static float a[512 * 512], b[512 * 512], d[512 * 512];
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.a_dtype = g.b_dtype = g.d_dtype = AMP_FLOAT32, g.backend = backend;
    g.m = g.n = g.k = 512, g.a = a, g.b = b, g.d = d;
    const int before = count_threads();
    ck_assert_int_eq(amp_matmul(&g), AMP_OK);
    ck_assert_int_eq(count_threads(), before);
    char text[256];
    ck_assert_int_eq(amp_set_num_threads(2), AMP_OK); /* but where libamp is told to */
    ck_assert_int_eq(amp_matmul_explain(&g, text, sizeof text, NULL), AMP_OK);
    ck_assert_msg(strstr(text, ", 2 threads") != NULL, "%s", text);
    g.m = 8;
    ck_assert_int_eq(amp_matmul_explain(&g, text, sizeof text, NULL), AMP_OK);
    ck_assert_msg(strstr(text, ", 2 threads") != NULL, "%s", text);
    g.n = 8;
    ck_assert_int_eq(amp_matmul_explain(&g, text, sizeof text, NULL), AMP_OK);
    ck_assert_msg(strstr(text, ", 1 thread,") != NULL, "%s", text);
}

TEST_TIMES(the_path_is_visible, backend == AMP_MATMUL_ONEDNN) {
    char text[256];
    static uint32_t memory[256 * 256];
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.m = g.n = g.k = 256, g.a = memory, g.b = memory, g.d = memory, g.backend = backend;
    for (int t = 0; t < 9; t++) {
        g.a_dtype = all_types[t % 3], g.b_dtype = all_types[t / 3], g.d_dtype = AMP_FLOAT32;
        size_t length = 0;
        ck_assert_msg(amp_matmul_explain(&g, text, sizeof text, &length) == AMP_OK, "%s", amp_last_error());
        ck_assert_uint_eq(length, strlen(text));
        ck_assert_msg(!strncmp(text, "onednn (oneDNN ", 15), "%s", text);
        ck_assert_ptr_nonnull(strstr(text, "1 thread"));
        const bool converted = strstr(text, "operands converted") != NULL;
        ck_assert_msg(g.a_dtype == g.b_dtype || converted, "%s", text);
        ck_assert_msg(g.a_dtype != AMP_FLOAT32 || g.b_dtype != AMP_FLOAT32 || !converted, "%s", text);
        ck_assert_msg(!converted || strstr(text, "fp32,"), "%s", text);
        printf("# types %d %d: %s\n", g.a_dtype, g.b_dtype, text);
    }
    fflush(stdout);
}

/* The second call with the same pair reads no weights: here they are gone. Another version reads them again. */
TEST_TIMES(weights_are_packed_once, backend == AMP_MATMUL_ONEDNN ? 3 : 0) { /* one run per type */
    enum { M = 40, N = 72, K = 96 };
    static float d[M * N], first[M * N];
    static uint32_t a[M * K], b[K * N];
    const amp_dtype type = all_types[_i];
    random_restart();
    for (int transposed = 0; transposed < 2; transposed++) {
        amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
        fill(PATTERN_NORMAL, type, a, M * K);
        fill(PATTERN_NORMAL, type, b, K * N);
        g.a_dtype = g.b_dtype = type, g.d_dtype = AMP_FLOAT32, g.backend = backend, g.transpose_b = transposed;
        g.m = M, g.n = N, g.k = K, g.a = a, g.b = b, g.d = first;
        g.b_id = (uint64_t)(1 + transposed), g.b_version = 7;
        ck_assert_msg(amp_matmul(&g) == AMP_OK, "%s", amp_last_error());
        g.d = d;
        memset(b, 0, sizeof b);
        ck_assert_int_eq(amp_matmul(&g), AMP_OK);
        ck_assert_mem_eq(d, first, sizeof d);
        g.m = M / 2; /* other rows of a, the same weights */
        memset(d, 0, sizeof d);
        ck_assert_int_eq(amp_matmul(&g), AMP_OK);
        ck_assert(d[0] != 0.0f || d[1] != 0.0f);
        g.m = M, g.b_version = 8;
        ck_assert_int_eq(amp_matmul(&g), AMP_OK);
        for (int i = 0; i < M * N; i++) CHECK_THAT(d[i] == 0.0f, "an old version was used: %g", (double)d[i]);
        fill(PATTERN_NORMAL, type, b, K * N);
        g.b_version = 7; /* it was said to be gone */
        ck_assert_int_eq(amp_matmul(&g), AMP_OK);
        ck_assert(memcmp(d, first, sizeof d) != 0);
        g.b_id = 0;
        memset(b, 0, sizeof b);
        ck_assert_int_eq(amp_matmul(&g), AMP_OK);
        for (int i = 0; i < M * N; i++) CHECK_THAT(d[i] == 0.0f, "a pack without an id: %g", (double)d[i]);
    }
}

TEST_TIMES(packed_products, backend == AMP_MATMUL_ONEDNN) {
    random_restart();
    for (int i = 0; i < 300; i++) {
        struct wish w = random_wish((int64_t)random_below(70) + 1, (int64_t)random_below(70) + 1,
                                    (int64_t)random_below(70) + 1);
        w.args.b_id = 5, w.args.b_version = (uint64_t)i;
        run_wish(&w, 60);
    }
}

/* More than is kept: 300 MiB of weights, then the first again. */
TEST_TIMES(room_for_packs_is_bounded, backend == AMP_MATMUL_ONEDNN) {
    enum { M = 2, N = 1024, K = 2560, WEIGHTS = 30 };
    static float a[M * K], b[K * N], d[M * N];
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    for (int i = 0; i < M * K; i++) a[i] = 1.0f;
    g.a_dtype = g.b_dtype = g.d_dtype = AMP_FLOAT32, g.backend = backend;
    g.m = M, g.n = N, g.k = K, g.a = a, g.b = b, g.d = d;
    for (int round = 0; round <= WEIGHTS; round++) {
        for (int i = 0; i < K * N; i++) b[i] = (float)(round + 1);
        g.b_id = (uint64_t)(100 + round % WEIGHTS);
        ck_assert_msg(amp_matmul(&g) == AMP_OK, "%s", amp_last_error());
        CHECK_THAT(d[0] == (float)K * (float)(round + 1), "round %d: %g", round, (double)d[0]); /* integers: exact */
    }
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "builtin";
    backend = strcmp(name, "onednn") ? AMP_MATMUL_BUILTIN : AMP_MATMUL_ONEDNN;
    if (backend == AMP_MATMUL_ONEDNN && argc > 2) {
        printf("1..0 # SKIP %s\n", argv[2]);
        return 0;
    }
    printf("# AMP_TEST_SEED=%llu\n", (unsigned long long)test_seed());
    fflush(stdout); /* before Check forks */
    return suite_run();
}
