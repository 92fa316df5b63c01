/* SPDX-License-Identifier: Apache-2.0 */
/* A device that the host serves (amp_serve.h): here the CPU's memory under another name, by libamp's own kernels. What
 * is trained there is what is trained on the CPU, bit for bit. */
#include "../support/heap.h"
#include "../support/levels.h"
#include "bracket.h"
#include "scaler/rules.h"

#include <stdlib.h>
#include <string.h>

enum { DEVICE = 3 };

static bool fails;
static unsigned n_lists, n_ends, n_reconciled, n_outs;

/* ---- the server ---- */

static float number(const amp_factor *factor) {
    const float value = factor->pointer ? *factor->pointer : factor->value;
    return factor->how == AMP_FACTOR_INVERSE ? 1.0f / value : value;
}

static void reconcile(const amp_served_lists *call, size_t i) {
    const amp_span *dst = &call->spans[0][i], *src = &call->spans[1][i];
    const size_t width = src->dtype == AMP_FLOAT32 ? 4 : 2;
    char rounded[4 * NET_SIZE];
    const bool all = call->norms && call->norms[i] == 0.0f;
    n_reconciled++;
    const amp_span low = { rounded, dst->size, src->dtype, 0 };
    ck_ok(amp_cast_list(&low, dst, 1));
    for (size_t k = 0; k < dst->size; k++) {
        const amp_span to = { (float *)dst->data + k, 1, AMP_FLOAT32, 0 };
        const amp_span of = { (char *)src->data + width * k, 1, src->dtype, 0 };
        if (all || memcmp(rounded + width * k, of.data, width)) ck_ok(amp_cast_list(&to, &of, 1));
    }
}

static void round_one(const amp_span *to, const amp_span *from, amp_dtype type, float *found) {
    uint16_t rounded[NET_SIZE];
    const amp_span low = { rounded, from->size, type, 0 };
    float before = 0.0f;
    ck_ok(amp_check_list(from, 1, 1.0f, 1.0f, NULL, NULL, &before));
    ck_ok(amp_cast_list(&low, from, 1));
    ck_ok(amp_cast_list(to, &low, 1));
    if (before == 0.0f) ck_ok(amp_check_list(to, 1, 1.0f, 1.0f, NULL, NULL, found));
}

static amp_status run_one(const amp_served_lists *call, size_t i, float *found) {
    const amp_span *a = &call->spans[0][i], *b = call->spans[1] ? &call->spans[1][i] : NULL;
    const amp_span *c = call->spans[2] ? &call->spans[2][i] : NULL;
    const float by = number(&call->factors[0]), and_by = number(&call->factors[1]);
    switch (call->kind) {
    case AMP_SERVE_CAST: return call->only_if && *call->only_if == 0.0f ? AMP_OK : amp_cast_list(a, b, 1);
    case AMP_SERVE_ZERO: return amp_zero_list(a, 1);
    case AMP_SERVE_SCALE: return amp_scale_list(a, b, 1, by, found);
    case AMP_SERVE_AXPBY:
    case AMP_SERVE_ADD: return amp_axpby_list(a, by, b, and_by, c, 1, found);
    case AMP_SERVE_CHECK:
        return amp_check_list(a, 1, by, and_by, NULL, call->norms ? &call->norms[i] : NULL, found);
    case AMP_SERVE_RECONCILE: return reconcile(call, i), AMP_OK;
    case AMP_SERVE_CLAMP: return amp_clip_value_list(a, b, 1, by);
    case AMP_SERVE_ROUND: return round_one(a, b, call->low, found), AMP_OK;
    default: ck_abort_msg("kind %d", call->kind);
    }
    return AMP_OK;
}

static amp_status lists(void *self, const amp_served_lists *call, char *text, size_t size) {
    ck_assert_ptr_eq(self, &fails);
    ck_assert_int_eq(call->id, DEVICE);
    n_lists++;
    if (fails) return snprintf(text, size, "out of order"), AMP_ERR_HOST_FAILED;
    for (size_t i = 0; i < call->n; i++) {
        float found = 0.0f;
        ck_ok(run_one(call, i, &found));
        if (found == 0.0f || !call->found_inf) continue;
        *call->found_inf = 1.0f;
        if (call->first && call->base + i < *call->first) *call->first = call->base + (uint32_t)i;
    }
    return AMP_OK;
}

static void end(const amp_served_end *e) {
    const struct amp__scaler_settings settings = {
        e->mode, e->dynamic != 0, 0.0f, e->min_scale, e->max_scale, e->growth, e->backoff, e->window, e->hysteresis,
        e->consecutive_hysteresis != 0, e->check_finite != 0,
    };
    struct amp__device_scaler scaler;
    memcpy(&scaler, e->scaler, sizeof scaler);
    const amp_action action = amp__rule_end(&scaler, &settings, e->decides != 0, e->found_elsewhere != 0);
    memcpy(e->scaler, &scaler, sizeof scaler);
    for (size_t i = 0; i < e->n && action == AMP_SKIP; i++) e->skips[e->which[i]] = 1.0f;
    n_ends++;
}

static amp_status memory(void *self, amp_served_memory *call, char *text, size_t size) {
    (void)self, (void)text, (void)size;
    n_outs += call->kind == AMP_SERVE_OUT;
    switch (call->kind) {
    case AMP_SERVE_ALLOC: call->made = malloc(call->bytes); break;
    case AMP_SERVE_FREE: free(call->dst); break;
    case AMP_SERVE_FILL: memset(call->dst, call->value, call->bytes); break;
    case AMP_SERVE_IN:
    case AMP_SERVE_OUT: memcpy(call->dst, call->src, call->bytes); break;
    case AMP_SERVE_FETCH:
        if (!call->made) call->made = malloc(call->bytes);
        memcpy(call->made, call->src, call->bytes);
        break;
    case AMP_SERVE_ARRIVED: call->arrived = 1; break;
    case AMP_SERVE_FETCHED: memcpy(call->dst, call->made, call->bytes); break;
    case AMP_SERVE_FETCH_FREE: free(call->made); break;
    case AMP_SERVE_CAPTURING: call->capturing = 0; break;
    case AMP_SERVE_SCALER: end(call->end); break;
    default: ck_abort_msg("kind %d", call->kind);
    }
    return AMP_OK;
}

static bool is_serving; /* tests may share a process, and a server is for its life */

static void serve(void) {
    amp_server server = AMP_SERVER_INIT;
    if (is_serving) return;
    is_serving = true;
    server.self = &fails, server.lists = lists, server.memory = memory;
    ck_ok(amp_serve(&server));
}

/* ---- a host on it ---- */

static amp_status (*view_here)(void *, void *, amp_tensor_view *);

static amp_status view_there(void *self, void *handle, amp_tensor_view *view) {
    const amp_status status = view_here(self, handle, view);
    view->device = (amp_device){ AMP_DEVICE_SERVED, DEVICE };
    return status;
}

static amp_status current_stream(void *self, amp_device device, void **stream) {
    (void)self;
    ck_assert_int_eq(device.type, AMP_DEVICE_SERVED);
    *stream = stream;
    return AMP_OK;
}

/* Weights and scales of a training in which some gradients overflow. */
static void train(amp_level level, bool there, double values[3][NET_SIZE], float scales[8], amp_record *record) {
    struct fake host;
    struct net net;
    amp_config config = AMP_CONFIG_INIT;
    fake_init(&host, 0);
    if (there) {
        view_here = host.hooks.view;
        host.hooks.view = view_there;
        host.hooks.current_stream = current_stream;
    }
    net_init(&net, &host);
    config.level = level, config.loss_scale = AMP_DYNAMIC, config.window = 2;
    amp_model *model = &net.model;
    amp_optimizer *optimizer = &net.optimizer;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, NULL));
    for (int i = 0; i < 8; i++) {
        ck_ok(net_train_step(&net, i % 3 == 1 ? 1e30 : 0.25 * (i + 1)));
        *record = (amp_record)AMP_RECORD_INIT;
        ck_ok(amp_get_record(net.model.amp, 0, record));
        scales[i] = record->scale_after;
    }
    struct fake_tensor *const trained[3] = { net.weight, net.bias, net.gamma };
    float found = 0.0f;
    fake_put_grad(net.weight, fake_new(&host, AMP_FLOAT32, NET_SIZE, INF));
    ck_ok(amp_unscale(net.model.amp, 0, (void *[]){ net.weight->grad }, 1, &found));
    ck_assert_float_eq(found, 1.0f);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < NET_SIZE; k++) values[i][k] = fake_get(trained[i], k);
    ck_ok(amp_shutdown(net.model.amp));
    net_destroy(&net);
    fake_destroy(&host);
}

TEST_TIMES(a_training_there_is_the_cpus, N_FP32_LEVELS) {
    const amp_level level = level_where(level_has_fp32, _i);
    double here[3][NET_SIZE], there[3][NET_SIZE];
    float scales[2][8];
    amp_record records[2];
    serve();
    n_lists = n_ends = 0;
    train(level, false, here, scales[0], &records[0]);
    ck_assert_uint_eq(n_lists, 0);
    train(level, true, there, scales[1], &records[1]);
    ck_assert_uint_gt(n_lists, 8);
    ck_assert_uint_eq(n_ends, 8);
    ck_assert_mem_eq(scales[0], scales[1], sizeof scales[0]);
    ck_assert_mem_eq(here, there, sizeof here);
    ck_assert_uint_eq(records[0].skipped, records[1].skipped);
    ck_assert_uint_gt(records[0].skipped, 0);
}

/* ---- what is refused ---- */

TEST(there_is_one_server) {
    amp_server server = AMP_SERVER_INIT;
    amp_device_list *list = NULL;
    const amp_device device = { AMP_DEVICE_SERVED, DEVICE };
    if (!is_serving) ck_fails(AMP_ERR_BACKEND, amp_device_list_open(device, &list));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_serve(NULL));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_serve(&server));
    server.lists = lists;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_serve(&server));
    serve();
    server.memory = memory;
    ck_fails(AMP_ERR_CONFLICT, amp_serve(&server));
    ck_ok(amp_device_list_open(device, &list));
    amp_device_list_close(list);
}

TEST(its_words_and_its_limits_are_told) {
    float x = 2.0f;
    uint16_t low = 0, rest[64] = { 0 };
    const amp_span wide = { &x, 1, AMP_FLOAT32, 0 }, half = { &low, 1, AMP_BFLOAT16, 0 };
    void *const remainders[] = { rest };
    amp_device_list *list = NULL;
    serve();
    ck_ok(amp_device_list_open((amp_device){ AMP_DEVICE_SERVED, DEVICE }, &list));
    ck_ok(amp_device_cast(list, &x, &half, &wide, 1));
    ck_assert_uint_eq(low, 0x4000);
    ck_fails(AMP_ERR_UNSUPPORTED, amp_device_split(list, &x, &half, remainders, &wide, 1));
    amp_matmul_args product = AMP_MATMUL_ARGS_INIT;
    product.m = product.n = product.k = 1, product.a = product.b = &low, product.d = &x;
    product.a_dtype = product.b_dtype = AMP_BFLOAT16, product.d_dtype = AMP_FLOAT32;
    ck_fails(AMP_ERR_UNSUPPORTED, amp_device_matmul(list, &x, &product, NULL));
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "served device"));
    ck_fails(AMP_ERR_UNSUPPORTED, amp_device_matmul_measure(list, &x, &product, NULL));
    fails = true;
    ck_fails(AMP_ERR_HOST_FAILED, amp_device_cast(list, &x, &half, &wide, 1));
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "out of order"));
    fails = false;
    amp_device_list_close(list);
}

/* A host that is there. */
static void start(struct fake *host, struct net *net) {
    serve();
    fake_init(host, 0);
    view_here = host->hooks.view;
    host->hooks.view = view_there;
    host->hooks.current_stream = current_stream;
    net_init(net, host);
}

TEST(a_rounding_that_fails_there_is_told) {
    struct fake host;
    struct net net;
    start(&host, &net);
    host.hooks.dtype = NULL; /* the view has the storage's, and it stays FP32 */
    net.ops[OP_add_].op_class = AMP_LOWER;
    const amp_config config = CONFIG(AMP_O1, .emulate = AMP_ON);
    amp_model *model = &net.model;
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, NULL));
    struct fake_tensor *x = fake_new(&host, AMP_FLOAT32, NET_SIZE, 1.0);
    struct fake_tensor *y = fake_new(&host, AMP_FLOAT32, NET_SIZE, 2.0);
    fails = true;
    net_add_(&net, x, y);
    fails = false;
    ck_fails(AMP_ERR_HOST_FAILED, amp_check(net.model.amp));
    ck_says("op add_: its result");
    fake_release(x);
    fake_release(y);
    ck_ok(amp_shutdown(net.model.amp));
    net_destroy(&net);
    fake_destroy(&host);
}

/* A bracket of one that skips on the device decides also for an optimizer that asks the host and delayed its check. */
TEST(a_delayed_check_of_an_optimizer_that_asks_the_host) {
    struct fake host;
    struct net net;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    start(&host, &net);
    host.hooks.flags |= AMP_HOST_SEEDS_ON_DEVICE;
    void *first[] = { net.weight }, *second[] = { net.bias };
    net.optimizer.params = first, net.optimizer.n_params = 1;
    amp_optimizer other = SIZED(amp_optimizer, .host = &host.hooks, .params = second, .n_params = 1,
                                .flags = AMP_OPTIMIZER_SKIPS_ON_DEVICE);
    const amp_config config = CONFIG(AMP_O1, .loss_scale = AMP_DYNAMIC);
    amp_model *model = &net.model;
    amp_optimizer *optimizers[] = { &net.optimizer, &other };
    ck_ok(amp_initialize_many(&model, 1, optimizers, 2, &config, NULL));
    ck_ok(amp_scale_loss_begin_many(NULL, &optimizers[0], 1, 0, AMP_DELAY_OVERFLOW_CHECK, NULL, &scaled));
    add_grad(net.weight, INF);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(amp_scale_loss_begin_many(NULL, &optimizers[1], 1, 0, 0, NULL, &scaled));
    add_grad(net.bias, 0.5);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(amp_step_begin(&net.optimizer, &info));
    ck_assert_int_eq(info.action, AMP_SKIP);
    ck_ok(amp_step_end(&net.optimizer));
    ck_ok(amp_shutdown(net.model.amp));
    net_destroy(&net);
    fake_destroy(&host);
}

static void stop(struct fake *host, struct net *net) {
    ck_ok(amp_shutdown(net->model.amp));
    net_destroy(net);
    fake_destroy(host);
}

static void wire(struct net *net, amp_config config) {
    amp_model *model = &net->model;
    amp_optimizer *optimizer = &net->optimizer;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, NULL));
}

/* A bracket whose backward adds the value, scaled, to the weight's gradient: its end's status. */
static amp_status bracket_there(struct net *net, double value, bool end_fails, amp_scaled_loss *scaled) {
    *scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    ck_ok(fake_begin(&net->optimizer, NULL, scaled));
    add_grad(net->weight, value * fake_seed(scaled));
    fails = end_fails;
    const amp_status status = amp_scale_loss_end(scaled);
    fails = false;
    return status;
}

/* Where the device decides alone, no end reads what it found, and amp_check tells of the skips, once. */
TEST(too_many_skips_there_are_told_by_check) {
    struct fake host;
    struct net net;
    amp_scaled_loss scaled;
    start(&host, &net);
    host.hooks.flags |= AMP_HOST_SEEDS_ON_DEVICE;
    net.optimizer.flags = AMP_OPTIMIZER_SKIPS_ON_DEVICE;
    wire(&net, CONFIG(AMP_O1, .loss_scale = AMP_DYNAMIC, .max_skips = 2, .log = AMP_LOG_OFF));
    n_outs = 0;
    for (int i = 0; i < 2; i++) {
        ck_ok(bracket_there(&net, INF, false, &scaled));
        ck_assert_int_eq(scaled.action, AMP_STEP_ON_DEVICE);
        net_zero_grad(&net);
    }
    ck_assert_uint_eq(n_outs, 0);
    ck_refused(AMP_ERR_TOO_MANY_SKIPS, "loss 0: 2 steps in a row were skipped", amp_check(net.model.amp));
    ck_ok(amp_check(net.model.amp));
    stop(&host, &net);
}

/* Where a device decides, the step reads its flag there: of all brackets since its last step, until its end. */
TEST_TIMES(found_inf_of_a_step_there_is_of_all_its_brackets, 8) {
    struct fake host;
    struct net net;
    amp_scaled_loss scaled;
    amp_step_info info = AMP_STEP_INFO_INIT;
    start(&host, &net);
    host.hooks.flags |= AMP_HOST_SEEDS_ON_DEVICE;
    net.optimizer.flags = AMP_OPTIMIZER_SKIPS_ON_DEVICE;
    wire(&net, CONFIG(AMP_O1, .loss_scale = AMP_DYNAMIC, .log = AMP_LOG_OFF));
    for (unsigned i = 0; i < 3; i++) {
        ck_ok(bracket_there(&net, _i >> i & 1 ? INF : 1.0, false, &scaled));
        net_zero_grad(&net);
    }
    for (int step = 0; step < 2; step++) {
        ck_ok(amp_step_begin(&net.optimizer, &info));
        ck_assert_int_eq(info.action, AMP_STEP_ON_DEVICE);
        ck_assert_int_eq(info.device.type, AMP_DEVICE_SERVED);
        ck_assert_float_eq(*info.found_inf, _i && !step ? 1.0f : 0.0f);
        ck_ok(amp_step_end(&net.optimizer));
        ck_assert_float_eq(*info.found_inf, 0.0f);
    }
    stop(&host, &net);
}

static double said;

static amp_status reduce(void *self, amp_reduction reduction, double *values, size_t n) {
    (void)self, (void)reduction, (void)n;
    said = values[0];
    return AMP_OK;
}

/* Ranks that agree on the host hear what a device has found. */
TEST_TIMES(an_overflow_there_is_said_to_other_ranks, 2) {
    struct fake host;
    struct net net;
    amp_scaled_loss scaled;
    start(&host, &net);
    host.hooks.reduce = reduce;
    wire(&net, CONFIG(AMP_O1, .loss_scale = AMP_DYNAMIC, .log = AMP_LOG_OFF));
    said = -1.0;
    ck_ok(bracket_there(&net, _i ? INF : 0.5, false, &scaled));
    ck_assert_double_eq(said, _i);
    stop(&host, &net);
}

TEST(an_end_that_fails_there_is_told) {
    struct fake host;
    struct net net;
    amp_scaled_loss scaled;
    start(&host, &net);
    wire(&net, CONFIG(AMP_O1, .loss_scale = 8.0f, .log = AMP_LOG_OFF));
    ck_refused(AMP_ERR_HOST_FAILED, "out of order", bracket_there(&net, 0.5, true, &scaled));
    stop(&host, &net);
}

/* Only a gradient that the host has written is read again, and then the master gradient is what was written. */
TEST(a_gradient_written_there_reaches_its_master) {
    struct fake host;
    struct net net;
    amp_scaled_loss scaled;
    amp_master masters[3] = { AMP_MASTER_INIT, AMP_MASTER_INIT, AMP_MASTER_INIT };
    size_t n;
    start(&host, &net);
    wire(&net, CONFIG(AMP_O2, .loss_scale = 8.0f, .log = AMP_LOG_OFF));
    ck_ok(bracket_there(&net, 0.5, false, &scaled));
    n_reconciled = 0;
    ck_ok(amp_clip_grad_value(&net.optimizer, 4.0f));
    ck_assert_uint_eq(n_reconciled, 0);
    fake_set(net.weight->grad, 1, 0.25);
    ck_ok(amp_clip_grad_value(&net.optimizer, 4.0f));
    ck_assert_uint_eq(n_reconciled, 1);
    ck_ok(amp_master_params(&net.optimizer, masters, 3, &n));
    ck_assert_float_eq(((float *)masters[0].grad)[0], 0.5f);
    ck_assert_float_eq(((float *)masters[0].grad)[1], 0.25f);
    stop(&host, &net);
}

/* Emulated and without masters: it is rounded there, after it was unscaled. */
TEST(what_is_emulated_there_is_rounded_when_it_is_unscaled) {
    struct fake host;
    struct net net;
    amp_scaled_loss scaled;
    start(&host, &net);
    host.hooks.dtype = NULL;
    wire(&net, CONFIG(AMP_O3, .emulate = AMP_ON, .loss_scale = 0x1p20f, .log = AMP_LOG_OFF));
    ck_ok(bracket_there(&net, 1.0 + 0x1p-10 + 0x1p-12, false, &scaled)); /* fp16 would not hold it scaled */
    ck_assert_double_eq(fake_get(net.weight->grad, 0), 1.0 + 0x1p-10);
    stop(&host, &net);
}

/* A weight that fp16 does not hold is looked for, element by element, in blocks that are freed. */
TEST(what_does_not_fit_there_is_counted_and_leaves_no_memory) {
    struct fake host;
    struct net net;
    size_t used[2] = { 0 };
    for (int i = 0; i < 2; i++) {
        start(&host, &net);
        fake_fill(net.weight, 1e6);
        wire(&net, CONFIG(AMP_O2, .log = AMP_LOG_OFF));
        ck_assert_double_eq(fake_get(net.weight, 0), INF);
        stop(&host, &net);
        used[i] = heap_used();
    }
    ck_assert_uint_le(used[1], used[0] + (1 << 16)); /* either block is larger, and what malloc caches is not */
}

TEST(split_masters_are_refused_by_name) {
    struct fake host;
    struct net net;
    amp_config config = AMP_CONFIG_INIT;
    start(&host, &net);
    config.level = AMP_O5, config.master_weights = AMP_SPLIT;
    amp_model *model = &net.model;
    amp_optimizer *optimizer = &net.optimizer;
    ck_fails(AMP_ERR_UNSUPPORTED, amp_initialize_many(&model, 1, &optimizer, 1, &config, NULL));
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "split masters"));
    net_destroy(&net);
    fake_destroy(&host);
}
