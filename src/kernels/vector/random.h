/* SPDX-License-Identifier: Apache-2.0 */
/* The counter-based generator of pack.h for LANES places. */
#ifndef AMP_KERNELS_VECTOR_RANDOM_H
#define AMP_KERNELS_VECTOR_RANDOM_H

#include "kernels/random.h"
#include "kernels/vector/vector.h"

#define INLINE static inline __attribute__((always_inline))

/* amp__pack_hash's first words for the places from `place` on. Those `more` places on are larger by more *
 * AMP__PACK_NEXT. */
INLINE vi hash_begin(uint64_t key, size_t place) {
    static const uint32_t counters[16] = {
#define COUNTER(i) (uint32_t)(i) * AMP__PACK_NEXT
#define COUNTERS(i) COUNTER(i), COUNTER((i) + 1), COUNTER((i) + 2), COUNTER((i) + 3)
        COUNTERS(0), COUNTERS(4), COUNTERS(8), COUNTERS(12),
    };
    return vi_add(vi_set1((uint32_t)key + (uint32_t)place * AMP__PACK_NEXT), vi_load(counters));
}

INLINE vi hash_end(uint64_t key, vi x) {
    x = vi_mul(vi_xor(x, vi_shr(x, 16)), vi_set1(AMP__PACK_MIX_1));
    x = vi_mul(vi_xor(vi_xor(x, vi_shr(x, 15)), vi_set1((uint32_t)(key >> 32))), vi_set1(AMP__PACK_MIX_2));
    return vi_xor(x, vi_shr(x, 15));
}

INLINE vi hash(uint64_t key, size_t place) { return hash_end(key, hash_begin(key, place)); }

/* amp__round_bf16 for the elements from `element` on: without random bits where x is not finite, and x * 0 is NaN. NaNs
 * are quiet. */
INLINE vf rounded_at_random(vf x, uint64_t key, size_t element) {
    const vi random = vi_and(hash(key, element), vi_set1(0xffff));
    const vi added = vi_where_positive(random, vf_add(vf_mul(x, vf_set1(0.0f)), vf_set1(1.0f)));
    return vf_of_bits(vi_and(vi_add(vi_bits(x), added), vi_set1(0xffff0000u)));
}

#endif
