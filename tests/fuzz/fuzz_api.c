/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer target: programs of API calls over the fake host, in right and wrong orders, with hooks and allocations
 * that fail. Two bytes of options, then a byte for each call and bytes for its arguments. What amp.h makes the caller's
 * duty is kept: scopes and frames are left once and in order, and before their context ends. Invariants: api_calls.c.
 */
#include "api_world.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "fuzz.h"
#include "../support/levels.h"

static amp_optimizer *any_optimizer(struct world *world) {
    const unsigned i = below(&world->input, OPTIMIZERS + 1);
    return i < OPTIMIZERS ? world->optimizers[i] : NULL;
}
static void brackets_touched(struct world *world) {
    for (size_t k = 0; k < LOSSES; k++) world->brackets[k].whole = false;
}

/* ---- initialize and shutdown ---- */

static float any_scale(struct world *world) {
    static const float scales[] = { 0.0f, AMP_DYNAMIC, 1.0f, 2.0f, 128.0f, 65536.0f, 0x1p24f, 0x1p-126f, 0x1p127f, 3.0f,
                                    0.5f, 1e-40f, -5.0f, INFINITY, NAN, FLT_MAX };
    return scales[below(&world->input, 16)];
}

static amp_config any_config(struct world *world) {
    struct input *in = &world->input;
    amp_config config = AMP_CONFIG_INIT;
    config.level = (amp_level)below(in, 8);
    const unsigned which = next_byte(in);
    if (which & 1) config.loss_scale = any_scale(world);
    if (which & 2) config.num_losses = below(in, 5);
    if (which & 4) config.window = below(in, 4), config.hysteresis = below(in, 4), config.max_skips = below(in, 4);
    if (which & 8) config.scaler = (int32_t)below(in, 8), config.consecutive_hysteresis = (amp_switch)below(in, 4);
    if (which & 16)
        config.init_scale = any_scale(world), config.min_scale = any_scale(world), config.max_scale = any_scale(world);
    if (which & 32) config.growth = any_scale(world), config.backoff = any_scale(world);
    if (which & 64) {
        amp_switch *const switches[] = { &config.enabled, &config.patch_ops, &config.keep_batchnorm_fp32,
                                         &config.master_weights, &config.cache, &config.emulate };
        *switches[below(in, 6)] = (amp_switch)below(in, 4);
    }
    if (which & 128) {
        config.cast_model_type = (amp_dtype)below(in, 8), config.cast_model_outputs = (amp_dtype)below(in, 8);
        config.lists = (int32_t)below(in, 4);
        if (below(in, 4) == 3) config.struct_size = below(in, sizeof config);
    }
    return config;
}

/* Parameters that come back rounded: re-typed without a master. */
static void note_rounding(struct world *world, const amp_config *config, unsigned models, unsigned optimizers) {
    const bool o2 = level_has_masters(config->level), low = level_retypes(config->level);
    const amp_dtype type = config->cast_model_type;
    if (config->enabled == AMP_OFF || (type ? type != AMP_FLOAT16 && type != AMP_BFLOAT16 : !low)) return;
    const bool masters = config->master_weights ? config->master_weights >= AMP_ON : o2;
    for (size_t i = 0; i < NETS * NET_PARAMS; i++) {
        bool mastered = false;
        for (unsigned k = 0; k < OPTIMIZERS; k++)
            mastered |= (optimizers & 1u << k) && optimizer_holds(world, k, world_param(world, i));
        if (models & 1u << i / NET_PARAMS && !(masters && mastered)) world->changed[i] = true;
    }
}

static void call_initialize(struct world *world) {
    struct input *in = &world->input;
    const size_t slot = below(in, CONTEXTS);
    amp_model *models[4];
    amp_optimizer *optimizers[4];
    size_t n_models = 0, n_optimizers = 0;
    const unsigned which = next_byte(in), twice = which >> 6;
    if (world->contexts[slot]) return;
    for (unsigned k = 0; k < MODELS; k++)
        if (which & 1u << k) models[n_models++] = world->models[k];
    for (unsigned k = 0; k < OPTIMIZERS; k++)
        if (which & 8u << k) optimizers[n_optimizers++] = world->optimizers[k];
    if (twice == 1 && n_models) models[n_models] = models[0], n_models++;
    if (twice == 2) optimizers[n_optimizers++] = NULL;
    const amp_config config = any_config(world);
    struct snapshot before;
    amp_context *context = NULL;
    snapshot_take(world, &before);
    const amp_status status = unchanged(world, &before, amp_initialize_many(models, n_models, optimizers, n_optimizers,
                                                                            &config, &context), "amp_initialize_many");
    need((status == AMP_OK) == (context != NULL), "initialize and its context disagree");
    brackets_touched(world);
    if (status != AMP_OK) return;
    need(!twice || twice == 3 || (twice == 1 && !(which & 7)), "a model was taken twice, or an optimizer that is none");
    world->contexts[slot] = context;
    world->configs[slot] = config;
    for (unsigned k = 0; k < OPTIMIZERS; k++)
        if (which & 8u << k) world->overflowed[k] = false;
    note_rounding(world, &config, which & 7, which >> 3 & 7);
}

static void call_shutdown(struct world *world) { world_shutdown(world, below(&world->input, CONTEXTS)); }

static void call_register(struct world *world) {
    static const char *const names[] = { "linear", "mul", "linear#1", "nothing", "add_", "" };
    amp_model *model = world->models[below(&world->input, MODELS)];
    const char *name = names[below(&world->input, 6)];
    (void)checked(amp_register(model, name, (amp_class)below(&world->input, 9)), "amp_register");
}

/* ---- brackets ---- */

static void call_begin(struct world *world) {
    struct input *in = &world->input;
    struct bracket *bracket = &world->brackets[below(in, LOSSES)];
    amp_optimizer *optimizers[4];
    size_t n = 0;
    const unsigned which = next_byte(in);
    for (unsigned k = 0; k < OPTIMIZERS; k++)
        if (which & 1u << k) optimizers[n++] = world->optimizers[k];
    if (which & 8 && n) optimizers[n] = optimizers[0], n++;
    amp_context *context = which & 16 ? any_context(world) : NULL;
    const uint32_t loss_id = below(in, 5), flags = which & 32 ? below(in, 4) : 0;
    struct fake_tensor *loss = which & 64 ? new_tensor(world) : NULL;
    const bool was_open = bracket->open;
    struct snapshot before;
    bool over_delayed = false; /* masters are not shown while gradients are scaled */
    for (size_t i = 0; i < n; i++) {
        size_t count;
        over_delayed |= amp_master_params(optimizers[i], NULL, 0, &count) != AMP_OK;
    }
    amp_record record = AMP_RECORD_INIT;
    snapshot_take(world, &before);
    amp_scaled_loss *scaled = &bracket->scaled;
    const amp_status status = unchanged(world, &before,
                                        amp_scale_loss_begin_many(context, optimizers, n, loss_id, flags, loss, scaled),
                                        "begin");
    if (status != AMP_OK) {
        if (loss) fake_release(loss);
        return;
    }
    need(!was_open, "an open amp_scaled_loss was opened again");
    brackets_touched(world);
    world->checks_delayed |= (flags & AMP_DELAY_OVERFLOW_CHECK) != 0;
    *bracket = (struct bracket){ .scaled = *scaled, .open = true, .delay = flags != 0, .whole = true,
                                 .context = context ? context : optimizers[0]->amp, .loss_id = loss_id,
                                 .optimizers = which & 7, .loss = loss, .before = before,
                                 .over_delayed = over_delayed };
    need(amp_seed_factor(scaled) == 1.0f || amp_seed_factor(scaled) == *scaled->scale, "seed_factor is %g",
         (double)amp_seed_factor(scaled));
    if (amp_get_record(bracket->context, loss_id, &record) == AMP_OK) bracket->record = record;
    else bracket->whole = false; /* disabled contexts take any loss_id */
}

/* Gradients that brackets before delayed, or that nothing scales, are not put back by the end of this one. */
static bool may_restore(const struct world *world, const struct bracket *bracket) {
    for (size_t k = 0; k < CONTEXTS; k++) {
        const amp_config *config = &world->configs[k];
        if (world->contexts[k] != bracket->context) continue;
        return !bracket->over_delayed && config->enabled != AMP_OFF && level_is_dynamic(config->level) &&
               config->loss_scale != 1.0f;
    }
    return false;
}

static void call_close(struct world *world) {
    const unsigned k = below(&world->input, LOSSES), cancel = below(&world->input, 3) == 2;
    struct bracket *bracket = &world->brackets[k];
    const bool open = bracket->open;
    const amp_status status = cancel ? amp_scale_loss_cancel(&bracket->scaled) : amp_scale_loss_end(&bracket->scaled);
    (void)checked(status, cancel ? "cancel" : "end");
    if (!open) {
        need(status == AMP_ERR_WRONG_STATE, "a bracket that is not open was closed");
        return;
    }
    const bool decided = !cancel && (status == AMP_OK || status == AMP_ERR_TOO_MANY_SKIPS);
    if (!decided) bracket->whole &= may_restore(world, bracket);
    bracket_closed(world, bracket, status, cancel);
    brackets_touched(world);
}

static void call_backward(struct world *world) {
    struct net *net = &world->nets[below(&world->input, NETS)];
    const double x = next_value(&world->input);
    const struct bracket *of = &world->brackets[below(&world->input, LOSSES)];
    net_backward(net, x, of->open ? fake_seed(&of->scaled) : 1.0);
    for (size_t k = 0; k < LOSSES; k++) world->brackets[k].fresh[net - world->nets] = true;
}

/* ---- steps and gradients ---- */

static bool stepping(const struct world *world) {
    for (unsigned k = 0; k < world->n_scopes; k++)
        if (world->scopes[k].step_of >= 0) return true;
    return false;
}

static void call_step(struct world *world) {
    const unsigned k = below(&world->input, NETS + 1);
    host_changed(world);
    if (k < NETS) (void)net_step(&world->nets[k]);
    else (void)((int32_t (*)(void *))world->extra_step)(&world->optimizer);
    brackets_touched(world);
}

static void call_step_begin(struct world *world) {
    struct snapshot before;
    const unsigned k = below(&world->input, OPTIMIZERS);
    amp_step_info info = AMP_STEP_INFO_INIT;
    if (world->n_scopes == SCOPES) return;
    snapshot_take(world, &before);
    if (unchanged(world, &before, amp_step_begin(world->optimizers[k], &info), "amp_step_begin") != AMP_OK) return;
    need(info.action == AMP_STEP || info.action == AMP_SKIP, "amp_step_begin said %d", (int)info.action);
    need(info.grad_scale == 1.0f && info.found_inf, "amp_step_begin filled its info badly");
    world->scopes[world->n_scopes++] = (struct scope){ .step_of = (int)k };
}

static void call_step_end(struct world *world) {
    const unsigned k = below(&world->input, OPTIMIZERS);
    const struct scope *top = world->n_scopes ? &world->scopes[world->n_scopes - 1] : NULL;
    bool running = false;
    for (unsigned i = 0; i < world->n_scopes; i++) running |= world->scopes[i].step_of == (int)k;
    if (running && top->step_of != (int)k) return; /* steps and scopes nest */
    const amp_status status = checked(amp_step_end(world->optimizers[k]), "amp_step_end");
    need(running || status != AMP_OK, "amp_step_end without begin passed");
    world->n_scopes -= running;
    world->overflowed[k] &= status != AMP_OK;
    host_changed(world);
    brackets_touched(world);
}

static void call_zero_grad(struct world *world) {
    const unsigned k = below(&world->input, NETS);
    /* such a host must not drop gradients in a step */
    if (stepping(world) && world->host.options & FAKE_NO_ALLOC) return;
    net_zero_grad(&world->nets[k]);
    brackets_touched(world);
}

/* The host's own hands: gradients come, go and change, weights change. */
static void call_host(struct world *world) {
    struct fake_tensor *param = any_param(world);
    const unsigned what = below(&world->input, 4);
    const bool fixed = (world->host.options & FAKE_NO_SET_GRAD) != 0;
    const double value = next_value(&world->input);
    brackets_touched(world);
    if (what == 0 && fake_dtype(param) != AMP_DTYPE_OTHER) {
        host_changed(world);
        fake_set(param, below(&world->input, NET_SIZE), value);
    } else if (what == 1 && param->grad && fake_dtype(param->grad) != AMP_DTYPE_OTHER) {
        fake_fill(param->grad, value);
    } else if (!fixed && !(stepping(world) && world->host.options & FAKE_NO_ALLOC)) {
        struct fake_tensor *grad = what == 2 ? new_tensor(world) : NULL;
        if (grad && below(&world->input, 8) == 7) grad->shape[0] = 2;
        fake_put_grad(param, grad);
    }
}

static void call_clip(struct world *world) {
    struct snapshot before;
    amp_optimizer *optimizer = any_optimizer(world);
    const float limit = any_scale(world);
    float norm = -1.0f;
    snapshot_take(world, &before);
    if (below(&world->input, 2)) {
        if (unchanged(world, &before, amp_clip_grad_value(optimizer, limit), "amp_clip_grad_value") == AMP_OK)
            need(limit > 0.0f, "amp_clip_grad_value took %g", (double)limit);
    } else if (unchanged(world, &before, amp_clip_grad_norm(optimizer, limit, &norm), "amp_clip_grad_norm") == AMP_OK) {
        need(limit > 0.0f && !(norm < 0.0f), "amp_clip_grad_norm took %g", (double)limit);
    } else {
        need(norm == -1.0f, "amp_clip_grad_norm failed and wrote a norm");
    }
    brackets_touched(world);
}

static void call_scale(struct world *world) {
    struct snapshot before;
    amp_context *context = any_context(world);
    const uint32_t loss_id = below(&world->input, 5);
    struct fake_tensor *tensor = new_tensor(world), *other = new_tensor(world);
    const double was = fake_get(tensor, 0), other_was = fake_get(other, 0);
    void *out = NULL, *both[] = { tensor, below(&world->input, 8) == 7 ? NULL : other };
    float found = 0.0f;
    snapshot_take(world, &before);
    if (amp_scale(context, loss_id, tensor, &out) == AMP_OK) fake_release(out);
    else need(!out, "amp_scale failed and wrote its result");
    const amp_status status = unchanged(world, &before, amp_unscale(context, loss_id, both, 2, &found), "amp_unscale");
    const double values[] = { fake_get(tensor, 0), fake_get(other, 0) };
    if (status != AMP_OK)
        need(!memcmp(&values[0], &was, 8) && !memcmp(&values[1], &other_was, 8) && found == 0.0f,
             "amp_unscale failed and wrote");
    else need((found != 0.0f) == (!isfinite(values[0]) || !isfinite(values[1])), "found_inf is wrong");
    fake_release(tensor);
    fake_release(other);
}

static void call_add_params(struct world *world) {
    amp_param params[2] = { AMP_PARAM_INIT, AMP_PARAM_INIT };
    struct snapshot before;
    amp_optimizer *optimizer = any_optimizer(world);
    for (size_t i = 0; i < 2; i++) {
        const unsigned what = below(&world->input, 4);
        params[i].tensor = what < 2 ? world->late[what] : what == 2 ? any_param(world) : NULL;
        params[i].module_kind = (int32_t)below(&world->input, 3);
    }
    const size_t n = 1 + below(&world->input, 2);
    snapshot_take(world, &before);
    if (unchanged(world, &before, amp_add_params(optimizer, params, n), "amp_add_params") != AMP_OK) return;
    host_changed(world); /* they may be re-typed without a master */
    brackets_touched(world);
}

/* ---- the program ---- */

static void call_break(struct world *world) {
    static const enum fake_hook hooks[] = { FAKE_VIEW, FAKE_CAST,  FAKE_GRAD, FAKE_SET_GRAD,
                                            FAKE_SWAP, FAKE_SCALE, FAKE_ALLOC };
    const unsigned what = below(&world->input, 8);
    const uint64_t n = 1u + next_byte(&world->input) % 32;
    if (what == 7) {
        break_allocation(n);
        return;
    }
    fake_fail(&world->host, hooks[what], n);
}

bool world_step(struct world *world) {
    static void (*const calls[])(struct world *) = {
        call_initialize, call_initialize, call_shutdown, call_register, call_begin, call_begin, call_begin, call_close,
        call_close, call_close, call_backward, call_backward, call_step, call_step_begin, call_step_end, call_zero_grad,
        call_host, call_clip, call_scale, call_add_params, call_op, call_op, call_scope, call_direct, call_target,
        call_ends, call_save, call_load, call_explain, call_break,
    };
    if (world->input.at == world->input.end) return false;
    calls[below(&world->input, sizeof calls / sizeof calls[0])](world);
    if (world->host.n_tape > FAKE_TAPE / 2) fake_tape_clear(&world->host);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct world world;
    if (size > 512) return 0; /* longer programs say nothing more */
    world_open(&world, (struct input){ data, data + size });
    while (world_step(&world)) world_check(&world);
    world_close(&world);
    return 0;
}
