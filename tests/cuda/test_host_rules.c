/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What trainings may be made of, over one device's memory, a device's and the CPU's, and two devices': every rule of
 * libamp's own optimizers, several losses, delays, cancelled brackets, ranks, clipping, parameters that come later,
 * checkpoints. Each against the same on the CPU.
 */
#include "host_run.h"
#include "../support/levels.h"

enum { ITERATIONS = 24, LOSSES = 2 };
enum memories { ON_CPU, ONE, MIXED, TWO, TWO_MIXED };
enum { DELAYS = 1, CANCELS = 2, RANKS = 4, LATE = 8, CLIPS = 16, TWO_GROUPS = 32, FIXED = 64, UNCHECKED = 128,
       EMULATES = 256, KNOWS = 512, DYNAMIC = 1024, SPLIT = 2048, CODES = 4096, ROUNDS = 8192 };

struct training {
    amp_optim_kind rule;
    uint32_t rule_flags; /* more of them */
    amp_level level;
    int losses, brackets; /* brackets: of an iteration */
    int how;
};

static struct host *make(const struct training *kind, enum memories memories, enum stepping stepping) {
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

static void choose_rules(struct host *host, const struct training *kind) {
    for (int i = 0; i < 2; i++) {
        rules[i] = (amp_optim)AMP_OPTIM_INIT;
        ck_ok(amp_optim_defaults(kind->rule, &rules[i]));
        rules[i].flags |= kind->rule_flags;
        rules[i].lr = i ? 0.03125 : 0.0625;
        rules[i].weight_decay = 0.0078125;
        if (kind->rule == AMP_OPTIM_SGD || kind->rule == AMP_OPTIM_LARC) rules[i].momentum = 0.875;
    }
    host->fused.groups = rules;
    host->fused.flags = kind->how & CODES ? AMP_FUSED_STATE_8BIT : 0;
    host->fused.n_groups = kind->how & TWO_GROUPS ? 2 : 1;
    host->fused.group_of = kind->how & TWO_GROUPS ? group_of : NULL;
}

static struct run begin(const struct training *kind, enum memories memories) {
    struct host *host = make(kind, memories, kind->how & KNOWS ? STEP_KNOWS : STEP_FUSED);
    if (kind->how & EMULATES) host->hooks.swap_data = NULL;
    choose_rules(host, kind);
    if (kind->how & RANKS) host->hooks.reduce = reduce, host->optimizer.flags |= AMP_OPTIMIZER_SHARDED;
    if (kind->how & LATE) host->model.n_params = host->optimizer.n_params = HOST_PARAMS - 1;
    const amp_switch masters = kind->how & ROUNDS                         ? AMP_STOCHASTIC
                               : kind->how & SPLIT && memories != ON_CPU ? AMP_SPLIT
                                                                         : AMP_DEFAULT;
    return run_with(host, CONFIG(kind->level, .master_weights = masters, .num_losses = (uint32_t)kind->losses,
                                 .window = 4, .loss_scale = kind->how & DYNAMIC ? AMP_DYNAMIC : 0.0f,
                                 .emulate = kind->how & EMULATES ? AMP_ON : AMP_DEFAULT));
}

static void bracket(const struct run *run, const struct training *kind, int k) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_optimizer *optimizer = &run->host->optimizer;
    const uint32_t delay = kind->how & DELAYS      ? AMP_DELAY_UNSCALE
                           : kind->how & UNCHECKED ? AMP_DELAY_OVERFLOW_CHECK
                                                   : 0;
    const uint32_t flags = k + 1 < kind->brackets ? delay : 0, loss = (uint32_t)(k % kind->losses);
    /* 1e36: the scale makes it infinite; 1e5: fp16 does */
    host_set_targets(run->host, (iteration + k) % 7 == 3 ? INFINITY : (iteration + 2 * k) % 11 == 5 ? 1e36f :
                     (iteration + k) % 13 == 6 ? 1e5f : 0.25f);
    ck_ok(amp_scale_loss_begin_many(run->context, &optimizer, 1, loss, flags, &run->host->loss, &scaled));
    host_backward(run->host, scaled.loss, 1.0f);
    if (kind->how & CANCELS && (iteration + k) % 5 == 2) ck_ok(amp_scale_loss_cancel(&scaled));
    else ck_ok(amp_scale_loss_end(&scaled));
}

static void iterate(const struct run *run, const struct training *kind, int i) {
    struct host *host = run->host;
    iteration = i;
    if (kind->how & LATE && i == 5) ck_ok(amp_add_params(&host->optimizer, &host->listed[HOST_PARAMS - 1], 1));
    host_clear(host);
    for (int k = 0; k < kind->brackets; k++) bracket(run, kind, k);
    if (kind->how & CLIPS && i % 4 == 1) ck_ok(amp_clip_grad_norm(&host->optimizer, 2.0f, NULL));
    if (kind->how & CLIPS && i % 4 == 3) ck_ok(amp_clip_grad_value(&host->optimizer, 0.0625f));
    host_step(host, kind->how & KNOWS ? STEP_KNOWS : STEP_FUSED);
}

struct result {
    float weights[ELEMENTS], masters[ELEMENTS];
    amp_record records[LOSSES];
};

static void train(const struct training *kind, enum memories memories, struct result *result) {
    struct run run = begin(kind, memories);
    for (int i = 0; i < ITERATIONS; i++) iterate(&run, kind, i);
    host_clear(run.host);
    for (int k = 0; k < kind->losses; k++) {
        result->records[k] = (amp_record)AMP_RECORD_INIT;
        ck_ok(amp_get_record(run.context, (uint32_t)k, &result->records[k]));
        const char *name = result->records[k].first_nonfinite; /* it ends with the context */
        result->records[k].first_nonfinite = !name ? NULL : strcmp(name, "c") ? "another" : "c";
    }
    host_read(run.host, result->weights, ELEMENTS);
    ck_ok(amp_shutdown(run.context));
    host_read(run.host, result->masters, ELEMENTS);
    host_free(run.host);
}

static void compare(const struct result *a, const struct result *b, const struct training *kind, float within) {
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

static float here_and_there(const struct training *kind, enum memories memories, float within) {
    static struct result here, there;
    if (memories >= TWO && !device.second_stream) return 0.0f;
    train(kind, ON_CPU, &here);
    train(kind, memories, &there);
    compare(&here, &there, kind, within);
    return here.masters[0];
}

/* ---- rules ---- */

static const struct training elementwise[] = {
    { AMP_OPTIM_SGD, 0, AMP_O2, 1, 1, 0 }, { AMP_OPTIM_SGD, AMP_OPTIM_NESTEROV, AMP_O2, 1, 1, TWO_GROUPS },
    { AMP_OPTIM_ADAM, 0, AMP_O2, 1, 1, 0 }, { AMP_OPTIM_ADAM, AMP_OPTIM_AMSGRAD, AMP_O1, 1, 1, TWO_GROUPS },
    { AMP_OPTIM_ADAMW, 0, AMP_O5, 1, 1, 0 }, { AMP_OPTIM_ADAMW, 0, AMP_O3, 1, 1, TWO_GROUPS },
    { AMP_OPTIM_ADAGRAD, 0, AMP_O2, 1, 1, 0 },
    { AMP_OPTIM_ADAM, 0, AMP_O2, 1, 1, CODES }, { AMP_OPTIM_ADAMW, 0, AMP_O5, 1, 2, CODES | TWO_GROUPS },
    { AMP_OPTIM_ADAMW, 0, AMP_O5, 1, 1, ROUNDS | CODES }, { AMP_OPTIM_SGD, 0, AMP_O5, 1, 2, ROUNDS | DYNAMIC },
};
enum { N_ELEMENTWISE = sizeof elementwise / sizeof *elementwise };

TEST_TIMES(test_elementwise_rules, 4 * N_ELEMENTWISE) {
    (void)here_and_there(&elementwise[_i % N_ELEMENTWISE], (enum memories)(ONE + _i / N_ELEMENTWISE), 0.0f);
}

/* Rules that look at norms, whose sums have another order on a device: a norm is right to a few units of its last place
 * (docs/reference/numerics.md), so each step's length is within 2^-20 of itself, and 24 steps of at most lr = 2^-4
 * differ by no more than 24 * 2^-24; a gradient that follows the weights doubles that at most with each step that adds
 * to momentum: 2^-14 leaves room. */
static const struct training by_norms[] = {
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

static const struct training brackets[] = {
    { AMP_OPTIM_ADAM, 0, AMP_O1, 2, 2, 0 }, { AMP_OPTIM_ADAM, 0, AMP_O2, 2, 4, 0 },
    { AMP_OPTIM_SGD, 0, AMP_O2, 1, 3, DELAYS }, { AMP_OPTIM_SGD, 0, AMP_O1, 1, 3, DELAYS | FIXED },
    { AMP_OPTIM_SGD, 0, AMP_O2, 1, 3, CANCELS }, { AMP_OPTIM_SGD, 0, AMP_O1, 2, 2, CANCELS | FIXED },
    { AMP_OPTIM_SGD, 0, AMP_O2, 1, 3, UNCHECKED }, { AMP_OPTIM_ADAM, 0, AMP_O2, 2, 2, RANKS },
    { AMP_OPTIM_SGD, 0, AMP_O1, 1, 1, RANKS }, { AMP_OPTIM_SGD, 0, AMP_O2, 2, 2, RANKS | CANCELS },
};
enum { N_BRACKETS = sizeof brackets / sizeof *brackets };

TEST_TIMES(test_brackets, 4 * N_BRACKETS) {
    (void)here_and_there(&brackets[_i % N_BRACKETS], (enum memories)(ONE + _i / N_BRACKETS), 0.0f);
}

/* A parameter that comes in the sixth iteration, with its moments, its step count and its master. */
static const struct training late[] = {
    { AMP_OPTIM_ADAM, 0, AMP_O1, 1, 1, LATE }, { AMP_OPTIM_ADAM, 0, AMP_O2, 1, 2, LATE },
    { AMP_OPTIM_SGD, 0, AMP_O3, 2, 2, LATE },
};

TEST_TIMES(test_late_parameters, 6) { (void)here_and_there(&late[_i % 3], _i / 3 ? TWO : ONE, 0.0f); }

/* Masters that are split on the device, against FP32 ones. */
static const struct training split[] = {
    { AMP_OPTIM_ADAM, 0, AMP_O5, 1, 2, SPLIT | DYNAMIC | LATE },
    { AMP_OPTIM_ADAM, 0, AMP_O5, 1, 1, SPLIT | DYNAMIC | CODES },
    { AMP_OPTIM_SGD, 0, AMP_O5, 1, 3, SPLIT | DYNAMIC | DELAYS | TWO_GROUPS },
    { AMP_OPTIM_SGD, 0, AMP_O5, 2, 2, SPLIT | DYNAMIC | CANCELS | RANKS | KNOWS },
};
enum { N_SPLIT = sizeof split / sizeof *split };

TEST_TIMES(test_split_masters, N_SPLIT) { (void)here_and_there(&split[_i], ONE, 0.0f); }

/* Emulation: the parameters stay FP32 and hold what 16 bits would; nothing is put under the host's handles. */
static const struct training emulated[] = {
    { AMP_OPTIM_ADAM, 0, AMP_O1, 1, 1, EMULATES }, { AMP_OPTIM_ADAM, 0, AMP_O2, 1, 2, EMULATES },
    { AMP_OPTIM_SGD, 0, AMP_O2, 2, 2, EMULATES | FIXED }, { AMP_OPTIM_SGD, 0, AMP_O3, 1, 1, EMULATES },
    { AMP_OPTIM_SGD, 0, AMP_O5, 1, 1, EMULATES | TWO_GROUPS }, { AMP_OPTIM_SGD, 0, AMP_O2, 1, 1, EMULATES | KNOWS },
    { AMP_OPTIM_SGD, 0, AMP_O3, 1, 2, EMULATES | KNOWS }, { AMP_OPTIM_ADAM, 0, AMP_O3, 1, 1, EMULATES | DYNAMIC },
    { AMP_OPTIM_SGD, 0, AMP_O3, 1, 3, EMULATES | KNOWS | DYNAMIC },
    { AMP_OPTIM_SGD, 0, AMP_O3, 2, 2, EMULATES | DYNAMIC | FIXED },
    { AMP_OPTIM_ADAM, 0, AMP_O2, 1, 1, EMULATES | LATE },
};
enum { N_EMULATED = sizeof emulated / sizeof *emulated };

TEST_TIMES(test_emulated, 4 * N_EMULATED) {
    const enum memories memories = (enum memories)(ONE + _i / N_EMULATED);
    const struct training *kind = &emulated[_i % N_EMULATED];
    if (kind->how & LATE && memories != ONE && memories != TWO) return; /* it would come to another memory */
    (void)here_and_there(kind, memories, 0.0f);
}

/* One that lies elsewhere than all before it is refused, and nothing of it stays. */
TEST(test_late_parameter_elsewhere) {
    const struct training kind = { AMP_OPTIM_ADAM, 0, AMP_O2, 1, 1, LATE };
    struct run run = begin(&kind, MIXED);
    struct host *host = run.host;
    const int blocks = device.fake ? device.fake->blocks : 0;
    ck_fails(AMP_ERR_UNSUPPORTED, amp_add_params(&host->optimizer, &host->listed[HOST_PARAMS - 1], 1));
    ck_says("initialise again with all of them");
    if (device.fake) device.tools->flush();
    if (device.fake) ck_assert_int_eq(device.fake->blocks, blocks);
    ck_assert_int_eq(host->params[HOST_PARAMS - 1].dtype, AMP_FLOAT32);
    run_end(&run);
}

/* Until a machine with several GPUs has run it, a context over two says so. */
TEST_TIMES(test_several_gpus_are_experimental, TWO_MIXED + 1) {
    const struct training kind = { AMP_OPTIM_ADAM, 0, AMP_O2, 1, 1, 0 };
    char said[4096];
    size_t length;
    if (_i >= TWO && !device.second_stream) return; /* a machine with one GPU */
    struct run run = begin(&kind, (enum memories)_i);
    ck_ok(amp_explain(run.context, NULL, said, sizeof said, &length));
    ck_assert_int_eq(strstr(said, "experimental: parameters on 2 GPUs") != NULL, _i >= TWO);
    run_end(&run);
}

TEST_TIMES(test_codes_are_experimental, ONE + 1) {
    const struct training kind = { AMP_OPTIM_ADAM, 0, AMP_O2, 1, 1, CODES };
    char said[4096];
    size_t length;
    struct run run = begin(&kind, (enum memories)_i);
    ck_ok(amp_explain(run.context, NULL, said, sizeof said, &length));
    const char *warned = strstr(said, "experimental: moments in 8 bits and stochastic weights on a GPU");
    ck_assert_int_eq(warned != NULL, _i == ONE);
    run_end(&run);
}

/* ---- checkpoints ---- */

/* A build without Jansson has no state files, and says so wherever the parameters lie. */
static void refuse_state(amp_context *context) {
    char state[16] = "";
    size_t size = 0;
    ck_fails(AMP_ERR_UNSUPPORTED, amp_state_save_memory(context, AMP_STATE_SAFETENSORS, state, sizeof state, &size));
    ck_fails(AMP_ERR_UNSUPPORTED, amp_state_load_memory(context, state, sizeof state));
    ck_assert_uint_eq(size, 0);
}

/* Saved in any memory, the file is the CPU's, to the last byte; it loads into any other, and both go on alike. Without
 * files they go on alike all the same, each by itself. */
TEST_TIMES(test_checkpoints_anywhere, 20) {
    const struct training kinds[] = { { AMP_OPTIM_ADAM, 0, AMP_O1, 2, 2, TWO_GROUPS },
                                  { AMP_OPTIM_ADAM, 0, AMP_O2, 2, 2, TWO_GROUPS },
                                  { AMP_OPTIM_ADAM, 0, AMP_O2, 2, 2, EMULATES },
                                  { AMP_OPTIM_ADAM, 0, AMP_O2, 2, 2, CODES },
                                  /* skips: a GPU's NaNs, and its files' checksums, would be its own */
                                  { AMP_OPTIM_SGD, 0, AMP_O3, 1, 1, EMULATES | DYNAMIC } };
    const struct training kind = kinds[_i / 4];
    const enum memories memories = (enum memories)(ONE + _i % 4);
    static char of_cpu[STATE_BYTES], state[STATE_BYTES];
    static float first[ELEMENTS], second[ELEMENTS];
    if (memories >= TWO && !device.second_stream) return;
    struct run cpu = begin(&kind, ON_CPU), there = begin(&kind, memories), other = there;
    for (int i = 0; i < 7; i++) iterate(&cpu, &kind, i), iterate(&there, &kind, i);
    host_clear(cpu.host), host_clear(there.host);
    if (!TEST_STATES) {
        refuse_state(cpu.context), refuse_state(there.context);
    } else {
        const size_t size = run_save(&cpu, of_cpu);
        ck_assert_uint_eq(run_save(&there, state), size);
        ck_assert_mem_eq(state, of_cpu, size);
        other = begin(&kind, memories == ONE && device.second_stream ? TWO : ONE);
        ck_ok(amp_state_load_memory(other.context, state, size));
        run_end(&there);
    }
    for (int i = 7; i < 14; i++) iterate(&cpu, &kind, i), iterate(&other, &kind, i);
    host_clear(cpu.host), host_clear(other.host);
    ck_ok(amp_shutdown(cpu.context));
    ck_ok(amp_shutdown(other.context));
    host_read(cpu.host, first, ELEMENTS), host_read(other.host, second, ELEMENTS);
    ck_assert_mem_eq(first, second, host_elements() * sizeof *first);
    host_free(cpu.host), host_free(other.host);
}

TEST_FIXTURE(device_lazily, device_at_once)
