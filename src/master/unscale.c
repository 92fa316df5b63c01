/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a bracket: the gradients that backward made are found and checked, then unscaled as a few lists for the
 * kernels. All that can fail comes before anything is written. A parameter is looked at twice, however many there are:
 * once to plan, once to close.
 */
#include "kernels/fpenv.h"
#include "kernels/kernels.h"
#include "kernels/round.h"
#include "master/grad.h"

#include <string.h>

/* The work on an entry of the plan. Neighbours that agree in WORK go to the kernels together. */
enum {
    TO_MASTER = 1 << 0, /* the result is the FP32 master gradient (else in place) */
    ADDS = 1 << 1,      /* adds to the gradient set aside */
    ADDS_ZERO = 1 << 2, /* which was zeros: a sum that is zero is +0 then */
    LEFT = 1 << 3,      /* only checked here, for the step unscales */
    HELD = 1 << 7,      /* the host has the master gradient as it is: nothing is shown rounded */
    AWAY = 1 << 8,      /* on a device: the work is added to its place, which launches it */
    WORK = TO_MASTER | ADDS | ADDS_ZERO | LEFT | HELD | AWAY,
    NONFINITE = 1 << 4, /* result of the check */
    GAPS = 1 << 5,      /* the host's elements are no compact block: they are written from our copy */
    ROUNDS = 1 << 6,    /* emulated, and no master takes the exact value */
    REOPENED = 1 << 10, /* older ones that were delayed are part of it */
    STALE = 1 << 9,     /* the gradient set aside is not finite: an earlier bracket decided on it */
};

_Static_assert(offsetof(struct amp__param, gradient.left) <= 64, "gradients in the bracket come first");

struct amp__plan_entry {
    struct amp__param *param;
    void *grad;
};

void amp__plan_free(struct amp__plan *plan) {
    amp__free(plan->entries);
    amp__free(plan->what);
    amp__free(plan->fresh);
    *plan = (struct amp__plan){ .places = plan->places, .n_places = plan->n_places };
}

static amp_status plan_room(struct amp__plan *plan, size_t n) {
    if (n > plan->capacity) {
        amp__plan_free(plan);
        plan->entries = amp__alloc(n, sizeof *plan->entries);
        plan->what = amp__alloc(n, sizeof *plan->what);
        plan->fresh = amp__alloc(3 * n, sizeof *plan->fresh);
        if (!plan->entries || !plan->what || !plan->fresh) {
            amp__plan_free(plan);
            return amp__fail_memory();
        }
        plan->dst = plan->fresh + n;
        plan->set_aside = plan->fresh + 2 * n;
        plan->capacity = n;
    }
    plan->n = 0;
    plan->all = 0;
    plan->mastered = 0;
    return AMP_OK;
}

void amp__plan_prefetch(const struct amp__plan *plan, struct amp__param *const *params, size_t n, size_t i, bool data) {
    const size_t ahead = i + AMP__PREFETCH;
    if (ahead >= n) return;
    amp__param_prefetch(params[ahead]);
    __builtin_prefetch(params[i + AMP__PREFETCH / 2]->tensor);
    if (ahead >= plan->capacity) return;
    __builtin_prefetch(plan->entries[ahead].grad);
    if (data) __builtin_prefetch(plan->fresh[ahead].data);
}

/* ---- planning ---- */

/* Finds the elements set aside. *what: set if there are any. Adding zeros without reading them makes a NaN of an
 * infinity, so zeros are written if an infinity must stay. */
static amp_status plan_set_aside(const struct amp__plan *plan, struct amp__param *param, amp_span *set_aside,
                                 uint16_t *what) {
    set_aside->data = NULL;
    if (!amp__has_master_grad(param)) AMP_TRY(amp__aside_elements(param, set_aside));
    else if (param->gradient.handle) {
        if (!plan->skips || param->host->set_grad) amp__grad_write_zero(param);
        if (param->gradient.zero) *what |= ADDS_ZERO;
        else *set_aside = amp__grad_master(param);
    }
    if (set_aside->data) *what |= ADDS;
    return AMP_OK;
}

/* The gradient's part of the launches to come. */
static amp_status add_away(const struct amp__plan *plan, size_t i) {
    struct amp__param *param = plan->entries[i].param;
    const uint16_t what = plan->what[i];
    const amp_span *fresh = &plan->fresh[i], *dst = what & TO_MASTER ? &plan->dst[i] : fresh;
    if (what & LEFT) return amp__place_add(param->place, AMP__WORK_CHECK, param, fresh, NULL, NULL);
    if (what & ADDS) AMP_TRY(amp__place_add(param->place, AMP__WORK_ADD, param, dst, fresh, &plan->set_aside[i]));
    else AMP_TRY(amp__place_add(param->place, AMP__WORK_SCALE, param, dst, fresh, NULL));
    if ((what & (TO_MASTER | HELD)) == TO_MASTER) AMP_TRY(amp__param_add(param, AMP__WORK_SHOW, fresh, dst));
    if (what & ROUNDS) AMP_TRY(amp__param_add(param, AMP__WORK_ROUND_GRAD, fresh, fresh));
    const amp_storage *kept = &param->gradient.kept[AMP__AT_BEGIN].copy;
    if (param->host->set_grad || !plan->skips || !kept->data) return AMP_OK;
    /* a fixed buffer cannot be dropped: after an overflow it gets its contents at begin */
    const amp_span before = { kept->data, fresh->size, kept->dtype, 0 };
    AMP_TRY(amp__param_add(param, AMP__WORK_RESTORE, fresh, &before));
    return what & TO_MASTER ? amp__param_add(param, AMP__WORK_RESTORE, dst, &before) : AMP_OK;
}

static bool adds_what_was_set_aside(const struct amp__param *param) {
    const enum amp__aside aside = param->gradient.aside[AMP__AT_BEGIN];
    return aside != AMP__ASIDE_NOTHING && aside != AMP__ASIDE_COPIED;
}

static amp_status plan_one(struct amp__plan *plan, const struct amp__hooks *hooks, struct amp__param *param) {
    const size_t i = plan->n;
    amp_span *fresh = &plan->fresh[i];
    uint16_t what = 0;
    void *grad;
    AMP_TRY(amp__grad_of(param, hooks, &grad));
    if (!grad) return AMP_OK;
    AMP_TRY(amp__grad_elements(param, grad, fresh));
    if (adds_what_was_set_aside(param)) AMP_TRY(plan_set_aside(plan, param, &plan->set_aside[i], &what));
    if (!(what & (ADDS | ADDS_ZERO)) && amp__grad_may_be_left(param, fresh)) what |= LEFT;
    else AMP_TRY(amp__grad_need_master(param));
    if (amp__has_master_grad(param)) what |= TO_MASTER;
    if (what & TO_MASTER && param->master.held_by_host) what |= HELD;
    if (param->on_device) what |= AWAY;
    if (param->gradient.gaps) what |= GAPS;
    if (param->gradient.state == AMP__GRAD_REOPENED) what |= REOPENED;
    if (param->emulated && !param->has_master && fresh->dtype == AMP_FLOAT32) what |= ROUNDS;
    if (what & TO_MASTER) {
        plan->dst[i] = amp__grad_master(param);
        plan->mastered += fresh->size;
    }
    plan->what[i] = what;
    plan->all |= what;
    plan->entries[i] = (struct amp__plan_entry){ param, grad };
    plan->n++;
    amp__grad_goes(param, AMP__GRAD_ENDING);
    return what & AWAY ? add_away(plan, i) : AMP_OK;
}

/* And not found yet, by this end. */
static bool is_open(const struct amp__param *param) {
    return param->gradient.state == AMP__GRAD_OPEN || param->gradient.state == AMP__GRAD_REOPENED;
}

/* *left_out: backward made nothing for so many. A parameter that two optimizers share is unscaled once. */
static amp_status plan_all(struct amp__plan *plan, struct amp__param *const *params, size_t n, size_t *left_out) {
    AMP_CLEANUP(amp__hooks_leave) const struct amp__hooks hooks = amp__hooks_enter();
    for (size_t i = 0; i < n; i++) {
        struct amp__param *param = params[i];
        amp__plan_prefetch(plan, params, n, i, false);
        if (!is_open(param)) continue;
        AMP_TRY(plan_one(plan, &hooks, param));
        *left_out += is_open(param);
    }
    return AMP_OK;
}

/* ---- computing ---- */

/* Only reads. Clipping uses the sums. */
static void check(struct amp__plan *plan, size_t begin, size_t end, float inverse, float *found_inf) {
    const amp__fpenv saved = amp__fpenv_enter();
    for (size_t i = begin; i < end; i++) {
        uint32_t nonfinite = 0;
        plan->entries[i].param->gradient.left.squares = amp__check_span(&plan->fresh[i], inverse, 1.0f, &nonfinite);
        if (!nonfinite) continue;
        plan->what[i] |= NONFINITE;
        *found_inf = 1.0f;
    }
    amp__fpenv_leave(saved);
}

/* Neighbours of one kind. The handles of the host show the results, master gradients rounded. */
static amp_status run_list(struct amp__plan *plan, size_t i, size_t n, float inverse, float *found_inf) {
    const uint16_t what = plan->what[i];
    const amp_span *fresh = plan->fresh + i, *dst = what & TO_MASTER ? plan->dst + i : fresh;
    if (what & LEFT) check(plan, i, i + n, inverse, found_inf);
    else if (what & ADDS_ZERO) /* (-0) * x is the zero that makes inverse * x + 0 of the sum, for each finite x */
        AMP_TRY(amp_axpby_list(dst, inverse, fresh, -0.0f, fresh, n, found_inf));
    else if (what & ADDS) AMP_TRY(amp_axpby_list(dst, inverse, fresh, 1.0f, plan->set_aside + i, n, found_inf));
    else AMP_TRY(amp_scale_list(dst, fresh, n, inverse, found_inf));
    return (what & (LEFT | TO_MASTER | HELD)) == TO_MASTER ? amp_cast_list(fresh, dst, n) : AMP_OK;
}

/* Master gradients are read again at once, to be shown. Where all of them fit the last cache, so many are done together
 * that they are still in the one before; where they do not, long lists are better: for streaming stores, and for
 * threads. */
static amp_status run(struct amp__plan *plan, float inverse, float *found_inf) {
    enum { FEW = 1 << 20, TOGETHER = 1 << 16 }; /* elements */
    const bool together = plan->mastered <= FEW;
    for (size_t i = 0, end; i < plan->n; i = end) {
        uint64_t elements = plan->fresh[i].size;
        for (end = i + 1; end < plan->n && !((plan->what[end] ^ plan->what[i]) & WORK); end++) {
            elements += plan->fresh[end].size;
            if (together && plan->what[i] & TO_MASTER && elements > TOGETHER) break;
        }
        if (!(plan->what[i] & AWAY)) AMP_TRY(run_list(plan, i, end - i, inverse, found_inf));
    }
    return AMP_OK;
}

/* A gradient that the 16-bit type would hold, where it is emulated and no master takes the exact one. */
static void round_emulated(struct amp__plan *plan, float *found_inf) {
    for (size_t i = 0; i < plan->n; i++) {
        struct amp__counts counts = { 0 };
        if (!(plan->what[i] & ROUNDS) || plan->what[i] & AWAY) continue;
        amp__round(plan->fresh[i].data, plan->fresh[i].data, plan->fresh[i].size, plan->entries[i].param->emulated,
                   &counts);
        if (!counts.overflowed) continue;
        plan->what[i] |= NONFINITE;
        *found_inf = 1.0f;
    }
}

/* ---- closing ---- */

static void leave(struct amp__param *param, void *grad, float inverse) {
    param->gradient.left.handle = grad;
    param->gradient.left.given = NULL;
    param->gradient.left.version = amp__grad_version(param, grad);
    param->gradient.left.inverse = inverse;
    param->gradient.left.device_inverse = param->on_device ? param->place->args.deferred.pointer : NULL;
    param->gradient.left.factor = 1.0f;
    param->gradient.handle = NULL;
}

/* Records data of a gradient with gaps or a master. */
static amp_status remember(const struct amp__plan *plan, float inverse) {
    for (size_t i = 0; i < plan->n; i++) {
        struct amp__param *param = plan->entries[i].param;
        void *grad = plan->entries[i].grad;
        if (plan->what[i] & LEFT) {
            leave(param, grad, inverse);
            continue;
        }
        if ((plan->what[i] & (GAPS | HELD)) == GAPS) AMP_TRY(amp__grad_store(param, grad, &plan->fresh[i]));
        if (!(plan->what[i] & TO_MASTER)) continue;
        param->gradient.handle = grad;
        param->gradient.zero = false;
        if (plan->what[i] & HELD) continue; /* the host's next handle is another one, over the master gradient */
        param->gradient.version = amp__grad_version(param, grad);
    }
    return AMP_OK;
}

/* Ends the bracket for one parameter, with its gradients merged. */
static void settle(struct amp__param *param, uint16_t what) {
    if (param->gradient.aside[AMP__AT_BEGIN] > AMP__ASIDE_IN_MASTER) amp__aside_drop(param, AMP__AT_BEGIN);
    param->gradient.aside[AMP__AT_BEGIN] = AMP__ASIDE_NOTHING;
    if (what & REOPENED) amp__aside_drop(param, AMP__AT_REOPENING);
    amp__grad_goes(param, what & LEFT ? AMP__GRAD_LEFT : AMP__GRAD_UNSCALED);
}

/* Restores gradients set aside for parameters without a new one. The last step that can fail, before the others end: a
 * cancel after it restores the state at begin. */
static amp_status give_back(struct amp__param *const *params, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct amp__param *param = params[i];
        if (!is_open(param)) continue;
        void **kept = &param->gradient.kept[AMP__AT_BEGIN].handle;
        if (*kept) AMP_TRY(amp__host_set_grad(param->host, param->tensor, param->name, *kept));
        *kept = NULL; /* the host's again */
        settle(param, param->gradient.state == AMP__GRAD_REOPENED ? REOPENED : 0);
    }
    return AMP_OK;
}

/* Restores fixed buffers, which the host cannot drop, to their contents at begin after an overflow. */
static void restore_fixed(const struct amp__plan *plan) {
    for (size_t i = 0; i < plan->n; i++) {
        struct amp__param *param = plan->entries[i].param;
        if (param->host->set_grad || param->on_device) continue;
        (void)amp__aside_take_back(param, AMP__AT_BEGIN);
        param->gradient.handle = NULL; /* the master gradient has overflowed: the buffer remains */
        param->gradient.left.handle = NULL;
        plan->what[i] &= (uint16_t)~LEFT;
    }
}

/* Checks new gradients before they are added. After an overflow that no step has followed, sums may be infinite because
 * of an earlier bracket. This bracket decides on the result of its own backward, as in Apex. A parameter of another
 * optimizer is not excused by that overflow. */
static void look_before(struct amp__plan *plan, float inverse) {
    const amp__fpenv saved = amp__fpenv_enter();
    for (size_t i = 0; i < plan->n; i++) {
        uint32_t fresh = 0, kept = 0;
        if (!(plan->what[i] & ADDS) || plan->what[i] & AWAY) continue;
        (void)amp__check_span(&plan->fresh[i], inverse, 1.0f, &fresh);
        if (plan->entries[i].param->gradient.overflowed) (void)amp__check_span(&plan->set_aside[i], 1.0f, 1.0f, &kept);
        plan->what[i] |= (uint16_t)((fresh ? NONFINITE : 0) | (kept ? STALE : 0));
    }
    amp__fpenv_leave(saved);
}

static amp_status find_nonfinite(const struct amp__plan *plan, const struct amp__param **first) {
    for (size_t i = 0; i < plan->n && !*first; i++) {
        int64_t at = -1;
        const amp_span *result = plan->what[i] & TO_MASTER ? &plan->dst[i] : &plan->fresh[i];
        if (!(plan->what[i] & (LEFT | AWAY | STALE))) AMP_TRY(amp_first_nonfinite(result, 1, &at));
        if (plan->what[i] & NONFINITE || at >= 0) *first = plan->entries[i].param;
    }
    return AMP_OK;
}

static amp_status unscale(struct amp__plan *plan, float inverse, struct amp__grads_result *result) {
    float found_inf = 0.0f;
    if (plan->tainted) look_before(plan, inverse);
    AMP_TRY(run(plan, inverse, &found_inf));
    if (plan->all & ROUNDS) round_emulated(plan, &found_inf);
    if (plan->all & (TO_MASTER | LEFT | GAPS)) AMP_TRY(remember(plan, inverse));
    *result = (struct amp__grads_result){ found_inf != 0.0f, NULL };
    if (!result->found_inf) return AMP_OK;
    const amp_status status = find_nonfinite(plan, &result->first_nonfinite);
    if (plan->tainted && !result->first_nonfinite && status == AMP_OK) result->found_inf = false;
    if (plan->skips && result->found_inf) restore_fixed(plan);
    return status;
}

amp_status amp__grads_end(struct amp__param *const *params, size_t n, float scale, bool skips, bool tainted,
                          struct amp__plan *plan, struct amp__grads_result *result) {
    size_t left_out = 0;
    AMP_TRY(plan_room(plan, n));
    plan->skips = skips;
    plan->tainted = tainted;
    amp_status status = plan_all(plan, params, n, &left_out);
    if (status == AMP_OK && left_out) status = give_back(params, n);
    if (status == AMP_OK) status = unscale(plan, (float)(1.0 / (double)scale), result);
    if (status == AMP_OK) status = amp__places_launch(plan->places, plan->n_places);
    else amp__places_forget(plan->places, plan->n_places);
    for (size_t i = 0; i < plan->n; i++) {
        struct amp__param *param = plan->entries[i].param;
        if (i + AMP__PREFETCH < plan->n) amp__param_prefetch(plan->entries[i + AMP__PREFETCH].param);
        if (status == AMP_OK) {
            settle(param, plan->what[i]);
            continue;
        }
        param->gradient.left.handle = NULL;
        amp__grad_goes(param, AMP__GRAD_OPEN); /* to be cancelled */
    }
    return status;
}
