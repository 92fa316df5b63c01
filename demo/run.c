/* SPDX-License-Identifier: Apache-2.0 */
#include <amp_diagnostics.h>
#include <amp_observe.h>
#include "run.h"

#include "kernels.h"
#include "packing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PI 3.14159265358979323846
#define MOMENTUM 0.9
#define WEIGHT_DECAY 1e-4
#define ADAM_EPS 1e-8

struct trainer {
    const struct run_setup *setup;
    const struct digits *data;
    const struct run_watch *watch;
    struct run_result *result;
    struct net net;
    mt_optimizer *optimizer;
    mt_tensor *curves; /* [2][all steps]: losses and scales, where the network is: read once, when all is done */
    struct adapter adapter;
    amp_fused fused; /* of libamp's optimizer, where it steps */
    amp_optim rule;
    double samples; /* so far, those of skipped steps included */
    struct packing packing;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int fail(struct trainer *t, const char *where, const char *why) {
    snprintf(t->result->error, sizeof t->result->error, "%s: %s", where, why);
    return -1;
}

static int fail_amp(struct trainer *t, const char *where) { return fail(t, where, amp_last_error()); }

/* An op that failed: libamp keeps an error that it met inside a wrapped call. */
static int fail_op(struct trainer *t, const char *where) {
    if (t->adapter.model.amp && amp_check(t->adapter.model.amp) != AMP_OK) return fail_amp(t, where);
    return fail(t, where, mt_error());
}

/* ---- one step ---- */

/* At this step, in the one row of the curves or the other; the number is where the network is. */
static int note(struct trainer *t, int row, mt_dtype dtype, const void *number) {
    const size_t at = (size_t)(row * t->curves->shape[1] + t->result->steps);
    return mt_note(t->curves, at, dtype, number) == 0 ? 0 : fail(t, "curves", mt_error());
}

static int note_loss(struct trainer *t, const mt_tensor *loss) { return note(t, 0, loss->dtype, loss->storage->data); }

/* A scale that the host decides is in its own memory. */
static int note_scale(struct trainer *t, const float *scale, int there) {
    if (there || t->setup->device == MT_CPU) return note(t, 1, MT_F32, scale);
    mt_set(t->curves, (size_t)(t->curves->shape[1] + t->result->steps), (double)*scale);
    return 0;
}

/* The bracket: the loss is scaled, the gradients that backward makes are unscaled and judged. */
static int backward_scaled(struct trainer *t, mt_tensor *loss) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    if (amp_scale_loss_begin(&t->adapter.optimizer, loss, &scaled) != AMP_OK)
        return fail_amp(t, "amp_scale_loss_begin");
    if (note_scale(t, scaled.scale, scaled.device.type > 1) != 0 || mt_backward(scaled.loss) != 0) {
        amp_scale_loss_cancel(&scaled);
        return *t->result->error ? -1 : fail_op(t, "backward");
    }
    return amp_scale_loss_end(&scaled) == AMP_OK ? 0 : fail_amp(t, "amp_scale_loss_end");
}

static int backward_plain(struct trainer *t, mt_tensor *loss) {
    static const float one = 1.0F;
    if (note_scale(t, &one, 0) != 0) return -1;
    return mt_backward(loss) == 0 ? 0 : fail_op(t, "backward");
}

/* Under a level the host's step is wired: libamp's wrapper steps or skips; on a device it gets a pointer. Or there is
 * libamp's own optimizer. */
static int step(struct trainer *t) {
    if (t->adapter.optimizer.fused)
        return kernels_step(&t->adapter, t->optimizer) == AMP_OK ? 0 : fail_amp(t, "amp_fused_step");
    if (t->setup->config.level && t->setup->device != MT_CPU) {
        const amp_status status = adapter_step(&t->adapter, t->optimizer);
        return status == AMP_OK             ? 0
            : status == AMP_ERR_HOST_FAILED ? fail_op(t, "step")
                                            : fail_amp(t, "amp_step_begin");
    }
    return t->optimizer->step(t->optimizer) < 0 ? fail_op(t, "step") : 0;
}

static int train_step(struct trainer *t, mt_tensor *images, mt_tensor *labels) {
    const float multiplier = (float)t->setup->loss_multiplier;
    mt_tensor *scores = mt_then(images, t->net.forward(&t->net, images));
    mt_tensor *loss = mt_then(scores, net_loss(&t->net, scores, labels));
    int status;
    mt_release(labels);
    if (loss && note_loss(t, loss) != 0) return mt_release(loss), -1;
    if (loss && multiplier != 1.0F) loss = mt_then(loss, t->net.ops->scale(loss, multiplier));
    if (!loss) return fail_op(t, "forward");
    t->optimizer->zero_grad(t->optimizer);
    status = t->setup->config.level ? backward_scaled(t, loss) : backward_plain(t, loss);
    mt_release(loss);
    if (status != 0) return -1;
    if (step(t) != 0) return -1;
    t->result->steps++;
    return 0;
}

/* ---- all steps ---- */

/* To where the network is. Both are replaced; 0, or -1. */
static int move_batch(struct trainer *t, mt_tensor **images, mt_tensor **labels) {
    *images = mt_then(*images, mt_to(*images, t->setup->device));
    *labels = mt_then(*labels, mt_to(*labels, t->setup->device));
    if (*images && *labels) return 0;
    mt_release(*images), mt_release(*labels);
    return fail(t, "batch", mt_error());
}

/* The only time that the host waits for a device. */
static int read_curves(struct trainer *t, int first_of_last_epoch) {
    struct run_result *result = t->result;
    const int steps = t->curves->shape[1];
    float *both = malloc(mt_numel(t->curves) * sizeof *both);
    double sum = 0.0;
    int status = both ? 0 : fail(t, "curves", "out of memory");
    if (both) mt_read(t->curves, both);
    if (both && mt_device_wait(t->setup->device) != 0) status = fail(t, "training", mt_error());
    for (int i = 0; i < result->steps && status == 0; i++) {
        result->losses[i] = both[i];
        result->scales[i] = both[steps + i];
        if (i >= first_of_last_epoch) sum += (double)both[i];
    }
    free(both);
    result->train_loss = sum / (result->steps - first_of_last_epoch);
    return status;
}

static int is_done(const struct trainer *t) { return t->setup->steps && t->result->steps >= t->setup->steps; }

static int train_epoch(struct trainer *t, int number) {
    struct digits_epoch epoch;
    mt_tensor *images, *labels;
    int more = 0;
    t->optimizer->lr = (float)(t->setup->lr * 0.5 * (1.0 + cos(PI * number / t->setup->epochs)));
    if (t->setup->optimizer == RUN_SGD) t->optimizer->lr /= (float)t->setup->loss_multiplier;
    digits_epoch_start(&epoch, t->data, t->setup->batch, t->setup->seed * 1000 + (uint64_t)number);
    while (!is_done(t) && (more = digits_epoch_next(&epoch, &images, &labels)) == 1) {
        t->samples += images->shape[0];
        if (move_batch(t, &images, &labels) != 0 || train_step(t, images, labels) != 0) return -1;
    }
    return more < 0 ? fail(t, "batch", mt_error()) : 0;
}

static int train(struct trainer *t) {
    struct run_result *result = t->result;
    int first = 0;
    if (mt_device_wait(t->setup->device) != 0) return fail(t, "training", mt_error());
    const double begin = now();
    mt_mem_reset_peak();
    for (int i = 0; i < t->setup->epochs && !is_done(t); i++) {
        first = result->steps;
        if (train_epoch(t, i) != 0) return -1;
        if (t->watch->epoch) t->watch->epoch(t->watch->self, i + 1, t->setup->epochs);
    }
    if (read_curves(t, first) != 0) return -1;
    result->seconds = now() - begin;
    result->samples_per_second = t->samples / result->seconds;
    result->grad_bytes = mt_mem_peak(MT_MEM_GRADIENT);
    result->activation_peak_bytes = mt_mem_peak(MT_MEM_ACTIVATION);
    return 0;
}

/* Under the same level as the training. */
static int evaluate(struct trainer *t) {
    const int recorded = mt_set_grad_enabled(0), n = t->setup->tested ? t->setup->tested : DIGITS_TEST;
    mt_tensor *images, *labels, *scores = NULL;
    t->net.training = 0;
    if (digits_batch(t->data, t->data->test, n, &images, &labels) == 0) {
        images = mt_then(images, mt_to(images, t->setup->device));
        scores = images ? mt_then(images, t->net.forward(&t->net, images)) : NULL;
        scores = mt_then(scores, mt_to(scores, MT_CPU));
        if (scores) t->result->test_accuracy = 100.0 * net_count_correct(scores, labels) / n;
        mt_release(labels);
    }
    mt_set_grad_enabled(recorded);
    if (!scores) return fail_op(t, "test");
    mt_release(scores);
    return 0;
}

/* ---- before and after ---- */

static mt_optimizer *new_optimizer(const struct run_setup *setup, const struct net *net) {
    mt_tensor *params[NET_TENSORS];
    const size_t n = net_params(net, params);
    const float decay = (float)(WEIGHT_DECAY * setup->loss_multiplier);
    if (setup->optimizer == RUN_SGD) return mt_sgd_new(params, n, (float)setup->lr, (float)MOMENTUM, decay);
    return mt_adam_new(params, n, (float)setup->lr, 0.9F, 0.999F, (float)(ADAM_EPS * setup->loss_multiplier), decay);
}

static void pass_event(void *self, const amp_event *event) {
    const struct trainer *t = self;
    if (t->watch->event) t->watch->event(t->watch->self, event);
}

static mt_dtype low_type(amp_level level) {
    switch (level) {
#define LEVEL(level, value, text, low, model, casts_ops, ...)                                                          \
    case level: return casts_ops || model == low ? (low == AMP_BFLOAT16 ? MT_BF16 : MT_F16) : MT_F32;
        AMP_LEVEL_MAP(LEVEL)
#undef LEVEL
    default: return MT_F32;
    }
}

/* Of the level, or as the configuration has it. */
static int has_masters(const amp_config *config) {
    amp_config resolved = AMP_CONFIG_INIT;
    if (amp_config_resolve(config, &resolved) != AMP_OK) return 0;
    return resolved.master_weights == AMP_ON || resolved.master_weights == AMP_SPLIT;
}

/* libamp's kernels for what the level makes 16-bit. Where it keeps masters, its optimizer writes them and the
 * parameters in one pass; everywhere else the host's steps. */
static int add_kernels(struct trainer *t) {
    const amp_config *config = &t->setup->config;
    if (t->setup->host_kernels) return 0;
    kernels_add(&t->adapter, t->setup->fp32_kernels);
    if (has_masters(config)) kernels_fuse(&t->adapter, &t->fused, &t->rule);
    if (!t->setup->gate || t->setup->device != MT_CPU) return 0; /* of a device's tensor cores libamp knows enough */
    const mt_dtype low = low_type(config->level);
    const int status = kernels_measure(&t->net, low, t->setup->batch, t->setup->fp32_kernels);
    return status == 0 ? 0 : fail(t, "gate", mt_error());
}

/* Each step, for a survey: run_watch.trained asks for it. */
static amp_status observe(const struct trainer *t) {
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    options.every = 1;
    return amp_observe(t->adapter.model.amp, &options);
}

/* The one call that a level costs. Masters are what it made the host allocate besides parameters. */
static int open_level(struct trainer *t) {
    amp_model *model = &t->adapter.model;
    amp_optimizer *optimizer = &t->adapter.optimizer;
    const size_t other = mt_mem_now(MT_MEM_OTHER);
    amp_config config = t->setup->config;
    adapter_init(&t->adapter, &t->net, t->optimizer, pass_event, t);
    if (config.level && add_kernels(t) != 0) return -1;
    if (t->setup->gate) config.gate = AMP_ON;
    if (config.level && amp_initialize_many(&model, 1, &optimizer, 1, &config, NULL) != AMP_OK)
        return fail_amp(t, "amp_initialize");
    if (config.level && config.observe == AMP_ON && observe(t) != AMP_OK) return fail_amp(t, "amp_observe");
    if (config.level && t->setup->gate && t->setup->device == MT_CPU &&
        kernels_gate(t->adapter.model.amp, low_type(config.level), t->setup->batch) != AMP_OK)
        return fail_amp(t, "amp_gate_set");
    if (t->setup->activations) packing_begin(&t->packing, t->setup->activations, t->setup->seed, t->adapter.model.amp);
    t->result->param_bytes = mt_mem_now(MT_MEM_PARAMETER);
    t->result->master_bytes = mt_mem_now(MT_MEM_OTHER) - other;
    return 0;
}

static int close_level(struct trainer *t) {
    packing_end();
    amp_context *context = t->adapter.model.amp;
    amp_record record = AMP_RECORD_INIT;
    t->result->loss_scale = 1.0;
    if (!context) return 0;
    snprintf(t->result->health, sizeof t->result->health, "%s", adapter_health(&t->adapter));
    if (t->watch->trained) t->watch->trained(t->watch->self, context);
    if (amp_get_record(context, 0, &record) == AMP_OK) {
        t->result->loss_scale = (double)record.scale_after;
        t->result->skipped = (int)record.skipped;
    }
    return amp_shutdown(context) == AMP_OK ? 0 : fail_amp(t, "amp_shutdown");
}

static int keep_weights(struct trainer *t) {
    struct run_result *result = t->result;
    size_t n = 0;
    for (int i = 0; i < t->net.n_list; i++) n += mt_numel(t->net.list[i].tensor);
    result->weights = malloc(n * sizeof *result->weights);
    if (!result->weights) return fail(t, "weights", "out of memory");
    for (int i = 0; i < t->net.n_list; i++) {
        mt_read(t->net.list[i].tensor, result->weights + result->n_weights);
        result->n_weights += mt_numel(t->net.list[i].tensor);
    }
    return mt_device_wait(t->setup->device) == 0 ? 0 : fail(t, "weights", mt_error());
}

/* The network is made on the CPU, the same for every device. */
static int move_net(struct trainer *t) {
    for (int i = 0; i < t->net.n_list; i++)
        if (mt_move(t->net.list[i].tensor, t->setup->device) != 0) return fail(t, "network", mt_error());
    return 0;
}

static int make_curves(struct trainer *t, int steps) {
    const int shape[] = { 2, steps };
    t->result->losses = calloc((size_t)steps, sizeof(float));
    t->result->scales = calloc((size_t)steps, sizeof(float));
    if (!t->result->losses || !t->result->scales) return fail(t, "curves", "out of memory");
    t->curves = mt_tensor_new(MT_F32, 2, shape, MT_MEM_OTHER);
    return t->curves && mt_move(t->curves, t->setup->device) == 0 ? 0 : fail(t, "curves", mt_error());
}

static int open_trainer(struct trainer *t) {
    const int per_epoch = (DIGITS_TRAIN + t->setup->batch - 1) / t->setup->batch;
    if (make_curves(t, per_epoch * t->setup->epochs) != 0) return -1;
    if (net_init(&t->net, mt_ops_default(), t->setup->seed) != 0) return fail(t, "network", mt_error());
    if (move_net(t) != 0) return -1;
    t->optimizer = new_optimizer(t->setup, &t->net);
    return t->optimizer ? open_level(t) : fail(t, "optimizer", mt_error());
}

static void close_trainer(struct trainer *t) {
    mt_optimizer_free(t->optimizer);
    net_done(&t->net);
    mt_release(t->curves);
}

static const char *low_dtype(amp_level level) {
    const mt_dtype low = low_type(level);
    return low == MT_F16 ? "fp16" : low == MT_BF16 ? "bf16" : "none";
}

int run_training(const struct run_setup *setup, const struct digits *data, const struct run_watch *watch,
                 struct run_result *result) {
    static const struct run_watch nobody;
    struct trainer t = { .setup = setup, .data = data, .watch = watch ? watch : &nobody, .result = result };
    int status;
    *result = (struct run_result){ .label = setup->label, .low_dtype = low_dtype(setup->config.level),
                                   .seed = setup->seed, .batch = setup->batch, .lr = setup->lr,
                                   .device = setup->device };
    status = open_trainer(&t);
    if (status == 0) status = train(&t);
    if (status == 0) status = evaluate(&t);
    if (status == 0) status = close_level(&t);
    else packing_end(), amp_shutdown(t.adapter.model.amp); /* NULL is fine */
    if (status == 0) status = keep_weights(&t);
    close_trainer(&t);
    return status;
}

void run_result_done(struct run_result *result) {
    free(result->losses);
    free(result->scales);
    free(result->weights);
    result->losses = result->scales = result->weights = NULL;
}

int run_check(const struct run_setup *setup, char *error, size_t error_size) {
    static const struct run_watch nobody;
    struct run_result result = { .label = setup->label };
    struct trainer t = { .setup = setup, .watch = &nobody, .result = &result };
    int status = open_trainer(&t);
    if (status == 0) status = close_level(&t);
    if (status != 0) snprintf(error, error_size, "%s", result.error);
    close_trainer(&t);
    run_result_done(&result);
    return status;
}
