/* SPDX-License-Identifier: Apache-2.0 */
/* amp_verify_step: what is right passes and leaves no trace; what is wrong is named by parameter. */
#include "bracket.h"
#include "levels.h"

#include <math.h>

/* What the host's pass does; each but RIGHT is wrong. */
enum slip {
    RIGHT, FACTOR_TWICE, FACTOR_NEVER, LOSS_STAYS_SCALED, GRADIENT_LOST, STEPS, STEPS_BY_ITSELF, STEP_BEGINS, LEFT_OPEN,
    DELAYS, NO_BRACKET, FAILS, RANDOM, SAYS_NO_LOSS, NESTS, SHUTS_DOWN, ADDS_PARAMS, OVERFLOWS,
    LOOKS_BACK, NO_LOSS, NO_GRADIENT, OFF_WEIGHT, OFF_BIAS, OFF_GAMMA, N_SLIPS
};

struct pass {
    struct rig *rig;
    enum slip slip;
    int n; /* how often it ran */
    double weight[8], loss[8]; /* then */
};

static amp_status run(void *self, double *loss);

static amp_status forbidden(struct pass *pass) {
    struct rig *rig = pass->rig;
    amp_step_info info = AMP_STEP_INFO_INIT;
    const amp_param param = AMP_PARAM_INIT;
    if (pass->slip == STEPS) (void)net_step(&rig->net);
    if (pass->slip == STEPS_BY_ITSELF) fake_set(rig->net.weight, 1, 0.75);
    if (pass->slip == STEP_BEGINS) return amp_step_begin(&rig->net.optimizer, &info);
    if (pass->slip == NESTS) return amp_verify_step(rig->context, run, pass);
    if (pass->slip == SHUTS_DOWN) return amp_shutdown(rig->context);
    if (pass->slip == ADDS_PARAMS) return amp_add_params(&rig->net.optimizer, &param, 1);
    return AMP_OK;
}

enum { WIRED_PASS = 4 }; /* behind plain ones: as it is, with rounded and with halved parameters */

/* Forward and backward as net_train_step's, at x = 0.5. */
static amp_status run(void *self, double *loss) {
    struct pass *pass = self;
    struct rig *rig = pass->rig;
    struct net *net = &rig->net;
    const enum slip slip = pass->slip;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    OWN_TENSOR *x = rig_tensor(rig, AMP_FLOAT32, 0.5);
    OWN_TENSOR *out = net_forward(net, x);
    if (!out) return AMP_ERR_HOST_FAILED;
    OWN_TENSOR *sum = net_unary(net, OP_sum, out);
    if (!sum) return AMP_ERR_HOST_FAILED;
    pass->weight[pass->n % 8] = fake_get(net->weight, 0);
    pass->loss[pass->n % 8] = fake_get(sum, 0);
    if (++pass->n == WIRED_PASS && slip == FAILS) return AMP_ERR_NO_MEMORY;
    if (slip != SAYS_NO_LOSS) *loss = fake_get(sum, 0) * (slip == RANDOM ? pass->n : 1);
    if (slip == LOOKS_BACK && pass->n == WIRED_PASS) *loss = pass->loss[WIRED_PASS - 2];
    if (slip == NO_LOSS) *loss = NAN;
    if (slip == NO_BRACKET) {
        net_backward(net, 0.5, 1.0);
        return AMP_OK;
    }
    amp_status status = fake_begin_many(rig->context, &(amp_optimizer *){ &net->optimizer }, 1, 0,
                                        slip == DELAYS ? AMP_DELAY_UNSCALE : 0, sum, &scaled);
    if (status != AMP_OK) return status;
    const double factor = fake_seed(&scaled);
    if (slip == LOSS_STAYS_SCALED) *loss = fake_get(scaled.loss, 0);
    if (slip != NO_GRADIENT)
        net_backward(net, 0.5, slip == FACTOR_TWICE ? factor * factor : slip == FACTOR_NEVER ? 1.0 : factor);
    if (slip == GRADIENT_LOST && pass->n == WIRED_PASS) fake_put_grad(net->bias, NULL);
    if (slip >= OFF_WEIGHT && pass->n == WIRED_PASS) { /* within the bound */
        struct fake_tensor *off = net->trained[slip - OFF_WEIGHT];
        add_grad(off, fake_get(off->grad, 0) / 64.0);
    }
    if (slip == OVERFLOWS && pass->n == WIRED_PASS) add_grad(net->bias, INF);
    fake_tape_clear(&rig->host);
    if (slip == LEFT_OPEN) return AMP_OK;
    status = amp_scale_loss_end(&scaled);
    return status == AMP_OK ? forbidden(pass) : status;
}

static amp_status verify(struct rig *rig, enum slip slip) {
    return amp_verify_step(rig->context, run, &(struct pass){ rig, slip, 0, { 0 }, { 0 } });
}

/* ---- what is right ---- */

static const unsigned hosts[] = { FAKE_RETAINS, FAKE_RETAINS | FAKE_NO_SET_GRAD, FAKE_RETAINS | FAKE_NO_VERSION,
                                  FAKE_NO_ALLOC, FAKE_FP32_GRADS, FAKE_NO_ID };
enum { N_HOSTS = sizeof hosts / sizeof *hosts };

static void ck_same_state(struct rig *rig, struct rig *other) {
    amp_record a = AMP_RECORD_INIT, b = AMP_RECORD_INIT;
    ck_ok(amp_get_record(rig->context, 0, &a));
    ck_ok(amp_get_record(other->context, 0, &b));
    ck_assert_mem_eq(&a, &b, offsetof(amp_record, first_nonfinite));
    struct fake_tensor *const *one = &rig->net.weight, *const *two = &other->net.weight;
    for (int i = 0; i < NET_PARAMS; i++) { /* weight, bias, gamma, mean, count, wide */
        ck_assert_int_eq(fake_dtype(one[i]), fake_dtype(two[i]));
        for (int64_t k = 0; k < one[i]->shape[0]; k++)
            ck_assert_msg(fake_get(one[i], k) == fake_get(two[i], k), "tensor %d, element %d", i, (int)k);
    }
}

/* The other one is trained without it. */
TEST_TIMES(what_is_right_passes_without_a_trace, N_EACH_LEVEL * N_HOSTS) {
    const amp_level level = each_level[_i % N_EACH_LEVEL];
    RIG_START(rig, level, hosts[_i / N_EACH_LEVEL]);
    RIG_START(other, level, hosts[_i / N_EACH_LEVEL]);
    for (int i = 0; i < 6; i++) {
        if (i % 2 == 0) ck_ok(verify(&rig, RIGHT));
        ck_same_state(&rig, &other);
        ck_ok(net_train_step(&rig.net, 0.5));
        ck_ok(net_train_step(&other.net, 0.5));
        ck_same_state(&rig, &other);
    }
    ck_assert_ptr_nonnull(strstr(rig.host.last_message[AMP_EVENT_LOG], "amp_verify_step: the loss is"));
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_WARNING] + rig.host.events[AMP_EVENT_ERROR], 0);
}

/* What fits is told with the gradients that were compared, and which of them is furthest off. */
TEST_TIMES(the_gradient_that_is_furthest_off_is_named, 3) {
    static const char *const names[] = { "weight", "bias", "gamma" };
    char wanted[64];
    START_AT_SCALE(rig, AMP_O2, FAKE_RETAINS, 8.0f); /* it overflows at no pass */
    ck_ok(verify(&rig, (enum slip)(OFF_WEIGHT + _i)));
    snprintf(wanted, sizeof wanted, "of 3 gradients %s ", names[_i]);
    ck_assert_msg(strstr(rig.host.last_message[AMP_EVENT_LOG], wanted), "no '%s' in: %s", wanted,
                  rig.host.last_message[AMP_EVENT_LOG]);
}

TEST(ops_run_as_they_come_and_parameters_are_fp32_in_the_first_pass) {
    RIG_START(rig, AMP_O2, FAKE_RETAINS);
    rig.host.n_log = 0;
    ck_ok(verify(&rig, RIGHT));
    ck_assert_uint_ge(rig.host.n_log, 2);
    const struct fake_call *plain = &rig.host.log[0], *wired = plain + 1;
    while (strcmp(wired->op, plain->op) != 0 || wired->dtypes[1] == AMP_FLOAT32) wired++;
    ck_assert_int_eq(plain->dtypes[1], AMP_FLOAT32);
    ck_assert_int_eq(wired->dtypes[1], AMP_FLOAT16);
    ck_dtype(rig.net.weight, AMP_FLOAT16);
}

TEST(passes_between_have_other_parameters) {
    START_AT_SCALE(rig, AMP_O1, FAKE_RETAINS, 8.0f);
    struct pass pass = { &rig, RIGHT, 0, { 0 }, { 0 } };
    ck_ok(amp_verify_step(rig.context, run, &pass));
    ck_assert_int_eq(pass.n, 5);
    ck_assert_double_eq(pass.weight[0], 0.5);
    ck_assert(pass.weight[1] != 0.5 && fabs(pass.weight[1] - 0.5) < 0x1p-12); /* as far as fp16 rounds */
    ck_assert_double_eq(pass.weight[2], 0.25);
    ck_assert_double_eq(pass.weight[3], 0.5);
    ck_assert_double_eq(pass.weight[4], 0.5);
}

TEST(a_scale_that_is_too_large_steps_down_and_is_put_back) {
    START_AT_SCALE(rig, AMP_O2, FAKE_RETAINS, 0x1p24f); /* gradients of 0.5 are infinite in fp16 */
    ck_ok(verify(&rig, RIGHT));
    const amp_record record = rig_record(&rig, 0);
    ck_assert_float_eq(record.scale_after, 0x1p24f);
    ck_assert_uint_eq(record.brackets + record.skipped, 0);
}

TEST(without_a_level_there_is_nothing_to_verify) {
    RIG_WITH(rig, FAKE_RETAINS, AMP_O1, .enabled = AMP_OFF);
    ck_ok(verify(&rig, FACTOR_TWICE));
}

/* ---- what is wrong ---- */

static const struct {
    enum slip slip;
    amp_status status;
    const char *words;
} slips[] = {
    { FACTOR_TWICE, AMP_ERR_CONFLICT, "AMP-M62 amp_verify_step: the gradient of weight is times the loss scale 8" },
    { FACTOR_NEVER, AMP_ERR_CONFLICT, "the gradient of weight is divided by the loss scale 8, and never had it" },
    { LOSS_STAYS_SCALED, AMP_ERR_CONFLICT, "AMP-M61 amp_verify_step: the loss is" },
    { GRADIENT_LOST, AMP_ERR_CONFLICT, "the gradient of bias got none through the wiring" },
    { OVERFLOWS, AMP_ERR_CONFLICT, "is not finite" },
    { STEPS, AMP_ERR_WRONG_STATE, "run as it is: step inside amp_verify_step" },
    { STEPS_BY_ITSELF, AMP_ERR_WRONG_STATE, "changed weight: leave the optimizer's step out" },
    { STEP_BEGINS, AMP_ERR_WRONG_STATE, "step inside amp_verify_step" },
    { LEFT_OPEN, AMP_ERR_WRONG_STATE, "run through the wiring left the bracket of loss 0 open" },
    { DELAYS, AMP_ERR_WRONG_STATE, "left gradients of optimizer 0 scaled" },
    { NO_BRACKET, AMP_ERR_WRONG_STATE, "run ended no bracket" },
    { FAILS, AMP_ERR_NO_MEMORY, "amp_verify_step: run through the wiring returned AMP_ERR_NO_MEMORY" },
    { RANDOM, AMP_ERR_WRONG_STATE, "two runs without the wiring have different results" },
    { SAYS_NO_LOSS, AMP_ERR_INVALID_ARGUMENT, "run wrote no loss" },
    { NESTS, AMP_ERR_WRONG_STATE, "amp_verify_step inside of amp_verify_step" },
    { SHUTS_DOWN, AMP_ERR_WRONG_STATE, "amp_shutdown inside amp_verify_step" },
    /* a layer that did not write: what an earlier pass left in the host's buffers is not taken for this one's */
    { LOOKS_BACK, AMP_ERR_CONFLICT, "AMP-M61 amp_verify_step: the loss is" },
    { NO_LOSS, AMP_ERR_WRONG_STATE, "the loss is nan as it is" },
    { NO_GRADIENT, AMP_ERR_WRONG_STATE, "left no gradient in any parameter" },
    { ADDS_PARAMS, AMP_ERR_WRONG_STATE, "amp_add_params inside amp_verify_step" },
};
enum { N_SLIPPED = sizeof slips / sizeof *slips };
_Static_assert(N_SLIPPED == OFF_WEIGHT - 1, "a row for each that is wrong");

/* And the training goes on as if nobody had verified. */
TEST_TIMES(what_is_wrong_is_named, N_SLIPPED * 3) {
    static const amp_level levels[] = { AMP_O0, AMP_O1, AMP_O2 };
    amp_config config = config_of(levels[_i % 3]);
    config.loss_scale = 8.0f;
    RIG_INIT(rig, FAKE_RETAINS);
    RIG_INIT(other, FAKE_RETAINS);
    ck_ok(rig_config(&rig, &config));
    ck_ok(rig_config(&other, &config));
    ck_fails(slips[_i / 3].status, verify(&rig, slips[_i / 3].slip));
    ck_says(slips[_i / 3].words);
    for (int i = 0; i < 3; i++) {
        ck_same_state(&rig, &other);
        ck_ok(net_train_step(&rig.net, 0.5));
        ck_ok(net_train_step(&other.net, 0.5));
    }
}

TEST(it_is_refused_in_the_middle_of_something) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    amp_optimizer *optimizer;
    START_AT_SCALE(rig, AMP_O2, FAKE_RETAINS, 8.0f);
    optimizer = &rig.net.optimizer;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_verify_step(NULL, run, NULL));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_verify_step(rig.context, NULL, NULL));
    ck_fails(AMP_ERR_WRONG_STATE, amp_verify_step((amp_context *)(void *)&rig, run, NULL));
    ck_ok(fake_begin_many(NULL, &optimizer, 1, 0, AMP_DELAY_UNSCALE, NULL, &scaled));
    ck_refused(AMP_ERR_WRONG_STATE, "inside a bracket", verify(&rig, RIGHT));
    net_backward(&rig.net, 0.5, fake_seed(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_refused(AMP_ERR_WRONG_STATE, "call it between steps", verify(&rig, RIGHT));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 0.5 * (double)scale_now(&rig, 0)); /* nothing was cleared */
    ck_assert_int_eq(bracket(&rig, 0.5), AMP_STEP);
    ck_ok(amp_step_begin(optimizer, &info));
    ck_fails(AMP_ERR_WRONG_STATE, verify(&rig, RIGHT));
    ck_ok(amp_step_end(optimizer));
    ck_ok(verify(&rig, RIGHT));
}

/* ---- what fails on the way ---- */

static uint64_t countdown; /* linked with --wrap */
WRAP(void *, calloc, size_t count, size_t size) {
    return countdown && !--countdown ? NULL : __real_calloc(count, size);
}

TEST_TIMES(without_memory_everything_is_put_back, N_EACH_LEVEL) {
    amp_status status = AMP_ERR_NO_MEMORY;
    for (uint64_t at = 1; status != AMP_OK; at++) {
        RIG_START(rig, each_level[_i], FAKE_RETAINS);
        countdown = at;
        status = verify(&rig, RIGHT);
        ck_assert_msg(at < 400 && (at > 1 || status != AMP_OK), "allocation %d: %d", (int)at, (int)status);
        countdown = 0;
        ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.5);
        ck_ok(net_train_step(&rig.net, 0.5));
    }
}

/* Whatever the host refuses, and whenever: an error, or none; and the host has everything back. */
TEST_TIMES(hooks_that_fail_leave_nothing_behind, FAKE_N_HOOKS * 2) {
    const enum fake_hook hook = (enum fake_hook)(_i % FAKE_N_HOOKS);
    const unsigned options = _i / FAKE_N_HOOKS ? FAKE_RETAINS | FAKE_NO_SET_GRAD : FAKE_RETAINS;
    amp_status status = AMP_ERR_HOST_FAILED;
    for (uint64_t at = 1; at < 400 && status != AMP_OK; at++) {
        RIG_START(rig, AMP_O2, options);
        rig.host.calls[hook] = 0;
        rig.host.fail_hook = hook, rig.host.fail_at = at;
        status = verify(&rig, RIGHT);
        rig.host.fail_at = 0;
        ck_dtype(rig.net.weight, AMP_FLOAT16);
        ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.5);
        ck_ok(net_train_step(&rig.net, 0.5));
    }
    ck_assert_int_eq(status, AMP_OK);
}
