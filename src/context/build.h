/* SPDX-License-Identifier: Apache-2.0 */
/* From the descriptors of the caller to a context, for initialize.c, before anything is visible. */
#ifndef AMP_BUILD_H
#define AMP_BUILD_H

#include "amp_raw.h"
#include "context/op.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/policy.h"

/* The structs for schemas of the caller, in the memory of the caller, during initialize only. */
struct amp__struct_table {
    const amp_struct *structs;
    size_t n;
};

/* ---- ops.c ---- */

/* Copies and checks `n` descriptors; `*out` has `n` entries, to be ended with amp__ops_destroy. */
amp_status amp__ops_build(amp_context *context, const amp_op *ops, size_t n, const amp_host *host,
                          struct amp__struct_table structs, const char *what, struct amp__op **out);
void amp__ops_destroy(struct amp__op *ops, size_t n);
/* Is a slot described twice? At every level, also where nothing will be wrapped. */
amp_status amp__ops_check_slots(struct amp__op *ops, size_t n, const char *what);
/* One descriptor outside an array (forward). */
amp_status amp__op_build(amp_context *context, const amp_op *op, const amp_host *host,
                         struct amp__struct_table structs, const char *what, struct amp__op *out);
void amp__op_clear(struct amp__op *op); /* what a built op owns */
/* Gives every op of a model its class. Names that match nothing are suggested for in a warning. */
amp_status amp__ops_classify(amp_context *context, struct amp__op *ops, const amp_op *descriptors, size_t n);
/* Must the slot hold a wrapper at this level? */
bool amp__op_needs_wrapper(const struct amp__op *op);
/* O1 and O4 on a host with FP32 only but logical types: an op with 16-bit arguments returns 16 bits. */
static inline bool amp__op_may_round(const struct amp__op *op) {
    const struct amp__properties *properties = &amp__policy_of(op->context)->properties;
    return properties->emulate && properties->patch_ops && op->host->dtype && op->schema && op->schema->n_tensors;
}
/* Does the class cast at all? */
static inline bool amp__class_casts(amp_class op_class) {
    return op_class == AMP_LOWER || op_class == AMP_FP32 || op_class == AMP_PROMOTE || op_class == AMP_PROMOTE_SEQUENCE;
}

/* ---- named.c ---- */

/* AMP-M76: parameters of a model, from this index on, that a checkpoint could not distinguish. */
void amp__params_check_names(amp_context *context, size_t first, size_t model);

/* ---- collect.c ---- */

/* Adds a model's parameters, and an optimizer's; fills optimizer->params. */
amp_status amp__collect_model(amp_context *context, const amp_model *model, const amp_host *host, size_t model_index);
amp_status amp__collect_optimizer(amp_context *context, struct amp__optimizer *optimizer,
                                  const amp_optimizer *given, size_t optimizer_index);
/* Finds handles on one storage (ties) and blocks that overlap (an error). Between models and optimizers. */
amp_status amp__collect_ties(amp_context *context);

/* More parameters for an optimizer of a running context, re-typed and mastered as at initialize. optimizer->params has
 * room for them. After an error: amp__collect_undo. */
amp_status amp__collect_late(amp_context *context, struct amp__optimizer *optimizer, const amp_param *params, size_t n);
/* Removes the additions of amp__collect_late since these counts. */
void amp__collect_undo(amp_context *context, struct amp__optimizer *optimizer, size_t context_params,
                       size_t optimizer_params);

/* Re-types parameters for the level and makes masters, all or nothing if the host takes everything back. */
amp_status amp__retype_all(amp_context *context);
/* Returns `status`, and adds to the last error the parameters from `first` on that could not be restored. */
amp_status amp__params_tell_left(const amp_context *context, size_t first, amp_status status);
void amp__retype_commit(amp_context *context);

#endif
