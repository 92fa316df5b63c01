/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints over the fake host: names, Apex's form, and who may call when. */
#include "forge.h"

/* ---- names ---- */

TEST(one_name_twice_is_refused_naming_both) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.params[1].name = "weight";
    rig_wire(&rig, config_of(AMP_O2));
    size_t size = 77;
    ck_fails(AMP_ERR_CONFLICT, amp_state_save_memory(rig.context, AMP_STATE_SAFETENSORS, NULL, 0, &size));
    ck_says("parameters 0 and 1");
    ck_says("weight");
    ck_assert_uint_eq(size, 77);
}

/* A bracket with a gradient that overflows. */
static amp_status skip(struct rig *rig) {
    amp_scaled_loss scaled = rig_begin(rig);
    fake_put_grad(rig->net.weight, fake_new(&rig->host, AMP_FLOAT32, NET_SIZE, (double)INFINITY));
    return amp_scale_loss_end(&scaled);
}

/* The error before the load was of another run. */
TEST(skips_after_a_load_are_told_again) {
    RIG_WITH(rig, FAKE_RETAINS, AMP_O1, .max_skips = 2);
    ck_ok(skip(&rig));
    OWN_BYTES state = state_of(&rig, AMP_STATE_SAFETENSORS);
    ck_fails(AMP_ERR_TOO_MANY_SKIPS, skip(&rig));
    ck_ok(skip(&rig));
    ck_ok(load(&rig, &state));
    ck_fails(AMP_ERR_TOO_MANY_SKIPS, skip(&rig));
    ck_ok(skip(&rig));
}

/* A libamp whose factors were floats has written 0.3's nearest one. */
TEST(a_state_whose_factors_were_floats) {
    static const char now[] = "\"0x13333333333333p-54\"", then[] = "\"0x4ccccdp-24\""; /* 8 less: no other padding */
    enum { LESS = sizeof now - sizeof then };
    uint64_t length;
    RIG_WITH(rig, FAKE_RETAINS, AMP_O1, .backoff = 0.3);
    RIG_WITH(other, FAKE_RETAINS, AMP_O1, .backoff = 0.31);
    OWN_BYTES state = state_of(&rig, AMP_STATE_SAFETENSORS);
    char *at = memmem(state.data, state.size, now, sizeof now - 1);
    ck_assert_ptr_nonnull(at);
    memcpy(at, then, sizeof then - 1);
    char *rest = at + sizeof then - 1;
    memmove(rest, rest + LESS, state.size - LESS - (size_t)(rest - (char *)state.data));
    memcpy(&length, state.data, sizeof length);
    length -= LESS;
    memcpy(state.data, &length, sizeof length);
    state.size -= LESS;
    forge_checksums(&state);
    ck_ok(load(&rig, &state));
    ck_assert_msg(!rig.host.events[AMP_EVENT_WARNING], "%s", rig.host.last_message[AMP_EVENT_WARNING]);
    ck_ok(load(&other, &state));
    ck_warned(&other, "scaler.backoff 0.300000012 -> 0.31");
}

TEST(names_that_no_header_can_hold) {
    static const struct {
        const char *name, *says;
    } rows[] = { { "w\xff", "not UTF-8" }, { "\xed\xa0\x80", "not UTF-8" }, { "__metadata__", "reserved" } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t size;
        RIG_INIT(rig, FAKE_RETAINS);
        rig.net.params[0].name = rows[i].name;
        rig_wire(&rig, config_of(AMP_O2));
        ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_state_save_memory(rig.context, AMP_STATE_SAFETENSORS, NULL, 0, &size));
        ck_says(rows[i].says);
    }
}

TEST(unnamed_and_odd_names_go_round) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.params[0].name = NULL;
    rig.net.params[1].name = "\"quoted\" \\ \n \xc3\xa9 \x01 {";
    rig_wire(&rig, config_of(AMP_O2));
    OWN_BYTES state = state_of(&rig, AMP_STATE_SAFETENSORS);
    ck_assert_ptr_nonnull(memmem(state.data, state.size, "\"param.0\":", 10));
    const struct snapshot before = snap(&rig);
    fake_fill(rig.net.bias, 9.0);
    ck_ok(load(&rig, &state));
    ck_still(&rig, &before);
}

TEST(another_model_is_refused_by_name) {
    START(rig, AMP_O2);
    RIG_INIT(other, FAKE_RETAINS);
    OWN_BYTES state = state_of(&rig, AMP_STATE_SAFETENSORS);
    other.net.params[0].name = "heaviness";
    rig_wire(&other, config_of(AMP_O2));
    fake_fill(other.net.bias, 7.0);
    const struct snapshot before = snap(&other);
    ck_refused(AMP_ERR_CONFLICT, "1 parameter in the file but not here (weight)", load(&other, &state));
    ck_says("1 trained here but not in the file (heaviness)");
    ck_still(&other, &before);
}

/* A context that trains nothing takes the values of what it has. */
TEST(inference_takes_what_it_has) {
    const amp_config config = config_of(AMP_O2);
    START(rig, AMP_O2);
    RIG_INIT(other, FAKE_RETAINS);
    train_some(&rig, 3);
    const struct snapshot before = snap(&rig);
    OWN_BYTES state = state_of(&rig, AMP_STATE_SAFETENSORS);
    amp_model *model = &other.net.model;
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &other.context));
    ck_ok(load(&other, &state));
    for (int i = 0; i < NET_SIZE; i++) ck_assert_double_eq(fake_get(other.net.weight, i), before.params[0][i]);
}

/* ---- Apex's form ---- */

TEST(apex_text_both_ways) {
    START(rig, AMP_O1);
    train_some(&rig, 4);
    OWN_BYTES text = state_of(&rig, AMP_STATE_APEX);
    static const char expected[] = "{\"loss_scaler0\":{\"loss_scale\":131072.0,\"unskipped\":1}}";
    ck_assert_uint_eq(text.size, sizeof expected - 1);
    ck_assert_mem_eq(text.data, expected, text.size);
    static const char given[] = " {\"loss_scaler0\": {\"loss_scale\": 65536.0, \"unskipped\": 2}}\n";
    ck_ok(amp_state_load_memory(rig.context, given, sizeof given - 1));
    struct snapshot after = snap(&rig);
    ck_assert_float_eq(after.scale, 65536.0f);
    ck_assert_uint_eq(after.unskipped, 2);
    ck_ok(net_train_step(&rig.net, 0.1));
    after = snap(&rig);
    ck_assert_float_eq(after.scale, 131072.0f); /* the window of 3 was full */
    ck_ok(load(&rig, &text));
    after = snap(&rig);
    ck_assert_uint_eq(after.unskipped, 1);
}

TEST(apex_goes_by_the_keys_index) {
    static const char given[] = "{\"loss_scaler1\":{\"loss_scale\":8,\"unskipped\":1},"
                                "\"loss_scaler0\":{\"loss_scale\":4,\"unskipped\":0}}";
    amp_record record = AMP_RECORD_INIT;
    RIG_WITH(rig, FAKE_RETAINS, AMP_O1, .window = 3, .num_losses = 2);
    ck_ok(amp_state_load_memory(rig.context, given, sizeof given - 1));
    ck_ok(amp_get_record(rig.context, 1, &record));
    ck_assert_float_eq(record.scale_after, 8.0f);
    ck_ok(amp_get_record(rig.context, 0, &record));
    ck_assert_float_eq(record.scale_after, 4.0f);
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_WARNING], 0);
}

TEST(apex_keeps_a_static_scale) {
    static const char other[] = "{\"loss_scaler0\":{\"loss_scale\":4,\"unskipped\":7}}";
    static const char same[] = "{\"loss_scaler0\":{\"loss_scale\":1,\"unskipped\":5}}";
    START(rig, AMP_O5);
    ck_ok(amp_state_load_memory(rig.context, same, sizeof same - 1));
    ck_assert_uint_eq(snap(&rig).unskipped, 5);
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_WARNING], 0);
    ck_ok(amp_state_load_memory(rig.context, other, sizeof other - 1));
    const struct snapshot after = snap(&rig);
    ck_assert_float_eq(after.scale, 1.0f);
    ck_assert_uint_eq(after.unskipped, 7);
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_WARNING], 1);
}

/* ---- who may call when ---- */

TEST(not_inside_brackets_or_steps) {
    size_t size;
    START(rig, AMP_O2);
    OWN_BYTES state = state_of(&rig, AMP_STATE_SAFETENSORS);
    amp_scaled_loss scaled = rig_begin(&rig);
    ck_fails(AMP_ERR_WRONG_STATE, amp_state_save_memory(rig.context, AMP_STATE_SAFETENSORS, NULL, 0, &size));
    ck_fails(AMP_ERR_WRONG_STATE, amp_state_save(rig.context, "never", AMP_STATE_SAFETENSORS));
    ck_fails(AMP_ERR_WRONG_STATE, load(&rig, &state));
    ck_refused(AMP_ERR_WRONG_STATE, "inside a bracket", amp_state_load(rig.context, "never"));
    ck_ok(amp_scale_loss_end(&scaled));
    (void)rig_step_begin(&rig);
    ck_refused(AMP_ERR_WRONG_STATE, "inside a step", load(&rig, &state));
    ck_ok(amp_step_end(&rig.net.optimizer));
    ck_ok(load(&rig, &state));
    ck_ok(fake_begin_many(rig.context, (amp_optimizer *[]){ &rig.net.optimizer }, 1, 0, AMP_DELAY_UNSCALE,
                                    NULL, &scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_fails(AMP_ERR_WRONG_STATE, amp_state_save_memory(rig.context, AMP_STATE_SAFETENSORS, NULL, 0, &size));
    ck_says("still scaled");
}

TEST(arguments) {
    size_t size = 5;
    char small[16];
    START(rig, AMP_O2);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_state_save(NULL, "x", 0));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_state_save(rig.context, NULL, 0));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_state_save(rig.context, "", 0));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_state_save(rig.context, "x", 2));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_state_load(NULL, "x"));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_state_load(rig.context, NULL));
    ck_fails(AMP_ERR_NOT_FOUND, amp_state_load(rig.context, "no/such/file"));
    ck_fails(AMP_ERR_NOT_FOUND, amp_state_save(rig.context, "no/such/file", 0));
    ck_fails(AMP_ERR_IO, amp_state_load(rig.context, "."));
    ck_fails(AMP_ERR_IO, amp_state_save(rig.context, "/dev/null", 0));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_state_load_memory(NULL, small, 1));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_state_load_memory(rig.context, NULL, 1));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_state_save_memory(NULL, 0, NULL, 0, &size));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_state_save_memory(rig.context, 0, NULL, 0, NULL));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_state_save_memory(rig.context, 0, NULL, 9, &size));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_state_save_memory(rig.context, 0, small, sizeof small, &size));
    ck_says("room for 16");
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_state_save_memory(rig.context, AMP_STATE_APEX, small, sizeof small, &size));
    ck_assert_uint_eq(size, 5);
}

/* Each hook that a save or a load calls fails once at each of its calls: nothing changed. */
TEST(failing_hooks_change_nothing) {
    size_t size;
    START(rig, AMP_O2);
    train_some(&rig, 4);
    OWN_BYTES state = state_of(&rig, AMP_STATE_SAFETENSORS);
    train_some(&rig, 1);
    const struct snapshot before = snap(&rig);
    unsigned refused = 0;
    for (uint64_t at = 1; at < 40; at++) {
        rig.host.calls[FAKE_VIEW] = 0;
        rig.host.fail_hook = FAKE_VIEW;
        rig.host.fail_at = at;
        const amp_status saved = amp_state_save_memory(rig.context, AMP_STATE_SAFETENSORS, NULL, 0, &size);
        rig.host.calls[FAKE_VIEW] = 0;
        const amp_status loaded = load(&rig, &state);
        rig.host.fail_at = 0;
        refused += saved != AMP_OK;
        if (loaded == AMP_OK) break;
        refused++;
        ck_still(&rig, &before);
    }
    ck_assert_uint_ge(refused, 6);
}
