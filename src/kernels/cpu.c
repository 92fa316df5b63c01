/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- properties of the processor ---- */

/* A set counts only if all of its parts are there, and if the operating system saves the registers that it uses. */
uint32_t amp__cpu_decode(const struct amp__cpuid *id) {
    enum { FMA = 1 << 12, AVX = 1 << 28, F16C = 1 << 29 };                                 /* leaf 1, ecx */
    enum { AVX2 = 1 << 5, AVX512F = 1 << 16, AVX512DQ = 1 << 17, AVX512BW = 1 << 30 };     /* leaf 7, ebx */
    const uint32_t avx512vl = UINT32_C(1) << 31;
    enum { XMM_YMM = 0x06, AND_ZMM = 0xe6 };                                               /* XCR0 */
    const struct {
        uint32_t flag, leaf1_ecx, leaf7_ebx;
        uint64_t xcr0;
    } sets[] = {
        { AMP_CPU_SSE2, 0, 0, 0 }, /* part of the architecture's baseline */
        { AMP_CPU_AVX2, FMA | AVX | F16C, AVX2, XMM_YMM },
        { AMP_CPU_AVX512, FMA | AVX | F16C, AVX2 | AVX512F | AVX512DQ | AVX512BW | avx512vl, AND_ZMM },
    };
    uint32_t flags = 0;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (!(sets[i].leaf1_ecx & ~id->leaf1_ecx) && !(sets[i].leaf7_ebx & ~id->leaf7_ebx) &&
            !(sets[i].xcr0 & ~id->xcr0))
            flags |= sets[i].flag;
    return flags;
}

#if defined(__x86_64__)

#include <cpuid.h>

static uint64_t read_xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static uint32_t detect(void) {
    enum { OSXSAVE = 1 << 27 };
    struct amp__cpuid id = { 0, 0, 0 };
    uint32_t eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) id.leaf1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) id.leaf7_ebx = ebx;
    if (id.leaf1_ecx & OSXSAVE) id.xcr0 = read_xcr0();
    return amp__cpu_decode(&id);
}

#elif defined(__aarch64__)

static uint32_t detect(void) { return AMP_CPU_NEON; /* part of the architecture's baseline */ }

#else

static uint32_t detect(void) { return 0; }

#endif

uint32_t amp__cpu_detect(void) { return detect() & AMP__CPU_ALL; }

/* ---- the mask ---- */

static bool same_word(const char *text, size_t length, const char *name) {
    return strlen(name) == length && !strncmp(text, name, length);
}

/* false: there is no such set. Sets of other architectures are known and mean nothing here. */
static bool find_set(const char *text, size_t length, uint32_t *flag) {
    static const struct {
        const char *name;
        uint32_t flag;
    } sets[] = { { "none", 0 },
                 { "sse2", AMP_CPU_SSE2 },
                 { "avx2", AMP_CPU_AVX2 },
                 { "avx512", AMP_CPU_AVX512 },
                 { "neon", AMP_CPU_NEON } };
    size_t i = 0;
    while (i < sizeof sets / sizeof *sets && !same_word(text, length, sets[i].name)) i++;
    if (i == sizeof sets / sizeof *sets) return false;
    *flag = sets[i].flag;
    return true;
}

bool amp__cpu_read_mask(const char *text, uint32_t *mask) {
    *mask = UINT32_MAX;
    if (!text || !*text) return false;
    char *end;
    errno = 0;
    const unsigned long number = strtoul(text, &end, 0);
    const bool fits = isdigit((unsigned char)*text) && !errno && number <= UINT32_MAX;
    uint32_t named = 0;
    if (*end == '\0' && fits) return *mask = (uint32_t)number, true;
    for (;;) {
        const size_t length = strcspn(text, ",");
        uint32_t flag;
        if (!find_set(text, length, &flag)) return false;
        named |= flag;
        if (text[length] == '\0') return *mask = named, true;
        text += length + 1;
    }
}
