/* SPDX-License-Identifier: Apache-2.0 */
/* The program: duet trains the common problem, with libamp or without. Shared by the tests. */
#ifndef PAIRS_TRAINER_H
#define PAIRS_TRAINER_H

#include "adapter.h"
#include "problem.h"

#include "test.h"
#include <stdlib.h>
#include <string.h>

#define ck_ok(call)                                                                                                    \
    do {                                                                                                               \
        const amp_status status_ = (call);                                                                             \
        ck_assert_msg(status_ == AMP_OK, "%s: %s", amp_status_name(status_), amp_last_error());                        \
    } while (0)

struct trainer {
    network *net;
    struct adapter adapter;
    float x[SAMPLES * INPUTS], truth[SAMPLES];
};

void trainer_new(struct trainer *trainer); /* at the starting values */
void trainer_free(struct trainer *trainer);
/* The config of a level; the static scale of the problem where the level scales. */
amp_config trainer_config(amp_level level);
void trainer_start(struct trainer *trainer, amp_config config, unsigned options);
/* One batch through forward, backward and update; the loss. In the bracket if libamp was started. */
float trainer_step(struct trainer *trainer, int step);
void trainer_feed(struct trainer *trainer, int step);
void trainer_update(struct trainer *trainer, int step);
/* A whole training: start, STEPS steps, stop. */
void trainer_run(amp_config config, unsigned options, struct curve *curve);

void ck_same_floats(const float *a, const float *b, int n, const char *what);
/* Losses and parameters, bit for bit but for the sign of zeros. */
void ck_same_curves(const struct curve *a, const struct curve *b);

#endif
