/* SPDX-License-Identifier: Apache-2.0 */
/* Loops with the streams of an optimizer's step that compute nothing: what they write is what was there. */
#include "bench.h"

#include <string.h>

static volatile uint32_t bench_zero; /* what is 0 is not known to the compiler: all that is read is used */

#define EACH_TENSOR(step) for (size_t i = 0; i < (step)->n; i++)

#if defined(__x86_64__)

#include <immintrin.h>

/* The line 4 KiB on, as libamp's optimizers fetch it. */
static inline void fetch(const void *stream, size_t at, size_t width) {
    __builtin_prefetch((const void *)((uintptr_t)stream + at * width + 4096), 0, 2);
}

/* `half`: as many 16-bit elements as `wide` holds floats; the gradient is 16-bit where there is a copy to write. */
#define STEP(name, isa, wide, half, lanes, load, store, load_half, store_half, widen, and_half, and, or, set,          \
             set_half, done, soon)                                                                                     \
    __attribute__((target(isa))) static void name(void *data) {                                                        \
        const struct bench_stream *s = data;                                                                           \
        const wide none = set((int)bench_zero);                                                                        \
        const half none_half = set_half((short)bench_zero);                                                            \
        const size_t n_floats = s->n_floats;                                                                           \
        EACH_TENSOR(s) {                                                                                               \
            const size_t begin = i * s->length, end = begin + s->length;                                               \
            for (size_t at = begin; at < end; at += (lanes)) {                                                         \
                if (soon) {                                                                                            \
                    fetch(s->grad, at, s->low ? 2 : 4);                                                                \
                    for (size_t k = 0; k < n_floats; k++) fetch(s->floats[k], at, 4);                                  \
                }                                                                                                      \
                wide keep;                                                                                             \
                if (s->low) {                                                                                          \
                    const half keep_half = and_half(load_half((const uint16_t *)s->grad + at), none_half);             \
                    store_half(s->low + at, keep_half);                                                                \
                    keep = widen(keep_half);                                                                           \
                } else keep = and(load((const float *)s->grad + at), none);                                            \
                store(s->floats[0] + at, or(load(s->floats[0] + at), keep));                                           \
                if (n_floats > 1) store(s->floats[1] + at, or(load(s->floats[1] + at), keep));                         \
                if (n_floats > 2) store(s->floats[2] + at, or(load(s->floats[2] + at), keep));                         \
            }                                                                                                          \
        }                                                                                                              \
        done;                                                                                                          \
    }

#define LOAD128(p) _mm_loadu_si128((const __m128i *)(const void *)(p))
#define STORE128(p, x) _mm_storeu_si128((__m128i *)(void *)(p), x)
#define STREAM128(p, x) _mm_stream_si128((__m128i *)(void *)(p), x)
#define LOAD256(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define STORE256(p, x) _mm256_storeu_si256((__m256i *)(void *)(p), x)
#define STREAM256(p, x) _mm256_stream_si256((__m256i *)(void *)(p), x)
#define LOAD512(p) _mm512_loadu_si512((const void *)(p))
#define STORE512(p, x) _mm512_storeu_si512((void *)(p), x)
#define AVX2(name, store_half, done, soon)                                                                             \
    STEP(name, "avx2", __m256i, __m128i, 8, LOAD256, STORE256, LOAD128, store_half, _mm256_cvtepu16_epi32,             \
         _mm_and_si128, _mm256_and_si256, _mm256_or_si256, _mm256_set1_epi32, _mm_set1_epi16, done, soon)
#define AVX512(name, store_half, done, soon)                                                                           \
    STEP(name, "avx512f", __m512i, __m256i, 16, LOAD512, STORE512, LOAD256, store_half, _mm512_cvtepu16_epi32,         \
         _mm256_and_si256, _mm512_and_si512, _mm512_or_si512, _mm512_set1_epi32, _mm256_set1_epi16, done, soon)
#define BOTH(SET, set, store_half, stream_half)                                                                        \
    SET(step_##set, store_half, (void)0, false)                                                                        \
    SET(step_stream_##set, stream_half, _mm_sfence(), false)                                                           \
    SET(step_ahead_##set, store_half, (void)0, true)                                                                   \
    SET(step_stream_ahead_##set, stream_half, _mm_sfence(), true)
BOTH(AVX2, avx2, STORE128, STREAM128)
BOTH(AVX512, avx512, STORE256, STREAM256)

#endif

static void step_plain(void *data) {
    const struct bench_stream *s = data;
    const uint32_t none = bench_zero;
    uint32_t *floats[3];
    memcpy(floats, s->floats, sizeof floats);
    EACH_TENSOR(s) {
        for (size_t at = i * s->length, end = at + s->length; at < end; at++) {
            const uint32_t keep = (s->low ? ((const uint16_t *)s->grad)[at] : ((const uint32_t *)s->grad)[at]) & none;
            if (s->low) s->low[at] = (uint16_t)keep;
            for (size_t k = 0; k < s->n_floats; k++) floats[k][at] |= keep;
        }
    }
}

#if defined(__x86_64__)
#define ALL_OF(set) step_##set, step_stream_##set, step_ahead_##set, step_stream_ahead_##set
bench_fn *const bench_streams[] = { step_plain, ALL_OF(avx2), ALL_OF(avx512) };
static size_t sets(void) { return __builtin_cpu_supports("avx512f") ? 2 : __builtin_cpu_supports("avx2") ? 1 : 0; }
#else
bench_fn *const bench_streams[] = { step_plain };
static size_t sets(void) { return 0; }
#endif
#define NAMES_OF(set) set, set ", copy streamed", set ", fetched ahead", set ", copy streamed, fetched ahead"
const char *const bench_stream_names[] = { "plain", NAMES_OF("AVX2"), NAMES_OF("AVX-512") };

size_t bench_n_streams(void) { return 1 + 4 * sets(); }
