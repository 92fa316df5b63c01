/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a loss. Where its scaler lives on a device, that is asked. */
#include "amp_diagnostics.h"
#include "bracket/bracket.h"
#include "bracket/home.h"
#include "context/context.h"
#include "context/report.h"

AMP_API amp_status amp_get_record(amp_context *context, uint32_t loss_id, amp_record *record) {
    AMP_RETURN_IF(!context || !record, AMP_ERR_INVALID_ARGUMENT, "amp_get_record: an argument is NULL");
    AMP_RETURN_IF(loss_id >= context->properties.num_losses, AMP_ERR_INVALID_ARGUMENT,
                  "amp_get_record: loss_id %u is out of range: amp_config.num_losses is %u", (unsigned)loss_id,
                  (unsigned)context->properties.num_losses);
    AMP_TRY(context->brackets[loss_id].home->read(&context->brackets[loss_id]));
    return amp__fill_struct(record, record->struct_size, sizeof *record, &context->brackets[loss_id].record,
                            sizeof *record, "amp_record");
}

AMP_API amp_status amp_check(amp_context *context) {
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT, "amp_check: context is NULL");
    AMP_TRY(amp__take_error(context));
    AMP_TRY(amp__home_read_all(context));
    for (uint32_t i = 0; context->device_skips && i < context->properties.num_losses; i++)
        AMP_TRY(amp__bracket_check_skips(&context->brackets[i], true));
    return AMP_OK;
}
