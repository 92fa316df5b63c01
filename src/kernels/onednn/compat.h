/* SPDX-License-Identifier: Apache-2.0 */
/*
 * oneDNN 2 and 3 under one set of names. Version 3 made memory descriptors opaque handles, took the operation
 * descriptors away, and dropped the scale of an eltwise post-op.
 */
#ifndef AMP_ONEDNN_COMPAT_H
#define AMP_ONEDNN_COMPAT_H

#include <oneapi/dnnl/dnnl.h>

#if DNNL_VERSION_MAJOR < 2
#error "libamp_onednn needs oneDNN 2 or later"
#endif

#if DNNL_VERSION_MAJOR == 2

typedef dnnl_memory_desc_t desc;            /* one of ours, to be freed */
typedef const dnnl_memory_desc_t *desc_ref; /* descriptor owned by another object */
typedef dnnl_matmul_desc_t matmul_op;

static inline dnnl_status_t desc_strided(desc *x, int ndims, const dnnl_dims_t dims, dnnl_data_type_t type,
                                         const dnnl_dims_t strides) {
    return dnnl_memory_desc_init_by_strides(x, ndims, dims, type, strides);
}
static inline dnnl_status_t desc_any(desc *x, int ndims, const dnnl_dims_t dims, dnnl_data_type_t type) {
    return dnnl_memory_desc_init_by_tag(x, ndims, dims, type, dnnl_format_tag_any);
}
static inline void desc_free(desc *x) { (void)x; }
static inline desc_ref desc_of(const desc *x) { return x; }

static inline dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const desc *src,
                                        const desc *weights, const desc *bias, const desc *dst,
                                        const_dnnl_primitive_attr_t attr) {
    matmul_op op;
    const dnnl_status_t status = dnnl_matmul_desc_init(&op, src, weights, bias, dst);
    return status == dnnl_success ? dnnl_primitive_desc_create(pd, &op, attr, engine, NULL) : status;
}
static inline dnnl_status_t append_eltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t kind) {
    return dnnl_post_ops_append_eltwise(ops, 1.0f, kind, 0.0f, 0.0f);
}

#else

typedef dnnl_memory_desc_t desc;
typedef const_dnnl_memory_desc_t desc_ref;

static inline dnnl_status_t desc_strided(desc *x, int ndims, const dnnl_dims_t dims, dnnl_data_type_t type,
                                         const dnnl_dims_t strides) {
    return dnnl_memory_desc_create_with_strides(x, ndims, dims, type, strides);
}
static inline dnnl_status_t desc_any(desc *x, int ndims, const dnnl_dims_t dims, dnnl_data_type_t type) {
    return dnnl_memory_desc_create_with_tag(x, ndims, dims, type, dnnl_format_tag_any);
}
static inline void desc_free(desc *x) { dnnl_memory_desc_destroy(*x); }
static inline desc_ref desc_of(const desc *x) { return *x; }

static inline dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const desc *src,
                                        const desc *weights, const desc *bias, const desc *dst,
                                        const_dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(pd, engine, *src, *weights, bias ? *bias : NULL, *dst, attr);
}
static inline dnnl_status_t append_eltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t kind) {
    return dnnl_post_ops_append_eltwise(ops, kind, 0.0f, 0.0f);
}

#endif

#endif
