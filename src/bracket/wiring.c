/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mistakes in the wiring that a bracket can see: certain ones fail its end without a change, others are reported once.
 * Reading all gradients is costly, so it is done only in the first two brackets of an optimizer. Zeros in the first
 * prove nothing (a layer that starts with zeros hides those before it). An unlisted parameter may start to train late,
 * so two brackets in a row are checked, at growing distances.
 */
#include "bracket/wiring.h"
#include "common/thread.h"
#include "context/findings.h"
#include "context/op.h"
#include "context/optimizer.h"
#include "context/params.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/progress.h"
#include "context/report.h"
#include "context/wiring.h"
#include "raw/raw.h"

#include <stdio.h>
#include <string.h>

enum { NAMES = 3 };

/* ---- gradients as they are now ---- */

enum seen { NONE, ZEROS, SOME };

static bool is_zero(const char *bytes, size_t n) {
    return !n || (!*bytes && !memcmp(bytes, bytes + 1, n - 1));
}

/* Reads a gradient. One in device memory or with gaps counts as present. */
static amp_status look(const struct amp__param *param, enum seen *seen) {
    struct amp__elements now;
    void *grad = NULL;
    *seen = SOME;
    if (!param->host->grad) return AMP_OK;
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    if (!grad) *seen = NONE;
    if (!grad || param->on_device || !param->host->view) return AMP_OK;
    const amp_status status = amp__param_layout(param, grad, "gradient", &now);
    if (status != AMP_OK) return amp__fail_prefix(status, "%s", param->name);
    if (!now.strides && is_zero(now.data, (size_t)now.size * amp__dtype_size(now.dtype))) *seen = ZEROS;
    return AMP_OK;
}

static amp_status look_for_any(const struct amp__optimizer *optimizer, bool *any) {
    for (size_t i = 0; i < optimizer->n_params && !*any; i++) {
        enum seen seen;
        AMP_TRY(look(optimizer->params[i], &seen));
        *any = seen == SOME;
    }
    return AMP_OK;
}

static amp_status look_for_any_of(const struct amp__bracket *bracket, bool *any) {
    for (size_t i = 0; i < bracket->n_optimizers; i++) AMP_TRY(look_for_any(bracket->optimizers[i], any));
    return AMP_OK;
}

void amp__wiring_tell_failure(amp_context *context) {
    char text[AMP__ERROR_SIZE];
    snprintf(text, sizeof text, "%s", amp_last_error());
    (void)amp__warn(context, "%s", text);
}

/* ---- the scale ---- */

/* Its backward may have been that of brackets before it. */
static bool is_closing(const struct amp__bracket *bracket) {
    bool closing = bracket->opening.carried != 0.0f;
    for (size_t i = 0; i < bracket->n_optimizers; i++) closing |= bracket->optimizers[i]->delay.unchecked != 0;
    return closing;
}

static void name_seeds(const amp_context *context, amp__text *text, uint64_t *calls) {
    const struct amp__models *models = amp__models_of(context);
    size_t n = 0;
    for (size_t i = 0; i < models->n; i++)
        for (size_t j = 0; j < models->list[i].n_ops; j++) {
            const struct amp__op *op = &models->list[i].ops[j];
            if (!op->seeds) continue;
            if (n++ < NAMES) amp__text_add(text, n > 1 ? ", %s" : "%s", op->name);
            *calls += amp__op_calls(op);
        }
    if (n > NAMES) amp__text_add(text, ", ...");
}

static amp_status fail_seeds(amp_context *context) {
    char names[256] = "";
    amp__text text = { names, sizeof names, 0 };
    uint64_t calls = 0;
    name_seeds(context, &text, &calls);
    return amp__find_error(context, AMP__SEED_UNSEEN, AMP_ERR_CONFLICT, "", "end of the bracket: %s %s", names,
                           calls ? "emitted no seed in this bracket" : "saw no call");
}

amp_status amp__wiring_check_scale(const struct amp__bracket *bracket) {
    amp_context *context = bracket->context;
    const struct amp__scaler_settings *scaler = &amp__policy_of(context)->properties.scaler;
    const struct amp__opening *opening = &bracket->opening;
    if (opening->carrier == AMP__CARRIER_LOSS || opening->carrier == AMP__CARRIER_HOST) return AMP_OK;
    if ((scaler->dynamic ? bracket->scale : scaler->init_scale) == 1.0f || is_closing(bracket)) return AMP_OK;
    if (opening->carrier == AMP__CARRIER_SEEDS && amp__progress_of(context)->seeds_shown != opening->seeds_before)
        return AMP_OK;
    if (bracket->host && bracket->host->flags & AMP_HOST_SEEDS_ON_DEVICE) return AMP_OK;
    bool any = false;
    AMP_TRY(look_for_any_of(bracket, &any));
    if (!any) return AMP_OK;
    if (opening->carrier == AMP__CARRIER_SEEDS) return fail_seeds(context);
    return amp__find_error(context, AMP__SCALE_UNTAKEN, AMP_ERR_CONFLICT, "",
                           "end of the bracket: gradients would be divided by %g, but %s", (double)bracket->scale,
                           opening->with_loss ? "neither the loss (no hook scale) nor a seed was multiplied by it"
                                              : "no seed was multiplied by it");
}

/* A hook that loses the factor: the loss as it was comes back. */
static bool read_scalar(const struct amp__bracket *bracket, void *loss, float *value) {
    amp_tensor_view view = { .data = NULL };
    amp_span span;
    if (amp__host_view(bracket->host, loss, "the loss", &view) != AMP_OK) {
        amp__wiring_tell_failure(bracket->context);
        return false;
    }
    if (!amp__view_is_plain(&view, &span) || span.size != 1 || span.dtype != AMP_FLOAT32) return false;
    *value = *(const float *)span.data;
    return true;
}

void amp__wiring_check_loss(const struct amp__bracket *bracket, void *loss, void *scaled) {
    float before, after;
    if (bracket->scale == 1.0f || !bracket->host->view) return;
    if (amp__progress_of(bracket->context)->looks >= AMP__LOOKS) return;
    if (!read_scalar(bracket, loss, &before) || !read_scalar(bracket, scaled, &after)) return;
    if (before == 0.0f || !(before - before == 0.0f) || before != after) return; /* not infinity, nor a NaN */
    amp__find(bracket->context, AMP__SCALE_UNTAKEN, "scale",
              "begin of the bracket: the hook scale had to multiply the loss by %g, and returned it unchanged: %g",
              (double)bracket->scale, (double)after);
}

/* ---- gradients that should be there ---- */

bool amp__wiring_computes_in_fp16(const amp_context *context) {
    const struct amp__models *models = amp__models_of(context);
    const struct amp__properties *properties = &amp__policy_of(context)->properties;
    bool described = false, lowered = false;
    for (size_t i = 0; i < models->n; i++)
        for (size_t j = 0; j < models->list[i].n_ops; j++) {
            described = true;
            lowered |= models->list[i].ops[j].tally.last_target == AMP_FLOAT16;
        }
    return properties->low == AMP_FLOAT16 && (amp__retypes(properties) ||
                                              (properties->patch_ops && (lowered || !described)));
}

static void find_missing(const struct amp__optimizer *optimizer, size_t missing, const char *names) {
    const struct amp__properties *properties = &amp__policy_of(optimizer->context)->properties;
    const bool unscaled = !properties->scaler.dynamic && properties->scaler.init_scale == 1.0f;
    const bool zeros = optimizer->scans.brackets && (missing == optimizer->n_params || unscaled); /* and not NULL */
    const bool underflow = zeros && amp__wiring_computes_in_fp16(optimizer->context);
    char subject[32];
    if (!missing) return;
    const size_t number = amp__optimizer_number(optimizer);
    snprintf(subject, sizeof subject, "optimizer %zu", number);
    amp__find(optimizer->context, AMP__NO_GRADIENT, subject,
              "optimizer %zu: %zu of its %zu parameters got no gradient in its first %s: %s%s%s", number, missing,
              optimizer->n_params, optimizer->scans.brackets ? "two brackets" : "bracket", names,
              missing > NAMES ? ", ..." : "",
              underflow ? "; they are zero, and the likely cause is that they underflow in fp16 at this loss scale: "
                          "make it dynamic or raise it, or use bfloat16 (O4, O5)" : "");
}

/* In the second bracket: parameters may come late. Of sharded ones another rank may have them all. */
static void find_none(const struct amp__bracket *bracket, const struct amp__optimizer *optimizer) {
    const size_t number = amp__optimizer_number(optimizer);
    char subject[32];
    if (optimizer->n_params || optimizer->sharded || amp__progress_of(optimizer->context)->scaled_by_hand) return;
    if (bracket->scale == 1.0f || optimizer->scans.brackets != 1) return;
    snprintf(subject, sizeof subject, "optimizer %zu", number);
    amp__find(optimizer->context, AMP__NO_PARAMETERS, subject, "optimizer %zu lists no parameter, and the loss was "
              "scaled by %g", number, (double)bracket->scale);
}

static amp_status look_at_listed(struct amp__optimizer *optimizer) {
    char names[256] = "";
    amp__text text = { names, sizeof names, 0 };
    size_t missing = 0;
    optimizer->scans.missing = 0;
    const bool trivial = amp__scaling_is_trivial(&amp__policy_of(optimizer->context)->properties);
    for (size_t i = 0; i < optimizer->n_params; i++) {
        struct amp__param *param = optimizer->params[i];
        enum seen seen;
        const amp_status status = look(param, &seen);
        if (status != AMP_OK && !trivial) return status;
        if (status != AMP_OK) amp__wiring_tell_failure(optimizer->context);
        optimizer->scans.missing += seen != SOME;
        const bool is_missing = optimizer->scans.brackets ? seen == ZEROS && param->looked.zeros : seen == NONE;
        param->looked.zeros = seen == ZEROS;
        if (!is_missing || optimizer->sharded) continue;
        if (missing++ < NAMES) amp__text_add(&text, missing > 1 ? ", %s" : "%s", param->name);
    }
    find_missing(optimizer, missing, names);
    return AMP_OK;
}

/* Marks a parameter with a gradient that changes between brackets as trained. */
static void compare(amp_context *context, struct amp__param *param) {
    struct amp__elements now;
    if (amp__param_layout(param, param->tensor, param->name, &now) != AMP_OK || now.strides) return;
    const uint64_t sum = amp__sum64(0, now.data, (size_t)now.size * amp__dtype_size(now.dtype)) | 1;
    if (param->looked.sum && param->looked.sum != sum)
        amp__find(context, AMP__UNLISTED, param->name,
                  "%s has a gradient and changed between two brackets, and no optimizer lists it", param->name);
    param->looked.sum = sum;
}

/* Bracket number 2^k, from 0 on, is compared with the next: 8 and 9, 16 and 17, ... */
static bool opens_a_pair(uint32_t n) { return n >= 8 && !(n & (n - 1)); }

/* Of a sharded optimizer the others' parameters are another rank's. */
static void look_at_unlisted(amp_context *context) {
    struct amp__params *params = amp__params_of(context);
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    const uint32_t n = amp__progress_of(context)->looks;
    if (n >= AMP__LOOKS && !opens_a_pair(n) && !opens_a_pair(n - 1)) return;
    for (size_t i = 0; i < optimizers->n; i++)
        if (optimizers->list[i].sharded) return;
    for (size_t i = 0; i < params->n; i++) {
        struct amp__param *param = params->list[i];
        enum seen seen;
        if (param->in_optimizer || param->on_device || !param->host->view || !param->host->grad) continue;
        if (opens_a_pair(n)) param->looked.sum = 0; /* older than the bracket before */
        if (look(param, &seen) != AMP_OK) amp__wiring_tell_failure(context);
        else if (seen == SOME) compare(context, param);
    }
}

/* zero_grad was called inside the bracket, and nothing is there at its end. */
static amp_status look_after_clearing(struct amp__optimizer *optimizer) {
    bool any = false;
    AMP_TRY(look_for_any(optimizer, &any));
    if (!any)
        amp__find(optimizer->context, AMP__CLEARED_INSIDE, "",
                  "optimizer %zu: zero_grad was called inside the bracket, and its end found no gradient",
                  amp__optimizer_number(optimizer));
    return AMP_OK;
}

amp_status amp__wiring_check_gradients(const struct amp__bracket *bracket) {
    amp_context *context = bracket->context;
    struct amp__progress *progress = amp__progress_of(context);
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    const bool closing = is_closing(bracket); /* the backward was before */
    for (size_t i = 0; i < bracket->n_optimizers; i++) {
        struct amp__optimizer *optimizer = bracket->optimizers[i];
        struct amp__scans *scans = &optimizer->scans;
        if (scans->cleared_inside) AMP_TRY(look_after_clearing(optimizer));
        else if (scans->brackets < AMP__LOOKS && !closing) AMP_TRY(look_at_listed(optimizer));
        scans->cleared_inside = false;
        if (!closing) find_none(bracket, optimizer);
        if (scans->brackets < AMP__LOOKS && !closing) scans->brackets++;
    }
    if (closing) return AMP_OK;
    if (optimizers->n) look_at_unlisted(context);
    if (progress->looks < UINT32_MAX) progress->looks++;
    return AMP_OK;
}

void amp__wiring_check_clearing(struct amp__optimizer *optimizer) {
    if (!amp__step_in_bracket(optimizer)) return;
    bool any = false;
    optimizer->scans.cleared_inside = true;
    /* older ones are set aside, where anything is: backward made these */
    if (!optimizer->host.set_grad || amp__scaling_is_trivial(&amp__policy_of(optimizer->context)->properties)) return;
    if (look_for_any(optimizer, &any) != AMP_OK) amp__wiring_tell_failure(optimizer->context);
    else if (any)
        amp__find(optimizer->context, AMP__CLEARED_INSIDE, "",
                  "optimizer %zu: zero_grad was called between backward and the end of the bracket",
                  amp__optimizer_number(optimizer));
}

/* ---- ops ---- */

static void check_forward(amp_context *context, const struct amp__model *model, size_t number) {
    const struct amp__op *forward = &model->forward;
    if (!model->has_forward) return;
    if (amp__op_strangers(forward))
        amp__find(context, AMP__SELF_UNMET, forward->name,
                  "the forward slot of model %zu was called in the first bracket, but never for its own object (self)",
                  number);
    else if (amp__op_unused(forward))
        amp__find(context, AMP__FORWARD_UNSEEN, forward->name,
                  "the forward slot of model %zu saw no call in the first bracket", number);
}

static void check_scope(amp_context *context) {
    const struct amp__models *models = amp__models_of(context);
    uint64_t calls = 0, passed = 0;
    for (size_t i = 0; i < models->n; i++)
        for (size_t j = 0; j < models->list[i].n_ops; j++) {
            const struct amp__op *op = &models->list[i].ops[j];
            if (!op->wrapped || op->only_watched) continue;
            calls += amp__op_calls(op->shares ? op->shares : op);
            passed += amp__op_passed(op->shares ? op->shares : op);
        }
    if (!calls && passed)
        amp__find(context, AMP__OTHER_SCOPE, "", "no call of the context's ops in its first bracket was inside "
                  "its scope, and outside it were %llu", (unsigned long long)passed);
}

static bool was_called(const struct amp__op *op) {
    return op->wrapped && !op->only_watched && !amp__op_unused(op);
}

static bool is_used(const struct amp__model *model) {
    for (size_t i = 0; i < model->n_ops; i++)
        if (was_called(&model->ops[i])) return true;
    return false;
}

/* A model may use a part of a table. But where a backward ran, so did a forward with that name; and slots with the same
 * name and schema are often one for each layer. */
static bool went_past(const struct amp__model *model, const struct amp__op *op) {
    bool has_backward = false, has_forward = false, has_twin = false;
    for (size_t i = 0; i < model->n_ops; i++) {
        const struct amp__op *other = &model->ops[i];
        if (!was_called(other)) continue;
        has_backward |= other->forward && !strcmp(other->forward->name, op->name);
        if (strcmp(other->name, op->name) != 0) continue;
        has_forward = true;
        has_twin |= !strcmp(other->schema->text, op->schema->text);
    }
    return has_twin || (has_backward && !has_forward);
}

static size_t name_missed(amp__text *names, const struct amp__model *model, size_t found) {
    const bool used = is_used(model);
    for (size_t i = 0; i < model->n_ops && !(used && model->whole_table); i++)
        if (amp__op_unused(&model->ops[i]) && (!used || went_past(model, &model->ops[i])))
            amp__name_op(names, &model->ops[i], found++);
    return found;
}

static void check_slot(const struct amp__op *op) {
    if (op->wrap && amp__patch_taken(amp__wiring_of(op->context)->patch, op->wrap - 1))
        amp__find(op->context, AMP__SLOT_TAKEN, op->name, "the slot of %s has another function than after initialize",
                  op->name);
}

static void check_slots(const amp_context *context) {
    const struct amp__models *models = amp__models_of(context);
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    for (size_t i = 0; i < models->n; i++) {
        const struct amp__model *model = &models->list[i];
        for (size_t j = 0; j < model->n_ops; j++) check_slot(&model->ops[j]);
        if (model->has_forward) check_slot(&model->forward);
    }
    for (size_t i = 0; i < optimizers->n; i++) {
        const struct amp__slots *slots = &optimizers->list[i].slots;
        for (size_t j = 0; j < slots->n_steps; j++) check_slot(&slots->steps[j]);
    }
}

/* The first bracket made no gradient at all: wait for the second. */
static bool saw_an_empty_batch(const struct amp__optimizer *optimizer) {
    const size_t n = optimizer->n_params;
    return optimizer->scans.brackets < AMP__LOOKS && n && optimizer->scans.missing == n;
}

void amp__wiring_check_ops(amp_context *context) {
    struct amp__progress *progress = amp__progress_of(context);
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    const struct amp__models *models = amp__models_of(context);
    char names[512] = "";
    if (amp__policy_of(context)->verify) check_slots(context), amp__strays_judge(context);
    amp__text text = { names, sizeof names, 0 };
    size_t found = 0;
    if (progress->ops_checked) return;
    for (size_t i = 0; i < optimizers->n; i++) /* the model of another optimizer may run in another bracket */
        if (!optimizers->list[i].scans.brackets || saw_an_empty_batch(&optimizers->list[i])) return;
    progress->ops_checked = true;
    for (size_t i = 0; i < models->n; i++) {
        const struct amp__model *model = &models->list[i];
        found = name_missed(&text, model, found);
        check_forward(context, model, i);
    }
    check_scope(context);
    amp__norm_check(context);
    if (found)
        amp__find(context, AMP__OP_UNCALLED, "", "%zu wrapped op%s saw no call in the first bracket: %s%s", found,
                  AMP__S(found), names, text.length >= sizeof names ? "..." : "");
}

/* ---- non-finite gradients ---- */

/* By the CPU, where it can read them. */
static bool gradient_is_finite(amp_context *context, const struct amp__param *param) {
    struct amp__elements now;
    void *grad = NULL;
    if (param->on_device || !param->host->view || !param->host->grad) return true;
    amp_status status = amp__host_grad(param->host, param->tensor, param->name, &grad);
    if (status == AMP_OK && grad) status = amp__param_layout(param, grad, param->name, &now);
    if (status != AMP_OK) amp__wiring_tell_failure(context);
    return status != AMP_OK || !grad || now.strides || amp__is_finite(now.data, now.size, now.dtype);
}

static const struct amp__param *nonfinite_gradient(const struct amp__bracket *bracket) {
    for (size_t i = 0; i < bracket->n_optimizers; i++)
        for (size_t j = 0; j < bracket->optimizers[i]->n_params; j++)
            if (!gradient_is_finite(bracket->context, bracket->optimizers[i]->params[j]))
                return bracket->optimizers[i]->params[j];
    return NULL;
}

bool amp__wiring_check_finite(struct amp__bracket *bracket, const struct amp__grads_result *result) {
    const struct amp__properties *properties = &amp__policy_of(bracket->context)->properties;
    const struct amp__param *param = result->found_inf ? result->first_nonfinite : NULL;
    if (amp__scaler_skips(&properties->scaler)) return false;
    if (amp__scaling_is_trivial(properties)) { /* gradients are not inspected in this case, except now and then */
        const uint64_t n = bracket->record.brackets + 1;
        if (n & (n - 1)) return false;
        param = nonfinite_gradient(bracket);
    }
    if (param) amp__bracket_tell_nonfinite(bracket, param->name);
    return param != NULL;
}

const struct amp__param *amp__wiring_nonfinite_param(const amp_context *context) {
    struct amp__params *params = amp__params_of(context);
    for (size_t i = 0; i < params->n; i++) {
        const struct amp__param *param = params->list[i];
        if (param->in_optimizer && !amp__param_is_finite(param)) return param;
    }
    return NULL;
}
