/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward pairs on structs: duet and its adapter of tests/hosts/pairs, described otherwise. */
#include "mistakes.h"
#include "trainer.h"

static struct trainer t;
static layer before[DUET_LAYERS]; /* libamp */

static const struct tampered tampered[] = {
    { PAIRS_TWO_ROLES, "relu", "input", 0, 0, AMP_ROLE_READ, 0 },
    { PAIRS_PART_OF_A_BUFFER, "relu", "input", 0, 0, 0, -1 },
    { PAIRS_NO_SUCH_ROLE, "linear", "output", 0, 0, NOT_SET, 0 },
    { PAIRS_OUTPUT_IS_READ, "linear", "output", 0, 0, AMP_ROLE_READ, 0 },
    { PAIRS_OUTPUT_LEFT_OUT, "linear", "output", 0, 0, 0, LEFT_OUT },
    { PAIRS_WEIGHTS_LEFT_OUT, "linear", "weights", 0, 0, 0, LEFT_OUT },
    { PAIRS_INPUT_IS_WRITTEN, "linear", "input", 0, 0, AMP_ROLE_WRITE, 0 },
    { PAIRS_WEIGHTS_ARE_UPDATED, "linear", "weights", 0, 0, AMP_ROLE_UPDATE, 0 },
    { PAIRS_GRADIENT_IS_READ, "linear_backward", "weight_updates", 0, 0, AMP_ROLE_READ, 0 },
    { PAIRS_GRADIENT_IS_SCRATCH, "linear_backward", "weight_updates", 0, 0, AMP_ROLE_SCRATCH, 0 },
    { PAIRS_GRADIENT_LEFT_OUT, "linear_backward", "weight_updates", 0, 0, 0, LEFT_OUT },
    { PAIRS_DELTA_IS_SCRATCH, "linear_backward", "net.delta", 0, 0, AMP_ROLE_SCRATCH, 0 },
    { PAIRS_NO_SEED_EMITTED, "cross_entropy_backward", "delta", 0, 0, AMP_ROLE_READ, 0 },
};

static unsigned options(void) {
    if (mistake(PAIRS_NO_SEED_EMITTED)) return ADAPTER_SEEDS;
    if (mistake(PAIRS_LAYERS_AROUND_PRODUCTS)) return ADAPTER_REPLACE;
    return mistake(PAIRS_NO_STEP_BEGIN) || mistake(PAIRS_NO_STEP_END) ? ADAPTER_INLINED : 0;
}

static void describe(struct adapter *a) {
    adapter_init(a, t.net, options());
    a->host.event = hear_event;
    tamper(&a->host, tampered, sizeof tampered / sizeof *tampered);
    if (mistake(PAIRS_NO_STRUCTS)) a->model.n_structs = 0;
    if (mistake(PAIRS_NO_MEMBERS)) a->structs[2].members = NULL;
    if (mistake(PAIRS_MISSING_MEMBER)) a->structs[2].members = "int step, float rate";
    if (mistake(PAIRS_NO_VISIT)) a->host.visit = NULL;
    if (mistake(PAIRS_CONST_TABLE)) a->ops[0].slot = (amp_fn *)(uintptr_t)&duet_default_blas.gemm;
    if (mistake(PAIRS_SAME_SLOT)) a->ops[3].slot = a->ops[1].slot;
    if (mistake(PAIRS_WRONG_FORWARD)) a->ops[2].backward_of = "connected";
    if (mistake(PAIRS_OVERLAP)) a->weights[0].size++, a->updates[0].size++;
    if (mistake(PAIRS_NO_GRADIENT)) a->weights[0].grad = NULL;
    if (mistake(PAIRS_NOT_LISTED)) a->optimizer.n_params--;
    if (mistake(PAIRS_NOT_SAID_TO_STAY)) a->optimizer.flags = 0;
    if (mistake(PAIRS_NOT_DESCRIBED)) a->optimizer.n_params--, a->model.n_params--;
    if (mistake(PAIRS_THREADS_NOT_ADOPTED)) a->blas.parallel = duet_default_blas.parallel;
    if (mistake(PAIRS_NORM_NOT_SAID)) a->params[2].module_kind = a->params[3].module_kind = AMP_MODULE_OTHER;
    if (mistake(PAIRS_LAYERS_AROUND_PRODUCTS))
        for (size_t i = 0; i < a->model.n_ops; i++)
            if (!strcmp(a->ops[i].name, "linear")) a->ops[i].op_class = AMP_BY_LIST;
}

static amp_context *start(const amp_config *given) {
    amp_config config = *given;
    trainer_new(&t);
    memcpy(before, t.net->layers, sizeof before);
    describe(&t.adapter);
    config.emulate = mistake(PAIRS_NO_EMULATE) || (options() & ADAPTER_REPLACE) ? AMP_DEFAULT : AMP_ON;
    amp_context *context = hear_initialize(&t.adapter.model, &t.adapter.optimizer, &config);
    if (!context) return NULL;
    t.net->blas = &t.adapter.blas;
    if (mistake(PAIRS_LAYERS_PUT_BACK) || mistake(PAIRS_LAYERS_STAY_PUT_BACK)) t.net->layers[0] = before[0];
    return context;
}

static void update(int step) {
    const duet_args args = { step, RATE, MOMENTUM };
    amp_step_info info = AMP_STEP_INFO_INIT;
    if (mistake(PAIRS_NO_STEP_BEGIN)) duet_update_inlined(t.net, args);
    else if (mistake(PAIRS_NO_STEP_END)) {
        if (hear(amp_step_begin(&t.adapter.optimizer, &info)) == AMP_OK && info.action == AMP_STEP)
            duet_update_inlined(t.net, args);
    } else if (mistake(PAIRS_UPDATE_OF_BEFORE)) {
        for (int i = 0; i < t.net->n; i++)
            if (before[i].update) before[i].update(t.net->layers[i], args);
    } else duet_update(t.net, args);
}

/* The cost layer's own factor carries the scale, before forward makes the loss gradient. */
static float pass(int step) {
    float *scale = &t.net->layers[t.net->n - 1].scale;
    trainer_feed(&t, step);
    if (hear(adapter_begin(&t.adapter)) != AMP_OK) return 0.0f;
    if (mistake(PAIRS_NO_FACTOR)) {
        *scale = t.adapter.scale;
        (void)hear(amp_scale_loss_cancel(&t.adapter.scaled)); /* as if nobody had asked */
        t.adapter.scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
        (void)hear(amp_scale_loss_begin(&t.adapter.optimizer, NULL, &t.adapter.scaled));
    }
    if (mistake(PAIRS_FACTOR_TOO_LATE)) *scale = t.adapter.scale;
    duet_forward(t.net);
    duet_backward(t.net);
    if (mistake(PAIRS_UPDATE_INSIDE)) update(step);
    if (mistake(PAIRS_FACTOR_STAYS)) t.adapter.scale = *scale;
    (void)hear(adapter_end(&t.adapter));
    return duet_cost(t.net);
}

static void step(int number) {
    if (!mistake(PAIRS_UPDATE_INSIDE)) update(number);
}

static void finish(float *params) {
    if (mistake(PAIRS_NO_STEP_END)) (void)hear(amp_step_end(&t.adapter.optimizer)); /* shutdown refuses before */
    if (t.adapter.model.amp) (void)hear(adapter_stop(&t.adapter));
    memcpy(params, t.net->params, PARAM_FLOATS * sizeof(float));
    trainer_free(&t);
}

const struct mistaken host_pairs = { start, pass, step, finish };
