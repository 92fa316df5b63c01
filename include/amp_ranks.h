/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules for the hooks and flags of hosts with several ranks or with parameters in device memory. The functions are in
 * amp.h. docs/guide/gpus.md explains a host on a device; amp_device.h has kernels for lists of tensors there.
 */
#ifndef AMP_RANKS_H
#define AMP_RANKS_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

/*
 * amp_host.reduce reduces `n` values over the ranks, in place, with the same result on every rank. Each end and cancel
 * of a bracket without AMP_DELAY_UNSCALE calls it once, with AMP_REDUCE_MAX, whatever happened on the rank: after an
 * overflow, an error or a cancel on one rank all ranks skip. Each amp_clip_grad_norm of an optimizer with
 * AMP_OPTIMIZER_SHARDED calls it once, with AMP_REDUCE_SUM. Every rank must make these calls in the same order. Without
 * the hook each rank decides alone.
 *
 * amp_host.reduce_on_device does the same for floats in device memory, with AMP_REDUCE_MAX: it enqueues the reduction
 * on `stream`, the current stream of the host there, and does not wait. No value is infinite or NaN. If the loss
 * scalers are on a device (docs/guide/gpus.md), it is called instead of `reduce`: the ranks decide on their devices, no
 * host waits, and a bracket can be captured in a graph. A cancelled bracket waits for the other ranks. amp_nccl_reduce
 * (amp_nccl.h) implements it with NCCL. AMP_ERR_MISSING_HOOK from amp_initialize: the scalers are on the host
 * (parameters in several memories), or an optimizer has AMP_OPTIMIZER_SHARDED, and there is no `reduce`.
 * Experimental, as is a context with parameters on several GPUs: neither has run on a machine with several, and
 * amp_initialize warns once.
 *
 * amp_host.has_ranks returns 0 if there are no other ranks now: then neither hook is called, and each rank decides
 * alone. begin, end and cancel call it; every rank must return the same. Without it: 1, if one of the two hooks is
 * there.
 *
 * AMP_OPTIMIZER_SHARDED: the optimizer of each rank has a part of the parameters; amp_clip_grad_norm adds the squared
 * norms of the ranks by the hook reduce. Do not set it if every rank has the whole averaged gradient.
 */

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

/*
 * amp_host.current_stream writes the stream (cudaStream_t) that the host uses on `device` on this thread. libamp
 * enqueues all its work there on it, between the work that the host has started and the work that it starts next. NULL
 * (the legacy default stream of CUDA) is refused. Needed if parameters are in device memory.
 *
 * amp_host.scale_by computes loss * *factor like `scale`, with the factor in memory of the device of the loss, read in
 * stream order. Without it a bracket with its scale on a device waits for the scale.
 *
 * AMP_OPTIMIZER_SKIPS_ON_DEVICE: the step of the host reads amp_step_info.found_inf in device memory and updates if it
 * is 0, as the fused optimizers of torch do. The host then never waits for the decision. The number is not 0 if a
 * bracket since the last step of this optimizer found an overflow, or a rank gave up. The work of amp_step_end sets it
 * to 0: read it on the current stream in between, also in a captured graph, where each replay reads the number anew.
 */

#ifdef __cplusplus
}
#endif

#endif /* AMP_RANKS_H */
