/* SPDX-License-Identifier: Apache-2.0 */
/* A context's own calls, and jumps over libamp's frames. Many contexts on one table: test_lives.c. */
#include "checks.h"

DIFFERENCE(contexts_instead_of_globals) {
    RIG_START(a, AMP_O1, FAKE_RETAINS);
    RIG_START(b, AMP_O0, FAKE_RETAINS);
    ck_assert_int_eq(rig_linear_gets(&a), AMP_FLOAT16);
    ck_assert_int_eq(rig_linear_gets(&b), AMP_FLOAT32);
}

/* ---- a context's own calls ---- */

static amp_context *to_end;
static int32_t asked;

static void try_to_end(void) {
    asked++;
    ck_refused(AMP_ERR_WRONG_STATE, "amp_shutdown inside a wrapped call", amp_shutdown(to_end));
}
static struct fake_tensor *op_that_ends(struct fake_tensor *x) {
    try_to_end();
    return fake_new(x->host, AMP_FLOAT32, 1, 1.0);
}
static struct fake_tensor *forward_that_ends(struct net *self, struct fake_tensor *x) {
    return (void)self, op_that_ends(x);
}
static void zero_grad_that_ends(struct net *self) { (void)self, try_to_end(); }

/* Whatever scope the call is in: a program that calls its functions where the policy is off, for one. */
TEST(no_context_ends_inside_its_own_call) {
    amp_scope off;
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.table[OP_relu] = (amp_fn)op_that_ends;
    rig.net.forward = (amp_fn)forward_that_ends;
    rig.net.zero_grad = (amp_fn)zero_grad_that_ends;
    rig.net.ops[OP_relu].op_class = AMP_LOWER;
    rig_wire(&rig, config_of(AMP_O1));
    to_end = rig.context;
    asked = 0;
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    fake_release(net_unary(&rig.net, OP_relu, x));
    net_zero_grad(&rig.net);
    ck_assert_int_eq(asked, 2);
    for (int i = 0; i < 2; i++) {
        if (i) ck_ok(amp_scope_enter(NULL, &off));
        fake_release(net_forward(&rig.net, x));
        if (i) ck_ok(amp_scope_leave(&off));
    }
    ck_assert_int_eq(asked, 4);
    rig_stop(&rig);
    rig.net.table[OP_relu] = rig.net.original[OP_relu];
    rig.net.forward = rig.net.original_forward;
    rig.net.zero_grad = rig.net.original_zero_grad;
}

/* However many scopes of others are inside it. */
TEST(no_context_ends_inside_its_own_scope) {
    amp_scope scopes[3], captured, adopted;
    amp_context *current;
    RIG_START(a, AMP_O1, 0);
    RIG_START(b, AMP_O0, 0);
    RIG_START(c, AMP_O4, 0);
    amp_context *around[] = { a.context, b.context, c.context };
    for (int i = 0; i < 3; i++) ck_ok(amp_scope_enter(around[i], &scopes[i]));
    for (int i = 0; i < 3; i++) ck_refused(AMP_ERR_WRONG_STATE, "an entered scope", amp_shutdown(around[i]));
    ck_ok(amp_scope_capture(&captured));
    ck_ok(amp_scope_leave(&scopes[2]));
    rig_stop(&c);
    ck_refused(AMP_ERR_WRONG_STATE, "was shut down", amp_scope_adopt(&captured, &adopted));
    ck_assert_int_eq(amp_scope_current(&current), 1);
    ck_assert_ptr_eq(current, b.context);
    ck_refused(AMP_ERR_WRONG_STATE, "an entered scope", amp_shutdown(a.context));
    ck_ok(amp_scope_leave(&scopes[1]));
    rig_stop(&b);
    ck_ok(amp_scope_leave(&scopes[0]));
    rig_stop(&a);
}

/* ---- jumps ---- */

TEST_TIMES(a_longjmp_out_of_an_op_leaves_no_trace, 2) {
    jmp_buf back;
    RIG_START(rig, AMP_O1, _i ? FAKE_RETAINS : 0); /* its end looks at what is alive */
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    if (!setjmp(back)) {
        rig.net.jump_from_op = &back;
        (void)net_binary(&rig.net, OP_matmul, x, x);
    }
    rig.net.jump_from_op = NULL;
    ck_assert_int_eq(rig_linear_gets(&rig), AMP_FLOAT16);
    ck_ok(amp_check(rig.context));
}

TEST_TIMES(a_longjmp_out_of_forward_leaves_its_scope, 2) {
    static const amp_level levels[] = { AMP_O1, AMP_O2 };
    jmp_buf back;
    RIG_START(rig, levels[_i], FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    if (!setjmp(back)) {
        rig.net.jump_from_forward = &back;
        (void)net_forward(&rig.net, x);
    }
    rig.net.jump_from_forward = NULL;
    ck_ok(amp_cache_clear(rig.context));
    OWN_TENSOR *y = net_forward(&rig.net, x);
    ck_assert_ptr_nonnull(y);
    ck_assert_int_eq(rig.host.log[0].dtypes[0], AMP_FLOAT16);
}

TEST(a_longjmp_out_of_the_step_gives_the_parameters_back) {
    jmp_buf back;
    RIG_START(rig, AMP_O2, FAKE_RETAINS);
    if (!setjmp(back)) {
        rig.net.jump_from_step = &back;
        (void)net_step(&rig.net);
    }
    rig.net.jump_from_step = NULL;
    ck_assert_int_eq(rig.net.step_saw, AMP_FLOAT32);
    amp_scope scope;
    ck_ok(amp_scope_enter(NULL, &scope)); /* any call notices */
    ck_ok(amp_scope_leave(&scope));
    ck_dtype(rig.net.weight, AMP_FLOAT16);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.5);
}
