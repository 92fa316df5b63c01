/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers of libamp's own: their steps, in the CPU's memory and on devices. */
#ifndef AMP_FUSED_H
#define AMP_FUSED_H

#include "context/optimizer.h"

/* ---- fused.c: optimizers of libamp's own ---- */

/* Moments for the parameters from `from` on, once their sizes are known. */
amp_status amp__fused_attach(struct amp__optimizer *optimizer, size_t from);
/* Which gradients may stay scaled until the step: after every change of the optimizers' lists. */
void amp__fused_mark(amp_context *context);
/* The same after the optimizer has grown, from its parameter `from` on. */
void amp__fused_mark_late(const struct amp__optimizer *optimizer, size_t from);
/* For a parameter without a gradient: its elements, if the step rounds them (an emulated one), else as they were. */
amp_status amp__fused_pass_over(struct amp__param *param, void **elements);

/* ---- fused_device.c: their parameters on a device ---- */

/* After the list of parameters has changed. */
amp_status amp__fused_device_attach(struct amp__optimizer *optimizer);
/* Find the tensors of the step, as far as the host can refuse them, and run the step. */
amp_status amp__fused_device_find(const struct amp__optimizer *optimizer);
amp_status amp__fused_device_step(const struct amp__optimizer *optimizer, const float *norm_of_all);
/* LAMB's norm of all gradients where they are in several memories: is it to be added up here? Then norm_of_all is it,
 * else NULL. */
bool amp__fused_adds_norms(const struct amp__optimizer *optimizer);
/* Adds the squares on devices, after find. Waits. */
amp_status amp__fused_device_squares(const struct amp__optimizer *optimizer, double *squares);
/* states[i].steps := the device's; and the way back. */
amp_status amp__fused_device_steps(const struct amp__optimizer *optimizer, bool to_device);

#endif
