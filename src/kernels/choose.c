/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table: the reference first, then each instruction set over it. */
#include "kernels/isa.h"
#include "kernels/ref/ref.h"
#include "system/system.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- flags in, table out ---- */

/* The slots of a set's table that are not empty, over the group's. A tile's rows and columns are slots as well. */
static void lay(void *group, const void *table, size_t bytes) {
    for (size_t at = 0; at < bytes; at += sizeof(uintptr_t)) {
        uintptr_t slot;
        memcpy(&slot, (const char *)table + at, sizeof slot);
        if (slot) memcpy((char *)group + at, &slot, sizeof slot);
    }
}
_Static_assert(sizeof(amp_fn) == sizeof(uintptr_t) && sizeof(struct amp__tile) == 3 * sizeof(uintptr_t),
               "a slot is a word");

/* Past the caches, one core waits for its reads: with AVX2's shorter ones, more of them are under way. Where the
 * conversion hides behind them, AVX-512 is up to 5 % behind (bench/README.md). */
static void keep_narrow_streams(struct amp__kernels *k, uint32_t cpu_flags) {
    (void)k, (void)cpu_flags;
#if defined(__x86_64__) && defined(AMP__X86_KERNELS)
    if (~cpu_flags & (AMP_CPU_AVX2 | AMP_CPU_AVX512)) return;
    k->cast_stream[AMP_FLOAT32][AMP_FLOAT64] = amp__avx2_cast_stream[AMP_FLOAT32][AMP_FLOAT64];
    k->cast_stream[AMP_BFLOAT16][AMP_FLOAT32] = amp__avx2_cast_stream[AMP_BFLOAT16][AMP_FLOAT32];
#endif
}

void amp__kernels_init(struct amp__kernels *k, uint32_t cpu_flags) {
    memset(k, 0, sizeof *k);
#define LAY(set, type, group, n_types) lay(&k->group, &amp__##set##_##group, sizeof k->group);
#define LAY_SET(isa, flag)                                                                                             \
    if (cpu_flags & (flag)) {                                                                                          \
        AMP__KERNEL_MAP(LAY, isa)                                                                                      \
    }
    AMP__KERNEL_MAP(LAY, ref)
    AMP__CPU_MAP(LAY_SET)
#undef LAY_SET
#undef LAY
    keep_narrow_streams(k, cpu_flags);
}

/* ---- the process's table ---- */

/* One table for each set of flags below those of the machine, so that a change of the mask never writes to a table in
 * use. */
enum { TABLES = AMP__CPU_ALL / AMP__CPU_FIRST + 1 };

static struct amp__kernels tables[TABLES];
static uint32_t machine, mask; /* mask: atomic */
static size_t cache_bytes;
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

/* Returns the size of the last cache level, but at most one core's share: other cores share that level, and virtual
 * machines report ten times its size. If the system does not report it: a common size. */
static size_t find_cache_bytes(void) {
    enum { USUAL = 16 << 20, MOST = 32 << 20 };
    const long bytes = amp__last_cache_bytes();
    return bytes <= 0 ? USUAL : bytes < MOST ? (size_t)bytes : MOST;
}

static void build_tables(void) {
    cache_bytes = find_cache_bytes();
    machine = amp__cpu_detect();
    for (uint32_t i = 0; i < TABLES; i++)
        if (!(i * AMP__CPU_FIRST & ~machine)) amp__kernels_init(&tables[i], i * AMP__CPU_FIRST);
    uint32_t first;
    (void)amp__cpu_read_mask(getenv("AMP_CPU_MASK"), &first);
    __atomic_store_n(&mask, first, __ATOMIC_RELAXED);
}

AMP_API uint32_t amp_cpu_flags(void) {
    pthread_once(&tables_once, build_tables);
    return machine & __atomic_load_n(&mask, __ATOMIC_RELAXED);
}

AMP_API void amp_set_cpu_mask(uint32_t new_mask) {
    pthread_once(&tables_once, build_tables);
    __atomic_store_n(&mask, new_mask, __ATOMIC_RELAXED);
}

const struct amp__kernels *amp__kernels_get(void) { return &tables[amp_cpu_flags() / AMP__CPU_FIRST]; }

size_t amp__cache_bytes(void) {
    pthread_once(&tables_once, build_tables);
    return cache_bytes;
}
