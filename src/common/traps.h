/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Floating-point traps. Some C trainers switch them on, and an fp16 infinity, which the scaler expects now and then,
 * would kill them. They are masked on the thread while an op runs on substituted values and while a bracket is open.
 * Then the whole environment is restored, with its flags. Costs two register reads if no trap is on.
 */
#ifndef AMP_TRAPS_H
#define AMP_TRAPS_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)

#include <xmmintrin.h>

struct amp__traps {
    uint32_t sse;
    uint16_t x87;
    bool masked;
};

static inline void amp__traps_mask(struct amp__traps *traps) {
    enum { SSE_MASKS = 0x1f80, X87_MASKS = 0x3f };
    __asm__ volatile("fnstcw %0" : "=m"(traps->x87));
    traps->sse = _mm_getcsr();
    traps->masked = (traps->sse & SSE_MASKS) != SSE_MASKS || (traps->x87 & X87_MASKS) != X87_MASKS;
    if (!traps->masked) return;
    const uint16_t masked = traps->x87 | X87_MASKS;
    __asm__ volatile("fldcw %0" : : "m"(masked));
    _mm_setcsr(traps->sse | SSE_MASKS);
}

static inline void amp__traps_restore(const struct amp__traps *traps) {
    if (!traps->masked) return;
    __asm__ volatile("fnclex\n\tfldcw %0" : : "m"(traps->x87)); /* a pending x87 exception would trap at once */
    _mm_setcsr(traps->sse);
}

#elif defined(__aarch64__)

struct amp__traps {
    uint64_t control, status;
    bool masked;
};

static inline void amp__traps_mask(struct amp__traps *traps) {
    const uint64_t enables = 0x9f00; /* IDE, IXE, UFE, OFE, DZE, IOE */
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(traps->control), "=r"(traps->status));
    traps->masked = (traps->control & enables) != 0;
    if (traps->masked) __asm__ volatile("msr fpcr, %0" : : "r"(traps->control & ~enables));
}

static inline void amp__traps_restore(const struct amp__traps *traps) {
    if (traps->masked) __asm__ volatile("msr fpsr, %1\n\tmsr fpcr, %0" : : "r"(traps->control), "r"(traps->status));
}

#else

struct amp__traps {
    bool masked;
};
static inline void amp__traps_mask(struct amp__traps *traps) { traps->masked = false; }
static inline void amp__traps_restore(const struct amp__traps *traps) { (void)traps; }

#endif

#endif
