/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libamp's own threads: that they come, how many, in which environment, and that nothing goes wrong where they cannot:
 * denied, taken by another call, gone in a child. Each test is a process of its own, so that each begins without any.
 */
#include "../support/leave.h"
#include "../support/traps.h"
#include "kernels/threads.h"

#include <amp_kernels.h>

#include "test.h"
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __GLIBC__
enum { TRAPS = FE_INVALID | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT };
#else
enum { TRAPS = 0 };
#endif

enum { SECONDS = 60, N = 1 << 20 };

/* ---- help ---- */

/* Threads of this process. */
static int count_tasks(void) {
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(tasks);
    for (const struct dirent *entry; (entry = readdir(tasks));) n += entry->d_name[0] != '.';
    closedir(tasks);
    return n;
}

/* ThreadSanitizer has threads of its own, which come when they like. A thread that was joined may be counted a moment
 * longer. */
static void expect_tasks(int n) {
#if !defined(__SANITIZE_THREAD__)
    ck_assert_int_ge(count_tasks(), n);
    while (count_tasks() != n) sched_yield();
#else
    (void)n;
#endif
}

static void set_threads(int32_t n) { ck_assert_int_eq(amp_set_num_threads(n), AMP_OK); }

/* A job that nobody leaves before `n` have come: it ends only if they do. */
struct meeting {
    pthread_barrier_t barrier;
    void (*then)(void *);
    void *user;
};

static void meet(void *meeting) {
    struct meeting *m = meeting;
    if (m->then) m->then(m->user);
    pthread_barrier_wait(&m->barrier);
}

static void expect_threads(int32_t n, void (*then)(void *), void *user) {
    struct meeting m = { .then = then, .user = user };
    ck_assert_int_eq(pthread_barrier_init(&m.barrier, NULL, (unsigned)n), 0);
    amp__threads_run(n, meet, &m);
    pthread_barrier_destroy(&m.barrier);
}

/* One large list call whose result is known; false: it is wrong. */
static bool call_list(float *data) {
    for (size_t i = 0; i < N; i++) data[i] = (float)(i % 1000);
    const amp_span span = { data, N, AMP_FLOAT32, 0 };
    float found = 0.0f;
    if (amp_scale_list(&span, &span, 1, 0.5f, &found) != AMP_OK || found != 0.0f) return false;
    for (size_t i = 0; i < N; i++)
        if (data[i] != 0.5f * (float)(i % 1000)) return false;
    return true;
}

static float values[N];

/* ---- how many ---- */

TEST(numbers_are_read) {
    static const struct {
        const char *text;
        int32_t n;
    } rows[] = { { NULL, 1 },         { "", 1 },
                 { "0", 0 },          { "1", 1 },
                 { "12", 12 },        { "-1", 1 },
                 { "+2", 1 },         { "2x", 1 },
                 { " 2", 1 },         { "x", 1 },
                 { "0x2", 1 },        { "2147483647", INT32_MAX },
                 { "2147483648", 1 }, { "99999999999999999999999", 1 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t n = -1;
        const bool known = amp__threads_read(rows[i].text, &n), is_one = rows[i].text && !strcmp(rows[i].text, "1");
        ck_assert_msg(n == rows[i].n && known == (n != 1 || is_one), "'%s': %d, %d",
                      rows[i].text ? rows[i].text : "NULL", (int)n, (int)known);
    }
}

TEST(one_by_default) {
    unsetenv("AMP_NUM_THREADS");
    ck_assert_int_eq(amp_get_num_threads(), 1);
    const int before = count_tasks();
    ck_assert(call_list(values));
    expect_tasks(before);
}

TEST(environment_says_how_many) {
    setenv("AMP_NUM_THREADS", "3", 1);
    ck_assert_int_eq(amp_get_num_threads(), 3);
    setenv("AMP_NUM_THREADS", "5", 1); /* too late */
    ck_assert_int_eq(amp_get_num_threads(), 3);
    set_threads(2);
    ck_assert_int_eq(amp_get_num_threads(), 2);
}

TEST(call_counts_more_than_environment) {
    setenv("AMP_NUM_THREADS", "3", 1);
    set_threads(2);
    ck_assert_int_eq(amp_get_num_threads(), 2);
}

TEST(zero_is_all_processors) {
    cpu_set_t set, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    set_threads(0);
    ck_assert_int_eq(amp_get_num_threads(), CPU_COUNT(&set) < 256 ? CPU_COUNT(&set) : 256);
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &set)) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    set_threads(0);
    ck_assert_int_eq(amp_get_num_threads(), 1);
    set_threads(100000);
    ck_assert_int_eq(amp_get_num_threads(), 256);
    ck_assert_int_eq(amp_set_num_threads(-1), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_get_num_threads(), 256);
}

/* ---- coming and going ---- */

TEST(as_many_as_needed) {
    const int before = count_tasks();
    set_threads(4);
    expect_tasks(before); /* none before there is work */
    expect_threads(2, NULL, NULL);
    expect_tasks(before + 1);
    for (int i = 0; i < 100; i++) expect_threads(4, NULL, NULL);
    expect_tasks(before + 3);
    set_threads(2);
    expect_tasks(before + 1);
    expect_threads(2, NULL, NULL);
    set_threads(1);
    expect_tasks(before);
    set_threads(3);
    expect_threads(3, NULL, NULL);
    expect_tasks(before + 2);
}

TEST(large_lists_use_them) {
    const int before = count_tasks();
    set_threads(3);
    const amp_span small = { values, 1 << 17, AMP_FLOAT32, 0 };
    ck_assert_int_eq(amp_zero_list(&small, 1), AMP_OK);
    expect_tasks(before);
    ck_assert(call_list(values));
    expect_tasks(before + 2);
}

/* ---- at once ---- */

static _Atomic int inner_calls, wrong;

static void call_inside(void *user) {
    static float inside[4][N];
    (void)user;
    const int own = atomic_fetch_add(&inner_calls, 1);
    if (!call_list(inside[own])) atomic_fetch_add(&wrong, 1);
}

TEST(calls_from_workers_go_on_alone) {
    set_threads(3);
    expect_threads(3, call_inside, NULL);
    ck_assert_int_eq(inner_calls, 3);
    ck_assert_int_eq(wrong, 0);
}

static _Atomic bool stop;

static void *call_often(void *unused) {
    float *own = malloc(N * sizeof *own);
    (void)unused;
    for (int i = 0; own && i < 30; i++)
        if (!call_list(own)) atomic_fetch_add(&wrong, 1);
    if (!own) atomic_fetch_add(&wrong, 1);
    free(own);
    return NULL;
}

static void *resize_often(void *unused) {
    (void)unused;
    for (int32_t n = 1; !stop; n = n % 7 + 1)
        if (amp_set_num_threads(n) != AMP_OK || amp_get_num_threads() != n) atomic_fetch_add(&wrong, 1);
    return NULL;
}

TEST(many_hosts_and_a_changing_pool) {
    enum { HOSTS = 4 };
    pthread_t hosts[HOSTS], resizer;
    set_threads(4);
    ck_assert_int_eq(pthread_create(&resizer, NULL, resize_often, NULL), 0);
    for (int i = 0; i < HOSTS; i++) ck_assert_int_eq(pthread_create(&hosts[i], NULL, call_often, NULL), 0);
    for (int i = 0; i < HOSTS; i++) ck_assert_int_eq(pthread_join(hosts[i], NULL), 0);
    stop = true;
    ck_assert_int_eq(pthread_join(resizer, NULL), 0);
    ck_assert_int_eq(wrong, 0);
}

/* A thread that is to be cancelled ends after the call, not in the middle of it, where it waits for the other one. */
static pthread_barrier_t both;
static pthread_t host_thread;

static void leave_first(void *finished) {
    pthread_barrier_wait(&both);
    if (pthread_equal(pthread_self(), host_thread)) return;
    if (!call_list(values)) atomic_fetch_add(&wrong, 1);
    *(_Atomic bool *)finished = true;
}

static void *call_cancelled(void *done) {
    _Atomic bool finished = false;
    host_thread = pthread_self();
    pthread_cancel(host_thread);
    amp__threads_run(2, leave_first, &finished);
    if (!finished) atomic_fetch_add(&wrong, 1);
    *(_Atomic bool *)done = true;
    pthread_testcancel();
    atomic_fetch_add(&wrong, 1);
    return NULL;
}

TEST(cancelled_threads_finish_the_call) {
    pthread_t host;
    _Atomic bool done = false;
    void *result = NULL;
    set_threads(2);
    ck_assert_int_eq(pthread_barrier_init(&both, NULL, 2), 0);
    ck_assert_int_eq(pthread_create(&host, NULL, call_cancelled, &done), 0);
    ck_assert_int_eq(pthread_join(host, &result), 0);
    ck_assert_int_eq(wrong, 0);
    ck_assert(done);
    ck_assert(result == PTHREAD_CANCELED);
    expect_threads(2, NULL, NULL); /* nobody holds the pool */
}

/* ---- environments ---- */

static _Atomic int seen_signals, seen_environments;

static void look_at_signals(void *unused) {
    sigset_t set;
    (void)unused;
    if (pthread_equal(pthread_self(), host_thread)) return;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    seen_signals += sigismember(&set, SIGINT) == 1 && sigismember(&set, SIGUSR1) == 1 &&
        sigismember(&set, SIGCHLD) == 1 && sigismember(&set, SIGPROF) == 1 && !sigismember(&set, SIGSEGV) &&
        !sigismember(&set, SIGBUS);
}

TEST(signals_are_the_hosts) {
    sigset_t before, after;
    host_thread = pthread_self();
    set_threads(3);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    expect_threads(3, look_at_signals, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    ck_assert_int_eq(seen_signals, 2);
    ck_assert_int_eq(sigismember(&before, SIGUSR1), sigismember(&after, SIGUSR1));
}

static void look_at_environment(void *unused) {
    (void)unused;
    if (pthread_equal(pthread_self(), host_thread)) return;
    seen_environments += fegetround() == FE_TONEAREST && fegetexcept() == 0 && !fetestexcept(FE_ALL_EXCEPT);
    fesetround(FE_DOWNWARD); /* nobody sees that later */
    feraiseexcept(FE_INEXACT);
}

/* Threads that a host in a strange environment started compute as all others do, and what they raise is not
 * the host's. */
TEST(environments_do_not_leak) {
    static float one[N], three[N];
    host_thread = pthread_self();
    for (size_t i = 0; i < N; i++) one[i] = three[i] = (float)(i % 999 + 1) * 0x1p-140f;
    const amp_span single = { one, N, AMP_FLOAT32, 0 }, split = { three, N, AMP_FLOAT32, 0 };
    float norms[2];
    ck_assert_int_eq(amp_scale_list(&single, &single, 1, 0.3f, NULL), AMP_OK);
    ck_assert_int_eq(amp_l2norm_list(&single, 1, &norms[0], NULL), AMP_OK);
    set_threads(3);
    fesetround(FE_UPWARD);
    feclearexcept(FE_ALL_EXCEPT);
    feenableexcept(FE_INVALID | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT);
    expect_threads(3, look_at_environment, NULL);
    expect_threads(3, look_at_environment, NULL);
    const amp_status scaled = amp_scale_list(&split, &split, 1, 0.3f, NULL);
    const amp_status summed = amp_l2norm_list(&split, 1, &norms[1], NULL);
    const int rounding = fegetround(), traps = fegetexcept(), raised = fetestexcept(FE_ALL_EXCEPT);
    fesetenv(FE_DFL_ENV);
    ck_assert_int_eq(scaled, AMP_OK);
    ck_assert_int_eq(summed, AMP_OK);
    ck_assert_int_eq(seen_environments, 4);
    ck_assert_int_eq(rounding, FE_UPWARD);
    ck_assert_int_eq(traps, TRAPS);
    ck_assert_int_eq(raised, 0);
    ck_assert(!memcmp(one, three, sizeof one) && norms[0] == norms[1]);
}

/* ---- not under sanitizers: their own locks and threads do not go with a fork, and they cannot be short of
 * memory ---- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PLAIN 1

/* Room for one stack more, and for none. (Limits on processes do not hold for root.) */
TEST_TIMES(denied_threads_are_done_without, 2) {
    struct rlimit all, limit;
    unsigned long pages;
    const int before = count_tasks();
    FILE *statm = fopen("/proc/self/statm", "r");
    ck_assert(statm && fscanf(statm, "%lu", &pages) == 1);
    fclose(statm);
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &all), 0);
    pthread_attr_t attributes;
    size_t stack;
    pthread_attr_init(&attributes);
    pthread_attr_getstacksize(&attributes, &stack);
    limit = all;
    limit.rlim_cur = pages * (unsigned long)sysconf(_SC_PAGESIZE) + (size_t)_i * (stack + (stack >> 1));
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    set_threads(5);
    const bool right = call_list(values) && call_list(values);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &all), 0);
    ck_assert(right);
    expect_tasks(before + _i);
    set_threads(4); /* asks again */
    expect_threads(4, NULL, NULL);
}

static int child(void) {
    alarm(SECONDS);
    if (count_tasks() != 1 || amp_get_num_threads() != 3) return 1;
    if (!call_list(values)) return 2;
    if (count_tasks() != 3) return 3; /* workers of its own */
    expect_threads(3, NULL, NULL);
    if (amp_set_num_threads(1) != AMP_OK) return 4;
    while (count_tasks() != 1) sched_yield();
    return call_list(values) ? 0 : 5;
}

static void fork_once(void) {
    const pid_t pid = fork();
    if (pid == 0) leave(child());
    int status = -1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(!WIFSIGNALED(status), "the child was killed by signal %d: it hung or crashed", WTERMSIG(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}

TEST(children_start_their_own) {
    set_threads(3);
    fork_once(); /* before there was any */
    expect_threads(3, NULL, NULL);
    fork_once();
    fork_once();
    expect_threads(3, NULL, NULL);
}

static void *call_always(void *unused) {
    float *own = malloc(N * sizeof *own);
    (void)unused;
    while (!stop)
        if (!own || !call_list(own)) atomic_fetch_add(&wrong, 1);
    free(own);
    return NULL;
}

TEST(children_of_a_busy_pool) {
    pthread_t hosts[2];
    set_threads(3);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_create(&hosts[i], NULL, call_always, NULL), 0);
    for (int i = 0; i < 30; i++) fork_once();
    stop = true;
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_join(hosts[i], NULL), 0);
    ck_assert_int_eq(wrong, 0);
    expect_threads(3, NULL, NULL);
}
#endif

int main(void) {
#ifndef PLAIN
    (void)printf("# denied threads and children are left out: a sanitizer needs memory, and does not go with a fork of "
                 "several threads\n");
    (void)fflush(stdout);
#endif
    return suite_run();
}
