/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For hosts with several ranks, and for those whose parameters are in a device's memory: what their hooks and flags
 * owe. The functions are amp.h's. docs/guide/gpus.md leads through a host on a device; amp_device.h has lists of
 * tensors there.
 */
#ifndef AMP_RANKS_H
#define AMP_RANKS_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

/*
 * amp_host.reduce combines `n` values over the ranks of a distributed host, in place, the same result on every rank.
 * Called once by every amp_scale_loss_end and amp_scale_loss_cancel of a bracket without AMP_DELAY_UNSCALE, with
 * AMP_REDUCE_MAX, whatever happened on the rank: an overflow, an error or a cancel on one makes all of them skip.
 * Called once by every amp_clip_grad_norm of an optimizer with AMP_OPTIMIZER_SHARDED, with AMP_REDUCE_SUM. Every rank
 * must make these calls in the same order. Without the hook each rank decides alone.
 *
 * amp_host.reduce_on_device: the same for floats in a device's memory, with AMP_REDUCE_MAX: what combines them is put
 * on `stream`, the host's current one there, and nothing waits. None of them is infinite or NaN. Where the loss scalers
 * live on a device (docs/guide/gpus.md) it is called in the place of `reduce`: the ranks decide there, no host waits
 * for a decision, and a bracket can be captured in a graph. A cancelled bracket does wait, for the other ranks' word.
 * Experimental, as is a context whose parameters are on several GPUs: no machine with several has run either, and
 * amp_initialize warns once of it.
 * amp_nccl_reduce (amp_nccl.h) is one over NCCL. AMP_ERR_MISSING_HOOK of amp_initialize: the scalers live on the host
 * (parameters in several memories), or an optimizer has AMP_OPTIMIZER_SHARDED, and there is no `reduce`.
 *
 * amp_host.has_ranks: are there other ranks to ask now? 0: neither is called, and what ends is decided here. Asked
 * where they would be called, and by begin; every rank must answer alike. Without it: yes, where there is one of them.
 *
 * AMP_OPTIMIZER_SHARDED: each rank's optimizer lists a part of the parameters only; amp_clip_grad_norm adds the ranks'
 * squared norms up, by the hook reduce. Not where every rank has the whole averaged gradient: its norm is the whole one
 * already.
 */

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

/*
 * amp_host.current_stream: the stream (cudaStream_t) on which the host works on `device` on this thread now: all that
 * libamp does there is put on it, so that it comes after what the host has started and before what it starts next. Not
 * NULL, CUDA's legacy default stream. Needed where parameters are in a device's memory.
 *
 * amp_host.scale_by: loss * *factor as `scale` does, with the factor in the memory of the loss's device, to be read in
 * the order of its stream. Without it a bracket whose scale lives on a device waits for the scale.
 *
 * AMP_OPTIMIZER_SKIPS_ON_DEVICE: the host's step reads on the device whether to update: amp_step_info.found_inf, in the
 * memory of the parameters' device (as torch's fused optimizers take found_inf). Then no one waits for the bracket's
 * decision.
 */

#ifdef __cplusplus
}
#endif

#endif /* AMP_RANKS_H */
