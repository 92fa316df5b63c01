/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer target: a host of raw buffers that is observed at O0. The input chooses the options, the calls and their
 * elements, of any bits, and when it is observed anew, surveyed or left alone. What is observed is what the ledger
 * has, of ops, told calls, weights and gradients; what ops compute is what they compute alone; a survey's parts agree.
 */
#include "../support/raw.h"
#include "fuzz.h"
#include "observe_ledger.h"

#include "common/common.h"

#include <math.h>

enum { N = 6, TOLD = 12 };

static void square(const float *x, float *y, int32_t n) {
    for (int32_t i = 0; i < n; i++) y[i] = x[i] * x[i];
}
static void halve(const float *x, float *y, int32_t n) {
    for (int32_t i = 0; i < n; i++) y[i] = x[i] / 2.0f;
}
static void backward(const float *y, float *dw, int32_t n) {
    for (int32_t i = 0; i < n; i++) dw[i] += y[i];
}

typedef void unary(const float *, float *, int32_t);
static struct {
    unary *square, *halve, *backward;
} table;

static struct world {
    struct raw raw;
    float x[N], y[N], w[N], dw[N];
    struct ledger ledger;
    const char *names[3]; /* of the ledger's options */
    uint64_t brackets;
    bool overflowed; /* a bracket that was observed was skipped, */
    bool nonfinite;  /* or had gradients that were not finite, and a static scale stepped on them */
} world;

static bool observing(void) { return amp_is_observing(world.raw.context) == 1; }

static void note(uint32_t what, const char *op, const char *name, const float *data) {
    if (observing()) ledger_note(&world.ledger, what, op, name, AMP_FLOAT32, data, N);
}

static void start(struct bytes *bytes) {
    struct raw *raw = &world.raw;
    memset(&world, 0, sizeof world);
    raw_init(raw);
    table.square = square, table.halve = halve, table.backward = backward;
    for (int i = 0; i < N; i++) world.w[i] = 1.0f;
    raw_param(raw, "fc.weight", world.w, world.dw, N);
    raw_op(raw, OP("square", "square(float x[n], float(out a!) y[n], int32 n) -> void", &table.square,
                   .op_class = AMP_LOWER));
    raw_op(raw,
           OP("halve", "halve(float x[n], float(out a!) y[n], int32 n) -> void", &table.halve, .op_class = AMP_LEAVE));
    raw_op(raw, OP("back", "back(float y[n], float(a!) dw[n], int32 n) -> void", &table.backward, .op_class = AMP_LOWER,
                   .backward_of = "square"));
    raw_start(raw, CONFIG(AMP_O0, .loss_scale = take(bytes) & 1 ? AMP_DYNAMIC : 1.0f, .init_scale = 4.0f, .window = 2,
                          .log = AMP_LOG_OFF, .observe = AMP_ON));
}

/* ---- what the input chooses ---- */

static void call_op(struct bytes *bytes) {
    const bool squares = take_below(bytes, 2);
    float alone[N];
    take_elements(bytes, AMP_FLOAT32, world.x, N);
    (squares ? square : halve)(world.x, alone, N);
    note(AMP_SEE_INPUTS, squares ? "square" : "halve", "x", world.x);
    (squares ? table.square : table.halve)(world.x, world.y, N);
    note(AMP_SEE_OUTPUTS, squares ? "square" : "halve", "y", world.y);
    for (int i = 0; i < N; i++)
        need(alone[i] == world.y[i] || (isnan(alone[i]) && isnan(world.y[i])), "an op made another value");
}

/* A call of the host's own, of up to three tensors of any type. */
static void tell_call(struct bytes *bytes) {
    static const char *const ops[] = { "linear", "conv", "my op", "" }, *const places[] = { NULL, "layer.1", "b" },
                      *const names[] = { "input", "other", "return", "" };
    static uint64_t data[3][TOLD];
    amp_observed_value values[3];
    amp_observed_call call = AMP_OBSERVED_CALL_INIT;
    bool named = true;
    char op[64];
    call.op = ops[take_below(bytes, 16) % 15 / 5 + (take(bytes) == 255)], call.where = places[take_below(bytes, 3)];
    call.in_backward = take(bytes) & 1;
    call.values = values, call.n_values = take_below(bytes, 4);
    for (uint64_t i = 0; i < call.n_values; i++) {
        const amp_dtype type = all_types[take_below(bytes, TYPES)];
        const size_t n = take_below(bytes, TOLD + 1);
        take_elements(bytes, type, data[i], n);
        const unsigned name = take_below(bytes, 64);
        values[i] =
            (amp_observed_value){ names[name == 63 ? 3 : name % 3], NULL, { data[i], n, type, 0 }, take(bytes) & 1, 0 };
        named = named && name != 63;
    }
    const amp_status status = amp_observe_call(world.raw.context, &call);
    if (!*call.op || !named) {
        need_refused(status, "a call without a name");
        return;
    }
    need(status == AMP_OK, "a call was refused");
    snprintf(op, sizeof op, "%s%s%s%s", call.where ? call.where : "", call.where ? ": " : "", call.op,
             call.in_backward ? " (backward)" : "");
    for (uint64_t i = 0; i < call.n_values && observing(); i++)
        ledger_note(&world.ledger, values[i].is_output ? AMP_SEE_OUTPUTS : AMP_SEE_INPUTS, op, values[i].name,
                    values[i].span.dtype, values[i].span.data, values[i].span.size);
}

static void check_culprit(void) {
    amp_culprit culprit = AMP_CULPRIT_INIT;
    need(amp_get_culprit(world.raw.context, &culprit) == AMP_OK, "culprit");
    need(culprit.cause >= AMP_CAUSE_UNKNOWN && culprit.cause <= AMP_CAUSE_WEIGHT &&
             culprit.n_arguments <= AMP_SEEN_ARGUMENTS,
         "cause %d, %u arguments", (int)culprit.cause, (unsigned)culprit.n_arguments);
    need(culprit.bracket <= world.brackets, "bracket %llu of %llu", (unsigned long long)culprit.bracket,
         (unsigned long long)world.brackets);
    need(!world.overflowed || culprit.bracket, "an overflow that was observed has no culprit");
    need(world.nonfinite || !culprit.bracket, "bracket %llu has a culprit, and all was finite",
         (unsigned long long)culprit.bracket);
    need(!culprit.op || culprit.call || culprit.in_backward, "an op without its call");
}

static void step(struct bytes *bytes) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    amp_context *context = world.raw.context;
    float dy[N];
    const bool observed = observing();
    bool nonfinite = false;
    need(amp_scale_loss_begin(&world.raw.optimizer, NULL, &scaled) == AMP_OK, "begin");
    const float factor = amp_seed_factor(&scaled);
    take_elements(bytes, AMP_FLOAT32, dy, N);
    for (int i = 0; i < N; i++) dy[i] *= factor;
    note(AMP_SEE_INPUTS, "back", "y", dy), note(AMP_SEE_INPUTS, "back", "dw", world.dw);
    table.backward(dy, world.dw, N);
    for (int i = 0; i < N; i++) nonfinite |= !isfinite(world.dw[i]);
    note(AMP_SEE_OUTPUTS, "back", "dw", world.dw);
    note(AMP_SEE_SCALED, NULL, "fc.weight", world.dw), note(AMP_SEE_WEIGHTS, NULL, "fc.weight", world.w);
    need(amp_scale_loss_end(&scaled) == AMP_OK, "end");
    world.brackets++;
    if (observed && scaled.action == AMP_STEP)
        ledger_note(&world.ledger, AMP_SEE_GRADIENTS, NULL, "fc.weight", AMP_FLOAT32, world.dw, N);
    need(nonfinite || scaled.action == AMP_STEP, "finite gradients were skipped");
    world.overflowed |= observed && scaled.action == AMP_SKIP;
    world.nonfinite |= observed && nonfinite;
    need(amp_step_begin(&world.raw.optimizer, &info) == AMP_OK && info.action == scaled.action, "step");
    for (int i = 0; i < N && info.action == AMP_STEP; i++) world.w[i] -= 0.25f * world.dw[i];
    need(amp_step_end(&world.raw.optimizer) == AMP_OK, "step");
    memset(world.dw, 0, sizeof world.dw);
    ledger_compare(&world.ledger, context);
    check_culprit();
    world.ledger.iteration++;
}

static void observe(struct bytes *bytes) {
    static const char *const patterns[] = { "square", "h*", "fc.*", "*back*", "layer.1: *", "[lm]*", "nothing" };
    const char *names[3] = { NULL };
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    const unsigned how = take(bytes);
    if (how & 1) options.what = take_below(bytes, 256); /* bit 7 is unknown */
    options.every = take_below(bytes, 4), options.first = take_below(bytes, 3),
    options.after_skip = take_below(bytes, 3);
    if (how & 2) options.n_names = 1 + take_below(bytes, 3), options.names = names;
    for (uint32_t i = 0; i < options.n_names; i++) names[i] = patterns[take_below(bytes, AMP_COUNT(patterns))];
    if ((how & 12) == 12) options.max_bytes = take_below(bytes, 65536) + 1;
    const amp_status status = amp_observe(world.raw.context, how & 16 ? NULL : &options);
    if (!(how & 16) && options.what & 128) {
        need_refused(status, "an unknown bit");
        return;
    }
    need(status == AMP_OK, "observe");
    if (how & 16) options = (amp_observe_options)AMP_OBSERVE_OPTIONS_INIT;
    options.names = memcpy(world.names, names, sizeof names);
    ledger_begin(&world.ledger, &options);
    world.overflowed = world.nonfinite = false;
}

static void stop(void) {
    need(amp_observe_stop(world.raw.context) == AMP_OK, "stop");
    ledger_begin(&world.ledger, NULL);
    world.overflowed = world.nonfinite = false;
}

static void survey(void) {
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    const amp_status status = amp_survey(world.raw.context, &result);
    int exponent;
    if (status != AMP_OK) {
        need(status == AMP_ERR_WRONG_STATE, "survey");
        need_refused(status, "survey");
        return;
    }
    need(world.ledger.on, "nothing is observed, and surveyed");
    need(result.text && *result.text && frexpf(result.init_scale, &exponent) == 0.5f, "its scale is %a",
         (double)result.init_scale);
    need(result.level >= AMP_O0 && (uint64_t)(result.level - AMP_O0) < result.n_levels, "level %d", (int)result.level);
    for (uint64_t l = 0; l < result.n_levels; l++) {
        const amp_surveyed_level *level = &result.levels[l];
        uint32_t concern = 0;
        for (uint64_t a = 0; a < result.n_advice; a++) concern += result.advice[a].levels >> (AMP_O0 + l) & 1;
        need(level->n_advice == concern, "level %llu: %u advice, not %u", (unsigned long long)l,
             (unsigned)level->n_advice, (unsigned)concern);
        need(concern || level->fits == 1, "level %llu does not fit, and nothing says why", (unsigned long long)l);
        need(level->memory.level == AMP_O0 + (amp_level)l && level->memory.weights, "the memory of level %llu",
             (unsigned long long)l);
    }
    for (uint64_t a = 0; a < result.n_advice; a++) {
        const amp_advice *advice = &result.advice[a];
        need(advice->elements <= advice->of, "%s: %llu of %llu", advice->code, (unsigned long long)advice->elements,
             (unsigned long long)advice->of);
        need(!strncmp(advice->message, advice->code, strlen(advice->code)) && isfinite(advice->largest), "%s: %s",
             advice->code, advice->message);
    }
    /* The scale is one at which no gradient that was seen overflows. */
    for (size_t i = 0; i < world.ledger.n && !world.ledger.options.max_bytes; i++) {
        const struct entry *entry = &world.ledger.entries[i];
        amp_losses losses = { 0, 0, 0 };
        if (entry->what != AMP_SEE_GRADIENTS || result.init_scale <= 1.0f) continue;
        need(amp_statistics_losses(&entry->total, AMP_FLOAT16, result.init_scale, &losses) == AMP_OK, "losses");
        need(!losses.infinities, "at 2^%d %llu gradients overflow", exponent - 1,
             (unsigned long long)losses.infinities);
    }
}

static void memory(struct bytes *bytes) {
    amp_memory now = AMP_MEMORY_INIT, then = AMP_MEMORY_INIT;
    const amp_level level = (amp_level)(take_below(bytes, 9));
    need(amp_get_memory(world.raw.context, &now) == AMP_OK && now.weights == N * 4 && now.gradients == N * 4, "memory");
    const amp_status status = amp_predict_memory(world.raw.context, level, &then);
    if (status != AMP_OK) need_refused(status, "a level");
    else need(then.level == level && then.weights && then.weights <= now.weights, "predicted memory");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bytes bytes = { data, data + size };
    if (size < 4) return 0;
    random_restart();
    start(&bytes);
    for (int calls = 0; bytes.at < bytes.end && calls < 60; calls++) {
        switch (take_below(&bytes, 12)) {
        case 0:
        case 1: observe(&bytes); break;
        case 2: stop(); break;
        case 3: survey(); break;
        case 4: memory(&bytes); break;
        case 5:
        case 6: tell_call(&bytes); break;
        case 7:
        case 8: call_op(&bytes); break;
        default: step(&bytes); break;
        }
    }
    raw_stop(&world.raw);
    need(table.square == square && table.halve == halve && table.backward == backward, "a slot is not what it was");
    return 0;
}
