/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wrapped op, and a wrapped forward: the operands are gathered, the policy rules on them (struct plan), enter puts
 * casts in their places, the function runs, leave passes its results on. If the types of the operands are enough and
 * the cache has all casts, a shorter way does the same.
 */
#include "amp_raw.h"
#include "call/bind.h"
#include "call/cache.h"
#include "call/call.h"
#include "call/gate.h"
#include "context/context.h"
#include "context/op.h"
#include "context/probe.h"
#include "context/report.h"
#include "raw/raw.h"

#include <stddef.h>
#include <string.h>

static void count(_Atomic(uint64_t) *counter) { atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); }

/* ---- the plan of a call, by the ruling ---- */

/* Returns true on a host with FP32 only, where results of 16-bit values are rounded. */
static bool rounds_outputs(const struct amp__op *op, amp_dtype type) {
    return op->context->policy.properties.emulate && amp__is_low(type);
}

/* Of one call, before anything is done. */
struct plan {
    struct amp__ruling ruling; /* its target is the type that the operands have after it, if they have one */
    size_t tensors;                /* handles that could be cast, at least as many as there are */
    amp_fn function;               /* that shall run */
    amp_dtype handed_on;           /* the type that the op's handles get after it (DEFAULT: as they come) */
    bool rounds;                   /* emulate: results are rounded to the target */
    bool forward;                  /* a model's, not an op's */
    uint8_t mode;                  /* enum amp__raw_mode */
    float seed;
};

/* ---- probes ---- */

/* Those that were on the op when the call came, and their rooms. */
struct probing {
    struct amp__probed call;
    const struct amp__probe *probes[AMP__PROBES];
    _Alignas(max_align_t) char rooms[AMP__PROBES][AMP__PROBE_ROOM];
};

static amp_status enter_probes(struct probing *probing, enum amp__side side) {
    for (int i = 0; i < AMP__PROBES; i++)
        if (probing->probes[i]) AMP_TRY(probing->probes[i]->enter(&probing->call, side, probing->rooms[i]));
    return AMP_OK;
}

static void leave_probes(struct probing *probing, enum amp__side side) {
    for (int i = 0; i < AMP__PROBES; i++)
        if (probing->probes[i]) probing->probes[i]->leave(&probing->call, side, probing->rooms[i]);
}

static bool is_strict(const struct amp__op *op) {
    bool strict = false;
    for (int i = 0; i < AMP__PROBES; i++) strict |= amp__op_probe(op, i) && amp__op_probe(op, i)->strict;
    return strict;
}

/* ---- before the call: operands as planned ---- */

/* Copies of the arguments that change: handles on the handler's stack, lists among the call's temporaries. */
struct substitution {
    struct amp__casting casting;
    const struct plan *plan;
    struct amp__raw raw;
    struct probing *probing; /* NULL: no probe is on the op */
    void *handles[AMP__MAX_ARGS]; /* those that bound->argv points at */
    void ***written; /* fields of structs with handles that the op writes; memory of the call */
    size_t n_written;
};

static inline amp_status substitute_handle(struct substitution *s, const struct amp__bound_arg *arg, void **handle) {
    if (!*handle) return AMP_OK;
    const amp_dtype dtype = arg->dtype ? arg->dtype : amp__host_dtype(s->casting.host, *handle);
    const struct amp__operand operand = amp__operand_of(arg, dtype);
    const amp_status status = amp__casting_operand(&s->casting, &s->plan->ruling, &operand, handle);
    return status == AMP_OK
        ? AMP_OK
        : amp__fail_prefix(status, "op %s: %s", s->casting.op->name,
                           arg->name && arg->name[0] ? arg->name : "argument");
}

static amp_status substitute_argument(struct substitution *s, struct amp__bound *bound,
                                      const struct amp__bound_arg *arg) {
    void **handles = &s->handles[arg->index];
    if (arg->flags & AMP__LIST) {
        if (!arg->count) return AMP_OK;
        void **copy = amp__casting_array(&s->casting, arg->count);
        if (!copy) return amp__fail_memory();
        memcpy(copy, arg->handles, arg->count * sizeof *copy);
        s->handles[arg->index] = handles = copy;
    } else {
        *handles = *arg->handles;
    }
    bound->argv[arg->index] = &s->handles[arg->index];
    for (size_t j = 0; j < arg->count; j++) AMP_TRY(substitute_handle(s, arg, &handles[j]));
    return AMP_OK;
}

/* Handles a handle in a struct: one that is read is cast in place, one that is written is recorded. */
static amp_status substitute_field(void *self, const amp_field *field) {
    struct substitution *s = self;
    void *handle = *field->tensor;
    const bool known = handle != (void *)amp__casting_original(&s->casting, (float **)(void *)field->tensor);
    AMP_RETURN_IF(known && field->role != AMP_ROLE_READ, AMP_ERR_CONFLICT,
                  "it was emitted before as AMP_ROLE_READ: one that is read and written is AMP_ROLE_UPDATE each time");
    if (field->role == AMP_ROLE_READ) {
        AMP_TRY(substitute_handle(s, &(struct amp__bound_arg){ .name = field->name }, &handle));
        return handle == *field->tensor ? AMP_OK
                                        : amp__casting_patch(&s->casting, (float **)(void *)field->tensor, handle);
    }
    if (!s->plan->rounds) return AMP_OK;
    void ***grown = (void ***)(void *)amp__casting_array(&s->casting, s->n_written + 1);
    if (!grown) return amp__fail_memory();
    if (s->n_written) memcpy(grown, s->written, s->n_written * sizeof *grown);
    s->written = grown;
    s->written[s->n_written++] = field->tensor;
    return AMP_OK;
}

/* Under the call's mark. */
static amp_status enter(struct substitution *s, struct amp__op *op, struct amp__bound *bound, const struct plan *d) {
    amp__casting_begin(&s->casting, op->context, op->host, op, d->tensors, bound->call->thread, true);
    s->plan = d;
    s->n_written = 0;
    const bool is_raw = d->mode != AMP__RAW_NONE;
    const bool visits = amp__visits(op) && (is_raw || (op->host->cast && (d->ruling.casts || d->rounds)));
    if (is_raw || visits)
        s->raw = (struct amp__raw){ .mode = d->mode, .low = d->ruling.target, .seed = d->seed,
                                    .lists = s->probing != NULL, .casting = &s->casting };
    if (s->probing) AMP_TRY(enter_probes(s->probing, AMP__HOST_SIDE));
    for (uint32_t i = 0; i < bound->n_tensors && d->ruling.casts; i++)
        if (amp__may_cast(bound->tensors[i].flags)) AMP_TRY(substitute_argument(s, bound, &bound->tensors[i]));
    if (is_raw) AMP_TRY(amp__raw_enter(&s->raw, bound, bound->argv, s->handles));
    if (visits) AMP_TRY(amp__raw_visit(&s->raw, bound, bound->argv, substitute_field, s));
    return d->rounds || d->handed_on ? amp__outputs_enter(&s->casting, bound, s->handles) : AMP_OK;
}

/* Returns true if raw buffers are replaced. Only then are the buffers of visit known: a call that infers shapes has the
 * same pointer but no data for an implementation. */
static bool converts(uint8_t mode) { return mode == AMP__RAW_REPLACE || mode == AMP__RAW_EMULATE; }

/* ---- the call and its results ---- */

/* In emulation FP32 elements represent the low type. */
static amp_fn implementation(const struct amp__op *op, const struct amp__call *call, amp_dtype type) {
    if (type == AMP_FLOAT16 && op->functions.fp16) return op->functions.fp16;
    if (type == AMP_BFLOAT16 && op->functions.bf16) return op->functions.bf16;
    if (op->functions.fp32 && (type == AMP_FLOAT32 || rounds_outputs(op, type))) return op->functions.fp32;
    return call->original;
}

static void keep(struct amp__op *op, amp_status status) {
    if (status == AMP_OK) return;
    count(&op->tally.failures);
    amp__keep_error(op->context, status);
}

static void fail_call(struct amp__op *op, const struct amp__call *call, amp_status status) {
    keep(op, status);
    amp__call_return(call, op->on_failure);
}

/* Runs the original after a failed cast, only on arguments of one type, as without libamp, and not after a refusal by a
 * strict probe or with released weights. */
static void run_uncast(struct amp__op *op, const struct amp__bound *bound, amp_status status) {
    const struct amp__call *call = bound->call;
    const struct amp__operands *operands = &bound->operands;
    if (is_strict(op) || op->context->addresses.released ||
        (operands->n && amp__operands_type(operands) == AMP_DTYPE_DEFAULT)) {
        fail_call(op, call, status);
        return;
    }
    keep(op, status);
    amp__call_run(call, call->original, call->args);
}

/* Runs with traps masked, since an infinity is normal on substituted values. The top mark is that of this call and
 * restores them. */
static void run_untrapped(const struct amp__call *call, amp_fn function, void *const *argv) {
    struct amp__thread *thread = call->thread;
    struct amp__traps traps;
    amp__traps_mask(&traps);
    if (traps.masked) amp__mark_top(thread)->traps = traps;
    amp__call_run(call, function, argv);
    amp__traps_restore(&traps);
}

/* After it: outputs as planned. */
static void leave(struct substitution *s, struct amp__op *op, const struct amp__bound *bound) {
    const struct plan *d = s->plan;
    const amp_dtype target = d->ruling.target;
    if (d->mode != AMP__RAW_NONE) amp__raw_leave(&s->raw, op, bound);
    for (size_t i = 0; i < s->n_written; i++) amp__round_handle(op, *s->written[i], target);
    if (d->rounds) keep(op, amp__outputs_round(op, bound, target));
    if (d->handed_on) {
        const amp_status status = amp__outputs_leave(op, bound, d->handed_on);
        if (status != AMP_OK)
            keep(op, amp__fail_prefix(status, d->forward ? "%s: the model's output" : "op %s: its result", op->name));
    }
    if (s->probing) leave_probes(s->probing, AMP__HOST_SIDE);
    amp__casting_end(&s->casting);
}

static struct probing *begin_probing(struct probing *probing, struct substitution *s, struct amp__op *op,
                                     const struct amp__bound *bound, const struct plan *d) {
    if (!amp__op_is_probed(op)) return NULL;
    probing->call = (struct amp__probed){ .op = op, .bound = bound, .casting = &s->casting, .mode = d->mode,
                                          .low = d->ruling.target, .seed = d->seed };
    for (int i = 0; i < AMP__PROBES; i++) probing->probes[i] = amp__op_probe(op, i);
    return probing;
}

/* On the op's side, before it runs and afterwards. */
static amp_status enter_op(const struct substitution *s, amp_fn function) {
    struct amp__probed *call = &s->probing->call;
    call->function = function;
    call->buffers = call->mode != AMP__RAW_NONE ? s->raw.buffers : NULL;
    call->n_buffers = call->mode != AMP__RAW_NONE ? s->raw.n : 0;
    return enter_probes(s->probing, AMP__OP_SIDE);
}

/* Everything as planned. On an error nothing has run. */
static amp_status run_planned(struct amp__op *op, struct amp__bound *bound, const struct plan *d) {
    struct substitution s;
    struct probing probing;
    s.probing = begin_probing(&probing, &s, op, bound, d);
    amp_status status = enter(&s, op, bound, d);
    const bool has_work = !converts(d->mode) || !amp__visits(op) || s.raw.found || d->tensors;
    const amp_fn function = has_work ? d->function : bound->call->original;
    if (status == AMP_OK && s.probing) status = enter_op(&s, function);
    if (status != AMP_OK) {
        amp__casting_abandon(&s.casting);
        return status;
    }
    run_untrapped(bound->call, function, bound->argv);
    if (s.probing) leave_probes(s.probing, AMP__OP_SIDE);
    leave(&s, op, bound);
    return AMP_OK;
}

/* Runs in FP32 after the gate found 16 bits slower. By default handles still return the low type. */
static void hold_back(struct amp__op *op, const struct amp__call *call, struct plan *d) {
    const struct amp__properties *properties = &op->context->policy.properties;
    const bool narrows = properties->gate != AMP_ON && (d->tensors || call->schema->ret.kind == AMP__TENSOR);
    count(&op->tally.gated);
    d->ruling = (struct amp__ruling){ .status = AMP_OK };
    d->rounds = false;
    d->handed_on = narrows ? properties->low : AMP_DTYPE_DEFAULT;
    d->mode = d->seed == 1.0f ? AMP__RAW_NONE : AMP__RAW_SEED;
}

/* Without logical types rounded handles are unknown. */
static bool always_rounds(const struct amp__op *op) {
    return op->context->policy.properties.emulate && op->op_class == AMP_LOWER && !op->host->dtype &&
           (op->schema->n_tensors || amp__looks_for_handles(op));
}

static void note_type(struct amp__op *op, amp_dtype type) {
    if (atomic_load_explicit(&op->tally.last_target, memory_order_relaxed) != type)
        atomic_store_explicit(&op->tally.last_target, type, memory_order_relaxed);
}

/* Returns the type of a call without casts. Raw buffers alone are FP32. */
static amp_dtype present_type(const struct amp__op *op, const struct amp__operands *operands) {
    const amp_dtype type = amp__operands_type(operands);
    if (type != AMP_DTYPE_DEFAULT || !op->functions.fp32 || !amp__raw_takes(op)) return type;
    return amp__operands_all_fp32(operands) ? AMP_FLOAT32 : type;
}

/* Plans this call. */
static amp_status plan_call(struct amp__op *op, const struct amp__bound *bound, bool obeys, struct plan *d) {
    const struct amp__call *call = bound->call;
    const struct amp__operands *operands = &bound->operands;
    const amp_dtype low = op->context->policy.properties.low;
    d->ruling = amp__ruling_on(&op->context->policy.properties, obeys ? op->op_class : AMP_LEAVE, operands->distinct,
                               operands->n);
    if (converts(d->mode) || (obeys && always_rounds(op)))
        d->ruling = amp__ruling_for(&op->context->policy.properties, op->op_class, low);
    const bool gated = obeys && amp__may_be_gated(op, low, d->ruling.target, operands) && amp__gate_holds(op, bound);
    const amp_dtype type = gated               ? AMP_FLOAT32
        : d->ruling.target                   ? d->ruling.target
                                               : present_type(op, operands);
    note_type(op, type);
    if (obeys) d->ruling.target = type;
    d->function = implementation(op, call, d->ruling.target);
    d->rounds = obeys && rounds_outputs(op, type);
    if (gated) hold_back(op, call, d);
    if (d->ruling.status != AMP_OK || converts(d->mode) || d->function == call->original || !amp__visits(op))
        return AMP_OK;
    bool has_work;
    AMP_TRY(amp__bound_has_work(bound, op, &has_work));
    if (!has_work) d->function = call->original;
    return AMP_OK;
}

static __attribute__((noinline)) void plan_and_run(struct amp__op *op, struct amp__call *call, bool obeys,
                                                   uint8_t mode, float seed) {
    struct amp__bound bound;
    struct plan d = { .mode = mode, .seed = seed };
    amp_status status = amp__bind(&bound, op, call);
    d.tensors = bound.operands.tensors;
    if (status == AMP_OK) status = plan_call(op, &bound, obeys, &d);
    const bool is_probed = amp__op_is_probed(op);
    if (is_probed && d.mode == AMP__RAW_NONE && amp__raw_takes(op)) d.mode = AMP__RAW_SEED; /* its buffers are listed */
    if (status == AMP_OK && d.ruling.status != AMP_OK) {
        fail_call(op, call, amp__ruling_error(d.ruling, op->name));
        return;
    }
    const bool as_it_comes = !is_probed && !d.ruling.casts && !d.rounds && !d.handed_on &&
                             d.mode == AMP__RAW_NONE;
    if (status == AMP_OK && as_it_comes) amp__call_run(call, d.function, call->args);
    else if (status == AMP_OK) status = run_planned(op, &bound, &d);
    if (status != AMP_OK) run_uncast(op, &bound, status);
}

/* ---- most ops: the set of the operands' types is enough, and a table has the ruling ---- */

enum { ASK = UINT8_MAX };
_Static_assert(1 << AMP__HANDLE_TYPES == sizeof((struct amp__op *)NULL)->types.targets, "a place for each set");

void amp__op_tabulate(struct amp__op *op) {
    const struct amp__policy *policy = &op->context->policy;
    const struct amp__properties *properties = &policy->properties;
    const bool by_types = op->schema && !properties->emulate && op->raw_mode == AMP__RAW_NONE &&
                    !op->seeds && !amp__looks_for_handles(op) && !(op->functions.fp32 && amp__raw_takes(op)) &&
                    !(op->schema->operand_flags & (AMP__LIST | AMP__READ_WRITE));
    for (unsigned set = 0; by_types && set < sizeof op->types.targets; set++) {
        struct amp__operands operands = { .n = 0 };
        for (unsigned type = 0; type < AMP__HANDLE_TYPES; type++)
            if (set & 1u << type)
                operands.distinct[operands.n++] = (struct amp__operand){ (amp_dtype)type, false, false };
        const struct amp__ruling ruling = amp__ruling_on(properties, op->op_class, operands.distinct, operands.n);
        op->types.targets[set] = ruling.status == AMP_OK ? (uint8_t)ruling.target : ASK;
        op->types.cast |= ruling.casts;
    }
    op->types.tabulated = by_types;
    atomic_store_explicit(&op->types.alone, by_types && !amp__op_is_probed(op), memory_order_relaxed);
}

/* As amp__operands_type. */
static inline amp_dtype single_type(size_t set) {
    const size_t floating = set & ((size_t)1 << AMP_FLOAT32 | 1 << AMP_FLOAT16 | 1 << AMP_BFLOAT16 | 1 << AMP_FLOAT64);
    return floating && !(floating & (floating - 1)) ? __builtin_ctzl(floating) : AMP_DTYPE_DEFAULT;
}

/* One that the cache does not have. */
static __attribute__((noinline)) void run_casting(struct amp__op *op, const struct amp__call *call,
                                                  const uint8_t *types, amp_dtype target) {
    const struct plan d = { .ruling = amp__ruling_to(target, op->types.cast), .tensors = op->schema->n_tensors,
                               .function = implementation(op, call, target), .mode = AMP__RAW_NONE, .seed = 1.0f };
    struct amp__bound bound;
    amp__bind_typed(&bound, call, types);
    const amp_status status = run_planned(op, &bound, &d);
    if (status == AMP_OK) return;
    (void)amp__bind(&bound, op, call);
    run_uncast(op, &bound, status);
}

static __attribute__((noinline)) bool gate_holds(const struct amp__op *op, const struct amp__call *call) {
    struct amp__bound bound;
    amp__bind_untyped(&bound, call);
    return amp__gate_holds(op, &bound);
}

/* Most casts are in the cache: the same without all that the others need. False: it has not all of them. */
static __attribute__((noinline)) bool run_cached(struct amp__op *op, const struct amp__call *call, const uint8_t *types,
                                                 amp_dtype target) {
    const struct amp__ruling ruling = amp__ruling_to(target, op->types.cast);
    void *argv[AMP__MAX_ARGS], *handles[AMP__MAX_ARGS];
    if (!amp__cached_enter(op, call, types, &ruling, argv, handles)) return false;
    run_untrapped(call, implementation(op, call, target), argv);
    amp__cached_leave(op, call);
    return true;
}

/* Runs a call by its types alone. False: that is not enough. Not inlined into the handler, which would save its
 * registers around each hook. */
static __attribute__((noinline)) bool run_by_types(struct amp__op *op, struct amp__call *call) {
    uint8_t types[AMP__MAX_ARGS];
    const size_t set = amp__bind_types(op, call, types);
    const uint8_t target = set < sizeof op->types.targets ? op->types.targets[set] : ASK;
    const amp_dtype type = single_type(set);
    if (target == ASK) return false;
    if (target && type == AMP_FLOAT32 && !amp__gate_is_open(op) && gate_holds(op, call)) return false;
    note_type(op, target ? target : type);
    if (!target) amp__call_run(call, implementation(op, call, type), call->args);
    else if (!run_cached(op, call, types, target)) run_casting(op, call, types, target);
    return true;
}

static __attribute__((noinline)) void glance(struct amp__op *op, const struct amp__call *call) {
    struct amp__bound bound;
    amp__bind_untyped(&bound, call);
    (void)op->glance->enter(&(struct amp__probed){ .op = op, .bound = &bound }, AMP__HOST_SIDE, NULL);
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
    const bool obeys = op->is_backward || amp__ops_obey(&op->context->policy, &op->context->progress, thread);
    const bool by_types = atomic_load_explicit(&op->types.alone, memory_order_relaxed);
    const float seed = by_types ? 1.0f : amp__seed_factor(op);
    const uint8_t mode = obeys && op->raw_mode != AMP__RAW_NONE ? op->raw_mode
        : seed != 1.0f                                          ? AMP__RAW_SEED
                                                                : AMP__RAW_NONE;
    const struct amp__scope_state inside = { thread->scope.context, thread->scope.set, !op->only_watched, false };
    amp__anchor anchor;
    if ((!obeys && mode == AMP__RAW_NONE) ||
        !amp__mark_push(thread, __builtin_frame_address(0), &anchor, inside, NULL, NULL)) {
        count(&op->tally.passed);
        amp__call_run(call, call->original, call->args);
        return;
    }
    amp__mark_own(thread, op->context);
    amp__op_count_call(op, thread);
    if (op->glance && obeys) glance(op, call);
    if (!by_types || !run_by_types(op, call)) plan_and_run(op, call, obeys, mode, seed);
    amp__mark_pop(thread, &anchor);
}

/* ---- forward ---- */

/* Runs forward with casts as in Apex: floating inputs to the type of the model, results to the type chosen by the user.
 * fp64 stays, as in the tensors of the model. */
static void run_forward(struct amp__op *op, const struct amp__call *call) {
    static const uint8_t unknown[AMP__MAX_ARGS]; /* types */
    const struct amp__properties *properties = &op->context->policy.properties;
    const bool casts = amp__is_floating(properties->cast_model_type);
    struct amp__bound bound;
    struct plan d = { .function = call->original, .mode = AMP__RAW_NONE, .seed = 1.0f, .forward = true };
    if (casts) d.ruling = amp__ruling_to(properties->cast_model_type, AMP__UP_TO_FP32);
    if (amp__is_floating(properties->cast_model_outputs)) d.handed_on = properties->cast_model_outputs;
    if (!casts && !d.handed_on) {
        amp__call_run(call, call->original, call->args);
        return;
    }
    amp_status status = AMP_OK;
    if (casts) {
        status = amp__bind(&bound, op, call);
        d.tensors = bound.operands.tensors;
    } else {
        amp__bind_typed(&bound, call, unknown);
    }
    if (status == AMP_OK) status = run_planned(op, &bound, &d);
    if (status != AMP_OK) fail_call(op, call, status);
}

/* A host without versions may keep casts only as long as a forward runs: they go with the outermost one, however it is
 * left. */
static void drop_casts(void *user) {
    amp_context *context = user;
    amp__cache_drop(&context->cache, false);
}

static void forward_in_scope(struct amp__op *op, struct amp__call *call, struct amp__thread *thread) {
    const bool disabled = thread->scope.set && !thread->scope.context;
    const struct amp__scope_state scope = { disabled ? NULL : op->context, true, false, false };
    amp__anchor anchor;
    if (!amp__mark_push(thread, __builtin_frame_address(0), &anchor, scope, NULL, NULL)) {
        count(&op->tally.passed);
        amp__call_run(call, call->original, call->args);
        return;
    }
    amp__mark_own(thread, op->context);
    count(&op->tally.calls);
    atomic_store_explicit(&op->tally.last_target, op->context->policy.properties.cast_model_type, memory_order_relaxed);
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
