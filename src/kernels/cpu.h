/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction sets there are kernels for, and which of them this machine has. */
#ifndef AMP_KERNELS_CPU_H
#define AMP_KERNELS_CPU_H

#include "amp_kernels.h"

#include <stdbool.h>

/* The sets of the architecture that this is compiled for, lowest first: X(name, flag). Their flags are neighbours;
 * AMP__CPU_FIRST is the lowest bit of them. */
#if defined(__x86_64__) && defined(AMP__X86_KERNELS)
#define AMP__CPU_MAP(X)                                                                                                \
    X(sse2, AMP_CPU_SSE2)                                                                                              \
    X(avx2, AMP_CPU_AVX2)                                                                                              \
    X(avx512, AMP_CPU_AVX512)
#define AMP__CPU_FIRST AMP_CPU_AVX2
#elif defined(__aarch64__) && defined(AMP__ARM_KERNELS)
#define AMP__CPU_MAP(X) X(neon, AMP_CPU_NEON)
#define AMP__CPU_FIRST AMP_CPU_NEON
#else
#define AMP__CPU_MAP(X)
#define AMP__CPU_FIRST 1u
#endif

#define AMP__CPU_ADD(name, flag) | (flag)
#define AMP__CPU_ALL (0u AMP__CPU_MAP(AMP__CPU_ADD))

/* Results of the cpuid instruction, and the registers that the operating system saves (0: unknown). */
struct amp__cpuid {
    uint32_t leaf1_ecx, leaf7_ebx;
    uint64_t xcr0;
};

/* The sets that such a processor has: flags of x86. Pure. */
uint32_t amp__cpu_decode(const struct amp__cpuid *id);

/* Those of this machine: flags of AMP__CPU_MAP. */
uint32_t amp__cpu_detect(void);

/* AMP_CPU_MASK's value: a number ("3", "0x1") or names ("avx2,avx512", "none"), those of other architectures too.
 * False: it is neither, NULL and "" among it, and *mask masks nothing. */
bool amp__cpu_read_mask(const char *text, uint32_t *mask);

#endif
