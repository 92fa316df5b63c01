/* SPDX-License-Identifier: Apache-2.0 */
/* TAP of several ranks: what one of them finds wrong is wrong; rank 0 prints. And a model of raw buffers. */
#ifndef TESTS_MPI_RANKS_H
#define TESTS_MPI_RANKS_H

#include <amp_mpi.h>
#include <amp_raw.h>

#include <stdbool.h>

/* This process, of so many. */
extern int rank, size;

/* All ranks call it; a failed one says so on standard error. */
void ok(bool good, const char *what);
/* Ends the test program: the plan, and its exit status. */
int done(void);

enum { BUFFERS = 4 };
extern const int sizes[BUFFERS];

/* Four parameters, "a" to "d", with gradients; the same values on all ranks. */
struct net {
    float data[BUFFERS][64], grads[BUFFERS][64];
    amp_buffer params[BUFFERS], gradients[BUFFERS];
    void *handles[BUFFERS];
    amp_param described[BUFFERS];
    amp_host host;
    amp_model model;
    amp_mpi *mpi;
};

void net_open(struct net *net, MPI_Comm comm);
/* And one optimizer for all of them, under libamp. `alone`: no rank asks the others. */
bool net_initialize(struct net *net, amp_optimizer *optimizer, const amp_config *config, bool alone);
void net_close(struct net *net);
void net_end(struct net *net); /* of net_initialize */

/* Has the last error these words? */
bool says(const struct net *net, const char *words);

#endif
