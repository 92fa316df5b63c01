/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed tensors (ref/pack.c). Groups are gone through twice, while the first-level cache has them: for their extremes,
 * of 16-bit types as the integers they are, and for their codes. Those of two rows, half a word apart, are made in the
 * halves of one. Headers are made for LANES groups at once.
 */
#include "kernels/vector/random.h"

enum { GROUP = AMP__PACK_GROUP, ROW = AMP__PACK_LANES };

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

/* ---- extremes ---- */

/* Groups, one a lane. low, high: the extremes of 16-bit types as they are; least to header as in amp__pack_plan. */
struct batch {
    _Alignas(64) float min[LANES], max[LANES], least[LANES], inverse[LANES];
    uint32_t header[LANES];
    uint16_t low[LANES], high[LANES];
    bool finite[LANES];
};

/* A sum is not finite if an element is not; if it is not for another reason, elements are looked at. */
static void extent_f32(const void *src, struct batch *batch, size_t i) {
    const float *x = src;
    vf a = vf_load_f32(x), b = vf_load_f32(x + LANES);
    vf min = a, min2 = b, max = a, max2 = b, sum = a, sum2 = b;
    for (size_t e = PAIR; e < GROUP; e += PAIR) {
        a = vf_load_f32(x + e), b = vf_load_f32(x + e + LANES);
        min = vf_min(min, a), min2 = vf_min(min2, b);
        max = vf_max(max, a), max2 = vf_max(max2, b);
        sum = vf_add(sum, a), sum2 = vf_add(sum2, b);
    }
    batch->min[i] = vf_least(vf_min(min, min2)), batch->max[i] = vf_most(vf_max(max, max2)), batch->finite[i] = true;
    if (vf_seen(vf_see(vf_unseen(), vf_add(sum, sum2), LIMIT_vf_f32), LIMIT_vf_f32))
        for (size_t e = 0; e < GROUP; e++) batch->finite[i] = batch->finite[i] && amp__pack_finite(x[e]);
}

/* In the order of integers: infinities and NaNs are at the ends. */
INLINE vw ordered(const uint16_t *x) { return vw_order(vw_load(x)); }
enum { HALVES = sizeof(vw) / 2 };
INLINE void extent_16(const uint16_t *x, struct batch *batch, size_t i, int infinity) {
    vw a = ordered(x), b = ordered(x + HALVES), min = vw_lesser(a, b), max = vw_larger(a, b);
    for (size_t e = 2 * HALVES; e < GROUP; e += 2 * HALVES) {
        a = ordered(x + e), b = ordered(x + e + HALVES);
        min = vw_lesser(min, vw_lesser(a, b)), max = vw_larger(max, vw_larger(a, b));
    }
    const int least = vw_least(min), most = vw_most(max);
    batch->low[i] = (uint16_t)(least ^ (least >> 15 & 0x7fff));
    batch->high[i] = (uint16_t)(most ^ (most >> 15 & 0x7fff));
    batch->finite[i] = least > ~infinity && most < infinity;
}
static void extent_f16(const void *x, struct batch *batch, size_t i) { extent_16(x, batch, i, 0x7c00); }
static void extent_bf16(const void *x, struct batch *batch, size_t i) { extent_16(x, batch, i, 0x7f80); }

#define WIDEN(type)                                                                                                    \
    static void widen_##type(struct batch *b) {                                                                        \
        vf_store_f32(b->min, vf_load_##type(b->low)), vf_store_f32(b->max, vf_load_##type(b->high));                   \
    }
WIDEN(f16)
WIDEN(bf16)

/* ---- headers ---- */

INLINE vi rounded_away(vi bits, vi by) { return vi_and(vi_add(bits, by), vi_set1(0xffff0000u)); }

/* amp__pack_plan of all groups that are not huge. */
static void plan_batch(struct batch *b, int bits) {
    const vi min = vi_bits(vf_load_f32(b->min)), all = vi_set1(UINT32_MAX), upper = vi_set1(0xffff);
    const vi not_zero = vi_where_positive(all, vf_of_bits(vi_and(min, vi_set1(0x7fffffff))));
    const vi least = vi_and(rounded_away(min, vi_mul(vi_shr(min, 31), upper)), not_zero);
    const vf range = vf_sub(vf_load_f32(b->max), vf_of_bits(least)), most = vf_set1((float)((1 << bits) - 1));
    const vf steps = vf_of_bits(vi_choose(not_zero, vi_bits(most), vi_bits(vf_sub(most, vf_set1(1.0f)))));
    const vi away = rounded_away(vi_bits(vf_div(range, steps)), upper);
    const vf step = vf_max(vf_set1(AMP__PACK_LEAST_STEP), vf_of_bits(away));
    const vf inverse = vf_div(vf_set1((float)(1 << (16 - bits))), step);
    const vi zeros = vi_choose(not_zero, vi_set1(0), vi_set1(AMP__PACK_ZEROS));
    vf_store_f32(b->least, vf_of_bits(least));
    vf_store_f32(b->inverse, vf_of_bits(vi_where_positive(vi_bits(inverse), range)));
    vi_store(b->header, vi_or(vi_or(vi_where_positive(vi_bits(step), range), vi_shr(least, 16)), zeros));
}

INLINE struct amp__pack_plan plan_of(const struct batch *b, size_t i, int bits) {
    const bool huge = !amp__pack_finite(b->max[i] - b->least[i]);
    if (__builtin_expect(huge, 0)) return amp__pack_plan(b->min[i], b->max[i], bits);
    return (struct amp__pack_plan){ b->least[i], b->inverse[i], b->header[i], b->header[i] >> 31, false };
}

/* ---- one group ---- */

/* 1 bit: an element is the largest, or is 0. In vectors of `n` elements. */
#define PACK_BITS(name, type, vector, n, load, nonzero, most)                                                          \
    static uint32_t pack_bits_##name(const void *src, const struct batch *batch, size_t i, uint32_t *codes) {          \
        const type *x = src;                                                                                           \
        const vector largest = most;                                                                                   \
        uint32_t inexact = 0;                                                                                          \
        for (size_t word = 0; word < GROUP / 32; word++) {                                                             \
            uint32_t differ = 0, other = 0;                                                                            \
            for (size_t at = 0; at < 32; at += (n)) {                                                                  \
                const vector value = load(x + word * 32 + at);                                                         \
                differ |= nonzero(value) << at;                                                                        \
                other |= vector##_differ(value, largest) << at;                                                        \
            }                                                                                                          \
            codes[word] = differ;                                                                                      \
            inexact |= differ & other;                                                                                 \
        }                                                                                                              \
        return inexact;                                                                                                \
    }
INLINE uint32_t nonzero_f32(vf x) { return vf_differ(x, vf_set1(0.0f)); }
PACK_BITS(f32, float, vf, LANES, vf_load_f32, nonzero_f32, vf_set1(batch->max[i]))
PACK_BITS(16, uint16_t, vw, HALVES, vw_load, vw_nonzero, vw_set1(batch->high[i]))

typedef void codes_fn(const void *x, const struct amp__pack_plan *plan, uint64_t key, uint32_t *codes);
static const struct {
    size_t width;
    void (*extent)(const void *x, struct batch *batch, size_t i);
    void (*widen)(struct batch *batch); /* min and max from low and high */
    uint32_t (*bits)(const void *x, const struct batch *batch, size_t i, uint32_t *codes);
    codes_fn *of8, *of4, *of2;
} types[AMP__TYPES] = {
    [AMP_FLOAT32] = { 4, extent_f32, NULL, pack_bits_f32, pack_f32_8, pack_f32_4, pack_f32_2 },
    [AMP_FLOAT16] = { 2, extent_f16, widen_f16, pack_bits_16, pack_f16_8, pack_f16_4, pack_f16_2 },
    [AMP_BFLOAT16] = { 2, extent_bf16, widen_bf16, pack_bits_16, pack_bf16_8, pack_bf16_4, pack_bf16_2 },
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

static uint32_t pack_group(const void *x, const struct batch *b, size_t i, const struct amp__pack *p, uint64_t group) {
    uint32_t *codes = amp__pack_codes(p->packed, p->bits, group), seen = 0;
    uint32_t *header = amp__pack_headers(p->packed, p->bits, p->size) + group;
    if (p->bits == 1) {
        seen = types[p->type].bits(x, b, i, codes) ? AMP__PACK_INEXACT : 0;
        *header = b->max[i] == 0.0f ? 0 : amp__f32_bits(b->max[i]);
    } else if (b->finite[i]) {
        const struct amp__pack_plan plan = plan_of(b, i, p->bits);
        pack_quantized(x, &plan, p, group, codes);
        *header = plan.header;
    } else {
        memset(codes, 0, (size_t)p->bits * 32);
    }
    if (b->finite[i]) return seen;
    *header = AMP__PACK_NONFINITE;
    return AMP__PACK_NONFINITE_SEEN | AMP__PACK_INEXACT;
}

/* src: whole groups. The extremes of a batch are found between the codes of the one before, so that memory is read all
 * the time. */
static uint32_t pack_groups(const struct amp__pack *p, const char *src, uint64_t first, size_t groups) {
    const size_t bytes = GROUP * types[p->type].width;
    struct batch batches[2], *now = &batches[0], *next = &batches[1];
    uint32_t seen = 0;
    for (size_t at = 0, n = 0, more; at < groups || n; at += more, n = more) {
        more = groups - at < LANES ? groups - at : LANES;
        *next = (struct batch){ .min = { 0.0f } };
        for (size_t i = 0; i < LANES; i++) {
            const size_t before = at - n + i;
            if (i < more) {
                prefetch(src + (at + i) * bytes, AHEAD, bytes);
                types[p->type].extent(src + (at + i) * bytes, next, i);
            }
            if (i < n) seen |= pack_group(src + before * bytes, now, i, p, first + before);
        }
        if (types[p->type].widen) types[p->type].widen(next);
        if (p->bits != 1) plan_batch(next, p->bits);
        struct batch *const done = now;
        now = next, next = done;
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
    const uint32_t seen = pack_groups(p, whole, group, 1), bits = (uint32_t)p->bits, rows = 32 / bits;
    for (uint32_t e = (uint32_t)n; e < GROUP; e++)
        if (bits == 1) codes[e / 32] &= ~(UINT32_C(1) << e % 32);
        else codes[e / ROW / rows * ROW + e % ROW] &= ~(((UINT32_C(1) << bits) - 1) << e / ROW % rows * bits);
    return seen;
}

static AMP__PACK(pack) {
    const size_t width = types[p->type].width, groups = (end - begin) / GROUP, whole = begin + groups * GROUP;
    uint32_t seen = pack_groups(p, (const char *)p->src + begin * width, begin / GROUP, groups);
    if (whole < end) seen |= pack_tail(p, (const char *)p->src + whole * width, end - whole, whole / GROUP);
    return seen;
}

amp__pack_fn *const AMP__TABLE(pack) = pack;
