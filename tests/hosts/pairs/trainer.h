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
/* New and started. */
void trainer_open(struct trainer *trainer, amp_config config, unsigned options);
/* Forward and backward of a batch in a bracket; what it decided. */
amp_action trainer_bracket(struct trainer *trainer, int step);
/* Stops, if it was started, and frees; the parameters are as they are then (NULL: not wanted). */
void trainer_close(struct trainer *trainer, float *params);
/* The same as a host of the kit, with these options of the adapter. */
extern const struct kit_host trainer_host;
extern struct trainer trainer_of_kit;
extern unsigned trainer_options;
void trainer_read(const struct trainer *trainer, struct kit_state *state);
void trainer_write(struct trainer *trainer, const struct kit_state *state);

#endif
