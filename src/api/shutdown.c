/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a context, and what it tells about itself. */
#include "amp_diagnostics.h"
#include "api/api.h"
#include "bracket/bracket.h"
#include "bracket/home.h"
#include "call/cache.h"
#include "call/gate.h"
#include "call/tape.h"
#include "common/thread.h"
#include "context/build.h"
#include "context/context.h"
#include "context/op.h"
#include "context/optimizer.h"
#include "context/report.h"

#include <stdio.h>
#include <string.h>

/* ---- the end ---- */

void amp__context_destroy(amp_context *context) {
    amp__live_remove(context);
    (void)amp__patch_undo(context->patch); /* of an unfinished one */
    for (size_t i = 0; i < context->n_params; i++) amp__param_destroy(context->params[i]);
    for (size_t i = 0; context->models && i < context->n_models; i++) {
        struct amp__model *model = &context->models[i];
        amp__ops_destroy(model->ops, model->n_ops);
        amp__op_clear(&model->forward);
    }
    for (size_t i = 0; context->optimizers && i < context->n_optimizers; i++) {
        struct amp__optimizer *optimizer = &context->optimizers[i];
        amp__ops_destroy(optimizer->steps, optimizer->n_steps);
        amp__ops_destroy(optimizer->zero_grads, optimizer->n_zero_grads);
        amp__free(optimizer->params);
        amp__optim_destroy(optimizer->optim);
    }
    for (uint32_t i = 0; context->brackets && i < context->properties.num_losses; i++) {
        amp__free(context->brackets[i].unchecked);
        amp__free(context->brackets[i].optimizers);
    }
    amp__home_end(context);
    amp__places_end(context);
    amp__cache_destroy(&context->cache);
    amp__plan_free(&context->plan);
    amp__spares_clear(&context->spares);
    void *blocks[] = { context->models, context->optimizers, context->params,   context->by_handle,
                       context->by_id,  context->brackets,   context->warnings, context->taped,
                       context->ranges, context->grad_ranges,  context->listed };
    for (size_t i = 0; i < AMP_COUNT(blocks); i++) amp__free(blocks[i]);
    amp__names_free(&context->op_names);
    amp__apart_forget(&context->apart);
    amp__fork_remove(&context->forkable);
    pthread_mutex_destroy(&context->lock);
    amp__free(context);
}

static amp_status check_idle(const amp_context *context) {
    const struct amp__thread *thread = amp__thread_state();
    for (uint32_t i = 0; i < thread->n_marks; i++)
        AMP_RETURN_IF(thread->marks[i].owner == context, AMP_ERR_WRONG_STATE,
                      "amp_shutdown inside a wrapped call of the same context: let it return first");
    AMP_RETURN_IF(thread->scope.set && thread->scope.context == context, AMP_ERR_WRONG_STATE,
                  "amp_shutdown inside a wrapped call or an entered scope of the same context: leave it first");
    for (size_t i = 0; i < context->n_optimizers; i++)
        AMP_RETURN_IF(context->optimizers[i].stepping, AMP_ERR_WRONG_STATE,
                      "amp_shutdown while a step of optimizer %zu is running", i);
    return AMP_OK;
}

static void cancel_brackets(amp_context *context) {
    for (size_t i = 0; i < context->n_optimizers; i++) /* also what delayed brackets set aside */
        (void)amp__grads_cancel(context->optimizers[i].params, context->optimizers[i].n_params, true);
    for (size_t i = 0; i < context->n_params; i++) (void)amp__grads_unscale(context->params[i]);
    (void)amp__places_flush(context);
    for (uint32_t i = 0; i < context->properties.num_losses; i++)
        if (context->brackets[i].open) amp__bracket_close(&context->brackets[i]);
}

/* Every parameter goes back to FP32. One that the host refuses to take keeps its type; the first error is reported, and
 * all that was left. */
static amp_status restore_params(amp_context *context) {
    amp_status status = AMP_OK;
    char text[AMP__ERROR_SIZE / 2] = "";
    for (size_t i = 0; i < context->n_params && amp__may_be_low(&context->properties); i++) {
        const amp_status one = amp__param_restore(context->params[i]);
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
    cancel_brackets(context);
    amp__cache_retire(&context->cache, false);
    amp__tape_release(context, true);
    const amp_status slots = amp__patch_undo(context->patch);
    char text[AMP__ERROR_SIZE];
    snprintf(text, sizeof text, "%s", amp_last_error());
    context->patch = NULL;
    const amp_status params = restore_params(context);
    for (size_t i = 0; i < context->n_models; i++) context->models[i].user->amp = NULL;
    for (size_t i = 0; i < context->n_optimizers; i++) context->optimizers[i].user->amp = NULL;
    amp__context_destroy(context);
    if (params != AMP_OK) return params;
    return slots == AMP_OK ? AMP_OK : amp__fail(slots, "%s", text);
}

/* ---- counters ---- */

static void read_stats(const struct amp__op *listed, amp_op_stats *stats) {
    const struct amp__op *op = listed->shares ? listed->shares : listed; /* a shared slot's calls are counted there */
    *stats = (amp_op_stats){
        .struct_size = sizeof *stats,
        .index = listed->index,
        .name = listed->name,
        .op_class = op->op_class,
        .last_target = op->last_target,
        .calls = amp__op_calls(op),
        .passed = amp__op_passed(op),
        .casts = op->casts,
        .cache_hits = amp__op_hits(op),
        .failures = op->failures,
        .wrapped = op->wrapped,
        .overflowed = op->overflowed,
        .zeroed = op->zeroed,
        .subnormal = op->subnormal,
        .gated = op->gated,
        .no_tensor_cores = op->no_tensor_cores,
        .unaligned = op->unaligned,
    };
}

AMP_API amp_status amp_get_op_stats(amp_context *context, amp_op_stats *stats, size_t capacity, size_t *count) {
    AMP_RETURN_IF(!context || !count || (capacity && !stats), AMP_ERR_INVALID_ARGUMENT,
                  "amp_get_op_stats: an argument is NULL");
    if (capacity) AMP_TRY(amp__check_struct(stats->struct_size, sizeof *stats, "amp_op_stats"));
    const uint32_t stride = capacity ? stats->struct_size : 0;
    size_t n = 0;
    for (size_t i = 0; i < context->n_models; i++)
        for (size_t j = 0; j < context->models[i].n_ops; j++, n++) {
            if (n >= capacity) continue;
            amp_op_stats *entry = (amp_op_stats *)(void *)((char *)stats + n * stride), filled;
            read_stats(&context->models[i].ops[j], &filled);
            entry->struct_size = stride;
            AMP_TRY(amp__fill_struct(entry, stride, sizeof filled, &filled, sizeof filled, "amp_op_stats"));
        }
    *count = n;
    return AMP_OK;
}

/* ---- explain ---- */

static void explain_level(const amp_context *context, amp__text *text) {
    const struct amp__properties *p = &context->properties;
    amp__text_add(text, "level %s%s: ops %s (%s lists, %s), model type %s, outputs %s, batch norm %s, masters %s, loss "
                  "scale %s%g\n", amp__level_name(p->level), p->enabled ? "" : " (disabled)",
                  p->patch_ops ? "cast" : "as they come", amp__lists_name(p->lists), amp__dtype_name(p->low),
                  amp__dtype_name(p->cast_model_type), amp__dtype_name(p->cast_model_outputs),
                  p->keep_batchnorm_fp32 ? "fp32" : "as the model", p->master_weights ? "fp32" : "none",
                  p->scaler.dynamic ? "dynamic from " : "static ", (double)p->scaler.init_scale);
}

static bool explain_op(const struct amp__op *op, const char *wanted, amp__text *text) {
    if (wanted && strcmp(op->name, wanted)) return false;
    char number[16] = "";
    if (op->index) snprintf(number, sizeof number, "#%u", (unsigned)op->index);
    amp__text_add(text, "%s%s: %s (%s)%s", op->name, number, amp__class_name(op->op_class), op->reason,
                  op->wrapped ? ", wrapped" : op->slot ? "" : ", called directly");
    if (op->fp32 && op->wrapped) amp__text_add(text, "; fp32 by an implementation");
    amp__gate_explain(op, text);
    amp__text_add(text, "\n");
    return true;
}

/* An op that no descriptor names, by its place in the list: hosts that see ops by name ask amp_op_class for such. */
static bool explain_listed(const amp_context *context, const char *op, amp__text *text) {
    const struct amp__properties *p = &context->properties;
    char base[AMP__OP_NAME_MAX + 1];
    amp__op_base_name(op, base);
    const amp_class listed = p->patch_ops ? amp__list_class(p->lists, p->low, base) : AMP_BY_LIST;
    if (listed == AMP_BY_LIST) return false;
    amp__text_add(text, "%s: %s (%s, in the %s lists), not described\n", op, amp__class_name(listed), base,
                  amp__lists_name(p->lists));
    return true;
}

AMP_API amp_status amp_explain(amp_context *context, const char *op, char *data, size_t capacity, size_t *length) {
    AMP_RETURN_IF(!context || (capacity && !data), AMP_ERR_INVALID_ARGUMENT, "amp_explain: an argument is NULL");
    amp__text text = { data, capacity, 0 };
    bool found = false;
    if (!op) {
        explain_level(context, &text);
        pthread_mutex_lock(&context->lock);
        if (context->warnings) amp__text_add(&text, "%s", context->warnings);
        pthread_mutex_unlock(&context->lock);
    }
    for (size_t i = 0; i < context->n_models; i++)
        for (size_t j = 0; j < context->models[i].n_ops; j++)
            found |= explain_op(&context->models[i].ops[j], op, &text);
    if (op && !found) found = explain_listed(context, op, &text);
    AMP_RETURN_IF(op && !found, AMP_ERR_NOT_FOUND,
                  "amp_explain: the context has no op named \"%.127s\", and its lists have none", op);
    if (length) *length = text.length;
    return AMP_OK;
}
