/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common parts of instruction sets with four floats a register (x86/sse2.h, arm/neon.h): eight lanes are two registers
 * of floats, or four of doubles. Defined before: quad and pair, the types of registers.
 */
#ifndef AMP_KERNELS_VECTOR_HALVES_H
#define AMP_KERNELS_VECTOR_HALVES_H

enum { LANES = 8 };
#define EACH_SUM(X, type) X(0, type) X(1, type)

typedef struct {
    quad low, high;
} vf;
typedef struct {
    pair q0, q1, q2, q3;
} vd;

/* vf_word and vd_word by an operation on each register. */
#define OF_HALVES(word, op)                                                                                            \
    static inline vf vf_##word(vf x, vf y) { return (vf){ op(x.low, y.low), op(x.high, y.high) }; }
#define OF_QUARTERS(word, op)                                                                                          \
    static inline vd vd_##word(vd x, vd y) {                                                                           \
        return (vd){ op(x.q0, y.q0), op(x.q1, y.q1), op(x.q2, y.q2), op(x.q3, y.q3) };                                 \
    }

/* Parts by way of memory. */
#define PARTS(v, type)                                                                                                 \
    static inline v v##_load_part_##type(const amp__##type *src, size_t n) {                                           \
        amp__##type words[LANES] = { 0 };                                                                              \
        memcpy(words, src, n * sizeof *src);                                                                           \
        return v##_load_##type(words);                                                                                 \
    }                                                                                                                  \
    static inline void v##_store_part_##type(amp__##type *dst, v x, size_t n) {                                        \
        amp__##type words[LANES];                                                                                      \
        v##_store_##type(words, x);                                                                                    \
        memcpy(dst, words, n * sizeof *dst);                                                                           \
    }
#define FIRST(v, type)                                                                                                 \
    static inline v v##_first(v x, size_t n) {                                                                         \
        amp__##type words[LANES];                                                                                      \
        v##_store_##type(words, x);                                                                                    \
        return v##_load_part_##type(words, n);                                                                         \
    }

#endif
