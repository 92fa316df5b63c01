/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often a list call plans, asks the kernel table, and calls a kernel: prints the most that any function needs for a
 * list of tensors. The linker puts counting functions before libamp's own (--wrap), so that the library itself counts
 * nothing.
 */
#include "kernels/kernels.h"
#include "kernels/walk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 2000, LENGTH = 300 };

static struct counts {
    unsigned plans, look_ups, kernels;
} counts;

/* ---- what counts ---- */

const struct amp__kernels *__real_amp__kernels_get(void);
const struct amp__kernels *__wrap_amp__kernels_get(void);
void __real_amp__walk(const amp_span *list, size_t n, uint64_t elements, amp__part_fn *work, void *job);
void __wrap_amp__walk(const amp_span *list, size_t n, uint64_t elements, amp__part_fn *work, void *job);

static AMP__CAST_LIST(count_cast) {
    counts.kernels++;
    __real_amp__kernels_get()->cast_list[dst->dtype][src->dtype](dst, src, n);
}

static AMP__SCALE_LIST(count_scale) {
    counts.kernels++;
    __real_amp__kernels_get()->scale_list[dst->dtype][src->dtype](dst, src, n, scale, nonfinite);
}

static AMP__CLAMP_LIST(count_clamp) {
    counts.kernels++;
    __real_amp__kernels_get()->clamp_list[dst->dtype][src->dtype](dst, src, n, limit);
}

/* The table, with kernels of lists that count their calls. */
const struct amp__kernels *__wrap_amp__kernels_get(void) {
    static struct amp__kernels table;
    table = *__real_amp__kernels_get();
    for (int to = AMP_FLOAT32; to <= AMP_FLOAT64; to++)
        for (int from = AMP_FLOAT32; from <= AMP_FLOAT64; from++)
            table.cast_list[to][from] = count_cast, table.scale_list[to][from] = count_scale,
            table.clamp_list[to][from] = count_clamp;
    counts.look_ups++;
    return &table;
}

void __wrap_amp__walk(const amp_span *list, size_t n, uint64_t elements, amp__part_fn *work, void *job) {
    counts.plans++;
    __real_amp__walk(list, n, elements, work, job);
}

/* ---- one call of each ---- */

static amp_span dst[TENSORS], src[TENSORS];

static amp_status call(int i) {
    float found = 0.0f, norm;
    switch (i) {
    case 0: return amp_cast_list(dst, src, TENSORS);
    case 1: return amp_scale_list(dst, src, TENSORS, 0.5f, &found);
    case 2: return amp_axpby_list(dst, 0.5f, src, 2.0f, dst, TENSORS, &found);
    case 3: return amp_l2norm_list(src, TENSORS, &norm, NULL);
    case 4: return amp_copy_list(src, src, TENSORS);
    case 5: return amp_zero_list(dst, TENSORS);
    case 6: return amp_clip_value_list(dst, src, TENSORS, 0.5f);
    default: return amp_clip_norm_list(dst, src, TENSORS, 0.5f, &norm); /* a norm, then a scale */
    }
}

static void make_tensors(int types) {
    static float from[TENSORS * LENGTH], to[TENSORS * LENGTH];
    for (size_t i = 0; i < TENSORS * LENGTH; i++) from[i] = 1.0f;
    for (size_t i = 0; i < TENSORS; i++) {
        src[i] = (amp_span){ from + i * LENGTH, LENGTH, AMP_FLOAT32, 0 };
        dst[i] = (amp_span){ to + i * LENGTH, LENGTH, AMP_FLOAT32 + (int)i * types / TENSORS, 0 };
    }
}

static unsigned larger(unsigned a, unsigned b) { return a > b ? a : b; }

/* plans, table look-ups, kernel calls: the most of a call. */
int main(void) {
    for (int types = 1; types <= 3; types += 2) {
        struct counts most = { 0, 0, 0 };
        make_tensors(types);
        for (int i = 0; i < 8; i++) {
            counts = (struct counts){ 0, 0, 0 };
            if (call(i) != AMP_OK) return EXIT_FAILURE;
            most.plans = larger(most.plans, counts.plans);
            most.look_ups = larger(most.look_ups, counts.look_ups);
            most.kernels = larger(most.kernels, counts.kernels);
        }
        printf("%u %u %u\n", most.plans, most.look_ups, most.kernels);
    }
    return EXIT_SUCCESS;
}
