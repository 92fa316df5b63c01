/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are refused in a running context: each names what was wrong, and nothing has changed. And what clipping by
 * value, freezing and amp_buffer do with types other than FP32. */
#include "world.h"

#include <math.h>

#define ck_left_alone(status, text, expression) \
    do { \
        const struct world before_ = world_of(&rig); \
        ck_refused(status, text, expression); \
        world_check(&before_, &rig); \
    } while (0)

/* ---- refusals ---- */

TEST_TIMES(scaling_of_nothing, 2) {
    void *out = NULL, *none = NULL;
    amp_context *bare = NULL;
    const amp_config config = config_of(AMP_O1);
    RIG_START(rig, AMP_O1, FAKE_RETAINS | (_i ? FAKE_NO_SCALE : 0));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    ck_left_alone(AMP_ERR_INVALID_ARGUMENT, "amp_scale: context", amp_scale(NULL, 0, x, &out));
    ck_left_alone(AMP_ERR_INVALID_ARGUMENT, "loss_id 1", amp_scale(rig.context, 1, x, &out));
    ck_left_alone(AMP_ERR_INVALID_ARGUMENT, "amp_scale: tensor", amp_scale(rig.context, 0, NULL, &out));
    ck_left_alone(AMP_ERR_INVALID_ARGUMENT, "amp_scale: out", amp_scale(rig.context, 0, x, NULL));
    if (_i) ck_left_alone(AMP_ERR_MISSING_HOOK, "scale", amp_scale(rig.context, 0, x, &out));
    ck_left_alone(AMP_ERR_INVALID_ARGUMENT, "amp_unscale: context", amp_unscale(NULL, 0, &none, 1, NULL));
    ck_left_alone(AMP_ERR_INVALID_ARGUMENT, "n is 2", amp_unscale(rig.context, 0, NULL, 2, NULL));
    ck_assert_ptr_null(out);
    ck_ok(amp_initialize_many(NULL, 0, NULL, 0, &config, &bare));
    ck_left_alone(AMP_ERR_WRONG_STATE, "no host", amp_scale(bare, 0, x, &out));
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    void *args[] = { x };
    ck_left_alone(AMP_ERR_WRONG_STATE, "no host", amp_cast_args(bare, "linear", args, 1, &frame));
    ck_ok(amp_shutdown(bare));
}

TEST(adding_what_cannot_be_added) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    RIG_START(rig, AMP_O2, FAKE_RETAINS);
    OWN_TENSOR *fresh = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    amp_param params[2] = { AMP_PARAM_INIT, AMP_PARAM_INIT };
    amp_optimizer *optimizer = &rig.net.optimizer;
    params[0].tensor = fresh;
    ck_left_alone(AMP_ERR_INVALID_ARGUMENT, "params is NULL", amp_add_params(optimizer, NULL, 1));
    ck_left_alone(AMP_ERR_INVALID_ARGUMENT, "n cannot be", amp_add_params(optimizer, params, SIZE_MAX));
    ck_left_alone(AMP_ERR_INVALID_ARGUMENT, "params[1] has no tensor", amp_add_params(optimizer, params, 2));
    params[1].tensor = rig.net.weight;
    ck_left_alone(AMP_ERR_INVALID_ARGUMENT, "has weight already", amp_add_params(optimizer, params, 2));
    params[1].struct_size += 8;
    ck_left_alone(AMP_ERR_ABI_MISMATCH, "params[1].struct_size", amp_add_params(optimizer, params, 2));
    ck_ok(amp_step_begin(optimizer, &info));
    ck_left_alone(AMP_ERR_WRONG_STATE, "inside a step", amp_add_params(optimizer, params, 1));
    ck_left_alone(AMP_ERR_WRONG_STATE, "step of optimizer 0 is running", amp_shutdown(rig.context));
    ck_ok(amp_step_end(optimizer));
    ck_ok(fake_begin(optimizer, NULL, &scaled));
    ck_left_alone(AMP_ERR_WRONG_STATE, "inside a bracket", amp_add_params(optimizer, params, 1));
    ck_ok(amp_scale_loss_cancel(&scaled));
}

static struct rig *shut_from;
static amp_status shut_status;

/* An op, or a forward, that shuts down the context it runs under. */
static struct fake_tensor *shutting_op(struct fake_tensor *a, struct fake_tensor *b) {
    (void)b;
    shut_status = amp_shutdown(shut_from->context);
    return fake_new(a->host, fake_dtype(a), NET_SIZE, 0.0);
}

static struct fake_tensor *shutting_forward(struct net *net, struct fake_tensor *x) {
    return net_binary(net, OP_mul, x, x);
}

TEST(shutdown_from_inside) {
    RIG_INIT(rig, FAKE_RETAINS);
    shut_from = &rig;
    rig.net.table[OP_mul] = rig.net.original[OP_mul] = (amp_fn)shutting_op;
    rig.net.forward = rig.net.original_forward = (amp_fn)shutting_forward;
    rig_wire(&rig, config_of(AMP_O1));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    OWN_TENSOR *y = net_forward(&rig.net, x);
    ck_assert_int_eq(shut_status, AMP_ERR_WRONG_STATE);
    ck_says("amp_shutdown inside a wrapped call");
    ck_assert_ptr_eq(rig.net.model.amp, rig.context);
}

/* Two handles on one storage: which of them the optimizer's state belongs to would be chance. */
TEST(one_tensor_listed_twice) {
    const amp_config config = config_of(AMP_O2);
    amp_param params[NET_PARAMS + 1];
    RIG_INIT(rig, FAKE_RETAINS);
    OWN_TENSOR *tied = fake_alias(rig.net.weight);
    struct fake_tensor *bias = rig.net.trained[1];
    rig.net.trained[1] = tied;
    memcpy(params, rig.net.params, sizeof rig.net.params);
    params[NET_PARAMS] = (amp_param){ sizeof(amp_param), 0, tied, "tied" };
    rig.net.model.params = params;
    rig.net.model.n_params = NET_PARAMS + 1;
    ck_left_alone(AMP_ERR_INVALID_ARGUMENT, "one tensor: list it once", rig_config(&rig, &config));
    rig.net.trained[1] = bias;
    ck_ok(rig_config(&rig, &config));
}

/* ---- other types ---- */

TEST_TIMES(clipping_by_value_in_every_type, 4) {
    static const struct {
        amp_level level;
        amp_dtype dtype;
        float limit;
        double clipped;
    } cases[] = {
        { AMP_O3, AMP_FLOAT16, 0.5f, 0.5 },
        { AMP_O5, AMP_BFLOAT16, 0.5f, 0.5 },
        { AMP_O3, AMP_FLOAT16, 0.1f, 0.0999755859375 }, /* 0.1 in fp16 */
        { AMP_O0, AMP_FLOAT64, 0.5f, 0.5 },
    };
    RIG_INIT(rig, FAKE_RETAINS);
    if (cases[_i].dtype == AMP_FLOAT64) rig.net.trained[0] = rig.net.wide;
    rig_wire(&rig, CONFIG(cases[_i].level, .master_weights = AMP_OFF));
    struct fake_tensor *param = rig.net.trained[0], *grad = rig_tensor(&rig, cases[_i].dtype, 2.0);
    fake_set(grad, 1, -3.0);
    fake_set(grad, 2, 0.0625);
    fake_set(grad, 3, (double)NAN);
    fake_put_grad(param, grad);
    ck_dtype(param, cases[_i].dtype);
    ck_ok(amp_clip_grad_value(&rig.net.optimizer, cases[_i].limit));
    ck_assert_double_eq(fake_get(grad, 0), cases[_i].clipped);
    ck_assert_double_eq(fake_get(grad, 1), -cases[_i].clipped);
    ck_assert_double_eq(fake_get(grad, 2), 0.0625);
    ck_assert(isnan(fake_get(grad, 3)));
    fake_put_grad(param, NULL);
}

/* A frozen parameter that is thawed gets its master then. */
TEST_TIMES(a_frozen_parameter_joins, 2) {
    amp_param param = AMP_PARAM_INIT;
    amp_master masters[3] = { AMP_MASTER_INIT, AMP_MASTER_INIT, AMP_MASTER_INIT };
    size_t n = 0;
    RIG_INIT(rig, FAKE_RETAINS | (_i ? FAKE_NO_ALLOC : 0));
    rig.net.optimizer.n_params = 1;
    fake_fill(rig.net.bias, 0.1); /* no value of fp16 */
    rig_wire(&rig, config_of(AMP_O2));
    ck_dtype(rig.net.bias, AMP_FLOAT16);
    param.tensor = rig.net.bias;
    ck_ok(amp_add_params(&rig.net.optimizer, &param, 1));
    ck_ok(amp_master_params(&rig.net.optimizer, masters, 3, &n));
    ck_assert_uint_eq(n, 2);
    ck_assert_ptr_eq(masters[1].param, rig.net.bias);
    ck_assert_int_eq(masters[1].is_master, 1);
    ck_assert_float_eq(((const float *)masters[1].data)[0], (float)fake_get(rig.net.bias, 0));
}

TEST_TIMES(a_buffer_that_is_none, 2) {
    float data[4] = { 1.0f, 2.0f, 3.0f, 4.0f };
    amp_buffer buffer = AMP_BUFFER_INIT;
    amp_param param = AMP_PARAM_INIT;
    amp_model model = AMP_MODEL_INIT;
    void *handle = &buffer;
    amp_optimizer optimizer = AMP_OPTIMIZER_INIT;
    buffer.data = data;
    buffer.size = 4;
    param.tensor = &buffer;
    model.host = optimizer.host = amp_buffer_host();
    model.params = &param;
    model.n_params = 1;
    optimizer.params = &handle;
    optimizer.n_params = 1;
    if (_i) buffer.dtype = AMP_DTYPE_OTHER;
    else buffer.struct_size = 4;
    ck_fails(_i ? AMP_ERR_INVALID_ARGUMENT : AMP_ERR_ABI_MISMATCH, amp_initialize(&model, &optimizer, AMP_O1));
    ck_says(_i ? "amp_buffer.dtype" : "AMP_BUFFER_INIT");
    ck_assert_ptr_null(model.amp);
    ck_assert_float_eq(data[0], 1.0f);
}
