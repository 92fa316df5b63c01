/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which code a call runs: an op's own implementations for 16-bit and FP32 arguments, and the gate, which keeps calls in
 * FP32 that would be slower in 16 bits.
 */
#ifndef AMP_GATE_H
#define AMP_GATE_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Implementations --------------------------------------------------------------------------------------------- */

/*
 * Implementations: functions of the op's own type that the wrapper calls instead of the original, decided call by call
 * by the type of the floating arguments once the policy is through with them. A call of more than one floating type,
 * one in FP64, one that libamp passes on unseen (amp_op_stats.passed), one whose casts failed, and one that works on
 * nothing (no Tensor or buffer argument, and visit emits nothing but what is KEEP, a seed or not there) take the
 * original. AMP_OP_DIRECT: none is called.
 *
 *   fp16, bf16  all handles have that type, at any level and of any class; or the op has raw buffers, is of class
 *               AMP_LOWER, and that is the level's 16-bit type: it gets copies (docs/reference/buffers.md).
 *   fp32        all handles and raw buffers are FP32, at any level and of any class: calls at O0 and others that no
 *               class casts; of AMP_LOWER, those that the gate holds back, and raw buffers without an implementation
 *               for the low type; of AMP_FP32, after the casts; AMP_PROMOTE, if FP32 is the widest. Under emulate it
 *               computes what the original would, on the rounded FP32 values. So a context with fp32 is the program
 *               whose slot held fp32 from the start, and at O0 it is bit-equal to that one. Leave it NULL where O0
 *               shall be the host's own bits.
 */

/* AMP_OP_MATMUL: what the op computes is amp_matmul's work in either type, or the host's own code that gains as much
 * from 16 bits: what is known of amp_matmul holds for it. In FP32 that is `fp32`, or the original without one: where
 * that is slower than amp_matmul, give the op an fp32 by amp_matmul, or leave the flag out. */

/* ---- The gate ---------------------------------------------------------------------------------------------------- */

/*
 * Low precision is not faster on every machine, nor at every size. The gate runs a call of an op of class AMP_LOWER in
 * FP32 where the 16-bit type is not at least 1.05 times as fast, its casts included. It takes nothing but a narrowing
 * back: it looks only at calls whose floating arguments are all FP32 as they come, and then the op gets them untouched.
 * A call with a 16-bit argument keeps the policy's type. So there is work for it at O1 and O4 alone: at O2, O3 and O5
 * the values are 16-bit before any op runs, at O0 nothing is lowered, and emulate is about values and not about speed.
 * amp_config.gate says:
 *
 *   AMP_DEFAULT  the gate chooses between the implementations that an op carries: fp32, or else the original, and fp16
 *                or bf16, for the level's type. No type depends on the machine: an op of handles returns the 16-bit
 *                type all the same (its FP32 result is cast), one of raw buffers writes FP32 as ever, and amp_op_target
 *                answers alike everywhere. Values do: they were not rounded on the way in. What nothing is known of
 *                runs low.
 *   AMP_ON       the gate chooses the type: also of ops without an implementation, and of amp_cast_args. A call in FP32
 *                returns FP32. amp_op_target, which knows no sizes, answers AMP_DTYPE_DEFAULT for FP32 arguments of an
 *                op that runs low at no size here, and else the 16-bit type. What nothing is known of runs in FP32.
 *   AMP_OFF      never: the policy's type always.
 *
 * Each op has one number, the least size of a call that runs low, decided once. It is, in this order: what amp_gate_set
 * said; with AMP_OP_MATMUL what amp_gate_measure found, else what libamp's table knows of amp_matmul on the instruction
 * set and the backend that are in use at amp_initialize (docs/guide/gate.md has it); else nothing is known. All but
 * amp_gate_set speak of CPUs. Calls on an NVIDIA GPU keep the policy's type, but where amp_gate_set has said nothing
 * and the GPU has no tensor cores for it: there ops with AMP_OP_MATMUL run in FP32. Such calls, and those with a
 * dimension that is no multiple of 8, which tensor cores multiply more slowly, are counted (amp_op_stats), and
 * amp_explain says what to do. Calls on other devices keep the policy's type.
 *
 * The size of a call with AMP_OP_MATMUL is the edge of the square product that does as many multiplications for each
 * element of its matrices: 3 / (1/m + 1/n + 1/k), rounded down. The shapes of handles tell m, n and k (matmul, linear,
 * convolution), those of raw buffers too: the two largest that are read and the largest that is written. The size of
 * other calls is the number of floating elements in their arguments. What cannot be seen has size 0.
 *
 * amp_op_stats.gated counts the calls that ran in FP32 for the gate's sake, and amp_explain has the decision.
 * Checkpoints do not have it: it belongs to the machine.
 */
#define AMP_GATE_ALWAYS UINT64_C(0)  /* least size: the 16-bit type always */
#define AMP_GATE_NEVER UINT64_MAX    /* least size: FP32 always */

/* The host's decision on an op of the context, "name" for all of that name or "name#index" for one: calls of size
 * `least` and more run low. Over whatever libamp knows, or will measure. For ops that the gate does not look at it is
 * kept and not used. Any thread; calls that have begun keep their type. AMP_ERR_NOT_FOUND: no op of that name. */
AMP_API AMP_MUST_CHECK amp_status amp_gate_set(amp_context *context, const char *op, uint64_t least);

/* The caller's clock, for libamp reads none: time in any unit that does not go back; `self` is passed through. */
typedef uint64_t (*amp_clock)(void *self);

/*
 * Times amp_matmul in the level's 16-bit type, casts included, against FP32, on this thread, and decides all ops of the
 * context with AMP_OP_MATMUL that amp_gate_set has not: the least size is the least edge from which on every edge that
 * was timed wins. Takes some tens of milliseconds, where there are no fast kernels half a second. The edges are 256,
 * 128, 64, 32 and 16; for each seven times: the clock is asked, FP32 multiplies, the clock is asked twice, the 16-bit
 * type multiplies, the clock is asked; medians are compared. A clock that stands still lets nothing win; what one that
 * goes back lets win is chance. Nothing is timed, and AMP_OK, where the gate has nothing to do. AMP_ERR_NO_MEMORY:
 * nothing was decided. Not while another thread is in the same function.
 */
AMP_API AMP_MUST_CHECK amp_status amp_gate_measure(amp_context *context, amp_clock clock, void *self);

#ifdef __cplusplus
}
#endif

#endif /* AMP_GATE_H */
