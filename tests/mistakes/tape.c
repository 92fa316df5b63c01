/* SPDX-License-Identifier: Apache-2.0 */
/* A tape: minitape, with the demo's adapter, described otherwise. */
#include "adapter.h"
#include "mistakes.h"
#include "problem_net.h"

#include <stdlib.h>
#include <string.h>

static struct {
    struct net net;
    mt_ops table; /* as it was before libamp */
    mt_tensor *(*forward)(struct net *self, mt_tensor *images);
    int (*step)(mt_optimizer *self);
    mt_optimizer *sgd;
    struct adapter adapter;
    amp_host right;
    float x[SAMPLES * INPUTS];
    int32_t labels[SAMPLES];
} t;

/* ---- hooks that do something else ---- */

static amp_status cast_to_fp32(void *self, void *tensor, amp_dtype to, void **out) {
    (void)to;
    return t.right.cast(self, tensor, AMP_FLOAT32, out);
}

static amp_status cast_off_tape(void *self, void *tensor, amp_dtype to, void **out) {
    const int recorded = mt_set_grad_enabled(0);
    const amp_status status = t.right.cast(self, tensor, to, out);
    mt_set_grad_enabled(recorded);
    return status;
}

static amp_status scale_by_one(void *self, void *loss, float factor, void **out) {
    (void)factor;
    return t.right.scale(self, loss, 1.0f, out);
}

static amp_status scale_off_tape(void *self, void *loss, float factor, void **out) {
    const int recorded = mt_set_grad_enabled(0);
    const amp_status status = t.right.scale(self, loss, factor, out);
    mt_set_grad_enabled(recorded);
    return status;
}

static uint64_t still(void *self, void *tensor) { return (void)self, (void)tensor, 1; }
static int32_t never(void *self) { return (void)self, 0; }

static void mistake_hooks(amp_host *host) {
    t.right = *host;
    if (mistake(TAPE_NO_CAST)) host->cast = NULL;
    if (mistake(TAPE_NO_SCALE)) host->scale = NULL;
    if (mistake(TAPE_NO_GRAD)) host->grad = NULL;
    if (mistake(TAPE_NO_SWAP_DATA)) host->swap_data = NULL;
    if (mistake(TAPE_NO_ALLOC)) host->alloc = NULL;
    if (mistake(TAPE_CAST_TO_FP32)) host->cast = cast_to_fp32;
    if (mistake(TAPE_CAST_OFF_TAPE)) host->cast = cast_off_tape;
    if (mistake(TAPE_SCALE_BY_ONE)) host->scale = scale_by_one;
    if (mistake(TAPE_SCALE_OFF_TAPE)) host->scale = scale_off_tape;
    if (mistake(TAPE_VERSION_STANDS)) host->version = still;
    if (mistake(TAPE_NEVER_RECORDS)) host->grad_enabled = never;
}

/* ---- the adapter ---- */

static void describe(struct adapter *a) {
    adapter_init(a, &t.net, t.sgd, hear_event, NULL);
    mistake_hooks(&a->host);
    if (mistake(TAPE_OTHER_SELF) || mistake(TAPE_OTHER_SELF_OVERFLOWS)) a->optimizer.self = &t;
    if (mistake(TAPE_OTHER_FORWARD_SELF)) a->model.self = &t.sgd;
    if (mistake(TAPE_NO_STEP) || mistake(TAPE_NO_STEP_OVERFLOWS)) a->optimizer.n_steps = 0;
    if (mistake(TAPE_NO_ZERO_GRAD)) a->optimizer.n_zero_grads = 0;
    if (mistake(TAPE_NOT_LISTED)) a->optimizer.n_params--;
    if (mistake(TAPE_NO_FORWARD)) a->model.forward = NULL;
    if (mistake(TAPE_NULL_PARAMETER)) a->params[W2].tensor = NULL;
    for (int i = GAMMA; mistake(TAPE_NORM_NOT_SAID) && i <= BETA; i++) a->params[i].module_kind = AMP_MODULE_OTHER;
    for (int i = 0; i < ADAPTER_OPS; i++) {
        if (mistake(TAPE_WEIGHT_IS_WRITTEN) && !strcmp(a->ops[i].name, "linear"))
            a->ops[i].schema = "linear(Tensor input, Tensor(a!) weight, Tensor? bias) -> Tensor";
        if (mistake(TAPE_RETURNS_NOTHING) && !strcmp(a->ops[i].name, "linear"))
            a->ops[i].schema = "linear(Tensor input, Tensor weight, Tensor? bias)";
        if (mistake(TAPE_UNKNOWN_TYPE) && !strcmp(a->ops[i].name, "linear"))
            a->ops[i].schema = "linear(Tensr input, Tensor weight, Tensor? bias) -> Tensor";
    }
}

static amp_context *start(const amp_config *given) {
    mt_tensor *params[NET_TENSORS];
    amp_config wanted = *given, *config = &wanted;
    if (mistake(TAPE_OTHER_SELF_OVERFLOWS) || mistake(TAPE_NO_STEP_OVERFLOWS)) wanted.init_scale = 0x1p24f;
    problem_data(t.x, t.labels);
    problem_net_init(&t.net);
    t.table = *t.net.ops, t.forward = t.net.forward;
    t.sgd = mt_sgd_new(params, net_params(&t.net, params), RATE, MOMENTUM, 0.0f);
    ck_tensor(t.sgd);
    t.step = t.sgd->step;
    describe(&t.adapter);
    amp_context *context = hear_initialize(&t.adapter.model, &t.adapter.optimizer, config);
    if (context && mistake(TAPE_TWICE)) (void)hear_initialize(&t.adapter.model, &t.adapter.optimizer, config);
    if (mistake(TAPE_TABLE_OF_BEFORE)) t.net.ops = &t.table;
    return context;
}

static void backward(mt_tensor *loss) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    mt_tensor *given = mistake(TAPE_NO_LOSS) ? NULL : loss;
    if (hear(amp_scale_loss_begin(&t.adapter.optimizer, given, &scaled)) != AMP_OK) return;
    const bool unscaled = mistake(TAPE_UNSCALED_LOSS) || mistake(TAPE_NO_LOSS) || mistake(TAPE_NO_SCALE);
    if (!mistake(TAPE_NO_BACKWARD)) (void)mt_backward(unscaled ? loss : scaled.loss);
    if (mistake(TAPE_CLEARED_INSIDE)) t.sgd->zero_grad(t.sgd);
    if (mistake(TAPE_STEP_INSIDE)) t.sgd->step(t.sgd);
    if (!mistake(TAPE_NO_END)) (void)hear(amp_scale_loss_end(&scaled));
}

static float pass(int step) {
    float value = 0.0f;
    mt_tensor *y, *x = problem_net_batch(t.x, t.labels, step, &y);
    mt_tensor *scores = mt_then(x, (mistake(TAPE_FORWARD_OF_BEFORE) ? t.forward : t.net.forward)(&t.net, x));
    mt_tensor *loss = mt_then(scores, net_loss(&t.net, scores, y));
    mt_release(y);
    if (loss) value = (float)mt_get(loss, 0);
    t.sgd->zero_grad(t.sgd);
    if (loss) backward(loss);
    if (loss) mt_release(loss);
    return value;
}

static void step(int number) {
    (void)number;
    if (!mistake(TAPE_STEP_INSIDE)) (void)(mistake(TAPE_STEP_OF_BEFORE) ? t.step : t.sgd->step)(t.sgd);
    (void)hear(amp_check(t.adapter.model.amp));
}

static void finish(float *params) {
    t.net.ops = mt_ops_default();
    if (t.adapter.model.amp) (void)hear(amp_shutdown(t.adapter.model.amp));
    for (int p = 0; p < N_PARAMS; p++) mt_read(t.net.list[p].tensor, params + problem_params[p].offset);
    mt_optimizer_free(t.sgd);
    net_done(&t.net);
    memset(&t, 0, sizeof t);
}

const struct mistaken host_tape = { start, pass, step, finish };
