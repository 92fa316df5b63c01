/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What minitape keeps for backward, in 8, 4 or 2 bits: a saver for its tape that packs by amp_pack. Any tape that can
 * keep something else in place of a tensor can do the same.
 */
#ifndef PACKING_H
#define PACKING_H

#include "minitape.h"

#include <amp_pack.h>

struct packing {
    int bits;
    uint64_t seed;         /* of the rounding; what is packed next has the next one */
    amp_context *context;  /* whose ledger counts it (amp_memory); NULL: nobody's */
    struct packed *alive;  /* what nodes keep now */
};

/* Every thread's tape packs from now on, until packing_end. `packing` stays where it is until nothing is alive. */
void packing_begin(struct packing *packing, int bits, uint64_t seed, amp_context *context);
void packing_end(void);

#endif
