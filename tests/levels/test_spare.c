/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of calls that is kept for the next ones: what comes back, what is freed, and that nobody else gets it. */
#include "checks.h"

#include "context/context.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static size_t kept(const struct amp__spares *spares) {
    size_t n = 0;
    for (size_t i = 0; i < AMP__SPARES; i++) n += spares->blocks[i] != NULL;
    return n;
}

TEST(a_block_comes_back) {
    struct amp__spares spares = { .next = 0 };
    char *block = amp__spare_take(&spares, AMP__SPARE_LEAST);
    ck_assert_ptr_nonnull(block);
    ck_assert_uint_eq((uintptr_t)block % 64, 0);
    memset(block, 1, AMP__SPARE_LEAST);
    amp__spare_give(&spares, block);
    void *others[8]; /* whoever allocates now would get it, had it been freed */
    for (size_t i = 0; i < 8; i++) ck_assert_ptr_nonnull(others[i] = malloc(AMP__SPARE_LEAST));
    ck_assert_ptr_eq(amp__spare_take(&spares, AMP__SPARE_LEAST), block);
    ck_assert_uint_eq(kept(&spares), 0);
    amp__spare_give(&spares, block);
    amp__spares_clear(&spares);
    ck_assert_uint_eq(kept(&spares), 0);
    for (size_t i = 0; i < 8; i++) free(others[i]);
}

TEST(a_block_that_does_not_fit_waits) {
    struct amp__spares spares = { .next = 0 };
    void *block = amp__spare_take(&spares, 4 * AMP__SPARE_LEAST);
    amp__spare_give(&spares, block);
    void *larger = amp__spare_take(&spares, 4 * AMP__SPARE_LEAST + 1);
    void *smaller = amp__spare_take(&spares, 2 * AMP__SPARE_LEAST - 1);
    ck_assert_ptr_ne(larger, block);
    ck_assert_ptr_ne(smaller, block);
    memset(larger, 1, 4 * AMP__SPARE_LEAST + 1);
    ck_assert_uint_eq(kept(&spares), 1);
    ck_assert_ptr_eq(amp__spare_take(&spares, 2 * AMP__SPARE_LEAST), block);
    amp__spare_give(&spares, block), amp__spare_give(&spares, larger), amp__spare_give(&spares, smaller);
    amp__spares_clear(&spares);
}

TEST(small_blocks_are_freed_and_large_ones_make_way) {
    struct amp__spares spares = { .next = 0 };
    void *blocks[AMP__SPARES + 3];
    amp__spare_give(&spares, amp__spare_take(&spares, AMP__SPARE_LEAST - 1));
    amp__spare_give(&spares, amp__spare_take(&spares, 0));
    amp__spare_give(&spares, NULL);
    ck_assert_uint_eq(kept(&spares), 0);
    ck_assert_ptr_null(amp__spare_take(&spares, SIZE_MAX));
    for (size_t i = 0; i < AMP__SPARES + 3; i++)
        blocks[i] = amp__spare_take(&spares, (size_t)AMP__SPARE_LEAST << (i % 2));
    for (size_t i = 0; i < AMP__SPARES + 3; i++) amp__spare_give(&spares, blocks[i]);
    ck_assert_uint_eq(kept(&spares), AMP__SPARES);
    ck_assert_ptr_eq(spares.blocks[2], blocks[AMP__SPARES + 2]); /* the last one given stays */
    amp__spares_clear(&spares);
}

/* two meet in a place seldom: a few times in so many rounds */
enum { THREADS = 2, ROUNDS = 3000000, MARK = 0x5eed5eed };

/* Whoever has a block marks it, and finds it unmarked. */
static void *take_and_give(void *data) {
    for (int i = 0; i < ROUNDS; i++) {
        _Atomic uint32_t *block = amp__spare_take(data, AMP__SPARE_LEAST);
        if (!block || atomic_exchange_explicit(block, MARK, memory_order_relaxed) == MARK) return data;
        atomic_store_explicit(block, 0, memory_order_relaxed);
        amp__spare_give(data, (void *)block);
    }
    return NULL;
}

TEST(threads_do_not_share_a_block) {
    struct amp__spares spares = { .next = 0 };
    pthread_t threads[THREADS];
    void *wrong, *blocks[AMP__SPARES];
    for (size_t i = 0; i < AMP__SPARES; i++) {
        ck_assert_ptr_nonnull(blocks[i] = amp__spare_take(&spares, AMP__SPARE_LEAST));
        memset(blocks[i], 0, sizeof(uint32_t));
    }
    for (size_t i = 0; i < AMP__SPARES; i++) amp__spare_give(&spares, blocks[i]);
    for (size_t i = 0; i < THREADS; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, take_and_give, &spares), 0);
    for (size_t i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], &wrong), 0);
        ck_assert_ptr_null(wrong);
    }
    ck_assert_uint_gt(kept(&spares), 0);
    amp__spares_clear(&spares);
}

/* ---- in calls ---- */

enum { N = 1 << 16 }; /* elements: twice as many bytes as a block worth keeping */

static const uint16_t *seen;
static void copy(float *y, const float *x, int n) { memcpy(y, x, (size_t)n * sizeof *y); }
static void copy_bf16(uint16_t *y, const uint16_t *x, int n) {
    seen = x;
    memcpy(y, x, (size_t)n * sizeof *y);
}
static void (*slot)(float *, const float *, int) = copy;

TEST(calls_keep_their_memory_until_it_is_cleared) {
    static float x[N], y[N];
    amp_op op = OP("linear", "copy(float(out a!) y[N], float x[N], int N) -> void", &slot, .bf16 = (amp_fn)copy_bf16);
    amp_model model = SIZED(amp_model, .host = amp_buffer_host(), .ops = &op, .n_ops = 1);
    for (int i = 0; i < N; i++) x[i] = (float)(i % 256);
    ck_ok(amp_initialize(&model, NULL, AMP_O4));
    slot(y, x, N);
    ck_assert_mem_eq(y, x, sizeof x);
    ck_assert_uint_eq(kept(&model.amp->spares), 2);
    const void *blocks[] = { model.amp->spares.blocks[0], model.amp->spares.blocks[1] };
    slot(y, x, N);
    /* behind the head that every block of a call has */
    ck_assert((const char *)seen == (const char *)blocks[0] + 64 || (const char *)seen == (const char *)blocks[1] + 64);
    ck_ok(amp_cache_clear(model.amp));
    ck_assert_uint_eq(kept(&model.amp->spares), 0);
    slot(y, x, N); /* what is kept now goes with the context */
    ck_ok(amp_shutdown(model.amp));
}
