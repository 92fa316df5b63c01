/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table: the reference first, then each instruction set over it. */
#include "kernels/kernels.h"
#include "kernels/ref/ref.h"

#include <pthread.h>
#include <string.h>

uint32_t amp__cpu_flags(void) { return 0; /* there are no kernels to choose from yet */ }

void amp__kernels_init(struct amp__kernels *k, uint32_t cpu_flags) {
    (void)cpu_flags;
    memcpy(k->cast, amp__ref_cast, sizeof k->cast);
    memcpy(k->scale, amp__ref_scale, sizeof k->scale);
    memcpy(k->axpby, amp__ref_axpby, sizeof k->axpby);
    memcpy(k->sum_squares, amp__ref_sum_squares, sizeof k->sum_squares);
    memcpy(k->nonfinite, amp__ref_nonfinite, sizeof k->nonfinite);
    k->tile = amp__ref_tile;
}

static struct amp__kernels table;
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void build_table(void) { amp__kernels_init(&table, amp__cpu_flags()); }

const struct amp__kernels *amp__kernels_get(void) {
    pthread_once(&table_once, build_table);
    return &table;
}
