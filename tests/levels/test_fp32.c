/* SPDX-License-Identifier: Apache-2.0 */
/* amp_op.fp32: which calls of an op of handles it gets, at each level, of each class, and under the gate. */
#include "gatehost.h"

#define WORLD_WITH_FP32(name, level, gate, op_class) WORLD(name); start_with(&name, level, gate, op_class, true)

static struct tensor *square(amp_dtype type) { return TENSOR(type, 8, 8); }

/* ---- by level and class ---- */

static const struct {
    amp_level level;
    amp_class op_class;
    amp_dtype a, b;
    enum ran who;
    amp_dtype got;
} rows[] = {
    { AMP_O0, AMP_LOWER, AMP_FLOAT32, AMP_FLOAT32, FP32, AMP_FLOAT32 }, /* no class casts there */
    { AMP_O0, AMP_LEAVE, AMP_FLOAT32, AMP_FLOAT32, FP32, AMP_FLOAT32 },
    { AMP_O0, AMP_LEAVE, AMP_FLOAT16, AMP_FLOAT16, FP16, AMP_FLOAT16 },
    { AMP_O1, AMP_LOWER, AMP_FLOAT32, AMP_FLOAT32, FP16, AMP_FLOAT16 },
    { AMP_O4, AMP_LOWER, AMP_FLOAT32, AMP_FLOAT16, BF16, AMP_BFLOAT16 },
    { AMP_O1, AMP_FP32, AMP_FLOAT32, AMP_FLOAT32, FP32, AMP_FLOAT32 },
    { AMP_O1, AMP_FP32, AMP_FLOAT16, AMP_FLOAT32, FP32, AMP_FLOAT32 }, /* after the cast */
    { AMP_O4, AMP_FP32, AMP_BFLOAT16, AMP_BFLOAT16, FP32, AMP_FLOAT32 },
    { AMP_O1, AMP_PROMOTE, AMP_FLOAT16, AMP_FLOAT32, FP32, AMP_FLOAT32 },
    { AMP_O1, AMP_PROMOTE, AMP_FLOAT16, AMP_FLOAT16, FP16, AMP_FLOAT16 },
    { AMP_O1, AMP_LEAVE, AMP_FLOAT32, AMP_FLOAT32, FP32, AMP_FLOAT32 },
    { AMP_O1, AMP_LEAVE, AMP_FLOAT32, AMP_DTYPE_OTHER, FP32, AMP_FLOAT32 },
    { AMP_O1, AMP_LEAVE, AMP_DTYPE_OTHER, AMP_DTYPE_OTHER, ORIGINAL, AMP_DTYPE_OTHER },
    { AMP_O1, AMP_LEAVE, AMP_FLOAT32, AMP_FLOAT16, ORIGINAL, AMP_FLOAT32 }, /* a mixture */
    { AMP_O2, AMP_LOWER, AMP_FLOAT32, AMP_FLOAT32, FP32, AMP_FLOAT32 },
    { AMP_O2, AMP_LOWER, AMP_FLOAT16, AMP_FLOAT16, FP16, AMP_FLOAT16 },
    { AMP_O3, AMP_LOWER, AMP_FLOAT16, AMP_FLOAT32, ORIGINAL, AMP_FLOAT16 },
    { AMP_O5, AMP_LOWER, AMP_BFLOAT16, AMP_BFLOAT16, BF16, AMP_BFLOAT16 },
};

TEST_TIMES(all_arguments_have_that_type, sizeof rows / sizeof rows[0]) {
    WORLD_WITH_FP32(w, rows[_i].level, AMP_OFF, rows[_i].op_class);
    call(&w, THE_own, square(rows[_i].a), square(rows[_i].b));
    ck_assert_int_eq(last.who, rows[_i].who);
    ck_assert_int_eq(last.got[0], rows[_i].got);
}

/* Without a low implementation: at O1 on 16-bit arguments. */
TEST_TIMES(fp32_alone_is_an_implementation_too, 2) {
    WORLD_WITH_FP32(w, _i ? AMP_O1 : AMP_O0, AMP_DEFAULT, AMP_LOWER);
    ck_assert(w.table[THE_other] != original); /* wired at O0 too */
    const amp_dtype type = _i ? AMP_FLOAT16 : AMP_FLOAT32;
    ck_ran(call_square(&w, THE_other, 8), type, _i ? ORIGINAL : FP32, type);
}

TEST_TIMES(calls_that_are_passed_on_take_the_original, 2) {
    amp_scope scope;
    WORLD_WITH_FP32(w, _i ? AMP_O1 : AMP_O0, AMP_DEFAULT, AMP_FP32);
    ck_ok(amp_scope_enter(NULL, &scope));
    ck_assert_int_eq(call_square(&w, THE_own, 8), AMP_FLOAT32);
    ck_assert_int_eq(last.who, ORIGINAL);
    ck_assert_uint_eq(stats_of(&w, THE_own).passed, 1);
    ck_ok(amp_scope_leave(&scope));
}

TEST(switched_off_it_is_not_called) {
    WORLD_WITH_FP32(w, AMP_O0, AMP_DEFAULT, AMP_LOWER);
    ck_ok(amp_shutdown(w.context));
    const amp_config config = CONFIG(AMP_O0, .enabled = AMP_OFF);
    amp_model *model = &w.model;
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &w.context));
    call_square(&w, THE_own, 8);
    ck_assert_int_eq(last.who, ORIGINAL);
}

/* ---- the gate: FP32 is its side of the comparison ---- */

TEST_TIMES(a_held_call_takes_it, 2) {
    const amp_switch gate = _i ? AMP_ON : AMP_DEFAULT;
    WORLD_WITH_FP32(w, AMP_O4, gate, AMP_LOWER);
    const amp_dtype type = _i ? AMP_FLOAT32 : AMP_BFLOAT16; /* as without it */
    ck_ran(call_square(&w, THE_linear, 256), type, FP32, AMP_FLOAT32);
    ck_assert_uint_eq(stats_of(&w, THE_linear).gated, 1);
    ck_assert_int_eq(stats_of(&w, THE_linear).last_target, AMP_FLOAT32);
    ck_ok(amp_gate_set(w.context, "linear", AMP_GATE_ALWAYS));
    ck_assert_int_eq(call_square(&w, THE_linear, 256), AMP_BFLOAT16);
    ck_assert_int_eq(last.who, BF16);
}

TEST_TIMES(explain_tells_of_it, 2) {
    WORLD(w);
    start_with(&w, AMP_O4, AMP_DEFAULT, AMP_LOWER, _i);
    const char *text = explanation(w.context, "own");
    ck_assert_msg(!strstr(text, "fp32 by an implementation") == !_i, "%s", text);
}

/* An adapter that was compiled before amp_op had it is told, and not read past its end. */
TEST(smaller_descriptors_are_refused) {
    struct world w;
    start_with(&w, AMP_O0, AMP_DEFAULT, AMP_LOWER, true);
    ck_ok(amp_shutdown(w.context));
    for (int i = 0; i < N_OPS; i++) w.ops[i].struct_size = (uint32_t)(sizeof(amp_op) - sizeof(amp_fn));
    amp_model *model = &w.model;
    const amp_config config = config_of(AMP_O1);
    ck_fails(AMP_ERR_ABI_MISMATCH, amp_initialize_many(&model, 1, NULL, 0, &config, &w.context));
    ck_says("amp_op.struct_size is ");
    ck_assert(w.table[THE_linear] == original);
}

int main(void) {
    amp_set_cpu_mask(0); /* a row of the gate's table that holds on every machine */
    return suite_run();
}
