/* SPDX-License-Identifier: Apache-2.0 */
/* The gate: which calls of a lowered op run in FP32, what that does to types, and who decides it. */
#include "gatehost.h"
#include "../support/levels.h"

#include "call/gate.h"

#include <pthread.h>

static const struct {
    amp_level level;
    amp_dtype low;
    enum ran low_ran;
} low_levels[] = { { AMP_O1, AMP_FLOAT16, FP16 }, { AMP_O4, AMP_BFLOAT16, BF16 } };

static amp_dtype target_of(struct world *w, const char *op, amp_dtype a, amp_dtype b) {
    const amp_dtype types[] = { a, b };
    amp_dtype target = 77;
    ck_ok(amp_op_target(w->context, op, types, 2, &target));
    return target;
}

/* ---- by default: between implementations ---- */

/* libamp's own code gains nothing from 16 bits: that is in its table, whatever the instruction set. */
TEST_TIMES(the_slower_implementation_is_not_taken, 2) {
    WORLD_START(w, low_levels[_i].level, AMP_DEFAULT);
    ck_ran(call_square(&w, THE_linear, 256), low_levels[_i].low, ORIGINAL, AMP_FLOAT32); /* the type does not tell */
    ck_assert_int_eq(last.got[1], AMP_FLOAT32);
    const amp_op_stats stats = stats_of(&w, THE_linear);
    ck_assert_uint_eq(stats.gated, 1);
    ck_assert_uint_eq(stats.calls, 1);
    ck_assert_uint_eq(stats.casts, 1); /* the result's */
    ck_assert_int_eq(stats.last_target, AMP_FLOAT32);
}

TEST_TIMES(what_it_cannot_choose_or_does_not_know_runs_low, 3) {
    static const int ops[] = { THE_plain, THE_own, THE_other };
    WORLD_START(w, AMP_O4, AMP_DEFAULT);
    ck_ok(amp_gate_set(w.context, "plain", AMP_GATE_NEVER)); /* kept, not used: there is nothing to choose from */
    ck_ran(call_square(&w, ops[_i], 256), AMP_BFLOAT16, ops[_i] == THE_own ? BF16 : ORIGINAL, AMP_BFLOAT16);
    ck_assert_uint_eq(stats_of(&w, ops[_i]).gated, 0);
}

TEST_TIMES(targets_are_alike_on_every_machine, 2) {
    static const uint32_t masks[] = { 0, AMP_CPU_AVX2, AMP_CPU_AVX2 | AMP_CPU_AVX512, UINT32_MAX };
    for (int i = 0; i < 4; i++) {
        amp_set_cpu_mask(masks[i]);
        WORLD_START(w, low_levels[_i].level, AMP_DEFAULT);
        ck_ok(amp_gate_set(w.context, "own", AMP_GATE_NEVER));
        for (int op = 0; op < N_OPS; op++)
            ck_assert_int_eq(target_of(&w, gate_ops[op].name, AMP_FLOAT32, AMP_FLOAT32), low_levels[_i].low);
    }
    amp_set_cpu_mask(0);
}

/* ---- on: the type ---- */

TEST_TIMES(what_is_slower_or_unknown_runs_in_fp32, 4) {
    WORLD_START(w, AMP_O4, AMP_ON);
    ck_assert_int_eq(target_of(&w, gate_ops[_i].name, AMP_FLOAT32, AMP_FLOAT32), AMP_DTYPE_DEFAULT);
    ck_ran(call_square(&w, _i, 256), AMP_FLOAT32, ORIGINAL, AMP_FLOAT32);
    ck_assert_uint_eq(stats_of(&w, _i).gated, 1);
    ck_assert_uint_eq(stats_of(&w, _i).casts, 0);
}

TEST(a_16_bit_argument_keeps_the_low_type) {
    WORLD_START(w, AMP_O4, AMP_ON);
    ck_assert_int_eq(target_of(&w, "own", AMP_BFLOAT16, AMP_FLOAT32), AMP_BFLOAT16);
    ck_assert_int_eq(call(&w, THE_own, TENSOR(AMP_BFLOAT16, 8, 8), TENSOR(AMP_FLOAT32, 8, 8)), AMP_BFLOAT16);
    ck_assert_int_eq(last.who, BF16);
    ck_assert_int_eq(last.got[1], AMP_BFLOAT16);
    ck_assert_int_eq(call(&w, THE_own, TENSOR(AMP_BFLOAT16, 8, 8), TENSOR(AMP_BFLOAT16, 8, 8)), AMP_BFLOAT16);
    ck_assert_int_eq(last.who, BF16);
    ck_assert_uint_eq(stats_of(&w, THE_own).gated, 0);
}

TEST(off_is_never) {
    WORLD_START(w, AMP_O4, AMP_OFF);
    ck_ok(amp_gate_set(w.context, "linear", AMP_GATE_NEVER));
    ck_assert_int_eq(call_square(&w, THE_linear, 4), AMP_BFLOAT16);
    ck_assert_int_eq(last.who, BF16);
    ck_assert_int_eq(target_of(&w, "linear", AMP_FLOAT32, AMP_FLOAT32), AMP_BFLOAT16);
    ck_assert_uint_eq(stats_of(&w, THE_linear).gated, 0);
}

/* At O2, O3, O5 what comes is 16-bit already, at O0 nothing is lowered: the gate changes nothing there. */
TEST_TIMES(other_levels_are_as_without_it, 5) {
    static const struct {
        amp_level level;
        amp_dtype comes;
        enum ran who;
    } cases[] = { { AMP_O0, AMP_FLOAT32, ORIGINAL }, { AMP_O2, AMP_FLOAT16, FP16 }, { AMP_O3, AMP_FLOAT16, FP16 },
                  { AMP_O5, AMP_BFLOAT16, BF16 },    { AMP_O5, AMP_FLOAT32, ORIGINAL } };
    for (amp_switch gate = AMP_DEFAULT; gate <= AMP_ON; gate++) {
        WORLD_START(w, cases[_i].level, gate);
        ck_ok(amp_gate_set(w.context, "linear", AMP_GATE_NEVER));
        struct tensor *a = TENSOR(cases[_i].comes, 8, 8), *b = TENSOR(cases[_i].comes, 8, 8);
        ck_ran(call(&w, THE_linear, a, b), cases[_i].comes, cases[_i].who, cases[_i].comes);
        ck_assert_uint_eq(stats_of(&w, THE_linear).gated, 0);
    }
}

TEST(the_switch_is_checked) {
    const amp_config config = CONFIG(AMP_O1, .gate = 3);
    amp_context *context = NULL;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "gate", amp_initialize_many(NULL, 0, NULL, 0, &config, &context));
}

/* ---- the table ---- */

TEST(the_table_is_copied) {
    size_t n, count;
    ck_ok(amp_get_gate_rows(NULL, 0, &n));
    amp_gate_row rows[64] = { AMP_GATE_ROW_INIT };
    ck_assert_uint_gt(n, 1);
    ck_assert_uint_le(n, 64);
    ck_ok(amp_get_gate_rows(rows, n, &count));
    ck_assert_uint_eq(count, n);
    for (size_t i = 0; i < n; i++) { /* one row for a question, in words that hosts know */
        const char *kind = rows[i].kind;
        ck_assert(rows[i].dtype == AMP_FLOAT16 || rows[i].dtype == AMP_BFLOAT16);
        ck_assert(!strcmp(kind, "matmul") || !strcmp(kind, "conv") || !strcmp(kind, "attention"));
        for (size_t j = 0; j < i; j++)
            ck_assert(rows[i].dtype != rows[j].dtype || strcmp(rows[i].who, rows[j].who) != 0 ||
                      strcmp(kind, rows[j].kind) != 0 || strcmp(rows[i].unit, rows[j].unit) != 0);
    }
    amp_gate_row few[2] = { AMP_GATE_ROW_INIT };
    ck_ok(amp_get_gate_rows(few, 1, &count));
    ck_assert_uint_eq(count, n);
    ck_assert_str_eq(few[0].who, rows[0].who);
    ck_assert_ptr_null(few[1].who);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_get_gate_rows(rows, n, NULL));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_get_gate_rows(NULL, 1, &count));
}

/* ---- sizes ---- */

#define F AMP_FLOAT32

/* The least size that does not hold the call back, by trying. */
static void ck_size(struct world *w, int op, struct tensor *a, struct tensor *b, uint64_t size) {
    for (uint64_t extra = 0; extra < 2; extra++) {
        ck_ok(amp_gate_set(w->context, gate_ops[op].name, size + extra));
        struct tensor *x = make(F, a->ndim, a->shape), *y = make(F, b->ndim, b->shape);
        ck_assert_msg(call(w, op, x, y) == (extra ? F : AMP_BFLOAT16), "size %llu", (unsigned long long)(size + extra));
    }
    drop(a), drop(b);
}

/* 3 / (1/m + 1/n + 1/k) */
TEST(products_have_an_edge) {
    WORLD_START(w, AMP_O4, AMP_ON);
    ck_size(&w, THE_linear, TENSOR(F, 64, 64), TENSOR(F, 64, 64), 64);
    ck_size(&w, THE_linear, TENSOR(F, 2048, 144), TENSOR(F, 16, 144), 42);         /* linear: b is [n, k] */
    ck_size(&w, THE_linear, TENSOR(F, 2048, 144), TENSOR(F, 144, 16), 42);         /* matmul */
    ck_size(&w, THE_linear, TENSOR(F, 32, 64, 144), TENSOR(F, 144, 16), 42);       /* rows of a batch are rows */
    ck_size(&w, THE_linear, TENSOR(F, 5, 8, 16), TENSOR(F, 5, 16, 32), 13);        /* each product of a batch */
    ck_size(&w, THE_linear, TENSOR(F, 5, 16, 16), TENSOR(F, 5, 16, 32), 19);       /* which is no convolution */
    ck_size(&w, THE_linear, TENSOR(F, 32, 16, 8, 8), TENSOR(F, 16, 16, 3, 3), 42); /* images and filters */
    ck_size(&w, THE_linear, TENSOR(F, 32, 16, 20), TENSOR(F, 24, 16, 3), 46);      /* in one dimension */
    ck_assert_uint_eq(amp__gate_edge(0, 4, 4), 0);
}

TEST(others_have_elements) {
    WORLD_START(w, AMP_O4, AMP_ON);
    ck_size(&w, THE_own, TENSOR(F, 10, 9), TENSOR(F, 7), 97);
    ck_size(&w, THE_other, TENSOR(F, 3), TENSOR(F, 2, 2, 2), 11);
}

/* All that libamp knows is of CPUs; what the host said holds anywhere. */
TEST(other_devices_keep_the_low_type) {
    WORLD_START(w, AMP_O4, AMP_ON);
    for (int said = 0; said < 2; said++) {
        struct tensor *a = TENSOR(AMP_FLOAT32, 8, 8), *b = TENSOR(AMP_FLOAT32, 8, 8);
        a->device = b->device = 2;
        ck_assert_int_eq(call(&w, THE_own, a, b), said ? AMP_FLOAT32 : AMP_BFLOAT16);
        ck_ok(amp_gate_set(w.context, "own", AMP_GATE_NEVER));
    }
}

/* A later host's, which has FP16's value in some bits: no implementation was written for it. */
TEST_TIMES(unknown_types_go_to_the_original, 2) {
    const amp_dtype unknown = AMP_FLOAT16 + (_i ? 64 : -64);
    WORLD_START(w, AMP_O1, AMP_OFF);
    (void)call(&w, THE_linear, TENSOR(unknown, 8, 8), TENSOR(unknown, 8, 8));
    ck_assert_int_eq(last.who, ORIGINAL);
}

/* Whether the GPU is one without tensor cores, or nobody knows: such a product is told of. */
TEST(products_on_gpus_are_watched_unless_it_is_off) {
    for (amp_switch gate = AMP_DEFAULT; gate <= AMP_ON; gate++) {
        WORLD_START(w, AMP_O4, gate);
        struct tensor *a = TENSOR(AMP_FLOAT32, 8, 9), *b = TENSOR(AMP_FLOAT32, 9, 8);
        a->device = b->device = 2;
        (void)call(&w, THE_linear, a, b);
        const amp_op_stats stats = stats_of(&w, THE_linear);
        ck_assert_uint_eq(stats.unaligned + stats.no_tensor_cores, gate != AMP_OFF);
    }
}

/* ---- measured, with the caller's clock ---- */

/* With that clock it is all the same how long a product takes, or whether there is one: one measurement has them. */
static bool no_products;
static unsigned products;
WRAP(amp_status, amp_matmul, const amp_matmul_args *args) {
    products++;
    return no_products ? AMP_OK : __real_amp_matmul(args);
}

/* It advances by what the piece under way shall take: of FP32 and the low type in turns, edge by edge from 256 down. */
struct fake_clock {
    uint64_t now, fp32, low, calls;
    uint64_t wins; /* on so many edges the low type takes `low`, else as long as FP32 */
};

static uint64_t tell(void *self) {
    struct fake_clock *clock = self;
    const uint64_t call = clock->calls++, edge = call / 28;
    if (call % 4 == 1) clock->now += clock->fp32;
    if (call % 4 == 3) clock->now += edge < clock->wins ? clock->low : clock->fp32;
    return clock->now;
}

/* The clock alone decides; one test below has the products too. */
static void measure(struct world *w, struct fake_clock *clock) {
    no_products = true;
    ck_ok(amp_gate_measure(w->context, tell, clock));
    no_products = false;
}

static const struct {
    amp_level level;
    struct fake_clock clock;
    uint64_t expected; /* the least edge that is lowered */
} measured[] = {
    { AMP_O1, { .fp32 = 105, .low = 100, .wins = 5 }, 16 }, /* from 1.05 on */
    { AMP_O4, { .fp32 = 105, .low = 100, .wins = 5 }, 16 },
    { AMP_O1, { .fp32 = 104, .low = 100, .wins = 5 }, AMP_GATE_NEVER },
    { AMP_O4, { .fp32 = 104, .low = 100, .wins = 5 }, AMP_GATE_NEVER },
    { AMP_O1, { .fp32 = 105000000, .low = 100000001, .wins = 5 }, AMP_GATE_NEVER },
    { AMP_O4, { .fp32 = 105000000, .low = 100000001, .wins = 5 }, AMP_GATE_NEVER },
    { AMP_O1, { .fp32 = 90, .low = 100, .wins = 5 }, AMP_GATE_NEVER },
    { AMP_O4, { .fp32 = 90, .low = 100, .wins = 5 }, AMP_GATE_NEVER },
    { AMP_O4, { .fp32 = 200, .low = 100, .wins = 3 }, 64 }, /* from an edge on */
    { AMP_O4, { .fp32 = 200, .low = 100, .wins = 1 }, 256 },
    { AMP_O4, { .fp32 = 200, .low = 100, .wins = 0 }, AMP_GATE_NEVER },
    { AMP_O4, { .fp32 = 0, .low = 0, .wins = 5 }, AMP_GATE_NEVER }, /* a clock that stands still shows nothing */
};

TEST_TIMES(low_is_taken_where_it_was_faster, sizeof measured / sizeof measured[0]) {
    struct fake_clock clock = measured[_i].clock;
    const uint64_t edge = measured[_i].expected;
    const amp_dtype low = level_low(measured[_i].level);
    WORLD_START(w, measured[_i].level, AMP_ON);
    measure(&w, &clock);
    ck_assert_uint_gt(products, 0);
    if (edge != AMP_GATE_NEVER) {
        ck_assert_int_eq(call_square(&w, THE_linear, (int64_t)edge), low);
        ck_assert_int_eq(call_square(&w, THE_linear, (int64_t)edge - 1), AMP_FLOAT32);
        ck_assert_int_eq(call_square(&w, THE_plain, (int64_t)edge), low);
        ck_assert_int_eq(target_of(&w, "linear", AMP_FLOAT32, AMP_FLOAT32), low); /* at some sizes */
    }
    ck_assert_int_eq(call_square(&w, THE_linear, 4096), edge == AMP_GATE_NEVER ? AMP_FLOAT32 : low);
    ck_assert_int_eq(call_square(&w, THE_own, 4096), AMP_FLOAT32); /* nobody said that it is amp_matmul */
}

TEST_TIMES(nothing_is_timed_where_there_is_nothing_to_decide, 5) {
    static const struct {
        amp_level level;
        amp_switch gate;
    } cases[] = { { AMP_O0, AMP_ON }, { AMP_O2, AMP_ON }, { AMP_O3, AMP_ON }, { AMP_O5, AMP_ON }, { AMP_O4, AMP_OFF } };
    struct fake_clock clock = { .fp32 = 200, .low = 100, .wins = 5 };
    WORLD_START(w, cases[_i].level, cases[_i].gate);
    ck_ok(amp_gate_measure(w.context, tell, &clock));
    ck_assert_uint_eq(clock.calls, 0);
}

TEST(measured_by_default_too) {
    struct fake_clock clock = { .fp32 = 200, .low = 100, .wins = 3 };
    WORLD_START(w, AMP_O4, AMP_DEFAULT);
    ck_ok(amp_gate_measure(w.context, tell, &clock));
    ck_assert_int_eq(call_square(&w, THE_linear, 64), AMP_BFLOAT16);
    ck_assert_int_eq(last.who, BF16);
    ck_ran(call_square(&w, THE_linear, 63), AMP_BFLOAT16, ORIGINAL, AMP_FLOAT32);
}

/* ---- overridden ---- */

TEST(what_the_host_says_stands) {
    struct fake_clock clock = { .fp32 = 200, .low = 100, .wins = 5 };
    WORLD_START(w, AMP_O4, AMP_ON);
    ck_ok(amp_gate_set(w.context, "linear", AMP_GATE_NEVER));
    measure(&w, &clock);
    ck_assert_int_eq(call_square(&w, THE_linear, 4096), AMP_FLOAT32);
    ck_assert_int_eq(call_square(&w, THE_plain, 4096), AMP_BFLOAT16);
    ck_ok(amp_gate_set(w.context, "linear", AMP_GATE_ALWAYS));
    ck_assert_int_eq(call_square(&w, THE_linear, 1), AMP_BFLOAT16);
    ck_ok(amp_gate_set(w.context, "own#0", 50));
    ck_assert_int_eq(call_square(&w, THE_own, 5), AMP_BFLOAT16);
    ck_assert_int_eq(call_square(&w, THE_own, 4), AMP_FLOAT32);
    ck_fails(AMP_ERR_NOT_FOUND, amp_gate_set(w.context, "own#1", 0));
    ck_fails(AMP_ERR_NOT_FOUND, amp_gate_set(w.context, "ow", 0));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_gate_set(w.context, NULL, 0));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_gate_set(NULL, "own", 0));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_gate_measure(NULL, tell, &clock));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_gate_measure(w.context, NULL, NULL));
}

/* ---- direct calls ---- */

static amp_dtype cast_square(struct world *w, int64_t edge) {
    struct tensor *a = TENSOR(AMP_FLOAT32, edge, edge), *b = TENSOR(AMP_FLOAT32, edge, edge);
    void *tensors[] = { a, NULL, b };
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    ck_ok(amp_cast_args(w->context, "direct", tensors, 3, &frame));
    const amp_dtype got = ((struct tensor *)tensors[2])->dtype;
    ck_assert_int_eq(frame.target, got == AMP_FLOAT32 ? AMP_DTYPE_DEFAULT : got);
    ck_ok(amp_cast_done(&frame));
    ck_assert_ptr_eq(tensors[2], b);
    drop(a), drop(b);
    return got;
}

/* By default libamp picks no function there. */
TEST_TIMES(direct_calls_are_gated_where_it_is_on, 2) {
    WORLD_START(w, AMP_O4, _i ? AMP_DEFAULT : AMP_ON);
    ck_ok(amp_gate_set(w.context, "direct", _i ? AMP_GATE_NEVER : 32));
    ck_assert_int_eq(cast_square(&w, 31), _i ? AMP_BFLOAT16 : AMP_FLOAT32);
    ck_assert_int_eq(cast_square(&w, 32), AMP_BFLOAT16);
    ck_assert_uint_eq(stats_of(&w, THE_direct).gated, !_i);
}

/* What an op keeps is no operand: its type does not open the gate, its size does not count. */
TEST_TIMES(what_is_kept_has_no_say, 3) {
    static const amp_dtype kept[] = { AMP_FLOAT32, AMP_BFLOAT16, AMP_DTYPE_OTHER };
    struct world w;
    make_world(&w, AMP_LOWER, false);
    w.ops[THE_other].schema = w.ops[THE_direct].schema = "op(Tensor a, Tensor(keep) b, Tensor? c) -> Tensor";
    w.ops[THE_direct].flags = AMP_OP_DIRECT;
    initialize(&w, AMP_O4, AMP_ON);
    ck_ok(amp_gate_set(w.context, "other", 65));
    ck_ok(amp_gate_set(w.context, "direct", 65));
    struct tensor *a = TENSOR(AMP_FLOAT32, 64), *b = TENSOR(kept[_i], 64, 64);
    void *tensors[] = { a, b, NULL };
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    drop(w.table[THE_other](a, b, NULL));
    ck_assert_uint_eq(stats_of(&w, THE_other).gated, 1);
    ck_ok(amp_cast_args(w.context, "direct", tensors, 3, &frame));
    ck_assert_ptr_eq(tensors[0], a);
    ck_ok(amp_cast_done(&frame));
    ck_assert_uint_eq(stats_of(&w, THE_direct).gated, 1);
    drop(a), drop(b);
    finish(&w);
}

/* ---- what is told, and what is not kept ---- */

TEST(it_explains_itself) {
    struct fake_clock clock = { .fp32 = 200, .low = 100, .wins = 3 };
    struct world w;
    start(&w, AMP_O4, AMP_ON);
    ck_explains(w.context, "linear", "gate: always fp32 (table: built-in, ");
    ck_explains(w.context, "linear", "products by built-in");
    ck_explains(w.context, "own", "gate: always fp32 (nothing is known");
    ck_ok(amp_gate_set(w.context, "own", 50));
    ck_explains(w.context, "own", "gate: bf16 from 50 elements on, else fp32 (amp_gate_set)");
    measure(&w, &clock);
    ck_explains(w.context, "linear", "gate: bf16 from 64 (edge) on, else fp32 (amp_gate_measure)");
    finish(&w);
    start(&w, AMP_O4, AMP_DEFAULT);
    ck_explains(w.context, "own", "gate: always bf16 (nothing is known");
    ck_assert_ptr_null(strstr(explanation(w.context, "other"), "gate"));
    finish(&w);
}

TEST(checkpoints_do_not_know_it) {
    char states[2][8192];
    size_t sizes[2] = { 0, 0 };
    amp_status status = AMP_OK;
    for (int i = 0; i < 2; i++) {
        WORLD_START(w, AMP_O4, i ? AMP_ON : AMP_OFF);
        ck_ok(amp_gate_set(w.context, "own", 50));
        call_square(&w, THE_own, 4);
        status = amp_state_save_memory(w.context, AMP_STATE_SAFETENSORS, states[i], sizeof states[i], &sizes[i]);
    }
    ck_assert(status == AMP_OK || status == AMP_ERR_UNSUPPORTED);
    ck_assert_uint_eq(sizes[0], sizes[1]);
    ck_assert_int_eq(memcmp(states[0], states[1], sizes[0]), 0);
}

/* ---- threads ---- */

enum { THREADS = 4, CALLS = 2000 };

static void *call_many(void *self) {
    size_t low = 0;
    for (int i = 0; i < CALLS; i++) low += call_square(self, THE_own, i % 2 ? 8 : 16) == AMP_BFLOAT16;
    return (void *)low;
}

/* Every call is one or the other, whenever the number changes; a size above and one below it are sure. */
TEST(threads_agree) {
    pthread_t threads[THREADS];
    size_t low = 0;
    WORLD_START(w, AMP_O4, AMP_ON);
    ck_ok(amp_gate_set(w.context, "own", 200));
    for (int i = 0; i < THREADS; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, call_many, &w), 0);
    for (uint64_t i = 0; i < 1000; i++) {
        const uint64_t least = i & 1 ? 200 : 300;
        ck_ok(amp_gate_set(w.context, "own", least));
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        low += (size_t)result;
    }
    const amp_op_stats stats = stats_of(&w, THE_own);
    ck_assert_uint_eq(low, THREADS * CALLS / 2);
    ck_assert_uint_eq(stats.gated, THREADS * CALLS / 2);
    ck_assert_uint_eq(stats.calls, THREADS * CALLS);
}

int main(void) {
    amp_set_cpu_mask(0); /* a row of the table that holds on every machine */
    return suite_run();
}
