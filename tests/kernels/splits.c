/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of split masters against their definition, worked with signs and magnitudes: what is split is what a cast
 * gives and the lower half; what is joined is the master, and of halves that belong to no master what amp_optim.h says.
 */
#include "table.h"

#include "support.h"

#include <string.h>

enum { LONGEST = 4097, MOST_BEGIN = 64, ALL = LONGEST + MOST_BEGIN, WORDS = (ALL + 31) / 32, MOST_OFFSET = 16 };
static const size_t lengths[] = { 0,  1,  2,  3,  7,  8,  9,   15,  16,  17,   31,   32,
                                  33, 47, 48, 63, 64, 65, 255, 256, 257, 1000, 4096, LONGEST };

static uint32_t masters[ALL], joined[ALL], ties[WORDS];
static uint16_t low[ALL], rest[ALL + 1];

/* ---- oracle ---- */

/* Halves of every kind of float, and in one of five places a tie whose upper half is any. */
static void make(enum pattern pattern) {
    fill(pattern, AMP_FLOAT32, masters, ALL);
    for (size_t i = 0; i < ALL; i += 1 + random_below(9)) masters[i] = (masters[i] & 0xffff0000u) | 0x8000u;
}

static void split_all(void) {
    memset(ties, 0, sizeof ties);
    for (size_t i = 0; i < ALL; i++) {
        low[i] = (uint16_t)oracle_cast(AMP_BFLOAT16, AMP_FLOAT32, masters[i]);
        rest[i] = (uint16_t)masters[i];
        const bool down = (masters[i] >> 16 & 1) == 0; /* to even */
        if (rest[i] == 0x8000u && down) ties[i / 32] |= 1u << i % 32;
    }
}

static uint32_t join_one(uint16_t upper, uint16_t lower, bool tie) {
    const bool odd = upper % 2 != 0, half = lower == 0x8000u;
    int64_t by = lower < 0x8000 ? lower : (int64_t)lower - 0x10000;
    if (half && (odd || tie)) by = odd ? 0 : 0x8000;
    const int64_t magnitude = (int64_t)(upper & 0x7fffu) * 0x10000 + by;
    return (uint32_t)(magnitude < 0 ? 0 : magnitude) | (uint32_t)(upper & 0x8000u) << 16;
}

static bool tie_at(size_t i) { return ties[i / 32] >> i % 32 & 1; }

static void join_all(void) {
    for (size_t i = 0; i < ALL; i++) joined[i] = join_one(low[i], rest[i], tie_at(i));
}

/* ---- arrays at any address, between guards ---- */

enum { LOW, REST, TIES, WIDE, N_GUARDS };
static struct guard guards[N_GUARDS];
static const size_t widths[N_GUARDS] = { 2, 2, 4, 4 };
static size_t turn;

static void open_guards(void) {
    for (int i = 0; i < N_GUARDS; i++) guards[i] = guard_new((ALL + 1 + MOST_OFFSET) * 4 + GUARD_BORDER);
    turn = 0;
}
static void close_guards(void) {
    for (int i = 0; i < N_GUARDS; i++) guard_free(&guards[i]);
}
static size_t gap_of(int which) { return turn * (size_t)(2 * which + 1) % (MOST_OFFSET + 1) * widths[which]; }
static void *place(int which, const void *src, size_t n) {
    return memcpy(guard_place(&guards[which], n * widths[which], gap_of(which)), src, n * widths[which]);
}
static bool intact(int which, size_t n) { return guard_intact(&guards[which], n * widths[which], gap_of(which)); }

/* ---- checks ---- */

/* What lies before begin stays; words of ties are written whole, and rest to an even number. */
static void check_split_of(amp_fn kernel, const char *isa, const char *name, size_t begin, size_t n) {
    static const uint16_t painted[ALL + 1] = { 0xabcd, 0xabcd, 0xabcd };
    static const uint32_t painted_words[WORDS] = { 0xabcdu, 0xabcdu };
    const size_t end = begin + n, even = end + (n ? end % 2 : 0), words = n ? (end + 31) / 32 : begin / 32;
    uint16_t *got_low = place(LOW, painted, end), *got_rest = place(REST, painted, even);
    uint32_t *got_ties = place(TIES, painted_words, words), last = ties[end / 32];
    const float *src = place(WIDE, masters, end);
    ((amp__split_fn *)kernel)(got_low, got_rest, got_ties, src, begin, end);
    CHECK_THAT(intact(LOW, end) && intact(REST, even) && intact(TIES, words), "%s split, n %zu: wrote outside", isa, n);
    CHECK_THAT(!memcmp(got_low, painted, begin * 2) && !memcmp(got_rest, painted, begin * 2) &&
                   !memcmp(got_ties, painted_words, begin / 8),
               "%s split, n %zu: wrote before %zu", isa, n, begin);
    for (size_t i = begin; i < end; i++)
        CHECK_THAT(got_low[i] == low[i] && got_rest[i] == rest[i], "%s split, %s: %#x is %#x and %#x, want %#x and %#x",
                   isa, name, masters[i], got_low[i], got_rest[i], low[i], rest[i]);
    CHECK_THAT(even == end || got_rest[end] == 0, "%s split, n %zu: the rest behind the end is %#x", isa, n,
               got_rest[end]);
    last &= (1u << end % 32) - 1; /* behind the end nothing is a tie */
    for (size_t w = begin / 32; w < words; w++)
        CHECK_THAT(got_ties[w] == (w == end / 32 ? last : ties[w]), "%s split, %s, n %zu: word %zu of ties is %#x", isa,
                   name, n, w, got_ties[w]);
}

void check_split(amp_fn kernel, const amp_dtype *types, const char *isa) {
    (void)types;
    open_guards();
    for (int p = 0; p < PATTERNS; p++) {
        make((enum pattern)p);
        split_all();
        for (size_t l = 0; l < AMP_COUNT(lengths); l++, turn++)
            check_split_of(kernel, isa, pattern_names[p], turn % 3 * 32, lengths[l]);
    }
    close_guards();
}

static void check_join_of(amp_fn kernel, const char *isa, const char *name, size_t begin, size_t n) {
    const size_t end = begin + n;
    const uint16_t *upper = place(LOW, low, end), *lower = place(REST, rest, end);
    const uint32_t *words = place(TIES, ties, (end + 31) / 32);
    float *dst = place(WIDE, masters, end);
    memset(dst, 0xcd, end * 4);
    ((amp__join_fn *)kernel)(dst, upper, lower, words, begin, end);
    CHECK_THAT(intact(WIDE, end), "%s join, n %zu: wrote outside", isa, n);
    for (size_t i = 0; i < begin; i++)
        CHECK_THAT(get_bits(AMP_FLOAT32, dst, i) == 0xcdcdcdcdu, "%s join, n %zu: wrote before %zu", isa, n, begin);
    for (size_t i = begin; i < end; i++)
        CHECK_THAT(bits_agree(AMP_FLOAT32, get_bits(AMP_FLOAT32, dst, i), joined[i]),
                   "%s join, %s: %#x and %#x, tie %d: got %#llx, want %#x", isa, name, low[i], rest[i], tie_at(i),
                   (unsigned long long)get_bits(AMP_FLOAT32, dst, i), joined[i]);
}

/* What was split, which comes back; then halves that need not belong together. */
void check_join(amp_fn kernel, const amp_dtype *types, const char *isa) {
    (void)types;
    open_guards();
    for (int p = 0; p < 2 * PATTERNS; p++) {
        make((enum pattern)(p % PATTERNS));
        split_all();
        if (p < PATTERNS) {
            memcpy(joined, masters, sizeof joined);
        } else {
            fill((enum pattern)(p % PATTERNS), AMP_BFLOAT16, low, ALL);
            for (size_t i = 0; i < WORDS; i++) ties[i] ^= (uint32_t)random_bits();
            join_all();
        }
        for (size_t l = 0; l < AMP_COUNT(lengths); l++, turn++)
            check_join_of(kernel, isa, pattern_names[p % PATTERNS], turn % 13, lengths[l]);
    }
    close_guards();
}

void check_join_squares(amp_fn kernel, const amp_dtype *types, const char *isa) {
    (void)types;
    open_guards();
    for (int p = 0; p < PATTERNS; p++) {
        make((enum pattern)p);
        split_all();
        for (size_t l = 0; l < AMP_COUNT(lengths); l++, turn++) {
            const size_t begin = turn % 3, n = lengths[l], end = begin + n;
            const double want = oracle_sum_squares(AMP_FLOAT32, masters + begin, n);
            const double got = ((amp__join_squares_fn *)kernel)(place(LOW, low, end), place(REST, rest, end),
                                                                place(TIES, ties, (end + 31) / 32), begin, end);
            CHECK_THAT(bits_agree(AMP_FLOAT64, get_bits(AMP_FLOAT64, &got, 0), get_bits(AMP_FLOAT64, &want, 0)),
                       "%s join_squares, %s, n %zu: %g, want %g", isa, pattern_names[p], n, got, want);
        }
    }
    close_guards();
}

/* ---- casts that round at random ---- */

static uint16_t random_cast(uint32_t bits, uint32_t random) {
    if ((bits & 0x7f800000u) == 0x7f800000u) return (uint16_t)oracle_cast(AMP_BFLOAT16, AMP_FLOAT32, bits);
    return (uint16_t)(bits / 65536 + (bits % 65536 + random % 65536) / 65536);
}

void check_cast_random(amp_fn kernel, const amp_dtype *types, const char *isa) {
    (void)types;
    open_guards();
    for (int p = 0; p < PATTERNS; p++) {
        const uint64_t key = UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)(p + 1), first = p % 2 ? UINT64_C(0xffffff01) : 3;
        fill((enum pattern)p, AMP_FLOAT32, masters, ALL);
        for (size_t l = 0; l < AMP_COUNT(lengths); l++, turn++) {
            const size_t n = lengths[l];
            uint16_t *got = place(LOW, low, n);
            ((amp__cast_random_fn *)kernel)(got, place(WIDE, masters, n), n, key, first);
            CHECK_THAT(intact(LOW, n), "%s cast_random, n %zu: wrote outside", isa, n);
            for (size_t i = 0; i < n; i++) {
                const uint16_t want = random_cast(masters[i], random_word(key, (uint32_t)(first + i)));
                CHECK_THAT(bits_agree(AMP_BFLOAT16, got[i], want), "%s cast_random, %s, n %zu: %#x is %#x, want %#x",
                           isa, pattern_names[p], n, masters[i], got[i], want);
            }
        }
    }
    close_guards();
}
