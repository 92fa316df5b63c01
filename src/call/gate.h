/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate: which calls of a lowered op run in FP32 all the same, because 16 bits would be slower (amp.h, "The gate").
 * Each op has one number, the least size of a call that runs low. Deciding is a comparison; 0 needs not even that.
 */
#ifndef AMP_CALL_GATE_H
#define AMP_CALL_GATE_H

#include "amp_gate.h"
#include "context/bound.h"
#include "context/op.h"

/* The source of the number of an op. A later source replaces an earlier one, not vice versa. */
enum amp__gate_source { AMP__GATE_UNKNOWN, AMP__GATE_TABLE, AMP__GATE_MEASURED, AMP__GATE_SET };

/* The table of known speeds. */
const amp_gate_row *amp__gate_rows(size_t *n);
/* Initializes the gate of an op, and its known speed, after its class and raw mode. May load a backend. */
void amp__gate_init(struct amp__op *op);
/* A new number, unless a better source has given one. */
void amp__gate_set_least(struct amp__op *op, uint64_t least, enum amp__gate_source source);

/* Are products of this type known to be faster than FP32's, at any size? By a number that an op was given or measured,
 * else by the table, of the CPU. AMP_DEFAULT: nothing is known. */
amp_switch amp__gate_pays(const amp_context *context, amp_dtype low);

/* May calls of this op be held back? The one question where the answer is no. */
static inline bool amp__gate_is_open(const struct amp__op *op) {
    return !op->gate.applies || (!op->glance && atomic_load_explicit(&op->gate.least, memory_order_relaxed) == 0);
}
/* Where that is not the question, these are: */
static inline bool amp__may_be_gated(const struct amp__op *op, amp_dtype low, amp_dtype target,
                                     const struct amp__operands *operands) {
    return !amp__gate_is_open(op) && target == low && amp__operands_all_fp32(operands);
}
/* Returns true if this call is too small for the low type. Only for gated ops. */
bool amp__gate_holds(const struct amp__op *op, const struct amp__bound *bound);

/* ---- gate_device.c ---- */

/* m, n and k of a product, 0 where they are not known, on GPU `device`. */
struct amp__gate_product {
    double extents[3];
    int32_t device;
};
void amp__gate_count(struct amp__op *op, const struct amp__gate_product *product);
/* Has this GPU no tensor cores for the op's 16-bit type? No, where that is not known. */
bool amp__gate_lacks_cores(const struct amp__op *op, int32_t device);
/* Writes the counts and advice for amp_explain. */
void amp__gate_explain_device(const struct amp__op *op, amp__text *text);

/* "; gate: ..." for amp_explain, nothing where the gate does not look. */
void amp__gate_explain(const struct amp__op *op, amp__text *text);

/* The edge of the square product with as many multiplications for each element of its matrices, 0 for an empty one. */
uint64_t amp__gate_edge(double m, double n, double k);

#endif
