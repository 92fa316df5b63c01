/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What amp_config.verify sees of a call, and what is seen without it: one op with a slip, at O0 as it is and at O1
 * emulated. What is right has no finding, and the same bits as without verify.
 */
#include <amp_all.h>

#include "levels.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

#define ck_ok(expression) ck_assert_msg((expression) == AMP_OK, #expression ": %s", amp_last_error())

enum { N = 6, ROOM = 32 };

enum slip { RIGHT, UNWRITTEN, HALF, ADDS_TO_OUT, WRITES_IN, BEHIND, BEFORE, ASSIGNS };

/* out = 2 in, dw += in: but for the slip. */
static enum slip slip;

static void work(float *out, float *in, float *dw, int n) {
    for (int i = slip == UNWRITTEN ? n : 0; i < (slip == HALF ? n / 2 : n); i++)
        out[i] = (slip == ADDS_TO_OUT ? out[i] : 0.0f) + 2.0f * in[i];
    for (int i = 0; i < n; i++) dw[i] = (slip == ASSIGNS ? 0.0f : dw[i]) + in[i];
    if (slip == WRITES_IN) in[1] = 7.0f;
    if (slip == BEHIND) in[n] = 7.0f;
    if (slip == BEFORE) in[-1] = 7.0f;
}

static struct {
    void (*work)(float *, float *, float *, int);
} table;

struct host {
    float in[ROOM], out[ROOM], w[ROOM], dw[ROOM];
    amp_buffer weight, grad;
    amp_param param;
    void *trained;
    amp_op op;
    amp_model model;
    amp_optimizer optimizer;
    amp_context *context;
};

static const char right_schema[] = "work(float(out a!) out[n], float in[n], float(a!) dw[n], int32 n) -> void";

static void make(struct host *host, const char *schema) {
    memset(host, 0, sizeof *host);
    table.work = work;
    for (int i = 0; i < ROOM; i++) host->in[i] = 0.25f * (float)(i + 1), host->w[i] = 1.0f;
    host->weight = host->grad = (amp_buffer)AMP_BUFFER_INIT;
    host->weight.data = host->w, host->grad.data = host->dw;
    host->weight.size = host->grad.size = N;
    host->weight.grad = &host->grad;
    host->param = (amp_param)AMP_PARAM_INIT;
    host->param.tensor = host->trained = &host->weight, host->param.name = "weight";
    host->op = (amp_op)AMP_OP_INIT;
    host->op.name = "work", host->op.schema = schema, host->op.slot = (amp_fn *)(void *)&table.work;
    host->op.op_class = AMP_LOWER;
    host->model = (amp_model)AMP_MODEL_INIT;
    host->model.host = amp_buffer_host();
    host->model.ops = &host->op, host->model.n_ops = 1;
    host->model.params = &host->param, host->model.n_params = 1;
    host->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    host->optimizer.params = &host->trained, host->optimizer.n_params = 1;
}

static void start(struct host *host, const char *schema, amp_level level, amp_switch verify) {
    amp_model *models[] = { &host->model };
    amp_optimizer *optimizers[] = { &host->optimizer };
    amp_config config = AMP_CONFIG_INIT;
    make(host, schema);
    config.level = level, config.emulate = level == AMP_O0 ? AMP_DEFAULT : AMP_ON;
    config.verify = verify, config.log = AMP_LOG_OFF;
    if (level == AMP_O0) host->op.op_class = AMP_LEAVE;
    ck_ok(amp_initialize_many(models, 1, optimizers, 1, &config, &host->context));
}

static bool has(const struct host *host, const char *code, const char *subject) {
    amp_finding findings[16];
    size_t n;
    findings[0] = (amp_finding)AMP_FINDING_INIT;
    ck_ok(amp_get_findings(host->context, findings, 16, &n));
    for (size_t i = 0; i < n; i++)
        if (!strcmp(findings[i].code, code) && !strcmp(findings[i].subject, subject)) return true;
    return false;
}

static size_t findings_of(const struct host *host) {
    size_t n;
    ck_ok(amp_get_findings(host->context, NULL, 0, &n));
    return n;
}

static void stop(struct host *host) {
    ck_ok(amp_shutdown(host->context));
    slip = RIGHT;
}

static const amp_level levels[] = { AMP_O0, AMP_O1 };

TEST_TIMES(what_is_right_is_the_same_and_sound, 2) {
    struct host plain, verified;
    start(&plain, right_schema, levels[_i], AMP_OFF);
    for (int i = 0; i < 3; i++) table.work(plain.out, plain.in, plain.dw, N);
    stop(&plain);
    start(&verified, right_schema, levels[_i], AMP_ON);
    ck_assert_msg(table.work != work, "verify wraps what has nothing to be cast too");
    for (int i = 0; i < 3; i++) table.work(verified.out, verified.in, verified.dw, N);
    ck_assert_uint_eq(findings_of(&verified), 0);
    stop(&verified);
    ck_assert_mem_eq(plain.out, verified.out, sizeof plain.out);
    ck_assert_mem_eq(plain.in, verified.in, sizeof plain.in);
    ck_assert_mem_eq(plain.dw, verified.dw, sizeof plain.dw);
}

static const struct {
    enum slip slip;
    const char *code;
    bool copies; /* seen where libamp hands out copies alone */
} slips[] = {
    { UNWRITTEN, "AMP-M23", false }, { HALF, "AMP-M23", false },  { ADDS_TO_OUT, "AMP-M24", false },
    { WRITES_IN, "AMP-M25", false }, { BEHIND, "AMP-M26", true }, { BEFORE, "AMP-M26", true },
    { ASSIGNS, "AMP-M28", false },
};
enum { N_SLIPS = sizeof slips / sizeof slips[0] };

TEST_TIMES(a_slip_of_an_op_is_found, 2 * N_SLIPS) {
    const amp_level level = levels[_i % 2];
    struct host host;
    if (slips[_i / 2].copies && level == AMP_O0) return;
    start(&host, right_schema, level, AMP_ON);
    slip = slips[_i / 2].slip;
    table.work(host.out + 1, host.in + 1, host.dw, N);
    ck_assert_msg(has(&host, slips[_i / 2].code, "work"), "slip %d at O%d: %zu findings", slip, _i % 2,
                  findings_of(&host));
    ck_assert_uint_eq(findings_of(&host), 1);
    table.work(host.out + 1, host.in + 1, host.dw, N);
    ck_assert_uint_eq(findings_of(&host), 1);
    stop(&host);
}

TEST_TIMES(without_verify_none_is_looked_for, N_SLIPS) {
    struct host host;
    start(&host, right_schema, AMP_O1, AMP_OFF);
    slip = slips[_i].slip;
    if (!slips[_i].copies) table.work(host.out + 1, host.in + 1, host.dw, N);
    ck_assert_uint_eq(findings_of(&host), 0);
    stop(&host);
}

/* What an op leaves out keeps what it was. */
TEST(unwritten_elements_are_put_back) {
    struct host host;
    start(&host, right_schema, AMP_O0, AMP_ON);
    slip = HALF;
    for (int i = 0; i < N; i++) host.out[i] = -1.0f;
    table.work(host.out, host.in, host.dw, N);
    for (int i = 0; i < N; i++) ck_assert(host.out[i] == (i < N / 2 ? 2.0f * host.in[i] : -1.0f));
    stop(&host);
}

TEST_TIMES(extents_beyond_a_registered_buffer_are_refused, 2) {
    static const char schema[] = "work(float(out a!) out[n], float in[n], float(a!) dw[2 * n], int32 n) -> void";
    struct host host;
    start(&host, schema, levels[_i], AMP_ON);
    table.work(host.out, host.in, host.dw, N);
    ck_assert(has(&host, "AMP-M27", "work"));
    ck_assert_msg(host.out[0] == 0.0f, "it has not run");
    stop(&host);
}

TEST(a_slot_that_was_written_over_is_named) {
    struct host host;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    start(&host, right_schema, AMP_O0, AMP_ON);
    void (*wrapper)(float *, float *, float *, int) = table.work;
    wrapper(host.out, host.in, host.dw, N);
    table.work = work;
    ck_ok(amp_scale_loss_begin(&host.optimizer, NULL, &scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert(has(&host, "AMP-M29", "work"));
    table.work = wrapper;
    stop(&host);
}

TEST(the_environment_asks_for_it_where_the_configuration_does_not) {
    struct host host;
    ck_assert_int_eq(setenv("AMP_VERIFY", "1", 1), 0);
    start(&host, right_schema, AMP_O0, AMP_DEFAULT);
    ck_assert(table.work != work);
    stop(&host);
    start(&host, right_schema, AMP_O0, AMP_OFF);
    ck_assert(table.work == work);
    stop(&host);
    ck_assert_int_eq(setenv("AMP_VERIFY", "0", 1), 0);
    start(&host, right_schema, AMP_O0, AMP_DEFAULT);
    ck_assert(table.work == work);
    stop(&host);
    ck_assert_int_eq(unsetenv("AMP_VERIFY"), 0);
}

/* Weights that a schema calls an output are not filled over, and neither is a gradient: the training is what it was. */
TEST_TIMES(what_is_registered_is_never_filled, 2) {
    static const char *const schemas[] = {
        "work(float(out a!) out[n], float(out b!) in[n], float(c!) dw[n], int32 n) -> void",
        "work(float(out a!) out[n], float in[n], float(out b!) dw[n], int32 n) -> void",
    };
    struct host host;
    start(&host, schemas[_i], AMP_O0, AMP_ON);
    for (int i = 0; i < 2; i++) table.work(host.out, _i ? host.in : host.w, host.dw, N);
    for (int i = 0; i < N; i++) {
        const float in = _i ? host.in[i] : 1.0f;
        ck_assert(host.out[i] == 2.0f * in && host.dw[i] == 2.0f * in && host.w[i] == 1.0f);
    }
    ck_assert(_i ? has(&host, "AMP-M28", "work") : has(&host, "AMP-M10", "weight"));
    ck_assert_uint_eq(findings_of(&host), 1);
    stop(&host);
}

static amp_status swap_data(void *self, void *tensor, amp_storage *storage) {
    amp_buffer *buffer = tensor;
    const amp_storage was = { .data = buffer->data, .dtype = buffer->dtype };
    (void)self;
    buffer->data = storage->data, buffer->dtype = storage->dtype;
    *storage = was;
    return AMP_OK;
}

/* A `float *` into a parameter that is in 16 bits by now. */
TEST_TIMES(a_pointer_of_another_type_is_refused, 2) {
    amp_config config = AMP_CONFIG_INIT;
    struct host host;
    amp_model *model = &host.model;
    amp_host hooks = *amp_buffer_host();
    make(&host, right_schema);
    hooks.swap_data = swap_data;
    host.model.host = &hooks;
    host.op.op_class = AMP_LEAVE;
    config.level = AMP_O5, config.emulate = AMP_OFF, config.verify = AMP_ON, config.log = AMP_LOG_OFF;
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &host.context));
    ck_assert_int_eq(host.weight.dtype, AMP_BFLOAT16);
    table.work(host.out, _i ? host.in : host.weight.data, host.dw, N / 2);
    ck_assert_int_eq(has(&host, "AMP-M60", "work"), !_i);
    ck_assert_int_eq(host.out[0] != 0.0f, _i); /* refused, it has not run */
    stop(&host);
}

static unsigned long countdown; /* linked with --wrap */
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size) {
    return countdown && !--countdown ? NULL : __real_calloc(count, size);
}
void *__real_realloc(void *block, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes) {
    return countdown && !--countdown ? NULL : __real_realloc(block, bytes);
}

/* Whichever allocation fails, a call has run or has not: no input is changed, no result is half there. */
TEST_TIMES(without_memory_a_call_is_whole_or_not_at_all, 4) {
    bool complete = false;
    for (unsigned long at = 1; !complete; at++) {
        struct host host;
        start(&host, right_schema, levels[_i % 2], _i / 2 ? AMP_ON : AMP_OFF);
        countdown = at;
        table.work(host.out, host.w, host.dw, N);
        complete = countdown > 0;
        countdown = 0;
        const amp_status status = amp_check(host.context);
        ck_assert_msg(at < 100 && (status == AMP_OK ? host.out[0] != 0.0f : status == AMP_ERR_NO_MEMORY),
                      "allocation %lu: %d", at, status);
        for (int i = 0; i < ROOM; i++) {
            const float factor = i < N && host.out[0] != 0.0f;
            ck_assert_msg(host.w[i] == 1.0f && host.out[i] == 2.0f * factor && host.dw[i] == factor,
                          "allocation %lu, element %d: %g, %g, %g", at, i, (double)host.w[i], (double)host.out[i],
                          (double)host.dw[i]);
        }
        table.work(host.out, host.in, host.dw, N);
        ck_ok(amp_check(host.context));
        ck_assert_float_eq(host.out[N - 1], 2.0f * host.in[N - 1]);
        stop(&host);
    }
}

/* ---- always ---- */

TEST(a_gradient_that_is_only_read_is_named) {
    static const char schema[] = "work(float(out a!) out[n], float in[n], float dw[n], int32 n) -> void";
    struct host host;
    start(&host, schema, AMP_O1, AMP_OFF);
    table.work(host.out, host.in, host.dw, N);
    ck_assert(has(&host, "AMP-M09", "weight"));
    stop(&host);
}

TEST(a_parameter_that_is_an_output_is_named) {
    struct host host;
    start(&host, right_schema, AMP_O1, AMP_OFF);
    table.work(host.w, host.in, host.dw, N);
    ck_assert(has(&host, "AMP-M10", "weight"));
    stop(&host);
}
