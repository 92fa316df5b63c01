/* SPDX-License-Identifier: Apache-2.0 */
/* The weight cache: what is cast how often, and that no stale or foreign cast is ever used. */
#include "checks.h"

static void run(struct rig *rig) {
    struct fake_tensor *x = rig_tensor(rig, AMP_FLOAT16, 2.0);
    fake_release(net_linear(&rig->net, x, rig->net.weight, NULL));
    fake_release(x);
}

/* The weight the last linear got. */
static struct fake_tensor *weight_seen(const struct rig *rig) { return fake_last(&rig->host)->args[1]; }

DIFFERENCE(a_weight_is_cast_once_an_iteration) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    run(&rig);
    const struct fake_tensor *cast = weight_seen(&rig);
    for (int i = 0; i < 2; i++) {
        run(&rig);
        ck_assert_ptr_eq(weight_seen(&rig), cast);
    }
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 1);
}

TEST(it_is_cast_again_after_the_iteration) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    for (uint64_t i = 1; i <= 3; i++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        run(&rig);
        run(&rig);
        struct fake_tensor *loss = rig_tensor(&rig, AMP_FLOAT32, 1.0);
        ck_ok(amp_scale_loss_begin(&rig.net.optimizer, loss, &scaled));
        ck_ok(amp_scale_loss_end(&scaled));
        fake_release(loss);
        ck_assert_uint_eq(rig.host.calls[FAKE_CAST], i);
    }
}

DIFFERENCE_TIMES(a_changed_weight_is_cast_again, 2) { /* in evaluation too, and no bracket between */
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    rig.host.no_grad = _i;
    run(&rig);
    fake_fill(rig.net.weight, 3.0);
    run(&rig);
    ck_assert_double_eq(fake_get(weight_seen(&rig), 0), 3.0);
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 2);
}

TEST(a_cast_without_a_tape_does_not_serve_with_one) { /* pytorch#65766: the gradient would be lost */
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    rig.host.no_grad = true;
    run(&rig);
    rig.host.no_grad = false;
    run(&rig);
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 2);
}

TEST(a_cast_with_a_tape_serves_without_one) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    run(&rig);
    rig.host.no_grad = true;
    run(&rig);
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 1);
}

TEST(evaluation_casts_once_in_all) { /* sglang-omni#2262: 322 casts a step */
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    rig.host.no_grad = true;
    for (int i = 0; i < 10; i++) run(&rig);
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 1);
}

TEST(evaluation_after_a_step_sees_the_new_weights) { /* Apex kept stale casts here, apex.md 2.5 */
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    rig.host.no_grad = true;
    run(&rig);
    fake_put_grad(rig.net.weight, rig_tensor(&rig, AMP_FLOAT32, 1.0));
    ck_assert_int_eq(net_step(&rig.net), 1);
    run(&rig);
    ck_assert_double_eq(fake_get(weight_seen(&rig), 0), 0.375);
}

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
    struct rig rig;
    amp_param params[NET_PARAMS + 1];
    const amp_config config = config_of(AMP_O1);
    rig_init(&rig, FAKE_RETAINS);
    struct fake_tensor *tied = fake_alias(rig.net.weight);
    tied->id = 1000;
    struct fake_tensor *alias = fake_alias(tied), *x = rig_tensor(&rig, AMP_FLOAT16, 1.0);
    memcpy(params, rig.net.params, sizeof rig.net.params);
    params[NET_PARAMS] = (amp_param){ sizeof(amp_param), 0, tied, "tied" };
    rig.net.model.params = params;
    rig.net.model.n_params = NET_PARAMS + 1;
    ck_ok(rig_config(&rig, &config));
    alias->version = tied->version = rig.net.weight->version;
    run(&rig);
    fake_release(net_linear(&rig.net, x, alias, NULL));
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 1);
    fake_release(alias);
    fake_release(tied);
    fake_release(x);
    rig_end(&rig);
}

TEST(activations_are_not_cached) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    for (int i = 0; i < 2; i++) fake_release(net_binary(&rig.net, OP_matmul, x, x));
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 4);
    fake_tape_clear(&rig.host);
    ck_assert_int_eq(rig.host.live_tensors, 1 + NET_PARAMS);
}

TEST(the_cache_can_be_switched_off) {
    amp_config config = config_of(AMP_O1);
    config.cache = AMP_OFF;
    RIG_INIT(rig, FAKE_RETAINS);
    ck_ok(rig_config(&rig, &config));
    run(&rig);
    run(&rig);
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 2);
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

/* ---- hosts without versions: only inside the outermost forward or scope ---- */

TEST(without_versions_nothing_is_cached_outside_a_scope) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS | FAKE_NO_VERSION);
    run(&rig);
    rig.net.weight->version = 0;
    fake_fill(rig.net.weight, 3.0);
    run(&rig);
    ck_assert_double_eq(fake_get(weight_seen(&rig), 0), 3.0);
}

TEST(without_versions_a_scope_caches_and_its_end_clears) {
    amp_scope scope;
    RIG_START(rig, AMP_O1, FAKE_RETAINS | FAKE_NO_VERSION);
    ck_ok(amp_scope_enter(rig.context, &scope));
    run(&rig);
    run(&rig);
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 1);
    ck_ok(amp_scope_leave(&scope));
    fake_fill(rig.net.weight, 3.0);
    ck_ok(amp_scope_enter(rig.context, &scope));
    run(&rig);
    ck_assert_double_eq(fake_get(weight_seen(&rig), 0), 3.0);
    ck_ok(amp_scope_leave(&scope));
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

TEST(without_versions_a_step_inside_a_scope_is_seen) {
    amp_scope scope;
    RIG_START(rig, AMP_O1, FAKE_RETAINS | FAKE_NO_VERSION);
    rig.host.no_grad = true;
    ck_ok(amp_scope_enter(rig.context, &scope));
    run(&rig);
    fake_put_grad(rig.net.weight, rig_tensor(&rig, AMP_FLOAT32, 1.0));
    ck_assert_int_eq(net_step(&rig.net), 1);
    run(&rig);
    ck_assert_double_eq(fake_get(weight_seen(&rig), 0), 0.375);
    ck_ok(amp_scope_leave(&scope));
}

TEST(without_versions_the_end_of_a_scope_inside_anothers_clears) {
    struct rig rig, other;
    amp_scope outer, scope;
    rig_start(&rig, AMP_O1, FAKE_RETAINS | FAKE_NO_VERSION);
    rig_start(&other, AMP_O4, FAKE_RETAINS | FAKE_NO_VERSION);
    ck_ok(amp_scope_enter(other.context, &outer));
    for (int i = 0; i < 2; i++) {
        fake_fill(rig.net.weight, 3.0 + i);
        ck_ok(amp_scope_enter(rig.context, &scope));
        run(&rig);
        ck_assert_double_eq(fake_get(weight_seen(&rig), 0), 3.0 + i);
        ck_ok(amp_scope_leave(&scope));
    }
    ck_ok(amp_scope_leave(&outer));
    rig_end(&other);
    rig_end(&rig);
}

TEST(without_versions_a_write_inside_a_scope_needs_a_word) {
    amp_scope scope;
    RIG_START(rig, AMP_O1, FAKE_RETAINS | FAKE_NO_VERSION);
    rig.host.no_grad = true;
    ck_ok(amp_scope_enter(rig.context, &scope));
    run(&rig);
    fake_fill(rig.net.weight, 3.0);
    ck_ok(amp_cache_clear(rig.context));
    run(&rig);
    ck_assert_double_eq(fake_get(weight_seen(&rig), 0), 3.0);
    ck_ok(amp_scope_leave(&scope));
}

/* ---- hosts whose versions stand still: docs/hosts.md, Identity ---- */

static uint64_t still(void *self, void *handle) { return (void)self, (void)handle, 7; }

static void start_still(struct rig *rig) {
    rig_init(rig, FAKE_RETAINS);
    rig->host.hooks.version = still;
    const amp_config config = config_of(AMP_O4);
    ck_ok(rig_config(rig, &config));
    rig->host.no_grad = true; /* what a tape has recorded goes with it */
}

TEST(a_step_moves_weights_whatever_their_versions_say) {
    RIG(rig);
    start_still(&rig);
    for (int i = 0; i < 3; i++) {
        const double now = 0.5 - 0.125 * i;
        ck_assert_double_eq(fake_get(rig.net.weight, 0), now);
        run(&rig);
        ck_assert_double_eq(fake_get(weight_seen(&rig), 0), now);
        fake_put_grad(rig.net.weight, rig_tensor(&rig, AMP_FLOAT32, 1.0));
        ck_assert_int_eq(net_step(&rig.net), 1);
    }
}

TEST(a_write_that_no_version_counts_needs_a_word) {
    RIG(rig);
    start_still(&rig);
    run(&rig);
    fake_fill(rig.net.weight, 3.0);
    ck_ok(amp_cache_clear(rig.context));
    run(&rig);
    ck_assert_double_eq(fake_get(weight_seen(&rig), 0), 3.0);
}
