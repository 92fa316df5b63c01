/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_torch.h in the order in which bindings call libtorch: tch-rs makes an optimizer without parameters and adds
 * shallow clones of its variables, one at a time and by groups, frees every handle as soon as Rust drops it, and calls
 * Optimizer::backward_step: zero_grad, backward, step. And classes of ops, and parameters that come later.
 */
#include "../support/levels.h"
#include "digits_net.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

enum { BATCH = 8 };

/* A VarStore: the only handles that live as long as the model. */
struct var_store {
    amp_torch_tensor variables[N_TENSORS];
    struct net net; /* for its forward */
};

static struct var_store var_store_new(uint64_t seed) {
    struct var_store vs = { .net = net_new(seed) };
    for (int i = 0; i < N_TENSORS; i++) vs.variables[i] = vs.net.tensors[i];
    return vs;
}

/* vs.trainable_variables(), in two groups, as with `set_group`. */
static amp_torch_optimizer optimizer_new(const struct var_store *vs, double rate) {
    const amp_torch_optimizer optimizer = torch_sgd(NULL, 0, rate, 0.9);
    for (int i = 0; i < N_TENSORS; i++) {
        if (i == NORM + 2 || i == NORM + 3) continue; /* running statistics */
        const amp_torch_tensor clone = torch_shallow_clone(vs->variables[i]);
        torch_optimizer_add(optimizer, clone, i >= SECOND_WEIGHT);
        torch_free(clone);
    }
    return optimizer;
}

static amp_torch_session *session_new(const struct var_store *vs, amp_level level) {
    amp_torch_tensor clones[N_TENSORS];
    uint8_t is_norm[N_TENSORS] = { 0 };
    amp_torch_session *session = NULL;
    for (int i = 0; i < N_TENSORS; i++) {
        clones[i] = torch_shallow_clone(vs->variables[i]);
        is_norm[i] = i >= NORM && i < NORM + 4;
    }
    ck_assert_int_eq(amp_torch_open(level, NULL, clones, NULL, is_norm, NULL, N_TENSORS, &session), AMP_OK);
    for (int i = 0; i < N_TENSORS; i++) torch_free(clones[i]);
    return session;
}

/* Optimizer::backward_step(&loss), with the session's calls where plain tch-rs has backward and step. Returns the
 * loss. */
static double backward_step(struct var_store *vs, amp_torch_optimizer optimizer, amp_torch_tensor x,
                            amp_torch_tensor labels) {
    amp_torch_session *session = vs->net.session;
    const amp_torch_tensor loss = net_loss(&vs->net, x, labels);
    const double value = torch_value(loss, 0);
    amp_torch_tensor scaled = NULL;
    int32_t stepped = -1;
    torch_optimizer_zero_grad(optimizer);
    ck_assert_int_eq(amp_torch_begin(session, loss, 0, NULL, 0, 0, &scaled), AMP_OK);
    torch_free(loss); /* Rust drops it when its last use is over */
    torch_backward(scaled);
    torch_free(scaled);
    ck_assert_int_eq(amp_torch_end(session, 0, NULL), AMP_OK);
    ck_assert_int_eq(amp_torch_step_optimizer(session, 0, optimizer, &stepped), AMP_OK);
    ck_assert_int_ge(stepped, 0);
    return value;
}

TEST_RANGE(tch_rs, 1, N_EACH_LEVEL + 1) {
    struct var_store vs = var_store_new(11);
    int64_t labels[BATCH];
    for (int i = 0; i < BATCH; i++) labels[i] = i % CLASSES;
    const amp_torch_tensor x = torch_param(BATCH, PIXELS, 1.0), y = torch_integers(labels, BATCH);
    const amp_torch_optimizer optimizer = optimizer_new(&vs, 0.1);
    vs.net.session = session_new(&vs, _i);
    const double first = backward_step(&vs, optimizer, x, y);
    for (int i = 0; i < 60; i++) {
        if (i == 40) torch_sgd_set_rate(optimizer, 0.01); /* Optimizer::set_lr */
        (void)backward_step(&vs, optimizer, x, y);
    }
    const double last = backward_step(&vs, optimizer, x, y);
    ck_assert_msg(last < 0.1 * first, "O%d: %g after %g", _i - AMP_O0, last, first);
    /* finalizers run in any order: the optimizer, the session, the variables */
    torch_optimizer_free(optimizer);
    ck_assert_int_eq(amp_torch_close(vs.net.session), AMP_OK);
    vs.net.session = NULL;
    for (int i = 0; i < N_TENSORS; i++) ck_assert_int_eq(torch_type(vs.variables[i]), AMP_FLOAT32);
    torch_free(x);
    torch_free(y);
    net_free(&vs.net);
}

/* ---- parameters that come later ---- */

/* A model of which the first layer is frozen, and then thawed; and a new tensor. */
TEST_RANGE(add_params, 1, N_EACH_LEVEL + 1) {
    amp_torch_tensor tensors[3] = { torch_param(2, 2, 1.0), torch_param(2, 2, 1.0), torch_param(2, 2, 1.0) };
    const uint32_t optimizers[2] = { 0, AMP_TORCH_NOBODY };
    const amp_torch_optimizer sgd = torch_sgd(tensors, 1, 0.5, 0.0);
    amp_torch_session *session = NULL;
    amp_config config = AMP_CONFIG_INIT;
    if (level_is_dynamic(_i)) config.init_scale = 256.0f; /* the losses are fp16, and so is what the scale goes into */
    ck_assert_int_eq(amp_torch_open(_i, &config, tensors, NULL, NULL, optimizers, 2, &session), AMP_OK);
    int32_t stepped = -1;
    for (int turn = 0; turn < 2; turn++) {
        const double before[3] = { torch_value(tensors[0], 0), torch_value(tensors[1], 0), torch_value(tensors[2], 0) };
        for (int i = 0; i < 3; i++) torch_clear_grad(tensors[i]);
        amp_torch_tensor loss = torch_sum_of(tensors[0], 0x1p-6), scaled = NULL;
        ck_assert_int_eq(amp_torch_begin(session, loss, 0, NULL, 0, 0, &scaled), AMP_OK);
        torch_backward(scaled);
        const double factor = torch_value(scaled, 0) / torch_value(loss, 0) * 0x1p-6;
        for (int i = 1; i < 3; i++) torch_fill_grad(tensors[i], exp2(round(log2(factor))));
        torch_free(loss);
        torch_free(scaled);
        ck_assert_int_eq(amp_torch_add_params(session, 0, tensors + 1, 2), AMP_ERR_WRONG_STATE); /* a bracket is open */
        ck_assert_int_eq(amp_torch_end(session, 0, NULL), AMP_OK);
        ck_assert_msg(amp_torch_step_optimizer(session, 0, sgd, &stepped) == AMP_OK, "%s", amp_torch_last_error());
        ck_assert_int_eq(stepped, 1);
        for (int i = 0; i < 3; i++) {
            const double moved = before[i] - torch_value(tensors[i], 0), expected = i && !turn ? 0.0 : 0x1p-7;
            ck_assert_msg(fabs(moved - expected) < 0x1p-8, "O%d, turn %d: %d moved by %g", _i - AMP_O0, turn, i,
                          moved);
        }
        if (turn) break;
        ck_assert_int_eq(amp_torch_add_params(session, 1, tensors + 1, 2), AMP_ERR_INVALID_ARGUMENT); /* no such one */
        ck_assert_int_eq(amp_torch_add_params(session, 0, tensors, 2), AMP_ERR_INVALID_ARGUMENT); /* one is there */
        for (int i = 1; i < 3; i++) torch_optimizer_add(sgd, tensors[i], 1);
        ck_assert_int_eq(amp_torch_step_optimizer(session, 0, sgd, NULL), AMP_ERR_INVALID_ARGUMENT); /* it has more */
        ck_assert_int_eq(amp_torch_add_params(session, 0, tensors + 1, 2), AMP_OK);
        for (int i = 1; i < 3; i++) ck_assert_int_eq(torch_type(tensors[i]), torch_type(tensors[0]));
    }
    ck_assert_int_eq(amp_torch_close(session), AMP_OK);
    torch_optimizer_free(sgd);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(torch_type(tensors[i]), AMP_FLOAT32);
        torch_free(tensors[i]);
    }
}

/* ---- classes of ops ---- */

static amp_dtype linear_type(const amp_torch_op *ops, size_t n) {
    amp_torch_tensor tensors[2] = { torch_param(4, 8, 1.0), torch_param(4, 0, 1.0) }, x = torch_full(2, 8, 1.0);
    amp_torch_session *session = NULL;
    amp_torch_guard guard = 0;
    ck_assert_int_eq(amp_torch_open_with_ops(AMP_O4, NULL, ops, n, tensors, NULL, NULL, NULL, 2, &session), AMP_OK);
    ck_assert_int_eq(amp_torch_enter(session, &guard), AMP_OK);
    const amp_torch_tensor y = torch_linear(x, tensors[0], tensors[1]);
    const amp_dtype type = torch_type(y);
    ck_assert_int_eq(amp_torch_leave(guard), AMP_OK);
    ck_assert_int_eq(amp_torch_close(session), AMP_OK);
    torch_free(x), torch_free(y), torch_free(tensors[0]), torch_free(tensors[1]);
    return type;
}

TEST(classes) {
    const amp_torch_op fp32[] = { { "linear", AMP_FP32 }, { "aten::relu", AMP_LOWER } };
    const amp_torch_op wrong[][2] = { { { "linear", 77 } }, { { NULL, AMP_FP32 } },
                                      { { "linear", AMP_FP32 }, { "linear", AMP_LOWER } } };
    const amp_torch_tensor tensor = torch_param(2, 2, 1.0);
    amp_torch_session *session = NULL;
    ck_assert_int_eq(linear_type(NULL, 0), AMP_BFLOAT16);
    ck_assert_int_eq(linear_type(fp32, 2), AMP_FLOAT32);
    for (size_t i = 0; i < 3; i++) {
        const size_t n = i == 2 ? 2 : 1;
        ck_assert_int_eq(amp_torch_open_with_ops(AMP_O4, NULL, wrong[i], n, &tensor, NULL, NULL, NULL, 1, &session),
                         AMP_ERR_INVALID_ARGUMENT);
    }
    ck_assert_ptr_null(session);
    torch_free(tensor);
}

int main(void) { return suite_run_here(NULL); }
