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

void trainer_open(struct trainer *trainer, amp_config config, unsigned options) {
    trainer_new(trainer);
    trainer_start(trainer, config, options);
}

amp_action trainer_bracket(struct trainer *trainer, int step) {
    trainer_feed(trainer, step);
    ck_ok(adapter_begin(&trainer->adapter));
    duet_forward(trainer->net);
    duet_backward(trainer->net);
    ck_ok(adapter_end(&trainer->adapter));
    return trainer->adapter.scaled.action;
}

void trainer_close(struct trainer *trainer, float *params) {
    if (trainer->adapter.model.amp) ck_ok(adapter_stop(&trainer->adapter));
    if (params) memcpy(params, trainer->net->params, PARAM_FLOATS * sizeof(float));
    trainer_free(trainer);
}

void trainer_read(const struct trainer *trainer, struct kit_state *state) {
    memcpy(state->params, trainer->net->params, sizeof state->params);
    memcpy(state->momentum, trainer->net->updates, sizeof state->momentum);
}

void trainer_write(struct trainer *trainer, const struct kit_state *state) {
    memcpy(trainer->net->params, state->params, sizeof state->params);
    memcpy(trainer->net->updates, state->momentum, sizeof state->momentum);
}

/* ---- for the kit ---- */

struct trainer trainer_of_kit;
unsigned trainer_options;

static amp_context *kit_start(const amp_config *config) {
    trainer_open(&trainer_of_kit, *config, trainer_options);
    return trainer_of_kit.adapter.model.amp;
}

static int kit_iterate(int step, float *loss) {
    const float cost = trainer_step(&trainer_of_kit, step);
    if (loss) *loss = cost;
    return trainer_of_kit.adapter.scaled.action != AMP_SKIP;
}

static void kit_finish(float *params) { trainer_close(&trainer_of_kit, params); }
static void kit_read(struct kit_state *state) { trainer_read(&trainer_of_kit, state); }
static void kit_write(const struct kit_state *state) { trainer_write(&trainer_of_kit, state); }

const struct kit_host trainer_host = { kit_start, kit_iterate, kit_finish, kit_read, kit_write };
