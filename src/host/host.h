/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hooks of the host. Every call into the host goes through here, so that an error always names the hook and its
 * object, and results are validated before use.
 */
#ifndef AMP_HOST_H
#define AMP_HOST_H

#include "amp_kernels.h"
#include "common/common.h"

/* Copies the structure of the caller. `what`: its name in messages ("model 0"). */
amp_status amp__host_copy(amp_host *host, const amp_host *given, const char *what);

/* Fails with AMP_ERR_MISSING_HOOK "<who> needs the hook <hook>: <advice>" unless present. */
amp_status amp__host_need(bool present, const char *hook, const char *who, const char *advice);

/* A tensor's elements, checked. dtype from the view. */
struct amp__elements {
    void *data;
    uint64_t size;
    amp_dtype dtype;
    amp_device device;
    int32_t ndim;
    const int64_t *shape;   /* the host's: until the next call of a hook */
    const int64_t *strides; /* the same (NULL: one compact block) */
};
/* Reads a view from the host. First half of amp__host_find. */
amp_status amp__host_view(const amp_host *host, void *tensor, const char *name, amp_tensor_view *view);
/* Checks a view and converts it. Second half of amp__host_find. */
amp_status amp__host_judge(const amp_tensor_view *view, const char *name, struct amp__elements *out);
/* Returns true for the commonest views: a compact, aligned, non-empty block of 16- or 32-bit floats in CPU memory.
 * False: use amp__host_judge. */
bool amp__view_is_plain(const amp_tensor_view *view, amp_span *span);
/* Finds the elements of a tensor. Fails for tensors that no level can train: sparse, complex, fp8, on devices without a
 * backend, with overlapping elements. */
amp_status amp__host_find(const amp_host *host, void *tensor, const char *name, struct amp__elements *out);
/* Finds the elements of a tensor in CPU memory. Also fails for tensors on a device. */
amp_status amp__host_layout(const amp_host *host, void *tensor, const char *name, struct amp__elements *out);
/* Finds the elements of a compact tensor in CPU memory. */
amp_status amp__host_elements(const amp_host *host, void *tensor, const char *name, struct amp__elements *out);

amp_dtype amp__host_viewed_dtype(const amp_host *host, void *tensor);
/* Returns the logical type, or AMP_DTYPE_OTHER if it is unknown. */
static inline amp_dtype amp__host_dtype(const amp_host *host, void *tensor) {
    return host->dtype ? host->dtype(host->self, tensor) : amp__host_viewed_dtype(host, tensor);
}
amp_status amp__host_cast(const amp_host *host, void *tensor, amp_dtype to, void **out);
amp_status amp__host_scale(const amp_host *host, void *loss, float factor, void **out);
amp_status amp__host_scale_by(const amp_host *host, void *loss, const float *factor, void **out);
amp_status amp__host_grad(const amp_host *host, void *tensor, const char *name, void **grad);
/* For many tensors in a row: the thread counts as inside an op until hooks_leave, which an exception calls too. */
struct amp__hooks {
    bool *inside, was_inside;
};
struct amp__hooks amp__hooks_enter(void);
static inline void amp__hooks_leave(const struct amp__hooks *hooks) { *hooks->inside = hooks->was_inside; }
amp_status amp__hook_failed(amp_status status, const char *hook, const char *name);
/* Calls the hook grad in such a sequence. The caller makes the message of an error. */
static inline amp_status amp__hooks_grad(const struct amp__hooks *hooks, const amp_host *host, void *tensor,
                                         void **grad) {
    (void)hooks;
    *grad = NULL;
    return host->grad(host->self, tensor, grad);
}
amp_status amp__host_set_grad(const amp_host *host, void *tensor, const char *name, void *grad);
amp_status amp__host_swap(const amp_host *host, void *tensor, const char *name, amp_storage *storage);
/* Are there ranks to ask now? */
bool amp__host_has_ranks(const amp_host *host);
/* Reduces `n` values over all ranks, in place. Unchanged without ranks or without the hook reduce. After an error they
 * are undefined. */
amp_status amp__host_reduce(const amp_host *host, amp_reduction reduction, double *values, size_t n);
/* The greatest of each over all ranks, of values in a device's memory, in the order of its stream. */
amp_status amp__host_reduce_on_device(const amp_host *host, void *stream, float *values, size_t n);
amp_status amp__host_visit(const amp_host *host, const char *op, void *const *args, amp_emit emit, void *emit_self);
static inline bool amp__host_grad_enabled(const amp_host *host) {
    return !host->grad_enabled || host->grad_enabled(host->self) != 0;
}

/* Memory for `size` elements of `dtype`: the host's where it has alloc and free, else libamp's. */
amp_status amp__host_alloc(const amp_host *host, uint64_t size, amp_dtype dtype, amp_device device,
                           amp_purpose purpose, amp_storage *out);
void amp__host_free(const amp_host *host, amp_storage *storage); /* and clears it (empty: no effect) */

void amp__host_release(const amp_host *host, void *tensor); /* NULL is a no-op */
static inline bool amp__host_owns_memory(const amp_host *host) { return host->alloc && host->free; }

/* ---- strides.c: elements that are no compact block, transposed, sliced, in padded rows, backwards ---- */
/* They are gathered into a compact block in row-major order, worked on there, and scattered back. */

/* Returns true if no two elements can overlap. Exact for views that a slicing of a tensor can make. Returns false for
 * some other layouts that interleave. */
bool amp__strides_apart(int32_t ndim, const int64_t *shape, const int64_t *strides);
/* Do some strides run backwards? */
bool amp__strides_negative(const struct amp__elements *at);
/* Elements from the first in memory to the last, inclusive. Strides are not negative. */
uint64_t amp__strides_reach(const struct amp__elements *at);
void amp__strides_gather(void *dst, const struct amp__elements *src);
void amp__strides_scatter(const struct amp__elements *dst, const void *src);

#endif
