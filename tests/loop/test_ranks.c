/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank says to the others, whatever happens on it, and what it makes of what they say. The other rank is played
 * here; tests/hosts/ranks/ has two real ones. A rank that says nothing leaves the others waiting for ever, so every
 * test counts how often the hook was called.
 */
#include "checks.h"
#include "../support/levels.h"

#include <math.h>

enum { OVERFLOW, GAVE_UP, ENDED, N_WORDS };

struct ranks {
    double said[N_WORDS], other[N_WORDS];
    unsigned maxima, sums;
    bool fails;
};

static struct ranks ranks;

static amp_status reduce(void *self, amp_reduction reduction, double *values, size_t n) {
    (void)self;
    ck_assert_uint_eq(n, reduction == AMP_REDUCE_MAX ? N_WORDS : 1);
    memcpy(ranks.said, values, n * sizeof *values);
    if (reduction == AMP_REDUCE_MAX) ranks.maxima++;
    else ranks.sums++;
    if (ranks.fails) return AMP_ERR_HOST_FAILED;
    for (size_t i = 0; i < n; i++)
        values[i] = reduction == AMP_REDUCE_MAX ? fmax(values[i], ranks.other[i]) : values[i] + ranks.other[i];
    return AMP_OK;
}

static void start(struct rig *rig, amp_level level, uint32_t flags) {
    ranks = (struct ranks){ .other = { 0.0, 0.0, 1.0 } }; /* ended, clean */
    rig_init(rig, FAKE_RETAINS);
    rig->host.hooks.reduce = reduce;
    rig->net.optimizer.flags = flags;
    /* Of 1024 no gradient here overflows fp16. */
    rig_wire(rig, CONFIG(level, .init_scale = level_is_dynamic(level) ? 1024.0f : 0.0f));
}

#define RANKS(name, ...) RIG(name); start(&name, __VA_ARGS__, 0)

static float scale_of(struct rig *rig) {
    const amp_record record = rig_record(rig, 0);
    return record.scale_after;
}

static void begin(struct rig *rig, uint32_t flags, amp_scaled_loss *scaled) {
    amp_optimizer *optimizer = &rig->net.optimizer;
    *scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    ck_ok(fake_begin_many(rig->context, &optimizer, 1, 0, flags, NULL, scaled));
    net_backward(&rig->net, 1.0, fake_seed(scaled));
}

/* A wrapped op whose cast fails keeps an error. */
static void keep_an_error(struct rig *rig) {
    struct fake_tensor *x = rig_tensor(rig, AMP_FLOAT32, 2.0), *y;
    fake_fail(&rig->host, FAKE_CAST, 1);
    y = net_binary(&rig->net, OP_matmul, x, x);
    if (y) fake_release(y);
    fake_release(x);
    rig->host.fail_at = 0;
}

static void said(double overflow, double gave_up, double ended, unsigned maxima) {
    ck_assert_double_eq(ranks.said[OVERFLOW], overflow);
    ck_assert_double_eq(ranks.said[GAVE_UP], gave_up);
    ck_assert_double_eq(ranks.said[ENDED], ended);
    ck_assert_uint_eq(ranks.maxima, maxima);
}

TEST_TIMES(a_clean_bracket_says_so, 6) {
    RANKS(rig, (amp_level)(AMP_O0 + _i));
    ck_ok(net_train_step(&rig.net, 1.0));
    said(0, 0, 1, 1);
    ck_assert_int_eq(rig.net.steps, 1);
}

TEST(an_error_here_is_said_and_ends_in_a_skip) {
    RANKS(rig, AMP_O1);
    amp_scaled_loss scaled;
    const float before = scale_of(&rig);
    keep_an_error(&rig);
    begin(&rig, 0, &scaled);
    ck_fails(AMP_ERR_HOST_FAILED, amp_scale_loss_end(&scaled));
    ck_says("cast");
    said(0, 1, 1, 1);
    (void)net_step(&rig.net);
    ck_assert_int_eq(rig.net.steps, 0);
    ck_assert_float_eq(scale_of(&rig), before);
}

/* Every call of the hooks that end needs, failed in its turn. */
TEST_TIMES(whatever_fails_in_end_it_is_said_once, 2) {
    static const enum fake_hook hooks[] = { FAKE_VIEW, FAKE_GRAD, FAKE_SET_GRAD };
    unsigned failures = 0;
    for (size_t h = 0; h < sizeof hooks / sizeof hooks[0]; h++)
        for (uint64_t n = 1; n <= 12; n++) {
            RANKS(rig, _i ? AMP_O2 : AMP_O1);
            amp_scaled_loss scaled;
            ck_ok(net_train_step(&rig.net, 1.0));
            begin(&rig, 0, &scaled);
            ranks.maxima = 0;
            fake_fail(&rig.host, hooks[h], n);
            const amp_status status = amp_scale_loss_end(&scaled);
            const bool reached = rig.host.calls[hooks[h]] >= rig.host.fail_at;
            rig.host.fail_at = 0;
            ck_assert_uint_eq(ranks.maxima, 1);
            if (reached && status != AMP_OK) ck_assert_double_eq(ranks.said[GAVE_UP], 1.0);
            failures += status != AMP_OK;
            net_zero_grad(&rig.net);
        }
    ck_assert_uint_gt(failures, 4);
}

TEST_TIMES(an_error_elsewhere_skips_at_every_level_and_moves_no_scale, 6) {
    RANKS(rig, (amp_level)(AMP_O0 + _i));
    amp_scaled_loss scaled;
    const float before = scale_of(&rig);
    ranks.other[GAVE_UP] = 1.0;
    begin(&rig, 0, &scaled);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(scaled.action, AMP_SKIP);
    (void)net_step(&rig.net);
    ck_assert_int_eq(rig.net.steps, 0);
    ck_assert_float_eq(scale_of(&rig), before);
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_SKIP], 1);
    net_zero_grad(&rig.net);
    ranks.other[GAVE_UP] = 0.0;
    ck_ok(net_train_step(&rig.net, 1.0));
    ck_assert_int_eq(rig.net.steps, 1);
}

TEST(an_overflow_elsewhere_is_named_so) {
    RANKS(rig, AMP_O1);
    ranks.other[OVERFLOW] = 1.0;
    ck_ok(net_train_step(&rig.net, 1.0));
    ck_assert_float_eq(scale_of(&rig), 512.0f);
    ck_assert_ptr_nonnull(strstr(rig.host.last_message[AMP_EVENT_SKIP], "on another rank"));
}

TEST_TIMES(a_cancel_here_skips_unless_all_cancel, 2) {
    RANKS(rig, AMP_O2);
    amp_scaled_loss scaled;
    ranks.other[ENDED] = _i;
    begin(&rig, 0, &scaled);
    ck_ok(amp_scale_loss_cancel(&scaled));
    said(0, 1, 0, 1);
    (void)net_step(&rig.net);
    ck_assert_int_eq(rig.net.steps, _i ? 0 : 1);
}

TEST(an_error_of_a_delayed_bracket_is_said_by_the_last) {
    RANKS(rig, AMP_O1);
    amp_scaled_loss scaled;
    keep_an_error(&rig);
    begin(&rig, AMP_DELAY_UNSCALE, &scaled);
    ck_fails(AMP_ERR_HOST_FAILED, amp_scale_loss_end(&scaled));
    ck_assert_uint_eq(ranks.maxima, 0); /* the others delay too, and listen to nobody */
    begin(&rig, 0, &scaled);
    ck_ok(amp_scale_loss_end(&scaled));
    said(0, 1, 1, 1);
    ck_assert_int_eq(scaled.action, AMP_SKIP);
    (void)net_step(&rig.net);
    ck_assert_int_eq(rig.net.steps, 0);
    net_zero_grad(&rig.net);
    ck_ok(net_train_step(&rig.net, 1.0));
    said(0, 0, 1, 2);
    ck_assert_int_eq(rig.net.steps, 1);
}

TEST_TIMES(a_failing_reduce_is_an_error_and_not_repeated, 2) {
    RANKS(rig, AMP_O1);
    amp_scaled_loss scaled;
    ranks.fails = true;
    begin(&rig, 0, &scaled);
    ck_fails(AMP_ERR_HOST_FAILED, _i ? amp_scale_loss_cancel(&scaled) : amp_scale_loss_end(&scaled));
    ck_says("reduce");
    ck_assert_uint_eq(ranks.maxima, 1);
    (void)net_step(&rig.net);
    ck_assert_int_eq(rig.net.steps, 0);
}

/* ---- ranks that come and go ---- */

static void clean_gradients(struct rig *rig) {
    amp_scaled_loss scaled;
    begin(rig, 0, &scaled);
    ck_ok(amp_scale_loss_end(&scaled));
}

static int32_t there_are_ranks;
static int32_t has_ranks(void *self) {
    (void)self;
    return there_are_ranks;
}

TEST(a_host_may_say_that_there_is_nobody_to_ask) {
    ranks = (struct ranks){ .other = { 1.0, 0.0, 1.0 } }; /* whoever asks hears of an overflow */
    RIG_INIT(rig, FAKE_RETAINS);
    rig.host.hooks.reduce = reduce;
    rig.host.hooks.has_ranks = has_ranks;
    rig.net.optimizer.flags = AMP_OPTIMIZER_SHARDED;
    rig_wire(&rig, CONFIG(AMP_O1, .init_scale = 1024.0f));
    for (there_are_ranks = 0; there_are_ranks < 2; there_are_ranks++) {
        clean_gradients(&rig);
        ck_assert_uint_eq(ranks.maxima, (unsigned)there_are_ranks);
        ck_assert_float_eq(scale_of(&rig), there_are_ranks ? 512.0f : 1024.0f);
        ck_ok(amp_clip_grad_norm(&rig.net.optimizer, 1.0f, NULL));
        ck_assert_uint_eq(ranks.sums, (unsigned)there_are_ranks);
        rig_step_and_clear(&rig);
    }
}

/* A parameter that libamp keeps nothing of may be cut between two brackets; one with a master may not. */
TEST_TIMES(a_parameter_may_be_sharded_between_brackets, 2) {
    RANKS(rig, _i ? AMP_O2 : AMP_O1);
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_optimizer *optimizer = &rig.net.optimizer;
    ck_ok(net_train_step(&rig.net, 1.0));
    net_zero_grad(&rig.net);
    struct fake_tensor *weight = rig.net.weight;
    const int64_t whole = weight->shape[0];
    weight->shape[0] = 1;
    ck_ok(fake_begin_many(rig.context, &optimizer, 1, 0, 0, NULL, &scaled));
    fake_put_grad(weight, fake_new(&rig.host, fake_dtype(weight), 1, 1024.0));
    if (_i) {
        ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_scale_loss_end(&scaled));
        ck_says("elements but its gradient has");
    } else {
        ck_ok(amp_scale_loss_end(&scaled));
        ck_assert_double_eq(fake_get(weight->grad, 0), 1.0);
    }
    net_zero_grad(&rig.net);
    weight->shape[0] = whole; /* and whole again */
    ck_ok(net_train_step(&rig.net, 1.0));
    net_zero_grad(&rig.net);
}

/* ---- clipping ---- */

TEST_TIMES(only_a_sharded_norm_is_summed, 2) {
    struct rig rig;
    float whole = 0.0f, part = 0.0f;
    start(&rig, _i ? AMP_O2 : AMP_O1, 0);
    clean_gradients(&rig);
    ck_ok(amp_clip_grad_norm(&rig.net.optimizer, 1e30f, &whole));
    ck_assert_uint_eq(ranks.sums, 0);
    net_zero_grad(&rig.net);
    rig_end(&rig);

    start(&rig, _i ? AMP_O2 : AMP_O1, AMP_OPTIMIZER_SHARDED);
    clean_gradients(&rig);
    ranks.other[0] = 3.0 * (double)whole * (double)whole; /* exact: 24 bits squared, times 3, fit a double */
    const double before = fake_get(rig.net.weight->grad, 0);
    ck_ok(amp_clip_grad_norm(&rig.net.optimizer, whole, &part));
    ck_assert_uint_eq(ranks.sums, 1);
    ck_assert_float_eq(part, 2.0f * whole);
    ck_assert_double_eq_tol(fake_get(rig.net.weight->grad, 0), before / 2.0, before * 0x1p-9); /* 1e-6 and fp16 */
    net_zero_grad(&rig.net);
    rig_end(&rig);
}

TEST(a_rank_that_cannot_look_takes_part_in_the_norm) {
    RIG(rig);
    start(&rig, AMP_O1, AMP_OPTIMIZER_SHARDED);
    clean_gradients(&rig);
    fake_fail(&rig.host, FAKE_GRAD, 2);
    ck_fails(AMP_ERR_HOST_FAILED, amp_clip_grad_norm(&rig.net.optimizer, 1.0f, NULL));
    ck_says("hook grad");
    rig.host.fail_at = 0;
    ck_assert_uint_eq(ranks.sums, 1);
    ck_assert(isinf(ranks.said[0]));

    ranks.other[0] = (double)INFINITY; /* and so it looks from the other side: nothing is clipped */
    float norm = 0.0f;
    const double before = fake_get(rig.net.weight->grad, 0);
    ck_ok(amp_clip_grad_norm(&rig.net.optimizer, 1e-3f, &norm));
    ck_assert(isinf(norm));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), before);
    net_zero_grad(&rig.net);
}
