/* SPDX-License-Identifier: Apache-2.0 */
/* amp_observe: what is seen is what is there, on raw buffers and on handles; and nothing is any different for it. */
#include "../scaling/bracket.h"
#include "levels.h"
#include "raw.h"

#include <math.h>

static amp_observation seen[64];

/* All that was seen; how much. */
static size_t look(amp_context *context) {
    size_t n;
    seen[0] = (amp_observation)AMP_OBSERVATION_INIT;
    ck_ok(amp_get_observations(context, seen, sizeof seen / sizeof seen[0], &n));
    ck_assert_uint_le(n, sizeof seen / sizeof seen[0]);
    return n;
}

/* NULL: it was not seen. op NULL: a parameter. */
static const amp_observation *find(amp_context *context, uint32_t what, const char *op, const char *name) {
    const size_t n = look(context);
    for (size_t i = 0; i < n; i++)
        if (seen[i].what == what && !strcmp(seen[i].name, name) && (op ? seen[i].op && !strcmp(seen[i].op, op)
                                                                       : !seen[i].op))
            return &seen[i];
    return NULL;
}

static const amp_observation *get(amp_context *context, uint32_t what, const char *op, const char *name) {
    const amp_observation *found = find(context, what, op, name);
    ck_assert_msg(found != NULL, "%s %s was not seen", op ? op : "parameter", name);
    return found;
}

/* ---- raw buffers: y = x * x, and a linear layer's backward ---- */

enum { N = 8 };

static void square(const float *x, float *y, int32_t n) {
    for (int32_t i = 0; i < n; i++) y[i] = x[i] * x[i];
}

static void halve(const float *x, float *y, int32_t n) {
    for (int32_t i = 0; i < n; i++) y[i] = x[i] / 2.0f;
}

/* Where y is too large, infinity and not NaN. */
static void backward(const float *y, float *dw, int32_t n) {
    for (int32_t i = 0; i < n; i++) dw[i] += y[i];
}

static struct {
    void (*square)(const float *, float *, int32_t);
    void (*halve)(const float *, float *, int32_t);
    void (*backward)(const float *, float *, int32_t);
} table;

struct watched {
    struct raw raw;
    float x[N], y[N], z[N], w[N], dw[N];
};

static void watched_end(struct watched *watched) { raw_stop(&watched->raw); }

#define WATCHED(name) __attribute__((cleanup(watched_end))) struct watched name

static void watched_start(struct watched *watched, amp_config config) {
    memset(watched, 0, sizeof *watched);
    struct raw *raw = &watched->raw;
    raw_init(raw);
    table.square = square, table.halve = halve, table.backward = backward;
    for (int i = 0; i < N; i++) watched->x[i] = (float)(i + 1), watched->w[i] = 1.0f;
    raw_param(raw, "fc.weight", watched->w, watched->dw, N);
    raw_op(raw, OP("square", "square(float x[n], float(out a!) y[n], int32 n) -> void", &table.square,
                   .op_class = AMP_LOWER));
    raw_op(raw, OP("halve", "halve(float x[n], float(out a!) y[n], int32 n) -> void", &table.halve,
                   .op_class = AMP_LEAVE));
    raw_op(raw, OP("back", "back(float y[n], float(a!) dw[n], int32 n) -> void", &table.backward,
                   .op_class = AMP_LOWER, .backward_of = "square"));
    config.emulate = config.level == AMP_O0 ? AMP_DEFAULT : AMP_ON;
    config.log = AMP_LOG_OFF;
    config.observe = AMP_ON;
    raw_start(raw, config);
}

static amp_action watched_step(struct watched *watched) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    table.square(watched->x, watched->y, N);
    table.halve(watched->y, watched->z, N);
    ck_ok(amp_scale_loss_begin(&watched->raw.optimizer, NULL, &scaled));
    const float factor = amp_seed_factor(&scaled);
    float dy[N];
    for (int i = 0; i < N; i++) dy[i] = watched->z[i] * factor;
    table.backward(dy, watched->dw, N);
    ck_ok(amp_scale_loss_end(&scaled));
    const amp_action action = scaled.action;
    for (int i = 0; i < N && action == AMP_STEP; i++) watched->w[i] -= 0.25f * watched->dw[i];
    memset(watched->dw, 0, sizeof watched->dw);
    return action;
}

static void ck_range(const amp_observation *of, uint64_t elements, double least, double largest) {
    ck_assert_uint_eq(of->last->elements, elements);
    ck_assert_double_eq(of->last->least, least);
    ck_assert_double_eq(of->last->largest, largest);
}

TEST(what_ops_get_and_make_is_seen) {
    WATCHED(watched);
    watched_start(&watched, CONFIG(AMP_O0));
    amp_context *context = watched.raw.context;
    ck_assert_uint_eq(look(context), 0);
    ck_ok(amp_observe(context, NULL));
    ck_assert_int_eq(watched_step(&watched), AMP_STEP);
    ck_range(get(context, AMP_SEE_INPUTS, "square", "x"), N, 1.0, N);
    ck_range(get(context, AMP_SEE_OUTPUTS, "square", "y"), N, 1.0, N * N);
    ck_range(get(context, AMP_SEE_OUTPUTS, "halve", "y"), N, 0.5, N * N / 2.0); /* left alone by the level */
    ck_range(get(context, AMP_SEE_OUTPUTS, "back", "dw"), N, 0.5, N * N / 2.0);
    const amp_observation *in = get(context, AMP_SEE_INPUTS, "back", "dw"); /* read as well: zeros */
    ck_assert_uint_eq(in->last->zeros, N);
    const amp_observation *y = get(context, AMP_SEE_OUTPUTS, "square", "y");
    uint64_t counted = 0;
    for (int i = 0; i < AMP_BINADES; i++) counted += y->total->binades[i].elements;
    ck_assert_uint_eq(counted, N);
    ck_assert_uint_eq(y->total->binades[5 - AMP_BINADE_LEAST].elements, 2); /* 36 and 49 */
    ck_assert_ptr_null(find(context, AMP_SEE_OUTPUTS, "square", "x"));
    watched_end(&watched);
    ck_assert(table.square == square && table.halve == halve && table.backward == backward);
}

TEST(updates_and_what_16_bits_would_lose_of_them_are_seen) {
    WATCHED(watched);
    watched_start(&watched, CONFIG(AMP_O0));
    amp_context *context = watched.raw.context;
    watched.w[0] = 4096.0f; /* minus 1/8: fp16 and bfloat16 stay; the others are 1, minus (i + 1)^2 / 8 */
    ck_ok(amp_observe(context, NULL));
    (void)watched_step(&watched);
    ck_assert_ptr_null(find(context, AMP_SEE_UPDATES, NULL, "fc.weight"));
    (void)watched_step(&watched);
    const amp_observation *update = get(context, AMP_SEE_UPDATES, NULL, "fc.weight");
    ck_range(update, N, 0.125, N * N / 8.0);
    ck_assert_uint_eq(update->lost_fp16, 1);
    ck_assert_uint_eq(update->lost_bf16, 1);
    ck_assert_uint_eq(update->iterations, 1);
}

/* Emulated at O1: 300 * 300 is finite in FP32 alone; 1e5 is so before its cast; and what came so came to this op. */
TEST_TIMES(where_an_overflow_begins_is_told, 3) {
    static const float given[] = { 300.0f, 1e5f, (float)INF };
    WATCHED(watched);
    amp_culprit culprit = AMP_CULPRIT_INIT;
    watched_start(&watched, CONFIG(AMP_O1, .loss_scale = AMP_DYNAMIC, .init_scale = 1.0f));
    amp_context *context = watched.raw.context;
    ck_ok(amp_get_culprit(context, &culprit));
    ck_assert_uint_eq(culprit.bracket, 0);
    ck_ok(amp_observe(context, NULL));
    watched.x[3] = given[_i];
    ck_assert_int_eq(watched_step(&watched), AMP_SKIP);
    ck_ok(amp_get_culprit(context, &culprit));
    ck_assert_uint_eq(culprit.bracket, 1);
    ck_assert_str_eq(culprit.op, "square");
    ck_assert_uint_eq(culprit.call, 1);
    ck_assert_int_eq(culprit.was_cast, _i == 1);
    ck_assert_str_eq(culprit.parameter, "fc.weight");
    ck_assert_uint_eq(culprit.n_arguments, 2);
    ck_assert_str_eq(culprit.arguments[0].name, "x");
    ck_assert_uint_eq(culprit.arguments[0].nonfinite, _i > 0);
    ck_assert_str_eq(culprit.arguments[1].name, "y");
    ck_assert_int_eq(culprit.arguments[1].is_output, 1);
    ck_assert_uint_eq(culprit.arguments[1].nonfinite, 1);
}

/* At a static scale gradients that are not finite are stepped on. */
TEST(a_step_that_was_not_skipped_has_a_culprit) {
    WATCHED(watched);
    amp_culprit culprit = AMP_CULPRIT_INIT;
    watched_start(&watched, CONFIG(AMP_O0));
    ck_ok(amp_observe(watched.raw.context, NULL));
    watched.x[3] = 1e30f;
    ck_assert_int_eq(watched_step(&watched), AMP_STEP);
    ck_ok(amp_get_culprit(watched.raw.context, &culprit));
    ck_assert_uint_eq(culprit.bracket, 1);
    ck_assert_str_eq(culprit.op, "square");
}

/* The scale overflows the gradient: backward is where it begins. */
TEST(an_overflow_of_backward_begins_there) {
    WATCHED(watched);
    amp_culprit culprit = AMP_CULPRIT_INIT;
    watched_start(&watched, CONFIG(AMP_O1, .loss_scale = AMP_DYNAMIC, .init_scale = 0x1p14f));
    amp_context *context = watched.raw.context;
    ck_ok(amp_observe(context, NULL));
    ck_assert_int_eq(watched_step(&watched), AMP_SKIP);
    ck_ok(amp_get_culprit(context, &culprit));
    ck_assert_str_eq(culprit.op, "back");
    ck_assert_int_eq(culprit.was_cast, 1);
}

/* ---- handles ---- */

TEST(a_gradient_from_nowhere_has_no_culprit) {
    START_AT_SCALE(rig, AMP_O1, 0, 4.0f);
    amp_culprit culprit = AMP_CULPRIT_INIT;
    ck_ok(amp_observe(rig.context, NULL));
    ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
    ck_ok(amp_get_culprit(rig.context, &culprit));
    ck_assert_uint_eq(culprit.bracket, 1);
    ck_assert_ptr_null(culprit.op);
    ck_assert_uint_eq(get(rig.context, AMP_SEE_SCALED, NULL, "weight")->last->plus_infinities, NET_SIZE);
    ck_assert_ptr_null(find(rig.context, AMP_SEE_GRADIENTS, NULL, "weight")); /* no step will have it */
}

/* All gradients of the net are infinite in this bracket. */
static const char *first_of(struct rig *rig, bool tells) {
    static amp_culprit culprit;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    culprit = (amp_culprit)AMP_CULPRIT_INIT;
    ck_ok(fake_begin(&rig->net.optimizer, NULL, &scaled));
    struct fake_tensor *params[] = { rig->net.bias, rig->net.weight };
    for (int i = 0; i < 2; i++) {
        const amp_observed_value made = { .name = "gradient", .tensor = params[i], .is_output = 1 };
        amp_observed_call call = AMP_OBSERVED_CALL_INIT;
        call.op = "add", call.in_backward = 1, call.values = &made, call.n_values = 1;
        if (tells) ck_ok(amp_observe_call(rig->context, &call));
    }
    for (size_t i = 0; i < rig->net.optimizer.n_params; i++) add_grad(rig->net.optimizer.params[i], INF);
    ck_ok(amp_scale_loss_end(&scaled));
    net_zero_grad(&rig->net);
    ck_ok(amp_get_culprit(rig->context, &culprit));
    ck_assert_ptr_null(culprit.op);
    return culprit.parameter;
}

TEST(the_first_gradient_is_the_first_of_backward) {
    START_AT_SCALE(rig, AMP_O2, 0, 4.0f);
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    options.every = 1;
    ck_ok(amp_observe(rig.context, &options));
    const char *last = "gamma";
    ck_assert_str_eq(first_of(&rig, false), last); /* nothing is known but the optimizer's list */
    ck_assert_str_eq(first_of(&rig, true), "bias");
    ck_assert_str_eq(first_of(&rig, false), last); /* of each iteration anew */
}

/* In every iteration, and at most once in the log. */
TEST(the_same_culprit_is_told_once) {
    START_AT_SCALE(rig, AMP_O1, 0, 0x1p20f);
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    amp_culprit culprit = AMP_CULPRIT_INIT;
    options.every = 1;
    ck_ok(amp_observe(rig.context, &options));
    const unsigned before = rig.host.events[AMP_EVENT_LOG];
    for (int i = 0; i < 5; i++) (void)bracket(&rig, INF), net_zero_grad(&rig.net);
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_LOG], before + 1);
    ck_ok(amp_get_culprit(rig.context, &culprit));
    ck_assert_uint_eq(culprit.bracket, 5);
}

/* Between brackets with the tape off; backward has it off too. */
TEST(an_evaluation_is_no_part_of_the_training) {
    START_AT_SCALE(rig, AMP_O1, 0, 4.0f);
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_culprit culprit = AMP_CULPRIT_INIT;
    options.every = 1;
    ck_ok(amp_observe(rig.context, &options));
    OWN_TENSOR *bad = rig_tensor(&rig, AMP_FLOAT32, INF);
    OWN_TENSOR *a = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    rig.host.no_grad = true;
    fake_release(net_binary(&rig.net, OP_matmul, bad, a));
    ck_assert_ptr_null(find(rig.context, AMP_SEE_INPUTS, "matmul", "a"));
    ck_ok(fake_begin(&rig.net.optimizer, NULL, &scaled));
    fake_release(net_binary(&rig.net, OP_matmul, a, a));
    add_grad(rig.net.weight, INF);
    ck_ok(amp_scale_loss_end(&scaled));
    rig.host.no_grad = false;
    ck_range(get(rig.context, AMP_SEE_INPUTS, "matmul", "a"), NET_SIZE, 2.0, 2.0);
    ck_ok(amp_get_culprit(rig.context, &culprit));
    ck_assert_ptr_null(culprit.op);
    fake_release(net_binary(&rig.net, OP_matmul, a, a)); /* a forward */
    ck_assert_uint_eq(get(rig.context, AMP_SEE_INPUTS, "matmul", "a")->total->elements, 2 * NET_SIZE);
}

TEST_TIMES(parameters_and_gradients_are_seen, N_EACH_LEVEL) {
    const amp_level level = each_level[_i];
    RIG_WITH(rig, 0, level, .loss_scale = 8.0f);
    ck_ok(amp_observe(rig.context, NULL));
    ck_assert_int_eq(bracket(&rig, 0.75), AMP_STEP);
    ck_range(get(rig.context, AMP_SEE_SCALED, NULL, "weight"), NET_SIZE, 0.75 * 8.0, 0.75 * 8.0);
    ck_range(get(rig.context, AMP_SEE_GRADIENTS, NULL, "weight"), NET_SIZE, 0.75, 0.75);
    const amp_observation *weight = get(rig.context, AMP_SEE_WEIGHTS, NULL, "weight");
    ck_range(weight, NET_SIZE, 0.5, 0.5);
    ck_assert_int_eq(weight->dtype, level_retypes(level) ? level_low(level) : AMP_FLOAT32);
    const amp_observation *master = find(rig.context, AMP_SEE_MASTERS, NULL, "weight");
    ck_assert_int_eq(master != NULL, level_has_masters(level));
    if (master) ck_assert_int_eq(master->dtype, AMP_FLOAT32);
}

TEST_TIMES(calls_on_handles_are_seen, N_EACH_LEVEL) {
    RIG_WITH(rig, 0, each_level[_i], .observe = AMP_ON);
    ck_ok(amp_observe(rig.context, NULL));
    OWN_TENSOR *a = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    struct fake_tensor *list[] = { a, a, a };
    fake_release(net_binary(&rig.net, OP_matmul, a, a));
    fake_release(net_cat(&rig.net, list, 3));
    net_add_(&rig.net, a, a);
    const amp_dtype low = level_casts_ops(each_level[_i]) ? level_low(each_level[_i]) : AMP_FLOAT32;
    const amp_observation *in = get(rig.context, AMP_SEE_INPUTS, "matmul", "a");
    ck_assert_int_eq(in->dtype, low); /* as the op gets it */
    ck_range(in, NET_SIZE, 2.0, 2.0);
    ck_assert_uint_eq(get(rig.context, AMP_SEE_OUTPUTS, "matmul", "return")->last->elements, NET_SIZE);
    ck_assert_uint_eq(get(rig.context, AMP_SEE_INPUTS, "cat", "tensors")->last->elements, 3 * NET_SIZE);
    ck_assert_double_eq(get(rig.context, AMP_SEE_INPUTS, "add_", "self")->last->largest, 2.0);
    ck_assert_double_eq(get(rig.context, AMP_SEE_OUTPUTS, "add_", "self")->last->largest, 4.0);
}

/* ---- when ---- */

static uint64_t iterations_after(const amp_observe_options *options, int brackets, int overflow) {
    START_AT_SCALE(rig, AMP_O1, 0, 4.0f);
    ck_ok(amp_observe(rig.context, options));
    for (int i = 1; i <= brackets; i++) (void)bracket(&rig, i == overflow ? INF : 0.5), net_zero_grad(&rig.net);
    return get(rig.context, AMP_SEE_SCALED, NULL, "weight")->iterations;
}

TEST(as_often_as_asked) {
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    ck_assert_uint_eq(iterations_after(NULL, 10, 0), 1); /* the first */
    ck_assert_uint_eq(iterations_after(NULL, 201, 0), 2);
    options.every = 3;
    ck_assert_uint_eq(iterations_after(&options, 10, 0), 4); /* 1, 4, 7, 10 */
    options.first = 2;
    ck_assert_uint_eq(iterations_after(&options, 10, 0), 5); /* and 2 */
    options.every = 1;
    ck_assert_uint_eq(iterations_after(&options, 10, 0), 10);
}

TEST(a_skip_arms_the_next_iteration) {
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    ck_assert_uint_eq(iterations_after(&options, 10, 5), 2); /* 1 and 6 */
    options.after_skip = 3;
    ck_assert_uint_eq(iterations_after(&options, 10, 5), 4);
}

TEST(the_last_one_is_apart_from_the_total) {
    START_AT_SCALE(rig, AMP_O1, 0, 4.0f);
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    options.every = 1;
    ck_ok(amp_observe(rig.context, &options));
    for (int i = 1; i <= 3; i++) (void)bracket(&rig, i), net_zero_grad(&rig.net);
    const amp_observation *scaled = get(rig.context, AMP_SEE_SCALED, NULL, "weight");
    ck_range(scaled, NET_SIZE, 12.0, 12.0);
    ck_assert_uint_eq(scaled->total->elements, 3 * NET_SIZE);
    ck_assert_double_eq(scaled->total->least, 4.0);
    ck_ok(amp_observe(rig.context, &options)); /* anew */
    ck_assert_uint_eq(look(rig.context), 0);
    (void)bracket(&rig, 1.0);
    ck_assert_uint_gt(look(rig.context), 0);
    ck_ok(amp_observe_stop(rig.context));
    ck_assert_uint_eq(look(rig.context), 0);
    (void)bracket(&rig, 1.0);
    ck_assert_uint_eq(look(rig.context), 0);
}

/* ---- what ---- */

TEST(only_what_is_asked_for) {
    static const char *const names[] = { "wei*", "mat?ul" };
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    options.names = names, options.n_names = 2;
    options.what = AMP_SEE_WEIGHTS | AMP_SEE_OUTPUTS;
    RIG_START(rig, AMP_O1, 0);
    ck_ok(amp_observe(rig.context, &options));
    OWN_TENSOR *a = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    fake_release(net_binary(&rig.net, OP_matmul, a, a));
    fake_release(net_unary(&rig.net, OP_softmax, a));
    (void)bracket(&rig, 1.0);
    ck_assert_uint_eq(look(rig.context), 2);
    (void)get(rig.context, AMP_SEE_WEIGHTS, NULL, "weight");
    (void)get(rig.context, AMP_SEE_OUTPUTS, "matmul", "return");
}

TEST(memory_has_a_limit) {
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    options.max_bytes = 50000; /* two */
    RIG_START(rig, AMP_O2, 0);
    ck_ok(amp_observe(rig.context, &options));
    for (int i = 0; i < 3; i++) (void)bracket(&rig, 1.0);
    ck_assert_uint_eq(look(rig.context), 2);
    options.max_bytes = 1;
    ck_ok(amp_observe(rig.context, &options));
    (void)bracket(&rig, 1.0);
    ck_assert_uint_eq(look(rig.context), 0);
}

TEST(what_cannot_be_is_refused) {
    static const char *const names[] = { "a", NULL };
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    size_t n;
    RIG_START(rig, AMP_O1, 0);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_observe(NULL, NULL));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_observe_stop(NULL));
    options.what = 1u << 20;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_observe(rig.context, &options));
    ck_says("unknown bits 0x100000");
    options.what = 0, options.n_names = 2;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_observe(rig.context, &options));
    options.names = names;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_observe(rig.context, &options));
    ck_says("names[1] is NULL");
    options.struct_size = 3;
    ck_fails(AMP_ERR_ABI_MISMATCH, amp_observe(rig.context, &options));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_get_observations(rig.context, NULL, 0, NULL));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_get_observations(rig.context, NULL, 1, &n));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_get_culprit(rig.context, NULL));
    ck_ok(fake_begin(&rig.net.optimizer, NULL, &scaled));
    ck_fails(AMP_ERR_WRONG_STATE, amp_observe(rig.context, NULL));
    ck_says("while a bracket is open");
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_assert_uint_eq(look(rig.context), 0);
}

TEST(disabled_sees_nothing) {
    RIG_WITH(rig, 0, AMP_O1, .enabled = AMP_OFF);
    ck_ok(amp_observe(rig.context, NULL));
    ck_ok(net_train_step(&rig.net, 0.5));
    ck_assert_uint_eq(look(rig.context), 0);
}

/* ---- the environment ---- */

static const struct {
    const char *text, *says;
} environments[] = {
    { "1", NULL },
    { "every=2,first=3,sample=16", NULL },
    { "what=inputs+outputs+weights+scaled+gradients+masters+updates,after_skip=2,names=w*+x", NULL },
    { "Yes", NULL },
    { "maybe", "\"maybe\" is not understood" },
    { "every=0", "\"every=0\"" },
    { "every=-1", "\"every=-1\"" },
    { "sample=1025", "use 1 to 1024" },
    { "first=4294967296", "\"first=4294967296\"" },
    { "after_skip=1x", "\"after_skip=1x\"" },
    { "what=", "\"what=\"" },
    { "names", "\"names\"" },
    { "what=weights+weight", "\"what=weights+weight\"" },
    { "colour=red", "\"colour=red\"" },
};
enum { N_ENVIRONMENTS = sizeof environments / sizeof environments[0] };

TEST_TIMES(the_environment_asks, N_ENVIRONMENTS) {
    RIG_INIT(rig, 0);
    setenv("AMP_OBSERVE", environments[_i].text, 1);
    const amp_status status = rig_config(&rig, &CONFIG(AMP_O0));
    unsetenv("AMP_OBSERVE");
    if (environments[_i].says) {
        ck_assert_int_eq(status, AMP_ERR_INVALID_ARGUMENT);
        ck_says(environments[_i].says);
        ck_assert(net_slots_restored(&rig.net));
        return;
    }
    ck_ok(status);
    ck_assert_msg(!net_slots_restored(&rig.net), "ops that O0 leaves alone are wrapped");
    ck_ok(net_train_step(&rig.net, 0.5));
    (void)get(rig.context, AMP_SEE_SCALED, NULL, "weight");
}

/* ---- nothing is any different ---- */

static void train(amp_level level, bool observed, double *weights) {
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    RIG_WITH(rig, 0, level, .observe = observed ? AMP_ON : AMP_DEFAULT);
    options.every = 2;
    if (observed) ck_ok(amp_observe(rig.context, &options));
    for (int i = 0; i < 20; i++) {
        if (i == 7) fake_set(rig.net.bias, 1, 1e30);
        ck_ok(net_train_step(&rig.net, 0.3 + i));
        if (i == 7) fake_set(rig.net.bias, 1, 0.5);
    }
    for (int i = 0; i < NET_SIZE; i++) weights[i] = fake_get(rig.net.weight, i);
}

TEST_TIMES(the_same_is_trained, N_EACH_LEVEL) {
    double plain[NET_SIZE], observed[NET_SIZE];
    train(each_level[_i], false, plain);
    train(each_level[_i], true, observed);
    ck_assert_mem_eq(plain, observed, sizeof plain);
}

