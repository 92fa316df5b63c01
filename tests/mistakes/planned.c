/* SPDX-License-Identifier: Apache-2.0 */
/* A planned-memory graph, as ggml's are: the framework of examples/hosts/planned.c, and its adapter with mistakes. */
int planned_main(void);
#define main planned_main
#include "../../examples/hosts/planned.c"
#undef main

#include "mistakes.h"

static const struct tampered tampered[] = {
    { PLANNED_RESULT_IS_READ, "product", NULL, AMP_ROLE_UPDATE, 0, AMP_ROLE_READ, 0 },
    { PLANNED_RESULT_IS_OUTPUT, "product", NULL, AMP_ROLE_UPDATE, 0, AMP_ROLE_WRITE, 0 },
    { PLANNED_OPERAND_LEFT_OUT, "product", NULL, AMP_ROLE_READ, 0, 0, LEFT_OUT },
};

/* The gradient of w1 is in the block of another node until backward has passed that node. */
static amp_status wrong_grad(void *self, void *tensor, void **grad) {
    const int complete = adapter.complete;
    if (mistake(PLANNED_GRADIENT_TOO_EARLY)) adapter.complete = 1;
    if (mistake(PLANNED_NO_GRADIENT)) adapter.complete = 0;
    const amp_status status = hook_grad(self, tensor, grad);
    adapter.complete = complete;
    return status;
}

static amp_context *start(const amp_config *given) {
    amp_config config = *given;
    struct lists lists;
    srand(1);
    fill(x, B * IN, 1.0f), fill(target, B * OUT, 1.0f), fill(w1, MID * IN, 0.3f), fill(w2, OUT * MID, 0.3f);
    build(&trained, memory);
    describe(&trained, &lists);
    adapter.host.event = hear_event, adapter.host.grad = wrong_grad;
    tamper(&adapter.host, tampered, sizeof tampered / sizeof *tampered);
    if (mistake(PLANNED_OTHER_GRADIENT)) adapter.gradients[0].data = trained.blocks[MOST - 1];
    if (mistake(PLANNED_NO_IMPLEMENTATION)) lists.op.fp16 = lists.op.bf16 = NULL;
    if (mistake(PLANNED_NOT_LISTED)) adapter.optimizer.n_params--;
    if (config.level == AMP_O3) config.emulate = AMP_ON;
    return hear_initialize(&adapter.model, &adapter.optimizer, &config);
}

/* compute_with_amp, with mistakes. */
static float pass(int number) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    int i = 0;
    (void)number;
    (void)hear(amp_scale_loss_begin(&adapter.optimizer, NULL, &scaled));
    const float factor = mistake(PLANNED_NO_FACTOR) ? 1.0f : amp_seed_factor(&scaled);
    trained.seed = mistake(PLANNED_FACTOR_NOT_USED) ? 1.0f : factor;
    for (; i < trained.n && (trained.nodes[i].kind != UPDATE || mistake(PLANNED_UPDATES_INSIDE)); i++) {
        if (trained.nodes[i].kind != PRODUCT || mistake(PLANNED_PAST_THE_SLOT)) run(&trained, &trained.nodes[i]);
        else (void)adapter.product(&trained.nodes[i]);
    }
    adapter.complete = 1;
    (void)hear(amp_scale_loss_end(&scaled));
    return trained.loss;
}

static void step(int number) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    (void)number;
    if (!mistake(PLANNED_NO_STEP)) (void)hear(amp_step_begin(&adapter.optimizer, &info));
    for (int i = 0; i < trained.n && info.action != AMP_SKIP; i++)
        if (trained.nodes[i].kind == UPDATE && !mistake(PLANNED_UPDATES_INSIDE)) run(&trained, &trained.nodes[i]);
    if (!mistake(PLANNED_NO_STEP)) (void)hear(amp_step_end(&adapter.optimizer));
    adapter.complete = 0;
    (void)hear(amp_check(adapter.model.amp));
}

static void finish(float *params) {
    if (adapter.model.amp) (void)hear(amp_shutdown(adapter.model.amp));
    memset(params, 0, PARAM_FLOATS * sizeof *params);
    memcpy(params, w2, sizeof w2);
}

const struct mistaken host_planned = { start, pass, step, finish };
