/* SPDX-License-Identifier: Apache-2.0 */
/* Static graphs: mill, whose table has executors, and loom, whose table has constructors, with the adapters of
 * tests/hosts/graph, described otherwise. */
#include "loom_adapter.h"
#include "mill_adapter.h"
#include "mill_net.h"
#include "mistakes.h"

#include <stdbool.h>

#include <string.h>

/* ---- mill ---- */

static struct mill_net mill;
static struct mill_adapter miller;
static mill_op *originals[MILL_N_OPS], *wired[MILL_N_OPS];

/* Fields have the names of their ops. A linear node reads x, weight, bias and writes its x; backward reads its g, x,
 * weight and updates the gradients of x, weight and bias. */
static const struct tampered tampered[] = {
    { MILL_TWO_ROLES, "relu", NULL, AMP_ROLE_UPDATE, 1, AMP_ROLE_READ, 0 },
    { MILL_PART_OF_A_BUFFER, "relu", NULL, AMP_ROLE_UPDATE, 1, 0, -1 },
    { MILL_SEED_IS_READ, "cross_entropy", NULL, AMP_ROLE_SEED, 0, AMP_ROLE_READ, 0 },
    { MILL_GRADIENT_IS_READ, "linear", NULL, AMP_ROLE_UPDATE, 1, AMP_ROLE_READ, 0 },
    { MILL_GRADIENT_IS_SCRATCH, "linear", NULL, AMP_ROLE_UPDATE, 1, AMP_ROLE_SCRATCH, 0 },
    { MILL_GRADIENT_IS_OUTPUT, "linear", NULL, AMP_ROLE_UPDATE, 1, AMP_ROLE_WRITE, 0 },
    { MILL_OUTPUT_IS_READ, "linear", NULL, AMP_ROLE_WRITE, 0, AMP_ROLE_READ, 0 },
    { MILL_OUTPUT_LEFT_OUT, "linear", NULL, AMP_ROLE_WRITE, 0, 0, LEFT_OUT },
    { MILL_INPUT_IS_WRITTEN, "linear", NULL, AMP_ROLE_READ, 0, AMP_ROLE_WRITE, 0 },
    { MILL_INPUT_LEFT_OUT, "linear", NULL, AMP_ROLE_READ, 1, 0, LEFT_OUT },
};

static amp_op *op_named(const char *name) {
    for (size_t i = 0; i < miller.n_ops; i++)
        if (!strcmp(miller.ops[i].name, name)) return &miller.ops[i];
    return NULL;
}

static amp_context *start_mill(const amp_config *given) {
    amp_config config = *given;
    if (!mill_net_init(&mill, 1)) return NULL;
    memcpy(originals, mill_ops, sizeof originals);
    mill_adapter_init(&miller, mill.graph, &mill.sgd, 0);
    miller.host.event = hear_event;
    tamper(&miller.host, tampered, sizeof tampered / sizeof *tampered);
    if (mistake(MILL_NO_MEMORY_YET)) miller.buffers[0].data = NULL;
    if (mistake(MILL_NO_SEED_FLAG)) op_named("cross_entropy")->flags = 0;
    if (mistake(MILL_SEED_WITHOUT_FLAG)) {
        op_named("cross_entropy")->flags = 0;
        op_named("cross_entropy")->op_class = AMP_LOWER;
    }
    for (size_t i = 0; mistake(MILL_OWN_NAMES) && i < miller.n_ops; i++) miller.ops[i].name = "node";
    if (mistake(MILL_NO_STEP)) miller.optimizer.n_steps = 0;
    if (mistake(MILL_OTHER_SELF)) miller.optimizer.self = &mill;
    if (mistake(MILL_NOT_LISTED)) miller.optimizer.n_params--;
    if (mistake(MILL_NO_GRADIENT)) miller.buffers[1].grad = NULL;
    if (mistake(MILL_NO_STRUCT)) miller.model.n_structs = 0;
    config.emulate = mistake(MILL_NO_EMULATE) ? AMP_DEFAULT : AMP_ON;
    amp_context *context = hear_initialize(&miller.model, &miller.optimizer, &config);
    memcpy(wired, mill_ops, sizeof wired);
    if (mistake(MILL_TABLE_PUT_BACK)) memcpy(mill_ops, originals, sizeof originals);
    return context;
}

static float pass_mill(int step) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    mill_net_feed(&mill, step);
    mill_forward(mill.graph);
    const float loss = mill.loss->x[0];
    if (mistake(MILL_SCALE_OF_BEFORE)) mill_backward(mill.graph, mill.loss);
    if (hear(amp_scale_loss_begin(&miller.optimizer, NULL, &scaled)) == AMP_OK) {
        if (!mistake(MILL_SCALE_OF_BEFORE)) mill_backward(mill.graph, mill.loss);
        if (!mistake(MILL_NO_END)) (void)hear(amp_scale_loss_end(&scaled));
    }
    return loss;
}

static void step_mill(int number) {
    (void)number;
    if (mistake(MILL_STEP_OF_BEFORE)) mill_sgd_step(&mill.sgd);
    else mill.sgd.step(&mill.sgd);
    (void)hear(amp_check(miller.model.amp));
}

static void finish_mill(float *params) {
    memcpy(mill_ops, wired, sizeof wired);
    if (miller.model.amp) (void)hear(amp_shutdown(miller.model.amp));
    memcpy(params, mill.graph->params, PARAM_FLOATS * sizeof(float));
    mill_net_free(&mill);
}

const struct mistaken host_mill = { start_mill, pass_mill, step_mill, finish_mill };

/* ---- loom ---- */

static struct loom_net loom;
static struct loom_adapter weaver;
static amp_status (*right_cast)(void *self, void *tensor, amp_dtype to, void **out);

static amp_status cast_to_fp32(void *self, void *tensor, amp_dtype to, void **out) {
    (void)to;
    return right_cast(self, tensor, AMP_FLOAT32, out);
}

static amp_status no_grad(void *self, void *tensor, void **out) {
    (void)self, (void)tensor;
    *out = NULL;
    return AMP_OK;
}

static amp_context *start_loom(const amp_config *config) {
    if (!loom_net_init(&loom)) return NULL;
    const bool is_const = mistake(LOOM_CONST_TABLE);
    loom_adapter_init(&weaver, &loom, is_const ? (loom_ops *)(uintptr_t)&loom_default_ops : &loom.graph->ops);
    amp_host *host = &weaver.host;
    host->event = hear_event;
    right_cast = host->cast;
    if (mistake(LOOM_CAST_TO_FP32)) host->cast = cast_to_fp32;
    if (mistake(LOOM_GRAD_IS_NULL)) host->grad = no_grad;
    if (mistake(LOOM_NO_CAST)) host->cast = NULL;
    if (mistake(LOOM_NO_VIEW)) host->view = NULL;
    if (mistake(LOOM_NO_GRAD)) host->grad = NULL;
    if (mistake(LOOM_NO_SWAP_DATA)) host->swap_data = NULL;
    if (mistake(LOOM_NO_RELEASE)) host->release = NULL;
    for (int i = GAMMA; mistake(LOOM_NORM_NOT_SAID) && i <= BETA; i++) weaver.params[i].module_kind = AMP_MODULE_OTHER;
    if (mistake(LOOM_TENSOR_IS_POINTER))
        weaver.ops[0].schema = "linear(pointer graph, pointer x, pointer weight, pointer bias) -> pointer";
    if (mistake(LOOM_BUILT_BEFORE) && !loom_net_finish(&loom)) return NULL;
    amp_context *context = hear_initialize(&weaver.model, &weaver.optimizer, config);
    if (context && !mistake(LOOM_BUILT_BEFORE) && !loom_net_finish(&loom)) return NULL;
    return context;
}

static float pass_loom(int step) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    loom_net_feed(&loom, step);
    loom_forward(loom.graph);
    const float loss = *(float *)loom.loss->data;
    if (hear(amp_scale_loss_begin(&weaver.optimizer, NULL, &scaled)) == AMP_OK) {
        loom_backward(loom.graph, loom.loss, mistake(LOOM_NO_SEED_FACTOR) ? 1.0f : amp_seed_factor(&scaled));
        if (mistake(LOOM_CLEARED_INSIDE)) loom.sgd.zero_grad(&loom.sgd);
        (void)hear(amp_scale_loss_end(&scaled));
    }
    return loss;
}

static void step_loom(int number) {
    (void)number;
    loom.sgd.step(&loom.sgd);
    if (!mistake(LOOM_NEVER_CLEARED)) loom.sgd.zero_grad(&loom.sgd);
    (void)hear(amp_check(weaver.model.amp));
}

static void finish_loom(float *params) {
    if (weaver.model.amp) (void)hear(amp_shutdown(weaver.model.amp));
    loom_net_params(&loom, params);
    loom_net_free(&loom);
}

const struct mistaken host_loom = { start_loom, pass_loom, step_loom, finish_loom };
