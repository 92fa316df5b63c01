/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "common/common.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- random numbers: splitmix64 ---- */

static uint64_t state;

uint64_t test_seed(void) {
    const char *text = getenv("AMP_TEST_SEED");
    return text ? strtoull(text, NULL, 0) : 20210527;
}

void random_restart(void) { state = test_seed(); }
void random_from(uint64_t seed) { state = seed; }

uint64_t random_bits(void) {
    uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t random_below(uint64_t n) { return random_bits() % n; }

double random_uniform(void) { return (double)(random_bits() >> 11) * 0x1p-52 - 1.0; }

/* ---- edge patterns ---- */

const char *const pattern_names[PATTERNS] = {
#define PATTERN_NAME(name) #name,
    PATTERN_MAP(PATTERN_NAME)
#undef PATTERN_NAME
};

int sweep_step(void) { return getenv("AMP_TEST_SHORT") ? 3 : 1; }

/* One of the types that have values between those of `type`, or `type` itself. */
static amp_dtype narrower(amp_dtype type) {
    static const amp_dtype low[] = { AMP_FLOAT16, AMP_BFLOAT16, AMP_FLOAT32 };
    return type == AMP_FLOAT64 ? low[random_below(3)] : type == AMP_FLOAT32 ? low[random_below(2)] : type;
}

/* The bits of a double in `type`, or of a neighbour of it. */
static uint64_t near(amp_dtype type, double x) { return round_to_bits(type, x) + random_below(3) - 1; }

static uint64_t subnormal(amp_dtype type) {
    const amp_dtype low = random_below(2) ? type : narrower(type);
    const uint64_t first_normal = (infinity_bits(low) & (~infinity_bits(low) + 1)); /* 1 in the exponent */
    const uint64_t choice[] = { 1, 2, first_normal - 1, first_normal, first_normal + 1, random_below(first_normal) };
    return round_to_bits(type, value_of_bits(low, choice[random_below(AMP_COUNT(choice))]));
}

static uint64_t tie(amp_dtype type) {
    const amp_dtype low = narrower(type);
    return near(type, midpoint_above(low, random_below(infinity_bits(low))));
}

static uint64_t limit(amp_dtype type) {
    const amp_dtype low = narrower(type);
    const uint64_t last = infinity_bits(low) - 1;
    return near(type, random_below(2) ? value_of_bits(low, last) : midpoint_above(low, last));
}

static uint64_t any_nan(amp_dtype type) {
    const uint64_t payloads = sign_bit(type) - infinity_bits(type) - 1;
    return infinity_bits(type) + (random_below(4) ? 1 + random_below(payloads) : 1);
}

static uint64_t normal(amp_dtype type) {
    return round_to_bits(type, 1.5 * (random_uniform() + random_uniform() + random_uniform()));
}

static uint64_t element(enum pattern pattern, amp_dtype type) {
    const uint64_t minus = random_below(2) ? sign_bit(type) : 0;
    switch (pattern) {
    case PATTERN_ZEROS: return minus;
    case PATTERN_SAME: return round_to_bits(type, 0.7);
    case PATTERN_SUBNORMALS: return minus ^ subnormal(type);
    case PATTERN_TIES: return minus ^ tie(type);
    case PATTERN_LIMITS: return minus ^ limit(type);
    case PATTERN_INFINITIES: return random_below(3) ? normal(type) : minus ^ infinity_bits(type);
    case PATTERN_NANS: return random_below(3) ? minus ^ any_nan(type) : normal(type);
    case PATTERN_NORMAL: return normal(type);
    default: return random_bits();
    }
}

void fill(enum pattern pattern, amp_dtype type, void *data, size_t n) {
    for (size_t i = 0; i < n; i++) set_bits(type, data, i, element(pattern, type));
}

/* ---- guarded buffers ---- */

enum { PAINT = 0x99 };

struct guard guard_new(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), usable = (bytes + page - 1) / page * page;
    unsigned char *map = mmap(NULL, usable + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_msg(map != MAP_FAILED && !mprotect(map + page, usable, PROT_READ | PROT_WRITE), "no memory for a guard");
    return (struct guard){ map + page, map + page + usable };
}

void guard_free(struct guard *guard) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    munmap(guard->begin - page, (size_t)(guard->end - guard->begin) + 2 * page);
}

void *guard_place(const struct guard *guard, size_t bytes, size_t gap) {
    const size_t painted = bytes + gap + GUARD_BORDER;
    CHECK_THAT(painted <= (size_t)(guard->end - guard->begin), "the guarded buffer is too small");
    memset(guard->end - painted, PAINT, painted);
    return guard->end - gap - bytes;
}

static bool is_painted(const unsigned char *from, const unsigned char *to) {
    while (from < to && *from == PAINT) from++;
    return from == to;
}

bool guard_intact(const struct guard *guard, size_t bytes, size_t gap) {
    const unsigned char *data = guard->end - gap - bytes;
    return is_painted(data - GUARD_BORDER, data) && is_painted(guard->end - gap, guard->end);
}
