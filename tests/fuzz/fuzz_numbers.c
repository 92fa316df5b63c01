/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer target: functions that compute on the caller's memory without a context: lists, norms, statistics, split
 * masters, packed tensors, products, optimizers. The first byte chooses the family, the second the instruction sets;
 * the rest are sizes, types, factors and elements. Each result is compared with the references of tests/kernels and
 * tests/optim, to the bit where libamp promises bits. A refusal changes nothing. No byte outside of an operand is
 * touched.
 */
#include "numbers.h"

#include "amp_kernels.h"
#include "common/common.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const families[])(struct bytes *) = { fuzz_lists, fuzz_sums, fuzz_packs, fuzz_product,
                                                        fuzz_optimizer };
    struct bytes bytes = { data, data + size };
    if (size < 3) return 0;
    const unsigned family = take_below(&bytes, AMP_COUNT(families)), sets = take(&bytes);
    random_restart();
    amp_set_cpu_mask(sets & 1 ? UINT32_MAX : sets >> 1);
    families[family](&bytes);
    need_borders();
    forget_blocks();
    return 0;
}
