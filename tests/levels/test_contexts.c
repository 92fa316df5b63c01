/* SPDX-License-Identifier: Apache-2.0 */
/* Several contexts on one table, jumps over libamp's frames, and many lives after one another. */
#include "checks.h"

static amp_dtype linear_gets(struct rig *rig) {
    struct fake_tensor *x = rig_tensor(rig, AMP_FLOAT32, 2.0);
    fake_release(net_linear(&rig->net, x, rig->net.weight, rig->net.bias));
    fake_release(x);
    return fake_last(&rig->host)->dtypes[0];
}

/* ---- two contexts on one table ---- */

struct pair {
    struct rig rig;
    amp_model second;
    amp_context *other;
};

static void pair_start(struct pair *pair) { /* O1 and O4 on the same slots */
    amp_config config = config_of(AMP_O4);
    rig_start(&pair->rig, AMP_O1, FAKE_RETAINS);
    pair->second = pair->rig.net.model;
    pair->second.amp = NULL;
    pair->second.n_params = 0;
    pair->second.forward = NULL;
    amp_model *models[] = { &pair->second };
    ck_ok(amp_initialize_many(models, 1, NULL, 0, &config, &pair->other));
}

TEST(the_scope_picks_the_context) {
    struct pair pair;
    amp_scope scope;
    pair_start(&pair);
    ck_ok(amp_scope_enter(pair.other, &scope));
    ck_assert_int_eq(linear_gets(&pair.rig), AMP_BFLOAT16);
    ck_ok(amp_scope_leave(&scope));
    ck_ok(amp_scope_enter(pair.rig.context, &scope));
    ck_assert_int_eq(linear_gets(&pair.rig), AMP_FLOAT16);
    ck_ok(amp_scope_leave(&scope));
    ck_assert_int_eq(linear_gets(&pair.rig), AMP_FLOAT32); /* two contexts, no scope: nobody's */
    ck_ok(amp_shutdown(pair.other));
    rig_end(&pair.rig);
}

DIFFERENCE(contexts_instead_of_globals) {
    struct rig a, b;
    rig_start(&a, AMP_O1, FAKE_RETAINS);
    rig_start(&b, AMP_O0, FAKE_RETAINS);
    ck_assert_int_eq(linear_gets(&a), AMP_FLOAT16);
    ck_assert_int_eq(linear_gets(&b), AMP_FLOAT32);
    rig_end(&a);
    rig_end(&b);
}

TEST_TIMES(contexts_end_in_any_order, 2) {
    struct pair pair;
    pair_start(&pair);
    amp_context *order[] = { _i ? pair.other : pair.rig.context, _i ? pair.rig.context : pair.other };
    ck_ok(amp_shutdown(order[0]));
    ck_assert(pair.rig.net.table[OP_linear] != pair.rig.net.original[OP_linear]);
    ck_assert_int_eq(linear_gets(&pair.rig), _i ? AMP_FLOAT16 : AMP_BFLOAT16);
    ck_ok(amp_shutdown(order[1]));
    ck_assert_int_eq(linear_gets(&pair.rig), AMP_FLOAT32);
    pair.rig.context = NULL;
    rig_end(&pair.rig);
}

/* ---- a context's own calls ---- */

static amp_context *to_end;
static int32_t asked;

static void try_to_end(void) {
    asked++;
    ck_fails(AMP_ERR_WRONG_STATE, amp_shutdown(to_end));
    ck_says("amp_shutdown inside a wrapped call");
}
static struct fake_tensor *op_that_ends(struct fake_tensor *x) {
    try_to_end();
    return fake_new(x->host, AMP_FLOAT32, 1, 1.0);
}
static struct fake_tensor *forward_that_ends(struct net *self, struct fake_tensor *x) {
    (void)self;
    return op_that_ends(x);
}
static void zero_grad_that_ends(struct net *self) {
    (void)self;
    try_to_end();
}

/* Whatever scope the call is in: a program that calls its functions where the policy is off, for one. */
TEST(no_context_ends_inside_its_own_call) {
    amp_scope off;
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.table[OP_relu] = (amp_fn)op_that_ends;
    rig.net.forward = (amp_fn)forward_that_ends;
    rig.net.zero_grad = (amp_fn)zero_grad_that_ends;
    rig.net.ops[OP_relu].op_class = AMP_LOWER;
    const amp_config config = config_of(AMP_O1);
    ck_ok(rig_config(&rig, &config));
    to_end = rig.context;
    asked = 0;
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    fake_release(net_unary(&rig.net, OP_relu, x));
    net_zero_grad(&rig.net);
    ck_assert_int_eq(asked, 2);
    for (int i = 0; i < 2; i++) {
        if (i) ck_ok(amp_scope_enter(NULL, &off));
        fake_release(net_forward(&rig.net, x));
        if (i) ck_ok(amp_scope_leave(&off));
    }
    ck_assert_int_eq(asked, 4);
    fake_release(x);
    ck_ok(amp_shutdown(rig.context));
    rig.context = NULL;
    rig.net.table[OP_relu] = rig.net.original[OP_relu];
    rig.net.forward = rig.net.original_forward;
    rig.net.zero_grad = rig.net.original_zero_grad;
}

/* ---- jumps ---- */

TEST_TIMES(a_longjmp_out_of_an_op_leaves_no_trace, 2) {
    struct rig rig;
    jmp_buf back;
    rig_start(&rig, AMP_O1, _i ? FAKE_RETAINS : 0);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    if (!setjmp(back)) {
        rig.net.jump_from_op = &back;
        (void)net_binary(&rig.net, OP_matmul, x, x);
    }
    rig.net.jump_from_op = NULL;
    ck_assert_int_eq(linear_gets(&rig), AMP_FLOAT16);
    fake_release(x);
    rig_end(&rig); /* looks at what is alive */
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
    struct rig rig;
    jmp_buf back;
    rig_start(&rig, AMP_O2, FAKE_RETAINS);
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
    rig_end(&rig);
}

TEST_TIMES(a_thousand_lives_leave_nothing, 2) {
    const amp_config config = config_of(_i ? AMP_O2 : AMP_O1);
    RIG_INIT(rig, FAKE_RETAINS);
    const int64_t tensors = rig.host.live_tensors, blocks = rig.host.live_blocks;
    for (int i = 0; i < 1000; i++) {
        ck_ok(rig_config(&rig, &config));
        ck_ok(amp_shutdown(rig.context));
        ck_assert(net_slots_restored(&rig.net));
    }
    ck_assert_int_eq(rig.host.live_tensors, tensors);
    ck_assert_int_eq(rig.host.live_blocks, blocks);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.5);
    rig.context = NULL;
}
