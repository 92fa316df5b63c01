/* SPDX-License-Identifier: Apache-2.0 */
#include <amp_diagnostics.h>
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t report_group(const struct run_result *results, size_t n) {
    size_t same = n > 0;
    while (same < n && results[same].label == results[0].label) same++;
    return same;
}

/* ---- the table ---- */

/* A level's runs in one; sizes are the same in each. */
struct summary {
    const struct run_result *runs;
    size_t n;
    double accuracy, least, most, loss, steps, skipped, seconds, samples_per_second;
};

static struct summary summarize(const struct run_result *runs, size_t n) {
    struct summary sum = { .runs = runs, .n = n, .least = 100.0 };
    for (size_t i = 0; i < n; i++) {
        sum.accuracy += runs[i].test_accuracy / (double)n;
        sum.least = fmin(sum.least, runs[i].test_accuracy);
        sum.most = fmax(sum.most, runs[i].test_accuracy);
        sum.loss += runs[i].train_loss / (double)n;
        sum.steps += (double)runs[i].steps / (double)n;
        sum.skipped += (double)runs[i].skipped / (double)n;
        sum.seconds += runs[i].seconds / (double)n;
        sum.samples_per_second += runs[i].samples_per_second / (double)n;
    }
    return sum;
}

/* 935172 -> "935,172"; four results may be in use at once. */
static const char *grouped(size_t value) {
    static char texts[4][32];
    static int turn;
    char digits[24], *text = texts[turn = (turn + 1) % 4], *to = text;
    const int n = snprintf(digits, sizeof digits, "%zu", value);
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return text;
}

/* Loss scales are powers of two, as a rule. */
static const char *scale_text(double scale, char *text, size_t size) {
    int power;
    if (scale >= 1024.0 && frexp(scale, &power) == 0.5) snprintf(text, size, "2^%d", power - 1);
    else snprintf(text, size, "%.4g", scale);
    return text;
}

/* Samples each second of O0, the same host at full precision; 0 where it did not run. */
static double speed_of_o0(const struct run_result *results, size_t n) {
    for (size_t i = 0, group; i < n; i += group) {
        const struct summary s = summarize(results + i, group = report_group(results + i, n - i));
        if (strcmp(s.runs->label, "O0") == 0) return s.samples_per_second;
    }
    return 0.0;
}

static void print_row(FILE *out, const struct summary *s, double o0) {
    const struct run_result *first = s->runs;
    char spread[24], scale[24], speed[24] = "-";
    if (o0 > 0.0) snprintf(speed, sizeof speed, "%.2f", s->samples_per_second / o0);
    snprintf(spread, sizeof spread, "%.2f-%.2f", s->least, s->most);
    fprintf(out, "%-5s %6.2f  %-12s %8.4f %6.4g %7.3g %8s %8s %8s %9s %11s %6.2f %9.0f %6s\n", first->label,
            s->accuracy, spread, s->loss, s->steps, s->skipped,
            scale_text(s->runs[s->n - 1].loss_scale, scale, sizeof scale), grouped(first->param_bytes),
            grouped(first->master_bytes), grouped(first->grad_bytes), grouped(first->activation_peak_bytes), s->seconds,
            s->samples_per_second, speed);
}

static int same_weights(const struct run_result *a, const struct run_result *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (a[i].n_weights != b[i].n_weights ||
            memcmp(a[i].weights, b[i].weights, a[i].n_weights * sizeof *a[i].weights) != 0)
            return 0;
    return 1;
}

/* What the table shows, in words: each level against plain FP32. */
static void print_against(FILE *out, const struct summary *plain, const struct summary *s) {
    const size_t activations = plain->runs->activation_peak_bytes;
    fprintf(out, "  %-4s %+6.2f points of accuracy, %.2f of the activations, %.2f of the parameters%s\n",
            s->runs->label, s->accuracy - plain->accuracy,
            (double)s->runs->activation_peak_bytes / (double)activations,
            (double)s->runs->param_bytes / (double)plain->runs->param_bytes,
            s->n == plain->n && same_weights(s->runs, plain->runs, s->n) ? "; the same weights bit for bit" : "");
}

void report_table(FILE *out, const struct run_result *results, size_t n) {
    const double o0 = speed_of_o0(results, n);
    struct summary plain = { .n = 0 };
    size_t group;
    int skipped = 0, against = 0;
    if (n == 0) return;
    fprintf(out, "level  accuracy in %%        loss  steps skipped    scale   params  masters gradients activations "
                 "  time   samples  speed\n"
                 "       mean  range                                         bytes    bytes      peak        peak "
                 "     s      each s   x O0\n");
    for (size_t i = 0; i < n; i += group) {
        struct summary s = summarize(results + i, group = report_group(results + i, n - i));
        print_row(out, &s, o0);
        skipped += s.skipped > 0.0;
        if (strcmp(s.runs->label, "FP32") == 0) plain = s;
    }
    fprintf(out, "Means of %zu seed%s", report_group(results, n), report_group(results, n) == 1 ? "" : "s");
    fprintf(out, results->device == MT_CPU ? "." : " on %s.", mt_device_name(results->device));
    if (skipped)
        fprintf(out,
                " Skipped: the gradients overflowed, the loss scale was halved, no step was taken.\n"
                "Samples each s and speed count those of skipped steps too, whose forward and backward were run.");
    fprintf(out, "\n");
    for (size_t i = 0; i < n && plain.n > 0; i += group) {
        const struct summary s = summarize(results + i, group = report_group(results + i, n - i));
        if (s.runs == plain.runs) continue;
        if (!against++) fprintf(out, "Against FP32:\n");
        print_against(out, &plain, &s);
    }
}

/* ---- results.json ---- */

static void print_number(FILE *out, const char *key, double value) {
    if (isfinite(value)) fprintf(out, ", \"%s\": %.9g", key, value);
    else fprintf(out, ", \"%s\": null", key);
}

void report_json(FILE *out, const struct run_result *results, size_t n, int sweep) {
    fprintf(out, "[");
    for (size_t i = 0; i < n; i++) {
        const struct run_result *r = &results[i];
        fprintf(out, "%s\n  {\"level\": \"%s\", \"low_dtype\": \"%s\", \"seed\": %llu", i ? "," : "", r->label,
                r->low_dtype, (unsigned long long)r->seed);
        if (sweep) {
            print_number(out, "batch", r->batch);
            print_number(out, "lr", r->lr);
        }
        fprintf(out, ", \"device\": \"%s\"", r->device == MT_CPU ? "cpu" : "cuda");
        print_number(out, "test_accuracy", r->test_accuracy);
        print_number(out, "train_loss", r->train_loss);
        print_number(out, "steps", r->steps);
        print_number(out, "skipped", r->skipped);
        print_number(out, "loss_scale", r->loss_scale);
        print_number(out, "param_bytes", (double)r->param_bytes);
        print_number(out, "master_bytes", (double)r->master_bytes);
        print_number(out, "grad_bytes", (double)r->grad_bytes);
        print_number(out, "activation_peak_bytes", (double)r->activation_peak_bytes);
        print_number(out, "seconds", r->seconds);
        print_number(out, "samples_per_second", r->samples_per_second);
        fprintf(out, "}");
    }
    fprintf(out, "\n]\n");
}

/* ---- ops ---- */

static const char *class_name(amp_class op_class) {
    static const char *const names[] = { "by list", "lower", "fp32", "promote", "sequence", "banned", "leave" };
    return op_class >= 0 && op_class <= AMP_LEAVE ? names[op_class] : "?";
}

static const char *dtype_name(amp_dtype dtype) {
    static const char *const names[] = { "-", "fp32", "fp16", "bf16", "fp64" };
    return dtype >= 0 && dtype <= AMP_FLOAT64 ? names[dtype] : "?";
}

static void print_explanation(FILE *out, amp_context *context) {
    size_t length = 0;
    char *text = NULL;
    if (amp_explain(context, NULL, NULL, 0, &length) == AMP_OK) text = malloc(length + 1);
    if (text && amp_explain(context, NULL, text, length + 1, NULL) == AMP_OK) fprintf(out, "%s\n", text);
    free(text);
}

void report_ops(FILE *out, const char *label, amp_context *context) {
    size_t n = 0;
    amp_op_stats *stats;
    if (amp_get_op_stats(context, NULL, 0, &n) != AMP_OK) return;
    stats = calloc(n + 1, sizeof *stats);
    if (!stats) return;
    stats[0] = (amp_op_stats)AMP_OP_STATS_INIT;
    fprintf(out, "---- %s ----\n", label);
    print_explanation(out, context);
    if (amp_get_op_stats(context, stats, n, &n) == AMP_OK) {
        fprintf(out, "op               class     type     calls   passed    casts cache hits    gated\n");
        for (size_t i = 0; i < n; i++)
            fprintf(out, "%-16s %-9s %-4s %9llu %8llu %8llu %10llu %8llu%s\n", stats[i].name,
                    class_name(stats[i].op_class), dtype_name(stats[i].last_target),
                    (unsigned long long)stats[i].calls, (unsigned long long)stats[i].passed,
                    (unsigned long long)stats[i].casts, (unsigned long long)stats[i].cache_hits,
                    (unsigned long long)stats[i].gated, stats[i].wrapped ? "" : "  not wrapped");
    }
    fprintf(out, "\n");
    free(stats);
}
