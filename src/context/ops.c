/* SPDX-License-Identifier: Apache-2.0 */
/* Op descriptors: copied, checked, and given a class. */
#include "common/map.h"
#include "context/build.h"
#include "context/context.h"
#include "context/findings.h"
#include "context/op.h"
#include "context/probe.h"

#include <stdio.h>
#include <string.h>

/* ---- copying ---- */

static amp_status check_op(const amp_op *op, const char *what) {
    const uint32_t known = AMP_OP_DIRECT | AMP_OP_RETURN_BORROWED | AMP_OP_SEEDS | AMP_OP_COPY | AMP_OP_MATMUL |
                           AMP_OP_STATEFUL | AMP_OP_REGISTERED;
    AMP_RETURN_IF(!op->name || !op->name[0], AMP_ERR_INVALID_ARGUMENT, "%s has no name", what);
    AMP_RETURN_IF(strlen(op->name) > AMP__OP_NAME_MAX, AMP_ERR_INVALID_ARGUMENT,
                  "%s: its name is longer than %d characters", what, AMP__OP_NAME_MAX);
    AMP_RETURN_IF(op->op_class < AMP_BY_LIST || op->op_class > AMP_LEAVE, AMP_ERR_INVALID_ARGUMENT,
                  "%s (%s): op_class %d does not exist", what, op->name, (int)op->op_class);
    AMP_RETURN_IF(op->reserved, AMP_ERR_INVALID_ARGUMENT, "%s (%s): reserved is %d, not 0", what, op->name,
                  (int)op->reserved);
    AMP_RETURN_IF(op->flags & ~known, AMP_ERR_INVALID_ARGUMENT, "%s (%s): unknown flags 0x%x", what, op->name,
                  (unsigned)op->flags);
    const bool direct = (op->flags & AMP_OP_DIRECT) != 0;
    AMP_RETURN_IF((uintptr_t)op->slot % _Alignof(amp_fn), AMP_ERR_INVALID_ARGUMENT,
                  "%s (%s): the slot %p is not aligned as a function pointer", what, op->name, (void *)op->slot);
    AMP_RETURN_IF(direct && op->slot, AMP_ERR_CONFLICT, "%s (%s) has a slot and the flag AMP_OP_DIRECT: choose one",
                  what, op->name);
    AMP_RETURN_IF(direct && (op->flags & AMP_OP_SEEDS), AMP_ERR_CONFLICT,
                  "%s (%s) has the flags AMP_OP_DIRECT and AMP_OP_SEEDS: only a wrapped op's seed can be scaled; "
                  "multiply it with amp_seed_factor(&scaled) instead", what, op->name);
    AMP_RETURN_IF(direct && (op->flags & AMP_OP_COPY), AMP_ERR_CONFLICT,
                  "%s (%s) has the flags AMP_OP_DIRECT and AMP_OP_COPY: choose one", what, op->name);
    AMP_RETURN_IF(!direct && !op->slot, AMP_ERR_INVALID_ARGUMENT,
                  "%s (%s): slot is NULL: give the address of the function pointer, or set AMP_OP_DIRECT if the host "
                  "calls amp_cast_args around the function", what, op->name);
    AMP_RETURN_IF(!direct && !op->schema, AMP_ERR_SCHEMA,
                  "%s (%s): schema is NULL: a wrapped op must say its arguments", what, op->name);
    return AMP_OK;
}

/* Of floating types that are not FP32: then no call is one in FP32. */
static bool has_other_buffers(const struct amp__schema *schema) {
    for (uint32_t i = 0; i < schema->n_args; i++)
        if (schema->args[i].kind == AMP__BUFFER && schema->args[i].dtype != AMP_FLOAT32 &&
            !(schema->args[i].flags & AMP__KEEP))
            return true;
    return false;
}

amp_status amp__op_build(amp_context *context, const amp_op *given, const amp_host *host,
                         struct amp__struct_table structs, const char *what, struct amp__op *out) {
    amp_op op;
    const amp_status copied = amp__copy_struct(&op, sizeof op, sizeof(amp_op), given, given->struct_size, "amp_op");
    if (copied != AMP_OK) return amp__fail_prefix(copied, "%s", what);
    AMP_TRY(check_op(&op, what));
    out->context = context;
    out->host = host;
    out->flags = op.flags;
    out->op_class = op.op_class;
    out->reason = "";
    out->slot = op.slot;
    out->functions.fp16 = op.fp16;
    out->functions.bf16 = op.bf16;
    out->on_failure = op.on_failure;
    out->on_skip = op.on_skip;
    out->name = amp__strdup(op.name);
    if (!out->name) return amp__fail_memory();
    if (!op.schema) return AMP_OK;
    const amp_status parsed = amp__schema_parse(out->name, op.schema, structs.structs, structs.n, &out->schema);
    if (parsed != AMP_OK) return amp__fail_prefix(parsed, "%s", what);
    if (!has_other_buffers(out->schema)) out->functions.fp32 = op.fp32;
    return AMP_OK;
}

void amp__op_clear(struct amp__op *op) {
    amp__free(op->name);
    amp__map_free(&op->probed);
    amp__free(op->comparisons);
    amp__schema_release(op->schema);
}

void amp__ops_destroy(struct amp__op *ops, size_t n) {
    for (size_t i = 0; ops && i < n; i++) amp__op_clear(&ops[i]);
    amp__free(ops);
}

/* The caller's array has the stride of its first element's struct_size. */
static const amp_op *nth(const amp_op *ops, size_t i) {
    return (const amp_op *)(const void *)((const char *)ops + i * ops->struct_size);
}

static const char *name_of(const void *op) { return ((const struct amp__op *)op)->name; }

/* The count goes on from the last op of that name. */
static amp_status number(struct amp__map *last, struct amp__op *op) {
    const struct amp__op *before = amp__map_get_name(last, op->name, name_of);
    if (before) op->index = before->index + 1;
    return amp__map_put_name(last, op->name, op, name_of);
}

amp_status amp__ops_check_slots(struct amp__op *ops, size_t n, const char *what) {
    struct amp__map seen = { 0 };
    amp_status status = AMP_OK;
    for (size_t i = 0; i < n && status == AMP_OK; i++) {
        const uintptr_t slot = (uintptr_t)ops[i].slot;
        const struct amp__op *other = slot ? amp__map_get(&seen, slot) : NULL;
        if (other)
            status = amp__fail(AMP_ERR_CONFLICT, "%s: entries %td (%s) and %zu (%s) are the same slot (%p)", what,
                               other - ops, other->name, i, ops[i].name, (void *)ops[i].slot);
        else if (slot) status = amp__map_put(&seen, slot, &ops[i]);
    }
    amp__map_free(&seen);
    return status;
}

amp_status amp__ops_build(amp_context *context, const amp_op *ops, size_t n, const amp_host *host,
                          struct amp__struct_table structs, const char *what, struct amp__op **out) {
    AMP_RETURN_IF(n && !ops, AMP_ERR_INVALID_ARGUMENT, "%s is NULL, but its number of entries is %zu", what, n);
    AMP_RETURN_IF(n > 1000000, AMP_ERR_INVALID_ARGUMENT, "%s has %zu entries, which are too many", what, n);
    struct amp__op *built = amp__alloc(n, sizeof *built);
    struct amp__map last = { 0 };
    if (!built) return amp__fail_memory();
    amp_status status = AMP_OK;
    for (size_t i = 0; i < n && status == AMP_OK; i++) {
        char label[96];
        snprintf(label, sizeof label, "%s[%zu]", what, i);
        if (nth(ops, i)->struct_size != ops->struct_size)
            status = amp__fail(AMP_ERR_ABI_MISMATCH, "%s.struct_size is %u, but %s[0].struct_size is %u: all elements "
                               "of an array have one size", label, (unsigned)nth(ops, i)->struct_size, what,
                               (unsigned)ops->struct_size);
        else status = amp__op_build(context, nth(ops, i), host, structs, label, &built[i]);
        if (status == AMP_OK) status = number(&last, &built[i]);
    }
    amp__map_free(&last);
    if (status != AMP_OK) {
        amp__ops_destroy(built, n);
        return status;
    }
    *out = built;
    return AMP_OK;
}

/* ---- classes ---- */

static amp_class class_by_name(const amp_context *context, const char *name) {
    char base[AMP__OP_NAME_MAX + 1];
    amp__op_base_name(name, base);
    return amp__list_class(context->policy.properties.lists, context->policy.properties.low, base);
}

static amp_class class_by_aliases(const amp_context *context, const char *aliases) {
    while (aliases && *aliases) {
        char alias[AMP__OP_NAME_MAX + 1];
        const size_t blanks = strspn(aliases, " ,"), length = strcspn(aliases + blanks, " ,");
        aliases += blanks;
        if (length && length <= AMP__OP_NAME_MAX) {
            memcpy(alias, aliases, length);
            alias[length] = '\0';
            const amp_class found = class_by_name(context, alias);
            if (found != AMP_BY_LIST) return found;
        }
        aliases += length;
    }
    return AMP_BY_LIST;
}

/* Returns its class at levels that cast ops. */
static amp_class class_of(const amp_context *context, const struct amp__op *op, const char *aliases,
                          const char **reason) {
    if (op->op_class != AMP_BY_LIST) {
        *reason = op->flags & AMP_OP_REGISTERED ? "registered" : "said by its descriptor";
        return op->op_class;
    }
    amp_class found = class_by_name(context, op->name);
    *reason = "listed by name";
    if (found != AMP_BY_LIST) return found;
    found = class_by_aliases(context, aliases);
    *reason = "listed by an alias";
    if (found != AMP_BY_LIST) return found;
    *reason = "in no list: runs as it comes";
    return AMP_LEAVE;
}

/* Returns the reason why the op runs low in a 16-bit model with FP32 blocks as parameters. NULL: it does not. */
static const char *why_low(const struct amp__op *op) {
    const struct amp__properties *properties = &op->context->policy.properties;
    if (amp__emulates_model(properties)) return "emulated: every op of the model is rounded";
    if (!amp__keeps_block(properties, op->host) || amp__op_takes_handles(op)) return NULL;
    if (amp__op_low(op)) return "a 16-bit model: by its implementation";
    return op->listed == AMP_LOWER ? "a 16-bit model" : NULL;
}

static void classify_one(amp_context *context, struct amp__op *op, const char *aliases) {
    op->listed = class_of(context, op, aliases, &op->reason);
    op->is_product = op->flags & AMP_OP_MATMUL || class_by_name(context, op->name) == AMP_LOWER ||
                     class_by_aliases(context, aliases) == AMP_LOWER;
    const char *why = why_low(op);
    if (why && op->op_class == AMP_LEAVE)
        op->reason = op->flags & AMP_OP_REGISTERED ? "registered" : "said by its descriptor";
    else if (why) op->op_class = AMP_LOWER, op->reason = why;
    if (why) return;
    if (!context->policy.properties.patch_ops) {
        op->op_class = AMP_LEAVE;
        op->reason = "this level casts no ops";
        return;
    }
    op->op_class = op->listed;
}

/* A class of its own, registered or in the descriptor, wins over the forward's. */
static amp_status inherit(const struct amp__map *first, const struct amp__op *end, struct amp__op *op,
                          const amp_op *descriptor) {
    const struct amp__op *forward = amp__map_get_name(first, descriptor->backward_of, name_of);
    op->is_backward = true;
    if (forward == op) /* it has that name itself: another one is meant */
        do forward++;
        while (forward < end && strcmp(forward->name, op->name) != 0);
    AMP_RETURN_IF(!forward || forward == end, AMP_ERR_NOT_FOUND,
                  "op %s: backward_of names %s, which is no op of this model", op->name, descriptor->backward_of);
    op->forward = forward;
    if (op->listed == AMP_LEAVE && descriptor->op_class == AMP_BY_LIST) op->listed = forward->listed;
    op->is_product |= forward->is_product;
    const bool unsaid = op->op_class == AMP_LEAVE || amp__emulates_model(&op->context->policy.properties);
    if (unsaid && descriptor->op_class == AMP_BY_LIST && op->op_class != forward->op_class) {
        op->op_class = forward->op_class;
        op->reason = forward->op_class == AMP_LEAVE ? "backward of an op that is left" : "backward of a listed op";
    }
    return AMP_OK;
}

static amp_status inherit_all(struct amp__op *ops, const amp_op *descriptors, size_t n) {
    struct amp__map first = { 0 };
    amp_status status = AMP_OK;
    size_t n_backward = 0;
    for (size_t i = 0; i < n; i++) n_backward += nth(descriptors, i)->backward_of != NULL;
    for (size_t i = n; n_backward && i-- && status == AMP_OK;)
        status = amp__map_put_name(&first, ops[i].name, &ops[i], name_of);
    for (size_t i = 0; n_backward && i < n && status == AMP_OK; i++)
        if (nth(descriptors, i)->backward_of) status = inherit(&first, ops + n, &ops[i], nth(descriptors, i));
    amp__map_free(&first);
    return status;
}

/* Warns about a table without any known name, nearly always a mistake, with similar names. */
static void warn_if_nothing_matches(amp_context *context, const struct amp__op *ops, size_t n) {
    size_t classed = 0, n_names, shown = 0;
    for (size_t i = 0; i < n; i++) classed += ops[i].op_class != AMP_LEAVE || (ops[i].flags & AMP_OP_REGISTERED);
    if (!n || classed || !context->policy.properties.patch_ops) return;
    const char *const *names = amp__list_names(context->policy.properties.lists, &n_names);
    char data[512] = "";
    amp__text text = { data, sizeof data, 0 };
    for (size_t i = 0; i < n && shown < 4; i++) {
        char near[128] = "", base[AMP__OP_NAME_MAX + 1];
        amp__text nearest = { near, sizeof near, 0 };
        amp__op_base_name(ops[i].name, base);
        amp__nearest_names(&nearest, base, names, n_names);
        if (near[0]) amp__text_add(&text, "%s%s = %s", shown++ ? "; " : " (did you mean ", ops[i].name, near);
    }
    amp__find(context, AMP__NOTHING_LISTED, "", "level %s: 0 of %zu ops got a class from the %s lists, so nothing is "
              "cast%s%s", amp__level_name(context->policy.properties.level), n,
              amp__lists_name(context->policy.properties.lists), data, shown ? "?)" : "");
}

/* With a loss scale that is always 1 a seed needs nothing; an empty slot will see no call. */
static void find_seeds(amp_context *context, struct amp__op *op) {
    const struct amp__scaler_settings *scaler = &context->policy.properties.scaler;
    bool declared = (op->flags & AMP_OP_SEEDS) != 0;
    for (uint32_t i = 0; op->schema && i < op->schema->n_args; i++)
        declared |= op->schema->args[i].kind == AMP__BUFFER && (op->schema->args[i].flags & AMP__SEED);
    op->seeds = declared && op->slot && *op->slot && (scaler->dynamic || scaler->init_scale != 1.0f);
    context->policy.seeds |= op->seeds;
}

amp_status amp__ops_classify(amp_context *context, struct amp__op *ops, const amp_op *descriptors, size_t n) {
    for (size_t i = 0; i < n; i++) {
        classify_one(context, &ops[i], nth(descriptors, i)->aliases);
        find_seeds(context, &ops[i]);
    }
    AMP_TRY(inherit_all(ops, descriptors, n));
    warn_if_nothing_matches(context, ops, n);
    return AMP_OK;
}

void amp__op_put_probe(struct amp__op *op, enum amp__probe_slot slot, const struct amp__probe *probe) {
    atomic_store_explicit(&op->probes[slot], probe, memory_order_relaxed);
    atomic_store_explicit(&op->types.alone, op->types.tabulated && !amp__op_is_probed(op), memory_order_relaxed);
}

amp_fn amp__op_low(const struct amp__op *op) {
    return op->context->policy.properties.low == AMP_FLOAT16 ? op->functions.fp16 : op->functions.bf16;
}

bool amp__op_needs_wrapper(const struct amp__op *op) {
    if (!op->context->policy.properties.enabled || !op->slot) return false;
    const struct amp__op_functions *own = &op->functions;
    return op->op_class != AMP_LEAVE || own->fp16 || own->bf16 || own->fp32 || op->seeds || amp__op_may_round(op);
}

/* ---- slots that saw no call ---- */

uint64_t amp__op_passed(const struct amp__op *op) {
    return op->tally.passed + (op->wrap ? amp__patch_passed(op->context->wiring.patch, op->wrap - 1) : 0);
}

uint64_t amp__op_strangers(const struct amp__op *op) {
    if (!op->wrapped || amp__op_calls(op) || !op->wrap) return 0;
    return amp__patch_strangers(op->context->wiring.patch, op->wrap - 1);
}

bool amp__op_unused(const struct amp__op *op) {
    return op->wrapped && !op->only_watched && !op->shares && !amp__op_calls(op) && !amp__op_passed(op);
}

void amp__name_op(amp__text *names, const struct amp__op *op, size_t found) {
    amp__text_add(names, found ? ", %s" : "%s", op->name);
    if (op->index) amp__text_add(names, "#%u", (unsigned)op->index);
}

size_t amp__name_unused(amp__text *names, const struct amp__op *ops, size_t n, size_t found) {
    for (size_t i = 0; i < n; i++)
        if (amp__op_unused(&ops[i])) amp__name_op(names, &ops[i], found++);
    return found;
}
