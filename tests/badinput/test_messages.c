/* SPDX-License-Identifier: Apache-2.0 */
/* The mistakes that docs/reference/messages.md lists, made, and the messages that it quotes. check_docs.py compares the texts. */
#include "checks.h"

static amp_status start(struct rig *rig, amp_level level) {
    return rig_try(rig, config_of(level));
}

static amp_status begin(struct rig *rig, amp_scaled_loss *scaled) {
    return fake_begin(&rig->net.optimizer, NULL, scaled);
}

/* ---- descriptions ---- */

static amp_status on_a_gpu_view(void *self, void *handle, amp_tensor_view *view) {
    struct fake_tensor *tensor = handle;
    (void)self;
    view->data = tensor->storage.data;
    view->device.type = 2;
    view->ndim = 1;
    view->shape = tensor->shape;
    view->dtype.code = 2;
    view->dtype.bits = 32;
    view->dtype.lanes = 1;
    return AMP_OK;
}

/* One slip in a description, and initialize. X(name, level, the slip) */
#define SLIPS(X)                                                                                                       \
    X(no_init_macro, O1, memset(&rig->net.ops[0], 0, sizeof rig->net.ops[0]))                                          \
    X(no_host, O1, rig->net.model.host = NULL)                                                                         \
    X(no_cast, O1, rig->host.hooks.cast = NULL)                                                                        \
    X(no_swap_data, O2, rig->host.hooks.swap_data = NULL)                                                              \
    X(half_a_pair, O1, rig->host.hooks.free = NULL)                                                                    \
    X(no_slot, O1, rig->net.ops[0].slot = NULL)                                                                        \
    X(typing_error, O1, rig->net.ops[0].schema = "linear(Tensro input) -> Tensor")                                     \
    X(listed_twice, O1, rig->net.trained[1] = rig->net.trained[0])                                                     \
    X(on_a_gpu, O1, rig->host.hooks.view = on_a_gpu_view)                                                              \
    X(initialized_twice, O1, ck_ok(start(rig, AMP_O1)))

#define SLIP(name, level, change)                                                                                      \
    static amp_status name(struct rig *rig) {                                                                          \
        change;                                                                                                        \
        return start(rig, AMP_##level);                                                                                \
    }
SLIPS(SLIP)

static amp_status no_such_level(struct rig *rig) { return start(rig, 0); }

static amp_status digit_zero(struct rig *rig) {
    amp_level level;
    (void)rig;
    return amp_level_from_name("01", &level);
}

static amp_status another_table(struct rig *rig) {
    amp_fn copy[N_NET_OPS];
    rig_wire(rig, config_of(AMP_O1));
    return amp_wrap_table(rig->context, rig->net.original, sizeof copy, copy);
}

static amp_status const_table(struct rig *rig) {
    static amp_fn const table[] = { (amp_fn)const_table };
    rig->net.ops[0].slot = (amp_fn *)(uintptr_t)&table[0];
    return start(rig, AMP_O1);
}

static amp_status same_slot(struct rig *rig) {
    rig->net.ops[OP_mul].slot = rig->net.ops[OP_add].slot;
    rig->net.ops[OP_mul].schema = rig->net.ops[OP_add].schema;
    return start(rig, AMP_O1);
}

static amp_status half_parameter(struct rig *rig) {
    struct fake_tensor *low = rig_tensor(rig, AMP_FLOAT16, 0.0);
    rig->net.params[0].tensor = low;
    const amp_status status = start(rig, AMP_O1);
    fake_release(low);
    return status;
}

static amp_status overlap(struct rig *rig) {
    const amp_storage own = rig->net.bias->storage;
    rig->net.bias->storage.data = (char *)rig->net.weight->storage.data + sizeof(float);
    const amp_status status = start(rig, AMP_O1);
    rig->net.bias->storage = own;
    return status;
}

static amp_status with_stride(struct rig *rig, int64_t stride, amp_level level) {
    rig->net.weight->strides[0] = stride;
    const amp_status status = start(rig, level);
    rig->net.weight->strides[0] = 1;
    return status;
}
static amp_status strided(struct rig *rig) { return with_stride(rig, 2, AMP_O2); }
static amp_status expanded(struct rig *rig) { return with_stride(rig, 0, AMP_O1); }

/* ---- the loop ---- */

static amp_status before_initialize(struct rig *rig) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    return begin(rig, &scaled);
}

static amp_status end_without_begin(struct rig *rig) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_ok(start(rig, AMP_O1));
    return amp_scale_loss_end(&scaled);
}

static amp_status zeroed_bracket(struct rig *rig) {
    amp_scaled_loss scaled = { 0 };
    ck_ok(start(rig, AMP_O1));
    return begin(rig, &scaled);
}

static amp_status begun_twice(struct rig *rig) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_ok(start(rig, AMP_O1));
    ck_ok(begin(rig, &scaled));
    return begin(rig, &scaled);
}

static amp_status loss_id_too_large(struct rig *rig) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_optimizer *optimizer = &rig->net.optimizer;
    ck_ok(start(rig, AMP_O1));
    return fake_begin_many(NULL, &optimizer, 1, 1, 0, NULL, &scaled);
}

static amp_status step_inside(struct rig *rig) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_ok(start(rig, AMP_O1));
    ck_ok(begin(rig, &scaled));
    (void)net_step(&rig->net);
    return amp_scale_loss_end(&scaled);
}

static amp_status failing_cast(struct rig *rig) {
    ck_ok(start(rig, AMP_O1));
    fake_fail(&rig->host, FAKE_CAST, 1);
    struct fake_tensor *x = rig_tensor(rig, AMP_FLOAT16, 1.0);
    ck_assert_ptr_null(net_linear(&rig->net, x, rig->net.weight, NULL));
    fake_release(x);
    return amp_check(rig->context);
}

static amp_status wrong_gradient(struct rig *rig) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_ok(start(rig, AMP_O1));
    ck_ok(begin(rig, &scaled));
    fake_put_grad(rig->net.weight, fake_new(&rig->host, AMP_FLOAT32, 3, 0.0));
    return amp_scale_loss_end(&scaled);
}

static amp_status storage_changed(struct rig *rig) {
    ck_ok(start(rig, AMP_O2));
    rig->net.weight->storage.dtype = AMP_BFLOAT16; /* the host re-types its model by itself */
    rig->net.weight->version++;
    (void)net_step(&rig->net);
    rig->net.weight->storage.dtype = AMP_FLOAT16;
    return amp_check(rig->context);
}

/* ---- the list ---- */

static const struct mistake {
    amp_status (*make)(struct rig *);
    amp_status status;
    const char *says;
} mistakes[] = {
    { no_init_macro, AMP_ERR_ABI_MISMATCH, "amp_op.struct_size is 0: start from its _INIT macro" },
    { no_such_level, AMP_ERR_INVALID_ARGUMENT, "opt level 0 does not exist: use AMP_O0" },
    { digit_zero, AMP_ERR_INVALID_ARGUMENT, "they are written with the letter O, not the digit zero" },
    { no_host, AMP_ERR_INVALID_ARGUMENT, "model 0.host is NULL: describe the host's hooks with an amp_host" },
    { no_cast, AMP_ERR_MISSING_HOOK, "level O1, model 0: needs the hook cast of amp_host" },
    { no_swap_data, AMP_ERR_MISSING_HOOK, "level O2, model 0: needs the hook swap_data of amp_host" },
    { half_a_pair, AMP_ERR_INVALID_ARGUMENT, "has only one of the hooks alloc and free: give both or neither" },
    { no_slot, AMP_ERR_INVALID_ARGUMENT, "slot is NULL: give the address of the function pointer" },
    { const_table, AMP_ERR_READ_ONLY, "lies in read-only memory (a const table?)" },
    { another_table, AMP_ERR_NOT_FOUND, "no op of this context with AMP_OP_COPY has its slot in" },
    { same_slot, AMP_ERR_CONFLICT, "entries 2 (add) and 3 (mul) are the same slot" },
    { typing_error, AMP_ERR_SCHEMA, "did you mean Tensor?" },
    { listed_twice, AMP_ERR_INVALID_ARGUMENT, "optimizer 0: weight is listed twice" },
    { half_parameter, AMP_ERR_INVALID_ARGUMENT, "weight is fp16 already: give libamp FP32 parameters" },
    { overlap, AMP_ERR_CONFLICT, "weight and bias overlap in memory without being the same" },
    { strided, AMP_ERR_UNSUPPORTED, "weight is not one compact block" },
    { expanded, AMP_ERR_UNSUPPORTED, "weight has elements that overlap in memory" },
    { on_a_gpu, AMP_ERR_MISSING_HOOK, "weight is in the memory of CUDA device 0, which needs the hook current_stream" },
    { initialized_twice, AMP_ERR_WRONG_STATE, "model 0 is initialised already: amp_shutdown its context first" },
    { before_initialize, AMP_ERR_WRONG_STATE, "the optimizer is not initialised: call amp_initialize with it first" },
    { end_without_begin, AMP_ERR_WRONG_STATE, "amp_scale_loss_end without amp_scale_loss_begin" },
    { zeroed_bracket, AMP_ERR_ABI_MISMATCH, "amp_scaled_loss.struct_size is 0: start from its _INIT macro" },
    { begun_twice, AMP_ERR_WRONG_STATE, "this amp_scaled_loss is in use by an open bracket" },
    { loss_id_too_large, AMP_ERR_INVALID_ARGUMENT, "loss_id 1 is out of range: amp_config.num_losses is 1" },
    { step_inside, AMP_ERR_WRONG_STATE, "step inside the bracket: call amp_scale_loss_end before the optimizer's step" },
    { failing_cast, AMP_ERR_HOST_FAILED, "op linear: weight: cast from fp32 to fp16: the host's hook cast failed" },
    { wrong_gradient, AMP_ERR_INVALID_ARGUMENT, "weight has 4 elements but its gradient has 3 of fp32" },
    { storage_changed, AMP_ERR_WRONG_STATE, "behind libamp's back: change its values, not its storage" },
};

TEST_TIMES(mistakes_get_the_messages_of_the_guide, sizeof mistakes / sizeof mistakes[0]) {
    const struct mistake *mistake = &mistakes[_i];
    RIG_INIT(rig, FAKE_RETAINS);
    ck_assert_str_eq(amp_status_name(mistake->make(&rig)), amp_status_name(mistake->status));
    ck_says(mistake->says);
}
