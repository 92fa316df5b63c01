/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of libamp as one table, for hosts that dlopen it.
 */
#ifndef AMP_API_H
#define AMP_API_H

#include "amp_call.h"
#include "amp_diagnostics.h"
#include "amp_gate.h"
#include "amp_observe.h"
#include "amp_raw.h"
#include "amp_state.h"
#include "amp_train.h"

#ifdef __cplusplus
extern "C" {
#endif

#define AMP_API_VERSION 1 /* version of the table of amp_get_api */

struct amp_optim; /* amp_optim.h */

/* The functions of amp.h, amp_types.h and the headers above, and those of the fused optimizers in amp_optim.h, by name.
 * Append-only: a member never moves. */
typedef struct amp_api {
    uint32_t struct_size;
    uint32_t version; /* AMP_API_VERSION of the loaded library */
    const char *(*status_name)(amp_status);
    const char *(*status_text)(amp_status);
    const char *(*last_error)(void);
    const char *(*library_version)(void);
    amp_status (*level_from_name)(const char *, amp_level *);
    amp_status (*register_op)(amp_model *, const char *, amp_class);
    amp_status (*initialize)(amp_model *, amp_optimizer *, amp_level);
    amp_status (*initialize_many)(amp_model *const *, size_t, amp_optimizer *const *, size_t, const amp_config *,
                                  amp_context **);
    amp_status (*shutdown)(amp_context *);
    amp_status (*scale_loss_begin)(amp_optimizer *, void *, amp_scaled_loss *);
    amp_status (*scale_loss_begin_many)(amp_context *, amp_optimizer *const *, size_t, uint32_t, uint32_t, void *,
                                        amp_scaled_loss *);
    amp_status (*scale_loss_end)(amp_scaled_loss *);
    amp_status (*scale_loss_cancel)(amp_scaled_loss *);
    amp_status (*step_begin)(amp_optimizer *, amp_step_info *);
    amp_status (*step_end)(amp_optimizer *);
    amp_status (*op_target)(amp_context *, const char *, const amp_dtype *, size_t, amp_dtype *);
    amp_status (*cast_args)(amp_context *, const char *, void **, size_t, amp_cast_frame *);
    amp_status (*cast_done)(amp_cast_frame *);
    amp_status (*tape_done)(amp_context *);
    amp_status (*cache_clear)(amp_context *);
    amp_status (*scope_enter)(amp_context *, amp_scope *);
    amp_status (*scope_leave)(amp_scope *);
    amp_status (*scope_capture)(amp_scope *);
    amp_status (*scope_adopt)(const amp_scope *, amp_scope *);
    amp_status (*master_params)(amp_optimizer *, amp_master *, size_t, size_t *);
    amp_status (*clip_grad_norm)(amp_optimizer *, float, float *);
    amp_status (*masters_reconcile)(amp_context *);
    amp_status (*get_op_stats)(amp_context *, amp_op_stats *, size_t, size_t *);
    amp_status (*get_record)(amp_context *, uint32_t, amp_record *);
    amp_status (*explain)(amp_context *, const char *, char *, size_t, size_t *);
    amp_status (*check)(amp_context *);
    amp_status (*clip_grad_value)(amp_optimizer *, float);
    amp_status (*add_params)(amp_optimizer *, const amp_param *, size_t);
    amp_status (*scale)(amp_context *, uint32_t, void *, void **);
    amp_status (*unscale)(amp_context *, uint32_t, void *const *, size_t, float *);
    amp_status (*state_save)(amp_context *, const char *, amp_state_format);
    amp_status (*state_save_memory)(amp_context *, amp_state_format, void *, size_t, size_t *);
    amp_status (*state_load)(amp_context *, const char *);
    amp_status (*state_load_memory)(amp_context *, const void *, size_t);
    const amp_host *(*buffer_host)(void);
    amp_status (*wrap_table)(amp_context *, const void *, size_t, void *);
    amp_status (*fused_step)(amp_optimizer *, amp_action *);
    amp_status (*fused_zero_grad)(amp_optimizer *);
    amp_status (*fused_get)(amp_optimizer *, size_t, struct amp_optim *);
    amp_status (*fused_set)(amp_optimizer *, size_t, const struct amp_optim *);
    amp_status (*gate_set)(amp_context *, const char *, uint64_t);
    amp_status (*gate_measure)(amp_context *, amp_clock, void *);
    amp_status (*op_class)(amp_context *, const char *, amp_class *);
    amp_status (*class_target)(amp_context *, const char *, amp_class, amp_dtype, const amp_dtype *, size_t,
                               amp_dtype *);
    amp_status (*cast_to)(amp_context *, amp_dtype, void **, size_t, amp_cast_frame *);
    amp_status (*get_list_ops)(int32_t, amp_list_op *, size_t, size_t *);
    int32_t (*scope_current)(amp_context **);
    amp_status (*config_resolve)(const amp_config *, amp_config *);
    amp_status (*masters_write_back)(amp_context *);
    float (*seed_factor)(const amp_scaled_loss *);
    amp_status (*get_findings)(amp_context *, amp_finding *, size_t, size_t *);
    amp_status (*health)(amp_context *, char *, size_t, size_t *);
    amp_status (*verify_step)(amp_context *, amp_run, void *);
    amp_status (*observe)(amp_context *, const amp_observe_options *);
    amp_status (*observe_stop)(amp_context *);
    amp_status (*get_observations)(amp_context *, amp_observation *, size_t, size_t *);
    amp_status (*get_culprit)(amp_context *, amp_culprit *);
    amp_status (*survey)(amp_context *, amp_survey_result *);
    int32_t (*is_observing)(const amp_context *);
    amp_status (*observe_call)(amp_context *, const amp_observed_call *);
    amp_status (*get_memory)(amp_context *, amp_memory *);
    amp_status (*predict_memory)(amp_context *, amp_level, amp_memory *);
    amp_status (*state_load_parts)(amp_context *, const char *const *, size_t);
    amp_status (*weights_release)(amp_context *, uint64_t *);
    amp_status (*weights_restore)(amp_context *);
    amp_status (*get_config)(amp_context *, amp_config *);
    amp_status (*get_gate_rows)(amp_gate_row *, size_t, size_t *);
    amp_status (*observe_loss)(amp_context *, uint32_t, double);
    amp_status (*observe_remark)(amp_context *, const char *, const char *);
    amp_status (*observe_moments)(amp_context *, uint64_t, uint64_t);
} amp_api;

/* Returns the table for hosts compiled with AMP_API_VERSION `version`. It is static and never freed. NULL: this libamp
 * is too old or too new, as amp_last_error says. */
AMP_API const amp_api *amp_get_api(uint32_t version);

#ifdef __cplusplus
}
#endif

#endif /* AMP_API_H */
