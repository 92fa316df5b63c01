/* SPDX-License-Identifier: Apache-2.0 */
/* Emulation for hosts with handles whose kernels know FP32 only: cast rounds, and FP32 storage stays. */
#include "fp32host.h"

/* ---- O1 ---- */

TEST_TIMES(a_lower_op_is_round_compute_round, 2) {
    WORLD_AT(w, AMP_O1, _i);
    OWN *x = filled(1.0f / 3.0f), *y = table.mul(x, w.weight);
    ck_assert(!saw_unrounded);
    ck_assert_float_eq(y->data[0], half(half(1.0f / 3.0f) * half(1.0f + 0x1p-12f)));
    ck_assert(y->rounded_by_host); /* the rounding of the result is on the tape too */
    ck_assert_float_eq(x->data[0], 1.0f / 3.0f);
    ck_assert_float_eq(w.weight->data[0], 1.0f + 0x1p-12f); /* O1: the weight stays FP32 */
    ck_assert_uint_eq(stats_of(&w, 0).casts, 3);
}

/* With logical types, what a left op makes of 16-bit tensors is 16-bit; without them nothing says so. */
TEST_TIMES(a_left_op_on_16_bit_tensors_returns_one, 2) {
    WORLD_AT(w, AMP_O1, _i);
    OWN *x = filled(1.0f + 0x1p-10f), *y = table.mul(x, x);
    OWN *z = table.activate(y, y);
    const float exact = y->data[0] * y->data[0];
    ck_assert_float_ne(half(exact), exact);
    ck_assert_float_eq(z->data[0], _i ? half(exact) : exact);
    OWN *full = table.activate(x, x); /* FP32 in, FP32 out */
    ck_assert_float_eq(full->data[0], x->data[0] * x->data[0]);
}

TEST_TIMES(what_is_lost_is_counted, 2) {
    WORLD_AT(w, AMP_O1, _i);
    OWN *x = filled(1.0f), *one = filled(1.0f);
    x->data[0] = 1e6f;  /* infinite in fp16 */
    x->data[1] = 1e-9f; /* zero */
    x->data[2] = 1e-6f; /* subnormal: on the way in, and on the way out */
    OWN *y = table.mul(x, one);
    const amp_op_stats stats = stats_of(&w, 0);
    ck_assert_uint_eq(stats.overflowed, 1);
    ck_assert_uint_eq(stats.zeroed, 1);
    ck_assert_uint_eq(stats.subnormal, 2);
}

/* ---- O2 ---- */

TEST_TIMES(parameters_are_rounded_in_place_but_batch_norms, 2) {
    WORLD_AT(w, AMP_O2, _i);
    ck_assert_float_eq(w.weight->data[0], 1.0f);
    ck_assert_float_eq(w.gamma->data[0], 1.0f + 0x1p-12f);
    /* left by its descriptor: not the model */
    OWN *x = filled(1.0f / 3.0f), *y = table.activate(x, w.weight);
    ck_assert_float_eq(y->data[0], 1.0f / 3.0f);
    OWN *z = table.mul(x, w.gamma); /* gamma as it is, the rest rounded */
    ck_assert_float_eq(z->data[0], half(half(1.0f / 3.0f) * (1.0f + 0x1p-12f)));
}

/* Batch norm's parameters stay, and what is lost is counted. */
TEST_TIMES(a_direct_call_is_cast_as_a_wrapped_one, 2) {
    WORLD(w, _i);
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    ck_ok(start(&w, AMP_O2));
    OWN *x = filled(1.0f / 3.0f);
    x->data[1] = 1e6f;
    void *tensors[] = { x, w.gamma };
    ck_ok(amp_cast_args(w.context, "mul", tensors, 2, &frame));
    ck_assert_ptr_ne(tensors[0], x);
    ck_assert_float_eq(((struct tensor *)tensors[0])->data[0], half(1.0f / 3.0f));
    ck_assert_ptr_eq(tensors[1], w.gamma);
    ck_ok(amp_cast_done(&frame));
    ck_assert_uint_eq(stats_of(&w, 0).overflowed, 1);
}

TEST_TIMES(what_an_op_writes_in_place_is_rounded_in_place, 2) {
    WORLD_AT(w, AMP_O2, _i);
    OWN *x = filled(1.0f), *y = filled(0x1p-12f + 0x1p-20f);
    x->logical = y->logical = AMP_FLOAT16;
    ck_assert_int_eq(table.add_(x, y), 0);
    ck_assert_float_eq(x->data[0], 1.0f);  /* fp16 has nothing between 1 and 1 + 2^-10 */
    ck_assert(!x->rounded_by_host);
}

/* ---- out-parameters ---- */

static bool split_fails;

/* a -> *sum and both[2]; on failure nothing is written. */
static int32_t split(void *a, void **sum, void **both) {
    if (split_fails) return -1;
    *sum = mul(a, a);
    both[0] = NULL;
    /* an op that reads what it only writes sees a slot of libamp's, and no garbage of the caller's */
    if (both[1]) return -2;
    both[1] = mul(a, a);
    return 0;
}

static int32_t (*split_slot)(void *, void **, void **) = split;

static amp_op split_op(void) {
    return OP("split", "split(Tensor a, Tensor(out a!)* sum, Tensor(out a!)*[2] both) -> int32", &split_slot,
              .op_class = AMP_LOWER);
}

TEST_TIMES(handles_in_out_parameters_are_rounded, 2) {
    struct world w = set_up(_i);
    struct tensor untouched = { .logical = AMP_FLOAT32 };
    void *sum = &untouched, *both[2] = { &untouched, NULL };
    w.ops[2] = split_op();
    ck_ok(start(&w, AMP_O1));
    struct tensor *x = filled(1.0f + 0x1p-10f);
    split_fails = true;
    ck_assert_int_eq(split_slot(x, &sum, both), -1);
    ck_assert(sum == &untouched && both[0] == &untouched && !both[1]);
    split_fails = false;
    ck_assert_int_eq(split_slot(x, &sum, both), -2); /* slots of libamp's own, which say that nothing is there yet */
    ck_assert(!both[0] && !both[1]);
    ck_assert_float_eq(((struct tensor *)sum)->data[0], half(x->data[0] * x->data[0]));
    ck_assert(((struct tensor *)sum)->rounded_by_host);
    drop(x);
    drop(sum);
    finish(&w);
    ck_assert(split_slot == split);
}

static int32_t run_forward(void *self, void *x, void **y) {
    (void)self;
    ck_assert_int_eq(((struct tensor *)x)->logical, AMP_FLOAT16);
    *y = make(AMP_FLOAT16);
    return 7;
}

static int32_t (*forward_slot)(void *, void *, void **) = run_forward;

/* With or without emulation: the model's outputs are FP32, however they are handed over. */
TEST(a_forwards_out_parameter_has_the_outputs_type) {
    WORLD(w, true);
    amp_op forward = OP("forward", "forward(pointer self, Tensor x, Tensor(out a!)* y) -> int32", &forward_slot);
    void *y = NULL;
    w.model.forward = &forward;
    w.model.self = &w;
    ck_ok(start(&w, AMP_O2));
    OWN *x = filled(1.0f);
    ck_assert_int_eq(forward_slot(&w, x, &y), 7);
    ck_assert_int_eq(((struct tensor *)y)->logical, AMP_FLOAT32);
    drop(y);
}

static int casts_left;
static amp_status cast_some(void *self, void *handle, amp_dtype to, void **out) {
    return casts_left-- ? cast(self, handle, to, out) : AMP_ERR_UNSUPPORTED;
}

/* The op has run: its caller gets what it made, and the error is kept. */
TEST_TIMES(a_result_that_is_not_rounded_is_told, 2) {
    WORLD(w, _i);
    w.host.cast = cast_some;
    casts_left = 2;
    ck_ok(start(&w, AMP_O1));
    OWN *x = filled(1.0f / 3.0f), *y = table.mul(x, w.weight);
    ck_assert_float_eq(y->data[0], half(1.0f / 3.0f) * half(1.0f + 0x1p-12f));
    ck_assert(!y->rounded_by_host);
    ck_assert_uint_eq(stats_of(&w, 0).failures, 1);
    ck_refused(AMP_ERR_UNSUPPORTED, "op mul: its result", amp_check(w.context));
    ck_ok(amp_check(w.context));
}

/* The first of two is not rounded, the second is none. */
TEST_TIMES(an_out_parameter_that_is_not_rounded_is_told, 2) {
    WORLD(w, _i);
    void *sum = NULL, *both[2] = { NULL, NULL };
    w.host.cast = cast_some;
    w.ops[2] = split_op();
    casts_left = 1;
    split_fails = false;
    ck_ok(start(&w, AMP_O1));
    OWN *x = filled(1.0f + 0x1p-10f);
    ck_assert_int_eq(split_slot(x, &sum, both), -2);
    ck_assert(!((struct tensor *)sum)->rounded_by_host);
    ck_assert_uint_eq(stats_of(&w, 2).failures, 1);
    ck_fails(AMP_ERR_UNSUPPORTED, amp_check(w.context));
    drop(sum);
}

/* ---- lists that an op writes in place ---- */

static int32_t double_all(void *x, void **list) {
    for (int j = 0; list && j < 2; j++)
        if (list[j]) add_in_place(list[j], x);
    return 0;
}

static int32_t (*list_slot)(void *, void **) = double_all;

TEST_TIMES(a_list_that_an_op_writes_is_rounded_and_may_be_null, 2) {
    WORLD(w, _i);
    w.ops[2] = OP("add_all", "add_all(Tensor x, Tensor(a!)[2] list) -> int32", &list_slot, .op_class = AMP_LOWER);
    ck_ok(start(&w, AMP_O2));
    OWN *x = filled(0x1p-12f + 0x1p-20f), *y = filled(1.0f);
    void *list[] = { y, NULL };
    x->logical = y->logical = AMP_FLOAT16;
    ck_assert_int_eq(list_slot(x, list), 0);
    ck_assert_float_eq(y->data[0], 1.0f); /* fp16 has nothing between 1 and 1 + 2^-10 */
    ck_assert_int_eq(list_slot(x, NULL), 0);
}

TEST(emulation_needs_the_cast_hook_for_handles) {
    struct world w = set_up(false);
    w.host.cast = NULL;
    ck_refused(AMP_ERR_MISSING_HOOK, "cast", start(&w, AMP_O2));
    ck_assert_float_eq(w.weight->data[0], 1.0f + 0x1p-12f);
    drop(w.weight);
    drop(w.gamma);
}
