/* SPDX-License-Identifier: Apache-2.0 */
/* `x[?]`: the extent is what is left of the registered parameter, or of the registered gradient, from the
 * pointer on. */
#include <amp_all.h>
#include <amp_kernels.h>

#include "test.h"
#include <stdlib.h>
#include <string.h>

#define ck_ok(expression) ck_assert_msg((expression) == AMP_OK, #expression ": %s", amp_last_error())

enum { ROWS = 3, WIDTH = 4, SIZE = ROWS * WIDTH };

/* An embedding: looks rows up, and adds to the rows of the gradient. It knows the table's width, but not its length. */
static void embed(float *out, const float *table, const int *row, int width) {
    memcpy(out, table + row[0] * width, (size_t)width * sizeof *out);
}

static void embed_backward(float *dtable, const float *dout, const int *row, int width) {
    for (int i = 0; i < width; i++) dtable[row[0] * width + i] += dout[i];
}

static void embed_backward_bf16(float *dtable, const uint16_t *dout, const int *row, int width) {
    for (int i = 0; i < width; i++) dtable[row[0] * width + i] += amp_bfloat16_to_float(dout[i]);
}

static void (*embed_slot)(float *, const float *, const int *, int);
static void (*backward_slot)(float *, const float *, const int *, int);

struct host {
    float tables[2 * SIZE], grads[2 * SIZE + 8]; /* two tables in one allocation each; behind them is nobody's */
    amp_buffer buffers[2], gradients[2];
    amp_param params[2];
    void *trained[2];
    amp_op ops[2];
    amp_model model;
    amp_optimizer optimizer;
    amp_context *context;
};

static void start(struct host *host, amp_level level, amp_switch emulate, amp_switch gate, uint32_t flags) {
    amp_config config = AMP_CONFIG_INIT;
    memset(host, 0, sizeof *host);
    embed_slot = embed;
    backward_slot = embed_backward;
    for (int i = 0; i < 2 * SIZE; i++) host->tables[i] = 1.0f + 0x1p-12f, host->grads[i] = (float)i;
    for (int i = 2 * SIZE; i < 2 * SIZE + 8; i++) host->grads[i] = 1.0f + 0x1p-12f;
    for (int i = 0; i < 2; i++) {
        host->gradients[i] = host->buffers[i] = (amp_buffer)AMP_BUFFER_INIT;
        host->buffers[i].data = host->tables + i * SIZE, host->gradients[i].data = host->grads + i * SIZE;
        host->buffers[i].size = host->gradients[i].size = SIZE;
        host->buffers[i].grad = &host->gradients[i];
        host->params[i] = (amp_param)AMP_PARAM_INIT;
        host->params[i].tensor = host->trained[i] = &host->buffers[i];
    }
    for (int i = 0; i < 2; i++)
        host->ops[i] = (amp_op)AMP_OP_INIT, host->ops[i].op_class = AMP_LOWER, host->ops[i].flags = flags;
    host->ops[0].name = "embedding";
    host->ops[0].schema = "embed(float(out a!) out[W], float table[?], int32 row[1], int W) -> void";
    host->ops[0].slot = (amp_fn *)(void *)&embed_slot;
    host->ops[1].name = "embedding_backward";
    host->ops[1].schema = "embed_backward(float(a!) dtable[?], float dout[W], int32 row[1], int W) -> void";
    host->ops[1].backward_of = "embedding";
    host->ops[1].slot = (amp_fn *)(void *)&backward_slot;
    if (emulate != AMP_ON) host->ops[1].bf16 = (amp_fn)embed_backward_bf16;
    host->model = (amp_model)AMP_MODEL_INIT;
    host->model.host = amp_buffer_host();
    host->model.ops = host->ops, host->model.n_ops = 2;
    host->model.params = host->params, host->model.n_params = 2;
    host->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    host->optimizer.params = host->trained, host->optimizer.n_params = 2;
    config.level = level;
    config.emulate = emulate;
    config.gate = gate;
    amp_model *model = &host->model;
    amp_optimizer *optimizer = &host->optimizer;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &host->context));
}

static float through(float x) { return amp_bfloat16_to_float(amp_float_to_bfloat16(x)); }

/* Adds dout into row 1 of the second table's gradient, and nothing anywhere else. */
static void ck_adds(struct host *host, int offset) {
    const float dout[WIDTH] = { 1.0f + 0x1p-12f, 2.0f, -3.0f, 4.0f };
    const int row[] = { 1 };
    float expected[2 * SIZE + 8];
    memcpy(expected, host->grads, sizeof expected);
    for (int i = 0; i < WIDTH; i++) expected[SIZE + offset + WIDTH + i] += through(dout[i]);
    backward_slot(host->grads + SIZE + offset, dout, row, WIDTH);
    ck_ok(amp_check(host->context));
    ck_assert_mem_eq(host->grads, expected, sizeof expected);
}

TEST_TIMES(the_rest_of_a_gradient, 3) {
    static const struct {
        amp_level level;
        amp_switch emulate;
    } cases[] = { { AMP_O4, AMP_ON }, { AMP_O5, AMP_ON }, { AMP_O4, AMP_DEFAULT } };
    struct host host;
    start(&host, cases[_i].level, cases[_i].emulate, AMP_DEFAULT, 0);
    ck_adds(&host, 0);
    ck_adds(&host, WIDTH); /* from its second row on */
    ck_ok(amp_shutdown(host.context));
}

TEST(what_is_neither_is_told_and_runs_as_it_comes) {
    struct host host;
    float dout[WIDTH] = { 1.0f + 0x1p-12f };
    const int row[] = { 0 };
    start(&host, AMP_O4, AMP_ON, AMP_DEFAULT, 0);
    backward_slot(host.grads + 2 * SIZE, dout, row, WIDTH);
    ck_assert_float_eq(host.grads[2 * SIZE], 2.0f * (1.0f + 0x1p-12f));
    ck_assert_int_eq(amp_check(host.context), AMP_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(
        strstr(amp_last_error(), "dtable[?] points into no registered parameter, and into no gradient"));
    ck_ok(amp_shutdown(host.context));
}

/* What floats there are in the memory of doubles nobody can say. */
TEST(a_parameter_of_another_type_has_no_rest) {
    static double doubles[SIZE];
    struct host host;
    float out[WIDTH];
    const int row[] = { 0 };
    start(&host, AMP_O0, AMP_DEFAULT, AMP_DEFAULT, 0);
    ck_ok(amp_shutdown(host.context));
    host.buffers[0].dtype = AMP_FLOAT64, host.buffers[0].data = doubles, host.buffers[0].grad = NULL;
    amp_config config = AMP_CONFIG_INIT;
    amp_model *model = &host.model;
    config.level = AMP_O4;
    config.emulate = AMP_ON;
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &host.context));
    embed_slot(out, (const float *)(const void *)doubles, row, WIDTH);
    ck_assert_int_eq(amp_check(host.context), AMP_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "table[?] points into no registered parameter"));
    ck_ok(amp_shutdown(host.context));
}

/* The gate counts its elements, as it does those of a parameter: 8 behind the first row, and 4 of dout. */
TEST(the_gate_sees_it) {
    struct host host;
    amp_op_stats stats[2] = { AMP_OP_STATS_INIT };
    const float dout[WIDTH] = { 0 };
    const int row[] = { 0 };
    size_t n;
    start(&host, AMP_O4, AMP_DEFAULT, AMP_ON, 0);
    for (uint64_t least = 12; least <= 13; least++) {
        ck_ok(amp_gate_set(host.context, "embedding_backward", least));
        backward_slot(host.grads + WIDTH, dout, row, WIDTH);
        ck_ok(amp_get_op_stats(host.context, stats, 2, &n));
        ck_assert_uint_eq(stats[1].gated, least - 12);
    }
    ck_ok(amp_shutdown(host.context));
}
