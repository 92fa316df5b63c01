/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where an overflow began: the first call of an observed iteration that made NaN or infinity, or got them from outside
 * and passed them on; and whether a weight itself is not finite.
 */
#include "context/params.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/report.h"
#include "observe/observe.h"

#include <stdio.h>
#include <string.h>

/* ---- the op that made it ---- */

static void keep_first(struct amp__suspect *first, const struct amp__seen_call *call, uint64_t at) {
    if (!first->at || at < first->at) *first = (struct amp__suspect){ *call, at };
}

/* The last that was left there. */
static struct amp__trail trail_of(const struct amp__observer *observer, const void *memory) {
    for (size_t i = observer->n_trails; i && i + AMP__TRAILS > observer->n_trails; i--)
        if (observer->trails[(i - 1) % AMP__TRAILS].memory == memory) return observer->trails[(i - 1) % AMP__TRAILS];
    return (struct amp__trail){ NULL, false, AMP__OUTSIDE };
}

static void leave_trail(struct amp__observer *observer, const void *memory, bool was_cast, uint32_t root) {
    if (memory) observer->trails[observer->n_trails++ % AMP__TRAILS] = (struct amp__trail){ memory, was_cast, root };
}

static uint32_t new_root(struct amp__observer *observer, const struct amp__seen_call *call) {
    if (observer->n_roots == AMP__ROOTS) return AMP__NO_ROOT;
    observer->roots[observer->n_roots] = *call;
    return (uint32_t)observer->n_roots++;
}

bool amp__observe_fills(const struct amp__op *op) {
    static const char *const names[] = { "masked_fill", "fill", "full", "full_like", "new_full", "where", "pad",
                                         "index_fill", "masked_scatter", "scatter" };
    return amp__op_is_one_of(op->name, names, AMP_COUNT(names));
}

bool amp__observe_takes_masks(const struct amp__op *op) {
    static const char *const names[] = { "add", "__add__", "__radd__", "__iadd__", "baddbmm", "sub", "__sub__",
                                         "__isub__", "cat", "softmax", "log_softmax" };
    return amp__observe_fills(op) || strstr(op->name, "attention") ||
           amp__op_is_one_of(op->name, names, AMP_COUNT(names));
}

/* Products multiply values: -infinity that one got from outside is none of a mask. */
static bool is_value(const struct amp__seen_call *call, uint32_t root) {
    return root == AMP__OUTSIDE && call->op->listed == AMP_LOWER && !amp__observe_takes_masks(call->op);
}

/* Judges -infinity without NaN: a mask, or the result of arithmetic with -1e9. The latter is recorded, since an op may
 * make NaN of it, as is a value from outside. */
static void judge_mask(struct amp__observer *observer, const struct amp__seen_call *call, uint32_t root) {
    const bool made = call->came_finite && (!call->finite || !amp__observe_fills(call->op));
    if (made || is_value(call, root)) root = new_root(observer, call);
    else if (call->came_finite) root = AMP__NO_ROOT;
    leave_trail(observer, call->made, false, root);
    keep_first(&observer->suspects[AMP__MASKED], call, call->number);
}

/* Its saved tensors are the inputs and outputs of the forward. */
static bool is_backward_of(const struct amp__op *op, const struct amp__op *forward) {
    const size_t length = strlen(forward->name);
    return op->is_backward && !strncmp(op->name, forward->name, length) && !strcmp(op->name + length, " (backward)");
}

/* NaN that an op made of -infinity is the op's, where that is another op's mask. */
static int32_t cause_of(const struct amp__seen_call *call, bool is_known) {
    if (call->finite) return AMP_CAUSE_OP;
    if (call->came_finite) return AMP_CAUSE_CAST;
    return is_known && !call->got_bad ? AMP_CAUSE_OP : AMP_CAUSE_INPUT;
}

void amp__observe_judge(struct amp__observer *observer, const struct amp__seen_call *seen) {
    struct amp__seen_call call = *seen, *remembered = &observer->ring[call.number % AMP__RING];
    struct amp__suspect *absorbed = &observer->suspects[AMP__ABSORBED];
    if (!call.is_cast && remembered->number == call.number) *remembered = call;
    if (call.finite && !call.made) return;
    const struct amp__trail known = trail_of(observer, call.got);
    if (call.is_cast) {
        leave_trail(observer, call.made, call.finite || known.was_cast, known.root);
        return;
    }
    call.came_finite |= known.was_cast;
    call.cause = cause_of(&call, known.memory && !is_value(&call, known.root));
    if (!call.got_bad && !call.made_bad) {
        judge_mask(observer, &call, known.root);
        return;
    }
    leave_trail(observer, call.made, false, AMP__NO_ROOT);
    const struct amp__seen_call *first = &call;
    if (!call.got_bad && known.root < AMP__ROOTS) first = &observer->roots[known.root];
    else if (call.finite && absorbed->at && is_backward_of(call.op, absorbed->call.op)) first = &absorbed->call;
    keep_first(&observer->suspects[call.made ? AMP__MADE : AMP__ABSORBED], first, call.number);
}

void amp__observe_call(amp_context *context, struct amp__seen_call *seen) {
    struct amp__observer *observer = amp__observer_of(context);
    pthread_mutex_lock(observer->lock);
    seen->number = observer->calls + 1;
    if (!seen->is_cast) observer->ring[++observer->calls % AMP__RING] = *seen;
    if (seen->later) amp__later_call_ended(seen);
    else amp__observe_judge(observer, seen);
    pthread_mutex_unlock(observer->lock);
}

void amp__observe_gradient(amp_context *context, const void *memory) {
    struct amp__observer *observer = amp__observer_of(context);
    uint64_t rest;
    const struct amp__param *param = amp__gradient_known(context, memory, &rest);
    pthread_mutex_lock(observer->lock);
    if (!observer->suspect_param && param) observer->suspect_param = param, observer->suspect_written = true;
    pthread_mutex_unlock(observer->lock);
}

/* ---- backward without ops: the order reported by the host, else the reverse of forward ---- */

/* Under the lock. NULL: there is no memory. */
static struct amp__use *use_of(struct amp__observer *observer, const struct amp__param *param) {
    if (!param) return &observer->nobody;
    if (param->index >= observer->n_uses) {
        const size_t n = 2 * param->index + 16;
        void *grown = amp__grow(observer->uses, observer->n_uses, n, sizeof *observer->uses);
        if (!grown) return NULL;
        observer->uses = grown, observer->n_uses = n;
    }
    return &observer->uses[param->index];
}

static struct amp__use known_of(const struct amp__observer *observer, const struct amp__param *param) {
    return param->index < observer->n_uses ? observer->uses[param->index] : (struct amp__use){ 0 };
}

void amp__observe_forget_uses(struct amp__observer *observer) {
    observer->made = 0;
    for (size_t i = 0; i < observer->n_uses; i++)
        observer->uses[i] = (struct amp__use){ .accused = observer->uses[i].accused,
                                               .accused_cause = observer->uses[i].accused_cause };
}

void amp__observe_use(const struct amp__seen_call *seen, const struct amp__param *param) {
    struct amp__observer *observer = amp__observer_of(seen->op->context);
    if (!param || seen->op->is_backward) return;
    pthread_mutex_lock(observer->lock);
    struct amp__use *use = use_of(observer, param);
    if (use) use->op = seen->op, use->call = observer->calls + 1;
    pthread_mutex_unlock(observer->lock);
}

void amp__observe_made(amp_context *context, const struct amp__param *param) {
    struct amp__observer *observer = amp__observer_of(context);
    pthread_mutex_lock(observer->lock);
    struct amp__use *use = use_of(observer, param);
    if (use && !use->made) use->made = ++observer->made;
    pthread_mutex_unlock(observer->lock);
}

/* Returns true if backward makes the gradient of `param` before that of the other, which precedes it in the list.
 * Without other evidence a list is in the order of forward. */
static bool is_made_before(const struct amp__observer *observer, const struct amp__param *param,
                           const struct amp__param *other) {
    const struct amp__use own = known_of(observer, param), its = known_of(observer, other);
    return own.made != its.made ? own.made - 1 < its.made - 1 : own.call >= its.call; /* made 0 comes last */
}

void amp__observe_suspect(struct amp__observer *observer, const struct amp__param *param) {
    const struct amp__param *known = observer->suspect_param;
    if (observer->suspect_written) return;
    if (!known || is_made_before(observer, param, known)) observer->suspect_param = param;
}

/* ---- weights ---- */

/* As it was seen at the observed bracket's end; read now where that was not asked for. */
static bool is_finite(const struct amp__observer *observer, const struct amp__param *param, bool is_observed) {
    bool seen = false, finite = true;
    const struct amp__seen *s = is_observed ? amp__map_get(&observer->by_owner, (uintptr_t)param) : NULL;
    for (; s; s = s->sibling) {
        if (s->iteration != observer->observed || !(s->what & (AMP_SEE_WEIGHTS | AMP_SEE_MASTERS))) continue;
        seen = true;
        finite &= !amp__nonfinite(&s->last);
    }
    return seen ? finite : amp__param_is_finite(param);
}

static const struct amp__param *find_bad(const amp_context *context, bool is_observed) {
    struct amp__params *params = amp__params_of(context);
    for (size_t i = 0; i < params->n; i++) {
        const struct amp__param *param = params->list[i];
        if (param->in_optimizer && !is_finite(amp__observer_of(context), param, is_observed)) return param;
    }
    return NULL;
}

const struct amp__param *amp__observe_bad_weight(const amp_context *context, uint64_t bracket, bool is_observed) {
    struct amp__observer *observer = amp__observer_of(context);
    const struct amp__param *bad = find_bad(context, is_observed);
    const uint64_t stepped_on = observer->stepped_on;
    if (!bad) {
        observer->finite_in = bracket;
        observer->since = observer->since_least = 0;
        if (stepped_on < bracket) observer->stepped_on = 0;
    } else if (!observer->since) {
        observer->since = stepped_on && stepped_on < bracket ? stepped_on + 1 : bracket;
        observer->since_least = observer->finite_in + 1;
    }
    return bad;
}

void amp__observe_follow_weights(const amp_context *context, const struct amp__decided_bracket *bracket) {
    struct amp__observer *observer = amp__observer_of(context);
    const bool breaks = bracket->overflowed && !bracket->skips && !observer->stepped_on;
    const bool is_rare =
        amp__scaling_is_trivial(&amp__policy_of(context)->properties) && !(bracket->number & (bracket->number - 1));
    if (breaks) observer->stepped_on = bracket->number;
    if ((breaks || is_rare) && !observer->since && !amp__observing(context))
        (void)amp__observe_bad_weight(context, bracket->number, false);
}

/* ---- messages ---- */

static void add_argument(amp__text *text, const amp_seen_argument *argument) {
    amp__text_add(text, " %s %s (%s): ", argument->is_output ? "out" : "in", argument->name,
                  amp__dtype_name(argument->dtype));
    if (argument->nonfinite)
        amp__text_add(text, "%llu of %llu not finite", (unsigned long long)argument->nonfinite,
                      (unsigned long long)argument->elements);
    else amp__text_add(text, "up to %.4g", argument->largest);
}

static void add_op(amp__text *text, const amp_culprit *culprit) {
    amp__text_add(text, "%sop %s", culprit->in_backward ? "backward of " : "", culprit->op);
    if (culprit->index) amp__text_add(text, "#%u", (unsigned)culprit->index);
    amp__text_add(text, ", call %llu of the iteration", (unsigned long long)culprit->call);
}

static void add_weight(amp__text *text, const amp_culprit *culprit) {
    amp__text_add(text, "began in no op: the parameter %s itself is not finite since ", culprit->weight);
    if (culprit->since == culprit->since_least)
        amp__text_add(text, "bracket %llu", (unsigned long long)culprit->since);
    else
        amp__text_add(text, "one of the brackets %llu to %llu", (unsigned long long)culprit->since_least,
                      (unsigned long long)culprit->since);
}

static void add_cause(amp__text *text, const amp_culprit *culprit) {
    switch (culprit->cause) {
    case AMP_CAUSE_WEIGHT:
        add_weight(text, culprit);
        return;
    case AMP_CAUSE_INPUT:
        amp__text_add(text, "came from outside (the batch, a constant, an op that libamp does not see), into ");
        add_op(text, culprit);
        break;
    case AMP_CAUSE_UNKNOWN:
        if (!culprit->op) {
            amp__text_add(text, "began in no op that was seen");
            return;
        } /* fall through */
    default:
        amp__text_add(text, "began in ");
        add_op(text, culprit);
        if (culprit->was_cast) amp__text_add(text, ", in the cast of its input");
        break;
    }
    for (uint32_t i = 0; i < culprit->n_arguments; i++) {
        amp__text_add(text, i ? ";" : ":");
        add_argument(text, &culprit->arguments[i]);
    }
}

static void describe_culprit(amp__text *text, const amp_culprit *culprit) {
    amp__text_add(text, "the overflow of bracket %llu ", (unsigned long long)culprit->bracket);
    add_cause(text, culprit);
    if (culprit->parameter)
        amp__text_add(text, "; the first gradient that was not finite is that of %s", culprit->parameter);
}

bool amp__observe_words(amp_context *context, amp__text *text) {
    pthread_mutex_t *lock = amp__lock_of(context);
    struct amp__observer *observer = amp__observer_of(context);
    amp_culprit last = AMP_CULPRIT_INIT;
    pthread_mutex_lock(lock);
    if (observer) last = observer->culprit;
    pthread_mutex_unlock(lock);
    if (last.bracket) describe_culprit(text, &last);
    return last.bracket != 0;
}

static void tell(amp_context *context, const amp_culprit *culprit) {
    char line[1024];
    amp__text text = { line, sizeof line, 0 };
    describe_culprit(&text, culprit);
    amp__text_add(&text, " (reported once; later ones are stored)");
    amp__event(context, amp__any_host(context), &(amp_event){ .kind = AMP_EVENT_LOG, .message = line });
}

static void describe(amp_culprit *culprit, const struct amp__seen_call *call) {
    culprit->op = call->op->name;
    culprit->index = call->op->index;
    culprit->call = call->number;
    culprit->cause = call->cause;
    culprit->n_arguments = call->n;
    memcpy(culprit->arguments, call->arguments, sizeof culprit->arguments);
}

void amp__observe_accuse(amp_context *context, const struct amp__decided_bracket *bracket, uint64_t number,
                         const struct amp__param *weight) {
    struct amp__observer *observer = amp__observer_of(context);
    const struct amp__suspect *suspect = observer->suspects;
    while (!suspect->at && suspect < &observer->suspects[AMP__MASKED]) suspect++;
    amp_culprit culprit = AMP_CULPRIT_INIT;
    pthread_mutex_lock(observer->lock);
    struct amp__use none = { 0 }, *use = use_of(observer, observer->suspect_param);
    if (!use) use = &none;
    culprit.bracket = bracket->number;
    culprit.parameter = observer->suspect_param ? observer->suspect_param->name : NULL;
    const struct amp__op *op = suspect->at ? suspect->call.op : use->op;
    if (suspect->at) {
        describe(&culprit, &suspect->call);
    } else if (use->call) {
        culprit.op = use->op->name;
        culprit.index = use->op->index;
        culprit.call = use->call;
        culprit.in_backward = 1;
    }
    if (weight) {
        culprit.cause = AMP_CAUSE_WEIGHT;
        culprit.weight = weight->name;
        culprit.since = observer->since;
        culprit.since_least = observer->since_least;
    }
    culprit.was_cast = culprit.cause == AMP_CAUSE_CAST;
    observer->culprit = culprit;
    const int32_t cause = culprit.cause + 1;
    const bool is_new = use->accused_cause != cause || (!weight && use->accused != op);
    use->accused = op;
    use->accused_cause = cause;
    pthread_mutex_unlock(observer->lock);
    if (is_new) tell(context, &culprit);
    amp__observe_tell_culprit(context, number);
}

AMP_API amp_status amp_get_culprit(amp_context *context, amp_culprit *culprit) {
    amp_culprit last = AMP_CULPRIT_INIT;
    AMP_RETURN_IF(!context || !culprit, AMP_ERR_INVALID_ARGUMENT, "amp_get_culprit: an argument is NULL");
    pthread_mutex_t *lock = amp__lock_of(context);
    struct amp__observer *observer = amp__observer_of(context);
    amp__observe_collect(context);
    pthread_mutex_lock(lock);
    if (observer && observer->culprit.bracket) last = observer->culprit;
    pthread_mutex_unlock(lock);
    return amp__fill_struct(culprit, culprit->struct_size, sizeof last, &last, sizeof last, "amp_culprit");
}
