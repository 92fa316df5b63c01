/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a loss, read from the device if its scaler is there. */
#include "amp_diagnostics.h"
#include "bracket/bracket.h"
#include "bracket/home.h"
#include "context/brackets.h"
#include "context/devices.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/report.h"

AMP_API amp_status amp_get_record(amp_context *context, uint32_t loss_id, amp_record *record) {
    AMP_RETURN_IF(!context || !record, AMP_ERR_INVALID_ARGUMENT, "amp_get_record: an argument is NULL");
    struct amp__brackets *brackets = amp__brackets_of(context);
    AMP_RETURN_IF(loss_id >= brackets->n, AMP_ERR_INVALID_ARGUMENT,
                  "amp_get_record: loss_id %u is out of range: amp_config.num_losses is %u", (unsigned)loss_id,
                  (unsigned)brackets->n);
    struct amp__bracket *bracket = &brackets->list[loss_id];
    AMP_TRY(bracket->home->read(bracket));
    amp_record now = bracket->record;
    now.hysteresis_left = bracket->scaler.hysteresis_left;
    now.next_scale = bracket->scaler.next_scale;
    now.clean_run = bracket->scaler.clean_run;
    return amp__fill_struct(record, record->struct_size, sizeof *record, &now, sizeof now, "amp_record");
}

AMP_API amp_status amp_check(amp_context *context) {
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT, "amp_check: context is NULL");
    const struct amp__devices *devices = amp__devices_of(context);
    struct amp__brackets *brackets = amp__brackets_of(context);
    AMP_TRY(amp__take_error(context));
    AMP_TRY(amp__home_read_all(context));
    for (uint32_t i = 0; devices->skips && i < brackets->n; i++)
        AMP_TRY(amp__bracket_check_skips(&brackets->list[i], true));
    return AMP_OK;
}
