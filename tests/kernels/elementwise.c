/* SPDX-License-Identifier: Apache-2.0 */
#include "elementwise.h"

#include "common/common.h"

#include <string.h>

/* Elements by which pointers are off a 64-byte boundary, or more: fp16 has 32 such places. Lengths up to the second
 * are those of two rounds of the widest kernel, four vectors of 16 elements each, and its rest. */
enum { OFFSETS = 32, SHORT = 36, TWO_ROUNDS = 2 * 64 + 3 };

struct buffers {
    struct guard dst, x, y;
};

enum placement { APART, OVER_X, OVER_Y, PLACEMENTS };

static bool has_y(const struct elementwise *e) { return e->y_type != AMP_DTYPE_DEFAULT; }

static void compare(const struct elementwise *e, const void *dst, size_t n, size_t offset, int placement) {
    if (!memcmp(dst, e->expected, n * amp__dtype_size(e->to))) return;
    for (size_t i = 0; i < n; i++) {
        const uint64_t got = get_bits(e->to, dst, i), want = get_bits(e->to, e->expected, i);
        CHECK_THAT(e->sets_flag || e->any_nan ? bits_agree(e->to, got, want) : got == want,
                   "%s: element %zu of %zu at offset %zu, placement %d: got %#llx, want %#llx (x %#llx)", e->what, i,
                   n, offset, placement, (unsigned long long)got, (unsigned long long)want,
                   (unsigned long long)get_bits(e->x_type, e->x, i));
    }
}

/* The first element that sets the flag, or e->longest. */
static size_t first_nonfinite(const struct elementwise *e) {
    size_t i = 0;
    while (i < e->longest && !bits_are_nonfinite(e->to, get_bits(e->to, e->expected, i))) i++;
    return i;
}

static void run(const struct elementwise *e, const struct buffers *b, size_t n, size_t offset, enum placement placement,
                uint32_t flag) {
    const size_t x_size = amp__dtype_size(e->x_type), y_size = amp__dtype_size(e->y_type);
    const size_t d_size = amp__dtype_size(e->to);
    const size_t x_gap = offset * x_size, y_gap = (offset * 5 + 3) % OFFSETS * y_size;
    const size_t apart = (offset * 7 + n) % OFFSETS * d_size;
    const size_t d_gap = placement == OVER_X ? x_gap : placement == OVER_Y ? y_gap : apart;
    void *x = memcpy(guard_place(&b->x, n * x_size, x_gap), e->x, n * x_size), *y = NULL;
    if (has_y(e)) y = memcpy(guard_place(&b->y, n * y_size, y_gap), e->y, n * y_size);
    void *dst = placement == OVER_X ? x : placement == OVER_Y ? y : guard_place(&b->dst, n * d_size, d_gap);
    const struct guard *over = placement == OVER_X ? &b->x : placement == OVER_Y ? &b->y : &b->dst;

    uint32_t nonfinite = 0;
    e->call(e, dst, x, y, n, &nonfinite);
    compare(e, dst, n, offset, (int)placement);
    if (e->sets_flag) CHECK_THAT(nonfinite == flag, "%s: n %zu: flag %u, want %u", e->what, n, nonfinite, flag);
    CHECK_THAT(guard_intact(over, n * d_size, d_gap), "%s: n %zu offset %zu: wrote outside", e->what, n, offset);
}

void check_elementwise(const struct elementwise *e) {
    static const size_t lengths[] = { 1000, 4095, 4096, LONGEST };
    const size_t room = LONGEST * 8 + OFFSETS * 8 + GUARD_BORDER;
    const size_t first = first_nonfinite(e);
    struct buffers b = { guard_new(room), guard_new(room), guard_new(room) };
    const size_t sparse = (has_y(e) ? 3u : 1u) * (size_t)sweep_step();
    for (size_t l = 0; l <= TWO_ROUNDS + AMP_COUNT(lengths); l++) {
        const size_t n = l <= TWO_ROUNDS ? l : lengths[l - TWO_ROUNDS - 1];
        if (n > e->longest) break;
        const uint32_t flag = n > first;
        const size_t step = (n <= SHORT || n == 64 ? 1u : 7u) * sparse; /* others for each n */
        for (size_t offset = n % step; offset < OFFSETS; offset += step) {
            run(e, &b, n, offset, APART, flag);
            if (e->never_over) continue;
            if (e->to == e->x_type) run(e, &b, n, offset, OVER_X, flag);
            if (has_y(e) && e->to == e->y_type) run(e, &b, n, offset, OVER_Y, flag);
        }
    }
    guard_free(&b.dst), guard_free(&b.x), guard_free(&b.y);
}

void check_flag(const struct elementwise *given) {
    struct elementwise changed = *given;
    changed.a = changed.b = 0.5f; /* finite in every type */
    const struct elementwise *e = &changed;
    static const size_t lengths[] = { 0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 300 };
    static uint64_t x[300], y[300], dst[300];
    const uint64_t one = round_to_bits(e->x_type, 1.0), infinity = infinity_bits(e->x_type);
    const uint64_t poisons[] = { infinity, sign_bit(e->x_type) | infinity, infinity | (infinity >> 1) };
    for (size_t i = 0; i < AMP_COUNT(x); i++) {
        set_bits(e->x_type, x, i, one);
        if (has_y(e)) set_bits(e->y_type, y, i, round_to_bits(e->y_type, 1.0));
    }
    for (size_t l = 0; l < AMP_COUNT(lengths); l++) {
        const size_t n = lengths[l];
        for (uint32_t before = 0; before <= 1; before++) {
            uint32_t flag = before;
            e->call(e, dst, x, y, n, &flag);
            CHECK_THAT(flag == before, "%s: n %zu: flag %u became %u without cause", e->what, n, before, flag);
        }
        for (size_t i = 0; i < n; i += n <= 65 ? 1 : 5) {
            uint32_t flag = 0;
            set_bits(e->x_type, x, i, poisons[i % AMP_COUNT(poisons)]);
            e->call(e, dst, x, y, n, &flag);
            CHECK_THAT(flag == 1, "%s: n %zu: missed element %zu", e->what, n, i);
            set_bits(e->x_type, x, i, one);
        }
    }
}
