/* SPDX-License-Identifier: Apache-2.0 */
/* The gate where tensors are on a GPU: fake ones, of any compute capability. */
#include "capability.h"

#include "../levels/gatehost.h"
#include "../support/levels.h"

static struct tensor *on_gpu(struct tensor *x) {
    x->device = 2;
    return x;
}

static amp_dtype multiply(struct world *w, int op, amp_dtype type, int64_t m, int64_t n, int64_t k) {
    return call(w, op, on_gpu(TENSOR(type, m, k)), on_gpu(TENSOR(type, k, n)));
}

static void restore(void) { device_set_capability(0); }

static void expect_words(struct world *w, const char *op, const char *words, int there) {
    char text[1024];
    ck_ok(amp_explain(w->context, op, text, sizeof text, NULL));
    ck_assert_msg((strstr(text, words) != NULL) == there, "\"%s\" %s in: %s", words, there ? "not" : "is", text);
}

/* Without tensor cores for the type what comes in FP32 runs in FP32; what comes in 16 bits keeps its type. All are
 * counted. */
TEST_TIMES(test_no_tensor_cores, 5) {
    static const struct {
        amp_level level;
        int capability, has;
        const char *words;
    } cases[] = {
        { AMP_O1, 61, 0, "1 call on a GPU without tensor cores for fp16 (compute capability 6.1): nothing to do" },
        { AMP_O1, 70, 1, NULL },
        { AMP_O4, 75, 0, "tensor cores for bf16 (compute capability 7.5): it has them for fp16, O1" },
        { AMP_O4, 80, 1, NULL },
        { AMP_O4, 120, 1, NULL },
    };
    const amp_dtype low = level_low(cases[_i].level);
    const enum ran ran = low == AMP_FLOAT16 ? FP16 : BF16;
    struct world w;
    device_set_capability(cases[_i].capability);
    start(&w, cases[_i].level, AMP_DEFAULT);
    multiply(&w, THE_linear, AMP_FLOAT32, 64, 64, 64);
    ck_assert_int_eq(last.who, cases[_i].has ? ran : ORIGINAL);
    ck_assert_int_eq(last.got[0], cases[_i].has ? low : AMP_FLOAT32);
    ck_assert_uint_eq(stats_of(&w, THE_linear).gated, !cases[_i].has);
    ck_assert_uint_eq(stats_of(&w, THE_linear).no_tensor_cores, !cases[_i].has);
    ck_assert_uint_eq(stats_of(&w, THE_linear).unaligned, 0);
    if (cases[_i].words) expect_words(&w, "linear", cases[_i].words, 1);
    else expect_words(&w, "linear", "tensor cores", 0);
    multiply(&w, THE_linear, low, 64, 64, 64);
    ck_assert_int_eq(last.who, ran);
    ck_assert_uint_eq(stats_of(&w, THE_linear).no_tensor_cores, cases[_i].has ? 0 : 2);
    multiply(&w, THE_own, AMP_FLOAT32, 64, 64, 64); /* nobody said that it is a product */
    ck_assert_int_eq(last.who, ran);
    ck_assert_uint_eq(stats_of(&w, THE_own).no_tensor_cores, 0);
    finish(&w);
}

/* An op without implementations is held back where the gate chooses types, and counted in any case. */
TEST(test_types) {
    for (amp_switch gate = AMP_DEFAULT; gate <= AMP_ON; gate++) {
        struct world w;
        device_set_capability(75);
        start(&w, AMP_O4, gate);
        const amp_dtype type = multiply(&w, THE_plain, AMP_FLOAT32, 64, 64, 64);
        ck_assert_int_eq(type, gate == AMP_ON ? AMP_FLOAT32 : AMP_BFLOAT16);
        ck_assert_uint_eq(stats_of(&w, THE_plain).gated, gate == AMP_ON);
        ck_assert_uint_eq(stats_of(&w, THE_plain).no_tensor_cores, gate == AMP_OFF ? 0 : 1);
        finish(&w);
    }
}

TEST(test_unaligned) {
    struct world w;
    device_set_capability(90);
    start(&w, AMP_O4, AMP_DEFAULT);
    multiply(&w, THE_linear, AMP_FLOAT32, 8, 16, 24);
    ck_assert_uint_eq(stats_of(&w, THE_linear).unaligned, 0);
    multiply(&w, THE_linear, AMP_FLOAT32, 8, 50257, 24);
    ck_assert_int_eq(last.who, BF16);
    expect_words(&w, "linear",
                 "1 call on a GPU had a dimension that is no multiple of 8, the last n = 50257: pad it to 50264", 1);
    multiply(&w, THE_linear, AMP_BFLOAT16, 8, 16, 12);
    multiply(&w, THE_linear, AMP_BFLOAT16, 7, 16, 24);
    ck_assert_uint_eq(stats_of(&w, THE_linear).unaligned, 3);
    ck_assert_uint_eq(stats_of(&w, THE_linear).gated, 0);
    expect_words(&w, "linear", "the last m = 7: pad it to 8", 1);
    call(&w, THE_linear, TENSOR(AMP_FLOAT32, 7, 7), TENSOR(AMP_FLOAT32, 7, 7)); /* on the CPU */
    ck_assert_uint_eq(stats_of(&w, THE_linear).unaligned, 3);
    finish(&w);
}

/* What the host said holds on a GPU too; counting goes on. */
TEST(test_told) {
    struct world w;
    device_set_capability(75);
    start(&w, AMP_O4, AMP_ON);
    ck_ok(amp_gate_set(w.context, "linear", AMP_GATE_ALWAYS));
    multiply(&w, THE_linear, AMP_FLOAT32, 64, 64, 64);
    ck_assert_int_eq(last.who, BF16);
    ck_assert_uint_eq(stats_of(&w, THE_linear).no_tensor_cores, 1);
    finish(&w);
}

TEST(test_direct) {
    struct world w;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    device_set_capability(75);
    start(&w, AMP_O4, AMP_ON);
    struct tensor *a = on_gpu(TENSOR(AMP_FLOAT32, 8, 8)), *b = on_gpu(TENSOR(AMP_FLOAT32, 8, 8));
    void *args[] = { a, b };
    ck_ok(amp_cast_args(w.context, "direct", args, 2, &frame));
    ck_assert_int_eq(((struct tensor *)args[0])->dtype, AMP_FLOAT32);
    ck_ok(amp_cast_done(&frame));
    ck_assert_uint_eq(stats_of(&w, THE_direct).no_tensor_cores, 1);
    ck_assert_uint_eq(stats_of(&w, THE_direct).gated, 1);
    device_set_capability(90);
    ck_ok(amp_cast_args(w.context, "direct", args, 2, &frame));
    ck_assert_int_eq(((struct tensor *)args[0])->dtype, AMP_BFLOAT16);
    ck_ok(amp_cast_done(&frame));
    ck_ok(amp_tape_done(w.context));
    drop(a), drop(b);
    finish(&w);
}

TEST_FIXTURE(NULL, restore)
