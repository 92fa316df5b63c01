/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of a context: counters, findings, ops, and its health. */
#include "amp_diagnostics.h"
#include "bracket/bracket.h"
#include "bracket/home.h"
#include "bracket/wiring.h"
#include "call/gate.h"
#include "context/context.h"
#include "context/findings.h"
#include "context/op.h"
#include "context/optimizer.h"
#include "context/report.h"
#include "raw/raw.h"

#include <stdio.h>
#include <string.h>

/* ---- counters ---- */

static void read_stats(const struct amp__op *listed, amp_op_stats *stats) {
    const struct amp__op *op = listed->shares ? listed->shares : listed; /* a shared slot's calls are counted there */
    *stats = (amp_op_stats){
        .struct_size = sizeof *stats,
        .index = listed->index,
        .name = listed->name,
        .op_class = op->op_class,
        .last_target = op->tally.last_target,
        .calls = amp__op_calls(op),
        .passed = amp__op_passed(op),
        .casts = op->tally.casts,
        .cache_hits = amp__op_hits(op),
        .failures = op->tally.failures,
        .wrapped = op->wrapped,
        .overflowed = op->tally.overflowed,
        .zeroed = op->tally.zeroed,
        .subnormal = op->tally.subnormal,
        .gated = op->tally.gated,
        .no_tensor_cores = op->tally.no_tensor_cores,
        .unaligned = op->tally.unaligned,
    };
}

AMP_API amp_status amp_get_op_stats(amp_context *context, amp_op_stats *stats, size_t capacity, size_t *count) {
    AMP_RETURN_IF(!context || !count || (capacity && !stats), AMP_ERR_INVALID_ARGUMENT,
                  "amp_get_op_stats: an argument is NULL");
    if (capacity) AMP_TRY(amp__check_struct(stats->struct_size, sizeof *stats, "amp_op_stats"));
    const uint32_t stride = capacity ? stats->struct_size : 0;
    size_t n = 0;
    for (size_t i = 0; i < context->models.n; i++)
        for (size_t j = 0; j < context->models.list[i].n_ops; j++, n++) {
            if (n >= capacity) continue;
            amp_op_stats *entry = (amp_op_stats *)(void *)((char *)stats + n * stride), filled;
            read_stats(&context->models.list[i].ops[j], &filled);
            entry->struct_size = stride;
            AMP_TRY(amp__fill_struct(entry, stride, sizeof filled, &filled, sizeof filled, "amp_op_stats"));
        }
    *count = n;
    return AMP_OK;
}

/* ---- explain ---- */

static const char *masters_of(const amp_context *context) {
    if (context->addresses.released) return "none (blocks released)";
    if (context->policy.properties.stochastic) return "none (rounded at random)";
    if (!context->policy.properties.master_weights) return "none";
    if (context->policy.properties.split_masters) return "fp32, split";
    return context->policy.keeps_blocks ? "the host's own fp32" : "fp32";
}

static void explain_level(const amp_context *context, amp__text *text) {
    const struct amp__properties *p = &context->policy.properties;
    amp__text_add(text, "level %s%s: ops %s (%s lists, %s), model type %s, outputs %s, batch norm %s, masters %s, loss "
                  "scale %s%g\n", amp__level_name(p->level), p->enabled ? "" : " (disabled)",
                  p->patch_ops ? "cast" : "as they come", amp__lists_name(p->lists), amp__dtype_name(p->low),
                  amp__dtype_name(p->cast_model_type), amp__dtype_name(p->cast_model_outputs),
                  p->keep_batchnorm_fp32 ? "fp32" : "as the model",
                  masters_of(context), p->scaler.dynamic ? "dynamic from " : "static ", (double)p->scaler.init_scale);
}

static bool explain_op(const struct amp__op *op, const char *wanted, amp__text *text) {
    if (wanted && strcmp(op->name, wanted)) return false;
    char number[16] = "";
    if (op->index) snprintf(number, sizeof number, "#%u", (unsigned)op->index);
    amp__text_add(text, "%s%s: %s (%s)%s", op->name, number, amp__class_name(op->op_class), op->reason,
                  op->wrapped ? ", wrapped" : op->slot ? "" : ", called directly");
    if (op->functions.fp32 && op->wrapped) amp__text_add(text, "; fp32 by an implementation");
    amp__gate_explain(op, text);
    amp__text_add(text, "\n");
    return true;
}

/* An op that no descriptor names, by its place in the list: hosts that see ops by name ask amp_op_class for such. */
static bool explain_listed(const amp_context *context, const char *op, amp__text *text) {
    const struct amp__properties *p = &context->policy.properties;
    char base[AMP__OP_NAME_MAX + 1];
    amp__op_base_name(op, base);
    const amp_class listed = p->patch_ops ? amp__list_class(p->lists, p->low, base) : AMP_BY_LIST;
    if (listed == AMP_BY_LIST) return false;
    amp__text_add(text, "%s: %s (%s, in the %s lists), not described\n", op, amp__class_name(listed), base,
                  amp__lists_name(p->lists));
    return true;
}

/* Under the context's lock. */
static size_t tell_findings(const amp_context *context, amp__text *text) {
    size_t n = 0;
    for (const struct amp__finding *finding = context->reporting.findings; finding; finding = finding->next, n++) {
        amp__text_add(text, "%s%s", finding->status == AMP_OK ? "" : "error: ", finding->message);
        if (finding->times > 1) amp__text_add(text, " (%llu times)", (unsigned long long)finding->times);
        amp__text_add(text, "\n");
    }
    return n;
}

AMP_API amp_status amp_explain(amp_context *context, const char *op, char *data, size_t capacity, size_t *length) {
    AMP_RETURN_IF(!context || (capacity && !data), AMP_ERR_INVALID_ARGUMENT, "amp_explain: an argument is NULL");
    amp__text text = { data, capacity, 0 };
    bool found = false;
    if (!op) {
        explain_level(context, &text);
        pthread_mutex_lock(&context->lock);
        if (context->reporting.warnings) amp__text_add(&text, "%s", context->reporting.warnings);
        (void)tell_findings(context, &text);
        pthread_mutex_unlock(&context->lock);
    }
    for (size_t i = 0; i < context->models.n; i++)
        for (size_t j = 0; j < context->models.list[i].n_ops; j++)
            found |= explain_op(&context->models.list[i].ops[j], op, &text);
    if (op && !found) found = explain_listed(context, op, &text);
    AMP_RETURN_IF(op && !found, AMP_ERR_NOT_FOUND,
                  "amp_explain: the context has no op named \"%.127s\", and its lists have none", op);
    if (length) *length = text.length;
    return AMP_OK;
}

/* ---- configuration ---- */

AMP_API amp_status amp_get_config(amp_context *context, amp_config *config) {
    AMP_RETURN_IF(!context || !config, AMP_ERR_INVALID_ARGUMENT, "amp_get_config: an argument is NULL");
    AMP_TRY(amp__check_struct(config->struct_size, sizeof *config, "amp_config"));
    struct amp__properties properties = context->policy.properties;
    properties.trace = NULL; /* borrowed for amp_initialize alone */
    return amp__properties_tell(&properties, config);
}

/* ---- findings ---- */

AMP_API amp_status amp_get_findings(amp_context *context, amp_finding *findings, size_t capacity, size_t *count) {
    AMP_RETURN_IF(!context || !count || (capacity && !findings), AMP_ERR_INVALID_ARGUMENT,
                  "amp_get_findings: an argument is NULL");
    if (capacity) AMP_TRY(amp__check_struct(findings->struct_size, sizeof *findings, "amp_finding"));
    const uint32_t stride = capacity ? findings->struct_size : 0;
    size_t n = 0;
    pthread_mutex_lock(&context->lock);
    for (const struct amp__finding *finding = context->reporting.findings; finding; finding = finding->next, n++) {
        if (n >= capacity) continue;
        const amp_finding filled = { .struct_size = stride,
                                     .status = finding->status,
                                     .code = amp__finding_code(finding->kind),
                                     .subject = finding->subject,
                                     .message = finding->message,
                                     .times = finding->times };
        memcpy((char *)findings + n * stride, &filled, sizeof filled);
    }
    pthread_mutex_unlock(&context->lock);
    *count = n;
    return AMP_OK;
}

/* ---- health ---- */

struct ops_seen {
    size_t described, wrapped, called, lowered, unused;
    uint64_t calls, passed, casts, hits;
};

static void count_op(const amp_context *context, const struct amp__op *listed, struct ops_seen *seen) {
    const struct amp__op *op = listed->shares ? listed->shares : listed;
    const uint64_t calls = amp__op_calls(op);
    seen->described++;
    seen->wrapped += op->wrapped;
    seen->called += calls != 0;
    seen->lowered += op->tally.last_target == context->policy.properties.low;
    seen->unused += amp__op_unused(listed);
    if (listed->shares) return;
    seen->calls += calls;
    seen->passed += amp__op_passed(op);
    seen->casts += op->tally.casts;
    seen->hits += amp__op_hits(op);
}

static void tell_ops(const amp_context *context, amp__text *text) {
    struct ops_seen seen = { 0 };
    size_t named = 0;
    for (size_t i = 0; i < context->models.n; i++)
        for (size_t j = 0; j < context->models.list[i].n_ops; j++)
            count_op(context, &context->models.list[i].ops[j], &seen);
    amp__text_add(text, "ops: %zu described, %zu wrapped, %zu called, %zu ran in %s at their last call; %llu call%s, "
                  "%llu passed by; %llu cast%s, %llu from the cache\n", seen.described, seen.wrapped, seen.called,
                  seen.lowered, amp__dtype_name(context->policy.properties.low), (unsigned long long)seen.calls,
                  AMP__S(seen.calls), (unsigned long long)seen.passed, (unsigned long long)seen.casts,
                  AMP__S(seen.casts), (unsigned long long)seen.hits);
    if (!seen.unused) return;
    amp__text_add(text, "without a call: ");
    for (size_t i = 0; i < context->models.n; i++)
        named = amp__name_unused(text, context->models.list[i].ops, context->models.list[i].n_ops, named);
    amp__text_add(text, "\n");
}

static void tell_loss(const struct amp__bracket *bracket, amp__text *text) {
    static const char *const carriers[] = {
        [AMP__CARRIER_NONE] = "nothing", [AMP__CARRIER_LOSS] = "the loss", [AMP__CARRIER_SEEDS] = "seeds of ops",
        [AMP__CARRIER_HOST] = "the host (amp_seed_factor)",
    };
    const amp_record *record = &bracket->record;
    amp__text_add(text, "loss %u: %llu bracket%s, %llu of them skipped, scale %g", (unsigned)bracket->loss_id,
                  (unsigned long long)record->brackets, AMP__S(record->brackets), (unsigned long long)record->skipped,
                  (double)record->scale_after);
    if (record->brackets)
        amp__text_add(text, ", in the last one %g, carried by %s", (double)record->scale_before,
                      record->scale_before == 1.0f ? "nothing, for it is 1" : carriers[bracket->opening.carrier]);
    amp__text_add(text, "\n");
}

static void tell_optimizer(const struct amp__optimizer *optimizer, amp__text *text) {
    size_t masters = 0;
    for (size_t i = 0; i < optimizer->n_params; i++) masters += optimizer->params[i]->has_master;
    amp__text_add(text, "optimizer %zu: %zu parameter%s, %zu with FP32 masters; %llu decision%s, %llu taken by a step",
                  amp__optimizer_number(optimizer), optimizer->n_params, AMP__S(optimizer->n_params), masters,
                  (unsigned long long)optimizer->decision.made, AMP__S(optimizer->decision.made),
                  (unsigned long long)optimizer->decision.taken);
    if (optimizer->scans.brackets)
        amp__text_add(text, "; gradients seen in %zu, missing in %zu", optimizer->n_params - optimizer->scans.missing,
                      optimizer->scans.missing);
    amp__text_add(text, "\n");
}

/* Reports mistakes with a scale other than 1 that leave no trace in the data of libamp. */
static void tell_unseen(const amp_context *context, amp__text *text) {
    bool scales = false, by_loss = false, by_host = false;
    for (uint32_t i = 0; i < context->brackets.n; i++) {
        const struct amp__bracket *bracket = &context->brackets.list[i];
        if (!bracket->record.brackets || bracket->record.scale_before == 1.0f) continue;
        scales = true;
        by_loss |= bracket->opening.carrier == AMP__CARRIER_LOSS;
        by_host |= bracket->opening.carrier == AMP__CARRIER_HOST;
    }
    if (!scales) return;
    amp__text_add(text, "cannot be seen: ");
    if (by_loss) amp__text_add(text, "whether backward starts from amp_scaled_loss.loss, not from the unscaled loss; ");
    if (by_host) amp__text_add(text, "whether backward's seed is multiplied with amp_seed_factor, once; ");
    amp__text_add(text, "%sa trained parameter that is in no model and no optimizer%s\n",
                  by_loss || by_host ? "amp_verify_step compares the gradients. Nor " : "",
                  context->policy.verify ? "" : "; AMP_VERIFY=1 finds it where an op writes its gradient");
}

AMP_API amp_status amp_health(amp_context *context, char *data, size_t capacity, size_t *length) {
    AMP_RETURN_IF(!context || (capacity && !data), AMP_ERR_INVALID_ARGUMENT, "amp_health: an argument is NULL");
    amp__text text = { data, capacity, 0 };
    const struct amp__properties *properties = &context->policy.properties;
    for (uint32_t i = 0; context->devices.skips && i < properties->num_losses; i++)
        AMP_TRY(context->brackets.list[i].home->read(&context->brackets.list[i]));
    amp__norm_check(context);
    explain_level(context, &text);
    tell_ops(context, &text);
    for (uint32_t i = 0; i < properties->num_losses; i++) tell_loss(&context->brackets.list[i], &text);
    tell_unseen(context, &text);
    for (size_t i = 0; i < context->optimizers.n; i++) tell_optimizer(&context->optimizers.list[i], &text);
    for (uint32_t i = 0; i < properties->num_losses; i++) amp__bracket_find_skips(&context->brackets.list[i]);
    for (size_t i = 0; i < context->optimizers.n; i++) amp__sampled_judge(&context->optimizers.list[i]);
    pthread_mutex_lock(&context->lock);
    if (context->policy.verify) amp__reference_health(context, &text);
    const size_t n = tell_findings(context, &text);
    pthread_mutex_unlock(&context->lock);
    if (n) amp__text_add(&text, n == 1 ? "1 finding\n" : "%zu findings\n", n);
    else amp__text_add(&text, "sound\n");
    if (length) *length = text.length;
    return AMP_OK;
}
