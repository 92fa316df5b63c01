/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of libamp's own optimizers: a resumed run is the uninterrupted one, bit for bit, for each rule at each
 * level; what a file of another optimizer does. */
#include "fused.h"
#include "../support/levels.h"
#include "rules.h"

enum { BEFORE = 5, AFTER = 6, STATE_BYTES = 1 << 16 };


static amp_config config_at(amp_level level) {
    return CONFIG(level, .loss_scale = AMP_DYNAMIC, .init_scale = 64.0f, .window = 3);
}

/* An overflow at step 3 and another at 8; clearing after each step. */
static void train(struct rig *rig, int from, int n) {
    for (int step = from; step < from + n; step++) {
        (void)bracket(rig, step % 5 == 3 ? INF : 0.01 * (step % 4 + 1), 0);
        ck_ok(amp_fused_step(&rig->net.optimizer, NULL));
        ck_ok(amp_fused_zero_grad(&rig->net.optimizer));
    }
}

static void compare(struct rig *a, struct rig *b) {
    amp_master x[3], y[3];
    masters_of(a, x);
    masters_of(b, y);
    for (int k = 0; k < 3; k++) {
        ck_assert_int_eq(x[k].dtype, y[k].dtype);
        const size_t width = x[k].dtype == AMP_FLOAT32 ? 4 : 2;
        ck_assert_msg(!memcmp(x[k].data, y[k].data, width * NET_SIZE), "%s differs", x[k].name);
        const struct fake_tensor *p = a->net.trained[k], *q = b->net.trained[k];
        ck_assert(!memcmp(p->storage.data, q->storage.data, (fake_dtype(p) == AMP_FLOAT32 ? 4 : 2) * NET_SIZE));
    }
}

TEST_TIMES(resume_is_bit_exact, N_RULES *N_EACH_LEVEL) {
    static char state[STATE_BYTES];
    RIG(straight), resumed;
    const amp_optim rule = rule_of(_i / N_EACH_LEVEL, NULL);
    const amp_config config = config_at(each_level[_i % N_EACH_LEVEL]);
    size_t size = 0;
    fused_start(&straight, rule, config, 0);
    train(&straight, 0, BEFORE);
    ck_ok(amp_state_save_memory(straight.context, AMP_STATE_SAFETENSORS, state, sizeof state, &size));
    train(&straight, BEFORE, AFTER);
    rig_init(&resumed, 0);
    for (int k = 0; k < 3; k++) fake_fill(resumed.net.trained[k], 7.0);
    ck_ok(fused_config(&resumed, rule, config));
    train(&resumed, 0, 2); /* moments of its own, which the file's replace */
    ck_ok(amp_state_load_memory(resumed.context, state, size));
    train(&resumed, BEFORE, AFTER);
    compare(&straight, &resumed);
}

static size_t saved(struct rig *rig, amp_optim_kind kind, char *state) {
    size_t size = 0;
    if (kind) fused_start(rig, optim_of(kind ? kind : AMP_OPTIM_SGD, 0.125), config_at(AMP_O2), 0);
    else rig_start(rig, AMP_O2, 0);
    if (kind) train(rig, 0, BEFORE);
    ck_ok(amp_state_save_memory(rig->context, AMP_STATE_SAFETENSORS, state, STATE_BYTES, &size));
    return size;
}

static bool holds(const char *state, size_t size, const char *text) { return memmem(state, size, text, strlen(text)); }

TEST(names_are_torchs) {
    static char state[STATE_BYTES];
    RIG(rig);
    size_t size = saved(&rig, AMP_OPTIM_ADAM, state);
    ck_assert(holds(state, size, "\"weight.exp_avg\"") && holds(state, size, "\"gamma.exp_avg_sq\""));
    ck_assert(holds(state, size, "\"libamp.step.bias\":\"4\"")); /* five brackets, one skipped */
    rig_end(&rig);
    size = saved(&rig, AMP_OPTIM_ADAGRAD, state);
    ck_assert(holds(state, size, "\"weight.sum\""));
}

/* A context that steps with the host's optimizer, or not at all, takes the values and says what it left out. */
TEST(moments_that_nobody_keeps_are_left_out) {
    static char state[STATE_BYTES];
    RIG(ours), theirs;
    const size_t size = saved(&ours, AMP_OPTIM_ADAM, state);
    rig_start(&theirs, AMP_O2, 0);
    ck_ok(amp_state_load_memory(theirs.context, state, size));
    ck_assert_ptr_nonnull(strstr(theirs.host.last_message[AMP_EVENT_WARNING], "6 moments"));
    compare(&ours, &theirs);
}

/* From what a state lacks nothing is taken: values, moments and scale stay. */
TEST_TIMES(states_of_others_are_refused, 3) {
    static const amp_optim_kind kinds[] = { 0, AMP_OPTIM_SGD, AMP_OPTIM_NOVOGRAD };
    static char state[STATE_BYTES];
    RIG(other), ours, untouched;
    const amp_optim rule = optim_of(AMP_OPTIM_ADAM, 0.125);
    const amp_config config = config_at(AMP_O2);
    const size_t size = saved(&other, kinds[_i], state);
    fused_start(&ours, rule, config, 0);
    fused_start(&untouched, rule, config, 0);
    train(&ours, 0, BEFORE), train(&untouched, 0, BEFORE);
    ck_fails(AMP_ERR_CONFLICT, amp_state_load_memory(ours.context, state, size));
    train(&ours, BEFORE, AFTER), train(&untouched, BEFORE, AFTER);
    compare(&ours, &untouched);
}

/* Two of libamp's own on one parameter: each keeps its moments, under names that tell them apart. */
TEST(shared_parameters) {
    static char state[STATE_BYTES], again[STATE_BYTES];
    size_t size = 0, size_again = 0;
    const amp_optim rule = optim_of(AMP_OPTIM_ADAM, 0.125);
    const amp_config config = config_at(AMP_O2);
    amp_fused fused = { sizeof fused, 0, &rule, 1, NULL, 0 };
    amp_optimizer second = AMP_OPTIMIZER_INIT;
    void *weight[1];
    RIG_INIT(rig, 0);
    weight[0] = rig.net.weight;
    amp_optimizer *both[2] = { &rig.net.optimizer, &second };
    amp_model *model = &rig.net.model;
    second.host = &rig.host.hooks, second.params = weight, second.n_params = 1;
    second.fused = rig.net.optimizer.fused = &fused;
    rig.net.optimizer.n_steps = rig.net.optimizer.n_zero_grads = 0;
    ck_ok(amp_initialize_many(&model, 1, both, 2, &config, &rig.context));
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_ok(fake_begin_many(NULL, both, 2, 0, 0, NULL, &scaled));
    add_grad(rig.net.weight, 0.5);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    ck_ok(amp_state_save_memory(rig.context, AMP_STATE_SAFETENSORS, state, sizeof state, &size));
    ck_assert(holds(state, size, "\"optimizer1.weight.exp_avg\"") && holds(state, size, "\"weight.exp_avg\""));
    ck_assert(holds(state, size, "\"libamp.step.weight\":\"1\"") &&
              holds(state, size, "\"libamp.step.optimizer1.weight\":\"0\""));
    ck_ok(amp_fused_step(&second, NULL));
    ck_ok(amp_state_load_memory(rig.context, state, size));
    ck_ok(amp_state_save_memory(rig.context, AMP_STATE_SAFETENSORS, again, sizeof again, &size_again));
    ck_assert_uint_eq(size, size_again);
    ck_assert(!memcmp(state, again, size));
}

/* What the host's optimizer steps too is unscaled at the bracket's end, whatever was saved before it became shared. */
TEST(a_save_forgets_nobody_who_shares) {
    static char state[STATE_BYTES];
    size_t size = 0;
    const amp_optim rule = optim_of(AMP_OPTIM_SGD, 0.125);
    const amp_config config = config_at(AMP_O1);
    amp_fused fused = { sizeof fused, 0, &rule, 1, NULL, 0 };
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_optimizer ours = AMP_OPTIMIZER_INIT;
    void *weight[1];
    RIG_INIT(rig, 0);
    weight[0] = rig.net.weight;
    amp_optimizer *both[2] = { &rig.net.optimizer, &ours };
    amp_model *model = &rig.net.model;
    const amp_param bias = { sizeof bias, 0, rig.net.bias, "bias" };
    ours.host = &rig.host.hooks, ours.params = weight, ours.n_params = 1, ours.fused = &fused;
    rig.net.optimizer.params = &rig.net.trained[1], rig.net.optimizer.n_params = 2;
    ck_ok(amp_initialize_many(&model, 1, both, 2, &config, &rig.context));
    ck_ok(amp_state_save_memory(rig.context, AMP_STATE_SAFETENSORS, state, sizeof state, &size));
    ck_ok(amp_add_params(&ours, &bias, 1));
    ck_ok(fake_begin_many(NULL, both, 2, 0, 0, NULL, &scaled));
    for (int k = 0; k < 2; k++) add_grad(rig.net.trained[k], 0.25 * fake_seed(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 0.25 * 64.0); /* libamp's alone: left to its step */
    ck_assert_double_eq(fake_get(rig.net.bias->grad, 0), 0.25);
}
