/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random sequences of API calls on a host with two optimizers, three losses, tied weights, an FP64, a batch norm, an
 * empty and a late parameter, at every level; after each call libamp is compared with the model, bit for bit. What
 * fails is printed with its seed, shrunk to the calls that matter. The seed is the commit's; AMP_MODEL_SEED and
 * AMP_MODEL_SEQUENCES choose others.
 */
#include "../support/levels.h"
#include "program.h"
#include "seed.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_TEXT(name) #name,
static const char *const kind_names[] = { CALL_MAP(CALL_TEXT) };

/* How often each comes, of 100. */
static const unsigned char weights[N_KINDS] = {
    [CALL_BEGIN] = 17,      [CALL_END] = 15,       [CALL_CANCEL] = 4,  [CALL_BACKWARD] = 21, [CALL_STEP] = 10,
    [CALL_DIRECT_STEP] = 2, [CALL_ZERO_GRAD] = 5,  [CALL_SET] = 2,     [CALL_SET_GRAD] = 3,  [CALL_DROP_GRAD] = 2,
    [CALL_CLIP_NORM] = 2,   [CALL_CLIP_VALUE] = 2, [CALL_MASTERS] = 6, [CALL_RECONCILE] = 1, [CALL_CHECK] = 2,
    [CALL_ADD_LATE] = 1,    [CALL_SAVE] = 2,       [CALL_LOAD] = 2,    [CALL_CLEAR] = 1
};

/* ---- one call of each kind: to the model and to libamp ---- */

static bool do_begin(struct program *program, const struct call *call) {
    amp_optimizer *optimizers[OPTIMIZERS];
    size_t n = 0;
    /* now and then one that there is not */
    const uint32_t loss = call->other % (LOSSES + (call->which >> 2 == 7 ? 1u : 0u));
    const unsigned how = call->which >> 2 & 15;
    const uint32_t flags = how < 3 ? AMP_DELAY_UNSCALE : how < 6 ? AMP_DELAY_OVERFLOW_CHECK : how == 6 ? 3 : 0;
    amp_scaled_loss *scaled = &program->scaled[loss % LOSSES];
    for (unsigned k = 0; k < OPTIMIZERS; k++)
        if (call->which & 1u << k) optimizers[n++] = &program->optimizers[k].optimizer;
    amp_scaled_loss other = AMP_SCALED_LOSS_INIT;
    if (loss >= LOSSES || program->m.losses[loss].open) scaled = &other;
    const amp_status expected = loss < LOSSES ? model_begin(&program->m, call->which & 3, loss, flags)
                                              : AMP_ERR_INVALID_ARGUMENT;
    const amp_status status = amp_scale_loss_begin_many(program->context, optimizers, n, loss, flags, NULL,
                                                        scaled);
    if (!program_same_status(program, status, expected)) return false;
    if (status == AMP_OK &&
        (amp_seed_factor(scaled) != program->m.losses[loss].bracket_scale || amp_seed_factor(scaled) != *scaled->scale))
        return program_fails(program, "the bracket's scale is %a, not %a", (double)*scaled->scale,
                             (double)program->m.losses[loss].bracket_scale);
    return true;
}

static bool do_end(struct program *program, const struct call *call) {
    const uint32_t loss = call->other % LOSSES;
    amp_action action = AMP_STEP;
    if (!program->m.losses[loss].open)
        return program_same_status(program, amp_scale_loss_end(&program->scaled[loss]), AMP_ERR_WRONG_STATE);
    const amp_status expected = model_end(&program->m, loss, &action);
    const amp_status status = amp_scale_loss_end(&program->scaled[loss]);
    if (program->scaled[loss].action != action)
        return program_fails(program, "end said %d", (int)program->scaled[loss].action);
    return program_same_status(program, status, expected);
}

static bool do_cancel(struct program *program, const struct call *call) {
    const uint32_t loss = call->other % LOSSES;
    const amp_status expected = program->m.losses[loss].open ? model_cancel(&program->m, loss) : AMP_ERR_WRONG_STATE;
    return program_same_status(program, amp_scale_loss_cancel(&program->scaled[loss]), expected);
}

/* The scale of the open bracket that holds the parameter; the model and libamp agree on it. */
static double scale_for(const struct program *program, enum param param) {
    for (size_t k = 0; k < LOSSES; k++)
        for (unsigned i = 0; i < OPTIMIZERS && program->m.losses[k].open; i++)
            if (program->m.losses[k].optimizers & 1u << i && model_holds(&program->m, i, param))
                return (double)program->m.losses[k].bracket_scale;
    return 1.0;
}

static bool do_backward(struct program *program, const struct call *call) {
    for (int k = 0; k < PARAMS; k++) {
        struct fake_tensor *param = program->params[k];
        const double value = call->value * (1.0 + 0.1 * k) * scale_for(program, (enum param)k);
        if (!(call->which & 1u << k)) continue;
        if (!param->grad)
            fake_put_grad(param,
                          fake_new(&program->host, program->m.fp32_grads ? AMP_FLOAT32 : fake_dtype(param),
                                   param->shape[0], 0.0));
        for (int64_t i = 0; i < param->shape[0]; i++) fake_set(param->grad, i, fake_get(param->grad, i) + value);
        model_backward(&program->m, (enum param)k, value);
    }
    return true;
}

static bool do_step(struct program *program, const struct call *call) {
    struct optimizer *optimizer = &program->optimizers[call->which % OPTIMIZERS];
    bool expected;
    (void)model_step(&program->m, call->which % OPTIMIZERS, false, program_rate, &expected);
    program->ran = false;
    const int32_t result = ((int32_t (*)(struct optimizer *))optimizer->step)(optimizer);
    if (program->ran != expected || result != expected)
        return program_fails(program, "the step %s", program->ran ? "ran" : "was skipped");
    return true;
}

static bool do_direct_step(struct program *program, const struct call *call) {
    struct optimizer *optimizer = &program->optimizers[call->which % OPTIMIZERS];
    amp_step_info info = AMP_STEP_INFO_INIT;
    bool expected;
    const amp_status expected_status = model_step(&program->m, call->which % OPTIMIZERS, true, program_rate, &expected);
    const amp_status status = amp_step_begin(&optimizer->optimizer, &info);
    if (!program_same_status(program, status, expected_status)) return false;
    if (status != AMP_OK) return true;
    if ((info.action == AMP_STEP) != expected)
        return program_fails(program, "amp_step_begin said %d", (int)info.action);
    if (info.action == AMP_STEP) (void)program_host_step(optimizer);
    return program_same_status(program, amp_step_end(&optimizer->optimizer), AMP_OK);
}

static bool do_zero_grad(struct program *program, const struct call *call) {
    struct optimizer *optimizer = &program->optimizers[call->which % OPTIMIZERS];
    ((void (*)(struct optimizer *))optimizer->zero_grad)(optimizer);
    model_zero_grad(&program->m, call->which % OPTIMIZERS);
    return true;
}

static bool do_set(struct program *program, const struct call *call) {
    struct fake_tensor *param = program->params[call->which % PARAMS];
    const int i = (int)(call->other % ELEMENTS);
    if (i < param->shape[0]) fake_set(param, i, call->value);
    model_host_sets(&program->m, (enum param)(call->which % PARAMS), i, call->value);
    return true;
}

/* One element, or zeros all over. */
static bool do_set_grad(struct program *program, const struct call *call) {
    struct fake_tensor *grad = program->params[call->which % PARAMS]->grad;
    const int i = call->which >= 32 ? -1 : (int)(call->other % ELEMENTS);
    if (!grad || grad->shape[0] <= i) return true;
    if (i < 0) fake_fill(grad, 0.0);
    else fake_set(grad, i, call->value);
    model_host_sets_grad(&program->m, (enum param)(call->which % PARAMS), i, i < 0 ? 0.0 : call->value);
    return true;
}

static bool do_drop_grad(struct program *program, const struct call *call) {
    if (program->m.fixed) return true;
    fake_put_grad(program->params[call->which % PARAMS], NULL);
    model_host_drops_grad(&program->m, (enum param)(call->which % PARAMS));
    return true;
}

static bool do_clip_norm(struct program *program, const struct call *call) {
    float norm = -1.0f, expected = -1.0f;
    const unsigned k = call->which % OPTIMIZERS;
    const amp_status status = model_clip_norm(&program->m, k, 0.75f, &expected);
    if (!program_same_status(program, amp_clip_grad_norm(&program->optimizers[k].optimizer, 0.75f, &norm), status))
        return false;
    return program_same((double)norm, (double)expected) ||
        program_fails(program, "the norm is %a, not %a", (double)norm, (double)expected);
}

static bool do_clip_value(struct program *program, const struct call *call) {
    const unsigned k = call->which % OPTIMIZERS;
    const amp_status status = model_clip_value(&program->m, k, 0.3f);
    return program_same_status(program, amp_clip_grad_value(&program->optimizers[k].optimizer, 0.3f), status);
}

static bool do_masters(struct program *program, const struct call *call) {
    const unsigned k = call->which % OPTIMIZERS;
    size_t n;
    amp_master one = AMP_MASTER_INIT;
    const amp_status expected = model_look(&program->m, k);
    if (expected == AMP_OK) return program_same_masters(program, k);
    return program_same_status(program, amp_master_params(&program->optimizers[k].optimizer, &one, 1, &n), expected);
}

static bool do_reconcile(struct program *program, const struct call *call) {
    (void)call;
    model_reconcile(&program->m);
    return program_same_status(program, amp_masters_reconcile(program->context), AMP_OK);
}

static bool do_check(struct program *program, const struct call *call) {
    (void)call;
    return program_same_status(program, amp_check(program->context), model_check(&program->m));
}

static bool do_add_late(struct program *program, const struct call *call) {
    struct optimizer *optimizer = &program->optimizers[1];
    const amp_param late = { sizeof(amp_param), 0, program->params[LATE], "late" };
    (void)call;
    const amp_status expected = model_add_late(&program->m);
    const amp_status status = amp_add_params(&optimizer->optimizer, &late, 1);
    if (status == AMP_OK) optimizer->params[optimizer->n++] = program->params[LATE];
    return program_same_status(program, status, expected);
}

static bool do_save(struct program *program, const struct call *call) {
    size_t size = 0;
    (void)call;
    const amp_status status = amp_state_save_memory(program->context, AMP_STATE_SAFETENSORS, program->state,
                                                    sizeof program->state, &size);
    if (status == AMP_ERR_UNSUPPORTED) return true; /* built without a JSON library */
    if (status == AMP_OK) program->state_size = size;
    return program_same_status(program, status, model_save(&program->m));
}

static bool do_load(struct program *program, const struct call *call) {
    (void)call;
    if (!program->m.saved.is) return true;
    const amp_status expected = model_load(&program->m);
    return program_same_status(program, amp_state_load_memory(program->context, program->state, program->state_size),
                               expected);
}

static bool do_clear(struct program *program, const struct call *call) { /* changes nothing that can be seen */
    (void)call;
    return program_same_status(program, amp_cache_clear(program->context), AMP_OK) &&
           program_same_status(program, amp_tape_done(program->context), AMP_OK);
}

static bool (*const dos[])(struct program *, const struct call *) = {
    [CALL_BEGIN] = do_begin, [CALL_END] = do_end, [CALL_CANCEL] = do_cancel, [CALL_BACKWARD] = do_backward,
    [CALL_STEP] = do_step, [CALL_DIRECT_STEP] = do_direct_step, [CALL_ZERO_GRAD] = do_zero_grad, [CALL_SET] = do_set,
    [CALL_SET_GRAD] = do_set_grad, [CALL_DROP_GRAD] = do_drop_grad, [CALL_CLIP_NORM] = do_clip_norm,
    [CALL_CLIP_VALUE] = do_clip_value, [CALL_MASTERS] = do_masters, [CALL_RECONCILE] = do_reconcile,
    [CALL_CHECK] = do_check, [CALL_ADD_LATE] = do_add_late, [CALL_SAVE] = do_save, [CALL_LOAD] = do_load,
    [CALL_CLEAR] = do_clear,
};

/* ---- running, shrinking, printing ---- */

/* The number of the call that disagreed; CALLS: the shutdown, or the start; -1: none. */
static int run(struct program *program, const struct sequence *sequence) {
    int at = -1;
    if (!program_start(program, sequence)) {
        (void)program_fails(program, "initialize: %s", amp_last_error());
        at = CALLS;
    }
    for (int i = 0; i < CALLS && at < 0; i++)
        if (!sequence->removed[i] &&
            !(dos[sequence->calls[i].kind](program, &sequence->calls[i]) && program_same_host(program) &&
              program_same_records(program)))
            at = i;
    for (unsigned k = 0; k < OPTIMIZERS && at < 0; k++) /* once more, what cannot be seen from outside */
        if (!do_masters(program, &(struct call){ .which = k })) at = CALLS;
    if (at < 0) {
        model_shutdown(&program->m);
        const amp_status status = amp_shutdown(program->context);
        program->context = NULL;
        if (!program_same_status(program, status, AMP_OK) || !program_same_host(program)) at = CALLS;
    }
    program_finish(program);
    return at;
}

static void shrink(struct program *program, struct sequence *sequence) {
    for (bool again = true; again;) {
        again = false;
        for (int i = CALLS; i-- > 0;) {
            if (sequence->removed[i]) continue;
            sequence->removed[i] = true;
            if (run(program, sequence) < 0) sequence->removed[i] = false;
            else again = true;
        }
    }
}

static void print(const struct sequence *sequence, int at) {
    const amp_config *c = &sequence->config;
    printf("# level %d, loss_scale %g from %g in [%g, %g], growth %g, backoff %g, window %u, hysteresis %u, max_skips "
           "%u, %u losses, masters %d, batch norm %d, host options 0x%x\n",
           (int)c->level - 1, (double)c->loss_scale, (double)c->init_scale, (double)c->min_scale, (double)c->max_scale,
           c->growth, c->backoff, c->window, c->hysteresis, c->max_skips, c->num_losses, (int)c->master_weights,
           (int)c->keep_batchnorm_fp32, sequence->options);
    for (int i = 0; i < CALLS && i <= at; i++)
        if (!sequence->removed[i])
            printf("#   %s %u %u %g\n", kind_names[sequence->calls[i].kind], sequence->calls[i].which,
                   sequence->calls[i].other, sequence->calls[i].value);
}

/* ---- making sequences ---- */

static uint64_t random_state;
static unsigned pick(unsigned n) { /* xorshift64* */
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (unsigned)((random_state * 0x2545f4914f6cdd1dull) >> 33) % n;
}
#define PICK_OF(type, ...) ((const type[]){ __VA_ARGS__ }[pick(sizeof((const type[]){ __VA_ARGS__ }) / sizeof(type))])
#define PICK(...) PICK_OF(float, __VA_ARGS__)

static void make(struct sequence *sequence) {
    static const unsigned options[] = { 0, FAKE_NO_SET_GRAD, FAKE_NO_VERSION, FAKE_NO_ALLOC, FAKE_FP32_GRADS,
                                        FAKE_NO_SET_GRAD | LATE_BUFFERS };
    amp_config *config = &sequence->config;
    memset(sequence, 0, sizeof *sequence);
    *config = (amp_config)AMP_CONFIG_INIT;
    config->level = pick(3) ? (amp_level)(AMP_O0 + (int)pick(6)) : AMP_O2; /* the one with most to go wrong */
    config->loss_scale = PICK(0.0f, 0.0f, AMP_DYNAMIC, AMP_DYNAMIC, 1.0f, 128.0f, 3.0f);
    config->init_scale = PICK(65536.0f, 1024.0f, 4.0f, 0.5f, 1000.0f);
    config->min_scale = PICK(0x1p-126f, 0.5f, 0.25f);
    config->max_scale = PICK(0x1p24f, 0x1p16f, 0x1p20f);
    config->growth = PICK_OF(double, 2.0, 1.0001, 3.0);
    config->backoff = PICK_OF(double, 0.5, 0.9, 0.3);
    config->window = 1 + pick(4);
    config->hysteresis = 1 + pick(3);
    config->max_skips = pick(3) ? 100 : 2;
    config->num_losses = LOSSES - pick(2);
    const bool retypes = level_retypes(config->level);
    if (retypes && !pick(4)) config->master_weights = (amp_switch)pick(3);
    if (retypes && !pick(4)) config->keep_batchnorm_fp32 = (amp_switch)pick(3);
    for (int i = 0; i < 2; i++) sequence->options |= options[pick(6)];
    const float size = PICK(1.0f, 1.0f, 1e-9f, 1e4f); /* small: FP32 gradients that a 16-bit one cannot show */
    for (int i = 0; i < CALLS; i++) {
        struct call *call = &sequence->calls[i];
        unsigned at = pick(100);
        while (at >= weights[call->kind]) at -= weights[call->kind++];
        call->which = pick(64);
        call->other = pick(pick(3) ? 1 : 16); /* mostly the first loss */
        call->value = (double)size *
            (double)PICK(0.5f, -1.0f, 0.1f, 3.0f, 1e-4f, -1e-7f, 700.0f, 1e38f, -0.0f, INFINITY, NAN, 0.25f, 2.0f,
                         1.0f);
    }
}

static uint64_t number_of(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

int main(int argc, char **argv) {
    static struct program program;
    static struct sequence sequence;
    const char *observed = getenv("AMP_OBSERVE");
    const uint64_t seed = number_of("AMP_MODEL_SEED", COMMIT_SEED), default_n = observed ? 3000 : 10000,
                   n = number_of("AMP_MODEL_SEQUENCES", default_n);
    unsigned long long counts[N_KINDS] = { 0 };
    printf("TAP version 13\n1..1\n# seed %" PRIu64 ", %" PRIu64 " sequences of %d calls\n", seed, n, CALLS);
    for (uint64_t k = 0; k < n; k++) {
        random_state = (seed + k) * 0x9e3779b97f4a7c15ull | 1;
        make(&sequence);
        for (int i = 0; i < CALLS; i++) counts[sequence.calls[i].kind]++;
        if (run(&program, &sequence) < 0) continue;
        shrink(&program, &sequence);
        const int at = run(&program, &sequence);
        printf("not ok 1 - libamp and the model agree\n");
        printf("# again: AMP_MODEL_SEED=%" PRIu64 " AMP_MODEL_SEQUENCES=1 %s%s %s; shrunk:\n", seed + k,
               observed ? "AMP_OBSERVE=" : "", observed ? observed : "", argc ? argv[0] : "test_model");
        print(&sequence, at);
        printf("# %s: %s\n", at < CALLS ? kind_names[sequence.calls[at].kind] : "shutdown", program.why);
        return EXIT_FAILURE;
    }
    for (int k = 0; k < N_KINDS; k++)
        if (!counts[k] && n >= 100) {
            printf("not ok 1 - no sequence has a %s\n", kind_names[k]);
            return EXIT_FAILURE;
        }
    printf("ok 1 - libamp and the model agree\n");
    return n ? EXIT_SUCCESS : EXIT_FAILURE;
}
