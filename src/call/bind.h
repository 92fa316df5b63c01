/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes the arguments of calls: the only place that does. */
#ifndef AMP_BIND_H
#define AMP_BIND_H

#include "context/bound.h"
#include "context/op.h"

/* A wrapped call: asks the host for the types of its handles and, after them, for the handles inside its structs. */
amp_status amp__bind(struct amp__bound *bound, const struct amp__op *op, const struct amp__call *call);
/* The same where the types are known, by argument, or do not matter: no hook is called, and no operand noted. */
void amp__bind_typed(struct amp__bound *bound, const struct amp__call *call, const uint8_t *types);
void amp__bind_untyped(struct amp__bound *bound, const struct amp__call *call);

/* A direct call's tensors; or NULL, where there are only their types. */
struct amp__given {
    void **tensors;
    const amp_dtype *dtypes; /* NULL: read from `host` */
    const amp_host *host;
    size_t n;
};
/* Binds handles by a schema, which may be NULL: a list takes those that the other arguments leave. Others are inputs,
 * with `lists` in a list. */
void amp__bind_given(struct amp__bound *bound, const struct amp__schema *schema, bool lists,
                     const struct amp__given *given);

/* After amp__bind: is there anything to compute with, an operand, a buffer, or a field that the host's visit emits? */
amp_status amp__bound_has_work(const struct amp__bound *bound, const struct amp__op *op, bool *found);

/* ---- the quick way, where the set of the operands' types is enough (amp__op_types.alone) ---- */

enum { AMP__HANDLE_TYPES = AMP_DTYPE_OTHER + 1 };

/* The types of a call's operands, 0 for an argument that is none, and their set; SIZE_MAX: the table has no place for
 * it. */
static inline size_t amp__bind_types(const struct amp__op *op, const struct amp__call *call, uint8_t *types) {
    size_t set = 0;
    for (uint32_t i = 0; i < op->schema->n_args; i++) {
        const struct amp__arg *arg = &op->schema->args[i];
        void *tensor = arg->kind == AMP__TENSOR && amp__may_cast(arg->flags) ? amp__call_pointer(call, i) : NULL;
        types[i] = AMP_DTYPE_DEFAULT;
        if (!tensor) continue;
        const amp_dtype dtype = amp__host_dtype(op->host, tensor);
        if (dtype < 0 || dtype >= AMP__HANDLE_TYPES) return SIZE_MAX;
        types[i] = (uint8_t)dtype;
        set |= (size_t)1 << dtype;
    }
    return set;
}

#endif
