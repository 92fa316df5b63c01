/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What amp_config.verify sees of a call, and what is seen without it: one op with a slip, at O0 as it is and at O1
 * emulated. What is right has no finding, and the same bits as without verify.
 */
#include "found.h"
#include "raw.h"

#include "levels.h"

#include <stdbool.h>
#include <stdlib.h>

enum { N = 6, ROOM = 32 };

enum slip { RIGHT, UNWRITTEN, HALF, ADDS_TO_OUT, WRITES_IN, BEHIND, BEFORE, ASSIGNS, BEHIND_OUT, BEFORE_OUT };

/* out = 2 in, dw += in: but for the slip. */
static enum slip slip;

static void work(float *out, float *in, float *dw, int n) {
    for (int i = slip == UNWRITTEN ? n : 0; i < (slip == HALF ? n / 2 : n); i++)
        out[i] = (slip == ADDS_TO_OUT ? out[i] : 0.0f) + 2.0f * in[i];
    for (int i = 0; i < n; i++) dw[i] = (slip == ASSIGNS ? 0.0f : dw[i]) + in[i];
    if (slip == WRITES_IN) in[1] = 7.0f;
    if (slip == BEHIND) in[n] = 7.0f;
    if (slip == BEFORE) in[-1] = 7.0f;
    if (slip == BEHIND_OUT) out[n + 1] = 7.1f;
    if (slip == BEFORE_OUT) out[-1] = 7.1f;
}

static struct {
    void (*work)(float *, float *, float *, int);
} table;

static float in[ROOM], out[ROOM], w[ROOM], dw[ROOM];
static struct raw raw;

static const char right_schema[] = "work(float(out a!) out[n], float in[n], float(a!) dw[n], int32 n) -> void";

static void make(const char *schema) {
    table.work = work;
    for (int i = 0; i < ROOM; i++) in[i] = 0.25f * (float)(i + 1), w[i] = 1.0f, out[i] = dw[i] = 0.0f;
    raw_init(&raw);
    raw_param(&raw, "weight", w, dw, N);
    raw_op(&raw, OP("work", schema, &table.work, .op_class = AMP_LOWER));
}

static void start(const char *schema, amp_level level, amp_switch verify) {
    make(schema);
    if (level == AMP_O0) raw.ops[0].op_class = AMP_LEAVE;
    raw_start(&raw, CONFIG(level, .emulate = level == AMP_O0 ? AMP_DEFAULT : AMP_ON, .verify = verify,
                           .log = AMP_LOG_OFF));
}

static void tear_down(void) { raw_stop(&raw); }

TEST_FIXTURE(NULL, tear_down)

static const amp_level levels[] = { AMP_O0, AMP_O1 };

TEST_TIMES(what_is_right_is_the_same_and_sound, 2) {
    float plain[3][ROOM];
    start(right_schema, levels[_i], AMP_OFF);
    for (int i = 0; i < 3; i++) table.work(out, in, dw, N);
    raw_stop(&raw);
    memcpy(plain[0], out, sizeof out), memcpy(plain[1], in, sizeof in), memcpy(plain[2], dw, sizeof dw);
    start(right_schema, levels[_i], AMP_ON);
    ck_assert_msg(table.work != work, "verify wraps what has nothing to be cast too");
    for (int i = 0; i < 3; i++) table.work(out, in, dw, N);
    ck_assert_uint_eq(n_findings(raw.context), 0);
    ck_assert_mem_eq(plain[0], out, sizeof out);
    ck_assert_mem_eq(plain[1], in, sizeof in);
    ck_assert_mem_eq(plain[2], dw, sizeof dw);
}

static const struct {
    enum slip slip;
    const char *code;
    bool copies; /* seen where libamp hands out copies alone */
} slips[] = {
    { UNWRITTEN, "AMP-M23", false }, { HALF, "AMP-M23", false },  { ADDS_TO_OUT, "AMP-M24", false },
    { WRITES_IN, "AMP-M25", false }, { BEHIND, "AMP-M26", true }, { BEFORE, "AMP-M26", true },
    { ASSIGNS, "AMP-M28", false },   { BEHIND_OUT, "AMP-M26", true }, { BEFORE_OUT, "AMP-M26", true },
};
enum { N_SLIPS = sizeof slips / sizeof slips[0] };

TEST_TIMES(a_slip_of_an_op_is_found, 2 * N_SLIPS) {
    const amp_level level = levels[_i % 2];
    if (slips[_i / 2].copies && level == AMP_O0) return;
    start(right_schema, level, AMP_ON);
    slip = slips[_i / 2].slip;
    for (int i = 0; i < 2; i++) {
        table.work(out + 1, in + 1, dw, N);
        ck_assert_msg(found_of(raw.context, slips[_i / 2].code, "work"), "slip %d at O%d: %zu findings", slip, _i % 2,
                      n_findings(raw.context));
        ck_assert_uint_eq(n_findings(raw.context), 1);
    }
}

TEST_TIMES(without_verify_none_is_looked_for, N_SLIPS) {
    start(right_schema, AMP_O1, AMP_OFF);
    slip = slips[_i].slip;
    if (!slips[_i].copies) table.work(out + 1, in + 1, dw, N);
    ck_assert_uint_eq(n_findings(raw.context), 0);
}

/* An output that is larger than its extents: what the op wrote is where it would be without verify. */
TEST_TIMES(an_output_beyond_its_extents_is_not_lost, 4) {
    static const char strided[] =
        "work(float(out a!) out[2,n / 2 : n / 2 + 1], float in[n], float(a!) dw[n], int32 n) -> void";
    start(_i / 2 ? strided : right_schema, AMP_O1, _i % 2 ? AMP_ON : AMP_OFF);
    slip = BEHIND_OUT;
    table.work(out + 1, in, dw, N);
    ck_assert_int_eq(found_of(raw.context, "AMP-M26", "work") != 0, _i % 2);
    ck_assert(out[0] == 0.0f && out[1 + N + 1] == 7.1f);
    for (int i = 0; i < N; i++) ck_assert(out[1 + i] == 2.0f * in[i]);
}

/* What an op leaves out keeps what it was. */
TEST(unwritten_elements_are_put_back) {
    start(right_schema, AMP_O0, AMP_ON);
    slip = HALF;
    for (int i = 0; i < N; i++) out[i] = -1.0f;
    table.work(out, in, dw, N);
    for (int i = 0; i < N; i++) ck_assert(out[i] == (i < N / 2 ? 2.0f * in[i] : -1.0f));
}

TEST_TIMES(extents_beyond_a_registered_buffer_are_refused, 2) {
    start("work(float(out a!) out[n], float in[n], float(a!) dw[2 * n], int32 n) -> void", levels[_i], AMP_ON);
    table.work(out, in, dw, N);
    ck_assert(found_of(raw.context, "AMP-M27", "work"));
    ck_assert_msg(out[0] == 0.0f, "it has not run");
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_check(raw.context));
    ck_says("AMP-M27 op work: dw has 12 elements by its extents, and 6 are left");
}

TEST(a_slot_that_was_written_over_is_named) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    start(right_schema, AMP_O0, AMP_ON);
    void (*wrapper)(float *, float *, float *, int) = table.work;
    wrapper(out, in, dw, N);
    table.work = work;
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert(found_of(raw.context, "AMP-M29", "work"));
    table.work = wrapper;
}

/* The last value means nothing. */
TEST_TIMES(the_environment_asks_for_it_where_the_configuration_does_not, 12) {
    static const char *const values[] = { "1", "true", "Yes", "ON", "1", "0", "false", "No", "off", "", "2", "ye" };
    ck_assert_int_eq(setenv("AMP_VERIFY", values[_i], 1), 0);
    start(right_schema, AMP_O0, _i == 4 ? AMP_OFF : AMP_DEFAULT);
    ck_assert_int_eq(table.work != work, _i < 4);
}

/* Weights that a schema calls an output are not filled over, and neither is a gradient: the training is what it was. */
TEST_TIMES(what_is_registered_is_never_filled, 2) {
    static const char *const schemas[] = {
        "work(float(out a!) out[n], float(out b!) in[n], float(c!) dw[n], int32 n) -> void",
        "work(float(out a!) out[n], float in[n], float(out b!) dw[n], int32 n) -> void",
    };
    start(schemas[_i], AMP_O0, AMP_ON);
    for (int i = 0; i < 2; i++) table.work(out, _i ? in : w, dw, N);
    for (int i = 0; i < N; i++) {
        const float given = _i ? in[i] : 1.0f;
        ck_assert(out[i] == 2.0f * given && dw[i] == 2.0f * given && w[i] == 1.0f);
    }
    ck_assert(_i ? found_of(raw.context, "AMP-M24", "work") : found_of(raw.context, "AMP-M10", "weight"));
    ck_assert_uint_eq(n_findings(raw.context), 1);
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
    make(right_schema);
    raw.host.swap_data = swap_data;
    raw.ops[0].op_class = AMP_LEAVE;
    raw.optimizer.n_params = 0;
    raw_start(&raw, CONFIG(AMP_O5, .emulate = AMP_OFF, .verify = AMP_ON, .log = AMP_LOG_OFF));
    ck_assert_int_eq(raw.buffers[0].dtype, AMP_BFLOAT16);
    table.work(out, _i ? in : raw.buffers[0].data, dw, N / 2);
    ck_assert_int_eq(found_of(raw.context, "AMP-M60", "work") != 0, !_i);
    ck_assert_int_eq(out[0] != 0.0f, _i); /* refused, it has not run */
    ck_assert_int_eq(amp_check(raw.context) == AMP_OK, _i);
}

static unsigned long countdown; /* linked with --wrap */
WRAP(void *, calloc, size_t count, size_t size) {
    return countdown && !--countdown ? NULL : __real_calloc(count, size);
}
WRAP(void *, realloc, void *block, size_t bytes) {
    return countdown && !--countdown ? NULL : __real_realloc(block, bytes);
}

/* Whichever allocation fails, a call has run or has not: no input is changed, no result is half there. */
TEST_TIMES(without_memory_a_call_is_whole_or_not_at_all, 4) {
    bool complete = false;
    for (unsigned long at = 1; !complete; at++) {
        start(right_schema, levels[_i % 2], _i / 2 ? AMP_ON : AMP_OFF);
        countdown = at;
        table.work(out, w, dw, N);
        complete = countdown > 0;
        countdown = 0;
        const amp_status status = amp_check(raw.context);
        ck_assert_msg(at < 100 && (status == AMP_OK ? out[0] != 0.0f : status == AMP_ERR_NO_MEMORY),
                      "allocation %lu: %d", at, status);
        for (int i = 0; i < ROOM; i++) {
            const float factor = i < N && out[0] != 0.0f;
            ck_assert_msg(w[i] == 1.0f && out[i] == 2.0f * factor && dw[i] == factor,
                          "allocation %lu, element %d: %g, %g, %g", at, i, (double)w[i], (double)out[i], (double)dw[i]);
        }
        table.work(out, in, dw, N);
        ck_ok(amp_check(raw.context));
        ck_assert_float_eq(out[N - 1], 2.0f * in[N - 1]);
        raw_stop(&raw);
    }
}

/* ---- always ---- */

TEST(a_gradient_that_is_only_read_is_named) {
    start("work(float(out a!) out[n], float in[n], float dw[n], int32 n) -> void", AMP_O1, AMP_OFF);
    table.work(out, in, dw, N);
    ck_assert(found_of(raw.context, "AMP-M09", "weight"));
}

TEST(a_parameter_that_is_an_output_is_named) {
    start(right_schema, AMP_O1, AMP_OFF);
    table.work(w, in, dw, N);
    ck_assert(found_of(raw.context, "AMP-M10", "weight"));
}
