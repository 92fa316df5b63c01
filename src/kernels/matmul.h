/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of amp_matmul: matmul.c checks and multiplies, matmul_choice.c asks a backend, matmul_finish.c ends it. */
#ifndef AMP_KERNELS_MATMUL_H
#define AMP_KERNELS_MATMUL_H

#include "amp_kernels.h"
#include "common/common.h"
#include "kernels/backend.h"

#include <stdbool.h>

/* The first release's amp_matmul_args. */
#define AMP__MATMUL_OLDEST offsetof(amp_matmul_args, batch)

/* d = activation(alpha * sums + beta * c + bias) for a block: see amp__backend_host.finish. */
void amp__matmul_finish(const amp_matmul_args *g, float *sums, size_t ld, size_t i0, size_t rows, size_t j0,
                        size_t cols);

/* Reads and checks the caller's arguments; *g gets every ld, and batch at least 1. */
amp_status amp__matmul_read(amp_matmul_args *g, const amp_matmul_args *args);

/* How many threads are worth their waking for *g. */
int32_t amp__matmul_threads(const amp_matmul_args *g);

/* Product i of a batch, alone. */
amp_matmul_args amp__matmul_item(const amp_matmul_args *g, int64_t i);

/* Computes *g by a backend, if one is wanted. True: done, or failed, as *status says. False: the built-in code is to do
 * it, and nothing was written. g is as amp__matmul_read leaves it, m and n not 0. */
bool amp__matmul_offload(const amp_matmul_args *g, amp_status *status);

/* amp_matmul for operands on a device: *g is as amp__matmul_read leaves it. explained NULL: the work is started on
 * g->stream, else how it would be done is added there. */
amp_status amp__device_matmul(const amp_matmul_args *g, amp__text *explained);

/* 1 if GPU `id` multiplies this type by tensor cores, 0 if not, -1 if that is not known; *capability: 10 * major +
 * minor, where it is known. Loads the backend. */
int32_t amp__device_tensor_cores(int32_t id, amp_dtype type, int32_t *capability);

/* AMP_MATMUL_BACKEND's value, as AMP_MATMUL_*. False: it is none, NULL and "" among it, and *backend is AUTO. */
bool amp__matmul_read_backend(const char *name, int32_t *backend);

/* Reports the implementation of large products of this type, "onednn" or "built-in", and its unit: the backend's name
 * for the instructions ("": conversion to fp32, NULL: unknown), or the instruction set of libamp. Static. May load a
 * backend. */
void amp__matmul_unit(amp_dtype type, const char **who, const char **unit);

#endif
