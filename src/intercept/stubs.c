/* SPDX-License-Identifier: Apache-2.0 */
/* Which signatures fit into registers, and the stubs given out so far. */
#include "intercept/registers.h"
#include "intercept/closure.h"

#include <stddef.h>
#include <string.h>

#if AMP__GENERAL

void amp__register_map_find(const struct amp__schema *schema, struct amp__register_map *map) {
    uint32_t general = 0, vector = 0;
    *map = (struct amp__register_map){ .fit = schema->ret.kind != AMP__STRUCT };
    for (uint32_t i = 0; i < schema->n_args && map->fit; i++) {
        const uint8_t kind = schema->args[i].kind;
        const bool floating = kind == AMP__FLOAT || kind == AMP__DOUBLE;
        map->fit = kind != AMP__STRUCT && (floating ? vector < AMP__VECTOR : general < AMP__GENERAL);
        if (map->fit) map->argument[i] = (uint8_t)(floating ? AMP__GENERAL + vector++ : general++);
    }
    map->n_vector = (uint8_t)vector;
    map->result = schema->ret.kind == AMP__FLOAT || schema->ret.kind == AMP__DOUBLE;
}

/* Assembly knows these. */
_Static_assert(offsetof(struct amp__closure, n_vector) == 0, "it is looked at before C is reached");
_Static_assert(offsetof(struct amp__registers, result) == 8 * (AMP__GENERAL + AMP__VECTOR), "words without gaps");

enum { STUB_BYTES = 16 };
extern const char amp__stubs[] __attribute__((visibility("hidden")));
/* The closure of each stub. Part of the slot registry. An unassigned stub is never called. */
extern _Atomic(struct amp__closure *) amp__stub_closures[AMP__STUBS] __attribute__((visibility("hidden")));
_Atomic(struct amp__closure *) amp__stub_closures[AMP__STUBS];

amp_fn amp__stub_take(struct amp__closure *closure) {
    static uint32_t taken;
    if (taken == AMP__STUBS) return NULL;
    const char *code = amp__stubs + STUB_BYTES * taken;
    atomic_store_explicit(&amp__stub_closures[taken++], closure, memory_order_release);
    amp_fn function;
    memcpy(&function, &code, sizeof function); /* ISO C has no cast from data to function pointers */
    return function;
}

#else

void amp__register_map_find(const struct amp__schema *schema, struct amp__register_map *map) {
    (void)schema;
    *map = (struct amp__register_map){ .fit = false };
}
amp_fn amp__stub_take(struct amp__closure *closure) {
    (void)closure;
    return NULL;
}
void amp__registers_call(struct amp__registers *registers, amp_fn function, uint32_t n_vector) {
    (void)registers, (void)function, (void)n_vector; /* no signature fits */
}

#endif
