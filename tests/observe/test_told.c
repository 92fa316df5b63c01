/* SPDX-License-Identifier: Apache-2.0 */
/* amp_observe_call: what a host tells of its own calls is counted, found guilty and surveyed as a wrapped op's is. */
#include "../scaling/bracket.h"
#include "raw.h"

#include <amp_all.h>
#include <math.h>
#include <pthread.h>

enum { N = 4 };

static void start(struct rig *rig, amp_level level, const amp_observe_options *options) {
    rig_init(rig, 0);
    rig_wire(rig, CONFIG(level, .log = AMP_LOG_OFF));
    ck_ok(amp_observe(rig->context, options));
}

static amp_observed_value value_of(const char *name, float *data, bool is_output) {
    return (amp_observed_value){ .name = name, .span = { data, N, AMP_FLOAT32, 0 }, .is_output = is_output };
}

static amp_status tell(amp_context *context, const char *where, const char *op, float *in, float *out, bool backward) {
    const amp_observed_value values[] = { value_of("out", out, true), value_of("x", in, false) };
    amp_observed_call call = AMP_OBSERVED_CALL_INIT;
    call.op = op, call.where = where, call.values = values, call.n_values = 2, call.in_backward = backward;
    return amp_observe_call(context, &call);
}

static const amp_observation *find(amp_context *context, uint32_t what, const char *op, const char *name) {
    static amp_observation seen[64];
    size_t n;
    seen[0] = (amp_observation)AMP_OBSERVATION_INIT;
    ck_ok(amp_get_observations(context, seen, sizeof seen / sizeof seen[0], &n));
    for (size_t i = 0; i < n; i++)
        if (seen[i].what == what && seen[i].op && !strcmp(seen[i].op, op) && !strcmp(seen[i].name, name))
            return &seen[i];
    return NULL;
}

static const amp_observation *get(amp_context *context, uint32_t what, const char *op, const char *name) {
    const amp_observation *found = find(context, what, op, name);
    ck_assert_msg(found != NULL, "%s of %s was not seen", name, op);
    return found;
}

TEST(a_call_is_counted_with_its_place) {
    RIG(rig);
    float x[N] = { 1, 2, 3, 4 }, y[N] = { 0, 8, -16, INFINITY };
    start(&rig, AMP_O1, NULL);
    ck_ok(tell(rig.context, "encoder.0", "linear", x, y, false));
    ck_ok(tell(rig.context, "encoder.0", "linear", x, y, false));
    ck_ok(tell(rig.context, NULL, "linear", x, x, false));
    ck_ok(tell(rig.context, "encoder.0", "linear", y, x, true));
    ck_assert_uint_eq(get(rig.context, AMP_SEE_INPUTS, "encoder.0: linear", "x")->total->elements, 2 * N);
    const amp_observation *out = get(rig.context, AMP_SEE_OUTPUTS, "encoder.0: linear", "out");
    ck_assert_uint_eq(out->total->plus_infinities, 2);
    ck_assert_double_eq(out->last->largest, 16.0);
    ck_assert_uint_eq(get(rig.context, AMP_SEE_OUTPUTS, "linear", "out")->total->elements, N);
    ck_assert_uint_eq(get(rig.context, AMP_SEE_OUTPUTS, "encoder.0: linear (backward)", "out")->total->elements, N);
}

/* ---- the order of observations ---- */

static void clip(float least, const float *x, float most, float *y, int32_t n) {
    for (int32_t i = 0; i < n; i++) y[i] = fminf(fmaxf(x[i], least), most);
}

static struct {
    void (*clip)(float, const float *, float, float *, int32_t);
    void (*late)(float, const float *, float, float *, int32_t);
} table;

#define CLIPS(name) name "(float least, float x[n], float most, float(out a!) y[n], int32 n) -> void"

/* Whatever was seen first: a number, a parameter, or an argument that had no elements. */
TEST(observations_are_in_the_order_of_calls_and_arguments) {
    static const char *const order[8] = { "clip least", "clip x", "clip most", "clip y", "late least", "late x",
                                          "late most", "late y" };
    amp_observation seen[16] = { AMP_OBSERVATION_INIT };
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    float x[N] = { -2, -1, 1, 2 }, y[N] = { 0 }, w[N] = { 1 }, dw[N] = { 0 };
    char text[32];
    size_t n;
    struct raw raw;
    table.clip = table.late = clip, options.every = 1;
    raw_init(&raw);
    raw_param(&raw, "w", w, dw, N);
    raw_op(&raw, OP("clip", CLIPS("clip"), &table.clip, .op_class = AMP_LEAVE));
    raw_op(&raw, OP("late", CLIPS("late"), &table.late, .op_class = AMP_LEAVE));
    raw_start(&raw, CONFIG(AMP_O0, .log = AMP_LOG_OFF, .observe = AMP_ON));
    ck_ok(amp_observe(raw.context, &options));
    table.clip(-1.0f, x, 1.0f, y, 0);
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    table.late(-1.0f, x, 1.0f, y, N);
    table.clip(-1.0f, x, 1.0f, y, N);
    ck_ok(amp_get_observations(raw.context, seen, 16, &n));
    ck_assert_uint_gt(n, 8);
    for (size_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%s %s", seen[i].op ? seen[i].op : "parameter", seen[i].name);
        ck_assert_str_eq(text, i < 8 ? order[i] : "parameter w");
    }
    raw_stop(&raw);
}

/* One line of 16 counts: multiples of 16, and the one large value is found. Exact by default. */
TEST(a_large_tensor_may_be_sampled) {
    enum { LARGE = 65536 };
    static float x[LARGE];
    for (uint32_t sample = 1; sample <= 16; sample += 15) {
        RIG(rig);
        amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
        const amp_observed_value values[] = { { "x", NULL, { x, LARGE, AMP_FLOAT32, 0 }, 0, 0 } };
        amp_observed_call call = AMP_OBSERVED_CALL_INIT;
        options.every = 1, options.sample = sample;
        for (size_t i = 0; i < LARGE; i++) x[i] = i % 3 ? 1.0f : 4.0f;
        x[777] = 1e30f;
        start(&rig, AMP_O1, &options);
        call.op = "linear", call.values = values, call.n_values = 1;
        ck_ok(amp_observe_call(rig.context, &call));
        const amp_statistics *s = get(rig.context, AMP_SEE_INPUTS, "linear", "x")->last;
        const uint64_t ones = s->binades[-AMP_BINADE_LEAST].elements, fours = s->binades[2 - AMP_BINADE_LEAST].elements;
        ck_assert(s->elements == LARGE && s->largest == (double)1e30f);
        if (sample == 1) ck_assert(ones == LARGE * 2 / 3 && fours == LARGE / 3);
        else ck_assert(ones % 16 == 0 && fours % 16 == 0 && ones > LARGE * 6 / 10 && ones < LARGE * 7 / 10);
    }
}

static amp_culprit culprit_of(struct rig *rig) {
    amp_culprit culprit = AMP_CULPRIT_INIT;
    ck_assert_int_eq(bracket(rig, INF), AMP_SKIP);
    ck_ok(amp_get_culprit(rig->context, &culprit));
    ck_assert_ptr_nonnull(culprit.op);
    return culprit;
}

/* A mask's -infinity is there in every iteration; alone it is better than nothing. */
TEST(a_mask_is_no_culprit) {
    RIG(rig);
    float mask[N] = { 0, -INFINITY, 1, 2 }, x[N] = { 1, 2, 3, 4 }, y[N] = { 0, 8, -16, INFINITY };
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    options.every = 1;
    start(&rig, AMP_O1, &options);
    ck_ok(tell(rig.context, NULL, "masked_fill", x, mask, false));
    ck_ok(tell(rig.context, NULL, "softmax", mask, x, false));
    ck_ok(tell(rig.context, NULL, "linear", x, y, false));
    ck_assert_str_eq(culprit_of(&rig).op, "linear");
    ck_ok(tell(rig.context, NULL, "masked_fill", x, mask, false));
    ck_assert_str_eq(culprit_of(&rig).op, "masked_fill");
}

/* Only one that was told, and only of what was finite before it: a batch in 16 bits may have infinities too. */
TEST_TIMES(only_casts_are_blamed_on_casts, 4) {
    static const struct {
        float value;
        bool tells_of_cast;
    } got[] = { { 1e6f, true }, { 1e6f, false }, { INFINITY, true }, { NAN, true } };
    RIG(rig);
    const float values[N] = { 1, got[_i].value, 2, 3 };
    uint16_t low[N];
    start(&rig, AMP_O1, NULL);
    amp_span from = { (float *)(uintptr_t)values, N, AMP_FLOAT32, 0 }, to = { low, N, AMP_FLOAT16, 0 };
    ck_ok(amp_cast_list(&to, &from, 1));
    const amp_observed_value cast[] = { { .name = "x", .span = from }, { .name = "y", .span = to, .is_output = 1 } };
    const amp_observed_value in = { .name = "x", .span = to };
    amp_observed_call call = AMP_OBSERVED_CALL_INIT;
    call.op = "cast", call.values = cast, call.n_values = 2, call.is_cast = 1;
    if (got[_i].tells_of_cast) ck_ok(amp_observe_call(rig.context, &call));
    call.op = "linear", call.values = &in, call.n_values = 1, call.is_cast = 0;
    ck_ok(amp_observe_call(rig.context, &call));
    const amp_culprit culprit = culprit_of(&rig);
    ck_assert_str_eq(culprit.op, "linear");
    ck_assert_uint_eq(culprit.call, 1); /* a cast is no op */
    ck_assert_int_eq(culprit.was_cast, !_i);
    ck_assert_int_eq(culprit.cause, _i ? AMP_CAUSE_INPUT : AMP_CAUSE_CAST);
    ck_assert_ptr_null(find(rig.context, AMP_SEE_INPUTS, "cast", "x"));
}

/* Handles are read by the host's hook, and a parameter's is one. */
TEST(handles_are_read_too) {
    RIG(rig);
    start(&rig, AMP_O1, NULL);
    const amp_observed_value values[] = { { .name = "weight", .tensor = rig.net.weight } };
    amp_observed_call call = AMP_OBSERVED_CALL_INIT;
    call.op = "linear", call.values = values, call.n_values = 1;
    ck_ok(amp_observe_call(rig.context, &call));
    ck_assert_uint_eq(get(rig.context, AMP_SEE_INPUTS, "linear", "weight")->total->elements, NET_SIZE);
}

TEST(only_observed_iterations_count_and_only_names_that_are_asked_for) {
    RIG(rig);
    const char *const names[] = { "block*" };
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    float x[N] = { 1, 2, 3, 4 };
    options.names = names, options.n_names = 1;
    start(&rig, AMP_O1, &options);
    ck_assert_int_eq(amp_is_observing(rig.context), 1);
    ck_ok(tell(rig.context, "block1", "relu", x, x, false));
    ck_ok(tell(rig.context, "head", "relu", x, x, false));
    ck_ok(net_train_step(&rig.net, 0.5)); /* the first iteration is over */
    ck_assert_int_eq(amp_is_observing(rig.context), 0);
    ck_ok(tell(rig.context, "block1", "relu", x, x, false));
    ck_assert_uint_eq(get(rig.context, AMP_SEE_OUTPUTS, "block1: relu", "out")->total->elements, N);
    ck_assert_ptr_null(find(rig.context, AMP_SEE_OUTPUTS, "head: relu", "out"));
    ck_assert_int_eq(amp_is_observing(NULL), 0);
}

/* The first that made what is not finite from what was, in forward or in backward. */
TEST_TIMES(it_may_be_the_culprit, 2) {
    RIG(rig);
    amp_culprit culprit = AMP_CULPRIT_INIT;
    float x[N] = { 1, 2, 3, 4 }, bad[N] = { 1, INFINITY, 3, 4 };
    start(&rig, AMP_O1, NULL);
    ck_ok(tell(rig.context, "a", "exp", x, x, false));
    ck_ok(tell(rig.context, "b", "exp", x, _i ? x : bad, false));
    ck_ok(tell(rig.context, "c", "relu", _i ? x : bad, _i ? x : bad, false));
    ck_ok(tell(rig.context, "c", "relu", x, bad, true));
    ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
    ck_ok(amp_get_culprit(rig.context, &culprit));
    ck_assert_str_eq(culprit.op, _i ? "c: relu (backward)" : "b: exp");
    ck_assert_uint_eq(culprit.call, _i ? 4 : 2);
    ck_assert_uint_eq(culprit.n_arguments, 2);
    ck_assert_str_eq(culprit.arguments[1].name, "out");
    ck_assert_uint_eq(culprit.arguments[1].nonfinite, 1);
}

/* Of a list one entry; of very many the first AMP_SEEN_ARGUMENTS are remembered, and all are counted. */
TEST(a_list_is_one_and_many_are_cut) {
    RIG(rig);
    amp_culprit culprit = AMP_CULPRIT_INIT;
    float first[N] = { 1, 2, 0, 4 }, second[N] = { 0.25f, 8, NAN, 4 };
    amp_observed_value values[20];
    static char names[20][8];
    amp_observed_call call = AMP_OBSERVED_CALL_INIT;
    for (int i = 0; i < 20; i++) {
        snprintf(names[i], sizeof names[i], "x%d", i);
        values[i] = value_of(names[i], first, i != 0 && i != 19);
    }
    values[18] = value_of("x1", second, true);
    call.op = "chunk", call.values = values, call.n_values = 20;
    start(&rig, AMP_O1, NULL);
    ck_ok(amp_observe_call(rig.context, &call));
    ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
    ck_ok(amp_get_culprit(rig.context, &culprit));
    ck_assert_str_eq(culprit.op, "chunk");
    ck_assert_uint_eq(culprit.n_arguments, AMP_SEEN_ARGUMENTS);
    for (uint32_t i = 0; i < culprit.n_arguments; i++) {
        const amp_seen_argument *a = &culprit.arguments[i];
        if (strcmp(a->name, "x1") != 0) continue;
        ck_assert_uint_eq(a->elements, 2 * N);
        ck_assert_uint_eq(a->nonfinite, 1);
        ck_assert_double_eq(a->largest, 8.0);
        ck_assert_double_eq(a->least, 0.25);
    }
    (void)get(rig.context, AMP_SEE_OUTPUTS, "chunk", "x17");
    (void)get(rig.context, AMP_SEE_INPUTS, "chunk", "x19");
}

TEST(the_survey_knows_its_class) {
    RIG(rig);
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    float large[N] = { 1e6f, 2, 3, 4 }, x[N] = { 1, 2, 3, 4 };
    start(&rig, AMP_O0, NULL);
    ck_ok(tell(rig.context, "fc", "linear", x, large, false)); /* at O1 it works in fp16 */
    ck_ok(tell(rig.context, "end", "softmax", x, large, false)); /* and this stays FP32 */
    float wide[N] = { 1e6f, 2, 3, 4 }, low[N] = { 0 };
    ck_ok(tell(rig.context, "loss", "mul", large, wide, false)); /* so does what follows it, */
    ck_ok(tell(rig.context, "loss", "add", wide, wide, false));
    ck_ok(tell(rig.context, "fc", "linear", x, low, false));
    ck_ok(tell(rig.context, "both", "add", wide, wide, false));
    ck_ok(tell(rig.context, "both", "add", low, wide, false)); /* and this does not always */
    ck_ok(amp_survey(rig.context, &result));
    unsigned found = 0;
    for (uint64_t i = 0; i < result.n_advice; i++) {
        const amp_advice *advice = &result.advice[i];
        if (!advice->op || strcmp(advice->code, "AMP-A01") != 0) continue;
        const bool linear = !strcmp(advice->op, "fc: linear");
        if (strstr(advice->op, "add") || strstr(advice->op, "mul")) {
            const bool both = !strcmp(advice->op, "both: add");
            ck_assert_msg(!(advice->levels & 1u << AMP_O1) == !both, "%s", advice->message);
            continue;
        }
        ck_assert_int_eq((advice->levels & 1u << AMP_O1) != 0, linear);
        ck_assert_int_ne((int)(advice->levels & 1u << AMP_O2), 0);
        found += linear ? 1 : 2;
    }
    ck_assert_uint_eq(found, 3);
}

/* -infinity that masks is no overflow of fp16; -1e9 is a constant that fp16 does not hold. */
TEST(the_survey_knows_masks) {
    static const struct {
        const char *op;
        float in[N], out[N];
        const char *code; /* NULL: nothing is advised */
        bool wide;        /* FP32 that no level has rounded; else what fp16 made of it */
    } cases[] = {
        { "add", { 0, -INFINITY, 0, 1 }, { 1, -INFINITY, 2, 3 }, NULL, false },
        { "masked_fill", { 0, 1, 2, 3 }, { 1, -INFINITY, 2, 3 }, NULL, false },
        { "add", { 0, 1, 2, 3 }, { 1, -INFINITY, 2, 3 }, "AMP-A01", false },
        { "linear", { 0, -INFINITY, 2, 3 }, { 1, 2, 3, 4 }, "AMP-A01", false },
        { "add", { 0, -1e9f, 0, -1e9f }, { 1, -1e9f, 2, -1e9f }, "AMP-A08", true },
        { "softmax", { 1, -1e9f, 2, -1e9f }, { 0, 0, 1, 1 }, "AMP-A08", true },
        { "add", { 0, -1e9f, 0, 1e9f }, { 1, 2, 3, 4 }, "AMP-A01", true },
        { "linear", { 0, -1e9f, 0, -1e9f }, { 1, 2, 3, 4 }, "AMP-A01", true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        RIG(rig);
        amp_survey_result result = AMP_SURVEY_RESULT_INIT;
        float in[N], out[N];
        uint16_t low[2][N];
        memcpy(in, cases[i].in, sizeof in), memcpy(out, cases[i].out, sizeof out);
        amp_observed_value values[] = { value_of("out", out, true), value_of("x", in, false) };
        for (int j = 0; j < 2 && !cases[i].wide; j++) {
            const amp_span to = { low[j], N, AMP_FLOAT16, 0 };
            ck_ok(amp_cast_list(&to, &values[j].span, 1));
            values[j].span = to;
        }
        amp_observed_call call = AMP_OBSERVED_CALL_INIT;
        call.op = cases[i].op, call.values = values, call.n_values = 2;
        start(&rig, cases[i].wide ? AMP_O0 : AMP_O2, NULL);
        ck_ok(amp_observe_call(rig.context, &call));
        ck_ok(amp_survey(rig.context, &result));
        const char *code = result.n_advice ? result.advice[0].code : NULL;
        ck_assert_msg(cases[i].code ? code && !strcmp(code, cases[i].code) : !code, "%s %zu: %s", cases[i].op, i,
                      result.text);
        ck_assert_uint_le(result.n_advice, 1);
    }
}

static const amp_advice *advice_of(amp_context *context, const char *op) {
    static amp_survey_result result;
    const amp_advice *found = NULL;
    result = (amp_survey_result)AMP_SURVEY_RESULT_INIT;
    ck_ok(amp_survey(context, &result));
    for (uint64_t i = 0; i < result.n_advice; i++) {
        if (!result.advice[i].op || strcmp(result.advice[i].op, op) != 0) continue;
        ck_assert_msg(!found, "%s", result.text);
        found = &result.advice[i];
    }
    return found;
}

/* Of one kind there is one advice an op, of where it is worst. */
TEST_TIMES(the_worst_of_an_op_is_told, 2) {
    RIG(rig);
    float one[N] = { 1e6f, 2, 3, 4 }, three[N] = { 1e6f, 1e6f, 1e7f, 4 };
    const amp_observed_value values[] = { value_of("a", _i ? one : three, true),
                                          value_of("b", _i ? three : one, true) };
    amp_observed_call call = AMP_OBSERVED_CALL_INIT;
    call.op = "linear", call.where = "fc", call.values = values, call.n_values = 2;
    start(&rig, AMP_O0, NULL);
    ck_ok(amp_observe_call(rig.context, &call));
    const amp_advice *advice = advice_of(rig.context, "fc: linear");
    ck_assert_ptr_nonnull(advice);
    ck_assert_str_eq(advice->name, _i ? "b" : "a");
    ck_assert_uint_eq(advice->elements, 3);
    ck_assert_double_eq(advice->largest, 1e7);
}

/* What an op's name says of it: what it got, and the advice; NULL: there is none. */
static const struct {
    const char *op;
    float got[N];
    const char *code;
} named[] = {
    { "log", { 1e-9f, 1, 1, 1 }, "AMP-A06" },
    { "relu", { 1e-9f, 1, 1, 1 }, NULL },
    { "sum", { 6e4f, 6e4f, 1, 1 }, "AMP-A07" },
    { "sum", { 6e4f, -6e4f, 1, 1 }, NULL },
    { "norm", { 300, 1, 1, 1 }, "AMP-A07" },
    { "relu", { 6e4f, 6e4f, 1, 1 }, NULL },
};

TEST_TIMES(the_name_says_what_is_looked_for, sizeof named / sizeof named[0]) {
    RIG(rig);
    float got[N], made[N] = { 1, 1, 1, 1 };
    memcpy(got, named[_i].got, sizeof got);
    start(&rig, AMP_O0, NULL);
    ck_ok(tell(rig.context, NULL, named[_i].op, got, made, false));
    ck_ok(tell(rig.context, NULL, named[_i].op, got, made, true)); /* of backward nobody knows that */
    const amp_advice *advice = advice_of(rig.context, named[_i].op);
    if (named[_i].code) ck_assert_str_eq(advice->code, named[_i].code);
    else ck_assert_ptr_null(advice);
}

/* Elements for each channel, where weight and bias tell how many channels there are. */
TEST_TIMES(a_small_batch_is_told, 2) {
    RIG(rig);
    float x[64] = { 0 }, w[2] = { 1, 1 };
    const amp_observed_value values[] = { { .name = "input", .span = { x, _i ? 64 : 8, AMP_FLOAT32, 0 } },
                                          { .name = "weight", .span = { w, 2, AMP_FLOAT32, 0 } } };
    amp_observed_call call = AMP_OBSERVED_CALL_INIT;
    call.op = "batch_norm", call.values = values, call.n_values = 2;
    start(&rig, AMP_O0, NULL);
    ck_ok(amp_observe_call(rig.context, &call));
    const amp_advice *advice = advice_of(rig.context, "batch_norm");
    if (_i) ck_assert_ptr_null(advice);
    else ck_assert_str_eq(advice->code, "AMP-A10");
}

static void *tell_many(void *context) {
    float x[N] = { 1, 2, 3, 4 };
    char where[16];
    for (int i = 0; i < 200; i++) {
        snprintf(where, sizeof where, "m%d", i % 10);
        ck_ok(tell(context, where, "relu", x, x, i & 1));
    }
    return NULL;
}

TEST(threads_tell_at_once) {
    RIG(rig);
    pthread_t threads[4];
    uint64_t elements = 0;
    start(&rig, AMP_O1, NULL);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, tell_many, rig.context), 0);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 10; i++) {
        char name[32];
        snprintf(name, sizeof name, "m%d: relu%s", i, i % 2 ? " (backward)" : "");
        elements += get(rig.context, AMP_SEE_OUTPUTS, name, "out")->total->elements;
    }
    ck_assert_uint_eq(elements, 4 * 200 * N);
}

TEST(what_has_no_room_is_left_out) {
    RIG(rig);
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    float x[N] = { 1, 2, 3, 4 };
    options.max_bytes = 100;
    start(&rig, AMP_O1, &options);
    ck_ok(tell(rig.context, "fc", "linear", x, x, false));
    ck_assert_ptr_null(find(rig.context, AMP_SEE_OUTPUTS, "fc: linear", "out"));
}

TEST(what_cannot_be_is_refused) {
    RIG(rig);
    float x[N] = { 1, 2, 3, 4 };
    amp_observed_value value = value_of("", x, false);
    amp_observed_call call = AMP_OBSERVED_CALL_INIT;
    start(&rig, AMP_O1, NULL);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_observe_call(rig.context, NULL));
    ck_says("call is NULL");
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_observe_call(NULL, &call));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_observe_call(rig.context, &call));
    ck_says("the op has no name");
    call.op = "linear", call.n_values = 1;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_observe_call(rig.context, &call));
    ck_says("linear: 1 value, and values is NULL");
    call.values = &value;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_observe_call(rig.context, &call));
    ck_says("linear: values[0] has no name");
    value.name = "x", value.span.dtype = AMP_DTYPE_OTHER; /* nothing that can be read */
    ck_ok(amp_observe_call(rig.context, &call));
    ck_assert_ptr_null(find(rig.context, AMP_SEE_INPUTS, "linear", "x"));
}
