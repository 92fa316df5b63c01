/* SPDX-License-Identifier: Apache-2.0 */
/* amp_device.h but for the optimizers: arguments are checked here, as for the CPU, and the backend does the rest. */
#include "kernels/device.h"
#include "kernels/matmul.h"
#include "kernels/spans.h"

AMP_API amp_status amp_device_list_open(amp_device device, amp_device_list **list) {
    amp_status status = AMP_OK;
    AMP_RETURN_IF(!list, AMP_ERR_INVALID_ARGUMENT, "amp_device_list_open: list is NULL");
    AMP_RETURN_IF(!amp__is_device(device), AMP_ERR_UNSUPPORTED,
                  "amp_device_list_open: device type %d: use 2, CUDA, or 12, which amp_serve.h serves; amp_kernels.h "
                  "has the CPU's functions",
                  (int)device.type);
    const struct amp__backend *backend = amp__backend_for(device, &status);
    if (!backend) return status;
    amp_device_list *made = amp__alloc(1, sizeof *made);
    if (!made) return amp__fail_memory();
    made->backend = backend, made->device = device;
    status = backend->list_open(device.id, &made->list);
    if (status == AMP_OK) *list = made;
    else amp__free(made);
    return status;
}

AMP_API void amp_device_list_close(amp_device_list *list) {
    if (!list) return;
    list->backend->list_close(list->list);
    amp__free(list);
}

amp_status amp__device_run(amp_device_list *list, const struct amp__list_call *call, const char *function) {
    AMP_RETURN_IF(!list, AMP_ERR_INVALID_ARGUMENT, "%s: list is NULL", function);
    AMP_RETURN_IF(!call->stream, AMP_ERR_INVALID_ARGUMENT,
                  "%s: stream is NULL, CUDA's legacy default stream: make one (cudaStreamNonBlocking), or pass "
                  "cudaStreamPerThread",
                  function);
    for (int i = 0; i < 2; i++)
        AMP_RETURN_IF(call->factors[i].how < AMP_FACTOR_AS_IT_IS || call->factors[i].how > AMP_FACTOR_CLIP,
                      AMP_ERR_INVALID_ARGUMENT, "%s: how is %d in a factor", function, (int)call->factors[i].how);
    for (int i = 0; i < 2; i++)
        AMP_RETURN_IF(call->factors[i].how == AMP_FACTOR_CLIP && !(call->factors[i].value > 0.0f),
                      AMP_ERR_INVALID_ARGUMENT, "%s: AMP_FACTOR_CLIP clips to %g; it must be above 0", function,
                      (double)call->factors[i].value);
    const amp_status status = list->backend->list_run(list->list, call);
    return status == AMP_OK ? AMP_OK : amp__fail_prefix(status, "%s", function);
}

/* ---- calls ---- */

static amp_factor factor_or_one(const amp_factor *factor) {
    const amp_factor one = { NULL, 1.0f, AMP_FACTOR_AS_IT_IS };
    return factor ? *factor : one;
}

AMP_API amp_status amp_device_cast(amp_device_list *list, void *stream, const amp_span *dst, const amp_span *src,
                                   size_t n) {
    struct amp__facts facts = { 0 };
    const struct amp__list_call call = { .kind = AMP__LIST_CAST, .stream = stream, .n = n, .spans = { dst, src } };
    AMP_TRY(amp__spans_check_pair(dst, src, n, "src", &facts));
    return amp__device_run(list, &call, "amp_device_cast");
}

AMP_API amp_status amp_device_zero(amp_device_list *list, void *stream, const amp_span *dst, size_t n) {
    struct amp__facts facts = { 0 };
    const struct amp__list_call call = { .kind = AMP__LIST_ZERO, .stream = stream, .n = n, .spans = { dst } };
    AMP_TRY(amp__spans_check(dst, n, "dst", &facts));
    return amp__device_run(list, &call, "amp_device_zero");
}

static amp_status check_clip(const amp_span *dst, const amp_span *src, size_t n) {
    for (size_t i = 0; i < n; i++)
        AMP_RETURN_IF(dst[i].data != src[i].data || dst[i].dtype != src[i].dtype, AMP_ERR_INVALID_ARGUMENT,
                      "amp_device_scale: AMP_FACTOR_CLIP works in place, and dst[%zu] is not src[%zu]", i, i);
    return AMP_OK;
}

AMP_API amp_status amp_device_scale(amp_device_list *list, void *stream, const amp_span *dst, const amp_span *src,
                                    size_t n, const amp_factor *scale, float *found_inf) {
    struct amp__facts facts = { 0 };
    const struct amp__list_call call = {
        .kind = AMP__LIST_SCALE, .stream = stream, .n = n, .spans = { dst, src },
        .factors = { factor_or_one(scale) }, .found_inf = found_inf,
    };
    AMP_RETURN_IF(!scale, AMP_ERR_INVALID_ARGUMENT, "amp_device_scale: scale is NULL");
    AMP_TRY(amp__spans_check_pair(dst, src, n, "src", &facts));
    if (scale->how == AMP_FACTOR_CLIP) AMP_TRY(check_clip(dst, src, n));
    return amp__device_run(list, &call, "amp_device_scale");
}

AMP_API amp_status amp_device_axpby(amp_device_list *list, void *stream, const amp_span *dst, const amp_factor *a,
                                    const amp_span *x, const amp_factor *b, const amp_span *y, size_t n,
                                    float *found_inf) {
    struct amp__facts facts = { 0 };
    const struct amp__list_call call = {
        .kind = AMP__LIST_AXPBY, .stream = stream, .n = n, .spans = { dst, x, y },
        .factors = { factor_or_one(a), factor_or_one(b) }, .found_inf = found_inf,
    };
    AMP_RETURN_IF(!a || !b, AMP_ERR_INVALID_ARGUMENT, "amp_device_axpby: %s is NULL", a ? "b" : "a");
    AMP_TRY(amp__spans_check_pair(dst, x, n, "x", &facts));
    AMP_TRY(amp__spans_check_pair(dst, y, n, "y", &facts));
    return amp__device_run(list, &call, "amp_device_axpby");
}

AMP_API amp_status amp_device_statistics(amp_device_list *list, void *stream, const amp_span *src, size_t n,
                                         amp_statistics *statistics) {
    struct amp__facts facts = { 0 };
    const struct amp__list_call call = {
        .kind = AMP__LIST_STATISTICS, .stream = stream, .n = n, .spans = { src }, .statistics = statistics,
    };
    AMP_TRY(amp__spans_check(src, n, "src", &facts));
    AMP_RETURN_IF(n && !statistics, AMP_ERR_INVALID_ARGUMENT, "amp_device_statistics: statistics is NULL and n is %zu",
                  n);
    return amp__device_run(list, &call, "amp_device_statistics");
}

AMP_API amp_status amp_device_check(amp_device_list *list, void *stream, const amp_span *src, size_t n,
                                    const amp_factor *scale, const amp_factor *factor, float *norm, float *norms,
                                    float *found_inf) {
    struct amp__facts facts = { 0 };
    const struct amp__list_call call = {
        .kind = AMP__LIST_CHECK,
        .stream = stream,
        .n = n,
        .spans = { src },
        .factors = { factor_or_one(scale), factor_or_one(factor) },
        .found_inf = found_inf,
        .norm = norm,
        .norms = norms,
    };
    AMP_TRY(amp__spans_check(src, n, "src", &facts));
    return amp__device_run(list, &call, "amp_device_check");
}
