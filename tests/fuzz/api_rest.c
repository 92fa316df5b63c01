/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that do not train: ops, scopes, direct calls, states, diagnostics. */
#include "api_world.h"

#include <stdlib.h>
#include <string.h>

/* ---- ops, scopes, direct calls ---- */

void call_op(struct world *world) {
    struct net *net = &world->nets[below(&world->input, NETS)];
    struct fake_tensor *x = new_tensor(world), *y = new_tensor(world), *out = NULL, *list[] = { x, y, net->weight };
    world->host.no_grad = below(&world->input, 4) == 3;
    switch (below(&world->input, 10)) {
    case 0: out = net_linear(net, x, net->weight, below(&world->input, 2) ? net->bias : NULL); break;
    case 1: out = net_binary(net, OP_matmul, x, net->weight); break;
    case 2: out = net_binary(net, OP_add, x, y); break;
    case 3: net_add_(net, x, y); break;
    case 4: out = net_cat(net, list, (int32_t)(1 + below(&world->input, 3))); break;
    case 5: out = net_unary(net, OP_softmax, x); break;
    case 6: (void)net_bce(net, x, y); break;
    case 7: net_exp_(net, x); break;
    case 8: out = net_unary(net, OP_relu, x); break;
    default: out = net_forward(net, x); break;
    }
    if (out) fake_release(out);
    fake_release(x);
    fake_release(y);
}

void call_scope(struct world *world) {
    struct scope *top = world->n_scopes ? &world->scopes[world->n_scopes - 1] : NULL;
    amp_context *context = any_context(world);
    switch (below(&world->input, 4)) {
    case 0:
        if (world->n_scopes == SCOPES) return;
        top = &world->scopes[world->n_scopes++];
        top->context = context;
        top->step_of = -1;
        need(amp_scope_enter(context, &top->saved) == AMP_OK, "amp_scope_enter failed");
        return;
    case 1: {
        amp_scope unset = { { 0 } };
        if (!top) need(amp_scope_leave(&unset) == AMP_ERR_WRONG_STATE, "a scope that was not entered was left");
        if (!top || top->step_of >= 0) return;
        need(amp_scope_leave(&top->saved) == AMP_OK, "amp_scope_leave failed");
        need(amp_scope_leave(&top->saved) == AMP_ERR_WRONG_STATE, "a scope was left twice");
        world->n_scopes--;
        return;
    }
    case 2:
        need(amp_scope_capture(&world->captured) == AMP_OK, "amp_scope_capture failed");
        world->captured_context = top && top->step_of < 0 ? top->context : NULL;
        world->has_captured = true;
        return;
    default:
        if (world->n_scopes == SCOPES || !world->has_captured) return;
        top = &world->scopes[world->n_scopes++];
        top->context = world->captured_context;
        top->step_of = -1;
        need(amp_scope_adopt(&world->captured, &top->saved) == AMP_OK, "amp_scope_adopt failed");
        world->has_captured = false;
        world->captured_context = NULL;
    }
}

static const char *any_name(struct world *world) {
    static const char *const names[] = { "linear",     "cat", "binary_cross_entropy", "exp_", "aten::mm.out",
                                         "no such op", "" };
    return names[below(&world->input, 7)];
}

void call_direct(struct world *world) {
    const size_t k = below(&world->input, FRAMES);
    amp_context *context = any_context(world);
    void **tensors = world->frame_tensors[k];
    if (!world->frame_context[k] && context) {
        struct fake_tensor *x = new_tensor(world), *weight = below(&world->input, 2) ? any_param(world) : NULL;
        tensors[0] = world->frame_owned[k] = x;
        tensors[1] = weight;
        if (checked(amp_cast_args(context, any_name(world), tensors, 2, &world->frames[k]), "amp_cast_args") ==
            AMP_OK) {
            world->frame_context[k] = context;
            return;
        }
        need(tensors[0] == x && tensors[1] == weight, "amp_cast_args failed and left casts in its place");
        fake_release(x);
        world->frame_owned[k] = NULL;
    } else if (world->frame_context[k]) {
        need(amp_cast_done(&world->frames[k]) == AMP_OK, "amp_cast_done failed");
        need(tensors[0] == world->frame_owned[k], "amp_cast_done did not put the tensor back");
        fake_release(world->frame_owned[k]);
        world->frame_owned[k] = NULL;
        world->frame_context[k] = NULL;
    }
}

void call_target(struct world *world) {
    amp_dtype dtypes[MAX_TENSORS], target = -7;
    for (size_t i = 0; i < MAX_TENSORS; i++) dtypes[i] = (amp_dtype)below(&world->input, 7);
    amp_context *context = any_context(world);
    const amp_status status = checked(amp_op_target(context, any_name(world), dtypes, below(&world->input, 5), &target),
                                      "amp_op_target");
    need((status == AMP_OK) == (target != -7), "amp_op_target failed and answered, or passed and did not");
    need(status != AMP_OK || (target >= AMP_DTYPE_DEFAULT && target <= AMP_FLOAT64), "amp_op_target said %d",
         (int)target);
}

void call_ends(struct world *world) {
    amp_context *context = any_context(world);
    switch (below(&world->input, 4)) {
    case 0: (void)checked(amp_cache_clear(context), "amp_cache_clear"); break;
    case 1: (void)checked(amp_tape_done(context), "amp_tape_done"); break;
    case 2:
        (void)checked(amp_masters_reconcile(context), "amp_masters_reconcile");
        (void)checked(amp_masters_write_back(context), "amp_masters_write_back");
        break;
    default:
        (void)checked(amp_check(context), "amp_check");
        need(!context || amp_check(context) == AMP_OK, "an error was kept after amp_check");
    }
}

/* ---- states and diagnostics ---- */

void call_save(struct world *world) {
    amp_context *context = any_context(world);
    const amp_state_format format = (amp_state_format)below(&world->input, 3);
    size_t size = 0;
    if (checked(amp_state_save_memory(context, format, world->state, sizeof world->state, &size), "save") != AMP_OK)
        return;
    need(size && size <= sizeof world->state, "a state of %zu bytes", size);
    world->state_size = size;
}

void call_load(struct world *world) {
    struct snapshot before;
    amp_context *context = any_context(world);
    const unsigned how = below(&world->input, 6);
    const size_t at = world->state_size ? (next_byte(&world->input) * 67u) % world->state_size : 0;
    const char was = world->state[at];
    if (how == 4) world->state[at] = (char)(was ^ 1 << below(&world->input, 8));
    snapshot_take(world, &before);
    const amp_status status = unchanged(world, &before,
                                        amp_state_load_memory(context, world->state, how == 5 ? at : world->state_size),
                                        "load");
    world->state[at] = was;
    if (status != AMP_OK) return;
    host_changed(world);
    for (size_t k = 0; k < LOSSES; k++)
        need(!world->brackets[k].open || world->brackets[k].context != context || !world_enabled(world, context),
             "a state was loaded inside a bracket");
}

/* Three ways to hear the same: what was found, how many the report counts, and which configuration is in force. */
static void check_reports(const struct world *world, amp_context *context) {
    static char text[65536];
    amp_config is = AMP_CONFIG_INIT, was = AMP_CONFIG_INIT;
    size_t length = 0, n = 0, slot = 0;
    if (!context) return;
    while (world->contexts[slot] != context) slot++;
    if (checked(amp_health(context, text, sizeof text, &length), "amp_health") != AMP_OK || /* which may find more */
        checked(amp_get_findings(context, NULL, 0, &n), "amp_get_findings") != AMP_OK ||
        checked(amp_get_config(context, &is), "amp_get_config") != AMP_OK ||
        checked(amp_config_resolve(&world->configs[slot], &was), "amp_config_resolve") != AMP_OK)
        return; /* an allocation that is to fail */
    const char *last = text + length;
    while (last > text && (last == text + length || last[-1] != '\n')) last--;
    need(n ? strtoull(last, NULL, 10) == n : !strcmp(last, "sound\n"), "%zu findings, and the report ends with %s", n,
         last);
    need(is.level == was.level && is.num_losses == was.num_losses && is.master_weights == was.master_weights &&
             is.loss_scale == was.loss_scale && is.max_skips == was.max_skips && is.window == was.window,
         "the configuration is not the one that was given");
}

void call_explain(struct world *world) {
    char text[512];
    size_t length = 0;
    amp_op_stats stats[3] = { AMP_OP_STATS_INIT, AMP_OP_STATS_INIT, AMP_OP_STATS_INIT };
    size_t count = 0;
    amp_context *context = any_context(world);
    const char *op = below(&world->input, 2) ? any_name(world) : NULL;
    const size_t capacity = below(&world->input, 4) * 100;
    memset(text, 1, sizeof text);
    if (checked(amp_explain(context, op, text, capacity, &length), "amp_explain") == AMP_OK && capacity)
        need(memchr(text, 0, capacity) && strlen(text) <= length && (length >= capacity || strlen(text) == length),
             "amp_explain wrote a text without an end");
    need(text[capacity] == 1, "amp_explain wrote behind its buffer");
    if (checked(amp_get_op_stats(context, stats, 2, &count), "amp_get_op_stats") != AMP_OK) return;
    for (size_t i = 0; i < count && i < 2; i++)
        need(stats[i].name && stats[i].failures <= stats[i].calls, "op %zu: %llu of %llu calls failed", i,
             (unsigned long long)stats[i].failures, (unsigned long long)stats[i].calls);
    need(!stats[2].name, "amp_get_op_stats wrote behind its array");
    check_reports(world, context);
}
