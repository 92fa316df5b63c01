/* SPDX-License-Identifier: Apache-2.0 */
#include "call/bind.h"
#include "context/visit.h"

#define INLINED static inline __attribute__((always_inline))

/* ---- one argument of a wrapped call ---- */

static void **find_handles(const struct amp__call *call, uint32_t i, uint16_t flags, size_t *n) {
    void **handles = amp__call_pointer(call, i);
    *n = !handles ? 0 : flags & AMP__LIST ? amp__call_list_length(call, i) : 1;
    return handles;
}

INLINED void forget_operands(struct amp__bound *bound) {
    bound->operands.n = bound->operands.tensors = 0;
    bound->operands.has_work = false;
}

/* A handle of the argument has this type. */
INLINED void note_operand(struct amp__bound *bound, const struct amp__bound_arg *arg, amp_dtype dtype) {
    bound->operands.tensors++;
    amp__operands_add(&bound->operands, amp__operand_of(arg, dtype));
}

/* The types of some handles: the host's, or `dtypes`. */
static void note_many(struct amp__bound *bound, const struct amp__bound_arg *arg, const amp_host *host,
                      const amp_dtype *dtypes) {
    for (size_t j = 0; j < arg->count; j++)
        if (dtypes || arg->handles[j])
            note_operand(bound, arg, dtypes ? dtypes[j] : amp__host_dtype(host, arg->handles[j]));
}

/* Notes the operands, and the type of the one that is no list. */
INLINED void note(struct amp__bound *bound, struct amp__bound_arg *arg, const amp_host *host, const amp_dtype *dtypes) {
    if (!amp__may_cast(arg->flags)) return;
    if (arg->count != 1) note_many(bound, arg, host, dtypes);
    else if (dtypes) note_operand(bound, arg, *dtypes);
    else if (*arg->handles) note_operand(bound, arg, arg->dtype = amp__host_dtype(host, *arg->handles));
}

/* `value`: where the argument is. */
INLINED void bind_tensor(struct amp__bound_arg *out, const struct amp__call *call, const struct amp__arg *arg,
                         uint32_t i, void *value, amp_dtype dtype) {
    out->name = arg->name;
    out->handles = value;
    out->count = 1;
    out->dtype = dtype;
    out->flags = arg->flags;
    out->index = (uint8_t)i;
    if (arg->flags & (AMP__LIST | AMP__OUT_PARAMETER)) out->handles = find_handles(call, i, arg->flags, &out->count);
}

/* False: it is NULL. */
INLINED bool bind_buffer(struct amp__bound_arg *out, const struct amp__call *call, const struct amp__arg *arg,
                         uint32_t i) {
    out->name = arg->name;
    out->buffer = amp__call_pointer(call, i);
    out->dtype = (amp_dtype)arg->dtype;
    out->flags = arg->flags;
    out->index = (uint8_t)i;
    return out->buffer != NULL;
}

/* ---- a direct call's tensors ---- */

/* Binds the next `n` of them, or the rest. */
INLINED void bind_given(struct amp__bound *bound, struct amp__bound_arg *out, const struct amp__given *given,
                        const struct amp__arg *arg, size_t n) {
    const size_t at = bound->n_given, left = given->n - at;
    out->name = arg->name;
    out->handles = given->tensors ? given->tensors + at : NULL;
    out->count = n < left ? n : left;
    out->dtype = AMP_DTYPE_DEFAULT;
    out->flags = arg->flags;
    bound->n_given += out->count;
    note(bound, out, given->host, given->dtypes ? given->dtypes + at : NULL);
}

/* Returns the number of handles for an argument: a list takes those that the other arguments leave. */
INLINED size_t takes(const struct amp__arg *arg, const struct amp__schema *schema, const struct amp__given *given) {
    const size_t others = schema->n_tensors - 1u;
    return !(arg->flags & AMP__LIST) ? 1 : given->n > others ? given->n - others : 0;
}

/* ---- a call ---- */

enum from { NOWHERE, TYPES, HOST, GIVEN }; /* where types come from */

/* Each caller has its own copy, without the unused parts. */
INLINED void bind_all(struct amp__bound *bound, const struct amp__schema *schema, const struct amp__call *call,
                      enum from from, const void *source) {
    const uint8_t *types = source;
    const amp_host *host = source;
    const struct amp__given *given = source;
    const struct amp__arg *arg = schema->args;
    void *const *const args = call ? call->args : NULL; /* not read again after each store of a byte */
    struct amp__bound_arg *tensor = bound->tensors, *buffer = tensor + schema->n_tensors;
    bound->call = call;
    bound->buffers = buffer;
    bound->has_buffers = false;
    for (uint32_t i = 0, n = schema->n_args; i < n; i++, arg++) {
        if (from == TYPES || from == HOST) bound->argv[i] = args[i];
        if (from == GIVEN) {
            if (arg->kind == AMP__TENSOR) bind_given(bound, tensor++, given, arg, takes(arg, schema, given));
        } else if (arg->kind == AMP__TENSOR) {
            if (arg->flags & (AMP__KEEP | AMP__SEED)) continue;
            bind_tensor(tensor, call, arg, i, args[i], from == TYPES ? (amp_dtype)types[i] : AMP_DTYPE_DEFAULT);
            if (from == HOST) note(bound, tensor, host, NULL);
            tensor++;
        } else if (arg->kind == AMP__BUFFER && bind_buffer(buffer, call, arg, i)) {
            bound->has_buffers |= !(arg->flags & (AMP__KEEP | AMP__SEED));
            buffer++;
        }
    }
    bound->n_tensors = (uint32_t)(tensor - bound->tensors);
    bound->n_buffers = (uint32_t)(buffer - bound->buffers);
}

void amp__bind_untyped(struct amp__bound *bound, const struct amp__call *call) {
    bind_all(bound, call->schema, call, NOWHERE, NULL);
}

void amp__bind_typed(struct amp__bound *bound, const struct amp__call *call, const uint8_t *types) {
    bind_all(bound, call->schema, call, TYPES, types);
}

void amp__bind_given(struct amp__bound *bound, const struct amp__schema *schema, bool lists,
                     const struct amp__given *given) {
    static const struct amp__schema none;
    static const struct amp__arg plain = { .name = "" }, in_list = { .name = "", .flags = AMP__LIST };
    bound->n_given = 0;
    forget_operands(bound);
    bind_all(bound, schema ? schema : &none, NULL, GIVEN, given);
    if (bound->n_given < given->n)
        bind_given(bound, &bound->tensors[bound->n_tensors++], given, lists ? &in_list : &plain, given->n);
}

/* ---- operands ---- */

/* Handles inside structs. */
struct finder {
    struct amp__operands *operands;
    const amp_host *host;
};

static amp_status note_field(void *self, const amp_field *field) {
    const struct finder *finder = self;
    if (!amp__is_work(field)) return AMP_OK;
    finder->operands->has_work = true;
    if (!field->tensor || field->role == AMP_ROLE_WRITE) return AMP_OK;
    finder->operands->tensors++;
    amp__operands_add(finder->operands, (struct amp__operand){ amp__host_dtype(finder->host, *field->tensor), false,
                                                               field->role == AMP_ROLE_UPDATE });
    return AMP_OK;
}

amp_status amp__bind(struct amp__bound *bound, const struct amp__op *op, const struct amp__call *call) {
    struct finder finder = { &bound->operands, op->host };
    forget_operands(bound);
    bind_all(bound, call->schema, call, HOST, op->host);
    return amp__looks_for_handles(op) ? amp__visit(op, call->args, note_field, &finder) : AMP_OK;
}

/* ---- work ---- */

static amp_status note_work(void *self, const amp_field *field) {
    *(bool *)self |= amp__is_work(field);
    return AMP_OK;
}

amp_status amp__bound_has_work(const struct amp__bound *bound, const struct amp__op *op, bool *found) {
    *found = bound->operands.tensors || bound->operands.has_work || bound->has_buffers;
    if (*found || !amp__visits(op) || amp__looks_for_handles(op)) return AMP_OK; /* all of it was seen */
    return amp__visit(op, bound->call->args, note_work, found);
}
