/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 16-bit parameters on hosts with FP32 only. The block of the host has values of the 16-bit type. The master is
 * separate, is copied into the block before a step, and read back and rounded after it. Gradients are FP32 blocks,
 * rounded by the ops that made them.
 */
#include "kernels/round.h"
#include "master/param.h"

#include <string.h>

static uint64_t version_of(const struct amp__param *param) {
    return param->host->version ? param->host->version(param->host->self, param->tensor) : 0;
}

static size_t bytes_of(const struct amp__param *param) { return (size_t)param->size * sizeof(float); }

static amp_span span_of(const struct amp__param *param, void *elements) {
    return (amp_span){ elements, param->size, AMP_FLOAT32, 0 };
}

/* On a device with the next flush, as work of this kind; it fails where there is no room to add it (there is for
 * ROUND). */
static amp_status copy(const struct amp__param *param, enum amp__work work, void *dst, const void *src) {
    const amp_span to = span_of(param, dst), from = span_of(param, (void *)(uintptr_t)src);
    if (param->on_device) return amp__param_add(param, work, &to, &from);
    if (param->size) memcpy(dst, src, bytes_of(param));
    return AMP_OK;
}

/* block := the rounded values of `from`. */
static amp_status round_block(struct amp__param *param, enum amp__work work, float *block, const float *from,
                              struct amp__counts *counts) {
    if (param->on_device) AMP_TRY(copy(param, work, block, from));
    else amp__round(block, from, param->size, param->emulated, counts);
    param->master.version = version_of(param);
    return AMP_OK;
}

/* On a device it is launched at once: whatever else fails, the exact values are there to go back to. */
static amp_status set_apart(struct amp__param *param, float *block, struct amp__counts *counts) {
    AMP_TRY(copy(param, AMP__WORK_FOLLOW, param->master.fp32.data, block));
    AMP_TRY(round_block(param, AMP__WORK_ROUND, block, block, counts));
    return param->on_device ? amp__place_flush(param->place) : AMP_OK;
}

amp_status amp__param_emulate(struct amp__param *param, amp_dtype dtype, bool keep_master) {
    struct amp__elements now;
    struct amp__counts counts = { 0 };
    AMP_TRY(amp__param_elements(param, &now));
    AMP_TRY(amp__param_alloc(param, AMP_FLOAT32, AMP_FOR_MASTER, &param->master.fp32));
    param->emulated = (uint8_t)dtype;
    const amp_status status = set_apart(param, now.data, &counts);
    if (status != AMP_OK) {
        if (param->on_device) amp__place_drop(param->place);
        amp__param_free(param, &param->master.fp32);
        param->emulated = AMP_DTYPE_DEFAULT;
        return status;
    }
    param->re_typed = true;
    param->has_master = keep_master;
    param->unfit = counts.overflowed;
    return AMP_OK;
}

amp_status amp__emulated_undo(struct amp__param *param) {
    struct amp__elements now;
    AMP_TRY(amp__param_elements(param, &now));
    if (param->master.fp32.data && !param->lent.stuck) /* stuck: a step's values are newer */
        AMP_TRY(copy(param, AMP__WORK_WRITE_BACK, now.data, param->master.fp32.data));
    if (param->on_device) AMP_TRY(amp__place_flush(param->place));
    amp__param_free(param, &param->master.fp32);
    param->emulated = AMP_DTYPE_DEFAULT;
    param->re_typed = param->has_master = false;
    return AMP_OK;
}

static void reconcile_here(const struct amp__param *param, const float *block) {
    float *master = param->master.fp32.data;
    enum { BLOCK = 512 };
    float rounded[BLOCK];
    for (uint64_t at = 0; at < param->size; at += BLOCK) {
        const uint64_t n = param->size - at < BLOCK ? param->size - at : BLOCK;
        amp__round(rounded, master + at, n, param->emulated, NULL);
        for (uint64_t i = 0; i < n; i++) {
            const bool nan = rounded[i] != rounded[i] && block[at + i] != block[at + i];
            if (memcmp(&rounded[i], &block[at + i], sizeof rounded[i]) && !nan) master[at + i] = block[at + i];
        }
    }
}

amp_status amp__emulated_reconcile(struct amp__param *param, float *block) {
    if (param->on_device) AMP_TRY(copy(param, AMP__WORK_RECONCILE, param->master.fp32.data, block));
    else reconcile_here(param, block);
    return round_block(param, AMP__WORK_ROUND_FIRST, block, block, NULL);
}

amp_status amp__emulated_lend(const struct amp__param *param) {
    struct amp__elements now;
    if (!param->has_master) return AMP_OK;
    AMP_TRY(amp__param_elements(param, &now));
    return copy(param, AMP__WORK_WRITE_BACK, now.data, param->master.fp32.data);
}

amp_status amp__emulated_take_back(struct amp__param *param) {
    struct amp__elements now;
    AMP_TRY(amp__param_elements(param, &now));
    if (param->has_master) AMP_TRY(copy(param, AMP__WORK_FOLLOW, param->master.fp32.data, now.data));
    return round_block(param, AMP__WORK_ROUND, now.data, now.data, NULL);
}

void amp__emulated_show(struct amp__param *param, void *elements) {
    (void)round_block(param, AMP__WORK_ROUND, elements, param->has_master ? param->master.fp32.data : elements, NULL);
}
