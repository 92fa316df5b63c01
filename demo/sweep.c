/* SPDX-License-Identifier: Apache-2.0 */
#include "sweep.h"

#include <math.h>

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

/* Ways vary fastest, then rates, then batches. A sweep looks on where training fails: skips may go on for ever. */
struct run_setup sweep_setup(const struct options *options, int n) {
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

void sweep_table(FILE *out, const struct run_result results[SWEEP_RUNS]) {
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
