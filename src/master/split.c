/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Split masters: the bfloat16 parameter is the rounded master, and a remainder beside it (amp_optim.h) has the other
 * bits, so that the upper half is stored once. Optimizers of libamp step both directly. For other readers a temporary
 * FP32 master is made, until both have its values again. A write of the host to such a parameter changes its master,
 * within rounding: the remainder stays, since the written elements are unknown. Source: Transformer Engine's FusedAdam,
 * store_param_remainders, which rounds ties away from zero.
 */
#include "amp_optim.h"
#include "master/param.h"

/* As 16-bit words, which hosts' hooks can allocate. */
static uint64_t words_of(const struct amp__param *param) { return amp_remainder_bytes(param->size) / 2; }

amp_status amp__remainder_make(struct amp__param *param) {
    struct amp__master *master = &param->master;
    AMP_RETURN_IF(param->dtype == AMP_FLOAT32 && !amp__host_owns_memory(param->host), AMP_ERR_UNSUPPORTED,
                  "%s: master_weights is AMP_SPLIT, and its host has no hooks alloc and free: its own FP32 block could "
                  "not be freed, and nothing would be saved; give the host both, or use AMP_ON", param->name);
    AMP_TRY(amp__param_alloc_size(param, words_of(param), AMP_BFLOAT16, AMP_FOR_MASTER, &master->rest));
    const amp_span rest = { master->rest.data, words_of(param), AMP_BFLOAT16, 0 };
    const amp_status status = amp__param_zero(param, &rest);
    if (status != AMP_OK) amp__param_free(param, &master->rest);
    return status;
}

static amp_status join(const struct amp__param *param, const amp_span *fp32, const amp_span *low) {
    void *const rest = param->master.rest.data;
    const amp_span third = { rest, param->size, AMP_BFLOAT16, 0 };
    if (!param->on_device) return amp_join_list(fp32, low, &rest, 1);
    return amp__place_add(param->place, AMP__WORK_JOIN, param, fp32, low, &third);
}

amp_status amp__master_join(struct amp__param *param) {
    struct amp__master *master = &param->master;
    struct amp__elements now;
    if (!amp__is_split(param) || (master->fp32.data && !master->spent)) return AMP_OK;
    AMP_TRY(amp__master_part(param)); /* the parameter may have been written since it was split */
    if (master->fp32.data) return AMP_OK;
    AMP_TRY(amp__param_elements(param, &now));
    AMP_TRY(amp__param_alloc(param, AMP_FLOAT32, AMP_FOR_MASTER, &master->fp32));
    const amp_span fp32 = { master->fp32.data, param->size, AMP_FLOAT32, 0 };
    const amp_status status = join(param, &fp32, &(amp_span){ now.data, param->size, AMP_BFLOAT16, 0 });
    master->spent = false;
    if (status != AMP_OK) amp__param_free(param, &master->fp32);
    return status;
}

void amp__master_split(struct amp__param *param, void *elements) {
    struct amp__master *master = &param->master;
    void *const rest = master->rest.data;
    const amp_span low = { elements, param->size, AMP_BFLOAT16, 0 };
    const amp_span fp32 = { master->fp32.data, param->size, AMP_FLOAT32, 0 };
    const amp_span third = { rest, param->size, AMP_BFLOAT16, 0 };
    const amp_status status = param->on_device
        ? amp__place_add(param->place, AMP__WORK_SPLIT, param, &low, &fp32, &third)
        : amp_split_list(&low, &rest, &fp32, 1);
    master->spent = status == AMP_OK;
}

void amp__master_release(struct amp__param *param) {
    if (!param->master.spent || param->lent.steps || param->lent.stuck) return;
    amp__param_free(param, &param->master.fp32);
    param->master.spent = false;
}

void amp__master_parted(struct amp__param *param) {
    param->master.spent = true;
    param->master.may_differ = false;
    amp__master_release(param);
}

amp_status amp__master_part(struct amp__param *param) {
    if (!amp__is_split(param) || !param->master.fp32.data) return AMP_OK;
    if (!param->master.spent) AMP_TRY(amp__master_write_back(param));
    if (param->on_device) AMP_TRY(amp__place_flush(param->place));
    amp__master_release(param);
    return AMP_OK;
}
