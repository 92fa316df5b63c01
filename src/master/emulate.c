/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 16-bit parameters on hosts that know FP32 only. The host's own block holds values that the 16-bit type could hold; the
 * master stands apart, is copied into the block before a step, and read out and rounded back after it. Gradients are
 * FP32 blocks as they are: what rounds them are the ops that made them.
 */
#include "kernels/round.h"
#include "master/master.h"

#include <string.h>

static uint64_t version_of(const struct amp__param *param) {
    return param->host->version ? param->host->version(param->host->self, param->tensor) : 0;
}

static size_t bytes_of(const struct amp__param *param) { return (size_t)param->size * sizeof(float); }

static void copy(const struct amp__param *param, void *dst, const void *src) {
    if (param->size) memcpy(dst, src, bytes_of(param));
}

static void round_block(struct amp__param *param, float *block, struct amp__counts *counts) {
    amp__round(block, block, param->size, param->emulated, counts);
    param->version = version_of(param);
}

amp_status amp__param_emulate(struct amp__param *param, amp_dtype dtype, bool keep_master) {
    struct amp__elements now;
    struct amp__counts counts = { 0 };
    AMP_TRY(amp__param_elements(param, &now));
    AMP_TRY(amp__host_alloc(param->host, param->size, AMP_FLOAT32, param->device, AMP_FOR_MASTER, &param->fp32));
    copy(param, param->fp32.data, now.data);
    param->emulated = (uint8_t)dtype;
    param->re_typed = true;
    param->has_master = keep_master;
    round_block(param, now.data, &counts);
    param->unfit = counts.overflowed;
    return AMP_OK;
}

amp_status amp__emulated_undo(struct amp__param *param) {
    struct amp__elements now;
    AMP_TRY(amp__param_elements(param, &now));
    if (param->fp32.data && !param->stuck) copy(param, now.data, param->fp32.data); /* stuck: a step's values are newer */
    amp__host_free(param->host, &param->fp32);
    param->emulated = AMP_DTYPE_DEFAULT;
    param->re_typed = param->has_master = false;
    return AMP_OK;
}

void amp__emulated_reconcile(struct amp__param *param, float *block) {
    float *master = param->fp32.data;
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
    round_block(param, block, NULL);
}

amp_status amp__emulated_lend(const struct amp__param *param) {
    struct amp__elements now;
    if (!param->has_master) return AMP_OK;
    AMP_TRY(amp__param_elements(param, &now));
    copy(param, now.data, param->fp32.data);
    return AMP_OK;
}

amp_status amp__emulated_take_back(struct amp__param *param) {
    struct amp__elements now;
    AMP_TRY(amp__param_elements(param, &now));
    if (param->has_master) copy(param, param->fp32.data, now.data);
    round_block(param, now.data, NULL);
    return AMP_OK;
}

void amp__emulated_show(struct amp__param *param, void *elements) {
    if (param->has_master) copy(param, elements, param->fp32.data);
    round_block(param, elements, NULL);
}
