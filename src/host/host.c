/* SPDX-License-Identifier: Apache-2.0 */
#include "amp_raw.h"
#include "amp_serve.h"
#include "host/host.h"

#include "common/thread.h"

#include <string.h>

enum { DL_CPU = 1, DL_CUDA = 2, DL_OPAQUE = 3, DL_COMPLEX = 5, DL_FIRST_FP8 = 7, DL_CUDA_HOST = 3 };

amp_status amp__host_copy(amp_host *host, const amp_host *given, const char *what) {
    AMP_RETURN_IF(!given, AMP_ERR_INVALID_ARGUMENT, "%s.host is NULL: describe the host's hooks with an amp_host",
                  what);
    amp_status status = amp__copy_struct(host, sizeof *host, sizeof(amp_host), given, given->struct_size, "amp_host");
    if (status != AMP_OK) return amp__fail_prefix(status, "%s.host", what);
    const uint32_t known =
        AMP_HOST_TAPE_RETAINS_INPUTS | AMP_HOST_SEEDS_ON_DEVICE | AMP_HOST_VERSION_MISSES_WRITES | AMP_HOST_IS_PYTHON;
    AMP_RETURN_IF(host->flags & ~known, AMP_ERR_INVALID_ARGUMENT,
                  "%s.host.flags has bits that this libamp does not know: 0x%x", what, (unsigned)host->flags);
    AMP_RETURN_IF(!host->alloc != !host->free, AMP_ERR_INVALID_ARGUMENT,
                  "%s.host has only one of the hooks alloc and free: give both or neither", what);
    return AMP_OK;
}

amp_status amp__host_need(bool present, const char *hook, const char *who, const char *advice) {
    AMP_RETURN_IF(!present, AMP_ERR_MISSING_HOOK, "%s needs the hook %s of amp_host: %s", who, hook, advice);
    return AMP_OK;
}

/*
 * Hooks may use the host's own ops, which then run as they come: while a hook that can is running, the thread counts as
 * inside an op. (view, dtype, id and version only read.)
 */
static bool enter_hook(void) {
    struct amp__thread *thread = amp__thread_state();
    const bool was_inside = thread->scope.inside;
    thread->scope.inside = true;
    return was_inside;
}

/* A hook of a C++ host may throw. */
static void leave_hook(const bool *was_inside) { amp__thread_state()->scope.inside = *was_inside; }

struct amp__hooks amp__hooks_enter(void) {
    bool *inside = &amp__thread_state()->scope.inside;
    const struct amp__hooks hooks = { inside, *inside };
    *inside = true;
    return hooks;
}

/* Returns the status of the host with a message about the hook. */
amp_status amp__hook_failed(amp_status status, const char *hook, const char *name) {
    return amp__fail(status < 0 ? status : AMP_ERR_HOST_FAILED, "the host's hook %s failed%s%s (status %d)", hook,
                     name ? " on " : "", name ? name : "", (int)status);
}

static amp_status check_view(const amp_tensor_view *view, const char *name) {
    const unsigned code = view->dtype.code, bits = view->dtype.bits;
    AMP_RETURN_IF(code == DL_COMPLEX, AMP_ERR_UNSUPPORTED, "%s is complex: mixed precision is for real numbers", name);
    AMP_RETURN_IF(code >= DL_FIRST_FP8 || (code == 2 && bits == 8), AMP_ERR_UNSUPPORTED,
                  "%s has an 8-bit floating type or smaller, which no level handles", name);
    AMP_RETURN_IF(code == DL_OPAQUE || bits == 0, AMP_ERR_UNSUPPORTED,
                  "%s has no element type that libamp knows (DLPack code %u, %u bit%s): the view hook must fill dtype",
                  name, code, bits, AMP__S(bits));
    const int32_t device = view->device.type; /* 0: a host that left it out means its only memory, the CPU's */
    AMP_RETURN_IF(device != 0 && device != DL_CPU && device != DL_CUDA_HOST && device != DL_CUDA &&
                      device != AMP_DEVICE_SERVED, AMP_ERR_BACKEND,
                  "%s lies on device type %d; this libamp works on the CPU's memory, on CUDA's, and on devices that "
                  "amp_serve.h serves", name, (int)device);
    return AMP_OK;
}

amp_status amp__host_judge(const amp_tensor_view *view, const char *name, struct amp__elements *out) {
    AMP_TRY(check_view(view, name));
    uint64_t size;
    const amp_status sized = amp__view_size(view, &size);
    if (sized != AMP_OK) return amp__fail_prefix(sized, "%s", name);
    const bool compact = amp__view_is_compact(view);
    AMP_RETURN_IF(!compact && !amp__strides_apart(view->ndim, view->shape, view->strides), AMP_ERR_UNSUPPORTED,
                  "%s has elements that overlap in memory (a stride of 0, or too small: an expanded tensor): make it "
                  "contiguous", name);
    const amp_dtype dtype = amp__view_dtype(view);
    void *data = amp__view_data(view);
    const size_t alignment = amp__dtype_size(dtype);
    AMP_RETURN_IF(alignment && size && (uintptr_t)data % alignment, AMP_ERR_INVALID_ARGUMENT,
                  "%s is misaligned: %s elements at %p", name, amp__dtype_name(dtype), data);
    const amp_device device = { view->device.type ? view->device.type : DL_CPU, view->device.id };
    *out = (struct amp__elements){ data, size, dtype, device, view->ndim, view->shape, compact ? NULL : view->strides };
    return AMP_OK;
}

/* *below: the bits that are 0 in the address of an element. */
static inline amp_dtype plain_type(const amp_tensor_view *view, uintptr_t *below) {
    *below = view->dtype.bits == 32 ? 3 : 1;
    if (view->dtype.lanes > 1) return AMP_DTYPE_OTHER;
    if (view->dtype.code == 4) return view->dtype.bits == 16 ? AMP_BFLOAT16 : AMP_DTYPE_OTHER;
    if (view->dtype.code != 2) return AMP_DTYPE_OTHER;
    return view->dtype.bits == 32 ? AMP_FLOAT32 : view->dtype.bits == 16 ? AMP_FLOAT16 : AMP_DTYPE_OTHER;
}

bool amp__view_is_plain(const amp_tensor_view *view, amp_span *span) {
    uintptr_t below;
    const amp_dtype dtype = plain_type(view, &below);
    const uintptr_t data = (uintptr_t)view->data + (uintptr_t)view->byte_offset;
    if (dtype == AMP_DTYPE_OTHER || (uint32_t)view->device.type > DL_CPU || !view->data || data & below ||
        (uint32_t)view->ndim > 8 || !view->shape)
        return false;
    int64_t size = 1;
    for (int32_t i = view->ndim; i--;) {
        const int64_t extent = view->shape[i];
        if (extent <= 0 || (view->strides && view->strides[i] != size && extent != 1)) return false;
        if (__builtin_mul_overflow(size, extent, &size) || size > INT64_MAX / 8) return false;
    }
    *span = (amp_span){ (void *)data, (uint64_t)size, dtype, 0 };
    return true;
}

amp_status amp__host_view(const amp_host *host, void *tensor, const char *name, amp_tensor_view *view) {
    memset(view, 0, sizeof *view);
    AMP_RETURN_IF(!tensor, AMP_ERR_INVALID_ARGUMENT, "%s is NULL", name);
    if (!host->view) return amp__host_need(false, "view", name, "libamp must see its elements");
    const amp_status status = host->view(host->self, tensor, view);
    if (__builtin_expect(status == AMP_OK, 1)) return AMP_OK;
    return host->view == amp_buffer_host()->view ? amp__fail_prefix(status, "%s", name)
                                                 : amp__hook_failed(status, "view", name);
}

amp_status amp__host_find(const amp_host *host, void *tensor, const char *name, struct amp__elements *out) {
    amp_tensor_view view;
    AMP_TRY(amp__host_view(host, tensor, name, &view));
    return amp__host_judge(&view, name, out);
}

/* Refuses elements on a device, for callers that cannot handle them. */
static amp_status judge_here(const amp_tensor_view *view, const char *name, struct amp__elements *out) {
    struct amp__elements now;
    AMP_TRY(amp__host_judge(view, name, &now));
    AMP_RETURN_IF(now.device.type == DL_CUDA || now.device.type == AMP_DEVICE_SERVED, AMP_ERR_UNSUPPORTED,
                  "%s lies in the memory of %s device %d, and must be in the CPU's here", name,
                  now.device.type == DL_CUDA ? "CUDA" : "served", (int)now.device.id);
    *out = now;
    return AMP_OK;
}

amp_status amp__host_layout(const amp_host *host, void *tensor, const char *name, struct amp__elements *out) {
    amp_tensor_view view;
    amp_span plain;
    AMP_TRY(amp__host_view(host, tensor, name, &view));
    if (!amp__view_is_plain(&view, &plain)) return judge_here(&view, name, out);
    *out = (struct amp__elements){ plain.data, plain.size, plain.dtype, { DL_CPU, view.device.id },
                                   view.ndim,  view.shape, NULL };
    return AMP_OK;
}

amp_status amp__host_elements(const amp_host *host, void *tensor, const char *name, struct amp__elements *out) {
    struct amp__elements now;
    AMP_TRY(amp__host_layout(host, tensor, name, &now));
    AMP_RETURN_IF(now.strides, AMP_ERR_UNSUPPORTED,
                  "%s is not one compact block (its strides leave gaps or permute): make it contiguous, or lay it out "
                  "so before amp_initialize", name);
    *out = now;
    return AMP_OK;
}

amp_dtype amp__host_viewed_dtype(const amp_host *host, void *tensor) {
    amp_tensor_view view;
    memset(&view, 0, sizeof view);
    if (!host->view || host->view(host->self, tensor, &view) != AMP_OK) return AMP_DTYPE_OTHER;
    return amp__view_dtype(&view);
}

amp_status amp__host_cast(const amp_host *host, void *tensor, amp_dtype to, void **out) {
    void *result = NULL;
    AMP_TRY(amp__host_need(host->cast != NULL, "cast", "a cast", "without it only the scaler works"));
    AMP_CLEANUP(leave_hook) const bool was_inside = enter_hook();
    const amp_status status = host->cast(host->self, tensor, to, &result);
    if (status != AMP_OK) return amp__hook_failed(status, "cast", NULL);
    AMP_RETURN_IF(!result, AMP_ERR_HOST_FAILED, "the host's hook cast said AMP_OK but returned no tensor");
    *out = result;
    return AMP_OK;
}

amp_status amp__host_scale(const amp_host *host, void *loss, float factor, void **out) {
    void *result = NULL;
    AMP_CLEANUP(leave_hook) const bool was_inside = enter_hook();
    const amp_status status = host->scale(host->self, loss, factor, &result);
    if (status != AMP_OK) return amp__hook_failed(status, "scale", "the loss");
    AMP_RETURN_IF(!result, AMP_ERR_HOST_FAILED, "the host's hook scale said AMP_OK but returned no tensor");
    *out = result;
    return AMP_OK;
}

amp_status amp__host_grad(const amp_host *host, void *tensor, const char *name, void **grad) {
    void *result = NULL;
    AMP_CLEANUP(leave_hook) const bool was_inside = enter_hook();
    const amp_status status = host->grad(host->self, tensor, &result);
    if (status != AMP_OK) return amp__hook_failed(status, "grad", name);
    *grad = result;
    return AMP_OK;
}

amp_status amp__host_scale_by(const amp_host *host, void *loss, const float *factor, void **out) {
    void *result = NULL;
    AMP_CLEANUP(leave_hook) const bool was_inside = enter_hook();
    const amp_status status = host->scale_by(host->self, loss, factor, &result);
    if (status != AMP_OK) return amp__hook_failed(status, "scale_by", "the loss");
    AMP_RETURN_IF(!result, AMP_ERR_HOST_FAILED, "the host's hook scale_by said AMP_OK but returned no tensor");
    *out = result;
    return AMP_OK;
}

amp_status amp__host_set_grad(const amp_host *host, void *tensor, const char *name, void *grad) {
    AMP_CLEANUP(leave_hook) const bool was_inside = enter_hook();
    const amp_status status = host->set_grad(host->self, tensor, grad);
    return status == AMP_OK ? AMP_OK : amp__hook_failed(status, "set_grad", name);
}

amp_status amp__host_swap(const amp_host *host, void *tensor, const char *name, amp_storage *storage) {
    AMP_CLEANUP(leave_hook) const bool was_inside = enter_hook();
    const amp_status status = host->swap_data(host->self, tensor, storage);
    return status == AMP_OK ? AMP_OK : amp__hook_failed(status, "swap_data", name);
}

bool amp__host_has_ranks(const amp_host *host) {
    const bool can_ask = host->reduce || host->reduce_on_device;
    if (!can_ask || !host->has_ranks) return can_ask;
    AMP_CLEANUP(leave_hook) const bool was_inside = enter_hook();
    return host->has_ranks(host->self) != 0;
}

amp_status amp__host_reduce(const amp_host *host, amp_reduction reduction, double *values, size_t n) {
    if (!host->reduce || !amp__host_has_ranks(host)) return AMP_OK;
    AMP_CLEANUP(leave_hook) const bool was_inside = enter_hook();
    const amp_status status = host->reduce(host->self, reduction, values, n);
    return status == AMP_OK ? AMP_OK : amp__hook_failed(status, "reduce", NULL);
}

/* Keeps the message of amp_nccl_reduce, which is more useful than its status. */
amp_status amp__host_reduce_on_device(const amp_host *host, void *stream, float *values, size_t n) {
    AMP_CLEANUP(leave_hook) const bool was_inside = enter_hook();
    (void)amp__fail(AMP_OK, "%s", "");
    const amp_status status = host->reduce_on_device(host->self, AMP_REDUCE_MAX, stream, values, n);
    if (status == AMP_OK) return AMP_OK;
    return *amp_last_error() ? amp__fail_prefix(status, "the host's hook reduce_on_device")
                             : amp__hook_failed(status, "reduce_on_device", NULL);
}

amp_status amp__host_visit(const amp_host *host, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    AMP_CLEANUP(leave_hook) const bool was_inside = enter_hook();
    const amp_status status = host->visit(host->self, op, args, emit, emit_self);
    return status == AMP_OK ? AMP_OK : amp__hook_failed(status, "visit", NULL);
}

void amp__host_release(const amp_host *host, void *tensor) {
    if (!tensor || !host->release) return;
    AMP_CLEANUP(leave_hook) const bool was_inside = enter_hook();
    host->release(host->self, tensor);
}

amp_status amp__host_alloc(const amp_host *host, uint64_t size, amp_dtype dtype, amp_device device,
                           amp_purpose purpose, amp_storage *out) {
    const size_t width = amp__dtype_size(dtype);
    const uint64_t bytes = size ? size * width : width;
    amp_storage storage = { NULL, NULL, bytes, dtype, 0 };
    if (amp__host_owns_memory(host)) {
        const amp_status status = host->alloc(host->self, bytes, device, purpose, &storage);
        if (status != AMP_OK) return amp__hook_failed(status, "alloc", NULL);
        AMP_RETURN_IF(!storage.data, AMP_ERR_HOST_FAILED, "the host's hook alloc said AMP_OK but returned no memory");
        storage.dtype = dtype;
    } else {
        storage.data = amp__alloc_aligned(bytes);
        if (!storage.data) return amp__fail_memory();
    }
    *out = storage;
    return AMP_OK;
}

void amp__host_free(const amp_host *host, amp_storage *storage) {
    if (storage->data) {
        if (amp__host_owns_memory(host)) host->free(host->self, storage);
        else amp__free(storage->data);
    }
    memset(storage, 0, sizeof *storage);
}
