// SPDX-License-Identifier: Apache-2.0
// A host in C++ whose ops, forward, step, zero_grad and cast hook throw. Whoever catches finds the library as it was
// before the call: no cast alive, no scope entered, the traps as they were, the parameters with their own storage, and
// the next call cast as before, wherever on the stack it comes from.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include <cfenv>
#include "test.h"
extern "C" {
#include "checks.h"
#include "../support/levels.h"
}

namespace {

struct thrown : std::runtime_error {
    thrown() : std::runtime_error("the host's") {}
};

// What throws when armed; else the fake host's own functions run.
struct {
    bool op, forward, step, zero_grad;
    uint64_t cast_at; // which cast, from 1 on; 0: none
} armed;
amp_status (*own_cast)(void *, void *, amp_dtype, void **);
net *host_net;
amp_fn own_matmul, own_forward, own_step, own_zero_grad;

struct fake_tensor *matmul(struct fake_tensor *a, struct fake_tensor *b) {
    struct fake_tensor *out = reinterpret_cast<decltype(&matmul)>(own_matmul)(a, b);
    if (!armed.op) return out;
    fake_release(out);
    throw thrown();
}

struct fake_tensor *forward(struct net *net, struct fake_tensor *x) {
    struct fake_tensor *out = reinterpret_cast<decltype(&forward)>(own_forward)(net, x);
    if (!armed.forward) return out;
    fake_release(out);
    throw thrown();
}

int32_t step(struct net *net) {
    const int32_t result = reinterpret_cast<decltype(&step)>(own_step)(net);
    if (armed.step) throw thrown();
    return result;
}

void zero_grad(struct net *net) {
    if (armed.zero_grad) throw thrown();
    reinterpret_cast<decltype(&zero_grad)>(own_zero_grad)(net);
}

amp_status cast(void *self, void *tensor, amp_dtype to, void **out) {
    if (armed.cast_at && !--armed.cast_at) throw thrown();
    return own_cast(self, tensor, to, out);
}

template <typename F> void replace(amp_fn &slot, amp_fn &original, amp_fn &own, F *function) {
    own = slot;
    slot = original = reinterpret_cast<amp_fn>(function);
}

void start(struct rig *rig, amp_level level, unsigned options) {
    armed = {};
    rig_init(rig, options);
    host_net = &rig->net;
    replace(rig->net.table[OP_matmul], rig->net.original[OP_matmul], own_matmul, matmul);
    replace(rig->net.forward, rig->net.original_forward, own_forward, forward);
    replace(rig->net.step, rig->net.original_step, own_step, step);
    replace(rig->net.zero_grad, rig->net.original_zero_grad, own_zero_grad, zero_grad);
    own_cast = rig->host.hooks.cast;
    rig->host.hooks.cast = cast;
    rig_wire(rig, config_of(level));
}

// The type that linear's weight arrives in, asked from deep in the stack: nothing may take the call for one that is
// made inside the op that threw.
__attribute__((noinline)) amp_dtype deep_linear(struct rig *rig, struct fake_tensor *x, int depth) {
    volatile char room[512];
    room[0] = static_cast<char>(depth);
    if (depth) {
        const amp_dtype type = deep_linear(rig, x, depth - 1);
        return room[0] == static_cast<char>(depth) ? type : AMP_DTYPE_OTHER;
    }
    fake_release(net_linear(&rig->net, x, rig->net.weight, rig->net.bias));
    return fake_last(&rig->host)->dtypes[1];
}

template <typename F> bool throws(F function) {
    try {
        function();
    } catch (const thrown &) {
        return true;
    }
    return false;
}

unsigned tape_options(int i) { return i ? FAKE_RETAINS : 0; }

// ---- out of ops and of forward ----

TEST_TIMES(out_of_an_op, 4) {
    RIG(rig);
    start(&rig, _i & 2 ? AMP_O4 : AMP_O1, tape_options(_i & 1));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    const int64_t alive = rig.host.live_tensors;
    armed.op = true;
    ck_assert(throws([&] { net_binary(&rig.net, OP_matmul, x, x); }));
    ck_assert_int_eq(fake_last(&rig.host)->dtypes[0], _i & 2 ? AMP_BFLOAT16 : AMP_FLOAT16); // it was a wrapped call
    fake_tape_clear(&rig.host);                                                              // what the tape retains
    ck_assert_int_eq(rig.host.live_tensors, alive);                                          // its casts are gone
    armed.op = false;
    ck_assert_int_eq(deep_linear(&rig, x, 30), _i & 2 ? AMP_BFLOAT16 : AMP_FLOAT16);
    ck_ok(amp_check(rig.context));
}

TEST(out_of_an_op_inside_another_scope) {
    RIG(rig);
    amp_scope scope;
    start(&rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    ck_ok(amp_scope_enter(NULL, &scope));
    armed.op = true;
    ck_assert(throws([&] { net_binary(&rig.net, OP_matmul, x, x); }));
    ck_assert_int_eq(deep_linear(&rig, x, 30), AMP_FLOAT32); // the casts are still off
    ck_ok(amp_scope_leave(&scope));
    ck_assert_int_eq(deep_linear(&rig, x, 30), AMP_FLOAT16);
}

TEST_TIMES(out_of_forward, N_LOW_LEVELS) {
    const amp_level level = level_where(level_is_low, _i);
    RIG(rig);
    start(&rig, level, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    armed.forward = true;
    ck_assert(throws([&] { net_forward(&rig.net, x); }));
    armed.forward = false;
    OWN_TENSOR *out = net_forward(&rig.net, x);
    ck_assert_ptr_nonnull(out);
    ck_assert_double_eq(fake_get(out, 0), 1.25);
    ck_assert_int_eq(deep_linear(&rig, x, 30), level_low(level));
    ck_ok(amp_check(rig.context));
}

// What the host's weights were when forward was left tells nothing of what they are when it is entered again.
TEST_TIMES(out_of_forward_of_a_host_without_versions, 2) {
    RIG(rig);
    amp_scope scope;
    start(&rig, AMP_O1, FAKE_RETAINS | FAKE_NO_VERSION);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    armed.forward = true;
    ck_assert(throws([&] { net_forward(&rig.net, x); }));
    armed.forward = false;
    fake_fill(rig.net.weight, 3.0);
    if (_i) ck_ok(amp_scope_enter(rig.context, &scope));
    OWN_TENSOR *out = _i ? net_linear(&rig.net, x, rig.net.weight, NULL) : net_forward(&rig.net, x);
    if (_i) ck_ok(amp_scope_leave(&scope));
    ck_assert_double_eq(fake_get(out, 0), _i ? 6.0 : 6.25);
}

// ---- out of the optimizer ----

TEST_TIMES(out_of_step, 2) {
    RIG(rig);
    start(&rig, AMP_O2, _i ? FAKE_RETAINS | FAKE_NO_SET_GRAD : tape_options(1));
    ck_ok(net_train_step(&rig.net, 1.0));
    armed.step = true;
    ck_assert(throws([&] { net_step(&rig.net); }));
    ck_dtype(rig.net.weight, AMP_FLOAT16); // at once, not at the next call
    armed.step = false;
    const int32_t steps = rig.net.steps;
    const double before = fake_get(rig.net.weight, 0);
    ck_ok(net_train_step(&rig.net, 1.0));
    ck_assert_int_eq(rig.net.step_saw, AMP_FLOAT32);
    ck_assert_int_eq(rig.net.steps, steps + 1);
    ck_assert_double_lt(fake_get(rig.net.weight, 0), before);
}

TEST(out_of_zero_grad) {
    RIG(rig);
    start(&rig, AMP_O2, FAKE_RETAINS);
    armed.zero_grad = true;
    ck_assert(throws([&] { net_zero_grad(&rig.net); }));
    armed.zero_grad = false;
    ck_ok(net_train_step(&rig.net, 1.0)); // overflows, as the first ones do
    ck_ok(net_train_step(&rig.net, 1.0));
    ck_assert_int_eq(rig.net.steps, 1);
}

TEST(out_of_backward) {
    RIG(rig);
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    start(&rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    ck_ok(amp_scale_loss_begin(&rig.net.optimizer, NULL, &scaled));
    armed.op = true;
    ck_assert(throws([&] { net_binary(&rig.net, OP_matmul, x, x); }));
    armed.op = false;
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_ok(net_train_step(&rig.net, 1.0));
    ck_assert_int_eq(rig.net.steps, 1);
}

// ---- out of the cast hook ----

// linear casts its input (a temporary), its weight and its bias (both kept for the iteration).
TEST_TIMES(out_of_a_cast_in_an_op, 6) {
    RIG(rig);
    const uint64_t which = static_cast<uint64_t>(_i) / 2 + 1;
    start(&rig, AMP_O1, tape_options(_i & 1));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    armed.cast_at = which;
    ck_assert(throws([&] { net_linear(&rig.net, x, rig.net.weight, rig.net.bias); }));
    ck_assert_uint_eq(armed.cast_at, 0);
    ck_assert_int_eq(deep_linear(&rig, x, 30), AMP_FLOAT16);
    ck_ok(amp_check(rig.context));
    ck_ok(amp_tape_done(rig.context));
}

TEST_TIMES(out_of_a_cast_in_forward, 2) {
    RIG(rig);
    start(&rig, AMP_O2, tape_options(_i));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    for (uint64_t which = 1; which <= 2; which++) { // its input, its output
        armed.cast_at = which;
        ck_assert(throws([&] { net_forward(&rig.net, x); }));
    }
    OWN_TENSOR *out = net_forward(&rig.net, x);
    ck_assert_double_eq(fake_get(out, 0), 1.25);
    ck_dtype(out, AMP_FLOAT32);
}

TEST_TIMES(out_of_a_cast_in_a_direct_call, 6) {
    RIG(rig);
    start(&rig, AMP_O1, tape_options(_i & 1));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    void *args[] = { x, rig.net.weight, rig.net.bias };
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    armed.cast_at = static_cast<uint64_t>(_i) / 2 + 1;
    ck_assert(throws([&] { ck_ok(amp_cast_args(rig.context, "linear", args, 3, &frame)); }));
    ck_assert_ptr_eq(args[0], x); // untouched, as on an error
    ck_assert_ptr_eq(args[1], rig.net.weight);
    ck_assert_ptr_null(frame.priv[0]);
    ck_ok(amp_cast_args(rig.context, "linear", args, 3, &frame));
    ck_dtype(static_cast<struct fake_tensor *>(args[0]), AMP_FLOAT16);
    ck_ok(amp_cast_done(&frame));
    ck_assert_int_eq(deep_linear(&rig, x, 30), AMP_FLOAT16);
}

// ---- the floating-point environment ----

TEST_TIMES(traps_are_back_at_once, traps_work()) {
    RIG(rig);
    start(&rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    armed.op = true;
#if defined(__GLIBC__)
    feenableexcept(FE_OVERFLOW | FE_INVALID);
    const bool caught = throws([&] { net_binary(&rig.net, OP_matmul, x, x); });
    const int traps = fegetexcept();
    fedisableexcept(FE_ALL_EXCEPT);
    ck_assert(caught);
    ck_assert_int_eq(traps, FE_OVERFLOW | FE_INVALID);
#endif
}

} // namespace
