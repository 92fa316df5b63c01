/* SPDX-License-Identifier: Apache-2.0 */
/* The table for hosts that dlopen. Append-only: the asserts below keep members where they were. */
#include "amp_api.h"
#include "amp_optim.h"
#include "common/common.h"

static const amp_api table = {
    .struct_size = sizeof(amp_api),
    .version = AMP_API_VERSION,
    .status_name = amp_status_name,
    .status_text = amp_status_text,
    .last_error = amp_last_error,
    .library_version = amp_version,
    .level_from_name = amp_level_from_name,
    .register_op = amp_register,
    .initialize = amp_initialize,
    .initialize_many = amp_initialize_many,
    .shutdown = amp_shutdown,
    .scale_loss_begin = amp_scale_loss_begin,
    .scale_loss_begin_many = amp_scale_loss_begin_many,
    .scale_loss_end = amp_scale_loss_end,
    .scale_loss_cancel = amp_scale_loss_cancel,
    .step_begin = amp_step_begin,
    .step_end = amp_step_end,
    .op_target = amp_op_target,
    .cast_args = amp_cast_args,
    .cast_done = amp_cast_done,
    .tape_done = amp_tape_done,
    .cache_clear = amp_cache_clear,
    .scope_enter = amp_scope_enter,
    .scope_leave = amp_scope_leave,
    .scope_capture = amp_scope_capture,
    .scope_adopt = amp_scope_adopt,
    .master_params = amp_master_params,
    .clip_grad_norm = amp_clip_grad_norm,
    .masters_reconcile = amp_masters_reconcile,
    .get_op_stats = amp_get_op_stats,
    .get_record = amp_get_record,
    .explain = amp_explain,
    .check = amp_check,
    .clip_grad_value = amp_clip_grad_value,
    .add_params = amp_add_params,
    .scale = amp_scale,
    .unscale = amp_unscale,
    .state_save = amp_state_save,
    .state_save_memory = amp_state_save_memory,
    .state_load = amp_state_load,
    .state_load_memory = amp_state_load_memory,
    .state_load_parts = amp_state_load_parts,
    .buffer_host = amp_buffer_host,
    .wrap_table = amp_wrap_table,
    .fused_step = amp_fused_step,
    .fused_zero_grad = amp_fused_zero_grad,
    .fused_get = amp_fused_get,
    .fused_set = amp_fused_set,
    .gate_set = amp_gate_set,
    .gate_measure = amp_gate_measure,
    .op_class = amp_op_class,
    .class_target = amp_class_target,
    .cast_to = amp_cast_to,
    .get_list_ops = amp_get_list_ops,
    .scope_current = amp_scope_current,
    .config_resolve = amp_config_resolve,
    .masters_write_back = amp_masters_write_back,
    .seed_factor = amp_seed_factor,
    .get_findings = amp_get_findings,
    .health = amp_health,
    .verify_step = amp_verify_step,
    .observe = amp_observe,
    .observe_stop = amp_observe_stop,
    .get_observations = amp_get_observations,
    .get_culprit = amp_get_culprit,
    .survey = amp_survey,
    .is_observing = amp_is_observing,
    .observe_call = amp_observe_call,
    .get_memory = amp_get_memory,
    .predict_memory = amp_predict_memory,
    .weights_release = amp_weights_release,
    .weights_restore = amp_weights_restore,
    .get_config = amp_get_config,
    .get_gate_rows = amp_get_gate_rows,
    .observe_loss = amp_observe_loss,
    .observe_remark = amp_observe_remark,
    .observe_moments = amp_observe_moments,
};

#define MEMBER_AT(member, slot) \
    _Static_assert(offsetof(amp_api, member) == 8 + (slot) * sizeof(void *), "amp_api." #member " moved")
MEMBER_AT(status_name, 0);
MEMBER_AT(initialize, 6);
MEMBER_AT(scale_loss_begin, 9);
MEMBER_AT(op_target, 15);
MEMBER_AT(master_params, 24);
MEMBER_AT(check, 30);

AMP_API const amp_api *amp_get_api(uint32_t version) {
    if (version >= 1 && version <= AMP_API_VERSION) return &table;
    (void)amp__fail(AMP_ERR_ABI_MISMATCH,
                    version
                        ? "amp_get_api: this libamp (%s) is too old: it has version %d of the table, %u was asked for"
                        : "amp_get_api: this libamp (%s) has version %d of the table; there is no version %u",
                    amp_version(), AMP_API_VERSION, (unsigned)version);
    return NULL;
}
