/* SPDX-License-Identifier: Apache-2.0 */
/* Where an overflow began: the first call of an observed iteration that made what is not finite from what was. */
#include "context/report.h"
#include "observe/observe.h"

#include <stdio.h>
#include <string.h>

static bool has_nonfinite(const struct amp__seen_call *seen) {
    for (uint32_t i = 0; i < seen->n; i++)
        if (seen->arguments[i].nonfinite) return true;
    return false;
}

static void keep_first(struct amp__seen_call *first, const struct amp__seen_call *seen) {
    if (!first->number || seen->number < first->number) *first = *seen;
}

void amp__observe_judge(struct amp__observer *observer, const struct amp__seen_call *seen) {
    struct amp__seen_call *remembered = &observer->ring[seen->number % AMP__RING];
    if (remembered->number == seen->number) *remembered = *seen;
    if (!has_nonfinite(seen)) return;
    const int kind = !seen->is_bad ? AMP__MASKED : seen->came_finite ? AMP__MADE : AMP__PASSED_ON;
    keep_first(&observer->suspects[kind], seen);
}

void amp__observe_call(amp_context *context, struct amp__seen_call *seen) {
    struct amp__observer *observer = context->observer;
    pthread_mutex_lock(observer->lock);
    seen->number = ++observer->calls;
    observer->ring[seen->number % AMP__RING] = *seen;
    if (seen->later) amp__later_call_ended(seen);
    else amp__observe_judge(observer, seen);
    pthread_mutex_unlock(observer->lock);
}

void amp__observe_gradient(amp_context *context, const void *memory) {
    struct amp__observer *observer = context->observer;
    uint64_t rest;
    const struct amp__param *param = amp__gradient_known(context, memory, &rest);
    pthread_mutex_lock(observer->lock);
    if (!observer->suspect_param && param) observer->suspect_param = param, observer->suspect_written = true;
    pthread_mutex_unlock(observer->lock);
}

/* ---- where backward is not seen: as the host told of it, else the reverse of forward ---- */

/* Under the lock; NULL: there is no memory. */
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
        observer->uses[i] = (struct amp__use){ .accused = observer->uses[i].accused };
}

void amp__observe_use(const struct amp__seen_call *seen, const struct amp__param *param) {
    struct amp__observer *observer = seen->op->context->observer;
    if (!param || seen->op->is_backward) return;
    pthread_mutex_lock(observer->lock);
    struct amp__use *use = use_of(observer, param);
    if (use) use->op = seen->op, use->call = observer->calls + 1;
    pthread_mutex_unlock(observer->lock);
}

void amp__observe_made(amp_context *context, const struct amp__param *param) {
    struct amp__observer *observer = context->observer;
    pthread_mutex_lock(observer->lock);
    struct amp__use *use = use_of(observer, param);
    if (use && !use->made) use->made = ++observer->made;
    pthread_mutex_unlock(observer->lock);
}

/* Is the gradient of `param` made before the other's, which stands before it in the list? A list is in the order of
 * forward, if nothing else tells. */
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

/* ---- told ---- */

static void add_argument(amp__text *text, const amp_seen_argument *argument) {
    amp__text_add(text, " %s %s (%s): ", argument->is_output ? "out" : "in", argument->name,
                  amp__dtype_name(argument->dtype));
    if (argument->nonfinite)
        amp__text_add(text, "%llu of %llu not finite", (unsigned long long)argument->nonfinite,
                      (unsigned long long)argument->elements);
    else amp__text_add(text, "up to %.4g", argument->largest);
}

static void tell(amp_context *context, const amp_culprit *culprit) {
    char line[1024];
    amp__text text = { line, sizeof line, 0 };
    if (culprit->op) {
        amp__text_add(&text, "the overflow of bracket %llu began in %sop %s", (unsigned long long)culprit->bracket,
                      culprit->in_backward ? "backward of " : "", culprit->op);
        if (culprit->index) amp__text_add(&text, "#%u", (unsigned)culprit->index);
        amp__text_add(&text, ", call %llu of the iteration%s%s", (unsigned long long)culprit->call,
                      culprit->was_cast ? ", in the cast of what it got" : "", culprit->n_arguments ? ":" : "");
        for (uint32_t i = 0; i < culprit->n_arguments; i++) {
            if (i) amp__text_add(&text, ";");
            add_argument(&text, &culprit->arguments[i]);
        }
    } else {
        amp__text_add(&text, "the overflow of bracket %llu began in no op that was seen",
                      (unsigned long long)culprit->bracket);
    }
    if (culprit->parameter)
        amp__text_add(&text, "; the first gradient that was not finite is that of %s", culprit->parameter);
    amp__event(context, amp__any_host(context), &(amp_event){ .kind = AMP_EVENT_LOG, .message = line });
}

void amp__observe_accuse(amp_context *context, const struct amp__decided_bracket *bracket, uint64_t number) {
    struct amp__observer *observer = context->observer;
    const struct amp__seen_call *suspect = observer->suspects;
    while (!suspect->number && suspect < &observer->suspects[AMP__MASKED]) suspect++;
    amp_culprit culprit = AMP_CULPRIT_INIT;
    pthread_mutex_lock(observer->lock);
    struct amp__use none = { 0 }, *use = use_of(observer, observer->suspect_param);
    if (!use) use = &none;
    culprit.bracket = bracket->number;
    culprit.parameter = observer->suspect_param ? observer->suspect_param->name : NULL;
    if (suspect->number) {
        culprit.op = suspect->op->name;
        culprit.index = suspect->op->index;
        culprit.call = suspect->number;
        culprit.was_cast = suspect->came_finite && !suspect->finite;
        culprit.n_arguments = suspect->n;
        memcpy(culprit.arguments, suspect->arguments, sizeof culprit.arguments);
    } else if (use->call) {
        culprit.op = use->op->name;
        culprit.index = use->op->index;
        culprit.call = use->call;
        culprit.in_backward = 1;
    }
    observer->culprit = culprit;
    const bool is_new = !use->accused;
    use->accused = true;
    pthread_mutex_unlock(observer->lock);
    if (is_new) tell(context, &culprit);
    amp__observe_tell_culprit(context, number);
}

AMP_API amp_status amp_get_culprit(amp_context *context, amp_culprit *culprit) {
    amp_culprit last = AMP_CULPRIT_INIT;
    AMP_RETURN_IF(!context || !culprit, AMP_ERR_INVALID_ARGUMENT, "amp_get_culprit: an argument is NULL");
    amp__observe_collect(context);
    pthread_mutex_lock(&context->lock);
    if (context->observer && context->observer->culprit.bracket) last = context->observer->culprit;
    pthread_mutex_unlock(&context->lock);
    return amp__fill_struct(culprit, culprit->struct_size, sizeof last, &last, sizeof last, "amp_culprit");
}
