/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bracket in which the floating-point environment is the default one: to nearest, subnormals kept, no trap, no flag.
 * Leaving it restores the caller's environment, flags included, as if no arithmetic had happened.
 * The barriers keep the compiler, which does not model the environment, from moving arithmetic over either end;
 * operands and results must therefore go through memory or a call.
 */
#ifndef AMP_KERNELS_FPENV_H
#define AMP_KERNELS_FPENV_H

#include <stdint.h>

#define AMP__FPENV_BARRIER() __asm__ volatile("" ::: "memory")

#if defined(__x86_64__)

#include <xmmintrin.h>

typedef uint32_t amp__fpenv;

static inline amp__fpenv amp__fpenv_enter(void) {
    enum { ALL_MASKED_NEAREST = 0x1f80 };
    const amp__fpenv saved = _mm_getcsr();
    _mm_setcsr(ALL_MASKED_NEAREST);
    AMP__FPENV_BARRIER();
    return saved;
}

static inline void amp__fpenv_leave(amp__fpenv saved) {
    AMP__FPENV_BARRIER();
    _mm_setcsr(saved);
}

#elif defined(__aarch64__)

typedef struct {
    uint64_t control, status;
} amp__fpenv;

static inline void amp__fpenv_set(amp__fpenv env) {
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(env.control), "r"(env.status) : "memory");
}

static inline amp__fpenv amp__fpenv_enter(void) {
    amp__fpenv saved;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(saved.control), "=r"(saved.status) : : "memory");
    amp__fpenv_set((amp__fpenv){ 0, 0 });
    return saved;
}

static inline void amp__fpenv_leave(amp__fpenv saved) { amp__fpenv_set(saved); }

#else

#include <fenv.h>

typedef fenv_t amp__fpenv;

static inline amp__fpenv amp__fpenv_enter(void) {
    amp__fpenv saved;
    fegetenv(&saved);
    fesetenv(FE_DFL_ENV);
    AMP__FPENV_BARRIER();
    return saved;
}

static inline void amp__fpenv_leave(amp__fpenv saved) {
    AMP__FPENV_BARRIER();
    fesetenv(&saved);
}

#endif

#endif
