/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed tensors (ref/pack.c). Groups are gone through twice, while the first-level cache has them: for their extremes,
 * of 16-bit types as the integers they are, and for their codes. Those of two rows, half a word apart, are made in the
 * halves of one.
 */
#include "kernels/vector/random.h"

enum { GROUP = AMP__PACK_GROUP, ROW = AMP__PACK_LANES, BATCH = 4 };

/* ---- codes ---- */

struct scaling {
    vf least, inverse;
};

/* With its fraction, 16 bits in all. */
INLINE vi code_of(const struct scaling *s, vf x, int bits, bool zeros) {
    const vi code = vi_nearest(vf_mul(zeros ? x : vf_sub(x, s->least), s->inverse));
    return zeros ? vi_where_positive(vi_add(code, vi_set1(UINT32_C(1) << (16 - bits))), x) : code;
}

/* Codes come into the upper ends of a word's halves, and go down as more do; what was below them leaves the word. */
#define PACK_CODES(type)                                                                                               \
    INLINE void pack_codes_##type(const amp__##type *x, const struct amp__pack_plan *plan, uint64_t key,               \
                                  uint32_t *codes, int bits, bool zeros) {                                             \
        enum { ROWS = 16 };                                                                                            \
        const struct scaling s = { vf_set1(plan->least), vf_set1(plan->inverse) };                                     \
        const size_t rows = ROWS / (size_t)bits; /* of half a word */                                                  \
        const vi upper = vi_set1(((UINT32_C(1) << bits) - 1) * UINT32_C(0x10001) << (16 - bits));                      \
        for (size_t j = 0; j < ROW; j += LANES) {                                                                      \
            vi random = hash(key, j);                                                                                  \
            const vi step = hash(key, ROW + j);                                                                        \
            for (size_t word = 0; word < (size_t)bits / 2; word++) {                                                   \
                const amp__##type *row = x + word * 2 * rows * ROW + j;                                                \
                vi sum = random;                                                                                       \
                _Pragma("GCC unroll 8") for (size_t i = 0; i < rows; i++, row += ROW) {                                \
                    const vi below = code_of(&s, vf_load_##type(row), bits, zeros);                                    \
                    const vi above = code_of(&s, vf_load_##type(row + rows * ROW), bits, zeros);                       \
                    const vi both = vi_add(vi_halves(below, above), vi_shr_halves(random, bits));                      \
                    sum = i ? vi_choose(upper, both, vi_shr(sum, bits)) : both;                                        \
                    random = vi_add(random, step);                                                                     \
                }                                                                                                      \
                vi_store(codes + word * ROW + j, sum);                                                                 \
            }                                                                                                          \
        }                                                                                                              \
    }
#define PACK_WIDTH(type, bits)                                                                                         \
    static void pack_##type##_##bits(const void *x, const struct amp__pack_plan *plan, uint64_t key,                   \
                                     uint32_t *codes) {                                                                \
        if (plan->zeros) pack_codes_##type(x, plan, key, codes, bits, true);                                           \
        else pack_codes_##type(x, plan, key, codes, bits, false);                                                      \
    }
#define PACK_TYPE(type) PACK_CODES(type) PACK_WIDTH(type, 8) PACK_WIDTH(type, 4) PACK_WIDTH(type, 2)
PACK_TYPE(f32)
PACK_TYPE(f16)
PACK_TYPE(bf16)

/* ---- one group ---- */

struct extent {
    float min, max;
    bool finite;
};

/* A sum is not finite if an element is not; if it is not for another reason, elements are looked at. */
static void extent_f32(const void *src, struct extent *e) {
    const float *x = src;
    vf a = vf_load_f32(x), b = vf_load_f32(x + LANES);
    vf min = a, min2 = b, max = a, max2 = b, sum = a, sum2 = b;
    for (size_t i = PAIR; i < GROUP; i += PAIR) {
        a = vf_load_f32(x + i), b = vf_load_f32(x + i + LANES);
        min = vf_min(min, a), min2 = vf_min(min2, b);
        max = vf_max(max, a), max2 = vf_max(max2, b);
        sum = vf_add(sum, a), sum2 = vf_add(sum2, b);
    }
    e->min = vf_least(vf_min(min, min2)), e->max = vf_most(vf_max(max, max2)), e->finite = true;
    if (vf_seen(vf_see(vf_unseen(), vf_add(sum, sum2), LIMIT_vf_f32), LIMIT_vf_f32))
        for (size_t i = 0; i < GROUP; i++) e->finite = e->finite && amp__pack_finite(x[i]);
}

/* In the order of integers: infinities and NaNs are at the ends. */
INLINE vw ordered(const uint16_t *x) { return vw_order(vw_load(x)); }
#define EXTENT(type, infinity)                                                                                         \
    static void extent_##type(const void *src, struct extent *e) {                                                     \
        enum { HALVES = sizeof(vw) / 2 };                                                                              \
        const uint16_t *x = src;                                                                                       \
        vw a = ordered(x), b = ordered(x + HALVES), min = vw_lesser(a, b), max = vw_larger(a, b);                      \
        for (size_t i = 2 * HALVES; i < GROUP; i += 2 * HALVES) {                                                      \
            a = ordered(x + i), b = ordered(x + i + HALVES);                                                           \
            min = vw_lesser(min, vw_lesser(a, b)), max = vw_larger(max, vw_larger(a, b));                              \
        }                                                                                                              \
        const int least = vw_least(min), most = vw_most(max);                                                          \
        e->min = amp__##type##_to_f32((uint16_t)(least ^ (least >> 15 & 0x7fff)));                                     \
        e->max = amp__##type##_to_f32((uint16_t)(most ^ (most >> 15 & 0x7fff)));                                       \
        e->finite = least > ~(infinity) && most < (infinity);                                                          \
    }
EXTENT(f16, 0x7c00)
EXTENT(bf16, 0x7f80)

#define PACK_BITS(type)                                                                                                \
    static uint32_t pack_bits_##type(const void *src, float max, uint32_t *codes) {                                    \
        const amp__##type *x = src;                                                                                    \
        const vf zero = vf_set1(0.0f), largest = vf_set1(max);                                                         \
        uint32_t inexact = 0;                                                                                          \
        for (size_t word = 0; word < GROUP / 32; word++) {                                                             \
            uint32_t differ = 0, other = 0;                                                                            \
            for (size_t i = 0; i < 32; i += LANES) {                                                                   \
                const vf value = vf_load_##type(x + word * 32 + i);                                                    \
                differ |= vf_differ(value, zero) << i;                                                                 \
                other |= vf_differ(value, largest) << i;                                                               \
            }                                                                                                          \
            codes[word] = differ;                                                                                      \
            inexact |= differ & other;                                                                                 \
        }                                                                                                              \
        return inexact ? AMP__PACK_INEXACT : 0;                                                                        \
    }
PACK_BITS(f32)
PACK_BITS(f16)
PACK_BITS(bf16)

typedef void codes_fn(const void *x, const struct amp__pack_plan *plan, uint64_t key, uint32_t *codes);
static const struct {
    size_t width;
    void (*extent)(const void *x, struct extent *e);
    uint32_t (*bits)(const void *x, float max, uint32_t *codes);
    codes_fn *of8, *of4, *of2;
} types[AMP__TYPES] = {
    [AMP_FLOAT32] = { 4, extent_f32, pack_bits_f32, pack_f32_8, pack_f32_4, pack_f32_2 },
    [AMP_FLOAT16] = { 2, extent_f16, pack_bits_f16, pack_f16_8, pack_f16_4, pack_f16_2 },
    [AMP_BFLOAT16] = { 2, extent_bf16, pack_bits_bf16, pack_bf16_8, pack_bf16_4, pack_bf16_2 },
};

static void pack_quantized(const void *x, const struct amp__pack_plan *plan, const struct amp__pack *p, uint64_t group,
                           uint32_t *codes) {
    const amp_dtype type = plan->huge ? AMP_FLOAT32 : p->type;
    float quarters[GROUP];
    if (plan->huge)
        for (size_t i = 0; i < GROUP; i++)
            quarters[i] = amp__pack_quarter(p->type == AMP_FLOAT32 ? ((const float *)x)[i]
                                                                   : amp__bf16_to_f32(((const amp__bf16 *)x)[i]));
    (p->bits == 8 ? types[type].of8 : p->bits == 4 ? types[type].of4 : types[type].of2)(
        plan->huge ? quarters : x, plan, amp__pack_key(p->seed, group), codes);
}

static uint32_t pack_group(const void *x, const struct extent *e, const struct amp__pack_plan *plan,
                           const struct amp__pack *p, uint64_t group) {
    uint32_t *codes = amp__pack_codes(p->packed, p->bits, group), seen = 0;
    uint32_t *header = amp__pack_headers(p->packed, p->bits, p->size) + group;
    if (p->bits == 1) {
        seen = types[p->type].bits(x, e->max, codes);
        *header = e->max == 0.0f ? 0 : amp__f32_bits(e->max);
    } else if (e->finite) {
        pack_quantized(x, plan, p, group, codes);
        *header = plan->header;
    } else {
        memset(codes, 0, (size_t)p->bits * 32);
    }
    if (e->finite) return seen;
    *header = AMP__PACK_NONFINITE;
    return AMP__PACK_NONFINITE_SEEN | AMP__PACK_INEXACT;
}

/* src: n whole groups, BATCH at most. A plan is a long chain of few operations, two divisions among them: those of some
 * groups go on beside each other. */
static uint32_t pack_batch(const struct amp__pack *p, const char *src, uint64_t first, size_t n) {
    const size_t bytes = GROUP * types[p->type].width;
    struct extent e[BATCH];
    struct amp__pack_plan plan[BATCH] = { { 0.0f, 0.0f, 0, false, false } };
    uint32_t seen = 0;
    for (size_t i = 0; i < n; i++) {
        prefetch(src, AHEAD + i * bytes, bytes / 2);
        types[p->type].extent(src + i * bytes, &e[i]);
    }
    for (size_t i = 0; i < n && p->bits != 1; i++) plan[i] = amp__pack_plan(e[i].min, e[i].max, p->bits);
    for (size_t i = 0; i < n; i++) {
        prefetch(src, AHEAD + i * bytes + bytes / 2, bytes / 2);
        seen |= pack_group(src + i * bytes, &e[i], &plan[i], p, first + i);
    }
    return seen;
}

/* The last group, filled up with its last element. The codes of the filling are removed. */
static uint32_t pack_tail(const struct amp__pack *p, const char *src, size_t n, uint64_t group) {
    const size_t width = types[p->type].width;
    uint32_t *codes = amp__pack_codes(p->packed, p->bits, group);
    char whole[GROUP * sizeof(float)];
    memcpy(whole, src, n * width);
    for (size_t e = n; e < GROUP; e++) memcpy(whole + e * width, src + (n - 1) * width, width);
    const uint32_t seen = pack_batch(p, whole, group, 1), bits = (uint32_t)p->bits, rows = 32 / bits;
    for (uint32_t e = (uint32_t)n; e < GROUP; e++)
        if (bits == 1) codes[e / 32] &= ~(UINT32_C(1) << e % 32);
        else codes[e / ROW / rows * ROW + e % ROW] &= ~(((UINT32_C(1) << bits) - 1) << e / ROW % rows * bits);
    return seen;
}

static AMP__PACK(pack) {
    const size_t width = types[p->type].width;
    uint32_t seen = 0;
    for (size_t n; (n = (end - begin) / GROUP); begin += n * GROUP) {
        n = n < BATCH ? n : BATCH;
        seen |= pack_batch(p, (const char *)p->src + begin * width, begin / GROUP, n);
    }
    if (begin < end) seen |= pack_tail(p, (const char *)p->src + begin * width, end - begin, begin / GROUP);
    return seen;
}

amp__pack_fn *const AMP__TABLE(pack) = pack;
