/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_survey: trainings that are built to fail with 16 bits are told so at O0, by op or parameter; they do fail at the
 * level that was warned of, and train as advised. Then each rule alone.
 */
#include "../scaling/bracket.h"
#include "levels.h"
#include "raw.h"

#include <math.h>

enum { N = 16, PARAMS = 2 };

/* ---- a training of raw buffers: y = head(body(x)), (y * w - t)^2, w learns t / y ---- */

struct training {
    void (*body)(const float *, float *, int32_t);
    void (*head)(const float *, float *, int32_t);
    void (*backward)(const float *, const float *, float *, int32_t);
    float input, target[PARAMS], rate[PARAMS]; /* of every element */
    float weight;                              /* where it begins */
    const char *body_name;
};

struct run {
    struct raw raw;
    struct table {
        void (*body)(const float *, float *, int32_t);
        void (*head)(const float *, float *, int32_t);
        void (*backward)(const float *, const float *, float *, int32_t);
    } table;
    float w[PARAMS][N], dw[PARAMS][N];
};

static void describe(struct run *run, const struct training *t) {
    static const char *const names[PARAMS] = { "first", "second" };
    static const char unary[] = "f(float x[n], float(out a!) y[n], int32 n) -> void";
    memset(run, 0, sizeof *run);
    raw_init(&run->raw);
    run->table = (struct table){ t->body, t->head, t->backward };
    for (int i = 0; i < PARAMS; i++) {
        for (int j = 0; j < N; j++) run->w[i][j] = t->weight;
        raw_param(&run->raw, names[i], run->w[i], run->dw[i], N);
    }
    raw_op(&run->raw, OP(t->body_name, unary, &run->table.body, .op_class = AMP_LOWER));
    raw_op(&run->raw, OP("head", unary, &run->table.head, .op_class = AMP_LEAVE));
    raw_op(&run->raw, OP("back", "back(float y[n], float d[n], float(a!) dw[n], int32 n) -> void", &run->table.backward,
                         .op_class = AMP_LOWER));
}

static void start(struct run *run, amp_level level, float init_scale) {
    const bool scales = level_low(level) == AMP_FLOAT16 && level != AMP_O0 && level != AMP_O3;
    raw_start(&run->raw, CONFIG(level, .emulate = level == AMP_O0 ? AMP_DEFAULT : AMP_ON,
                                .init_scale = scales ? init_scale : 0.0f, .log = AMP_LOG_OFF, .gate = AMP_OFF,
                                .observe = level == AMP_O0 ? AMP_ON : AMP_DEFAULT));
}

/* At O0, to be surveyed. */
static void watch(struct run *run, const struct training *t, const amp_observe_options *options) {
    describe(run, t);
    start(run, AMP_O0, 0.0f);
    ck_ok(amp_observe(run->raw.context, options));
}

static void step(struct run *run, const struct training *t) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    float x[N], h[N], y[N], d[N];
    for (int j = 0; j < N; j++) x[j] = t->input;
    run->table.body(x, h, N);
    run->table.head(h, y, N);
    ck_ok(amp_scale_loss_begin(&run->raw.optimizer, NULL, &scaled));
    for (int i = 0; i < PARAMS; i++) {
        for (int j = 0; j < N; j++) d[j] = (y[j] * run->w[i][j] - t->target[i]) * amp_seed_factor(&scaled);
        run->table.backward(y, d, run->dw[i], N);
    }
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(amp_step_begin(&run->raw.optimizer, &info));
    for (int i = 0; i < PARAMS && info.action == AMP_STEP; i++)
        for (int j = 0; j < N; j++) run->w[i][j] -= t->rate[i] * run->dw[i][j];
    ck_ok(amp_step_end(&run->raw.optimizer));
    memset(run->dw, 0, sizeof run->dw);
}

static void end(struct run *run) { raw_stop(&run->raw); }

/* ---- the functions ---- */

static void grow(const float *x, float *y, int32_t n) {
    for (int32_t i = 0; i < n; i++) y[i] = x[i] * 300.0f;
}

static void exponential(const float *x, float *y, int32_t n) {
    for (int32_t i = 0; i < n; i++) y[i] = expf(x[i]);
}

static void keep(const float *x, float *y, int32_t n) {
    for (int32_t i = 0; i < n; i++) y[i] = x[i];
}

/* To 0.9 at most, whatever it is. */
static void shrink(const float *x, float *y, int32_t n) {
    for (int32_t i = 0; i < n; i++) y[i] = x[i] / 1e5f > 0.9f ? 0.9f + (x[i] - x[i]) : x[i] / 1e5f;
}

static void multiply(const float *y, const float *d, float *dw, int32_t n) {
    for (int32_t i = 0; i < n; i++) dw[i] += y[i] * d[i];
}

/* ---- built to fail ---- */

static const struct {
    struct training training;
    amp_level fails;     /* at this level, as it is */
    const char *code, *op, *name;
    amp_level advised;
    int steps;
} doomed[] = {
    { { grow, shrink, multiply, 300.0f, { 0.5f, 0.3f }, { 0.1f, 0.1f }, 0.0f, "linear" },
      AMP_O1, "AMP-A01", "linear", NULL, AMP_O1, 60 },
    { { exponential, shrink, multiply, 14.0f, { 0.5f, 0.3f }, { 0.1f, 0.1f }, 0.0f, "my_exp" },
      AMP_O1, "AMP-A01", "my_exp", NULL, AMP_O1, 60 },
    { { keep, keep, multiply, 1.0f, { 1e3f, 1e-10f }, { 0.3f, 0.3f }, 0.0f, "linear" },
      AMP_O1, "AMP-A03", NULL, "second", AMP_O5, 40 },
    { { keep, keep, multiply, 1.0f, { 1.05f, 1.1f }, { 1e-3f, 1e-3f }, 1.0f, "linear" },
      AMP_O3, "AMP-A04", NULL, "first", AMP_O2, 200 },
};
enum { N_DOOMED = sizeof doomed / sizeof doomed[0] };

/* How far the second parameter came on the way from where it began to where FP32 comes. */
static double progress(const struct run *run, const struct run *fp32, const struct training *t) {
    return (double)(run->w[1][0] - t->weight) / (double)(fp32->w[1][0] - t->weight);
}

static void train(struct run *run, const struct training *t, int steps) {
    for (int i = 0; i < steps; i++) step(run, t);
}

static const amp_advice *find(const amp_survey_result *result, const char *code, const char *op, const char *name) {
    for (uint64_t i = 0; i < result->n_advice; i++) {
        const amp_advice *a = &result->advice[i];
        if (!strcmp(a->code, code) && (!op || (a->op && !strcmp(a->op, op))) &&
            (!name || (a->name && !strcmp(a->name, name))))
            return a;
    }
    return NULL;
}

TEST_TIMES(the_survey_names_what_fails_and_its_advice_trains, N_DOOMED) {
    const struct training *t = &doomed[_i].training;
    static struct run fp32, warned, advised;
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    options.every = 1;

    watch(&fp32, t, &options);
    train(&fp32, t, doomed[_i].steps);
    ck_ok(amp_survey(fp32.raw.context, &result));
    const amp_advice *advice = find(&result, doomed[_i].code, doomed[_i].op, doomed[_i].name);
    ck_assert_msg(advice != NULL, "%s", result.text);
    ck_assert_msg(advice->levels & 1u << doomed[_i].fails, "%s", result.text);
    ck_assert_msg(result.level == doomed[_i].advised, "%s", result.text);
    ck_assert_uint_eq(result.iterations, (uint64_t)doomed[_i].steps);

    describe(&warned, t);
    start(&warned, doomed[_i].fails, result.init_scale);
    train(&warned, t, doomed[_i].steps);
    ck_assert_msg(!(fabs(progress(&warned, &fp32, t) - 1.0) < 0.5), "it trains where it was warned of: %g",
                  progress(&warned, &fp32, t));
    end(&warned);

    describe(&advised, t);
    for (uint64_t i = 0; i < result.n_advice; i++)
        if (result.level == AMP_O1 && result.advice[i].op && result.advice[i].levels & 1u << AMP_O1)
            ck_ok(amp_register(&advised.raw.model, result.advice[i].op, AMP_FP32));
    start(&advised, result.level, result.init_scale);
    train(&advised, t, doomed[_i].steps);
    ck_assert_msg(fabs(progress(&advised, &fp32, t) - 1.0) < 0.05, "as advised, it came to %g of its way\n%s",
                  progress(&advised, &fp32, t), result.text);
    end(&advised);
    end(&fp32);
}

/* ---- each rule alone ---- */

enum { M = 4, K = 8 };

static void any_op(const float *x, const float *w, float number, float *y, int32_t m, int32_t k) {
    for (int32_t i = 0; i < m * k; i++) y[i] = (x[i] + w[i % k] + number) * 0.0f;
}

/* Levels as bits, by what they do. */
#define EVERY(level, value, ...) | 1u << (value)
#define LOW(level, value, text, low, model, casts, ...) | (unsigned)((casts) || (model) == (low)) << (value)
#define FP16(level, value, text, low, ...) | ((low) == AMP_FLOAT16 ? 0u LOW(level, value, text, low, __VA_ARGS__) : 0u)
#define MODEL16(level, value, text, low, model, ...) | (unsigned)((low) == AMP_FLOAT16 && (model) == (low)) << (value)
enum {
    EVERY_LEVEL = 0 AMP_LEVEL_MAP(EVERY),
    LOW_LEVELS = 0 AMP_LEVEL_MAP(LOW),
    FP16_LEVELS = 0 AMP_LEVEL_MAP(FP16),
    FP16_MODELS = 0 AMP_LEVEL_MAP(MODEL16) /* that are in fp16 */
};

static void thousandfold(const float *x, const float *w, float number, float *y, int32_t m, int32_t k) {
    (void)w, (void)number;
    for (int32_t i = 0; i < m * k; i++) y[i] = 1000.0f * x[i];
}

static const struct {
    const char *op;
    amp_class op_class;
    float x, w, number; /* of each element */
    int32_t k;
    const char *code; /* NULL: nothing is advised */
    const char *name; /* of what */
    unsigned levels;
} rules[] = {
    { "linear", AMP_BY_LIST, 1.0f, 1.0f, 1.0f, K, NULL, NULL, 0 },
    { "linear", AMP_BY_LIST, 1.0f, 65504.0f, 0.0f, K, NULL, NULL, 0 },
    { "linear", AMP_BY_LIST, 1.0f, 65536.0f, 0.0f, K, "AMP-A01", "w", FP16_LEVELS },
    { "softmax", AMP_BY_LIST, 1.0f, 65536.0f, 0.0f, K, "AMP-A01", "w", FP16_MODELS },
    { "softmax", AMP_LOWER, 1.0f, 65536.0f, 0.0f, K, "AMP-A01", "w", FP16_LEVELS },
    { "aten::log", AMP_BY_LIST, 1e-9f, 1.0f, 0.0f, K, "AMP-A06", "x", FP16_MODELS },
    { "exp", AMP_BY_LIST, 1e-9f, 1.0f, 0.0f, K, NULL, NULL, 0 },
    { "sum", AMP_LOWER, 1023.0f, 1.0f, 0.0f, K, NULL, NULL, 0 },
    { "sum", AMP_LOWER, 1024.0f, 1.0f, 0.0f, K, "AMP-A07", "x", FP16_LEVELS },
    { "norm", AMP_BY_LIST, 1.0f, 91.0f, 0.0f, K, "AMP-A07", "w", FP16_MODELS },
    { "mul", AMP_BY_LIST, 1.0f, 1.0f, 1e-8f, K, "AMP-A08", "number", FP16_LEVELS },
    { "mul", AMP_BY_LIST, 1.0f, 1.0f, -1e9f, K, "AMP-A08", "number", FP16_LEVELS },
    { "linear", AMP_BY_LIST, 1.0f, 1.0f, 0.0f, 7, "AMP-A09", "x", LOW_LEVELS },
    { "mul", AMP_BY_LIST, 1.0f, 1.0f, 0.0f, 7, NULL, NULL, 0 },
    { "exp", AMP_BY_LIST, (float)__builtin_inff(), 1.0f, 0.0f, K, "AMP-A11", "x", EVERY_LEVEL },
    { "batch_norm", AMP_BY_LIST, 1.0f, 1.0f, 0.0f, K, "AMP-A10", "x", FP16_LEVELS },
};
enum { N_RULES = sizeof rules / sizeof rules[0] };

struct alone {
    struct raw raw;
    void (*slot)(const float *, const float *, float, float *, int32_t, int32_t);
    void (*backward)(const float *, const float *, float, float *, int32_t, int32_t); /* of it */
};

static void alone_end(struct alone *alone) { raw_stop(&alone->raw); }

#define ALONE(name) __attribute__((cleanup(alone_end))) struct alone name

static void alone_start(struct alone *alone, const char *name, amp_class op_class, amp_level level) {
    static const char schema[] =
        "f(float x[8, k], float w[k], float number, float(out a!) y[8, k], int32 m, int32 k) -> void";
    alone->slot = any_op, alone->backward = thousandfold;
    raw_init(&alone->raw);
    raw_op(&alone->raw, OP(name, schema, &alone->slot, .op_class = op_class));
    raw_op(&alone->raw, OP("back", schema, &alone->backward, .backward_of = name));
    raw_start(&alone->raw, CONFIG(level, .emulate = level == AMP_O0 ? AMP_DEFAULT : AMP_ON, .log = AMP_LOG_OFF,
                                  .gate = AMP_OFF, /* what is advised is no matter of this machine's speed */
                                  .observe = level == AMP_O0 ? AMP_ON : AMP_DEFAULT));
}

static void fill(float *to, int n, float value) {
    for (int i = 0; i < n; i++) to[i] = value;
}

TEST_TIMES(a_rule_says_what_it_sees, N_RULES) {
    ALONE(alone);
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    float x[8 * K], w[K], y[8 * K];
    alone_start(&alone, rules[_i].op, rules[_i].op_class, AMP_O0);
    ck_ok(amp_observe(alone.raw.context, NULL));
    fill(x, 8 * K, rules[_i].x), fill(w, K, rules[_i].w);
    alone.slot(x, w, rules[_i].number, y, 8, rules[_i].k);
    ck_ok(amp_survey(alone.raw.context, &result));
    ck_assert_uint_eq(result.iterations, 1); /* that is under way */
    if (!rules[_i].code) {
        ck_assert_msg(result.n_advice == 0, "%s", result.text);
        ck_assert_int_eq(result.level, AMP_O2);
    } else {
        const amp_advice *advice = find(&result, rules[_i].code, rules[_i].op, rules[_i].name);
        ck_assert_msg(advice != NULL, "%s", result.text);
        ck_assert_uint_eq(result.n_advice, 1);
        ck_assert_msg(advice->levels == rules[_i].levels, "%s", result.text);
        ck_assert_int_eq(strncmp(advice->message, advice->code, strlen(advice->code)), 0);
        ck_assert_ptr_nonnull(strstr(result.text, advice->code));
        ck_assert_ptr_nonnull(strstr(result.text, strrchr(advice->message, ':') + 2)); /* what to do */
    }
}

/* linear is called at this level with an x and a w of these, and surveyed. */
static void survey_at(struct alone *alone, amp_level level, float value, float weight, amp_survey_result *result) {
    float x[8 * K], w[K], y[8 * K];
    alone_start(alone, "linear", AMP_LOWER, level);
    ck_ok(amp_observe(alone->raw.context, NULL));
    fill(x, 8 * K, value), fill(w, K, weight);
    alone->slot(x, w, 0.0f, y, 8, K);
    ck_ok(amp_survey(alone->raw.context, result));
}

/* No level mends it, whichever it was seen at. */
TEST_TIMES(nan_is_said_at_every_level, N_EACH_LEVEL) {
    ALONE(alone);
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    survey_at(&alone, each_level[_i], __builtin_nanf(""), 1.0f, &result);
    const amp_advice *advice = find(&result, "AMP-A11", "linear", "x");
    ck_assert_msg(advice && advice->elements == 8 * K, "%s", result.text);
    for (uint64_t i = 0; i < result.n_levels; i++) ck_assert_int_eq(result.levels[i].fits, 0);
    ck_assert_int_eq(result.level, AMP_O0);
}

/* What was rounded to an infinity lies in FP32's memory; that explains the NaN behind it. */
TEST(emulated_overflows_are_fp16s) {
    ALONE(alone);
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    survey_at(&alone, AMP_O1, 1e5f, 1.0f, &result);
    const amp_advice *advice = find(&result, "AMP-A01", "linear", "x");
    ck_assert_msg(advice && advice->elements == 8 * K, "%s", result.text);
    ck_assert_msg(!find(&result, "AMP-A11", NULL, NULL), "%s", result.text);
}

/* An overflow that fp16 would have explains nothing in FP32. */
TEST(nan_is_said_beside_what_fp16_would_lose) {
    ALONE(alone);
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    survey_at(&alone, AMP_O0, __builtin_nanf(""), 65536.0f, &result);
    ck_assert_msg(find(&result, "AMP-A01", "linear", "w"), "%s", result.text);
    ck_assert_msg(find(&result, "AMP-A11", "linear", "x"), "%s", result.text);
}

/* What backward makes bounds the scale; a number that it gets may be the scale itself. */
TEST(backward_bounds_the_scale_and_has_no_constants) {
    ALONE(alone);
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    float x[8 * K], w[K], y[8 * K];
    alone_start(&alone, "linear", AMP_LOWER, AMP_O0);
    ck_ok(amp_observe(alone.raw.context, NULL));
    fill(x, 8 * K, 1.0f), fill(w, K, 1.0f);
    alone.slot(x, w, 0.0f, y, 8, K);
    alone.backward(x, w, 65536.0f, y, 8, K);
    ck_ok(amp_survey(alone.raw.context, &result));
    ck_assert_msg(!find(&result, "AMP-A08", NULL, NULL), "%s", result.text);
    ck_assert_float_eq(result.init_scale, 32.0f); /* 32,000, and 64,000 would fit too */
}

/* At a level with a dynamic scale a seed of 1 is shown times the scale, and not only to what is called backward. */
TEST_TIMES(a_scaled_seed_is_no_constant, 2) {
    ALONE(alone);
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    float x[8 * K], w[K], y[8 * K];
    alone_start(&alone, "cross_entropy", AMP_BY_LIST, AMP_O1);
    ck_ok(amp_observe(alone.raw.context, NULL));
    fill(x, 8 * K, 1.0f), fill(w, K, 1.0f);
    alone.slot(x, w, _i ? 100000.0f : 65536.0f, y, 8, K);
    ck_ok(amp_survey(alone.raw.context, &result));
    ck_assert_msg(!_i == !find(&result, "AMP-A08", NULL, NULL), "%s", result.text);
}

/* ---- levels: what fits, and how large ---- */

TEST(levels_say_what_they_take) {
    static const struct training t = { keep, keep, multiply, 1.0f, { 2.0f, 2.0f }, { 0.1f, 0.1f }, 1.0f, "linear" };
    static struct run run;
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    watch(&run, &t, NULL);
    train(&run, &t, 1);
    ck_ok(amp_survey(run.raw.context, &result));
    ck_assert_uint_eq(result.n_levels, N_EACH_LEVEL);
    for (uint64_t i = 0; i < result.n_levels; i++) {
        const amp_memory *m = &result.levels[i].memory;
        const bool copies = m->level != AMP_O0; /* of the host's own blocks */
        ck_assert_uint_eq(m->weights, PARAMS * N * 4);
        ck_assert_uint_eq(m->gradients, m->weights);
        ck_assert_uint_eq(m->masters + m->master_gradients, 0);
        ck_assert_uint_eq(m->casts, copies ? PARAMS * N * 2 : 0);
        ck_assert_uint_eq(m->outputs, 4 * N * (m->level == AMP_O0 ? 4 : 2));
    }
    end(&run);
}

/* ---- parameters ---- */

static const struct {
    float weight;
    int32_t kind;
    unsigned levels; /* 0: nothing is said of it */
} weights[] = {
    { 1e5f, AMP_MODULE_OTHER, FP16_MODELS },
    { 1e5f, AMP_MODULE_BATCH_NORM, 1u << AMP_O3 },
    { 1e-9f, AMP_MODULE_OTHER, FP16_MODELS },
    { 1e-6f, AMP_MODULE_OTHER, 0 },
    { 6e4f, AMP_MODULE_OTHER, 0 },
};

TEST_TIMES(a_weight_that_does_not_fit_is_named, sizeof weights / sizeof weights[0]) {
    static struct run run;
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    const float w = weights[_i].weight; /* where it is it stays: the gradient is 0 */
    const struct training t = { keep, keep, multiply, 1.0f, { w, w }, { 0.1f, 0.1f }, w, "linear" };
    describe(&run, &t);
    for (int i = 0; i < PARAMS; i++) run.raw.params[i].module_kind = weights[_i].kind;
    start(&run, AMP_O0, 0.0f);
    ck_ok(amp_observe(run.raw.context, NULL));
    train(&run, &t, 2);
    ck_ok(amp_survey(run.raw.context, &result));
    const amp_advice *advice = find(&result, "AMP-A05", NULL, "second");
    ck_assert_msg((advice ? advice->levels : 0) == weights[_i].levels, "%s", result.text);
    end(&run);
}

TEST(a_scale_that_starts_too_high_is_told) {
    static const struct training t = { keep, keep, multiply, 1.0f, { 100.0f, 0.0f }, { 0.1f, 0.1f }, 0.0f, "linear" };
    static struct run run;
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    watch(&run, &t, NULL);
    train(&run, &t, 1);
    ck_ok(amp_survey(run.raw.context, &result));
    ck_assert_ptr_nonnull(find(&result, "AMP-A02", NULL, NULL));
    ck_assert_float_eq(result.init_scale, 256.0f); /* 100 * 512 is finite, and a binade is left */
    ck_assert_int_eq(result.level, AMP_O2);        /* it costs steps, and fits */
    end(&run);
}

/* What backward made of a scale that was too high is no op's fault once a lower one was right. */
TEST_TIMES(a_skip_condemns_no_level, 2) {
    static const struct training t = { keep, keep, multiply, 1.0f, { 2.0f, 2.0f }, { 0.1f, 0.1f }, 0.0f, "linear" };
    static struct run run;
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    describe(&run, &t);
    run.raw.ops[2].backward_of = "head";
    start(&run, AMP_O1, 65536.0f);
    ck_ok(amp_observe(run.raw.context, NULL));
    train(&run, &t, _i ? 10 : 1);
    ck_ok(amp_survey(run.raw.context, &result));
    ck_assert_msg((find(&result, "AMP-A01", NULL, NULL) == NULL) == (_i == 1), "%s", result.text);
    for (uint64_t i = 0; i < result.n_levels; i++)
        if (result.levels[i].memory.level == AMP_O2) ck_assert_int_eq(result.levels[i].fits, _i);
    end(&run);
}

/* ---- what cannot be asked ---- */

/* A training of one bracket, at this level, whose gradients are `value`. */
static const amp_advice *underflows(struct rig *rig, amp_level level, double value, amp_survey_result *result) {
    *result = (amp_survey_result)AMP_SURVEY_RESULT_INIT;
    rig_init(rig, 0);
    rig_wire(rig, CONFIG(level, .log = AMP_LOG_OFF, .gate = AMP_OFF));
    ck_ok(amp_observe(rig->context, NULL));
    (void)bracket(rig, value);
    ck_ok(amp_survey(rig->context, result));
    return find(result, "AMP-A12", NULL, NULL);
}

/* 1e-9 is 0 in fp16, and fits at 2^16; at O3 nothing of it is left to see. */
TEST_TIMES(a_level_that_does_not_scale_loses_small_gradients, 3) {
    static const struct {
        amp_level level;
        double gradient;
    } cases[] = { { AMP_O0, 1e-9 }, { AMP_O3, 0.0 }, { AMP_O0, 0.5 } };
    RIG(rig);
    amp_survey_result result;
    const amp_advice *advice = underflows(&rig, cases[_i].level, cases[_i].gradient, &result);
    ck_assert_msg((advice != NULL) == (_i < 2), "%s", result.text);
    if (advice) ck_assert_uint_eq(advice->levels, 1u << AMP_O3);
    for (uint64_t i = 0; i < result.n_levels; i++)
        if (result.levels[i].memory.level == AMP_O3) ck_assert_int_eq(result.levels[i].fits, _i == 2);
}

/* On a CPU where fp16 is known to be slower, by what was measured or said there, bfloat16 is advised. */
TEST_TIMES(the_advice_knows_the_machine, 3) {
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    RIG_WITH(rig, 0, AMP_O1, .gate = _i == 2 ? AMP_OFF : AMP_ON, .log = AMP_LOG_OFF);
    if (_i < 2) ck_ok(amp_gate_set(rig.context, "matmul", _i ? AMP_GATE_NEVER : AMP_GATE_ALWAYS));
    ck_ok(amp_observe(rig.context, NULL));
    OWN_TENSOR *a = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    fake_release(net_binary(&rig.net, OP_matmul, a, a));
    ck_ok(amp_survey(rig.context, &result));
    ck_assert_msg(result.level == (_i == 1 ? AMP_O5 : AMP_O2), "%s", result.text);
    ck_assert_int_eq(strstr(result.text, "not faster than FP32's") != NULL, _i == 1);
}

TEST(a_survey_needs_something_to_look_at) {
    ALONE(alone);
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    alone_start(&alone, "linear", AMP_BY_LIST, AMP_O0);
    ck_fails(AMP_ERR_WRONG_STATE, amp_survey(alone.raw.context, &result));
    ck_says("call amp_observe");
    ck_ok(amp_observe(alone.raw.context, NULL));
    ck_fails(AMP_ERR_WRONG_STATE, amp_survey(alone.raw.context, &result));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_survey(alone.raw.context, NULL));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_survey(NULL, &result));
    float x[8 * K] = { 0 }, w[K] = { 0 }, y[8 * K];
    alone.slot(x, w, 0.0f, y, 8, K);
    result.struct_size = 4;
    ck_fails(AMP_ERR_ABI_MISMATCH, amp_survey(alone.raw.context, &result));
    result = (amp_survey_result)AMP_SURVEY_RESULT_INIT;
    ck_ok(amp_survey(alone.raw.context, &result));
    ck_ok(amp_survey(alone.raw.context, &result)); /* again: the first one's memory is given back */
    ck_ok(amp_observe_stop(alone.raw.context));
    ck_fails(AMP_ERR_WRONG_STATE, amp_survey(alone.raw.context, &result));
    amp_context *context = alone.raw.context;
    alone_end(&alone);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_survey(context, &result));
}
