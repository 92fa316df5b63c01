/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks over MPI, header only: compiled with the host's mpicc (any MPI 3; C99 or C++11), while libamp knows no
 * MPI. amp_mpi_ranks.h has the ranks and their decisions, amp_mpi_params.h parameters that start and stay equal,
 * amp_mpi_average.h and amp_mpi_pass.h gradients that are averaged while backward runs, amp_mpi_shard.h optimizers of
 * which each rank has a part, and their checkpoints. All come with this header; docs/guide/several-machines.md has a
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
 * Ranks. All make the same calls in the same order. libamp's messages go over duplicates of the host's communicator:
 * they are never taken for the host's, and its own may come in between in any order.
 *
 * Errors. Not AMP_OK: amp_mpi_error has the words. AMP_ERR_BACKEND: MPI's error, or the others did not come within the
 * timeout: a rank is gone or hangs, and ranks are out of step: print the words, then MPI_Abort. Until then every call
 * returns the same, and closing frees nothing: MPI may still write to libamp's buffers, and to the parameters of an
 * amp_mpi_shard_gather that was given up, which the host has to leave where they are. Whatever else one
 * rank finds wrong in a call that all make, all of them return, the others with AMP_ERR_HOST_FAILED and who it was; but
 * for a pass of an average, which goes on: that rank alone has the error, and cancels its bracket.
 *
 * Memory of the CPU alone: for GPUs there is amp_nccl.h. Threads: an amp_mpi, with what was opened on it, is one
 * thread's at a time (MPI_THREAD_FUNNELED or more where the host has others).
 */
#ifndef AMP_MPI_H
#define AMP_MPI_H

#include "amp_mpi_average.h"
#include "amp_mpi_params.h"
#include "amp_mpi_pass.h"
#include "amp_mpi_ranks.h"
#include "amp_mpi_shard.h"

#endif /* AMP_MPI_H */
