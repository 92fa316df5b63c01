/* SPDX-License-Identifier: Apache-2.0 */
/* What it costs a host to be wired: the demo's training at O0 against the same training without libamp, on its data;
 * and to be observed: at O2, against the same without. */
#include "bench.h"

#include "adapter.h"
#include "digits.h"

#include <amp_diagnostics.h>
#include <amp_observe.h>

#include <stdlib.h>
#include <string.h>

enum { BATCH = 32, ROUNDS = 501 }; /* BATCH and the optimizer are the demo's defaults */

struct training {
    struct net net;
    mt_ops ops; /* its own table, so that wiring one leaves the other alone */
    mt_optimizer *optimizer;
    struct adapter adapter;
    struct digits_epoch epoch;
    uint64_t epochs, steps;
    float loss;
};

static struct digits *digits;

static void must(const void *result, const char *what) {
    if (!result) bench_must(1, what);
}

static void load_digits(void) {
    char path[4096], error[256];
    digits = digits_load(beside_program(path, sizeof path, "digits.csv.gz"), error, sizeof error);
    must(digits, error);
}

/* Full batches alone, so that every step is the same work. */
static void next_batch(struct training *t, mt_tensor **images, mt_tensor **labels) {
    for (;;) {
        if (t->epochs && digits_epoch_next(&t->epoch, images, labels) == 1) {
            if ((*images)->shape[0] == BATCH) return;
            mt_release(*images), mt_release(*labels);
        }
        digits_epoch_start(&t->epoch, digits, BATCH, ++t->epochs);
    }
}

static void backward(struct training *t, mt_tensor *loss) {
    if (!t->adapter.model.amp) {
        bench_must(mt_backward(loss) != 0, mt_error());
        return;
    }
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    bench_must(amp_scale_loss_begin(&t->adapter.optimizer, loss, &scaled), "amp_scale_loss_begin");
    bench_must(mt_backward(scaled.loss) != 0, mt_error());
    bench_must(amp_scale_loss_end(&scaled), "amp_scale_loss_end");
}

/* As demo/run.c has it. */
static void train_step(void *data) {
    struct training *t = data;
    mt_tensor *images, *labels;
    next_batch(t, &images, &labels);
    mt_tensor *scores = mt_then(images, t->net.forward(&t->net, images));
    must(scores, "the demo's forward");
    mt_tensor *loss = mt_then(scores, net_loss(&t->net, scores, labels));
    must(loss, "the demo's loss");
    mt_release(labels);
    t->loss = (float)mt_get(loss, 0);
    t->optimizer->zero_grad(t->optimizer);
    backward(t, loss);
    mt_release(loss);
    bench_must(t->optimizer->step(t->optimizer) < 0, "the demo's step");
    t->steps++;
}

static void start(struct training *t) {
    mt_tensor *params[NET_TENSORS];
    memset(t, 0, sizeof *t);
    t->ops = *mt_ops_default();
    bench_must(net_init(&t->net, &t->ops, 1) != 0, mt_error());
    const size_t n = net_params(&t->net, params);
    t->optimizer = mt_sgd_new(params, n, 0.05F, 0.9F, 1e-4F);
    must(t->optimizer, "the demo's optimizer");
}

static void end(struct training *t) {
    bench_must(amp_shutdown(t->adapter.model.amp), "amp_shutdown");
    mt_optimizer_free(t->optimizer);
    net_done(&t->net);
}

void bench_demo(void) {
    static struct training wired, plain;
    load_digits();
    start(&wired), start(&plain);
    adapter_init(&wired.adapter, &wired.net, wired.optimizer, NULL, NULL);
    bench_must(amp_initialize(&wired.adapter.model, &wired.adapter.optimizer, AMP_O0), "amp_initialize");
    bench_run(&(struct bench_case){ .group = "demo", .name = "the demo's training step, O0", .size = "batch 32",
                                    .unit = "ms",
                                    .calls = 1, .ours = train_step, .ours_data = &wired, .reference = train_step,
                                    .reference_data = &plain, .reference_name = "without libamp", .goal = 0.99,
                                    .rounds = ROUNDS });
    while (wired.steps < plain.steps) train_step(&wired);
    while (plain.steps < wired.steps) train_step(&plain);
    bench_must(memcmp(&wired.loss, &plain.loss, sizeof plain.loss) != 0,
               "the same loss, to the bit, after as many steps");
    end(&wired), end(&plain);
    free(digits);
}

/* ---- observed ---- */

static void wire(struct training *t) {
    amp_model *model = &t->adapter.model;
    amp_optimizer *optimizer = &t->adapter.optimizer;
    amp_config config = AMP_CONFIG_INIT;
    start(t);
    adapter_init(&t->adapter, &t->net, t->optimizer, NULL, NULL);
    config.level = AMP_O2, config.observe = AMP_ON, config.log = AMP_LOG_OFF;
    bench_must(amp_initialize_many(&model, 1, &optimizer, 1, &config, NULL), "amp_initialize_many");
}

enum { PERIOD = 200 }; /* amp_observe_options.every by default: as many steps have one that is observed */

static void train_period(void *data) {
    for (int i = 0; i < PERIOD; i++) train_step(data);
}

void bench_observe(void) {
    static struct training observed, plain;
    amp_observe_options each = AMP_OBSERVE_OPTIONS_INIT;
    each.every = 1;
    load_digits();
    wire(&observed), wire(&plain);
    struct bench_case c = { .group = "observe", .name = "not observed any more", .size = "the demo's step, O2",
                            .unit = "ms", .calls = 1, .ours = train_step, .ours_data = &observed,
                            .reference = train_step, .reference_data = &plain, .reference_name = "never observed",
                            .goal = 0.99, .rounds = ROUNDS };
    bench_must(amp_observe(observed.adapter.model.amp, NULL), "amp_observe");
    train_step(&observed);
    bench_must(amp_observe_stop(observed.adapter.model.amp), "amp_observe_stop");
    bench_run(&c);
    c.name = "one of 200 (default)", c.goal = 0.98, c.calls = PERIOD, c.rounds = 0;
    c.ours = c.reference = train_period;
    bench_must(amp_observe(observed.adapter.model.amp, NULL), "amp_observe");
    bench_run(&c);
    c.name = "all of them, everything", c.goal = 0.0, c.calls = 1;
    c.ours = c.reference = train_step;
    bench_must(amp_observe(observed.adapter.model.amp, &each), "amp_observe");
    bench_run(&c);
    end(&observed), end(&plain);
    free(digits);
}
