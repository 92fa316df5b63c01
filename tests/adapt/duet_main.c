/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a small network of duet, with a level through the adapter that amp-adapt wrote, and prints its cost. */
#include "duet.h"

#include <amp.h>

#include <stdio.h>
#include <stdlib.h>

amp_status pairs_start(struct layer *layers, size_t n_layers);
amp_status pairs_begin(void);
amp_status pairs_end(void);
amp_status pairs_stop(void);
void pairs_health(void);

enum { BATCH = 16, IN = 16, CLASSES = 4 };

static float uniform(void) {
    static unsigned state = 3;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 16777216.0f - 0.5f;
}

/* Every fourth value of a sample stands out, from its class on. */
static void fill(float *in, float *truth) {
    for (int i = 0; i < BATCH * IN; i++) {
        truth[i / IN] = (float)(i / IN % CLASSES);
        in[i] = 2 * uniform() + (float)(i % CLASSES == i / IN % CLASSES);
    }
}

static void check(amp_status status) {
    if (status == AMP_OK) return;
    fprintf(stderr, "%s: %s\n", amp_status_name(status), amp_last_error());
    exit(1);
}

int main(void) {
    static float in[BATCH * IN], truth[BATCH];
    const int adapted = getenv("ADAPTER_LEVEL") != NULL;
    network *net = duet_new(BATCH, 1024, 24);
    duet_add_linear(net, IN, 24), duet_add_norm(net), duet_add_relu(net), duet_add_linear(net, 24, CLASSES);
    duet_add_cost(net);
    for (int i = 0; i < net->n_params; i++) net->params[i] += 0.4f * uniform();
    net->input = in, net->truth = truth;
    if (adapted) check(pairs_start(net->layers, (size_t)net->n));
    for (int step = 0; step < 60; step++) {
        fill(in, truth);
        if (adapted) check(pairs_begin());
        duet_forward(net);
        duet_backward(net);
        if (adapted) check(pairs_end());
        duet_update(net, (duet_args){ step, 0.05f / BATCH, 0.9f });
    }
    printf("cost %.9f\n", (double)duet_cost(net));
    fflush(stdout);
    if (adapted) pairs_health();
    if (adapted) check(pairs_stop());
    duet_free(net);
    return 0;
}
