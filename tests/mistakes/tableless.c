/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that call each other by name: tests/hosts/tableless's trainer as a shared object, and its adapter, which
 * is included whole, so that what it hands to initialize can be described otherwise. */
#include "kit.h"
#include "levels.h"
#include "mistakes.h"

static amp_status initialize_otherwise(amp_model *const *models, size_t n_models, amp_optimizer *const *optimizers,
                                       size_t n_optimizers, const amp_config *config, amp_context **context);
#define ADAPT_NEXT
#define N_PARAMS N_ADAPTED /* floats: the problem has another */
#define amp_initialize_many initialize_otherwise
#include "../hosts/tableless/adapter.c"
#undef amp_initialize_many
#undef N_PARAMS

void network_build(struct network *net);
float network_forward(struct network *net, const float *x, const int32_t *targets);
void network_zero_grad(struct network *net);
void network_backward(struct network *net);
void network_update(struct network *net, float rate, float momentum);
void network_free(struct network *net);

/* The one function of the trainer's that is not the adapter's: it has the executable linked with the trainer. */
float uniform(uint64_t *state);

static union {
    struct network net;
    char room[1024]; /* it has more members */
} t;
static float data[SAMPLES * INPUTS];
static int32_t labels[SAMPLES];
static const amp_config *given;
static amp_fn elsewhere[16]; /* slots that no call goes through */

static const struct {
    enum mistake_id id;
    const char *op, *schema;
} misdescribed[] = {
    { TABLELESS_NO_SEED, "crossentropy_backward", "f(float(out a!) dlogits[N,V], float dlosses[N], float probs[N,V], "
      "int32 targets[N], int32 N, int32 V) -> void" },
    { TABLELESS_GRADIENT_IS_READ, "linear_backward", "f(float?(out a!) dinp[N,C], float dweight[OC,C], "
      "float(c!) dbias[OC], float dout[N,OC], float inp[N,C], float weight[OC,C], int32 N, int32 C, int32 OC) "
      "-> void" },
    { TABLELESS_OUTPUT_IS_READ, "linear_forward", "f(float out[N,OC], float inp[N,C], float weight[OC,C], "
      "float bias[OC], int32 N, int32 C, int32 OC) -> void" },
    { TABLELESS_IN_PLACE_IS_READ, "relu_forward", "f(float x[N], int32 N) -> void" },
    { TABLELESS_STATISTICS_ARE_READ, "batchnorm_forward", "f(float(out a!) out[N,C], float mean[C], float rstd[C], "
      "float inp[N,C], float gamma[C], float beta[C], int32 N, int32 C) -> void" },
};

/* As where the compiler bound the call inside its file. */
static void lose_slot(amp_op *lost, size_t i) {
    elsewhere[i] = *lost->slot;
    lost->slot = &elsewhere[i];
}

static void describe(amp_model *m, amp_optimizer *o) {
    for (size_t i = 0; i < m->n_ops; i++) {
        const bool is_linear = !strcmp(m->ops[i].name, "linear_forward");
        if (mistake(TABLELESS_NO_CALL_SEEN) || (is_linear && mistake(TABLELESS_OP_INLINED))) lose_slot(&m->ops[i], i);
        for (size_t k = 0; k < sizeof misdescribed / sizeof *misdescribed; k++)
            if (mistake(misdescribed[k].id) && !strcmp(m->ops[i].name, misdescribed[k].op))
                m->ops[i].schema = misdescribed[k].schema;
    }
    host.event = hear_event;
    if (mistake(TABLELESS_FORWARD_NOT_SEEN)) lose_slot(m->forward, 14);
    if (mistake(TABLELESS_UPDATE_NOT_SEEN)) lose_slot(o->steps, 15);
    if (mistake(TABLELESS_NO_UPDATE)) o->n_steps = 0;
    if (mistake(TABLELESS_OTHER_SELF)) o->self = &data;
    if (mistake(TABLELESS_NO_SELF)) o->self = NULL;
    if (mistake(TABLELESS_NOT_LISTED)) o->n_params--;
    if (mistake(TABLELESS_NO_GRADIENT)) buffers[4].grad = NULL;
}

static amp_status initialize_otherwise(amp_model *const *models, size_t n_models, amp_optimizer *const *optimizers,
                                       size_t n_optimizers, const amp_config *config, amp_context **context) {
    amp_config wanted = *given;
    wanted.emulate = mistake(TABLELESS_NO_EMULATE) ? AMP_DEFAULT : config->emulate;
    describe(models[0], optimizers[0]);
    (void)n_models, (void)n_optimizers;
    *context = hear_initialize(models[0], optimizers[0], &wanted);
    return AMP_OK; /* who failed is seen by model.amp */
}

static amp_context *begin(const amp_config *config) {
    const char name[] = { 'O', (char)('0' + config->level - AMP_O0), '\0' };
    uint64_t state = 1;
    (void)uniform(&state);
    problem_data(data, labels);
    given = config;
    setenv("ADAPT_LEVEL", name, 1);
    network_build(&t.net);
    start(&t.net);
    return model.amp;
}

static float pass(int step) {
    const int at = step % BATCHES * BATCH;
    const float loss = network_forward(&t.net, data + at * INPUTS, labels + at);
    network_zero_grad(&t.net);
    scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    if (mistake(TABLELESS_NO_BRACKET)) network_backward(&t.net);
    else if (hear(amp_scale_loss_begin(&optimizer, NULL, &scaled)) == AMP_OK) {
        network_backward(&t.net);
        if (mistake(TABLELESS_CLEARED_INSIDE)) network_zero_grad(&t.net);
        if (mistake(TABLELESS_UPDATE_INSIDE)) network_update(&t.net, RATE, MOMENTUM);
        (void)hear(amp_scale_loss_end(&scaled));
    }
    return loss;
}

static void step(int number) {
    (void)number;
    if (!mistake(TABLELESS_UPDATE_INSIDE)) network_update(&t.net, RATE, MOMENTUM);
    (void)hear(amp_check(model.amp));
}

static void finish(float *values) {
    if (model.amp) (void)hear(amp_shutdown(model.amp));
    memcpy(values, t.net.params, PARAM_FLOATS * sizeof(float));
    network_free(&t.net);
}

/* ---- 200 steps of what is right, resumed ---- */

static amp_context *begin_right(const amp_config *config) {
    made = NONE;
    return begin(config);
}

static int iterate_right(int number, float *loss) {
    const float value = pass(number);
    if (loss) *loss = value;
    step(number);
    return 1;
}

static void finish_right(float *values) {
    static float unwanted[PARAM_FLOATS];
    finish(values ? values : unwanted);
}

/* Weights, gradients and momentum are thirds of one block. */
static void read_right(struct kit_state *state) {
    memcpy(state->params, t.net.params, sizeof state->params);
    memcpy(state->momentum, t.net.params + 2 * PARAM_FLOATS, sizeof state->momentum);
}

static void write_right(const struct kit_state *state) {
    memcpy(t.net.params, state->params, sizeof state->params);
    memcpy(t.net.params + 2 * PARAM_FLOATS, state->momentum, sizeof state->momentum);
}

static const struct kit_host right_host = { begin_right, iterate_right, finish_right, read_right, write_right };

TEST_RANGE(a_right_tableless_host_is_sound, AMP_O0, AMP_O0 + N_EACH_LEVEL) { kit_sound(&right_host, _i); }

const struct mistaken host_tableless = { begin, pass, step, finish };
