/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed tensors (ref/pack.c). Some groups are gone through twice, while the first-level cache has them: for their
 * extremes, and for their codes. Elements of 16 bits are widened once. A code is made in the upper half of a word, out
 * of whose lower half the random bits carry: so two rows of a word, half a word apart, need no more than one shift.
 */
#include "kernels/vector/vector.h"

#include "kernels/pack.h"

#define INLINE static inline __attribute__((always_inline))
enum { GROUP = AMP__PACK_GROUP, ROW = AMP__PACK_LANES, BATCH = 4 };

/* ---- random numbers ---- */

/* The hashes' counters of the first row's lanes. */
static const uint32_t lane_counters[ROW] = {
#define COUNTER(lane) UINT32_C(lane) * AMP__PACK_NEXT
    COUNTER(0), COUNTER(1), COUNTER(2),  COUNTER(3),  COUNTER(4),  COUNTER(5),  COUNTER(6),  COUNTER(7),
    COUNTER(8), COUNTER(9), COUNTER(10), COUNTER(11), COUNTER(12), COUNTER(13), COUNTER(14), COUNTER(15),
};

struct key {
    vi low[ROW / LANES], high;
};

static inline struct key key_of(uint64_t seed, uint64_t group) {
    const uint64_t key = amp__pack_key(seed, group);
    struct key k = { .high = vi_set1((uint32_t)(key >> 32)) };
    for (size_t j = 0; j < ROW / LANES; j++)
        k.low[j] = vi_add(vi_set1((uint32_t)key), vi_load(lane_counters + j * LANES));
    return k;
}

/* Of rows 2 * two and 2 * two + 1. */
INLINE vi hash(const struct key *k, size_t j, uint32_t two) {
    vi x = vi_add(k->low[j], vi_set1(two * ROW * AMP__PACK_NEXT));
    x = vi_mul(vi_xor(x, vi_shr(x, 16)), vi_set1(AMP__PACK_MIX_1));
    x = vi_mul(vi_xor(vi_xor(x, vi_shr(x, 15)), k->high), vi_set1(AMP__PACK_MIX_2));
    return vi_xor(x, vi_shr(x, 15));
}

/* ---- codes ---- */

struct scaling {
    vf least, inverse, top;
};

/* The code in the upper half, anything below. */
INLINE vi code_of(const struct scaling *s, const float *x, vi random, bool zeros) {
    const vf value = vf_load_f32(x);
    const vf place = vf_mul(zeros ? value : vf_sub(value, s->least), s->inverse);
    const vi sum = vi_add(vi_nearest(vf_min(s->top, place)), random);
    return zeros ? vi_where_positive(vi_add(sum, vi_set1(0x10000)), value) : sum;
}

/* Rows 2 * two and the next of 16 lanes, and those half a word further, which are 16 bits further: `bits` apart. */
INLINE vi four_rows(const struct scaling *s, const struct key *k, const float *x, size_t j, uint32_t two, int bits,
                    bool zeros) {
    const uint32_t further = 8 / (uint32_t)bits; /* pairs */
    const vi h = hash(k, j, two), h2 = hash(k, j, two + further), low = vi_set1(0xffff);
    const float *row = x + two * 2 * ROW + j * LANES, *row2 = row + further * 2 * ROW;
    const vi even = code_of(s, row, vi_and(h, low), zeros), even2 = code_of(s, row2, vi_and(h2, low), zeros);
    const vi odd = code_of(s, row + ROW, vi_shr(h, 16), zeros), odd2 = code_of(s, row2 + ROW, vi_shr(h2, 16), zeros);
    return vi_or(vi_upper_halves(even, even2), vi_shl(vi_upper_halves(odd, odd2), bits));
}

INLINE void pack_codes(const float *x, const struct amp__pack_plan *plan, uint64_t seed, uint64_t group,
                       uint32_t *codes, int bits, bool zeros) {
    const struct scaling s = { vf_set1(plan->least), vf_set1(plan->inverse), vf_set1(plan->top) };
    const struct key k = key_of(seed, group);
    for (uint32_t word = 0; word < (uint32_t)bits / 2; word++)
        for (size_t j = 0; j < ROW / LANES; j++) {
            const uint32_t two = word * 16 / (uint32_t)bits;
            uint32_t more = 8 / (uint32_t)bits - 1;
            vi sum = four_rows(&s, &k, x, j, two + more, bits, zeros);
            while (more--) sum = vi_or(vi_shl(sum, 2 * bits), four_rows(&s, &k, x, j, two + more, bits, zeros));
            vi_store(codes + word * ROW + j * LANES, sum);
        }
}

#define PACK_CODES(bits)                                                                                               \
    static void pack_codes_##bits(const float *x, const struct amp__pack_plan *plan, uint64_t seed, uint64_t group,    \
                                  uint32_t *codes) {                                                                   \
        if (plan->zeros) pack_codes(x, plan, seed, group, codes, bits, true);                                          \
        else pack_codes(x, plan, seed, group, codes, bits, false);                                                     \
    }
PACK_CODES(8)
PACK_CODES(4)
PACK_CODES(2)

/* ---- one group ---- */

struct extent {
    float min, max;
    bool finite;
};

/* A sum is not finite if an element is not; if it is not for another reason, elements are looked at. */
INLINE struct extent extent_of(vf min, vf max, vf sum, const float *x) {
    struct extent e = { vf_least(min), vf_most(max), true };
    if (vf_seen(vf_see(vf_unseen(), sum, LIMIT_vf_f32), LIMIT_vf_f32))
        for (size_t i = 0; i < GROUP; i++) e.finite = e.finite && amp__pack_finite(x[i]);
    return e;
}

/* Of whole groups; *x are the elements as floats, in work if they were of 16 bits. */
#define EXTENT(type, widen_into)                                                                                       \
    static struct extent extent_##type(const void *src, float work[GROUP], const float **x) {                          \
        const amp__##type *from = src;                                                                                 \
        vf a = vf_load_##type(from), b = vf_load_##type(from + LANES);                                                 \
        vf min = a, min2 = b, max = a, max2 = b, sum = a, sum2 = b;                                                    \
        widen_into(0, a) widen_into(LANES, b)                                                                          \
        for (size_t i = PAIR; i < GROUP; i += PAIR) {                                                                  \
            a = vf_load_##type(from + i), b = vf_load_##type(from + i + LANES);                                        \
            min = vf_min(min, a), min2 = vf_min(min2, b);                                                              \
            max = vf_max(max, a), max2 = vf_max(max2, b);                                                              \
            sum = vf_add(sum, a), sum2 = vf_add(sum2, b);                                                              \
            widen_into(i, a) widen_into(i + LANES, b)                                                                  \
        }                                                                                                              \
        *x = sizeof *from == sizeof *work ? src : work;                                                                \
        return extent_of(vf_min(min, min2), vf_max(max, max2), vf_add(sum, sum2), *x);                                 \
    }
#define WIDEN(at, x) vf_store_f32(work + (at), x);
#define AS_IT_IS(at, x) (void)work;
EXTENT(f32, AS_IT_IS)
EXTENT(f16, WIDEN)
EXTENT(bf16, WIDEN)

static uint32_t pack_bits(const float *x, float max, uint32_t *codes) {
    const vf zero = vf_set1(0.0f), largest = vf_set1(max);
    uint32_t inexact = 0;
    for (size_t word = 0; word < GROUP / 32; word++) {
        uint32_t differ = 0, other = 0;
        for (size_t i = 0; i < 32; i += LANES) {
            const vf value = vf_load_f32(x + word * 32 + i);
            differ |= vf_differ(value, zero) << i;
            other |= vf_differ(value, largest) << i;
        }
        codes[word] = differ;
        inexact |= differ & other;
    }
    return inexact ? AMP__PACK_INEXACT : 0;
}

static void pack_quantized(const float *x, const struct amp__pack_plan *plan, const struct amp__pack *p, uint64_t group,
                           uint32_t *codes) {
    float quarters[GROUP];
    if (plan->huge)
        for (size_t i = 0; i < GROUP; i++) quarters[i] = amp__pack_quarter(x[i]);
    (p->bits == 8 ? pack_codes_8 : p->bits == 4 ? pack_codes_4 : pack_codes_2)(plan->huge ? quarters : x, plan, p->seed,
                                                                              group, codes);
}

static uint32_t pack_group(const float *x, const struct extent *e, const struct amp__pack_plan *plan,
                           const struct amp__pack *p, uint64_t group) {
    uint32_t *codes = amp__pack_codes(p->packed, p->bits, group), seen = 0;
    uint32_t *header = amp__pack_headers(p->packed, p->bits, p->size) + group;
    if (p->bits == 1) {
        seen = pack_bits(x, e->max, codes);
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
    const size_t bytes = GROUP * (p->type == AMP_FLOAT32 ? 4 : 2);
    float work[BATCH][GROUP];
    const float *x[BATCH];
    struct extent e[BATCH];
    struct amp__pack_plan plan[BATCH] = { { 0.0f, 0.0f, 0.0f, 0, false, false } };
    uint32_t seen = 0;
    for (size_t i = 0; i < n; i++)
        e[i] = p->type == AMP_FLOAT32 ? extent_f32(src + i * bytes, work[i], &x[i])
               : p->type == AMP_FLOAT16 ? extent_f16(src + i * bytes, work[i], &x[i])
                                        : extent_bf16(src + i * bytes, work[i], &x[i]);
    for (size_t i = 0; i < n && p->bits != 1; i++) plan[i] = amp__pack_plan(e[i].min, e[i].max, p->bits);
    for (size_t i = 0; i < n; i++) seen |= pack_group(x[i], &e[i], &plan[i], p, first + i);
    return seen;
}

/* The last group: filled up with its last element, whose codes are taken away again. */
static uint32_t pack_tail(const struct amp__pack *p, const char *src, size_t n, uint64_t group) {
    const size_t width = p->type == AMP_FLOAT32 ? 4 : 2;
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
    const size_t width = p->type == AMP_FLOAT32 ? 4 : 2;
    uint32_t seen = 0;
    for (size_t n; (n = (end - begin) / GROUP); begin += n * GROUP) {
        n = n < BATCH ? n : BATCH;
        seen |= pack_batch(p, (const char *)p->src + begin * width, begin / GROUP, n);
    }
    if (begin < end) seen |= pack_tail(p, (const char *)p->src + begin * width, end - begin, begin / GROUP);
    return seen;
}

amp__pack_fn *const AMP__TABLE(pack) = pack;
