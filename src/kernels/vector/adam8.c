/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adam with moments in 8 bits, in the operations of struct amp__update. A block is gone through twice: for parameter,
 * moments and their extremes, then for the codes of the moments, which the first-level cache has.
 */
#include "kernels/vector/update.h"

#include "kernels/bytes.h"

#include <math.h>

enum { BLOCK = AMP__BYTES_BLOCK };

struct factors {
    vf of_m, of_z, most_v; /* in place of corrections, and the limit of v */
};

/* Moments of a block. Codes of a part are copies. */
struct block {
    _Alignas(64) float m[BLOCK];
    _Alignas(64) float z[BLOCK];
    uint8_t codes[2][BLOCK];
};

struct extremes {
    vf least_m, most_m, most_z;
    seen_f seen;
};

struct scales {
    vf m, z;
};

INLINE void adam8(struct elements *x, const struct amp__update *u, const struct numbers *c, const struct factors *f) {
    if (!u->decoupled) x->g = decayed(x->g, x, u, c);
    x->m[0] = averaged(x->m[0], x->g, c);
    const vf squares = vf_mul(c->beta2, vf_mul(x->m[1], x->m[1]));
    const vf v = vf_add(squares, vf_mul(vf_mul(c->rest2, x->g), x->g));
    x->m[1] = vf_sqrt(vf_min(f->most_v, v));
    x->u = vf_div(vf_mul(x->m[0], f->of_m), vf_add(vf_mul(x->m[1], f->of_z), c->eps));
    if (u->decoupled) x->u = decayed(x->u, x, u, c);
}

/* ---- the two passes over a block, whose n elements begin at `at` ---- */

INLINE struct extremes step_block(struct block *b, const uint8_t *const codes[2], const struct scales *by,
                                  const struct amp__update *u, const struct numbers *c, const struct factors *f,
                                  struct streams s, size_t at, size_t size) {
    const vf zero = vf_set1(0.0f);
    const vi sign = vi_set1(0x80), back = vi_set1(0u - 0x80);
    struct extremes e = { zero, zero, zero, vf_unseen() };
    for (size_t i = 0; i < size; i += LANES) {
        const size_t n = size - i < LANES ? size - i : LANES;
        struct elements x;
        read_param(&x, u, s, at + i, n);
        x.m[0] = vf_mul(vf_of_vi(vi_add(vi_xor(vi_load_u8(codes[0] + i), sign), back)), by->m);
        x.m[1] = vf_mul(vf_of_vi(vi_load_u8(codes[1] + i)), by->z);
        read_grad(&x, u, c, s, at + i, n);
        adam8(&x, u, c, f);
        e.least_m = vf_min(e.least_m, x.m[0]), e.most_m = vf_max(e.most_m, x.m[0]);
        e.most_z = vf_max(e.most_z, x.m[1]);
        e.seen = vf_see(e.seen, vf_add(x.m[0], x.m[1]), LIMIT_vf_f32);
        vf_store_f32(b->m + i, x.m[0]), vf_store_f32(b->z + i, x.m[1]);
        step_and_write(&x, u, c, s, at + i, n);
    }
    return e;
}

/* amp__bytes_code_m and _v */
INLINE void code_block(uint8_t *const codes[2], const struct block *b, const struct scales *inverse, uint64_t key,
                       size_t first, size_t size) {
    const vi half = vi_set1(128u << AMP__BYTES_FRACTION), sign = vi_set1(0x80), lower = vi_set1(0xffff);
    const vf one = vf_set1(65536.0f);
    for (size_t i = 0; i < size; i += LANES) {
        const vi random = hash(key, first + i);
        const vf m = vf_load_f32(b->m + i), z = vf_load_f32(b->z + i);
        const vi sum_m = vi_add(vi_add(vi_nearest(vf_mul(m, inverse->m)), half), vi_and(random, lower));
        const vi sum_z = vi_add(vi_nearest(vf_max(one, vf_mul(z, inverse->z))), vi_shr(random, 16));
        vi_store_u8(codes[0] + i, vi_xor(vi_shr(sum_m, AMP__BYTES_FRACTION), sign));
        vi_store_u8(codes[1] + i, vi_where_positive(vi_shr(sum_z, AMP__BYTES_FRACTION), z));
    }
}

static __attribute__((noinline)) void lose_block(const struct amp__update *u, uint8_t *const codes[2], size_t block,
                                                 size_t size) {
    for (int k = 0; k < 2; k++) {
        memset(codes[k], 0, size);
        u->scales[k][block] = AMP__BYTES_LOST;
    }
}

INLINE void update_block(const struct amp__update *u, const struct numbers *c, const struct factors *f,
                         struct streams s, size_t at, size_t size, uint8_t *const codes[2], struct block *b) {
    const size_t block = at / BLOCK;
    const struct scales by = { vf_set1(u->scales[0][block]), vf_set1(u->scales[1][block]) };
    const struct extremes e = step_block(b, (const uint8_t *const *)codes, &by, u, c, f, s, at, size);
    if (__builtin_expect(vf_seen(e.seen, LIMIT_vf_f32), 0)) {
        lose_block(u, codes, block, size);
        return;
    }
    const float least = -vf_least(e.least_m), most = vf_most(e.most_m);
    const float scale_m = amp__bytes_scale_m(least > most ? least : most);
    const float scale_v = amp__bytes_scale_v(vf_most(e.most_z));
    const struct scales inverse = { vf_set1(amp__bytes_inverse(scale_m)), vf_set1(amp__bytes_inverse(scale_v)) };
    code_block(codes, b, &inverse, u->key, (size_t)u->before + at, size);
    u->scales[0][block] = scale_m, u->scales[1][block] = scale_v;
}

/* ---- kernels ---- */

static struct factors factors_of(const struct amp__update *u) {
    return (struct factors){ vf_set1(1.0f / u->correction1), vf_set1(1.0f / sqrtf(u->correction2)),
                             vf_set1(AMP__BYTES_MOST_V) };
}

/* The last block, with less than its elements. */
static __attribute__((noinline)) void update_part(const struct amp__update *u, size_t at, size_t size) {
    const struct numbers c = numbers_of(u);
    const struct factors f = factors_of(u);
    struct block b = { .codes = { { 0 } } };
    uint8_t *const codes[] = { b.codes[0], b.codes[1] };
    for (int k = 0; k < 2; k++) memcpy(codes[k], u->codes[k] + at, size);
    update_block(u, &c, &f, streams_of(u, 0, false), at, size, codes, &b);
    for (int k = 0; k < 2; k++) memcpy(u->codes[k] + at, codes[k], size);
}

INLINE void sweep(const struct amp__update *given, struct streams s, size_t at, size_t end) {
    struct amp__update u = *given; /* no store can change this one */
    const struct numbers c = numbers_of(&u);
    const struct factors f = factors_of(&u);
    struct block b;
    u.stream = u.stream && s.low && (uintptr_t)((const amp__f16 *)u.low + at) % 64 == 0;
    for (; end - at >= BLOCK; at += BLOCK) {
        uint8_t *const codes[] = { u.codes[0] + at, u.codes[1] + at };
        update_block(&u, &c, &f, s, at, BLOCK, codes, &b);
    }
    if (at < end) {
        u.stream = false;
        update_part(&u, at, end - at);
    }
    if (given->stream) fence();
}

static AMP__UPDATE(update_adam8) {
    const struct streams any = streams_of(u, 0, false);
#define SWEEP_COMMON(...)                                                                                              \
    if (same_types(any, (struct streams){ __VA_ARGS__, 0, false })) {                                                  \
        sweep(u, (struct streams){ __VA_ARGS__, 0, false }, begin, end);                                               \
        return;                                                                                                        \
    }
    COMMON_STREAMS(SWEEP_COMMON)
    sweep(u, any, begin, end);
}

amp__update_fn *const AMP__TABLE(adam8) = update_adam8;
