/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation of libamp fails once, in turn: at initialize (the world stays as it was) and in a whole life (the
 * error surfaces, or the result is the undisturbed one; nothing is left behind). Linked with --wrap; the fake host
 * allocates with memalign, which is left alone.
 */
#include "world.h"

#include <amp_observe.h>

#include <pthread.h>

static uint64_t n_allocations, fail_at, n_locks;

static bool fails(void) { return ++n_allocations == fail_at; }

WRAP(void *, calloc, size_t count, size_t size) { return fails() ? NULL : __real_calloc(count, size); }
WRAP(void *, realloc, void *block, size_t bytes) { return fails() ? NULL : __real_realloc(block, bytes); }
WRAP(void *, aligned_alloc, size_t alignment, size_t bytes) {
    return fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}

WRAP(int, pthread_mutex_lock, pthread_mutex_t *mutex) {
    n_locks++;
    return __real_pthread_mutex_lock(mutex);
}

static void arm(uint64_t at) {
    n_allocations = n_locks = 0;
    fail_at = at;
}
static bool fired(void) { return fail_at && n_allocations >= fail_at; }

TEST_TIMES(initialize_changes_nothing_without_memory, N_LIVES) {
    const struct life *life = &lives[_i];
    const amp_config config = config_of(life->level);
    uint64_t at = 0;
    for (bool again = true; again;) {
        RIG_INIT(rig, life->options);
        const struct world before = world_of(&rig);
        arm(++at);
        const amp_status status = rig_config(&rig, &config);
        again = fired();
        arm(0);
        if (status == AMP_OK) {
            ck_assert_ptr_nonnull(rig.context);
        } else {
            ck_assert_int_eq(status, AMP_ERR_NO_MEMORY);
            ck_says("memory");
            ck_assert_ptr_null(rig.context);
            world_check(&before, &rig);
            ck_ok(rig_config(&rig, &config));
        }
    }
    ck_assert_uint_gt(at, 10);
}

/* The weight after an undisturbed life of three steps. */
static double undisturbed(const struct life *life) {
    RIG_START(rig, life->level, life->options);
    for (int step = 0; step < 3; step++) ck_ok(live_step(&rig));
    rig_stop(&rig);
    return fake_get(rig.net.weight, 0);
}

static bool live_and_break(const struct life *life, uint64_t at, double expected, bool observed) {
    struct rig rig;
    amp_status first = AMP_OK;
    amp_observe_options each = AMP_OBSERVE_OPTIONS_INIT;
    static const char *const names[] = { "*t*", "*s*" };
    each.every = 1, each.names = names, each.n_names = 2;
    rig_init(&rig, life->options);
    const struct world before = world_of(&rig);
    rig_wire(&rig, CONFIG(life->level, .observe = observed ? AMP_ON : AMP_DEFAULT));
    arm(at);
    if (observed) first_error(&first, amp_observe(rig.context, &each));
    const amp_observed_value told = { .name = "weight", .tensor = rig.net.weight };
    amp_observed_call call = AMP_OBSERVED_CALL_INIT;
    call.op = "linear_told", call.values = &told, call.n_values = 1;
    for (int step = 0; step < 3; step++) {
        if (observed) first_error(&first, amp_observe_call(rig.context, &call));
        first_error(&first, live_step(&rig));
        first_error(&first, amp_check(rig.context));
    }
    amp_survey_result survey = AMP_SURVEY_RESULT_INIT;
    const amp_status surveyed = observed ? amp_survey(rig.context, &survey) : AMP_OK;
    if (surveyed != AMP_ERR_WRONG_STATE) first_error(&first, surveyed); /* nothing was observed, for want of memory */
    const bool while_training = fired();
    if (while_training) {
        ck_ok(live_step(&rig));
        ck_consistent(&rig);
    }
    const amp_status end = amp_shutdown(rig.context);
    first_error(&first, end);
    const bool reached = fired();
    arm(0);
    ck_assert(first == AMP_OK || first == AMP_ERR_NO_MEMORY);
    if (first == AMP_OK && !while_training) ck_assert_double_eq(fake_get(rig.net.weight, 0), expected);
    if (end == AMP_OK) ck_dtype(rig.net.weight, AMP_FLOAT32);
    fake_tape_clear(&rig.host);
    ck_nothing_left(&rig, &before);
    net_destroy(&rig.net);
    fake_destroy(&rig.host);
    return reached;
}

/* Plain, and observed: for want of memory less is observed, and the training is the same. */
TEST_TIMES(a_life_survives_each_failed_allocation, N_LIVES * 2) {
    const struct life *life = &lives[_i / 2];
    const double expected = undisturbed(life);
    uint64_t at = 1;
    while (live_and_break(life, at, expected, _i % 2)) at++;
    ck_assert_uint_gt(at, _i % 2 ? 20 : 3);
    ck_assert_uint_lt(at, 10000);
}

TEST(direct_calls_change_nothing_without_memory) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    rig.host.no_grad = true;
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    uint64_t at = 0;
    for (bool again = true; again;) {
        amp_cast_frame frame = AMP_CAST_FRAME_INIT;
        void *tensors[] = { x, rig.net.weight };
        ck_ok(amp_cache_clear(rig.context));
        arm(++at);
        const amp_status status = amp_cast_args(rig.context, "matmul", tensors, 2, &frame);
        again = fired();
        arm(0);
        if (status != AMP_OK) {
            ck_assert_int_eq(status, AMP_ERR_NO_MEMORY);
            ck_assert_ptr_eq(tensors[0], x);
            ck_assert_ptr_eq(tensors[1], rig.net.weight);
        }
        ck_ok(amp_cast_done(&frame));
        ck_ok(amp_cache_clear(rig.context));
        ck_assert_int_eq(rig.host.live_tensors, NET_PARAMS + 1);
    }
    ck_assert_uint_gt(at, 2);
}

/* Calls whose arguments agree already, and casts that come out of the cache, allocate nothing and take no lock. */
TEST(what_casts_nothing_allocates_and_locks_nothing) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT16, 1.0), *y = rig_tensor(&rig, AMP_FLOAT16, 2.0);
    fake_release(net_linear(&rig.net, x, rig.net.weight, rig.net.bias)); /* fills the cache */
    arm(0);
    fake_release(net_binary(&rig.net, OP_add, x, y));
    net_add_(&rig.net, x, y);
    struct fake_tensor *pair[] = { x, y };
    fake_release(net_cat(&rig.net, pair, 2));
    fake_release(net_linear(&rig.net, x, rig.net.weight, rig.net.bias));
    const uint64_t locks = n_locks; /* Check takes some too */
    ck_assert_uint_eq(n_allocations, 0);
    ck_assert_uint_eq(locks, 0);
    ck_dtype(fake_last(&rig.host)->args[1], AMP_FLOAT16);
    OWN_TENSOR *wide = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    fake_release(net_binary(&rig.net, OP_add, x, wide)); /* and the counter counts */
    ck_assert_uint_gt(n_allocations, 0);
    arm(0);
    const amp_status checked = amp_check(rig.context);
    const uint64_t needed = n_locks; /* and so does this */
    ck_ok(checked);
    ck_assert_uint_gt(needed, 0);
}
