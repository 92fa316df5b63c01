/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An optimizer of libamp's own beside a host's own that computes the same (SGD), through the same random program of
 * brackets, overflows, delays, clipping, steps, clearing and edits, at every level and on hosts of every kind:
 * parameters, masters, gradients, decisions and scales stay equal to the last bit.
 */
#include "fused.h"
#include "../support/heap.h"

#include <stdio.h>

enum { STEPS = 60 };

static const unsigned host_kinds[] = { 0, FAKE_NO_SET_GRAD, FAKE_NO_VERSION, FAKE_NO_SET_GRAD | FAKE_NO_VERSION,
                                       FAKE_NO_ALLOC, FAKE_FP32_GRADS };
enum { N_KINDS = sizeof host_kinds / sizeof *host_kinds, N_LEVELS = 9 };
static const struct {
    amp_level level;
    amp_switch emulate;
} levels[N_LEVELS] = {
    { AMP_O0, 0 }, { AMP_O1, 0 },      { AMP_O2, 0 },      { AMP_O3, 0 },     { AMP_O4, 0 },
    { AMP_O5, 0 }, { AMP_O2, AMP_ON }, { AMP_O3, AMP_ON }, { AMP_O5, AMP_ON },
};

struct pair {
    struct rig ours, theirs;
    bool keeps_weights; /* the program writes none itself */
    uint64_t random;
};

static uint64_t draw(struct pair *pair, uint64_t n) { /* splitmix64 */
    uint64_t z = (pair->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
}
static double draw_value(struct pair *pair) { return ((double)draw(pair, 2001) - 1000.0) / 4096.0; }

/* ---- comparing ---- */

static void same_bytes(const char *what, const char *name, const void *a, const void *b, size_t bytes) {
    ck_assert_msg(!memcmp(a, b, bytes), "%s of %s differs", what, name);
}

static void compare_params(struct pair *pair) {
    for (int k = 0; k < 3; k++) {
        const struct fake_tensor *a = pair->ours.net.trained[k], *b = pair->theirs.net.trained[k];
        const char *name = pair->ours.net.params[k].name;
        ck_assert_int_eq(fake_dtype(a), fake_dtype(b));
        same_bytes("value", name, a->storage.data, b->storage.data,
                   NET_SIZE * (fake_dtype(a) == AMP_FLOAT32 ? 4 : 2));
    }
}

/* NaNs as one: the ways to them differ in their signs. */
static void compare_floats(const char *what, const char *name, const float *a, const float *b) {
    for (int i = 0; i < NET_SIZE; i++)
        ck_assert_msg(!memcmp(&a[i], &b[i], 4) || (a[i] != a[i] && b[i] != b[i]), "%s of %s: [%d] is %g, want %g", what,
                      name, i, (double)a[i], (double)b[i]);
}

static void compare_masters(struct pair *pair) {
    amp_master a[3], b[3];
    masters_of(&pair->ours, a);
    masters_of(&pair->theirs, b);
    for (int k = 0; k < 3; k++) {
        ck_assert_int_eq(a[k].is_master, b[k].is_master);
        if (a[k].dtype == AMP_FLOAT32) compare_floats("master", a[k].name, a[k].data, b[k].data);
        ck_assert_msg(!a[k].grad == !b[k].grad, "%s has %s gradient", a[k].name, a[k].grad ? "a" : "no");
        if (a[k].dtype == AMP_FLOAT32 && a[k].grad) compare_floats("gradient", a[k].name, a[k].grad, b[k].grad);
    }
}

static void compare_records(struct pair *pair) {
    const amp_record a = rig_record(&pair->ours, 0), b = rig_record(&pair->theirs, 0);
    ck_assert(a.scale_after == b.scale_after);
    ck_assert_uint_eq(a.skipped, b.skipped);
    ck_assert_pstr_eq(a.first_nonfinite, b.first_nonfinite);
}

/* ---- the program ---- */

static void do_bracket(struct pair *pair, bool last, unsigned *delayed) {
    const uint64_t kind = draw(pair, 8);
    uint32_t flags = 0;
    if (!last && kind == 0) flags = AMP_DELAY_UNSCALE;
    if (!last && kind == 1) flags = AMP_DELAY_OVERFLOW_CHECK;
    const double value = draw(pair, 12) ? draw_value(pair) : INF;
    const amp_action a = bracket(&pair->ours, value, flags), b = bracket(&pair->theirs, value, flags);
    ck_assert_int_eq(a, b);
    *delayed = flags;
}

static void maybe_look(struct pair *pair) {
    if (!draw(pair, 4)) compare_masters(pair);
}

static void maybe_clip(struct pair *pair) {
    const uint64_t kind = draw(pair, 6);
    float a = 0.0f, b = 0.0f;
    for (uint64_t i = 0; i < kind && kind < 3; i++) { /* once or twice */
        ck_ok(amp_clip_grad_norm(&pair->ours.net.optimizer, 0.05f, &a));
        ck_ok(amp_clip_grad_norm(&pair->theirs.net.optimizer, 0.05f, &b));
        ck_assert_msg(a == b || (a != a && b != b), "norm is %.9g, want %.9g", (double)a, (double)b);
        if (!draw(pair, 2)) maybe_look(pair);
    }
    if (kind != 3) return;
    ck_ok(amp_clip_grad_value(&pair->ours.net.optimizer, 0.01f));
    ck_ok(amp_clip_grad_value(&pair->theirs.net.optimizer, 0.01f));
}

static void do_step(struct pair *pair) {
    amp_action action = -1;
    const int32_t before = pair->theirs.net.steps;
    ck_ok(amp_fused_step(&pair->ours.net.optimizer, &action));
    net_step(&pair->theirs.net);
    ck_assert_int_eq(action == AMP_STEP, pair->theirs.net.steps == before + 1);
    compare_params(pair);
    compare_records(pair);
    maybe_look(pair);
}

static void maybe_clear(struct pair *pair) {
    if (!draw(pair, 4)) return; /* gradients go on adding up */
    ck_ok(amp_fused_zero_grad(&pair->ours.net.optimizer));
    net_zero_grad(&pair->theirs.net);
}

/* As a program that prunes or loads weights. */
static void maybe_edit(struct pair *pair) {
    if (draw(pair, 6) || pair->keeps_weights) return;
    const int k = (int)draw(pair, 3);
    const double value = draw_value(pair);
    fake_set(pair->ours.net.trained[k], 1, value);
    fake_set(pair->theirs.net.trained[k], 1, value);
    ck_ok(amp_masters_reconcile(pair->ours.context));
    ck_ok(amp_masters_reconcile(pair->theirs.context));
}

static void run_program(struct pair *pair) {
    for (int step = 0; step < STEPS; step++) {
        unsigned delayed = 0;
        for (uint64_t n = draw(pair, 3); n--;) {
            do_bracket(pair, false, &delayed);
            if (!delayed) maybe_look(pair);
        }
        do_bracket(pair, true, &delayed);
        maybe_look(pair);
        maybe_clip(pair);
        do_step(pair);
        maybe_clear(pair);
        maybe_edit(pair);
    }
}

static amp_config config_at(int i) { /* its inverse is rounded: 48 is no power of two */
    return CONFIG(levels[i].level, .emulate = levels[i].emulate, .loss_scale = AMP_DYNAMIC, .init_scale = 48.0f,
                  .window = 5, .max_skips = AMP_NEVER, .min_scale = 0x1p-10f);
}

static void pair_start_with(struct pair *pair, amp_config ours, amp_config theirs, unsigned options, uint64_t seed) {
    pair->random = seed;
    pair->keeps_weights = ours.master_weights != theirs.master_weights;
    rig_init(&pair->theirs, options);
    rig_wire(&pair->theirs, theirs);
    fused_start(&pair->ours, optim_of(AMP_OPTIM_SGD, 0.125), ours, options);
}

static void pair_start(struct pair *pair, amp_config config, unsigned options, uint64_t seed) {
    pair_start_with(pair, config, config, options, seed);
}

static void pair_end(struct pair *pair) {
    rig_end(&pair->ours);
    rig_end(&pair->theirs);
}

TEST_TIMES(as_the_hosts_own, N_LEVELS *N_KINDS) {
    struct pair pair;
    pair_start(&pair, config_at(_i % N_LEVELS), host_kinds[_i / N_LEVELS], (uint64_t)_i);
    run_program(&pair);
    pair_end(&pair);
}

/* Without a bracket, and at a scale that is trivial. */
TEST_TIMES(plain_steps, N_LEVELS) {
    amp_config config = config_at(_i);
    config.loss_scale = 1.0f, config.init_scale = config.min_scale = 0.0f, config.window = 0;
    struct pair pair;
    pair_start(&pair, config, 0, 5);
    for (int step = 0; step < 4; step++) {
        for (int k = 0; k < 3; k++)
            add_grad(pair.ours.net.trained[k], 0.25 * k), add_grad(pair.theirs.net.trained[k], 0.25 * k);
        do_step(&pair);
    }
    pair_end(&pair);
}

/* An FP32 value that the program writes between steps into a parameter without a gradient: the step rounds it. */
TEST_TIMES(a_write_without_a_gradient, N_LEVELS *N_KINDS) {
    amp_config config = config_at(_i % N_LEVELS);
    config.loss_scale = 1.0f, config.init_scale = config.min_scale = 0.0f, config.window = 0;
    struct pair pair;
    pair_start(&pair, config, host_kinds[_i / N_LEVELS], 5);
    for (int step = 0; step < 3; step++) {
        const double written = 1.0 + step + 0x1p-12; /* without the last bit in 16 bits */
        for (int k = 1; k < 3; k++)
            add_grad(pair.ours.net.trained[k], 0.25 * k), add_grad(pair.theirs.net.trained[k], 0.25 * k);
        fake_set(pair.ours.net.trained[0], 1, written);
        fake_set(pair.theirs.net.trained[0], 1, written);
        if (host_kinds[_i / N_LEVELS] & FAKE_NO_VERSION && !levels[_i % N_LEVELS].emulate) { /* else libamp misses it */
            ck_ok(amp_masters_reconcile(pair.ours.context));
            ck_ok(amp_masters_reconcile(pair.theirs.context));
        }
        do_step(&pair);
        if (levels[_i % N_LEVELS].emulate)
            ck_assert_double_eq(fake_get(pair.ours.net.trained[0], 1), 1.0 + step);
    }
    compare_masters(&pair);
    pair_end(&pair);
}

/* Another optimizer's step may have the parameter's master, in the block that the host sees. */
TEST(a_step_inside_another_ones_is_refused) {
    float values[2][4] = { { 1, 1, 1, 1 }, { 1, 1, 1, 1 } }, grads[2][4] = { { 0 } };
    amp_buffer tensors[2] = { AMP_BUFFER_INIT, AMP_BUFFER_INIT }, slopes[2] = { AMP_BUFFER_INIT, AMP_BUFFER_INIT };
    amp_param params[2] = { AMP_PARAM_INIT, AMP_PARAM_INIT };
    void *handles[2];
    for (int k = 0; k < 2; k++) {
        tensors[k].data = values[k], slopes[k].data = grads[k], tensors[k].size = slopes[k].size = 4;
        tensors[k].grad = &slopes[k], params[k].tensor = handles[k] = &tensors[k], params[k].name = k ? "q" : "p";
    }
    amp_model model = AMP_MODEL_INIT, *models[] = { &model };
    model.host = amp_buffer_host(), model.params = params, model.n_params = 2;
    const amp_optim rule = optim_of(AMP_OPTIM_SGD, 0.1);
    const amp_fused fused = { .struct_size = sizeof fused, .groups = &rule, .n_groups = 1 };
    amp_optimizer own = AMP_OPTIMIZER_INIT, other = AMP_OPTIMIZER_INIT, *optimizers[] = { &own, &other };
    own.params = other.params = handles, own.n_params = other.n_params = 2, other.fused = &fused;
    const amp_config config = CONFIG(AMP_O2, .emulate = AMP_ON, .loss_scale = 1.0f);
    ck_ok(amp_initialize_many(models, 1, optimizers, 2, &config, NULL));
    amp_scaled_loss loss = AMP_SCALED_LOSS_INIT;
    ck_ok(amp_scale_loss_begin(&own, NULL, &loss));
    ck_ok(amp_scale_loss_end(&loss));
    amp_step_info info = AMP_STEP_INFO_INIT;
    ck_ok(amp_step_begin(&own, &info));
    values[0][0] -= 1e-4f;
    for (int k = 0; k < 2; k++) {
        tensors[0].grad = k ? &slopes[0] : NULL;
        ck_refused(AMP_ERR_WRONG_STATE, "end that one first", amp_fused_step(&other, NULL));
    }
    ck_ok(amp_step_end(&own));
    amp_master masters[2] = { AMP_MASTER_INIT, AMP_MASTER_INIT };
    size_t n;
    ck_ok(amp_master_params(&own, masters, 2, &n));
    ck_assert(((const float *)masters[0].data)[0] == 1.0f - 1e-4f);
    ck_ok(amp_fused_step(&other, NULL));
    ck_ok(amp_shutdown(model.amp));
}

/* Split masters are the FP32 ones: beside a host that has these, and beside one whose masters are split as well. */
TEST_TIMES(split_masters, 4 * N_KINDS) {
    const unsigned kind = host_kinds[_i / 4];
    amp_config split = config_at(5), other = split;
    struct pair pair;
    if (kind & FAKE_NO_ALLOC) return; /* refused: test_split.c */
    split.master_weights = AMP_SPLIT;
    other.master_weights = _i & 1 ? AMP_SPLIT : AMP_ON;
    pair_start_with(&pair, _i & 2 ? other : split, _i & 2 ? split : other, kind, 100 + (uint64_t)_i);
    run_program(&pair);
    pair_end(&pair);
}

/* Their elements are gathered for each step, in blocks that are freed. */
TEST(parameters_with_gaps_are_stepped_and_leave_no_memory) {
    RIG_INIT(rig, FAKE_NO_SET_GRAD);
    size_t used = 0;
    for (int k = 0; k < 2; k++) {
        struct fake_tensor *param = rig.net.trained[k];
        OWN_TENSOR *wide = fake_new(&rig.host, AMP_FLOAT32, 2 * NET_SIZE, 0.5);
        const amp_storage own = param->storage;
        param->storage = wide->storage, wide->storage = own;
        param->strides[0] = 2;
    }
    ck_ok(fused_config(&rig, optim_of(AMP_OPTIM_SGD, 0x1p-10), CONFIG(AMP_O0, .log = AMP_LOG_OFF)));
    for (int i = 0; i < 264; i++) {
        if (i == 8) used = heap_used();
        ck_assert_int_eq(bracket(&rig, 1.0, 0), AMP_STEP);
        ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
        for (int k = 0; k < 3; k++) fake_fill(((struct fake_tensor *)rig.net.trained[k])->grad, 0.0);
    }
    ck_assert_uint_le(heap_used(), used + 8192); /* two blocks a step are twice that at least */
    ck_assert_double_eq(fake_get(rig.net.weight, 2), 0.5 - 264 * 2 * 0x1p-10);
    ck_assert_double_eq(fake_get(rig.net.weight, 1), 0.5); /* in a gap */
}
