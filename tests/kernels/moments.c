/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for moments in 8 bits against the words of kernels.h, written again: each switch, parameter and gradient
 * type, all edge patterns, lengths around whole blocks and vectors, tensors that are parts of a parameter.
 */
#include "table.h"

#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 256, BLOCKS = 3, LONGEST = BLOCKS * BLOCK };
static const size_t lengths[] = { 1, 3, 7, 8, 9, 15, 16, 17, 100, 255, 256, 257, 300, 511, 512, 513, 700, LONGEST };

static const struct {
    const char *name;
    bool param;
    amp_dtype low;
} places[] = {
    { "fp32", true, AMP_DTYPE_DEFAULT }, { "master, fp16", true, AMP_FLOAT16 }, { "master, bf16", true, AMP_BFLOAT16 },
    { "fp16", false, AMP_FLOAT16 },      { "bf16", false, AMP_BFLOAT16 },
};
static const amp_dtype grad_types[] = { AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16 };

/* ---- the oracle: a block. Products and sums go through memory, each a float of its own ---- */

struct arrays {
    uint32_t grad[LONGEST], param[LONGEST], low[LONGEST];
    uint8_t codes[2][LONGEST];
    float scales[2][BLOCKS];
};
static struct arrays before, after;

static float value_of(int k, uint8_t code, float scale) { return times(k ? (float)code : (float)(int8_t)code, scale); }

static float as_float(uint64_t bits) { return (float)value_of_bits(AMP_FLOAT32, bits); }

/* |x| * 65536 / scale to nearest, and 16 random bits. lrint rounds to nearest even. */
static int64_t multiple_of(float x, float scale) {
    volatile float inverse = 65536.0f / scale;
    return (int64_t)lrint((double)times(x, inverse));
}

static void expect_block(const struct amp__update *u, const float *m, const float *z, size_t at, size_t n) {
    static const float parts[2] = { 0x1.02040ep-7f, 0x1.010106p-8f }, least[2] = { 0x1p-110f, 0x1p-64f };
    float largest[2] = { 0.0f, 0.0f };
    bool lost = false;
    for (size_t i = 0; i < n; i++) {
        largest[0] = fmaxf(largest[0], fabsf(m[i])), largest[1] = fmaxf(largest[1], z[i]);
        lost |= !isfinite(m[i]) || !isfinite(z[i]);
    }
    for (int k = 0; k < 2; k++) {
        float *scale = &after.scales[k][at / BLOCK];
        const float whole = fmaxf(times(largest[k], parts[k]), least[k]);
        *scale = lost ? NAN : !k && isinf(times(127.0f, whole)) ? 0x1.020406p121f : whole; /* that 127 are finite */
        for (size_t i = 0; i < n; i++) {
            const uint32_t random = random_word(u->key, (uint32_t)(u->before + at + i));
            const float x = k ? z[i] : m[i];
            int64_t sum = lost ? 0 : multiple_of(x, whole) + (k ? random >> 16 : random & 0xffff);
            if (k && !lost && x > 0.0f && sum < 65536) sum = 65536;
            if (k && x == 0.0f) sum = 0;
            const int64_t code = sum >= 0 ? sum / 65536 : -((-sum + 65535) / 65536); /* down */
            CHECK_THAT(code >= (k ? 0 : -127) && code <= (k ? 255 : 127), "the oracle's code is %lld", (long long)code);
            after.codes[k][at + i] = (uint8_t)code;
        }
    }
}

/* Takes the element's parameter and gradient, and gives its new moments and writes its parameter. */
static void expect_element(const struct amp__update *u, size_t place, size_t i, float *m, float *z) {
    const amp_dtype low = places[place].low;
    const bool master = places[place].param;
    const uint64_t grad = oracle_cast(AMP_FLOAT32, u->grad_type, get_bits(u->grad_type, before.grad, i));
    float g = times(times(as_float(grad), u->inv_scale), u->factor);
    float p = as_float(master ? before.param[i] : oracle_cast(AMP_FLOAT32, low, get_bits(low, before.low, i)));
    if (!u->decoupled && u->weight_decay != 0.0f) g = plus(g, times(u->weight_decay, p));
    *m = plus(times(u->beta1, *m), times(u->rest1, g));
    const float v = plus(times(u->beta2, times(*z, *z)), times(times(u->rest2, g), g));
    *z = sqrtf(v > 0x1.fffffep127f ? 0x1.fffffep127f : v);
    volatile float by_m = 1.0f / u->correction1, by_z = 1.0f / sqrtf(u->correction2);
    volatile float direction = times(*m, by_m) / plus(times(*z, by_z), u->eps);
    if (u->decoupled && u->weight_decay != 0.0f) direction = plus(direction, times(u->weight_decay, p));
    p = plus(p, -times(u->lr, direction));
    if (master) memcpy(&after.param[i], &p, sizeof p);
    if (low) set_bits(low, after.low, i, round_to_bits(low, (double)p));
}

static void expect(const struct amp__update *u, size_t place, size_t n) {
    after = before;
    for (size_t at = 0; at < n; at += BLOCK) {
        const size_t here = n - at < BLOCK ? n - at : BLOCK;
        float m[BLOCK], z[BLOCK];
        for (size_t i = 0; i < here; i++) {
            m[i] = value_of(0, before.codes[0][at + i], before.scales[0][at / BLOCK]);
            z[i] = value_of(1, before.codes[1][at + i], before.scales[1][at / BLOCK]);
            expect_element(u, place, at + i, &m[i], &z[i]);
        }
        expect_block(u, m, z, at, here);
    }
}

/* ---- one run ---- */

enum { GRAD, PARAM, LOW, CODES, GUARDS = CODES + 2 };
static struct guard guards[GUARDS];
static size_t gap_of(int guard, size_t turn) { return turn * (size_t)(2 * guard + 1) % 17; }

static void *put(int guard, const void *src, size_t width, size_t n, size_t turn) {
    return memcpy(guard_place(&guards[guard], n * width, gap_of(guard, turn) * width), src, n * width);
}

static void same(int guard, amp_dtype type, const void *got, const void *want, size_t n, size_t turn,
                 const char *what) {
    static const char *const names[GUARDS] = { "grad", "param", "low", "codes[0]", "codes[1]" };
    const size_t width = type ? amp__dtype_size(type) : 1;
    CHECK_THAT(guard_intact(&guards[guard], n * width, gap_of(guard, turn) * width), "%s: n %zu: wrote outside %s",
               what, n, names[guard]);
    for (size_t i = 0; memcmp(got, want, n * width) && i < n; i++) {
        const uint64_t a = type ? get_bits(type, got, i) : ((const uint8_t *)got)[i];
        const uint64_t b = type ? get_bits(type, want, i) : ((const uint8_t *)want)[i];
        CHECK_THAT(type ? bits_agree(type, a, b) : a == b, "%s: n %zu turn %zu: %s[%zu] is %#llx, want %#llx", what, n,
                   turn, names[guard], i, (unsigned long long)a, (unsigned long long)b);
    }
}

static void check_one(amp_fn kernel, const struct amp__update *given, size_t place, size_t n, size_t turn,
                      const char *what) {
    const amp_dtype low = places[place].low;
    struct amp__update u = *given;
    float scales[2][BLOCKS];
    memcpy(scales, before.scales, sizeof scales);
    u.grad = put(GRAD, before.grad, amp__dtype_size(u.grad_type), n, turn);
    u.param = places[place].param ? put(PARAM, before.param, 4, n, turn) : NULL;
    u.low = low ? put(LOW, before.low, 2, n, turn) : NULL;
    u.stream = u.param && u.low && turn % 2;
    for (int k = 0; k < 2; k++) u.codes[k] = put(CODES + k, before.codes[k], 1, n, turn), u.scales[k] = scales[k];
    ((amp__update_fn *)kernel)(&u, 0, n);
    same(GRAD, u.grad_type, u.grad, before.grad, n, turn, what);
    if (u.param) same(PARAM, AMP_FLOAT32, u.param, after.param, n, turn, what);
    if (u.low) same(LOW, low, u.low, after.low, n, turn, what);
    for (int k = 0; k < 2; k++) {
        same(CODES + k, AMP_DTYPE_DEFAULT, u.codes[k], after.codes[k], n, turn, what);
        for (size_t b = 0; b < (n + BLOCK - 1) / BLOCK; b++)
            CHECK_THAT(bits_agree(AMP_FLOAT32, get_bits(AMP_FLOAT32, scales[k], b),
                                  get_bits(AMP_FLOAT32, after.scales[k], b)),
                       "%s: n %zu: scales[%d][%zu] is %a, want %a", what, n, k, b, (double)scales[k][b],
                       (double)after.scales[k][b]);
    }
}

/* Scales of ordinary blocks, of lost ones, and of those near the ends. */
static void fill_state(size_t turn) {
    static const float of_m[] = { 0.0f, 0x1.3p-9f, 1e-30f, 0x1p-110f, 1e34f, NAN, 3e-5f };
    static const float of_z[] = { 0.0f, 0x1.7p-8f, 0x1p-64f, 1e-4f, 7e16f, 1e-12f, NAN, 2e-6f };
    for (size_t b = 0; b < BLOCKS; b++) {
        before.scales[0][b] = of_m[(turn + b) % AMP_COUNT(of_m)];
        before.scales[1][b] = of_z[(turn / 2 + b) % AMP_COUNT(of_z)];
    }
    for (size_t i = 0; i < LONGEST; i++) {
        before.codes[0][i] = (uint8_t)random_below(255) - 127;
        before.codes[1][i] = (uint8_t)random_below(turn % 3 ? 256 : 2);
    }
}

#define COMMON                                                                                                         \
    .inv_scale = 0x1.8p-9f, .factor = 0.7f, .lr = 0.03f, .beta1 = 0.9f, .rest1 = 0.1f, .beta2 = 0.99f, .rest2 = 0.01f, \
    .correction1 = 0.271f, .correction2 = 0.0297f

void check_adam8(amp_fn kernel, const amp_dtype *types, const char *isa) {
    static const struct amp__update settings[] = {
        { COMMON, .eps = 1e-5f, .key = 1 },
        { COMMON, .eps = 1e-5f, .weight_decay = 0.1f, .key = UINT64_C(0xfedcba9876543210), .before = 4096 },
        { .inv_scale = 1.0f, .factor = 1.0f, .lr = 0.03f, .rest1 = 1.0f, .beta2 = 0.99f, .rest2 = 0.01f, .eps = 1e-5f,
          .correction1 = 1.0f, .correction2 = 0.0297f, .key = 5 }, /* m up to FLT_MAX */
        { COMMON, .eps = 1e-8f, .weight_decay = 0.1f, .decoupled = true, .key = 3, .before = UINT64_C(0xffffff03) },
    };
    size_t turn = 0;
    (void)types;
    for (int i = 0; i < GUARDS; i++) guards[i] = guard_new((LONGEST + 17) * 4 + GUARD_BORDER);
    for (size_t s = 0; s < AMP_COUNT(settings); s++)
        for (size_t place = 0; place < AMP_COUNT(places); place++)
            for (size_t t = 0; t < AMP_COUNT(grad_types); t++)
                for (int p = (int)t % sweep_step(); p < PATTERNS; p += sweep_step(), turn++) {
                    struct amp__update u = settings[s];
                    char what[96];
                    u.grad_type = grad_types[t], u.low_type = places[place].low;
                    snprintf(what, sizeof what, "%s adam8 %zu, %s, gradient %d, %s", isa, s, places[place].name,
                             (int)u.grad_type, pattern_names[p]);
                    fill((enum pattern)p, u.grad_type, before.grad, LONGEST);
                    for (size_t i = 0; i < LONGEST && u.rest1 == 1.0f; i++) /* the largest, where others are infinite */
                        if (!isfinite(value_of_bits(u.grad_type, get_bits(u.grad_type, before.grad, i))))
                            set_bits(u.grad_type, before.grad, i, infinity_bits(u.grad_type) - 1);
                    fill(turn % 2 ? PATTERN_NORMAL : (enum pattern)p, AMP_FLOAT32, before.param, LONGEST);
                    fill((enum pattern)p, u.low_type ? u.low_type : AMP_FLOAT16, before.low, LONGEST);
                    fill_state(turn);
                    for (size_t l = turn % 3; l < AMP_COUNT(lengths); l += 3) {
                        expect(&u, place, lengths[l]);
                        check_one(kernel, &u, place, lengths[l], turn + l, what);
                    }
                }
    ck_assert_uint_gt(turn, 100);
    for (int i = 0; i < GUARDS; i++) guard_free(&guards[i]);
}
