/* SPDX-License-Identifier: Apache-2.0 */
/* amp_op_target and amp_cast_args: the same decision and the same casts as in a wrapped call. */
#include "checks.h"
#include "../support/levels.h"

static const amp_dtype types[] = { AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16, AMP_FLOAT64, AMP_DTYPE_OTHER };
enum { N_TYPES = 5 };

/* What a wrapped binary op makes of two types: the type its floating arguments arrive in. */
static amp_dtype wrapped(struct rig *rig, enum net_op op, amp_dtype a, amp_dtype b) {
    struct fake_tensor *x = rig_tensor(rig, a, 1.0), *y = rig_tensor(rig, b, 1.0);
    fake_release(net_binary(&rig->net, op, x, y));
    const struct fake_call *call = fake_last(&rig->host);
    const bool cast = call->args[0] != x || call->args[1] != y;
    const amp_dtype got = cast ? (call->dtypes[0] != AMP_DTYPE_OTHER ? call->dtypes[0] : call->dtypes[1])
                               : AMP_DTYPE_DEFAULT;
    fake_release(x);
    fake_release(y);
    return got;
}

static amp_dtype target_of(amp_context *context, const char *name, const amp_dtype *given, size_t n) {
    amp_dtype target = 77;
    ck_ok(amp_op_target(context, name, given, n, &target));
    return target;
}

TEST_TIMES(a_target_is_what_the_wrapped_op_does, 2 * N_TYPES * N_TYPES) {
    const int pair = _i / 2;
    const amp_dtype both[] = { types[pair % N_TYPES], types[pair / N_TYPES] };
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_assert_int_eq(target_of(rig.context, _i % 2 ? "matmul" : "add", both, 2),
                     wrapped(&rig, _i % 2 ? OP_matmul : OP_add, both[0], both[1]));
}

static const struct {
    const char *name;
    amp_dtype given[2];
    size_t n;
    amp_dtype target;
} targets[] = {
    { "add_", { AMP_FLOAT16, AMP_FLOAT32 }, 2, AMP_FLOAT16 }, /* in place: how the second is treated */
    { "conv2d", { AMP_FLOAT32 }, 1, AMP_FLOAT16 }, /* names of the lists need no op */
    { "aten::gelu", { AMP_FLOAT16 }, 1, AMP_FLOAT32 },
    { "no_such_op", { AMP_FLOAT32 }, 1, AMP_DTYPE_DEFAULT },
    { "dropout", { AMP_FLOAT16 }, 1, AMP_DTYPE_DEFAULT },
};

TEST_TIMES(names_have_targets, sizeof targets / sizeof targets[0]) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_assert_int_eq(target_of(rig.context, targets[_i].name, targets[_i].given, targets[_i].n), targets[_i].target);
}

TEST(a_banned_target_is_an_error) {
    const amp_dtype half = AMP_FLOAT16;
    amp_dtype target = 77;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_refused(AMP_ERR_BANNED, "with_logits", amp_op_target(rig.context, "binary_cross_entropy", &half, 1, &target));
    ck_assert_int_eq(target, 77);
}

TEST_RANGE(no_level_without_op_casts_has_a_target, 1, N_EACH_LEVEL + 1) {
    const amp_dtype single = AMP_FLOAT32;
    if (level_casts_ops(_i)) return;
    RIG_START(rig, _i, FAKE_RETAINS);
    ck_assert_int_eq(target_of(rig.context, "matmul", &single, 1), AMP_DTYPE_DEFAULT);
}

/* ---- casting ---- */

TEST(cast_args_replaces_and_cast_done_puts_back) {
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.5);
    void *tensors[] = { x, NULL, rig.net.weight };
    ck_ok(amp_cast_args(rig.context, "matmul", tensors, 3, &frame));
    ck_fails(AMP_ERR_WRONG_STATE, amp_cast_args(rig.context, "matmul", tensors, 3, &frame)); /* once at a time */
    ck_says("amp_cast_done");
    ck_assert_int_eq(frame.target, AMP_FLOAT16);
    ck_dtype((struct fake_tensor *)tensors[0], AMP_FLOAT16);
    ck_assert_double_eq(fake_get(tensors[0], 0), 1.5);
    ck_assert_ptr_null(tensors[1]);
    ck_dtype((struct fake_tensor *)tensors[2], AMP_FLOAT16);
    ck_ok(amp_cast_done(&frame));
    ck_assert_ptr_eq(tensors[0], x);
    ck_assert_ptr_eq(tensors[2], rig.net.weight);
    ck_assert_int_eq(rig.host.live_tensors, NET_PARAMS + 2); /* x, and the weight's cast in the cache */
}

TEST(cast_args_leaves_what_agrees) {
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT16, 1.5);
    void *tensors[] = { x };
    ck_ok(amp_cast_args(rig.context, "matmul", tensors, 1, &frame));
    ck_assert_int_eq(frame.target, AMP_DTYPE_DEFAULT);
    ck_assert_ptr_eq(tensors[0], x);
    ck_ok(amp_cast_done(&frame));
}

TEST(cast_args_never_rebinds_what_is_updated_in_place) {
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *self = rig_tensor(&rig, AMP_FLOAT16, 1.0), *other = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    void *tensors[] = { self, other };
    ck_ok(amp_cast_args(rig.context, "add_", tensors, 2, &frame));
    void *const seen[] = { tensors[0], tensors[1] };
    const amp_dtype other_seen = fake_dtype(tensors[1]);
    ck_ok(amp_cast_done(&frame));
    ck_assert_ptr_eq(seen[0], self);
    ck_assert_int_eq(other_seen, AMP_FLOAT16);
}

/* Where casts are off, and in backward. */
TEST_TIMES(cast_args_runs_as_it_comes, 2) {
    amp_scope scope;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *loss = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    void *tensors[] = { rig.net.weight };
    ck_ok(_i ? amp_scale_loss_begin(&rig.net.optimizer, loss, &scaled) : amp_scope_enter(NULL, &scope));
    ck_ok(amp_cast_args(rig.context, "matmul", tensors, 1, &frame));
    ck_assert_ptr_eq(tensors[0], rig.net.weight);
    ck_ok(amp_cast_done(&frame));
    ck_ok(_i ? amp_scale_loss_end(&scaled) : amp_scope_leave(&scope));
}

TEST(a_failed_cast_changes_nothing) {
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.5);
    void *tensors[] = { x, x };
    fake_fail(&rig.host, FAKE_CAST, 2);
    ck_fails(AMP_ERR_HOST_FAILED, amp_cast_args(rig.context, "matmul", tensors, 2, &frame));
    ck_assert_ptr_eq(tensors[0], x);
    ck_assert_ptr_eq(tensors[1], x);
    ck_assert_int_eq(rig.host.live_tensors, NET_PARAMS + 1);
}

TEST(it_is_said_who_asked) {
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    amp_dtype none = 77, target = 77;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.5);
    void *tensors[] = { x };
    x->storage.dtype = none;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "amp_cast_args", amp_cast_args(rig.context, "matmul", tensors, 1, &frame));
    ck_says("77");
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "amp_op_target", amp_op_target(rig.context, "matmul", &none, 1, &target));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_class_target(rig.context, "f", AMP_LOWER, 0, &none, 1, &target));
    ck_says("amp_class_target");
    x->storage.dtype = AMP_FLOAT32;
}

TEST(direct_ops_need_no_slot) {
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.ops[0] = SIZED(amp_op, .flags = AMP_OP_DIRECT, .name = "my_gemm", .aliases = "matmul");
    rig_wire(&rig, config_of(AMP_O1));
    void *tensors[] = { rig.net.weight };
    ck_ok(amp_cast_args(rig.context, "my_gemm", tensors, 1, &frame));
    ck_assert_int_eq(frame.target, AMP_FLOAT16);
    ck_ok(amp_cast_done(&frame));
    const amp_op_stats stats = rig_stats(&rig, (enum net_op)0);
    ck_assert_uint_eq(stats.calls, 1);
    ck_assert_uint_eq(stats.casts, 1);
    ck_assert_int_eq(stats.wrapped, 0);
}

/* ---- contexts without a model ---- */

static amp_context *bare(amp_level level) {
    const amp_config config = config_of(level);
    amp_context *context = NULL;
    ck_ok(amp_initialize_many(NULL, 0, NULL, 0, &config, &context));
    return context;
}

static void bare_end(amp_context **context) { ck_ok(amp_shutdown(*context)); }
#define BARE __attribute__((cleanup(bare_end))) amp_context

TEST(a_context_without_a_model_still_decides) {
    const amp_dtype single = AMP_FLOAT32;
    BARE *context = bare(AMP_O4);
    ck_assert_int_eq(target_of(context, "linear", &single, 1), AMP_BFLOAT16);
}

/* ---- in parts: class, decision by class, casts that were decided ---- */

TEST_TIMES(class_and_types_decide_as_the_name_does, 4 * N_TYPES * N_TYPES) {
    static const char *const ops[] = { "matmul", "softmax", "add", "dropout" };
    const amp_dtype both[] = { types[_i % N_TYPES], types[_i / N_TYPES % N_TYPES] };
    const char *op = ops[_i / (N_TYPES * N_TYPES)];
    BARE *context = bare(AMP_O1);
    amp_class op_class = 77;
    amp_dtype by_class = 78;
    ck_ok(amp_op_class(context, op, &op_class));
    ck_ok(amp_class_target(context, op, op_class, AMP_DTYPE_DEFAULT, both, 2, &by_class));
    ck_assert_int_eq(target_of(context, op, both, 2), by_class);
}

TEST_TIMES(a_class_that_writes_keeps_the_type_it_writes, 7) {
    static const struct {
        amp_class op_class;
        amp_dtype into, other, target;
        amp_status status;
    } cases[] = {
        { AMP_LOWER, AMP_FLOAT32, AMP_FLOAT16, AMP_FLOAT32, AMP_OK },
        { AMP_PROMOTE, AMP_FLOAT16, AMP_FLOAT32, AMP_FLOAT16, AMP_OK },
        { AMP_PROMOTE, AMP_FLOAT16, AMP_DTYPE_OTHER, AMP_DTYPE_DEFAULT, AMP_OK },
        { AMP_FP32, AMP_FLOAT64, AMP_FLOAT32, AMP_FLOAT64, AMP_OK },
        { AMP_FP32, AMP_FLOAT16, AMP_FLOAT32, 77, AMP_ERR_UNSUPPORTED },
        { AMP_BANNED, AMP_FLOAT32, AMP_FLOAT16, 77, AMP_ERR_BANNED },
        { AMP_LEAVE, AMP_FLOAT16, AMP_FLOAT32, AMP_DTYPE_DEFAULT, AMP_OK },
    };
    BARE *context = bare(AMP_O1);
    amp_dtype target = 77;
    const amp_status status =
        amp_class_target(context, "my_op", cases[_i].op_class, cases[_i].into, &cases[_i].other, 1, &target);
    ck_assert_int_eq(status, cases[_i].status);
    if (status != AMP_OK) ck_says("my_op");
    ck_assert_int_eq(target, cases[_i].target);
}

TEST(parts_refuse_what_they_cannot_mean) {
    BARE *context = bare(AMP_O1);
    const amp_dtype single = AMP_FLOAT32;
    amp_dtype target = 77;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    size_t count;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_class_target(context, "f", AMP_BY_LIST, 0, &single, 1, &target));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_class_target(context, "f", AMP_LOWER, AMP_DTYPE_OTHER, &single, 1, &target));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_op_class(context, "", NULL));
    ck_fails(AMP_ERR_WRONG_STATE, amp_cast_to(context, AMP_FLOAT16, NULL, 0, &frame)); /* no host to cast with */
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_cast_to(context, AMP_DTYPE_OTHER, NULL, 0, &frame));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_get_list_ops(3, NULL, 0, &count));
    ck_assert_int_eq(target, 77);
}

TEST(cast_to_casts_what_differs_and_takes_weights_from_the_cache) {
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    amp_scope none;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *h = rig_tensor(&rig, AMP_FLOAT16, 1.5), *d = rig_tensor(&rig, AMP_FLOAT64, 2.5);
    void *first = NULL;
    for (int i = 0; i < 2; i++) {
        void *tensors[] = { h, rig.net.weight, NULL, d };
        ck_ok(amp_cast_to(rig.context, AMP_FLOAT16, tensors, 4, &frame));
        ck_assert_ptr_eq(tensors[0], h);
        ck_dtype((struct fake_tensor *)tensors[1], AMP_FLOAT16);
        ck_dtype((struct fake_tensor *)tensors[3], AMP_FLOAT16);
        if (i) ck_assert_ptr_eq(tensors[1], first);
        first = tensors[1];
        ck_ok(amp_cast_done(&frame));
        ck_assert_ptr_eq(tensors[3], d);
    }
    void *one[] = { rig.net.weight }; /* alone it needs no memory, and is used all the same */
    ck_ok(amp_cast_to(rig.context, AMP_FLOAT16, one, 1, &frame));
    ck_assert_ptr_eq(one[0], first);
    ck_assert_int_eq(frame.target, AMP_FLOAT16);
    ck_fails(AMP_ERR_WRONG_STATE, amp_cast_to(rig.context, AMP_FLOAT16, one, 1, &frame));
    ck_ok(amp_cache_clear(rig.context));
    ck_dtype((struct fake_tensor *)one[0], AMP_FLOAT16); /* in use: not released yet */
    ck_ok(amp_cast_done(&frame));
    ck_assert_ptr_eq(one[0], rig.net.weight);
    ck_ok(amp_cast_done(&frame)); /* ended already */
    ck_ok(amp_cast_to(rig.context, AMP_FLOAT32, one, 1, &frame));
    ck_assert_ptr_eq(one[0], rig.net.weight); /* its own type */
    ck_ok(amp_cast_done(&frame));
    ck_ok(amp_scope_enter(NULL, &none));
    void *tensors[] = { rig.net.weight };
    ck_ok(amp_cast_to(rig.context, AMP_FLOAT16, tensors, 1, &frame));
    ck_assert_int_eq(frame.target, AMP_DTYPE_DEFAULT);
    ck_assert_ptr_eq(tensors[0], rig.net.weight);
    ck_ok(amp_scope_leave(&none));
}

TEST(the_lists_are_data_with_the_modules_of_pytorch) {
    static const struct {
        const char *name;
        uint32_t modules;
        amp_class fp16, bf16;
    } expected[] = { { "conv2d", AMP_IN_FUNCTIONAL | AMP_IN_TORCH, AMP_LOWER, AMP_LOWER },
                     { "softmax", AMP_IN_FUNCTIONAL, AMP_FP32, AMP_FP32 },
                     { "sub", 0, AMP_PROMOTE, AMP_PROMOTE },
                     { "__matmul__", AMP_IN_TENSOR, AMP_LOWER, AMP_LOWER },
                     { "lstm", AMP_IN_VF | AMP_IN_TORCH, AMP_LOWER, AMP_LOWER },
                     { "sum", AMP_IN_TORCH | AMP_IN_TENSOR, AMP_FP32, AMP_FP32 },
                     { "linalg_svd", AMP_IN_LINALG, AMP_FP32, AMP_FP32 },
                     { "fft_rfft", AMP_IN_FFT, AMP_FP32, AMP_FP32 } };
    amp_list_op ops[512] = { AMP_LIST_OP_INIT };
    size_t count, found = 0;
    ck_ok(amp_get_list_ops(AMP_LISTS_DEFAULT, ops, 512, &count));
    ck_assert_uint_gt(count, 100);
    ck_assert_uint_lt(count, 512);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < sizeof expected / sizeof expected[0]; j++) {
            if (strcmp(ops[i].name, expected[j].name) != 0) continue;
            ck_assert_uint_eq(ops[i].modules, expected[j].modules);
            ck_assert_int_eq(ops[i].fp16, expected[j].fp16);
            ck_assert_int_eq(ops[i].bf16, expected[j].bf16);
            found++;
        }
    ck_assert_uint_eq(found, sizeof expected / sizeof expected[0]);
    ck_ok(amp_get_list_ops(AMP_LISTS_TORCH, ops, 512, &count));
    for (size_t i = 0; i < count; i++)
        if (!strcmp(ops[i].name, "binary_cross_entropy")) ck_assert_int_eq(ops[i].bf16, AMP_FP32);
}
