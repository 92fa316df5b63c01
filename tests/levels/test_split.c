/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Split masters: a bfloat16 parameter and 16 bits more are the FP32 master. What they have in common with FP32 masters
 * is in tests/optim/test_fused.c (bit-equal through random programs) and tests/state (the same files).
 */
#include "amp_observe.h"
#include "amp_optim.h"
#include "checks.h"

#define SPLIT(...) .master_weights = AMP_SPLIT, __VA_ARGS__

static void start(struct rig *rig, double value, unsigned options) {
    rig_init(rig, options);
    fake_fill(rig->net.weight, value);
    rig_wire(rig, CONFIG(AMP_O5, SPLIT()));
}
#define AT(name, value, options) RIG(name); start(&name, value, options)

static float value_of(struct rig *rig, int i) { return ((float *)rig_master(rig, 0).data)[i]; }

static void give_grad(struct rig *rig, double value) {
    fake_put_grad(rig->net.weight, rig_tensor(rig, AMP_BFLOAT16, value));
}

static amp_memory memory_of(struct rig *rig) {
    amp_memory memory = SIZED(amp_memory, 0);
    ck_ok(amp_get_memory(rig->context, &memory));
    return memory;
}

TEST(a_split_master_is_exact) {
    AT(rig, 0.1, 0);
    const amp_master master = rig_master(&rig, 0);
    ck_assert_int_eq(master.is_master, 1);
    ck_assert_int_eq(master.dtype, AMP_FLOAT32);
    ck_assert_float_eq(*(float *)master.data, 0.1f);
    ck_dtype(rig.net.weight, AMP_BFLOAT16);
    rig_stop(&rig);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), (double)0.1f);
}

/* 2^-20 is lost in bfloat16 at 0.5. */
TEST_TIMES(small_updates_add_up, 2) {
    AT(rig, 0.5, _i ? FAKE_NO_VERSION : 0);
    for (int i = 0; i < 8; i++) {
        give_grad(&rig, 0x1p-17);
        ck_assert_int_eq(net_step(&rig.net), 1);
        ck_assert_int_eq(rig.net.step_saw, AMP_FLOAT32);
        ck_dtype(rig.net.weight, AMP_BFLOAT16);
    }
    ck_assert_float_eq(value_of(&rig, 0), 0.5f - 8 * 0x1p-20f);
}

/* The host's optimizer has FP32 for the time of its step alone. */
TEST(masters_are_counted_as_what_they_take) {
    AT(rig, 0.1, 0);
    const uint64_t rest = 2 * amp_remainder_bytes(NET_SIZE); /* weight and bias: gamma is batch norm's */
    ck_assert_uint_eq(memory_of(&rig).masters, rest);
    (void)rig_master(&rig, 0);
    ck_assert_uint_gt(memory_of(&rig).masters, rest);
    give_grad(&rig, 1.0);
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_uint_eq(memory_of(&rig).masters, rest);
}

/* Whichever swap fails before the step runs: what was joined for it is given back. */
TEST(a_step_that_does_not_begin_gives_masters_back) {
    AT(rig, 0.1, 0);
    const uint64_t rest = memory_of(&rig).masters;
    uint64_t at = 0;
    while (!rig.net.steps) {
        ck_assert_uint_eq(memory_of(&rig).masters, rest);
        give_grad(&rig, 1.0);
        fake_fail(&rig.host, FAKE_SWAP, ++at);
        (void)net_step(&rig.net);
        fake_fail(&rig.host, FAKE_SWAP, 0);
        ck_assert(amp_check(rig.context) != AMP_OK || rig.net.steps);
    }
    ck_assert_uint_gt(at, 2);
}

TEST(a_written_master_reaches_the_parameter) {
    AT(rig, 0.1, 0);
    float *master = rig_master(&rig, 0).data;
    master[0] = 2.5f, master[1] = 1.0f + 0x1p-8f, master[2] = 1.0f + 0x1p-7f + 0x1p-8f; /* two ties, to even */
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 2.5);
    ck_assert_double_eq(fake_get(rig.net.weight, 1), 1.0);
    ck_assert_double_eq(fake_get(rig.net.weight, 2), 1.0 + 0x1p-6);
    ck_assert_float_eq(value_of(&rig, 1), 1.0f + 0x1p-8f);
    ck_assert_float_eq(value_of(&rig, 2), 1.0f + 0x1p-7f + 0x1p-8f);
}

/* Its remainder stays: nobody can see which elements were written. */
TEST_TIMES(a_written_parameter_is_the_master_rounded, 2) {
    AT(rig, 0.1, _i ? FAKE_NO_VERSION : 0);
    fake_set(rig.net.weight, 1, 3.0);
    fake_set(rig.net.weight, 2, 0.0);
    ck_ok(amp_masters_reconcile(rig.context));
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_double_eq(fake_get(rig.net.weight, 1), 3.0);
    ck_assert_double_eq_tol(value_of(&rig, 1), 3.0, 0x1p-7);
    ck_assert(value_of(&rig, 2) >= -1e-38f && value_of(&rig, 2) <= 1e-38f);
    ck_assert_float_eq(value_of(&rig, 0), 0.1f);
    rig_stop(&rig);
    ck_assert_double_eq_tol(fake_get(rig.net.weight, 1), 3.0, 0x1p-7);
}

/* Parameters that came in bfloat16: there is nothing to free. */
TEST_TIMES(parameters_of_16_bits, 2) {
    RIG_INIT(rig, _i ? FAKE_NO_ALLOC : 0);
    OWN_TENSOR *low = rig_tensor(&rig, AMP_BFLOAT16, 0.5);
    const amp_storage own = rig.net.weight->storage;
    rig.net.weight->storage = low->storage, low->storage = own;
    rig.net.optimizer.n_params = 1; /* the others are frozen */
    rig.net.model.n_params = 1;
    rig.net.model.flags |= AMP_MODEL_LOW_PARAMS;
    rig_wire(&rig, CONFIG(AMP_O5, SPLIT()));
    give_grad(&rig, 0x1p-17);
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_float_eq(value_of(&rig, 0), 0.5f - 0x1p-20f);
}

TEST(a_host_that_cannot_free_is_refused) {
    RIG_INIT(rig, FAKE_NO_ALLOC);
    ck_refused(AMP_ERR_UNSUPPORTED, "alloc and free", rig_try(&rig, CONFIG(AMP_O5, SPLIT())));
    ck_dtype(rig.net.weight, AMP_FLOAT32);
}

TEST(what_splits_nothing_is_refused) {
    RIG_INIT(rig, 0);
    ck_refused(AMP_ERR_CONFLICT, "bfloat16", rig_try(&rig, CONFIG(AMP_O2, SPLIT())));
    ck_refused(AMP_ERR_CONFLICT, "emulate", rig_try(&rig, CONFIG(AMP_O5, SPLIT(.emulate = AMP_ON))));
    ck_refused(AMP_ERR_CONFLICT, "master_weights", rig_try(&rig, CONFIG(AMP_O4, SPLIT())));
    rig.net.optimizer.flags |= AMP_OPTIMIZER_HOLDS_MASTERS;
    ck_refused(AMP_ERR_CONFLICT, "AMP_OPTIMIZER_HOLDS_MASTERS", rig_try(&rig, CONFIG(AMP_O5, SPLIT())));
}

TEST(explained) {
    char text[4096];
    AT(rig, 0.1, 0);
    ck_ok(amp_explain(rig.context, NULL, text, sizeof text, NULL));
    ck_assert_ptr_nonnull(strstr(text, "masters fp32, split"));
}

static amp_status brackets_only(void *self, double *loss) {
    struct rig *rig = self;
    amp_scaled_loss scaled = rig_begin(rig);
    give_grad(rig, 1);
    *loss = 0.5;
    return amp_scale_loss_end(&scaled);
}

/* A master that was written, and its parameter not yet, stays what it is. */
TEST_TIMES(verify_leaves_a_written_master, 4) {
    RIG(rig);
    rig_init(&rig, _i & 1 ? FAKE_NO_VERSION : 0);
    fake_fill(rig.net.weight, 0.1);
    rig_wire(&rig, CONFIG(AMP_O5, .master_weights = _i & 2 ? AMP_SPLIT : AMP_ON));
    *(float *)rig_master(&rig, 0).data = 1.8518517f;
    ck_ok(amp_verify_step(rig.context, brackets_only, &rig));
    ck_assert_float_eq(value_of(&rig, 0), 1.8518517f);
}
