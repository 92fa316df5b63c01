/* SPDX-License-Identifier: Apache-2.0 */
#include "adapter.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sites of one object together. */
struct caller {
    const struct site *heaviest;
    uint64_t calls, operations, nanoseconds, low;
    bool listed;
};

/* ---- what a caller would gain: its largest product again, on other memory ---- */

enum { ROUNDS = 5, MOST_OPERATIONS = 2000 * 1000 * 1000 };

static uint64_t best_of(struct site *site, const struct call *given, const struct call *call, bool low) {
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t start = now();
        if (low) multiply(site, given, call);
        else call_original(site->entry, site->original, given);
        const uint64_t took = now() - start;
        if (took < best) best = took;
    }
    return best;
}

static float *values(size_t n) {
    float *array = malloc(n * sizeof *array);
    for (size_t i = 0; array && i < n; i++) array[i] = (float)(i % 251) / 251 - 0.5F;
    return array;
}

/* FP32's time of the product over bfloat16's, 0 if it is not known. */
static double gain_of(const struct site *known) {
    struct site site = *known; /* its own op, whatever the gate says */
    const bool rows = strstr(entry_name(site.entry), "cblas") != NULL;
    const int64_t m = site.most[!rows], n = site.most[rows], k = site.most[2];
    float *a = values((size_t)(m * k)), *b = values((size_t)(k * n)), *c = values((size_t)(m * n));
    const int plain = rows ? CBLAS_PLAIN : 'N';
    const struct call given = { CBLAS_ROWS, plain, plain, m, n, k, rows ? k : m, rows ? n : k, rows ? n : m,
                                1, 0, a, b, c };
    struct call call;
    double gain = 0;
    if (a && b && c && canonical(site.entry, &given, &call)) wire(&site, false);
    if (site.context) {
        const uint64_t low = best_of(&site, &given, &call, true);
        gain = (double)best_of(&site, &given, &call, false) / (double)(low ? low : 1);
        unwire(&site);
    }
    free(a), free(b), free(c);
    return gain;
}

/* ---- the lines ---- */

static void tell_count(const struct caller *caller) {
    const struct site *site = caller->heaviest;
    const double seconds = (double)caller->nanoseconds * 1e-9;
    const double most = 2.0 * (double)site->most[0] * (double)site->most[1] * (double)site->most[2];
    char gain[192] = "";
    if (site->original && most <= MOST_OPERATIONS && !getenv("AMP_TRACE")) { /* whose lines are the program's alone */
        const double ratio = gain_of(site);
        if (ratio >= 1.05)
            (void)snprintf(gain, sizeof gain,
                           ", which bfloat16 makes %.1f times as fast: AMP_LEVEL=O4 AMP_BLAS_CALLERS='%s'", ratio,
                           site->caller);
        else if (ratio > 0) (void)snprintf(gain, sizeof gain, ", which bfloat16 does not make faster (%.2f)", ratio);
    }
    tell("%s: %" PRIu64 " products in FP32, %.3g s, %.3g GFLOP/s, the largest %" PRId64 " x %" PRId64 " x %" PRId64
         "%s",
         site->caller, caller->calls, seconds, seconds > 0 ? (double)caller->operations * 1e-9 / seconds : 0,
         site->most[0], site->most[1], site->most[2], gain);
}

static void tell_caller(const struct caller *caller) {
    const uint64_t high = caller->calls - caller->low;
    if (wish()->counts) tell_count(caller);
    else if (caller->listed)
        tell("%s: %" PRIu64 " products in bfloat16, %" PRIu64 " in FP32, where the gate sees no gain",
             caller->heaviest->caller, caller->low, high);
    else tell("%s: %" PRIu64 " products, not in AMP_BLAS_CALLERS: unchanged", caller->heaviest->caller, high);
}

static void add(struct caller *caller, const struct site *site) {
    const struct site *heaviest = caller->heaviest;
    const bool more = !heaviest || site->operations > heaviest->operations;
    if (more) caller->heaviest = site;
    caller->calls += site->calls, caller->operations += site->operations, caller->nanoseconds += site->nanoseconds;
    caller->low += site->low;
    caller->listed |= site->listed;
}

static int by_operations(const void *a, const void *b) {
    const struct caller *x = a, *y = b;
    return (x->operations < y->operations) - (x->operations > y->operations);
}

enum { MOST_SITES = 4096, MOST_LINES = 8 };
static struct site *sites[MOST_SITES];
static struct caller callers[MOST_SITES];

void report(void) {
    const size_t n = all_sites(sites, MOST_SITES);
    size_t n_callers = 0, i;
    for (size_t s = 0; s < n; s++) {
        if (!sites[s]->calls) continue;
        for (i = 0; i < n_callers; i++)
            if (!strcmp(callers[i].heaviest->caller, sites[s]->caller)) break;
        n_callers += i == n_callers;
        add(&callers[i], sites[s]);
    }
    qsort(callers, n_callers, sizeof *callers, by_operations);
    for (i = 0; i < n_callers && i < MOST_LINES; i++) tell_caller(&callers[i]);
    if (n_callers > MOST_LINES) tell("%zu more callers, with less to multiply", n_callers - MOST_LINES);
    tell_unknown(sites, n);
    if (close_calls())
        for (size_t s = 0; s < n; s++) unwire(sites[s]);
}
