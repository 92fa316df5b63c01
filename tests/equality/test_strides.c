/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that are no compact block: the same bits as compact ones, and what lies between their elements stays. */
#include "one.h"
#include "../support/levels.h"

#include <math.h>

enum { ROWS = 2, COLUMNS = 3, SIZE = ROWS * COLUMNS, BLOCK = 32, GAP = 77 };

static const struct layout {
    const char *name;
    int64_t strides[2], first; /* element 0 */
    bool backwards;
} layouts[] = {
    { "compact", { 3, 1 }, 0, false },        { "transposed", { 1, 2 }, 0, false },
    { "padded rows", { 8, 1 }, 0, false },    { "a slice", { 5, 1 }, 4, false },
    { "every second", { 6, 2 }, 0, false },   { "transposed with gaps", { 3, 9 }, 2, false },
    { "backwards", { -3, -1 }, 5, true },     { "rows backwards", { -8, 2 }, 9, true },
};
enum { N_LAYOUTS = sizeof layouts / sizeof *layouts };

static const int64_t shape[2] = { ROWS, COLUMNS };

enum { DYNAMIC = 1 << 8, OURS = 1 << 9 }; /* beside the host's options: the scale; libamp's own optimizer */

static float ones(int i) { return (void)i, 1.0f; }

static void start(struct one *rig, amp_level level, unsigned options) {
    amp_optim rule = AMP_OPTIM_INIT;
    const amp_fused fused = { sizeof fused, 0, &rule, 1, NULL, 0 };
    one_init(rig, options, shape, ones);
    ck_ok(amp_optim_defaults(AMP_OPTIM_SGD, &rule));
    if (options & OURS) rig->optimizer.fused = &fused;
    one_start(rig, CONFIG(level, .loss_scale = options & DYNAMIC ? AMP_DYNAMIC : 8.0f));
}

#define START(name, level, other) __attribute__((cleanup(one_end))) struct one name; start(&name, level, other)

/* A tensor of the layout among GAPs. */
static struct tensor *laid_out(struct host *host, amp_dtype dtype, const struct layout *layout) {
    static const int64_t all = BLOCK;
    struct tensor *whole = tensor_new(host, dtype, 1, &all, false);
    for (int i = 0; i < BLOCK; i++) tensor_set(whole, i, GAP);
    whole->ndim = 2;
    memcpy(whole->shape, shape, sizeof shape);
    memcpy(whole->strides, layout->strides, sizeof layout->strides);
    whole->first = layout->first;
    return whole;
}

static int gaps(struct tensor *tensor) {
    struct tensor flat = *tensor;
    int found = 0;
    flat.ndim = 1;
    flat.shape[0] = BLOCK;
    flat.strides[0] = 1;
    flat.first = 0;
    for (int i = 0; i < BLOCK; i++) found += tensor_get(&flat, i) == GAP;
    return found;
}

static float value(int i) { return 0.3125f + 0.15625f * (float)i; }

/* Backward's part: adds factor * value(i). */
static void add(struct one *rig, const struct layout *layout, double factor) {
    struct tensor *param = rig->param;
    const bool fresh = !param->grad;
    if (fresh) param->grad = laid_out(&rig->host, param->storage.dtype, layout);
    for (int i = 0; i < SIZE; i++)
        tensor_set(param->grad, i, (fresh ? 0.0f : tensor_get(param->grad, i)) + (float)factor * value(i));
}

static amp_action bracket(struct one *rig, const struct layout *layout, double factor, uint32_t flags, bool cancel) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_optimizer *optimizer = &rig->optimizer;
    ck_ok(amp_scale_loss_begin_many(NULL, &optimizer, 1, 0, flags, NULL, &scaled));
    add(rig, layout, factor * (double)amp_seed_factor(&scaled));
    ck_ok(cancel ? amp_scale_loss_cancel(&scaled) : amp_scale_loss_end(&scaled));
    return scaled.action;
}

/* What it leaves of a gradient, and of the parameter. */
static void run(struct one *rig, const struct layout *layout, float *grad, float *param) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    float norm;
    ck_assert_int_eq(bracket(rig, layout, 1.0, 0, false), AMP_STEP);
    ck_assert_int_eq(bracket(rig, layout, 0.5, AMP_DELAY_UNSCALE, false), AMP_STEP);
    ck_assert_int_eq(bracket(rig, layout, 0.25, 0, false), AMP_STEP);
    (void)bracket(rig, layout, INFINITY, 0, true);
    ck_ok(amp_clip_grad_norm(&rig->optimizer, 2.0f, &norm));
    ck_ok(amp_clip_grad_value(&rig->optimizer, 1.0f));
    for (int i = 0; i < SIZE; i++) grad[i] = tensor_get(rig->param->grad, i);
    ck_assert_int_eq(gaps(rig->param->grad), BLOCK - SIZE);
    ck_ok(amp_step_begin(&rig->optimizer, &info));
    for (int i = 0; i < SIZE; i++) {
        tensor_set(rig->param, i, tensor_get(rig->param, i) - 0.3f * tensor_get(rig->param->grad, i));
        tensor_set(rig->param->grad, i, 0.1f * (float)i); /* a host may keep its momentum there */
    }
    ck_ok(amp_step_end(&rig->optimizer));
    ck_assert_int_eq(gaps(rig->param->grad), BLOCK - SIZE);
    for (int i = 0; i < SIZE; i++) {
        grad[SIZE + i] = tensor_get(rig->param->grad, i);
        param[i] = tensor_get(rig->param, i);
    }
}


TEST_TIMES(the_same_bits_as_compact, 2 * N_LAYOUTS * N_EACH_LEVEL) {
    const struct layout *layout = &layouts[_i % N_LAYOUTS];
    const amp_level level = each_level[_i / N_LAYOUTS % N_EACH_LEVEL];
    const unsigned options = _i / N_LAYOUTS / N_EACH_LEVEL ? HOST_NO_SET_GRAD : 0;
    float grads[2][2 * SIZE], params[2][SIZE];
    if (layout->backwards && level_has_masters(level)) return; /* refused: see below */
    for (int k = 0; k < 2; k++) {
        struct one rig;
        const struct layout *at = k ? layout : &layouts[0];
        start(&rig, level, options);
        if (options) {
            rig.param->grad = laid_out(&rig.host, AMP_FLOAT32, at);
            for (int i = 0; i < SIZE; i++) tensor_set(rig.param->grad, i, 0.0f);
        }
        run(&rig, at, grads[k], params[k]);
        one_end(&rig);
    }
    ck_assert_msg(!memcmp(grads[0], grads[1], sizeof grads[0]), "%s: gradients", layout->name);
    ck_assert_msg(!memcmp(params[0], params[1], sizeof params[0]), "%s: parameters", layout->name);
}

static void ck_values(struct tensor *grad, const char *layout) {
    for (int i = 0; i < SIZE; i++) ck_assert_msg(tensor_get(grad, i) == value(i), "%s: element %d", layout, i);
    ck_assert_int_eq(gaps(grad), BLOCK - SIZE);
}

/* A step that skips, for a bracket before the last one: a fixed buffer is what it was before both. */
TEST_TIMES(a_skipped_step_gives_back_what_was_there, N_LAYOUTS) {
    const struct layout *layout = &layouts[_i];
    amp_step_info info = AMP_STEP_INFO_INIT;
    START(rig, AMP_O1, HOST_NO_SET_GRAD | DYNAMIC);
    rig.param->grad = laid_out(&rig.host, AMP_FLOAT32, layout);
    for (int i = 0; i < SIZE; i++) tensor_set(rig.param->grad, i, value(i));
    ck_assert_int_eq(bracket(&rig, layout, INFINITY, 0, false), AMP_SKIP);
    ck_assert_int_eq(bracket(&rig, layout, 1.0, 0, false), AMP_STEP);
    ck_ok(amp_step_begin(&rig.optimizer, &info));
    ck_assert_int_eq(info.action, AMP_SKIP);
    ck_ok(amp_step_end(&rig.optimizer));
    ck_values(rig.param->grad, layout->name);
}

/* With an optimizer of libamp's own gradients stay scaled until somebody looks. */
TEST_TIMES(a_look_unscales_what_was_left, N_LAYOUTS) {
    const struct layout *layout = &layouts[_i];
    amp_master master = AMP_MASTER_INIT;
    size_t n;
    START(rig, AMP_O1, OURS);
    (void)bracket(&rig, layout, 1.0, 0, false);
    ck_assert_float_eq(tensor_get(rig.param->grad, 1), 8.0f * value(1));
    ck_ok(amp_master_params(&rig.optimizer, &master, 1, &n));
    ck_values(rig.param->grad, layout->name);
}

/* A host that reuses its handles: the same one, at the same version, with another gradient. */
TEST(a_handle_that_a_step_dropped_is_a_new_one_when_it_comes_again) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    amp_master master = AMP_MASTER_INIT;
    size_t n;
    START(rig, AMP_O2, 0);
    (void)bracket(&rig, &layouts[3], 1.0, 0, false);
    struct tensor *again = rig.param->grad, *fresh = laid_out(&rig.host, AMP_FLOAT16, &layouts[3]);
    const uint64_t version = again->version;
    ck_ok(amp_step_begin(&rig.optimizer, &info));
    rig.param->grad = NULL;
    ck_ok(amp_step_end(&rig.optimizer));
    const struct tensor dropped = *again;
    *again = *fresh, *fresh = dropped;
    tensor_release(fresh);
    for (int i = 0; i < SIZE; i++) tensor_set(again, i, 2.0f * value(i));
    again->version = version;
    rig.param->grad = again;
    ck_ok(amp_master_params(&rig.optimizer, &master, 1, &n));
    for (int i = 0; i < SIZE; i++) ck_assert_float_eq(((float *)master.grad)[i], 2.0f * value(i));
}

TEST_TIMES(overlaps_are_refused_by_name, 4) {
    static const struct layout bad[] = { { "expanded", { 0, 1 }, 0, false },
                                         { "a scalar, expanded", { 0, 0 }, 0, false },
                                         { "a window", { 1, 1 }, 0, false },
                                         { "beyond memory", { INT64_MAX, 1 }, 0, false } };
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    START(rig, AMP_O1, 0);
    ck_ok(amp_scale_loss_begin(&rig.optimizer, NULL, &scaled));
    rig.param->grad = laid_out(&rig.host, AMP_FLOAT32, &bad[_i]);
    ck_refused(AMP_ERR_UNSUPPORTED, "p: gradient has elements that overlap", amp_scale_loss_end(&scaled));
    ck_says("make it contiguous");
}

TEST(backwards_under_a_master_is_refused_by_name) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    START(rig, AMP_O2, 0);
    ck_ok(amp_scale_loss_begin(&rig.optimizer, NULL, &scaled));
    (void)amp_seed_factor(&scaled);
    rig.param->grad = laid_out(&rig.host, AMP_FLOAT16, &layouts[6]);
    ck_refused(AMP_ERR_UNSUPPORTED, "runs backwards", amp_scale_loss_end(&scaled));
}

TEST_TIMES(unscale_takes_any_layout, N_LAYOUTS) {
    const struct layout *layout = &layouts[_i];
    float found_inf = 0.0f;
    START(rig, AMP_O1, 0);
    struct tensor *tensor = laid_out(&rig.host, AMP_FLOAT16, layout);
    void *list[1] = { tensor };
    for (int i = 0; i < SIZE; i++) tensor_set(tensor, i, 8.0f * value(i));
    ck_ok(amp_unscale(rig.context, 0, list, 1, &found_inf));
    ck_assert_float_eq(found_inf, 0.0f);
    for (int i = 0; i < SIZE; i++) ck_assert_float_eq(tensor_get(tensor, i), value(i));
    ck_assert_int_eq(gaps(tensor), BLOCK - SIZE);
    tensor_set(tensor, 4, INFINITY);
    ck_ok(amp_unscale(rig.context, 0, list, 1, &found_inf));
    ck_assert_float_eq(found_inf, 1.0f);
    tensor_release(tensor);
}

TEST_TIMES(master_params_tells_the_layout, 2) {
    amp_master master = AMP_MASTER_INIT;
    size_t n;
    START(rig, _i ? AMP_O2 : AMP_O1, 0);
    (void)bracket(&rig, &layouts[3], 1.0, 0, false);
    ck_ok(amp_master_params(&rig.optimizer, &master, 1, &n));
    ck_assert_ptr_null(master.strides);
    if (_i) ck_assert_ptr_null(master.grad_strides); /* a master gradient is compact */
    else ck_assert_mem_eq(master.grad_strides, layouts[3].strides, sizeof layouts[3].strides);
    for (int i = 0; i < SIZE; i++) {
        const int64_t at = _i ? i : i / COLUMNS * master.grad_strides[0] + i % COLUMNS * master.grad_strides[1];
        ck_assert_float_eq(((float *)master.grad)[at], value(i));
    }
}

TEST_TIMES(strided_parameters_are_refused_where_they_are_re_typed, N_EACH_LEVEL) {
    START(rig, AMP_O1, 0);
    struct tensor *param = tensor_new(&rig.host, AMP_FLOAT32, 2, shape, true);
    amp_model *model = &rig.model;
    const amp_param listed = { sizeof(amp_param), 0, param, "q" };
    const amp_config config = CONFIG(each_level[_i]);
    ck_ok(amp_shutdown(rig.context));
    rig.context = NULL;
    model->params = &listed;
    if (level_retypes(each_level[_i]))
        ck_refused(AMP_ERR_UNSUPPORTED, "q is not one compact block",
                   amp_initialize_many(&model, 1, NULL, 0, &config, &rig.context));
    else ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &rig.context));
    tensor_release(param);
}
