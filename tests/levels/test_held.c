/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts whose optimizer has the masters as tensors of its own (AMP_OPTIMIZER_HOLDS_MASTERS), and parameters that come
 * in 16 bits (AMP_MODEL_LOW_PARAMS). */
#include "amp_kernels.h"
#include "checks.h"

/* A host in the manner of PyTorch: the gradient of a 16-bit parameter is at its master, but for what backward made. */
static struct holder {
    struct fake_tensor *param, *gradient;
    bool ending;
} holder;

static struct fake_tensor **place_of(struct fake_tensor *tensor) {
    return tensor == holder.param && !holder.ending ? &holder.gradient : &tensor->grad;
}

static amp_status held_grad(void *self, void *handle, void **grad) {
    (void)self;
    *grad = *place_of(handle);
    return AMP_OK;
}

static amp_status held_set_grad(void *self, void *handle, void *grad) {
    struct fake_tensor *tensor = handle;
    (void)self;
    *place_of(tensor) = tensor == holder.param && holder.ending ? NULL : grad;
    if (tensor == holder.param && holder.ending) holder.gradient = grad;
    return AMP_OK;
}

static void hold(struct rig *rig) {
    rig_init(rig, 0);
    holder = (struct holder){ rig->net.weight, NULL, false };
    rig->host.hooks.grad = held_grad;
    rig->host.hooks.set_grad = held_set_grad;
    rig->net.optimizer.flags = AMP_OPTIMIZER_HOLDS_MASTERS;
    rig->net.optimizer.n_params = 1;
    rig->net.optimizer.n_steps = rig->net.optimizer.n_zero_grads = 0;
    rig_wire(rig, CONFIG(AMP_O2, .init_scale = 8.0f, .num_losses = 2));
}

/* The master's gradient as a tensor of the host's, over libamp's block. */
static struct fake_tensor *gradient_over(struct rig *rig, void *block) {
    struct fake_tensor *tensor = rig_tensor(rig, AMP_FLOAT32, 0.0), *over = fake_alias(tensor);
    over->storage.data = block;
    fake_release(tensor);
    return over;
}

static amp_action run_bracket(struct rig *rig, uint32_t loss_id, double value, bool cancel) {
    amp_optimizer *optimizer = &rig->net.optimizer;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    fake_put_grad(rig->net.weight, NULL);
    ck_ok(fake_begin_many(rig->context, &optimizer, 1, loss_id, 0, NULL, &scaled));
    fake_put_grad(rig->net.weight, rig_tensor(rig, AMP_FLOAT16, value * fake_seed(&scaled)));
    holder.ending = true;
    ck_ok(cancel ? amp_scale_loss_cancel(&scaled) : amp_scale_loss_end(&scaled));
    holder.ending = false;
    if (!cancel) {
        ck_assert_ptr_null(holder.gradient);
        holder.gradient = gradient_over(rig, rig_master(rig, 0).grad);
    }
    return scaled.action;
}

static void clear(struct rig *rig) {
    if (holder.gradient) fake_release(holder.gradient);
    holder.gradient = NULL;
    fake_put_grad(rig->net.weight, NULL);
}

static void end(struct rig *rig) {
    clear(rig);
    rig_end(rig);
}
#define HELD(name) __attribute__((cleanup(end))) struct rig name; hold(&name)

TEST(gradients_add_up_in_one_block) {
    HELD(rig);
    ck_assert_int_eq(run_bracket(&rig, 0, 2.0, false), AMP_STEP);
    float *block = rig_master(&rig, 0).grad;
    ck_assert_float_eq(block[0], 2.0f);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 16.0); /* what backward made is left alone */
    ck_assert_int_eq(run_bracket(&rig, 0, 3.0, false), AMP_STEP);
    ck_assert_ptr_eq(rig_master(&rig, 0).grad, block);
    ck_assert_float_eq(block[NET_SIZE - 1], 5.0f);
    clear(&rig);
    ck_assert_int_eq(run_bracket(&rig, 0, 1.0, false), AMP_STEP);
    ck_assert_float_eq(block[0], 1.0f);
}

TEST(the_step_rounds_the_masters_into_the_parameters) {
    HELD(rig);
    ck_assert_int_eq(run_bracket(&rig, 0, 1.0, false), AMP_STEP);
    const amp_master master = rig_master(&rig, 0);
    amp_step_info info = rig_step_begin(&rig);
    ck_assert_int_eq(info.action, AMP_STEP);
    ck_dtype(rig.net.weight, AMP_FLOAT16); /* nothing was exchanged */
    for (int i = 0; i < NET_SIZE; i++) ((float *)master.data)[i] -= 0.1f * ((float *)master.grad)[i];
    ck_ok(amp_step_end(&rig.net.optimizer));
    ck_assert_double_eq(fake_get(rig.net.weight, 1), (double)amp_half_to_float(amp_float_to_half(0.5f - 0.1f)));
    ck_assert_ptr_eq(rig_master(&rig, 0).data, master.data);
    fake_fill(rig.net.weight, 3.0); /* the host's own change is the master's at the next step */
    ck_ok(amp_step_begin(&rig.net.optimizer, &info));
    ck_assert_float_eq(*(float *)master.data, 3.0f);
    ck_ok(amp_step_end(&rig.net.optimizer));
}

TEST(a_cancelled_bracket_gives_the_gradient_back) {
    HELD(rig);
    ck_assert_int_eq(run_bracket(&rig, 0, 2.0, false), AMP_STEP);
    struct fake_tensor *before = holder.gradient;
    (void)run_bracket(&rig, 0, 7.0, true);
    ck_assert_ptr_eq(holder.gradient, before);
    ck_assert_float_eq(*(float *)rig_master(&rig, 0).grad, 2.0f);
    ck_assert_ptr_null(rig.net.weight->grad);
}

TEST(an_overflow_is_the_brackets_that_made_it) {
    HELD(rig);
    ck_assert_int_eq(run_bracket(&rig, 0, (double)__builtin_inff(), false), AMP_SKIP);
    ck_assert_int_eq(run_bracket(&rig, 1, 1.0, false), AMP_STEP); /* adds to what is infinite already */
    const amp_record record = rig_record(&rig, 1);
    ck_assert_uint_eq(record.skipped, 0);
    amp_step_info info = rig_step_begin(&rig);
    ck_assert_int_eq(info.action, AMP_SKIP);
    ck_ok(amp_step_end(&rig.net.optimizer));
}

TEST(set_grad_is_needed) {
    RIG_INIT(rig, FAKE_NO_SET_GRAD);
    rig.net.optimizer.flags = AMP_OPTIMIZER_HOLDS_MASTERS;
    ck_refused(AMP_ERR_MISSING_HOOK, "set_grad", rig_try(&rig, config_of(AMP_O2)));
}

/* ---- 16-bit parameters ---- */

TEST_TIMES(low_parameters_keep_their_type, 2) {
    const amp_config config = CONFIG(_i ? AMP_O2 : AMP_O1, .cast_model_type = AMP_DTYPE_UNCHANGED);
    RIG_INIT(rig, 0);
    fake_release(rig.net.weight);
    rig.net.weight = rig_tensor(&rig, AMP_FLOAT16, 0.5);
    rig.net.params[0].tensor = rig.net.trained[0] = rig.net.weight;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, rig_config(&rig, &config));
    rig.net.model.flags = AMP_MODEL_LOW_PARAMS;
    ck_ok(rig_config(&rig, &config));
    const amp_master master = rig_master(&rig, 0);
    ck_assert_int_eq(master.is_master, _i);
    ck_assert_int_eq(master.dtype, _i ? AMP_FLOAT32 : AMP_FLOAT16);
    if (_i) ck_assert_float_eq(*(float *)master.data, 0.5f);
    ck_dtype(rig.net.weight, AMP_FLOAT16);
    ck_dtype(rig.net.bias, AMP_FLOAT32);
}
