/* SPDX-License-Identifier: Apache-2.0 */
/* `x[?]`: the extent is what is left of the registered parameter, or of the registered gradient, from the
 * pointer on. */
#include "raw.h"

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

static float tables[2 * SIZE], grads[2 * SIZE + 8]; /* two tables in one allocation each; behind them is nobody's */
static struct raw raw;

static void set_up(void) {
    embed_slot = embed;
    backward_slot = embed_backward;
    for (int i = 0; i < 2 * SIZE; i++) tables[i] = 1.0f + 0x1p-12f, grads[i] = (float)i;
    for (int i = 2 * SIZE; i < 2 * SIZE + 8; i++) grads[i] = 1.0f + 0x1p-12f;
    raw_init(&raw);
    for (int i = 0; i < 2; i++) raw_param(&raw, NULL, tables + i * SIZE, grads + i * SIZE, SIZE);
    raw_op(&raw, OP("embedding", "embed(float(out a!) out[W], float table[?], int32 row[1], int W) -> void",
                    &embed_slot, .op_class = AMP_LOWER));
    raw_op(&raw, OP("embedding_backward", "embed_backward(float(a!) dtable[?], float dout[W], int32 row[1], int W) -> "
                    "void", &backward_slot, .op_class = AMP_LOWER, .backward_of = "embedding"));
}

static void tear_down(void) { raw_stop(&raw); }

TEST_FIXTURE(set_up, tear_down)

static void start(amp_level level, amp_switch emulate, amp_switch gate) {
    if (emulate != AMP_ON) raw.ops[1].bf16 = (amp_fn)embed_backward_bf16;
    raw_start(&raw, CONFIG(level, .emulate = emulate, .gate = gate));
}

static float through(float x) { return amp_bfloat16_to_float(amp_float_to_bfloat16(x)); }

/* Adds dout into row 1 of the second table's gradient, and nothing anywhere else. */
static void ck_adds(int offset) {
    const float dout[WIDTH] = { 1.0f + 0x1p-12f, 2.0f, -3.0f, 4.0f };
    const int row[] = { 1 };
    float expected[2 * SIZE + 8];
    memcpy(expected, grads, sizeof expected);
    for (int i = 0; i < WIDTH; i++) expected[SIZE + offset + WIDTH + i] += through(dout[i]);
    backward_slot(grads + SIZE + offset, dout, row, WIDTH);
    ck_ok(amp_check(raw.context));
    ck_assert_mem_eq(grads, expected, sizeof expected);
}

TEST_TIMES(the_rest_of_a_gradient, 3) {
    start(_i == 1 ? AMP_O5 : AMP_O4, _i == 2 ? AMP_DEFAULT : AMP_ON, AMP_DEFAULT);
    ck_adds(0);
    ck_adds(WIDTH); /* from its second row on */
}

TEST(what_is_neither_is_told_and_runs_as_it_comes) {
    const float dout[WIDTH] = { 1.0f + 0x1p-12f };
    const int row[] = { 0 };
    start(AMP_O4, AMP_ON, AMP_DEFAULT);
    backward_slot(grads + 2 * SIZE, dout, row, WIDTH);
    ck_assert_float_eq(grads[2 * SIZE], 2.0f * (1.0f + 0x1p-12f));
    ck_fails(AMP_ERR_NOT_FOUND, amp_check(raw.context));
    ck_says("dtable[?] points into no registered parameter, and into no gradient");
}

/* What floats there are in the memory of doubles nobody can say. */
TEST(a_parameter_of_another_type_has_no_rest) {
    static double doubles[SIZE];
    float out[WIDTH];
    const int row[] = { 0 };
    raw.buffers[0].dtype = AMP_FLOAT64, raw.buffers[0].data = doubles, raw.buffers[0].grad = NULL;
    raw.optimizer.n_params = 0;
    start(AMP_O4, AMP_ON, AMP_DEFAULT);
    embed_slot(out, (const float *)(const void *)doubles, row, WIDTH);
    ck_refused(AMP_ERR_NOT_FOUND, "table[?] points into no registered parameter", amp_check(raw.context));
}

/* The gate counts its elements, as it does those of a parameter: 8 behind the first row, and 4 of dout. */
TEST(the_gate_sees_it) {
    const float dout[WIDTH] = { 0 };
    const int row[] = { 0 };
    start(AMP_O4, AMP_DEFAULT, AMP_ON);
    for (uint64_t least = 12; least <= 13; least++) {
        ck_ok(amp_gate_set(raw.context, "embedding_backward", least));
        backward_slot(grads + WIDTH, dout, row, WIDTH);
        ck_assert_uint_eq(raw_stats(&raw, 1).gated, least - 12);
    }
}
