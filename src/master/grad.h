/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the gradients' files: one gradient as elements, and setting it aside. */
#ifndef AMP_GRAD_H
#define AMP_GRAD_H

#include "master/param.h"

uint64_t amp__grad_version(const struct amp__param *param, void *handle);
/* Finds the elements of a gradient, checked against the parameter. If they are not compact, a compact copy:
 * amp__grad_store writes it back. A parameter has one such copy. */
amp_status amp__grad_elements(struct amp__param *param, void *grad, amp_span *span);
amp_status amp__grad_store(const struct amp__param *param, void *grad, const amp_span *span);
amp_span amp__grad_master(const struct amp__param *param);
amp_status amp__grad_make_master(struct amp__param *param);
static inline amp_status amp__grad_need_master(struct amp__param *param) {
    return amp__has_master_grad(param) && !param->gradient.master.data ? amp__grad_make_master(param) : AMP_OK;
}
/* Writes the zeros that gradient.zero stands for, before the master gradient is read. */
void amp__grad_write_zero(struct amp__param *param);
/* Brings the master gradient up to date with the host's handle: another one, or changed in place (look: or perhaps). A
 * gradient that the host zeroed is zero, also where the master gradient was too small to show. */
amp_status amp__grad_follow(struct amp__param *param, void *grad, const amp_span *shown, bool look);

/* The gradient as the optimizer will see it, and as the host's handle shows it; data NULL: none. */
amp_status amp__grads_look(struct amp__param *param, amp_span *exact, amp_span *shown);

bool amp__span_is_zero(const amp_span *span);
static inline uint64_t amp__span_bytes(const amp_span *span) { return span->size * amp__dtype_size(span->dtype); }
amp_status amp__span_copy(struct amp__param *param, enum amp__work work, const amp_span *span, amp_storage *out);

/* Sets the gradient aside, so that the parameter has none. A fixed buffer is multiplied by the scale if it can be
 * (AMP__ASIDE_COPIED), or zeroed. zero: it is zero already. */
amp_status amp__aside_put(struct amp__param *param, void *grad, const amp_span *shown, bool zero, float scale);
/* Replaces the present gradient by the one set aside. */
amp_status amp__aside_take_back(struct amp__param *param, enum amp__aside_at at);
/* At a reopening: a copy of a gradient that stays, to go back into its elements. zero: it is one, and needs none. */
amp_status amp__aside_copy(struct amp__param *param, const amp_span *shown, bool zero);
void amp__aside_drop(struct amp__param *param, enum amp__aside_at at);
/* Finds the elements set aside at begin. */
amp_status amp__aside_elements(struct amp__param *param, amp_span *span);

/* The host's gradient, in a row of hooks: amp__host_grad. */
static inline amp_status amp__grad_of(const struct amp__param *param, const struct amp__hooks *hooks, void **grad) {
    const amp_status status = amp__hooks_grad(hooks, param->host, param->tensor, grad);
    return __builtin_expect(status == AMP_OK, 1) ? AMP_OK : amp__hook_failed(status, "grad", param->name);
}

#endif
