/* SPDX-License-Identifier: Apache-2.0 */
/* Who is found guilty of an overflow: the batch, an op, a cast, a mask, a weight. */
#include "../scaling/bracket.h"

#include <math.h>

enum { N = 4, BUFFERS = 6, STEPS = 4 };

/* What a buffer holds beside finite values. */
enum { FINE, INFINITE, MINUS, NOT_A_NUMBER };
static const float odd[] = { 2.0f, INFINITY, -INFINITY, NAN };

/* One call that the host tells of. */
struct step {
    const char *op; /* "cast": a conversion; NULL: no more steps */
    bool backward;
    int in, out; /* buffers */
};

static const struct {
    const char *what;
    int holds[BUFFERS];
    struct step steps[STEPS];
    const char *op; /* guilty, and why */
    int32_t cause;
} cases[] = {
    { "batch, inf", { INFINITE, NOT_A_NUMBER }, { { "linear", false, 0, 1 }, { "relu", false, 1, 1 } },
      "linear", AMP_CAUSE_INPUT },
    { "batch, -inf", { MINUS, NOT_A_NUMBER }, { { "linear", false, 0, 1 } }, "linear", AMP_CAUSE_INPUT },
    { "batch, -inf, that a product passes on", { MINUS, MINUS, INFINITE },
      { { "linear", false, 0, 1 }, { "pow", false, 1, 2 } }, "linear", AMP_CAUSE_INPUT },
    { "batch, -inf, that is shifted first", { MINUS, MINUS, NOT_A_NUMBER },
      { { "sub", false, 0, 1 }, { "linear", false, 1, 2 } }, "linear", AMP_CAUSE_INPUT },
    { "mask, of the host's own", { MINUS, MINUS, NOT_A_NUMBER },
      { { "add", false, 0, 1 }, { "softmax", false, 1, 2 } }, "softmax", AMP_CAUSE_OP },
    { "batch, NaN, and a backward that saved it", { NOT_A_NUMBER, NOT_A_NUMBER, FINE, NOT_A_NUMBER },
      { { "linear", false, 0, 1 }, { "pow", false, 1, 1 }, { "pow", true, 2, 3 } }, "linear", AMP_CAUSE_INPUT },
    { "batch, NaN, that an op takes out", { NOT_A_NUMBER, FINE, INFINITE },
      { { "nan_to_num", false, 0, 1 }, { "exp", false, 1, 2 } }, "exp", AMP_CAUSE_OP },
    { "batch, inf, that only backward spreads", { INFINITE, FINE, FINE, NOT_A_NUMBER },
      { { "exp", false, 0, 1 }, { "exp", true, 2, 3 } }, "exp", AMP_CAUSE_INPUT },
    { "op", { FINE, INFINITE }, { { "exp", false, 0, 1 }, { "linear", false, 1, 1 } }, "exp", AMP_CAUSE_OP },
    { "op, in backward", { FINE, NOT_A_NUMBER }, { { "sqrt", false, 0, 0 }, { "sqrt", true, 0, 1 } },
      "sqrt (backward)", AMP_CAUSE_OP },
    { "cast", { FINE, INFINITE, INFINITE }, { { "cast", false, 0, 1 }, { "linear", false, 1, 2 } },
      "linear", AMP_CAUSE_CAST },
    { "a batch that was cast", { INFINITE, INFINITE, INFINITE }, { { "cast", false, 0, 1 }, { "linear", false, 1, 2 } },
      "linear", AMP_CAUSE_INPUT },
    { "cast, in backward", { FINE, INFINITE, INFINITE }, { { "cast", true, 0, 1 }, { "linear", true, 1, 2 } },
      "linear (backward)", AMP_CAUSE_CAST },
    { "mask, a product's", { FINE, MINUS, MINUS, NOT_A_NUMBER },
      { { "mul", false, 0, 1 }, { "add", false, 1, 2 }, { "softmax", false, 2, 3 } }, "mul", AMP_CAUSE_OP },
    { "mask, a product's, through a cast", { FINE, MINUS, MINUS, NOT_A_NUMBER },
      { { "mul", false, 0, 1 }, { "cast", false, 1, 2 }, { "softmax", false, 2, 3 } }, "mul", AMP_CAUSE_OP },
    { "mask, a cast's", { FINE, MINUS, MINUS, NOT_A_NUMBER },
      { { "cast", false, 0, 1 }, { "add", false, 1, 2 }, { "softmax", false, 2, 3 } }, "add", AMP_CAUSE_CAST },
    { "mask, meant", { FINE, MINUS, NOT_A_NUMBER },
      { { "masked_fill", false, 0, 1 }, { "softmax", false, 1, 2 } }, "softmax", AMP_CAUSE_OP },
    { "mask, meant, and another's overflow", { FINE, MINUS, FINE, INFINITE },
      { { "masked_fill", false, 0, 1 }, { "softmax", false, 1, 2 }, { "exp", false, 2, 3 } }, "exp", AMP_CAUSE_OP },
};

static void start(struct rig *rig, amp_level level, uint32_t every) {
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    options.every = every;
    rig_init(rig, 0);
    rig_wire(rig, CONFIG(level, .log = AMP_LOG_OFF, .loss_scale = AMP_DYNAMIC));
    ck_ok(amp_observe(rig->context, &options));
}

static amp_culprit culprit_of(struct rig *rig) {
    amp_culprit culprit = AMP_CULPRIT_INIT;
    ck_assert_int_eq(bracket(rig, INF), AMP_SKIP);
    net_zero_grad(&rig->net);
    ck_ok(amp_get_culprit(rig->context, &culprit));
    return culprit;
}

TEST_TIMES(the_guilty_is_found, sizeof cases / sizeof cases[0]) {
    RIG(rig);
    float buffers[BUFFERS][N];
    start(&rig, AMP_O1, 1);
    for (int i = 0; i < BUFFERS; i++)
        for (int j = 0; j < N; j++) buffers[i][j] = j == 1 ? odd[cases[_i].holds[i]] : 1.0f;
    for (const struct step *step = cases[_i].steps; step < cases[_i].steps + STEPS && step->op; step++) {
        const amp_observed_value values[] = {
            { .name = "x", .span = { buffers[step->in], N, AMP_FLOAT32, 0 } },
            { .name = "out", .span = { buffers[step->out], N, AMP_FLOAT32, 0 }, .is_output = 1 } };
        amp_observed_call call = AMP_OBSERVED_CALL_INIT;
        call.op = step->op, call.in_backward = step->backward, call.values = values, call.n_values = 2;
        call.is_cast = !strcmp(step->op, "cast");
        ck_ok(amp_observe_call(rig.context, &call));
    }
    const amp_culprit culprit = culprit_of(&rig);
    ck_assert_msg(!strcmp(culprit.op, cases[_i].op) && culprit.cause == cases[_i].cause, "%s: %s, cause %d",
                  cases[_i].what, culprit.op, (int)culprit.cause);
    ck_assert_int_eq(culprit.was_cast, cases[_i].cause == AMP_CAUSE_CAST);
    ck_assert_ptr_null(culprit.weight);
}

/* Seen in each bracket, or in some: then it is said since when it can be at the earliest. */
TEST_TIMES(a_weight_that_is_not_finite_is_named, 2) {
    RIG(rig);
    const uint32_t every = _i ? 20 : 1;
    start(&rig, AMP_O1, every);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(bracket(&rig, 0.5), AMP_STEP);
        net_zero_grad(&rig.net);
    }
    fake_set(rig.net.weight, 1, NAN);
    (void)culprit_of(&rig); /* bracket 3; not observed where every is 20 */
    const amp_culprit culprit = culprit_of(&rig);
    ck_assert_int_eq(culprit.cause, AMP_CAUSE_WEIGHT);
    ck_assert_str_eq(culprit.weight, "weight");
    ck_assert_uint_eq(culprit.bracket, 4);
    ck_assert_uint_eq(culprit.since, _i ? 4 : 3);
    ck_assert_uint_eq(culprit.since_least, _i ? 2 : 3);
}

/* No step is skipped at a static scale of 1: the bracket whose gradients were stepped on is known. */
TEST_TIMES(the_step_that_broke_a_weight_is_known, 2) {
    RIG(rig);
    amp_culprit culprit = AMP_CULPRIT_INIT;
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    const int broken = _i ? 4 : 3;
    options.every = 6;
    rig_init(&rig, 0);
    rig_wire(&rig, CONFIG(_i ? AMP_O5 : AMP_O0, .log = AMP_LOG_OFF));
    ck_ok(amp_observe(rig.context, &options));
    for (int i = 1; i <= 6; i++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        ck_ok(fake_begin(&rig.net.optimizer, NULL, &scaled));
        add_grad(rig.net.weight, i == broken ? INF : 0.5);
        ck_ok(amp_scale_loss_end(&scaled));
        ck_assert_int_eq(scaled.action, AMP_STEP);
        (void)net_step(&rig.net);
        net_zero_grad(&rig.net);
    }
    (void)bracket(&rig, NAN);
    ck_ok(amp_get_culprit(rig.context, &culprit));
    ck_assert_int_eq(culprit.cause, AMP_CAUSE_WEIGHT);
    ck_assert_uint_eq(culprit.since, _i ? 5 : 4);
    ck_assert_uint_eq(culprit.since_least, _i ? 5 : 3); /* at O0 nobody looks at bracket 3 */
}

/* A bracket of one optimizer ends inside a step of another, which has its masters under its handles: FP32 memory of the
 * masters is then a 16-bit block. */
TEST(a_bracket_ends_inside_another_optimizers_step) {
    enum { SIZE = 33 };
    struct fake host;
    struct fake_tensor *tensors[2];
    amp_param params[2];
    amp_optimizer optimizers[2], *both[] = { &optimizers[0], &optimizers[1] };
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    amp_culprit culprit = AMP_CULPRIT_INIT;
    amp_context *context;
    fake_init(&host, 0);
    for (int i = 0; i < 2; i++) {
        tensors[i] = fake_new(&host, AMP_FLOAT32, SIZE, 1.0);
        params[i] = SIZED(amp_param, .tensor = tensors[i], .name = i ? "b" : "a");
        optimizers[i] = SIZED(amp_optimizer, .host = &host.hooks, .params = (void *const *)&tensors[i], .n_params = 1);
    }
    amp_model model = SIZED(amp_model, .host = &host.hooks, .params = params, .n_params = 2), *models = &model;
    const amp_config config = CONFIG(AMP_O2, .num_losses = 2, .log = AMP_LOG_OFF);
    ck_ok(amp_initialize_many(&models, 1, both, 2, &config, &context));
    ck_ok(amp_observe(context, NULL));
    ck_ok(fake_begin_many(NULL, both, 1, 0, 0, NULL, &scaled));
    fake_put_grad(tensors[0], fake_new(&host, AMP_FLOAT16, SIZE, 1.0));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(amp_step_begin(both[0], &info));
    ck_assert_int_eq(info.action, AMP_STEP);

    scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    ck_ok(fake_begin_many(NULL, &both[1], 1, 1, 0, NULL, &scaled));
    fake_put_grad(tensors[1], fake_new(&host, AMP_FLOAT16, SIZE, INFINITY));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(scaled.action, AMP_SKIP);
    ck_ok(amp_step_end(both[0]));
    ck_ok(amp_get_culprit(context, &culprit));
    ck_assert_int_ne(culprit.cause, AMP_CAUSE_WEIGHT); /* no weight of either is infinite */
    ck_ok(amp_shutdown(context));
    for (int i = 0; i < 2; i++) fake_release(tensors[i]);
    fake_destroy(&host);
}
