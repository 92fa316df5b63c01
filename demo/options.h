/* SPDX-License-Identifier: Apache-2.0 */
/* The program's command line. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "run.h"

#define OPTIONS_ONE_MORE(...) +1
enum { OPTIONS_LEVELS = 1 AMP_LEVEL_MAP(OPTIONS_ONE_MORE) }; /* FP32 and each of libamp's */

/* 0, AMP_DEFAULT: not given, so that the level's own value holds. */
struct options {
    const char *labels[OPTIONS_LEVELS]; /* "FP32" and the names of levels */
    amp_level levels[OPTIONS_LEVELS];   /* 0 for FP32 */
    int n_levels;
    int epochs, batch, seed, seeds, optimizer;
    double lr, loss_multiplier;
    double loss_scale, init_scale, max_scale;
    int keep_batchnorm_fp32, master_weights; /* amp_switch */
    int activations;
    mt_device device;
    int ops, json, quiet, sweep, survey, help, gate, host_kernels, fp32_kernels;
    const char *output, *data;
};

/* 0; or -1 after saying on stderr what is wrong, with the list of options. */
int options_parse(struct options *options, int argc, char **argv);
void options_print_help(void);

/* The run that the options describe, for one of the levels and one of the seeds. */
struct run_setup options_setup(const struct options *options, int level, int seed);

#endif
