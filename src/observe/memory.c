/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a training in bytes: now, and predicted for a level. */
#include "amp_optim.h"
#include "common/ledger.h"
#include "context/live.h"
#include "context/optimizer.h"
#include "context/params.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/progress.h"
#include "observe/observe.h"

static void count_moments(const amp_context *context, amp_memory *out) {
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    const struct amp__progress *progress = amp__progress_of(context);
    out->moments = atomic_load(&progress->moments), out->moments_8bit = atomic_load(&progress->moments_8bit);
    for (size_t i = 0; i < optimizers->n; i++) {
        const struct amp__optim *optim = optimizers->list[i].optim;
        for (size_t j = 0; optim && j < optim->n; j++)
            for (int k = 0; k < AMP__MOMENTS; k++) {
                out->moments += amp__optim_moment_bytes(optim, j, k, false);
                out->moments_8bit += amp__optim_moment_bytes(optim, j, k, true);
            }
    }
}

/* ---- at a level ---- */

static bool has_a_level(const struct amp__param *param) {
    return param->dtype == AMP_FLOAT32 || amp__is_low(param->dtype); /* no level re-types FP64 and integers */
}

static uint64_t bytes_at(const struct amp__param *param, const struct amp__properties *p) {
    if (!has_a_level(param)) return param->size * amp__dtype_size(param->dtype);
    if (amp__keeps_block(p, param->host)) return 4 * param->size;
    const bool norm = param->module_kind == AMP_MODULE_BATCH_NORM;
    return param->size * (amp__retypes(p) && !(norm && p->keep_batchnorm_fp32) ? 2 : 4);
}

static void count_params_at(const amp_context *context, const struct amp__properties *p, amp_memory *out) {
    struct amp__params *params = amp__params_of(context);
    for (size_t i = 0; i < params->n; i++) {
        const struct amp__param *param = params->list[i];
        const uint64_t bytes = bytes_at(param, p);
        out->weights += bytes;
        const bool copies = p->patch_ops || amp__keeps_block(p, param->host);
        out->casts += copies && p->cache && has_a_level(param) ? 2 * param->size : 0;
        if (!param->in_optimizer) continue;
        out->gradients += bytes;
        if (!p->master_weights || bytes != 2 * param->size) continue;
        out->masters += 4 * param->size;
        out->masters_split += p->low == AMP_BFLOAT16 ? amp_remainder_bytes(param->size) : 4 * param->size;
        out->master_gradients += param->gradient.may_be_left ? 0 : 4 * param->size;
    }
    out->most_casts = out->casts;
}

/* Of one iteration: an op that works in 16 bits makes such. */
static void count_outputs_at(const amp_context *context, const struct amp__properties *p, amp_memory *out) {
    struct amp__observer *observer = amp__observer_of(context);
    const struct amp__seen *first = observer ? observer->first : NULL;
    for (const struct amp__seen *seen = first; seen; seen = seen->next) {
        if (seen->what != AMP_SEE_OUTPUTS) continue;
        const bool low = amp__retypes(p) || (p->patch_ops && seen->op->listed != AMP_FP32);
        out->outputs += seen->last.elements * (low ? 2 : 4);
    }
}

amp_status amp__memory_at(const amp_context *context, amp_level level, amp_memory *out) {
    amp_config config = AMP_CONFIG_INIT;
    struct amp__properties p;
    config.level = level;
    AMP_TRY(amp__properties_resolve(&config, &p));
    *out = (amp_memory){ .struct_size = sizeof *out, .level = level };
    count_params_at(context, &p, out);
    count_moments(context, out);
    count_outputs_at(context, &p, out);
    return AMP_OK;
}

/* ---- as it is ---- */

static void count_params(const struct amp__params *params, amp_memory *out) {
    for (size_t i = 0; i < params->n; i++) {
        const struct amp__param *param = params->list[i];
        const uint64_t bytes = param->size * (param->released.data ? 2 : amp__dtype_size(param->dtype));
        out->weights += bytes;
        out->gradients += param->in_optimizer ? bytes : 0;
        const bool whole = param->has_master && param->master.fp32.data, splits = param->dtype == AMP_BFLOAT16;
        out->masters += param->master.rest.bytes + (whole ? 4 * param->size : 0);
        if (param->has_master) out->masters_split += splits ? amp_remainder_bytes(param->size) : 4 * param->size;
        out->master_gradients += param->has_master ? param->gradient.master.bytes : 0;
    }
}

void amp__memory_now(const amp_context *context, amp_memory *out) {
    const struct amp__ledger *casts = amp__ledger_of(context);
    struct amp__observer *observer = amp__observer_of(context);
    const struct amp__packed *packed = &amp__progress_of(context)->packed;
    const uint64_t last = atomic_load(&packed->last_from);
    *out = (amp_memory){ .struct_size = sizeof *out, .level = amp__policy_of(context)->properties.level,
                         .packed_from = last ? last : atomic_load(&packed->from),
                         .packed = last ? atomic_load(&packed->last_to) : atomic_load(&packed->to),
                         .casts = casts->now, .most_casts = casts->most };
    count_params(amp__params_of(context), out);
    count_moments(context, out);
    const struct amp__seen *first = observer ? observer->first : NULL;
    for (const struct amp__seen *seen = first; seen; seen = seen->next)
        if (seen->what == AMP_SEE_OUTPUTS) out->outputs += seen->last.elements * amp__dtype_size(seen->dtype);
}

/* ---- results ---- */

static amp_status check(const amp_context *context, const amp_memory *memory, const char *who) {
    AMP_RETURN_IF(!context || !memory || !amp__context_is_live(context), AMP_ERR_INVALID_ARGUMENT, "%s: %s", who,
                  !memory ? "memory is NULL" : "there is no such context: was it shut down?");
    return amp__check_struct(memory->struct_size, sizeof *memory, "amp_memory");
}

AMP_API amp_status amp_get_memory(amp_context *context, amp_memory *memory) {
    amp_memory now;
    AMP_TRY(check(context, memory, "amp_get_memory"));
    pthread_mutex_t *lock = amp__lock_of(context);
    amp__observe_collect(context);
    pthread_mutex_lock(lock);
    amp__memory_now(context, &now);
    pthread_mutex_unlock(lock);
    return amp__fill_struct(memory, memory->struct_size, sizeof now, &now, sizeof now, "amp_memory");
}

AMP_API amp_status amp_observe_moments(amp_context *context, uint64_t moments, uint64_t moments_8bit) {
    AMP_RETURN_IF(!context || !amp__context_is_live(context), AMP_ERR_INVALID_ARGUMENT,
                  "amp_observe_moments: there is no such context: was it shut down?");
    struct amp__progress *progress = amp__progress_of(context);
    atomic_store(&progress->moments, moments);
    atomic_store(&progress->moments_8bit, moments_8bit);
    return AMP_OK;
}

AMP_API amp_status amp_predict_memory(amp_context *context, amp_level level, amp_memory *memory) {
    amp_memory at;
    AMP_TRY(check(context, memory, "amp_predict_memory"));
    pthread_mutex_t *lock = amp__lock_of(context);
    amp__observe_collect(context);
    pthread_mutex_lock(lock);
    const amp_status status = amp__memory_at(context, level, &at);
    pthread_mutex_unlock(lock);
    AMP_TRY(status);
    return amp__fill_struct(memory, memory->struct_size, sizeof at, &at, sizeof at, "amp_memory");
}
