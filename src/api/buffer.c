/* SPDX-License-Identifier: Apache-2.0 */
/* amp_buffer: a ready-made handle for raw memory, so that hosts without tensors write no hooks. */
#include "amp_raw.h"
#include "context/addresses.h"
#include "context/live.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/progress.h"
#include "raw/raw.h"

enum { DL_CPU = 1, DL_FLOAT = 2, DL_BFLOAT = 4 };

static amp_status view(void *self, void *tensor, amp_tensor_view *out) {
    amp_buffer *buffer = tensor;
    (void)self;
    AMP_RETURN_IF(buffer->struct_size < sizeof *buffer, AMP_ERR_ABI_MISMATCH,
                  "amp_buffer.struct_size is %u: start from AMP_BUFFER_INIT", (unsigned)buffer->struct_size);
    AMP_RETURN_IF(!amp__is_floating(buffer->dtype), AMP_ERR_INVALID_ARGUMENT,
                  "amp_buffer.dtype is %d: use a floating type", (int)buffer->dtype);
    out->data = buffer->data;
    out->device.type = DL_CPU;
    out->ndim = 1;
    out->shape = &buffer->size;
    out->dtype.code = buffer->dtype == AMP_BFLOAT16 ? DL_BFLOAT : DL_FLOAT;
    out->dtype.bits = (uint8_t)(8 * amp__dtype_size(buffer->dtype));
    out->dtype.lanes = 1;
    return AMP_OK;
}

static amp_dtype dtype(void *self, void *tensor) {
    (void)self;
    return ((const amp_buffer *)tensor)->dtype;
}

static uint64_t id(void *self, void *tensor) {
    (void)self;
    return (uint64_t)(uintptr_t)((const amp_buffer *)tensor)->data;
}

static amp_status grad(void *self, void *tensor, void **out) {
    (void)self;
    *out = ((const amp_buffer *)tensor)->grad;
    return AMP_OK;
}

static const amp_host buffer_host = {
    .struct_size = sizeof(amp_host),
    .view = view,
    .dtype = dtype,
    .id = id,
    .grad = grad,
};

AMP_API const amp_host *amp_buffer_host(void) { return &buffer_host; }

/* ---- unused FP32 blocks ---- */

static amp_status check_idle(const amp_context *context, const char *who) {
    AMP_RETURN_IF(!context || !amp__context_is_live(context), AMP_ERR_INVALID_ARGUMENT,
                  "%s: there is no such context: was it shut down?", who);
    struct amp__progress *progress = amp__progress_of(context);
    AMP_RETURN_IF(progress->verifying || progress->open, AMP_ERR_WRONG_STATE,
                  "%s inside a bracket, or inside amp_verify_step", who);
    return AMP_OK;
}

AMP_API amp_status amp_weights_release(amp_context *context, uint64_t *bytes) {
    uint64_t ignored, *given = bytes ? bytes : &ignored;
    AMP_TRY(check_idle(context, "amp_weights_release"));
    const struct amp__policy *policy = amp__policy_of(context);
    AMP_RETURN_IF(amp__addresses_of(context)->released, AMP_ERR_WRONG_STATE,
                  "amp_weights_release: they are released already");
    AMP_RETURN_IF(amp__optimizers_of(context)->n, AMP_ERR_WRONG_STATE,
                  "amp_weights_release: optimizer 0 may update FP32 blocks: it is for inference, in a context "
                  "without optimizers");
    AMP_RETURN_IF(!policy->keeps_blocks, AMP_ERR_WRONG_STATE,
                  "amp_weights_release: level %s makes no 16-bit copies that could replace the host's FP32 blocks: use "
                  "O2, O3 or O5, without emulate, and a host without the hook "
                  "swap_data", amp__level_name(policy->properties.level));
    *given = 0;
    return amp__weights_release(context, given);
}

AMP_API amp_status amp_weights_restore(amp_context *context) {
    AMP_TRY(check_idle(context, "amp_weights_restore"));
    return amp__weights_restore(context);
}
