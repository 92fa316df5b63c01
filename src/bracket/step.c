/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step of an optimizer: follows the decision of the brackets, and shows FP32 masters under the handles of
 * parameters while it runs. zero_grad clears the gradients of masters too.
 */
#include "amp_call.h"
#include "bracket/bracket.h"
#include "bracket/home.h"
#include "bracket/step.h"
#include "bracket/wiring.h"
#include "call/cache.h"
#include "call/tape.h"
#include "common/thread.h"
#include "context/brackets.h"
#include "context/devices.h"
#include "context/findings.h"
#include "context/op.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/progress.h"
#include "context/report.h"

#include <stdio.h>

/* ---- masters in and out ---- */

/* At some levels no parameter is anything but FP32. */
static bool has_masters(const struct amp__optimizer *optimizer) {
    return amp__may_be_low(&amp__policy_of(optimizer->context)->properties);
}

static amp_status swap_out(struct amp__optimizer *optimizer, size_t n) {
    amp_status status = AMP_OK;
    if (!has_masters(optimizer)) return AMP_OK;
    for (size_t i = n; i--;) {
        const amp_status one = amp__master_swap_out(optimizer->params[i]);
        if (one != AMP_OK) status = one;
    }
    const amp_status launched = amp__places_flush(amp__devices_of(optimizer->context));
    for (size_t i = 0; i < n; i++) amp__master_release(optimizer->params[i]);
    return status == AMP_OK ? launched : status;
}

/* Takes back the lent storage of the first n parameters, which no step used, and frees what the next one joined.
 * Reconciled values are launched all the same, to keep a change by the host. */
static void undo_swap_in(struct amp__optimizer *optimizer, size_t n) {
    struct amp__devices *devices = amp__devices_of(optimizer->context);
    (void)amp__places_flush(devices);
    for (size_t i = n; i--;) amp__master_swap_undo(optimizer->params[i]);
    (void)amp__places_flush(devices);
    for (size_t i = 0; i <= n && i < optimizer->n_params; i++) amp__master_release(optimizer->params[i]);
}

static amp_status swap_in(struct amp__optimizer *optimizer) {
    amp_status status = AMP_OK;
    size_t n = 0;
    while (n < optimizer->n_params && has_masters(optimizer) && status == AMP_OK) {
        status = amp__master_swap_in(optimizer->params[n]);
        n += status == AMP_OK;
    }
    if (status == AMP_OK) status = amp__places_flush(amp__devices_of(optimizer->context));
    if (status != AMP_OK) undo_swap_in(optimizer, n);
    return status;
}

/* ---- decisions of the brackets ---- */

/* Returns true if optimizers share parameters. Otherwise they need no check. */
static bool shares(const struct amp__optimizer *optimizer) {
    return amp__optimizers_of(optimizer->context)->n > 1;
}

bool amp__optimizer_is_lent(const struct amp__optimizer *optimizer) {
    if (!shares(optimizer)) return amp__step_is_running(optimizer);
    for (size_t i = 0; i < optimizer->n_params; i++)
        if (optimizer->params[i]->lent.steps) return true;
    return false;
}

const struct amp__param *amp__optimizer_scaled_elsewhere(const struct amp__optimizer *optimizer) {
    for (size_t i = 0; i < optimizer->n_params && shares(optimizer); i++)
        if (amp__in_bracket(optimizer->params[i])) return optimizer->params[i];
    return NULL;
}

amp_status amp__step_check(const struct amp__optimizer *optimizer) {
    AMP_RETURN_IF(amp__progress_of(optimizer->context)->verifying, AMP_ERR_WRONG_STATE,
                  "step inside amp_verify_step: its run is forward and backward only");
    AMP_RETURN_IF(amp__step_in_bracket(optimizer), AMP_ERR_WRONG_STATE,
                  "step inside the bracket: call amp_scale_loss_end before the optimizer's step");
    AMP_RETURN_IF(amp__step_is_delayed(optimizer), AMP_ERR_WRONG_STATE,
                  "step while gradients are still scaled: the last bracket before a step must not have "
                  "AMP_DELAY_UNSCALE");
    AMP_RETURN_IF(optimizer->delay.unchecked, AMP_ERR_WRONG_STATE,
                  "step while it is not decided whether to: the last bracket of a loss_id before a step must not have "
                  "AMP_DELAY_OVERFLOW_CHECK");
    const struct amp__param *scaled = amp__optimizer_scaled_elsewhere(optimizer);
    AMP_RETURN_IF(scaled, AMP_ERR_WRONG_STATE,
                  "step while the gradient of %s is in the bracket of another optimizer that shares it, or is still "
                  "scaled: call amp_scale_loss_end first", scaled->name);
    return AMP_OK;
}

/* Reports at the third step, since one or two may precede the loop. */
static void check_brackets(const struct amp__optimizer *optimizer) {
    amp_context *context = optimizer->context;
    const struct amp__policy *policy = amp__policy_of(context);
    char subject[32];
    if (optimizer->decision.bracketed || optimizer->decision.taken != 3) return;
    if (amp__progress_of(context)->scaled_by_hand || !amp__scales(&policy->properties.scaler)) return;
    snprintf(subject, sizeof subject, "optimizer %zu", amp__optimizer_number(optimizer));
    amp__find(context, AMP__BRACKET_MISSING, subject, "%s has stepped three times at level %s, and no bracket has "
              "named it", subject, amp__level_name(policy->properties.level));
}

void amp__decision_used(struct amp__optimizer *optimizer) {
    amp_context *context = optimizer->context;
    optimizer->slots.called = 0;
    optimizer->decision.taken++;
    check_brackets(optimizer);
    optimizer->decision.skip = AMP__SKIP_NO;
    if (optimizer->state == AMP__STEP_DECIDED) amp__step_goes(optimizer, AMP__STEP_IDLE);
    optimizer->decision.last_step = ++amp__progress_of(context)->n_steps;
    amp__cache_retire(amp__cache_of(context), false); /* the weights changed, which not every host reports by
                                                         versions */
    amp__tape_release(context, false);
}

static amp_status begin(struct amp__optimizer *optimizer, amp_action *action) {
    AMP_TRY(amp__step_check(optimizer));
    if (!optimizer->skips_on_device) AMP_TRY(amp__home_wait(optimizer->context));
    const bool skip = optimizer->decision.skip || amp__has_error(optimizer->context);
    if (!skip) AMP_TRY(swap_in(optimizer));
    if (!optimizer->slots.running++) amp__step_goes(optimizer, AMP__STEP_RUNNING);
    *action = skip ? AMP_SKIP : amp__home_skip(optimizer) ? AMP_STEP_ON_DEVICE : AMP_STEP;
    return AMP_OK;
}

amp_status amp__step_over(struct amp__optimizer *optimizer, amp_action action) {
    const struct amp__devices *devices = amp__devices_of(optimizer->context);
    for (size_t i = 0; i < devices->n_places; i++)
        devices->places[i]->args.restore_if = action == AMP_STEP_ON_DEVICE ? amp__home_skip(optimizer) : NULL;
    amp__grads_stepped(optimizer->params, optimizer->n_params, action != AMP_STEP);
    AMP_TRY(amp__places_flush(devices));
    return amp__home_stepped(optimizer);
}

static amp_status end(struct amp__optimizer *optimizer, amp_action action) {
    if (!--optimizer->slots.running) amp__step_goes(optimizer, AMP__STEP_DECIDED);
    amp_status status = action != AMP_SKIP ? swap_out(optimizer, optimizer->n_params) : AMP_OK;
    /* not only the last of several slots moves */
    if (action != AMP_SKIP) amp__cache_retire(amp__cache_of(optimizer->context), false);
    const bool is_last = optimizer->slots.called + 1 >= optimizer->slots.expected;
    if (action == AMP_SKIP || is_last) {
        const amp_status stepped = amp__step_over(optimizer, action);
        if (status == AMP_OK) status = stepped;
        if (action == AMP_STEP) amp__wiring_note_step(optimizer);
    }
    if (++optimizer->slots.called >= optimizer->slots.expected) amp__decision_used(optimizer);
    return status;
}

/* ---- the wired slots ---- */

/* A longjmp out of the host's step: the parameters get their own storage back, as if the step had ended there. */
static void step_abandoned(void *user) { (void)end(user, amp__home_skip(user) ? AMP_STEP_ON_DEVICE : AMP_STEP); }

void amp__step_handler(void *user, struct amp__call *call) {
    struct amp__op *op = user;
    struct amp__optimizer *optimizer = op->target;
    struct amp__thread *thread = amp__thread_state();
    amp_action action = AMP_SKIP;
    atomic_fetch_add_explicit(&op->tally.calls, 1, memory_order_relaxed);
    amp_status status = begin(optimizer, &action);
    if (status != AMP_OK) {
        atomic_fetch_add_explicit(&op->tally.failures, 1, memory_order_relaxed);
        amp__keep_error(op->context, status);
        amp__call_return(call, op->on_skip);
        return;
    }
    /* ops inside a step are not cast: Apex runs step with casts disabled */
    const struct amp__scope_state none = { NULL, true, false, false };
    amp__anchor anchor;
    const bool marked = amp__mark_push(thread, __builtin_frame_address(0), &anchor, none,
                                       action != AMP_SKIP ? step_abandoned : NULL, optimizer);
    if (marked) amp__mark_own(thread, op->context);
    if (action != AMP_SKIP) amp__call_run(call, call->original, call->args);
    else amp__call_return(call, op->on_skip);
    if (marked) amp__mark_pop(thread, &anchor);
    status = end(optimizer, action);
    if (status != AMP_OK) amp__keep_error(op->context, status);
}

void amp__zero_grad_handler(void *user, struct amp__call *call) {
    struct amp__op *op = user;
    struct amp__optimizer *optimizer = op->target;
    struct amp__thread *thread = amp__thread_state();
    amp__anchor anchor;
    atomic_fetch_add_explicit(&op->tally.calls, 1, memory_order_relaxed);
    const bool marked = amp__mark_push(thread, __builtin_frame_address(0), &anchor, thread->scope, NULL, NULL);
    if (marked) amp__mark_own(thread, op->context);
    amp__wiring_check_clearing(optimizer);
    amp__call_run(call, call->original, call->args);
    if (marked) amp__mark_pop(thread, &anchor);
    amp__grads_forget(optimizer->params, optimizer->n_params);
    optimizer->scans.stayed = NULL;
    amp__step_clears(optimizer);
}

/* ---- hosts without a step slot ---- */

amp_status amp__optimizer_find(amp_optimizer *user, struct amp__optimizer **out) {
    AMP_RETURN_IF(!user, AMP_ERR_INVALID_ARGUMENT, "optimizer is NULL");
    AMP_TRY(amp__check_struct(user->struct_size, sizeof *user, "amp_optimizer"));
    AMP_RETURN_IF(!user->amp, AMP_ERR_WRONG_STATE,
                  "the optimizer is not initialised: call amp_initialize with it first");
    const struct amp__optimizers *optimizers = amp__optimizers_of(user->amp);
    for (size_t i = 0; i < optimizers->n; i++)
        if (optimizers->list[i].user == user) {
            *out = &optimizers->list[i];
            return AMP_OK;
        }
    return amp__fail(AMP_ERR_WRONG_STATE, "the optimizer's amp field names a context that it is no part of");
}

/* Reports a skip from an earlier bracket, which the last bracket alone does not explain. A host may also skip by
 * itself. */
static void tell_old_skip(struct amp__optimizer *optimizer) {
    amp_context *context = optimizer->context;
    char line[320];
    if (optimizer->decision.skip != AMP__SKIP_OLD || optimizer->decision.told_of_old) return;
    if (amp__brackets_of(context)->list[optimizer->decision.loss].found_inf != 0.0f) return;
    optimizer->decision.told_of_old = true;
    snprintf(line, sizeof line,
             "optimizer %zu: this step is skipped because of an overflow in an earlier bracket that no step followed. "
             "Nothing is wrong if a step has several brackets; otherwise %s", amp__optimizer_number(optimizer),
             amp__is_python(context) ? "call optimizer.step() after each block of amp.scale_loss"
                                     : "call amp_step_begin and amp_step_end for the action AMP_SKIP, too");
    amp__event(context, &optimizer->host, &(amp_event){ .kind = AMP_EVENT_LOG, .message = line });
}

AMP_API amp_status amp_step_begin(amp_optimizer *user, amp_step_info *info) {
    struct amp__optimizer *optimizer = NULL;
    amp_step_info filled = AMP_STEP_INFO_INIT;
    AMP_TRY(amp__optimizer_find(user, &optimizer));
    AMP_RETURN_IF(!info, AMP_ERR_INVALID_ARGUMENT, "amp_step_begin: info is NULL");
    AMP_RETURN_IF(optimizer->optim, AMP_ERR_CONFLICT,
                  "amp_step_begin: the optimizer is libamp's own (amp_optimizer.fused): call amp_fused_step");
    AMP_RETURN_IF(amp__step_is_running(optimizer), AMP_ERR_WRONG_STATE,
                  "amp_step_begin: a step of this optimizer is running; call amp_step_end first");
    AMP_TRY(amp__check_struct(info->struct_size, sizeof filled, "amp_step_info"));
    amp_action action;
    AMP_TRY(begin(optimizer, &action));
    tell_old_skip(optimizer);
    const amp_status status = amp_scope_enter(NULL, &optimizer->by_hand.scope);
    if (status != AMP_OK) {
        if (!--optimizer->slots.running) amp__step_goes(optimizer, AMP__STEP_DECIDED);
        if (action != AMP_SKIP) (void)swap_out(optimizer, optimizer->n_params);
        return status;
    }
    optimizer->by_hand.action = action;
    optimizer->by_hand.found_inf = action == AMP_SKIP ? 1.0f : 0.0f;
    optimizer->by_hand.begun = true;
    optimizer->by_hand.thread = amp__thread_state();
    filled.action = action;
    filled.found_inf = &optimizer->by_hand.found_inf;
    filled.grad_scale = 1.0f;
    filled.device = (amp_device){ 1, 0 };
    if (action == AMP_STEP_ON_DEVICE) {
        filled.found_inf = amp__home_skip(optimizer);
        filled.device = amp__devices_of(optimizer->context)->places[0]->device;
    }
    return amp__fill_struct(info, info->struct_size, sizeof filled, &filled, sizeof filled, "amp_step_info");
}

AMP_API amp_status amp_step_end(amp_optimizer *user) {
    struct amp__optimizer *optimizer = NULL;
    AMP_TRY(amp__optimizer_find(user, &optimizer));
    AMP_RETURN_IF(!optimizer->by_hand.begun, AMP_ERR_WRONG_STATE, "amp_step_end without amp_step_begin");
    AMP_RETURN_IF(optimizer->by_hand.thread != amp__thread_state(), AMP_ERR_WRONG_STATE,
                  "amp_step_end on another thread than amp_step_begin, which entered a scope there: call both on one "
                  "thread");
    optimizer->by_hand.begun = false;
    (void)amp_scope_leave(&optimizer->by_hand.scope);
    optimizer->slots.called = optimizer->slots.expected; /* one begin and end is a whole step */
    return end(optimizer, optimizer->by_hand.action);
}
