/* SPDX-License-Identifier: Apache-2.0 */
#include "numbers.h"

#include "common/common.h"

#include <string.h>

unsigned take(struct bytes *bytes) { return bytes->at < bytes->end ? *bytes->at++ : 0; }

unsigned take_below(struct bytes *bytes, unsigned n) {
    const unsigned low = take(bytes);
    return (n > 256 ? low | take(bytes) << 8 : low) % n;
}

float take_factor(struct bytes *bytes) {
    static const float factors[] = { 1.0f,      0.5f,      0x1p-16f,  65536.0f,  -1.0f, 3.0f,      0.1f,    1e-30f,
                                     0x1p100f,  0x1p-126f, 0x1p-149f, 0x1.fffffep127f, 0.0f, -0.0f, INFINITY, NAN };
    return factors[take_below(bytes, AMP_COUNT(factors))];
}

size_t take_size(struct bytes *bytes, size_t most) {
    const unsigned how = take(bytes);
    return how < 224 ? how % 71 % (most + 1) : take_below(bytes, (unsigned)most + 1);
}

void take_elements(struct bytes *bytes, amp_dtype type, void *data, size_t n) {
    const unsigned how = take_below(bytes, PATTERNS + 4);
    const size_t width = amp__dtype_size(type), left = (size_t)(bytes->end - bytes->at);
    if (how < PATTERNS || !left) {
        random_from(take(bytes));
        fill((enum pattern)(how % PATTERNS), type, data, n);
        return;
    }
    for (size_t i = 0; i < n * width; i++) ((uint8_t *)data)[i] = bytes->at[i % left];
}

/* ---- blocks ---- */

enum { ROOM = 8 * LONGEST_ENTRY + 64 };
static struct {
    struct guard guard;
    size_t bytes, gap;
    bool used;
} blocks[BLOCKS];

void *block(unsigned number, size_t bytes, size_t align, struct bytes *from) {
    need(number < BLOCKS && bytes <= ROOM, "the fuzzer asks for too much");
    if (!blocks[number].guard.begin) blocks[number].guard = guard_new(ROOM + 64 + GUARD_BORDER);
    blocks[number].bytes = bytes;
    blocks[number].gap = take_below(from, 32) * align % 64;
    blocks[number].used = true;
    return guard_place(&blocks[number].guard, bytes, blocks[number].gap);
}

void need_borders(void) {
    for (unsigned i = 0; i < BLOCKS; i++)
        need(!blocks[i].used || guard_intact(&blocks[i].guard, blocks[i].bytes, blocks[i].gap),
             "wrote outside block %u", i);
}

void forget_blocks(void) {
    for (unsigned i = 0; i < BLOCKS; i++) blocks[i].used = false;
}
