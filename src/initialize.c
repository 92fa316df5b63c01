/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_initialize: builds a context from the caller's descriptors, checks everything, prepares every closure, and only
 * then touches the host: parameters are re-typed (and put back if one refuses), slots are swapped. All or nothing.
 */
#include "api/api.h"
#include "bracket/bracket.h"
#include "bracket/fused.h"
#include "bracket/home.h"
#include "bracket/step.h"
#include "call/cache.h"
#include "call/call.h"
#include "call/gate.h"
#include "common/map.h"
#include "context/build.h"
#include "context/context.h"
#include "context/environment.h"
#include "context/findings.h"
#include "context/live.h"
#include "context/log.h"
#include "context/op.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/report.h"
#include "context/trace.h"
#include "observe/observe.h"
#include "raw/raw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- hooks that the level needs ---- */

static amp_status need_types(const amp_host *host, const char *who) {
    return amp__host_need(host->dtype || host->view, "dtype (or view)", who, "the policy asks each argument's type");
}

static amp_status need_for_casts(const amp_host *host, const char *who) {
    AMP_TRY(amp__host_need(host->cast != NULL, "cast", who, "it makes the copies in another type, on the host's tape"));
    return amp__host_need(host->release != NULL, "release", who, "it ends those copies");
}

/* Without the hook swap_data: can ops have 16-bit copies of the host's FP32 blocks? Where none takes parameters as
 * handles, and one at least takes copies. */
static amp_status need_for_copies(amp_context *context, const struct amp__model *model, const char *who) {
    bool can = model->n_ops && amp__keeps_block(&context->policy.properties, &model->host);
    size_t replaced = 0;
    const struct amp__op *lacks = model->ops; /* a 16-bit implementation */
    for (size_t i = model->n_ops; i--;) {
        const struct amp__op *op = &model->ops[i];
        can &= !amp__op_takes_handles(op);
        replaced += op->raw_mode == AMP__RAW_REPLACE;
        if (op->op_class == AMP_LOWER && op->raw_mode == AMP__RAW_NONE) lacks = op;
    }
    const struct amp__properties *properties = &context->policy.properties;
    AMP_RETURN_IF(properties->split_masters || properties->stochastic, AMP_ERR_CONFLICT,
                  "%s master_weights is %s, and without the hook swap_data the host's own FP32 blocks stay under its "
                  "handles and are the masters: leave it at its default", who,
                  properties->split_masters ? "AMP_SPLIT" : "AMP_STOCHASTIC");
    AMP_TRY(amp__host_need(can, "swap_data", who, "this level re-types parameters by putting other storage under their "
                           "handles. Without it use O1 or O4, or set amp_config.emulate, which rounds them in place, "
                           "or give ops that take raw buffers, and no handles, 16-bit implementations"));
    AMP_RETURN_IF(!replaced, AMP_ERR_MISSING_HOOK, "%s no op takes raw parameters in 16 bits, and there is no hook "
                  "swap_data: give %s a %s implementation (amp_op.fp16, bf16), or set amp_config.emulate", who,
                  lacks->name, amp__dtype_name(properties->low));
    context->policy.keeps_blocks = true;
    return AMP_OK;
}

static amp_status need_for_retyping(amp_context *context, const struct amp__model *model, const char *who) {
    AMP_TRY(amp__host_need(model->host.view != NULL, "view", who, "this level re-types parameters and must see them"));
    return model->host.swap_data || context->policy.properties.emulate ? AMP_OK : need_for_copies(context, model, who);
}

static amp_status need_for_scaling(const amp_host *host, const char *who) {
    AMP_TRY(amp__host_need(host->view != NULL, "view", who, "gradients are unscaled through it"));
    AMP_TRY(amp__host_need(host->grad != NULL, "grad", who, "the scaler must see the parameters' gradients"));
    return amp__host_need(!host->set_grad || host->release, "release", who, "set_grad hands gradients to libamp");
}

static amp_status check_model_hooks(amp_context *context, const struct amp__model *model, size_t n_params,
                                    size_t index) {
    const struct amp__properties *properties = &context->policy.properties;
    char who[96];
    bool casts = false;
    bool bans = false;
    for (size_t i = 0; i < model->n_ops; i++) { /* raw buffers need no hook */
        const struct amp__op *op = &model->ops[i];
        casts |= amp__op_takes_handles(op) && (amp__class_casts(op->op_class) || amp__op_may_round(op));
        bans |= amp__op_takes_handles(op) && op->op_class == AMP_BANNED;
    }
    casts |= model->has_forward && amp__op_takes_handles(&model->forward) &&
        (properties->cast_model_type != AMP_DTYPE_UNCHANGED || properties->cast_model_outputs != AMP_DTYPE_UNCHANGED);
    snprintf(who, sizeof who, "level %s, model %zu:", amp__level_name(properties->level), index);
    if (!properties->enabled) return AMP_OK;
    if (casts || bans) AMP_TRY(need_types(&model->host, who));
    if (casts) AMP_TRY(need_for_casts(&model->host, who));
    if (amp__retypes(properties) && n_params) AMP_TRY(need_for_retyping(context, model, who));
    return AMP_OK;
}

static amp_status check_optimizer_hooks(const amp_context *context, const struct amp__optimizer *optimizer,
                                        size_t n_params, size_t index) {
    char who[96];
    snprintf(who, sizeof who, "level %s, optimizer %zu:", amp__level_name(context->policy.properties.level), index);
    if (optimizer->optim && n_params) {
        AMP_TRY(amp__host_need(optimizer->host.view != NULL, "view", who, "libamp's own optimizer updates through it"));
        AMP_TRY(
            amp__host_need(optimizer->host.grad != NULL, "grad", who, "libamp's own optimizer reads the gradients"));
        AMP_TRY(amp__host_need(!optimizer->host.set_grad || optimizer->host.release, "release", who,
                               "set_grad hands gradients to libamp"));
    }
    const bool trains_16_bits = context->policy.keeps_blocks && !context->policy.properties.master_weights && n_params;
    AMP_TRY(amp__host_need(optimizer->host.swap_data || !trains_16_bits, "swap_data", who, "without masters its "
                           "updates are 16-bit; a host's own FP32 blocks are masters at O2 and O5, or set "
                           "amp_config.emulate"));
    AMP_RETURN_IF(optimizer->holds && context->policy.properties.split_masters, AMP_ERR_CONFLICT, "%s it has "
                  "AMP_OPTIMIZER_HOLDS_MASTERS, and master_weights is AMP_SPLIT: split masters are no tensors that it "
                  "could hold: use AMP_ON, or let it step the parameters", who);
    AMP_RETURN_IF(!optimizer->optim && context->policy.properties.stochastic, AMP_ERR_CONFLICT,
                  "%s master_weights is AMP_STOCHASTIC, and it is the host's: only libamp's own optimizers "
                  "(amp_optimizer.fused) round at random. Use AMP_ON or AMP_SPLIT", who);
    if (!n_params || amp__scaling_is_trivial(&context->policy.properties)) return AMP_OK;
    AMP_TRY(amp__host_need(!optimizer->holds || optimizer->host.set_grad, "set_grad", who,
                           "an optimizer that holds the masters has their gradients put there"));
    return need_for_scaling(&optimizer->host, who);
}

/* ---- models ---- */

/* An op that should run low but has only FP32 buffers and no implementation for the low type: the user must hear
 * of it. */
static const struct amp__op *first_replaced(const struct amp__model *model) {
    for (size_t i = 0; i < model->n_ops; i++)
        if (amp__raw_mode_of(&model->ops[i]) == AMP__RAW_REPLACE) return &model->ops[i];
    return NULL;
}

static amp_status choose_raw_modes(amp_context *context, struct amp__model *model) {
    const struct amp__op *replaced = first_replaced(model);
    for (size_t i = 0; i < model->n_ops; i++) {
        struct amp__op *op = &model->ops[i];
        op->raw_mode = (uint8_t)amp__raw_mode_of(op);
        if (op->op_class == AMP_LOWER && op->schema && !amp__raw_takes(op) && !amp__op_takes_handles(op))
            amp__find(context, AMP__NOTHING_TO_LOWER, op->name, "op %s is of class lower, and its schema \"%.200s\" "
                      "has no argument to cast", op->name, op->schema->text);
        if (op->op_class != AMP_LOWER || op->raw_mode != AMP__RAW_NONE || !amp__raw_takes(op)) continue;
        if (op->schema->n_tensors) continue;
        amp__find(context, AMP__FP32_ONLY, op->name, "op %s takes raw FP32 buffers and has no %s implementation, so it "
                  "runs in FP32%s%s%s", op->name, amp__dtype_name(context->policy.properties.low),
                  replaced ? ", as a layer may around " : "", replaced ? replaced->name : "",
                  replaced ? ", which has one" : "");
    }
    return AMP_OK;
}

static amp_status build_forward(amp_context *context, struct amp__model *model, const amp_model *given, size_t index) {
    char what[64];
    if (!given->forward) return AMP_OK;
    snprintf(what, sizeof what, "model %zu forward", index);
    const struct amp__struct_table structs = { given->structs, given->n_structs };
    AMP_TRY(amp__op_build(context, given->forward, &model->host, structs, what, &model->forward));
    model->forward.self = given->self;
    model->forward.target = model;
    model->has_forward = context->policy.has_forward = true;
    return AMP_OK;
}

static amp_status build_model(amp_context *context, amp_model *user, size_t index) {
    struct amp__model *model = &context->models.list[index];
    amp_model given;
    char what[64];
    snprintf(what, sizeof what, "model %zu", index);
    AMP_RETURN_IF(!user, AMP_ERR_INVALID_ARGUMENT, "%s is NULL", what);
    AMP_TRY(amp__copy_struct(&given, sizeof given, sizeof given, user, user->struct_size, "amp_model"));
    AMP_RETURN_IF(given.amp, AMP_ERR_WRONG_STATE, "%s is initialised already: amp_shutdown its context first", what);
    AMP_RETURN_IF(given.flags & ~(uint32_t)(AMP_MODEL_LOW_PARAMS | AMP_MODEL_WHOLE_TABLE), AMP_ERR_INVALID_ARGUMENT,
                  "%s.flags: unknown bits 0x%x", what, (unsigned)given.flags);
    context->policy.properties.low_params |= (given.flags & AMP_MODEL_LOW_PARAMS) != 0;
    model->whole_table = (given.flags & AMP_MODEL_WHOLE_TABLE) != 0;
    for (size_t i = 0; i < index; i++)
        AMP_RETURN_IF(context->models.list[i].user == user, AMP_ERR_INVALID_ARGUMENT,
                      "models %zu and %zu are the same", i, index);
    model->user = user;
    AMP_TRY(amp__host_copy(&model->host, given.host, what));
    snprintf(what, sizeof what, "model %zu ops", index);
    const struct amp__struct_table structs = { given.structs, given.n_structs };
    AMP_TRY(amp__ops_build(context, given.ops, given.n_ops, &model->host, structs, what, &model->ops));
    model->n_ops = given.n_ops;
    AMP_TRY(amp__ops_check_slots(model->ops, model->n_ops, what));
    AMP_TRY(amp__ops_classify(context, model->ops, given.ops, model->n_ops));
    AMP_TRY(choose_raw_modes(context, model));
    for (size_t i = 0; i < model->n_ops; i++) {
        amp__op_tabulate(&model->ops[i]);
        amp__gate_init(&model->ops[i]);
    }
    AMP_TRY(build_forward(context, model, &given, index));
    AMP_TRY(check_model_hooks(context, model, given.n_params, index));
    return amp__collect_model(context, &given, &model->host, index);
}

/* ---- optimizers ---- */

static void adopt(struct amp__op *ops, size_t n, struct amp__optimizer *optimizer, void *self) {
    for (size_t i = 0; i < n; i++) {
        ops[i].self = self;
        ops[i].target = optimizer;
    }
}

static amp_status build_fused(const amp_context *context, struct amp__optimizer *optimizer, const amp_optimizer *given,
                              const char *what) {
    char fused[96];
    if (!given->fused) return AMP_OK;
    AMP_RETURN_IF(given->n_steps, AMP_ERR_CONFLICT,
                  "%s has steps of the host's and fused, libamp's own: give it one of them", what);
    snprintf(fused, sizeof fused, "%s.fused", what);
    AMP_TRY(amp__optim_new(given->fused, given->n_params, fused, &optimizer->optim));
    optimizer->optim->stochastic = context->policy.properties.stochastic;
    return AMP_OK;
}

static amp_status build_optimizer(amp_context *context, amp_optimizer *user, size_t index) {
    struct amp__optimizer *optimizer = &context->optimizers.list[index];
    amp_optimizer given;
    char what[64];
    snprintf(what, sizeof what, "optimizer %zu", index);
    AMP_RETURN_IF(!user, AMP_ERR_INVALID_ARGUMENT, "%s is NULL", what);
    AMP_TRY(amp__copy_struct(&given, sizeof given, sizeof given, user, user->struct_size, "amp_optimizer"));
    AMP_RETURN_IF(given.amp, AMP_ERR_WRONG_STATE, "%s is initialised already: amp_shutdown its context first", what);
    const uint32_t known = AMP_OPTIMIZER_SHARDED | AMP_OPTIMIZER_HOLDS_MASTERS | AMP_OPTIMIZER_SKIPS_ON_DEVICE |
                           AMP_OPTIMIZER_GRADS_STAY;
    AMP_RETURN_IF(given.flags & ~known, AMP_ERR_INVALID_ARGUMENT,
                  "%s.flags: unknown bits 0x%x", what, (unsigned)given.flags);
    for (size_t i = 0; i < index; i++)
        AMP_RETURN_IF(context->optimizers.list[i].user == user, AMP_ERR_INVALID_ARGUMENT,
                      "optimizers %zu and %zu are the same", i, index);
    optimizer->user = user;
    optimizer->context = context;
    optimizer->sharded = (given.flags & AMP_OPTIMIZER_SHARDED) != 0;
    optimizer->holds = (given.flags & AMP_OPTIMIZER_HOLDS_MASTERS) != 0;
    optimizer->grads_stay = (given.flags & AMP_OPTIMIZER_GRADS_STAY) != 0;
    optimizer->skips_on_device = given.fused || (given.flags & AMP_OPTIMIZER_SKIPS_ON_DEVICE);
    const amp_host *host = given.host ? given.host : context->models.n ? &context->models.list[0].host : NULL;
    AMP_TRY(amp__host_copy(&optimizer->host, host, what));
    AMP_TRY(build_fused(context, optimizer, &given, what));
    snprintf(what, sizeof what, "optimizer %zu steps", index);
    const struct amp__struct_table structs = { given.structs, given.n_structs };
    AMP_TRY(amp__ops_build(context, given.steps, given.n_steps, &optimizer->host, structs, what,
                           &optimizer->slots.steps));
    optimizer->slots.n_steps = given.n_steps;
    snprintf(what, sizeof what, "optimizer %zu zero_grads", index);
    AMP_TRY(amp__ops_build(context, given.zero_grads, given.n_zero_grads, &optimizer->host, structs, what,
                           &optimizer->slots.zero_grads));
    optimizer->slots.n_zero_grads = given.n_zero_grads;
    adopt(optimizer->slots.steps, optimizer->slots.n_steps, optimizer, given.self);
    adopt(optimizer->slots.zero_grads, optimizer->slots.n_zero_grads, optimizer, given.self);
    AMP_TRY(check_optimizer_hooks(context, optimizer, given.n_params, index));
    return amp__collect_optimizer(context, optimizer, &given, index);
}

/* ---- wiring ---- */

static amp_status wire(amp_context *context, struct amp__op *op, const char *kind, amp__handler handler, bool by_self) {
    char what[192];
    if (!op->slot) return AMP_OK;
    if (op->index) snprintf(what, sizeof what, "%s %s#%u", kind, op->name, (unsigned)op->index);
    else snprintf(what, sizeof what, "%s %s", kind, op->name);
    const bool match_self = by_self && op->schema->self_arg >= 0;
    AMP_RETURN_IF(match_self && !op->self, AMP_ERR_INVALID_ARGUMENT,
                  "%s: its schema has an argument self, and the field self of its amp_model or amp_optimizer is NULL: "
                  "set it to the value that the host passes as self, or give the argument another name, so that every "
                  "call counts",
                  what);
    const struct amp__wrap wrap = { .what = what,
                                    .slot = op->slot,
                                    .schema = op->schema,
                                    .handler = handler,
                                    .user = op,
                                    .owner = context,
                                    .self = op->self,
                                    .match_self = match_self,
                                    .in_copy = (op->flags & AMP_OP_COPY) != 0 };
    AMP_TRY(amp__patch_add(context->wiring.patch, &wrap, &op->wrapped));
    op->wrap = ++context->wiring.n_wraps;
    return AMP_OK;
}

/* Models may share a table: then their ops on one slot must be the same, and the slot is wrapped once. */
static amp_status check_shared(const amp_context *context, size_t model_index, const struct amp__op *op,
                               const struct amp__op *other) {
    size_t other_index = 0;
    while (other < context->models.list[other_index].ops ||
           other >= context->models.list[other_index].ops + context->models.list[other_index].n_ops)
        other_index++;
    AMP_RETURN_IF(strcmp(other->schema->text, op->schema->text) != 0 || other->op_class != op->op_class ||
                      ((other->flags ^ op->flags) & AMP_OP_COPY) || other->host->self != op->host->self ||
                      other->host->cast != op->host->cast,
                  AMP_ERR_CONFLICT,
                  "op %s of model %zu and op %s of model %zu share a slot but not schema, class, AMP_OP_COPY and host: "
                  "give them the same, or initialise the models apart",
                  other->name, other_index, op->name, model_index);
    return AMP_OK;
}

/* by_slot: the ops that take their slot's calls. */
static amp_status wire_op(amp_context *context, struct amp__map *by_slot, size_t model_index, struct amp__op *op) {
    const struct amp__op *other = amp__map_get(by_slot, (uintptr_t)op->slot);
    if (!other) {
        AMP_TRY(wire(context, op, "op", amp__op_handler, false));
        return amp__map_put(by_slot, (uintptr_t)op->slot, op);
    }
    AMP_TRY(check_shared(context, model_index, op, other));
    op->shares = other;
    op->wrapped = other->wrapped;
    return AMP_OK;
}

/* Ops that the policy has nothing to do with too. */
static bool watches_all(const amp_context *context) {
    return context->policy.verify || context->observer || context->policy.properties.observe == AMP_ON;
}

/* Without an implementation, in inference: it may read weights that amp_weights_release took away. */
static bool reads_weights(const amp_context *context, struct amp__op *op) {
    const bool reads = context->policy.keeps_blocks && !context->optimizers.n && op->slot && amp__raw_takes(op);
    if (reads && op->raw_mode == AMP__RAW_NONE) {
        op->raw_mode = AMP__RAW_SEED;
        amp__op_tabulate(op);
    }
    return reads;
}

static amp_status wire_ops(amp_context *context) {
    struct amp__map by_slot = { 0 };
    amp_status status = AMP_OK;
    const bool no_norm = amp__norm_is_missing(context);
    for (size_t i = 0; i < context->models.n; i++) {
        struct amp__model *model = &context->models.list[i];
        for (size_t j = 0; j < model->n_ops && status == AMP_OK; j++) {
            struct amp__op *op = &model->ops[j];
            const bool watches = watches_all(context) || (no_norm && amp__op_is_norm(op));
            const bool reads = reads_weights(context, op); /* also tells the op how to read them */
            if (reads || amp__op_needs_wrapper(op)) status = wire_op(context, &by_slot, i, op);
            else if (watches && op->slot) op->only_watched = wire_op(context, &by_slot, i, op) == AMP_OK;
        }
        if (model->has_forward && status == AMP_OK)
            status = wire(context, &model->forward, "model", amp__forward_handler, true);
    }
    amp__map_free(&by_slot);
    return status;
}

static amp_status wire_optimizer(amp_context *context, struct amp__optimizer *optimizer) {
    size_t wrapped = 0;
    for (size_t i = 0; i < optimizer->slots.n_steps; i++) {
        AMP_TRY(wire(context, &optimizer->slots.steps[i], "step", amp__step_handler, true));
        wrapped += optimizer->slots.steps[i].wrapped;
    }
    for (size_t i = 0; i < optimizer->slots.n_zero_grads; i++)
        AMP_TRY(wire(context, &optimizer->slots.zero_grads[i], "zero_grad", amp__zero_grad_handler, true));
    optimizer->slots.expected = wrapped ? wrapped : 1;
    return AMP_OK;
}

static amp_status wire_all(amp_context *context) {
    AMP_TRY(amp__patch_new(&context->wiring.patch));
    if (!context->policy.properties.enabled) return AMP_OK;
    AMP_TRY(wire_ops(context));
    for (size_t i = 0; i < context->optimizers.n; i++) AMP_TRY(wire_optimizer(context, &context->optimizers.list[i]));
    return AMP_OK;
}

/* ---- all together ---- */

/* Counts the parameters in the descriptors, which are not checked yet. */
static size_t expected(amp_model *const *models, size_t n_models, amp_optimizer *const *optimizers,
                       size_t n_optimizers) {
    enum { MOST = 1 << 20 };
    size_t listed = 0, trained = 0;
    for (size_t i = 0; i < n_models && listed < MOST; i++)
        if (models[i] && models[i]->struct_size >= sizeof **models && models[i]->n_params < MOST)
            listed += models[i]->n_params;
    for (size_t i = 0; i < n_optimizers && trained < MOST; i++)
        if (optimizers[i] && optimizers[i]->struct_size >= sizeof **optimizers && optimizers[i]->n_params < MOST)
            trained += optimizers[i]->n_params;
    return listed > trained ? listed : trained;
}

static bool own_masters(const amp_context *context) {
    bool own = context->policy.keeps_blocks;
    for (size_t i = 0; i < context->models.n; i++) own &= !context->models.list[i].host.swap_data;
    for (size_t i = 0; i < context->optimizers.n; i++) own &= !context->optimizers.list[i].host.swap_data;
    return own;
}

static amp_status build_context(amp_context *context, amp_model *const *models, size_t n_models,
                                amp_optimizer *const *optimizers, size_t n_optimizers) {
    context->models.list = amp__alloc(n_models, sizeof *context->models.list);
    context->optimizers.list = amp__alloc(n_optimizers, sizeof *context->optimizers.list);
    if (!context->models.list || !context->optimizers.list) return amp__fail_memory();
    AMP_TRY(amp__params_init(&context->params, expected(models, n_models, optimizers, n_optimizers)));
    for (size_t i = 0; i < n_models; i++) {
        context->models.n = i + 1;
        AMP_TRY(build_model(context, models[i], i));
    }
    for (size_t i = 0; i < n_optimizers; i++) {
        context->optimizers.n = i + 1;
        AMP_TRY(build_optimizer(context, optimizers[i], i));
    }
    context->policy.properties.own_masters = own_masters(context);
    AMP_TRY(amp__collect_ties(context));
    AMP_TRY(amp__params_index(&context->params, 0));
    for (size_t i = 0; i < n_optimizers; i++) AMP_TRY(amp__fused_attach(&context->optimizers.list[i], 0));
    amp__fused_mark(context);
    AMP_TRY(amp__ranges_build(context));
    AMP_TRY(amp__cache_init(&context->cache, context->params.n * AMP__FORMS));
    context->brackets.plan.places = context->devices.places;
    context->brackets.plan.n_places = context->devices.n_places;
    context->devices.complete = true;
    context->progress.seed_scale = 1.0f;
    AMP_TRY(amp__brackets_make(context, &context->brackets, &context->policy.properties));
    AMP_TRY(amp__home_start(context));
    amp__verify_begin(context);
    amp__observe_ops(context);
    AMP_TRY(wire_all(context));
    AMP_TRY(amp__live_add(context));
    return amp__retype_all(context); /* the last thing that can fail */
}

/* Reports an init_scale without effect: as a finding for a model in fp16, otherwise as an event. */
static void check_start(amp_context *context) {
    const struct amp__properties *p = &context->policy.properties;
    const struct amp__level *level = amp__level_row(p->level);
    char line[160];
    if (p->unused_init_scale == 0.0f) return;
    snprintf(line, sizeof line, "level %s: init_scale is %g, and the loss scale stays %g", level->name,
             (double)p->unused_init_scale, (double)p->scaler.init_scale);
    if (p->low == AMP_FLOAT16 && amp__level_is_low(level)) amp__find(context, AMP__START_UNUSED, "", "%s", line);
    else amp__event(context, amp__any_host(context), &(amp_event){ .kind = AMP_EVENT_LOG, .message = line });
}

static void commit(amp_context *context) {
    amp__patch_commit(context->wiring.patch);
    for (size_t i = 0; i < context->models.n; i++) {
        context->models.list[i].user->amp = context;
        amp__register_over(context->models.list[i].user);
    }
    for (size_t i = 0; i < context->optimizers.n; i++) context->optimizers.list[i].user->amp = context;
    amp__retype_commit(context);
    amp__find_copies(context);
    amp__environment_check(context);
    check_start(context);
}

static bool wants_verify(amp_switch configured) {
    return configured == AMP_ON || (configured == AMP_DEFAULT && amp__switch_parse(getenv("AMP_VERIFY")) == 1);
}

AMP_API amp_status amp_initialize_many(amp_model *const *models, size_t n_models, amp_optimizer *const *optimizers,
                                       size_t n_optimizers, const amp_config *config, amp_context **out) {
    AMP_RETURN_IF((n_models && !models) || (n_optimizers && !optimizers), AMP_ERR_INVALID_ARGUMENT,
                  "amp_initialize: %s is NULL, but its count is not 0", n_models && !models ? "models" : "optimizers");
    AMP_RETURN_IF(!out && !n_models && !n_optimizers, AMP_ERR_INVALID_ARGUMENT,
                  "amp_initialize: without models and optimizers the context pointer is needed, and it is NULL");
    AMP_RETURN_IF(n_models > 65536 || n_optimizers > 65536, AMP_ERR_INVALID_ARGUMENT,
                  "amp_initialize: %zu model%s and %zu optimizer%s cannot be", n_models, AMP__S(n_models), n_optimizers,
                  AMP__S(n_optimizers));
    struct amp__properties properties;
    AMP_TRY(amp__properties_resolve(config, &properties));
    amp_context *context = amp__alloc(1, sizeof *context);
    if (!context) return amp__fail_memory();
    context->policy.properties = properties;
    context->reporting.log = amp__log_level(properties.log);
    context->policy.verify = wants_verify(properties.verify);
    pthread_mutex_init(&context->lock, NULL);
    amp_status status = amp__fork_add(&context->forkable, &context->lock);
    context->devices.cuda = amp__backend_in_use(AMP__BACKEND_cuda);
    if (status == AMP_OK) status = amp__trace_open(context, &context->reporting.trace);
    if (status == AMP_OK) status = amp__observe_as_asked(context);
    if (status == AMP_OK) status = build_context(context, models, n_models, optimizers, n_optimizers);
    if (status != AMP_OK) {
        const amp_event failed = { .kind = AMP_EVENT_ERROR, .status = status, .message = amp_last_error() };
        amp__trace_event(context, &failed);
        amp__context_destroy(context);
        return status;
    }
    commit(context);
    amp__trace_wired(context);
    if (out) *out = context;
    return AMP_OK;
}

AMP_API amp_status amp_initialize(amp_model *model, amp_optimizer *optimizer, amp_level level) {
    amp_config config = AMP_CONFIG_INIT;
    config.level = level;
    AMP_RETURN_IF(!model && !optimizer, AMP_ERR_INVALID_ARGUMENT, "amp_initialize: model and optimizer are both NULL");
    return amp_initialize_many(&model, model != NULL, &optimizer, optimizer != NULL, &config, NULL);
}
