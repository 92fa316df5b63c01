/* SPDX-License-Identifier: Apache-2.0 */
/* Around the training loop: ranks, clipping by value, late parameters, the scale by hand, traps, unused slots. */
#include "checks.h"

#include <fenv.h>
#include <math.h>

/* ---- ranks ---- */

static double other_rank; /* what the other rank brings */
static unsigned reductions;

static amp_status reduce(void *self, amp_reduction reduction, double *values, size_t n) {
    (void)self;
    for (size_t i = 0; i < n; i++)
        values[i] = reduction == AMP_REDUCE_MAX ? fmax(values[i], i ? 0.0 : other_rank) : values[i] + other_rank;
    reductions++;
    return AMP_OK;
}

TEST(an_overflow_on_another_rank_skips_here_too) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.host.hooks.reduce = reduce;
    rig_wire(&rig, config_of(AMP_O1));
    other_rank = 1.0;
    reductions = 0;
    ck_ok(net_train_step(&rig.net, 1.0));
    ck_assert_uint_eq(reductions, 1);
    ck_assert_int_eq(rig.net.steps, 0);
    const amp_record record = rig_record(&rig, 0);
    ck_assert_float_eq(record.scale_after, 32768.0f);
    other_rank = 0.0;
    ck_ok(net_train_step(&rig.net, 1.0));
    ck_assert_int_eq(rig.net.steps, 1);
}

/* ---- clipping by value ---- */

static void make_gradients(struct rig *rig, double x) {
    OWN_TENSOR *loss = fake_new(&rig->host, AMP_FLOAT32, 1, 1.0);
    amp_scaled_loss scaled = rig_begin_with(rig, loss);
    net_backward(&rig->net, x, fake_seed(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
}

TEST_TIMES(gradients_are_clipped_by_value, 2) {
    RIG_START(rig, _i ? AMP_O2 : AMP_O1, FAKE_RETAINS);
    make_gradients(&rig, 8.0);
    ck_ok(amp_clip_grad_value(&rig.net.optimizer, 0.5f));
    amp_master masters[3] = { AMP_MASTER_INIT };
    size_t n;
    ck_ok(amp_master_params(&rig.net.optimizer, masters, 3, &n));
    ck_assert_uint_eq(n, 3);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < masters[i].size; j++) {
            ck_assert_float_ge(((float *)masters[i].grad)[j], -0.5f);
            ck_assert_float_le(((float *)masters[i].grad)[j], 0.5f);
        }
    ck_assert_float_eq(((float *)masters[0].grad)[0], 0.5f);           /* it was larger */
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 0.5); /* and the host's handle shows it */
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_clip_grad_value(&rig.net.optimizer, 0.0f));
    ck_says("max_value");
}

/* ---- optimizers that share parameters ---- */

TEST_TIMES(cancel_restores_what_two_optimizers_share, 4) {
    RIG_INIT(rig, _i % 2 ? FAKE_RETAINS | FAKE_NO_SET_GRAD : FAKE_RETAINS);
    amp_optimizer second = SIZED(amp_optimizer, .host = &rig.host.hooks, .params = rig.net.trained, .n_params = 3);
    amp_optimizer *both[] = { &rig.net.optimizer, &second };
    rig_wire_two(&rig, &second, config_of(_i < 2 ? AMP_O1 : AMP_O2));
    make_gradients(&rig, 1.0);
    const double before = fake_get(rig.net.weight->grad, 0);
    void *handle = rig.net.weight->grad;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_ok(fake_begin_many(rig.context, both, 2, 0, 0, NULL, &scaled));
    net_backward(&rig.net, 3.0, fake_seed(&scaled));
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_assert_ptr_eq(rig.net.weight->grad, handle);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), before);
    ck_ok(fake_begin_many(rig.context, both, 2, 0, 0, NULL, &scaled)); /* and the next one adds, once */
    net_backward(&rig.net, 1.0, fake_seed(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 2.0 * before);
    net_zero_grad(&rig.net);
}

/* ---- late parameters ---- */

TEST(a_new_parameter_gets_the_type_and_a_master) {
    RIG_START(rig, AMP_O2, FAKE_RETAINS);
    OWN_TENSOR *late = rig_tensor(&rig, AMP_FLOAT32, 1.0 / 3.0);
    const amp_param param = SIZED(amp_param, .tensor = late, .name = "late");
    ck_ok(amp_add_params(&rig.net.optimizer, &param, 1));
    ck_dtype(late, AMP_FLOAT16);
    amp_master masters[4] = { AMP_MASTER_INIT };
    size_t n;
    ck_ok(amp_master_params(&rig.net.optimizer, masters, 4, &n));
    ck_assert_uint_eq(n, 4);
    ck_assert_str_eq(masters[3].name, "late");
    ck_assert_int_eq(masters[3].is_master, 1);
    ck_assert_float_eq(((float *)masters[3].data)[0], 1.0f / 3.0f); /* every bit of FP32 */
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_add_params(&rig.net.optimizer, &param, 1));
    ck_says("late");
    rig_stop(&rig);
    ck_dtype(late, AMP_FLOAT32);
}

TEST(adding_is_all_or_nothing) {
    RIG_START(rig, AMP_O2, FAKE_RETAINS);
    OWN_TENSOR *good = rig_tensor(&rig, AMP_FLOAT32, 1.0), *half = rig_tensor(&rig, AMP_FLOAT16, 1.0);
    amp_param params[2] = { SIZED(amp_param, .tensor = good), SIZED(amp_param, .tensor = half) };
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_add_params(&rig.net.optimizer, params, 2));
    ck_says("fp16");
    ck_dtype(good, AMP_FLOAT32);
    size_t n;
    ck_ok(amp_master_params(&rig.net.optimizer, NULL, 0, &n));
    ck_assert_uint_eq(n, 3);
    ck_ok(amp_add_params(&rig.net.optimizer, params, 1)); /* and it can be added after all */
    ck_dtype(good, AMP_FLOAT16);
    struct fake_tensor *alias = fake_alias(rig.net.gamma);
    params[0].tensor = alias;
    ck_fails(AMP_ERR_CONFLICT, amp_add_params(&rig.net.optimizer, params, 1));
    fake_release(alias);
    rig_stop(&rig);
}

/* Each of two optimizers has what it lists, and no more, whichever grew before and however that ended. */
TEST(what_an_optimizer_has_is_known_by_each) {
    RIG_INIT(rig, FAKE_RETAINS);
    amp_optimizer second = SIZED(amp_optimizer, .host = &rig.host.hooks);
    amp_param params[2] = { AMP_PARAM_INIT, AMP_PARAM_INIT };
    rig_wire_two(&rig, &second, config_of(AMP_O1));
    params[0].tensor = rig.net.weight; /* the first of all; and then one that is none */
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_add_params(&second, params, 2));
    ck_ok(amp_add_params(&second, params, 1));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_add_params(&rig.net.optimizer, params, 1));
    ck_says("has weight already");
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_add_params(&second, params, 1));
    ck_says("has weight already");
}

/* ---- the scale by hand ---- */

DIFFERENCE(any_tensor_can_be_scaled_and_unscaled) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *tensor = rig_tensor(&rig, AMP_FLOAT32, 0.375);
    void *scaled;
    float found_inf = 0.0f;
    ck_ok(amp_scale(rig.context, 0, tensor, &scaled));
    ck_assert_double_eq(fake_get(scaled, 1), 0.375 * 65536.0);
    ck_ok(amp_unscale(rig.context, 0, &scaled, 1, &found_inf));
    ck_assert_double_eq(fake_get(scaled, 1), 0.375);
    ck_assert_float_eq(found_inf, 0.0f);
    fake_set(scaled, 2, INFINITY);
    ck_ok(amp_unscale(rig.context, 0, &scaled, 1, &found_inf));
    ck_assert_float_eq(found_inf, 1.0f);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_unscale(rig.context, 7, &scaled, 1, NULL));
    ck_says("num_losses");
    fake_release(scaled);
}

/* ---- traps ---- */

#if defined(__x86_64__) && defined(__GLIBC__)
TEST_TIMES(a_host_with_traps_survives_an_overflow, traps_work()) {
    RIG_START(rig, AMP_O2, FAKE_RETAINS);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 60000.0);
    feclearexcept(FE_ALL_EXCEPT);
    feenableexcept(FE_OVERFLOW | FE_INVALID | FE_DIVBYZERO);
    fenv_t before, after;
    fegetenv(&before);
    fake_release(net_forward(&rig.net, x)); /* 60000 * 0.5 + ..., in fp16 */
    amp_scaled_loss scaled = rig_begin(&rig);
    volatile float huge = 3e38f;
    huge *= 10.0f; /* what a backward does that overflows: SIGFPE, were the trap on */
    net_backward(&rig.net, 1.0, (double)huge);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(scaled.action, AMP_SKIP);
    fegetenv(&after);
    ck_assert_int_eq(fegetexcept(), FE_OVERFLOW | FE_INVALID | FE_DIVBYZERO);
    ck_assert_mem_eq(&before.__mxcsr, &after.__mxcsr, sizeof before.__mxcsr);
    fedisableexcept(FE_ALL_EXCEPT);
    fake_release(x);
    net_zero_grad(&rig.net);
}

TEST_TIMES(traps_come_back_after_a_longjmp, traps_work()) {
    jmp_buf out;
    amp_scope scope;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    feenableexcept(FE_OVERFLOW);
    if (!setjmp(out)) {
        rig.net.jump_from_op = &out;
        (void)net_binary(&rig.net, OP_matmul, x, x);
        ck_abort_msg("not reached");
    }
    rig.net.jump_from_op = NULL;
    ck_ok(amp_scope_enter(rig.context, &scope)); /* libamp looks, and cleans up */
    ck_assert_int_eq(fegetexcept(), FE_OVERFLOW);
    ck_assert_uint_eq(__builtin_ia32_stmxcsr() & 0x0400u, 0); /* unmasked for SSE too */
    ck_ok(amp_scope_leave(&scope));
    fedisableexcept(FE_ALL_EXCEPT);
}
#endif

/* ---- slots that saw no call ---- */

static const struct {
    amp_level level;
    float loss_scale;
    bool blind; /* a host without view; then versions tell */
} passed_by[] = { { AMP_O0, 0.0f, false }, { AMP_O1, 0.0f, false }, { AMP_O2, 0.0f, false }, { AMP_O3, 0.0f, false },
                  { AMP_O4, 0.0f, false }, { AMP_O5, 0.0f, false }, { AMP_O1, 1.0f, true } };
enum { N_PASSED_BY = sizeof passed_by / sizeof *passed_by };

TEST_TIMES(a_slot_that_no_call_reaches_is_named, N_PASSED_BY) {
    RIG_INIT(rig, FAKE_RETAINS);
    if (passed_by[_i].blind) rig.host.hooks.view = NULL;
    const amp_fn copied_step = rig.net.step; /* a host that copied its pointer too early */
    rig_wire(&rig, CONFIG(passed_by[_i].level, .loss_scale = passed_by[_i].loss_scale));
    const amp_fn wired_step = rig.net.step;
    rig.net.step = copied_step;
    for (int i = 0; i < 3; i++) ck_ok(net_train_step(&rig.net, 1.0));
    rig.net.step = wired_step;
    ck_explains(rig.context, NULL, "optimizer 0: its slot step saw no call");
}

/* It leaves the iteration where the action is AMP_SKIP, and does not tell libamp. */
TEST(a_skip_that_the_host_kept_to_itself_is_told_once) {
    RIG_INIT(rig, FAKE_RETAINS);
    amp_optimizer *optimizer = &rig.net.optimizer;
    optimizer->n_steps = 0;
    rig_wire(&rig, config_of(AMP_O1));
    for (int i = 0; i < 4; i++) {
        const bool overflows = i == 0 || i == 2;
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        amp_step_info info = AMP_STEP_INFO_INIT;
        ck_ok(fake_begin(optimizer, NULL, &scaled));
        net_backward(&rig.net, overflows ? (double)INFINITY : 1.0, 1.0);
        ck_ok(amp_scale_loss_end(&scaled));
        ck_assert_int_eq(scaled.action, overflows ? AMP_SKIP : AMP_STEP);
        if (overflows) continue;
        const unsigned told = rig.host.events[AMP_EVENT_LOG];
        ck_ok(amp_step_begin(optimizer, &info));
        ck_assert_int_eq(info.action, AMP_SKIP); /* of the brackets since the last step */
        ck_ok(amp_step_end(optimizer));
        ck_assert_int_eq(rig.host.events[AMP_EVENT_LOG] - told, i == 1 ? 1 : 0);
        if (i == 1) ck_assert(strstr(rig.host.last_message[AMP_EVENT_LOG], "an earlier bracket that no step followed"));
    }
}

/* No call would ever be theirs. */
TEST(a_self_that_was_forgotten_is_refused) {
    const amp_config config = config_of(AMP_O1);
    RIG_INIT(rig, FAKE_RETAINS);
    void **fields[] = { &rig.net.model.self, &rig.net.optimizer.self };
    static const char *const named[] = { "forward", "step" };
    for (int i = 0; i < 2; i++) {
        void *self = *fields[i];
        *fields[i] = NULL;
        ck_fails(AMP_ERR_INVALID_ARGUMENT, rig_config(&rig, &config));
        ck_says(named[i]);
        ck_says("self of its");
        *fields[i] = self;
    }
    ck_ok(rig_config(&rig, &config));
}

static amp_status bracket_without_step(struct rig *rig, double grad, uint32_t flags) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_optimizer *optimizer = &rig->net.optimizer;
    const amp_status status = fake_begin_many(rig->context, &optimizer, 1, 0, flags, NULL, &scaled);
    if (status != AMP_OK) return status;
    net_backward(&rig->net, grad, 1.0);
    return amp_scale_loss_end(&scaled);
}

static void expect_no_missed_step(const struct rig *rig) {
    const char *text = explanation(rig->context, NULL);
    ck_assert_msg(!strstr(text, "slot step"), "%s", text);
}

/* Brackets that accumulate, that overflow, and that are cancelled or thrown away: no step was due. */
TEST_TIMES(no_step_that_was_not_due_is_missed, 6) {
    const amp_level level = (amp_level)(AMP_O0 + _i);
    RIG_START(rig, level, FAKE_RETAINS);
    ck_ok(bracket_without_step(&rig, 1.0, AMP_DELAY_UNSCALE));
    for (int i = 0; i < 3; i++) ck_ok(bracket_without_step(&rig, 1.0, 0));
    (void)bracket_without_step(&rig, (double)INFINITY, 0);
    net_zero_grad(&rig.net);
    amp_scaled_loss scaled = rig_begin(&rig);
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_ok(bracket_without_step(&rig, 1.0, 0));
    ck_ok(bracket_without_step(&rig, 1.0, 0));
    expect_no_missed_step(&rig);
    rig_step_and_clear(&rig);
    for (int i = 0; i < 2; i++) ck_ok(net_train_step(&rig.net, 1.0));
    expect_no_missed_step(&rig);
}

/* It loads weights of its own between two brackets, and steps later. */
TEST_TIMES(what_the_host_writes_is_no_missed_step, 6) {
    RIG_START(rig, (amp_level)(AMP_O0 + _i), FAKE_RETAINS);
    ck_ok(bracket_without_step(&rig, 1.0, 0));
    for (int i = 0; i < NET_SIZE; i++) fake_set(rig.net.weight, i, 0.5 + i);
    for (int i = 0; i < 3; i++) ck_ok(bracket_without_step(&rig, 1.0, 0));
    expect_no_missed_step(&rig);
    rig_step_and_clear(&rig);
    for (int i = 0; i < 3; i++) ck_ok(net_train_step(&rig.net, 1.0));
    expect_no_missed_step(&rig);
}

/* A host that has a slot for each layer, one of them frozen. */
TEST(a_frozen_layers_slot_is_no_alarm) {
    amp_fn frozen_step;
    RIG_INIT(rig, FAKE_RETAINS);
    frozen_step = rig.net.step;
    amp_op steps[2] = { rig.net.optimizer.steps[0], rig.net.optimizer.steps[0] };
    steps[1].name = "frozen";
    steps[1].slot = &frozen_step;
    rig.net.optimizer.steps = steps;
    rig.net.optimizer.n_steps = 2;
    rig_wire(&rig, config_of(AMP_O1));
    for (int i = 0; i < 3; i++) ck_ok(net_train_step(&rig.net, 1.0));
    ck_assert_msg(!rig.host.events[AMP_EVENT_WARNING], "%s", rig.host.last_message[AMP_EVENT_WARNING]);
    const char *said = rig.host.last_message[AMP_EVENT_LOG];
    ck_assert_msg(strstr(said, "1 of its 2 step slots saw no call in the first step: frozen") != NULL, "%s", said);
}

/* 0: each slot is called; 1: none is, for the host steps by hand. */
TEST_TIMES(slots_that_are_all_called_or_none_are_no_alarm, 2) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    for (int i = 0; i < 3; i++) {
        amp_step_info info = AMP_STEP_INFO_INIT;
        if (!_i) {
            ck_ok(net_train_step(&rig.net, 1.0));
            continue;
        }
        ck_ok(bracket_without_step(&rig, 1.0, 0));
        ck_ok(amp_step_begin(&rig.net.optimizer, &info));
        ck_assert_int_eq(info.action, AMP_STEP);
        ck_ok(amp_step_end(&rig.net.optimizer));
    }
    ck_assert_msg(!rig.host.events[AMP_EVENT_LOG], "%s", rig.host.last_message[AMP_EVENT_LOG]);
}

/* 0: the model uses a part of the table; 1: its calls go past a slot whose backward has calls. */
TEST_TIMES(unused_ops_are_told_of_once, 2) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.model.flags = 0;
    if (_i) rig.net.ops[OP_linear].backward_of = "softmax";
    rig_wire(&rig, config_of(AMP_O1));
    ck_ok(net_train_step(&rig.net, 1.0));
    ck_assert_int_eq(rig.host.events[AMP_EVENT_WARNING], _i);
    const char *said = _i ? rig.host.last_message[AMP_EVENT_WARNING] : "softmax";
    ck_assert_msg(strstr(said, "softmax") != NULL && strstr(said, "linear") == NULL, "%s", said);
    ck_ok(net_train_step(&rig.net, 1.0));
    ck_assert_int_eq(rig.host.events[AMP_EVENT_WARNING], _i);
}
