/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include <stdbool.h>

enum { ALIGNMENT = 64 };

static size_t end_of(const struct plan_item *item) {
    return item->offset + (item->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bool clash(const struct plan_item *a, const struct plan_item *b) {
    const bool same_time = a->birth <= b->death && b->birth <= a->death;
    return same_time && a->offset < end_of(b) && b->offset < end_of(a);
}

size_t plan_memory(struct plan_item *items, int n) {
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        items[i].offset = 0;
        for (int j = 0; j < i; j++) {
            if (!clash(&items[i], &items[j])) continue;
            items[i].offset = end_of(&items[j]); /* only ever upwards, so this ends */
            j = -1;
        }
        if (end_of(&items[i]) > total) total = end_of(&items[i]);
    }
    return total;
}
