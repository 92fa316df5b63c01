/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adam with moments in 8 bits, in the operations of struct amp__update. A block's scales are known behind its last
 * element, so it is gone through twice: to its new moments, then to its parameters and codes. The second pass runs
 * beside the next block's first one, so that roots, divisions and codes wait for no result of their own loop.
 */
#include "kernels/vector/update.h"

#include "kernels/bytes.h"

#include <math.h>

enum { BLOCK = AMP__BYTES_BLOCK };

struct factors {
    vf of_m, of_z, most_v; /* in place of corrections, and the limit of v */
    bool early, late;      /* the decay is the gradient's, is the step's */
};

static struct factors factors_of(const struct amp__update *u) {
    return (struct factors){ vf_set1(1.0f / u->correction1), vf_set1(1.0f / sqrtf(u->correction2)),
                             vf_set1(AMP__BYTES_MOST_V), u->weight_decay != 0.0f && !u->decoupled,
                             u->weight_decay != 0.0f && u->decoupled };
}

/* Moments of a block. Codes of a part are copies. */
struct block {
    _Alignas(64) float m[BLOCK];
    _Alignas(64) float z[BLOCK];
    uint8_t codes[2][BLOCK];
};

struct scales {
    vf m, z;
};

/* A block after its first pass: its first element, the begin of its elements' random numbers, and 2^16 / scales. No
 * block: b is NULL. */
struct begun {
    struct block *b;
    uint8_t *codes[2];
    size_t at;
    vi random;
    struct scales inverse;
};

/* ---- LANES elements ---- */

/* The largest magnitudes as integers. A NaN's sign does not matter. */
struct extremes {
    vi m, z;
};

/* The moments of the n elements, LANES at most, of b from i on, which lie at at + i. */
INLINE void begin_lanes(struct block *b, uint8_t *const codes[2], const struct scales *by, struct extremes *e,
                        const struct amp__update *u, const struct numbers *c, const struct factors *f,
                        struct streams s, size_t at, size_t i, size_t n) {
    struct elements x;
    read_grad(&x, u, c, s, at + i, n);
    if (f->early) {
        read_param(&x, u, s, at + i, n);
        x.g = vf_add(x.g, vf_mul(c->weight_decay, x.p));
    }
    const vf m = averaged(vf_mul(vf_of_vi(vi_load_s8(codes[0] + i)), by->m), x.g, c);
    const vf before = vf_mul(vf_of_vi(vi_load_u8(codes[1] + i)), by->z), squares = vf_mul(before, before);
    const vf v = vf_add(vf_mul(c->beta2, squares), vf_mul(vf_mul(c->rest2, x.g), x.g));
    const vf z = vf_sqrt(vf_min(f->most_v, v));
    e->m = vi_larger(e->m, vi_and(vi_bits(m), vi_set1(0x7fffffff))), e->z = vi_larger(e->z, vi_bits(z));
    vf_store_f32(b->m + i, m), vf_store_f32(b->z + i, z);
}

INLINE void step_lanes(const struct begun *w, const struct amp__update *u, const struct numbers *c,
                       const struct factors *f, struct streams s, size_t i, size_t n) {
    const vf m = vf_load_f32(w->b->m + i), z = vf_load_f32(w->b->z + i);
    struct elements x;
    read_param(&x, u, s, w->at + i, n);
    x.u = vf_div(vf_mul(m, f->of_m), vf_add(vf_mul(z, f->of_z), c->eps));
    if (f->late) x.u = vf_add(x.u, vf_mul(c->weight_decay, x.p));
    step_and_write(&x, u, c, s, w->at + i, n);
}

/* amp__bytes_code_m and _v: the sums' third bytes. Adding 128 and flipping the upper bit change no byte of m. */
INLINE void code_lanes(struct begun *w, uint64_t key, size_t i) {
    const vi random = hash_end(key, w->random), lower = vi_set1(0xffff);
    const vf m = vf_load_f32(w->b->m + i), z = vf_load_f32(w->b->z + i), one = vf_set1(65536.0f);
    const vi sum_m = vi_add(vi_nearest(vf_mul(m, w->inverse.m)), vi_and(random, lower));
    const vi sum_z = vi_add(vi_nearest(vf_max(one, vf_mul(z, w->inverse.z))), vi_shr(random, 16));
    w->random = vi_add(w->random, vi_set1(LANES * AMP__PACK_NEXT));
    vi_store_third_u8(w->codes[0] + i, w->codes[1] + i, sum_m, vi_where_positive(sum_z, z));
}

/* ---- blocks, whose elements begin at `at` ---- */

/* Where no other is begun. */
static __attribute__((noinline)) void end_block(struct begun *w, const struct amp__update *u, size_t size) {
    const struct numbers c = numbers_of(u);
    const struct factors f = factors_of(u);
    for (size_t i = 0; i < size; i += LANES) {
        step_lanes(w, u, &c, &f, streams_of(u, 0, false), i, size - i < LANES ? size - i : LANES);
        code_lanes(w, u->key, i);
    }
}

/* Begins a block, and ends the one that was begun before. */
INLINE struct begun begin_block(const struct amp__update *u, const struct numbers *c, const struct factors *f,
                                struct streams s, size_t at, size_t size, uint8_t *const codes[2], struct block *b,
                                struct begun before) {
    const size_t block = at / BLOCK;
    const struct scales by = { vf_set1(u->scales[0][block]), vf_set1(u->scales[1][block]) };
    struct extremes e = { vi_set1(0), vi_set1(0) };
    for (size_t i = 0; i < size; i += LANES) {
        fetch_ahead(u, s, at + i);
        begin_lanes(b, codes, &by, &e, u, c, f, s, at, i, size - i < LANES ? size - i : LANES);
        if (!before.b) continue;
        step_lanes(&before, u, c, f, s, i, LANES);
        code_lanes(&before, u->key, i);
    }
    const float most_m = vf_most(vf_of_bits(e.m)), most_z = vf_most(vf_of_bits(e.z));
    const vf largest = vf_of_bits(vi_larger(e.m, e.z));
    float scale_m = amp__bytes_scale_m(most_m), scale_v = amp__bytes_scale_v(most_z);
    struct begun w = { b, { codes[0], codes[1] }, at, hash_begin(u->key, (size_t)u->before + at),
                       { vf_set1(amp__bytes_inverse(scale_m)), vf_set1(amp__bytes_inverse(scale_v)) } };
    if (__builtin_expect(vf_seen(vf_see(vf_unseen(), largest, LIMIT_vf_f32), LIMIT_vf_f32), 0)) {
        for (int k = 0; k < 2; k++) memset(codes[k], 0, size), w.codes[k] = b->codes[k];
        scale_m = scale_v = AMP__BYTES_LOST;
    }
    u->scales[0][block] = amp__bytes_stored_m(scale_m), u->scales[1][block] = scale_v;
    return w;
}

/* ---- kernels ---- */

/* The last block, with less than its elements. */
static __attribute__((noinline)) void update_part(const struct amp__update *u, size_t at, size_t size) {
    const struct numbers c = numbers_of(u);
    const struct factors f = factors_of(u);
    struct block b = { .codes = { { 0 } } };
    uint8_t codes[2][BLOCK] = { { 0 } };
    uint8_t *const of[] = { codes[0], codes[1] };
    for (int k = 0; k < 2; k++) memcpy(codes[k], u->codes[k] + at, size);
    struct begun w = begin_block(u, &c, &f, streams_of(u, 0, false), at, size, of, &b, (struct begun){ .b = NULL });
    end_block(&w, u, size);
    for (int k = 0; k < 2; k++) memcpy(u->codes[k] + at, codes[k], size);
}

INLINE void sweep(const struct amp__update *given, struct streams s, size_t at, size_t end) {
    struct amp__update u = *given; /* no store can change this one */
    const struct numbers c = numbers_of(&u);
    const struct factors f = factors_of(&u);
    struct block b[2];
    struct begun w = { .b = NULL };
    u.stream = u.stream && s.low && (uintptr_t)((const amp__f16 *)u.low + at) % 64 == 0;
    for (size_t k = 0; end - at >= BLOCK; at += BLOCK, k ^= 1) {
        uint8_t *const codes[] = { u.codes[0] + at, u.codes[1] + at };
        w = begin_block(&u, &c, &f, s, at, BLOCK, codes, &b[k], w);
    }
    if (w.b) end_block(&w, &u, BLOCK);
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
