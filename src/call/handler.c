/* SPDX-License-Identifier: Apache-2.0 */
/* What happens in a wrapped op and in a wrapped forward (design.md 5). */
#include "amp_raw.h"
#include "call/call.h"
#include "call/cache.h"
#include "call/gate.h"
#include "call/operands.h"
#include "context/context.h"
#include "context/op.h"
#include "context/report.h"
#include "raw/raw.h"

#include <string.h>

static void count(_Atomic(uint64_t) *counter) { atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); }

/* ---- substitution ---- */

/* On a host that knows FP32 only, what comes out of 16-bit values is rounded. */
static bool rounds_outputs(const struct amp__op *op, amp_dtype type) {
    return op->context->properties.emulate && amp__is_low(type);
}

/* Copies of the arguments that change: handles on the handler's stack, lists among the call's temporaries. */
struct substitution {
    struct amp__casting casting;
    struct amp__op *op;
    amp_dtype target;
    bool forward; /* the forward's rule instead of the class's */
    void *argv[AMP__MAX_ARGS];
    void *handles[AMP__MAX_ARGS];
    void ***written; /* fields of structs whose handles the op writes; of the call's memory */
    size_t n_written;
};

/* Under the call's mark. Entries of argv beyond the call's arguments are nobody's, of handles those that argv does not
 * point at. */
static void begin_substitution(struct substitution *s, struct amp__op *op, const struct amp__call *call,
                               amp_dtype target, size_t capacity) {
    s->op = op;
    s->target = target;
    s->forward = false;
    s->written = NULL;
    s->n_written = 0;
    amp__casting_begin(&s->casting, op->context, op->host, op, capacity, call->thread, true);
    for (uint32_t i = 0; i < call->schema->n_args; i++) s->argv[i] = call->args[i];
}

/* Batch norm's parameters stay FP32 in an emulated 16-bit model. */
static inline bool is_fp32_param(const struct substitution *s, void *tensor) {
    const struct amp__properties *properties = &s->op->context->properties;
    if (!amp__emulates_model(properties) || !properties->keep_batchnorm_fp32) return false;
    const struct amp__param *param = amp__param_find(s->op->context, s->op->host, tensor);
    return param && param->module_kind == AMP_MODULE_BATCH_NORM;
}

static inline bool needs_cast(const struct substitution *s, const struct amp__operand *operand) {
    if (s->forward) /* Apex casts a model's floating inputs; fp64 stays, as on the model's own tensors */
        return amp__is_floating(operand->dtype) && operand->dtype != AMP_FLOAT64 && operand->dtype != s->target &&
               !operand->read_write;
    return amp__operand_needs_cast(&s->op->context->properties, s->op->op_class, operand, s->target);
}

static amp_status cast_handle(struct substitution *s, const char *name, amp_dtype dtype, void **handle) {
    void *cast;
    const amp_status status = amp__casting_cast(&s->casting, *handle, s->target, &cast);
    if (status != AMP_OK)
        return amp__fail_prefix(status, "op %s: %s: cast from %s to %s", s->op->name,
                                name && name[0] ? name : "argument", amp__dtype_name(dtype),
                                amp__dtype_name(s->target));
    if (s->op->context->properties.emulate) amp__count_cast(s->op, *handle, cast, s->target);
    *handle = cast;
    return AMP_OK;
}

static inline amp_status substitute_handle(struct substitution *s, const char *name, uint16_t flags, void **handle) {
    if (!*handle) return AMP_OK;
    const struct amp__operand operand = amp__operand_of(s->op->host, *handle, flags);
    if (!needs_cast(s, &operand) || is_fp32_param(s, *handle)) return AMP_OK;
    return cast_handle(s, name, operand.dtype, handle);
}

static amp_status substitute_list(struct substitution *s, const struct amp__call *call, uint32_t i) {
    const struct amp__arg *arg = &call->schema->args[i];
    void **list = amp__call_pointer(call, i);
    const size_t n = list ? amp__call_list_length(call, i) : 0;
    if (!n) return AMP_OK;
    void **copy = amp__casting_array(&s->casting, n);
    if (!copy) return amp__fail_memory();
    memcpy(copy, list, n * sizeof *copy);
    s->handles[i] = copy;
    s->argv[i] = &s->handles[i];
    for (size_t j = 0; j < n; j++) AMP_TRY(substitute_handle(s, arg->name, arg->flags, &copy[j]));
    return AMP_OK;
}

static amp_status substitute(struct substitution *s, const struct amp__call *call) {
    for (uint32_t i = 0; i < call->schema->n_args; i++) {
        const struct amp__arg *arg = &call->schema->args[i];
        if (!amp__is_operand(arg)) continue;
        if (arg->flags & AMP__LIST) {
            AMP_TRY(substitute_list(s, call, i));
            continue;
        }
        s->handles[i] = amp__call_pointer(call, i);
        AMP_TRY(substitute_handle(s, arg->name, arg->flags, &s->handles[i]));
        s->argv[i] = &s->handles[i];
    }
    return AMP_OK;
}

/* A handle in a struct: what is read is cast where it stands, what is written is remembered. */
static amp_status substitute_field(void *self, const amp_field *field) {
    struct substitution *s = self;
    void *handle = *field->tensor;
    const bool known = handle != (void *)amp__casting_original(&s->casting, (float **)(void *)field->tensor);
    AMP_RETURN_IF(known && field->role != AMP_ROLE_READ, AMP_ERR_CONFLICT,
                  "it was emitted before as AMP_ROLE_READ: one that is read and written is AMP_ROLE_UPDATE each time");
    if (field->role == AMP_ROLE_READ) {
        AMP_TRY(substitute_handle(s, field->name, 0, &handle));
        return handle == *field->tensor ? AMP_OK
                                        : amp__casting_patch(&s->casting, (float **)(void *)field->tensor, handle);
    }
    if (!rounds_outputs(s->op, s->target)) return AMP_OK;
    void ***grown = (void ***)(void *)amp__casting_array(&s->casting, s->n_written + 1);
    if (!grown) return amp__fail_memory();
    if (s->n_written) memcpy(grown, s->written, s->n_written * sizeof *grown);
    s->written = grown;
    s->written[s->n_written++] = field->tensor;
    return AMP_OK;
}

static amp_status substitute_all(struct substitution *s, const struct amp__call *call, struct amp__raw *raw) {
    AMP_TRY(substitute(s, call));
    raw->casting = &s->casting;
    if (raw->mode != AMP__RAW_NONE) AMP_TRY(amp__raw_enter(raw, &s->casting, call, s->argv, s->handles));
    if (amp__visits(s->op) && (raw->mode != AMP__RAW_NONE || amp__looks_for_handles(s->op)))
        AMP_TRY(amp__visit(call, s->argv, raw, substitute_field, s));
    return AMP_OK;
}

/* ---- ops ---- */

/* Are raw buffers shown in another form? What visit emits is known then; a graph's call that infers shapes, for one,
 * comes through the same pointer, and has nothing that an implementation could compute with. */
static bool converts(uint8_t mode) { return mode == AMP__RAW_REPLACE || mode == AMP__RAW_EMULATE; }

/* In emulation FP32 elements stand for the low type. */
static amp_fn implementation(const struct amp__op *op, const struct amp__call *call, amp_dtype type) {
    if (type == AMP_FLOAT16 && op->fp16) return op->fp16;
    if (type == AMP_BFLOAT16 && op->bf16) return op->bf16;
    if (op->fp32 && (type == AMP_FLOAT32 || rounds_outputs(op, type))) return op->fp32;
    return call->original;
}

static void fail_call(struct amp__op *op, const struct amp__call *call, amp_status status) {
    count(&op->failures);
    amp__keep_error(op->context, status);
    amp__call_return(call, op->on_failure);
}

/* The casts failed: the original may run only on arguments that all have one type, as without libamp. */
static void run_uncast(struct amp__op *op, const struct amp__call *call, const struct amp__operands *operands,
                       amp_status status) {
    if (operands->n && amp__operands_type(operands) == AMP_DTYPE_DEFAULT) {
        fail_call(op, call, status);
        return;
    }
    count(&op->failures);
    amp__keep_error(op->context, status);
    amp__call_run(call, call->original, call->args);
}

/* On substituted values an infinity is nothing unusual. The mark on top is this call's: it knows what to put back. */
static void run_untrapped(const struct amp__call *call, amp_fn function, void *const *argv) {
    struct amp__thread *thread = call->thread;
    struct amp__traps traps;
    amp__traps_mask(&traps);
    if (traps.masked) amp__mark_top(thread)->traps = traps;
    amp__call_run(call, function, argv);
    amp__traps_restore(&traps);
}

static void keep(struct amp__op *op, amp_status status) {
    if (status == AMP_OK) return;
    count(&op->failures);
    amp__keep_error(op->context, status);
}

/* What decide_and_run found out. */
struct decided {
    struct amp__operands operands;
    amp_fn function;     /* that shall run */
    amp_dtype target;    /* of the operands; DEFAULT: as they come */
    amp_dtype handed_on; /* the type that the op's handles get after it; DEFAULT: as they come */
    uint8_t mode;        /* enum amp__raw_mode */
    float seed;
};

static void run_cast(struct amp__op *op, const struct amp__call *call, const struct decided *d) {
    struct substitution s;
    begin_substitution(&s, op, call, d->target, d->operands.tensors);
    const bool rounds = rounds_outputs(op, d->target);
    struct amp__raw raw = { .mode = d->mode, .low = d->target, .seed = d->seed };
    amp_status status = substitute_all(&s, call, &raw);
    if (status == AMP_OK && (rounds || d->handed_on)) status = amp__outputs_enter(&s.casting, call, s.argv, s.handles);
    if (status == AMP_OK) {
        const bool has_work = !converts(d->mode) || !amp__visits(op) || raw.found || d->operands.tensors;
        run_untrapped(call, has_work ? d->function : call->original, s.argv);
        if (d->mode != AMP__RAW_NONE) amp__raw_leave(&raw, op);
        for (size_t i = 0; i < s.n_written; i++) amp__round_handle(op, *s.written[i], d->target);
        if (rounds) keep(op, amp__outputs_round(op, call, s.argv, d->target));
        if (d->handed_on) keep(op, amp__outputs_leave(op, call, s.argv, d->handed_on));
        amp__casting_end(&s.casting);
    } else {
        amp__casting_abandon(&s.casting);
        run_uncast(op, call, &d->operands, status);
    }
}

/* The gate found 16 bits slower: FP32 on the arguments as they are. Where it was not asked for, no type depends on it:
 * handles return the low type all the same. */
static void run_gated(struct amp__op *op, const struct amp__call *call, struct decided *d) {
    const struct amp__properties *properties = &op->context->properties;
    const bool narrows = properties->gate != AMP_ON && (d->operands.tensors || call->schema->ret.kind == AMP__TENSOR);
    count(&op->gated);
    if (narrows) d->handed_on = properties->low;
    d->target = AMP_DTYPE_DEFAULT;
    d->mode = d->seed == 1.0f ? AMP__RAW_NONE : AMP__RAW_SEED;
    if (narrows || d->mode == AMP__RAW_SEED) run_cast(op, call, d);
    else amp__call_run(call, d->function, call->args);
}

/* Where handles have no logical type, nothing says what is rounded already. */
static bool always_rounds(const struct amp__op *op) {
    return op->context->properties.emulate && op->op_class == AMP_LOWER && !op->host->dtype &&
           (op->schema->n_tensors || amp__looks_for_handles(op));
}

static void note_type(struct amp__op *op, amp_dtype type) {
    if (atomic_load_explicit(&op->last_target, memory_order_relaxed) != type)
        atomic_store_explicit(&op->last_target, type, memory_order_relaxed);
}

/* The type of a call whose operands need no other. Raw buffers alone are FP32. */
static amp_dtype present_type(const struct amp__op *op, const struct amp__operands *operands) {
    const amp_dtype type = amp__operands_type(operands);
    return type == AMP_DTYPE_DEFAULT && op->fp32 && amp__raw_takes(op) && amp__operands_all_fp32(operands) ? AMP_FLOAT32
                                                                                                           : type;
}

static __attribute__((noinline)) void decide_and_run(struct amp__op *op, struct amp__call *call, bool obeys,
                                                     uint8_t mode, float seed) {
    const amp_dtype low = op->context->properties.low;
    struct decided d = { .mode = mode, .seed = seed };
    amp_status looked = amp__operands_gather(&d.operands, op, call);
    struct amp__decision decision =
        amp__decide(&op->context->properties, obeys ? op->op_class : AMP_LEAVE, d.operands.distinct, d.operands.n);
    if (converts(mode) || (obeys && always_rounds(op))) decision.target = low;
    const bool gated = !amp__gate_is_open(op) && obeys && looked == AMP_OK && amp__operands_all_fp32(&d.operands) &&
                       decision.target == low && amp__gate_holds(op, call);
    const amp_dtype type = gated ? AMP_FLOAT32 : decision.target ? decision.target : present_type(op, &d.operands);
    note_type(op, type);
    d.target = obeys ? type : decision.target;
    d.function = implementation(op, call, d.target);
    if (looked == AMP_OK && (gated || !converts(mode)) && d.function != call->original && amp__visits(op)) {
        bool has_work;
        looked = amp__call_has_work(op, call, &d.operands, &has_work);
        if (!has_work) d.function = call->original;
    }
    if (looked != AMP_OK) run_uncast(op, call, &d.operands, looked);
    else if (gated) run_gated(op, call, &d);
    else if (decision.status != AMP_OK) fail_call(op, call, amp__decision_error(decision, op->name));
    else if (decision.target || mode == AMP__RAW_SEED || (obeys && rounds_outputs(op, type))) run_cast(op, call, &d);
    else amp__call_run(call, d.function, call->args);
}

/* ---- most ops: the set of the operands' types decides, and a table has the answer ---- */

enum { N_TYPES = AMP_DTYPE_OTHER + 1, ASK = UINT8_MAX };
_Static_assert(1 << N_TYPES == sizeof((struct amp__op *)NULL)->decided, "a place for each set");

void amp__op_tabulate(struct amp__op *op) {
    const struct amp__properties *properties = &op->context->properties;
    op->by_types = op->schema && !properties->emulate && op->raw_mode == AMP__RAW_NONE && !op->seeds &&
                   !amp__looks_for_handles(op) && !(op->fp32 && amp__raw_takes(op));
    for (uint32_t i = 0; op->by_types && i < op->schema->n_args; i++)
        op->by_types = !amp__is_operand(&op->schema->args[i]) ||
            !(op->schema->args[i].flags & (AMP__LIST | AMP__READ_WRITE));
    for (unsigned set = 0; op->by_types && set < sizeof op->decided; set++) {
        struct amp__operands operands = { .n = 0 };
        for (unsigned type = 0; type < N_TYPES; type++)
            if (set & 1u << type)
                operands.distinct[operands.n++] = (struct amp__operand){ (amp_dtype)type, false, false };
        const struct amp__decision decision = amp__decide(properties, op->op_class, operands.distinct, operands.n);
        op->decided[set] = decision.status == AMP_OK ? (uint8_t)decision.target : ASK;
    }
}

/* The types of a call's operands, 0 for what is none, and their set; SIZE_MAX: the table has no place for it. */
static inline size_t types_of(const struct amp__op *op, const struct amp__call *call, uint8_t *types) {
    size_t set = 0;
    for (uint32_t i = 0; i < op->schema->n_args; i++) {
        void *tensor = amp__is_operand(&op->schema->args[i]) ? amp__call_pointer(call, i) : NULL;
        types[i] = AMP_DTYPE_DEFAULT;
        if (!tensor) continue;
        const amp_dtype dtype = amp__host_dtype(op->host, tensor);
        if (dtype < 0 || dtype >= N_TYPES) return SIZE_MAX;
        types[i] = (uint8_t)dtype;
        set |= (size_t)1 << dtype;
    }
    return set;
}

/* As amp__operands_type. */
static inline amp_dtype single_type(size_t set) {
    const size_t floating = set & ((size_t)1 << AMP_FLOAT32 | 1 << AMP_FLOAT16 | 1 << AMP_BFLOAT16 | 1 << AMP_FLOAT64);
    return floating && !(floating & (floating - 1)) ? __builtin_ctzl(floating) : AMP_DTYPE_DEFAULT;
}

/* With casts that the cache has, all of them; false: it has not. */
static __attribute__((noinline)) bool run_cached(struct amp__op *op, const struct amp__call *call, const uint8_t *types,
                                                 amp_dtype target) {
    void *argv[AMP__MAX_ARGS], *handles[AMP__MAX_ARGS];
    if (!amp__cached_enter(op, call, types, target, argv, handles)) return false;
    note_type(op, target);
    run_untrapped(call, implementation(op, call, target), argv);
    amp__cached_leave(op, call);
    return true;
}

/* False: that takes more than the types. Not inlined into the handler, which would save what it needs afterwards around
 * each of the host's hooks. */
static __attribute__((noinline)) bool run_by_types(struct amp__op *op, struct amp__call *call) {
    uint8_t types[AMP__MAX_ARGS];
    const size_t set = types_of(op, call, types);
    const uint8_t target = set < sizeof op->decided ? op->decided[set] : ASK;
    const amp_dtype type = single_type(set);
    if (target == ASK) return false;
    if (target && type == AMP_FLOAT32 && !amp__gate_is_open(op) && amp__gate_holds(op, call)) return false;
    if (target) return run_cached(op, call, types, target);
    note_type(op, type);
    amp__call_run(call, implementation(op, call, type), call->args);
    return true;
}

/* Every wrapped call goes through it, and no array of its frame is written by an index: a canary would cost a third of
 * a nanosecond and watch nothing. */
#if defined(__has_attribute)
#if __has_attribute(no_stack_protector)
__attribute__((no_stack_protector))
#endif
#endif
void amp__op_handler(void *user, struct amp__call *call) {
    struct amp__op *op = user;
    struct amp__thread *thread = call->thread;
    const bool obeys = op->is_backward || amp__ops_obey(op->context, thread);
    const float seed = op->by_types ? 1.0f : amp__seed_factor(op);
    const uint8_t mode = obeys && op->raw_mode != AMP__RAW_NONE ? op->raw_mode
        : seed != 1.0f                                          ? AMP__RAW_SEED
                                                                : AMP__RAW_NONE;
    const struct amp__scope_state inside = { thread->scope.context, thread->scope.set, true };
    amp__anchor anchor;
    if ((!obeys && mode == AMP__RAW_NONE) ||
        !amp__mark_push(thread, __builtin_frame_address(0), &anchor, inside, NULL, NULL)) {
        count(&op->passed);
        amp__call_run(call, call->original, call->args);
        return;
    }
    amp__mark_own(thread, op->context);
    amp__op_count(op, thread, &op->first_calls, &op->calls, 1);
    if (op->gate_watches && obeys) amp__gate_watch(op, call);
    if (!op->by_types || !run_by_types(op, call)) decide_and_run(op, call, obeys, mode, seed);
    amp__mark_pop(thread, &anchor);
}

/* ---- forward ---- */

/* The model's results in the type the user asked for. */
static void hand_on_outputs(struct amp__op *op, const struct amp__call *call, void *const *argv, amp_dtype wanted) {
    const amp_status status = amp__outputs_leave(op, call, argv, wanted);
    if (status != AMP_OK) keep(op, amp__fail_prefix(status, "%s: the model's output", op->name));
}

static void run_forward(struct amp__op *op, const struct amp__call *call) {
    const struct amp__properties *properties = &op->context->properties;
    const bool casts = amp__is_floating(properties->cast_model_type);
    const bool casts_outputs = amp__is_floating(properties->cast_model_outputs);
    struct substitution s;
    struct amp__operands operands = { .n = 0 };
    if (!casts && !casts_outputs) {
        amp__call_run(call, call->original, call->args);
        return;
    }
    amp_status status = casts ? amp__operands_gather(&operands, op, call) : AMP_OK;
    begin_substitution(&s, op, call, properties->cast_model_type, operands.tensors);
    s.forward = true;
    struct amp__raw raw = { .mode = AMP__RAW_NONE };
    if (casts && status == AMP_OK) status = substitute_all(&s, call, &raw);
    if (status == AMP_OK && casts_outputs) status = amp__outputs_enter(&s.casting, call, s.argv, s.handles);
    if (status == AMP_OK) {
        run_untrapped(call, call->original, s.argv);
        if (casts_outputs) hand_on_outputs(op, call, s.argv, properties->cast_model_outputs);
        amp__casting_end(&s.casting);
    } else {
        amp__casting_abandon(&s.casting);
        fail_call(op, call, status);
    }
}

/* A host without versions may keep casts only as long as a forward runs: they go with the outermost one, however it is
 * left. */
static void drop_casts(void *user) {
    amp_context *context = user;
    amp__cache_retire(&context->cache, false);
    amp__cache_collect(&context->cache);
}

static void forward_in_scope(struct amp__op *op, struct amp__call *call, struct amp__thread *thread) {
    const bool disabled = thread->scope.set && !thread->scope.context;
    const struct amp__scope_state scope = { disabled ? NULL : op->context, true, false };
    amp__anchor anchor;
    if (!amp__mark_push(thread, __builtin_frame_address(0), &anchor, scope, NULL, NULL)) {
        count(&op->passed);
        amp__call_run(call, call->original, call->args);
        return;
    }
    amp__mark_own(thread, op->context);
    count(&op->calls);
    atomic_store_explicit(&op->last_target, op->context->properties.cast_model_type, memory_order_relaxed);
    run_forward(op, call);
    amp__mark_pop(thread, &anchor);
}

void amp__forward_handler(void *user, struct amp__call *call) {
    struct amp__op *op = user;
    struct amp__thread *thread = amp__thread_state();
    amp__anchor anchor;
    const bool keeps_nothing =
        !op->host->version && !(thread->scope.set && thread->scope.context == op->context);
    const bool marked = keeps_nothing && amp__mark_push(thread, __builtin_frame_address(0), &anchor, thread->scope,
                                                        drop_casts, op->context);
    if (marked) amp__mark_own(thread, op->context);
    forward_in_scope(op, call, thread);
    if (marked) amp__mark_pop(thread, &anchor);
    if (keeps_nothing) drop_casts(op->context);
}
