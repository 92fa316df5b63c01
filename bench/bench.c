/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The measuring: both sides of a case in turns, many times, in the thread's processor time, which does not count what
 * others do on the same core. The ratio is the median of the ratios of neighbours, so that what disturbs both at a time
 * (others' use of the memory, the clock's frequency) drops out.
 */
#include "bench.h"

#include <amp_kernels.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 61, QUICK_ROUNDS = 15, MAX_RESULTS = 256 };

static struct {
    bool quick;
    const char *json, *only;
} options;

static struct result {
    struct bench_case c;
    char name[64], size[32], reference_name[64];
    double ours, reference, ratio, low, high;
} results[MAX_RESULTS];
static size_t n_results;

/* ---- measuring ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of one piece of work, of `times` in a row. */
static double measure(bench_fn *work, void *data, size_t times) {
    const double begin = now();
    for (size_t i = 0; i < times; i++) work(data);
    return (now() - begin) / (double)times;
}

/* So many in a row that the clock is not seen. */
static size_t repetitions(bench_fn *work, void *data) {
    enum { MOST = 1 << 20 };
    const double enough = 2e-3;
    size_t times = 1;
    while (times < MOST && measure(work, data, times) * (double)times < enough) times *= 2;
    return times;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value at a fraction of the sorted values. */
static double quantile(double *values, size_t n, double fraction) {
    qsort(values, n, sizeof *values, by_value);
    return values[(size_t)(fraction * (double)(n - 1) + 0.5)];
}

size_t bench_best(bench_fn *const *ways, size_t n, void *data) {
    enum { TRIES = 7 };
    size_t best = 0;
    double least = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t times = repetitions(ways[i], data);
        double tries[TRIES];
        for (size_t t = 0; t < TRIES; t++) tries[t] = measure(ways[i], data, times);
        const double median = quantile(tries, TRIES, 0.5);
        if (i == 0 || median < least) least = median, best = i;
    }
    return best;
}

/* ---- results ---- */

static double in_unit(const struct bench_case *c, double seconds) {
    return strcmp(c->unit, "GB/s") ? seconds * 1e9 / c->calls : c->bytes / seconds * 1e-9;
}

static void print_head(void) {
    printf("%-8s %-34s %-14s %9s %9s %-5s %6s  %-13s %6s   %s\n", "group", "name", "size", "ours", "reference", "unit",
           "ratio", "(quartiles)", "goal", "reference");
}

static void print_result(const struct result *r) {
    char goal[16] = "";
    if (r->c.goal > 0) snprintf(goal, sizeof goal, "%.2f%s", r->c.goal, r->ratio < r->c.goal ? " !" : "  ");
    printf("%-8s %-34s %-14s %9.2f %9.2f %-5s %6.3f  (%.3f-%.3f) %6s   %s\n", r->c.group, r->name, r->size, r->ours,
           r->reference, r->c.unit, r->ratio, r->low, r->high, goal, r->reference_name);
    fflush(stdout);
}

void bench_run(const struct bench_case *c) {
    double ours[ROUNDS], reference[ROUNDS], ratio[ROUNDS];
    const size_t rounds = options.quick ? QUICK_ROUNDS : ROUNDS;
    const size_t ours_times = repetitions(c->ours, c->ours_data);
    const size_t reference_times = repetitions(c->reference, c->reference_data);
    for (size_t i = 0; i < rounds; i++) { /* who is first changes from round to round */
        if (i % 2) ours[i] = measure(c->ours, c->ours_data, ours_times);
        reference[i] = measure(c->reference, c->reference_data, reference_times);
        if (i % 2 == 0) ours[i] = measure(c->ours, c->ours_data, ours_times);
        if (c->allowed > 0) {
            const double beyond = ours[i] - reference[i], least = 1e-12;
            ours[i] = beyond > least ? beyond : least;
            reference[i] = c->allowed * c->calls * 1e-9;
        }
        ratio[i] = reference[i] / ours[i];
    }
    if (n_results == MAX_RESULTS) bench_must(1, "a table for more results");
    struct result *r = &results[n_results++];
    r->c = *c;
    snprintf(r->name, sizeof r->name, "%s", c->name);
    snprintf(r->size, sizeof r->size, "%s", c->size);
    snprintf(r->reference_name, sizeof r->reference_name, "%s", c->reference_name);
    r->ours = in_unit(c, quantile(ours, rounds, 0.5));
    r->reference = in_unit(c, quantile(reference, rounds, 0.5));
    r->low = quantile(ratio, rounds, 0.25), r->high = quantile(ratio, rounds, 0.75);
    r->ratio = quantile(ratio, rounds, 0.5);
    print_result(r);
}

static void write_json(const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) bench_must(1, path);
    fputs("[", file);
    for (size_t i = 0; i < n_results; i++) {
        const struct result *r = &results[i];
        fprintf(file,
                "%s\n{\"group\": \"%s\", \"name\": \"%s\", \"size\": \"%s\", \"unit\": \"%s\", \"ours\": %.4g, "
                "\"reference\": %.4g, \"reference_name\": \"%s\", \"ratio\": %.4g, \"low\": %.4g, \"high\": %.4g, "
                "\"goal\": %.4g}",
                i ? "," : "", r->c.group, r->name, r->size, r->c.unit, r->ours, r->reference, r->reference_name, r->ratio,
                r->low, r->high, r->c.goal);
    }
    fputs("\n]\n", file);
    if (fclose(file)) bench_must(1, path);
}

/* ---- help for groups ---- */

void bench_must(int status, const char *what) {
    if (!status) return;
    fprintf(stderr, "bench: %s: failed%s%s\n", what, status < 0 ? ": " : "", status < 0 ? amp_last_error() : "");
    exit(EXIT_FAILURE);
}

void *bench_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) bench_must(1, "memory");
    madvise(memory, bytes, MADV_HUGEPAGE); /* page faults and address translation are not what is measured */
    float *floats = memory;
    for (size_t i = 0; i < bytes / sizeof *floats; i++) floats[i] = (float)(i % 1000 + 1) * 0x1p-10f;
    return memory;
}

void bench_release(void *memory, size_t bytes) { munmap(memory, bytes); }

/* ---- the program ---- */

static void print_line_of(const char *path, const char *key, const char *title) {
    char line[256];
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) || (*key && !colon)) continue;
        printf("%s: %s", title, *key ? colon + 2 : line);
        break;
    }
    if (file) fclose(file);
}

static void print_machine(void) {
    print_line_of("/proc/cpuinfo", "model name", "processor");
    printf("cores: %ld, caches: %ld KiB, %ld KiB, %ld MiB\n", sysconf(_SC_NPROCESSORS_ONLN),
           sysconf(_SC_LEVEL1_DCACHE_SIZE) >> 10, sysconf(_SC_LEVEL2_CACHE_SIZE) >> 10,
           sysconf(_SC_LEVEL3_CACHE_SIZE) >> 20);
    const uint32_t sets = amp_cpu_flags();
    printf("kernels:%s%s%s%s%s\n", sets & AMP_CPU_SSE2 ? " SSE2" : "", sets & AMP_CPU_AVX2 ? " AVX2" : "",
           sets & AMP_CPU_AVX512 ? " AVX-512" : "", sets & AMP_CPU_NEON ? " NEON" : "", sets ? "" : " scalar");
    print_line_of("/proc/loadavg", "", "load");
    const char *commit = getenv("AMP_BENCH_COMMIT");
    printf("libamp: %s%s%s, compiler %s; %s\n\n", amp_version(), commit ? ", " : "", commit ? commit : "", __VERSION__,
           options.quick ? "quick" : "full");
}

static void read_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--quick")) options.quick = true;
        else if (!strcmp(argv[i], "--json") && i + 1 < argc) options.json = argv[++i];
        else if (!strcmp(argv[i], "--group") && i + 1 < argc) options.only = argv[++i];
        else {
            fprintf(stderr, "usage: bench [--quick] [--json FILE] [--group NAME]\n");
            exit(2);
        }
    }
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    print_machine();
    print_head();
#define RUN_GROUP(name)                                                                                                \
    if (!options.only || !strcmp(options.only, #name)) bench_##name();
    BENCH_GROUPS(RUN_GROUP)
    if (!n_results) bench_must(1, "a group of that name");
    if (options.json) write_json(options.json);
    size_t missed = 0;
    for (size_t i = 0; i < n_results; i++) missed += results[i].ratio < results[i].c.goal;
    printf("\n%zu lines, %zu below their goal\n", n_results, missed);
    return EXIT_SUCCESS;
}
