/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints over the fake host: round trips, orders, other levels, other scalers. */
#include "../support/levels.h"
#include "staterig.h"

#include <unistd.h>

TEST_TIMES(round_trip_restores_everything, N_EACH_LEVEL) {
    START(rig, each_level[_i]);
    START(fresh, each_level[_i]);
    train_some(&rig, 5);
    const struct snapshot before = snap(&rig);
    OWN_BYTES state = state_of(&rig, AMP_STATE_SAFETENSORS);
    train_some(&rig, 7);
    const struct snapshot later = snap(&rig);
    ck_assert(!same(&before, &later));
    ck_ok(load(&rig, &state));
    ck_still(&rig, &before);
    ck_ok(load(&fresh, &state));
    ck_still(&fresh, &before);
    ck_assert_uint_eq(fresh.host.events[AMP_EVENT_WARNING], 0);
}

TEST(file_is_the_same_as_memory) {
    const char *path = "test_state.safetensors";
    START(rig, AMP_O2);
    train_some(&rig, 2);
    OWN_BYTES state = state_of(&rig, AMP_STATE_SAFETENSORS);
    ck_ok(amp_state_save(rig.context, path, AMP_STATE_SAFETENSORS));
    OWN_BYTES file = read_file(path);
    ck_assert_uint_eq(file.size, state.size);
    ck_assert_mem_eq(file.data, state.data, file.size);
    const struct snapshot before = snap(&rig);
    train_some(&rig, 2);
    ck_ok(amp_state_load(rig.context, path));
    ck_still(&rig, &before);
    unlink(path);
}

/* A step that was taken before the state was saved, or is still to come, is not missed. */
TEST_TIMES(a_resume_misses_no_step, N_EACH_LEVEL) {
    START(rig, each_level[_i]);
    START(fresh, each_level[_i]);
    train_some(&rig, 2);
    OWN_BYTES state = state_of(&rig, AMP_STATE_SAFETENSORS);
    OWN_BYTES text = state_of(&rig, AMP_STATE_APEX);
    for (int i = 0; i < 2; i++) {
        ck_ok(load(&fresh, &state));
        ck_ok(load(&fresh, &text));
        amp_scaled_loss scaled = rig_begin(&fresh);
        ck_ok(amp_scale_loss_cancel(&scaled));
        fake_set(fresh.net.weight, 0, 2.0 + i);
    }
    ck_assert_uint_eq(fresh.host.events[AMP_EVENT_WARNING], 0);
}

/* The host's own checkpoint: its parameters as they lie there, written and read in their own type. */
static void host_save(struct rig *rig, double model[3][NET_SIZE]) {
    for (size_t k = 0; k < 3; k++)
        for (int i = 0; i < NET_SIZE; i++) model[k][i] = fake_get(rig->net.trained[k], i);
}

static void host_load(struct rig *rig, double model[3][NET_SIZE]) {
    for (size_t k = 0; k < 3; k++)
        for (int i = 0; i < NET_SIZE; i++) fake_set(rig->net.trained[k], i, model[k][i]);
    if (rig->context && rig->host.options & FAKE_NO_VERSION) ck_ok(amp_masters_reconcile(rig->context));
}

enum order { MODEL_INIT_STATE, INIT_MODEL_STATE, INIT_STATE_MODEL, MODEL_INIT_STATE_MODEL, N_ORDERS };

/* Every order of the host's load, initialize and libamp's load, at every level, with and without versions. */
TEST_TIMES(every_order_keeps_every_bit, N_EACH_LEVEL * 2 * N_ORDERS) {
    double model[3][NET_SIZE];
    const amp_level level = each_level[_i / (2 * N_ORDERS)];
    const enum order order = (enum order)(_i % N_ORDERS);
    const unsigned options = FAKE_RETAINS | (_i / N_ORDERS % 2 ? FAKE_NO_VERSION : 0);
    RIG_WITH(rig, options, level, .window = 3);
    RIG_INIT(fresh, options);
    train_some(&rig, 4);
    const struct snapshot before = snap(&rig);
    OWN_BYTES state = state_of(&rig, AMP_STATE_SAFETENSORS);
    host_save(&rig, model);
    train_some(&rig, 6);
    const struct snapshot straight = snap(&rig);

    if (order == MODEL_INIT_STATE || order == MODEL_INIT_STATE_MODEL) host_load(&fresh, model);
    ck_ok(rig_config(&fresh, &(amp_config){ .struct_size = sizeof(amp_config), .level = level, .window = 3 }));
    if (order == INIT_MODEL_STATE) host_load(&fresh, model);
    ck_ok(load(&fresh, &state));
    if (order == INIT_STATE_MODEL || order == MODEL_INIT_STATE_MODEL) host_load(&fresh, model);
    ck_still(&fresh, &before);
    train_some(&fresh, 6);
    ck_still(&fresh, &straight);
}

/* A model loaded after the state that is not the one saved with it wins, where it differs. */
TEST(another_model_wins_where_it_differs) {
    START(rig, AMP_O2);
    train_some(&rig, 4);
    const struct snapshot before = snap(&rig);
    OWN_BYTES state = state_of(&rig, AMP_STATE_SAFETENSORS);
    ck_ok(load(&rig, &state));
    fake_set(rig.net.weight, 1, 3.0);
    const struct snapshot after = snap(&rig);
    ck_assert_float_eq(after.masters[0][1], 3.0f);
    ck_assert_float_eq(after.masters[0][0], before.masters[0][0]);
}

/* FP32 values survive every pair of levels, and a warning says what changed. */
TEST_TIMES(another_level_keeps_the_masters, N_EACH_LEVEL * N_EACH_LEVEL) {
    const amp_level from = each_level[_i / N_EACH_LEVEL], to = each_level[_i % N_EACH_LEVEL];
    START(rig, from);
    START(other, to);
    train_some(&rig, 4);
    const struct snapshot before = snap(&rig);
    OWN_BYTES state = state_of(&rig, AMP_STATE_SAFETENSORS);
    ck_ok(load(&other, &state));
    const struct snapshot after = snap(&other);
    ck_assert_uint_eq(other.host.events[AMP_EVENT_WARNING], from != to);
    if (from != to) ck_warned(&other, "level O");
    for (size_t k = 0; k < 3; k++)
        for (int i = 0; i < NET_SIZE; i++) {
            const float was = level_loses_fp32(from) ? (float)before.params[k][i] : before.masters[k][i];
            float is = (float)after.params[k][i];
            if (other.net.trained[k] && after.dtypes[k] != AMP_FLOAT32)
                is = level_loses_fp32(to) ? is : after.masters[k][i];
            if (!level_loses_fp32(to) || after.dtypes[k] == AMP_FLOAT32) ck_assert_float_eq(was, is);
            else ck_assert_float_eq_tol(was, is, 0.001f);
        }
}

TEST(scalers_go_by_mode_and_stay_in_bounds) {
    START(rig, AMP_O1);
    train_some(&rig, 7); /* two growths of 3, one clean */
    OWN_BYTES state = state_of(&rig, AMP_STATE_SAFETENSORS);
    const struct snapshot before = snap(&rig);
    ck_assert_float_eq(before.scale, 262144.0f);
    ck_assert_uint_eq(before.unskipped, 1);
    RIG_WITH(bounded, FAKE_RETAINS, AMP_O1, .window = 3, .max_scale = 131072.0f);
    ck_ok(load(&bounded, &state));
    const struct snapshot after = snap(&bounded);
    ck_assert_float_eq(after.scale, 131072.0f);
    ck_assert_uint_eq(after.unskipped, 1);
    ck_assert_uint_eq(bounded.host.events[AMP_EVENT_SCALE_CHANGE], 1);
    ck_assert_uint_eq(bounded.host.events[AMP_EVENT_WARNING], 1);
    RIG_WITH(other, FAKE_RETAINS, AMP_O1, .window = 3, .scaler = AMP_SCALER_TORCH);
    ck_ok(load(&other, &state));
    ck_assert_float_eq(snap(&other).scale, 65536.0f);
    ck_warned(&other, "scaler.mode apex -> torch");
    ck_warned(&other, "keep their present state");
}

TEST(other_numbers_of_losses) {
    RIG_WITH(rig, FAKE_RETAINS, AMP_O1, .window = 3, .num_losses = 3);
    START(other, AMP_O1);
    train_some(&rig, 4);
    OWN_BYTES three = state_of(&rig, AMP_STATE_SAFETENSORS);
    OWN_BYTES text = state_of(&rig, AMP_STATE_APEX);
    ck_ok(load(&other, &three));
    ck_assert_float_eq(snap(&other).scale, 131072.0f);
    ck_warned(&other, "1 of the file's 3 loss scalers");
    ck_ok(load(&other, &text));
    ck_warned(&other, "3 loss scalers and the context 1");
}

/* Split masters are FP32 masters in the file: it is the same, byte for byte, and goes either way. */
TEST_TIMES(split_masters_have_the_same_file, 2) {
    RIG_WITH(whole, FAKE_RETAINS, AMP_O5, .window = 3);
    RIG_WITH(split, FAKE_RETAINS, AMP_O5, .window = 3, .master_weights = AMP_SPLIT);
    struct rig *from = _i ? &whole : &split, *to = _i ? &split : &whole;
    train_some(&whole, 5);
    train_some(&split, 5);
    OWN_BYTES whole_state = state_of(&whole, AMP_STATE_SAFETENSORS);
    OWN_BYTES split_state = state_of(&split, AMP_STATE_SAFETENSORS);
    ck_assert_uint_eq(whole_state.size, split_state.size);
    ck_assert_mem_eq(whole_state.data, split_state.data, whole_state.size);
    const struct snapshot before = snap(from);
    train_some(to, 3);
    ck_ok(load(to, _i ? &whole_state : &split_state));
    ck_still(to, &before);
    train_some(&whole, 4);
    train_some(&split, 4);
    const struct snapshot there = snap(&whole);
    ck_still(&split, &there);
    ck_assert_uint_eq(to->host.events[AMP_EVENT_WARNING], 0);
}
