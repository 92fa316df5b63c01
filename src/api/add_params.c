/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters that join an optimizer mid-run. */
#include "amp_train.h"
#include "bracket/fused.h"
#include "bracket/home.h"
#include "bracket/step.h"
#include "call/cache.h"
#include "context/build.h"
#include "context/optimizer.h"
#include "context/params.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/progress.h"

static amp_status check_idle(const struct amp__optimizer *optimizer) {
    AMP_RETURN_IF(amp__progress_of(optimizer->context)->verifying, AMP_ERR_WRONG_STATE,
                  "amp_add_params inside amp_verify_step");
    AMP_RETURN_IF(amp__step_in_bracket(optimizer) || amp__step_is_delayed(optimizer), AMP_ERR_WRONG_STATE,
                  "amp_add_params inside a bracket, or while gradients are still scaled: end the bracket first");
    const struct amp__optimizers *all = amp__optimizers_of(optimizer->context);
    for (size_t i = 0; i < all->n; i++)
        AMP_RETURN_IF(amp__step_is_running(&all->list[i]), AMP_ERR_WRONG_STATE,
                      "amp_add_params inside a step of optimizer %zu: call it after amp_step_end", i);
    return AMP_OK;
}

/* An optimizer without parameters was initialised without them. */
static amp_status check_hooks(const struct amp__optimizer *optimizer) {
    const struct amp__policy *policy = amp__policy_of(optimizer->context);
    const struct amp__properties *properties = &policy->properties;
    const amp_host *host = &optimizer->host;
    if (amp__retypes(properties))
        AMP_TRY(amp__host_need(host->swap_data || properties->emulate ||
                                   (policy->keeps_blocks && properties->master_weights),
                               "swap_data", "amp_add_params",
                               "this level re-types parameters by putting other storage under their handles"));
    if (amp__scaling_is_trivial(properties)) return AMP_OK;
    AMP_TRY(amp__host_need(host->view != NULL, "view", "amp_add_params", "gradients are unscaled through it"));
    AMP_TRY(
        amp__host_need(host->grad != NULL, "grad", "amp_add_params", "the scaler must see the parameters' gradients"));
    return amp__host_need(!host->set_grad || host->release, "release", "amp_add_params",
                          "set_grad hands gradients to libamp");
}

/* Twice as much each time, for they may come one by one. */
static amp_status need_room(struct amp__optimizer *optimizer, size_t n) {
    const size_t wanted = optimizer->n_params + n;
    if (wanted <= optimizer->params_capacity) return AMP_OK;
    const size_t capacity = wanted < 2 * optimizer->n_params ? 2 * optimizer->n_params : wanted;
    void *grown = amp__grow(optimizer->params, optimizer->n_params, capacity, sizeof *optimizer->params);
    if (!grown) return amp__fail_memory();
    optimizer->params = grown;
    optimizer->params_capacity = capacity;
    return AMP_OK;
}

AMP_API amp_status amp_add_params(amp_optimizer *user, const amp_param *params, size_t n) {
    struct amp__optimizer *optimizer = NULL;
    AMP_TRY(amp__optimizer_find(user, &optimizer));
    AMP_TRY(check_idle(optimizer));
    AMP_RETURN_IF(n && !params, AMP_ERR_INVALID_ARGUMENT, "amp_add_params: params is NULL, but n is %zu", n);
    AMP_RETURN_IF(n > SIZE_MAX / sizeof(void *) / 2, AMP_ERR_INVALID_ARGUMENT, "amp_add_params: n cannot be %zu", n);
    if (n) AMP_TRY(check_hooks(optimizer));
    amp_context *context = optimizer->context;
    struct amp__params *all = amp__params_of(context);
    AMP_TRY(amp__home_refuse_capture(context, "amp_add_params", "Call it before the capture or after it"));
    AMP_TRY(amp__home_read_all(context)); /* data of devices depend on the present numbers of parameters */
    const size_t context_params = all->n, optimizer_params = optimizer->n_params;
    AMP_TRY(need_room(optimizer, n));
    if (optimizer->optim) AMP_TRY(amp__optim_grow(optimizer->optim, optimizer_params + n));
    amp_status status = amp__cache_grow(amp__cache_of(context), (all->n + n) * AMP__FORMS);
    if (status == AMP_OK) status = amp__collect_late(context, optimizer, params, n);
    if (status == AMP_OK) status = amp__fused_attach(optimizer, optimizer_params);
    if (status != AMP_OK) {
        if (optimizer->optim) amp__optim_shrink(optimizer->optim, optimizer_params);
        amp__collect_undo(context, optimizer, context_params, optimizer_params);
        return status;
    }
    amp__fused_mark_late(optimizer, optimizer_params);
    amp__unseen_steps_forget(context);
    for (size_t i = context_params; i < all->n; i++) amp__param_commit_retype(all->list[i]);
    return AMP_OK;
}
