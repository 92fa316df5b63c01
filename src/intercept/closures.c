/* SPDX-License-Identifier: Apache-2.0 */
/* Three hash tables with chains through the closures. They grow with them; where there is no memory the chains do. */
#include "intercept/closures.h"

#include <string.h>

struct bucket {
    struct amp__closure *at, *by_code, *idle;
};

enum { FIRST_BUCKETS = 64 };
static struct bucket first_buckets[FIRST_BUCKETS];
static struct {
    struct bucket *buckets;
    size_t mask, n;
} table = { first_buckets, FIRST_BUCKETS - 1, 0 };

static struct bucket *bucket_of(uintptr_t address) {
    const uint64_t key = (uint64_t)address * 0x9e3779b97f4a7c15u; /* Fibonacci hashing: spreads aligned addresses */
    return &table.buckets[(size_t)(key >> 32) & table.mask];
}
static struct bucket *bucket_of_function(amp_fn function) { return bucket_of((uintptr_t)function); }

static void link_at(struct amp__closure *closure) {
    struct bucket *bucket = bucket_of((uintptr_t)closure->slot);
    closure->next_at = bucket->at;
    bucket->at = closure;
}

static void link_by_code(struct amp__closure *closure) {
    struct bucket *bucket = bucket_of_function(closure->code);
    closure->next_by_code = bucket->by_code;
    bucket->by_code = closure;
}

static void link_idle(struct amp__closure *closure) {
    struct amp__closure **head = &bucket_of_function(closure->original)->idle;
    closure->next_idle = *head;
    closure->idle_link = head;
    if (*head) (*head)->idle_link = &closure->next_idle;
    *head = closure;
}

static void grow_table(void) {
    const size_t old = table.mask + 1;
    if (table.n < old) return;
    struct bucket *was = table.buckets, *buckets = amp__alloc(4 * old, sizeof *buckets);
    if (!buckets) return;
    table.buckets = buckets;
    table.mask = 4 * old - 1;
    for (size_t i = 0; i < old; i++)
        for (struct amp__closure *closure = was[i].by_code, *next; closure; closure = next) {
            next = closure->next_by_code;
            link_by_code(closure);
            link_at(closure);
            if (closure->idle_link) link_idle(closure);
        }
    if (was != first_buckets) amp__free(was);
}

void amp__closures_add(struct amp__closure *closure, amp_fn *slot) {
    grow_table();
    table.n++;
    closure->slot = slot;
    link_at(closure);
    link_by_code(closure);
}

void amp__closures_move(struct amp__closure *closure, amp_fn *slot) {
    if (closure->slot == slot) return;
    struct amp__closure **link = &bucket_of((uintptr_t)closure->slot)->at;
    while (*link != closure) link = &(*link)->next_at;
    *link = closure->next_at;
    closure->slot = slot;
    link_at(closure);
}

struct amp__closure *amp__closures_at(const amp_fn *slot, const struct amp__closure *after) {
    struct amp__closure *closure = after ? after->next_at : bucket_of((uintptr_t)slot)->at;
    while (closure && closure->slot != slot) closure = closure->next_at;
    return closure;
}

struct amp__closure *amp__closures_by_code(amp_fn code) {
    struct amp__closure *closure = bucket_of_function(code)->by_code;
    while (closure && closure->code != code) closure = closure->next_by_code;
    return closure;
}

void amp__closures_put_idle(struct amp__closure *closure) {
    if (!closure->idle_link) link_idle(closure);
}

void amp__closures_take_idle(struct amp__closure *closure) {
    if (!closure->idle_link) return;
    *closure->idle_link = closure->next_idle;
    if (closure->next_idle) closure->next_idle->idle_link = closure->idle_link;
    closure->idle_link = NULL;
}

struct amp__closure *amp__closures_idle(amp_fn original, const struct amp__closure *after) {
    struct amp__closure *closure = after ? after->next_idle : bucket_of_function(original)->idle;
    while (closure && closure->original != original) closure = closure->next_idle;
    return closure;
}
