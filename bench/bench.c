/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The measuring: both sides of a case in turns, many times, in the thread's processor time, which does not count what
 * others do on the same core. The ratio is the median of the ratios of neighbours, so that what disturbs both at a time
 * (others' use of the memory, the clock's frequency) drops out.
 */
#include "bench.h"
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 61, QUICK_ROUNDS = 15, LEAST_ROUNDS = 3, MOST_ROUNDS = 1001, MAX_RESULTS = 256, LEAST_BYTES = 4096 };
static const double most_seconds = 60, quick_seconds = 6; /* for one line, where LEAST_ROUNDS leave a choice */

static struct {
    bool quick, check;
    const char *json, *only, *python, *device, *bytes;
    bool cuda;
} options;

static struct result {
    struct bench_case c;
    char name[64], size[32], reference_name[96];
    double ours, reference, ratio, low, high;
} results[MAX_RESULTS];
static size_t n_results, n_left_out;

/* ---- measuring ---- */

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What is measured on one side of a case: a function of ours, or a peer's work. */
struct side {
    bench_fn *work;
    void *data;
    int peer;
    bool wall, gpu;
};

/* Seconds of one piece of work, of `times` in a row. */
static double measure(const struct side *side, size_t times) {
    if (side->peer) return bench_peer_run(side->peer, times);
    if (side->gpu) bench_cuda_clock_start();
    const clockid_t clock = side->wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
    if (side->wall) side->work(side->data); /* starts or ends threads */
    const double begin = now(clock);
    for (size_t i = 0; i < times; i++) side->work(side->data);
    const double host_seconds = now(clock) - begin;
    if (options.cuda && !side->gpu) bench_cuda_wait(); /* what the host's work started is not in the way of the next */
    return (side->gpu ? bench_cuda_clock_stop() : host_seconds) / (double)times;
}

/* So many in a row that the clock is not seen; *seconds: what they take. */
static size_t repetitions(const struct side *side, double *seconds) {
    enum { MOST = 1 << 20 };
    const double enough = 2e-3;
    size_t times = 1;
    while ((*seconds = measure(side, times) * (double)times) < enough && times < MOST) times *= 2;
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
        const struct side side = { .work = ways[i], .data = data, .gpu = options.cuda };
        double tries[TRIES], seconds;
        const size_t times = repetitions(&side, &seconds);
        for (size_t t = 0; t < TRIES; t++) tries[t] = measure(&side, times);
        const double median = quantile(tries, TRIES, 0.5);
        if (i == 0 || median < least) least = median, best = i;
    }
    return best;
}

/* ---- results ---- */

static double in_unit(const struct bench_case *c, double seconds) {
    if (!strcmp(c->unit, "GB/s")) return c->bytes / seconds * 1e-9;
    return seconds / c->calls * (strcmp(c->unit, "ms") ? 1e9 : 1e3);
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

/* Fewer where a round takes long; one where it takes most of a minute and no disturbance lasts. */
static size_t rounds_of(const struct bench_case *c, double seconds) {
    const size_t wanted = c->rounds ? c->rounds : options.quick ? QUICK_ROUNDS : ROUNDS;
    const double fit = (options.quick ? quick_seconds : most_seconds) / seconds;
    if (seconds > most_seconds / 2) return 1;
    return fit >= (double)wanted ? wanted : fit > LEAST_ROUNDS ? (size_t)fit : LEAST_ROUNDS;
}

static struct result *new_result(const struct bench_case *c) {
    if (n_results == MAX_RESULTS) bench_must(1, "a table for more results");
    struct result *r = &results[n_results++];
    r->c = *c;
    snprintf(r->name, sizeof r->name, "%s", c->name);
    snprintf(r->size, sizeof r->size, "%s", c->size);
    snprintf(r->reference_name, sizeof r->reference_name, "%s", c->reference_name);
    return r;
}

void bench_count(const struct bench_case *c, double ours, double reference) {
    struct result *r = new_result(c);
    r->c.unit = "count";
    r->ours = ours, r->reference = reference;
    r->ratio = r->low = r->high = ours > 0 ? reference / ours : 1;
    print_result(r);
}

void bench_run(const struct bench_case *c) {
    const struct side us = { c->ours, c->ours_data, 0, c->wall, c->gpu };
    const struct side them = { c->reference, c->reference_data, c->peer, c->wall, c->gpu };
    double ours[MOST_ROUNDS], reference[MOST_ROUNDS], ratio[MOST_ROUNDS], our_seconds, their_seconds;
    const size_t our_times = repetitions(&us, &our_seconds), their_times = repetitions(&them, &their_seconds);
    const size_t rounds = rounds_of(c, our_seconds + their_seconds);
    for (size_t i = 0; i < rounds; i++) { /* who is first changes from round to round */
        if (i % 2) ours[i] = measure(&us, our_times);
        reference[i] = measure(&them, their_times);
        if (i % 2 == 0) ours[i] = measure(&us, our_times);
        if (c->allowed > 0) {
            const double beyond = ours[i] - reference[i], least = 1e-12;
            ours[i] = beyond > least ? beyond : least;
            reference[i] = c->allowed * c->calls * 1e-9;
        }
        ratio[i] = reference[i] / ours[i];
    }
    struct result *r = new_result(c);
    r->ours = in_unit(c, quantile(ours, rounds, 0.5));
    r->reference = in_unit(c, quantile(reference, rounds, 0.5));
    r->low = quantile(ratio, rounds, 0.25), r->high = quantile(ratio, rounds, 0.75);
    r->ratio = quantile(ratio, rounds, 0.5);
    print_result(r);
}

static void write_text(FILE *file, const char *key, const char *text) {
    fprintf(file, "\"%s\": \"", key);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', file);
        if ((unsigned char)*text >= ' ') fputc(*text, file);
    }
    fputs("\", ", file);
}

static void write_json(const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) bench_must(1, path);
    fputs("[", file);
    for (size_t i = 0; i < n_results; i++) {
        const struct result *r = &results[i];
        fputs(i ? ",\n{" : "\n{", file);
        write_text(file, "group", r->c.group);
        write_text(file, "name", r->name);
        write_text(file, "size", r->size);
        write_text(file, "unit", r->c.unit);
        fprintf(file, "\"ours\": %.4g, \"reference\": %.4g, ", r->ours, r->reference);
        write_text(file, "reference_name", r->reference_name);
        fprintf(file, "\"ratio\": %.4g, \"quartiles\": [%.4g, %.4g], \"goal\": %.4g}", r->ratio, r->low, r->high,
                r->c.goal);
    }
    fputs("\n]\n", file);
    if (fclose(file)) bench_must(1, path);
}

/* ---- help for groups ---- */

void bench_left_out(const char *group, const char *why) {
    printf("%-8s left out: %s\n", group, why);
    n_left_out++;
}

/* ---- the program ---- */

static const char usage[] =
    "usage: bench [--quick] [--check] [--json FILE] [--group NAME] [--peers PYTHON] [--device cpu|cuda] [--bytes N]\n"
    "  --check  status 1 if a ratio is below its goal\n"
    "  --bytes  of tensors on a GPU, instead of 1.6 GB\n";

/* Before anything is measured. */
static void check_group(void) {
#define GROUP_NAME(name) #name,
    static const char *const of_cpu[] = { BENCH_GROUPS(GROUP_NAME) },
        *const of_cuda[] = { BENCH_CUDA_GROUPS(GROUP_NAME) };
    const char *const *names = options.cuda ? of_cuda : of_cpu;
    const size_t n = options.cuda ? sizeof of_cuda / sizeof *of_cuda : sizeof of_cpu / sizeof *of_cpu;
    size_t i = 0;
    if (!options.only) return;
    while (i < n && strcmp(options.only, names[i])) i++;
    if (i < n) return;
    fprintf(stderr, "bench: no group is named %s; there are", options.only);
    for (i = 0; i < n; i++) fprintf(stderr, " %s", names[i]);
    fputc('\n', stderr);
    exit(2);
}

static void read_options(int argc, char **argv) {
    const struct {
        const char *name;
        bool *flag;
        const char **value;
    } table[] = { { "--quick", &options.quick, NULL }, { "--check", &options.check, NULL },
                  { "--json", NULL, &options.json }, { "--group", NULL, &options.only },
                  { "--peers", NULL, &options.python }, { "--device", NULL, &options.device },
                  { "--bytes", NULL, &options.bytes } };
    enum { N = sizeof table / sizeof *table };
    for (int i = 1; i < argc; i++) {
        size_t o = 0;
        while (o < N && (strcmp(argv[i], table[o].name) || (table[o].value && i + 1 == argc))) o++;
        if (o == N) {
            fputs(usage, stderr);
            exit(2);
        }
        if (table[o].flag) *table[o].flag = true;
        else *table[o].value = argv[++i];
    }
    if (options.bytes) bench_bytes = (size_t)strtoull(options.bytes, NULL, 10);
    options.cuda = options.device && !strcmp(options.device, "cuda");
    if ((options.device && !options.cuda && strcmp(options.device, "cpu")) || bench_bytes < LEAST_BYTES) {
        fputs(usage, stderr);
        exit(2);
    }
    check_group();
}

static void run_group(const char *name, void (*group)(void)) {
    const size_t before = n_results + n_left_out;
    if (options.only && strcmp(options.only, name)) return;
    group();
    if (n_results + n_left_out == before) bench_must(1, name);
}

/* Without a GPU there is nothing to measure, and no line is written. */
static void start_cuda(void) {
    const char *why = bench_cuda_start();
    if (why) {
        printf("bench: skipped: %s\n", why);
        exit(EXIT_SUCCESS);
    }
    bench_cuda_print();
}

static void run_groups(void) {
#define RUN_GROUP(name) run_group(#name, bench_##name);
#define RUN_CUDA_GROUP(name) run_group(#name, bench_cuda_##name);
    if (options.cuda) {
        BENCH_CUDA_GROUPS(RUN_CUDA_GROUP)
    } else {
        BENCH_GROUPS(RUN_GROUP)
    }
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    bench_print_machine();
    if (options.cuda) start_cuda();
    if (options.python) bench_peers_start(options.python, options.cuda ? "cuda" : "cpu");
    printf("rounds: %d\n\n", options.quick ? QUICK_ROUNDS : ROUNDS);
    print_head();
    run_groups();
    if (!options.cuda) bench_peers(options.only);
    if (options.json) write_json(options.json);
    size_t missed = 0;
    for (size_t i = 0; i < n_results; i++) missed += results[i].ratio < results[i].c.goal;
    printf("\n%zu lines, %zu below their goal\n", n_results, missed);
    return options.check && missed ? EXIT_FAILURE : EXIT_SUCCESS;
}
