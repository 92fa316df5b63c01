/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a context. */
#include "api/api.h"
#include "bracket/bracket.h"
#include "bracket/home.h"
#include "call/cache.h"
#include "call/tape.h"
#include "common/thread.h"
#include "context/build.h"
#include "context/context.h"
#include "context/op.h"
#include "context/optimizer.h"
#include "context/findings.h"
#include "context/live.h"
#include "context/trace.h"
#include "observe/observe.h"
#include "raw/raw.h"

#include <stdio.h>
#include <string.h>

/* ---- the end ---- */

void amp__context_destroy(amp_context *context) {
    amp__live_remove(context);
    amp__observe_free(context);
    amp__trace_close(context);
    (void)amp__patch_undo(context->wiring.patch); /* of an unfinished one */
    for (size_t i = 0; i < context->params.n; i++) amp__param_destroy(context->params.list[i]);
    for (size_t i = 0; context->models.list && i < context->models.n; i++) {
        struct amp__model *model = &context->models.list[i];
        amp__ops_destroy(model->ops, model->n_ops);
        amp__op_clear(&model->forward);
    }
    for (size_t i = 0; context->optimizers.list && i < context->optimizers.n; i++) {
        struct amp__optimizer *optimizer = &context->optimizers.list[i];
        amp__ops_destroy(optimizer->slots.steps, optimizer->slots.n_steps);
        amp__ops_destroy(optimizer->slots.zero_grads, optimizer->slots.n_zero_grads);
        amp__free(optimizer->params);
        amp__free(optimizer->scans.samples);
        amp__optim_destroy(optimizer->optim);
    }
    for (uint32_t i = 0; i < context->brackets.n; i++) {
        amp__free(context->brackets.list[i].unchecked.by_optimizer);
        amp__free(context->brackets.list[i].optimizers);
    }
    amp__home_end(context);
    amp__places_end(&context->devices);
    amp__cache_destroy(&context->cache);
    amp__plan_free(&context->brackets.plan);
    amp__spares_clear(&context->spares);
    void *blocks[] = { context->models.list,           context->optimizers.list,         context->params.list,
                       context->params.by_handle, context->params.by_id,       context->brackets.list,
                       context->brackets.listed,  context->reporting.warnings, context->tape.list,
                       context->addresses.ranges, context->addresses.grads };
    for (size_t i = 0; i < AMP_COUNT(blocks); i++) amp__free(blocks[i]);
    amp__names_free(&context->wiring.op_names);
    amp__findings_free(&context->reporting);
    amp__strays_free(context);
    amp__apart_forget(&context->params.apart);
    amp__fork_remove(&context->forkable);
    pthread_mutex_destroy(&context->lock);
    amp__free(context);
}

static amp_status check_idle(const amp_context *context) {
    AMP_RETURN_IF(context->progress.verifying, AMP_ERR_WRONG_STATE, "amp_shutdown inside amp_verify_step");
    const struct amp__thread *thread = amp__thread_state();
    bool entered = thread->scope.context == context;
    for (uint32_t i = 0; i < thread->n_marks; i++) {
        AMP_RETURN_IF(thread->marks[i].owner == context, AMP_ERR_WRONG_STATE,
                      "amp_shutdown inside a wrapped call of the same context: let it return first");
        entered |= thread->marks[i].saved.context == context;
    }
    for (uint32_t i = 0; i < thread->scopes && i < AMP__AROUND; i++) entered |= thread->around[i] == context;
    AMP_RETURN_IF(entered, AMP_ERR_WRONG_STATE,
                  "amp_shutdown inside a wrapped call or an entered scope of the same context: leave it first");
    for (size_t i = 0; i < context->optimizers.n; i++)
        AMP_RETURN_IF(amp__step_is_running(&context->optimizers.list[i]), AMP_ERR_WRONG_STATE,
                      "amp_shutdown while a step of optimizer %zu is running", i);
    /* a device that does not answer is lost, and its context ends all the same */
    const amp_status status =
        amp__home_refuse_capture(context, "amp_shutdown", "Call it when the graph's last replay is over");
    return status == AMP_ERR_WRONG_STATE ? status : AMP_OK;
}

static void cancel_brackets(amp_context *context) {
    for (size_t i = 0; i < context->optimizers.n; i++) /* gradients set aside by delayed brackets too */
        (void)amp__grads_cancel(context->optimizers.list[i].params, context->optimizers.list[i].n_params, true);
    for (size_t i = 0; i < context->params.n; i++) (void)amp__grads_unscale(context->params.list[i]);
    (void)amp__places_flush(&context->devices);
    for (uint32_t i = 0; i < context->brackets.n; i++)
        if (amp__bracket_is_open(&context->brackets.list[i])) amp__bracket_close(&context->brackets.list[i]);
}

/* Every parameter goes back to FP32. One that the host refuses to take keeps its type; the first error is reported, and
 * all that was left. */
static amp_status restore_params(amp_context *context) {
    amp_status status = AMP_OK;
    char text[AMP__ERROR_SIZE / 2] = "";
    for (size_t i = 0; i < context->params.n && amp__may_be_low(&context->policy.properties); i++) {
        const amp_status one = amp__param_restore(context->params.list[i]);
        if (one == AMP_OK || status != AMP_OK) continue;
        status = one;
        snprintf(text, sizeof text, "%s", amp_last_error());
    }
    if (status == AMP_OK) return AMP_OK;
    (void)amp__fail(status, "%s", text);
    return amp__params_tell_left(context, 0, status);
}

AMP_API amp_status amp_shutdown(amp_context *context) {
    if (!context) return AMP_OK;
    AMP_RETURN_IF(!amp__context_is_live(context), AMP_ERR_WRONG_STATE,
                  "amp_shutdown: there is no such context: was it shut down already?");
    amp__thread_recover(amp__thread_state(), __builtin_frame_address(0));
    AMP_TRY(check_idle(context));
    AMP_TRY(amp__weights_restore(context));
    cancel_brackets(context);
    amp__survey_at_end(context);
    amp__trace_ops(context);
    amp__cache_retire(&context->cache, false);
    amp__tape_release(context, true);
    const amp_status slots = amp__patch_undo(context->wiring.patch);
    char text[AMP__ERROR_SIZE];
    snprintf(text, sizeof text, "%s", amp_last_error());
    context->wiring.patch = NULL;
    const amp_status params = restore_params(context);
    for (size_t i = 0; i < context->models.n; i++) context->models.list[i].user->amp = NULL;
    for (size_t i = 0; i < context->optimizers.n; i++) context->optimizers.list[i].user->amp = NULL;
    amp__context_destroy(context);
    if (params != AMP_OK) return params;
    return slots == AMP_OK ? AMP_OK : amp__fail(slots, "%s", text);
}
