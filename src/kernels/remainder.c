/* SPDX-License-Identifier: Apache-2.0 */
/* Split masters in lists: FP32 as bfloat16 and a remainder, and back. */
#include "amp_optim.h"
#include "kernels/fpenv.h"
#include "kernels/kernels.h"
#include "kernels/ref/ref.h"
#include "kernels/spans.h"
#include "kernels/walk.h"

#include <string.h>

AMP_API uint64_t amp_remainder_bytes(uint64_t size) {
    return size > PTRDIFF_MAX / 4 ? 0 : 4 * ((size + 1) / 2) + 4 * ((size + 31) / 32);
}

static amp_status check_types(const amp_span *low, const char *low_name, const amp_span *fp32, const char *fp32_name,
                              void *const *remainders, size_t n) {
    AMP_RETURN_IF(n && !remainders, AMP_ERR_INVALID_ARGUMENT, "remainders is NULL and n is %zu", n);
    for (size_t i = 0; i < n; i++) {
        AMP_RETURN_IF(low[i].dtype != AMP_BFLOAT16 || fp32[i].dtype != AMP_FLOAT32, AMP_ERR_INVALID_ARGUMENT,
                      "%s[%zu] is %s and %s[%zu] is %s: FP32 is split into bf16 and a remainder", low_name, i,
                      amp__dtype_name(low[i].dtype), fp32_name, i, amp__dtype_name(fp32[i].dtype));
        AMP_RETURN_IF(low[i].size && (!remainders[i] || (uintptr_t)remainders[i] % sizeof(uint32_t)),
                      AMP_ERR_INVALID_ARGUMENT, "remainders[%zu] is %s", i,
                      remainders[i] ? "not aligned to 4 bytes" : "NULL");
    }
    return AMP_OK;
}

struct job {
    const struct amp__kernels *k;
    const amp_span *low, *fp32;
    void *const *remainders;
    bool split;
};

static void run_part(void *job, const struct amp__part *part) {
    const struct job *j = job;
    for (size_t i = part->first; i < part->first + part->n; i++) {
        const size_t begin = part->n == 1 ? part->begin : 0, end = part->n == 1 ? part->end : (size_t)j->low[i].size;
        const struct amp__remainder r = amp__remainder_of(j->remainders[i], j->low[i].size);
        if (begin == end) continue;
        if (j->split) j->k->split(j->low[i].data, &r, j->fp32[i].data, begin, end);
        else j->k->join(j->fp32[i].data, j->low[i].data, &r, begin, end);
    }
}

AMP_API amp_status amp_split_list(const amp_span *dst, void *const *remainders, const amp_span *src, size_t n) {
    struct amp__facts facts = { 0, false };
    struct job job = { amp__kernels_get(), dst, src, remainders, true };
    AMP_TRY(amp__spans_check_pair(dst, src, n, "src", &facts));
    AMP_TRY(check_types(dst, "dst", src, "src", remainders, n));
    amp__walk(dst, n, facts.elements, run_part, &job);
    return AMP_OK;
}

AMP_API amp_status amp_join_list(const amp_span *dst, const amp_span *src, void *const *remainders, size_t n) {
    struct amp__facts facts = { 0, false };
    struct job job = { amp__kernels_get(), src, dst, remainders, false };
    AMP_TRY(amp__spans_check_pair(dst, src, n, "src", &facts));
    AMP_TRY(check_types(src, "src", dst, "dst", remainders, n));
    amp__walk(dst, n, facts.elements, run_part, &job);
    return AMP_OK;
}

/* Joined piece by piece; the lanes are those of one block of AMP__SUM_SQUARES. */
static double block_squares(const struct amp__kernels *k, const amp_span *low, const struct amp__remainder *r,
                            size_t begin, size_t end) {
    enum { PIECE = 1024 };
    double lane[AMP__SUM_LANES] = { 0 };
    float joined[PIECE];
    const uint16_t *data = low->data;
    for (size_t at = begin; at < end; at += PIECE) {
        const size_t n = end - at < PIECE ? end - at : PIECE;
        const struct amp__remainder piece = { r->rest + at, r->ties + at / 32 };
        k->join(joined, data + at, &piece, 0, n);
        amp__ref_add_squares(lane, joined, n);
    }
    return amp__ref_sum_lanes(lane);
}

double amp__remainder_squares(const amp_span *low, void *remainder) {
    const struct amp__kernels *k = amp__kernels_get();
    const struct amp__remainder r = amp__remainder_of(remainder, low->size);
    const size_t size = (size_t)low->size;
    double sum = 0.0;
    for (size_t at = 0; at < size; at += AMP__SUM_BLOCK)
        sum += block_squares(k, low, &r, at, size - at < AMP__SUM_BLOCK ? size : at + AMP__SUM_BLOCK);
    return sum;
}
