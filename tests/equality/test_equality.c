/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training with libamp against the same casts by hand at scale 1: equal weights and masters, bit for bit, after every
 * step, whatever the power of two that the loss is scaled by.
 */
#include "program.h"
#include "reference.h"

#include "asserts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*    name                                      options                         models optimizers losses micro */
static const struct plan plans[] = {
    { "one of each",                            0,                                   1, 1, 1, 1 },
    { "2 micro-batches",                        0,                                   1, 1, 1, 2 },
    { "4 micro-batches",                        0,                                   1, 1, 1, 4 },
    { "2 losses on one scaler",                 0,                                   1, 1, 2, 1 },
    { "2 losses with own scalers",              OWN_SCALERS,                         1, 1, 2, 1 },
    { "2 losses with own scalers, 2 micro",     OWN_SCALERS,                         1, 1, 2, 2 },
    { "2 optimizers on one loss",               0,                                   1, 2, 1, 1 },
    { "2 optimizers, 2 losses, 4 micro",        OWN_SCALERS,                         1, 2, 2, 4 },
    { "2 models",                               0,                                   2, 1, 1, 2 },
    { "2 models with 2 optimizers and losses",  OWN_SCALERS,                         2, 2, 2, 2 },
    { "an optimizer per loss",                  OWN_SCALERS | LOSS_PER_OPTIM,        1, 2, 2, 2 },
    { "delayed unscale",                        DELAY,                               1, 1, 1, 2 },
    { "delayed unscale, 4 micro, 2 optimizers", DELAY,                               1, 2, 1, 4 },
    { "delayed unscale, 2 losses",              DELAY | OWN_SCALERS,                 1, 1, 2, 2 },
    { "overflow",                               OVERFLOW,                            1, 1, 1, 1 },
    { "overflow in one of 4 micro-batches",     OVERFLOW,                            1, 1, 1, 4 },
    { "overflow, 2 optimizers on one loss",     OVERFLOW,                            1, 2, 1, 1 },
    { "overflow of one optimizer's loss",       OVERFLOW | OWN_SCALERS | LOSS_PER_OPTIM, 1, 2, 2, 1 },
    { "overflow of one model",                  OVERFLOW,                            2, 2, 1, 1 },
    { "overflow in a delayed bracket",          OVERFLOW | DELAY,                    1, 2, 1, 2 },
    { "delayed check",                          LATE_CHECK,                          1, 1, 1, 4 },
    { "delayed check, 2 of everything",         LATE_CHECK | OWN_SCALERS,            2, 2, 2, 2 },
    { "overflow before the delayed check",      LATE_CHECK | OVERFLOW,               1, 2, 1, 3 },
    { "both delays, overflow",                  LATE_CHECK | DELAY | OVERFLOW,       1, 2, 1, 3 },
    { "tied weights",                           TIED,                                1, 1, 1, 2 },
    { "tied weights without the cache",         TIED | NO_CACHE,                     1, 1, 1, 2 },
    { "a gradient that comes and goes",         VANISH,                              1, 1, 1, 1 },
    { "the same among 4 micro-batches",         VANISH,                              1, 1, 1, 4 },
    { "the same, delayed",                      VANISH | DELAY,                      1, 1, 1, 4 },
    { "freezing and unfreezing",                FREEZE,                              1, 1, 1, 2 },
    { "a parameter that comes late",            LATE,                                1, 1, 1, 2 },
    { "late, in 2 models",                      LATE,                                2, 2, 1, 1 },
    { "weights loaded in mid-run",              LOAD,                                1, 1, 1, 1 },
    { "loaded, late, frozen",                   LOAD | LATE | FREEZE,                2, 2, 1, 2 },
    { "cancelled brackets",                     CANCEL,                              1, 1, 1, 2 },
    { "cancelled brackets, 2 losses",           CANCEL | OWN_SCALERS,                1, 2, 2, 2 },
    { "cancelled brackets, delayed",            CANCEL | DELAY,                      1, 1, 1, 2 },
    { "cancelled brackets, overflow",           CANCEL | OVERFLOW,                   1, 2, 1, 2 },
    { "gradients kept over steps",              KEEP,                                1, 1, 1, 2 },
    { "clipping by norm",                       CLIP_NORM,                           1, 1, 1, 1 },
    { "clipping by norm, 2 of everything",      CLIP_NORM | OWN_SCALERS,             2, 2, 2, 2 },
    { "clipping by value",                      CLIP_VALUE,                          1, 1, 1, 2 },
    { "strided gradients",                      STRIDED_GRADS,                       1, 1, 1, 1 },
    { "strided, 4 micro-batches, 2 optimizers", STRIDED_GRADS,                       1, 2, 1, 4 },
    { "strided, 2 of everything",               STRIDED_GRADS | OWN_SCALERS,         2, 2, 2, 2 },
    { "strided, delayed, cancelled",            STRIDED_GRADS | DELAY | CANCEL,      1, 1, 1, 3 },
    { "strided, overflow",                      STRIDED_GRADS | OVERFLOW,            1, 2, 1, 2 },
    { "strided, clipped by norm",               STRIDED_GRADS | CLIP_NORM,           1, 1, 1, 2 },
    { "strided, clipped by value",              STRIDED_GRADS | CLIP_VALUE,          1, 1, 1, 2 },
    { "strided, come and go, kept, tied",       STRIDED_GRADS | VANISH | KEEP | TIED, 1, 1, 1, 2 },
    { "strided, late, loaded, no version",      STRIDED_GRADS | LATE | LOAD | NO_VERSION, 1, 1, 1, 2 },
    { "strided parameters",                     STRIDED_PARAMS,                      1, 1, 1, 2 },
    { "strided parameters and gradients",       STRIDED_PARAMS | STRIDED_GRADS | LATE | LOAD | CLIP_NORM, 2, 2, 1, 2 },
    { "no cache",                               NO_CACHE,                            1, 1, 1, 2 },
    { "no version hook",                        NO_VERSION,                          1, 1, 1, 2 },
    { "no version hook, tied, loaded",          NO_VERSION | TIED | LOAD,            1, 1, 1, 2 },
    { "the host seeds",                         SEED,                                1, 1, 1, 2 },
    { "the host seeds, 2 of everything",        SEED | OWN_SCALERS,                  2, 2, 2, 2 },
};
enum { N_PLANS = sizeof plans / sizeof *plans };

static const struct level {
    amp_level level;
    const char *name;
    struct recipe recipe;
} levels[] = {
    { AMP_O0, "O0", { FP32, false, false, false, false } }, { AMP_O1, "O1", { FP16, false, false, true, false } },
    { AMP_O2, "O2", { FP16, true, true, false, true } },    { AMP_O3, "O3", { FP16, true, false, false, false } },
    { AMP_O4, "O4", { BF16, false, false, true, false } },  { AMP_O5, "O5", { BF16, true, true, false, true } },
};

static const struct scale {
    const char *name;
    float loss_scale, first; /* first: of a dynamic scale that grows every second bracket */
} scales[] = {
    { "scale 1", 1.0f, 0 },
    { "scale 128", 128.0f, 0 },
    { "scale 2^14", LARGEST_SCALE, 0 },
    { "a growing scale", AMP_DYNAMIC, 8.0f },
};

struct run {
    const struct plan *plan;
    const struct level *level;
    const struct scale *scale;
    bool adam, fixed;
    char name[160];
};

static amp_config config_of(const struct run *run) {
    return CONFIG(run->level->level, .loss_scale = run->scale->loss_scale, .init_scale = run->scale->first, .window = 2,
                  .max_scale = run->scale->first > 0 ? LARGEST_SCALE : 0.0f,
                  .num_losses = run->plan->options & OWN_SCALERS ? (uint32_t)run->plan->losses : 1,
                  .cache = run->plan->options & NO_CACHE ? AMP_OFF : AMP_DEFAULT);
}

static unsigned host_options(const struct run *run) {
    const unsigned options = run->plan->options;
    return (run->fixed ? HOST_NO_SET_GRAD : 0u) | (options & NO_VERSION ? HOST_NO_VERSION : 0u) |
           (options & SEED ? HOST_NO_SCALE : 0u) | (options & STRIDED_GRADS ? HOST_STRIDED_GRADS : 0u);
}

static void compare(const struct run *run, struct program *program, const struct reference *reference, int step) {
    for (int m = 0; m < run->plan->models; m++)
        for (int p = 0; p < N_PARAMS; p++)
            for (int i = 0; i < sizes[p]; i++) {
                const float shown[2] = { tensor_get(program->nets[m].params[p], i),
                                         reference_shown(reference, m, p, i) };
                const float value[2] = { program_value(program, m, p, i), reference->params[m][p].value[i] };
                if (p == L && !trained(run->plan, p, step)) continue; /* nobody's yet */
                ck_assert_msg(!memcmp(&shown[0], &shown[1], sizeof(float)),
                              "%s: step %d: parameter %s of model %d [%d] is %a, by hand %a", run->name, step,
                              param_names[p], m, i, (double)shown[0], (double)shown[1]);
                if (!trained(run->plan, p, step)) continue; /* tied: no optimizer's */
                ck_assert_msg(!memcmp(&value[0], &value[1], sizeof(float)),
                              "%s: step %d: what is updated of %s of model %d [%d] is %a, by hand %a", run->name, step,
                              param_names[p], m, i, (double)value[0], (double)value[1]);
            }
}

/* Was there what the plan promises? */
static void check_events(const struct run *run, const struct program *program) {
    if (run->plan->options & OVERFLOW) ck_assert_msg(program->host.skips >= 2, "%s: no overflow", run->name);
    else ck_assert_msg(program->host.skips == 0, "%s: %u unforeseen overflows", run->name, program->host.skips);
    if (run->scale->first > 0) ck_assert_msg(program->host.changes >= 4, "%s: the scale stayed", run->name);
}

static void train(const struct run *run) {
    const bool scaled = run->scale->loss_scale != 1.0f || run->level->recipe.masters;
    struct reference *reference = calloc(1, sizeof *reference);
    struct program *program = calloc(1, sizeof *program);
    const amp_config config = config_of(run);
    ck_assert(reference && program);
    *reference = (struct reference){ .plan = run->plan, .recipe = run->level->recipe, .adam = run->adam,
                                     .fixed = run->fixed,
                                     .grouped = (run->plan->options & DELAY) && scaled && !run->fixed };
    *program = (struct program){ .plan = run->plan, .adam = run->adam };
    reference_init(reference);
    ck_assert_msg(program_init(program, &config, host_options(run)) == AMP_OK, "%s: %s", run->name, amp_last_error());
    for (int step = 0; step < STEPS; step++) {
        ck_assert_msg(program_step(program, step) == AMP_OK, "%s: step %d: %s", run->name, step, amp_last_error());
        reference_step(reference, step);
        compare(run, program, reference, step);
    }
    ck_assert_msg(!reference->unfit, "%s: the plan is no good: %s", run->name, reference->unfit);
    check_events(run, program);
    ck_assert_msg(amp_shutdown(program->context) == AMP_OK, "%s: %s", run->name, amp_last_error());
    program->context = NULL;
    for (int m = 0; m < run->plan->models; m++) /* FP32 again: the masters' values where there were masters */
        ck_assert_msg(program_value(program, m, W, 5) == reference->params[m][W].value[5], "%s: after the end",
                      run->name);
    program_end(program);
    ck_assert_msg(program->host.live_tensors == 0 && program->host.live_blocks == 0, "%s: %lld tensors, %lld blocks "
                  "are left", run->name, (long long)program->host.live_tensors, (long long)program->host.live_blocks);
    free(program);
    free(reference);
}

static bool makes_sense(const struct run *run) {
    const unsigned options = run->plan->options;
    /* where nothing is scaled nothing is set aside either, so that cancel has nothing to give back */
    if ((options & CANCEL) && run->scale->loss_scale == 1.0f && !run->level->recipe.masters) return false;
    /* at static scale 1 an infinity steps, as in FP32 training */
    if ((options & OVERFLOW) && run->scale->loss_scale == 1.0f) return false;
    return !((options & STRIDED_PARAMS) && run->level->recipe.low_params); /* what is re-typed must be compact */
}

/* With AMP_TEST_SHORT=1 (other compilers, sanitizers) each plan has a third of its runs, in turns; of those where each
 * iteration is observed, which take three times as long, again a third. */
TEST_TIMES(equal_weights, N_PLANS) {
    const unsigned of = (getenv("AMP_TEST_SHORT") ? 3u : 1u) * (getenv("AMP_OBSERVE") ? 3u : 1u);
    unsigned runs = 0;
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++)
        for (size_t s = 0; s < sizeof scales / sizeof *scales; s++)
            for (int way = 0; way < 4; way++) {
                if (((way ^ way >> 1) + (int)(l + s)) % 2) continue; /* half of the square, in turns */
                struct run run = { &plans[_i], &levels[l], &scales[s], way & 1, way & 2, "" };
                snprintf(run.name, sizeof run.name, "%s, %s, %s, %s, %s", run.plan->name, run.level->name,
                         run.scale->name, run.adam ? "Adam" : "SGD", run.fixed ? "fixed gradients" : "set_grad");
                if (!makes_sense(&run)) continue;
                if ((runs++ + (unsigned)_i) % of == 0) train(&run);
            }
    ck_assert_uint_ge(runs, 6);
}
