/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The code that a call runs: implementations of an op for 16-bit and FP32 arguments, and the gate, which runs calls in
 * FP32 if 16 bits would be slower.
 */
#ifndef AMP_GATE_H
#define AMP_GATE_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Implementations --------------------------------------------------------------------------------------------- */

/*
 * An implementation is a function with the type of the op. The wrapper calls it instead of the original, by the type of
 * the floating arguments of the call after casts. The original runs if a call has several floating types or FP64, has
 * no Tensor or buffer argument (and visit emits only KEEP, seeds or NULL), is not under the policy
 * (amp_op_stats.passed), or if a cast failed. Ops with AMP_OP_DIRECT use no implementation.
 *
 *   fp16, bf16  runs if all handles have that type, at any level and class; or if the op has raw buffers, the class
 *               AMP_LOWER, and it is the 16-bit type of the level: then it gets copies (docs/reference/buffers.md).
 *   fp32        runs if all handles and raw buffers are FP32, at any level and class: at O0 and in other calls without
 *               casts; for AMP_LOWER, if the gate chose FP32, or the op has raw buffers and no 16-bit implementation;
 *               for AMP_FP32, after its casts; for AMP_PROMOTE, if FP32 is the widest type. With emulate it gets the
 *               rounded values. A context with fp32 equals a program with that function in the slot, bit for bit at O0.
 *               Leave it NULL to have the bits of the host at O0.
 */

/* AMP_OP_MATMUL: the op is a matrix product by amp_matmul, or by code of the host that gains as much from 16 bits, so
 * the gate uses its measurements of amp_matmul. If the FP32 function of the op is slower than amp_matmul, give the op
 * an fp32 that uses amp_matmul, or leave the flag out. */

/* ---- The gate ---------------------------------------------------------------------------------------------------- */

/*
 * The gate runs a call of an op of class AMP_LOWER in FP32 if the 16-bit type, with its casts, is not at least 1.05
 * times as fast. It affects only calls with FP32 in all floating arguments, which the op then gets without casts: at O1
 * and O4. (At O2, O3 and O5 values are 16-bit before any op runs; emulate rounds in any case.) amp_config.gate:
 *
 *   AMP_DEFAULT  the gate chooses between the implementations of an op: fp32, or the original without one, and that for
 *                the 16-bit type. Types do not depend on the machine: an op on handles returns the 16-bit type (its
 *                FP32 result is cast), an op on raw buffers writes FP32, and amp_op_target ignores the gate. Values do:
 *                the inputs of such a call are not rounded. Ops of unknown speed run in 16 bits.
 *   AMP_ON       the gate chooses the type, also for ops without implementations and for amp_cast_args; a call in FP32
 *                returns FP32. amp_op_target, which knows no sizes, gives AMP_DTYPE_DEFAULT for FP32 arguments of an op
 *                that never runs in 16 bits here. Ops of unknown speed run in FP32.
 *   AMP_OFF      the gate is off.
 *
 * Each op has one number, the least size of a call that runs in 16 bits: that of amp_gate_set, else, with
 * AMP_OP_MATMUL, that of amp_gate_measure, else, with AMP_OP_MATMUL, that of a table for the instruction set and
 * backend in use at amp_initialize (docs/guide/gate.md), else the speed is unknown. Except for amp_gate_set this
 * concerns CPUs only. On an NVIDIA GPU calls run in 16 bits, except for ops with AMP_OP_MATMUL on a GPU without tensor
 * cores for the type. Such calls, and those with a dimension that is no multiple of 8 (slower on tensor cores), are
 * counted in amp_op_stats, and amp_explain gives advice. On other devices the gate has no effect.
 *
 * The size of a call with AMP_OP_MATMUL is the edge of a square product with as many multiplications per element of its
 * matrices: 3 / (1/m + 1/n + 1/k), rounded down. m, n and k come from the shapes of handles (matmul, linear,
 * convolution), or from the two largest raw buffers that are read and the largest that is written. The size of other
 * calls is the number of floating elements in their arguments, or 0 if unknown.
 *
 * amp_op_stats.gated counts the calls that the gate ran in FP32, and amp_explain shows its choice. Checkpoints do not
 * include it, since it depends on the machine.
 */
#define AMP_GATE_ALWAYS UINT64_C(0)  /* a least size: always 16 bits */
#define AMP_GATE_NEVER UINT64_MAX    /* a least size: always FP32 */

/* A row of the table: products of one kind, by one code with one kind of instructions, in one 16-bit type. */
typedef struct amp_gate_row {
    uint32_t struct_size;
    amp_dtype dtype;  /* AMP_FLOAT16 or AMP_BFLOAT16 */
    const char *who;  /* code that multiplies: "onednn" or "built-in" (amp_matmul), or "torch" (PyTorch on CPUs) */
    const char *kind; /* "matmul", "conv" or "attention" */
    const char *unit; /* instructions, as oneDNN or libamp names them ("": conversion to FP32) */
    uint64_t least;   /* edge from which 16 bits are faster, AMP_GATE_ALWAYS or AMP_GATE_NEVER */
} amp_gate_row;

#define AMP_GATE_ROW_INIT AMP_SIZED_(amp_gate_row)

/* Copies the table to `rows`, for hosts that multiply by themselves. Strings are static. capacity and count: as in
 * amp_master_params. */
AMP_API AMP_MUST_CHECK amp_status amp_get_gate_rows(amp_gate_row *rows, size_t capacity, size_t *count);

/* Sets the least size of an op: calls of size `least` or more run in 16 bits, whatever libamp measures. `op`: "name"
 * for all ops of that name, or "name#index" for one. No effect on ops outside of the gate. May be called on any thread;
 * calls that have begun keep their type. AMP_ERR_NOT_FOUND: no op has that name. */
AMP_API AMP_MUST_CHECK amp_status amp_gate_set(amp_context *context, const char *op, uint64_t least);

/* A clock of the caller, since libamp reads none: monotonic time in any unit. self: the argument of
 * amp_gate_measure. */
typedef uint64_t (*amp_clock)(void *self);

/*
 * Times amp_matmul on this thread, in FP32 and in the 16-bit type of the level with casts, and sets the least size of
 * all ops with AMP_OP_MATMUL that amp_gate_set has not set: the least edge from which every timed edge is faster in 16
 * bits. It takes tens of milliseconds, or half a second without fast kernels. For each edge of 256, 128, 64, 32 and 16
 * it reads the clock around seven products of each type, in turns, and compares medians. With a clock that stands still
 * FP32 always wins, with one that goes back the result is random. Returns AMP_OK at once if the gate has no effect in
 * this context. AMP_ERR_NO_MEMORY: no change. Only one thread at a time may be in this function.
 */
AMP_API AMP_MUST_CHECK amp_status amp_gate_measure(amp_context *context, amp_clock clock, void *self);

#ifdef __cplusplus
}
#endif

#endif /* AMP_GATE_H */
