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

static void ck_same_target(enum net_op op, const char *name, int i) {
    struct rig rig;
    const amp_dtype both[] = { types[i % N_TYPES], types[i / N_TYPES] };
    amp_dtype target = 77;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    ck_ok(amp_op_target(rig.context, name, both, 2, &target));
    ck_assert_int_eq(target, wrapped(&rig, op, both[0], both[1]));
    rig_end(&rig);
}

TEST_TIMES(target_of_matmul_is_what_the_wrapped_op_does, N_TYPES * N_TYPES) { ck_same_target(OP_matmul, "matmul", _i); }
TEST_TIMES(target_of_add_is_what_the_wrapped_op_does, N_TYPES * N_TYPES) { ck_same_target(OP_add, "add", _i); }

/* How the wrapped in-place op treats its second argument. */
TEST(target_of_an_in_place_op_is_self) {
    const amp_dtype self_and_other[] = { AMP_FLOAT16, AMP_FLOAT32 };
    amp_dtype target = 77;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_ok(amp_op_target(rig.context, "add_", self_and_other, 2, &target));
    ck_assert_int_eq(target, AMP_FLOAT16);
}

TEST_TIMES(names_of_the_lists_need_no_op, 4) {
    static const struct {
        const char *name;
        amp_dtype from, to;
    } cases[] = { { "conv2d", AMP_FLOAT32, AMP_FLOAT16 }, { "aten::gelu", AMP_FLOAT16, AMP_FLOAT32 },
                  { "no_such_op", AMP_FLOAT32, AMP_DTYPE_DEFAULT }, { "dropout", AMP_FLOAT16, AMP_DTYPE_DEFAULT } };
    amp_dtype target = 77;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_ok(amp_op_target(rig.context, cases[_i].name, &cases[_i].from, 1, &target));
    ck_assert_int_eq(target, cases[_i].to);
}

TEST(a_banned_target_is_an_error) {
    const amp_dtype half = AMP_FLOAT16;
    amp_dtype target = 77;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_fails(AMP_ERR_BANNED, amp_op_target(rig.context, "binary_cross_entropy", &half, 1, &target));
    ck_says("with_logits");
    ck_assert_int_eq(target, 77);
}

TEST_RANGE(no_level_without_op_casts_has_a_target, 1, N_EACH_LEVEL + 1) {
    const amp_dtype single = AMP_FLOAT32;
    amp_dtype target = 77;
    if (level_casts_ops(_i)) return;
    RIG_START(rig, _i, FAKE_RETAINS);
    ck_ok(amp_op_target(rig.context, "matmul", &single, 1, &target));
    ck_assert_int_eq(target, AMP_DTYPE_DEFAULT);
}

/* ---- casting ---- */

TEST(cast_args_replaces_and_cast_done_puts_back) {
    struct rig rig;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.5);
    void *tensors[] = { x, NULL, rig.net.weight };
    ck_ok(amp_cast_args(rig.context, "matmul", tensors, 3, &frame));
    ck_assert_int_eq(frame.target, AMP_FLOAT16);
    ck_dtype((struct fake_tensor *)tensors[0], AMP_FLOAT16);
    ck_assert_double_eq(fake_get(tensors[0], 0), 1.5);
    ck_assert_ptr_null(tensors[1]);
    ck_dtype((struct fake_tensor *)tensors[2], AMP_FLOAT16);
    ck_ok(amp_cast_done(&frame));
    ck_assert_ptr_eq(tensors[0], x);
    ck_assert_ptr_eq(tensors[2], rig.net.weight);
    ck_assert_int_eq(rig.host.live_tensors, NET_PARAMS + 2); /* x, and the weight's cast in the cache */
    fake_release(x);
    rig_end(&rig);
}

TEST(cast_args_leaves_what_agrees) {
    struct rig rig;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT16, 1.5);
    void *tensors[] = { x };
    ck_ok(amp_cast_args(rig.context, "matmul", tensors, 1, &frame));
    ck_assert_int_eq(frame.target, AMP_DTYPE_DEFAULT);
    ck_assert_ptr_eq(tensors[0], x);
    ck_ok(amp_cast_done(&frame));
    fake_release(x);
    rig_end(&rig);
}

TEST(cast_args_never_rebinds_what_is_updated_in_place) {
    struct rig rig;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *self = rig_tensor(&rig, AMP_FLOAT16, 1.0), *other = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    void *tensors[] = { self, other };
    ck_ok(amp_cast_args(rig.context, "add_", tensors, 2, &frame));
    void *const seen[] = { tensors[0], tensors[1] };
    const amp_dtype other_seen = fake_dtype(tensors[1]);
    ck_ok(amp_cast_done(&frame));
    ck_assert_ptr_eq(seen[0], self);
    ck_assert_int_eq(other_seen, AMP_FLOAT16);
    fake_release(self);
    fake_release(other);
    rig_end(&rig);
}

TEST(cast_args_obeys_the_threads_scope) {
    struct rig rig;
    amp_scope scope;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    void *tensors[] = { rig.net.weight };
    ck_ok(amp_scope_enter(NULL, &scope));
    ck_ok(amp_cast_args(rig.context, "matmul", tensors, 1, &frame));
    ck_assert_ptr_eq(tensors[0], rig.net.weight);
    ck_ok(amp_cast_done(&frame));
    ck_ok(amp_scope_leave(&scope));
    rig_end(&rig);
}

TEST(cast_args_in_backward_runs_as_it_comes) {
    struct rig rig;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *loss = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    void *tensors[] = { rig.net.weight };
    ck_ok(amp_scale_loss_begin(&rig.net.optimizer, loss, &scaled));
    ck_ok(amp_cast_args(rig.context, "matmul", tensors, 1, &frame));
    ck_assert_ptr_eq(tensors[0], rig.net.weight);
    ck_ok(amp_cast_done(&frame));
    ck_ok(amp_scale_loss_end(&scaled));
    fake_release(loss);
    rig_end(&rig);
}

TEST(a_failed_cast_changes_nothing) {
    struct rig rig;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.5);
    void *tensors[] = { x, x };
    rig.host.fail_hook = FAKE_CAST;
    rig.host.fail_at = 2;
    ck_fails(AMP_ERR_HOST_FAILED, amp_cast_args(rig.context, "matmul", tensors, 2, &frame));
    ck_assert_ptr_eq(tensors[0], x);
    ck_assert_ptr_eq(tensors[1], x);
    ck_assert_int_eq(rig.host.live_tensors, NET_PARAMS + 1);
    fake_release(x);
    rig_end(&rig);
}

TEST(it_is_said_who_asked) {
    struct rig rig;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    amp_dtype none = 77, target = 77;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.5);
    void *tensors[] = { x };
    x->storage.dtype = none;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_cast_args(rig.context, "matmul", tensors, 1, &frame));
    ck_says("amp_cast_args");
    ck_says("77");
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_op_target(rig.context, "matmul", &none, 1, &target));
    ck_says("amp_op_target");
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_class_target(rig.context, "f", AMP_LOWER, 0, &none, 1, &target));
    ck_says("amp_class_target");
    x->storage.dtype = AMP_FLOAT32;
    fake_release(x);
    rig_end(&rig);
}

TEST(a_frame_is_used_once_at_a_time) {
    struct rig rig;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    void *tensors[] = { rig.net.weight };
    ck_ok(amp_cast_args(rig.context, "matmul", tensors, 1, &frame));
    ck_fails(AMP_ERR_WRONG_STATE, amp_cast_args(rig.context, "matmul", tensors, 1, &frame));
    ck_says("amp_cast_done");
    ck_ok(amp_cast_done(&frame));
    ck_assert_ptr_eq(tensors[0], rig.net.weight);
    rig_end(&rig);
}

TEST(direct_ops_need_no_slot) {
    struct rig rig;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    amp_op_stats stats = AMP_OP_STATS_INIT;
    size_t count;
    const amp_config config = config_of(AMP_O1);
    rig_init(&rig, FAKE_RETAINS);
    rig.net.ops[0] = (amp_op){ .struct_size = sizeof(amp_op), .flags = AMP_OP_DIRECT, .name = "my_gemm",
                               .aliases = "matmul" };
    ck_ok(rig_config(&rig, &config));
    void *tensors[] = { rig.net.weight };
    ck_ok(amp_cast_args(rig.context, "my_gemm", tensors, 1, &frame));
    ck_assert_int_eq(frame.target, AMP_FLOAT16);
    ck_ok(amp_cast_done(&frame));
    ck_ok(amp_get_op_stats(rig.context, &stats, 1, &count));
    ck_assert_uint_eq(stats.calls, 1);
    ck_assert_uint_eq(stats.casts, 1);
    ck_assert_int_eq(stats.wrapped, 0);
    rig_end(&rig);
}

TEST(a_context_without_a_model_still_decides) {
    amp_config config = config_of(AMP_O4);
    amp_context *context = NULL;
    const amp_dtype single = AMP_FLOAT32;
    amp_dtype target = 0;
    ck_ok(amp_initialize_many(NULL, 0, NULL, 0, &config, &context));
    ck_ok(amp_op_target(context, "linear", &single, 1, &target));
    ck_assert_int_eq(target, AMP_BFLOAT16);
    ck_ok(amp_shutdown(context));
}

/* ---- in parts: class, decision by class, casts that were decided ---- */

TEST_TIMES(class_and_types_decide_as_the_name_does, 4 * N_TYPES * N_TYPES) {
    static const char *const ops[] = { "matmul", "softmax", "add", "dropout" };
    const amp_dtype both[] = { types[_i % N_TYPES], types[_i / N_TYPES % N_TYPES] };
    const char *op = ops[_i / (N_TYPES * N_TYPES)];
    amp_config config = config_of(AMP_O1);
    amp_context *context;
    amp_class op_class = 77;
    amp_dtype by_name = 77, by_class = 78;
    ck_ok(amp_initialize_many(NULL, 0, NULL, 0, &config, &context));
    ck_ok(amp_op_class(context, op, &op_class));
    ck_ok(amp_op_target(context, op, both, 2, &by_name));
    ck_ok(amp_class_target(context, op, op_class, AMP_DTYPE_DEFAULT, both, 2, &by_class));
    ck_assert_int_eq(by_name, by_class);
    ck_ok(amp_shutdown(context));
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
    amp_config config = config_of(AMP_O1);
    amp_context *context;
    amp_dtype target = 77;
    ck_ok(amp_initialize_many(NULL, 0, NULL, 0, &config, &context));
    const amp_status status =
        amp_class_target(context, "my_op", cases[_i].op_class, cases[_i].into, &cases[_i].other, 1, &target);
    ck_assert_int_eq(status, cases[_i].status);
    if (status != AMP_OK) ck_says("my_op");
    ck_assert_int_eq(target, cases[_i].target);
    ck_ok(amp_shutdown(context));
}

TEST(parts_refuse_what_they_cannot_mean) {
    amp_config config = config_of(AMP_O1);
    amp_context *context;
    const amp_dtype single = AMP_FLOAT32;
    amp_dtype target = 77;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    size_t count;
    ck_ok(amp_initialize_many(NULL, 0, NULL, 0, &config, &context));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_class_target(context, "f", AMP_BY_LIST, 0, &single, 1, &target));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_class_target(context, "f", AMP_LOWER, AMP_DTYPE_OTHER, &single, 1, &target));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_op_class(context, "", NULL));
    ck_fails(AMP_ERR_WRONG_STATE, amp_cast_to(context, AMP_FLOAT16, NULL, 0, &frame)); /* no host to cast with */
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_cast_to(context, AMP_DTYPE_OTHER, NULL, 0, &frame));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_get_list_ops(3, NULL, 0, &count));
    ck_assert_int_eq(target, 77);
    ck_ok(amp_shutdown(context));
}

TEST(cast_to_casts_what_differs_and_takes_weights_from_the_cache) {
    struct rig rig;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    amp_scope none;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *h = rig_tensor(&rig, AMP_FLOAT16, 1.5), *d = rig_tensor(&rig, AMP_FLOAT64, 2.5);
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
    fake_release(h);
    fake_release(d);
    rig_end(&rig);
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
