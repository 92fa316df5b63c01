/* SPDX-License-Identifier: Apache-2.0 */
/* amp_pack and amp_device_pack, with the count of their bytes. */
#include "amp_device.h"
#include "context/live.h"
#include "context/parts.h"
#include "context/progress.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

static amp_status read_pack_args(const amp_pack_args *args, amp_pack_args *a) {
    AMP_RETURN_IF(!args, AMP_ERR_INVALID_ARGUMENT, "args is NULL");
    AMP_TRY(amp__copy_struct(a, sizeof *a, sizeof *a, args, args->struct_size, "amp_pack_args"));
    AMP_RETURN_IF(a->context && !amp__context_is_live(a->context), AMP_ERR_INVALID_ARGUMENT,
                  "amp_pack: there is no such context: was it shut down?");
    return AMP_OK;
}

static void count_packed(const amp_pack_args *a) {
    if (!a->context) return;
    struct amp__packed *packed = &amp__progress_of(a->context)->packed;
    const uint64_t from = a->src.size * amp__dtype_size(a->src.dtype);
    atomic_fetch_add_explicit(&packed->from, from, memory_order_relaxed);
    atomic_fetch_add_explicit(&packed->to, amp_pack_bytes(a->src.size, a->bits), memory_order_relaxed);
}

AMP_API amp_status amp_pack(const amp_pack_args *args) {
    amp_pack_args a;
    AMP_TRY(read_pack_args(args, &a));
    AMP_TRY(amp__pack(&a));
    count_packed(&a);
    return AMP_OK;
}

AMP_API amp_status amp_device_pack(amp_device_list *list, void *stream, const amp_pack_args *args) {
    amp_pack_args a;
    AMP_TRY(read_pack_args(args, &a));
    AMP_TRY(amp__device_pack(list, stream, &a));
    count_packed(&a);
    return AMP_OK;
}
