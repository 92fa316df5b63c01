/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints over the fake host: round trips, orders, other levels, other scalers. */
#include "../support/levels.h"
#include "staterig.h"

#include <unistd.h>

static const amp_level levels[] = { EACH_LEVEL };

static amp_config short_window(amp_level level) {
    amp_config config = config_of(level);
    config.window = 3;
    return config;
}

static void start(struct rig *rig, amp_level level) {
    const amp_config config = short_window(level);
    rig_init(rig, FAKE_RETAINS);
    ck_ok(rig_config(rig, &config));
}

TEST_TIMES(round_trip_restores_everything, N_EACH_LEVEL) {
    struct rig rig, fresh;
    start(&rig, levels[_i]);
    train_some(&rig, 5);
    const struct snapshot before = snap(&rig);
    struct bytes state = state_of(&rig, AMP_STATE_SAFETENSORS);
    train_some(&rig, 7);
    const struct snapshot later = snap(&rig);
    ck_assert(!same(&before, &later));
    ck_ok(amp_state_load_memory(rig.context, state.data, state.size));
    const struct snapshot after = snap(&rig);
    ck_assert(same(&before, &after));
    rig_end(&rig);
    start(&fresh, levels[_i]);
    ck_ok(amp_state_load_memory(fresh.context, state.data, state.size));
    const struct snapshot elsewhere = snap(&fresh);
    ck_assert(same(&before, &elsewhere));
    ck_assert_uint_eq(fresh.host.events[AMP_EVENT_WARNING], 0);
    rig_end(&fresh);
    free(state.data);
}

TEST(file_is_the_same_as_memory) {
    struct rig rig;
    const char *path = "test_state.safetensors";
    start(&rig, AMP_O2);
    train_some(&rig, 2);
    struct bytes state = state_of(&rig, AMP_STATE_SAFETENSORS);
    ck_ok(amp_state_save(rig.context, path, AMP_STATE_SAFETENSORS));
    struct bytes file = read_file(path);
    ck_assert_uint_eq(file.size, state.size);
    ck_assert_mem_eq(file.data, state.data, file.size);
    const struct snapshot before = snap(&rig);
    train_some(&rig, 2);
    ck_ok(amp_state_load(rig.context, path));
    const struct snapshot after = snap(&rig);
    ck_assert(same(&before, &after));
    unlink(path);
    free(state.data);
    free(file.data);
    rig_end(&rig);
}

/* A step that was taken before the state was saved, or is still to come, is not missed. */
TEST_TIMES(a_resume_misses_no_step, N_EACH_LEVEL) {
    struct rig rig, fresh;
    start(&rig, levels[_i]);
    train_some(&rig, 2);
    struct bytes state = state_of(&rig, AMP_STATE_SAFETENSORS), text = state_of(&rig, AMP_STATE_APEX);
    start(&fresh, levels[_i]);
    for (int i = 0; i < 2; i++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        ck_ok(amp_state_load_memory(fresh.context, state.data, state.size));
        ck_ok(amp_state_load_memory(fresh.context, text.data, text.size));
        ck_ok(fake_begin(&fresh.net.optimizer, NULL, &scaled));
        ck_ok(amp_scale_loss_cancel(&scaled));
        fake_set(fresh.net.weight, 0, 2.0 + i);
    }
    ck_assert_uint_eq(fresh.host.events[AMP_EVENT_WARNING], 0);
    free(state.data);
    free(text.data);
    rig_end(&rig);
    rig_end(&fresh);
}

/* The host's own checkpoint: its parameters as they lie there, written and read in their own type. */
static void host_save(struct rig *rig, double model[3][NET_SIZE]) {
    for (size_t k = 0; k < 3; k++)
        for (int i = 0; i < NET_SIZE; i++) model[k][i] = fake_get(rig->net.trained[k], i);
}

static void host_load(struct rig *rig, double model[3][NET_SIZE]) {
    for (size_t k = 0; k < 3; k++)
        for (int i = 0; i < NET_SIZE; i++) fake_set(rig->net.trained[k], i, model[k][i]);
    if (rig->host.options & FAKE_NO_VERSION) ck_ok(amp_masters_reconcile(rig->context));
}

enum order { MODEL_INIT_STATE, INIT_MODEL_STATE, INIT_STATE_MODEL, MODEL_INIT_STATE_MODEL, N_ORDERS };

/* Every order of the host's load, initialize and libamp's load, at every level, with and without versions. */
TEST_TIMES(every_order_keeps_every_bit, N_EACH_LEVEL * 2 * N_ORDERS) {
    double model[3][NET_SIZE];
    const amp_level level = levels[_i / (2 * N_ORDERS)];
    const enum order order = (enum order)(_i % N_ORDERS);
    const unsigned options = FAKE_RETAINS | (_i / N_ORDERS % 2 ? FAKE_NO_VERSION : 0);
    const amp_config config = short_window(level);
    struct rig rig, fresh;
    rig_init(&rig, options);
    ck_ok(rig_config(&rig, &config));
    train_some(&rig, 4);
    const struct snapshot before = snap(&rig);
    struct bytes state = state_of(&rig, AMP_STATE_SAFETENSORS);
    host_save(&rig, model);
    train_some(&rig, 6);
    const struct snapshot straight = snap(&rig);
    rig_end(&rig);

    rig_init(&fresh, options);
    if (order == MODEL_INIT_STATE || order == MODEL_INIT_STATE_MODEL)
        for (size_t k = 0; k < 3; k++)
            for (int i = 0; i < NET_SIZE; i++) fake_set(fresh.net.trained[k], i, model[k][i]);
    ck_ok(rig_config(&fresh, &config));
    if (order == INIT_MODEL_STATE) host_load(&fresh, model);
    ck_ok(amp_state_load_memory(fresh.context, state.data, state.size));
    if (order == INIT_STATE_MODEL || order == MODEL_INIT_STATE_MODEL) host_load(&fresh, model);
    const struct snapshot loaded = snap(&fresh);
    ck_assert(same(&before, &loaded));
    train_some(&fresh, 0);
    for (int i = 4; i < 10; i++) ck_ok(net_train_step(&fresh.net, 0.1 + 0.01 * (i - 4)));
    const struct snapshot resumed = snap(&fresh);
    ck_assert(same(&straight, &resumed));
    rig_end(&fresh);
    free(state.data);
}

/* A model loaded after the state that is not the one saved with it wins, where it differs. */
TEST(another_model_wins_where_it_differs) {
    struct rig rig;
    start(&rig, AMP_O2);
    train_some(&rig, 4);
    const struct snapshot before = snap(&rig);
    struct bytes state = state_of(&rig, AMP_STATE_SAFETENSORS);
    ck_ok(amp_state_load_memory(rig.context, state.data, state.size));
    fake_set(rig.net.weight, 1, 3.0);
    const struct snapshot after = snap(&rig);
    ck_assert_float_eq(after.masters[0][1], 3.0f);
    ck_assert_float_eq(after.masters[0][0], before.masters[0][0]);
    free(state.data);
    rig_end(&rig);
}

/* FP32 values survive every pair of levels, and a warning says what changed. */
TEST_TIMES(another_level_keeps_the_masters, N_EACH_LEVEL * N_EACH_LEVEL) {
    const amp_level from = levels[_i / N_EACH_LEVEL], to = levels[_i % N_EACH_LEVEL];
    struct rig rig, other;
    start(&rig, from);
    train_some(&rig, 4);
    const struct snapshot before = snap(&rig);
    struct bytes state = state_of(&rig, AMP_STATE_SAFETENSORS);
    rig_end(&rig);
    start(&other, to);
    ck_ok(amp_state_load_memory(other.context, state.data, state.size));
    const struct snapshot after = snap(&other);
    ck_assert_uint_eq(other.host.events[AMP_EVENT_WARNING], from != to);
    if (from != to)
        ck_assert_msg(strstr(other.host.last_message[AMP_EVENT_WARNING], "level O") != NULL, "%s",
                      other.host.last_message[AMP_EVENT_WARNING]);
    struct bytes again = state_of(&other, AMP_STATE_SAFETENSORS);
    for (size_t k = 0; k < 3; k++)
        for (int i = 0; i < NET_SIZE; i++) {
            const float was = level_loses_fp32(from) ? (float)before.params[k][i] : before.masters[k][i];
            float is = (float)after.params[k][i];
            if (other.net.trained[k] && after.dtypes[k] != AMP_FLOAT32)
                is = level_loses_fp32(to) ? is : after.masters[k][i];
            if (!level_loses_fp32(to) || after.dtypes[k] == AMP_FLOAT32) ck_assert_float_eq(was, is);
            else ck_assert_float_eq_tol(was, is, 0.001f);
        }
    free(state.data);
    free(again.data);
    rig_end(&other);
}

TEST(scalers_go_by_mode_and_stay_in_bounds) {
    struct rig rig, other;
    start(&rig, AMP_O1);
    train_some(&rig, 7); /* two growths of 3, one clean */
    struct bytes state = state_of(&rig, AMP_STATE_SAFETENSORS);
    const struct snapshot before = snap(&rig);
    ck_assert_float_eq(before.scale, 262144.0f);
    ck_assert_uint_eq(before.unskipped, 1);
    rig_end(&rig);
    amp_config config = short_window(AMP_O1);
    config.max_scale = 131072.0f;
    rig_init(&other, FAKE_RETAINS);
    ck_ok(rig_config(&other, &config));
    ck_ok(amp_state_load_memory(other.context, state.data, state.size));
    struct snapshot after = snap(&other);
    ck_assert_float_eq(after.scale, 131072.0f);
    ck_assert_uint_eq(after.unskipped, 1);
    ck_assert_uint_eq(other.host.events[AMP_EVENT_SCALE_CHANGE], 1);
    ck_assert_uint_eq(other.host.events[AMP_EVENT_WARNING], 1);
    rig_end(&other);
    config = short_window(AMP_O1);
    config.scaler = AMP_SCALER_TORCH;
    rig_init(&other, FAKE_RETAINS);
    ck_ok(rig_config(&other, &config));
    ck_ok(amp_state_load_memory(other.context, state.data, state.size));
    after = snap(&other);
    ck_assert_float_eq(after.scale, 65536.0f);
    ck_assert_msg(strstr(other.host.last_message[AMP_EVENT_WARNING], "scaler.mode apex -> torch") &&
                      strstr(other.host.last_message[AMP_EVENT_WARNING], "keep their present state"),
                  "%s", other.host.last_message[AMP_EVENT_WARNING]);
    rig_end(&other);
    free(state.data);
}

TEST(other_numbers_of_losses) {
    struct rig rig, other;
    amp_config config = short_window(AMP_O1);
    config.num_losses = 3;
    rig_init(&rig, FAKE_RETAINS);
    ck_ok(rig_config(&rig, &config));
    train_some(&rig, 4);
    struct bytes three = state_of(&rig, AMP_STATE_SAFETENSORS), text = state_of(&rig, AMP_STATE_APEX);
    start(&other, AMP_O1);
    ck_ok(amp_state_load_memory(other.context, three.data, three.size));
    struct snapshot after = snap(&other);
    ck_assert_float_eq(after.scale, 131072.0f);
    ck_assert_msg(strstr(other.host.last_message[AMP_EVENT_WARNING], "1 of the file's 3 loss scalers"), "%s",
                  other.host.last_message[AMP_EVENT_WARNING]);
    ck_ok(amp_state_load_memory(other.context, text.data, text.size));
    ck_assert_msg(strstr(other.host.last_message[AMP_EVENT_WARNING], "3 loss scalers and the context 1"), "%s",
                  other.host.last_message[AMP_EVENT_WARNING]);
    rig_end(&other);
    rig_end(&rig);
    free(three.data);
    free(text.data);
}
