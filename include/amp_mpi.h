/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks over MPI. Header only: it is compiled with the mpicc of the host (any MPI 3, C99 or C++11), and libamp
 * itself does not depend on MPI. Parts, all included here: amp_mpi_ranks.h (ranks and their decisions),
 * amp_mpi_params.h (equal parameters at the start and later), amp_mpi_average.h and amp_mpi_pass.h (gradients averaged
 * during backward), amp_mpi_shard.h (sharded optimizers and their checkpoints). docs/guide/several-machines.md has a
 * whole program.
 *
 *     static amp_status reduce(void *self, amp_reduction reduction, double *values, size_t n) {
 *         return amp_mpi_reduce(((struct my_host *)self)->mpi, reduction, values, n);
 *     }
 *     host.reduce = reduce;
 *     amp_mpi_open(MPI_COMM_WORLD, &model, &mpi);                           the model is described, not initialized yet
 *     amp_mpi_broadcast(mpi);                                               all start with the parameters of rank 0
 *     amp_initialize(&model, &optimizer, AMP_O2);
 *     amp_mpi_check_settings(mpi, model.amp);                               one level and one scale everywhere
 *     amp_mpi_average_open(mpi, params, n, NULL, &average);
 *     for (...) {
 *         amp_scale_loss_begin(&optimizer, loss, &scaled);
 *         amp_mpi_average_begin(average);
 *         backward(scaled.loss);                            amp_mpi_ready(average, param) as each gradient is done
 *         if (amp_mpi_average_finish(average)) amp_scale_loss_cancel(&scaled);            every rank skips then
 *         else if (amp_scale_loss_end(&scaled)) ...
 *         ...
 *     }
 *     amp_mpi_check_equal(mpi);                                             or the first parameter and rank that differ
 *
 * Ranks. All ranks make the same calls in the same order. libamp sends its messages over duplicates of the
 * communicator, so that they never mix with those of the host, which may come between them in any order.
 *
 * Errors. amp_mpi_error returns the message for any status but AMP_OK. AMP_ERR_BACKEND: MPI failed, or other ranks did
 * not arrive within the timeout, since a rank has died or hangs. The ranks are then out of step: print the message and
 * call MPI_Abort. Until then every call returns the same error and nothing is freed on closing, since MPI may still
 * write to the buffers of libamp and to the parameters of an abandoned amp_mpi_shard_gather, which the host must not
 * free. If one rank finds another error in a call of all ranks, all return an error, the others AMP_ERR_HOST_FAILED
 * with the number of that rank. The exception is a pass of an average, which continues: only that rank returns the
 * error, and cancels its bracket.
 *
 * Memory. CPU memory only (GPUs: amp_nccl.h).
 *
 * Threads. One thread at a time may use an amp_mpi with everything opened on it (MPI_THREAD_FUNNELED or more if the
 * host has other threads).
 */
#ifndef AMP_MPI_H
#define AMP_MPI_H

#include "amp_mpi_average.h"
#include "amp_mpi_params.h"
#include "amp_mpi_pass.h"
#include "amp_mpi_ranks.h"
#include "amp_mpi_shard.h"

#endif /* AMP_MPI_H */
