/* SPDX-License-Identifier: Apache-2.0 */
/* The physical limits: loops that move the bytes and do no work, in each way that this machine can. */
#include "bench.h"

#include <string.h>

/* What is read must be used: the loops fold it into what they write, or into here. */
volatile uint64_t bench_sink;

#if defined(__x86_64__)

#include <immintrin.h>

/* Bytes to be read soon, as libamp's loops fetch them; or nothing. */
static inline void fetch(const void *src, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch((const void *)((uintptr_t)src + 4096 + i), 0, 2);
}
static inline void leave(const void *src, size_t bytes) { (void)src, (void)bytes; }

/* `STEP` bytes of the longer side at a time. */
#define MOVE(name, isa, vector, bytes, load, store, merge, done, ahead)                                                \
    __attribute__((target(isa))) static void name(void *data) {                                                        \
        const struct bench_move *m = data;                                                                             \
        const char *src = m->src;                                                                                      \
        char *dst = m->dst;                                                                                            \
        if (m->from == m->to)                                                                                          \
            for (size_t i = 0; i < m->to; i += 2 * (bytes)) {                                                          \
                ahead(src + i, 2 * (bytes));                                                                           \
                const vector x = load(src + i), y = load(src + i + (bytes));                                           \
                store(dst + i, x), store(dst + i + (bytes), y);                                                        \
            }                                                                                                          \
        else if (m->from == 2 * m->to)                                                                                 \
            for (size_t i = 0; i < m->to; i += 2 * (bytes)) {                                                          \
                ahead(src + 2 * i, 4 * (bytes));                                                                       \
                const vector x = merge(load(src + 2 * i), load(src + 2 * i + (bytes)));                                \
                const vector y = merge(load(src + 2 * i + 2 * (bytes)), load(src + 2 * i + 3 * (bytes)));              \
                store(dst + i, x), store(dst + i + (bytes), y);                                                        \
            }                                                                                                          \
        else if (m->to == 2 * m->from)                                                                                 \
            for (size_t i = 0; i < m->from; i += 2 * (bytes)) {                                                        \
                ahead(src + i, 2 * (bytes));                                                                           \
                const vector x = load(src + i), y = load(src + i + (bytes));                                           \
                store(dst + 2 * i, x), store(dst + 2 * i + (bytes), x);                                                \
                store(dst + 2 * i + 2 * (bytes), y), store(dst + 2 * i + 3 * (bytes), y);                              \
            }                                                                                                          \
        else if (m->from == 4 * m->to)                                                                                 \
            for (size_t i = 0; i < m->to; i += (bytes)) {                                                              \
                ahead(src + 4 * i, 4 * (bytes));                                                                       \
                const vector x = merge(load(src + 4 * i), load(src + 4 * i + (bytes)));                                \
                const vector y = merge(load(src + 4 * i + 2 * (bytes)), load(src + 4 * i + 3 * (bytes)));              \
                store(dst + i, merge(x, y));                                                                           \
            }                                                                                                          \
        else                                                                                                           \
            for (size_t i = 0; i < m->from; i += (bytes)) {                                                            \
                ahead(src + i, bytes);                                                                                 \
                const vector x = load(src + i);                                                                        \
                store(dst + 4 * i, x), store(dst + 4 * i + (bytes), x);                                                \
                store(dst + 4 * i + 2 * (bytes), x), store(dst + 4 * i + 3 * (bytes), x);                              \
            }                                                                                                          \
        done;                                                                                                          \
    }

#define LOAD256(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define STORE256(p, x) _mm256_storeu_si256((__m256i *)(void *)(p), x)
#define STREAM256(p, x) _mm256_stream_si256((__m256i *)(void *)(p), x)
#define LOAD512(p) _mm512_loadu_si512((const void *)(p))
#define STORE512(p, x) _mm512_storeu_si512((void *)(p), x)
#define STREAM512(p, x) _mm512_stream_si512((__m512i *)(void *)(p), x)
#define MOVES(set, isa, vector, bytes, load, store, stream, merge)                                                     \
    MOVE(move_##set, isa, vector, bytes, load, store, merge, (void)0, leave)                                           \
    MOVE(stream_##set, isa, vector, bytes, load, stream, merge, _mm_sfence(), leave)                                   \
    MOVE(move_ahead_##set, isa, vector, bytes, load, store, merge, (void)0, fetch)                                     \
    MOVE(stream_ahead_##set, isa, vector, bytes, load, stream, merge, _mm_sfence(), fetch)
MOVES(avx2, "avx2", __m256i, 32, LOAD256, STORE256, STREAM256, _mm256_xor_si256)
MOVES(avx512, "avx512f", __m512i, 64, LOAD512, STORE512, STREAM512, _mm512_xor_si512)

#define FLOATS(isa, name, vector, lanes, load, store, multiply, set, merge, ahead)                                     \
    __attribute__((target(isa))) static void multiply_##name(void *data) {                                             \
        const struct bench_floats *f = data;                                                                           \
        const vector factor = set(f->factor);                                                                          \
        for (size_t i = 0; i < f->n; i += 4 * (lanes)) {                                                               \
            ahead(f->data + i, 4 * (lanes) * sizeof(float));                                                           \
            const vector x0 = load(f->data + i), x1 = load(f->data + i + (lanes));                                     \
            const vector x2 = load(f->data + i + 2 * (lanes)), x3 = load(f->data + i + 3 * (lanes));                   \
            store(f->data + i, multiply(x0, factor)), store(f->data + i + (lanes), multiply(x1, factor));              \
            store(f->data + i + 2 * (lanes), multiply(x2, factor));                                                    \
            store(f->data + i + 3 * (lanes), multiply(x3, factor));                                                    \
        }                                                                                                              \
    }                                                                                                                  \
    __attribute__((target(isa))) static void read_##name(void *data) {                                                 \
        const struct bench_floats *f = data;                                                                           \
        vector s0 = set(0), s1 = s0, s2 = s0, s3 = s0;                                                                 \
        for (size_t i = 0; i < f->n; i += 4 * (lanes)) {                                                               \
            ahead(f->data + i, 4 * (lanes) * sizeof(float));                                                           \
            s0 = merge(s0, load(f->data + i)), s1 = merge(s1, load(f->data + i + (lanes)));                            \
            s2 = merge(s2, load(f->data + i + 2 * (lanes))), s3 = merge(s3, load(f->data + i + 3 * (lanes)));          \
        }                                                                                                              \
        const vector all = merge(merge(s0, s1), merge(s2, s3));                                                        \
        uint64_t first;                                                                                                \
        memcpy(&first, &all, sizeof first);                                                                            \
        bench_sink = first;                                                                                            \
    }
#define FLOATS_AVX2(name, ahead)                                                                                       \
    FLOATS("avx2", name, __m256, 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_max_ps,   \
           ahead)
#define FLOATS_AVX512(name, ahead)                                                                                     \
    FLOATS("avx512f", name, __m512, 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_mul_ps, _mm512_set1_ps,              \
           _mm512_max_ps, ahead)
FLOATS_AVX2(avx2, leave)
FLOATS_AVX2(ahead_avx2, fetch)
FLOATS_AVX512(avx512, leave)
FLOATS_AVX512(ahead_avx512, fetch)

#endif

static void move_plain(void *data) {
    const struct bench_move *m = data;
    const uint64_t *src = m->src;
    uint64_t *dst = m->dst;
    const size_t n = m->to / 8, up = m->from > m->to ? m->from / m->to : 1, down = m->to > m->from ? m->to / m->from
        : 1;
    for (size_t i = 0; i < n / down; i++)
        for (size_t j = 0; j < down; j++) {
            uint64_t word = 0;
            for (size_t k = 0; k < up; k++) word ^= src[i * up + k];
            dst[i * down + j] = word;
        }
}

static void multiply_plain(void *data) {
    const struct bench_floats *f = data;
    for (size_t i = 0; i < f->n; i++) f->data[i] *= f->factor;
}

static void read_plain(void *data) {
    const struct bench_floats *f = data;
    uint64_t sum[8] = { 0 };
    const uint64_t *words = (const void *)f->data;
    for (size_t i = 0; i + 8 <= f->n / 2; i += 8)
        for (size_t j = 0; j < 8; j++) sum[j] ^= words[i + j];
    bench_sink = sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

#if defined(__x86_64__)
#define ALL_OF(set) move_##set, stream_##set, move_ahead_##set, stream_ahead_##set
bench_fn *const bench_moves[] = { move_plain, ALL_OF(avx2), ALL_OF(avx512) };
bench_fn *const bench_multiplies[] = { multiply_plain, multiply_avx2, multiply_ahead_avx2, multiply_avx512,
                                       multiply_ahead_avx512 };
bench_fn *const bench_reads[] = { read_plain, read_avx2, read_ahead_avx2, read_avx512, read_ahead_avx512 };
static size_t sets(void) { return __builtin_cpu_supports("avx512f") ? 2 : __builtin_cpu_supports("avx2") ? 1 : 0; }
#else
bench_fn *const bench_moves[] = { move_plain };
bench_fn *const bench_multiplies[] = { multiply_plain };
bench_fn *const bench_reads[] = { read_plain };
static size_t sets(void) { return 0; }
#endif

#define NAMES_OF(set) set, set ", streaming", set ", fetched ahead", set ", streaming, fetched ahead"
const char *const bench_move_names[] = { "plain loop", NAMES_OF("AVX2"), NAMES_OF("AVX-512") };

size_t bench_n_moves(void) { return 1 + 4 * sets(); }
size_t bench_n_floats(void) { return 1 + 2 * sets(); }
