/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer.h"

void trainer_new(struct trainer *trainer) {
    int32_t labels[SAMPLES];
    memset(trainer, 0, sizeof *trainer);
    problem_data(trainer->x, labels);
    for (int i = 0; i < SAMPLES; i++) trainer->truth[i] = (float)labels[i];
    network *net = trainer->net = duet_new(BATCH, PARAM_FLOATS, HIDDEN);
    ck_assert_ptr_nonnull(net);
    duet_add_linear(net, INPUTS, HIDDEN);
    duet_add_norm(net);
    duet_add_relu(net);
    duet_add_linear(net, HIDDEN, CLASSES);
    duet_add_cost(net);
    ck_assert_int_eq(net->n_params, PARAM_FLOATS); /* the problem's order: problem_params' offsets hold */
    problem_start(net->params);
    adapter_init(&trainer->adapter, net, 0);
}

void trainer_free(struct trainer *trainer) { duet_free(trainer->net); }

void trainer_start(struct trainer *trainer, amp_config config, unsigned options) {
    adapter_init(&trainer->adapter, trainer->net, options);
    ck_ok(adapter_start(&trainer->adapter, config));
}

void trainer_feed(struct trainer *trainer, int step) {
    const int batch = step % BATCHES;
    trainer->net->input = trainer->x + batch * BATCH * INPUTS;
    trainer->net->truth = trainer->truth + batch * BATCH;
}

/* The inlined loop stands where a framework's train function has it: between two calls of libamp. */
void trainer_update(struct trainer *trainer, int step) {
    const duet_args args = { step, RATE, MOMENTUM };
    amp_step_info info = AMP_STEP_INFO_INIT;
    if (!(trainer->adapter.options & ADAPTER_INLINED)) {
        duet_update(trainer->net, args);
        return;
    }
    ck_ok(amp_step_begin(&trainer->adapter.optimizer, &info));
    if (info.action == AMP_STEP) duet_update_inlined(trainer->net, args);
    ck_ok(amp_step_end(&trainer->adapter.optimizer));
}

float trainer_step(struct trainer *trainer, int step) {
    const bool wired = trainer->adapter.model.amp != NULL;
    trainer_feed(trainer, step);
    if (wired) ck_ok(adapter_begin(&trainer->adapter));
    duet_forward(trainer->net);
    duet_backward(trainer->net);
    if (wired) ck_ok(adapter_end(&trainer->adapter));
    trainer_update(trainer, step);
    return duet_cost(trainer->net);
}

void trainer_run(amp_config config, unsigned options, struct curve *curve) {
    struct trainer trainer;
    trainer_new(&trainer);
    trainer_start(&trainer, config, options);
    for (int step = 0; step < STEPS; step++) curve->loss[step] = trainer_step(&trainer, step);
    ck_ok(adapter_stop(&trainer.adapter));
    memcpy(curve->params, trainer.net->params, sizeof curve->params);
    trainer_free(&trainer);
}
