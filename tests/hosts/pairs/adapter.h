/* SPDX-License-Identifier: Apache-2.0 */
/* libamp for duet: every level of a framework of forward and backward pairs. Made to be copied. */
#ifndef PAIRS_ADAPTER_H
#define PAIRS_ADAPTER_H

#include "duet.h"

#include <amp.h>
#include <amp_raw.h>

enum {
    ADAPTER_REPLACE = 1, /* 16-bit matrix products instead of emulated layers: O1 and O4 */
    ADAPTER_INLINED = 2, /* the program updates by duet_update_inlined, not through the layers' pointers */
    ADAPTER_SEEDS = 4    /* the scale goes in where the cost layer's backward reads its loss gradient */
};

struct adapter {
    network *net;
    unsigned options;
    amp_host host;
    amp_struct structs[3];
    amp_buffer weights[2 * DUET_LAYERS], updates[2 * DUET_LAYERS];
    char names[2 * DUET_LAYERS][80];
    amp_param params[2 * DUET_LAYERS];
    void *trained[2 * DUET_LAYERS];
    amp_op ops[2 * DUET_LAYERS + 1], steps[DUET_LAYERS];
    duet_blas blas; /* the framework's table is const: this is the copy that is wired */
    amp_model model;
    amp_optimizer optimizer;
    amp_scaled_loss scaled;
    float scale; /* the cost layer's own */
};

/* Describes the network, whose layers are all there; libamp is not called yet. Both stay where they are until
 * adapter_stop. */
void adapter_init(struct adapter *adapter, network *net, unsigned options);
amp_status adapter_start(struct adapter *adapter, amp_config config);
/* Around forward and backward. */
amp_status adapter_begin(struct adapter *adapter);
amp_status adapter_end(struct adapter *adapter);
amp_status adapter_cancel(struct adapter *adapter);
amp_status adapter_stop(struct adapter *adapter);

#endif
