/* SPDX-License-Identifier: Apache-2.0 */
#include "common/common.h"

#include <string.h>

enum { LANES = 8 }; /* chains of multiplications that the processor has under way at once */

/* One to one in `sum` for each word, and rotated, so that no pattern of changes in a few bits, as signs,
 * undoes itself. */
static inline uint64_t add_word(uint64_t sum, uint64_t word) {
    sum ^= word;
    return (sum << 29 | sum >> 35) * UINT64_C(0x9e3779b97f4a7c15);
}

uint64_t amp__sum64(uint64_t sum, const void *data, size_t bytes) {
    const char *at = data;
    uint64_t lanes[LANES], words[LANES];
    for (size_t i = 0; i < LANES; i++) lanes[i] = add_word(sum, bytes + i);
    for (; bytes >= sizeof words; bytes -= sizeof words, at += sizeof words) {
        memcpy(words, at, sizeof words);
        for (size_t i = 0; i < LANES; i++) lanes[i] = add_word(lanes[i], words[i]);
    }
    memset(words, 0, sizeof words);
    if (bytes) memcpy(words, at, bytes);
    for (size_t i = 0; i < LANES; i++) sum = add_word(add_word(sum, lanes[i]), words[i]);
    return sum;
}
