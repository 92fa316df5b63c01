/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One context on many threads, over a host whose tensors are counted atomically: shared weights come out of the cache,
 * scopes belong to their thread, other contexts come and go meanwhile. Worth most under ThreadSanitizer.
 */
#include <amp_all.h>

#include "test.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { THREADS = 16, CALLS = 2000 };

struct tensor {
    amp_dtype dtype;
    uint64_t id;
    _Atomic(uint64_t) version;
};

static _Atomic(int64_t) live, casts;
static _Atomic(uint64_t) wrong;

/* ---- the host ---- */

static amp_dtype dtype_of(void *self, void *tensor) {
    (void)self;
    return ((struct tensor *)tensor)->dtype;
}
static amp_status cast(void *self, void *tensor, amp_dtype to, void **out) {
    struct tensor *copy = malloc(sizeof *copy);
    (void)self;
    if (!copy) return AMP_ERR_NO_MEMORY;
    copy->dtype = to;
    copy->id = 0;
    atomic_init(&copy->version, ((struct tensor *)tensor)->version);
    live++;
    casts++;
    *out = copy;
    return AMP_OK;
}
static void release(void *self, void *tensor) {
    (void)self;
    live--;
    free(tensor);
}
static uint64_t id_of(void *self, void *tensor) {
    (void)self;
    return ((struct tensor *)tensor)->id;
}
static uint64_t version_of(void *self, void *tensor) {
    (void)self;
    return ((struct tensor *)tensor)->version;
}

static _Thread_local amp_dtype expected;
static int32_t linear(struct tensor *x, struct tensor *w) {
    if (x->dtype != expected || w->dtype != expected) wrong++;
    return x->dtype == w->dtype;
}

static struct {
    int32_t (*linear)(struct tensor *, struct tensor *);
} table = { linear };

static const char schema[] = "linear(Tensor input, Tensor weight) -> int32";

/* ---- a context ---- */

struct setup {
    amp_host host;
    amp_op op;
    amp_param param;
    amp_model model;
};

static void describe(struct setup *setup, struct tensor *weight) {
    setup->host = (amp_host)AMP_HOST_INIT;
    setup->host.flags = AMP_HOST_TAPE_RETAINS_INPUTS;
    setup->host.dtype = dtype_of;
    setup->host.cast = cast;
    setup->host.release = release;
    setup->host.id = id_of;
    setup->host.version = version_of;
    setup->op = (amp_op)AMP_OP_INIT;
    setup->op.name = "linear";
    setup->op.schema = schema;
    setup->op.slot = (amp_fn *)(void *)&table.linear;
    setup->param = (amp_param)AMP_PARAM_INIT;
    setup->param.tensor = weight;
    setup->model = (amp_model)AMP_MODEL_INIT;
    setup->model.host = &setup->host;
    setup->model.ops = &setup->op;
    setup->model.n_ops = 1;
    setup->model.params = &setup->param;
    setup->model.n_params = 1;
}

/* ---- threads ---- */

struct job {
    amp_context *context;
    struct tensor *weight;
    int number;
};

/* Half of the threads run in their own scope, half under the only context; some disable casts now and then. */
static void *work(void *argument) {
    const struct job *job = argument;
    struct tensor x = { AMP_FLOAT32, 0, 0 };
    amp_scope scope, off;
    if (amp_scope_enter(job->context, &scope) != AMP_OK) wrong++;
    for (int i = 0; i < CALLS; i++) {
        const int disabled = (i + job->number) % 7 == 0;
        if (disabled && amp_scope_enter(NULL, &off) != AMP_OK) wrong++;
        expected = disabled ? AMP_FLOAT32 : AMP_FLOAT16;
        if (table.linear(&x, job->weight) != 1) wrong++;
        if (disabled && amp_scope_leave(&off) != AMP_OK) wrong++;
    }
    if (amp_scope_leave(&scope) != AMP_OK) wrong++;
    return NULL;
}

/* Another context on the same slot, wired and undone again and again. */
static void *come_and_go(void *argument) {
    struct setup setup;
    (void)argument;
    struct tensor weight = { AMP_FLOAT32, 99, 0 };
    for (int i = 0; i < 50; i++) {
        describe(&setup, &weight);
        if (amp_initialize(&setup.model, NULL, AMP_O4) != AMP_OK || amp_shutdown(setup.model.amp) != AMP_OK) wrong++;
    }
    return NULL;
}

TEST(one_context_serves_many_threads) {
    struct setup setup;
    struct tensor weight = { AMP_FLOAT32, 1, 0 };
    pthread_t threads[THREADS], other;
    struct job jobs[THREADS];
    describe(&setup, &weight);
    ck_assert_msg(amp_initialize(&setup.model, NULL, AMP_O1) == AMP_OK, "%s", amp_last_error());
    pthread_create(&other, NULL, come_and_go, NULL);
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){ setup.model.amp, &weight, i };
        pthread_create(&threads[i], NULL, work, &jobs[i]);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    pthread_join(other, NULL);
    ck_assert_uint_eq(wrong, 0);
    amp_op_stats stats = AMP_OP_STATS_INIT;
    size_t n;
    ck_assert_int_eq(amp_get_op_stats(setup.model.amp, &stats, 1, &n), AMP_OK);
    ck_assert_uint_eq(stats.calls + stats.passed, THREADS * CALLS);
    ck_assert_uint_eq(stats.casts + stats.cache_hits, 2 * stats.calls);
    ck_assert_uint_lt(stats.casts - stats.calls, THREADS + 1); /* the weight: once, or once a thread that raced */
    ck_assert_int_eq(amp_shutdown(setup.model.amp), AMP_OK);
    ck_assert_int_eq(live, 0);
    ck_assert(table.linear == linear);
}

/* ---- contexts that have nothing to do with each other ---- */

enum { LIVES = 100, OWNERS = 8 };
static pthread_barrier_t born;

/* A slot of its own, and a context on it that is made, used and ended again and again. */
static void *live_alone(void *argument) {
    int32_t (*slot)(struct tensor *, struct tensor *) = linear;
    struct tensor weight = { AMP_FLOAT32, 1000 + (uint64_t)*(int *)argument, 0 }, x = { AMP_FLOAT32, 0, 0 };
    struct setup setup;
    expected = AMP_FLOAT16;
    for (int i = 0; i < LIVES; i++) {
        pthread_barrier_wait(&born);
        describe(&setup, &weight);
        setup.op.slot = (amp_fn *)(void *)&slot;
        if (amp_initialize(&setup.model, NULL, AMP_O1) != AMP_OK || slot(&x, &weight) != 1 ||
            amp_shutdown(setup.model.amp) != AMP_OK || slot != linear)
            wrong++;
    }
    return NULL;
}

TEST(independent_contexts_live_beside_each_other) {
    pthread_t threads[OWNERS];
    int numbers[OWNERS];
    ck_assert_int_eq(pthread_barrier_init(&born, NULL, OWNERS), 0);
    for (int i = 0; i < OWNERS; i++) {
        numbers[i] = i;
        pthread_create(&threads[i], NULL, live_alone, &numbers[i]);
    }
    for (int i = 0; i < OWNERS; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&born);
    ck_assert_uint_eq(wrong, 0);
    ck_assert_int_eq(live, 0);
}

/* ---- counters ---- */

enum { WAVES = 3, WIDTH = 4, HITS = 50000 };
static pthread_barrier_t together;

static void *hit(void *argument) {
    const struct job *job = argument;
    struct tensor x = { AMP_FLOAT16, 0, 0 };
    expected = AMP_FLOAT16;
    pthread_barrier_wait(&together);
    for (int i = 0; i < HITS; i++)
        if (table.linear(&x, job->weight) != 1) wrong++;
    return NULL;
}

/* Waves of threads: those of the second live where those of the first did. */
TEST(counters_miss_nothing) {
    struct setup setup;
    struct tensor weight = { AMP_FLOAT32, 1, 0 };
    amp_op_stats stats = AMP_OP_STATS_INIT;
    size_t n;
    describe(&setup, &weight);
    ck_assert_int_eq(amp_initialize(&setup.model, NULL, AMP_O1), AMP_OK);
    ck_assert_int_eq(pthread_barrier_init(&together, NULL, WIDTH), 0);
    struct job job = { setup.model.amp, &weight, 0 };
    for (uint64_t wave = 1; wave <= WAVES; wave++) {
        pthread_t threads[WIDTH];
        for (int i = 0; i < WIDTH; i++) pthread_create(&threads[i], NULL, hit, &job);
        for (int i = 0; i < WIDTH; i++) pthread_join(threads[i], NULL);
        ck_assert_int_eq(amp_get_op_stats(setup.model.amp, &stats, 1, &n), AMP_OK);
        ck_assert_uint_eq(stats.calls, wave * WIDTH * HITS);
        ck_assert_uint_eq(stats.casts + stats.cache_hits, stats.calls);
        ck_assert_uint_le(stats.casts, WIDTH);
    }
    ck_assert_uint_eq(wrong, 0);
    ck_assert_int_eq(amp_shutdown(setup.model.amp), AMP_OK);
    ck_assert_int_eq(live, 0);
}

/* ---- scopes between threads ---- */

TEST(a_scope_is_handed_to_workers) {
    struct setup setup;
    struct tensor weight = { AMP_FLOAT32, 1, 0 };
    amp_scope off, captured;
    describe(&setup, &weight);
    ck_assert_int_eq(amp_initialize(&setup.model, NULL, AMP_O1), AMP_OK);
    ck_assert_int_eq(amp_scope_enter(NULL, &off), AMP_OK);
    ck_assert_int_eq(amp_scope_capture(&captured), AMP_OK);
    ck_assert_int_eq(amp_scope_leave(&off), AMP_OK);
    struct tensor x = { AMP_FLOAT32, 0, 0 };
    amp_scope previous;
    ck_assert_int_eq(amp_scope_adopt(&captured, &previous), AMP_OK);
    expected = AMP_FLOAT32;
    ck_assert_int_eq(table.linear(&x, &weight), 1);
    ck_assert_int_eq(amp_scope_leave(&previous), AMP_OK);
    expected = AMP_FLOAT16;
    ck_assert_int_eq(table.linear(&x, &weight), 1);
    ck_assert_uint_eq(wrong, 0);
    ck_assert_int_eq(amp_shutdown(setup.model.amp), AMP_OK);
    ck_assert_int_eq(live, 0);
}
