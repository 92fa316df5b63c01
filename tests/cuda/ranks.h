/* SPDX-License-Identifier: Apache-2.0 */
/* This program is two: each runs the same tests as one rank of two over its own fake device. */
#ifndef AMP_TESTS_CUDA_RANKS_H
#define AMP_TESTS_CUDA_RANKS_H

#include "device.h"
#include "fake_nccl.h"

#include <amp_nccl.h>

extern struct ranks {
    int rank;
    struct fake_nccl *nccl; /* NULL: it is not loaded */
} ranks;

/* Fixtures: loads NCCL, as a host has done that has a communicator; and as if it had never been. */
void ranks_begin(void);
void ranks_end(void);

/* Are these bytes the same on both ranks? */
void ranks_equal(const void *bytes, size_t n);
/* libamp's use of the communicator; it is there. */
amp_nccl *ranks_open(void);

#endif
