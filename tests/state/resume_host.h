/* SPDX-License-Identifier: Apache-2.0 */
/* A training on minitape, with what a host's own checkpoint holds. Functions return 0, or -1 with a line on stderr. */
#ifndef TEST_RESUME_HOST_H
#define TEST_RESUME_HOST_H

#include "adapter.h"
#include "digits.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct run {
    struct digits *data;
    struct net net;
    mt_optimizer *optimizer;
    struct adapter adapter;
};

int run_open(struct run *run, const char *digits, bool adam, uint64_t seed);
int run_initialize(struct run *run, const amp_config *config);
/* `count` steps of a training whose first `first` steps are behind it: the images they see depend on that alone. */
int run_train(struct run *run, int first, int count);
int run_close(struct run *run);
float run_scale(struct run *run);
uint64_t run_skipped(struct run *run);

/* The host's checkpoint: the network's tensors, rounded as they are, and the optimizer's state. */
int run_save_host(const struct run *run, const char *path);
int run_load_host(struct run *run, const char *path);

/* Everything that training depends on, bit for bit: tensors as stored, masters, optimizer, scaler. */
int run_dump(struct run *run, const char *path);

#endif
