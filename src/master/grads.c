/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients through a bracket. begin sets aside what is there, so that backward starts from nothing; end unscales the
 * new gradients, adds what was set aside, and checks. Outside a bracket no gradient carries the scale: a 16-bit
 * parameter's gradient is exact in its FP32 master gradient, and the host's handle shows it rounded.
 * Source of the semantics: apex/amp/_process_optimizer.py, without its losses (docs/apex-differences.md).
 */
#include "kernels/fpenv.h"
#include "kernels/kernels.h"
#include "kernels/round.h"
#include "master/grad.h"

#include <string.h>

/* ---- begin ---- */

static amp_status save_first(struct amp__param *param, const amp_span *shown) {
    if (param->host->set_grad || param->first_saved) return AMP_OK;
    const amp_span exact = amp__has_master_grad(param) ? amp__grad_master(param) : *shown;
    if (!amp__span_is_zero(&exact)) AMP_TRY(amp__span_copy(param, &exact, &param->first));
    param->first_saved = true;
    return AMP_OK;
}

static amp_status begin_one(struct amp__param *param) {
    void *grad;
    amp_span shown;
    AMP_TRY(amp__master_settle(param));
    AMP_TRY(amp__grads_unscale(param));
    if (!param->defers) AMP_TRY(amp__grad_need_master(param));
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    if (!grad) {
        if (!param->in_bracket) param->grad_handle = NULL;
        return AMP_OK;
    }
    AMP_TRY(amp__grad_elements(param, grad, &shown));
    if (param->in_bracket) return amp__aside_put(param, grad, &shown, &param->delayed);
    /* a host without versions may have zeroed its gradient by hand: only a look tells */
    const bool look = !param->host->version;
    const bool cleared = param->defers && !param->grad_handle && amp__span_is_zero(&shown); /* no need of a master gradient */
    if (amp__has_master_grad(param) && !cleared) AMP_TRY(amp__grad_follow(param, grad, &shown, look));
    if (cleared) param->first_saved |= !param->host->set_grad;
    else AMP_TRY(save_first(param, &shown));
    AMP_TRY(amp__aside_put(param, grad, &shown, &param->stash));
    param->stash.present |= amp__has_master_grad(param); /* a master gradient may be too small to show */
    return AMP_OK;
}

amp_status amp__grads_begin(struct amp__param *const *params, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (params[i]->in_bracket && (!params[i]->scaled || params[i]->delaying)) continue; /* another optimizer's too */
        const amp_status status = begin_one(params[i]);
        if (status == AMP_OK) {
            params[i]->delaying = params[i]->in_bracket;
            params[i]->in_bracket = true;
            continue;
        }
        (void)amp__grads_cancel(params, i, false);
        return status;
    }
    return AMP_OK;
}

/* ---- cancel ---- */

amp_status amp__grads_cancel(struct amp__param *const *params, size_t n, bool all) {
    amp_status status = AMP_OK;
    for (size_t i = 0; i < n; i++) {
        struct amp__param *param = params[i];
        if (!param->in_bracket) continue;
        const bool inner = param->delaying;
        param->pending.handle = NULL;
        if (!inner && param->scaled && !all) continue; /* cancelled already, for another optimizer */
        amp_status one = inner ? amp__aside_take_back(param, &param->delayed) : AMP_OK;
        param->delaying = false;
        if (!inner || all) {
            const amp_status outer = amp__aside_take_back(param, &param->stash);
            if (one == AMP_OK) one = outer;
            param->in_bracket = param->scaled = false;
        }
        if (one != AMP_OK) status = one;
    }
    return status;
}

/* ---- delay ---- */

/* new += delayed, in the gradient's own type, as backward itself would have accumulated. */
static amp_status merge_delayed(struct amp__param *param) {
    struct amp__aside *delayed = &param->delayed;
    void *grad;
    amp_span fresh, old;
    if (!delayed->present) return AMP_OK;
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    if (!grad) return amp__aside_take_back(param, delayed);
    AMP_TRY(amp__grad_elements(param, grad, &fresh));
    AMP_TRY(amp__aside_elements(param, delayed, &old));
    AMP_TRY(amp_axpby_list(&fresh, 1.0f, &fresh, 1.0f, &old, 1, NULL));
    AMP_TRY(amp__grad_store(param, grad, &fresh));
    amp__aside_drop(param, delayed);
    return AMP_OK;
}

amp_status amp__grads_delay(struct amp__param *const *params, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!params[i]->in_bracket) continue;
        AMP_TRY(merge_delayed(params[i]));
        params[i]->delaying = false;
        params[i]->scaled = true;
    }
    return AMP_OK;
}

/* ---- end ---- */

/* What end has to compute, as lists for the kernels; filled completely before anything is written. */
struct plan {
    struct amp__param **params; /* in order, one per dst */
    amp_span *dst, *fresh, *stash, *shown;
    void **grads;
    enum { NOW, WAITS, WAITS_NONFINITE } *when; /* unscaled here, or only checked, for the step unscales */
    size_t n;
};

static void plan_free(struct plan *plan) {
    for (size_t i = 0; i < plan->n; i++) plan->params[i]->planned = false;
    amp__free(plan->when);
    amp__free(plan->params);
    amp__free(plan->dst);
}

static amp_status plan_alloc(struct plan *plan, size_t n) {
    plan->n = 0;
    plan->params = amp__alloc(2 * n, sizeof(void *));
    plan->dst = amp__alloc(4 * n, sizeof *plan->dst);
    plan->when = amp__alloc(n, sizeof *plan->when);
    if (!plan->params || !plan->dst || !plan->when) {
        plan_free(plan);
        return amp__fail_memory();
    }
    plan->grads = (void **)plan->params + n;
    plan->fresh = plan->dst + n;
    plan->stash = plan->dst + 2 * n;
    plan->shown = plan->dst + 3 * n;
    return AMP_OK;
}

/* What was set aside, as elements; data NULL if nothing was. */
static amp_status stash_elements(struct amp__param *param, amp_span *stash) {
    *stash = (amp_span){ NULL, 0, AMP_FLOAT32, 0 };
    if (!param->stash.present) return AMP_OK;
    if (!amp__has_master_grad(param)) return amp__aside_elements(param, &param->stash, stash);
    if (param->grad_handle) *stash = amp__grad_master(param);
    return AMP_OK;
}

static amp_status plan_one(struct plan *plan, struct amp__param *param) {
    void *grad;
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    if (!grad) return AMP_OK;
    const size_t i = plan->n;
    AMP_TRY(amp__grad_elements(param, grad, &plan->fresh[i]));
    AMP_TRY(stash_elements(param, &plan->stash[i]));
    plan->shown[i] = plan->fresh[i];
    if (!plan->stash[i].data && amp__grads_may_defer(param, &plan->fresh[i])) plan->when[i] = WAITS;
    else AMP_TRY(amp__grad_need_master(param));
    plan->dst[i] = amp__has_master_grad(param) ? amp__grad_master(param) : plan->fresh[i];
    plan->params[i] = param;
    plan->grads[i] = grad;
    plan->n++;
    param->planned = true;
    return AMP_OK;
}

/* Reads alone. The sums are what clipping will ask for. */
static void plan_check(const struct plan *plan, size_t begin, size_t end, float inverse, float *found_inf) {
    const amp__fpenv saved = amp__fpenv_enter();
    for (size_t i = begin; i < end; i++) {
        uint32_t nonfinite = 0;
        plan->params[i]->pending.squares = amp__check_span(&plan->fresh[i], inverse, 1.0f, &nonfinite);
        if (!nonfinite) continue;
        plan->when[i] = WAITS_NONFINITE;
        *found_inf = 1.0f;
    }
    amp__fpenv_leave(saved);
}

/* Runs of entries with and without something set aside go to the kernels together, and those that wait. */
static amp_status plan_run(const struct plan *plan, float inverse, float *found_inf) {
    for (size_t i = 0, end; i < plan->n; i = end) {
        const bool adds = plan->stash[i].data != NULL, waits = plan->when[i] != NOW;
        for (end = i + 1; end < plan->n && (plan->stash[end].data != NULL) == adds && (plan->when[end] != NOW) == waits;)
            end++;
        if (waits) plan_check(plan, i, end, inverse, found_inf);
        else if (adds)
            AMP_TRY(amp_axpby_list(plan->dst + i, inverse, plan->fresh + i, 1.0f, plan->stash + i, end - i, found_inf));
        else AMP_TRY(amp_scale_list(plan->dst + i, plan->fresh + i, end - i, inverse, found_inf));
    }
    return AMP_OK;
}

/* A gradient that the 16-bit type would hold, where it is emulated and no master takes the exact one. */
static void plan_round(const struct plan *plan, float *found_inf) {
    for (size_t i = 0; i < plan->n; i++) {
        const struct amp__param *param = plan->params[i];
        struct amp__counts counts = { 0 };
        if (!param->emulated || param->has_master || plan->dst[i].dtype != AMP_FLOAT32) continue;
        amp__round(plan->dst[i].data, plan->dst[i].data, plan->dst[i].size, param->emulated, &counts);
        if (counts.overflowed) *found_inf = 1.0f;
    }
}

static void leave_waiting(struct amp__param *param, void *grad, float inverse) {
    param->pending.handle = grad;
    param->pending.version = amp__grad_version(param, grad);
    param->pending.inverse = inverse;
    param->pending.factor = 1.0f;
    param->grad_handle = NULL;
}

/* The host's handles show the results: master gradients rounded. */
static amp_status plan_show(const struct plan *plan, float inverse) {
    for (size_t i = 0; i < plan->n; i++) {
        struct amp__param *param = plan->params[i];
        const bool master = amp__has_master_grad(param);
        if (plan->when[i] != NOW) {
            leave_waiting(param, plan->grads[i], inverse);
            continue;
        }
        if (master) AMP_TRY(amp_cast_list(&plan->shown[i], &plan->dst[i], 1));
        AMP_TRY(amp__grad_store(param, plan->grads[i], &plan->shown[i]));
        if (!master) continue;
        param->grad_handle = plan->grads[i];
        param->grad_version = amp__grad_version(param, plan->grads[i]);
    }
    return AMP_OK;
}

/* The bracket is over for one parameter, and what was set aside is merged. */
static void settle(struct amp__param *param) {
    amp__aside_drop(param, &param->stash);
    param->in_bracket = param->scaled = false;
}

/* Where backward made nothing, what was set aside goes back. The last thing that can fail, and the bracket is over for
 * those that have it: so a cancel that follows leaves all as at begin. */
static amp_status give_back(struct amp__param *const *params, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct amp__param *param = params[i];
        if (!param->in_bracket || param->planned) continue;
        if (param->stash.handle)
            AMP_TRY(amp__host_set_grad(param->host, param->tensor, param->name, param->stash.handle));
        param->stash.handle = NULL; /* the host's again */
        settle(param);
    }
    return AMP_OK;
}

/* Fixed buffers cannot be dropped by the host: after an overflow they hold again what stood there at begin. */
static void restore_fixed(const struct plan *plan) {
    for (size_t i = 0; i < plan->n; i++) {
        struct amp__param *param = plan->params[i];
        if (param->host->set_grad) continue;
        (void)amp__aside_take_back(param, &param->stash);
        param->grad_handle = NULL; /* the master gradient has overflowed: the buffer is what is left */
        param->pending.handle = NULL;
    }
}

static amp_status plan_first_nonfinite(const struct plan *plan, int64_t *first) {
    int64_t at = -1;
    for (size_t i = 0; i < plan->n && *first < 0; i++) {
        if (plan->when[i] == NOW) AMP_TRY(amp_first_nonfinite(&plan->dst[i], 1, &at));
        if (plan->when[i] == WAITS_NONFINITE || at >= 0) *first = (int64_t)i;
    }
    return AMP_OK;
}

amp_status amp__grads_end(struct amp__param *const *params, size_t n, float scale, bool skips,
                          struct amp__grads_result *result) {
    struct plan plan = { 0 };
    float found_inf = 0.0f;
    int64_t first = -1;
    AMP_TRY(amp__grads_delay(params, n));
    AMP_TRY(plan_alloc(&plan, n));
    amp_status status = AMP_OK;
    for (size_t i = 0; i < n && status == AMP_OK; i++) /* a parameter that two optimizers share is unscaled once */
        if (params[i]->in_bracket && !params[i]->planned) status = plan_one(&plan, params[i]);
    const float inverse = (float)(1.0 / (double)scale);
    if (status == AMP_OK) status = give_back(params, n);
    if (status == AMP_OK) status = plan_run(&plan, inverse, &found_inf);
    if (status == AMP_OK) plan_round(&plan, &found_inf);
    if (status == AMP_OK) status = plan_show(&plan, inverse);
    if (status == AMP_OK && found_inf != 0.0f) {
        status = plan_first_nonfinite(&plan, &first);
        if (skips) restore_fixed(&plan);
    }
    if (status == AMP_OK) {
        *result = (struct amp__grads_result){ found_inf != 0.0f, first >= 0 ? plan.params[first] : NULL };
        for (size_t i = 0; i < n; i++)
            if (params[i]->in_bracket) settle(params[i]);
    }
    plan_free(&plan);
    return status;
}

/* ---- between brackets ---- */

static void restore_first(struct amp__param *param) {
    void *grad;
    amp_span shown;
    if (amp__grad_need_master(param) != AMP_OK) return;
    if (amp__host_grad(param->host, param->tensor, param->name, &grad) != AMP_OK || !grad) return;
    if (amp__grad_elements(param, grad, &shown) != AMP_OK) return;
    param->pending.handle = NULL;
    const amp_span exact = amp__has_master_grad(param) ? amp__grad_master(param) : shown;
    if (param->first.data && param->first.dtype == exact.dtype) memcpy(exact.data, param->first.data, amp__span_bytes(&exact));
    else if (amp__span_bytes(&exact)) memset(exact.data, 0, amp__span_bytes(&exact));
    (void)amp__grad_store(param, grad, &exact);
    if (amp__has_master_grad(param)) {
        param->grad_handle = grad;
        (void)amp__grads_show(param, true);
    }
}

void amp__grads_stepped(struct amp__param *const *params, size_t n, bool skipped) {
    for (size_t i = 0; i < n; i++) {
        if (!params[i]->first_saved) continue;
        if (skipped) restore_first(params[i]);
        amp__host_free(params[i]->host, &params[i]->first);
        params[i]->first_saved = false;
    }
}

amp_status amp__grads_show(struct amp__param *param, bool always) {
    void *grad = param->grad_handle;
    if (!grad) return AMP_OK;
    const uint64_t version = amp__grad_version(param, grad);
    if (!always && param->host->version && version == param->grad_version) return AMP_OK;
    amp_span shown;
    const amp_span master = amp__grad_master(param);
    AMP_TRY(amp__grad_elements(param, grad, &shown));
    AMP_TRY(amp_cast_list(&shown, &master, 1));
    AMP_TRY(amp__grad_store(param, grad, &shown));
    param->grad_version = version;
    return AMP_OK;
}

void amp__grads_forget(struct amp__param *const *params, size_t n, bool open) {
    for (size_t i = 0; i < n; i++) {
        struct amp__param *param = params[i];
        param->grad_handle = param->pending.handle = NULL;
        amp__aside_drop(param, &param->stash);
        amp__aside_drop(param, &param->delayed);
        param->delaying = param->scaled = false;
        param->in_bracket &= open;
    }
}
