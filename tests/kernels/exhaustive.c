/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All 2^32 floats to fp16 and to bf16, or one stretch of them in as many as the argument says; and all 2^16 values of
 * these to every type: in every version of the kernels that this machine can run. The oracle needs no search here: as
 * the floats rise, so do the results, and each goes up where the float passes the next midpoint.
 */
#include "oracle.h"

#include "kernels/kernels.h"

#include "test.h"
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 4096 };

static const amp_dtype targets[] = { AMP_FLOAT16, AMP_BFLOAT16 };

/* The finite magnitude nearest to one that is not below `last`, whose nearest `last` is or was. */
struct climb {
    amp_dtype type;
    uint64_t last;
    double midpoint; /* above last */
};

static uint16_t climb_to(struct climb *c, double magnitude) {
    while (c->last < infinity_bits(c->type) &&
           (magnitude > c->midpoint || (magnitude == c->midpoint && c->last % 2))) {
        c->last++;
        if (c->last < infinity_bits(c->type)) c->midpoint = midpoint_above(c->type, c->last);
    }
    return (uint16_t)c->last;
}

/* The results for CHUNK magnitudes from `first` on. */
static void expect(struct climb *c, uint32_t first, uint16_t want[CHUNK]) {
    for (uint32_t i = 0; i < CHUNK; i++) {
        const uint32_t bits = first + i;
        float value;
        memcpy(&value, &bits, sizeof value);
        want[i] = bits_are_nan(AMP_FLOAT32, bits) ? (uint16_t)oracle_cast(c->type, AMP_FLOAT32, bits)
                                                  : climb_to(c, (double)value);
    }
}

/* ---- the versions ---- */

struct version {
    const char *name;
    struct amp__kernels table;
};
static struct version versions[8];
static size_t n_versions;

static void find_versions(void) {
    uint32_t flags = 0;
#define FIND_VERSION(set, flag)                                                                                        \
    if (!((flag) & ~amp__cpu_detect())) {                                                                              \
        versions[n_versions].name = #set;                                                                              \
        amp__kernels_init(&versions[n_versions++].table, flags |= (flag));                                             \
    }
    FIND_VERSION(ref, 0u)
    AMP__CPU_MAP(FIND_VERSION)
#undef FIND_VERSION
}

/* ---- narrowing ---- */

/* Chunks from one that is tested to the next: odd, or none of the floats halfway between two of fp16 is among them; and
 * a divisor of 0x7f800, so that infinity is. */
static uint32_t stretch;

static void compare(const struct version *v, amp_dtype to, uint32_t first, uint16_t sign, const uint16_t want[CHUNK]) {
    static uint32_t src[CHUNK];
    static uint16_t got[CHUNK];
    for (uint32_t i = 0; i < CHUNK; i++) src[i] = first + i + ((uint32_t)sign << 16);
    v->table.cast[to][AMP_FLOAT32](got, src, CHUNK);
    for (uint32_t i = 0; i < CHUNK; i++)
        if (got[i] != (want[i] | sign))
            ck_abort_msg("%s: %#x: got %#x, want %#x", v->name, src[i], got[i], want[i] | sign);
}

TEST_TIMES(floats_narrowed, 2) {
    const amp_dtype to = targets[_i];
    struct climb climb = { to, 0, midpoint_above(to, 0) };
    uint32_t first = 0;
    for (uint32_t chunk = 0; chunk < 0x80000000u / CHUNK; chunk += stretch) {
        uint16_t want[CHUNK];
        first = chunk * CHUNK;
        expect(&climb, first, want);
        for (size_t v = 0; v < n_versions; v++) {
            compare(&versions[v], to, first, 0, want);
            compare(&versions[v], to, first, 0x8000, want);
        }
    }
    ck_assert_uint_eq(climb.last, infinity_bits(to)); /* it came by every value */
    ck_assert_uint_gt(first, 0x7f800000u);            /* and by NaNs */
}

/* ---- split masters ---- */

/* Each comes back, but for NaNs, which come back as some; the bf16 numbers are those of a cast. */
static void compare_split(const struct version *v, uint32_t first) {
    static uint32_t src[CHUNK], back[CHUNK], ties[CHUNK / 32];
    static uint16_t want[CHUNK], low[CHUNK], rest[CHUNK];
    for (uint32_t i = 0; i < CHUNK; i++) src[i] = first + i;
    v->table.cast[AMP_BFLOAT16][AMP_FLOAT32](want, src, CHUNK);
    v->table.split(low, rest, ties, (const float *)(const void *)src, 0, CHUNK);
    v->table.join((float *)(void *)back, low, rest, ties, 0, CHUNK);
    for (uint32_t i = 0; i < CHUNK; i++)
        if (low[i] != want[i] || !bits_agree(AMP_FLOAT32, back[i], src[i]))
            ck_abort_msg("%s: %#x: split as %#x and %#x, joined as %#x", v->name, src[i], low[i], rest[i], back[i]);
}

TEST(floats_split_and_joined) {
    const uint32_t all = UINT32_MAX / CHUNK + 1;
    uint32_t chunks = 0;
    for (uint32_t chunk = 0; chunk < all; chunk += stretch, chunks++)
        for (size_t v = 0; v < n_versions; v++) compare_split(&versions[v], chunk * CHUNK);
    ck_assert_uint_eq(chunks, (all + stretch - 1) / stretch);
}

/* ---- widening, and between the narrow ones ---- */

TEST_TIMES(halves_to_every_type, 2 * TYPES) {
    enum { ALL = 1 << 16 };
    static uint16_t src[ALL];
    static uint64_t got[ALL];
    const amp_dtype from = targets[_i / TYPES], to = all_types[_i % TYPES];
    for (uint32_t i = 0; i < ALL; i++) src[i] = (uint16_t)i;
    for (size_t v = 0; v < n_versions; v++) {
        versions[v].table.cast[to][from](got, src, ALL);
        for (uint32_t i = 0; i < ALL; i++) {
            const uint64_t want = oracle_cast(to, from, i);
            if (get_bits(to, got, i) != want)
                ck_abort_msg("%s: %#x: got %#llx, want %#llx", versions[v].name, i,
                             (unsigned long long)get_bits(to, got, i), (unsigned long long)want);
        }
    }
}

int main(int argc, char **argv) {
    stretch = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
    if (stretch % 2 == 0) return EXIT_FAILURE;
    find_versions();
    suite_seconds = 1800;
    return suite_run();
}
