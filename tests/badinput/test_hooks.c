/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every hook that can fail fails once at its 1st, 2nd, ... n-th call in a program's life, until the life passes
 * without reaching the n-th. The error must surface, nothing may be left behind, and training goes on afterwards.
 */
#include "world.h"

static const enum fake_hook hooks[] = { FAKE_VIEW, FAKE_CAST,  FAKE_GRAD, FAKE_SET_GRAD,
                                        FAKE_SWAP, FAKE_SCALE, FAKE_ALLOC };
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
    amp_status first = AMP_OK;
    const amp_config config = config_of(life->level);
    rig_init(&rig, life->options);
    const struct world before = world_of(&rig);
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
    const bool told = rig.host.events[AMP_EVENT_WARNING] != 0; /* of a look that nothing hung on */
    if (fired(&rig)) {
        ck_assert_msg(first != AMP_OK || told, "hook %s failed at call %d, and nobody said so", names[hook], (int)at);
        ck_ok(live_step(&rig)); /* life goes on */
        ck_consistent(&rig);
    }
    const amp_status end = amp_shutdown(rig.context);
    first_error(&first, end);
    ck_assert_msg(!fired(&rig) || first != AMP_OK || told, "hook %s failed at call %d, and nobody said so", names[hook],
                  (int)at);
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

TEST_TIMES(a_hook_fails_once, N_HOOKS * N_LIVES) {
    const size_t hook = (size_t)_i % N_HOOKS;
    const struct life *life = &lives[(size_t)_i / N_HOOKS];
    uint64_t at = 1;
    while (live_and_break(life, hook, at)) at++;
    ck_assert_uint_lt(at, 10000);
}

/* ---- swap_data refuses for good ---- */

static struct {
    struct rig *rig;
    amp_status (*swap)(void *self, void *tensor, amp_storage *storage);
    uint64_t calls, from; /* it refuses from this call on; 0: never */
    uint64_t until;       /* and before this one; 0: for good */
    bool grads_alone;
} refusal;

static bool is_grad(const void *tensor) {
    for (size_t k = 0; k < 3; k++)
        if (((struct fake_tensor *)refusal.rig->net.trained[k])->grad == tensor) return true;
    return false;
}

static amp_status refusing_swap(void *self, void *tensor, amp_storage *storage) {
    const bool counts = !refusal.grads_alone || is_grad(tensor);
    if (!counts || ++refusal.calls < refusal.from || !refusal.from || (refusal.until && refusal.calls >= refusal.until))
        return refusal.swap(self, tensor, storage);
    return AMP_ERR_HOST_FAILED;
}

/* Is each parameter of the type that it came in, and each gradient of the one that backward gave it? */
static bool all_is_back(struct rig *rig, bool low) {
    for (size_t k = 0; k < 2; k++) {
        const struct fake_tensor *param = rig->net.trained[k];
        if (fake_dtype(param) != (low && !k ? AMP_FLOAT16 : AMP_FLOAT32)) return false;
        if (param->grad && fake_dtype(param->grad) != AMP_FLOAT16) return false;
    }
    return true;
}

/* What the host could not be given back lies under its handles: libamp's blocks, which are malloc's. */
static void take_grads_that_stayed(struct rig *rig) {
    for (size_t k = 0; k < 3; k++) {
        struct fake_tensor *grad = ((struct fake_tensor *)rig->net.trained[k])->grad;
        if (!grad || grad->storage.owner) continue;
        free(grad->storage.data);
        grad->owns = false;
    }
}

static amp_status scaled_backward(struct rig *rig) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    struct fake_tensor *loss = rig_tensor(rig, AMP_FLOAT32, 1.0);
    amp_status status = amp_scale_loss_begin(&rig->net.optimizer, loss, &scaled);
    if (status == AMP_OK) {
        net_backward(&rig->net, 0.5, fake_seed(&scaled));
        status = amp_scale_loss_end(&scaled);
    }
    fake_release(loss);
    return status;
}

/* Three steps and the end, or as far as it comes; `low`: parameters that come in 16 bits. True: it
 * refused something. */
static bool live_and_refuse(unsigned options, bool low, uint64_t from, bool grads_alone) {
    struct rig rig;
    rig_init(&rig, options);
    if (low) {
        rig.net.model.flags |= AMP_MODEL_LOW_PARAMS;
        fake_release(rig.net.weight);
        rig.net.weight = rig_tensor(&rig, AMP_FLOAT16, 0.5);
        rig.net.params[0].tensor = rig.net.trained[0] = rig.net.weight;
    }
    refusal.rig = &rig;
    refusal.swap = rig.host.hooks.swap_data;
    rig.host.hooks.swap_data = refusing_swap;
    refusal.from = 0;
    rig_wire(&rig, config_of(AMP_O2));
    refusal.calls = 0;
    refusal.from = from;
    refusal.grads_alone = grads_alone;
    amp_status status = AMP_OK;
    for (int step = 0; step < 3 && status == AMP_OK; step++) {
        net_zero_grad(&rig.net);
        status = scaled_backward(&rig);
        (void)net_step(&rig.net);
        first_error(&status, amp_check(rig.context));
    }
    const amp_status end = amp_shutdown(rig.context); /* while the gradients are there */
    ck_assert_msg((end == AMP_OK) == all_is_back(&rig, low), "amp_shutdown: %s", amp_status_name(end));
    if (end != AMP_OK) ck_says("stay as they are");
    first_error(&status, end);
    const bool refused = refusal.calls >= from;
    ck_assert_msg(!refused || status != AMP_OK, "swap_data refused from call %d on, and nobody said so", (int)from);
    if (refused) ck_says("swap_data");
    fake_tape_clear(&rig.host);
    take_grads_that_stayed(&rig);
    net_zero_grad(&rig.net);
    take_what_could_not_be_swapped(&rig);
    net_destroy(&rig.net);
    ck_assert_uint_eq(rig.host.over_released, 0);
    ck_assert_uint_eq(rig.host.wrong_frees, 0);
    fake_destroy(&rig.host); /* and with it the blocks that nobody could hand back */
    return refused;
}

TEST_TIMES(swap_data_refuses_for_good, 16) {
    const unsigned options = (_i & 1 ? FAKE_NO_ALLOC : 0) | (_i & 2 ? FAKE_NO_VERSION : 0);
    const bool low = _i & 4, grads_alone = _i & 8;
    uint64_t from = 1;
    while (live_and_refuse(options, low, from, grads_alone)) from++;
    ck_assert_uint_gt(from, 6);
    ck_assert_uint_lt(from, 1000);
}

/* The host helps itself to the block that it had. */
static void put_back(struct fake_tensor *param, const struct fake_tensor *kept) {
    if (param->owns) fake_drop_block(param);
    param->storage = kept->storage;
    param->owns = true;
}

/* An initialize that fails, and cannot be rolled back: the first error, and which parameters stay how. */
TEST_TIMES(a_refused_roll_back_is_told, 2) {
    static const char *const left[] = { "weight has libamp's fp16 block (its own is at ",
                                        "bias has libamp's fp16 block" };
    struct rig rig;
    rig_init(&rig, _i ? FAKE_NO_ALLOC : 0);
    const float *own = rig.net.weight->storage.data;
    const struct fake_tensor kept[] = { *rig.net.weight, *rig.net.bias };
    refusal.rig = &rig;
    refusal.swap = rig.host.hooks.swap_data;
    rig.host.hooks.swap_data = refusing_swap;
    rig.net.params[3].module_kind = AMP_MODULE_OTHER; /* `mean`: a third one to re-type */
    refusal.calls = 0;
    refusal.from = 3;
    refusal.grads_alone = false;
    ck_refused(AMP_ERR_HOST_FAILED, "swap_data failed", rig_try(&rig, config_of(AMP_O2)));
    for (size_t k = 0; k < 2; k++) ck_says(left[k]);
    ck_assert_ptr_null(rig.net.model.amp);
    ck_assert_msg(net_slots_restored(&rig.net), "a slot is not what it was");
    char address[40];
    snprintf(address, sizeof address, "%p", (const void *)own);
    ck_says(address);
    ck_assert_float_eq(*own, 0.5f); /* and the values are there */
    ck_assert_ptr_eq(strstr(amp_last_error(), "free()") ? NULL : &rig, _i ? NULL : &rig);
    take_what_could_not_be_swapped(&rig);
    for (size_t k = 0; k < 2; k++) put_back(rig.net.trained[k], &kept[k]);
    net_destroy(&rig.net);
    ck_assert_int_eq(rig.host.live_blocks, 0);
    fake_destroy(&rig.host);
}

/* `mean` cannot be re-typed, `bias` not be undone, either time; `weight` can. */
TEST(what_a_roll_back_brought_back_is_not_told) {
    struct rig rig;
    rig_init(&rig, 0);
    const struct fake_tensor kept = *rig.net.bias;
    refusal.swap = rig.host.hooks.swap_data;
    rig.host.hooks.swap_data = refusing_swap;
    rig.net.params[3].module_kind = AMP_MODULE_OTHER;
    refusal.from = 3, refusal.until = 6;
    ck_refused(AMP_ERR_HOST_FAILED, "bias has libamp's fp16 block", rig_try(&rig, config_of(AMP_O2)));
    ck_assert_msg(!strstr(amp_last_error(), "weight has libamp's"), "%s", amp_last_error());
    take_what_could_not_be_swapped(&rig);
    put_back(rig.net.bias, &kept);
    net_destroy(&rig.net);
    ck_assert_int_eq(rig.host.live_blocks, 0);
    fake_destroy(&rig.host);
}

/* The end, where each parameter is refused from one on: the first error, and all of them. */
TEST_TIMES(a_refused_end_tells_the_first_error, 2) {
    static const char *const first[] = { "swap_data failed on weight", "swap_data failed on bias" };
    struct rig rig;
    rig_init(&rig, 0);
    refusal.swap = rig.host.hooks.swap_data;
    refusal.from = 0;
    refusal.grads_alone = false;
    rig.host.hooks.swap_data = refusing_swap;
    rig_wire(&rig, config_of(AMP_O2));
    refusal.calls = 0;
    refusal.from = 1 + (uint64_t)_i;
    ck_refused(AMP_ERR_HOST_FAILED, first[_i], amp_shutdown(rig.context));
    ck_says("bias has libamp's fp16 block");
    ck_assert_msg((strstr(amp_last_error(), "weight has libamp's") != NULL) == !_i, "%s", amp_last_error());
    take_what_could_not_be_swapped(&rig);
    net_destroy(&rig.net);
    ck_assert_uint_eq(rig.host.wrong_frees, 0);
    fake_destroy(&rig.host);
}

/* A test that breaks nothing proves nothing: each hook is reached in some life. */
TEST_TIMES(each_hook_is_reached, N_HOOKS) {
    bool reached = false;
    for (size_t i = 0; i < N_LIVES && !reached; i++) reached = live_and_break(&lives[i], (size_t)_i, 1);
    ck_assert_msg(reached, "%s is called in no life", names[_i]);
}

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

TEST_TIMES(a_missing_hook_is_named, sizeof missing / sizeof missing[0]) {
    RIG_INIT(rig, 0);
    missing[_i].drop(&rig.host.hooks);
    const struct world before = world_of(&rig);
    ck_refused(AMP_ERR_MISSING_HOOK, missing[_i].says, rig_try(&rig, config_of(missing[_i].level)));
    ck_says(missing[_i].level == AMP_O1 ? "O1" : missing[_i].level == AMP_O2 ? "O2" : "O3");
    world_check(&before, &rig);
}

TEST(what_needs_no_hook_asks_for_none) {
    RIG_INIT(rig, 0);
    drop_swap(&rig.host.hooks);
    drop_grad(&rig.host.hooks);
    rig.host.hooks.scale = NULL;
    rig.host.hooks.set_grad = NULL;
    rig_wire(&rig, config_of(AMP_O0));
}
