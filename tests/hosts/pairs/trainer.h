/* SPDX-License-Identifier: Apache-2.0 */
/* The program: duet trains the common problem, with libamp or without. Shared by the tests. */
#ifndef PAIRS_TRAINER_H
#define PAIRS_TRAINER_H

#include "adapter.h"
#include "kit.h"

#include <stdlib.h>
#include <string.h>

struct trainer {
    network *net;
    struct adapter adapter;
    float x[SAMPLES * INPUTS], truth[SAMPLES];
};

void trainer_new(struct trainer *trainer); /* at the starting values */
void trainer_free(struct trainer *trainer);
void trainer_start(struct trainer *trainer, amp_config config, unsigned options);
/* One batch through forward, backward and update; the loss. In the bracket if libamp was started. */
float trainer_step(struct trainer *trainer, int step);
void trainer_feed(struct trainer *trainer, int step);
void trainer_update(struct trainer *trainer, int step);
/* A whole training: start, STEPS steps, stop. */
void trainer_run(amp_config config, unsigned options, struct curve *curve);

#endif
