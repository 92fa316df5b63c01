/* SPDX-License-Identifier: Apache-2.0 */
/* The weight cache: what is cast how often, and that no stale or foreign cast is ever used. */
#include "checks.h"

static void run(struct rig *rig) {
    OWN_TENSOR *x = rig_tensor(rig, AMP_FLOAT16, 2.0);
    fake_release(net_linear(&rig->net, x, rig->net.weight, NULL));
}

/* The weight the last linear got. */
static struct fake_tensor *weight_seen(const struct rig *rig) { return fake_last(&rig->host)->args[1]; }

/* ---- in which calls it is cast ---- */

/* CAST and KEPT are calls of linear: the weight is cast in them, or a cast of before is used. Versions count, or there
 * are none, or they stand still (docs/reference/hooks.md, Identity). */
enum act { DONE, CAST, KEPT, BRACKET, STEP, WRITE, EVALUATE, RECORD, ENTER, LEAVE, CLEAR };
enum versions { COUNTED, NO_VERSION, STILL };

static uint64_t still(void *self, void *handle) { return (void)self, (void)handle, 7; }

static void iteration_ends(struct rig *rig) {
    OWN_TENSOR *loss = rig_tensor(rig, AMP_FLOAT32, 1.0);
    amp_scaled_loss scaled = rig_begin_with(rig, loss);
    ck_ok(amp_scale_loss_end(&scaled));
}

static void act(struct rig *rig, enum act act, amp_scope *scope) {
    const uint64_t casts = rig->host.calls[FAKE_CAST];
    switch (act) {
    case DONE: break;
    case CAST:
    case KEPT:
        run(rig);
        ck_assert_uint_eq(rig->host.calls[FAKE_CAST] - casts, act == CAST);
        ck_assert_double_eq(fake_get(weight_seen(rig), 0), fake_get(rig->net.weight, 0)); /* never a stale one */
        break;
    case BRACKET: iteration_ends(rig); break;
    case STEP:
        fake_put_grad(rig->net.weight, rig_tensor(rig, AMP_FLOAT32, 1.0));
        ck_assert_int_eq(net_step(&rig->net), 1);
        break;
    case WRITE: fake_fill(rig->net.weight, fake_get(rig->net.weight, 0) + 2.5); break;
    case EVALUATE: rig->host.no_grad = true; break;
    case RECORD: rig->host.no_grad = false; break;
    case ENTER: ck_ok(amp_scope_enter(rig->context, scope)); break;
    case LEAVE: ck_ok(amp_scope_leave(scope)); break;
    case CLEAR: ck_ok(amp_cache_clear(rig->context)); break;
    }
}

static void follow(enum versions versions, amp_switch cache, const enum act *acts) {
    amp_scope scope;
    RIG_INIT(rig, versions == NO_VERSION ? FAKE_RETAINS | FAKE_NO_VERSION : FAKE_RETAINS);
    if (versions == STILL) rig.host.hooks.version = still;
    rig_wire(&rig, CONFIG(AMP_O1, .cache = cache));
    while (*acts) act(&rig, *acts++, &scope);
}

DIFFERENCE(a_weight_is_cast_once_an_iteration) {
    follow(COUNTED, AMP_DEFAULT, (enum act[]){ CAST, KEPT, KEPT, BRACKET, CAST, KEPT, BRACKET, CAST, KEPT, DONE });
}

DIFFERENCE_TIMES(a_changed_weight_is_cast_again, 2) { /* in evaluation too, and no bracket between */
    follow(COUNTED, AMP_DEFAULT, (enum act[]){ _i ? EVALUATE : RECORD, CAST, WRITE, CAST, DONE });
}

static const struct {
    enum versions versions;
    amp_switch cache;
    enum act acts[12];
} rows[] = {
    { COUNTED, AMP_DEFAULT, { CAST, EVALUATE, KEPT } },
    { COUNTED, AMP_DEFAULT, { EVALUATE, CAST, RECORD, CAST } }, /* pytorch#65766: the gradient would be lost */
    { COUNTED, AMP_DEFAULT, { EVALUATE, CAST, KEPT, KEPT, KEPT, KEPT } }, /* sglang-omni#2262: 322 casts a step */
    { COUNTED, AMP_DEFAULT, { EVALUATE, CAST, STEP, CAST } }, /* Apex kept stale casts here */
    { COUNTED, AMP_OFF, { CAST, CAST } },
    /* without versions only in the outermost forward or scope, and a write inside of it needs a word */
    { NO_VERSION, AMP_DEFAULT, { CAST, WRITE, CAST } },
    { NO_VERSION, AMP_DEFAULT, { ENTER, CAST, KEPT, LEAVE, WRITE, ENTER, CAST, LEAVE } },
    { NO_VERSION, AMP_DEFAULT, { EVALUATE, ENTER, CAST, STEP, CAST, LEAVE } },
    { NO_VERSION, AMP_DEFAULT, { EVALUATE, ENTER, CAST, WRITE, CLEAR, CAST, LEAVE } },
    /* a step moves weights, whatever their versions say; so does a write, which needs a word */
    { STILL, AMP_DEFAULT, { EVALUATE, CAST, STEP, CAST, STEP, CAST, STEP } },
    { STILL, AMP_DEFAULT, { EVALUATE, CAST, WRITE, CLEAR, CAST } },
};

TEST_TIMES(a_weight_is_cast_where_it_must_be, sizeof rows / sizeof rows[0]) {
    follow(rows[_i].versions, rows[_i].cache, rows[_i].acts);
}

/* ---- handles ---- */

TEST(an_alias_shares_the_cast_by_its_id) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *alias = fake_alias(rig.net.weight), *x = rig_tensor(&rig, AMP_FLOAT16, 1.0);
    alias->version = rig.net.weight->version;
    run(&rig);
    fake_release(net_linear(&rig.net, x, alias, NULL));
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 1);
}

/* A second handle on the weight, with an id of its own. */
TEST(an_alias_of_a_tied_handle_shares_the_cast_too) {
    amp_param params[NET_PARAMS + 1];
    RIG_INIT(rig, FAKE_RETAINS);
    OWN_TENSOR *tied = rig_tie(&rig, params);
    tied->id = 1000;
    OWN_TENSOR *alias = fake_alias(tied), *x = rig_tensor(&rig, AMP_FLOAT16, 1.0);
    rig_wire(&rig, config_of(AMP_O1));
    alias->version = tied->version = rig.net.weight->version;
    run(&rig);
    fake_release(net_linear(&rig.net, x, alias, NULL));
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 1);
}

TEST(activations_are_not_cached) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    for (int i = 0; i < 2; i++) fake_release(net_binary(&rig.net, OP_matmul, x, x));
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 4);
    fake_tape_clear(&rig.host);
    ck_assert_int_eq(rig.host.live_tensors, 1 + NET_PARAMS);
}

TEST(cache_clear_releases_the_casts) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    rig.host.no_grad = true;
    run(&rig);
    ck_assert_int_eq(rig.host.live_tensors, NET_PARAMS + 1);
    ck_ok(amp_cache_clear(rig.context));
    ck_assert_int_eq(rig.host.live_tensors, NET_PARAMS);
    run(&rig);
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 2);
}

TEST(without_versions_a_forward_caches_and_its_end_clears) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS | FAKE_NO_VERSION);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT16, 1.0);
    rig.host.no_grad = true;
    fake_release(net_forward(&rig.net, x));
    ck_assert_int_eq(rig.host.live_tensors, NET_PARAMS + 1);
    fake_fill(rig.net.weight, 3.0);
    fake_release(net_forward(&rig.net, x));
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 6); /* weight, bias and linear's result for mul, each time */
}

TEST(without_versions_the_end_of_a_scope_inside_anothers_clears) {
    amp_scope outer, scope;
    RIG_START(rig, AMP_O1, FAKE_RETAINS | FAKE_NO_VERSION);
    RIG_START(other, AMP_O4, FAKE_RETAINS | FAKE_NO_VERSION);
    ck_ok(amp_scope_enter(other.context, &outer));
    for (int i = 0; i < 2; i++) {
        fake_fill(rig.net.weight, 3.0 + i);
        ck_ok(amp_scope_enter(rig.context, &scope));
        run(&rig);
        ck_assert_double_eq(fake_get(weight_seen(&rig), 0), 3.0 + i);
        ck_ok(amp_scope_leave(&scope));
    }
    ck_ok(amp_scope_leave(&outer));
}
