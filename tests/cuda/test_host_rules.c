/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What trainings may be made of, over one device's memory, a device's and the CPU's, and two devices': every rule of
 * libamp's own optimizers, several losses, delays, cancelled brackets, ranks, clipping, parameters that come later,
 * checkpoints. Each against the same on the CPU.
 */
#include "host.h"

#include "../kernels/support.h"
#include "../support/levels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ITERATIONS = 24, ELEMENTS = 8192, LOSSES = 2 };
enum memories { ON_CPU, ONE, MIXED, TWO, TWO_MIXED };
enum { DELAYS = 1, CANCELS = 2, RANKS = 4, LATE = 8, CLIPS = 16, TWO_GROUPS = 32, FIXED = 64, UNCHECKED = 128,
       EMULATES = 256, KNOWS = 512, DYNAMIC = 1024 };

struct kind {
    amp_optim_kind rule;
    uint32_t rule_flags; /* more of them */
    amp_level level;
    int losses, brackets; /* brackets: of an iteration */
    int how;
};

static struct host *make(const struct kind *kind, enum memories memories, enum stepping stepping) {
    const bool fixed = kind->how & FIXED;
    if (memories >= TWO) return host_new_on_two(memories == TWO_MIXED, fixed, stepping);
    return host_new(memories == ON_CPU, memories == MIXED, fixed, stepping);
}

static int iteration; /* for reduce, which has no other way to know */

static amp_status reduce(void *self, amp_reduction reduction, double *values, size_t n) {
    (void)self;
    if (reduction == AMP_REDUCE_MAX && n && iteration % 6 == 4) values[0] = 1.0; /* an overflow on another rank */
    if (reduction == AMP_REDUCE_SUM)
        for (size_t i = 0; i < n; i++) values[i] *= 2.0; /* another rank like this one */
    return AMP_OK;
}

static amp_optim rules[2];
static uint32_t group_of[HOST_PARAMS] = { 0, 1, 0, 1, 1 };

static void choose_rules(struct host *host, const struct kind *kind) {
    for (int i = 0; i < 2; i++) {
        rules[i] = (amp_optim)AMP_OPTIM_INIT;
        ck_assert_int_eq(amp_optim_defaults(kind->rule, &rules[i]), AMP_OK);
        rules[i].flags |= kind->rule_flags;
        rules[i].lr = i ? 0.03125 : 0.0625;
        rules[i].weight_decay = 0.0078125;
        if (kind->rule == AMP_OPTIM_SGD || kind->rule == AMP_OPTIM_LARC) rules[i].momentum = 0.875;
    }
    host->fused.groups = rules;
    host->fused.n_groups = kind->how & TWO_GROUPS ? 2 : 1;
    host->fused.group_of = kind->how & TWO_GROUPS ? group_of : NULL;
}

static amp_context *initialize(struct host *host, const struct kind *kind) {
    amp_model *model = &host->model;
    amp_optimizer *optimizer = &host->optimizer;
    amp_config config = AMP_CONFIG_INIT;
    amp_context *context = NULL;
    config.level = kind->level;
    config.num_losses = (uint32_t)kind->losses;
    config.window = 4;
    if (kind->how & DYNAMIC) config.loss_scale = AMP_DYNAMIC;
    if (kind->how & EMULATES) config.emulate = AMP_ON, host->hooks.swap_data = NULL;
    choose_rules(host, kind);
    if (kind->how & RANKS) host->hooks.reduce = reduce, optimizer->flags |= AMP_OPTIMIZER_SHARDED;
    if (kind->how & LATE) model->n_params = optimizer->n_params = HOST_PARAMS - 1;
    ck_assert_msg(amp_initialize_many(&model, 1, &optimizer, 1, &config, &context) == AMP_OK, "%s", amp_last_error());
    return context;
}

static void bracket(struct host *host, amp_context *context, const struct kind *kind, int k) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_optimizer *optimizer = &host->optimizer;
    const bool last = k + 1 >= kind->brackets;
    const uint32_t flags = last ? 0
        : kind->how & DELAYS    ? AMP_DELAY_UNSCALE
        : kind->how & UNCHECKED ? AMP_DELAY_OVERFLOW_CHECK
                                : 0;
    /* 1e36: the scale makes it infinite; 1e5: fp16 does */
    host_set_targets(host, (iteration + k) % 7 == 3 ? INFINITY : (iteration + 2 * k) % 11 == 5 ? 1e36f :
                     (iteration + k) % 13 == 6 ? 1e5f : 0.25f);
    ck_assert_msg(amp_scale_loss_begin_many(context, &optimizer, 1, (uint32_t)(k % kind->losses), flags, &host->loss,
                                            &scaled) == AMP_OK,
                  "%s", amp_last_error());
    host_backward(host, scaled.loss, 1.0f);
    if (kind->how & CANCELS && (iteration + k) % 5 == 2) ck_assert_int_eq(amp_scale_loss_cancel(&scaled), AMP_OK);
    else ck_assert_msg(amp_scale_loss_end(&scaled) == AMP_OK, "%s", amp_last_error());
}

static void iterate(struct host *host, amp_context *context, const struct kind *kind, int i) {
    iteration = i;
    if (kind->how & LATE && i == 5)
        ck_assert_msg(amp_add_params(&host->optimizer, &host->listed[HOST_PARAMS - 1], 1) == AMP_OK, "%s",
                      amp_last_error());
    host_clear(host);
    for (int k = 0; k < kind->brackets; k++) bracket(host, context, kind, k);
    if (kind->how & CLIPS && i % 4 == 1) ck_assert_int_eq(amp_clip_grad_norm(&host->optimizer, 2.0f, NULL), AMP_OK);
    if (kind->how & CLIPS && i % 4 == 3) ck_assert_int_eq(amp_clip_grad_value(&host->optimizer, 0.0625f), AMP_OK);
    host_step(host, kind->how & KNOWS ? STEP_KNOWS : STEP_FUSED);
}

struct result {
    float weights[ELEMENTS], masters[ELEMENTS];
    amp_record records[LOSSES];
};

static void train(const struct kind *kind, enum memories memories, struct result *result) {
    struct host *host = make(kind, memories, kind->how & KNOWS ? STEP_KNOWS : STEP_FUSED);
    amp_context *context = initialize(host, kind);
    for (int i = 0; i < ITERATIONS; i++) iterate(host, context, kind, i);
    host_clear(host);
    for (int k = 0; k < kind->losses; k++) {
        result->records[k] = (amp_record)AMP_RECORD_INIT;
        ck_assert_int_eq(amp_get_record(context, (uint32_t)k, &result->records[k]), AMP_OK);
        const char *name = result->records[k].first_nonfinite; /* it ends with the context */
        result->records[k].first_nonfinite = !name ? NULL : strcmp(name, "c") ? "another" : "c";
    }
    host_read(host, result->weights, ELEMENTS);
    ck_assert_msg(amp_shutdown(context) == AMP_OK, "%s", amp_last_error());
    host_read(host, result->masters, ELEMENTS);
    host_free(host);
}

static void compare(const struct result *a, const struct result *b, const struct kind *kind, float within) {
    for (size_t i = 0; i < host_elements(); i++) {
        const float x = a->masters[i], y = b->masters[i];
        const bool nan = isnan(x) && isnan(y) && !level_is_dynamic(kind->level); /* those skip */
        ck_assert_msg(nan || fabsf(x - y) <= within, "element %zu: %a there, %a here", i, (double)y, (double)x);
        ck_assert(nan || within > 0.0f || a->weights[i] == b->weights[i]);
    }
    for (int k = 0; k < kind->losses; k++) {
        const amp_record *x = &a->records[k], *y = &b->records[k];
        ck_assert_msg(x->brackets == y->brackets && x->skipped == y->skipped && x->scale_after == y->scale_after &&
                          x->scale_before == y->scale_before && x->unskipped == y->unskipped && x->action == y->action,
                      "loss %d: %d of %d brackets skipped, not %d of %d", k, (int)y->skipped, (int)y->brackets,
                      (int)x->skipped, (int)x->brackets);
        ck_assert_pstr_eq(x->first_nonfinite, y->first_nonfinite);
    }
}

static float here_and_there(const struct kind *kind, enum memories memories, float within) {
    static struct result here, there;
    if (memories >= TWO && !device.second_stream) return 0.0f;
    train(kind, ON_CPU, &here);
    train(kind, memories, &there);
    compare(&here, &there, kind, within);
    return here.masters[0];
}

/* ---- rules ---- */

static const struct kind elementwise[] = {
    { AMP_OPTIM_SGD, 0, AMP_O2, 1, 1, 0 },
    { AMP_OPTIM_SGD, AMP_OPTIM_NESTEROV, AMP_O2, 1, 1, TWO_GROUPS },
    { AMP_OPTIM_ADAM, 0, AMP_O2, 1, 1, 0 },
    { AMP_OPTIM_ADAM, AMP_OPTIM_AMSGRAD, AMP_O1, 1, 1, TWO_GROUPS },
    { AMP_OPTIM_ADAMW, 0, AMP_O5, 1, 1, 0 },
    { AMP_OPTIM_ADAMW, 0, AMP_O3, 1, 1, TWO_GROUPS },
    { AMP_OPTIM_ADAGRAD, 0, AMP_O2, 1, 1, 0 },
};
enum { N_ELEMENTWISE = sizeof elementwise / sizeof *elementwise };

TEST_TIMES(test_elementwise_rules, 4 * N_ELEMENTWISE) {
    (void)here_and_there(&elementwise[_i % N_ELEMENTWISE], (enum memories)(ONE + _i / N_ELEMENTWISE), 0.0f);
}

/* Rules that look at norms, whose sums have another order on a device: a norm is right to a few units of its last place
 * (docs/numerics.md), so each step's length is within 2^-20 of itself, and 24 steps of at most lr = 2^-4 differ by no
 * more than 24 * 2^-24; a gradient that follows the weights doubles that at most with each step that adds to momentum:
 * 2^-14 leaves room. */
static const struct kind by_norms[] = {
    { AMP_OPTIM_LAMB, 0, AMP_O1, 1, 1, 0 },       { AMP_OPTIM_LAMB, 0, AMP_O1, 1, 1, TWO_GROUPS },
    { AMP_OPTIM_LAMB, 0, AMP_O1, 2, 2, CLIPS },   { AMP_OPTIM_NOVOGRAD, 0, AMP_O1, 1, 1, 0 },
    { AMP_OPTIM_NOVOGRAD, 0, AMP_O1, 1, 1, TWO_GROUPS }, { AMP_OPTIM_LARC, 0, AMP_O1, 1, 1, 0 },
    { AMP_OPTIM_LARC, 0, AMP_O1, 1, 1, TWO_GROUPS },
};
enum { N_BY_NORMS = sizeof by_norms / sizeof *by_norms };

TEST_TIMES(test_rules_by_norms, 4 * N_BY_NORMS) {
    (void)here_and_there(&by_norms[_i % N_BY_NORMS], (enum memories)(ONE + _i / N_BY_NORMS), 0x1p-14f);
}

/* ---- brackets ---- */

static const struct kind brackets[] = {
    { AMP_OPTIM_ADAM, 0, AMP_O1, 2, 2, 0 },
    { AMP_OPTIM_ADAM, 0, AMP_O2, 2, 4, 0 },
    { AMP_OPTIM_SGD, 0, AMP_O2, 1, 3, DELAYS },
    { AMP_OPTIM_SGD, 0, AMP_O1, 1, 3, DELAYS | FIXED },
    { AMP_OPTIM_SGD, 0, AMP_O2, 1, 3, CANCELS },
    { AMP_OPTIM_SGD, 0, AMP_O1, 2, 2, CANCELS | FIXED },
    { AMP_OPTIM_SGD, 0, AMP_O2, 1, 3, UNCHECKED },
    { AMP_OPTIM_ADAM, 0, AMP_O2, 2, 2, RANKS },
    { AMP_OPTIM_SGD, 0, AMP_O1, 1, 1, RANKS },
    { AMP_OPTIM_SGD, 0, AMP_O2, 2, 2, RANKS | CANCELS },
};
enum { N_BRACKETS = sizeof brackets / sizeof *brackets };

TEST_TIMES(test_brackets, 4 * N_BRACKETS) {
    (void)here_and_there(&brackets[_i % N_BRACKETS], (enum memories)(ONE + _i / N_BRACKETS), 0.0f);
}

/* A parameter that comes in the sixth iteration, with its moments, its step count and its master. */
static const struct kind late[] = {
    { AMP_OPTIM_ADAM, 0, AMP_O1, 1, 1, LATE },
    { AMP_OPTIM_ADAM, 0, AMP_O2, 1, 2, LATE },
    { AMP_OPTIM_SGD, 0, AMP_O3, 2, 2, LATE },
};

TEST_TIMES(test_late_parameters, 6) { (void)here_and_there(&late[_i % 3], _i / 3 ? TWO : ONE, 0.0f); }

/* Emulation: the parameters stay FP32 and hold what 16 bits would; nothing is put under the host's handles. */
static const struct kind emulated[] = {
    { AMP_OPTIM_ADAM, 0, AMP_O1, 1, 1, EMULATES },
    { AMP_OPTIM_ADAM, 0, AMP_O2, 1, 2, EMULATES },
    { AMP_OPTIM_SGD, 0, AMP_O2, 2, 2, EMULATES | FIXED },
    { AMP_OPTIM_SGD, 0, AMP_O3, 1, 1, EMULATES },
    { AMP_OPTIM_SGD, 0, AMP_O5, 1, 1, EMULATES | TWO_GROUPS },
    { AMP_OPTIM_SGD, 0, AMP_O2, 1, 1, EMULATES | KNOWS },
    { AMP_OPTIM_SGD, 0, AMP_O3, 1, 2, EMULATES | KNOWS },
    { AMP_OPTIM_ADAM, 0, AMP_O3, 1, 1, EMULATES | DYNAMIC },
    { AMP_OPTIM_SGD, 0, AMP_O3, 1, 3, EMULATES | KNOWS | DYNAMIC },
    { AMP_OPTIM_SGD, 0, AMP_O3, 2, 2, EMULATES | DYNAMIC | FIXED },
    { AMP_OPTIM_ADAM, 0, AMP_O2, 1, 1, EMULATES | LATE },
};
enum { N_EMULATED = sizeof emulated / sizeof *emulated };

TEST_TIMES(test_emulated, 4 * N_EMULATED) {
    const enum memories memories = (enum memories)(ONE + _i / N_EMULATED);
    const struct kind *kind = &emulated[_i % N_EMULATED];
    if (kind->how & LATE && memories != ONE && memories != TWO) return; /* it would come to another memory */
    (void)here_and_there(kind, memories, 0.0f);
}

/* One that lies elsewhere than all before it is refused, and nothing of it stays. */
TEST(test_late_parameter_elsewhere) {
    const struct kind kind = { AMP_OPTIM_ADAM, 0, AMP_O2, 1, 1, LATE };
    struct host *host = make(&kind, MIXED, STEP_FUSED);
    amp_context *context = initialize(host, &kind);
    const int blocks = device.fake ? device.fake->blocks : 0;
    ck_assert_int_eq(amp_add_params(&host->optimizer, &host->listed[HOST_PARAMS - 1], 1), AMP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "initialise again with all of them"));
    if (device.fake) device.tools->flush();
    if (device.fake) ck_assert_int_eq(device.fake->blocks, blocks);
    ck_assert_int_eq(host->params[HOST_PARAMS - 1].dtype, AMP_FLOAT32);
    ck_assert_int_eq(amp_shutdown(context), AMP_OK);
    host_free(host);
}

/* ---- checkpoints ---- */

/* A build without Jansson has no state files, and says so wherever the parameters lie. */
static void refuse_state(amp_context *context) {
    char state[16] = "";
    size_t size = 0;
    ck_assert_int_eq(amp_state_save_memory(context, AMP_STATE_SAFETENSORS, state, sizeof state, &size),
                     AMP_ERR_UNSUPPORTED);
    ck_assert_int_eq(amp_state_load_memory(context, state, sizeof state), AMP_ERR_UNSUPPORTED);
    ck_assert_uint_eq(size, 0);
}

/* Saved in any memory, the file is the CPU's, to the last byte; it loads into any other, and both go on alike. Without
 * files they go on alike all the same, each by itself. */
TEST_TIMES(test_checkpoints_anywhere, 16) {
    const struct kind kinds[] = { { AMP_OPTIM_ADAM, 0, AMP_O1, 2, 2, TWO_GROUPS },
                                  { AMP_OPTIM_ADAM, 0, AMP_O2, 2, 2, TWO_GROUPS },
                                  { AMP_OPTIM_ADAM, 0, AMP_O2, 2, 2, EMULATES },
                                  /* skips: a GPU's NaNs, and its files' checksums, would be its own */
                                  { AMP_OPTIM_SGD, 0, AMP_O3, 1, 1, EMULATES | DYNAMIC } };
    const struct kind kind = kinds[_i / 4];
    const enum memories memories = (enum memories)(ONE + _i % 4);
    static char of_cpu[1 << 18], state[sizeof of_cpu];
    static float first[ELEMENTS], second[ELEMENTS];
    size_t size_of_cpu = 0, size = 0;
    if (memories >= TWO && !device.second_stream) return;
    struct host *cpu = make(&kind, ON_CPU, STEP_FUSED), *host = make(&kind, memories, STEP_FUSED), *other = host;
    amp_context *of_host = initialize(host, &kind), *of_other = of_host, *context = initialize(cpu, &kind);
    for (int i = 0; i < 7; i++) iterate(cpu, context, &kind, i), iterate(host, of_host, &kind, i);
    host_clear(cpu), host_clear(host);
    if (!TEST_STATES) {
        refuse_state(context), refuse_state(of_host);
    } else {
        ck_assert_msg(amp_state_save_memory(context, AMP_STATE_SAFETENSORS, of_cpu, sizeof of_cpu, &size_of_cpu) ==
                          AMP_OK,
                      "%s", amp_last_error());
        ck_assert_msg(amp_state_save_memory(of_host, AMP_STATE_SAFETENSORS, state, sizeof state, &size) == AMP_OK, "%s",
                      amp_last_error());
        ck_assert_uint_eq(size, size_of_cpu);
        ck_assert(!memcmp(state, of_cpu, size));
        other = make(&kind, memories == ONE && device.second_stream ? TWO : ONE, STEP_FUSED);
        of_other = initialize(other, &kind);
        ck_assert_msg(amp_state_load_memory(of_other, state, size) == AMP_OK, "%s", amp_last_error());
    }
    for (int i = 7; i < 14; i++) iterate(cpu, context, &kind, i), iterate(other, of_other, &kind, i);
    host_clear(cpu), host_clear(other);
    ck_assert_int_eq(amp_shutdown(context) + amp_shutdown(of_host) + (other == host ? 0 : amp_shutdown(of_other)),
                     AMP_OK);
    host_read(cpu, first, ELEMENTS), host_read(other, second, ELEMENTS);
    ck_assert(!memcmp(first, second, host_elements() * sizeof *first));
    if (other != host) host_free(other);
    host_free(cpu), host_free(host);
}

TEST_FIXTURE(device_lazily, device_at_once)
