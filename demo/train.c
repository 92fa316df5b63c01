/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train: a residual network on handwritten digits, in plain FP32 and under each opt level of libamp; one table of what
 * each of them cost and gained. run.c has the training, adapter.c the wiring.
 */
#include "options.h"
#include "progress.h"
#include "report.h"

#include <amp_diagnostics.h>
#include <amp_kernels.h>
#include <amp_observe.h>
#include <minitape_cuda.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the sweep: batch sizes x rates x ways of training, the ResNet-50 experiments' main table in small ---- */

#define SWEEP_BATCHES 3
#define SWEEP_RATES 3
#define SWEEP_WAYS 5
#define SWEEP_RUNS (SWEEP_BATCHES * SWEEP_RATES * SWEEP_WAYS)
#define COLLAPSED 50.0 /* percent; a guess reaches ten, plain FP32 97 and more */

static const int batches[SWEEP_BATCHES] = { 16, 64, 128 };
static const double rates[SWEEP_RATES] = { 0.05, 0.4, 3.2 };

/* half: a half model with FP32 batch norm and nothing else, as programs had it before there were tools. */
static const struct way {
    const char *label;
    amp_level level;
    amp_switch master_weights;
    float loss_scale;
} ways[SWEEP_WAYS] = {
    { "FP32", 0, AMP_DEFAULT, 0.0F },  { "half", AMP_O2, AMP_OFF, 1.0F },     { "O1", AMP_O1, AMP_DEFAULT, 0.0F },
    { "O2", AMP_O2, AMP_DEFAULT, 0.0F }, { "O3", AMP_O3, AMP_DEFAULT, 0.0F },
};

/* The n-th run, 0 to SWEEP_RUNS - 1. Ways vary fastest, then rates, then batches. A sweep goes on where training
 * fails: skips may go on for ever. */
static struct run_setup sweep_setup(const struct options *options, int n) {
    const struct way *way = &ways[n % SWEEP_WAYS];
    struct run_setup setup = options_setup(options, 0, 0);
    setup.label = way->label;
    setup.batch = batches[n / (SWEEP_WAYS * SWEEP_RATES)];
    setup.lr = rates[n / SWEEP_WAYS % SWEEP_RATES];
    setup.config.level = way->level;
    setup.config.master_weights = way->master_weights;
    setup.config.loss_scale = way->loss_scale;
    setup.config.max_skips = AMP_NEVER;
    return setup;
}

static void print_cell(FILE *out, const struct run_result *result) {
    if (!isfinite(result->train_loss)) fprintf(out, "     NaN ");
    else fprintf(out, " %7.2f%c", result->test_accuracy, result->test_accuracy < COLLAPSED ? '*' : ' ');
}

/* Test accuracies of all runs, in the order of their numbers; NaN and collapse are marked. */
static void sweep_table(FILE *out, const struct run_result results[SWEEP_RUNS]) {
    fprintf(out, "batch   rate");
    for (int way = 0; way < SWEEP_WAYS; way++) fprintf(out, " %7s ", ways[way].label);
    fprintf(out, "\n");
    for (int n = 0; n < SWEEP_RUNS; n++) {
        if (n % SWEEP_WAYS == 0) fprintf(out, "%5d %6g", results[n].batch, results[n].lr);
        print_cell(out, &results[n]);
        if (n % SWEEP_WAYS == SWEEP_WAYS - 1) fprintf(out, "\n");
    }
    fprintf(out, "Test accuracy in percent, one seed. NaN: the loss of the last epoch is not finite. *: under %g %%, "
                 "collapsed or\nhardly begun. half: O2 without master weights and without loss scaling, the manual "
                 "way.\n", COLLAPSED);
}

/* ---- the program ---- */

struct program {
    struct options options;
    struct progress progress;
    struct digits *data;
    struct run_result *results;
    size_t n_results;
    FILE *text; /* where tables go */
    /* The run that is going on, and what was said of its level. */
    const struct run_setup *setup;
    int first_of_level, said_skip, said_growth;
    char message[1024]; /* the last one that may come again */
};

static int complain(const struct program *program, const char *where, const char *why) {
    progress_clear(&program->progress);
    fprintf(stderr, "train: %s%s%s\n", where, *where ? ": " : "", why);
    return 1;
}

/* ---- looking on ---- */

static void on_epoch(void *self, int done, int epochs) {
    const struct program *program = self;
    char label[64];
    snprintf(label, sizeof label, "%s seed %llu, epoch %d of %d", program->setup->label,
             (unsigned long long)program->setup->seed, done, epochs);
    progress_bar(&program->progress, (double)done / epochs, label);
}

static int is_new_text(struct program *program, const char *text) {
    if (strcmp(text, program->message) == 0) return 0;
    snprintf(program->message, sizeof program->message, "%s", text);
    return 1;
}

/* The first skip of a level is explained and the table counts the rest; the first growth of a scale is told; what comes
 * with every run is told once, and with --ops alone if it is merely logged. */
static int is_worth_telling(struct program *program, const amp_event *event) {
    switch (event->kind) {
    case AMP_EVENT_SKIP: return program->said_skip++ == 0;
    case AMP_EVENT_SCALE_CHANGE: return event->scale_after > event->scale_before && program->said_growth++ == 0;
    case AMP_EVENT_LOG: return program->options.ops && is_new_text(program, event->message);
    case AMP_EVENT_WARNING: return is_new_text(program, event->message);
    case AMP_EVENT_BRACKET: return 0; /* one for each step, without words */
    default: return 1;
    }
}

static void on_event(void *self, const amp_event *event) {
    struct program *program = self;
    if (!is_worth_telling(program, event)) return;
    progress_say(&program->progress, "%s: %s%s", program->setup->label, event->message,
                 event->kind == AMP_EVENT_SKIP ? " (the first skip; the table counts them all)" : "");
}

static void print_survey(const struct program *program, amp_context *context) {
    amp_survey_result survey = AMP_SURVEY_RESULT_INIT;
    progress_clear(&program->progress);
    if (amp_survey(context, &survey) == AMP_OK) fputs(survey.text, program->text);
    else complain(program, "survey", amp_last_error());
}

static void on_trained(void *self, amp_context *context) {
    const struct program *program = self;
    if (program->options.survey) print_survey(program, context);
    if (!program->options.ops || !program->first_of_level) return;
    progress_clear(&program->progress);
    report_ops(program->text, program->setup->label, context);
}

/* ---- the runs ---- */

static int n_runs(const struct program *program) {
    return program->options.sweep ? SWEEP_RUNS : program->options.n_levels * program->options.seeds;
}

static struct run_setup setup_of(const struct program *program, int n) {
    const struct options *options = &program->options;
    return options->sweep ? sweep_setup(options, n)
                          : options_setup(options, n / options->seeds, n % options->seeds);
}

static void say_done(struct program *program, const struct run_result *result) {
    char skipped[32] = "";
    if (result->skipped) snprintf(skipped, sizeof skipped, ", %d skipped", result->skipped);
    progress_run_done(&program->progress, "%-4s batch %d rate %g seed %llu: %.2f %%, loss %.4f, %d steps%s, %.1f s",
                      result->label, result->batch, result->lr, (unsigned long long)result->seed,
                      result->test_accuracy, result->train_loss, result->steps, skipped, result->seconds);
}

/* A level that libamp refuses is refused before hours are spent on the others. */
static int check_all(struct program *program) {
    char error[1024];
    for (int n = 0; n < n_runs(program); n++) {
        const struct run_setup setup = setup_of(program, n);
        if (run_check(&setup, error, sizeof error) != 0) return complain(program, setup.label, error);
    }
    return 0;
}

static int run_all(struct program *program) {
    const struct run_watch watch = { program, on_epoch, on_event, on_trained };
    const char *label = NULL;
    for (int n = 0; n < n_runs(program); n++) {
        const struct run_setup setup = setup_of(program, n);
        struct run_result *result = &program->results[n];
        program->setup = &setup;
        program->first_of_level = setup.label != label;
        if (program->first_of_level) program->said_skip = program->said_growth = 0;
        label = setup.label;
        program->n_results++;
        if (run_training(&setup, program->data, &watch, result) != 0)
            return complain(program, setup.label, result->error);
        say_done(program, result);
    }
    progress_clear(&program->progress);
    return 0;
}

/* ---- the files ---- */

static int write_json(FILE *out, const struct program *program) {
    report_json(out, program->results, program->n_results, program->options.sweep);
    return 0;
}

static int write_curves(FILE *out, const struct program *program) {
    return curves_write(out, program->results, program->n_results);
}

/* Whole or not at all: written beside its place, then moved there. */
static int write_file(const struct program *program, const char *name,
                      int (*write)(FILE *out, const struct program *program)) {
    char path[4096], temporary[4096 + 16];
    FILE *out;
    int status;
    if (snprintf(path, sizeof path, "%s/%s", program->options.output, name) >= (int)sizeof path)
        return complain(program, name, "the path is too long");
    snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid());
    out = fopen(temporary, "w");
    if (!out) return complain(program, temporary, strerror(errno));
    status = write(out, program);
    if (ferror(out)) status = -1;
    if (fclose(out) != 0) status = -1;
    if (status == 0 && rename(temporary, path) == 0) return 0;
    complain(program, path, "cannot be written");
    remove(temporary);
    return 1;
}

/* One word for all levels, or the first run of which libamp has something to say: events told what. */
static void print_health(const struct program *program) {
    const struct run_result *shown = NULL;
    for (size_t i = 0; i < program->n_results; i++) {
        const struct run_result *result = &program->results[i];
        if (*result->health && (!shown || strcmp(shown->health, "sound") == 0)) shown = result;
    }
    if (!shown) return;
    if (strcmp(shown->health, "sound") == 0) fprintf(program->text, "Wiring: sound\n");
    else fprintf(program->text, "Wiring: %s: %s\n", shown->label, shown->health);
}

static int write_files(const struct program *program) {
    const int sweep = program->options.sweep;
    if (write_file(program, "results.json", write_json) != 0) return 1;
    if (!sweep && write_file(program, "curves.svg", write_curves) != 0) return 1;
    fprintf(program->text, "Results: %s/results.json", program->options.output);
    if (!sweep) fprintf(program->text, "  Curves: %s/curves.svg", program->options.output);
    fprintf(program->text, "\n");
    print_health(program);
    return 0;
}

/* ---- from beginning to end ---- */

/* The framework's part of a GPU, and libamp's: without either there is nothing to train on. */
static int open_device(struct program *program) {
    if (program->options.device == MT_CPU) return 0;
    if (mt_cuda_open() != 0) return complain(program, "--device cuda", mt_error());
    if (amp_backend_load("cuda") != AMP_OK) return complain(program, "--device cuda", amp_last_error());
    return 0;
}

static int prepare(struct program *program) {
    const struct options *options = &program->options;
    char error[256];
    if (mkdir(options->output, 0777) != 0 && errno != EEXIST)
        return complain(program, options->output, strerror(errno));
    if (access(options->output, W_OK | X_OK) != 0) return complain(program, options->output, strerror(errno));
    program->data = digits_load(options->data, error, sizeof error);
    if (!program->data) return complain(program, "", error);
    program->results = calloc((size_t)n_runs(program), sizeof *program->results);
    if (!program->results) return complain(program, "results", "out of memory");
    program->text = options->json ? stderr : stdout;
    return check_all(program);
}

static int print_results(const struct program *program) {
    const struct options *options = &program->options;
    if (options->survey) return 0; /* it was said */
    if (options->json) write_json(stdout, program);
    else if (options->sweep) sweep_table(stdout, program->results);
    else report_table(stdout, program->results, program->n_results);
    return fflush(stdout) == 0 ? 0 : complain(program, "stdout", strerror(errno));
}

int main(int argc, char **argv) {
    struct program program = { .n_results = 0 };
    int status;
    if (options_parse(&program.options, argc, argv) != 0) return 2;
    if (program.options.help) {
        options_print_help();
        return 0;
    }
    progress_start(&program.progress, program.options.quiet, n_runs(&program));
    if (open_device(&program) != 0) return 2;
    status = prepare(&program);
    if (status == 0) status = run_all(&program);
    if (status == 0) status = print_results(&program);
    if (status == 0 && !program.options.survey) status = write_files(&program);
    for (size_t i = 0; i < program.n_results; i++) run_result_done(&program.results[i]);
    free(program.results);
    free(program.data);
    return status;
}
