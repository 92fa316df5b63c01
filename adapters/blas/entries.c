/* SPDX-License-Identifier: Apache-2.0 */
#include "adapter.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static _Thread_local bool inside; /* an intercepted call of this thread runs: what it calls passes */
static int32_t busy;              /* threads in calls of listed sites */
static bool closed;

uint64_t now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void count(struct site *site, const struct call *call, uint64_t took) {
    const uint64_t operations = 2 * (uint64_t)call->m * (uint64_t)call->n * (uint64_t)call->k;
    const int64_t *most = site->most;
    (void)__atomic_fetch_add(&site->calls, 1, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&site->operations, operations, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&site->nanoseconds, took, __ATOMIC_RELAXED);
    if (operations <= 2 * (uint64_t)most[0] * (uint64_t)most[1] * (uint64_t)most[2]) return;
    __atomic_store_n(&site->most[0], call->m, __ATOMIC_RELAXED); /* threads may mix theirs: it is an example */
    __atomic_store_n(&site->most[1], call->n, __ATOMIC_RELAXED);
    __atomic_store_n(&site->most[2], call->k, __ATOMIC_RELAXED);
}

static void original(const struct site *site, const struct call *given, const struct call *call, bool sound) {
    if (site->original) call_original(site->entry, site->original, given);
    else if (sound) multiply_alone(call);
}

/* Below this edge (amp_gate.h) an op of libamp is slower than OpenBLAS, whatever its product gains: on a Sapphire
 * Rapids 48: 7.0 us and 2.1, 96: 17 and 10, 128: 25 and 29, 256: 114 and 200. */
enum { LEAST_EDGE = 128 };

static bool may_gain(const struct call *call) {
    const double m = (double)call->m, n = (double)call->n, k = (double)call->k;
    return !wish()->gate || 3 / (1 / m + 1 / n + 1 / k) >= LEAST_EDGE;
}

/* Before the exit handlers of oneDNN, which is loaded by the first product and unmaps its code: those that run end. */
static void drain(void) {
    const struct timespec moment = { 0, 1000000 };
    for (int i = 0; !close_calls() && i < 10000; i++) (void)nanosleep(&moment, NULL);
}

static void drain_at_exit(void) { (void)atexit(drain); }

/* A product: by bfloat16 for a listed caller, else as if this library were not there. */
static void intercept(enum entry entry, const void *address, const struct call *given) {
    const int error = errno; /* a BLAS leaves it alone */
    struct call call;
    struct site spare, *site = site_of(address, entry, &spare);
    const bool sound = canonical(entry, given, &call);
    if (inside || !sound || site->inside_blas || wish()->off) {
        errno = error;
        original(site, given, &call, sound);
        return;
    }
    inside = true;
    const uint64_t start = wish()->counts ? now() : 0;
    (void)__atomic_fetch_add(&busy, 1, __ATOMIC_SEQ_CST);
    if (site->context && may_gain(&call) && !__atomic_load_n(&closed, __ATOMIC_SEQ_CST)) {
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        multiply(site, given, &call);
        (void)pthread_once(&once, drain_at_exit);
    } else original(site, given, &call, sound);
    (void)__atomic_fetch_sub(&busy, 1, __ATOMIC_SEQ_CST);
    count(site, &call, wish()->counts ? now() - start : 0);
    inside = false;
    errno = error;
}

void forget_other_threads(void) { busy = inside; }

bool close_calls(void) {
    __atomic_store_n(&closed, true, __ATOMIC_SEQ_CST);
    return !__atomic_load_n(&busy, __ATOMIC_SEQ_CST);
}

/* ---- the two interfaces ---- */

#define FORTRAN_TYPE(integer)                                                                                          \
    void (*)(const char *, const char *, const integer *, const integer *, const integer *, const float *,            \
             const float *, const integer *, const float *, const integer *, const float *, float *, const integer *, \
             size_t, size_t)
#define CBLAS_TYPE(integer)                                                                                            \
    void (*)(int, int, int, integer, integer, integer, float, const float *, integer, const float *, integer, float,  \
             float *, integer)

/* Fortran's compilers pass the length of each string behind all arguments; C programs leave it out. */
#define EXPORT_fortran(name, integer)                                                                                  \
    void name(const char *ta, const char *tb, const integer *m, const integer *n, const integer *k,                    \
              const float *alpha, const float *a, const integer *lda, const float *b, const integer *ldb,              \
              const float *beta, float *c, const integer *ldc);                                                        \
    AMP_API void name(const char *ta, const char *tb, const integer *m, const integer *n, const integer *k,            \
                      const float *alpha, const float *a, const integer *lda, const float *b, const integer *ldb,      \
                      const float *beta, float *c, const integer *ldc) {                                               \
        const struct call call = { 0, *ta, *tb, *m, *n, *k, *lda, *ldb, *ldc, alpha ? *alpha : 0, beta ? *beta : 0,    \
                                   a, b, c };                                                                          \
        intercept(ENTRY_##name, __builtin_return_address(0), &call);                                                   \
    }                                                                                                                  \
    static void original_##name(amp_fn function, const struct call *call) {                                            \
        const char ta = (char)call->ta, tb = (char)call->tb;                                                           \
        const integer m = (integer)call->m, n = (integer)call->n, k = (integer)call->k;                                \
        const integer lda = (integer)call->lda, ldb = (integer)call->ldb, ldc = (integer)call->ldc;                    \
        ((FORTRAN_TYPE(integer))function)(&ta, &tb, &m, &n, &k, &call->alpha, call->a, &lda, call->b, &ldb,            \
                                          &call->beta, call->c, &ldc, 1, 1);                                           \
    }
#define EXPORT_cblas(name, integer)                                                                                    \
    void name(int order, int ta, int tb, integer m, integer n, integer k, float alpha, const float *a, integer lda,    \
              const float *b, integer ldb, float beta, float *c, integer ldc);                                         \
    AMP_API void name(int order, int ta, int tb, integer m, integer n, integer k, float alpha, const float *a,         \
                      integer lda, const float *b, integer ldb, float beta, float *c, integer ldc) {                   \
        const struct call call = { order, ta, tb, m, n, k, lda, ldb, ldc, alpha, beta, a, b, c };                      \
        intercept(ENTRY_##name, __builtin_return_address(0), &call);                                                   \
    }                                                                                                                  \
    static void original_##name(amp_fn function, const struct call *call) {                                            \
        ((CBLAS_TYPE(integer))function)(call->order, call->ta, call->tb, (integer)call->m, (integer)call->n,           \
                                        (integer)call->k, call->alpha, call->a, (integer)call->lda, call->b,           \
                                        (integer)call->ldb, call->beta, call->c, (integer)call->ldc);                  \
    }
#define EXPORT(name, interface, integer) EXPORT_##interface(name, integer)
ENTRIES(EXPORT)

static const struct {
    const char *name;
    amp_fn function;
    void (*original)(amp_fn function, const struct call *call);
} entries[] = {
#define ROW(name, interface, integer) { #name, (amp_fn)name, original_##name },
    ENTRIES(ROW)
#undef ROW
};

const char *entry_name(enum entry entry) { return entries[entry].name; }
amp_fn entry_function(enum entry entry) { return entries[entry].function; }
void call_original(enum entry entry, amp_fn function, const struct call *call) {
    entries[entry].original(function, call);
}
