/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of train_mpi. */
#ifndef RANKS_OPTIONS_H
#define RANKS_OPTIONS_H

#include <amp.h>

struct ranks_options {
    amp_level level;
    amp_dtype wire; /* of gradients */
    int steps;
    int sharded;              /* each rank updates a part */
    int overflow, kill, hang; /* at this step, on the last rank; -1: never */
    double timeout;           /* seconds */
    const char *save, *load;  /* or NULL */
    const char *data;         /* digits.csv.gz */
};

/* 0; or -1 after saying on stderr what is wrong. */
int ranks_options_parse(struct ranks_options *options, int argc, char **argv);

#endif
