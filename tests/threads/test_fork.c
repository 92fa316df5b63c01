/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Children of a process whose other threads are anywhere in libamp: in wrapped ops, in initialize and shutdown, under a
 * context's lock. Each child calls, trains, initialises and shuts down under an alarm: a lock that nobody will ever
 * unlock kills it.
 */
#include <amp_all.h>

#include "../support/leave.h"
#include "../support/typed.h"
#include "test.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 50, SECONDS = 60 };

static struct {
    linear_fn linear;
} table = { linear };

static int32_t call_in(amp_context *context) {
    struct tensor x = { AMP_FLOAT32 };
    amp_scope scope;
    if (amp_scope_enter(context, &scope) != AMP_OK) return -1;
    const int32_t got = table.linear(&x);
    return amp_scope_leave(&scope) == AMP_OK ? got : -1;
}

/* ---- the child ---- */

/* w -> 3 by gradient descent under O1's scaler, over raw buffers: the bracket, the step, the decision. */
static int train(void) {
    float w = 0.0f, g = 0.0f;
    amp_buffer grad = AMP_BUFFER_INIT, param = AMP_BUFFER_INIT;
    amp_optimizer optimizer = AMP_OPTIMIZER_INIT;
    void *params[] = { &param };
    int steps = 0;
    param.data = &w, param.size = 1, param.grad = &grad;
    grad.data = &g, grad.size = 1;
    optimizer.host = amp_buffer_host();
    optimizer.params = params, optimizer.n_params = 1;
    if (amp_initialize(NULL, &optimizer, AMP_O1) != AMP_OK) return 1;
    for (int i = 0; i < 40; i++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        amp_step_info info = AMP_STEP_INFO_INIT;
        if (amp_scale_loss_begin(&optimizer, NULL, &scaled) != AMP_OK) return 2;
        g += (w - 3.0f) * amp_seed_factor(&scaled);
        if (amp_scale_loss_end(&scaled) != AMP_OK || amp_step_begin(&optimizer, &info) != AMP_OK) return 3;
        if (info.action == AMP_STEP) w -= 0.5f * g;
        steps += info.action == AMP_STEP;
        g = 0.0f;
        if (amp_step_end(&optimizer) != AMP_OK) return 4;
    }
    if (amp_shutdown(optimizer.amp) != AMP_OK) return 5;
    return steps == 40 && w > 2.99f && w < 3.01f ? 0 : 6;
}

static int child(amp_context *inherited) {
    struct setup setup;
    alarm(SECONDS);
    if (call_in(inherited) != AMP_FLOAT16) return 10;
    if (amp_explain(inherited, NULL, NULL, 0, NULL) != AMP_OK) return 11;
    describe(&setup, &table.linear);
    if (amp_initialize(&setup.model, NULL, AMP_O4) != AMP_OK) return 12;
    if (call_in(setup.model.amp) != AMP_BFLOAT16 || call_in(inherited) != AMP_FLOAT16) return 13;
    const int trained = train();
    if (trained) return trained;
    if (amp_shutdown(inherited) != AMP_OK) return 14;
    if (call_in(setup.model.amp) != AMP_BFLOAT16) return 15;
    if (amp_shutdown(setup.model.amp) != AMP_OK) return 16;
    return call_in(NULL) == AMP_FLOAT32 ? 0 : 17;
}

static void fork_once(amp_context *context) {
    const pid_t pid = fork();
    if (pid == 0) leave(child(context));
    int status = -1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(!WIFSIGNALED(status), "the child was killed by signal %d: it hung or crashed", WTERMSIG(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}

TEST(children_of_one_thread) {
    struct setup setup;
    describe(&setup, &table.linear);
    ck_assert_int_eq(amp_initialize(&setup.model, NULL, AMP_O1), AMP_OK);
    for (int i = 0; i < 5; i++) fork_once(setup.model.amp);
    ck_assert_int_eq(call_in(setup.model.amp), AMP_FLOAT16);
    ck_assert_int_eq(amp_shutdown(setup.model.amp), AMP_OK);
    ck_assert(table.linear == linear);
}

/* Not under sanitizers: the locks of their own allocators are not fork's business (before LLVM 18), and a child waits
 * there. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MANY_THREADS 1
static atomic_bool stop;
static _Atomic(unsigned) wrong;

static void *call_ops(void *context) {
    while (!stop) wrong += call_in(context) != AMP_FLOAT16;
    return NULL;
}

static void *ask(void *context) { /* under the context's lock */
    while (!stop) wrong += amp_check(context) != AMP_OK || amp_explain(context, NULL, NULL, 0, NULL) != AMP_OK;
    return NULL;
}

static void *come_and_go(void *number) { /* under the registry's: on the shared slot, and on one of its own */
    linear_fn own = linear;
    (void)number;
    for (int i = 0; !stop; i++) {
        struct setup setup;
        describe(&setup, i % 2 ? &own : &table.linear);
        wrong += amp_initialize(&setup.model, NULL, AMP_O4) != AMP_OK;
        wrong += amp_shutdown(setup.model.amp) != AMP_OK;
    }
    return NULL;
}

TEST(children_of_many_threads) {
    static void *(*const work[])(void *) = { call_ops, call_ops, ask, come_and_go, come_and_go };
    enum { N = sizeof work / sizeof work[0] };
    struct setup setup;
    pthread_t threads[N];
    describe(&setup, &table.linear);
    ck_assert_int_eq(amp_initialize(&setup.model, NULL, AMP_O1), AMP_OK);
    for (int i = 0; i < N; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, work[i], setup.model.amp), 0);
    for (int i = 0; i < FORKS; i++) fork_once(setup.model.amp);
    stop = true;
    for (int i = 0; i < N; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_assert_uint_eq(wrong, 0);
    ck_assert_int_eq(amp_shutdown(setup.model.amp), AMP_OK);
    ck_assert(table.linear == linear);
}
#endif

int main(void) {
#ifndef MANY_THREADS
    (void)printf("# children_of_many_threads is left out: a sanitizer's allocator may hang in a forked child\n");
    (void)fflush(stdout);
#endif
    return suite_run();
}
