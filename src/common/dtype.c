/* SPDX-License-Identifier: Apache-2.0 */
/* Element types and views of them. */
#include "common/common.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [AMP_DTYPE_DEFAULT] = { "default", 0 }, [AMP_FLOAT32] = { "fp32", 4 },
    [AMP_FLOAT16] = { "fp16", 2 },          [AMP_BFLOAT16] = { "bf16", 2 },
    [AMP_FLOAT64] = { "fp64", 8 },          [AMP_DTYPE_OTHER] = { "not floating", 0 },
    [AMP_DTYPE_UNCHANGED] = { "unchanged", 0 },
};

const char *amp__dtype_name(amp_dtype dtype) {
    return dtype >= 0 && (size_t)dtype < AMP_COUNT(dtypes) ? dtypes[dtype].name : "unknown type";
}

size_t amp__dtype_size(amp_dtype dtype) {
    return dtype >= 0 && (size_t)dtype < AMP_COUNT(dtypes) ? dtypes[dtype].size : 0;
}

amp_dtype amp__promote(amp_dtype a, amp_dtype b) {
    if (a == b || b == AMP_DTYPE_DEFAULT) return a;
    if (a == AMP_DTYPE_DEFAULT) return b;
    if (a == AMP_FLOAT64 || b == AMP_FLOAT64) return AMP_FLOAT64;
    return AMP_FLOAT32; /* two different types, none wider than fp32: neither fp16 nor bf16 holds the other */
}

amp_dtype amp__view_dtype(const amp_tensor_view *view) {
    enum { DL_FLOAT = 2, DL_BFLOAT = 4 };
    if (view->dtype.lanes > 1) return AMP_DTYPE_OTHER;
    if (view->dtype.code == DL_BFLOAT && view->dtype.bits == 16) return AMP_BFLOAT16;
    if (view->dtype.code != DL_FLOAT) return AMP_DTYPE_OTHER;
    switch (view->dtype.bits) {
    case 16: return AMP_FLOAT16;
    case 32: return AMP_FLOAT32;
    case 64: return AMP_FLOAT64;
    default: return AMP_DTYPE_OTHER;
    }
}

amp_status amp__view_size(const amp_tensor_view *view, uint64_t *size) {
    AMP_RETURN_IF(view->ndim < 0 || view->ndim > 64, AMP_ERR_INVALID_ARGUMENT,
                  "a view has %d dimension%s; 0..64 are allowed", (int)view->ndim, AMP__S(view->ndim));
    AMP_RETURN_IF(view->ndim && !view->shape, AMP_ERR_INVALID_ARGUMENT, "a view with %d dimension%s has no shape",
                  (int)view->ndim, AMP__S(view->ndim));
    uint64_t product = 1;
    bool empty = false;
    for (int32_t i = 0; i < view->ndim; i++) {
        const int64_t extent = view->shape[i];
        AMP_RETURN_IF(extent < 0, AMP_ERR_INVALID_ARGUMENT, "a view's extent %d is negative (%lld)", (int)i,
                      (long long)extent);
        if (extent == 0) { empty = true; continue; }
        AMP_RETURN_IF((uint64_t)extent > (uint64_t)INT64_MAX / 8 / product, AMP_ERR_INVALID_ARGUMENT,
                      "a view's extents do not fit 64 bits");
        product *= (uint64_t)extent;
    }
    AMP_RETURN_IF(!empty && !view->data, AMP_ERR_INVALID_ARGUMENT, "a view with elements has no data");
    *size = empty ? 0 : product;
    return AMP_OK;
}

bool amp__view_is_compact(const amp_tensor_view *view) {
    if (!view->strides) return true;
    for (int32_t i = 0; i < view->ndim; i++)
        if (view->shape[i] == 0) return true;
    int64_t expected = 1;
    for (int32_t i = view->ndim - 1; i >= 0; i--) {
        if (view->shape[i] != 1 && view->strides[i] != expected) return false;
        expected *= view->shape[i];
    }
    return true;
}
