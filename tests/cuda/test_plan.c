/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of launches: whatever the lists, each element stands in exactly one chunk, chunks keep to their tensor and are
 * of even size, and what is said about 16-byte boundaries is so. Addresses are numbers here; nobody goes there.
 */
#include "emulated.h"
#include "asserts.h"

#include "../kernels/support.h"

#include <stdlib.h>

static unsigned width_of(amp_dtype type) { return type == AMP_FLOAT64 ? 8 : type == AMP_FLOAT32 ? 4 : 2; }

static amp_span span_at(uint64_t address, uint64_t size, amp_dtype dtype) {
    return (amp_span){ (void *)(uintptr_t)address, size, dtype, 0 };
}

static struct cuda_table planned(struct cuda_plan *plan, const amp_span *const lists[], uint32_t n_spans, size_t n) {
    struct cuda_plan_error error;
    bool changed = false;
    ck_assert(cuda_plan_update(plan, lists, n_spans, n, &changed, &error));
    ck_assert(changed);
    return cuda_plan_table(plan, plan->table);
}

/* ---- what holds for every plan ---- */

static uint64_t check_tensor(const struct cuda_table *t, size_t i, const amp_span *const lists[], uint32_t n_spans,
                             uint32_t length) {
    const uint64_t size = lists[0][i].size, head = CUDA_HEAD(t->shapes[i]);
    uint64_t next = 0;
    bool spread = false, even = true;
    for (uint32_t c = t->first_chunks[i]; c < t->first_chunks[i + 1]; c++) {
        const struct cuda_chunk *chunk = &t->chunks[c];
        CHECK_THAT(chunk->tensor == i, "chunk %u is of tensor %u, not %zu", c, chunk->tensor, i);
        CHECK_THAT(chunk->begin == next && chunk->count > 0, "tensor %zu: a gap, an overlap or nothing", i);
        next += chunk->count;
        const uint64_t whole = length + (chunk->begin ? 0 : head);
        CHECK_THAT(chunk->count == whole || (chunk->count < whole && next == size), "chunk %u has %u elements", c,
                   chunk->count);
        CHECK_THAT(!chunk->begin || (chunk->begin - head) % CUDA_GROUP == 0, "chunk %u begins within a group", c);
    }
    CHECK_THAT(next == size, "tensor %zu: %llu of %llu elements", i, (unsigned long long)next,
               (unsigned long long)size);
    for (uint32_t k = 0; k < n_spans; k++) {
        const uint64_t address = lists[k] ? (uint64_t)(uintptr_t)lists[k][i].data : 0;
        CHECK_THAT(t->addresses[k * (size_t)t->n_tensors + i] == address, "address %u of tensor %zu", k, i);
        CHECK_THAT(CUDA_TYPE(t->shapes[i], k) == (address ? (uint32_t)lists[k][i].dtype : 0), "type %u of tensor %zu",
                   k, i);
        if (!address) continue;
        const unsigned width = width_of(lists[k][i].dtype);
        CHECK_THAT(CUDA_WIDE(t->shapes[i], k) == ((address + head * width) % 16 == 0), "span %u of tensor %zu is wide",
                   k, i);
        spread = spread || width > 2;
        even = even && width < 8 && CUDA_WIDE(t->shapes[i], k);
    }
    CHECK_THAT(CUDA_SPREAD(t->shapes[i]) == spread, "tensor %zu is spread", i);
    CHECK_THAT(CUDA_EVEN(t->shapes[i]) == even, "tensor %zu is even", i);
    return size;
}

static void check_plan(const struct cuda_plan *plan, const amp_span *const lists[], uint32_t n_spans, size_t n) {
    const struct cuda_table t = cuda_plan_table(plan, plan->table);
    uint64_t total = 0;
    uint32_t length = CUDA_CHUNK_MIN;
    for (size_t i = 0; i < n; i++) total += lists[0][i].size;
    while (length < CUDA_CHUNK_MAX(n_spans) && total / length > CUDA_CHUNKS_WANTED) length *= 2;
    CHECK_THAT(t.n_tensors == n && t.first_chunks[n] == t.n_chunks, "%u tensors, %u chunks", t.n_tensors, t.n_chunks);
    CHECK_THAT(n == 0 || t.first_chunks[0] == 0, "the first chunk");
    for (size_t i = 0; i < n; i++) check_tensor(&t, i, lists, n_spans, length);
}

/* ---- cases ---- */

TEST(test_empty) {
    OWN_PLAN plan = { 0 };
    const amp_span empty[3] = { span_at(0, 0, AMP_FLOAT32), span_at(256, 0, AMP_FLOAT16), span_at(0, 0, AMP_FLOAT64) };
    const amp_span mixed[5] = { empty[0], span_at(256, 1, AMP_FLOAT32), empty[1], span_at(512, 3, AMP_BFLOAT16),
                                empty[2] };
    const amp_span *lists[1] = { empty };
    ck_assert_uint_eq(planned(&plan, lists, 1, 0).n_chunks, 0);
    ck_assert_uint_eq(planned(&plan, lists, 1, 3).n_chunks, 0);
    lists[0] = mixed;
    const struct cuda_table t = planned(&plan, lists, 1, 5);
    ck_assert_uint_eq(t.n_chunks, 2);
    ck_assert_uint_eq(t.chunks[0].tensor, 1);
    ck_assert_uint_eq(t.chunks[1].tensor, 3);
    check_plan(&plan, lists, 1, 5);
}

TEST(test_beyond_32_bits) {
    OWN_PLAN plan = { 0 };
    const uint64_t size = (UINT64_C(1) << 33) + 5;
    const amp_span list[2] = { span_at(4096 + 4, size, AMP_FLOAT32), span_at(64, 7, AMP_FLOAT32) };
    const amp_span *lists[1] = { list };
    const struct cuda_table t = planned(&plan, lists, 1, 2);
    check_plan(&plan, lists, 1, 2);
    ck_assert_uint_gt(t.chunks[t.n_chunks - 2].begin, UINT32_MAX);
    ck_assert_uint_eq(CUDA_HEAD(t.shapes[0]), 3);
}

TEST(test_too_much) {
    struct cuda_plan plan = { 0 };
    struct cuda_plan_error error;
    bool changed = true;
    const amp_span huge[3] = { span_at(64, PTRDIFF_MAX / 4, AMP_FLOAT32), span_at(64, PTRDIFF_MAX / 4, AMP_FLOAT32),
                               span_at(64, UINT64_MAX, AMP_FLOAT32) };
    const amp_span *lists[1] = { huge };
    ck_assert(!cuda_plan_update(&plan, lists, 1, 3, &changed, &error));
    ck_fails(AMP_ERR_UNSUPPORTED, error.status);
    ck_assert(!plan.table && !changed);
}

TEST(test_many) {
    enum { N = 100000 };
    OWN_PLAN plan = { 0 };
    amp_span *list = calloc(N, sizeof *list), *low = calloc(N, sizeof *low);
    ck_assert(list && low);
    uint64_t at = 256;
    for (size_t i = 0; i < N; i++) {
        const uint64_t size = i % 1000 == 0 ? 0 : i % 777 == 0 ? 70001 : 1 + i % 40;
        list[i] = span_at(at, size, AMP_FLOAT32), low[i] = span_at(at * 2, size, AMP_FLOAT16);
        at += size * 4;
    }
    const amp_span *lists[3] = { list, low, NULL };
    planned(&plan, lists, 3, N);
    check_plan(&plan, lists, 3, N);
    bool changed = true;
    struct cuda_plan_error error;
    const unsigned char *before = plan.table;
    ck_assert(cuda_plan_update(&plan, lists, 3, N, &changed, &error));
    ck_assert(!changed && plan.table == before);
    free(list);
    free(low);
}

/* Everything that makes it another plan, one at a time; and what does not. */
TEST(test_changes) {
    OWN_PLAN plan = { 0 };
    struct cuda_plan_error error;
    bool changed;
    amp_span a[2] = { span_at(256, 100, AMP_FLOAT32), span_at(1024, 50, AMP_FLOAT32) };
    amp_span b[2] = { span_at(4096, 100, AMP_FLOAT16), span_at(8192, 50, AMP_FLOAT16) };
    const amp_span *lists[2] = { a, b };
    planned(&plan, lists, 2, 2);
#define EXPECT(wanted, spans, n)                                                                                       \
    do {                                                                                                               \
        ck_assert(cuda_plan_update(&plan, lists, spans, n, &changed, &error));                                         \
        ck_assert_int_eq(changed, wanted);                                                                             \
        check_plan(&plan, lists, spans, n);                                                                            \
    } while (0)
    EXPECT(false, 2, 2);
    b[1].data = (void *)(uintptr_t)8194;
    EXPECT(true, 2, 2);
    EXPECT(false, 2, 2);
    a[0].size = b[0].size = 101;
    EXPECT(true, 2, 2);
    b[0].dtype = AMP_BFLOAT16;
    EXPECT(true, 2, 2);
    EXPECT(true, 2, 1);
    EXPECT(true, 1, 1);
    EXPECT(true, 1, 2);
    lists[1] = NULL;
    EXPECT(true, 2, 2);
    lists[1] = b;
    EXPECT(true, 2, 2);
    EXPECT(false, 2, 2);
    const struct cuda_plan kept = plan;
    a[1].data = (void *)(uintptr_t)1026; /* no float lies there */
    ck_assert(!cuda_plan_update(&plan, lists, 2, 2, &changed, &error));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, error.status);
    ck_assert_uint_eq(error.span, 0);
    ck_assert_uint_eq(error.tensor, 1);
    ck_assert_mem_eq(&kept, &plan, sizeof plan);
}

/* Heads: where both spans can meet a boundary they do; where not, as many as can. */
TEST(test_heads) {
    static const struct {
        uint64_t x, y, size;
        amp_dtype x_type, y_type;
        unsigned head, x_wide, y_wide;
    } cases[] = {
        { 256, 512, 1000, AMP_FLOAT32, AMP_FLOAT16, 0, 1, 1 },  { 260, 514, 1000, AMP_FLOAT32, AMP_FLOAT16, 7, 1, 1 },
        { 268, 526, 1000, AMP_FLOAT32, AMP_FLOAT16, 1, 1, 1 },  { 264, 512, 1000, AMP_FLOAT32, AMP_FLOAT32, 0, 0, 1 },
        { 264, 520, 1000, AMP_FLOAT32, AMP_FLOAT32, 2, 1, 1 },  { 264, 512, 1000, AMP_FLOAT64, AMP_FLOAT64, 0, 0, 1 },
        { 264, 520, 1000, AMP_FLOAT64, AMP_BFLOAT16, 0, 0, 0 }, { 260, 260, 10, AMP_FLOAT32, AMP_FLOAT32, 0, 0, 0 },
        { 260, 260, 11, AMP_FLOAT32, AMP_FLOAT32, 3, 1, 1 },    { 256, 256, 1, AMP_FLOAT32, AMP_FLOAT32, 0, 1, 1 },
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct cuda_plan plan = { 0 };
        const amp_span x = span_at(cases[c].x, cases[c].size, cases[c].x_type);
        const amp_span y = span_at(cases[c].y, cases[c].size, cases[c].y_type);
        const amp_span *lists[2] = { &x, &y };
        const uint32_t shape = planned(&plan, lists, 2, 1).shapes[0];
        if (c == 6) { /* 264 needs an odd head, 520 an even one or 4: the shorter head of the two that serve one span */
            ck_assert_uint_eq(CUDA_HEAD(shape), 1);
            ck_assert_uint_eq(CUDA_WIDE(shape, 0), 1);
        } else {
            ck_assert_msg(CUDA_HEAD(shape) == cases[c].head, "case %zu: head %u", c, CUDA_HEAD(shape));
            ck_assert_msg(CUDA_WIDE(shape, 0) == cases[c].x_wide && CUDA_WIDE(shape, 1) == cases[c].y_wide, "case %zu",
                          c);
        }
        check_plan(&plan, lists, 2, 1);
        cuda_plan_free(&plan);
    }
}

/* Random lists: sizes around what chunks and groups turn on, any alignment, any types, spans missing. */
TEST(test_random) {
    static const uint64_t sizes[] = {
        0, 1, 7, 8, 9, 15, 16, 2047, 2048, 2049, 2056, 16383, 16384, 16385, 16391, 40000
    };
    enum { N = 64, ROUNDS = 400 };
    static amp_span lists_of[CUDA_SPANS][N];
    OWN_PLAN plan = { 0 };
    random_restart();
    for (int round = 0; round < ROUNDS; round++) {
        const uint32_t n_spans = (uint32_t)(1 + random_below(CUDA_SPANS));
        const size_t n = (size_t)random_below(N + 1);
        const amp_span *lists[CUDA_SPANS];
        bool changed;
        struct cuda_plan_error error;
        for (uint32_t k = 0; k < n_spans; k++) {
            lists[k] = k && random_below(8) == 0 ? NULL : lists_of[k];
            for (size_t i = 0; i < n; i++) {
                const amp_dtype type = all_types[random_below(TYPES)];
                const uint64_t scale = random_below(50) == 0 ? 1000 : 1;
                const uint64_t size = k ? lists_of[0][i].size
                                        : scale * sizes[random_below(sizeof sizes / sizeof *sizes)];
                const bool missing = size == 0 || (k && random_below(8) == 0);
                lists_of[k][i] = span_at(missing ? 0 : 4096 + width_of(type) * random_below(16), size, type);
            }
        }
        CHECK_THAT(cuda_plan_update(&plan, lists, n_spans, n, &changed, &error), "round %d: %s", round, error.text);
        check_plan(&plan, lists, n_spans, n);
    }
}

/* What is patched is what is planned anew; of whatever tensors anything changes. */
TEST(test_patches) {
    enum { N = 40, SPANS = 4, ROUNDS = 3000 };
    static amp_span lists_of[SPANS][N];
    const amp_span *lists[SPANS];
    OWN_PLAN plan = { 0 };
    struct cuda_plan_error error;
    int patched = 0;
    bool changed;
    random_restart();
    for (int k = 0; k < SPANS; k++) {
        lists[k] = lists_of[k];
        for (size_t i = 0; i < N; i++)
            lists_of[k][i] = span_at(4096 + 16 * random_below(64), 1 + i * 100, all_types[random_below(TYPES)]);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (uint64_t changes = random_below(4); changes; changes--) {
            const size_t i = (size_t)random_below(N);
            amp_span *x = &lists_of[random_below(SPANS)][i];
            if (random_below(20) == 0) x->dtype = all_types[random_below(TYPES)];
            const uint64_t step = random_below(3) ? 16 : width_of(x->dtype);
            x->data = (void *)(uintptr_t)(random_below(10) ? 4096 + step * random_below(64) / 8 * 8 : 0);
            if (random_below(50) == 0)
                for (int k = 0; k < SPANS; k++) lists_of[k][i].size = 1 + random_below(5000);
        }
        struct cuda_plan anew = { 0 };
        const unsigned char *before = plan.table;
        ck_assert(cuda_plan_update(&plan, lists, SPANS, N, &changed, &error));
        patched += changed && plan.table == before;
        planned(&anew, lists, SPANS, N);
        CHECK_THAT(anew.bytes == plan.bytes && !memcmp(anew.table, plan.table, plan.bytes), "round %d", round);
        CHECK_THAT(!memcmp(anew.sizes, plan.sizes, N * sizeof *plan.sizes), "sizes, round %d", round);
        cuda_plan_free(&anew);
    }
    ck_assert_int_gt(patched, ROUNDS / 4);
}
