/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that are alive, and the most there were at once. */
#ifndef AMP_LEDGER_H
#define AMP_LEDGER_H

#include <stdatomic.h>
#include <stdint.h>

struct amp__ledger {
    _Atomic(uint64_t) now, most;
};

static inline void amp__ledger_add(struct amp__ledger *ledger, uint64_t bytes) {
    const uint64_t now = atomic_fetch_add_explicit(&ledger->now, bytes, memory_order_relaxed) + bytes;
    uint64_t most = atomic_load_explicit(&ledger->most, memory_order_relaxed);
    while (now > most && !atomic_compare_exchange_weak(&ledger->most, &most, now)) continue;
}
static inline void amp__ledger_take(struct amp__ledger *ledger, uint64_t bytes) {
    if (bytes) atomic_fetch_sub_explicit(&ledger->now, bytes, memory_order_relaxed);
}

#endif
