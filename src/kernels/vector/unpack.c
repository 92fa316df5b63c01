/* SPDX-License-Identifier: Apache-2.0 */
/* Packed tensors, and back (ref/pack.c): each word of codes is shifted from row to row. */
#include "kernels/vector/vector.h"

#include "kernels/pack.h"

#define INLINE static inline __attribute__((always_inline))
enum { GROUP = AMP__PACK_GROUP, ROW = AMP__PACK_LANES };

/* ---- one group's values ---- */

struct values {
    vf least, step, tiny;
};

INLINE vf value_of(const struct values *v, vi code, bool zeros) {
    const vf times = vf_of_vi(code);
    if (!zeros) return vf_add(v->least, vf_mul(times, v->step));
    return vf_where_set(vf_max(vf_mul(vf_add(times, vf_set1(-1.0f)), v->step), v->tiny), code);
}

/* Codes of 4 bits or 2, of rows half a word apart, are looked up in both halves of a word at once: what is above a code
 * does not matter where the table repeats. */
#ifdef HAS_LOOKUP
#define LOOKUP(type)                                                                                                   \
    INLINE void looked_up_##type(amp__##type *dst, const uint32_t *codes, const struct values *v, int bits,            \
                                 bool zeros) {                                                                         \
        static const uint32_t all[ROW] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };                     \
        const size_t rows = 16 / (size_t)bits; /* of half a word */                                                    \
        const vi mask = vi_set1((UINT32_C(1) << bits) - 1);                                                            \
        const vi table = vi_table_##type(value_of(v, vi_and(vi_load(all), mask), zeros));                              \
        for (size_t word = 0; word < (size_t)bits / 2; word++, codes += ROW, dst += rows * ROW)                        \
            for (size_t i = 0; i < rows; i += 2, dst += 2 * ROW) {                                                     \
                const vi left = vi_shr(vi_load(codes), i * (size_t)bits);                                              \
                const vi x = vi_lookup_halves(table, left), y = vi_lookup_halves(table, vi_shr(left, bits));           \
                vi_store((void *)dst, vi_lower_halves(x, y));                                                          \
                vi_store((void *)(dst + rows * ROW), vi_upper_halves(x, y));                                           \
            }                                                                                                          \
    }
LOOKUP(f16)
LOOKUP(bf16)
#define MAY_LOOK_UP(type, ...)                                                                                         \
    if (sizeof(amp__##type) == 2 && bits <= 4) {                                                                       \
        looked_up_##type(__VA_ARGS__);                                                                                 \
        return;                                                                                                        \
    }
#define looked_up_f32(...) (void)0
#else
#define MAY_LOOK_UP(type, ...)
#endif

#define UNPACK_CODES(type)                                                                                             \
    INLINE void codes_##type(amp__##type *dst, const uint32_t *codes, const struct values *v, int bits, bool zeros) {  \
        MAY_LOOK_UP(type, dst, codes, v, bits, zeros)                                                                  \
        const uint32_t rows = 32 / (uint32_t)bits;                                                                     \
        const vi mask = vi_set1((UINT32_C(1) << bits) - 1);                                                            \
        for (uint32_t word = 0; word < (uint32_t)bits / 2; word++)                                                     \
            for (size_t j = 0; j < ROW / LANES; j++) {                                                                 \
                amp__##type *to = dst + word * rows * ROW + j * LANES;                                                 \
                vi left = vi_load(codes + word * ROW + j * LANES);                                                     \
                for (uint32_t row = 0; row < rows; row++, to += ROW) {                                                 \
                    vf_store_##type(to, value_of(v, vi_and(left, mask), zeros));                                       \
                    left = vi_shr(left, bits);                                                                         \
                }                                                                                                      \
            }                                                                                                          \
    }                                                                                                                  \
    /* What would leave the type, and NaNs. */                                                                         \
    static void rare_##type(amp__##type *dst, const uint32_t *codes, const struct amp__unpack_plan *plan, int bits) {  \
        float x[GROUP];                                                                                                \
        const uint32_t rows = 32 / (uint32_t)bits, mask = (UINT32_C(1) << bits) - 1;                                   \
        for (uint32_t e = 0; e < GROUP; e++) {                                                                         \
            const uint32_t row = e / ROW;                                                                              \
            x[e] = amp__pack_rare(plan, codes[row / rows * ROW + e % ROW] >> row % rows * (uint32_t)bits & mask);      \
        }                                                                                                              \
        for (size_t i = 0; i < GROUP; i += LANES) vf_store_##type(dst + i, vf_load_f32(x + i));                        \
    }                                                                                                                  \
    static void bits_##type(amp__##type *dst, const uint32_t *codes, uint32_t header) {                                \
        const vf set = vf_set1(amp__pack_clamp(amp__f32_from_bits(header), amp__pack_range_##type().limit));           \
        for (size_t i = 0; i < GROUP; i += LANES) vf_store_##type(dst + i, vf_choose(codes[i / 32] >> i % 32, set));   \
    }

#define UNPACK_WIDTH(type, bits)                                                                                       \
    static void unpack_##type##_##bits(amp__##type *dst, const uint32_t *codes, uint32_t header) {                     \
        const struct amp__unpack_plan plan = amp__unpack_plan(header, bits, amp__pack_range_##type());                 \
        const struct values v = { vf_set1(plan.least), vf_set1(plan.step), vf_set1(plan.range.tiny) };                 \
        if (plan.rare) rare_##type(dst, codes, &plan, bits);                                                           \
        else if (plan.zeros) codes_##type(dst, codes, &v, bits, true);                                                 \
        else codes_##type(dst, codes, &v, bits, false);                                                                \
    }

/* ---- groups of a tensor ---- */

static void stream_group(char *dst, const char *src, size_t bytes) {
    for (size_t at = 0; at < bytes; at += LANES * sizeof(amp__f32))
        vf_stream_f32((void *)(dst + at), vf_load_f32((const void *)(src + at)));
}

/* What goes past the caches is made beside, and streamed a group later: stores that are narrower than a vector are over
 * by then. */
#define UNPACK_TYPE(type)                                                                                              \
    UNPACK_CODES(type)                                                                                                 \
    UNPACK_WIDTH(type, 8)                                                                                              \
    UNPACK_WIDTH(type, 4)                                                                                              \
    UNPACK_WIDTH(type, 2)                                                                                              \
    static void unpack_##type(const struct amp__unpack *u, size_t begin, size_t end) {                                 \
        void (*const group)(amp__##type *, const uint32_t *, uint32_t) =                                               \
            u->bits == 8 ? unpack_##type##_8 : u->bits == 4 ? unpack_##type##_4                                        \
            : u->bits == 2 ? unpack_##type##_2 : bits_##type;                                                          \
        const uint32_t *packed = u->packed, *headers = packed + (u->size + GROUP - 1) / GROUP * (size_t)u->bits * 8;   \
        const bool stream = u->stream && (uintptr_t)u->dst % 64 == 0;                                                  \
        const size_t first = begin / GROUP, last = end / GROUP;                                                        \
        amp__##type *dst = (amp__##type *)u->dst + begin;                                                              \
        _Alignas(64) amp__##type beside[2][GROUP];                                                                     \
        for (size_t i = first; i < last; i++, dst += GROUP) {                                                          \
            group(stream ? beside[i % 2] : dst, packed + i * (size_t)u->bits * 8, headers[i]);                         \
            if (stream && i > first) stream_group((void *)(dst - GROUP), (void *)beside[1 - i % 2], sizeof *beside);   \
        }                                                                                                              \
        if (stream && last > first) stream_group((void *)(dst - GROUP), (void *)beside[1 - last % 2], sizeof *beside); \
        if (stream) fence();                                                                                           \
        if (last * GROUP == end) return;                                                                               \
        group(*beside, packed + last * (size_t)u->bits * 8, headers[last]);                                            \
        memcpy(dst, *beside, (end - last * GROUP) * sizeof *dst);                                                      \
    }
UNPACK_TYPE(f32)
UNPACK_TYPE(f16)
UNPACK_TYPE(bf16)

static AMP__UNPACK(unpack) {
    if (u->type == AMP_FLOAT32) unpack_f32(u, begin, end);
    else if (u->type == AMP_FLOAT16) unpack_f16(u, begin, end);
    else unpack_bf16(u, begin, end);
}

amp__unpack_fn *const AMP__TABLE(unpack) = unpack;
