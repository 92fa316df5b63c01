/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every hook that can fail fails once at its 1st, 2nd, ... n-th call in a program's life, until the life passes
 * without reaching the n-th. The error must surface, nothing may be left behind, and training goes on afterwards.
 */
#include "world.h"

static const enum fake_hook hooks[] = { FAKE_VIEW, FAKE_CAST, FAKE_GRAD, FAKE_SET_GRAD, FAKE_SWAP, FAKE_SCALE, FAKE_ALLOC };
static const char *const names[] = { "view", "cast", "grad", "set_grad", "swap_data", "scale", "alloc" };
enum { N_HOOKS = sizeof hooks / sizeof hooks[0] };

static bool fired(const struct rig *rig) { return rig->host.calls[rig->host.fail_hook] >= rig->host.fail_at; }

/* A host that refuses swap_data at the very end keeps libamp's block; without alloc it is malloc's. */
static void take_what_could_not_be_swapped(struct rig *rig) {
    for (size_t i = 0; i < NET_PARAMS; i++) {
        struct fake_tensor *param = world_param(&rig->net, i);
        if (param->storage.owner) continue;
        free(param->storage.data);
        param->owns = false;
    }
}

/* True if hook call number `at` was reached. */
static bool live_and_break(const struct life *life, size_t hook, uint64_t at) {
    struct rig rig;
    struct world before;
    amp_status first = AMP_OK;
    const amp_config config = config_of(life->level);
    rig_init(&rig, life->options);
    world_take(&before, &rig);
    rig.host.fail_hook = hooks[hook];
    rig.host.fail_at = at;
    first_error(&first, rig_config(&rig, &config));
    if (first != AMP_OK) {
        ck_assert_ptr_nonnull(strstr(amp_last_error(), names[hook]));
        world_check(&before, &rig);
        first_error(&first, rig_config(&rig, &config)); /* the hook works again */
    }
    ck_assert_ptr_nonnull(rig.context);
    for (int step = 0; step < 3; step++) {
        first_error(&first, live_step(&rig));
        first_error(&first, amp_check(rig.context));
    }
    if (fired(&rig)) {
        ck_assert_msg(first != AMP_OK, "hook %s failed at call %d, and nobody said so", names[hook], (int)at);
        ck_ok(live_step(&rig)); /* life goes on */
        ck_consistent(&rig);
    }
    const amp_status end = amp_shutdown(rig.context);
    first_error(&first, end);
    ck_assert_msg(!fired(&rig) || first != AMP_OK, "hook %s failed at call %d, and nobody said so", names[hook], (int)at);
    if (end == AMP_OK)
        for (size_t k = 0; k < 3; k++) ck_dtype((struct fake_tensor *)rig.net.trained[k], AMP_FLOAT32);
    fake_tape_clear(&rig.host);
    ck_nothing_left(&rig, &before);
    const bool reached = fired(&rig);
    if (end != AMP_OK && hooks[hook] == FAKE_SWAP) take_what_could_not_be_swapped(&rig);
    net_destroy(&rig.net);
    ck_assert_uint_eq(rig.host.wrong_frees, 0);
    fake_destroy(&rig.host);
    return reached;
}

START_TEST(a_hook_fails_once) {
    const size_t hook = (size_t)_i % N_HOOKS;
    const struct life *life = &lives[(size_t)_i / N_HOOKS];
    uint64_t at = 1;
    while (live_and_break(life, hook, at)) at++;
    ck_assert_uint_lt(at, 10000);
}
END_TEST

/* A test that breaks nothing proves nothing: each hook is reached in some life. */
START_TEST(each_hook_is_reached) {
    bool reached = false;
    for (size_t i = 0; i < N_LIVES && !reached; i++) reached = live_and_break(&lives[i], (size_t)_i, 1);
    ck_assert_msg(reached, "%s is called in no life", names[_i]);
}
END_TEST

/* ---- missing hooks are refused by name by what needs them ---- */

static void drop_view(amp_host *host) { host->view = NULL; }
static void drop_cast(amp_host *host) { host->cast = NULL; }
static void drop_release(amp_host *host) { host->release = NULL; }
static void drop_swap(amp_host *host) { host->swap_data = NULL; }
static void drop_grad(amp_host *host) { host->grad = NULL; }
static void drop_types(amp_host *host) { host->view = NULL, host->dtype = NULL; }

static const struct {
    amp_level level;
    void (*drop)(amp_host *host);
    const char *says;
} missing[] = {
    { AMP_O1, drop_cast, "cast" },   { AMP_O1, drop_release, "release" }, { AMP_O1, drop_types, "dtype" },
    { AMP_O1, drop_grad, "grad" },   { AMP_O1, drop_view, "view" },       { AMP_O2, drop_swap, "swap_data" },
    { AMP_O2, drop_view, "view" },   { AMP_O2, drop_grad, "grad" },       { AMP_O2, drop_cast, "cast" },
    { AMP_O3, drop_swap, "swap_data" },
};

START_TEST(a_missing_hook_is_named) {
    struct rig rig;
    struct world before;
    const amp_config config = config_of(missing[_i].level);
    rig_init(&rig, 0);
    missing[_i].drop(&rig.host.hooks);
    world_take(&before, &rig);
    ck_fails(AMP_ERR_MISSING_HOOK, rig_config(&rig, &config));
    ck_says(missing[_i].says);
    ck_says(missing[_i].level == AMP_O1 ? "O1" : missing[_i].level == AMP_O2 ? "O2" : "O3");
    world_check(&before, &rig);
    rig_end(&rig);
}
END_TEST

START_TEST(what_needs_no_hook_asks_for_none) {
    struct rig rig;
    const amp_config config = config_of(AMP_O0);
    rig_init(&rig, 0);
    drop_swap(&rig.host.hooks);
    drop_grad(&rig.host.hooks);
    rig.host.hooks.scale = NULL;
    rig.host.hooks.set_grad = NULL;
    ck_ok(rig_config(&rig, &config));
    rig_end(&rig);
}
END_TEST

int main(void) {
    const struct test tests[] = {
        { a_hook_fails_once, N_HOOKS * N_LIVES }, { each_hook_is_reached, N_HOOKS },
        { a_missing_hook_is_named, sizeof missing / sizeof missing[0] }, { what_needs_no_hook_asks_for_none, 1 },
    };
    return RUN_TESTS("hooks", tests);
}
