/* SPDX-License-Identifier: Apache-2.0 */
#include "api_world.h"
#include "../support/wrap.h"

#include "amp_kernels.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void need(bool condition, const char *format, ...) {
    va_list args;
    if (condition) return;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nlast error: %s\n", amp_last_error());
    abort();
}

/* ---- the input ---- */

uint8_t next_byte(struct input *input) { return input->at < input->end ? *input->at++ : 0; }

double next_value(struct input *input) {
    static const double values[] = { 0.0, 0.5, 1.0, -2.0, 0.1, 3.0, 65519.0, 65520.0, 1e10, 1e38, -1e-8, 1e-42, 4096.0,
                                     (double)INFINITY, -(double)INFINITY, (double)NAN };
    return values[below(input, sizeof values / sizeof values[0])];
}

struct fake_tensor *new_tensor(struct world *world) {
    static const amp_dtype types[] = { AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16, AMP_FLOAT64, AMP_DTYPE_OTHER };
    const amp_dtype dtype = types[below(&world->input, 5)];
    const double value = next_value(&world->input);
    return fake_new(&world->host, dtype, NET_SIZE, dtype == AMP_DTYPE_OTHER ? 1.0 : value);
}

/* ---- allocations that fail: linked with --wrap ---- */

static uint64_t countdown;
static bool fails(void) { return countdown && !--countdown; }
void break_allocation(uint64_t n) { countdown = n; }

WRAP(void *, calloc, size_t count, size_t size) { return fails() ? NULL : __real_calloc(count, size); }
WRAP(void *, realloc, void *block, size_t bytes) { return fails() ? NULL : __real_realloc(block, bytes); }
WRAP(void *, aligned_alloc, size_t alignment, size_t bytes) {
    return fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}

/* ---- snapshots ---- */

struct fake_tensor *world_param(const struct world *world, size_t i) {
    if (i >= NETS * NET_PARAMS) return world->late[i - NETS * NET_PARAMS];
    const struct net *net = &world->nets[i / NET_PARAMS];
    struct fake_tensor *const all[] = { net->weight, net->bias, net->gamma, net->mean, net->count, net->wide };
    return all[i % NET_PARAMS];
}

static uint64_t bits(double value) {
    uint64_t result;
    memcpy(&result, &value, sizeof result);
    return isnan(value) ? SNAPSHOT_NAN : result; /* reading a float may quieten a NaN */
}

void snapshot_take(const struct world *world, struct snapshot *out) {
    memset(out, 0, sizeof *out);
    for (size_t k = 0; k < NETS; k++) {
        memcpy(out->slots[k], world->nets[k].table, sizeof world->nets[k].table);
        out->slots[k][N_NET_OPS] = world->nets[k].forward;
        out->slots[k][N_NET_OPS + 1] = world->nets[k].step;
        out->slots[k][N_NET_OPS + 2] = world->nets[k].zero_grad;
    }
    out->extra_slot = world->extra_step;
    for (size_t k = 0; k < MODELS; k++) out->model_amp[k] = world->models[k]->amp;
    for (size_t k = 0; k < OPTIMIZERS; k++) out->optimizer_amp[k] = world->optimizers[k]->amp;
    for (size_t i = 0; i < ALL_PARAMS; i++) {
        const struct fake_tensor *param = world_param(world, i), *grad = param->grad;
        out->params[i].dtype = fake_dtype(param);
        for (int64_t j = 0; j < param->shape[0]; j++) out->params[i].values[j] = bits(fake_get(param, j));
        if (!grad) continue;
        out->params[i].grad_dtype = fake_dtype(grad);
        for (int64_t j = 0; j < grad->shape[0] && j < NET_SIZE; j++) out->params[i].grads[j] = bits(fake_get(grad, j));
    }
}

/* Where an earlier end of a step failed, the block of an emulated parameter still has the exact values. The next call
 * rounds it, whether it succeeds or not: its master has them then. */
static void settle(const struct snapshot *now, struct snapshot *before) {
    for (size_t i = 0; i < ALL_PARAMS; i++)
        for (size_t j = 0; j < NET_SIZE && before->params[i].dtype == AMP_FLOAT32; j++) {
            double exact;
            memcpy(&exact, &before->params[i].values[j], sizeof exact);
            const float half = amp_half_to_float(amp_float_to_half((float)exact));
            const float bfloat16 = amp_bfloat16_to_float(amp_float_to_bfloat16((float)exact));
            const uint64_t shown = now->params[i].values[j];
            if (shown == bits((double)half) || shown == bits((double)bfloat16)) before->params[i].values[j] = shown;
        }
}

void snapshot_same(const struct snapshot *taken, const struct world *world, const char *who) {
    struct snapshot now, settled = *taken;
    const struct snapshot *before = &settled;
    snapshot_take(world, &now);
    settle(&now, &settled);
    need(!memcmp(now.slots, before->slots, sizeof now.slots) && now.extra_slot == before->extra_slot,
         "%s failed and changed a slot", who);
    need(!memcmp(now.model_amp, before->model_amp, sizeof now.model_amp) &&
         !memcmp(now.optimizer_amp, before->optimizer_amp, sizeof now.optimizer_amp), "%s failed and wrote amp", who);
    for (size_t i = 0; i < ALL_PARAMS; i++)
        need(!memcmp(&now.params[i], &before->params[i], sizeof now.params[i]),
             "%s failed and changed parameter %zu (type %d, was %d) or its gradient (type %d, was %d)", who, i,
             (int)now.params[i].dtype, (int)before->params[i].dtype, (int)now.params[i].grad_dtype,
             (int)before->params[i].grad_dtype);
}

void snapshot_same_grads(const struct snapshot *before, const struct world *world, unsigned optimizers,
                         const char *who) {
    struct snapshot now;
    snapshot_take(world, &now);
    for (size_t i = 0; i < ALL_PARAMS; i++)
        for (unsigned k = 0; k < OPTIMIZERS; k++) {
            if (!(optimizers & 1u << k) || !optimizer_holds(world, k, world_param(world, i))) continue;
            need(now.params[i].grad_dtype == before->params[i].grad_dtype &&
                 !memcmp(now.params[i].grads, before->params[i].grads, sizeof now.params[i].grads),
                 "%s: the gradient of parameter %zu (type %d, was %d) is not what stood there at begin", who, i,
                 (int)now.params[i].grad_dtype, (int)before->params[i].grad_dtype);
        }
}

amp_status checked(amp_status status, const char *who) {
    need(status <= AMP_OK && status >= AMP_STATUS_LAST_, "%s returned %d", who, (int)status);
    need(status == AMP_OK || *amp_last_error(), "%s failed without a word", who);
    return status;
}

amp_status unchanged(const struct world *world, const struct snapshot *before, amp_status status, const char *who) {
    if (checked(status, who) != AMP_OK) snapshot_same(before, world, who);
    return status;
}

/* ---- beginning and end ---- */

static int32_t extra_step(void *self) {
    (void)self;
    return 1;
}

static void describe_extras(struct world *world) {
    const struct net *net = &world->nets[0];
    world->alias = fake_alias(net->weight);
    memcpy(world->params, net->params, sizeof net->params);
    world->params[NET_PARAMS] = (amp_param){ sizeof(amp_param), AMP_MODULE_OTHER, world->alias, "alias" };
    world->nets[0].model.params = world->params;
    world->nets[0].model.n_params = NET_PARAMS + 1;
    world->model = (amp_model){ .struct_size = sizeof(amp_model), .host = &world->host.hooks, .self = &world->model,
                                .ops = world->nets[0].ops, .n_ops = N_NET_OPS };
    world->extra_step = world->original_extra_step = (amp_fn)extra_step;
    world->extra_step_op = (amp_op){ .struct_size = sizeof(amp_op), .name = "step",
                                     .schema = "step(pointer self) -> int32", .slot = &world->extra_step };
    world->extra_params[0] = world->nets[0].bias;
    world->extra_params[1] = world->nets[1].weight;
    world->optimizer = (amp_optimizer){ .struct_size = sizeof(amp_optimizer), .host = &world->host.hooks,
                                        .self = &world->optimizer, .params = world->extra_params, .n_params = 2,
                                        .steps = &world->extra_step_op, .n_steps = 1 };
}

void world_open(struct world *world, struct input input) {
    memset(world, 0, sizeof *world);
    world->input = input;
    const unsigned options = below(&world->input, 256) | below(&world->input, 2) << 8;
    fake_init(&world->host, options);
    for (size_t k = 0; k < NETS; k++) net_init(&world->nets[k], &world->host);
    for (size_t k = 0; k < LATE; k++) world->late[k] = fake_new(&world->host, AMP_FLOAT32, NET_SIZE, 0.3);
    describe_extras(world);
    world->models[0] = &world->nets[0].model;
    world->models[1] = &world->nets[1].model;
    world->models[2] = &world->model;
    world->optimizers[0] = &world->nets[0].optimizer;
    world->optimizers[1] = &world->nets[1].optimizer;
    world->optimizers[2] = &world->optimizer;
    for (size_t i = 0; i < ALL_PARAMS; i++) {
        struct fake_tensor *param = world_param(world, i);
        for (int64_t j = 0; j < param->shape[0]; j++) {
            fake_set(param, j, 0.1 * (double)(i + 1) + 0.01 * (double)j);
            world->first_values[i][j] = bits(fake_get(param, j));
        }
    }
    for (size_t k = 0; k < LOSSES; k++) world->brackets[k].scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    for (size_t k = 0; k < FRAMES; k++) world->frames[k] = (amp_cast_frame)AMP_CAST_FRAME_INIT;
}

static bool all_ended(const struct world *world) {
    for (size_t k = 0; k < CONTEXTS; k++)
        if (world->contexts[k]) return false;
    return true;
}

/* With no context left, the host is what it was. */
static void check_restored(const struct world *world) {
    if (world->refused_end) return;
    for (size_t k = 0; k < NETS; k++)
        need(net_slots_restored(&world->nets[k]), "a slot of net %zu is not what it was", k);
    need(world->extra_step == world->original_extra_step, "the third optimizer's slot is not what it was");
    for (size_t i = 0; i < ALL_PARAMS; i++) {
        const struct fake_tensor *param = world_param(world, i);
        const amp_dtype first = i < NETS * NET_PARAMS && i % NET_PARAMS == 4   ? AMP_DTYPE_OTHER
                                : i < NETS * NET_PARAMS && i % NET_PARAMS == 5 ? AMP_FLOAT64
                                                                               : AMP_FLOAT32;
        need(fake_dtype(param) == first, "parameter %zu came back as type %d", i, (int)fake_dtype(param));
        for (int64_t j = 0; j < param->shape[0] && !world->changed[i]; j++)
            need(bits(fake_get(param, j)) == world->first_values[i][j], "parameter %zu came back as %a", i,
                 fake_get(param, j));
    }
}

static void end_frames(struct world *world, const amp_context *context) {
    for (size_t k = 0; k < FRAMES; k++) {
        if (world->frame_context[k] != context || !context) continue;
        need(amp_cast_done(&world->frames[k]) == AMP_OK, "amp_cast_done of a good frame failed");
        world->frame_context[k] = NULL;
        fake_release(world->frame_owned[k]);
        world->frame_owned[k] = NULL;
    }
}

static bool steps_in(const struct world *world, const amp_context *context) {
    for (unsigned k = 0; k < world->n_scopes; k++)
        if (world->scopes[k].step_of >= 0 && world->optimizers[world->scopes[k].step_of]->amp == context) return true;
    return false;
}

/* Scopes on the context that are still to be left, the present one aside, are the program's duty (amp.h). */
static bool has_scopes_below(const struct world *world, const amp_context *context) {
    for (unsigned k = 0; k + 1 < world->n_scopes; k++)
        if (world->scopes[k].context == context) return true;
    return world->has_captured && world->captured_context == context;
}

void world_shutdown(struct world *world, size_t i) {
    amp_context *context = world->contexts[i];
    struct snapshot before;
    if (!context || has_scopes_below(world, context)) return;
    const bool stepping = steps_in(world, context);
    const bool inside = world->n_scopes && world->scopes[world->n_scopes - 1].context == context;
    end_frames(world, context);
    snapshot_take(world, &before);
    const amp_status status = checked(amp_shutdown(context), "amp_shutdown");
    if (stepping || inside) {
        need(status == AMP_ERR_WRONG_STATE, "amp_shutdown of a busy context: %s", amp_status_name(status));
        snapshot_same(&before, world, "amp_shutdown of a busy context");
        return;
    }
    need(status != AMP_ERR_WRONG_STATE || world->host.fail_at, "amp_shutdown of an idle context: %s",
         amp_status_name(status));
    world->refused_end |= status != AMP_OK;
    world->contexts[i] = NULL;
    for (size_t k = 0; k < LOSSES; k++) {
        struct bracket *bracket = &world->brackets[k];
        bracket->whole = false;
        if (!bracket->open || bracket->context != context) continue;
        if (bracket->loss) fake_release(bracket->loss);
        *bracket = (struct bracket){ .scaled = AMP_SCALED_LOSS_INIT };
    }
    if (all_ended(world)) check_restored(world);
}

/* A host that refused swap_data at the very end keeps libamp's block; without alloc it is malloc's. */
static void take_what_could_not_be_swapped(struct fake_tensor *param) {
    if (param->storage.owner) return;
    free(param->storage.data);
    param->owns = false;
}

void world_close(struct world *world) {
    break_allocation(0);
    world->host.fail_at = 0;
    while (world->n_scopes) {
        struct scope *scope = &world->scopes[--world->n_scopes];
        if (scope->step_of >= 0)
            need(amp_step_end(world->optimizers[scope->step_of]) == AMP_OK, "the last amp_step_end failed");
        else need(amp_scope_leave(&scope->saved) == AMP_OK, "the last amp_scope_leave failed");
    }
    world->has_captured = false;
    for (size_t k = 0; k < CONTEXTS; k++) world_shutdown(world, k);
    fake_tape_clear(&world->host);
    for (size_t i = 0; i < ALL_PARAMS; i++) take_what_could_not_be_swapped(world_param(world, i));
    for (size_t k = 0; k < NETS; k++) net_destroy(&world->nets[k]);
    fake_release(world->alias);
    for (size_t k = 0; k < LATE; k++) fake_release(world->late[k]);
    need(world->host.over_released == 0, "%u handles were released twice", world->host.over_released);
    need(world->host.wrong_frees == 0 || world->refused_end, "%u blocks were freed by the wrong side",
         world->host.wrong_frees);
    need(world->host.live_tensors == 0, "%lld tensors are left", (long long)world->host.live_tensors);
    /* a host without free that refuses its own block back has lost it */
    need(world->host.live_blocks == 0 || (world->refused_end && world->host.options & FAKE_NO_ALLOC),
         "%lld blocks are left", (long long)world->host.live_blocks);
    fake_destroy(&world->host);
}
