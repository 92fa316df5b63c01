/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include "support.h"

#include <math.h>
#include <string.h>

/* Kernels look at up to 16 groups, and then at the next. */
enum { GROUP = 256, MOST = 37 * GROUP + 1, MOST_WORDS = 38 * (64 + 1) };
static const int all_bits[] = { 8, 4, 2, 1 };
static const amp_dtype pack_types[] = { AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16 };
static const size_t lengths[] = { 0, 1, 15, 17, 255, 256, 257, 500, 3 * GROUP, 20 * GROUP, MOST };

/* ---- the format, once more ---- */

static float bf16_value(uint64_t bits) { return (float)value_of_bits(AMP_BFLOAT16, bits); }

/* The largest bf16 that is not above x; the least that is not below a positive one. */
static float bf16_below(float x) {
    const uint64_t near = round_to_bits(AMP_BFLOAT16, (double)x);
    return bf16_value(!(bf16_value(near) > x) ? near : near >> 15 ? near + 1 : near - 1);
}
static float bf16_above(float x) {
    const uint64_t near = round_to_bits(AMP_BFLOAT16, (double)x);
    return bf16_value(bf16_value(near) < x ? near + 1 : near);
}

static uint32_t bf16_bits(float x) { return (uint32_t)round_to_bits(AMP_BFLOAT16, (double)x); }

uint64_t random_key(uint64_t seed, uint64_t group) {
    uint64_t z = seed + (group + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z ^= z >> 30, z *= UINT64_C(0xbf58476d1ce4e5b9), z ^= z >> 27, z *= UINT64_C(0x94d049bb133111eb), z ^= z >> 31;
    return z;
}

uint32_t random_word(uint64_t key, uint32_t place) {
    uint32_t x = (uint32_t)(key & UINT32_MAX) + place * UINT32_C(0x9e3779b9);
    x ^= x >> 16, x *= UINT32_C(0x21f0aaad), x ^= x >> 15, x ^= (uint32_t)(key >> 32);
    x *= UINT32_C(0x735a2d97), x ^= x >> 15;
    return x;
}

static uint32_t hash_of(uint64_t seed, uint64_t group, uint32_t place) {
    return random_word(random_key(seed, group), place);
}

/* Rows of the lower halves of words and of the upper ones go through a lane's progression beside each other. */
static uint32_t random_of(uint64_t seed, uint64_t group, uint32_t row, uint32_t lane, int bits) {
    const uint32_t per_word = 32 / (uint32_t)bits, at = row % per_word, begin = hash_of(seed, group, lane);
    const uint32_t term = row / per_word * (per_word / 2) + at % (per_word / 2);
    const uint32_t x = begin + term * hash_of(seed, group, 16 + lane);
    return (at < per_word / 2 ? x % 65536 : x / 65536) >> bits;
}

static void expect_bits(const float *x, size_t n, uint32_t *codes, uint32_t *header, uint32_t *seen) {
    float largest = x[0];
    bool finite = true;
    for (size_t e = 0; e < n; e++) {
        if (x[e] != 0.0f) codes[e / 32] |= UINT32_C(1) << e % 32;
        if (x[e] > largest) largest = x[e];
        finite = finite && isfinite(x[e]);
    }
    for (size_t e = 0; e < n; e++)
        if (x[e] != 0.0f && x[e] != largest) *seen |= AMP__PACK_INEXACT;
    if (!finite) *seen |= AMP__PACK_NONFINITE_SEEN | AMP__PACK_INEXACT;
    largest += 0.0f; /* no -0 */
    memcpy(header, finite ? &largest : &(float){ NAN }, sizeof *header);
}

static void expect_codes(const float *given, size_t n, int bits, uint64_t seed, uint64_t group, uint32_t *codes,
                         uint32_t *header) {
    float x[GROUP], min = given[0], max = given[0], unit = 1.0f, least, step = 0.0f;
    for (size_t e = 0; e < n; e++) min = given[e] < min ? given[e] : min, max = given[e] > max ? given[e] : max;
    const bool zeros = min == 0.0f;
    least = zeros ? 0.0f : bf16_below(min);
    if (isinf(max - least)) unit = 0.25f;
    for (size_t e = 0; e < n; e++) x[e] = unit < 1.0f ? fmaxf(given[e] * unit, -0x1.fep125f) : given[e];
    if (unit < 1.0f) least = bf16_below(fmaxf(min * unit, -0x1.fep125f)), max = fmaxf(max * unit, -0x1.fep125f);
    const int steps = (1 << bits) - 1 - zeros, rows = 32 / bits;
    if (max > least) step = fmaxf(bf16_above((max - least) / (float)steps), 0x1p-110f);
    *header = bf16_bits(least / unit) | (bf16_bits(step / unit) | (zeros ? 0x8000u : 0)) << 16;
    for (uint32_t e = 0; e < n; e++) {
        const uint32_t row = e / 16, lane = e % 16;
        const float one = (float)(65536 >> bits), inverse = step > 0.0f ? one / step : 0.0f;
        const float even = nearbyintf((x[e] - least) * inverse);
        ck_assert(even <= (float)steps * one);
        uint32_t code = ((uint32_t)even + random_of(seed, group, row, lane, bits)) / (65536u >> bits) + zeros;
        if (zeros && x[e] == 0.0f) code = 0;
        codes[row / (uint32_t)rows * 16 + lane] |= code << (row % (uint32_t)rows * (uint32_t)bits);
    }
}

static size_t groups_of(size_t n) { return (n + GROUP - 1) / GROUP; }
size_t words_of(size_t n, int bits) { return groups_of(n) * ((size_t)bits * 8 + 1); }

uint32_t expect_packed(const float *x, size_t n, int bits, uint64_t seed, uint32_t *packed) {
    uint32_t seen = 0;
    memset(packed, 0, words_of(n, bits) * 4);
    for (size_t g = 0; g * GROUP < n; g++) {
        const float *from = x + g * GROUP;
        const size_t length = n - g * GROUP < GROUP ? n - g * GROUP : GROUP;
        uint32_t *codes = packed + g * (size_t)bits * 8, *header = packed + groups_of(n) * (size_t)bits * 8 + g;
        bool finite = true;
        for (size_t e = 0; e < length; e++) finite = finite && isfinite(from[e]);
        if (bits == 1) expect_bits(from, length, codes, header, &seen);
        else if (finite) expect_codes(from, length, bits, seed, g, codes, header);
        else *header = 0x7fc00000, seen |= AMP__PACK_NONFINITE_SEEN | AMP__PACK_INEXACT;
    }
    return seen;
}

static double largest_of(amp_dtype type) { return value_of_bits(type, infinity_bits(type) - 1); }
static double tiny_of(amp_dtype type) { return type == AMP_FLOAT16 ? 0x1p-14 : 0x1p-126; }

/* The value of element e, rounded to `type`. In double the ordinary formula's operations are exact or, where they go
 * beyond float, taken in quarters as numerics.md says. */
uint64_t expect_value(const uint32_t *packed, size_t n, size_t e, int bits, amp_dtype type) {
    const size_t g = e / GROUP, at = e % GROUP, row = at / 16, lane = at % 16, rows = 32 / (size_t)bits;
    const uint32_t *codes = packed + g * (size_t)bits * 8, header = packed[groups_of(n) * (size_t)bits * 8 + g];
    const float limit = (float)largest_of(type), tiny = (float)tiny_of(type);
    float value;
    if (bits == 1) {
        memcpy(&value, &header, sizeof value);
        value = codes[at / 32] >> at % 32 & 1 ? value : 0.0f;
        value = value > limit ? limit : value < -limit ? -limit : value;
        return round_to_bits(type, (double)value);
    }
    const bool zeros = header >> 31;
    const uint32_t code = codes[row / rows * 16 + lane] >> (row % rows * (size_t)bits) & ((1u << bits) - 1);
    const float least = bf16_value(header & 0xffff), step = bf16_value(header >> 16 & 0x7fff);
    const float most = least + (float)((1 << bits) - 1 - zeros) * step;
    const float unit = isnan(step) || most > limit || least < -limit ? 0.25f : 1.0f;
    if (zeros && code == 0) return 0;
    value = least * unit + (float)((int)code - zeros) * (step * unit);
    value = value > limit * unit ? limit * unit : value < -limit * unit ? -limit * unit : value;
    value /= unit;
    if (zeros && value < tiny) value = tiny;
    return round_to_bits(type, (double)value);
}

/* ---- inputs: the patterns, and what activations are like ---- */

enum { RELU = PATTERNS, MASK, INPUTS };
static const char *input_name(int input) {
    return input == RELU ? "relu" : input == MASK ? "mask" : pattern_names[input];
}

static void make_input(int input, amp_dtype type, void *data, float *x, size_t n) {
    fill(input < PATTERNS ? (enum pattern)input : PATTERN_NORMAL, type, data, n);
    for (size_t i = 0; i < n; i++) {
        double value = value_of_bits(type, get_bits(type, data, i));
        if (input == RELU) value = value > 0.0 ? value : i % 7 ? 0.0 : -0.0;
        if (input == MASK) value = value > 0.0 ? 1.25 : 0.0;
        if (input >= PATTERNS) set_bits(type, data, i, round_to_bits(type, value));
        x[i] = (float)value;
    }
}

/* Other lengths for each input, so that each meets all within a few types and widths. */
#define EACH_LENGTH(l, from) for (size_t l = (from) % 3; l < AMP_COUNT(lengths); l += 3)

static void check_packs(amp__pack_fn *pack, amp_dtype type, int bits, int input, const char *isa) {
    static uint32_t want[MOST_WORDS];
    static float x[MOST];
    static uint64_t data[MOST];
    struct guard from = guard_new(MOST * 4 + GUARD_BORDER), to = guard_new(MOST_WORDS * 4 + GUARD_BORDER);
    make_input(input, type, data, x, MOST);
    EACH_LENGTH(l, (size_t)(input + bits)) {
        const size_t n = lengths[l], width = amp__dtype_size(type), bytes = words_of(n, bits) * 4;
        const uint64_t seed = random_bits();
        const uint32_t expected = expect_packed(x, n, bits, seed, want);
        const void *src = memcpy(guard_place(&from, n * width, 0), data, n * width);
        uint32_t *packed = guard_place(&to, bytes, 0);
        const struct amp__pack p = { src, packed, n, seed, type, bits };
        const size_t cut = n / 2 / GROUP * GROUP; /* in two parts, as threads do */
        uint32_t seen = pack(&p, 0, cut);
        seen |= pack(&p, cut, n);
        CHECK_THAT(seen == expected, "%s pack %s %s, %d bits, n %zu: saw %u, not %u", isa, amp__dtype_name(type),
                   input_name(input), bits, n, seen, expected);
        for (size_t w = 0; w < bytes / 4; w++)
            CHECK_THAT(packed[w] == want[w], "%s pack %s %s, %d bits, n %zu: word %zu is %08x, not %08x", isa,
                       amp__dtype_name(type), input_name(input), bits, n, w, packed[w], want[w]);
        CHECK_THAT(guard_intact(&to, bytes, 0), "%s pack: wrote outside", isa);
    }
    guard_free(&from), guard_free(&to);
}

static void check_unpacks(amp__unpack_fn *unpack, amp_dtype type, amp_dtype was, int bits, int input,
                          const char *isa) {
    static uint32_t packed[MOST_WORDS];
    static float x[MOST];
    static uint64_t data[MOST];
    struct guard from = guard_new(MOST_WORDS * 4 + GUARD_BORDER), to = guard_new(MOST * 4 + GUARD_BORDER);
    make_input(input, was, data, x, MOST);
    EACH_LENGTH(l, (size_t)(input + bits)) {
        const size_t n = lengths[l], width = amp__dtype_size(type), bytes = words_of(n, bits) * 4;
        expect_packed(x, n, bits, 7, packed);
        const void *src = memcpy(guard_place(&from, bytes, 0), packed, bytes);
        void *dst = guard_place(&to, n * width, 0);
        const size_t cut = n / 2 / GROUP * GROUP;
        for (int stream = 0; stream < 2; stream++) {
            const struct amp__unpack u = { dst, src, n, type, bits, stream != 0 };
            memset(dst, 0xa5, n * width);
            unpack(&u, 0, cut);
            unpack(&u, cut, n);
            for (size_t e = 0; e < n; e++) {
                const uint64_t got = get_bits(type, dst, e), expected = expect_value(packed, n, e, bits, type);
                CHECK_THAT(bits_agree(type, got, expected), "%s unpack %s %s, %d bits, n %zu: [%zu] is %llx, not %llx",
                           isa, amp__dtype_name(type), input_name(input), bits, n, e, (unsigned long long)got,
                           (unsigned long long)expected);
            }
        }
        CHECK_THAT(guard_intact(&to, n * width, 0), "%s unpack: wrote outside", isa);
    }
    guard_free(&from), guard_free(&to);
}

#define EACH_CASE                                                                                                      \
    for (size_t t = 0; t < AMP_COUNT(pack_types); t++)                                                                 \
        for (size_t b = 0; b < AMP_COUNT(all_bits); b++)                                                               \
            for (int input = 0; input < INPUTS; input++)

void check_pack(amp_fn kernel, const amp_dtype *types, const char *isa) {
    (void)types;
    EACH_CASE check_packs((amp__pack_fn *)kernel, pack_types[t], all_bits[b], input, isa);
}

/* What was of one type may come back as another. */
void check_unpack(amp_fn kernel, const amp_dtype *types, const char *isa) {
    (void)types;
    EACH_CASE check_unpacks((amp__unpack_fn *)kernel, pack_types[t], pack_types[(t + (size_t)input) % 3], all_bits[b],
                            input, isa);
}
