/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls at the wrong time and with NULLs: a status, words, and nothing changed. Linked with --wrap=ffi_closure_alloc,
 * which stands for a system that denies executable closures.
 */
#include "closures.h"
#include "world.h"

static bool deny;
WRAP(void *, ffi_closure_alloc, size_t size, void **code) { return deny ? NULL : __real_ffi_closure_alloc(size, code); }

TEST_TIMES(denied_closures_are_explained, 2) {
    const amp_config config = config_of(_i ? AMP_O2 : AMP_O1);
    RIG_INIT(rig, 0);
    const struct world before = world_of(&rig);
    deny = true;
    use_up_stubs();
    ck_fails(AMP_ERR_CLOSURE_DENIED, rig_config(&rig, &config));
    deny = false;
    ck_says("execmem");
    ck_says("amp_cast_args");
    world_check(&before, &rig);
    ck_ok(rig_config(&rig, &config));
}

/* Where every function of the host is called with registers alone, no closure is asked for. */
TEST_TIMES(denied_closures_are_not_missed, 2) {
    RIG_INIT(rig, FAKE_RETAINS);
    deny = true;
    ck_assert_int_eq(rig_try(&rig, config_of(_i ? AMP_O2 : AMP_O1)), AMP__GENERAL ? AMP_OK : AMP_ERR_CLOSURE_DENIED);
    if (AMP__GENERAL && !_i) {
        OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
        fake_release(net_linear(&rig.net, x, rig.net.weight, rig.net.bias));
        ck_assert_int_eq(fake_last(&rig.host)->dtypes[1], AMP_FLOAT16);
    }
}

/* ---- initialize ---- */

DIFFERENCE_TIMES(a_model_or_optimizer_is_initialised_once, 2) {
    RIG_START(rig, AMP_O2, 0);
    const struct world before = world_of(&rig);
    ck_fails(AMP_ERR_WRONG_STATE, amp_initialize(_i ? NULL : &rig.net.model, _i ? &rig.net.optimizer : NULL, AMP_O1));
    ck_says(_i ? "optimizer 0" : "model 0");
    ck_says("amp_shutdown");
    world_check(&before, &rig);
}

TEST(nothing_to_initialise) {
    amp_config config = config_of(AMP_O1);
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "NULL", amp_initialize(NULL, NULL, AMP_O1));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "context", amp_initialize_many(NULL, 0, NULL, 0, &config, NULL));
}

TEST_TIMES(null_arrays_and_entries_are_refused, 2) {
    RIG_INIT(rig, 0);
    amp_config config = config_of(AMP_O1);
    amp_model *models[] = { &rig.net.model, _i ? NULL : &rig.net.model };
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_initialize_many(NULL, 1, NULL, 0, &config, &rig.context));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_initialize_many(models, 1, NULL, 1, &config, &rig.context));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_initialize_many(models, 1, NULL, 0, NULL, &rig.context));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "model", amp_initialize_many(models, 2, NULL, 0, &config, &rig.context));
    ck_assert_ptr_null(rig.context);
    ck_assert(net_slots_restored(&rig.net));
}

TEST(shutdown_of_nothing_is_nothing) { ck_ok(amp_shutdown(NULL)); }

TEST(shutdown_leaves_a_slot_that_a_stranger_took) {
    RIG_START(rig, AMP_O1, 0);
    const amp_fn stranger = rig.net.original[OP_relu];
    rig.net.table[OP_softmax] = stranger;
    ck_refused(AMP_ERR_SLOT_TAKEN, "softmax", amp_shutdown(rig.context));
    ck_assert(rig.net.table[OP_softmax] == stranger);
    ck_assert_ptr_null(rig.net.model.amp); /* gone all the same */
    rig.net.table[OP_softmax] = rig.net.original[OP_softmax];
    rig.context = NULL;
}

/* ---- brackets ---- */

TEST_TIMES(end_and_cancel_need_a_begin, 2) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_fails(AMP_ERR_WRONG_STATE, _i ? amp_scale_loss_cancel(&scaled) : amp_scale_loss_end(&scaled));
    ck_says("amp_scale_loss_begin");
    ck_fails(AMP_ERR_INVALID_ARGUMENT, _i ? amp_scale_loss_cancel(NULL) : amp_scale_loss_end(NULL));
}

TEST(end_happens_once) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    RIG_START(rig, AMP_O1, 0);
    ck_ok(amp_scale_loss_begin(&rig.net.optimizer, NULL, &scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_fails(AMP_ERR_WRONG_STATE, amp_scale_loss_end(&scaled));
}

/* An open bracket of loss 0, and a second begin that must be refused. */
static const struct {
    bool same_scaled, same_optimizer;
    uint32_t loss_id, flags;
    amp_status status;
    const char *says;
} begins[] = {
    { true, true, 1, 0, AMP_ERR_WRONG_STATE, "open bracket" },
    { false, true, 0, 0, AMP_ERR_WRONG_STATE, "" },
    { false, true, 1, 0, AMP_ERR_WRONG_STATE, "an optimizer is in an open bracket already" },
    { false, false, 0, 0, AMP_ERR_WRONG_STATE, "loss_id 0" },
    { false, false, 2, 0, AMP_ERR_INVALID_ARGUMENT, "num_losses" },
    { false, false, 1, 64, AMP_ERR_INVALID_ARGUMENT, "flags" },
};

DIFFERENCE_TIMES(a_second_begin_is_refused, sizeof begins / sizeof begins[0]) {
    amp_scaled_loss open = AMP_SCALED_LOSS_INIT, other = AMP_SCALED_LOSS_INIT;
    RIG_INIT(rig, 0);
    rig_wire(&rig, CONFIG(AMP_O1, .num_losses = 2));
    amp_optimizer *optimizers[] = { &rig.net.optimizer };
    ck_ok(fake_begin(&rig.net.optimizer, NULL, &open));
    const amp_scaled_loss was_open = open, was_other = other;
    ck_fails(begins[_i].status,
             amp_scale_loss_begin_many(rig.context, optimizers, begins[_i].same_optimizer, begins[_i].loss_id,
                                       begins[_i].flags, NULL, begins[_i].same_scaled ? &open : &other));
    ck_says(begins[_i].says);
    ck_assert_mem_eq(&open, &was_open, sizeof open);
    ck_assert_mem_eq(&other, &was_other, sizeof other);
    ck_ok(amp_scale_loss_end(&open));
    ck_assert_int_eq(open.action, AMP_STEP);
}

TEST(a_foreign_optimizer_is_refused) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    RIG_INIT(rig, 0);
    ck_refused(AMP_ERR_WRONG_STATE, "amp_initialize", amp_scale_loss_begin(&rig.net.optimizer, NULL, &scaled));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_scale_loss_begin(NULL, NULL, &scaled));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_scale_loss_begin_many(NULL, NULL, 0, 0, 0, NULL, &scaled));
}

DIFFERENCE_TIMES(a_step_inside_the_bracket_is_refused, 2) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    RIG_START(rig, AMP_O2, 0);
    ck_ok(amp_scale_loss_begin(&rig.net.optimizer, NULL, &scaled));
    if (_i) {
        ck_refused(AMP_ERR_WRONG_STATE, "bracket", amp_step_begin(&rig.net.optimizer, &info));
        ck_ok(amp_scale_loss_end(&scaled));
    } else {
        ck_assert_int_eq(net_step(&rig.net), 0);
        ck_assert_int_eq(rig.net.steps, 0);
        ck_refused(AMP_ERR_WRONG_STATE, "bracket", amp_scale_loss_end(&scaled));
        ck_assert_int_eq(scaled.action, AMP_SKIP);
    }
    ck_dtype(rig.net.weight, AMP_FLOAT16);
}

TEST_TIMES(begin_is_undone_when_a_hook_fails, 4) { /* each of the three parameters has a gradient to set aside */
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    RIG_START(rig, AMP_O1, 0);
    net_backward(&rig.net, 0.5, 1.0);
    OWN_TENSOR *loss = rig_tensor(&rig, AMP_FLOAT16, 1.0);
    const struct world before = world_of(&rig);
    fake_fail(&rig.host, _i < 3 ? FAKE_SET_GRAD : FAKE_SCALE, (uint64_t)(_i % 3) + 1);
    ck_fails(AMP_ERR_HOST_FAILED, amp_scale_loss_begin(&rig.net.optimizer, loss, &scaled));
    ck_says(_i < 3 ? "set_grad" : "scale");
    world_check(&before, &rig);
    ck_ok(amp_scale_loss_begin(&rig.net.optimizer, loss, &scaled));
    ck_ok(amp_scale_loss_end(&scaled));
}

/* ---- NULLs and sizes of the rest ---- */

TEST(null_arguments_are_refused) {
    size_t count;
    amp_dtype target;
    amp_scope scope;
    amp_record record = AMP_RECORD_INIT;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    amp_class op_class;
    amp_model unnamed = AMP_MODEL_INIT;
    unnamed.n_ops = 1;
    RIG_START(rig, AMP_O1, 0);
    const amp_status statuses[] = {
        amp_get_op_stats(NULL, NULL, 0, &count), amp_get_op_stats(rig.context, NULL, 1, &count),
        amp_get_op_stats(rig.context, NULL, 0, NULL), amp_get_record(NULL, 0, &record),
        amp_get_record(rig.context, 0, NULL), amp_get_record(rig.context, 1, &record),
        amp_explain(NULL, NULL, NULL, 0, &count), amp_explain(rig.context, NULL, NULL, 8, &count), amp_check(NULL),
        amp_op_target(NULL, "add", NULL, 0, &target), amp_op_target(rig.context, NULL, NULL, 0, &target),
        amp_op_target(rig.context, "add", NULL, 1, &target), amp_op_target(rig.context, "add", NULL, 0, NULL),
        amp_cast_args(NULL, "add", NULL, 0, &frame), amp_cast_args(rig.context, "add", NULL, 1, &frame),
        amp_cast_args(rig.context, "add", NULL, 0, NULL), amp_cast_done(NULL), amp_tape_done(NULL),
        amp_cache_clear(NULL), amp_scope_enter(rig.context, NULL), amp_scope_leave(NULL), amp_scope_capture(NULL),
        amp_scope_adopt(NULL, &scope), amp_master_params(NULL, NULL, 0, &count),
        amp_master_params(&rig.net.optimizer, NULL, 1, &count), amp_master_params(&rig.net.optimizer, NULL, 0, NULL),
        amp_clip_grad_norm(NULL, 1.0f, NULL), amp_masters_reconcile(NULL), amp_masters_write_back(NULL),
        amp_step_begin(&rig.net.optimizer, NULL),
        amp_register(NULL, "add", AMP_FP32), amp_register(&unnamed, NULL, AMP_FP32),
        amp_register(&unnamed, "add", AMP_FP32), amp_level_from_name(NULL, NULL),
        amp_get_findings(NULL, NULL, 0, &count), amp_get_findings(rig.context, NULL, 0, NULL),
        amp_get_findings(rig.context, NULL, 1, &count), amp_health(NULL, NULL, 0, &count),
        amp_health(rig.context, NULL, 8, &count), amp_op_class(rig.context, "add", NULL),
        amp_op_class(rig.context, NULL, &op_class),
        amp_class_target(rig.context, "add", AMP_LOWER, AMP_DTYPE_DEFAULT, NULL, 1, &target),
        amp_class_target(rig.context, "add", AMP_LOWER, AMP_DTYPE_DEFAULT, NULL, 0, NULL),
        amp_class_target(NULL, "add", AMP_LOWER, AMP_DTYPE_DEFAULT, NULL, 0, &target),
        amp_get_list_ops(AMP_LISTS_APEX, NULL, 0, NULL), amp_get_list_ops(AMP_LISTS_APEX, NULL, 1, &count),
        amp_get_list_ops(-1, NULL, 0, &count),
        amp_get_gate_rows(NULL, 0, NULL), amp_get_gate_rows(NULL, 1, &count),
        amp_cast_to(NULL, AMP_FLOAT16, NULL, 0, &frame), amp_verify_step(NULL, NULL, NULL),
        amp_verify_step(rig.context, NULL, NULL),
    };
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        ck_assert_msg(statuses[i] == AMP_ERR_INVALID_ARGUMENT, "call %zu: %s", i, amp_status_name(statuses[i]));
}

TEST(every_status_has_a_name_and_a_text) {
#define STATUS_ROW(name, value, text) name,
    static const amp_status all[] = { AMP_STATUS_MAP(STATUS_ROW) };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ck_assert_msg(strncmp(amp_status_name(all[i]), "AMP_", 4) == 0, "%d", (int)all[i]);
        ck_assert_uint_gt(strlen(amp_status_text(all[i])), 5);
        for (size_t j = 0; j < i; j++) ck_assert_str_ne(amp_status_text(all[i]), amp_status_text(all[j]));
    }
    ck_assert_str_eq(amp_status_text((amp_status)-9999), amp_status_text((amp_status)9999)); /* there is no such one */
}

TEST(structures_without_a_size_are_refused) {
    size_t count;
    amp_op_stats stats = { .struct_size = 0 };
    amp_master master = { .struct_size = 4 };
    amp_record record = { .struct_size = 0 };
    amp_cast_frame frame = { .struct_size = 0 };
    amp_step_info info = { .struct_size = 8 };
    amp_scaled_loss scaled = { .struct_size = 0 };
    amp_finding finding = { .struct_size = 4 };
    amp_list_op listed = { .struct_size = 0 };
    amp_gate_row row = { .struct_size = 0 };
    amp_op op = { .struct_size = 0 };
    amp_model model = { .struct_size = 0 }, of_ops = AMP_MODEL_INIT;
    of_ops.ops = &op, of_ops.n_ops = 1;
    RIG_START(rig, AMP_O1, 0);
    const amp_status statuses[] = { amp_get_op_stats(rig.context, &stats, 1, &count),
                                    amp_get_findings(rig.context, &finding, 1, &count),
                                    amp_get_list_ops(AMP_LISTS_APEX, &listed, 1, &count),
                                    amp_get_gate_rows(&row, 1, &count),
                                    amp_register(&model, "add", AMP_FP32), amp_register(&of_ops, "add", AMP_FP32),
                                    amp_cast_done(&frame),
                                    amp_master_params(&rig.net.optimizer, &master, 1, &count),
                                    amp_get_record(rig.context, 0, &record),
                                    amp_cast_args(rig.context, "add", NULL, 0, &frame),
                                    amp_step_begin(&rig.net.optimizer, &info),
                                    fake_begin(&rig.net.optimizer, NULL, &scaled) };
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        ck_assert_msg(statuses[i] == AMP_ERR_ABI_MISMATCH, "call %zu: %s", i, amp_status_name(statuses[i]));
    ck_says("struct_size");
    ck_assert_int_eq(net_step(&rig.net), 1); /* no step and no bracket was left open */
}
